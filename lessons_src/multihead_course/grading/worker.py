"""The submission's side: a process that forks, and what a fork does for the grader.

The forking process imports once what lessons import and then confines itself. It never imports the exercises,
and it is sent no seed and no expected value. A fork runs a student's cells and calls the student's functions
with what it is sent.

    python -m multihead_course.grading.worker CONTROL < SETTINGS

CONTROL is the number of an open socket. Each message on it carries one more, on which a fork then serves.
"""
from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import linecache
import os
import signal
import socket
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import multihead
from multihead_course.grading import sandbox, wire
from multihead_lessons import calling, running
from multihead_lessons.running import Silent, call, deadline, snapshot, where

TEXT_LIMIT = 300  # characters of an exception's text that are sent


class LibraryMissing(Exception):
    """The library's own version of the exercise is not here: an answer has to do without it."""


def main(control: int, settings: dict[str, Any]) -> None:
    """Forks for as long as the grader keeps the control socket open."""
    channel = socket.socket(fileno=control)
    limits = sandbox.Limits(**settings["limits"])
    for name in settings["imports"]:
        importlib.import_module(name)
    _stand_in_for_exercises()
    running.SECONDS = limits.call
    torch.set_num_threads(1)
    shell = _shell()
    os.environ.clear()
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are not waited for
    gc.collect()
    gc.freeze()  # what is here now is shared by all forks: the collector must not write to it
    mapped = sandbox.mapped_memory()
    hidden = [Path(path) for path in settings["hidden"]]
    sandbox.confine([Path(path) for path in settings["readable"]], hidden)
    channel.send(b"ready")
    while True:
        _, sockets, _, _ = socket.recv_fds(channel, 1, 1)
        if not sockets:
            return
        if os.fork() == 0:
            channel.close()
            with contextlib.suppress(BaseException):
                _serve(Submission(socket.socket(fileno=sockets[0]), shell, limits), limits, mapped, hidden)
            os._exit(0)
        os.close(sockets[0])


