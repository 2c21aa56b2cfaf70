"""Lessons as homework: `course release` makes an nbgrader course folder.

`source/LESSON/` is the instructor's copy, with solutions, model answers and rubrics between nbgrader's
markers. `release/LESSON/` is what students get: what `nbgrader generate_assignment` makes of the source, byte
for byte. nbgrader itself is not needed here.
"""
from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from multihead_course.build import CELL_TIMEOUT, EDITIONS, STAMP, lessons, notebook
from multihead_course.leaks import leaks
from multihead_course.lesson import ANSWER_STUB, STUB, Cell, Lesson
from multihead_course.wheel import build_wheel, wheel_name
from multihead_course.written import Written

CONFIG = "nbgrader_config.py"
LINK_TO_NOTEBOOK = re.compile(r"\[([^\]]+)\]\([^)\s]+\.ipynb(?:#[^)\s]*)?\)")
INSTALL = "python -m pip install ./{wheel}"
HOW_TO_INSTALL = """\
**Once, before the first cell.** This homework uses the course's own packages. They are the file that came
with this notebook; keep the two in one folder. Open a terminal in that folder, with the Python that runs your
notebooks, and run

```
{install}
```

Then restart the kernel."""


class ReleaseRefused(ValueError):
    """A release would overwrite what is not its own, or give something away."""


def release(root: Path, wanted: Sequence[str], out: Path, say: Callable[[str], None] = print) -> None:
    """Writes source and release of the wanted lessons into the course folder `out`, and nbgrader's settings.

    wanted: lessons as '03', '03_the_4d_pipeline' or a path that ends in the lesson's name

    Raises ReleaseRefused, before it writes anything, if a file there was edited, if a lesson has changed
    after its release and submissions are in, and if a release would give something away.
    """
    wheel, written = wheel_name(root), Written(out)
    planned = {lesson.name: _notebooks(lesson, wheel) for lesson in _chosen(wanted, lessons(root))}
    for name, files in planned.items():
        _refuse_changed_after_hand_in(out, name, files)
    _add_wheels(planned, wheel, root, written, say)
    _refuse_edited(planned, written)
    for name, files in planned.items():
        changed = [written.write(file, content) for file, content in files.items()]
        say(f"{name}: {'written to source/ and release/' if any(changed) else 'up to date'}")
        for old in written.names(f"source/{name}/") + written.names(f"release/{name}/"):
            if old not in files:
                written.remove(old)
    if written.in_the_way(CONFIG, _config()):
        say(f"{CONFIG}: yours, left as it is")
    else:
        written.write(CONFIG, _config())


def stale(root: Path, out: Path) -> list[str]:
    """One sentence for every released notebook in `out` that is not what `release` would write now."""
    wheel, written, sentences = wheel_name(root), Written(out), []
    course = {lesson.name: lesson for lesson in lessons(root)}
    for name in released(out):
        if name not in course:
            sentences.append(f"{name} is no lesson of this course.")
            continue
        for file, content in _notebooks(course[name], wheel).items():
            if not (out / file).exists():
                sentences.append(f"{file} is missing.")
            elif written.in_the_way(file, content):
                sentences.append(f"{file} was edited, or made by something else.")
            elif (out / file).read_bytes() != content:
                sentences.append(f"{file} was released before the lesson or the packages changed.")
    return sentences


def released(out: Path) -> list[str]:
    """Names of the lessons that the course folder `out` hands out."""
    return sorted(path.parent.name for path in out.glob("release/*/*.ipynb") if path.stem == path.parent.name)


def _chosen(wanted: Sequence[str], course: Sequence[Lesson]) -> list[Lesson]:
    if not course:
        raise ValueError("there are no lessons here; run course release from a clone of the course.")
    chosen = []
    for word in wanted:
        stem = Path(word).name.removesuffix(".py").removesuffix(".ipynb")
        found = [lesson for lesson in course if stem in (lesson.name, lesson.name.partition("_")[0])]
        if not found:
            names = ", ".join(lesson.name for lesson in course)
            raise ValueError(f"there is no lesson '{word}'; the lessons are {names}.")
        if not (found[0].named("exercise") or found[0].named("question")):
            raise ValueError(f"{found[0].name} has no exercise and no question: there is nothing to hand in.")
        chosen += found
    return chosen


