"""Concatenation and W_O: how heads are joined, what each adds to the output, and what a lost head costs."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import multihead as mh
from multihead_lessons import provenance, svg
from multihead_lessons.explorer import Explorer, Slider
from multihead_lessons.plane import arrow
from multihead_lessons.provenance import CELL_WIDTH, TINT, Source
from multihead_lessons.quiz import Option, Quiz
from multihead_lessons.stored_relations import HEADS, WIDTHS, stored_layer
from multihead_lessons.style import HEAD_COLORS
from multihead_lessons.svg import Picture

SMALL = Source(T=3, d_model=4, h=2)  # T and h differ, so that a mixed-up axis shows


# Stills: the join

def joining() -> Picture:
    """Two heads of three tokens, as they come, after the transpose, and as one row for each token."""
    heads = mh.split_heads(SMALL.tensor(), SMALL.h)  # [1, h, T, d_k]
    stages = [("heads", heads), ("transpose(1, 2)", heads.transpose(1, 2)), ("reshape(B, T, h * d_k)", mh.merge_heads(heads))]
    parts, left, height = [], 10, 0
    for name, tensor in stages:
        parts += [svg.text(left, 18, name, size=14, font_weight="600"),
                  svg.text(left, 36, f"shape {list(tensor.shape)}")]
        top = 48
        for index, rows in provenance.as_panels(tensor):
            parts += provenance.panel(left, top, index, rows, SMALL)
            top += provenance.panel_height(len(rows))
        height = max(height, top)
        left += max(tensor.shape[-1] * CELL_WIDTH, 150) + 50
    alt = ("The same twelve numbers three times. As heads: for each head, one row of two channels for each token. After the "
           "transpose: for each token, one row for each head. After the reshape: one row for each token, head 1's two "
           "channels, then head 2's.")
    return Picture(svg.svg(left, height, *parts, alt=alt), alt, "Joined: one row for each token.", left)


def reshape_alone() -> Picture:
    """What reshape does to the heads when nobody transposes back."""
    heads = mh.split_heads(SMALL.tensor(), SMALL.h)  # [1, h, T, d_k]
    return provenance.comparison(SMALL.tensor(), heads.reshape(1, SMALL.T, SMALL.d_model), SMALL,
                                 left="transpose, then reshape", right="reshape alone")


# Stills: the matrix

def bands() -> Picture:
    """The joined row times W_O, as three small products: head i meets the band of rows i, and only that."""
    h, d_k, cell = 3, 2, 28
    d_model = h * d_k
    side = d_model * cell
    row_top, matrix_left, sum_left = 40 + side / 2 - cell / 2, 10 + side + 40, 10 + 2 * side + 100

    def block(x, y, columns, rows, head, words):
        color, width, depth = HEAD_COLORS[head], columns * cell, rows * cell
        thin = {"stroke": color, "stroke_width": 0.5}
        cuts = [svg.line(x + c * cell, y + 2, x + c * cell, y + depth - 2, **thin) for c in range(1, columns)]
        cuts += [svg.line(x + 2, y + r * cell, x + width - 2, y + r * cell, **thin) for r in range(1, rows)]
        return [svg.rect(x + 1, y + 1, width - 2, depth - 2, fill=color, fill_opacity=TINT, stroke=color), *cuts,
                svg.text(x + width / 2, y + depth / 2 + 5, words, anchor="middle", font_weight="600")]

    parts = [svg.text(10, 20, "joined, [1, h d_k]", size=14, font_weight="600"),
             svg.text(matrix_left, 20, "W_O, [h d_k, d_model]", size=14, font_weight="600"),
             svg.text(sum_left, 20, "one contribution for each head", size=14, font_weight="600"),
             svg.text(matrix_left - 20, row_top + 19, "×", size=18, anchor="middle"),
             svg.text(sum_left - 30, row_top + 19, "=", size=18, anchor="middle")]
    for head in range(h):
        parts += block(10 + head * d_k * cell, row_top, d_k, 1, head, f"head {head + 1}")
        parts += block(matrix_left, 40 + head * d_k * cell, d_model, d_k, head, f"rows of head {head + 1}")
        top = 40 + head * (cell + 16)
        parts += block(sum_left, top, d_model, 1, head, f"head {head + 1} × its rows")
        if head < h - 1:
            parts.append(svg.text(sum_left + side + 14, top + 19, "+", size=18))
    bottom = 40 + h * (cell + 16)
    parts += [svg.line(sum_left, bottom - 6, sum_left + side, bottom - 6, stroke_width=2),
              svg.text(sum_left + side / 2, bottom + 18, "output, [1, d_model]", anchor="middle", font_weight="600")]
    width, height = int(sum_left + side + 90), 40 + side + 8
    alt = ("A row of three colored pieces, one for each head, times a matrix cut into three bands of rows in the same colors, "
           "equals the sum of three rows: each head times its own band.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "One product, three contributions.", width)


@dataclass(frozen=True)
class Pair:
    """Two contributions in a model space of two channels, and what they do to each other."""

    title: str
    first: tuple[int, int]
    second: tuple[int, int]

    @property
    def total(self) -> tuple[int, int]:
        return self.first[0] + self.second[0], self.first[1] + self.second[1]


def square(vector: Sequence[float]) -> float:
    """The squared length."""
    return sum(entry * entry for entry in vector)


PAIRS = (Pair("they add", (2, 2), (2, 0)), Pair("at a right angle", (2, 2), (-1, 1)),
         Pair("they cancel in part", (2, 2), (-2, 0)), Pair("they cancel exactly", (2, 2), (-2, -2)))


def arrows() -> Picture:
    """Head 1 writes the same each time, head 2 something else: four ways in which two contributions meet."""
    unit, panel, height = 32, 208, 236
    parts = []
    for number, pair in enumerate(PAIRS):
        left = 8 + number * panel
        zero = (left + 58, 152)

        def at(vector, zero=zero):
            return zero[0] + unit * vector[0], zero[1] - unit * vector[1]
        parts.append(svg.text(left, 18, pair.title, size=14, font_weight="600"))
        grid = [((x, -0.5), (x, 3.6), x) for x in range(-1, 5)] + [((-1.4, y), (4.4, y), y) for y in range(4)]
        parts += [svg.line(*at(start), *at(end), stroke=svg.RULE, stroke_width=0.5 if off else 2) for start, end, off in grid]
        aside = 5 if pair.total == (0, 0) else 0  # the way back beside the way out
        parts += [arrow(*at((0, 0)), *at(pair.first), HEAD_COLORS[0], 2.5),
                  svg.group(arrow(*at(pair.first), *at(pair.total), HEAD_COLORS[1], 2.5, "6 4"),
                            transform=f"translate({aside} {aside})"),
                  arrow(*at((0, 0)), *at(pair.total), svg.INK, 4)]
        beside_1 = at((0.7 * pair.first[0] - 0.5, 0.7 * pair.first[1] + 0.15))
        beside_2 = at((pair.first[0] + pair.second[0] / 2 + 0.2, pair.first[1] + pair.second[1] / 2 + 0.2))
        below = 2.5 * aside
        parts += [svg.text(*beside_1, "1", fill=HEAD_COLORS[0], font_weight="700"),
                  svg.text(beside_2[0] + below, beside_2[1] + 1.5 * below, "2", fill=HEAD_COLORS[1], font_weight="700")]
        parts += [svg.text(left, 190, f"head 1 {_vector(pair.first)} + head 2 {_vector(pair.second)}"),
                  svg.text(left, 208, f"= output {_vector(pair.total)}"),
                  svg.text(left, 228, f"squares: {square(pair.first)} + {square(pair.second)} → {square(pair.total)}")]
    width = 8 + len(PAIRS) * panel
    words = "; ".join(f"{pair.title}: squared lengths {square(pair.first)} and {square(pair.second)} "
                      f"give {square(pair.total)}" for pair in PAIRS)
    alt = f"Four pairs of arrows laid tip to tail, blue for head 1, dashed teal for head 2, thick for their sum: {words}."
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Two heads, four meetings.", width)


def _vector(vector: Sequence[int]) -> str:
    return "({}, {})".format(*vector).replace("-", "−")


# The explorer: heads of a trained layer, each with a gain

RELATIONS = ("a", "b")
SEQUENCES = 1024  # of the evaluation set, which is the same for every layer and every gain
EXAMPLE = (3, 2)  # the sequence and token whose output is drawn
MOST = max(HEADS)
GAINS, MOST_GAIN = (0, 25, 50, 75, 100, 125, 150, 175, 200), 200  # percent


@dataclass(frozen=True)
class Measured:
    """A trained layer on the evaluation set. All that a gain can change is linear or quadratic in these sums.

    token:   [h, n, numbers], what each head adds to the output of the example token
    wanted:  [n, numbers], what that token should get
    overlap: [n, h, h], mean product of two heads' contributions to a relation
    aimed:   [n, h], mean product of a head's contribution with the target
    signal:  [n], mean square of the target
    """

    token: torch.Tensor
    wanted: torch.Tensor
    overlap: torch.Tensor
    aimed: torch.Tensor
    signal: torch.Tensor

    def errors(self, gains: torch.Tensor) -> torch.Tensor:
        """Relative error [n] of each relation when head i is multiplied by gains[i]."""
        return (self.written(gains) - 2 * self.aimed @ gains + self.signal) / self.signal

    def written(self, gains: torch.Tensor) -> torch.Tensor:
        """Mean square [n] of what the heads write together."""
        return torch.einsum("i,nij,j->n", gains, self.overlap, gains)

    def written_apart(self, gains: torch.Tensor) -> torch.Tensor:
        """Mean squares [n] of the single contributions, added up: `written` if the heads never met."""
        return torch.einsum("nii,i->n", self.overlap, gains.square())


@functools.cache
def measured(h: int, d_model: int) -> Measured:
    """The stored layer of h heads and width d_model, measured in float64."""
    layer = stored_layer(h, d_model)[0].double()
    task = layer.task
    batch = task.batch(torch.Generator().manual_seed(0), SEQUENCES)
    relations = (task.n_relations, task.numbers)
    wanted = batch.targets.double().unflatten(-1, relations)  # [B, T, n, numbers]
    with torch.no_grad():
        heads, _ = layer.heads(batch.x.double())  # [B, h, T, d_k]
        parts = mh.head_contributions(heads, layer.w_o.weight.T).unflatten(-1, relations)  # [B, h, T, n, numbers]
    sequence, token = EXAMPLE
    means = wanted[..., 0, 0].numel() * task.numbers
    return Measured(token=parts[sequence, :, token], wanted=wanted[sequence, token],
                    overlap=torch.einsum("bitnk,bjtnk->nij", parts, parts) / means,
                    aimed=torch.einsum("bitnk,btnk->ni", parts, wanted) / means,
                    signal=torch.einsum("btnk,btnk->n", wanted, wanted) / means)


def errors(h: int, d_model: int, gains: Sequence[float]) -> list[float]:
    """Relative errors of relations a and b when the stored layer's head i is multiplied by gains[i]."""
    return measured(h, d_model).errors(torch.tensor(gains, dtype=torch.float64)).tolist()


