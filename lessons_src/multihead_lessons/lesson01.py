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

ORDINALS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def _color(head: int) -> str:
    return HEAD_COLORS[head % len(HEAD_COLORS)]


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
    width, height, unit, left, floor = 840, 346, 44, 70, 288
    scores, weights = (s0, s1, s2), weights_of((s0, s1, s2))

    def at(point: Sequence[float]) -> tuple[float, float]:
        return left + unit * point[0], floor - unit * point[1]
    z = blend(weights)
    corners, (z_x, z_y) = [at(value) for value in VALUES], at(z)
    outline = "M" + "L".join(f"{svg.number(x)} {svg.number(y)}" for x, y in corners) + "Z"
    axis = floor + 32
    parts = [svg.line(left, axis, left + 8 * unit, axis, stroke=svg.RULE),
             svg.line(left - 16, floor, left - 16, floor - 6 * unit, stroke=svg.RULE)]
    for tick in (0, 2, 4, 6, 8):
        parts.append(svg.text(left + unit * tick, axis + 17, tick, size=12, anchor="middle", fill=svg.MUTED))
        if tick <= 6:
            parts.append(svg.text(left - 24, floor - unit * tick + 4, tick, size=12, anchor="end", fill=svg.MUTED))
    parts += [svg.text(left + 8 * unit + 14, axis + 17, "channel 0", size=12, fill=svg.MUTED),
              svg.text(8, floor - 6 * unit - 10, "channel 1", size=12, fill=svg.MUTED),
              svg.path(outline, fill=HEAD_COLORS[0], fill_opacity=0.12, stroke=HEAD_COLORS[0], stroke_width=1.5)]
    for (x, y), weight in zip(corners, weights):
        if weight >= 0.005:
            parts.append(svg.line(z_x, z_y, x, y, stroke=HEAD_COLORS[0], stroke_width=1 + 9 * weight, stroke_opacity=0.55))
    for j, (x, y) in enumerate(corners):
        right, down = (14, 5) if j == 2 else (-6, 23)
        parts += [_dot(x, y, 6, fill=svg.PAPER, stroke=svg.INK, stroke_width=2),
                  svg.text(x + right, y + down, f"v{j} = ({VALUES[j][0]}, {VALUES[j][1]})")]
    parts.append(_dot(z_x, z_y, 9, fill=svg.INK, stroke=svg.PAPER, stroke_width=2))
    parts += _row_of_weights(510, 46, scores, weights)
    parts.append(svg.text(510, 226, f"z = ({z[0]:.2f}, {z[1]:.2f})", size=15, font_weight="600"))
    parts.append(svg.text(510, 250, "the black dot; thicker line, larger weight", fill=svg.MUTED))
    words = ", ".join(f"{weight:.2f}" for weight in weights)
    alt = (f"A triangle with the corners v0, v1, v2, and inside it the blend z at ({z[0]:.1f}, {z[1]:.1f}). Beside it the row of "
           f"weights: {words}.")
    largest = max(range(3), key=weights.__getitem__)
    close = f", close to v{largest}, not on it: the other weights are small, not 0" if weights[largest] > 0.985 else ""
    status = f"Weights {words} put z at ({z[0]:.2f}, {z[1]:.2f}), inside the triangle{close}."
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, status, width)


def _dot(x: float, y: float, radius: float, **look: object) -> str:
    return svg.tag("circle", cx=float(x), cy=float(y), r=float(radius), **look)


def _row_of_weights(left: float, top: float, scores: Sequence[int], weights: Sequence[float]) -> list[str]:
    """Token, score, e^score and weight as a table; the weight also as a bar."""
    parts = [svg.text(left + x, top - 14, title, anchor=anchor, font_weight="600") for x, title, anchor in
             ((0, "token", "start"), (92, "score", "end"), (176, "e^score", "end"), (200, "weight", "start"))]
    for j, (score, weight) in enumerate(zip(scores, weights)):
        y = top + 34 * j
        parts += [svg.text(left, y + 20, j), svg.text(left + 92, y + 20, score, anchor="end"),
                  svg.text(left + 176, y + 20, f"{math.exp(score):.2f}", anchor="end"),
                  svg.rect(left + 200, y + 5, 1 + 64 * weight, 20, fill=HEAD_COLORS[0]),
                  svg.text(left + 310, y + 20, f"{weight:.2f}", anchor="end")]
    y = top + 34 * len(scores)
    total = sum(math.exp(score) for score in scores)
    return parts + [svg.line(left, y + 4, left + 310, y + 4, stroke=svg.RULE), svg.text(left, y + 24, "sum"),
                    svg.text(left + 176, y + 24, f"{total:.2f}", anchor="end"), svg.text(left + 310, y + 24, "1", anchor="end")]


