"""The 4D pipeline: pictures of where each number lies, the pipeline explorer, the quizzes."""
from __future__ import annotations

import math

from torch.utils._python_dispatch import TorchDispatchMode

import multihead as mh
from multihead_lessons import provenance, svg
from multihead_lessons.explorer import Choice, Explorer, Slider, within
from multihead_lessons.provenance import CELL_WIDTH, Source
from multihead_lessons.quiz import Option, Quiz
from multihead_lessons.style import HEAD_COLORS
from multihead_lessons.svg import Picture

TINY = Source(T=2, d_model=4, h=2)   # two tokens, two heads of two channels: eight numbers
SMALL = Source(T=3, d_model=4, h=2)  # three tokens: T, h differ, so that a mixed-up axis shows


class CopyLog(TorchDispatchMode):
    """Counts the elements that torch clones while it runs, below the functions that a program calls."""

    def __init__(self):
        super().__init__()
        self.copies: list[int] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in ("clone", "copy_"):
            self.copies.append(result.numel())
        return result


def copies_made(operation) -> list[int]:
    """The sizes of the copies that `operation()` makes, in elements; empty if it makes none."""
    with CopyLog() as log:
        operation()
    return log.copies


# Stills

def memory_line() -> Picture:
    """The eight numbers of two tokens in memory, colored by the head that will own them."""
    width, height = 20 + 8 * CELL_WIDTH, 112
    parts = [svg.text(10, 18, "one row of memory, address below each number", size=14)]
    parts += provenance.memory(10, 42, TINY)
    for token in range(TINY.T):
        left = 10 + token * TINY.d_model * CELL_WIDTH
        right = left + TINY.d_model * CELL_WIDTH
        parts += [svg.line(left + 4, 36, right - 4, 36, stroke_width=2),
                  svg.text((left + right) / 2, 32, f"token {token}", anchor="middle", size=12)]
    parts += [svg.rect(10, 94, 12, 12, fill=HEAD_COLORS[0], fill_opacity=provenance.TINT, stroke=HEAD_COLORS[0]),
              svg.text(28, 105, "channels of head 0"),
              svg.rect(190, 94, 12, 12, fill=HEAD_COLORS[1], fill_opacity=provenance.TINT, stroke=HEAD_COLORS[1]),
              svg.text(208, 105, "channels of head 1")]
    alt = ("Eight numbers in one row of memory: channels 0 to 3 of token 0, then channels 0 to 3 of token 1. In each token the "
           "first two channels belong to head 0 and the last two to head 1.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Eight numbers in a row.", width)


def regrouping() -> Picture:
    """The same eight numbers as [B, T, d_model], as [B, T, h, d_k] and as [B, h, T, d_k]."""
    x = TINY.tensor()
    views = [("x", x), ("x.view(B, T, h, d_k)", x.view(1, 2, 2, 2)),
             ("...transpose(1, 2)", x.view(1, 2, 2, 2).transpose(1, 2))]
    parts, left, height = [], 10, 0
    for name, tensor in views:
        layout = mh.Layout.of(tensor)
        parts += [svg.text(left, 18, name, size=14, font_weight="600"),
                  svg.text(left, 36, f"shape {list(layout.shape)}"), svg.text(left, 52, f"strides {list(layout.strides)}")]
        for i, (index, rows) in enumerate(provenance.as_panels(tensor)):
            top = 64 + i * provenance.panel_height(len(rows))
            parts += provenance.panel(left, top, index, rows, TINY)
            height = max(height, top + provenance.panel_height(len(rows)))
        left += max(tensor.shape[-1] * CELL_WIDTH, 170) + 40
    alt = ("The same eight numbers grouped three times. As x: two rows of four channels. After view: for each token, one row for "
           "each head. After transpose: for each head, one row for each token. The addresses never change.")
    return Picture(svg.svg(int(left), int(height), *parts, alt=alt), alt, "Two regroupings, no move.", int(left))


def direct_view() -> Picture:
    """What view(B, h, T, d_k) does to three tokens and two heads."""
    x = SMALL.tensor()
    return provenance.comparison(mh.split_heads(x, 2), x.view(1, 2, 3, 2), SMALL, left="view, then transpose",
                                 right="view(B, h, T, d_k)")


