"""The numbers of lesson 06: measured where the model's weights are installed, and recorded for where they are not.

    python -m multihead_lessons.recorded

runs the lesson's own code with the weights and writes what it measures to data/heads.json, one line for each quantity.
"""
from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).with_name("data") / "heads.json"
LESSON = Path(__file__).parents[1] / "lessons" / "06_trained_heads.py"

being_written: dict[str, Any] | None = None  # the new record, while the lesson runs to make it


class Measured:
    """`measured(name, compute)`: what `compute()` gives, held against the record.

    available: whether there is a model to compute with; without one nothing is computed and the record is given
    recorded:  whether it is the model that the record was made with; otherwise nothing is compared
    """

    def __init__(self, available: bool, recorded: bool = True):
        self.available, self.recorded = available, recorded

    def __call__(self, name: str, compute: Callable[[], torch.Tensor], digits: int = 3) -> torch.Tensor:
        """The quantity in float64, with the decimals that it is recorded with: `digits`, when the record is made.

        It is the record's, so that no page and no picture depends on the last digit of a machine's arithmetic. Raises
        AssertionError if what is computed here differs from it by more than rounding and 0.1 %.
        """
        if being_written is not None:
            being_written[name] = _entry(compute(), digits)
            return _restored(being_written[name])
        if self.available and not self.recorded:
            return _restored(_entry(compute(), digits))
        entry = _record().get(name)
        if entry is None:
            raise ValueError(f"nothing is recorded under {name!r}: compute a quantity of your own without `measured`.")
        record = _restored(entry)
        if self.available:
            here = torch.as_tensor(compute(), dtype=torch.float64)
            assert here.shape == record.shape, f"{name} is {list(here.shape)} here and {list(record.shape)} in the record"
            off = (here - record).abs()
            allowed = 0.6 * 10**-entry["digits"] + 1e-3 * record.abs()
            assert bool((off <= allowed).all()), (
                f"{name}, computed here, is not what is recorded: it is off by up to {off.max():.2g}")
        return record


def _entry(values: torch.Tensor, digits: int) -> dict[str, Any]:
    scaled = torch.as_tensor(values, dtype=torch.float64) * 10**digits
    return {"digits": digits, "values": scaled.round().long().tolist()}


def _restored(entry: dict[str, Any]) -> torch.Tensor:
    return torch.tensor(entry["values"], dtype=torch.float64) / 10**entry["digits"]


@cache
def _record() -> dict[str, Any]:
    return json.loads(PATH.read_text(encoding="utf-8"))


def main() -> None:
    from multihead_lessons import recorded  # the module that the lesson imports; this one is __main__
    recorded.being_written = {}
    runpy.run_path(str(LESSON))
    lines = (f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}"
             for name, entry in recorded.being_written.items())
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