def _notebooks(lesson: Lesson, wheel: str) -> dict[str, bytes]:
    """The two files of a lesson. Raises ReleaseRefused if the one for students gives something away."""
    source, handed_out = editions(lesson, wheel)
    if sentences := leaks(lesson, json.loads(nbformat.writes(handed_out))):
        raise ReleaseRefused(" ".join(sentences))
    return {f"{edition}/{lesson.name}/{lesson.name}.ipynb": (nbformat.writes(made) + "\n").encode()
            for edition, made in (("source", source), ("release", handed_out))}


# Into the folder

def _add_wheels(planned: Mapping[str, dict[str, bytes]], wheel: str, root: Path, written: Written,
                say: Callable[[str], None]) -> None:
    """Plans a wheel beside each notebook; beside the source too, because nbgrader copies what lies there."""
    names = {name: [f"{edition}/{name}/{wheel}" for edition in ("source", "release")] for name in planned}
    there = [wanted for pair in names.values() for wanted in pair if written.is_ours(wanted)]
    if not there:
        say(f"building {wheel}")
    content = (written.folder / there[0]).read_bytes() if there else build_wheel(root)
    for name, files in planned.items():
        files |= dict.fromkeys(names[name], content)


def _refuse_edited(planned: Mapping[str, Mapping[str, bytes]], written: Written) -> None:
    edited = [name for files in planned.values() for name, content in files.items()
              if written.in_the_way(name, content)]
    if edited:
        raise ReleaseRefused(f"{', '.join(edited)}: edited by hand or made by something else. Move it away, "
                             "and put changes into lessons_src/lessons, so that every release has them.")


def _refuse_changed_after_hand_in(out: Path, name: str, files: Mapping[str, bytes]) -> None:
    handed_out = f"release/{name}/{name}.ipynb"
    there = out / handed_out
    if any(out.glob(f"submitted/*/{name}")) and there.exists() and there.read_bytes() != files[handed_out]:
        raise ReleaseRefused(
            f"submissions for {name} are in, and the lesson or the packages have changed since its release: "
            "students would be marked against what they never had. Release it into another folder.")


# The two editions: the same cells with the same metadata, but for what nbgrader takes away and adds

def editions(lesson: Lesson, wheel: str) -> tuple[NotebookNode, NotebookNode]:
    """The lesson as nbgrader's source and as its release. `wheel` is the file that students install."""
    learner, solution = (notebook(lesson, edition, "", [lesson]) for edition in EDITIONS)
    pairs = zip(lesson.cells, solution.cells, strict=True)
    kept = [(cell, solved) for cell, solved in pairs if not cell.keys.get("teaching")]
    source, handed_out = [], []
    for (cell, solved), stub in zip(kept, learner.cells, strict=True):
        for made in (stub, solved):
            made.source = _standing_alone(made.source, wheel)
        source.append(_source_cell(cell, stub, solved))
        handed_out.append(_released(source[-1], stub.source))
        ours = [_install_cell(wheel)] if len(source) == 1 else []
        ours += [_grade_cell(cell.name, lesson)] if cell.kind == "check" else []
        source += ours
        handed_out += [_released(made, made.source) for made in ours]
    learner.metadata[STAMP] = {"lesson": lesson.name}
    return tuple(NotebookNode(copy.deepcopy({**learner, "cells": cells})) for cells in (source, handed_out))


def _standing_alone(text: str, wheel: str) -> str:
    """A release is a notebook and a wheel: no link leads to another lesson, and nobody has a clone."""
    text = LINK_TO_NOTEBOOK.sub(r"\1", text)
    text = text.replace("pip install -r requirements.txt", INSTALL.format(wheel=wheel))
    return text.replace("in the course's folder", "in this notebook's folder")


