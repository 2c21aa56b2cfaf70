"""The exercises: `check` for learners, `examine` and `grade` for programs, `show_solution` for the library's version."""
from __future__ import annotations

import html
import inspect
import secrets
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from IPython.display import Code, display

from multihead_lessons import svg
from multihead_lessons.exercises.bank import Exercise
from multihead_lessons.exercises.carrying import own_helpers, standing_in
from multihead_lessons.exercises.examining import NOT_ATTEMPTED, Verdict, examine_exercise
from multihead_lessons.running import call

UNDRAWN = (NOT_ATTEMPTED, "too slow", "ended the process", "not callable", "library")

__all__ = ["Verdict", "check", "examine", "exercises", "grade", "show_solution"]


@cache
def exercises() -> dict[str, Exercise]:
    """Every exercise of the course by name."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("lesson[0-9][0-9].py"))
    return {exercise.name: exercise for module in modules
            for exercise in import_module(f"{__name__}.{module}").EXERCISES}


def examine(name: str, answer: Any, *, seed: int | None = None) -> Verdict:
    """Judges an answer to the exercise `name`. The same seed repeats the same inputs; None draws new ones.

    An answer that fails is judged once more with the references in place of the learner's other functions: a mistake
    that was made in an earlier exercise is charged there and not again.
    """
    exercise = _exercise(name)
    seed = secrets.randbits(48) if seed is None else seed
    verdict = examine_exercise(exercise, answer, seed)
    helpers = own_helpers(answer, {other: exercises()[other].reference for other in exercises() if other != name})
    if verdict.passed or verdict.misconception == NOT_ATTEMPTED or not helpers:
        return verdict
    second = _with_helpers(exercise, answer, seed, helpers)
    if second.passed:
        for name in list(helpers):  # only those are named that are to blame
            others = {other: reference for other, reference in helpers.items() if other != name}
            if others and _with_helpers(exercise, answer, seed, others).passed:
                helpers = others
        return replace(second, message=f"passed, with the library's {' and '.join(helpers)} in place of yours.")
    return verdict if second.misconception == "unknown" else second


def _with_helpers(exercise: Exercise, answer: Any, seed: int, helpers: dict[str, Any]) -> Verdict:
    with standing_in(answer, helpers):
        return examine_exercise(exercise, answer, seed)


def check(name: str, answer: Any) -> None:
    """Shows in one sentence whether the answer is right, and if not, which mistake it is. Never raises for an answer."""
    verdict = examine(name, answer)
    sentence = f"{name}: {verdict.message}"
    picture = None if verdict.passed or verdict.misconception in UNDRAWN else _picture(name, answer)
    shown = f"<p><b>{_sign(verdict)} {html.escape(name)}</b>: {html.escape(verdict.message)}</p>"
    if picture:
        shown += svg.as_image(picture.svg, picture.alt, picture.width)
    display({"text/html": shown, "text/plain": sentence}, raw=True)


def grade(name: str, answer: Any) -> None:
    """For cells that carry points: raises AssertionError with the verdict's sentence unless the answer passes.

    It shows and prints nothing: a grading tool may read an output as a mark, or a warning as a failure.
    """
    verdict = examine(name, answer)
    if not verdict.passed:
        raise AssertionError(f"{name}: {verdict.message}")


def show_solution(name: str) -> None:
    """Shows the library's version of an exercise, to compare with your own."""
    display(Code(inspect.getsource(_exercise(name).reference), language="python"))


def _sign(verdict: Verdict) -> str:
    return "✓" if verdict.passed else "○" if verdict.misconception == NOT_ATTEMPTED else "✗"


def _exercise(name: str) -> Exercise:
    if name not in exercises():
        raise ValueError(f"there is no exercise {name!r}; the exercises are {', '.join(exercises())}.")
    return exercises()[name]


def _picture(name: str, answer: Any) -> Any:
    """The picture of wanted and found; None where the answer cannot be drawn: it has had its sentence already."""
    draw = _exercise(name).picture
    return call(lambda: draw(answer), []).returned if draw else None