def _stand_in_for_exercises() -> None:
    """`multihead_lessons.exercises` as lessons' cells use it: it accepts everything and tells nothing."""
    module = types.ModuleType("multihead_lessons.exercises", "The exercises' names, without the exercises.")
    for name in ("check", "examine", "exercises", "grade", "show_solution", "Verdict"):
        setattr(module, name, _nothing)
    sys.modules[module.__name__] = module


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing is checked here."""


def _shell() -> InteractiveShell:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=config)
    shell.system = shell.getoutput = _nothing  # a line that starts with an exclamation mark is passed over
    return shell


def _serve(submission: Submission, limits: sandbox.Limits, mapped: int, hidden: Sequence[Path]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    sandbox.restrict(limits, mapped)
    wire.send(submission.channel, {"process": os.getpid()})
    while True:
        request = wire.receive(submission.channel)
        if request["do"] == "try guards":
            wire.send(submission.channel, {"held": sandbox.try_guards(limits, hidden)})
        else:
            submission.do(request)


class Submission:
    """One submission in its fork: its namespace, and what the grader can ask of it."""

    def __init__(self, channel: socket.socket, shell: InteractiveShell, limits: sandbox.Limits):
        self.channel, self.shell, self.limits = channel, shell, limits
        self.names: dict[str, Any] = shell.user_ns
        self.returned: list[Any] = []

    def do(self, request: dict[str, Any]) -> None:
        """Answers one request."""
        action = {"cells": self.cells, "call": self.call, "again": self.again}[request.pop("do")]
        wire.send(self.channel, action(**request))

    def cells(self, cells: list[tuple[str, str]], skip: list[list[int]], without: list[str],
              helpers: list[str], ask: list[str]) -> dict:
        """Runs the cells as far as they go; says first, statement by statement, where it is.

        cells:   (label, source)
        skip:    [cell, statement] pairs that must not run again
        without: names of exercises whose library versions are taken away before anything runs
        helpers: names that mean the library's functions once all cells have run
        ask:     names to look up then
        """
        for name in without:
            _take_away(name)
        failures: list[tuple[int, int, dict]] = []  # cell, statement, error
        with self.shell.builtin_trap, self.shell.display_trap, contextlib.redirect_stdout(Silent()), \
                contextlib.redirect_stderr(Silent()):
            # Everything is compiled before anything runs, so that no cell changes how a later one is read.
            compiled = [self._compiled(i, *cell, failures) for i, cell in enumerate(cells)]
            for i, statements in enumerate(compiled):
                for j, code in enumerate(statements):
                    if [i, j] not in skip:
                        self._run(i, j, code, failures)
        found = {name: self._kind(name) for name in ask if name in self.names}
        own = [name for name in found if self.names[name] is not getattr(multihead, name, None)]
        self.names.update({name: getattr(multihead, name) for name in helpers})
        return {"failures": failures, "found": found, "own": own}

    def _compiled(self, cell: int, label: str, source: str, failures: list) -> list[types.CodeType]:
        """A cell's statements, each as code of its own: one that fails does not take the rest with it."""
        name = f"<{label}>"
        try:
            text = self.shell.transform_cell(source)
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            tree = ast.parse(text, name)
            return [compile(ast.Module([statement], []), name, "exec", dont_inherit=True)
                    for statement in tree.body]
        except Exception as error:  # not Python, or nested too deeply for it
            line = getattr(error, "lineno", None)
            failures.append((cell, -1, _error(error, f"line {line}" if line else "")))
            return []

    def _run(self, cell: int, statement: int, code: types.CodeType, failures: list) -> None:
        wire.send(self.channel, {"at": [cell, statement]})
        try:
            with deadline(self.limits.statement):
                exec(code, self.names)
        except BaseException as error:  # an exit ends a statement, not the submission
            failures.append((cell, statement, _error(error, _line(error, code.co_filename))))

    def _kind(self, name: str) -> str | None:
        """None for something that can be called, else the name of its type."""
        return None if callable(self.names[name]) else type(self.names[name]).__name__

    def call(self, name: str, run: str, args: tuple, kwargs: dict) -> dict:
        """One guarded call of the student's object, as `running.call` sees it."""
        answer, case = self.names[name], types.SimpleNamespace(args=args, kwargs=kwargs)
        outcome = call(lambda: getattr(calling, run)(answer, case), [*args, *kwargs.values()])
        self.returned.append(outcome.returned)
        seen = {"differentiable": outcome.differentiable, "changed": outcome.changed_inputs,
                "drew": outcome.drew_random_numbers, "seen": sorted(outcome.seen)}
        if outcome.failed:
            return {"error": _error(outcome.error, where(outcome.error, answer))} | seen
        try:
            wire.packed(outcome.value)
        except wire.TooLarge as error:
            self.returned[-1] = None
            return {"error": _error(ValueError(f"the result is too large: {error}"), "")} | seen
        return {"value": outcome.value} | seen

    def again(self, number: int) -> dict:
        """What an earlier call returned, as it is now."""
        return {"value": snapshot(self.returned[number])}


def _error(error: BaseException, where: str) -> dict:
    kind = "LibraryMissing" if isinstance(error, LibraryMissing) else type(error).__name__
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)[:TEXT_LIMIT]
    except Exception:
        text = ""
    return {"type": kind, "text": text, "where": where}


def _line(error: BaseException, cell: str) -> str:
    """The last line of that cell which the exception passed through."""
    line, trace = None, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == cell:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}" if line else ""


# The library's own version of an exercise

def _take_away(name: str) -> None:
    """Empties the library's object of that name. Every alias is empty too; its code is nowhere in memory."""
    ours = getattr(multihead, name, None)
    for function in _functions(ours):
        function.__globals__["LibraryMissing"] = LibraryMissing
        free = function.__code__.co_freevars  # code takes the place only of code with as many
        function.__code__ = _missing.__code__.replace(co_freevars=free, co_name=function.__name__)
        function.__defaults__ = function.__kwdefaults__ = None


def _functions(ours: Any) -> Iterator[types.FunctionType]:
    for part in vars(ours).values() if isinstance(ours, type) else [ours]:
        part = getattr(part, "__func__", part)
        if isinstance(part, types.FunctionType):
            yield part


def _missing(*args: Any, **kwargs: Any) -> None:
    raise LibraryMissing("the library's own version is not available here")


if __name__ == "__main__":
    main(int(sys.argv[1]), json.load(sys.stdin))
