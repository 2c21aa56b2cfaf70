"""Reads what a hand-in system gives an instructor: whose file it is, of which attempt, and which lesson it holds."""
from __future__ import annotations

import json
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead_course.build import STAMP

LARGEST = 50 * 2**20  # bytes; a notebook with pictures has far less
NOTEBOOKS = (".ipynb", ".ipynb.txt", ".ipynb.json", ".json")  # some browsers add an ending of their own
CLUTTER = re.compile(r"(?:^|/)(?:\.|__MACOSX/|__pycache__/|timestamp\.txt$|multihead_course-[^/]*\.whl$)")
# Path of a file -> who handed it in; the first pattern that fits counts. `id` is an nbgrader id, `name` a name as the system
# spells it, `number` the system's number for a student, `participant` one that Moodle draws anew for each assignment;
# `attempt`, `when` and `again` put the uploads of one student in order.
NAMINGS = tuple(map(re.compile, (
    # nbgrader's exchange: ada+03_the_4d_pipeline+2030-01-31 12:00:00 UTC+random/03_the_4d_pipeline.ipynb
    r"(?:^|/)(?P<id>[^/+]+)\+(?P<lesson>[^/+]+)\+(?P<when>[^/+]+)(?:\+[^/]*)?/(?P<file>[^/]+)$",
    # Moodle, with and without a folder for each student: Ada Lovelace_123_assignsubmission_file_/03_the_4d_pipeline.ipynb
    r"(?:^|/)(?P<name>[^/]+?)_(?P<participant>\d+)_assignsubmission_file(?:_?/(?:.*/)?|_)(?P<file>[^/]+)$",
    # Canvas: lovelaceada_LATE_123_456_03_the_4d_pipeline-1.ipynb
    r"(?:^|/)(?P<name>[^/_]+)(?:_(?P<late>LATE))?_(?P<number>\d+)_(?P<attempt>\d+)_"
    r"(?P<file>[^/]+?(?:-(?P<again>\d+))?(?: \(\d+\))?\.[^/]+)$",
    # a folder for each student, as in submitted/ of another course folder: ada/03_the_4d_pipeline/03_the_4d_pipeline.ipynb
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
        return (int(self.parts.get("attempt") or 0), self.parts.get("when") or "", int(self.parts.get("again") or 0),
                self.modified, self.path)


def uploads(place: Path) -> Iterator[Upload]:
    """Every file in a zip or a folder, without what the release, operating systems and Jupyter put beside it."""
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                yield from _upload(path.relative_to(place).as_posix(), stat.st_mtime, stat.st_size, path.read_bytes)
    elif zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield from _upload(entry.filename, entry.date_time, entry.file_size,
                                       lambda entry=entry: archive.read(entry))
    else:
        raise ValueError(f"{place} is neither a folder nor a zip file; give what your hand-in system lets you download.")


def _upload(path: str, modified: Any, size: int, read: Callable[[], bytes]) -> Iterator[Upload]:
    if CLUTTER.search(path):
        return
    match = next(filter(None, (naming.search(path) for naming in NAMINGS)), None)
    content = problem = None
    if not path.lower().endswith(NOTEBOOKS):
        problem = "not a notebook"
    elif size > LARGEST:
        problem = f"{size >> 20} MB, more than {LARGEST >> 20}"
    elif match is None:
        problem = "its name does not say whose it is; put it into a folder named by the student's id"
    else:
        try:
            content = read()
        except (OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error):
            problem = "it cannot be unpacked"
    yield Upload(path, match.groupdict() if match else {}, modified, content, problem)


# What is in it

def parse(content: bytes) -> dict | None:
    """The notebook as JSON, whatever encoding an editor gave it; None if it cannot be read."""
    for encoding in ("utf-8-sig", "utf-16", "latin-1"):
        try:
            made = json.loads(content.decode(encoding).strip("\0 \r\n\t"))
        except (ValueError, RecursionError):
            continue
        return made if isinstance(made, dict) and isinstance(made.get("cells"), list) else None
    return None


def lesson_of(upload: Upload, made: dict | None, handed_out: Mapping[str, set[str]]) -> str | None:
    """Which lesson it is, by what the notebook says, what it defines, its name; None if nothing tells.

    handed_out: lesson -> names of its exercises and questions. The answer may be a lesson that is not among them.
    """
    if made is None:
        return _lesson_by_name(upload, handed_out) or (next(iter(handed_out)) if len(handed_out) == 1 else None)
    metadata = made.get("metadata")
    stamp = metadata.get(STAMP) if isinstance(metadata, dict) else None
    if isinstance(stamp, dict) and isinstance(stamp.get("lesson"), str):
        return stamp["lesson"]
    names = names_in(made)
    shared = {lesson: len(names & exercises) for lesson, exercises in handed_out.items()}
    best = [lesson for lesson, count in shared.items() if count and count == max(shared.values())]
    return best[0] if len(best) == 1 else _lesson_by_name(upload, handed_out)


def _lesson_by_name(upload: Upload, handed_out: Mapping[str, set[str]]) -> str | None:
    """By the name of the file, in which people change signs and add words, or by that of its folder."""
    name = squashed(upload.parts.get("file") or "")
    return next((lesson for lesson in handed_out if squashed(lesson) in name), upload.parts.get("lesson"))


def names_in(made: Mapping[str, Any]) -> set[str]:
    """Names of nbgrader's cells, and of the functions and classes that a cell defines."""
    names: set[str] = set()
    for cell in made["cells"]:
        if not isinstance(cell, dict):
            continue
        metadata, source = cell.get("metadata"), cell.get("source") or ""
        marked = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        if isinstance(marked, dict) and isinstance(marked.get("grade_id"), str):
            names.add(marked["grade_id"])
        text = source if isinstance(source, str) else "".join(map(str, source))
        names |= set(re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE))
    return names


def squashed(text: str) -> str:
    """Letters and digits only, lower case, without accents: what every system leaves of a name."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(sign for sign in plain if sign.isalnum())
