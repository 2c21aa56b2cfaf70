"""Trained heads: the model, the explorers of its maps and of silenced heads, what was measured, the quizzes."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch

import multihead as mh
from multihead import weights
from multihead_lessons import svg
from multihead_lessons.explorer import Choice, Explorer, Slider, Text
from multihead_lessons.quiz import Option, Quiz
from multihead_lessons.recorded import Measured
from multihead_lessons.style import HEAD_COLORS, WEIGHT_COLORS
from multihead_lessons.svg import Picture

LAYERS, HEADS = 6, 12
EXAMPLES = ("The cat chased a small mouse across the kitchen floor.", "Anna lost her keys, so she called her brother.",
            "A dog saw another dog, and the other dog ran.")


class NoModel:
    """Stands where the model would be, is false, and says what to do when it is asked for something."""

    def __init__(self, sentence: object):
        self._sentence = str(sentence)

    def __bool__(self) -> bool:
        return False

    def __call__(self, *args: object, **options: object) -> None:
        raise mh.NoWeights(self._sentence)

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):  # Python and IPython ask for these of themselves
            raise AttributeError(name)
        raise mh.NoWeights(self._sentence)


def open_model(path: str | None = None) -> tuple[mh.Encoder | NoModel, Measured]:
    """The model and `measured`. Where the weights are missing it says what to do, and a NoModel stands in.

    path: a file with the weights, if they are not installed
    """
    try:
        file = weights.find_weights(path)
        model = mh.load_trained(file)
    except mh.NoWeights as sentence:
        print(f"{sentence} Until then this page shows recorded numbers and pictures.")
        return NoModel(sentence), Measured(False)
    print(f"all-MiniLM-L6-v2 is here: {LAYERS} layers of {HEADS} heads.")
    return model, Measured(True, recorded=weights.known_file(file) is weights.LIGHT)


def name_of(layer: int, head: int) -> str:
    """`1-3` is head 3 of layer 1: heads and layers are numbered from 1 in the text and from 0 in the code."""
    return f"{layer + 1}-{head + 1}"


def best_of(table: torch.Tensor) -> tuple[int, int]:
    """(layer, head) of the largest number in a table [6, 12]."""
    return divmod(int(table.argmax()), HEADS)


# A plot's frame

@dataclass(frozen=True)
class Frame:
    """A rectangle of pixels with a range of numbers along each side; log: whether y is logarithmic."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies, in pixels."""
        scale = math.log if self.log else float
        low, high = map(scale, self.y)
        return (self.left + self.width * (x - self.x[0]) / (self.x[1] - self.x[0]),
                self.top + self.height * (high - scale(y)) / (high - low))

    def axes(self, x_ticks: Sequence[float], y_ticks: Sequence[float], x_name: str, y_name: str) -> list[str]:
        """Rule, ticks and names; the name of y stands above the frame."""
        low, right = self.top + self.height, self.left + self.width
        parts = [svg.line(self.left, low, right, low, stroke=svg.MUTED),
                 svg.text(right, low + 36, x_name, size=13, anchor="end")]
        if y_name:
            parts.append(svg.text(self.left, self.top - 14, y_name, size=13))
        for tick in x_ticks:
            x, _ = self.at(tick, self.y[0])
            parts += [svg.line(x, low, x, low + 4, stroke=svg.MUTED),
                      svg.text(x, low + 17, f"{tick:g}", size=12, anchor="middle")]
        for tick in y_ticks:
            _, y = self.at(self.x[0], tick)
            parts += [svg.line(self.left, y, right, y, stroke=svg.RULE, stroke_width=0.6),
                      svg.text(self.left - 6, y + 4, f"{tick:g}", size=12, anchor="end")]
        return parts


def _dot(x: float, y: float, radius: float = 4, **look: object) -> str:
    return svg.tag("circle", cx=float(x), cy=float(y), r=float(radius), **look)


def _diamond(x: float, y: float, radius: float = 5.5, **look: object) -> str:
    number = svg.number
    return svg.path(f"M{number(x)} {number(y - radius)}L{number(x + radius)} {number(y)}L{number(x)} {number(y + radius)}"
                    f"L{number(x - radius)} {number(y)}z", **look)


