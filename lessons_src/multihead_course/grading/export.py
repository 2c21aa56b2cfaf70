"""Marks for other programs: CSV for Canvas, for Moodle and for nobody in particular, and JSON. `course export`.

A mark that no program could give is an empty cell, never 0.
"""
from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from multihead_course.collect import COLUMNS
from multihead_course.grading.marks import NEEDS_A_PERSON, Mark, Marks, Record, number, write

FORMATS = ("plain", "json", "canvas", "moodle", "nbgrader")
CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")  # those by which Canvas knows a student
MOODLE_COLUMNS = ("Username", "ID number", "Email address", "First name", "Last name", "Surname")


def export(folder: Path, form: str, roster: Path | None = None, out: Path | None = None) -> tuple[Path, list[str]]:
    """Writes one file, by default FOLDER/export/..., and returns its path and sentences about what is not in it.

    form:   plain, json, canvas or moodle
    roster: the students, as Canvas or Moodle exports them; Canvas needs it
    """
    marks = Marks.existing(folder)
    if form == "canvas" and roster is None:
        raise ValueError("Canvas knows students by numbers of its own: export the gradebook there, and give that file as --roster.")
    rows = _roster(roster) if roster else None
    made = {"plain": _plain, "json": _json, "canvas": _canvas, "moodle": _moodle}[form](marks, rows)
    path = out or folder / "export" / f"{form}.{'json' if form == 'json' else 'csv'}"
    write(path, made)
    return path, _left_out(marks, rows)


def _rows(marks: Marks) -> list[dict]:
    return [{"student": student, "lesson": lesson, "name": name, "kind": kind, "state": mark.state, "points": mark.points,
             "max_points": mark.max_points, "misconception": mark.misconception or ""}
            for student, lesson, record in marks.records()
            for kind, group in (("exercise", record.exercises), ("question", record.questions)) for name, mark in group.items()]


def _plain(marks: Marks, roster: Sequence[Mapping[str, str]] | None) -> str:
    header = ("student", "lesson", "name", "kind", "state", "points", "max_points", "misconception")
    rows = _rows(marks)
    if roster is not None:
        rows = [row for row in rows if row["student"] in {_id(student) for student in roster}]
    return _csv(header, [[_points(row[key]) if key in ("points", "max_points") else row[key] for key in header] for row in rows])


def _json(marks: Marks, roster: Sequence[Mapping[str, str]] | None) -> str:
    wanted = None if roster is None else {_id(student) for student in roster}
    students = {student: {lesson: {name: {key: value for key, value in asdict(mark).items() if key != "notes"}
                                   for name, mark in record.marks()} for lesson, record in sorted(records.items())}
                for student, records in sorted(marks.students.items()) if wanted is None or student in wanted}
    return json.dumps({"lessons": marks.lessons, "students": students}, indent=1) + "\n"


def _canvas(marks: Marks, roster: Sequence[Mapping[str, str]]) -> str:
    """One column for each lesson's exercises; where the roster has an assignment of that name, its column, number and all."""
    known = [name for name in CANVAS_COLUMNS if name in roster[0]]
    columns = {lesson: next((name for name in roster[0] if re.fullmatch(rf"{re.escape(lesson)}( \(\d+\))?", name)), lesson)
               for lesson in sorted(marks.lessons)}
    possible = ["    Points Possible", *[""] * (len(known) - 1), *(number(_possible(marks, lesson)) for lesson in columns)]
    return _csv([*known, *columns.values()], [possible, *(
        [student[name] for name in known] + [_total(marks, _id(student), lesson) for lesson in columns]
        for student in roster if _id(student))])


def _moodle(marks: Marks, roster: Sequence[Mapping[str, str]] | None) -> str:
    """One column for each lesson's exercises. Without a roster the students' ids are taken to be user names."""
    students = [{"Username": student} for student in sorted(marks.students)] if roster is None else roster
    known = [name for name in MOODLE_COLUMNS if students and name in students[0]]
    return _csv([*known, *sorted(marks.lessons)], [
        [student[name] for name in known] + [_total(marks, _id(student), lesson) for lesson in sorted(marks.lessons)]
        for student in students if _id(student)])


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


def _roster(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [{str(name): value or "" for name, value in row.items()} for row in csv.DictReader(file)]
    if not rows or not any(name in rows[0] for name in COLUMNS["id"]):
        raise ValueError(f"{path.name} has no students, or no column for their ids: it needs one of {', '.join(COLUMNS['id'])}.")
    return rows


def _id(student: Mapping[str, str]) -> str:
    return next((student[name].strip() for name in COLUMNS["id"] if student.get(name, "").strip()), "")


def _left_out(marks: Marks, roster: Sequence[Mapping[str, str]] | None) -> list[str]:
    """One sentence for every mark that a person must give, and for everybody who is on one list only."""
    sentences = [f"{student} / {lesson} / {name} needs a person: {mark.message}" for student, lesson, record in marks.records()
                 for name, mark in _for_a_person(record)]
    questions = sum(not mark.settled for _, _, record in marks.records() for mark in record.questions.values())
    if questions:
        sentences.append(f"{questions} free answers are for manual grading; the lessons' columns hold the exercises alone.")
    if roster is not None:
        known = {_id(student) for student in roster} - {""}
        sentences += [f"{student} has marks and is not in the roster" for student in sorted(set(marks.students) - known)]
        sentences += [f"{student} is in the roster and has no marks" for student in sorted(known - set(marks.students))]
    return sentences


def _for_a_person(record: Record) -> list[tuple[str, Mark]]:
    return [(name, mark) for name, mark in record.exercises.items() if mark.state == NEEDS_A_PERSON]
