"""Splitting d_model: pictures of what a cut leaves and what it costs, the budget explorer, the quizzes."""
from __future__ import annotations

import math
from fractions import Fraction

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

import multihead as mh
from multihead_lessons import svg
from multihead_lessons.explorer import Choice, Explorer, Slider, within
from multihead_lessons.quiz import Option, Quiz
from multihead_lessons.style import HEAD_COLORS
from multihead_lessons.svg import Picture


def _color(head: int) -> str:
    return HEAD_COLORS[head % len(HEAD_COLORS)]


# Stills: which weights does a cut leave?

TINY = 4   # d_model of the matrix that is drawn
CELL = 30  # CSS pixels


def columns() -> Picture:
    """One 4 x 4 matrix cut by columns for 1, 2 and 4 heads: always sixteen weights."""
    return _matrices(lambda row, head, d_k: True, "{h} × ({d} × {d_k}) = {sum}",
                     "A matrix of 4 by 4 weights, three times: whole for one head, cut into two blocks of 4 "
                     "by 2 for two heads, cut into four columns for four heads. All sixteen weights are "
                     "there each time.")


def diagonal() -> Picture:
    """The same matrix when the input is cut first: only the diagonal blocks exist."""
    return _matrices(lambda row, head, d_k: row // d_k == head, "{h} × ({d_k} × {d_k}) = {sum}",
                     "The matrix of 4 by 4 weights again, for 1, 2 and 4 heads, when the input is cut first. "
                     "Only the blocks on the diagonal exist: 16 weights for one head, 8 for two heads, 4 for "
                     "four heads. The rest is empty.")


def _cell(x: float, y: float, size: float, head: int, filled: bool) -> str:
    """A square in the head's color, or the dashed place of one that is not there."""
    if filled:
        return svg.rect(x + 1, y + 1, size - 2, size - 2, fill=_color(head))
    return svg.rect(x + 1.5, y + 1.5, size - 3, size - 3, stroke=svg.RULE, stroke_dasharray="3 3")


def _matrices(exists, count: str, alt: str) -> Picture:
    """A matrix for 1, 2 and 4 heads: rows are channels of x, columns belong to heads.

    exists: (row, head, d_k) -> whether the layer has these weights
    count:  the line below, a format of h, d, d_k and sum, the number of weights
    """
    parts = [svg.text(10, 74 + CELL * (row + 0.5) + 5, f"channel {row + 1}") for row in range(TINY)]
    for number, h in enumerate((1, 2, 4)):
        left, top, d_k = 110 + number * 210, 74, TINY // h
        parts.append(svg.text(left, 18, f"h = {h}, d_k = {d_k}", size=14, font_weight="600"))
        there = 0
        for head in range(h):
            parts.append(svg.text(left + CELL * d_k * (head + 0.5), 66, head + 1, anchor="middle"))
            for row in range(TINY):
                for column in range(head * d_k, (head + 1) * d_k):
                    filled = exists(row, head, d_k)
                    there += filled
                    parts.append(_cell(left + CELL * column, top + CELL * row, CELL, head, filled))
        parts += [svg.text(left, 46, f"head{'s' * (h > 1)}", fill=svg.MUTED),
                  svg.text(left, top + CELL * TINY + 22, count.format(h=h, d=TINY, d_k=d_k, sum=there),
                           size=14)]
    width, height = 670, 74 + CELL * TINY + 34
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "One matrix, three cuts.", width)


def reach(whole: torch.Tensor, sliced: torch.Tensor) -> Picture:
    """Which heads notice a bump of which channel, for two layers; each [d_model, h], boolean."""
    d_model, h = whole.shape
    parts, size, top = [], 26, 62
    for number, (title, noticed) in enumerate((("project, then cut", whole), ("cut, then project", sliced))):
        left = 110 + number * 320
        parts += [svg.text(left - 100, 18, title, size=14, font_weight="600"),
                  svg.text(left, top - 28, "heads that change", fill=svg.MUTED),
                  svg.text(left - 100, top - 10, "bumped", fill=svg.MUTED)]
        parts += [svg.text(left + size * (head + 0.5), top - 10, head + 1, anchor="middle")
                  for head in range(h)]
        for row in range(d_model):
            parts.append(svg.text(left - 100, top + size * (row + 0.5) + 5, f"channel {row + 1}"))
            for head in range(h):
                filled = bool(noticed[row, head])
                parts.append(_cell(left + size * head, top + size * row, size, head, filled))
    width, height = 570, top + size * d_model + 10
    alt = (f"Two grids of {d_model} bumped channels against {h} heads. Projected first: {int(whole.sum())} of "
           f"{whole.numel()} cells are filled. Cut first: {int(sliced.sum())} are filled, in a staircase.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Who reads what.", width)