WIDTH, HEIGHT = 844, 332
LABELS, CELLS, CELL, GAP = 10, 124, 44, 12  # left edge of labels, of cells; width of a cell; between relations
TOP, ROWS, TALLEST = 48, 272, 36  # top of the rows, pixels for all of them, height of one at most
RIGHT, BAR, PER_UNIT = 520, 620, 148  # left edge of the right half, of its bars; pixels for an error of 1
POSITIVE, NEGATIVE, STRONGEST = "#7f6bb3", "#d97c1a", 1.5  # purple and orange, full color from this value on
MARK = "#cf0b2b"  # where an error is with every head at 100 percent


def draw_gains(h: int, d_model: int, **gain: int) -> Picture:
    """What each head adds to one token, and the errors over all tokens, with each head at its gain in percent."""
    percent = [gain[f"gain_{i + 1}"] for i in range(h)]
    layer, gains = measured(h, d_model), torch.tensor(percent, dtype=torch.float64) / 100
    now, full = layer.errors(gains).tolist(), layer.errors(torch.ones_like(gains)).tolist()
    parts = [*_contributions(layer, gains, percent), *_error_bars(now, full), *_interference(layer, gains)]
    listed = ", ".join(map(str, percent))
    alt = (f"Left, one token's output in eight channels: a row for each of {h} heads at gains {listed} percent, their sum, "
           f"and the target. Right, the errors over all tokens: relation a {now[0]:.2f}, relation b {now[1]:.2f}; and the mean "
           "squares of the heads one by one and of their sum.")
    status = (f"h = {h}, d_model = {d_model}, gains {listed} %: error {now[0]:.2f} on relation a, "
              f"{now[1]:.2f} on relation b.")
    return Picture(svg.svg(WIDTH, HEIGHT, *parts, alt=alt), alt, status, WIDTH)