def conventions() -> Picture:
    """The contiguous split and the strided split of the same tokens: two conventions, both sound."""
    x = SMALL.tensor()
    strided = x.view(1, 3, 2, 2).permute(0, 3, 1, 2)  # [B, T, d_k, h] -> [B, h, T, d_k]
    return provenance.comparison(mh.split_heads(x, 2), strided, SMALL, left="contiguous runs", right="every h-th channel",
                                 framed=False)


def merge_without_transpose() -> Picture:
    """Merging heads [B, h, T, d_k] to [B, T, d_model] with the transpose back, and without."""
    heads = mh.split_heads(SMALL.tensor(), 2)
    return provenance.comparison(mh.merge_heads(heads), heads.reshape(1, 3, 4), SMALL, left="transpose, then reshape",
                                 right="reshape alone")


def who_meets_whom() -> Picture:
    """Which query meets which key, with the transpose and without it, for two tokens and two heads."""
    pairs = [(token, head) for token in range(TINY.T) for head in range(TINY.h)]
    size, parts = 40, []
    alt = ("Two grids of queries against keys. With the transpose, a query meets the keys of its own head in both tokens. Without "
           "it, a query meets the keys of both heads in its own token, and tokens never meet.")
    for number, (title, meet) in enumerate((("with the transpose: same head, all tokens", lambda a, b: a[1] == b[1]),
                                            ("without: same token, all heads", lambda a, b: a[0] == b[0]))):
        left, top = 70 + number * 380, 64
        parts.append(svg.text(left - 50, 18, title, size=14, font_weight="600"))
        for c, key in enumerate(pairs):
            parts.append(svg.text(left + c * size + size / 2, top - 8, "t{} h{}".format(*key), size=12, anchor="middle"))
        parts.append(svg.text(left - 50, top - 24, "query ↓   key →", size=12, fill=svg.MUTED))
        for r, query in enumerate(pairs):
            parts.append(svg.text(left - 8, top + r * size + size / 2 + 4, "t{} h{}".format(*query), size=12, anchor="end"))
            for c, key in enumerate(pairs):
                met = meet(query, key)
                parts.append(svg.rect(left + c * size + 1, top + r * size + 1, size - 2, size - 2, stroke=svg.RULE,
                                      fill=HEAD_COLORS[query[1]] if met else "none",
                                      fill_opacity=provenance.TINT if met else None))
                if met:
                    parts.append(svg.text(left + c * size + size / 2, top + r * size + size / 2 + 5, "q·k", anchor="middle",
                                          font_weight="700"))
    width, height = 720, 64 + 4 * size + 10
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Heads against heads, or tokens against tokens.", width)


# The pipeline explorer

WIDTH, HEIGHT = 840, 406
COLUMNS = (10, 130, 330, 626, 722)  # left edges: stage, shape, strides, contiguous, copies
BYTES = 4  # float32
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
BATCHES, TOKENS = (1, 2, 4, 8), (1, 2, 4, 16, 128, 1024, 2048)
WIDTHS = (8, 48, 96, 384, 768, 1024, 4096, 12288)


