"""The poster of lesson 00: multi-head attention as four parallel lanes, each with a pattern computed here.

All positions are CSS pixels on a page of 760 x 760, y pointing down. At 96 pixels per inch, a point in
Matplotlib is then a point at the size shown.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path as Curve

from multihead.attention import attention
from multihead_lessons.style import HEAD_COLORS, NAVY, PARCHMENT

SENTENCE = ("The", "sailors", "say", "their", "boat", "needs", "new", "sails")
D_K = 8  # features per head: enough for one per position
SHARPNESS = 4.0  # length of a feature: one match scores 4 * 4 / sqrt(8) = 5.7, where no match scores 0


@dataclass(frozen=True)
class Lane:
    """One head's job: the features that words look for (queries) and the features that words have (keys)."""

    name: str
    job: str
    looks_for: dict[str, tuple[str, ...]]
    has: dict[str, tuple[str, ...]]


def _positions():
    """Every word has its own position and looks for the positions next to it."""
    has = {word: (f"position {i}",) for i, word in enumerate(SENTENCE)}
    looks_for = {
        word: tuple(f"position {j}" for j in (i - 1, i + 1) if 0 <= j < len(SENTENCE))
        for i, word in enumerate(SENTENCE)
    }
    return looks_for, has


_SUBJECTS = {"sailors": ("plural subject",), "boat": ("singular subject",)}
_VERBS = {"say": ("plural subject",), "needs": ("singular subject",)}
_SAILING = {"sailors": ("sailing",), "boat": ("sailing",), "sails": ("sailing",)}

LANES = (
    Lane("Syntactic\nrole", "subject-verb\nagreement", _VERBS, _SUBJECTS),
    Lane("Positional\nproximity", "immediately\nadjacent words", *_positions()),
    Lane("Coreference", "pronouns to\nantecedents", {"their": ("the crew",)}, {"sailors": ("the crew",)}),
    Lane("Semantic\ntopic", "associated\nnouns", _SAILING, _SAILING),
)

HEADLINE = "Multi-Head Attention: Parallel Semantic Lenses"
POSTER_ALT = (
    f"Poster on parchment, read from top to bottom. Title: {HEADLINE}. "
    "Subtitle: Splitting embedding dimension D into h independent subspaces of size d_k = D/h. "
    "The input X, L by D with L = 8, holds the sentence “The sailors say their boat needs new sails”. "
    "From X, arrows fan out through the learned matrices W_i^Q, W_i^K, W_i^V, for i = 1 to h, here h = 4, "
    "into four parallel lanes. Each lane lists the sentence twice, as queries on the left and as keys on the "
    "right; the thicker the line between two words, the larger the weight. "
    "Head 1, blue, syntactic role, subject-verb agreement: “say” looks at “sailors”, “needs” at “boat”. "
    "Head 2, teal, positional proximity, immediately adjacent words: every word looks at its neighbors. "
    "Head 3, gold, coreference, pronouns to antecedents: “their” looks at “sailors”. "
    "Head 4, coral, semantic topic, associated nouns: “sailors”, “boat” and “sails” share their weight among "
    "themselves. A word that finds no match looks everywhere equally. "
    "The weights are softmax(Q K^T / sqrt(d_k)), computed in code from hand-built one-hot features of this "
    "sentence; no training: an illustration. "
    "Below, arrows lead from the four outputs head_i, each L by D/h, into the concatenation "
    "Concat(head_1, ..., head_h), L by D; then come the product with W^O, D by D, and the output, L by D. "
    "At the foot: MHA(Q, K, V) = Concat(head_1, ..., head_h) W^O. Allows simultaneous attention to "
    "information from different representation subspaces."
)


def lane_patterns():
    """Attention weights of the four lanes: a list of [L, L] tensors in the order of LANES.

    Queries and keys are sums of one-hot feature vectors; a word without a feature has the zero vector.
    Each row sums to 1; a query that matches no key scores 0 everywhere and spreads its weight evenly.
    """
    patterns = []
    for lane in LANES:
        names = sorted({name for features in lane.has.values() for name in features})
        q = _vectors(lane.looks_for, names)  # [L, d_k]
        k = _vectors(lane.has, names)  # [L, d_k]
        _, weights = attention(q, k, k)  # [L, L]
        patterns.append(weights)
    return patterns