def triangle_explorer() -> Explorer:
    """Three scores move one blend."""
    return Explorer(draw_triangle, *(Slider(f"s{j}", SCORES, start, label=f"score {j}") for j, start in enumerate((1, 1, -1))),
                    presets={"the example": {"s0": 1, "s1": 1, "s2": -1}, "all alike": {"s0": 0, "s1": 0, "s2": 0},
                             "nearly one token": {"s0": -6, "s1": -6, "s2": 6}})


# Two needs: what a linear read-out can recover from one blend, and from two

SUBJECT, ADJECTIVE = 0, 1
TOKENS = ("subject", "adjective", "other", "other")


def readout(patterns: torch.Tensor, wanted: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The best linear read-out of some tokens' values from blends of all: (errors [n], coefficients [h, n]).

    patterns: [h, T], row i holds the weights of head i. Values are white: mean 0, variance 1, uncorrelated. An error is the
    mean square of what is missed. The normal equations are G c = a_j with G = patterns patterns^T.
    """
    columns = patterns[:, list(wanted)]  # [h, n]
    coefficients = torch.linalg.pinv(patterns @ patterns.mT, hermitian=True) @ columns  # [h, n]
    return (1 - (columns * coefficients).sum(0)).clamp(min=0), coefficients


def blend_patterns(heads: int, p: int, elsewhere: int) -> torch.Tensor:
    """Rows of weights [heads, 4] from percentages: p on the subject and the rest on the adjective, after `elsewhere` went to
    the two other tokens. A second head has p and the rest exchanged."""
    p, lost = p / 100, elsewhere / 100
    row = torch.tensor([p * (1 - lost), (1 - p) * (1 - lost), lost / 2, lost / 2], dtype=torch.float64)
    return torch.stack([row, row[[1, 0, 2, 3]]][:heads])


class ErrorPlane:
    """A square of errors: need a to the right, need b upwards, from 0 to 1, with the line err_a + err_b = 1."""

    def __init__(self, left: float, top: float, size: float):
        self.left, self.top, self.size = left, top, size

    def at(self, a: float, b: float) -> tuple[float, float]:
        return self.left + self.size * a, self.top + self.size * (1 - b)

    def parts(self) -> list[str]:
        left, top, size = self.left, self.top, self.size
        bottom = top + size
        ticks = [svg.text(left + size * share, bottom + 17, words, size=12, anchor="middle", fill=svg.MUTED)
                 for share, words in ((0, "0"), (0.5, "½"), (1, "1"))]
        ticks += [svg.text(left - 8, bottom - size * share + 4, words, size=12, anchor="end", fill=svg.MUTED)
                  for share, words in ((0.5, "½"), (1, "1"))]
        return [svg.path(f"M{svg.number(left)} {svg.number(top)}V{svg.number(bottom)}H{svg.number(left + size)}Z", fill=HEAD_COLORS[3],
                         fill_opacity=0.13),
                svg.rect(left, top, size, size, stroke=svg.RULE),
                svg.line(left, top, left + size, bottom, stroke=HEAD_COLORS[3], stroke_width=2, stroke_dasharray="6 4"),
                svg.text(left + size / 2, bottom + 36, "error of need a", anchor="middle"),
                svg.text(left - 34, top - 12, "error of need b"), *ticks]


def draw_blend(heads: int, p: int, elsewhere: int) -> Picture:
    """The rows of weights, and where the two errors of the best linear read-out lie."""
    width, height, cell = 840, 340, 96
    patterns = blend_patterns(heads, p, elsewhere)
    errors, coefficients = readout(patterns, (SUBJECT, ADJECTIVE))
    a, b = errors.tolist()
    parts = [svg.text(20, 24, "weights of one token's row", size=14, font_weight="600")]
    for j, name in enumerate(TOKENS):
        parts.append(svg.text(104 + cell * j + cell / 2 - 16, 56, name, anchor="middle"))
    parts += [svg.text(104 + cell / 2 - 16, 76, "need a", anchor="middle", fill=svg.MUTED),
              svg.text(104 + cell * 1.5 - 16, 76, "need b", anchor="middle", fill=svg.MUTED)]
    for head, row in enumerate(patterns.tolist()):
        top = 88 + 54 * head
        parts.append(svg.text(20, top + 27, f"head {head + 1}", font_weight="600"))
        for j, weight in enumerate(row):
            parts += [svg.rect(88 + cell * j, top, cell - 4, 42, fill=_color(head), fill_opacity=0.08 + 0.6 * weight, stroke=_color(head),
                               stroke_width=2), svg.text(88 + cell * j + cell / 2 - 2, top + 26, f"{weight:.2f}", size=15, anchor="middle")]
    gain = coefficients.abs().max().item()
    parts += [svg.text(20, 228, "best linear read-out of white values", size=14, font_weight="600"),
              *(svg.text(20 + 136 * n, 254, f"{name} {value:.2f}", size=15)
                for n, (name, value) in enumerate((("error a =", a), ("error b =", b), ("together", a + b)))),
              svg.text(20, 280, f"largest factor that it multiplies a blend by: {gain:.1f}"),
              svg.text(20, 304, "shaded: no single head gets there", fill=svg.MUTED)]
    plane = ErrorPlane(570, 40, 230)
    x, y = plane.at(a, b)
    parts += plane.parts()
    parts.append(_dot(x, y, 9, fill=svg.INK, stroke=svg.PAPER, stroke_width=2))
    alt = (f"Rows of weights of {ORDINALS[heads]} head{'s' * (heads > 1)} over subject, adjective and two other tokens. Beside them a square "
           f"of errors with the line on which the two errors add up to 1, and a dot at error a = {a:.2f}, error b = {b:.2f}.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, _blend_status(heads, p, elsewhere, a, b), width)


def _blend_status(heads: int, p: int, elsewhere: int, a: float, b: float) -> str:
    total = a + b
    found = f"error a = {a:.2f}, error b = {b:.2f}, together {total:.2f}"
    if total < 5e-3:
        place = "both needs are met: the dot sits in the corner at 0"
    elif abs(total - 1) < 5e-3:
        place = "the dot lies on the line"
    else:
        place = "the dot lies above the line" if total > 1 else "the dot lies below the line"
    if heads == 2 and p == 50:
        place += ". The two patterns are equal, so the second head adds nothing"
    return f"{'One head' if heads == 1 else 'Two heads'}, p = {p} %, elsewhere {elsewhere} %: {found}; {place}."


def blend_explorer() -> Explorer:
    """One head or two, its share p, and what goes elsewhere."""
    return Explorer(draw_blend, Choice("heads", [1, 2], 1), Slider("p", range(0, 101, 5), 75, label="p in %"),
                    Slider("elsewhere", range(0, 61, 10), 0, label="else in %"))


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
    patterns, maps = swap_and_keep()
    L = mh.layer_matrix(patterns, maps)
    R = mh.rearrange(L, 2, 2)
    owner = [mh.layer_matrix(patterns[i:i + 1], maps[i:i + 1]) for i in (0, 1)]
    owner_rearranged = [mh.rearrange(matrix, 2, 2) for matrix in owner]
    width, height, wide, size, top = 790, 264, 54, 44, 66
    parts = [svg.text(20, 20, "the layer as a matrix L", size=14, font_weight="600"),
             svg.text(450, 20, "rearranged: each block is a row", size=14, font_weight="600")]
    alt = ("Left, the 4 by 4 matrix L of the layer, made of four 2 by 2 blocks. Right, the same sixteen numbers, each block written as "
           "one row: 0001, 1000, 1000, 0001. Two different rows, each twice: rank 2.")
    places = [(s, j) for s in (0, 1) for j in (0, 1)]
    for left, matrix, owners, names, columns in (
            (110, L, owner, [f"t{s} c{j}" for s, j in places], [f"t{s} c{j}" for s, j in places]),
            (550, R, owner_rearranged, [f"t{s} ← t{t}" for s, t in places], [f"c{j}←c{i}" for j, i in places])):
        for n in range(4):
            parts += [svg.text(left - 10, top + size * n + 28, names[n], anchor="end"),
                      svg.text(left + wide * n + wide / 2, top - 8, columns[n], size=12, anchor="middle")]
            for m in range(4):
                x, y = left + wide * m, top + size * n
                head = next((i for i in (0, 1) if owners[i][n, m]), None)
                parts += [svg.rect(x + 1, y + 1, wide - 2, size - 2, fill="none" if head is None else _color(head), stroke=svg.RULE),
                          svg.text(x + wide / 2, y + 28, int(matrix[n, m]), size=15, anchor="middle",
                                   fill=svg.MUTED if head is None else "#ffffff", font_weight=None if head is None else "700")]
        if matrix is L:
            parts.append(svg.line(left + 2 * wide, top, left + 2 * wide, top + 4 * size, stroke_width=2.5))
        parts += [svg.line(left, top + size * n, left + 4 * wide, top + size * n, stroke_width=2.5)
                  for n in ((2,) if matrix is L else (1, 2, 3))]
    parts += [svg.path("M346 154H416M406 147L416 154L406 161", stroke=svg.INK, stroke_width=2),
              svg.rect(110, 247, 12, 12, fill=HEAD_COLORS[0]), svg.text(128, 258, "head 1"),
              svg.rect(196, 247, 12, 12, fill=HEAD_COLORS[1]), svg.text(214, 258, "head 2"),
              svg.text(550, 258, "two different rows: rank 2")]
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "One block to a row.", width)


# The experiment, live

STEPS, EVERY = 600, 10  # steps of training; steps between two pictures
MARKERS = ("M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z", "M-5 -5h10v10h-10z", "M0 -6l6 11h-12z", "M0 -6l6 6l-6 6l-6 -6z")  # one shape a run


@contextmanager
def one_thread() -> Iterator[None]:
    """torch works on one thread meanwhile: small tensors train fastest that way, and the same way each time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LearningCurves:
    """Learning curves that grow while layers train: a picture that is replaced as a whole, so nothing flickers.

    layers: name -> layer, in the order of training, at most four. `follow(name)` is the callback for `relations.train`.
    `curves[name]` holds the relative error of training batches, averaged over each ten steps.
    """

    def __init__(self, layers: Mapping[str, torch.nn.Module], steps: int = STEPS):
        self.steps = steps
        self.weights = {name: sum(weight.numel() for weight in layer.parameters()) for name, layer in layers.items()}
        self.curves: dict[str, list[float]] = {name: [] for name in layers}
        self.picture, self.sentence = widgets.HTML(), widgets.HTML()
        self.root = widgets.VBox([self.picture, self.sentence])
        self.root.add_class("mha-live")
        self._show(draw_curves(self.curves, self.weights, steps), None)

    def follow(self, name: str) -> Callable[[int, float], None]:
        """A callback `progress(step, error)` that draws every ten steps."""
        recent: list[float] = []

        def progress(step: int, error: float) -> None:
            recent.append(error)
            if step % EVERY == 0:
                self.curves[name].append(sum(recent) / len(recent))
                recent.clear()
                self._show(draw_curves(self.curves, self.weights, self.steps, name, step), name if step == self.steps else None)
        return progress

    def _show(self, picture: Picture, finished: str | None) -> None:
        self.picture.value = picture.svg
        if finished:  # spoken once for each run, not at every step
            self.sentence.value = f'<p role="status" style="margin:0">Trained: {finished}. {picture.status}</p>'

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The live view, and for a page without a kernel the empty axes: what training gives is not known yet."""
        empty = draw_curves({name: [] for name in self.curves}, self.weights, self.steps)
        return {**self.root._repr_mimebundle_(**options),
                "text/html": f"{svg.as_image(empty.svg, empty.alt, empty.width)}<p>Run this cell to watch the layers train.</p>",
                "text/plain": empty.alt}


def draw_curves(curves: Mapping[str, Sequence[float]], weights: Mapping[str, int], steps: int = STEPS, running: str | None = None,
                step: int = 0) -> Picture:
    """Relative error against steps, a legend with the newest error of each run, and a bar for the run that is on."""
    width, height, left, top, right, bottom = 840, 330, 56, 34, 470, 270

    def at(number: int, error: float) -> tuple[float, float]:
        return left + (right - left) * number / steps, bottom - (bottom - top) * min(error, 1.1) / 1.1
    parts = [svg.text(left - 44, 18, "relative error of a training batch"), svg.line(left, top, left, bottom, stroke=svg.RULE)]
    for error, words in ((0, "0"), (0.5, "½"), (1, "1")):
        _, y = at(0, error)
        parts += [svg.text(left - 8, y + 4, words, anchor="end"),
                  svg.line(left, y, right, y, stroke=svg.RULE, stroke_dasharray=None if error == 0 else "3 4")]
    for tick in (0, steps // 2, steps):
        parts.append(svg.text(at(tick, 0)[0], bottom + 20, tick, anchor="middle"))
    parts.append(svg.text((left + right) / 2 + 100, bottom + 20, "steps", anchor="middle", fill=svg.MUTED))
    for number, (name, curve) in enumerate(curves.items()):
        points = [at(EVERY * (i + 1), error) for i, error in enumerate(curve)]
        y = 62 + 52 * number
        if points:
            d = "M" + "L".join(f"{svg.number(x)} {svg.number(y)}" for x, y in points)
            x_end, y_end = points[-1]
            parts += [svg.path(d, stroke=_color(number), stroke_width=2.5),
                      svg.path(MARKERS[number], fill=_color(number), transform=f"translate({svg.number(x_end)} {svg.number(y_end)})")]
        newest = f"{curve[-1]:.2f}" if curve else "–"
        parts += [svg.line(500, y - 4, 530, y - 4, stroke=_color(number), stroke_width=2.5),
                  svg.path(MARKERS[number], fill=_color(number), transform=f"translate(515 {y - 4})"),
                  svg.text(540, y, name, size=14, font_weight="600"), svg.text(820, y, newest, size=14, anchor="end"),
                  svg.text(540, y + 18, f"{weights[name]:,} weights", fill=svg.MUTED)]
    done = sum(len(curve) >= steps // EVERY for curve in curves.values())
    parts += [svg.text(820, 34, "newest error", size=12, anchor="end", fill=svg.MUTED), *_progress(500, 276, done, len(curves), running, step, steps)]
    if any(curves.values()):
        newest = "; ".join(f"{name} {curve[-1]:.2f}" for name, curve in curves.items() if curve)
        alt = f"Learning curves, relative error against {steps} steps of training. Newest errors: {newest}."
        status = f"Newest errors: {newest}."
    else:
        alt = f"Empty axes for learning curves, relative error against {steps} steps of training, of these runs: {'; '.join(curves)}."
        status = "Nothing is trained yet."
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, status, width)


def _progress(left: float, top: float, done: int, count: int, running: str | None, step: int, steps: int) -> list[str]:
    """A bar over all runs, and which one is on."""
    share = (done + (step / steps if step < steps else 0)) / count
    if done == count:
        words = "all runs are done"
    else:
        words = f"run {done + 1} of {count}, step {step} of {steps}" if running and step < steps else f"{done} of {count} runs done"
    return [svg.text(left, top, words), svg.rect(left, top + 10, 320, 14, stroke=svg.RULE),
            svg.rect(left, top + 10, 320 * share, 14, fill=HEAD_COLORS[0])]


def learning_curves(curves: Mapping[str, Sequence[float]]) -> Figure:
    """The curves of a finished `LearningCurves` as a still."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(curves.items()):
        steps = range(EVERY, EVERY * len(curve) + 1, EVERY)
        axes.plot(steps, curve, color=_color(number), linewidth=2, marker="os^D"[number], markevery=(5 + 3 * number, 12), label=name)
    axes.set_ylim(0, 1.1)
    axes.set_yticks([0, 0.5, 1], ["0", "½", "1"], fontsize=10)
    axes.set_xlim(0, STEPS)
    axes.tick_params(labelsize=10)
    axes.grid(axis="y", linestyle=":")
    axes.set_xlabel("steps", fontsize=10)
    axes.set_ylabel("relative error", fontsize=10)
    axes.legend(fontsize=10, loc="center right", frameon=False, bbox_to_anchor=(1, 0.68))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


LEARNING_CURVES_ALT = ("Relative error against 600 steps of training. One head, and one head four times wider, fall from 1 to one half "
                       "and stay there. Two heads, and one head on typed tokens, fall to 0. All have arrived before step 200.")


# The experiment, stored: twenty seeds, and maps before and after

SEEDS = {  # name -> stored case; the four runs of the lesson
    "1 head": Case(TWO, 1), "2 heads": Case(TWO, 2), "1 head, 4 × wider": Case(TWO, 1, width=128),
    "1 head, typed tokens": Case(relations.Task(typed=True), 1),
}


def seeds() -> Picture:
    """Where 20 seeds of each run lie in the plane of the two errors, and mean, least and largest of their means."""
    width, height = 840, 330
    plane = ErrorPlane(60, 40, 230)
    parts = plane.parts()
    for number, case in enumerate(SEEDS.values()):
        for a, b in stored_errors(case).tolist():
            x, y = plane.at(a, b)
            parts.append(svg.path(MARKERS[number], fill=_color(number), fill_opacity=0.75, stroke=svg.PAPER, stroke_width=0.5,
                                  transform=f"translate({svg.number(x)} {svg.number(y)})"))
    x, y = plane.at(0, 0)
    parts += [svg.text(x + 14, y - 12, "2 heads; typed tokens", size=12), svg.text(plane.at(0.5, 0)[0] + 8, plane.at(0, 0.5)[1] - 8, "1 head", size=12)]
    columns = ((586, "weights"), (640, "floor"), (700, "mean"), (760, "least"), (826, "largest"))
    parts += [svg.text(340, 40, "20 seeds each", size=14, font_weight="600"),
              *(svg.text(x, 70, name, anchor="end", fill=svg.MUTED) for x, name in columns)]
    for number, (name, case) in enumerate(SEEDS.items()):
        y, totals = 104 + 36 * number, stored_errors(case).mean(1)
        words = (f"{case.parameters:,}", f"{case.floor:.2f}", *(f"{value:.2f}" for value in (totals.mean(), totals.min(), totals.max())))
        parts += [svg.path(MARKERS[number], fill=_color(number), transform=f"translate(348 {y - 5})"), svg.text(362, y, name),
                  *(svg.text(x, y, word, anchor="end") for (x, _), word in zip(columns, words))]
    parts += [svg.text(340, 262, "mean of the two errors, relative to the variance of the target", fill=svg.MUTED),
              svg.text(340, 284, "on the dashed line it is ½", fill=svg.MUTED)]
    alt = ("A square of errors. Forty runs with one head, narrow or wide, lie scattered along the line on which the two errors add up to 1. "
           "Forty runs, with two heads or with typed tokens, lie on the corner where both are 0.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Along the line, or in the corner.", width)


SEQUENCE_SEED = 3  # of the test sequence in the pictures of maps


@lru_cache
def _sequence() -> relations.Batch:
    """One test sequence of two-relation tokens, in float64."""
    batch = TWO.batch(torch.Generator().manual_seed(SEQUENCE_SEED), 1)
    return batch._replace(x=batch.x.double())


def maps_of(layer: relations.RelationLayer) -> torch.Tensor:
    """Attention maps [h, T, T] of the layer on the pictures' sequence."""
    with torch.no_grad():
        _, weights = layer.double().heads(_sequence().x)  # [1, h, T, T]
    return weights[0]


def _targets() -> list[tuple[int, int]]:
    """For each token, the tokens that its two pointers name: (source of a, source of b)."""
    return [tuple(pair) for pair in _sequence().pointers[0].tolist()]


def _map(left: float, top: float, cell: float, weights: torch.Tensor, color: str, marked: Sequence[int]) -> list[str]:
    """A map with a frame in the head's color; in the marked rows a ring where a comes from and a square where b does."""
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


def _marks_legend(left: float, y: float) -> list[str]:
    return [_mark("a", left + 6, y - 4, 5), svg.text(left + 18, y, "token that a comes from"),
            _mark("b", left + 202, y - 4, 5), svg.text(left + 214, y, "token that b comes from")]


def before_and_after() -> Picture:
    """Maps of one head and of two, untrained and trained (stored), on one sequence."""
    width, height, cell = 760, 424, 17
    parts = [svg.text(110, 20, "before training", size=14, font_weight="600"), svg.text(440, 20, "after", size=14, font_weight="600")]
    for row, h in enumerate((1, 2)):
        top = 54 + 176 * row
        parts.append(svg.text(12, top + 72, f"{h} head{'s' * (h > 1)}", size=14, font_weight="600"))
        for left, layer in ((110, Case(TWO, h).layer()), (440, stored_layer(h, 32)[0])):
            for head, weights in enumerate(maps_of(layer)):
                x = left + 156 * head
                parts += [svg.text(x, top - 8, f"head {head + 1}", size=12),
                          *_map(x, top, cell, weights, _color(head), range(TWO.T) if left == 440 else ())]
    parts += [*_marks_legend(110, 412), *_weight_scale(600, 400)]
    alt = ("Attention maps of 8 by 8 weights. Before training all are nearly even. After training, the one head puts most of each row on the "
           "token of need b and a little on that of need a. With two heads, head 1 looks at the token of need b, head 2 at that of need a.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Even maps before, pointed maps after.", width)


def _weight_scale(left: float, top: float) -> list[str]:
    """The color scale of the maps."""
    steps = len(WEIGHT_COLORS)
    return [svg.text(left, top + 12, "0"), svg.text(left + 18 + 6 * steps, top + 12, "1"),
            *(svg.rect(left + 14 + 6 * i, top + 1, 6, 13, fill=color, shape_rendering="crispEdges") for i, color in enumerate(WEIGHT_COLORS))]


# The explorer of trained layers

MAPS_LEFT = 24
GRIDS = {  # h -> maps side by side, distance from one to the next to the right and down, size of a cell; all in CSS pixels
    1: (1, 0, 0, 34), 2: (2, 204, 0, 23), 4: (2, 204, 156, 16), 8: (4, 101, 130, 11),
}


@lru_cache
def _trained(h: int, width: int) -> tuple[torch.Tensor, list[float]]:
    """Maps [h, T, T] and errors [2] of a stored layer."""
    layer, errors = stored_layer(h, width)
    return maps_of(layer), errors.tolist()


def draw_trained(h: int, d_model: int, token: int) -> Picture:
    """The maps of a trained layer, where one token looks, and the two errors against the floor."""
    width, height = 840, 400
    maps, (a, b) = _trained(h, d_model)
    source_a, source_b = _targets()[token]
    columns, pitch_x, pitch_y, cell = GRIDS[h]
    parts = [svg.text(MAPS_LEFT, 20, f"{h} map{'s' * (h > 1)}, d_k = {d_model} / {h} = {d_model // h}, row {token} framed", size=14,
                      font_weight="600")]
    for head in range(h):
        left, top = MAPS_LEFT + pitch_x * (head % columns), 52 + pitch_y * (head // columns)
        parts += [svg.text(left, top - 7, f"head {head + 1}", size=12), *_map(left, top, cell, maps[head], _color(head), (token,)),
                  _outlined(lambda **look: svg.rect(left, top + cell * token, cell * TWO.T, cell, **look))]
    parts += _looks(450, 20, maps[:, token], token, source_a, source_b)
    parts += _split(450, 296, a, b, relations.floor(2, h))
    parts += [*_marks_legend(MAPS_LEFT, 390), svg.text(450, 390, "weight"), *_weight_scale(510, 378)]
    served = ", ".join(f"head {head + 1} {weights[source_a]:.2f} + {weights[source_b]:.2f}" for head, weights in enumerate(maps[:, token].tolist()))
    alt = (f"The {h} attention map{'s' * (h > 1)} of a trained layer with inner width {d_model}; lines from token {token} to the tokens that it "
           f"attends to; a bar with the errors of a, {a:.2f}, and of b, {b:.2f}.")
    status = (f"h = {h}, d_model = h d_k = {d_model}: token {token} needs a of token {source_a} and b of token {source_b}. Weights on the two: "
              f"{served}. Errors {a:.2f} and {b:.2f}, mean {(a + b) / 2:.2f}, floor {relations.floor(2, h):.2f}.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, status, width)


def _looks(left: float, top: float, weights: torch.Tensor, token: int, source_a: int, source_b: int) -> list[str]:
    """Lines from one token to all, one for each head, as thick as the weight; weights [h, T]."""
    step, box, low = 46, 34, top + 190
    parts = [svg.text(left, top, f"where token {token} looks", size=14, font_weight="600")]
    origin = left + step * token + box / 2
    for head, row in enumerate(weights.tolist()):
        shift = 3 * (head - (len(weights) - 1) / 2)
        for j, weight in enumerate(row):
            if weight >= 0.02:
                parts.append(svg.line(origin + shift, low, left + step * j + box / 2 + shift, top + 74, stroke=_color(head),
                                      stroke_width=0.5 + 9 * weight, stroke_opacity=0.75))
    for j in range(TWO.T):
        x = left + step * j
        parts += [svg.rect(x, top + 40, box, box, fill=svg.PAPER, stroke=svg.INK, stroke_width=1.5),
                  svg.text(x + box / 2, top + 62, j, anchor="middle", size=14)]
    for words, source in (("a", source_a), ("b", source_b)):
        parts.append(svg.text(left + step * source + box / 2, top + 32, f"has {words}", size=12, anchor="middle", font_weight="700"))
    return parts + [svg.rect(left + step * token, low, box, box, fill=svg.PAPER, stroke=svg.INK, stroke_width=2.5),
                    svg.text(origin, low + 22, token, anchor="middle", size=14),
                    svg.text(left, low + 54, "a thicker line, a larger weight; weights below 0.02 left out", size=12, fill=svg.MUTED)]


def _split(left: float, top: float, a: float, b: float, floor: float) -> list[str]:
    """Half of each error as a bar, so that the whole bar is their mean; a mark at the floor."""
    length, shades = 356, (svg.MUTED, svg.RULE)
    mark = left + length * floor
    parts = [svg.text(left, top, "error: half of a + half of b", size=14, font_weight="600"),
             svg.rect(left, top + 12, length, 22, stroke=svg.RULE),
             svg.rect(left, top + 12, length * a / 2, 22, fill=shades[0]),
             svg.rect(left + length * a / 2, top + 12, length * b / 2, 22, fill=shades[1]),
             svg.line(mark, top + 7, mark, top + 40, stroke=HEAD_COLORS[3], stroke_width=3),
             svg.text(left + length, top + 60, "1", anchor="end")]
    for n, words in enumerate((f"a {a:.2f}", f"b {b:.2f}", f"floor {floor:.2f}")):
        x = left + 74 * n + (n == 2) * 92
        parts.append(svg.rect(x, top + 49, 12, 12, fill=shades[n]) if n < 2 else
                     svg.line(x + 6, top + 47, x + 6, top + 63, stroke=HEAD_COLORS[3], stroke_width=3))
        parts.append(svg.text(x + 18, top + 60, words))
    return parts + [svg.text(left + 148, top + 60, f"mean {(a + b) / 2:.2f}")]


def trained_explorer() -> Explorer:
    """Heads and inner width of stored layers, and a token to follow."""
    return Explorer(draw_trained, Slider("h", HEADS, 1), Slider("d_model", WIDTHS, 32), Slider("token", range(TWO.T), 6))


# What the paper measured

BLEU = {1: 24.9, 4: 25.5, 8: 25.8, 16: 25.8, 32: 25.4}  # Vaswani et al. 2017, Table 3, rows (A) and base; dev set newstest2013


def bleu() -> Picture:
    """BLEU against h at one budget: up, level, down again."""
    width, height, left, bottom = 600, 212, 96, 172
    parts = [svg.text(12, 20, "BLEU, development set, single runs")]

    def at(h: int, score: float) -> tuple[float, float]:
        return left + 92 * math.log2(h), bottom - 110 * (score - 24.75)
    for score in (25, 25.5, 26):
        _, y = at(1, score)
        parts += [svg.line(left - 40, y, width - 12, y, stroke=svg.RULE, stroke_dasharray="3 4"),
                  svg.text(left - 46, y + 4, score, anchor="end", size=12)]
    points = [at(h, score) for h, score in BLEU.items()]
    parts.append(svg.path("M" + "L".join(f"{svg.number(x)} {svg.number(y)}" for x, y in points), stroke=HEAD_COLORS[0], stroke_width=2))
    for (x, y), (h, score) in zip(points, BLEU.items()):
        parts += [_dot(x, y, 5, fill=HEAD_COLORS[0]), svg.text(x, y + (20 if score < 25.5 else -10), score, anchor="middle", font_weight="600"),
                  svg.text(x, bottom + 22, f"h = {h}", anchor="middle")]
    alt = "BLEU against the number of heads at one budget: 24.9 for 1, 25.5 for 4, 25.8 for 8 and for 16, 25.4 for 32."
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Up, level, and down again.", width)


# Quizzes

def directions_quiz() -> Quiz:
    return Quiz(
        "For one token, a head makes one row of weights. At how many tokens can the head look with it?",
        Option("at one: one distribution, one direction",
               "One distribution is not one token. A softmax row gives every token that no mask blocks some weight, and it may have several peaks."),
        Option("at any number of them",
               "The row can spread over all tokens. What there is only one of is the row itself: one blend comes out.", right=True),
        Option("at no more than d_k tokens",
               "d_k limits which score matrices are possible, not how many weights of a row can be large: equal scores spread over all tokens."),
        Option("at one more with every token of context",
               "More tokens only make the row longer. How the weight spreads over them depends on the scores."))


def blend_quiz() -> Quiz:
    return Quiz(
        "One head looks at two tokens, and you need one number of each. Which shares make the two errors add up to least?",
        Option("half and half: a fair compromise",
               "Half and half makes the two errors equal. It does not make their sum smaller."),
        Option("all on one of the two: then at least one number is exact",
               "Then one error is 0, and the other is 1: of the second token nothing is left."),
        Option("every pair of shares gives the same sum",
               "What one need gains, the other loses: q²/(p² + q²) and p²/(p² + q²) add up to 1 for every p.", right=True),
        Option("slightly more on the token with the larger values",
               "Both values have variance 1 here, so none is larger. And for white values every pair of shares gives the same sum."))


def wider_quiz() -> Quiz:
    return Quiz(
        "One head stops at the error ½. You make it four times wider, with four times the weights. Where does it stop?",
        Option("near 0: it has room for both needs now",
               "Room is not what it lacks. However wide its values are, all of them are blended by the same row of weights."),
        Option("near ⅛: the error is shared out over four times the width",
               "The error comes from the pattern, and there is still one. Its width does not enter the Schmidt rank."),
        Option("at ½ again",
               "A head of any width has Schmidt rank 1, and the task has rank 2 with two equal values. Half of it is out of reach.",
               right=True),
        Option("above ½: a wide head is harder to train",
               "It trains as well as the narrow one. It meets the same floor."))


def more_heads_quiz() -> Quiz:
    return Quiz(
        "Vaswani et al. kept the budget and tried 1, 4, 8, 16 and 32 heads. Which translated best?",
        Option("1: no information is cut up",
               "One head was the worst of the five, 0.9 BLEU behind the best."),
        Option("8 and 16, level; 32 was worse again",
               "At a fixed budget more heads are narrower heads. More heads helped up to a point, and then no longer.", right=True),
        Option("32: every head adds a pattern",
               "It adds a pattern, and every head gets narrower: here d_k = 16. The paper measured a drop."),
        Option("all alike: the number of weights is the same",
               "The number of weights is the same; what the layer can compute with them is not."))
