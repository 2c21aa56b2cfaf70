"""Marks for other programs: CSV for Canvas, for Moodle, and plain, and JSON. `course export`.

A mark that no program could give is an empty cell, never 0.
"""
from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from multihead_course.collect import Student, read_roster
from multihead_course.grading.marks import Mark, Marks, number, write

FORMATS = ("plain", "json", "canvas", "moodle", "nbgrader")
# By these a student is known there.
CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
MOODLE_COLUMNS = ("Username", "ID number", "Email address", "First name", "Last name", "Surname")


def export(folder: Path, form: str, roster: Path | None = None,
           out: Path | None = None) -> tuple[Path, list[str]]:
    """Writes one file, by default FOLDER/export/..., and returns its path and sentences on what is not in it.

    form:   plain, json, canvas or moodle
    roster: the students, as Canvas or Moodle exports them; Canvas needs it
    """
    marks = Marks.existing(folder)
    if form == "canvas" and roster is None:
        raise ValueError("Canvas knows students by numbers of its own: export the gradebook there, and give "
                         "that file as --roster.")
    students = read_roster(roster) if roster else None
    made = {"plain": _plain, "json": _json, "canvas": _canvas, "moodle": _moodle}[form](marks, students)
    path = out or folder / "export" / f"{form}.{'json' if form == 'json' else 'csv'}"
    write(path, made)
    return path, _left_out(marks, students)


def _rows(marks: Marks) -> list[dict]:
    return [{"student": student, "lesson": lesson, "name": name, "kind": kind, "state": mark.state,
             "points": _points(mark.points), "max_points": _points(mark.max_points),
             "misconception": mark.misconception or ""}
            for student, lesson, record in marks.records()
            for kind, group in (("exercise", record.exercises), ("question", record.questions))
            for name, mark in group.items()]


def _plain(marks: Marks, roster: Sequence[Student] | None) -> str:
    header = ("student", "lesson", "name", "kind", "state", "points", "max_points", "misconception")
    wanted = _wanted(roster)
    rows = [row for row in _rows(marks) if wanted is None or row["student"] in wanted]
    return _csv(header, [[row[key] for key in header] for row in rows])


def _wanted(roster: Sequence[Student] | None) -> set[str] | None:
    """The students whose marks are wanted; None for everybody."""
    return None if roster is None else {student.id for student in roster}


def _json(marks: Marks, roster: Sequence[Student] | None) -> str:
    wanted = _wanted(roster)
    students: dict[str, dict] = {}
    for student, lesson, record in marks.records():
        if wanted is None or student in wanted:
            found = {name: _without_notes(mark) for name, mark in record.marks()}
            students.setdefault(student, {})[lesson] = found
    return json.dumps({"lessons": marks.lessons, "students": students}, indent=1) + "\n"


def _without_notes(mark: Mark) -> dict:
    return {key: value for key, value in asdict(mark).items() if key != "notes"}


def _canvas(marks: Marks, roster: Sequence[Student]) -> str:
    """A column for each lesson's exercises, named as the roster names the assignment, number and all."""
    lessons = sorted(marks.lessons)
    columns = roster[0].row
    known = [name for name in CANVAS_COLUMNS if name in columns]
    names = [next((name for name in columns if _is_column_of(lesson, name)), lesson) for lesson in lessons]
    possible = [number(_possible(marks, lesson)) for lesson in lessons]
    first = ["    Points Possible", *[""] * (len(known) - 1), *possible]
    return _csv([*known, *names], [first, *_student_rows(marks, roster, known)])


def _is_column_of(lesson: str, name: str) -> bool:
    return re.fullmatch(rf"{re.escape(lesson)}( \(\d+\))?", name) is not None


def _moodle(marks: Marks, roster: Sequence[Student] | None) -> str:
    """A column for each lesson's exercises. Without a roster the students' ids are taken to be user names."""
    if roster is None:
        roster = [Student(student, frozenset(), "", {"Username": student}) for student in sorted(marks.students)]
    known = [name for name in MOODLE_COLUMNS if roster and name in roster[0].row]
    return _csv([*known, *sorted(marks.lessons)], _student_rows(marks, roster, known))


def _student_rows(marks: Marks, students: Sequence[Student], known: Sequence[str]) -> list[list[str]]:
    return [[*(student.row[name] for name in known),
             *(_total(marks, student.id, lesson) for lesson in sorted(marks.lessons))] for student in students]


def _total(marks: Marks, student: str, lesson: str) -> str:
    """The sum over the exercises; empty where one of them needs a person, and where nothing was handed in."""
    record = marks.students.get(student, {}).get(lesson)
    if record is None or not all(mark.settled for mark in record.exercises.values()):
        return ""
    return number(sum(mark.points for mark in record.exercises.values()))


def _possible(marks: Marks, lesson: str) -> float:
    return sum(about["max_points"] for about in marks.lessons[lesson].values() if about["kind"] == "exercise")


def _points(points: float | None) -> str:
    return "" if points is None else number(points)


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    page = io.StringIO()
    csv.writer(page, lineterminator="\n").writerows([header, *rows])
    return page.getvalue()


def _left_out(marks: Marks, roster: Sequence[Student] | None) -> list[str]:
    """A sentence for every mark that a person must give, and for everybody who is on one list only."""
    sentences = marks.for_a_person()
    waiting = sum(not mark.settled for _, _, record in marks.records() for mark in record.questions.values())
    if waiting:
        sentences.append(f"{waiting} free answers are for manual grading; the columns of lessons hold the "
                         "exercises alone.")
    if roster is not None:
        known, marked = {student.id for student in roster}, set(marks.students)
        sentences += [f"{student} has marks and is not in the roster" for student in sorted(marked - known)]
        sentences += [f"{student} is in the roster and has no marks" for student in sorted(known - marked)]
    return sentences
