"""Start here: the check of the environment and the first explorer."""
from __future__ import annotations

import importlib.metadata
import platform
from functools import lru_cache

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import multihead as mh
from multihead_lessons import svg
from multihead_lessons.explorer import Explorer, Slider
from multihead_lessons.style import HEAD_COLORS, WEIGHT_COLORS
from multihead_lessons.svg import Picture

T = 8
D_MODELS = (48, 96, 192, 384, 768)
MOST_HEADS = 16
ALL_IS_WELL = "All is well: the course is ready to run."


def environment_report() -> str:
    """One fixed sentence when the course can run here, else what is wrong and what to do about it."""
    course = importlib.metadata.metadata("multihead-course")
    problems = []
    if not SpecifierSet(course["Requires-Python"]).contains(platform.python_version()):
        problems.append(f"Python {platform.python_version()} does not fit; the course needs {course['Requires-Python']}.")
    for needed in map(Requirement, importlib.metadata.requires("multihead-course")):
        if needed.marker is None:  # a marker names an extra, which a lesson can do without
            problems += _problem(needed)
    return "\n".join(problems) or ALL_IS_WELL


def _problem(needed: Requirement) -> list[str]:
    remedy = "run `pip install -r requirements.txt` in the course's folder, then restart this kernel"
    try:
        installed = importlib.metadata.version(needed.name)
    except importlib.metadata.PackageNotFoundError:
        return [f"{needed.name} is missing; {remedy}."]
    if needed.specifier.contains(installed, prereleases=True):
        return []
    return [f"{needed.name} {installed} does not fit, the course needs {needed.specifier}; {remedy}."]


# The first explorer: what happens to one vector, and to the maps, when h moves?

@lru_cache
def _queries_and_keys(d_model: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Projected queries and keys of eight random tokens, [1, T, d_model] each, from an untrained layer."""
    draw = torch.Generator().manual_seed(d_model)
    x = torch.randn(1, T, d_model, generator=draw, dtype=torch.float64)
    w_q, w_k = torch.randn(2, d_model, d_model, generator=draw, dtype=torch.float64) / d_model**0.5
    return 2 * x @ w_q, x @ w_k  # the factor 2 sharpens the maps enough to see them


def head_maps(d_model: int, h: int) -> torch.Tensor:
    """Attention maps of the untrained layer when it is cut into h heads, [h, T, T]."""
    q, k = (mh.split_heads(projected, h) for projected in _queries_and_keys(d_model))  # [1, h, T, d_k]
    _, weights = mh.attention(q, k, k)  # [1, h, T, T]
    return weights[0]


WIDTH, HEIGHT = 820, 392
LEFT, BAR_WIDTH = 30, 760
MAPS_TOP, MAPS_HEIGHT = 106, 246


def draw_heads(d_model: int, h: int) -> Picture:
    """The strip of d_model numbers cut into h pieces, and the map that each head makes."""
    d_k, parameters = d_model // h, mh.count_parameters(d_model, h)
    share = BAR_WIDTH / h
    parts = [svg.text(LEFT, 24, f"one projected vector: d_model = {d_model} numbers", size=15, font_weight="600"),
             svg.text(LEFT + BAR_WIDTH, 24, f"each head takes d_k = {d_model} / {h} = {d_k}", size=15, anchor="end")]
    for i, (left, top, cell) in enumerate(_places(h)):
        color, center = HEAD_COLORS[i % len(HEAD_COLORS)], LEFT + (i + 0.5) * share
        size = cell * T
        parts += [svg.rect(LEFT + i * share, 36, share, 34, fill=color, stroke=svg.PAPER, stroke_width=2),
                  svg.text(center, 59, i + 1, size=15, anchor="middle", fill="#ffffff", font_weight="700")]
        if h <= ONE_ROW:
            parts.append(svg.line(center, 72, center, top - 20, stroke=color, stroke_width=2))
        parts.append(svg.text(left + size / 2, top - 6, f"head {i + 1}", anchor="middle"))
    for i, ((left, top, cell), weights_of_head) in enumerate(zip(_places(h), head_maps(d_model, h).tolist())):
        color = HEAD_COLORS[i % len(HEAD_COLORS)]
        parts += [svg.heatmap(left, top, cell, weights_of_head, WEIGHT_COLORS),
                  svg.rect(left - 1.5, top - 1.5, cell * T + 3, cell * T + 3, stroke=color, stroke_width=3)]
    parts += _scale(LEFT, 362)
    parts.append(svg.text(LEFT + 230, 375, f"parameters: 4 × {d_model}² = {parameters:,}", size=14))
    parts.append(svg.text(LEFT + BAR_WIDTH, 375, f"map entries: h T² = {h} × {T}² = {h * T * T:,}", size=14, anchor="end"))
    alt = (f"A strip of {d_model} numbers cut into {h} equal piece{'s' * (h > 1)} of {d_k}, numbered by head. Below, for "
           f"each head of an untrained layer, its attention map: {T} by {T} weights between 0 and 1.")
    return Picture(
        svg=svg.svg(WIDTH, HEIGHT, *parts, alt=alt), alt=alt, width=WIDTH,
        status=f"d_model = {d_model} = {h} × {d_k}: {h} head{'s' * (h > 1)} of d_k = {d_k}. The layer has {parameters:,} "
               f"parameters, whatever h is; it makes {h} map{'s' * (h > 1)} of {T} × {T}.")


ONE_ROW = 4  # up to here the maps fit under their pieces of the strip


def _places(h: int) -> list[tuple[float, float, int]]:
    """(left, top, size of a cell) of each map: one row for up to four heads, else two."""
    rows = 1 if h <= ONE_ROW else 2
    columns = -(-h // rows)
    pitch = BAR_WIDTH / columns
    cell = min(int((MAPS_HEIGHT / rows - 28) / T), int((pitch - 10) / T))
    return [(LEFT + column * pitch + (pitch - cell * T) / 2, MAPS_TOP + row * MAPS_HEIGHT / rows, cell)
            for row in range(rows) for column in range(columns)][:h]


def _scale(x: float, y: float) -> list[str]:
    """The color scale of the maps, 0 to 1."""
    steps = len(WEIGHT_COLORS)
    return [svg.text(x, y + 13, "weight 0", size=13),
            *(svg.rect(x + 62 + 7 * i, y + 2, 7, 13, fill=color, shape_rendering="crispEdges")
              for i, color in enumerate(WEIGHT_COLORS)),
            svg.text(x + 68 + 7 * steps, y + 13, "1", size=13)]


def heads_on_offer(state: dict) -> list[int]:
    """The divisors of d_model up to MOST_HEADS."""
    return [h for h in mh.divisors(state["d_model"]) if h <= MOST_HEADS]


def _refuse_heads(h: int, state: dict) -> str | None:
    d_model = state["d_model"]
    offered = ", ".join(map(str, heads_on_offer(state)))
    if h < 1 or d_model % h:
        return f"h = {h} does not divide d_model = {d_model} into equal whole heads; here h can be {offered}."
    if h > MOST_HEADS:
        return f"h = {h} divides {d_model}, but this picture has room for {MOST_HEADS} heads; choose from {offered}."
    return None


def heads_explorer() -> Explorer:
    """The first explorer: d_model and h."""
    return Explorer(draw_heads, Slider("d_model", D_MODELS, 48), Slider("h", heads_on_offer, 4, refuse=_refuse_heads))
