"""The grader's side of the line: starts the forking process, and lets `examine` judge an answer that lives in a fork."""
from __future__ import annotations

import builtins
import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import multihead
from multihead_course.grading import sandbox, wire
from multihead_lessons import calling
from multihead_lessons.running import Elsewhere, EndedProcess, Outcome, TookTooLong

STARTS = 6   # forks for one answer: each statement that ends the process or hangs is skipped in the next
PACKAGES = Path(multihead.__file__).resolve().parents[1]
KEPT_VARIABLES = ("HOME", "PATH", "LANG", "MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")  # while it imports

T = TypeVar("T")
SEEN = {"torch attention", "library source"}  # what a fork may report to have seen
PLACE = re.compile(r'line (\d+)(?:, "(.*)",)?', re.DOTALL)
LONG_NUMBER = re.compile(r"[-+]?\d*\.\d+(?:e[-+]?\d+)?|\d{6,}", re.IGNORECASE)
LONG_WORD = re.compile(r"\S{60,}")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


class ForkingProcessGone(Exception):
    """There is nobody to fork."""


# The forking process

class ForkingProcess:
    """The process that forks one process for each answer. A context manager."""

    def __init__(self, hidden: Sequence[Path], limits: sandbox.Limits = sandbox.Limits()):
        """Starts it and does not wait. `hidden` is what no submission may read: the course folder, the marks."""
        self.limits = limits
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {"limits": dataclasses.asdict(limits), "imports": _imports(), "readable": list(map(str, _readable())),
                    "hidden": [str(path.resolve()) for path in (*hidden, *_exercises()) if path.exists()]}
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment |= {"MPLBACKEND": "Agg", "PYTHONPATH": str(PACKAGES)}
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-B", "-m", "multihead_course.grading.worker", str(other.fileno())],
                pass_fds=[other.fileno()], env=environment, stdin=subprocess.PIPE, start_new_session=True)
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(json.dumps(settings).encode())

    def guards(self) -> list[str]:
        """Waits until it is ready. The names of the guards that held when a first fork tried to get past them."""
        if self.control.recv(16) != b"ready":
            raise RuntimeError("the process that runs the submissions did not start; its own words are above.")
        with Fork(self.control, self.limits) as fork:
            return fork.ask({"do": "try guards"}, 20, lambda reply: list(reply["held"]))

    def __enter__(self) -> ForkingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()  # at the end of the line it ends by itself
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _imports() -> list[str]:
    """What lessons import; loaded once, before anything is hidden."""
    ours = [f"{package}.{path.stem}" for package in ("multihead", "multihead_lessons")
            for path in sorted((PACKAGES / package).glob("*.py")) if path.stem != "__init__"]
    return ours + [name for name in ("matplotlib.pyplot", "numpy", "einops") if importlib.util.find_spec(name.partition(".")[0])]


def _readable() -> list[Path]:
    """Python, its libraries, those of the system, and our packages."""
    system = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/localtime", "/dev/urandom")
    places = {*_libraries(), Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("platstdlib")), *map(Path, system),
              PACKAGES / "multihead", PACKAGES / "multihead_lessons"}
    return sorted({place.resolve() for place in places if place.exists()})


def _exercises() -> list[Path]:
    """The exercises and the source of the mathematics, wherever a copy is installed. Loaded modules need no file."""
    return [path for place in {PACKAGES, *_libraries()} for path in (
        place / "multihead_lessons" / "exercises", place / "multihead_course", place / "multihead" / "__pycache__",
        *(place / "multihead").glob("*.py"))]


def _libraries() -> set[Path]:
    return {Path(place) for place in site.getsitepackages([sys.prefix, sys.base_prefix])}


# One fork

class Fork:
    """One fork and the line to it. A context manager: the fork is gone afterwards, whatever it was doing."""

    def __init__(self, control: socket.socket, limits: sandbox.Limits):
        self.limits, self.calls = limits, 0
        self.at: tuple[int, int] | None = None  # cell and statement that ran last, as the fork says
        self.channel, other = socket.socketpair()
        try:
            with other:
                socket.send_fds(control, [b"fork"], [other.fileno()])
            self.process = os.pidfd_open(wire.receive(self.channel, 20)["process"])
        except (OSError, EOFError):
            raise ForkingProcessGone("the process that runs the submissions has ended. Grade again: what is done stays done.") from None
        self.deadline = time.monotonic() + limits.total

    def ask(self, request: dict[str, Any], seconds: float, read: Callable[[dict], T]) -> T:
        """What `read` makes of the reply. Raises TookTooLong or EndedProcess where there is none; the fork is gone then.

        A reply is a stranger's. Where `read` fails on it, it counts as none.
        """
        try:
            self.channel.settimeout(self.limits.grace)
            wire.send(self.channel, request)
            while True:
                left = min(seconds, self.deadline - time.monotonic())
                reply = wire.receive(self.channel, max(left, 0) + self.limits.grace)
                if "at" not in reply:
                    return read(reply)
                self.at = int(reply["at"][0]), int(reply["at"][1])
        except TimeoutError:
            self.kill()
            raise TookTooLong from None
        except (OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError):
            self.kill()
            raise EndedProcess from None
        except BaseException:  # a reply that is still to come must not be taken for the next one
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it now, if it has not ended."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)
        self.channel.close()

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self.process)


# One answer

@dataclasses.dataclass
class Program:
    """What runs before an answer can be called.

    cells:     (label, source)
    exercises: the names that are looked up afterwards
    skip:      [cell, statement] pairs that were found to hang or to end the process
    """

    cells: Sequence[tuple[str, str]]
    exercises: Sequence[str]
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
        return self.kind == "PermissionError" or "ermission denied" in self.text or "not permitted" in self.text

    def __str__(self) -> str:
        place = ", ".join(filter(None, [self.label, self.where.rstrip(",")])) or "a call"
        reason = {"TookTooLong": "does not come to an end", "EndedProcess": "ends the process"}.get(self.kind, f"raises {self.kind}")
        return f"{place} {reason}" + (f": {self.text}" if self.text else "")


