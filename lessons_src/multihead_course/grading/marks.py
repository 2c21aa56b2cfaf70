"""The folder of marks: what every submission got and why, the secret seeds, and which guards held.

    MARKS/marks.json   lessons, and for each student and lesson the marks
    MARKS/seeds.json   one secret number for each lesson: the same inputs when it is graded again
    MARKS/feedback/    made from marks.json by `course feedback`
"""
from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, NOT_ATTEMPTED = "passed", "failed", "not attempted"
BY_HAND, NEEDS_A_PERSON = "for manual grading", "needs a person"
FORMAT = 1


@dataclass
class Mark:
    """What one exercise or question got. points is None where no program gave any: that is not 0.

    message is for the student, notes are for the instructor.
    """

    state: str
    points: float | None
    max_points: float
    message: str = ""
    misconception: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        return self.points is not None


@dataclass
class Record:
    """One student's submission to one lesson.

    digest: of everything that the marks depend on; as long as it is the same there is nothing to grade again
    """

    notebook: str
    digest: str
    exercises: dict[str, Mark]
    questions: dict[str, Mark]
    notes: list[str] = field(default_factory=list)

    def marks(self) -> Iterator[tuple[str, Mark]]:
        """Exercises, then questions, by name."""
        yield from self.exercises.items()
        yield from self.questions.items()


class Marks:
    """The marks of a class.

    lessons:  lesson -> name of exercise or question -> {"kind", "max_points", "heading"}
    students: student -> lesson -> Record
    guards:   names of the guards that held
    """

    def __init__(self, folder: Path):
        """Reads what is there; empty for a folder without marks. Raises ValueError for a damaged file."""
        self.folder = folder
        self.lessons: dict[str, dict[str, dict[str, Any]]] = {}
        self.students: dict[str, dict[str, Record]] = {}
        self.guards: list[str] = []
        if self.path.exists():
            try:
                self._read(json.loads(self.path.read_text(encoding="utf-8")))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path} is damaged ({error}); move it away and grade again.") from None

    @classmethod
    def existing(cls, folder: Path) -> Marks:
        """The marks in a folder. Raises ValueError if there are none."""
        if not (folder / "marks.json").exists():
            raise ValueError(f"there are no marks in {folder}; make them with course grade COURSE "
                             f"--out {folder}.")
        return cls(folder)

    @property
    def path(self) -> Path:
        return self.folder / "marks.json"

    def _read(self, stored: dict) -> None:
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']}, not {FORMAT}")
        self.lessons, self.guards = stored["lessons"], stored["guards"]
        for student, records in stored["students"].items():
            for lesson, record in records.items():
                for kind in ("exercises", "questions"):
                    record[kind] = {name: Mark(**mark) for name, mark in record[kind].items()}
                self.students.setdefault(student, {})[lesson] = Record(**record)

    def save(self) -> None:
        """Writes marks.json, whole or not at all."""
        students = {student: {lesson: asdict(record) for lesson, record in sorted(records.items())}
                    for student, records in sorted(self.students.items())}
        stored = {"format": FORMAT, "guards": self.guards, "lessons": self.lessons, "students": students}
        write(self.path, json.dumps(stored, indent=1) + "\n")

    def seed(self, lesson: str) -> int:
        """The lesson's secret number, drawn when it is first asked for."""
        path = self.folder / "seeds.json"
        seeds = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if lesson not in seeds:
            seeds[lesson] = secrets.randbits(48)
            write(path, json.dumps(seeds, indent=1) + "\n", private=True)
        return seeds[lesson]

    def for_a_person(self) -> list[str]:
        """One sentence for each exercise that no program could judge."""
        return [f"{student} / {lesson} / {name} needs a person: {mark.message}"
                for student, lesson, record in self.records()
                for name, mark in record.exercises.items() if mark.state == NEEDS_A_PERSON]

    def records(self) -> Iterator[tuple[str, str, Record]]:
        """(student, lesson, record), sorted."""
        for student in sorted(self.students):
            for lesson in sorted(self.students[student]):
                yield student, lesson, self.students[student][lesson]


def changes(old: Marks, new: Marks) -> list[str]:
    """One sentence for each mark that differs, and for each that is in only one of the two."""
    before, after = _flat(old), _flat(new)
    sentences = []
    for key in sorted(before.keys() | after.keys()):
        where, was, now = " / ".join(key), before.get(key), after.get(key)
        if was is None or now is None:
            sentences.append(f"{where}: {'new' if was is None else 'no longer there'}, {_short(now or was)}")
        elif (was.state, was.points, was.misconception) != (now.state, now.points, now.misconception):
            sentences.append(f"{where}: {_short(was)} -> {_short(now)}")
    return sentences


def _flat(marks: Marks) -> dict[tuple[str, str, str], Mark]:
    return {(student, lesson, name): mark for student, lesson, record in marks.records()
            for name, mark in record.marks()}


def _short(mark: Mark) -> str:
    reason = f" ({mark.misconception})" if mark.misconception else ""
    points = f", {number(mark.points)} of {number(mark.max_points)}" if mark.settled else ""
    return f"{mark.state}{reason}{points}"


def number(points: float) -> str:
    """Points without a decimal point that says nothing."""
    return f"{points:g}"


def write(path: Path, text: str, private: bool = False) -> None:
    """Replaces a file in one step, so that nobody ever sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(0o600 if private else 0o666)
    draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    os.replace(draft, path)