def _contributions(layer: Measured, gains: torch.Tensor, percent: Sequence[int]) -> list[str]:
    """The left half: rows that add up."""
    parts = [svg.text(LABELS, 18, "one token: what each head adds to the output", font_weight="600")]
    for n, relation in enumerate(RELATIONS):
        words = f"relation {relation}, channels {4 * n + 1} to {4 * n + 4}"
        parts.append(svg.text(_cell_left(n, 0), 40, words, fill=svg.MUTED))
    written = layer.token * gains[:, None, None]  # [h, n, numbers]
    row, top = min(TALLEST, ROWS / (len(percent) + 2)), TOP
    for i, value in enumerate(percent):
        color = HEAD_COLORS[i]
        label = f"head {i + 1}: {f'{value} %' if value else 'off'}"
        parts += [svg.rect(LABELS, top + 5, 6, row - 10, fill=color), *_row(written[i], top, row),
                  svg.text(LABELS + 12, top + row / 2 + 5, label, fill=svg.INK if value else svg.MUTED)]
        top += row
    right = _cell_left(1, 4)
    parts.append(svg.line(LABELS, top + 3, right, top + 3, stroke_width=2))
    for name, numbers in (("their sum", written.sum(0)), ("target", layer.wanted)):
        parts += [svg.text(LABELS + 12, top + row / 2 + 11, name, font_weight="600"), *_row(numbers, top + 6, row)]
        top += row
    return parts