# Stills: what grows, what is shared

def growth(d_model: int = 768, heads: tuple[int, ...] = (1, 4, 12)) -> Figure:
    """MiB of the maps of one sequence against T, for some h, and of the layer's weights; both in float32."""
    lengths = [2**power for power in range(6, 13)]
    mib = 2.0**20
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for head, h in enumerate(heads):
        sizes = [mh.map_bytes(h, T) / mib for T in lengths]
        axes.loglog(lengths, sizes, color=_color(head), marker="os^"[head % 3], linewidth=2, clip_on=False)
        axes.annotate(f"maps, h = {h}", (lengths[-1], sizes[-1]), (8, 0), textcoords="offset points",
                      va="center", color=_color(head), fontsize=10)
    weights = 4 * mh.count_parameters(d_model, 1) / mib
    axes.axhline(weights, color="#1f2328", linewidth=2, linestyle="--")
    axes.annotate(f"weights, every h: {weights:.0f} MiB", (lengths[0], weights), (8, 6),
                  textcoords="offset points", fontsize=10)
    axes.set_xticks(lengths)
    axes.set_yticks([0.01, 0.1, 1, 10, 100, 1000])
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_major_formatter("{x:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set_xlim(lengths[0], lengths[-1])
    axes.set_xlabel("T, tokens in the sequence", fontsize=10)
    axes.set_ylabel("MiB in float32", fontsize=10)
    axes.tick_params(labelsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


GROWTH_ALT = ("Bytes against the length of the sequence, both axes logarithmic, d_model = 768. Three parallel rising "
              "lines for the maps of 1, 4 and 12 heads; a flat dashed line for the weights, 9 MiB. The lines cross "
              "it at T = 1536, 768 and about 443.")


def _numbered(x: float, y: float, width: float, height: float, number: int, *, ink: str = "#ffffff",
              **look: str | None) -> list[str]:
    """A piece with the number of its head, where that is wide enough to be read."""
    words = svg.text(x + width / 2, y + height / 2 + 5, number, anchor="middle", fill=ink, font_weight="700")
    return [svg.rect(x, y, width, height, **look), *([words] if width >= 20 else [])]


def sharing(h: int = 8) -> Picture:
    """h query heads with h, two or one key/value heads, and what that leaves of the weights and the cache."""
    parts, piece = [svg.text(10, 54, "query heads"), svg.text(10, 114, "k, v heads")], 24
    kinds = (("multi-head", h), ("grouped-query", 2), ("multi-query", 1))
    for number, (name, n_kv_heads) in enumerate(kinds):
        left, group = 104 + number * 236, h // n_kv_heads
        weights = mh.count_parameters(h, h, n_kv_heads) / mh.count_parameters(h, h)  # the same for any d_k
        parts.append(svg.text(left, 18, f"{name}, n_kv = {n_kv_heads}", size=14, font_weight="600"))
        for head in range(h):
            color, x = _color(head), left + piece * head
            served_at = left + piece * group * (head // group + 0.5)
            parts += [svg.line(x + piece / 2, 62, served_at, 96, stroke=color, stroke_width=2),
                      *_numbered(x + 1, 36, piece - 2, 26, head + 1, fill=color)]
        for kv_head in range(n_kv_heads):
            x = left + piece * group * (kv_head + 0.5) - piece / 2
            parts += _numbered(x + 1, 96, piece - 2, 26, kv_head + 1, fill=svg.INK, ink=svg.PAPER)
        parts += [svg.text(left, 146, f"weights  {100 * weights:.4g} %"),
                  svg.text(left, 166, f"keys and values kept  {100 * n_kv_heads / h:.4g} %")]
    width, height = 800, 176
    alt = (f"Three ways to serve {h} query heads. Multi-head: each has a key/value head of its own. Grouped-query: "
           f"two key/value heads, each for {h // 2} query heads. Multi-query: one for all. Weights and kept keys and "
           "values shrink from left to right.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Fewer keys and values.", width)


# The budget explorer

WIDTH, HEIGHT = 840, 424
D_MODELS = (48, 512, 768, 1024, 3072, 4096, 8192, 12288)
TOKENS, BATCHES = (16, 128, 512, 1024, 2048, 8192), (1, 2, 8, 32)
SPLIT = "d_model / h"
FREE_HEADS = (1, 2, 4, 8, 12, 16, 32, 64, 96, 128)
MOST_HEADS = 128
STRIP_LEFT, STRIP_WIDTH = 232, 598
AXIS_LEFT, DOUBLING, DOUBLINGS = 270, 28, 8  # the axis runs from 1/256 to 256
ONE = AXIS_LEFT + DOUBLING * DOUBLINGS


def budget(d_model: int, h: int, n_kv_heads: int, d_k: int, T: int, B: int) -> dict[str, tuple[int, int]]:
    """(cost of the layer, cost of one head that is d_model wide), for each kind of cost; exact integers."""
    layer, one = (n_kv_heads, d_k), (1, d_model)
    return {
        "weights": (mh.count_parameters(d_model, h, *layer), mh.count_parameters(d_model, 1, *one)),
        "FLOPs of the products": (mh.count_flops(d_model, h, T, B, *layer),
                                  mh.count_flops(d_model, 1, T, B, *one)),
        "bytes of the maps, float32": (mh.map_bytes(h, T, B), mh.map_bytes(1, T, B)),
        "bytes kept per token, float16": (mh.kv_cache_bytes(d_model, h, 1, 1, 1, *layer),
                                          mh.kv_cache_bytes(d_model, 1, 1, 1, 1, *one)),
    }


def draw_budget(d_model: int, d_k: str, h: int, n_kv_heads: int, T: int, B: int) -> Picture:
    """The widths of x, q, k and v at one scale, and each cost as a multiple of one head's."""
    width = mh.head_dim(d_model, h) if d_k == SPLIT else int(d_k)
    chosen = f"d_k = {SPLIT} = {width:,}" if d_k == SPLIT else f"d_k = {width} (chosen)"
    costs = budget(d_model, h, n_kv_heads, width, T, B)
    parts = [*_strips(d_model, h, n_kv_heads, width), svg.text(10, 120, chosen), *_axis()]
    for row, (name, (cost, one)) in enumerate(costs.items()):
        parts += _bar(184 + 60 * row, name, cost, Fraction(cost, one))
    weights, flops, maps, kept = (_times(Fraction(*pair)) for pair in costs.values())
    layer = f"d_model = {d_model:,}, {chosen}, h d_k = {h} × {width:,} = {h * width:,}"
    kv_heads = f"{n_kv_heads} key/value head{'s' if n_kv_heads > 1 else ''}"
    ratios = f"weights {weights}, FLOPs {flops}, maps {maps}, kept keys and values {kept}."
    alt = f"Strips for x, the queries and the keys: {layer}, {kv_heads}. Below, bars against one head: {ratios}"
    status = f"{layer}, {kv_heads}, T = {T:,}, B = {B:,}. Against one head of width {d_model:,}: {ratios}"
    return Picture(svg.svg(WIDTH, HEIGHT, *parts, alt=alt), alt, status, WIDTH)


def _strips(d_model: int, h: int, n_kv_heads: int, d_k: int) -> list[str]:
    """x, the queries and the keys (as wide as the values), all at one scale."""
    scale = STRIP_WIDTH / max(d_model, h * d_k)
    piece, group = d_k * scale, h // n_kv_heads
    edge = svg.PAPER if piece >= 4 else None
    parts = [svg.text(10, 24, f"x: d_model = {d_model:,}"),
             svg.text(10, 56, f"q: {h} × {d_k:,} = {h * d_k:,}"),
             svg.text(10, 88, f"k, v each: {n_kv_heads} × {d_k:,} = {n_kv_heads * d_k:,}"),
             svg.rect(STRIP_LEFT, 10, d_model * scale, 20, fill=svg.MUTED)]
    for head in range(h):
        parts += _numbered(STRIP_LEFT + head * piece, 42, piece, 20, head + 1, fill=_color(head), stroke=edge)
    for kv_head in range(n_kv_heads):
        left, color = STRIP_LEFT + kv_head * group * piece, _color(kv_head * group)
        if group > 1:
            parts.append(svg.line(left + 1, 70, left + group * piece - 1, 70, stroke=color, stroke_width=2))
        middle = left + (group - 1) * piece / 2
        parts += _numbered(middle, 74, piece, 20, kv_head + 1, fill=color, stroke=edge)
    return parts


def _axis() -> list[str]:
    """The scale of the bars: every step doubles."""
    parts = [svg.line(10, 130, WIDTH - 10, 130, stroke=svg.RULE),
             svg.text(10, 148, "one layer", font_weight="600"),
             svg.text(WIDTH - 10, 148, "times one head", anchor="end", font_weight="600")]
    for power in range(-DOUBLINGS, DOUBLINGS + 1):
        x = ONE + DOUBLING * power
        look = {"stroke": svg.RULE, "stroke_width": 0.5} if power else {"stroke": svg.INK, "stroke_width": 2}
        parts.append(svg.line(x, 156, x, HEIGHT - 8, **look))
        if power % 2 == 0 and power < DOUBLINGS:
            parts.append(svg.text(x, 148, f"{2**power}" if power >= 0 else f"1/{2**-power}", anchor="middle"))
    return parts


def _bar(y: float, name: str, cost: int, ratio: Fraction) -> list[str]:
    """A bar from 1 to the ratio; an arrowhead where it leaves the axis."""
    steps = math.log2(ratio)
    side = 1 if steps > 0 else -1
    end = ONE + DOUBLING * side * min(abs(steps), DOUBLINGS)
    color = HEAD_COLORS[3] if side > 0 else HEAD_COLORS[1]
    parts = [svg.text(10, y, name), svg.text(10, y + 20, f"{cost:,}", size=14, font_weight="600"),
             svg.text(WIDTH - 10, y + 10, _times(ratio), size=14, font_weight="600", anchor="end")]
    if ratio == 1:
        parts.append(svg.path(f"M{ONE} {svg.number(y - 7)}l12 12l-12 12l-12 -12z", fill=svg.INK))
    else:
        parts.append(svg.rect(min(ONE, end), y - 7, abs(end - ONE), 24, fill=color))
    if abs(steps) > DOUBLINGS:
        parts.append(svg.path(f"M{end} {svg.number(y - 11)}l{14 * side} 16l{-14 * side} 16z", fill=color))
    return parts


def _times(ratio: Fraction) -> str:
    """The ratio in at most four digits; `1 ×` is said only when it is exactly 1."""
    words = f"{float(ratio):,.4g}" if ratio < 1000 else f"{float(ratio):,.0f}"
    return f"{'about ' if words == '1' and ratio != 1 else ''}{words} ×"


def _heads(state: dict) -> list[int]:
    if state["d_k"] != SPLIT:
        return list(FREE_HEADS)
    return [h for h in mh.divisors(state["d_model"]) if h <= MOST_HEADS]


def _refuse_heads(h: int, state: dict) -> str | None:
    if state["d_k"] != SPLIT:
        return None if 1 <= h <= MOST_HEADS else f"h = {h} is not possible here: choose 1 to {MOST_HEADS}."
    if h >= 1 and state["d_model"] % h == 0 and h <= MOST_HEADS:
        return None
    divides = h >= 1 and state["d_model"] % h == 0
    why = "is more than fits into this picture at" if divides else "does not divide"
    return (f"h = {h} {why} d_model = {state['d_model']:,}: choose a divisor up to {MOST_HEADS}, "
            f"{', '.join(map(str, _heads(state)))}.")


def _refuse_kv_heads(n_kv_heads: int, state: dict) -> str | None:
    if n_kv_heads >= 1 and state["h"] % n_kv_heads == 0:
        return None
    return (f"{n_kv_heads} key/value heads cannot serve h = {state['h']} heads equally: choose a divisor, "
            f"{', '.join(map(str, mh.divisors(state['h'])))}.")


def _preset(preset) -> dict:
    split = preset.h * preset.d_k == preset.d_model
    return {"d_model": preset.d_model, "d_k": SPLIT if split else str(preset.d_k), "h": preset.h,
            "n_kv_heads": preset.n_kv_heads or preset.h}


def budget_explorer() -> Explorer:
    """What a layer costs against one head, at any size to GPT-3's: integers only, nothing is allocated."""
    return Explorer(
        draw_budget,
        Slider("d_model", D_MODELS, 768, refuse=within("d_model", 65_536)),
        Choice("d_k", [SPLIT, "64", "128", "256"], SPLIT),
        Slider("h", _heads, 12, refuse=_refuse_heads),
        Slider("n_kv_heads", lambda state: mh.divisors(state["h"]), 12, label="n_kv", refuse=_refuse_kv_heads,
               follows="h"),
        Slider("T", TOKENS, 1024, refuse=within("T", 131_072)),
        Slider("B", BATCHES, 1, refuse=within("B", 1024)),
        presets={preset.name: _preset(preset) for preset in mh.PRESETS})


# Quizzes

def twelve_heads_quiz() -> Quiz:
    return Quiz(
        "With one head of width 768, each of W_Q, W_K, W_V and W_O has 768² weights. You use twelve heads of "
        "width 64 instead. How many weights are there?",
        Option("twelve times as many",
               "Twelve heads of width 768 would have that. These are 64 wide: each takes a twelfth of the "
               "columns of W_Q, W_K and W_V, and meets a twelfth of the rows of W_O."),
        Option("as many as before",
               "A head's W_Q has 768 rows, because it reads all of x, and 64 columns. Twelve such blocks "
               "side by side are 768 × 768.",
               right=True),
        Option("a twelfth, in W_Q, W_K and W_V",
               "That is a layer whose heads read only 64 of the 768 channels of x. Here each head reads all "
               "of x: its W_Q is 768 × 64, not 64 × 64."),
        Option("a few more, because each head has its own biases",
               "A bias is one number for each output channel. There are 768 of them, however they are shared "
               "out."))


def bump_quiz() -> Quiz:
    return Quiz(
        "In multi-head attention, x is projected first, then cut. You change channel 1 of x in every token. Which of twelve "
        "heads of width 64 can notice, before W_O?",
        Option("head 1 only: it owns channels 1 to 64",
               "Head 1 owns channels 1 to 64 of the projected vector. Each of those is a weighted sum of all "
               "768 channels of x."),
        Option("all twelve",
               "Channel 1 of x meets row 1 of W_Q, W_K and W_V, and a row runs through the columns of every "
               "head.", right=True),
        Option("all, but head 1 by design the most",
               "How much a head notices depends on its weights. Nothing in the layer ties head 1 to channel "
               "1 of x."),
        Option("none: channels are mixed by W_O, and that comes later",
               "W_O mixes what the heads have found. What they read has been mixed before, by W_Q, W_K and "
               "W_V."))


def growth_quiz() -> Quiz:
    return Quiz(
        "d_model = 768 and T stay as they are; one head becomes twelve of width 64. What grows?",
        Option("the weights", "You have just counted them: 4 d_model² for every h that divides d_model."),
        Option("the FLOPs of Q K^T, because there are twelve products",
               "Twelve products, each over 64 channels instead of 768: h T² d_k multiply-adds, and h d_k is "
               "d_model."),
        Option("the exponentials of the softmax, and the numbers in the maps",
               "Each head makes a map of its own, T × T. Its entries do not shrink with d_k: there are h T² "
               "of them.", right=True),
        Option("nothing: the split is free",
               "Weights and products stay. But each head needs a softmax and a map of its own."))


def shared_heads_quiz() -> Quiz:
    return Quiz(
        "Llama-3-70B has 64 query heads and 8 key/value heads. What share of its attention weights is left, compared "
        "with 64 of each?",
        Option("an eighth", "That is what is left of W_K and W_V. W_Q and W_O keep all 64 heads."),
        Option("a half",
               "That would be W_Q and W_O alone. W_K and W_V have shrunk to an eighth, not to nothing."),
        Option("56.25 %",
               "W_Q and W_O are half of the weights and stay. The other half shrinks to an eighth: 50 % + 6.25 %.",
               right=True),
        Option("all of them: heads share results, not weights",
               "What is shared is the key and the value, and with them the weights that make them: W_K and "
               "W_V have 8 d_k columns."))
