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

    That is a marker; the solution of an exercise, whole or three lines in a row; a line of a model answer or of a rubric; and
    metadata that this course does not hand out, such as that of a paired script. Outputs and metadata are searched too. A
    lesson may show lines of a solution in a code cell of its own: those cells are left out.

    made: the notebook, as JSON
    """
    shown = {cell.source for cell in lesson.cells if cell.kind == "code"}
    searched = [cell for cell in made["cells"] if "".join(cell["source"]) not in shown]
    lines = [line.strip() for text in _strings([*searched, made["metadata"]]) for line in text.splitlines() if line.strip()]
    page = "\n" + "\n".join(lines) + "\n"
    sentences = [f"marker '{marker.group().strip()}'" for marker in MARKER.finditer(page)]
    for name, secret in _secrets(lesson):
        if any("\n" + "\n".join(run) + "\n" in page for run in secret):
            sentences.append(f"what only an instructor may read of '{name}'")
    foreign = set(made["metadata"]) - NOTEBOOK_METADATA
    foreign |= {key for cell in made["cells"] for key in cell["metadata"]} - CELL_METADATA
    sentences += [f"metadata '{key}'" for key in sorted(foreign)]
    return [f"{lesson.name} holds {sentence}." for sentence in sentences]


def _secrets(lesson: Lesson) -> Iterator[tuple[str, list[Sequence[str]]]]:
    """For each exercise and question the runs of lines that give it away."""
    for name, cell in lesson.named("exercise").items():
        lines = solution_lines(cell)
        yield name, [lines, *(lines[i:i + 3] for i in range(len(lines) - 2))]
    for name, cell in lesson.named("question").items():
        parts = QUESTION.match(cell.source)
        yield name, [[line.strip()] for line in f"{parts['answer']}\n{parts['rubric']}".splitlines() if line.strip()]


def _strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value; a list of texts is one text, as in a notebook's files."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        if value and all(isinstance(part, str) for part in value):
            yield "".join(value)
        else:
            for part in value:
                yield from _strings(part)
