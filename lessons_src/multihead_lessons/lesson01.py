"""One head averages: pictures of blends and their limit, the live experiment, the explorers, the quizzes."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import ipywidgets as widgets
import torch
from matplotlib.figure import Figure

import multihead as mh
from multihead import relations
from multihead_lessons import svg
from multihead_lessons.explorer import Choice, Explorer, Slider
from multihead_lessons.quiz import Option, Quiz
from multihead_lessons.stored_relations import HEADS, TWO, WIDTHS, Case, stored_errors, stored_layer
from multihead_lessons.style import HEAD_COLORS, WEIGHT_COLORS
from multihead_lessons.svg import Picture


def _color(head: int) -> str:
    return HEAD_COLORS[head % len(HEAD_COLORS)]


def _dot(x: float, y: float, radius: float, **look: object) -> str:
    return svg.tag("circle", cx=float(x), cy=float(y), r=float(radius), **look)


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    """The `d` of a path from point to point."""
    return "M" + "L".join(f"{svg.number(x)} {svg.number(y)}" for x, y in points)


def _placed(x: float, y: float) -> str:
    """The `transform` that moves a shape's origin to (x, y)."""
    return f"translate({svg.number(x)} {svg.number(y)})"


# One head: a blend stays in the triangle of its values

VALUES = ((0, 0), (8, 0), (2, 6))  # v of token 0, 1, 2, as in the lesson's first cell
SCORES = range(-6, 7)


def weights_of(scores: Sequence[float]) -> list[float]:
    """Softmax of one row of scores."""
    return torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()


def blend(weights: Sequence[float]) -> tuple[float, float]:
    """z = sum_j alpha_j v_j of the three values in the plane."""
    return tuple(sum(weight * value[axis] for weight, value in zip(weights, VALUES)) for axis in (0, 1))