def _weight_scale(left: float, y: float) -> list[str]:
    """The color scale of weights, its words on the baseline y."""
    return [svg.text(left, y, "weight 0"), svg.text(left + 64 + 7 * len(WEIGHT_COLORS) + 6, y, "1"),
            *(svg.rect(left + 62 + 7 * i, y - 11, 7, 13, fill=color, shape_rendering="crispEdges")
              for i, color in enumerate(WEIGHT_COLORS))]


# The explorer of heads

WIDTH, HEIGHT = 840, 420
MOST_TOKENS = 20
LONGEST_LABEL = 11  # characters
ROWS_TOP, ROWS_HEIGHT = 70, 310
MAP_LEFT = 112             # left edge of the map
QUERIES, KEYS = 560, 716   # where lines start, beside the words that look, and end, beside those looked at
Maps = Callable[[str], torch.Tensor]


def draw_head(sentence: str, layer: int, head: int, token: int, maps: Maps) -> Picture:
    """The map of one head on one sentence, and from each token lines to where it looks."""
    pieces = [piece if len(piece) <= LONGEST_LABEL else piece[:LONGEST_LABEL - 1] + "…"
              for piece in mh.WordPiece()(sentence).pieces]
    table = maps(sentence)[layer - 1, head - 1].tolist()  # [T, T]
    chosen, pitch = token - 1, min(ROWS_HEIGHT / len(pieces), 24)
    size, low = pitch * len(pieces), HEIGHT - 8
    frame = (MAP_LEFT - 1, ROWS_TOP + pitch * chosen - 1, size + 2, pitch + 2)
    title = f"head {layer}-{head}: token {token} of {len(pieces)}, “{pieces[chosen]}”"
    parts = [svg.text(QUERIES - 76, 20, title, size=14, font_weight="600"),
             svg.heatmap(MAP_LEFT, ROWS_TOP, pitch, table, WEIGHT_COLORS),
             svg.rect(*frame, stroke=svg.PAPER, stroke_width=5),
             svg.rect(*frame, stroke=HEAD_COLORS[3], stroke_width=2.5)]
    for row, piece in enumerate(pieces):
        weight = "700" if row == chosen else None
        y = ROWS_TOP + pitch * (row + 0.5)
        place = f"translate({svg.number(MAP_LEFT + pitch * (row + 0.5) + 4)} {ROWS_TOP - 6}) rotate(-55)"
        parts += [svg.text(MAP_LEFT - 8, y + 4, piece, size=12, anchor="end", font_weight=weight),
                  svg.text(0, 0, piece, size=12, transform=place),
                  svg.text(QUERIES - 8, y + 4, piece, size=12, anchor="end", font_weight=weight),
                  svg.text(KEYS + 8, y + 4, piece, size=12)]
    parts += [*_lines(table, chosen, pitch), *_weight_scale(MAP_LEFT, low),
              svg.text(QUERIES - 76, low, "from a token to where it looks; thick line, large weight", size=12,
                       fill=svg.MUTED)]
    alt = (f"Head {layer}-{head} on the tokens {' '.join(pieces)}: a map of {len(pieces)} by {len(pieces)} weights, "
           "and lines from each token to the tokens that it attends to.")
    status = _head_status(table, layer, head, chosen, pieces)
    return Picture(svg.svg(WIDTH, HEIGHT, *parts, alt=alt), alt, status, WIDTH)


def _lines(table: Sequence[Sequence[float]], chosen: int, pitch: float) -> list[str]:
    """A line for each weight that can be seen, those of the chosen token last and in color."""
    parts = []
    for row in sorted(range(len(table)), key=lambda row: row == chosen):
        color, strength = (HEAD_COLORS[3], 1) if row == chosen else (svg.MUTED, 0.45)
        start = ROWS_TOP + pitch * (row + 0.5)
        parts += [svg.line(QUERIES, start, KEYS, ROWS_TOP + pitch * (column + 0.5), stroke=color,
                           stroke_width=0.4 + 5 * weight, stroke_opacity=round(strength * min(1, 0.25 + weight), 2))
                  for column, weight in enumerate(table[row]) if weight >= 0.05]
    return parts


