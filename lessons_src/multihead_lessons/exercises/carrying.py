"""A mistake is charged once: where an answer calls the learner's earlier functions, the references can stand in for them."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import multihead
from multihead_lessons.running import Elsewhere


def own_helpers(answer: Any, references: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `references` that the learner has written too, in the namespace where `answer` looks names up."""
    if isinstance(answer, Elsewhere):
        return answer.own_helpers(references)
    names = _namespace(answer)
    return {name: reference for name, reference in references.items()
            if callable(names.get(name)) and names[name] is not answer
            and names[name] is not reference and names[name] is not getattr(multihead, name, None)}  # an import is not written


@contextlib.contextmanager
def standing_in(answer: Any, helpers: Mapping[str, Any]) -> Iterator[None]:
    """Meanwhile the learner's names mean the references; afterwards everything is as it was."""
    if isinstance(answer, Elsewhere):
        with answer.standing_in(helpers):
            yield
        return
    names = _namespace(answer)
    before = {name: names[name] for name in helpers}
    names.update(helpers)
    try:
        yield
    finally:
        names.update(before)


def _namespace(answer: Any) -> dict[str, Any]:
    """The globals of a function, of the methods of a class, or of a callable object; else an empty namespace."""
    while isinstance(answer, functools.partial):
        answer = answer.func
    kind = answer if isinstance(answer, type) else type(answer)
    for function in (answer, *vars(kind).values()):
        if hasattr(function, "__globals__"):
            return function.__globals__
    return {}
