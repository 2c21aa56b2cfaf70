"""What an exercise is: a reference, inputs to draw, and the mistakes that people make in it."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

import multihead
from multihead_lessons import calling

Answer = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """Arguments of one call.

    about:   what is special here, for the message when this case fails
    because: the whole sentence for this case, when no misconception explains the answer
    raises:  the answer must raise an exception here, because the input has no valid result
    """

    args: tuple
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    because: str = ""
    raises: bool = False


@dataclass(frozen=True)
class Misconception:
    """One known mistake: an answer that makes it, and the sentence for a learner whose numbers are the same."""

    slug: str
    sentence: str
    wrong: Answer
    together: bool = True  # `wrong` is a partial of the exercise's variant and may be combined with another

    @property
    def changes(self) -> Mapping[str, Any] | None:
        """What it changes in the variant, or None where it stands alone."""
        return self.wrong.keywords if self.together and isinstance(self.wrong, partial) else None


@dataclass(frozen=True)
class Exercise:
    """Everything that `examine` needs to know.

    reference:  the model solution; the same object fills the stub in the solution edition
    draw:       generator -> cases; sizes differ from each other and from 1, values are unsaturated
    run:        how an answer is called with a case: a function of `multihead_lessons.calling`
    axes:       names of the output's axes, to say where values differ
    probes:     (answer, generator) -> sentence or None: properties that narrow down what no misconception explains
    picture:    answer -> SVG of wanted and found, or None; for layout mistakes
    may_draw:   whether the answer may draw from torch's random stream, as building an nn.Linear does
    """

    name: str
    reference: Answer
    draw: Callable[[torch.Generator], Sequence[Case]]
    misconceptions: Sequence[Misconception] = ()
    axes: Sequence[str] = ()
    probes: Sequence[Callable[[Answer, torch.Generator], str | None]] = ()
    picture: Callable[[Answer], Any] | None = None
    may_draw: bool = False
    run: Callable[[Answer, Case], Any] = calling.plainly

    @property
    def library(self) -> tuple[Answer, ...]:
        """What an answer must neither be nor call: the reference, and the library's object of the same name."""
        return self.reference, getattr(multihead, self.name, self.reference)

    def explanations(self) -> list[tuple[str, str, Answer]]:
        """(slug, sentences, wrong answer) of each misconception, then of each pair that can be made together."""
        single = [(m.slug, m.sentence, m.wrong) for m in self.misconceptions]
        pairs = [(f"{a.slug}+{b.slug}", f"Two things at once. {a.sentence} {b.sentence}",
                  partial(a.wrong.func, **a.changes, **b.changes))
                 for i, a in enumerate(self.misconceptions) for b in self.misconceptions[:i]
                 if a.changes and b.changes and not set(a.changes) & set(b.changes)]
        return single + pairs


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Standard normal numbers from the exercise's own generator; the learner's random stream is not touched."""
    return torch.randn(*shape, generator=generator, dtype=dtype)


def addresses(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor whose entries say where they came from: entry n of the memory holds n."""
    size = torch.Size(shape).numel()
    return torch.arange(size, dtype=dtype).view(shape)
