"""What a notebook for learners must not hold."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from multihead_course.build import STAMP
from multihead_course.lesson import MARKER, QUESTION, Lesson, solution_lines

NOTEBOOK_METADATA = {"kernelspec", "language_info", STAMP}
CELL_METADATA = {"nbgrader", "tags", "deletable", "editable"}


def leaks(lesson: Lesson, made: Mapping[str, Any]) -> list[str]:
    """One sentence for everything in a notebook of `lesson` that only an instructor may read.

    That is a marker; the solution of an exercise, whole or three lines in a row; a line of a model answer or
    of a rubric; and metadata that this course does not hand out, such as that of a paired script. Outputs and
    metadata are searched too. Code that the lesson shows in a cell of its own is left out.

    made: the notebook, as JSON
    """
    shown = {cell.source for cell in lesson.cells if cell.kind == "code"}
    cells = [{**cell, "source": ""} if "".join(cell["source"]) in shown else cell for cell in made["cells"]]
    lines = [line.strip() for text in _strings([*cells, made["metadata"]]) for line in text.splitlines()]
    page = "\n" + "\n".join(filter(None, lines)) + "\n"
    found = [f"marker '{marker.group().strip()}'" for marker in MARKER.finditer(page)]
    found += [f"what only an instructor may read of '{name}'" for name, runs in _secrets(lesson)
              if any("\n" + "\n".join(run) + "\n" in page for run in runs)]
    foreign = {key for cell in made["cells"] for key in cell["metadata"]} - CELL_METADATA
    foreign |= set(made["metadata"]) - NOTEBOOK_METADATA
    found += [f"metadata '{key}'" for key in sorted(foreign)]
    return [f"{lesson.name} holds {what}." for what in found]


def _secrets(lesson: Lesson) -> Iterator[tuple[str, list[Sequence[str]]]]:
    """For each exercise and question the runs of lines that give it away."""
    for name, cell in lesson.named("exercise").items():
        lines = solution_lines(cell)
        yield name, [lines, *(lines[i:i + 3] for i in range(len(lines) - 2))]
    for name, cell in lesson.named("question").items():
        parts = QUESTION.match(cell.source)
        lines = f"{parts['answer']}\n{parts['rubric']}".splitlines()
        yield name, [[line.strip()] for line in lines if line.strip()]


def _strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value; a list of texts is one text, as in a notebook's file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings(list(value.values()))
    elif isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        yield "".join(value)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
