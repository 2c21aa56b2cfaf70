"""The hand-over to nbgrader: marks into its gradebook, notebooks to where its tools look for them.

From there formgrader, `nbgrader generate_feedback` and `nbgrader export` go on as after `nbgrader autograde`.
A score that a person has given there is never changed.
"""
from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multihead_course.grading import handed_in
from multihead_course.grading.handed_in import NeedsAPerson, Released, Submission
from multihead_course.grading.marks import Mark, Marks, Record, number

COURSE_ID = "multihead"  # as in the nbgrader_config.py that course release writes


def hand_over(folder: Path, course: Path) -> list[str]:
    """Puts the marks of `folder` into COURSE/gradebook.db and notebooks into COURSE/autograded.

    Returns sentences.

    Raises ValueError if nbgrader is not installed here.
    """
    marks = Marks.existing(folder)
    try:
        from nbgrader.api import Gradebook
    except ImportError:
        raise ValueError("nbgrader is not installed here; run `python -m pip install nbgrader`.") from None
    database = f"sqlite:///{course.resolve()}/gradebook.db"
    with warnings.catch_warnings(), _own_programs_on_path(), Gradebook(database, COURSE_ID) as gradebook:
        warnings.simplefilter("ignore")  # of SQLAlchemy, about nbgrader's own code
        releases = {lesson: _registered(gradebook, course, lesson) for lesson in marks.lessons}
        sentences = []
        for student, lesson, record in marks.records():
            _enter(gradebook, course, student, lesson, record)
            if not _write_notebook(course, student, lesson, record, *releases[lesson]):
                sentences.append(f"{student} / {lesson}: there is no readable notebook to show; the scores "
                                 "wait for a person")
    count = sum(len(records) for records in marks.students.values())
    return [*sentences, f"{count} submissions are in {course / 'gradebook.db'}; formgrader, nbgrader "
            "generate_feedback and nbgrader export go on from there."]


@contextlib.contextmanager
def _own_programs_on_path() -> Iterator[None]:
    """nbgrader calls `alembic` by name, and an environment need not be activated."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _registered(gradebook: Any, course: Path, lesson: str) -> tuple[Released, dict]:
    """The lesson's release; nbgrader knows its cells afterwards, as after `nbgrader generate_assignment`."""
    import nbformat
    from nbgrader.api import MissingEntry
    from nbgrader.preprocessors import SaveCells

    path = course / "release" / lesson / f"{lesson}.ipynb"
    try:
        gradebook.find_notebook(lesson, lesson)
    except MissingEntry:
        gradebook.update_or_create_assignment(lesson)
        about = {"notebook": lesson, "assignment": lesson, "db_url": str(gradebook.engine.url)}
        SaveCells().preprocess(nbformat.read(path, as_version=4), {"nbgrader": about})
        gradebook.db.expire_all()  # another session has written
    return handed_in.released(path), json.loads(path.read_text(encoding="utf-8"))


def _enter(gradebook: Any, course: Path, student: str, lesson: str, record: Record) -> None:
    from nbgrader.utils import parse_utc

    gradebook.update_or_create_student(student)
    when = course / "submitted" / student / lesson / "timestamp.txt"
    about = {"timestamp": parse_utc(when.read_text(encoding="utf-8").strip())} if when.exists() else {}
    gradebook.update_or_create_submission(lesson, student, **about)
    for grade in gradebook.find_submission_notebook(lesson, lesson, student).grades:
        mark = _mark_of(record, grade.name)
        grade.auto_score = mark.points
        if grade.manual_score is None:
            grade.needs_manual_grade = not mark.settled
    gradebook.db.commit()


def _mark_of(record: Record, cell: str) -> Mark:
    return record.questions.get(cell) or record.exercises[cell.removeprefix("grade_")]


def _write_notebook(course: Path, student: str, lesson: str, record: Record, release: Released,
                    skeleton: dict) -> bool:
    """The released notebook with the student's answers, other cells, and our sentences. False if empty."""
    folder = course / "submitted" / student / lesson
    try:
        submission = Submission(handed_in.read(folder / (record.notebook or f"{lesson}.ipynb")), release)
        readable = True
    except NeedsAPerson:
        submission, readable = Submission([], release), False
    made = copy.deepcopy(skeleton)
    extra = _extra_cells(submission)
    made["cells"] = [*extra[-1]] + [cell for i, released in enumerate(made["cells"])
                                    for cell in (_answered(released, submission, record), *extra[i])]
    path = course / "autograded" / student / lesson / f"{lesson}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8", newline="\n")
    return readable


def _answered(cell: dict, submission: Submission, record: Record) -> dict:
    name = (cell["metadata"].get("nbgrader") or {}).get("grade_id", "")
    if name in record.exercises and (found := submission.definition(name)):
        cell["source"] = found.source
    elif name in record.questions:
        cell["source"] = submission.answer(name) or cell["source"]
    elif (exercise := name.removeprefix("grade_")) != name:
        text = _sentence(record.exercises[exercise])
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]
    return cell


def _sentence(mark: Mark) -> str:
    points = f"{number(mark.points)} of {number(mark.max_points)} points" if mark.settled else "no points yet"
    return f"{mark.state}, {points}: {mark.message}\n"


def _extra_cells(submission: Submission) -> dict[int, list[dict]]:
    """What the student added, by the index of the released cell that it follows."""
    places = {cell.normal: i for i, cell in enumerate(submission.release.cells)}
    names = {cell.name: i for i, cell in enumerate(submission.release.cells) if cell.name}
    shown = [submission.definition(name) for name in submission.release.exercises]
    extra: dict[int, list[dict]] = defaultdict(list)
    place = -1
    for number_, cell in enumerate(submission.cells):
        found = places.get(cell.normal, names.get(cell.name))
        if found is not None:
            place = found
        elif cell.normal and not any(cell is other for other in shown):
            made = {"id": f"added-{number_}", "cell_type": cell.kind, "metadata": {}, "source": cell.source}
            if cell.kind == "code":
                made |= {"outputs": [], "execution_count": None}
            extra[place].append(made)
    return extra
