"""Handed-in notebooks into a course folder: `course collect`."""
from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from multihead_course.grading import handed_in
from multihead_course.release import released
from multihead_course.uploads import Upload, cells_in, lesson_of, squashed, uploads
from multihead_course.written import Written

COLUMNS = {  # what a column of a roster is called when nbgrader, Canvas or Moodle exports it
    "id": ("id", "SIS Login ID", "ID number", "Username"),
    "number": ("lms_user_id", "ID"),
    "first": ("first_name", "First name"),
    "last": ("last_name", "Last name", "Surname"),
    "name": ("Student",),
}
STUDENT_ID = re.compile(r"\w[\w.@' -]{0,99}")  # it becomes the name of a folder, and nbgrader forbids '+'


@dataclass(frozen=True)
class Student:
    """A row of a roster. `names` are as `squashed` leaves them; `number` is the hand-in system's.

    row: the whole row, by the names of its columns
    """

    id: str
    names: frozenset[str]
    number: str
    row: Mapping[str, str] = field(hash=False)


@dataclass
class HandIn:
    """An upload and what became of it. It was taken if there is no problem."""

    upload: Upload
    student: str | None = None
    lesson: str | None = None
    readable: bool = True
    replaces: bool = False
    problem: str | None = None


def collect(place: Path, course: Path, roster_file: Path | None = None) -> list[str]:
    """Puts every student's last notebook into `course/submitted/STUDENT/LESSON/`, under the lesson's name.

    place:        a zip or folder from Canvas or Moodle, an inbound folder of nbgrader's exchange, or a folder
                  that has one folder for each student
    roster_file:  a CSV with a column for ids and, better, for names or the hand-in system's numbers

    Returns sentences: for each student what was taken, what was left and why, and what is missing. A notebook
    that somebody has edited in `submitted/` stays.
    """
    lessons = {name: _names(course / "release" / name / f"{name}.ipynb") for name in released(course)}
    if not lessons:
        raise ValueError(f"{course} holds no released lesson; run course release LESSON --out {course}.")
    roster = read_roster(roster_file) if roster_file else None
    found = [HandIn(upload, problem=upload.problem) for upload in uploads(place)]
    _name_students(found, roster)
    for hand_in in found:
        if not hand_in.problem:
            _name_lesson(hand_in, lessons)
    _keep_the_last(found)
    _write(found, Written(course))
    return _report(found, course, roster)


def _names(path: Path) -> set[str]:
    """Of the exercises and questions of a released notebook."""
    release = handed_in.released(path)
    return {*release.exercises, *release.questions}


# The roster

def read_roster(path: Path) -> list[Student]:
    """The students of a CSV, as nbgrader, Canvas or Moodle export it. Raises ValueError if it is unusable."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            rows, header = list(table), table.fieldnames or []
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a CSV in UTF-8: {error}") from None
    if not set(COLUMNS["id"]) & set(header):
        raise ValueError(f"{path.name} has no column for students' ids: it needs one of "
                         f"{', '.join(COLUMNS['id'])}, and has {', '.join(header) or 'none'}.")
    students = [student for student in map(_student, rows) if student.id]  # Canvas has a row for the points
    if not students:
        raise ValueError(f"{path.name} has no students: no row has an id.")
    ids = [student.id.casefold() for student in students]
    for student in students:
        if not STUDENT_ID.fullmatch(student.id):
            raise ValueError(f"{path.name}: '{student.id}' cannot be an id; letters, digits, . _ - @ can.")
        if ids.count(student.id.casefold()) > 1:
            raise ValueError(f"{path.name}: two students have the id '{student.id}'.")
    return students


def _student(row: Mapping[str, str | None]) -> Student:
    row = {name: value or "" for name, value in row.items() if name is not None}
    value = {key: next(filter(None, (row.get(name, "").strip() for name in names)), "")
             for key, names in COLUMNS.items()}
    first, last = squashed(value["first"]), squashed(value["last"])
    names = {first + last, last + first, squashed(value["name"])} - {""}
    return Student(value["id"], frozenset(names), value["number"], row)


# Whose is it?

def _name_students(found: Sequence[HandIn], roster: Sequence[Student] | None) -> None:
    numbers = defaultdict(set)  # student -> the hand-in system's numbers; several are several people
    for hand_in in found:
        if parts := hand_in.upload.parts:
            hand_in.student, problem = _by_name(parts) if roster is None else _by_roster(parts, roster)
            hand_in.problem = hand_in.problem or problem
            numbers[hand_in.student].add(parts.get("number") or parts.get("participant"))
    for hand_in in found:
        if hand_in.student and len(numbers[hand_in.student]) > 1:
            hand_in.problem = (f"several people hand in under the name that stands for '{hand_in.student}'; "
                               "put their notebooks into folders named by their ids, and collect those")


def _by_name(parts: Mapping[str, str | None]) -> tuple[str | None, str | None]:
    """A student's id, or a problem."""
    student = parts.get("id") or re.sub(r"[^\w-]+", "_", parts["name"].casefold()).strip("_")
    if STUDENT_ID.fullmatch(student):
        return student, None
    return None, f"'{student}' cannot be an id"


