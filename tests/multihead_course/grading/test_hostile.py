"""Submissions that cheat, do damage or are broken: none is paid, none stops the batch, no mark is lost."""
import os
import sqlite3

import pytest
from hostile import BANK, SECRET, Hostile
from submissions import LESSON, POINTS, QUICK, RIGHT, course_folder, hand_in, solved

from multihead_course.grading.batch import grade
from multihead_course.grading.feedback import feedback
from multihead_course.grading.marks import Marks

HANGS = ("endless", "sleeps", "thread bomb", "memory", "daemon", "alarm", "garbage", "forged", "4 GB",
         "400 MB", "deep", "too large")
SWIFT = [case for case in BANK if not any(word in case.name for word in HANGS)][::4]


def _graded(folder, cases):
    """Marks of a class in which every case sits between two honest students."""
    course = course_folder(folder / "course")
    (course / "source" / LESSON / f"{LESSON}.ipynb").open("a").write(SECRET)
    with sqlite3.connect(course / "gradebook.db") as db:
        db.execute("create table grade (manual_score, note)")
        db.execute("insert into grade values (1, ?)", [SECRET])
    for student in ("aaa", "zzz"):
        hand_in(course, student, solved(**RIGHT))
    for case in cases:
        case.put(course, _student(case))
    os.environ["MULTIHEAD_SECRET"] = SECRET
    try:
        grade(course, folder / "marks", jobs=2, limits=QUICK, say=lambda sentence: None)
    finally:
        del os.environ["MULTIHEAD_SECRET"]
    return course, Marks(folder / "marks")


def _student(case):
    return "".join(sign if sign.isalnum() else "_" for sign in case.name)


def _check(case, marks):
    record = marks.students[_student(case)][LESSON]
    found = {name: mark.state for name, mark in record.exercises.items()}
    sentences = {name: mark.message for name, mark in record.exercises.items()}
    assert found == case.states, sentences
    assert case.says in sentences["split_heads"], sentences
    for name, mark in record.exercises.items():
        assert mark.points == {"passed": POINTS[name], "needs a person": None}.get(mark.state, 0)
        assert mark.state == "passed" or len(mark.message) > 15


@pytest.fixture(scope="module")
def swift(tmp_path_factory):
    return _graded(tmp_path_factory.mktemp("swift"), SWIFT)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    return _graded(tmp_path_factory.mktemp("everything"), BANK)


@pytest.mark.parametrize("case", SWIFT, ids=lambda case: case.name)
def test_swift(swift, case: Hostile):
    _check(case, swift[1])


@pytest.mark.slow
@pytest.mark.parametrize("case", BANK, ids=lambda case: case.name)
def test_every(everything, case: Hostile):
    _check(case, everything[1])


@pytest.mark.slow
def test_the_others_are_untouched_and_nothing_leaks(everything):
    course, marks = everything
    for student in ("aaa", "zzz"):
        assert all(mark.state == "passed" for mark in marks.students[student][LESSON].exercises.values())
    feedback(marks.folder)
    for path in [marks.path, *(marks.folder / "feedback").iterdir()]:
        assert SECRET not in path.read_text(encoding="utf-8"), path.name
        assert "<script>" not in path.read_text(encoding="utf-8")
    with sqlite3.connect(course / "gradebook.db") as db:
        assert db.execute("select manual_score from grade").fetchall() == [(1,)]
    assert oct(course.stat().st_mode)[-3:] != "000"


def test_the_bank_is_large_enough():
    assert len(BANK) >= 60 and len({_student(case) for case in BANK}) == len(BANK)