def _source_cell(cell: Cell, stub: NotebookNode, solved: NotebookNode) -> NotebookNode:
    made = copy.deepcopy(stub)
    if cell.kind == "exercise":
        made.source = _with_regions(stub.source, solved.source, STUB, "### {} SOLUTION")
        made.metadata["nbgrader"] = _nbgrader(cell.name, solution=True)
    elif cell.kind == "question":
        made.source = _with_regions(stub.source, solved.source, ANSWER_STUB, "<!-- {} SOLUTION -->")
        made.metadata["nbgrader"] = _nbgrader(cell.name, solution=True, points=cell.keys["points"])
    elif cell.kind == "check":
        made.metadata["nbgrader"] = _nbgrader(f"check_{cell.name}", locked=True)
    return made


def _with_regions(text: str, solved: str, stub: str, marker: str) -> str:
    """`solved`, with nbgrader's markers around everything that stands there in place of a stub of `text`."""
    stubs = re.compile(r"^([ \t]*)" + r"\n\1".join(map(re.escape, stub.splitlines())) + "$", re.MULTILINE)
    first, *others = stubs.split(text)
    indents, between = others[::2], others[1::2]
    bodies = re.fullmatch("(.*?)".join(map(re.escape, [first, *between])), solved, re.DOTALL).groups()
    return first + "".join(f"{indent}{marker.format('BEGIN')}\n{body}\n{indent}{marker.format('END')}{rest}"
                           for indent, body, rest in zip(indents, bodies, between, strict=True))


def _install_cell(wheel: str) -> NotebookNode:
    return new_markdown_cell(HOW_TO_INSTALL.format(install=INSTALL.format(wheel=wheel)), id="install")


def _grade_cell(name: str, lesson: Lesson) -> NotebookNode:
    points = lesson.named("exercise")[name].keys["points"]
    made = new_code_cell(f"# {points} points for {name}. An error here means: not passed yet.\n"
                         f"from multihead_lessons.exercises import grade\n\ngrade(\"{name}\", {name})",
                         id=f"grade_{name}")
    made.metadata["nbgrader"] = _nbgrader(f"grade_{name}", locked=True, points=points)
    made.metadata["tags"] = ["raises-exception"]  # "Run All" goes on past an exercise that is not passed yet
    return made


def _nbgrader(grade_id: str, *, solution: bool = False, locked: bool = False,
              points: int | None = None) -> dict:
    """Cell metadata of nbgrader's schema 3. With points it is a cell that gets a mark."""
    metadata = {"schema_version": 3, "grade_id": grade_id, "grade": points is not None, "solution": solution,
                "locked": locked, "task": False}
    return metadata if points is None else {**metadata, "points": points}


def _released(cell: NotebookNode, text: str) -> NotebookNode:
    """The cell as nbgrader hands it out: with this text, a checksum, and protection from slips."""
    made = copy.deepcopy(cell)
    made.source = text
    if metadata := made.metadata.get("nbgrader"):
        metadata.update(cell_type=made.cell_type, checksum=_checksum(made))
        made.metadata["deletable"] = False
        if metadata["locked"]:
            made.metadata["editable"] = False
    return made


def _checksum(cell: NotebookNode) -> str:
    """nbgrader's digest of what a student must not change: text, type, roles, name and points."""
    metadata = cell.metadata["nbgrader"]
    pieces = [cell.source, cell.cell_type]
    pieces += [metadata[key] for key in ("grade", "solution", "locked", "grade_id")]
    pieces += [float(metadata["points"])] if metadata["grade"] else []
    return hashlib.md5("".join(map(str, pieces)).encode(), usedforsecurity=False).hexdigest()


def _config() -> bytes:
    return f'''\
"""nbgrader's settings for this folder. `course release` writes them; once you edit them, they are yours."""
import os

c = get_config()  # noqa: F821
c.CourseDirectory.root = os.path.dirname(os.path.abspath(__file__))
c.CourseDirectory.course_id = "multihead"
c.Exchange.root = os.path.join(c.CourseDirectory.root, "exchange")  # on a server: one for all students
c.ClearSolutions.code_stub = {{"python": {STUB!r}}}
c.ClearSolutions.text_stub = {ANSWER_STUB!r}
c.Execute.timeout = {CELL_TIMEOUT}  # seconds, for one cell
c.Execute.shutdown_kernel = "immediate"
'''.encode()
