"""Answers that live in a fork, for `examine` to judge as if they were here."""
from __future__ import annotations

import builtins
import contextlib
import dataclasses
import re
import socket
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import multihead
from multihead_course.grading import sandbox, wire
from multihead_course.grading.forking import Fork
from multihead_lessons import calling
from multihead_lessons.running import Elsewhere, EndedProcess, Outcome, TookTooLong

STARTS = 6  # forks for one program: each statement that ends the process or hangs is skipped in the next
SEEN = {"torch attention", "library source"}  # what a fork may report to have seen
ENDS = {"TookTooLong": "does not come to an end", "EndedProcess": "ends the process"}
PLACE = re.compile(r'line (\d+)(?:, "(.*)",)?', re.DOTALL)
LONG_NUMBER = re.compile(r"[-+]?\d*\.\d+(?:e[-+]?\d+)?|\d{6,}", re.IGNORECASE)
LONG_WORD = re.compile(r"\S{60,}")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


@dataclasses.dataclass
class Program:
    """What runs before an answer can be called.

    cells:     (label, source)
    exercises: the names of this notebook's exercises
    uses:      for each of them the names that its answer looks up, itself or through others of the student's
    skip:      [cell, statement] pairs that were found to hang or to end the process
    """

    cells: Sequence[tuple[str, str]]
    exercises: Sequence[str]
    uses: Mapping[str, frozenset[str]]
    skip: list[list[int]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Failure:
    """What raised: a statement of a cell with this label, or a call (then the label is empty)."""

    label: str
    kind: str
    text: str
    where: str

    @property
    def refused(self) -> bool:
        """Whether it was a guard that said no."""
        words = ("ermission denied", "not permitted")
        return self.kind == "PermissionError" or any(word in self.text for word in words)

    def __str__(self) -> str:
        place = ", ".join(filter(None, [self.label, self.where.rstrip(",")])) or "a call"
        what = ENDS.get(self.kind, f"raises {self.kind}")
        return f"{place} {what}" + (f": {self.text}" if self.text else "")


@dataclasses.dataclass
class Started:
    """A fork in which a program has run.

    found:    exercise -> None if its name means something that can be called, else the name of its type
    own:      those that can be called and are not the library's
    failures: what raised while the cells ran
    """

    fork: Fork
    found: dict[str, str | None]
    own: set[str]
    failures: list[Failure]
    calls: int = 0


class Session:
    """A submission's program and the forks in which it runs. A context manager.

    Answers share one fork, as they share a kernel. The library's versions of all exercises are taken away
    there. An answer that calls one of them, as it may where it is another exercise's, gets a fork in which
    only its own is missing.
    """

    def __init__(self, control: socket.socket, limits: sandbox.Limits, program: Program):
        self.control, self.limits, self.program = control, limits, program
        self._shared: Started | None = None
        self._died: list[Failure] = []  # statements after which a fork was gone

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shared:
            self._shared.fork.__exit__()

    def shared(self) -> Started:
        """The fork of all answers; a new one if the last answer ended it."""
        if self._shared and not self._shared.fork.alive:
            self._shared.fork.__exit__()
            self._shared = None
        if self._shared is None:
            self._shared = self.start(self.program.exercises)
        self._shared.fork.give_time()
        return self._shared

    def start(self, without: Sequence[str], helpers: Sequence[str] = ()) -> Started:
        """A fork in which the cells have run, but for statements that hang or end it.

        Raises EndedProcess if none lives.

        without: exercises whose library versions are taken away first
        helpers: names that mean the library's functions afterwards
        """
        for _ in range(STARTS):
            fork = Fork(self.control, self.limits)
            try:
                return fork.ask(
                    {"do": "cells", "cells": list(self.program.cells), "skip": self.program.skip,
                     "without": list(without), "helpers": list(helpers), "ask": list(self.program.exercises)},
                    self.limits.statement, lambda reply: self._read(fork, reply))
            except BaseException as error:
                fork.__exit__()
                if not isinstance(error, (TookTooLong, EndedProcess)):
                    raise
                self._skip(fork, type(error).__name__)
        raise EndedProcess

    def _read(self, fork: Fork, reply: dict) -> Started:
        failures = [self.failure(about, self.program.cells[cell][0]) for cell, _, about in reply["failures"]]
        self.program.skip += [[int(cell), int(statement)] for cell, statement, about in reply["failures"]
                              if about["type"] == "TookTooLong"]
        found = {str(name): None if kind is None else str(kind) for name, kind in reply["found"].items()}
        own = {name for name in map(str, reply["own"]) if found.get(name, name) is None}
        return Started(fork, found, own, self._died + failures)

    def _skip(self, fork: Fork, kind: str) -> None:
        """Takes note of the statement after which the fork was gone."""
        cell, statement = fork.at or (-1, -1)
        if cell not in range(len(self.program.cells)) or [cell, statement] in self.program.skip:
            raise EndedProcess
        self.program.skip.append([cell, statement])
        self._died.append(Failure(self.program.cells[cell][0], kind, "", ""))

    def failure(self, about: dict, label: str = "") -> Failure:
        """What a fork says about an exception, as far as a student may read it."""
        kind = about["type"] if wire.NAME.fullmatch(about["type"]) else "Exception"
        return Failure(label, kind, public(about["text"]), self._place(about["where"]))

    def _place(self, where: str) -> str:
        """`line 3, "x + 1",` if the cells hold that text, else nothing: inputs must not leave this way."""
        found = PLACE.fullmatch(where)
        if not found or found[2] and not any(found[2] in source for _, source in self.program.cells):
            return ""
        return where


class RemoteOutcome(Outcome):
    """An outcome whose returned object stayed in the fork; `returned` fetches it."""

    def now(self) -> Any:
        try:
            return self.returned()
        except (TookTooLong, EndedProcess):
            return self.value


class RemoteAnswer(Elsewhere):
    """A student's object of this name. A context manager; it raises EndedProcess if no fork lives.

    alone:   in a fork in which only this exercise's library version is missing
    missed:  whether a version that is missing was asked for
    refused: what a call asked for and a guard refused
    """

    def __init__(self, session: Session, name: str, alone: bool = False):
        self.session, self.name, self.alone = session, name, alone
        self.refused: list[Failure] = []

    def __enter__(self) -> RemoteAnswer:
        self.here = self.session.start([self.name]) if self.alone else self.session.shared()
        self.missed = any(failure.kind == "LibraryMissing" for failure in self.here.failures)
        return self

    def __exit__(self, *_: object) -> None:
        if self.alone:
            self.here.fork.__exit__()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outcome = self.outcome(calling.plainly, types.SimpleNamespace(args=args, kwargs=kwargs))
        if outcome.failed:
            raise outcome.error
        return outcome.value

    def outcome(self, run: Callable[[Any, Any], Any], case: Any) -> Outcome:
        fork, number, seconds = self.here.fork, self.here.calls, self.session.limits.call
        request = {"do": "call", "name": self.name, "run": run.__name__, "args": case.args,
                   "kwargs": dict(case.kwargs)}
        try:
            outcome = fork.ask(request, seconds, self._read)
        except (TookTooLong, EndedProcess) as error:
            error.where = "the call"  # where in it, nobody can say any more
            return RemoteOutcome(error=error)
        self.here.calls += 1
        again = {"do": "again", "number": number}
        outcome.returned = lambda: fork.ask(again, seconds, lambda reply: reply["value"])
        return outcome

    def _read(self, reply: dict) -> RemoteOutcome:
        outcome = RemoteOutcome(
            differentiable=bool(reply["differentiable"]), changed_inputs=bool(reply["changed"]),
            drew_random_numbers=bool(reply["drew"]), seen={name for name in reply["seen"] if name in SEEN})
        if "error" not in reply:
            outcome.value = reply["value"]
            return outcome
        failure = self.session.failure(reply["error"])
        if failure.refused:
            self.refused.append(failure)
        if failure.kind == "LibraryMissing":
            outcome.seen.add("library function")
            self.missed = True
        outcome.error = _exception(failure)
        return outcome

    def own_helpers(self, references: Mapping[str, Any]) -> dict[str, Any]:
        used = self.session.program.uses[self.name] & self.here.own - {self.name}
        return {name: reference for name, reference in references.items()
                if name in used and getattr(multihead, name, None) is reference}

    @contextlib.contextmanager
    def standing_in(self, helpers: Mapping[str, Any]) -> Iterator[None]:
        before, self.here = self.here, self.session.start([self.name], list(helpers))
        try:
            yield
        finally:
            self.here.fork.__exit__()
            self.here = before


def _exception(failure: Failure) -> BaseException:
    """An exception as it was raised there, without its traceback: of the class of that name, if known."""
    if failure.kind == "TookTooLong":
        error: BaseException = TookTooLong()
    else:
        kind = getattr(builtins, failure.kind, None) or getattr(calling, failure.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = type(failure.kind, (Exception,), {})
        try:
            error = kind(failure.text)
        except TypeError:  # one that takes more than a text
            error = Exception(failure.text)
    error.where = failure.where or "the call"
    return error


def public(text: str) -> str:
    """An exception's text as a student may read it: one line, without the numbers that were sent in."""
    text = UNPRINTABLE.sub(" ", text)
    return LONG_WORD.sub("...", LONG_NUMBER.sub("...", text)).strip()