def _vectors(features, names):
    """[L, d_k]: the sum of each word's one-hot features, one channel per name, times SHARPNESS."""
    x = torch.zeros(len(SENTENCE), D_K)
    for word, its_features in features.items():
        for name in its_features:
            x[SENTENCE.index(word), names.index(name)] = SHARPNESS
    return x


# Sizes in points. Matplotlib sets sub- and superscripts at 0.7 of the size, so MATH keeps them above 9 pt.
SMALL, BODY, MATH, TITLE = 9, 10, 13, 19.5
SANS, SERIF = "DejaVu Sans", "DejaVu Serif"
INK, MUTED, CARD, PANEL = "#2d2a26", "#665d4e", "#fffaf0", "#f5e4c3"

PAGE = 760
CENTER = PAGE / 2
LANE_WIDTH, LANE_GAP = 172, 12
LANE_LEFTS = tuple(CENTER + (i - 2) * LANE_WIDTH + (i - 1.5) * LANE_GAP for i in range(4))
X_TOP, PORT_TOP, CARD_TOP, CARD_BOTTOM = 86, 177, 215, 480
CONCAT_TOP, W_O_TOP, OUT_TOP, FOOT_TOP = 526, 573, 620, 670
ROW = 33  # height of a box in the pipeline


def poster():
    """The poster as a square Matplotlib figure of 760 / 96 inches."""
    figure = Figure(figsize=(PAGE / 96, PAGE / 96), dpi=96, facecolor=PARCHMENT)
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, PAGE), ylim=(PAGE, 0))
    ax.axis("off")
    border = Rectangle((4, 4), PAGE - 8, PAGE - 8, fill=False, edgecolor=NAVY, linewidth=6)  # 6 pt = 8 px
    ax.add_patch(border)
    _heading(ax)
    _input(ax)
    for i, (lane, pattern) in enumerate(zip(LANES, lane_patterns())):
        _lane(ax, i, lane, pattern)
    _fusion(ax)
    _notes(ax)
    _foot(ax)
    return figure


def save_poster(folder):
    """Write poster.png (2280 x 2280 pixels) and poster.svg into folder; return their paths as a list.

    The same versions of the libraries write the same bytes. The SVG's letters are paths, so it needs no font.
    """
    png, svg = Path(folder) / "poster.png", Path(folder) / "poster.svg"
    about = {"Title": HEADLINE, "Description": POSTER_ALT}
    with matplotlib.rc_context({"svg.hashsalt": "poster", "svg.fonttype": "path"}):
        poster().savefig(png, dpi=3 * 96, metadata=about)
        poster().savefig(svg, metadata=about | {"Date": None})
    return [png, svg]


def _heading(ax):
    subtitle = r"Splitting embedding dimension $D$ into $h$ independent subspaces of size $d_k = D/h$."
    _text(ax, CENTER, 38, HEADLINE, TITLE, NAVY, family=SERIF, weight="bold")
    _text(ax, CENTER, 67, subtitle, MATH, INK, family=SERIF)


def _input(ax):
    """X with the sentence, one cell per token, and what the arrows below it pass through."""
    cell = 62
    left, right = CENTER - 4 * cell, CENTER + 4 * cell
    _text(ax, left - 12, X_TOP + ROW / 2, r"$X \in \mathbb{R}^{L \times D}$", MATH, NAVY, ha="right")
    _text(ax, right + 12, X_TOP + ROW / 2, f"$L = {len(SENTENCE)}$", MATH, NAVY, ha="left", family=SERIF)
    for i, word in enumerate(SENTENCE):
        _cell(ax, left + i * cell, X_TOP, cell, facecolor=CARD, edgecolor=NAVY)
        _text(ax, left + (i + 0.5) * cell, X_TOP + ROW / 2, word, BODY, NAVY)
    _text(ax, 22, 134, r"learned $W_i^Q,\ W_i^K,\ W_i^V$", MATH, INK, ha="left", family=SERIF)
    _text(ax, PAGE - 22, 134, r"$i = 1, \ldots, h$  (here $h = 4$)", MATH, INK, ha="right", family=SERIF)