def _head_status(table: Sequence[Sequence[float]], layer: int, head: int, chosen: int, pieces: Sequence[str]) -> str:
    row, T = table[chosen], len(pieces)
    most = max(range(T), key=row.__getitem__)
    words = range(1, T - 1)

    def mean(target: Callable[[int], int]) -> float:
        return sum(table[i][target(i)] for i in words) / len(words)
    return (f"Head {layer}-{head}: token {chosen + 1}, “{pieces[chosen]}”, gives most weight, {row[most]:.2f}, to "
            f"token {most + 1}, “{pieces[most]}”. Mean over the words: {mean(lambda i: i - 1):.2f} to the token before, "
            f"{mean(lambda i: i + 1):.2f} to the next, {mean(lambda i: 0):.2f} to [CLS]; spread evenly it would be "
            f"{1 / T:.2f} each.")


def heads_explorer(model: mh.Encoder | NoModel, examples: Mapping[str, torch.Tensor]) -> Explorer:
    """Every head on any sentence; without a model on the examples' alone, whose maps [6, 12, T, T] are given."""
    tokenize = mh.WordPiece()

    @lru_cache(maxsize=64)
    def maps(sentence: str) -> torch.Tensor:
        if sentence in examples:
            return examples[sentence]
        return model(torch.tensor([tokenize(sentence).ids]))[1][:, 0]

    def refuse(sentence: str, _: object) -> str | None:
        if not model and sentence not in examples:
            return ("Without the weights only the recorded sentences can be shown; choose a preset. To type your "
                    f"own, run `%{weights.INSTALL}` in a cell and restart the kernel.")
        count = len(tokenize(sentence).pieces)
        if count <= 2:
            return "There is no word to read: type a sentence."
        if count > MOST_TOKENS:
            return (f"This sentence has {count} tokens, with [CLS], [SEP] and pieces of words, and the picture has room "
                    f"for {MOST_TOKENS}: type a shorter one.")
        return None

    first, second, third = examples
    return Explorer(
        partial(draw_head, maps=maps),
        Text("sentence", first, examples=list(examples), refuse=refuse),
        Slider("layer", range(1, LAYERS + 1), 4), Slider("head", range(1, HEADS + 1), 2),
        Slider("token", lambda state: range(1, len(tokenize(state["sentence"]).pieces) + 1), 5),
        presets={name: dict(zip(("sentence", "layer", "head", "token"), state)) for name, state in {
            "1-3": (first, 1, 3, 5), "2-9": (first, 2, 9, 5), "3-1, noun": (first, 3, 1, 7),
            "4-2, pronoun": (second, 4, 2, 8), "5-6": (second, 5, 6, 8),
            "3-10, “the” twice": (first, 3, 10, 9), "3-10, “dog” thrice": (third, 3, 10, 11)}.items()})


# What 72 heads do on the forty sentences

