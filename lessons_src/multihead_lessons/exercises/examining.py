"""`examine`: is an answer right, and if not, which mistake is it?"""
from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from multihead_lessons.calling import Seen
from multihead_lessons.exercises.bank import Answer, Case, Exercise
from multihead_lessons.running import (
    Elsewhere, EndedProcess, Outcome, TookTooLong, call, differentiable, unwrapped, where,
)

NOT_ATTEMPTED = "not attempted"
TOLERANCE = {torch.float64: (1e-7, 1e-9), torch.float32: (1e-4, 1e-5)}  # relative, absolute


@dataclass(frozen=True)
class Verdict:
    """What `examine` found. `message` is for the learner, `notes` are for the instructor."""

    passed: bool
    misconception: str | None
    message: str
    notes: tuple[str, ...] = ()


def examine_exercise(exercise: Exercise, answer: Any, seed: int | None = None) -> Verdict:
    """Judges `answer`. The same seed draws the same inputs; None draws new ones. torch's random stream is left as it was."""
    seed = secrets.randbits(48) if seed is None else seed
    if sentence := _not_an_answer(exercise, answer):
        return Verdict(False, *sentence)
    with torch.random.fork_rng(devices=[]):
        cases = _cases(exercise, seed)
        expected = [_trusted(exercise, exercise.reference, case) for case in cases]
        found = _run_all(exercise, answer, _cases(exercise, seed), watched=True)
        slug, message = (_foul(exercise, answer, found) or _fault(exercise, answer, cases, expected, found, seed)
                         or _unsteady(exercise, answer, expected, found, seed) or (None, "passed."))
    notes = ("uses torch's own attention",) if any("torch attention" in outcome.seen for outcome in found) else ()
    return Verdict(slug is None, slug, message, notes)


def _cases(exercise: Exercise, seed: int) -> list[Case]:
    return list(exercise.draw(torch.Generator().manual_seed(seed)))


def _run_all(exercise: Exercise, answer: Answer, cases: Sequence[Case], watched: bool = False) -> list[Outcome]:
    """One outcome for each case. A hang, a crash or a stub ends the run: the rest would be the same."""
    outcomes = []
    for case in cases:
        outcomes.append(answer.outcome(exercise.run, case) if isinstance(answer, Elsewhere) else
                        call(lambda: exercise.run(answer, case), [*case.args, *case.kwargs.values()],
                             exercise.library if watched else ()))
        stopped = isinstance(outcomes[-1].error, (TookTooLong, EndedProcess))
        if stopped or _is_stub(outcomes[-1]) and not case.raises:
            break
    return outcomes


def _is_stub(outcome: Outcome) -> bool:
    """torch raises NotImplementedError too, but never without a word."""
    return isinstance(outcome.error, NotImplementedError) and not str(outcome.error)


def _trusted(exercise: Exercise, answer: Answer, case: Case) -> Outcome:
    """The outcome of code of ours: no guard is needed, and none is paid for."""
    try:
        value = exercise.run(answer, case)
        return Outcome(value=value, differentiable=differentiable(value))
    except Exception as error:
        return Outcome(error=error)


# Before any comparison: is it an answer at all, and is it the learner's?

def _not_an_answer(exercise: Exercise, answer: Any) -> tuple[str, str] | None:
    if not callable(answer):
        kind = "a class or a function" if isinstance(exercise.reference, type) else "a function"
        return "not callable", f"{exercise.name} must be {kind}; you gave {_kind(answer)}."
    if any(unwrapped(answer) is ours for ours in exercise.library):
        return "library", _borrowed(exercise.name)
    return None


def _borrowed(name: str) -> str:
    return f"this calls the library's own {name}; write it yourself, then compare with show_solution(\"{name}\")."


def _foul(exercise: Exercise, answer: Any, found: Sequence[Outcome]) -> tuple[str, str] | None:
    """What makes an answer no answer, whatever its numbers are."""
    last = found[-1]
    if _is_stub(found[0]):
        return NOT_ATTEMPTED, "not attempted yet."
    if isinstance(last.error, TookTooLong):
        return "too slow", (f"no result after some seconds; {where(last.error, answer)} was running. "
                            "Does a loop never end?")
    if isinstance(last.error, EndedProcess):
        return "ended the process", "your code ended the whole process: by an exit, a crash, or too much memory."
    if any("library function" in outcome.seen for outcome in found):
        return "library", _borrowed(exercise.name)
    if any("library source" in outcome.seen for outcome in found):
        return "library", f"this reads the source of the library's {exercise.name}; write it yourself."
    if any(outcome.changed_inputs for outcome in found):
        return "changes its input", (
            "your function changes the tensor, list or dict that it is given. Its caller still needs it: make a new one instead "
            "of writing into the old one. (reshape and contiguous may return the old memory; clone does not.)")
    if not exercise.may_draw and any(outcome.drew_random_numbers for outcome in found):
        return "random", ("your function draws from torch's random stream, as building an nn.Linear does, and so changes what every "
                          "later cell draws. It needs no random numbers; for a tensor of a given size there is torch.empty.")
    return None


# The comparison