def draw_triangle(s0: int, s1: int, s2: int) -> Picture:
    """The three values, the blend z, and the row of weights that put it there."""
    width, height, unit, left, bottom = 840, 346, 44, 70, 288

    def at(point: Sequence[float]) -> tuple[float, float]:
        return left + unit * point[0], bottom - unit * point[1]
    scores, weights = (s0, s1, s2), weights_of((s0, s1, s2))
    z = blend(weights)
    corners, place = [at(value) for value in VALUES], at(z)
    parts = [*_axes_of_triangle(left, bottom, unit),
             svg.path(_polyline(corners) + "Z", fill=HEAD_COLORS[0], fill_opacity=0.12, stroke=HEAD_COLORS[0],
                      stroke_width=1.5)]
    parts += [svg.line(*place, *corner, stroke=HEAD_COLORS[0], stroke_width=1 + 9 * weight)
              for corner, weight in zip(corners, weights) if weight >= 0.005]
    for j, (x, y) in enumerate(corners):
        right, down = (14, 5) if j == 2 else (-6, 23)
        parts += [_dot(x, y, 6, fill=svg.PAPER, stroke=svg.INK, stroke_width=2),
                  svg.text(x + right, y + down, f"v{j} = ({VALUES[j][0]}, {VALUES[j][1]})")]
    parts += [_dot(*place, 9, fill=svg.INK, stroke=svg.PAPER, stroke_width=2),
              *_row_of_weights(510, 46, scores, weights),
              svg.text(510, 226, f"z = ({z[0]:.2f}, {z[1]:.2f})", size=15, font_weight="600"),
              svg.text(510, 250, "the filled dot; a thicker line, a larger weight", fill=svg.MUTED)]
    words, largest = ", ".join(f"{weight:.2f}" for weight in weights), max(range(3), key=weights.__getitem__)
    alt = (f"A triangle with the corners v0, v1, v2, and inside it the blend z at ({z[0]:.1f}, {z[1]:.1f}). Beside "
           f"it the row of weights: {words}.")
    close = ""
    if weights[largest] > 0.985:
        close = f", close to v{largest}, not on it: the other weights are small, not 0"
    status = (f"Scores {s0}, {s1}, {s2} give the weights {words} and put z at ({z[0]:.2f}, {z[1]:.2f}), inside the "
              f"triangle{close}.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, status, width)


def _axes_of_triangle(left: float, bottom: float, unit: float) -> list[str]:
    """Two axes a little away from the triangle, so that its corners stay free."""
    axis, muted = bottom + 32, {"size": 12, "fill": svg.MUTED}
    return [svg.line(left, axis, left + 8 * unit, axis, stroke=svg.RULE),
            svg.line(left - 16, bottom, left - 16, bottom - 6 * unit, stroke=svg.RULE),
            *(svg.text(left + unit * tick, axis + 17, tick, anchor="middle", **muted) for tick in (0, 2, 4, 6, 8)),
            *(svg.text(left - 24, bottom - unit * tick + 4, tick, anchor="end", **muted) for tick in (0, 2, 4, 6)),
            svg.text(left + 8 * unit + 14, axis + 17, "channel 0", **muted),
            svg.text(8, bottom - 6 * unit - 10, "channel 1", **muted)]


def _row_of_weights(left: float, top: float, scores: Sequence[int], weights: Sequence[float]) -> list[str]:
    """Token, score, e^score and weight as a table; the weight also as a bar."""
    token, score_end, power_end, bar, weight_end = left, left + 92, left + 176, left + 200, left + 310
    heads = ((token, "token", "start"), (score_end, "score", "end"), (power_end, "e^score", "end"),
             (bar, "weight", "start"))
    parts = [svg.text(x, top - 14, title, anchor=anchor, font_weight="600") for x, title, anchor in heads]
    for j, (score, weight) in enumerate(zip(scores, weights)):
        y = top + 34 * j + 20
        parts += [svg.text(token, y, j), svg.text(score_end, y, score, anchor="end"),
                  svg.text(power_end, y, f"{math.exp(score):.2f}", anchor="end"),
                  svg.rect(bar, y - 15, 1 + 64 * weight, 20, fill=HEAD_COLORS[0]),
                  svg.text(weight_end, y, f"{weight:.2f}", anchor="end")]
    y, total = top + 34 * len(scores) + 24, sum(map(math.exp, scores))
    return parts + [svg.line(left, y - 20, weight_end, y - 20, stroke=svg.RULE), svg.text(token, y, "sum"),
                    svg.text(power_end, y, f"{total:.2f}", anchor="end"), svg.text(weight_end, y, "1", anchor="end")]


def triangle_explorer() -> Explorer:
    """Three scores move one blend."""
    presets = {"the example": (1, 1, -1), "all alike": (0, 0, 0), "nearly one token": (-6, -6, 6)}
    return Explorer(draw_triangle,
                    *(Slider(f"s{j}", SCORES, presets["the example"][j], label=f"score {j}") for j in range(3)),
                    presets={name: dict(zip(("s0", "s1", "s2"), scores)) for name, scores in presets.items()})


# Two needs: what a linear read-out can recover from one blend, and from two

SUBJECT, ADJECTIVE = 0, 1
TOKENS = ("subject", "adjective", "other", "other")


def readout(patterns: torch.Tensor, wanted: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The best linear read-out of some tokens' values from blends: (errors [n], coefficients [h, n]).

    patterns: [h, T], row i holds the weights of head i. Values are white: mean 0, variance 1, uncorrelated. An
    error is the mean square of what is missed. The normal equations are G c = a_j with G = patterns patterns^T.
    """
    columns = patterns[:, list(wanted)]  # [h, n]
    coefficients = torch.linalg.pinv(patterns @ patterns.mT, hermitian=True) @ columns  # [h, n]
    return (1 - (columns * coefficients).sum(0)).clamp(min=0), coefficients


def blend_patterns(heads: int, p: int, elsewhere: int) -> torch.Tensor:
    """Rows of weights [heads, 4] from percentages; a second head has subject and adjective exchanged.

    `elsewhere` goes to the two other tokens; of what is left, p goes to the subject and the rest to the adjective.
    """
    p, lost = p / 100, elsewhere / 100
    row = torch.tensor([p * (1 - lost), (1 - p) * (1 - lost), lost / 2, lost / 2], dtype=torch.float64)
    return torch.stack([row, row[[1, 0, 2, 3]]][:heads])


class ErrorPlane:
    """A square of errors, 0 to 1: need a to the right, need b upward, and the line err_a + err_b = 1."""

    def __init__(self, left: float, top: float, size: float):
        self.left, self.top, self.size = left, top, size

    def at(self, a: float, b: float) -> tuple[float, float]:
        return self.left + self.size * a, self.top + self.size * (1 - b)

    def parts(self) -> list[str]:
        muted, ticks = {"size": 12, "fill": svg.MUTED}, ((0, "0"), (0.5, "½"), (1, "1"))
        top_left, bottom_left, bottom_right = self.at(0, 1), self.at(0, 0), self.at(1, 0)
        under = _polyline([top_left, bottom_left, bottom_right]) + "Z"
        return [svg.path(under, fill=HEAD_COLORS[3], fill_opacity=0.13),
                svg.rect(self.left, self.top, self.size, self.size, stroke=svg.RULE),
                svg.line(*top_left, *bottom_right, stroke=HEAD_COLORS[3], stroke_width=2, stroke_dasharray="6 4"),
                svg.text(self.at(0.5, 0)[0], bottom_left[1] + 41, "error of need a", anchor="middle"),
                svg.text(self.left - 34, self.top - 12, "error of need b"),
                *(svg.text(self.at(share, 0)[0], bottom_left[1] + 23, words, anchor="middle", **muted)
                  for share, words in ticks),
                *(svg.text(self.left - 8, self.at(0, share)[1] + 4, words, anchor="end", **muted)
                  for share, words in ticks[1:])]


def draw_blend(heads: int, p: int, elsewhere: int) -> Picture:
    """The rows of weights, and where the two errors of the best linear read-out lie."""
    width, height = 840, 340
    patterns = blend_patterns(heads, p, elsewhere)
    errors, coefficients = readout(patterns, (SUBJECT, ADJECTIVE))
    a, b = errors.tolist()
    sums = (("error a =", a), ("error b =", b), ("together", a + b))
    plane = ErrorPlane(570, 40, 230)
    parts = [*_rows_of_heads(20, 24, patterns.tolist()),
             svg.text(20, 228, "best linear read-out of white values", size=14, font_weight="600"),
             *(svg.text(20 + 136 * n, 254, f"{name} {value:.2f}", size=15) for n, (name, value) in enumerate(sums)),
             svg.text(20, 280, f"largest factor that it multiplies a blend by: {coefficients.abs().max():.1f}"),
             svg.text(20, 304, "shaded: no single head gets there", fill=svg.MUTED), *plane.parts(),
             _dot(*plane.at(a, b), 9, fill=svg.INK, stroke=svg.PAPER, stroke_width=2)]
    alt = (f"Rows of weights of {'one head' if heads == 1 else 'two heads'} over subject, adjective and two other "
           "tokens. Beside them a square of errors with the line on which the two errors add up to 1, and a dot at "
           f"error a = {a:.2f}, error b = {b:.2f}.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, _blend_status(heads, p, elsewhere, a, b), width)


def _rows_of_heads(left: float, top: float, rows: Sequence[Sequence[float]]) -> list[str]:
    """One row of four weights for each head; the stronger the color, the larger the weight."""
    cell, first = 96, left + 68
    parts = [svg.text(left, top, "weights of one token's row", size=14, font_weight="600")]
    for j, name in enumerate(TOKENS):
        parts.append(svg.text(first + cell * (j + 0.5) - 2, top + 32, name, anchor="middle"))
    for j, need in ((SUBJECT, "need a"), (ADJECTIVE, "need b")):
        parts.append(svg.text(first + cell * (j + 0.5) - 2, top + 52, need, anchor="middle", fill=svg.MUTED))
    for head, row in enumerate(rows):
        y, color = top + 64 + 54 * head, _color(head)
        parts.append(svg.text(left, y + 27, f"head {head + 1}", font_weight="600"))
        for j, weight in enumerate(row):
            x = first + cell * j
            parts += [svg.rect(x, y, cell - 4, 42, fill=color, fill_opacity=0.08 + 0.6 * weight, stroke=color,
                               stroke_width=2),
                      svg.text(x + cell / 2 - 2, y + 26, f"{weight:.2f}", size=15, anchor="middle")]
    return parts


def _blend_status(heads: int, p: int, elsewhere: int, a: float, b: float) -> str:
    total = a + b
    if total < 5e-3:
        place = "both needs are met, the dot sits in the corner at 0"
    elif abs(total - 1) < 5e-3:
        place = "the dot lies on the line"
    else:
        place = "the dot lies above the line" if total > 1 else "the dot lies below the line"
    if heads == 2 and p == 50:
        place += ". The two patterns are equal, so the second head adds nothing"
    return (f"{'One head' if heads == 1 else 'Two heads'}, p = {p} %, others {elsewhere} %: error a = {a:.2f}, "
            f"error b = {b:.2f}, together {total:.2f}; {place}.")


def blend_explorer() -> Explorer:
    """One head or two, its share p, and what goes elsewhere."""
    return Explorer(draw_blend, Choice("heads", [1, 2], 1), Slider("p", range(0, 101, 5), 75, label="p in %"),
                    Slider("elsewhere", range(0, 61, 10), 0, label="others %"))


# The exact limit: a layer as one matrix, and the matrix rearranged

def swap_and_keep() -> tuple[torch.Tensor, torch.Tensor]:
    """Two tokens, two heads, two channels: channel 0 from the other token, channel 1 from the token itself.

    (patterns [2, 2, 2], maps [2, 2, 2])
    """
    patterns = torch.tensor([[[0., 1.], [1., 0.]], [[1., 0.], [0., 1.]]])
    maps = torch.tensor([[[1., 0.], [0., 0.]], [[0., 0.], [0., 1.]]])
    return patterns, maps


def rearranged() -> Picture:
    """The 4 x 4 matrix of `swap_and_keep`, and the same sixteen numbers with one block to a row."""
    width, height, top = 790, 264, 66
    patterns, maps = swap_and_keep()
    # Head 1 counts as 1 and head 2 as 2; no entry belongs to both.
    owners = mh.layer_matrix(patterns, maps * torch.tensor([1., 2.])[:, None, None])
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    single = [f"t{s} c{j}" for s, j in places]
    matrix, left = _owned_matrix(110, top, owners, single, single), 110 + 2 * WIDE
    matrix += [svg.line(left, top, left, top + 4 * HIGH, stroke_width=2.5), _rule(110, top, 2)]
    rows, columns = [f"t{s} ← t{t}" for s, t in places], [f"c{j}←c{i}" for j, i in places]
    blocks = _owned_matrix(550, top, mh.rearrange(owners, 2, 2), rows, columns)
    blocks += [_rule(550, top, n) for n in (1, 2, 3)]
    parts = [svg.text(20, 20, "the layer as a matrix L", size=14, font_weight="600"), *matrix,
             svg.text(450, 20, "rearranged: each block is a row", size=14, font_weight="600"), *blocks,
             svg.path("M346 154H416M406 147L416 154L406 161", stroke=svg.INK, stroke_width=2),
             svg.rect(110, 247, 12, 12, fill=HEAD_COLORS[0]), svg.text(128, 258, "head 1"),
             svg.rect(196, 247, 12, 12, fill=HEAD_COLORS[1]), svg.text(214, 258, "head 2"),
             svg.text(550, 258, "two different rows: rank 2")]
    alt = ("Left, the 4 by 4 matrix L of the layer, made of four 2 by 2 blocks. Right, the same sixteen numbers, each "
           "block written as one row: 0001, 1000, 1000, 0001. Two different rows, each twice: rank 2.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "One block to a row.", width)


WIDE, HIGH = 54, 44  # a cell of the matrices, CSS pixels


def _rule(left: float, top: float, row: int) -> str:
    """A line above a row of a 4 x 4 matrix."""
    return svg.line(left, top + HIGH * row, left + 4 * WIDE, top + HIGH * row, stroke_width=2.5)


def _owned_matrix(left: float, top: float, owners: torch.Tensor, rows: Sequence[str],
                  columns: Sequence[str]) -> list[str]:
    """A 4 x 4 matrix of zeros and ones; a one has the color of the head that owns it, owners 1 and 2."""
    parts = []
    for n, (row, column) in enumerate(zip(rows, columns)):
        parts += [svg.text(left - 10, top + HIGH * n + 28, row, anchor="end"),
                  svg.text(left + WIDE * (n + 0.5), top - 8, column, size=12, anchor="middle")]
    for n, line in enumerate(owners.int().tolist()):
        for m, owner in enumerate(line):
            x, y = left + WIDE * m, top + HIGH * n
            fill, ink, weight = (_color(owner - 1), "#ffffff", "700") if owner else ("none", svg.MUTED, None)
            parts += [svg.rect(x + 1, y + 1, WIDE - 2, HIGH - 2, fill=fill, stroke=svg.RULE),
                      svg.text(x + WIDE / 2, y + 28, min(owner, 1), size=15, anchor="middle", fill=ink,
                               font_weight=weight)]
    return parts


# The experiment, live

STEPS, EVERY = 600, 10  # steps of training; steps between two pictures
MARKERS = (  # one shape for each run: circle, square, triangle, diamond
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z", "M-5 -5h10v10h-10z", "M0 -6l6 11h-12z", "M0 -6l6 6l-6 6l-6 -6z",
)


def _marker(run: int, x: float, y: float, **look: object) -> str:
    return svg.path(MARKERS[run], fill=_color(run), transform=_placed(x, y), **look)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch works on one thread meanwhile: fastest for small tensors, and the same each time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LearningCurves:
    """Learning curves that grow while layers train. The picture is replaced as a whole, so nothing flickers.

    layers: name -> layer, in the order of training, at most four. `follow(name)` is a callback for training.
    `curves[name]` holds the relative error of training batches, averaged over each ten steps.
    """

    def __init__(self, layers: Mapping[str, torch.nn.Module], steps: int = STEPS):
        self.steps = steps
        self.weights = {name: sum(w.numel() for w in layer.parameters()) for name, layer in layers.items()}
        self.curves: dict[str, list[float]] = {name: [] for name in layers}
        self.picture, self.sentence = widgets.HTML(), widgets.HTML()
        self._show("Training starts.")
        self.root = widgets.VBox([self.picture, self.sentence])
        self.root.add_class("mha-live")

    def follow(self, name: str) -> Callable[[int, float], None]:
        """A callback `progress(step, error)` that draws every ten steps."""
        recent: list[float] = []

        def progress(step: int, error: float) -> None:
            recent.append(error)
            if step % EVERY == 0:
                self.curves[name].append(sum(recent) / len(recent))
                recent.clear()
                self._show(f"Trained: {name}." if step == self.steps else None)
        return progress

    def _show(self, finished: str | None) -> None:
        """The picture as it is now; the sentence, which is read aloud, only where something has finished."""
        picture = draw_curves(self.curves, self.weights, self.steps)
        self.picture.value = picture.svg
        if finished:
            self.sentence.value = f'<p role="status" style="margin:0">{finished} {picture.status}</p>'

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The live view, and for a page without a kernel the empty axes: the result is not known yet."""
        empty = draw_curves({name: [] for name in self.curves}, self.weights, self.steps)
        image = svg.as_image(empty.svg, empty.alt, empty.width)
        return {**self.root._repr_mimebundle_(**options),
                "text/html": f"{image}<p>Run this cell to watch the layers train.</p>", "text/plain": empty.alt}


def draw_curves(curves: Mapping[str, Sequence[float]], weights: Mapping[str, int], steps: int = STEPS) -> Picture:
    """Relative error against steps, the newest error of each run, and a bar for the progress of all runs."""
    width, height, left, top, right, bottom = 840, 330, 56, 34, 470, 270

    def at(step: float, error: float) -> tuple[float, float]:
        return left + (right - left) * step / steps, bottom - (bottom - top) * min(error, 1.1) / 1.1
    parts = [svg.text(12, 18, "relative error of a training batch"),
             svg.line(left, top, left, bottom, stroke=svg.RULE),
             svg.text(at(0.75 * steps, 0)[0], bottom + 20, "steps", anchor="middle", fill=svg.MUTED),
             svg.text(820, 34, "newest error", size=12, anchor="end", fill=svg.MUTED)]
    for error, words in ((0, "0"), (0.5, "½"), (1, "1")):
        _, y = at(0, error)
        parts += [svg.text(left - 8, y + 4, words, anchor="end"),
                  svg.line(left, y, right, y, stroke=svg.RULE, stroke_dasharray="3 4" if error else None)]
    parts += [svg.text(at(tick, 0)[0], bottom + 20, tick, anchor="middle") for tick in (0, steps // 2, steps)]
    for run, (name, curve) in enumerate(curves.items()):
        points = [at(EVERY * (i + 1), error) for i, error in enumerate(curve)]
        if points:
            parts += [svg.path(_polyline(points), stroke=_color(run), stroke_width=2.5), _marker(run, *points[-1])]
        y = 62 + 52 * run
        parts += [svg.line(500, y - 4, 530, y - 4, stroke=_color(run), stroke_width=2.5), _marker(run, 515, y - 4),
                  svg.text(540, y, name, size=14, font_weight="600"),
                  svg.text(820, y, f"{curve[-1]:.2f}" if curve else "–", size=14, anchor="end"),
                  svg.text(540, y + 18, f"{weights[name]:,} weights", fill=svg.MUTED)]
    parts += _progress(500, 276, [EVERY * len(curve) for curve in curves.values()], steps)
    if any(curves.values()):
        newest = "; ".join(f"{name} {curve[-1]:.2f}" for name, curve in curves.items() if curve)
        alt = f"Learning curves, relative error against {steps} steps of training. Newest errors: {newest}."
        status = f"Newest errors: {newest}."
    else:
        alt = (f"Empty axes for learning curves, relative error against {steps} steps of training, of these runs: "
               f"{'; '.join(curves)}.")
        status = "Nothing is trained yet."
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, status, width)


def _progress(left: float, top: float, taken: Sequence[int], steps: int) -> list[str]:
    """A bar over all runs, and which run is on; taken holds the steps of each run so far."""
    done = sum(step >= steps for step in taken)
    on = next((step for step in taken if 0 < step < steps), None)
    words = "all runs are done" if done == len(taken) else f"{done} of {len(taken)} runs done"
    if on:
        words = f"run {done + 1} of {len(taken)}, step {on} of {steps}"
    return [svg.text(left, top, words), svg.rect(left, top + 10, 320, 14, stroke=svg.RULE),
            svg.rect(left, top + 10, 320 * sum(taken) / (steps * len(taken)), 14, fill=HEAD_COLORS[0])]


def learning_curves(curves: Mapping[str, Sequence[float]]) -> Figure:
    """The curves of a finished `LearningCurves` as a still."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for run, (name, curve) in enumerate(curves.items()):
        axes.plot(range(EVERY, EVERY * len(curve) + 1, EVERY), curve, color=_color(run), linewidth=2, label=name,
                  clip_on=False, marker="os^D"[run], markevery=(5 + 3 * run, 12))
    axes.set_ylim(0, 1.1)
    axes.set_yticks([0, 0.5, 1], ["0", "½", "1"])
    axes.set_xlim(0, STEPS)
    axes.tick_params(labelsize=10)
    axes.grid(axis="y", linestyle=":")
    axes.set_xlabel("steps", fontsize=10)
    axes.set_ylabel("relative error", fontsize=10)
    axes.legend(fontsize=10, loc="center right", frameon=False, bbox_to_anchor=(1, 0.68))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


LEARNING_CURVES_ALT = (
    "Relative error against 600 steps of training. One head, and one head four times wider, fall from 1 to one half "
    "and stay there. Two heads, and one head on typed tokens, fall to 0. All have arrived before step 200.")


# The experiment, stored: twenty seeds, and maps before and after

SEEDS = {  # the four runs of the lesson: name -> stored case
    "1 head": Case(TWO, 1), "2 heads": Case(TWO, 2), "1 head, 4 × wider": Case(TWO, 1, width=128),
    "1 head, typed tokens": Case(relations.Task(typed=True), 1),
}


def seeds() -> Picture:
    """Where 20 seeds of each run lie in the plane of the two errors; mean, least and largest of their means."""
    width, height = 840, 330
    plane = ErrorPlane(60, 40, 230)
    corner, middle = plane.at(0, 0), plane.at(0.5, 0.5)
    parts = plane.parts()
    for run, case in enumerate(SEEDS.values()):
        parts += [_marker(run, *plane.at(a, b), fill_opacity=0.75, stroke=svg.PAPER, stroke_width=0.5)
                  for a, b in stored_errors(case).tolist()]
    columns = ((586, "weights"), (640, "floor"), (700, "mean"), (760, "least"), (826, "largest"))
    parts += [svg.text(corner[0] + 14, corner[1] - 12, "2 heads; typed tokens", size=12),
              svg.text(middle[0] + 8, middle[1] - 8, "1 head", size=12),
              svg.text(340, 40, "20 seeds each", size=14, font_weight="600"),
              *(svg.text(x, 70, name, anchor="end", fill=svg.MUTED) for x, name in columns)]
    for run, (name, case) in enumerate(SEEDS.items()):
        y, totals = 104 + 36 * run, stored_errors(case).mean(1)
        numbers = (case.floor, totals.mean(), totals.min(), totals.max())
        words = [f"{case.parameters:,}", *(f"{number:.2f}" for number in numbers)]
        parts += [_marker(run, 348, y - 5), svg.text(362, y, name),
                  *(svg.text(x, y, word, anchor="end") for (x, _), word in zip(columns, words))]
    parts += [svg.text(340, 262, "mean of the two errors, relative to the variance of the target", fill=svg.MUTED),
              svg.text(340, 284, "on the dashed line it is ½", fill=svg.MUTED)]
    alt = ("A square of errors. Forty runs with one head, narrow or wide, lie scattered along the line on which the two "
           "errors add up to 1. Forty runs, with two heads or with typed tokens, lie on the corner where both are 0.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Along the line, or in the corner.", width)


SEQUENCE_SEED = 3  # of the test sequence in the pictures of maps


@lru_cache
def _sequence() -> relations.Batch:
    """One test sequence of two-relation tokens, in float64."""
    batch = TWO.batch(torch.Generator().manual_seed(SEQUENCE_SEED), 1)
    return batch._replace(x=batch.x.double())


@torch.no_grad()
def maps_of(layer: relations.RelationLayer) -> torch.Tensor:
    """Attention maps [h, T, T] of the layer on the pictures' sequence."""
    return layer.double().heads(_sequence().x)[1][0]


def _targets() -> list[list[int]]:
    """For each token, the tokens that its two pointers name: the source of a, the source of b."""
    return _sequence().pointers[0].tolist()


def _map(left: float, top: float, cell: float, weights: torch.Tensor, color: str,
         marked: Sequence[int]) -> list[str]:
    """A map in its head's color; in the marked rows a ring where a comes from and a square where b does."""
    size = cell * weights.shape[-1]
    return [svg.heatmap(left, top, cell, weights.tolist(), WEIGHT_COLORS),
            svg.rect(left - 1.5, top - 1.5, size + 3, size + 3, stroke=color, stroke_width=3),
            *(_mark(kind, left + cell * (column + 0.5), top + cell * (row + 0.5), 0.28 * cell)
              for row in marked for kind, column in zip("ab", _targets()[row]))]


def _mark(kind: str, x: float, y: float, radius: float) -> str:
    """A ring for need a, a square for need b."""
    if kind == "a":
        return _outlined(lambda **look: _dot(x, y, radius, fill="none", **look))
    return _outlined(lambda **look: svg.rect(x - radius, y - radius, 2 * radius, 2 * radius, **look))


def _outlined(shape: Callable[..., str]) -> str:
    """An outline in white with a dark rim, to be seen on every color of a map."""
    return shape(stroke="#1f2328", stroke_width=4) + shape(stroke="#ffffff", stroke_width=2)


def _legend_of_marks(left: float, y: float) -> list[str]:
    return [_mark("a", left + 6, y - 4, 5), svg.text(left + 18, y, "token that a comes from"),
            _mark("b", left + 202, y - 4, 5), svg.text(left + 214, y, "token that b comes from")]


def _weight_scale(left: float, y: float) -> list[str]:
    """The color scale of the maps, its words on the baseline y."""
    last = left + 66 + 6 * len(WEIGHT_COLORS)
    return [svg.text(left, y, "weight"), svg.text(left + 52, y, "0"), svg.text(last + 8, y, "1"),
            *(svg.rect(left + 66 + 6 * i, y - 11, 6, 13, fill=color, shape_rendering="crispEdges")
              for i, color in enumerate(WEIGHT_COLORS))]


def before_and_after() -> Picture:
    """Maps of one head and of two, untrained and trained (stored), on one sequence."""
    width, height, cell, before, after = 760, 424, 17, 110, 440
    parts = [svg.text(before, 20, "before training", size=14, font_weight="600"),
             svg.text(after, 20, "after", size=14, font_weight="600")]
    for row, h in enumerate((1, 2)):
        top = 54 + 176 * row
        parts.append(svg.text(12, top + 72, "1 head" if h == 1 else f"{h} heads", size=14, font_weight="600"))
        for left, layer, marked in ((before, Case(TWO, h).layer(), ()),
                                    (after, stored_layer(h, 32)[0], range(TWO.T))):
            for head, weights in enumerate(maps_of(layer)):
                x = left + 156 * head
                parts += [svg.text(x, top - 8, f"head {head + 1}", size=12),
                          *_map(x, top, cell, weights, _color(head), marked)]
    parts += [*_legend_of_marks(110, 412), *_weight_scale(580, 412)]
    alt = ("Attention maps of 8 by 8 weights. Before training all are nearly even. After training, the one head puts "
           "most of each row on the token of need b and a little on that of need a. With two heads, head 1 looks at "
           "the token of need b, head 2 at that of need a.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Even maps before, pointed maps after.", width)


# The explorer of trained layers

GRIDS = {  # h -> maps side by side, pixels from one to the next to the right and down, pixels of a cell
    1: (1, 0, 0, 34), 2: (2, 204, 0, 23), 4: (2, 204, 156, 16), 8: (4, 101, 130, 11),
}


@lru_cache
def _trained(h: int, width: int) -> tuple[torch.Tensor, list[float]]:
    """Maps [h, T, T] and errors [2] of a stored layer."""
    layer, errors = stored_layer(h, width)
    return maps_of(layer), errors.tolist()


def draw_trained(h: int, d_model: int, token: int) -> Picture:
    """The maps of a trained layer, where one token looks, and the two errors against the floor."""
    width, height, left = 840, 400, 24
    maps, (a, b) = _trained(h, d_model)
    source_a, source_b = _targets()[token]
    columns, right, down, cell = GRIDS[h]
    some = "1 pattern" if h == 1 else f"{h} patterns"
    parts = [svg.text(left, 20, f"{some}, d_k = {d_model} / {h} = {d_model // h}, row {token} framed", size=14,
                      font_weight="600")]
    for head, weights in enumerate(maps):
        x, y = left + right * (head % columns), 52 + down * (head // columns)
        parts += [svg.text(x, y - 7, f"head {head + 1}", size=12),
                  *_map(x, y, cell, weights, _color(head), (token,)),
                  _outlined(lambda **look: svg.rect(x, y + cell * token, cell * TWO.T, cell, **look))]
    parts += [*_looks(450, 20, maps[:, token], token), *_split(450, 296, a, b, relations.floor(2, h)),
              *_legend_of_marks(left, 390), *_weight_scale(450, 390)]
    served = ", ".join(f"head {head + 1} {row[source_a]:.2f} + {row[source_b]:.2f}"
                       for head, row in enumerate(maps[:, token].tolist()))
    alt = (f"{some} of a trained layer with inner width {d_model}; lines from token {token} to the tokens that it "
           f"attends to; a bar with the errors of a, {a:.2f}, and of b, {b:.2f}.")
    status = (f"h = {h}, d_model = h d_k = {d_model}: token {token} needs a of token {source_a} and b of token "
              f"{source_b}. Weights on the two: {served}. Errors {a:.2f} and {b:.2f}, mean {(a + b) / 2:.2f}, floor "
              f"{relations.floor(2, h):.2f}.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, status, width)


def _looks(left: float, top: float, weights: torch.Tensor, token: int) -> list[str]:
    """Lines from one token to all, one for each head, as thick as the weight; weights [h, T]."""
    step, box, low = 46, 34, top + 190
    centers = [left + step * j + box / 2 for j in range(TWO.T)]
    parts = [svg.text(left, top, f"where token {token} looks", size=14, font_weight="600")]
    tops: list[list[str]] = [[] for _ in centers]  # the heads that look there most
    for head, row in enumerate(weights.tolist()):
        shift = 3 * (head - (len(weights) - 1) / 2)
        parts += [svg.line(centers[token] + shift, low, centers[j] + shift, top + 74, stroke=_color(head),
                           stroke_width=0.5 + 9 * weight) for j, weight in enumerate(row) if weight >= 0.1]
        most = max(range(TWO.T), key=row.__getitem__)
        tops[most].append(str(head + 1))
    for j, center in enumerate(centers):
        parts += [svg.rect(center - box / 2, top + 40, box, box, fill=svg.PAPER, stroke=svg.INK, stroke_width=1.5),
                  svg.text(center, top + 62, j, anchor="middle", size=14)]
        if tops[j]:
            parts.append(svg.text(center, top + 88 + 14 * (j % 2), ", ".join(tops[j]), size=12, anchor="middle", font_weight="700",
                                  stroke=svg.PAPER, stroke_width=4, paint_order="stroke"))
    for need, source in zip("ab", _targets()[token]):
        parts.append(svg.text(centers[source], top + 32, f"has {need}", size=12, anchor="middle", font_weight="700"))
    return parts + [
        svg.rect(centers[token] - box / 2, low, box, box, fill=svg.PAPER, stroke=svg.INK, stroke_width=2.5),
        svg.text(centers[token], low + 22, token, anchor="middle", size=14),
        svg.text(left, low + 54, "lines: weights from 0.1; numbers: heads that look there most", size=12,
                 fill=svg.MUTED)]


def _split(left: float, top: float, a: float, b: float, floor: float) -> list[str]:
    """Half of each error as a bar, so that the whole bar is their mean; a mark at the floor."""
    length, y, coral = 356, top + 60, {"stroke": HEAD_COLORS[3], "stroke_width": 3}
    mark = left + length * floor
    return [svg.text(left, top, "error: half of a + half of b", size=14, font_weight="600"),
            svg.rect(left, top + 12, length, 22, stroke=svg.RULE),
            svg.rect(left, top + 12, length * a / 2, 22, fill=svg.MUTED),
            svg.rect(left + length * a / 2, top + 12, length * b / 2, 22, fill=svg.RULE),
            svg.line(mark, top + 7, mark, top + 40, **coral),
            svg.rect(left, y - 11, 12, 12, fill=svg.MUTED), svg.text(left + 18, y, f"a {a:.2f}"),
            svg.rect(left + 74, y - 11, 12, 12, fill=svg.RULE), svg.text(left + 92, y, f"b {b:.2f}"),
            svg.text(left + 148, y, f"mean {(a + b) / 2:.2f}"),
            svg.line(left + 246, y - 13, left + 246, y + 3, **coral), svg.text(left + 258, y, f"floor {floor:.2f}"),
            svg.text(left + length, y, "1", anchor="end")]


def trained_explorer() -> Explorer:
    """Heads and inner width of stored layers, and a token to follow."""
    return Explorer(draw_trained, Slider("h", HEADS, 1), Slider("d_model", WIDTHS, 32),
                    Slider("token", range(TWO.T), 6))


# What the paper measured

BLEU = {1: 24.9, 4: 25.5, 8: 25.8, 16: 25.8, 32: 25.4}  # h -> dev set score; Vaswani et al. 2017, Table 3, base and (A)


def bleu() -> Picture:
    """BLEU against h at one budget: up, level, down again."""
    width, height, left, bottom = 600, 212, 96, 172

    def at(h: int, score: float) -> tuple[float, float]:
        return left + 92 * math.log2(h), bottom - 110 * (score - 24.75)
    points = [at(h, score) for h, score in BLEU.items()]
    parts = [svg.text(12, 20, "BLEU, development set, one number each")]
    for score in (25, 25.5, 26):
        _, y = at(1, score)
        parts += [svg.line(left - 40, y, width - 12, y, stroke=svg.RULE, stroke_dasharray="3 4"),
                  svg.text(left - 46, y + 4, score, anchor="end", size=12)]
    parts.append(svg.path(_polyline(points), stroke=HEAD_COLORS[0], stroke_width=2))
    for (x, y), (h, score) in zip(points, BLEU.items()):
        beside = 20 if score < 25.5 else -10
        parts += [_dot(x, y, 5, fill=HEAD_COLORS[0]), svg.text(x, bottom + 22, f"h = {h}", anchor="middle"),
                  svg.text(x, y + beside, score, anchor="middle", font_weight="600")]
    listed = ", ".join(f"{score} for h = {h}" for h, score in BLEU.items())
    alt = f"BLEU against the number of heads at one budget: {listed}."
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Up, level, and down again.", width)


# Quizzes

def directions_quiz() -> Quiz:
    return Quiz(
        "For one token, a head makes one row of weights. At how many tokens can the head look with it?",
        Option("at one: one distribution, one direction",
               "One distribution is not one token. A softmax row gives every token that no mask blocks some weight, "
               "and it may have several peaks."),
        Option("at any number of them",
               "The row can spread over all tokens. What there is only one of is the row itself: one blend comes out.",
               right=True),
        Option("at no more than d_k tokens",
               "d_k limits which score matrices are possible, not how many weights of a row can be large: equal scores "
               "spread over all tokens."),
        Option("at one more with every token of context",
               "More tokens only make the row longer. How the weight spreads over them depends on the scores."))


def blend_quiz() -> Quiz:
    return Quiz(
        "One head looks at two tokens; you need one number of each. Which shares make the sum of the errors least?",
        Option("half and half: a fair compromise",
               "Half and half makes the two errors equal. It does not make their sum smaller."),
        Option("all on one of the two: then at least one number is exact",
               "Then one error is 0, and the other is 1: of the second token nothing is left."),
        Option("every pair of shares gives the same sum",
               "What one need gains, the other loses. The next cell shows it, and your formula will prove it.", right=True),
        Option("slightly more on the token with the larger values",
               "Both values have variance 1 here, so none is larger."))


def wider_quiz() -> Quiz:
    return Quiz(
        "Both tokens fill both channels again, with white values that the pattern does not read: one head's two errors have the "
        "mean ½ at best. You make the head four times wider, with four times the weights. What is the mean now, at best?",
        Option("near 0: it has room for both needs now",
               "Room is not what it lacks. However wide its values are, all of them are blended by the same row of "
               "weights."),
        Option("near ⅛: the error is shared out over four times the width",
               "The error comes from the pattern, and there is still one. How wide the head is plays no part."),
        Option("½ again",
               "However wide the head is, one row of weights blends everything. The next two sections prove it.", right=True),
        Option("above ½: a wide head is harder to train",
               "This is about the best that any weights could do. And the experiment below shows that it trains as well."))


def more_heads_quiz() -> Quiz:
    return Quiz(
        "Vaswani et al. kept the budget and tried 1, 4, 8, 16 and 32 heads. Which translated best?",
        Option("1: no information is cut up",
               "One head was the worst of the five, 0.9 BLEU behind the best."),
        Option("8 and 16, level; 32 was worse again",
               "At a fixed budget more heads are narrower heads. More heads helped up to a point, and then no longer.",
               right=True),
        Option("32: every head adds a pattern",
               "It adds a pattern, and every head gets narrower: here d_k = 16. The paper measured a drop."),
        Option("all alike: the number of weights is the same",
               "The number of weights is the same; what the layer can compute with them is not."))