def _cell_left(relation: int, number: int) -> float:
    return CELLS + relation * (4 * CELL + GAP) + number * CELL


def _row(numbers: torch.Tensor, top: float, height: float) -> list[str]:
    """Cells for [n, numbers]: the value in words, its sign and size in color."""
    parts = []
    for n, relation in enumerate(numbers.tolist()):
        for k, value in enumerate(relation):
            color, strength = POSITIVE if value > 0 else NEGATIVE, min(abs(value) / STRONGEST, 1) * 0.85
            left = _cell_left(n, k)
            parts += [svg.rect(left + 1, top + 1, CELL - 2, height - 2, fill=color, fill_opacity=f"{strength:.2f}",
                               stroke=svg.RULE, stroke_width=0.5),
                      svg.text(left + CELL / 2, top + height / 2 + 5, _signed(value), anchor="middle", size=12)]
    return parts


def _signed(value: float) -> str:
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", "−")


def _error_bars(now: Sequence[float], full: Sequence[float]) -> list[str]:
    """The right half above: error now, and a mark where it is with every head at 100 percent."""
    one = BAR + PER_UNIT
    parts = [svg.text(RIGHT, 18, f"error over {8 * SEQUENCES:,} tokens, not retrained", font_weight="600"),
             svg.text(one, 40, "1 = all zeros", anchor="middle", fill=svg.MUTED),
             svg.line(one, 46, one, 46 + 2 * 30, stroke=svg.MUTED, stroke_dasharray="3 3")]
    for n, relation in enumerate(RELATIONS):
        y = 48 + n * 30
        length = PER_UNIT * min(max(now[n], 0), 1.15)
        mark = BAR + PER_UNIT * full[n]
        parts += [svg.text(RIGHT, y + 18, f"relation {relation}"),
                  svg.rect(BAR, y + 4, max(length, 1.5), 18, fill=svg.INK, fill_opacity=0.6),
                  svg.line(BAR, y + 1, BAR, y + 25, stroke=svg.INK),
                  svg.line(mark, y, mark, y + 26, stroke=MARK, stroke_width=2.5),
                  svg.text(WIDTH - 8, y + 18, f"{now[n]:.2f}", anchor="end", font_weight="600")]
    parts += [svg.line(RIGHT + 4, 114, RIGHT + 4, 128, stroke=MARK, stroke_width=2.5),
              svg.text(RIGHT + 14, 126, "every head at 100 %", fill=svg.MUTED)]
    return parts


def _interference(layer: Measured, gains: torch.Tensor) -> list[str]:
    """The right half below: do the heads add or cancel, over all tokens?"""
    apart, together = layer.written_apart(gains).tolist(), layer.written(gains).tolist()
    columns = [RIGHT + 205, RIGHT + 285]
    parts = [svg.text(RIGHT, 176, "mean square of what is written", font_weight="600")]
    rows = [("relation", list(RELATIONS)), ("head by head, added up", [f"{value:.2f}" for value in apart]),
            ("all heads together", [f"{value:.2f}" for value in together]),
            ("the heads", [_meeting(*pair) for pair in zip(apart, together)])]
    for i, (name, words) in enumerate(rows):
        y = 200 + 24 * i
        ink, weight = (svg.INK, "600") if i else (svg.MUTED, None)
        parts.append(svg.text(RIGHT, y, name, fill=ink))
        parts += [svg.text(x, y, word, anchor="middle", font_weight=weight, fill=ink) for x, word in zip(columns, words)]
    return parts


