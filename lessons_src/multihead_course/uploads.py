"""Reads what a hand-in system gives an instructor: whose file it is, which attempt, and which lesson."""
from __future__ import annotations

import re
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead_course.build import STAMP
from multihead_course.grading.handed_in import MAX_BYTES, Cell, NeedsAPerson, cells_of

# In JSON no text can hold this: there, quotes are escaped.
STAMPED = re.compile(rf'"{STAMP}":\s*{{\s*"lesson":\s*"(\d\d_\w{{1,60}})"'.encode())
NOTEBOOKS = (".ipynb", ".ipynb.txt", ".ipynb.json", ".json")  # some browsers add an ending of their own
CLUTTER = re.compile(r"(?:^|/)(?:\.|__MACOSX/|__pycache__/|timestamp\.txt$|multihead_course-[^/]*\.whl$)")
# Path of a file -> who handed it in; the first pattern that fits counts. `id` is an nbgrader id, `name` a
# name as the system spells it, `number` the system's number for a student, `participant` one that Moodle
# draws anew for each assignment; `attempt`, `when` and `again` put the uploads of one student in order.
NAMINGS = tuple(map(re.compile, (
    # nbgrader's exchange: ada+03_the_4d_pipeline+2030-01-31 12:00:00 UTC+random/03_the_4d_pipeline.ipynb
    r"(?:^|/)(?P<id>[^/+]+)\+(?P<lesson>[^/+]+)\+(?P<when>\d{4}-\d\d-\d\d [^/+]+)(?:\+[^/]*)?/"
    r"(?P<file>[^/]+)$",
    # Moodle, with and without folders: Ada Lovelace_123_assignsubmission_file_/03_the_4d_pipeline.ipynb
    r"(?:^|/)(?P<name>[^/]+?)_(?P<participant>\d+)_assignsubmission_file(?:_?/(?:.*/)?|_)(?P<file>[^/]+)$",
    # Canvas: lovelaceada_LATE_123_456_03_the_4d_pipeline-1.ipynb
    r"(?:^|/)(?P<name>[^/_]+)(?:_(?P<late>LATE))?_(?P<number>\d+)_(?P<attempt>\d+)_"
    r"(?P<file>[^/]+?(?:-(?P<again>\d+))?(?: \(\d+\))?\.[^/]+)$",
    # a folder for each student, as in another submitted/: ada/03_the_4d_pipeline/03_the_4d_pipeline.ipynb
    r"(?:^|/)(?P<id>[^/]+)/(?P<lesson>\d\d_\w+)/(?P<file>[^/]+)$",
    r"^(?!\d\d_[a-z])(?P<id>[^/]+)/(?P<file>[^/]+)$",
)))


@dataclass(frozen=True)
class Upload:
    """One file that somebody handed in. `parts` is what its path says, empty if that fits no naming."""

    path: str  # in the zip or folder
    parts: Mapping[str, str | None]
    modified: float | tuple  # comparable within one zip or folder
    content: bytes | None  # None if it is left, because of
    problem: str | None

    @property
    def order(self) -> tuple:
        """Later uploads of one student come later in this order."""
        number = {key: int(self.parts.get(key) or 0) for key in ("attempt", "again")}
        return number["attempt"], self.parts.get("when") or "", number["again"], self.modified, self.path


def uploads(place: Path) -> Iterator[Upload]:
    """Every file in a zip or a folder, without what the release, systems and Jupyter put beside it."""
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                name = path.relative_to(place).as_posix()
                yield from _upload(name, stat.st_mtime, stat.st_size, path.read_bytes)
    elif zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield from _upload(entry.filename, entry.date_time, entry.file_size,
                                       lambda entry=entry: archive.read(entry))
    else:
        raise ValueError(f"{place} is neither a folder nor a zip file; give what your hand-in system offers.")


def _upload(path: str, modified: Any, size: int, read: Callable[[], bytes]) -> Iterator[Upload]:
    if CLUTTER.search(path):
        return
    match = next(filter(None, (naming.search(path) for naming in NAMINGS)), None)
    content = problem = None
    if not path.lower().endswith(NOTEBOOKS):
        problem = "not a notebook"
    elif size > MAX_BYTES:
        problem = f"{size >> 20} MB, more than {MAX_BYTES >> 20}"
    elif match is None:
        problem = "its name does not say whose it is; put it into a folder named by the student's id"
    else:
        try:
            content = read()
        except (OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error):
            problem = "it cannot be unpacked"
    yield Upload(path, match.groupdict() if match else {}, modified, content, problem)


# What is in it

def cells_in(upload: Upload) -> list[Cell] | None:
    """Its cells; None if it cannot be read."""
    try:
        return cells_of(upload.content, upload.path)
    except NeedsAPerson:
        return None


def lesson_of(upload: Upload, cells: Sequence[Cell] | None,
              lessons: Mapping[str, set[str]]) -> str | None:
    """Which lesson it is: by what it says, by what it defines, by its name; None if nothing tells.

    cells:    what `cells_in` makes of it
    lessons:  those released, each with the names of its exercises and questions; it may be another one
    """
    if stamp := STAMPED.search(upload.content):
        return stamp.group(1).decode()
    names = {name for cell in cells or () for name in (cell.name, *cell.binds)}
    shared = {lesson: len(names & own) for lesson, own in lessons.items()}
    best = [lesson for lesson, count in shared.items() if count and count == max(shared.values())]
    if len(best) == 1:
        return best[0]
    file = squashed(upload.parts.get("file") or "")  # people change signs and add words
    by_name = next((lesson for lesson in lessons if squashed(lesson) in file), upload.parts.get("lesson"))
    return by_name or (next(iter(lessons)) if cells is None and len(lessons) == 1 else None)


def squashed(text: str) -> str:
    """Letters and digits only, lower case, without accents: what every system leaves of a name."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(sign for sign in plain if sign.isalnum())