def _by_roster(parts: Mapping[str, str | None], roster: Sequence[Student]) -> tuple[str | None, str | None]:
    """A student's id, or a problem."""
    given, number = parts.get("id"), parts.get("number")
    who = given or parts["name"]
    matches = ([student for student in roster if given and student.id.casefold() == given.casefold()]
               or [student for student in roster if number and student.number == number]
               or [student for student in roster if squashed(who) in student.names])
    if not matches:
        return None, f"'{who}' is not in the roster"
    if len(matches) > 1:
        return None, f"{len(matches)} students of the roster are called '{who}'"
    return matches[0].id, None


# Which lesson is it, and which upload counts?

def _name_lesson(hand_in: HandIn, lessons: Mapping[str, set[str]]) -> None:
    cells = cells_in(hand_in.upload)
    hand_in.readable = cells is not None
    hand_in.lesson = lesson_of(hand_in.upload, cells, lessons)
    if hand_in.lesson is None:
        hand_in.problem = "nothing in it belongs to a released lesson"
    elif hand_in.lesson not in lessons:
        hand_in.problem = f"it is {hand_in.lesson}, which was not released into this course folder"


def _keep_the_last(found: Sequence[HandIn]) -> None:
    """Of several uploads of a student for a lesson the last counts that can be read."""
    groups = defaultdict(list)
    for hand_in in found:
        if not hand_in.problem:
            groups[hand_in.student, hand_in.lesson].append(hand_in)
    for group in groups.values():
        *others, last = sorted(group, key=lambda hand_in: (hand_in.readable, hand_in.upload.order))
        for hand_in in others:
            hand_in.problem = (f"{last.upload.path} is later" if hand_in.readable
                               else "it cannot be read, and another one counts")


def _write(found: Sequence[HandIn], written: Written) -> None:
    for hand_in in found:
        if hand_in.problem:
            continue
        folder = f"submitted/{hand_in.student}/{hand_in.lesson}"
        name = f"{folder}/{hand_in.lesson}.ipynb"
        if written.in_the_way(name, hand_in.upload.content):
            hand_in.problem = f"{name} was edited or comes from elsewhere; move it away to take this one"
            continue
        there = (written.folder / name).exists()
        hand_in.replaces = written.write(name, hand_in.upload.content) and there
        if when := hand_in.upload.parts.get("when"):
            written.write(f"{folder}/timestamp.txt", when.encode())


# What happened?

def _report(found: Sequence[HandIn], course: Path, roster: Sequence[Student] | None) -> list[str]:
    taken = [hand_in for hand_in in found if not hand_in.problem]
    lessons = sorted({hand_in.lesson for hand_in in taken}) or released(course)
    students = ([student.id for student in roster] if roster is not None
                else sorted({hand_in.student for hand_in in found if hand_in.student}))
    sentences, missing = [], 0
    for student in students:
        own = [hand_in for hand_in in found if hand_in.student == student]
        sentences += map(_sentence, own)
        for lesson in lessons:
            if any(hand_in.lesson == lesson and not hand_in.problem for hand_in in own):
                continue
            there = (course / "submitted" / student / lesson / f"{lesson}.ipynb").exists()
            sentences.append(f"{student}: {lesson} {'was collected before' if there else 'is missing'}.")
            missing += not there
    sentences += [_sentence(hand_in) for hand_in in found if hand_in.student is None]
    sentences.append(f"Taken: {len(taken)}. Left: {len(found) - len(taken)}. Missing: {missing}.")
    return [_printable(sentence) for sentence in sentences]


def _sentence(hand_in: HandIn) -> str:
    who = f"{hand_in.student}: " if hand_in.student else ""
    if hand_in.problem:
        return f"{who}left {hand_in.upload.path}: {hand_in.problem}."
    late = ", late" if hand_in.upload.parts.get("late") else ""
    instead = ", in place of an earlier one" if hand_in.replaces else ""
    unreadable = ". It cannot be read: look at it yourself" if not hand_in.readable else ""
    return f"{who}took {hand_in.upload.path} as {hand_in.lesson}{late}{instead}{unreadable}."


def _printable(sentence: str) -> str:
    """Names of files are a stranger's words: they must not move the terminal's cursor."""
    return "".join(sign if sign.isprintable() else "?" for sign in sentence)