def _lane(ax, i, lane, pattern):
    """One head: arrows from X, three projections, the card with its pattern, the arrow to Concat."""
    left, color = LANE_LEFTS[i], HEAD_COLORS[i]
    center = left + LANE_WIDTH / 2
    for j, kind in enumerate("QKV"):
        x = center + (j - 1) * 56
        _flow(ax, (CENTER, X_TOP + ROW), (x, PORT_TOP), color, linewidth=1)
        _box(ax, x - 23, PORT_TOP, 46, 28, facecolor=_tint(color, 0.2), edgecolor=color)
        _text(ax, x, PORT_TOP + 14, f"$W_{i + 1}^{kind}$", MATH, _shade(color))
        _flow(ax, (x, PORT_TOP + 28), (x, CARD_TOP), color, linewidth=1)

    height, middle = CARD_BOTTOM - CARD_TOP, CARD_TOP + 28
    _box(ax, left, CARD_TOP, LANE_WIDTH, height, facecolor=CARD, edgecolor=color, linewidth=1.5)
    ax.add_patch(Circle((left + 26, middle), 15, facecolor=_shade(color), edgecolor="none"))
    _text(ax, left + 26, middle, str(i + 1), 12, "white", weight="bold")
    _text(ax, left + 50, middle, lane.name, 11, _shade(color), ha="left", weight="bold")
    _text(ax, left + 50, CARD_TOP + 67, lane.job, SMALL, INK, ha="left")
    _pattern(ax, left, CARD_TOP + 98, pattern, color)
    head = rf"$\mathrm{{head}}_{i + 1} \in \mathbb{{R}}^{{L \times D/h}}$"
    _text(ax, center, CARD_BOTTOM - 16, head, MATH, _shade(color))
    _flow(ax, (center, CARD_BOTTOM), (_concat_left(i + 0.5), CONCAT_TOP), color, linewidth=2.5)


def _pattern(ax, left, top, pattern, color):
    """Queries on the left, keys on the right. A line is as wide as its weight, and opaque from 1/2 on."""
    query_x, key_x, pitch = left + 60, left + LANE_WIDTH - 60, 16
    rows = [top + (n + 1) * pitch for n in range(len(SENTENCE))]
    weights = pattern.flatten().tolist()
    lines = [[(query_x + 4, y), (key_x - 4, y_key)] for y in rows for y_key in rows]
    colors = [(*to_rgb(color), min(1, 2 * weight)) for weight in weights]
    ax.add_collection(LineCollection(lines, colors=colors, linewidths=[5 * weight for weight in weights]))

    _text(ax, query_x, top, "query", SMALL, MUTED, ha="right", style="italic")
    _text(ax, key_x, top, "key", SMALL, MUTED, ha="left", style="italic")
    chosen = pattern > 2 / len(SENTENCE)  # at least twice the even spread
    for x, ha, lit in ((query_x, "right", chosen.any(dim=1)), (key_x, "left", chosen.any(dim=0))):
        for word, y, is_lit in zip(SENTENCE, rows, lit):
            weight, shade = ("bold", _shade(color)) if is_lit else ("normal", MUTED)
            _text(ax, x, y, word, SMALL, shade, ha=ha, weight=weight)