def _fault(exercise: Exercise, answer: Any, cases: Sequence[Case], expected: Sequence[Outcome], found: Sequence[Outcome],
           seed: int) -> tuple[str, str] | None:
    """The first thing that is wrong with the results, named by the misconception that gives the same ones."""
    wrong = [i for i, case in enumerate(cases) if i >= len(found) or not _right(case, expected[i], found[i])]
    if not wrong:
        return None
    # What happens on an input without a valid result is a question of its own: it must not hide the layout mistake.
    telling = [i for i, case in enumerate(cases) if not case.raises]
    if not set(telling) & set(wrong):
        telling = list(range(len(cases)))
    if explained := _explained(exercise, cases, telling, lambda outcome, i: _same_outcome(outcome, found[i])):
        return explained
    # The same mistake with another on top: it raises for some inputs, loses precision, or cuts the gradient off.
    came = [i for i in telling if i < len(found) and _comparable(expected[i].value, found[i].value)]
    if len(came) > 1 and telling[0] in came and any(difference(_single(expected[i].value), _single(found[i].value)) for i in came):
        if explained := _explained(exercise, cases, came, lambda outcome, i: not outcome.failed and difference(
                _single(outcome.value), _single(found[i].value)) is None):
            return explained
    first = wrong[0]
    case = cases[first]
    if case.because and not found[first].failed and difference(expected[first].value, found[first].value) == VALUES:
        return "unknown", case.because
    if 0 not in wrong and not case.about and not found[first].failed:
        return "one shape", ("right for the first inputs, wrong for others of another shape. Are sizes fixed in your code? "
                             "Take them from the arguments. Count axes from the end, -1 and -2, where more may stand in front.")
    about = f" This is the case with {case.about}." if case.about else ""
    return "unknown", _described(exercise, answer, case, expected[first], found[first], seed) + about


def _explained(exercise: Exercise, cases: Sequence[Case], chosen: Sequence[int],
               same: Callable[[Outcome, int], bool]) -> tuple[str, str] | None:
    """The first misconception that gives the same on all the chosen cases."""
    return next(((slug, sentence) for slug, sentence, mistaken in exercise.explanations()
                 if all(same(_trusted(exercise, mistaken, cases[i]), i) for i in chosen)), None)


def _comparable(expected: Any, found: Any) -> bool:
    """Two tensors of one shape."""
    return isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor) and expected.shape == found.shape


def _single(value: Any) -> Any:
    """A tensor of numbers in float32 and without a gradient."""
    return value.detach().float() if isinstance(value, torch.Tensor) else value


def _right(case: Case, expected: Outcome, found: Outcome) -> bool:
    if case.raises:
        return isinstance(found.error, Exception)
    return not found.failed and difference(expected.value, found.value) is None and not _cut_off(expected, found)


def _cut_off(expected: Outcome, found: Outcome) -> bool:
    """Whether gradients should flow back from the result and cannot."""
    return bool(expected.differentiable) and found.differentiable is False


def _same_outcome(a: Outcome, b: Outcome) -> bool:
    if a.failed or b.failed:
        return type(a.error) is type(b.error)
    return difference(a.value, b.value) is None and not _cut_off(a, b)