def draw_pipeline(B: int, T: int, d_model: int, h: int, b: int, head: int, t: int, k: int, attention: str) -> Picture:
    """The stages as a table, and the walk of one element from index to address."""
    stages = mh.pipeline(B, T, d_model, h, fused_attention=attention == "fused")
    parts = [svg.text(x, 18, title, font_weight="600") for x, title in
             zip(COLUMNS, ("stage", "shape", "strides", "contiguous", "copies, float32"))]
    for row, stage in enumerate(stages):
        y = 38 + 21 * row
        if stage.copied_elements:
            parts.append(svg.rect(4, y - 15, WIDTH - 8, 20, fill=HEAD_COLORS[2], fill_opacity=0.22))
        moved = _size(BYTES * stage.copied_elements) if stage.copied_elements else "none"
        words = (stage.name, _tuple(stage.layout.shape), _tuple(stage.layout.strides),
                 "yes" if stage.layout.is_contiguous() else "no", f"{'▲ ' if stage.copied_elements else ''}{moved}")
        parts += [svg.text(x, y, word) for x, word in zip(COLUMNS, words)]
    parts += _walk(B, T, d_model, h, b, head, t, k)
    copied = BYTES * sum(stage.copied_elements for stage in stages)
    d_k, address = d_model // h, _heads(stages).address(b, head, t, k)
    alt = (f"A table of {len(stages)} stages from projected [{B}, {T}, {d_model}] to merged, with shape, strides, contiguity and "
           f"copied bytes; below, element [{b}, {head}, {t}, {k}] is walked to address {address} of the memory line.")
    status = (f"B = {B:,}, T = {T:,}, d_model = {d_model:,} = {h} × {d_k}: {B * h:,} map{'s' * (B * h > 1)} of {T:,} × {T:,}; with "
              f"{attention} attention {_size(copied) if copied else 'nothing'} is copied. Element "
              f"[{b}, {head}, {t}, {k}] lies at address {address:,}.")
    return Picture(svg.svg(WIDTH, HEIGHT, *parts, alt=alt), alt, status, WIDTH)


def _heads(stages) -> mh.Layout:
    return next(stage.layout for stage in stages if stage.name == "transposed")


def _walk(B: int, T: int, d_model: int, h: int, b: int, head: int, t: int, k: int) -> list[str]:
    """The memory line as tokens, the chosen token as heads, and the sum that leads there."""
    d_k = d_model // h
    layout = mh.Layout.contiguous((B, T, d_model)).view(B, T, h, d_k).transpose(1, 2)  # [B, h, T, d_k]
    address = layout.address(b, head, t, k)
    assert layout.index_of(address) == (b, head, t, k)
    left, width, top = 150, WIDTH - 160, 262
    token = b * T + t
    steps = " + ".join(f"{index}·{stride:,}" for index, stride in zip((b, head, t, k), layout.strides))
    parts = [svg.line(4, top - 8, WIDTH - 4, top - 8, stroke=svg.RULE),
             svg.text(10, top + 22, "memory, tokens"), svg.text(10, top + 74, "the token, heads")]
    if B * T <= 64:
        for i in range(B * T):
            parts.append(svg.rect(left + width * i / (B * T), top + 4, width / (B * T), 26, stroke=svg.MUTED,
                                  fill=svg.MUTED if i // T % 2 else "none", fill_opacity=0.15))
    else:
        parts.append(svg.rect(left, top + 4, width, 26, stroke=svg.MUTED))
    at, step = left + width * token / (B * T), max(width / (B * T), 3)
    parts += [svg.rect(at, top + 4, step, 26, fill=svg.INK),
              svg.path(f"M{svg.number(at)} {top + 32}L{left} {top + 54}M{svg.number(at + step)} {top + 32}L{left + width} {top + 54}",
                       stroke=svg.MUTED)]
    for i in range(h):
        color = HEAD_COLORS[i % len(HEAD_COLORS)]
        parts.append(svg.rect(left + width * i / h, top + 56, width / h, 26, fill=color, fill_opacity=0.9 if i == head else 0.25,
                              stroke=color if h <= 64 else "none"))
    parts += [svg.rect(left + width * (head * d_k + k) / d_model - 1, top + 52, max(width / d_model, 3), 34, fill=svg.INK),
              svg.text(10, top + 108, f"there:  {steps} = {address:,}"),
              svg.text(10, top + 132, (f"and back:  {address:,} is token {token:,} of all, channel {head * d_k + k:,}: "
                                       f"sequence {b}, token {t:,}, head {head}, channel {k} of the head"))]
    return parts


def _tuple(numbers: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, numbers))})"