class RemoteOutcome(Outcome):
    """An outcome whose returned object stayed in the fork; `returned` fetches it."""

    def now(self) -> Any:
        try:
            return self.returned()
        except (TookTooLong, EndedProcess):
            return self.value


class RemoteAnswer(Elsewhere):
    """A student's object of this name, in a fork of its own. A context manager; it raises EndedProcess if no fork lives.

    found:    for each exercise's name that means something: None if it can be called, else the name of its type
    own:      those that can be called and are not the library's
    failures: what raised while the cells ran
    refused:  what a call asked for and a guard refused
    """

    def __init__(self, control: socket.socket, limits: sandbox.Limits, program: Program, name: str):
        self.control, self.limits, self.program, self.name = control, limits, program, name
        self.found: dict[str, str | None] = {}
        self.own: set[str] = set()
        self.failures: list[Failure] = []
        self.refused: list[Failure] = []

    def __enter__(self) -> RemoteAnswer:
        self._fork = self._start([])
        return self

    def __exit__(self, *_: object) -> None:
        self._fork.__exit__()

    def _start(self, helpers: Sequence[str]) -> Fork:
        """A fork in which the cells have run, without the statements that hang or end it."""
        for _ in range(STARTS):
            fork = Fork(self.control, self.limits)
            try:
                failed, found, own = fork.ask(
                    {"do": "cells", "cells": list(self.program.cells), "skip": self.program.skip, "without": self.name,
                     "helpers": list(helpers), "ask": list(self.program.exercises)}, self.limits.statement, self._read_cells)
            except (TookTooLong, EndedProcess) as error:
                fork.__exit__()
                if fork.at is None:
                    raise EndedProcess from None
                self._skipped(*fork.at, type(error).__name__)
                continue
            except BaseException:
                fork.__exit__()
                raise
            if not helpers:
                self.failures += failed
                self.found, self.own = found, own
            return fork
        raise EndedProcess

    def _read_cells(self, reply: dict) -> tuple[list[Failure], dict[str, str | None], set[str]]:
        failed = [self._failure(about, self.program.cells[cell][0]) for cell, _, about in reply["failures"]]
        self.program.skip += [[int(cell), int(statement)] for cell, statement, about in reply["failures"]
                              if about["type"] == "TookTooLong"]
        found = {str(name): None if kind is None else str(kind) for name, kind in reply["found"].items()}
        return failed, found, {name for name in map(str, reply["own"]) if found.get(name, name) is None}

    def _skipped(self, cell: int, statement: int, kind: str) -> None:
        """Takes note of a statement after which the fork was gone."""
        if cell not in range(len(self.program.cells)) or [cell, statement] in self.program.skip:
            raise EndedProcess
        self.program.skip.append([cell, statement])
        self.failures.append(Failure(self.program.cells[cell][0], kind, "", ""))

    def _failure(self, about: dict, label: str = "") -> Failure:
        kind = about["type"] if wire.NAME.fullmatch(about["type"]) else "Exception"
        return Failure(label, kind, public(about["text"]), self._place(about["where"]))

    def _place(self, where: str) -> str:
        """`line 3, "x + 1",` if the student's cells hold that text, else nothing: inputs must not leave this way."""
        found = PLACE.fullmatch(where)
        if not found or found[2] and not any(found[2] in source for _, source in self.program.cells):
            return ""
        return where

    # What `examine` asks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outcome = self.outcome(calling.plainly, types.SimpleNamespace(args=args, kwargs=kwargs))
        if outcome.failed:
            raise outcome.error
        return outcome.value

    def outcome(self, run: Callable[[Any, Any], Any], case: Any) -> Outcome:
        fork, number = self._fork, self._fork.calls
        request = {"do": "call", "name": self.name, "run": run.__name__, "args": case.args, "kwargs": dict(case.kwargs)}
        try:
            outcome = fork.ask(request, self.limits.call, self._read_outcome)
        except (TookTooLong, EndedProcess) as error:
            error.where = "the call"  # where in it, nobody can say any more
            return RemoteOutcome(error=error)
        fork.calls += 1
        outcome.returned = lambda: fork.ask({"do": "again", "call": number}, self.limits.call, lambda reply: reply["value"])
        return outcome

    def _read_outcome(self, reply: dict) -> RemoteOutcome:
        outcome = RemoteOutcome(differentiable=bool(reply["differentiable"]), changed_inputs=bool(reply["changed"]),
                                drew_random_numbers=bool(reply["drew"]),
                                seen={name for name in reply["seen"] if name in SEEN})
        if "error" not in reply:
            outcome.value = reply["value"]
            return outcome
        failure = self._failure(reply["error"])
        if failure.refused:
            self.refused.append(failure)
        if failure.kind == "LibraryMissing":
            outcome.seen.add("library function")
        outcome.error = _exception(failure)
        return outcome

    def own_helpers(self, references: Mapping[str, Any]) -> dict[str, Any]:
        return {name: reference for name, reference in references.items()
                if name != self.name and name in self.own and getattr(multihead, name, None) is reference}

    @contextlib.contextmanager
    def standing_in(self, helpers: Mapping[str, Any]) -> Iterator[None]:
        own, self._fork = self._fork, self._start(list(helpers))
        try:
            yield
        finally:
            self._fork.__exit__()
            self._fork = own


def _exception(failure: Failure) -> BaseException:
    """An exception as it was raised there, without its traceback: of a built-in class or one of ours where that has its name."""
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
