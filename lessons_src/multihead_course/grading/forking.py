"""The process that runs the submissions in forks, as the grader sees it: start it, fork, ask, end."""
from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import multihead
from multihead_course.grading import sandbox, wire
from multihead_lessons.running import EndedProcess, TookTooLong

PACKAGES = Path(multihead.__file__).resolve().parents[1]
# Kept while it imports; then it has no environment.
KEPT_VARIABLES = ("HOME", "PATH", "LANG", "MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # only a process of one may fork
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo",
          "/etc/localtime", "/dev/urandom")
T = TypeVar("T")


class ForkingProcessGone(Exception):
    """There is nobody to fork."""


# The forking process

class ForkingProcess:
    """The process that forks. A context manager."""

    def __init__(self, hidden: Sequence[Path], limits: sandbox.Limits = sandbox.Limits()):
        """Starts it and does not wait. No submission can read `hidden`: the course folder, the marks."""
        self.limits = limits
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {"limits": dataclasses.asdict(limits), "imports": _imports(),
                    "readable": list(map(str, _readable())),
                    "hidden": [str(path.resolve()) for path in (*hidden, *_exercises()) if path.exists()]}
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        environment |= dict.fromkeys(ONE_THREAD, "1") | {"MPLBACKEND": "Agg", "PYTHONPATH": str(PACKAGES)}
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-B", "-m", "multihead_course.grading.worker", str(other.fileno())],
                pass_fds=[other.fileno()], env=environment, stdin=subprocess.PIPE, start_new_session=True)
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(json.dumps(settings).encode())

    def guards(self) -> list[str]:
        """Waits until it is ready. The guards that held when a first fork tried to get past them."""
        if self.control.recv(16) != b"ready":
            raise RuntimeError("the process that runs submissions did not start; its own words are above.")
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
    others = ("matplotlib.pyplot", "numpy", "einops")
    return ours + [name for name in others if importlib.util.find_spec(name.partition(".")[0])]


def _readable() -> list[Path]:
    """Python, its libraries, those of the system, and our packages."""
    python = (*map(sysconfig.get_path, ("stdlib", "platstdlib")), sysconfig.get_config_var("LIBDIR"))
    places = {*_libraries(), *map(Path, SYSTEM), *map(Path, filter(None, python)),
              PACKAGES / "multihead", PACKAGES / "multihead_lessons"}
    return sorted({place.resolve() for place in places if place.exists()})


def _exercises() -> list[Path]:
    """The exercises and the source of the mathematics, wherever a copy is. Loaded modules need no file."""
    return [path for place in {PACKAGES, *_libraries()} for path in (
        place / "multihead_lessons" / "exercises", place / "multihead_course",
        place / "multihead" / "__pycache__", *(place / "multihead").glob("*.py"))]


def _libraries() -> set[Path]:
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return {Path(place) for place in (*site.getsitepackages([sys.prefix, sys.base_prefix]), *own)}


# One fork

class Fork:
    """One fork and the line to it. A context manager: the fork is gone afterwards, whatever it was doing."""

    def __init__(self, control: socket.socket, limits: sandbox.Limits):
        self.limits = limits
        self.at: tuple[int, int] | None = None  # cell and statement that ran last, as the fork says
        self.channel, other = socket.socketpair()
        try:
            with other:
                socket.send_fds(control, [b"fork"], [other.fileno()])
            self.process = os.pidfd_open(wire.receive(self.channel, 20)["process"])
        except (OSError, EOFError):
            raise ForkingProcessGone("the process that runs submissions has ended. Grade again: what is done "
                                     "stays done.") from None
        self.alive = True
        self.give_time()

    def give_time(self) -> None:
        """From now on it has limits.total again."""
        self.deadline = time.monotonic() + self.limits.total

    def ask(self, request: dict[str, Any], seconds: float, read: Callable[[dict], T]) -> T:
        """What `read` makes of the reply. It is a stranger's: where `read` fails on it, it counts as none.

        Raises TookTooLong or EndedProcess where there is none; the fork is gone then.
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
        if self.alive:
            self.alive = False
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.process, signal.SIGKILL)
            self.channel.close()

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self.process)
