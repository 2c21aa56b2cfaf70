"""Pictures of where every number of a tensor came from.

The trick is an input whose entries are their own addresses: entry n of the memory holds n. Whatever a reshape does, its
result then says which token and channel, and so which head, each place was filled from.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from multihead_lessons import svg
from multihead_lessons.style import HEAD_COLORS
from multihead_lessons.svg import Picture

CELL_WIDTH, CELL_HEIGHT = 56, 28
TINT = 0.28  # of a head's color behind the text of a cell


@dataclass(frozen=True)
class Source:
    """The projected tensor [1, T, d_model] whose entries are addresses; channels h d_k are dealt to heads in order."""

    T: int
    d_model: int
    h: int

    def tensor(self) -> torch.Tensor:
        """[1, T, d_model], entry n of the memory holds n."""
        return torch.arange(self.T * self.d_model, dtype=torch.float32).view(1, self.T, self.d_model)

    def origin(self, value: float) -> tuple[int, int, int] | None:
        """(token, channel, head) of an address, None for a number that is none."""
        if value != int(value) or not 0 <= value < self.T * self.d_model:
            return None
        token, channel = divmod(int(value), self.d_model)
        return token, channel, channel * self.h // self.d_model


def cell(x: float, y: float, value: float, source: Source, *, strange: bool = False, size: int = 13) -> str:
    """One number: its token and channel in words, its head in color; a thick dashed frame where it is not wanted."""
    origin = source.origin(value)
    color = HEAD_COLORS[origin[2] % len(HEAD_COLORS)] if origin else svg.MUTED
    words = f"t{origin[0]} c{origin[1]}" if origin else "?"
    return "".join([
        svg.rect(x + 1, y + 1, CELL_WIDTH - 2, CELL_HEIGHT - 2, fill=color, fill_opacity=TINT, stroke=svg.INK if strange else color,
                 stroke_width=2.5 if strange else 1.5, stroke_dasharray="4 3" if strange else None),
        svg.text(x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2 + 5, words, size=size, anchor="middle")])


def panel(x: float, y: float, title: str, rows: Sequence[Sequence[float]], source: Source,
          wanted: Sequence[Sequence[float]] | None = None) -> list[str]:
    """A titled grid of cells; those that differ from `wanted` are framed."""
    parts = [svg.text(x, y + 13, title, size=13)]
    for r, row in enumerate(rows):
        for c, value in enumerate(row):
            strange = wanted is not None and value != wanted[r][c]
            parts.append(cell(x + c * CELL_WIDTH, y + 20 + r * CELL_HEIGHT, value, source, strange=strange))
    return parts


def panel_height(rows: int) -> float:
    """Pixels from the top of a panel to the top of the next."""
    return 20 + rows * CELL_HEIGHT + 12


def memory(x: float, y: float, source: Source) -> list[str]:
    """The memory line: every number in the order in which it lies, its address below."""
    parts = []
    for address in range(source.T * source.d_model):
        left = x + address * CELL_WIDTH
        parts += [cell(left, y, address, source), svg.text(left + CELL_WIDTH / 2, y + CELL_HEIGHT + 14, address, size=12,
                                                           anchor="middle", fill=svg.MUTED)]
    return parts


def as_panels(tensor: torch.Tensor) -> list[tuple[str, list[list[float]]]]:
    """A tensor of two axes or more as (index of the leading axes, rows) for each of its matrices."""
    matrices = tensor.detach().reshape(-1, *tensor.shape[-2:])
    lead = [f"[{', '.join(map(str, index))}]" for index in _indices(tensor.shape[:-2])]
    return list(zip(lead, matrices.tolist()))


def _indices(shape: Sequence[int]) -> list[tuple[int, ...]]:
    indices = [()]
    for size in shape:
        indices = [(*index, i) for index in indices for i in range(size)]
    return indices


def comparison(wanted: torch.Tensor, found: torch.Tensor, source: Source, *, left: str = "wanted",
               right: str = "yours", framed: bool = True) -> Picture:
    """Two tensors of addresses side by side, matrix by matrix; places that differ from the left are framed if asked."""
    same_shape = wanted.shape == found.shape
    columns = []
    for name, tensor in ((left, wanted), (right, found)):
        panels = as_panels(tensor)
        columns.append((f"{name}: {list(tensor.shape)}", panels))
    top, x, width, height = 30, 10, 10, 0
    parts = []
    for number, (title, panels) in enumerate(columns):
        per_row = 1 if len(panels) <= 4 else 2
        matrix_width = max(len(panels[0][1][0]) * CELL_WIDTH, 60) + 24
        parts.append(svg.text(x, 18, title, size=14, font_weight="600"))
        for i, (index, rows) in enumerate(panels):
            target = columns[0][1][i][1] if number and same_shape and framed else None
            y = top + (i // per_row) * panel_height(len(rows))
            parts += panel(x + (i % per_row) * matrix_width, y, index, rows, source, target)
            height = max(height, y + panel_height(len(rows)))
        x += max(per_row * matrix_width, 10 + 8 * len(title)) + 30
        width = x
    if same_shape:
        count = f"{int((wanted != found).sum())} of {wanted.numel()} places hold another number than on the left"
    else:
        count = "the shapes differ"
    alt = (f"{left} and {right} side by side, each number labeled with the token and channel that it came from and colored by "
           f"head: {count}.")
    return Picture(svg.svg(int(width), int(height), *parts, alt=alt), alt, f"{count[0].upper()}{count[1:]}.", int(width))