def _size(count: int) -> str:
    """Bytes in the largest binary unit that leaves at least 1, to four digits, so that sums can be checked."""
    power = min(int(math.log2(count)) // 10, 4) if count else 0
    number = count / 1024**power
    return f"{number:,.4g} {UNITS[power]}" if number < 1000 else f"{number:,.0f} {UNITS[power]}"


def _divisors(state: dict) -> list[int]:
    return [h for h in mh.divisors(state["d_model"]) if h <= 128]


def _refuse_h(h: int, state: dict) -> str | None:
    d_model = state["d_model"]
    if h >= 1 and d_model % h == 0 and h <= 128:
        return None
    return f"h = {h} is not possible for d_model = {d_model}: choose a divisor up to 128, {', '.join(map(str, _divisors(state)))}."


def _index(name: str, size):
    """A slider over some places along an axis; any index that exists may be typed."""
    def values(state):
        last = size(state) - 1
        return sorted({0, min(1, last), last // 2, last})

    def refuse(value, state):
        last = size(state) - 1
        return None if 0 <= value <= last else f"{name} = {value} does not exist: that axis has the indices 0 to {last:,}."
    return values, refuse


def pipeline_explorer() -> Explorer:
    """The pipeline at any size to GPT-3's, with one element to follow."""
    def index(name, size):
        values, refuse = _index(name, size)
        return Slider(name, values, 1, refuse=refuse)
    return Explorer(
        draw_pipeline,
        Slider("B", BATCHES, 2, refuse=within("B", 1024)), Slider("T", TOKENS, 4, refuse=within("T", 131_072)),
        Slider("d_model", WIDTHS, 768, refuse=within("d_model", 65_536)),
        Slider("h", _divisors, 12, refuse=_refuse_h),
        index("b", lambda state: state["B"]), index("head", lambda state: state["h"]), index("t", lambda state: state["T"]),
        index("k", lambda state: state["d_model"] // state["h"]),
        Choice("attention", ["explicit", "fused"], "explicit"),
        presets={"the example": {"B": 2, "T": 4, "d_model": 768, "h": 12},
                 "GPT-2 small": {"B": 1, "T": 1024, "d_model": 768, "h": 12},
                 "GPT-3": {"B": 1, "T": 2048, "d_model": 12288, "h": 96}})


# Quizzes

def direct_view_quiz() -> Quiz:
    return Quiz(
        "x has shape [B, T, d_model]. Which line gives head i the channels i d_k to (i + 1) d_k - 1 of every token?",
        Option("x.view(B, h, T, d_k)",
               "view reads the memory in order, and in memory whole tokens follow one another. So head 0 would get the first "
               "T d_k numbers, not the first d_k channels of every token."),
        Option("x.view(B, T, h, d_k).transpose(1, 2)",
               "view cuts the last axis, where the channels are; transpose then brings the head axis in front of time.", right=True),
        Option("both lines give the same tensor",
               "They give the same shape. They give the same numbers only when T = 1 or h = 1."),
        Option("neither: numbers have to be copied first",
               "No number has to move. New strides over the same storage are enough."))


def skipped_transpose_quiz() -> Quiz:
    return Quiz(
        "You forget transpose(1, 2) and multiply q @ k.mT with q, k of shape [B, T, h, d_k]. What happens?",
        Option("torch raises an error about shapes",
               "The last two axes, [h, d_k] and [d_k, h], fit. torch has no reason to complain."),
        Option("it runs, and compares the heads inside each token",
               "The product works on the last two axes, and those are head and channel: [B, T, h, h]. Tokens never meet.", right=True),
        Option("it runs, gives the right scores, and is only slower",
               "The result has shape [B, T, h, h], not [B, h, T, T]. It holds other numbers."),
        Option("it runs: B and T are only a batch, so tokens are still compared",
               "As a batch axis, T is what is not compared: each token gets a product of its own, over its own heads."))


def copy_quiz() -> Quiz:
    return Quiz(
        "On the CPU, q and k are transposed views [B, h, T, d_k], all sizes above 1. How often does q @ k.mT copy one of them?",
        Option("never: views and products only read",
               "The product of two batches wants one batch axis with one stride. [B, h] has two strides that do not fold into one."),
        Option("once, because of k.mT",
               "mT only exchanges two strides, and the product copes with that. What it cannot use is the pair of batch strides."),
        Option("twice: q and k",
               "To fold B and h into one axis, stride_B must equal h stride_h. Here it is T d_model against d_model, for both.", right=True),
        Option("it depends on the numbers in them",
               "The numbers play no part in it. Shapes and strides decide."))
