"""One submission into marks."""
from __future__ import annotations

import socket
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from multihead_course.grading import handed_in, wire
from multihead_course.grading.forking import ForkingProcessGone
from multihead_course.grading.handed_in import Cell, NeedsAPerson, Released, Submission
from multihead_course.grading.marks import (
    BY_HAND, FAILED, NEEDS_A_PERSON, NOT_ATTEMPTED, PASSED, Mark, Record,
)
from multihead_course.grading.remote import Failure, Program, RemoteAnswer, Session
from multihead_course.grading.sandbox import Limits
from multihead_lessons import exercises
from multihead_lessons.exercises import Verdict, examine
from multihead_lessons.running import TORCH_ATTENTION, EndedProcess

TORCH_LAYERS = {"MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer"}
SHOWN_FAILURES = 3


def judge(control: socket.socket, limits: Limits, release: Released, folder: Path, lesson: str,
          seed: int) -> Record:
    """The marks for the submission in `folder`, whatever is in there. The record's digest is left empty."""
    file, notes = "", []
    try:
        path, notes = handed_in.the_notebook(folder, lesson)
        file = path.relative_to(folder).as_posix()
        submission = Submission(handed_in.read(path), release)
        with Session(control, limits, _program(submission)) as session:
            marks = {name: _exercise(session, submission, name, seed) for name in release.exercises}
        questions = {question: _question(submission, question) for question in release.questions}
    except NeedsAPerson as reason:
        return for_a_person(release, file, str(reason))
    except ForkingProcessGone:
        raise
    except Exception as error:  # the grader's own fault must not become the student's
        return for_a_person(release, file, _our_fault(error))
    return Record(file, "", marks, questions, notes)


def _our_fault(error: Exception) -> str:
    return f"the grader failed on this: {type(error).__name__}: {error}"


def for_a_person(release: Released, notebook: str, reason: str) -> Record:
    """A record in which no program has given or refused a point."""
    marks = [{name: Mark(NEEDS_A_PERSON, None, part.points, reason) for name, part in parts.items()}
             for parts in (release.exercises, release.questions)]
    return Record(notebook, "", *marks)


def _question(submission: Submission, question: str) -> Mark:
    written = submission.answer(question) is not None
    return Mark(BY_HAND, None, submission.release.questions[question].points,
                "A person reads this answer." if written else "There is no answer here yet.")


def _program(submission: Submission) -> Program:
    number = {id(cell): f"cell {i}" for i, cell in enumerate(submission.cells, 1)}
    cells = [(number.get(id(cell), f"lesson cell {i}"), cell.source)
             for i, cell in enumerate(submission.program())]
    names = list(submission.release.exercises)
    return Program(cells, names, {name: submission.uses(name) for name in names})


def _exercise(session: Session, submission: Submission, name: str, seed: int) -> Mark:
    most = submission.release.exercises[name].points
    if not submission.attempted(name):
        return Mark(NOT_ATTEMPTED, 0, most, "not attempted yet.")
    try:
        mark, missed = _examined(session, submission, name, seed, alone=False)
        if missed and mark.state != PASSED:
            mark, _ = _examined(session, submission, name, seed, alone=True)
        return mark
    except EndedProcess:
        return Mark(NEEDS_A_PERSON, None, most, "its cells end or stop the process again and again.")
    except ForkingProcessGone:
        raise
    except Exception as error:
        return Mark(NEEDS_A_PERSON, None, most, _our_fault(error))


def _examined(session: Session, submission: Submission, name: str, seed: int,
              alone: bool) -> tuple[Mark, bool]:
    """The mark, and whether a library's version was asked for that is missing there."""
    with RemoteAnswer(session, name, alone) as answer:
        failures = answer.here.failures
        if name not in answer.here.found:
            return _not_found(submission, session.program, name, failures), answer.missed
        kind = answer.here.found[name]
        verdict = examine(name, answer if kind is None else wire.stand_in(kind), seed=seed)
        notes = _torch_note(submission, name, verdict) + list(map(str, failures[:SHOWN_FAILURES]))
        most = submission.release.exercises[name].points
        return _mark(verdict, most, answer.refused + failures, notes), answer.missed


def _mark(verdict: Verdict, most: float, failures: list[Failure], notes: list[str]) -> Mark:
    if verdict.passed:
        return Mark(PASSED, most, most, verdict.message, None, notes)
    if verdict.misconception == exercises.NOT_ATTEMPTED:
        return Mark(NOT_ATTEMPTED, 0, most, verdict.message, None, notes)
    refused = next((failure for failure in failures if failure.refused), None)
    if refused and verdict.misconception == "unknown":
        return Mark(NEEDS_A_PERSON, None, most, _asks_too_much(refused), None, notes)
    return Mark(FAILED, 0, most, verdict.message, verdict.misconception, notes)


def _asks_too_much(refused: Failure) -> str:
    return f"the code asks for something that is not open to it while it is graded: {refused}"


def _not_found(submission: Submission, program: Program, name: str, failures: list[Failure]) -> Mark:
    """The cells ran, and afterwards nothing has the exercise's name."""
    most, cell = submission.release.exercises[name].points, submission.definition(name)
    own = [failure for failure in failures if failure.label == _label(program, cell)]
    if any(failure.kind == "LibraryMissing" for failure in own):
        return Mark(FAILED, 0, most, f"this uses the library's own {name}; write it yourself.", "library")
    if refused := next((failure for failure in own if failure.refused), None):
        return Mark(NEEDS_A_PERSON, None, most, _asks_too_much(refused))
    if own:
        return Mark(FAILED, 0, most, f"there is no {name}, because its cell fails: {own[0]}", "cell fails")
    if cell and name not in cell.binds and cell.binds:
        others = " and ".join(sorted(cell.binds))
        return Mark(NEEDS_A_PERSON, None, most, f"the cell of {name} defines {others} instead.")
    return Mark(NEEDS_A_PERSON, None, most, f"nothing here is named {name} once all cells have run.")


def _label(program: Program, cell: Cell | None) -> str | None:
    return next((label for label, source in program.cells if cell and source == cell.source), None)


def _torch_note(submission: Submission, name: str, verdict: Verdict) -> list[str]:
    """What the fork says that it saw, and what stands in the source, which nobody can hide from."""
    cell = submission.definition(name)
    named = sorted(cell.mentions & {*TORCH_ATTENTION, *TORCH_LAYERS}) if cell else []
    return list(verdict.notes) or [f"its source names torch's own {word}" for word in named]


def serve(line: Connection, control: socket.socket, limits: Limits, releases: Mapping[str, Released],
          seeds: Mapping[str, int]) -> None:
    """Takes (folder, lesson) from the line and puts a record on it, or a sentence for why all must stop."""
    torch.set_num_threads(1)
    while True:
        try:
            folder, lesson = line.recv()
        except EOFError:
            return
        try:
            line.send(judge(control, limits, releases[lesson], folder, lesson, seeds[lesson]))
        except ForkingProcessGone as gone:
            line.send(str(gone))
