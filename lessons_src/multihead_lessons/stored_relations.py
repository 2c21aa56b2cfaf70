"""Results of the two-relation experiment over many seeds, and trained layers to draw: data/relations.json.

    python -m multihead_lessons.stored_relations

trains everything again, prints the table and writes the file: about four minutes on one core. On one
machine, with one version of torch, it writes the same bytes each time.

The file holds one line for each entry: a case's relative errors, or a layer's weights and errors.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from multihead.relations import RelationLayer, Task, evaluate, floor, train

PATH = Path(__file__).with_name("data") / "relations.json"
DIGITS = 4  # decimals of every number in the file
TEST_SEQUENCES = 16384  # a run's test set; it scatters the error of one head by about 0.0005


@dataclass(frozen=True)
class Case:
    """One row of the table. Each seed, from 0 on, sets the weights, the training data and the test data."""

    task: Task
    h: int
    width: int = 32
    reads_content: bool = False
    steps: int = 600
    seeds: int = 20

    def layer(self, seed=0):
        """The untrained layer."""
        return RelationLayer(self.task, self.h, self.width, reads_content=self.reads_content, seed=seed)

    def run(self, seed=0):
        """The trained layer."""
        layer = self.layer(seed)
        train(layer, seed, steps=self.steps)
        return layer

    @property
    def parameters(self):
        """Number of weights."""
        return sum(weight.numel() for weight in self.layer().parameters())

    @property
    def floor(self):
        """The least expected error of h heads; None where patterns may read content, as no floor is known."""
        if self.reads_content:
            return None
        return 0.0 if self.task.typed else floor(self.task.n_relations, self.h)

    def __str__(self):
        """Everything that sets this case apart; the key in the file, so that it never serves another case."""
        task = self.task
        variant = " typed" * task.typed + " reads_content" * self.reads_content
        return (f"n {task.n_relations} h {self.h} width {self.width}{variant} numbers {task.numbers} "
                f"T {task.T} steps {self.steps}")


TWO, FOUR = Task(n_relations=2), Task(n_relations=4)
CASES = [
    Case(TWO, 1), Case(TWO, 2), Case(TWO, 4), Case(TWO, 1, width=128), Case(Task(typed=True), 1),
    Case(TWO, 1, reads_content=True),
    Case(FOUR, 1), Case(FOUR, 2), Case(FOUR, 4), Case(FOUR, 8),
    # Longer runs of a head that reads content: with one number per attribute it gets below (n - h) / n.
    *(Case(Task(numbers=m), 1, reads_content=True, steps=4000, seeds=3) for m in (1, 4)),
]
HEADS, WIDTHS = (1, 2, 4, 8), (16, 32, 64)


def stored_errors(case):
    """Relative errors of each seed and relation, [seeds, n]; `.mean(1)` gives the totals.

    Raises ValueError for a case that is not stored.
    """
    return torch.tensor(_entry(str(case)))


def stored_layer(h, width):
    """(trained layer, its relative errors [n]) for h in HEADS, width in WIDTHS, two relations and seed 0.

    One head stays at its floor, 0.5 in total. Of the others, only 8 heads of width 16 / 8 = 2 stay clearly
    above theirs, 0: at about 0.06. That is a matter of steps: 4000 instead of 600 bring it below 0.001.
    Raises ValueError for a layer that is not stored.
    """
    entry = _entry(_layer_key(h, width))
    return _filled(h, width, entry["weights"]), torch.tensor(entry["errors"])


_HEADER = f"{'':<58} weights  floor    mean     min     max  seed 0"


def _row(case, errors):
    totals = errors.mean(1)  # [seeds]
    least = "none" if case.floor is None else f"{case.floor:.2f}"
    split = " + ".join(f"{error:.3f}" for error in errors[0].tolist())
    return (f"{str(case):<58} {case.parameters:7d} {least:>6} {totals.mean():7.4f} {totals.min():7.4f} "
            f"{totals.max():7.4f}  {split}")


def _layer_key(h, width):
    return f"layer h {h} width {width}"


def _filled(h, width, weights):
    layer = RelationLayer(TWO, h, width)
    layer.load_state_dict({name: torch.tensor(values) for name, values in weights.items()})
    return layer


def _rounded(tensor):
    """Nested lists with DIGITS decimals."""
    if tensor.ndim:
        return [_rounded(part) for part in tensor]
    return round(tensor.item(), DIGITS)


def _layer_entry(h, width):
    """A layer trained afresh, and the errors of the weights as they are stored: rounded."""
    trained = Case(TWO, h, width).run()
    weights = {name: _rounded(values) for name, values in trained.state_dict().items()}
    return {"errors": _rounded(evaluate(_filled(h, width, weights))[1]), "weights": weights}


def _text(entries):
    """The file's text: JSON, one line for each entry."""
    lines = (f'"{key}": {json.dumps(value, separators=(",", ":"))}' for key, value in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


@functools.cache
def _entries():
    return json.loads(PATH.read_text(encoding="utf-8"))


def _entry(key):
    if key not in _entries():
        raise ValueError(f"{PATH.name} has no entry {key!r}; it has: {'; '.join(_entries())}")
    return _entries()[key]


def _case_errors(case, seed):
    """Relative errors [n] of one run."""
    return evaluate(case.run(seed), seed, B=TEST_SEQUENCES)[1]


def main():
    torch.set_num_threads(1)
    entries = {}
    print(_HEADER)
    for case in CASES:
        errors = torch.stack([_case_errors(case, seed) for seed in range(case.seeds)])  # [seeds, n]
        entries[str(case)] = _rounded(errors)
        print(_row(case, errors), flush=True)
    for h in HEADS:
        for width in WIDTHS:
            entries[_layer_key(h, width)] = entry = _layer_entry(h, width)
            print(f"{_layer_key(h, width)}: {entry['errors']}", flush=True)
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(_text(entries), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