def _fusion(ax):
    """Concat, W^O and the output, from top to bottom."""
    left, width = _concat_left(0), _concat_left(4) - _concat_left(0)
    for i in range(4):
        tint = _tint(HEAD_COLORS[i], 0.3)
        _cell(ax, _concat_left(i), CONCAT_TOP, width / 4, facecolor=tint, edgecolor="none")
    _cell(ax, left, CONCAT_TOP, width, facecolor="none", edgecolor=NAVY)
    concat = r"$\mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) \in \mathbb{R}^{L \times D}$"
    _text(ax, CENTER, CONCAT_TOP + ROW / 2, concat, MATH, NAVY)
    _flow(ax, (CENTER, CONCAT_TOP + ROW), (CENTER, W_O_TOP), NAVY, linewidth=1.5)
    _box(ax, CENTER - 85, W_O_TOP, 170, ROW, facecolor=NAVY, edgecolor=NAVY)
    _text(ax, CENTER, W_O_TOP + ROW / 2, r"$\times\ W^O \in \mathbb{R}^{D \times D}$", MATH, "white")
    _flow(ax, (CENTER, W_O_TOP + ROW), (CENTER, OUT_TOP), NAVY, linewidth=1.5)
    _cell(ax, left, OUT_TOP, width, facecolor=CARD, edgecolor=NAVY)
    out = r"output $\mathrm{MHA}(Q, K, V) \in \mathbb{R}^{L \times D}$"
    _text(ax, CENTER, OUT_TOP + ROW / 2, out, MATH, NAVY, family=SERIF)


def _notes(ax):
    """How to read a lane, and where its lines come from."""
    reading = (
        "A word on the left (query)\n"
        "looks at words on the right\n"
        "(keys). Thicker: more weight.\n"
        "A word that finds no match\n"
        "looks everywhere equally."
    )
    formula = r"$\mathrm{softmax}(Q K^T / \sqrt{d_k})$,"
    source = (
        "computed in code from\n"
        "hand-built one-hot features\n"
        "of this sentence. No training:\n"
        "an illustration."
    )
    _text(ax, 22, 528, "Reading a lane", BODY, NAVY, ha="left", va="top", weight="bold")
    _text(ax, 22, 549, reading, SMALL, INK, ha="left", va="top")
    _text(ax, 560, 528, "The weights", BODY, NAVY, ha="left", va="top", weight="bold")
    _text(ax, 560, 549, formula, MATH, INK, ha="left", va="top", family=SERIF)
    _text(ax, 560, 577, source, SMALL, INK, ha="left", va="top")


def _foot(ax):
    _box(ax, 20, FOOT_TOP, PAGE - 40, 70, facecolor=PANEL, edgecolor="none")
    formula = r"$\mathrm{MHA}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\, W^O.$"
    claim = "Allows simultaneous attention to information from different representation subspaces."
    _text(ax, CENTER, FOOT_TOP + 24, formula, 16, NAVY)
    _text(ax, CENTER, FOOT_TOP + 52, claim, 11, NAVY, family=SERIF)


def _concat_left(i):
    """x of the left edge of the i-th of the four parts of Concat; i may be a fraction."""
    return CENTER + (i - 2) * 80


def _text(ax, x, y, words, size, color, *, ha="center", va="center", family=SANS, **font):
    font |= {"family": family, "math_fontfamily": "dejavuserif"}
    ax.text(x, y, words, size=size, color=color, ha=ha, va=va, **font)


def _cell(ax, x, y, width, **colors):
    """Square corners: data."""
    ax.add_patch(Rectangle((x, y), width, ROW, linewidth=1, **colors))


def _box(ax, x, y, width, height, *, linewidth=1, **colors):
    """Round corners: what acts on data."""
    style = "round,pad=0,rounding_size=5"
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, linewidth=linewidth, **colors))


def _flow(ax, start, end, color, *, linewidth):
    """An arrow down from start to end that leaves and arrives vertically."""
    bend = start[1] + 0.6 * (end[1] - start[1])
    points = [start, (start[0], bend), (end[0], bend), end]
    curve = Curve(points, [Curve.MOVETO] + 3 * [Curve.CURVE4])
    style = {"arrowstyle": "-|>", "mutation_scale": 8, "linewidth": linewidth}
    ax.add_patch(FancyArrowPatch(path=curve, color=color, **style))


def _tint(color, strength):
    """The color laid over the card at this opacity, as an opaque color."""
    return tuple(strength * c + (1 - strength) * paper for c, paper in zip(to_rgb(color), to_rgb(CARD)))


def _shade(color):
    """A darker shade of a head's color, for text."""
    return tuple(0.6 * c for c in to_rgb(color))