def difference(expected: Any, found: Any, name: str = "the result") -> str | None:
    """None if `found` is the expected value up to rounding, else one sentence about type or shape, or VALUES."""
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(expected, found, name)
    found = _plain(found)
    if isinstance(expected, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            return f"{name} must be {_kind(expected)}; you return {_kind(found)}."
        return _first(difference(expected[i], found[i], f"{name}[{i}]") for i in range(len(expected)))
    if isinstance(expected, dict):
        if not isinstance(found, dict) or set(found) != set(expected):
            return f"{name} must be a dict with the keys {', '.join(map(repr, expected))}; you return {_kind(found)}."
        return _first(difference(expected[key], found[key], f"{name}[{key!r}]") for key in expected)
    if isinstance(expected, bool):
        return f"{name} must be True or False; you return {_kind(found)}." if not isinstance(found, bool) else (
            None if found == expected else VALUES)
    if isinstance(expected, (int, float)):
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            return f"{name} must be {_kind(expected)}; you return {_kind(found)}."
        # A number with decimals may have passed through float32.
        relative, absolute = (1e-5, 1e-8) if isinstance(expected, float) else (1e-9, 1e-12)
        return None if math.isclose(found, expected, rel_tol=relative, abs_tol=absolute) else VALUES
    return None if type(found) is type(expected) and found == expected else VALUES


def _first(sentences: Iterable[str | None]) -> str | None:
    """The first sentence about type or shape; VALUES only if there is no such sentence."""
    found = [sentence for sentence in sentences if sentence]
    return next((sentence for sentence in found if sentence != VALUES), found[0] if found else None)


def _plain(value: Any) -> Any:
    """A number of torch or NumPy as Python's own; everything else as it is."""
    if isinstance(value, np.generic) or isinstance(value, torch.Tensor) and value.ndim == 0:
        return value.item()
    return value


VALUES = "values"


def _tensor_difference(expected: torch.Tensor, found: Any, name: str) -> str | None:
    if expected.ndim == 0 and isinstance(number := _plain(found), (int, float)) and not isinstance(number, bool):
        found = torch.tensor(number, dtype=expected.dtype)
    if not isinstance(found, torch.Tensor):
        return f"{name} must be a tensor; you return {_kind(found)}."
    if found.shape != expected.shape:
        return f"{name} must have the shape {list(expected.shape)}; yours has {list(found.shape)}."
    if expected.is_floating_point() and not found.is_floating_point():
        return f"{name} must hold {expected.dtype} numbers; yours holds {found.dtype}."
    if expected.is_floating_point() and found.dtype in (torch.float16, torch.bfloat16):
        return f"{expected.dtype} went in and {found.dtype} came out: precision is lost. Keep the input's dtype."
    if expected.dtype == torch.float64 and found.dtype != torch.float64:
        return f"float64 went in and {found.dtype} came out: precision is lost. Keep the input's dtype."
    relative, absolute = TOLERANCE.get(expected.dtype, (0, 0))
    close = torch.isclose(found.detach().to(expected.dtype), expected.detach(), rtol=relative, atol=absolute, equal_nan=True)
    return None if bool(close.all()) else VALUES


def _described(exercise: Exercise, answer: Any, case: Case, expected: Outcome, found: Outcome, seed: int) -> str:
    """What differs, in words, when no misconception explains it."""
    if case.raises:
        return f"this must raise an exception, and yours returns {_kind(found.value)}."
    if found.failed:
        text = str(found.error).strip().splitlines()
        reason = f": {text[0][:200]}" if text else ""
        fails = "fails" if isinstance(found.error, Seen) else f"raises {type(found.error).__name__}"
        return f"{where(found.error, answer)} {fails}{reason.rstrip('.')}."
    sentence = difference(expected.value, found.value)
    if sentence is None:
        return "the values are right, but no gradient flows back to the input: do not detach, and do not go through NumPy."
    if sentence != VALUES:
        return sentence
    for probe in exercise.probes:
        try:
            finding = probe(answer, torch.Generator().manual_seed(seed))
        except (Exception, TookTooLong, EndedProcess):  # of the answer, on the probe's own input
            continue
        if finding:
            return finding
    return _where_values_differ(exercise.axes, expected.value, found.value)


def _where_values_differ(axes: Sequence[str], expected: Any, found: Any, name: str = "") -> str:
    """Where in the result the first wrong values are, in words or as an index, without saying what is right there."""
    if isinstance(expected, torch.Tensor) and expected.ndim == 0:
        found = torch.as_tensor(_plain(found), dtype=expected.dtype)
    if isinstance(expected, (tuple, list, dict)):
        keys = expected if isinstance(expected, dict) else range(len(expected))
        key = next(key for key in keys if difference(expected[key], found[key]))
        return _where_values_differ(axes, expected[key], found[key], f"{name}[{key!r}]")
    if not isinstance(expected, torch.Tensor):
        return f"type and form are right, the value{f' of the result at {name}' if name else ''} is wrong."
    if name:
        return f"in the part {name} of the result, " + _where_values_differ(axes, expected, found)
    if bool(torch.isnan(found).any()) and not bool(torch.isnan(expected).any()):
        return "the result holds NaN. Where do you divide 0 by 0, or take a softmax of a row that is all -inf?"
    relative, absolute = TOLERANCE.get(expected.dtype, (0, 0))
    bad = ~torch.isclose(found.detach().to(expected.dtype), expected.detach(), rtol=relative, atol=absolute)
    for axis, name in enumerate(axes[len(axes) - expected.ndim:] if expected.ndim <= len(axes) else ()):
        along = bad.movedim(axis, 0).unsqueeze(-1).flatten(1).any(1)
        if not bool(along.all()):
            right = [str(i) for i in (~along).nonzero().flatten().tolist()]
            return f"the shape is right; only the values of {name} {', '.join(right)} are, the others are wrong."
    share = round(100 * float(bad.float().mean()))
    return f"the shape is right, the values are not: {'all' if share == 100 else f'about {share} %'} of them differ."


# Right once: is it right again?

def _unsteady(exercise: Exercise, answer: Any, expected: Sequence[Outcome], found: Sequence[Outcome],
              seed: int) -> tuple[str, str] | None:
    """Finds results that depend on earlier calls, and results that a later call overwrites."""
    cases = _cases(exercise, seed)
    again = _run_all(exercise, answer, cases[::-1])[::-1]
    kept = [Outcome(outcome.now(), error=outcome.error) for outcome in found]
    if not all(map(_right, cases, expected, kept)):
        return "overwrites", "a later call changes an earlier result: you return the same tensor each time. Return a new one."
    if len(again) < len(cases) or not all(map(_right, cases, expected, again)):
        return "remembers", "the same input gives another result the second time. Keep no state between calls."
    return None


def _kind(value: Any) -> str:
    if value is None:
        return "None (is there a return?)"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(map(repr, value))}"
    if isinstance(value, bool):
        return "True or False"
    article = "an" if type(value).__name__[0] in "aeiou" else "a"
    return f"{article} {type(value).__name__}"
