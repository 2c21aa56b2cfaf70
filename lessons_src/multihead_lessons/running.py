"""Calls a stranger's function and notes what it did: its result or exception, its time, and what it touched."""
from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import inspect
import io
import linecache
import sys
import threading
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import torch

SECONDS = 5.0
TORCH_ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward", "_native_multi_head_attention"}


class TookTooLong(BaseException):
    """Raised inside the answer when its time is up. Not an Exception, so that `except Exception` lets it through."""


class EndedProcess(BaseException):
    """The answer ran in a process of its own, and that process is gone."""


@dataclass
class Outcome:
    """What one call did. Exactly one of value and error counts; `seen` collects what the answer called.

    value is a copy made right after the call; returned is the object itself, which a later call may overwrite.
    differentiable says whether gradients can flow back from it; None if that is not known.
    """

    value: Any = None
    returned: Any = None
    error: BaseException | None = None
    differentiable: bool | None = None
    changed_inputs: bool = False
    drew_random_numbers: bool = False
    seen: set[str] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        return self.error is not None

    def now(self) -> Any:
        """The returned object as it is after later calls."""
        return self.returned


class Elsewhere(ABC):
    """An answer that runs in another process. It can be called; what more `examine` asks of it, it does there."""

    @abstractmethod
    def outcome(self, run: Callable[[Any, Any], Any], case: Any) -> Outcome:
        """What `call` gives for `run(answer, case)`. `run` is a function of `multihead_lessons.calling`."""

    @abstractmethod
    def own_helpers(self, references: Mapping[str, Any]) -> dict[str, Any]:
        """Those of `references` that the learner has written too, and that can stand in there."""

    @abstractmethod
    def standing_in(self, helpers: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Meanwhile the learner's names mean the references."""


def call(function: Callable[[], Any], inputs: Any, library: Iterable[Any] = ()) -> Outcome:
    """Runs `function()` quietly, for at most SECONDS; `inputs` are what it must not change.

    library: functions and classes of ours that the answer must neither call nor read.
    """
    outcome = Outcome()
    pristine, stream = copy.deepcopy(_detached(inputs)), torch.get_rng_state()
    try:
        with _quietly(), _watching(outcome.seen, library), deadline(SECONDS):
            outcome.returned = function()
        outcome.value, outcome.differentiable = snapshot(outcome.returned), differentiable(outcome.returned)
    except TookTooLong as error:
        outcome.error = error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit included: it is an answer, not an order
        outcome.error = error
    outcome.drew_random_numbers = not torch.equal(stream, torch.get_rng_state())
    outcome.changed_inputs = not same_bits(pristine, _detached(inputs))
    return outcome


def differentiable(value: Any) -> bool:
    """Whether a result requires a gradient; of several, the first: maps beside an output may be detached to be drawn."""
    if isinstance(value, (tuple, list)):
        return bool(value) and differentiable(value[0])
    return isinstance(value, torch.Tensor) and value.requires_grad


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (tuple, list)):
        return [_detached(part) for part in value]
    if isinstance(value, dict):
        return {key: _detached(part) for key, part in value.items()}
    return value


def snapshot(value: Any) -> Any:
    """A copy that no later call can change."""
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():  # a subclass could compare as it likes
            return value.detach().clone().as_subclass(torch.Tensor)
    if isinstance(value, (tuple, list)):
        return type(value)(map(snapshot, value)) if type(value) in (tuple, list) else [snapshot(part) for part in value]
    if isinstance(value, dict):
        return {key: snapshot(part) for key, part in value.items()}
    return value


def same_bits(a: Any, b: Any) -> bool:
    """Equal entry for entry; NaN equals NaN."""
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and bool(torch.all((a == b) | ((a != a) & (b != b))))
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same_bits, a.values(), b.values()))
    return a is b or a == b


class Silent(io.StringIO):
    """Swallows what is printed."""

    def write(self, text: str) -> int:
        return len(text)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with contextlib.redirect_stdout(Silent()), contextlib.redirect_stderr(Silent()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises TookTooLong in this thread when time is up. It cannot stop a single torch call that never returns."""
    thread, over = threading.get_ident(), threading.Event()

    def expire() -> None:
        for wait in (seconds, *[0.2] * 20):  # again, in case a bare `except` swallowed it; not for ever
            if over.wait(wait):
                return
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TookTooLong))
    timer = threading.Thread(target=expire, daemon=True)
    timer.start()
    try:
        yield
    finally:
        over.set()
        timer.join()


def _codes(library: Iterable[Any]) -> set[CodeType]:
    """The code of each function, and of every method of each class."""
    functions = [function for ours in library for function in (vars(ours).values() if isinstance(ours, type) else [ours])]
    return {function.__code__ for function in functions if hasattr(function, "__code__")}


@contextlib.contextmanager
def _watching(seen: set[str], library: Iterable[Any]) -> Iterator[None]:
    """Notes calls of torch's attention, of the library's own, and of `inspect.getsource` on the mathematics."""
    codes = _codes(library)

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in TORCH_ATTENTION:
            seen.add("torch attention")
        elif event == "call":
            code = frame.f_code
            if code in codes:
                seen.add("library function")
            elif code.co_name in TORCH_ATTENTION:
                seen.add("torch attention")
            elif code.co_name == "getsource" and code.co_filename == inspect.__file__:
                read = frame.f_locals.get("object")
                name = getattr(read, "__module__", None) or getattr(read, "__name__", "")
                if str(name).startswith("multihead"):
                    seen.add("library source")
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def where(error: BaseException, answer: Any) -> str:
    """`line 3, "x.view(B, h, T, d_k)"`: the last line of the learner's own cell that the exception passed through."""
    if place := getattr(error, "where", None):  # it was raised in another process
        return place
    ours = str(Path(__file__).parents[1])
    frames = traceback.extract_tb(error.__traceback__)
    cell = _file_of(answer)
    own = [frame for frame in frames if frame.filename == cell] or [
        frame for frame in frames if not frame.filename.startswith((ours, sys.prefix, sys.base_prefix, "<__array"))]
    if not own:
        return "the call"
    last = own[-1]
    text = (last.line or linecache.getline(last.filename, last.lineno)).strip()
    return f'line {last.lineno}, "{text}",' if text else f"line {last.lineno}"


def unwrapped(answer: Any) -> Any:
    """What a decorated, bound or partly applied function is made of."""
    for _ in range(20):  # deep enough for honest wrappers, finite for an object that wraps itself
        inner = answer.func if isinstance(answer, functools.partial) else getattr(answer, "__wrapped__", None)
        inner = getattr(answer, "__func__", None) if inner is None else inner
        if inner is None:
            break
        answer = inner
    return answer


def _file_of(answer: Any) -> str | None:
    answer = unwrapped(answer)
    for function in (answer, getattr(answer, "forward", None), getattr(answer, "__init__", None),
                     getattr(answer, "__call__", None)):
        code = getattr(function, "__code__", None)
        if code is not None:
            return code.co_filename
    return None