def _meeting(apart: float, together: float) -> str:
    if apart < 0.005:
        return "write 0"
    if abs(together - apart) < 0.05 * apart:
        return "neither"
    return "add" if together > apart else "cancel"


def _refuse_gain(name: str):
    return lambda value, _: (None if 0 <= value <= MOST_GAIN else
                             f"{name} = {value} is not possible here: a gain is 0 to {MOST_GAIN} percent.")


def gains_explorer() -> Explorer:
    """Stored two-relation layers with a gain for each head."""
    gains = [Slider(f"gain_{i}", GAINS, 100, label=f"head {i}", refuse=_refuse_gain(f"head {i}"),
                    shown=lambda state, i=i: state["h"] >= i) for i in range(1, MOST + 1)]

    def preset(*percent, rest=100):
        given = dict(enumerate(percent, 1))
        return {f"gain_{i}": given.get(i, rest) for i in range(1, MOST + 1)}
    return Explorer(draw_gains, Slider("h", HEADS, 4), Slider("d_model", WIDTHS, 32), *gains,
                    presets={"all heads": preset(), "lose head 1": preset(0),
                             "h = 4, lose head 3": {"h": 4, "d_model": 32, **preset(100, 100, 0)},
                             "head 1 alone": preset(100, rest=0), "all at 50 %": preset(rest=50)})


# Quizzes

def merge_quiz() -> Quiz:
    return Quiz(
        "out is new and contiguous, [B, h, T, d_k]: three tokens, two heads of two channels. What stands in the first row of "
        "out.reshape(B, T, h * d_k)?",
        Option("token 0: head 1's two channels, then head 2's",
               "That is what a merge must give. But reshape reads the memory in order, and after head 1's token 0 lies head 1's "
               "token 1."),
        Option("tokens 0 and 1 of head 1",
               "reshape reads the memory in order: all tokens of head 1, then all of head 2. The shape is right, so nothing "
               "complains.", right=True),
        Option("nothing: torch raises an error",
               "reshape raises only if the number of entries differs. It is view after a transpose that refuses."),
        Option("channel 0 of both heads, then channel 1 of both",
               "For that h and d_k would have to change places. reshape changes no order."))


def meeting_quiz() -> Quiz:
    return Quiz(
        "You change the value matrix of head 2 only. Which numbers change before W_O, and which after it?",
        Option("before: all channels; after: all channels",
               "Before W_O nothing mixes the heads: head 1's output is made of head 1's queries, keys and values."),
        Option("before: head 2's channels; after: head 2's channels",
               "W_O is a full matrix. The rows that head 2 meets have an entry in every output channel."),
        Option("before: head 2's channels; after: in general all d_model channels",
               "Before W_O the heads stay apart. Each row of W_O then writes into every output channel, unless it has zeros "
               "there.", right=True),
        Option("before: none; after: all channels",
               "The head's output is its pattern times its values, so new values change it at once."))


def lost_head_quiz() -> Quiz:
    return Quiz(
        "A trained layer of two heads does both relations with error 0.00. Head 1 is set to 0, nothing is retrained. Then?",
        Option("nothing changes: the other head takes over",
               "The other head goes on looking where it looked. Without training nothing tells it to do more."),
        Option("both relations get worse, by the same amount",
               "If each head wrote half of both, both errors would be 0.25, the square of what is missing. Here the training "
               "came to another division of labor."),
        Option("one relation is lost, error 1.00; the other stays at 0.00",
               "In this layer each head serves one relation. What it wrote is missing; the other head's part is untouched.",
               right=True),
        Option("the output is wrong everywhere, because W_O expects two heads",
               "W_O expects 2 d_k numbers and gets them; half are 0. The output is a sum, and one term of it is 0."))


def mask_quiz() -> Quiz:
    return Quiz(
        "A causal mask lets a token see itself and earlier tokens; ours is True there. You hand it to nn.MultiheadAttention "
        "as attn_mask. What happens?",
        Option("the same as in our layer",
               "torch's module reads a boolean attn_mask the other way round: True means blocked."),
        Option("torch raises an error, because the mask is boolean",
               "A boolean mask is welcome. It is only read with the opposite meaning."),
        Option("each token sees only later tokens; the last one sees none and becomes NaN",
               "True means blocked there, so the past is blocked and the future is open. The last row has nothing left.",
               right=True),
        Option("it is ignored unless is_causal=True",
               "attn_mask is applied without any flag. is_causal=True only promises that the mask is causal."))
