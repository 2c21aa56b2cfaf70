"""How long a check takes, against a bare run of the reference on the same inputs.

    python tests/benchmarks/checks.py

Prints for each exercise the median milliseconds of `examine` for a right answer and for its slowest wrong answer.
To reach: 150 ms for a right one, 600 ms for a wrong one, on a quiet machine.
"""
from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "multihead_lessons"))

from banks import stranger  # noqa: E402
from mutants import clone  # noqa: E402

from multihead_lessons.exercises import examine, exercises  # noqa: E402

ROUNDS = 7


def milliseconds(action: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median of some rounds, after one that is not counted."""
    action()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    print(f"{'exercise':24}{'bare':>8}{'right':>8}{'ratio':>8}{'unknown':>9}{'wrong':>8}  slowest wrong answer")
    for name, exercise in exercises().items():
        right = clone(exercise.reference)
        cases = exercise.draw(torch.Generator().manual_seed(0))
        valid = [case for case in cases if not case.raises]
        bare = milliseconds(lambda: [exercise.run(exercise.reference, case) for case in valid])
        checked = milliseconds(lambda: examine(name, right))
        wrong = {m.slug: milliseconds(lambda m=m: examine(name, stranger(m.wrong)), 3) for m in exercise.misconceptions}
        slowest = max(wrong, key=wrong.get)
        unknown = milliseconds(lambda: examine(name, lambda *args, **kwargs: None), 3)  # tries every explanation
        print(f"{name:24}{bare:8.1f}{checked:8.1f}{checked / bare:8.0f}{unknown:9.1f}{wrong[slowest]:8.1f}  {slowest}")


if __name__ == "__main__":
    main()