def head_grids(panels: Mapping[str, torch.Tensor]) -> Picture:
    """For each panel a table [6, 12] of weights, one cell for each head, with its best head named."""
    cell, right, down, width = 25, 420, 214, 800
    height = 16 + down * math.ceil(len(panels) / 2)
    parts, found = [], []
    for number, (name, table) in enumerate(panels.items()):
        left, top = 60 + right * (number % 2), 50 + down * (number // 2)
        layer, head = best_of(table)
        best = f"{name_of(layer, head)} with {table[layer, head]:.2f}"
        found.append(f"{name}, {best}")
        parts += [svg.text(left, top - 30, f"{name}: {best}", size=14, font_weight="600"),
                  svg.heatmap(left, top, cell, table.tolist(), WEIGHT_COLORS),
                  svg.rect(left + cell * head, top + cell * layer, cell, cell, stroke=svg.PAPER, stroke_width=5),
                  svg.rect(left + cell * head, top + cell * layer, cell, cell, stroke=HEAD_COLORS[3], stroke_width=2.5),
                  *(svg.text(left + cell * (i + 0.5), top - 7, i + 1, size=12, anchor="middle") for i in range(HEADS)),
                  *(svg.text(left - 8, top + cell * (i + 0.5) + 4, i + 1, size=12, anchor="end") for i in range(LAYERS)),
                  svg.text(left - 50, top + 20, "layer", size=12, fill=svg.MUTED),
                  svg.text(left - 50, top - 7, "head", size=12, fill=svg.MUTED)]
    parts += _weight_scale(60, height - 8)
    alt = ("Tables of 6 layers by 12 heads; color is the mean weight that words give to a target. Best heads: "
           f"{'; '.join(found)}.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Seventy-two heads, a few specialists.", width)


def sink_scatter(first: torch.Tensor, length: torch.Tensor) -> Picture:
    """Each head's weight on [CLS] against the length of what it would write from there; both [6, 12]."""
    width, height = 640, 330
    frame = Frame(60, 50, 540, 220, (0, 1), (0, 1))
    parts = frame.axes((0, 0.25, 0.5, 0.75, 1), (0, 0.25, 0.5, 0.75, 1), "mean weight that words give to [CLS]",
                       "length of the vector from [CLS], as a share of that from a word")
    x, y = frame.at(0.5, 1)
    parts += [svg.line(x, y, x, frame.top + frame.height, stroke=HEAD_COLORS[3], stroke_dasharray="5 4",
                       stroke_width=1.5),
              svg.text(x + 8, y + 14, "rests on [CLS]", size=12)]
    for weight, share in zip(first.flatten().tolist(), length.flatten().tolist()):
        rests = weight > 0.5
        shape = _dot if rests else _diamond
        parts.append(shape(*frame.at(weight, share), fill=HEAD_COLORS[0] if rests else HEAD_COLORS[2], fill_opacity=0.75))
    sinks = int((first > 0.5).sum())
    alt = (f"A point for each of 72 heads. {sinks} heads give more than half of their weight to [CLS], and the vectors "
           f"that these write from there are short: at most {float(length[first > 0.5].max()):.2f} of a word's.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Where much weight rests, little is written.", width)


def relation_plot(rows: Sequence[tuple[str, str, int, int, tuple[float, float], float, float]]) -> Picture:
    """For each relation (name, heads, right, n, interval, share of best offset, share of untrained model), a line."""
    left, pitch, width = 390, 34, 840
    height = 66 + pitch * len(rows) + 40
    frame = Frame(left, 56, 420, pitch * len(rows), (0, 1), (0, len(rows)))
    parts = [*frame.axes((0, 0.25, 0.5, 0.75, 1), (), "share of the links found", ""),
             svg.text(220, 50, "head", size=12, fill=svg.MUTED)]
    for number, (name, heads, right, n, (low, high), offset, untrained) in enumerate(rows):
        y = 56 + pitch * (number + 0.5)
        at = partial(lambda y, share: (frame.at(share, 0)[0], y), y)
        parts += [svg.text(14, y + 4, name, size=13), svg.text(220, y + 4, heads, size=13),
                  svg.text(left - 20, y + 4, f"{right} of {n}", size=13, anchor="end"),
                  svg.line(left, y, left + frame.width, y, stroke=svg.RULE, stroke_width=0.6),
                  svg.line(*at(low), *at(high), stroke=HEAD_COLORS[0], stroke_width=4, stroke_opacity=0.55),
                  _dot(*at(right / n), 6, fill=HEAD_COLORS[0]),
                  _diamond(*at(offset), 6.5, fill="none", stroke=HEAD_COLORS[3], stroke_width=2.5),
                  svg.rect(at(untrained)[0] - 1.5, y - 8, 3, 16, fill=svg.MUTED)]
    parts += [_dot(24, 20, 6, fill=HEAD_COLORS[0]),
              svg.text(38, 24, "head chosen on the other half, with 95 % interval", size=12),
              _diamond(392, 20, 6.5, fill="none", stroke=HEAD_COLORS[3], stroke_width=2.5),
              svg.text(406, 24, "best fixed offset", size=12),
              svg.rect(548, 12, 3, 16, fill=svg.MUTED), svg.text(560, 24, "untrained model", size=12)]
    told = "; ".join(f"{name}, {heads}, {right} of {n}, offset {offset:.2f}"
                     for name, heads, right, n, _, offset, _ in rows)
    alt = ("Share of links that a head finds, with interval, against the best fixed offset and an untrained model: "
           f"{told}.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Some heads beat the offset, some do not.", width)


# What is lost when heads are silenced

NAMED = ((0, 2), (1, 8), (2, 0), (2, 9))  # 1-3, 2-9, 3-1 and 3-10, met before


def importance_scatter(crispness: torch.Tensor, change: torch.Tensor) -> Picture:
    """How sharp a head's pattern is against how far the embedding moves without it; both [6, 12]."""
    width, height = 720, 380
    frame = Frame(70, 50, 600, 264, (0, 1), (0.0002, 0.08), log=True)
    parts = frame.axes((0, 0.25, 0.5, 0.75, 1), (0.0005, 0.001, 0.005, 0.01, 0.05), "crispness: 0 spread evenly, 1 all weight on one token",
                       "how far the embedding moves, 1 − cosine (log scale)")
    named = (*NAMED, best_of(change))
    for layer in range(LAYERS):
        last = layer == LAYERS - 1
        for head in range(HEADS):
            x, y = frame.at(float(crispness[layer, head]), float(change[layer, head]))
            look = {"fill": HEAD_COLORS[3 if last else 0], "fill_opacity": 0.7}
            parts.append(_diamond(x, y, **look) if last else _dot(x, y, **look))
            if (layer, head) in named:
                parts += [_dot(x, y, 8, fill="none", stroke=svg.INK, stroke_width=1.5),
                          svg.text(x, y - 13, name_of(layer, head), size=13, font_weight="700", anchor="middle",
                                   stroke=svg.PAPER, stroke_width=4, paint_order="stroke")]
    parts += [_dot(500, 20, fill=HEAD_COLORS[0]), svg.text(512, 24, "layers 1 to 5", size=12),
              _diamond(620, 20, fill=HEAD_COLORS[3]), svg.text(632, 24, "layer 6", size=12)]
    rank = 1 + int((change > change[0, 2]).sum())
    top = sum(int(number) >= HEADS * (LAYERS - 1) for number in change.flatten().topk(10).indices)
    alt = (f"A point for each of 72 heads. Head 1-3 has the crispest pattern and is number {rank} in how far the "
           f"embedding moves without it. Of the ten heads that move it most, {top} are in layer 6.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "The crispest head is not the most important one.", width)


ORDERS = ("least important first", "at random", "most important first")
STEP = 6  # heads that are silenced at once
DRAWS = 5  # random orders, over which the mean is taken


def pruning_orders(change: torch.Tensor) -> list[list[list[tuple[int, int]]]]:
    """For each of ORDERS the 72 heads in one order or several; change [6, 12]: how far the embedding moves without a head."""
    generator = torch.Generator().manual_seed(0)
    rising = change.flatten().argsort(stable=True)
    random = [torch.randperm(LAYERS * HEADS, generator=generator) for _ in range(DRAWS)]
    return [[[divmod(number, HEADS) for number in order.tolist()] for order in orders]
            for orders in ([rising], random, [rising.flip(0)])]


def draw_pruning(order: str, silenced: int, orders: Sequence[Sequence[Sequence[tuple[int, int]]]],
                 kept: torch.Tensor) -> Picture:
    """Which heads are silent, and what cosine with the full embedding is left; kept [3, 13]."""
    width, height, cell = 820, 330, 24
    chosen = ORDERS.index(order)
    off = set(orders[chosen][0][:silenced])
    parts = [svg.text(50, 20, f"{silenced} of 72 heads silent", size=14, font_weight="600")]
    for layer in range(LAYERS):
        parts.append(svg.text(42, 62 + cell * (layer + 0.5) + 4, layer + 1, size=12, anchor="end"))
        for head in range(HEADS):
            x, y = 50 + cell * head, 62 + cell * layer
            silent = (layer, head) in off
            parts.append(svg.rect(x + 1, y + 1, cell - 2, cell - 2, fill="none" if silent else HEAD_COLORS[0],
                                  stroke=svg.MUTED))
            if silent:
                parts.append(svg.path(f"M{x + 6} {y + 6}l12 12m0 -12l-12 12", stroke=svg.MUTED, stroke_width=1.5))
    parts += [*(svg.text(50 + cell * (head + 0.5), 54, head + 1, size=12, anchor="middle") for head in range(HEADS)),
              svg.text(50, 62 + cell * LAYERS + 24, "row: layer, column: head, crossed: silent", size=12, fill=svg.MUTED)]
    frame = Frame(440, 50, 340, 216, (0, 72), (0.4, 1))
    parts += frame.axes((0, 24, 48, 72), (0.4, 0.6, 0.8, 1), "heads silenced", "cosine with the full embedding")
    for number, (name, row, dash) in enumerate(zip(ORDERS, kept.tolist(), (None, "2 4", "8 4"))):
        passed = row[:silenced // STEP + 1]  # what lies ahead is for the reader to guess
        points = "L".join(" ".join(map(svg.number, frame.at(STEP * i, value))) for i, value in enumerate(passed))
        look = {"stroke": svg.INK if number == chosen else svg.MUTED, "stroke_dasharray": dash,
                "stroke_width": 3 if number == chosen else 1.5}
        y = 250 + 22 * number
        parts += [svg.path(f"M{points}", **look), svg.line(50, y, 90, y, **look),
                  svg.text(100, y + 4, name + (f" (mean of {DRAWS} orders, one shown)" if number == 1 else ""), size=12)]
    values = kept[:, silenced // STEP].tolist()
    parts.append(_dot(*frame.at(silenced, values[chosen]), 7, fill=svg.INK, stroke=svg.PAPER, stroke_width=2))
    others = ", ".join(f"{value:.2f} {name}" for name, value in zip(ORDERS, values) if name != order)
    alt = (f"A grid of 72 heads with {silenced} crossed out, {order}, and three curves of the cosine between the "
           "embedding without them and the full one, against the number of silent heads, up to this number.")
    status = (f"{silenced} of 72 heads silent, {order}: the embedding keeps a cosine of {values[chosen]:.2f} with that of "
              f"the whole model. In the other orders: {others}.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, status, width)


def pruning_explorer(change: torch.Tensor, kept: torch.Tensor) -> Explorer:
    """Silence more and more heads in one of three orders."""
    return Explorer(partial(draw_pruning, orders=pruning_orders(change), kept=kept),
                    Choice("order", ORDERS, ORDERS[0]),
                    Slider("silenced", range(0, LAYERS * HEADS + 1, STEP), 12, label="silent"))


# The subspaces that heads write to

def overlap_plot(written: torch.Tensor, random: torch.Tensor) -> Picture:
    """Overlaps of the 66 pairs of heads in each layer, [6, 66], against those of random subspaces, [66]."""
    width, height = 640, 340
    frame = Frame(60, 60, 540, 220, (0.5, 6.5), (0, 0.45))
    parts = frame.axes(range(1, LAYERS + 1), (0, 0.1, 0.2, 0.3, 0.4), "layer",
                       "overlap of what two heads write: 0 orthogonal, 1 the same")
    _, top = frame.at(1, float(random.max()))
    _, bottom = frame.at(1, float(random.min()))
    parts += [svg.rect(frame.left, top, frame.width, bottom - top, fill=HEAD_COLORS[3], fill_opacity=0.35),
              svg.rect(392, 14, 18, 12, fill=HEAD_COLORS[3], fill_opacity=0.35),
              svg.text(418, 24, "random subspaces, all pairs", size=12),
              svg.line(60, 20, 78, 20, stroke=HEAD_COLORS[0], stroke_opacity=0.35, stroke_width=1.5),
              svg.text(86, 24, "a pair of heads", size=12),
              _dot(214, 20, 6, fill=HEAD_COLORS[0]), svg.text(228, 24, "mean of a layer", size=12)]
    for layer, overlaps in enumerate(written.tolist(), 1):
        for x, y in (frame.at(layer, value) for value in overlaps):
            parts.append(svg.line(x - 9, y, x + 9, y, stroke=HEAD_COLORS[0], stroke_opacity=0.35, stroke_width=1.5))
        x, y = frame.at(layer, sum(overlaps) / len(overlaps))
        parts += [_dot(x, y, 6, fill=HEAD_COLORS[0], stroke=svg.PAPER, stroke_width=1.5),
                  svg.text(x + 16, y + 4, f"{sum(overlaps) / len(overlaps):.2f}", size=12)]
    means = ", ".join(f"{float(row.mean()):.2f}" for row in written)
    alt = (f"For each of six layers the overlaps of 66 pairs of heads; their means are {means}. Random subspaces lie "
           f"between {float(random.min()):.2f} and {float(random.max()):.2f}.")
    status = "On average more overlap than chance in five layers, a little less in the sixth."
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, status, width)


# Quizzes

def shuffled_quiz() -> Quiz:
    return Quiz(
        "Head 1-3 gives all its weight to the token before. The words of the sentence are now shuffled. What does it do?",
        Option("it follows the old order: each word still finds the word that used to stand before it",
               "It would have to recognize the words. The next cell shows that it does not even look at which "
               "words they are."),
        Option("it gives all its weight to the token that now stands before",
               "It reads positions. Which words stand there makes no difference, and without position "
               "embeddings the pattern is gone.", right=True),
        Option("its weight spreads out, since the sentence makes no sense any more",
               "That would be a head that uses the meaning. Layer 1 sees a word and a position, and this head "
               "uses the position."),
        Option("all of its weight goes to [CLS], the first token",
               "Why give up? What it looks for is still there: every word has a token before it."))


def sink_quiz() -> Quiz:
    return Quiz(
        "How many of the 72 heads give more than half of their weight, on average, to [CLS], which is no word at all?",
        Option("none: the sentence is about its words",
               "A softmax row has to put its weight somewhere, even where a head has nothing to say about a "
               "word."),
        Option("5 or 6, about one in each layer",
               "It is a far more common habit than that, and most common in the middle layers."),
        Option("32, nearly half of them",
               "And it does little harm, as you will see: from [CLS] these heads write almost nothing.", right=True),
        Option("all 72: [CLS] stands for the sentence",
               "In this model the embedding is the mean over all tokens. And the sharpest head, 1-3, looks at "
               "[CLS] from the first word alone."))


def ablation_quiz() -> Quiz:
    return Quiz(
        "Of all heads 1-3 has the crispest pattern. You silence it and embed ten sentences. How far do the embeddings move?",
        Option("further than without any other head: a perfect pattern must be important",
               "How sharp a pattern is says nothing about how much the rest of the model uses what the head "
               "writes."),
        Option("not at all: the cosine stays exactly 1",
               "Its output enters the sum like every other head's, so leaving it out changes the numbers."),
        Option("a little: about as far as without a head from the middle of the 72",
               "The heads that move the embedding most have blurred patterns and sit in layer 6.", right=True),
        Option("so far that the embedding is as different as that of another sentence",
               "Two different sentences have a cosine below 0.1 on average. No single head moves the embedding "
               "anywhere near that."))


def direct_sum_quiz() -> Quiz:
    return Quiz(
        "Each layer has twelve heads that write to subspaces of dimension 32 in ℝ³⁸⁴. What is true of them after training?",
        Option("they are orthogonal: each head has its own directions",
               "Nothing asks for that, and it does not happen. In five layers they overlap more than random "
               "subspaces do."),
        Option("they are a direct sum: together they span ℝ³⁸⁴, but they are not orthogonal",
               "All six stacked matrices have rank 384. Yet in one layer two heads come nearer than 20 degrees to "
               "each other.", right=True),
        Option("neither: heads learn the same thing, so the rank drops below 384",
               "They overlap, but no head's subspace shares a direction with the sum of the others."),
        Option("that cannot be said: the subspaces differ for every sentence",
               "The patterns do. The subspaces that heads write to are spanned by rows of W_O, and these are "
               "fixed weights."))
