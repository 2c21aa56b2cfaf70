"""Direct sums: pictures of subspaces and pieces, the plane explorer, the angles explorer, the quizzes."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

import multihead as mh
from multihead_lessons import svg
from multihead_lessons.explorer import Choice, Explorer, Slider
from multihead_lessons.plane import LINE_DASHES, NAMES, Plane, Point, panel, two_panels
from multihead_lessons.quiz import Option, Quiz
from multihead_lessons.style import HEAD_COLORS, WEIGHT_COLORS
from multihead_lessons.svg import Picture

# Two heads of one channel. Head 1 reads x @ (2, 1) and writes along (1, 1), head 2 reads x @ (1, 3) and writes along (-1, 2).
W = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
W_O = torch.tensor([[1.0, 1.0], [-1.0, 2.0]])


# Stills in the plane

def three_spaces() -> Picture:
    """Coordinate blocks, subspaces read and subspaces written, for two heads of one channel."""
    panels = [("coordinate blocks", torch.eye(2)), ("read: columns of W", W.T), ("written: rows of W_O", W_O)]
    size, parts, angles = 210, [], []
    for number, (title, directions) in enumerate(panels):
        plane = Plane(10 + number * (size + 30), 30, size, 3.9)
        lines = directions.tolist()
        angles.append(math.degrees(mh.principal_angles(directions[:1], directions[1:])))
        parts += [svg.text(plane.left, 20, title, size=14, font_weight="600"),
                  plane.window(*(plane.line(line, HEAD_COLORS[i], LINE_DASHES[i]) for i, line in enumerate(lines)),
                               *(plane.arrow((0, 0), line, HEAD_COLORS[i]) for i, line in enumerate(lines))),
                  *(plane.tip_label(line, str(i + 1), font_weight="700") for i, line in enumerate(lines)),
                  svg.text(plane.left, plane.top + size + 20, f"angle {angles[-1]:.0f}°")]
    parts += [svg.text(10, 284, "1, solid: head 1"), svg.text(250, 284, "2, dashed: head 2")]
    width, height = 10 + 3 * (size + 30), 296
    alt = ("Three planes, each with two lines through the origin, one for each head. The coordinate blocks meet at "
           f"{angles[0]:.0f} degrees, the lines that are read at {angles[1]:.0f}, the lines that are written at "
           f"{angles[2]:.0f}.")
    return Picture(svg.svg(width, height, *parts, alt=alt), alt, "Three pairs of lines, three angles.", width)


def pieces_and_shadows() -> Picture:
    """The vector (1, 2) along the lines of (1, 0) and (1, 1): its two pieces, and its two shadows."""
    v, lines = (1.0, 2.0), [(1.0, 0.0), (1.0, 1.0)]
    pieces = mh.decompose(torch.tensor(v), [torch.tensor([line]) for line in lines]).tolist()
    shadows = [shadow(v, line) for line in lines]
    alt = ("The vector v = (1, 2) and two lines through the origin, along (1, 0) and (1, 1). Left: a parallelogram with v as "
           "its diagonal; the pieces (-1, 0) and (2, 2) add up to v. Right: perpendiculars from v; the shadows (1, 0) and "
           "(1.5, 1.5) add up to (2.5, 1.5), which is not v.")
    return two_panels(panel(0, "pieces: along the other line", v, lines, pieces),
                      panel(1, "shadows: at right angles", v, lines, shadows, shadows=True), alt, "Pieces add up to v, "
                                                                                                  "shadows do not.")


def shadow(v: Point, direction: Point) -> tuple[float, float]:
    """The orthogonal projection of v onto the line in a direction."""
    share = (v[0] * direction[0] + v[1] * direction[1]) / (direction[0] ** 2 + direction[1] ** 2)
    return share * direction[0], share * direction[1]


# Stills in space

def _seen(point: Sequence[float]) -> tuple[float, float]:
    """A point of space as the eye sees it: x comes forward, y goes to the right, z upward."""
    x, y, z = point
    return 0.9 * y - 0.62 * x, z - 0.42 * x - 0.12 * y


def _polyline(pixels: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{svg.number(x)} {svg.number(y)}" for x, y in pixels)


def _sheet(plane: Plane, a: Sequence[float], b: Sequence[float], color: str, low: float = -1.0) -> str:
    """The part of the plane of two vectors between -a and a, and between low b and b."""
    corners = [plane.at(_seen([s * p + t * q for p, q in zip(a, b)])) for s, t in ((-1, low), (1, low), (1, 1), (-1, 1))]
    return svg.path(f"{_polyline(corners)}z", fill=color, fill_opacity=0.16, stroke=color)


def _through(plane: Plane, direction: Sequence[float], color: str, dash: str | None = None) -> str:
    end = _seen(direction)
    return plane.segment((-end[0], -end[1]), end, color, dash, stroke_width=3)


def three_lines() -> Picture:
    """Three lines in one plane of space; and that plane from above, with two splits of one vector."""
    space, floor = Plane(8, 26, 330, 2.1), Plane(380, 36, 290, 2)
    up, directions = (0, 0, 1), [(1.35, 0, 0), (0, 1.4, 0), (1.35, 1.35, 0)]
    drawn = [_sheet(space, (1.35, 0, 0), (0, 1.4, 0), svg.MUTED),
             *(_through(space, line, HEAD_COLORS[i], LINE_DASHES[i]) for i, line in enumerate(directions)),
             space.arrow((0, 0), _seen(up), svg.INK)]
    parts = [svg.text(10, 20, "three lines in space, all in one plane", size=14, font_weight="600"),
             space.group(*drawn),
             space.label((0.62, 1.12), "(0, 0, 1)"), space.label((0.5, 0.86), "no split", size=13, fill=svg.MUTED)]
    parts += [space.label(_seen(end), name, font_weight="700") for end, name in
              zip([(1.62, 0, 0), (0, 1.6, 0), (1.6, 1.5, 0)], NAMES)]
    v, flat = (1.0, 1.0), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    parts += [svg.text(380, 20, "the plane from above: v has two splits", size=14, font_weight="600"),
              floor.window(*(floor.line(line, HEAD_COLORS[i], LINE_DASHES[i]) for i, line in enumerate(flat)),
                           floor.segment((1, 0), v, svg.MUTED, "3 3"), floor.segment((0, 1), v, svg.MUTED, "3 3"),
                           floor.arrow((0, 0), (1, 0), HEAD_COLORS[0]), floor.arrow((0, 0), (0, 1), HEAD_COLORS[1]),
                           floor.arrow((0, 0), v, HEAD_COLORS[2])),
              floor.label((1.05, 1.25), "v", font_weight="700"), floor.label((1.75, -0.2), NAMES[0], font_weight="700"),
              floor.label((-0.22, 1.75), NAMES[1], font_weight="700"),
              floor.label((-1.5, -1.78), NAMES[2], font_weight="700"),
              svg.text(380, 346, "(1, 1, 0) = (1, 0, 0) + (0, 1, 0) = (1, 1, 0) alone")]
    alt = ("Left: three lines through the origin, all in one plane of space, and a vector that sticks out of it and has no "
           "split. Right: in the plane, the vector (1, 1) is the sum of a piece in the first and a piece in the second "
           "line, and it is also a piece of the third line alone.")
    return Picture(svg.svg(690, 360, *parts, alt=alt), alt, "Three lines, any two of which meet in 0 only.", 690)


RISE = 60  # degrees, in the stills of space
FLOOR = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
RISING_LINE = torch.tensor([[0.0, math.cos(math.radians(RISE)), math.sin(math.radians(RISE))]])
RISING_PLANE = torch.cat([FLOOR[:1], RISING_LINE])


def angles_in_space() -> Picture:
    """A line above the floor, and a plane that shares a line with the floor, with their principal angles."""
    titles = ("a line and a plane", "two planes")
    parts, found = [], []
    for number, (title, other) in enumerate(zip(titles, (RISING_LINE, RISING_PLANE))):
        plane = Plane(8 + number * 360, 26, 330, 2.1)
        rise = [1.6 * x for x in RISING_LINE[0].tolist()]
        turned = [math.radians(t) for t in range(0, RISE + 1, 5)]
        arc = [plane.at(_seen((0, 0.9 * math.cos(t), 0.9 * math.sin(t)))) for t in turned]
        sheets = [_sheet(plane, (1.2, 0, 0), (0, 1.5, 0), HEAD_COLORS[0])]
        if number:
            sheets += [_sheet(plane, (1.2, 0, 0), rise, HEAD_COLORS[1], low=-0.35), _through(plane, (1.2, 0, 0), svg.INK),
                       plane.segment((0, 0), _seen(rise), HEAD_COLORS[1])]
        else:
            sheets.append(_through(plane, rise, HEAD_COLORS[1], LINE_DASHES[1]))
        sheets.append(plane.segment((0, 0), _seen((0, 1.5, 0)), HEAD_COLORS[0]))
        degrees = [math.degrees(angle) for angle in mh.principal_angles(FLOOR, other)]
        found.append(" and ".join(f"{angle:.0f}°" for angle in degrees))
        parts += [svg.text(plane.left + 10, 20, title, size=14, font_weight="600"),
                  plane.group(*sheets, svg.path(_polyline(arc), stroke=svg.INK, stroke_width=2)),
                  plane.label(_seen((0, 1.25, 0.55)), f"{RISE}°"),
                  svg.text(plane.left + 10, 346, f"principal angles: {found[-1]}" if number else f"one principal angle: "
                                                                                                 f"{found[-1]}")]
        if number:
            parts.append(plane.label((-0.1, -0.95), "shared line: 0°", size=13))
    alt = (f"Left: a line rises from a plane; its one principal angle is {found[0]}. Right: two planes share a line and "
           f"open around it; their principal angles are {found[1]}.")
    return Picture(svg.svg(710, 360, *parts, alt=alt), alt, "As many angles as the smaller space has dimensions.", 710)


# The plane explorer

WIDTH, HEIGHT = 840, 428
WINDOW = Plane(4, 4, 420, 4.2)  # 50 pixels to the unit
PANEL = 440                     # left edge of the words and bars beside the plane
SCALE, LONGEST = 22, 9          # pixels to the unit of a bar; units in the longest bar
CURVE = (490, 226, 340, 170)    # left, top, width and height of the curve of the condition number
MOST = 1000.0                   # condition number at the top of the curve


@dataclass(frozen=True)
class Split:
    """Two lines and a vector of the plane, all in degrees and units, and what they have to do with one another."""

    first: int
    second: int
    angle: int
    length: int

    @property
    def directions(self) -> list[tuple[float, float]]:
        return [_unit(self.first), _unit(self.second)]

    @property
    def v(self) -> tuple[float, float]:
        x, y = _unit(self.angle)
        return self.length * x, self.length * y

    @property
    def bases(self) -> list[torch.Tensor]:
        return [torch.tensor([line], dtype=torch.float64) for line in self.directions]

    @property
    def gap(self) -> int:
        """The angle between the lines, 0 to 90."""
        between = (self.first - self.second) % 180
        return min(between, 180 - between)

    @property
    def on_both(self) -> bool:
        """Whether v lies on the first line, where the lines are one."""
        return (self.angle - self.first) % 180 == 0

    def pieces(self) -> list[Point] | None:
        """The one split of v, or None where there is none or more than one."""
        if not mh.is_direct_sum(self.bases):
            return None
        return mh.decompose(torch.tensor(self.v, dtype=torch.float64), self.bases).tolist()

    def shadows(self) -> list[Point]:
        return [shadow(self.v, line) for line in self.directions]


def _unit(degrees: float) -> tuple[float, float]:
    return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))


def _figure(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def draw_plane(first: int, second: int, angle: int, length: int, show: str) -> Picture:
    """Two lines and v: the pieces of v or its shadows, their lengths, and the condition number on its curve."""
    split = Split(first, second, angle, length)
    pieces, shadows = split.pieces(), split.shadows()
    ends = shadows if show == "shadows" else pieces
    missed = math.dist([sum(x) for x in zip(*shadows)], split.v)
    condition = mh.condition_number(split.bases) if pieces else math.inf
    bars: list[tuple[str, float | str, str]] = [("v", float(length), svg.INK)]
    if ends:
        bars += [(f"{show[:-1]} in {NAMES[i]}", math.hypot(*ends[i]), HEAD_COLORS[i]) for i in range(2)]
    else:
        bars += [(f"piece in {NAMES[i]}", "any length" if split.on_both else "none", HEAD_COLORS[i]) for i in range(2)]
    if show == "shadows":
        bars.append(("sum misses v by", missed, HEAD_COLORS[3]))
    parts = [_lines_and_arrows(split, ends, show), *_line_names(split),
             WINDOW.tip_label(split.v, "v", font_weight="700"),
             svg.text(PANEL, 24, f"{NAMES[0]} and {NAMES[1]} open by {split.gap}°" if split.gap else
                      f"{NAMES[0]} and {NAMES[1]} are one line", size=15, font_weight="600"),
             *_bars(bars), *_condition_curve(split.gap, condition)]
    lines = f"{NAMES[0]} at {first}° and {NAMES[1]} at {second}°"
    vector = f"v, of length {length} at {angle}°,"
    if show == "shadows":
        verdict = f"misses v by {_figure(missed)}" if missed > 1e-9 else "is v, because the lines are at right angles"
        status = (f"{lines}: the shadows of {vector} have the lengths {_figure(bars[1][1])} and {_figure(bars[2][1])}; "
                  f"their sum {verdict}.")
    elif pieces:
        status = (f"{lines}: {vector} has one split, a piece of length {_figure(bars[1][1])} and one of "
                  f"{_figure(bars[2][1])}. Condition number {_figure(condition)}.")
    elif split.on_both:
        status = f"{lines} are one line; {vector} lies on it. It has infinitely many splits: one of them, 2v−v, is drawn."
    else:
        status = f"{lines} are one line; {vector} lies off it. It has no split."
    alt = (f"Two lines through the origin and the vector v. {status} Beside them, lengths as bars and the condition number "
           "as a curve.")
    return Picture(svg.svg(WIDTH, HEIGHT, *parts, alt=alt), alt, status, WIDTH)


def _lines_and_arrows(split: Split, ends: Sequence[Point] | None, show: str) -> str:
    drawn = [WINDOW.line(line, HEAD_COLORS[i], LINE_DASHES[i]) for i, line in enumerate(split.directions)]
    if ends:
        corner = split.v if show == "shadows" else (ends[0][0] + ends[1][0], ends[0][1] + ends[1][1])
        drawn += [WINDOW.segment(end, corner, svg.MUTED, "3 3") for end in ends]
        drawn += [WINDOW.arrow((0, 0), end, HEAD_COLORS[i]) for i, end in enumerate(ends)]
    elif split.on_both:  # 2v - v, a little beside the line, so that both arrows are seen
        (x, y), (dx, dy) = split.v, _unit(split.angle + 90)
        for i, (share, side) in enumerate(((2, -0.14), (-1, 0.14))):
            aside = side * dx, side * dy
            drawn.append(WINDOW.arrow(aside, (share * x + aside[0], share * y + aside[1]), HEAD_COLORS[i]))
    drawn.append(WINDOW.arrow((0, 0), split.v, svg.INK, 4))
    if show == "shadows":
        total = ends[0][0] + ends[1][0], ends[0][1] + ends[1][1]
        drawn += [WINDOW.segment((0, 0), total, svg.MUTED, stroke_width=2),
                  WINDOW.segment(total, split.v, HEAD_COLORS[3], stroke_width=2)]
    return WINDOW.window(*drawn)


def _line_names(split: Split) -> list[str]:
    """The first line's name at its end farther from v; the second's away from that name, and from v if possible."""
    first = max((split.first, split.first + 180), key=lambda end: _apart(end, split.angle))
    second = max((split.second, split.second + 180), key=lambda end: (_apart(end, first) > 20, _apart(end, split.angle)))
    return [WINDOW.end_label(_unit(end), NAMES[i], font_weight="700") for i, end in enumerate((first, second))]


def _apart(a: float, b: float) -> float:
    between = (a - b) % 360
    return min(between, 360 - between)


def _bars(bars: Sequence[tuple[str, float | str, str]]) -> list[str]:
    """Named lengths; one that is too long ends in an arrow."""
    parts, left = [], PANEL + 116
    for row, (name, value, color) in enumerate(bars):
        y = 56 + 26 * row
        parts.append(svg.text(PANEL, y, name))
        if isinstance(value, str):
            parts.append(svg.text(left, y, value, fill=svg.MUTED))
            continue
        width = SCALE * min(value, LONGEST)
        parts += [svg.rect(left, y - 12, width, 15, fill=color),
                  svg.text(left + width + (22 if value > LONGEST else 8), y, _figure(value))]
        if value > LONGEST:
            parts.append(svg.path(f"M{left + width + 4:g} {y - 12}l10 7.5l-10 7.5z", fill=color))
    return parts


def _condition_curve(gap: int, condition: float) -> list[str]:
    """The condition number cot(angle / 2) of two unit vectors, from 1 at right angles, with the present one as a dot."""
    left, top, width, height = CURVE

    def place(degrees: float, value: float) -> tuple[float, float]:
        return left + width * degrees / 90, top + height * (1 - math.log(min(value, MOST)) / math.log(MOST))
    curve = [place(t, 1 / math.tan(math.radians(t) / 2)) for t in (0.2, 0.5, 1, 2, 3, 5, 7, *range(10, 91, 5))]
    x, y = place(gap, condition)
    if gap:
        title = f"condition number {_figure(condition)}"
        words = f"a vector of length 1 can have a piece of length {_figure(1 / math.sin(math.radians(gap)))}"
    else:
        title, words = "condition number: infinite", "uniqueness is lost: no split, or infinitely many"
    parts = [svg.text(PANEL, top - 44, title, size=15, font_weight="600"), svg.text(PANEL, top - 22, words),
             svg.rect(left, top, width, height, stroke=svg.RULE)]
    for value in (1, 10, 100, 1000):
        at = place(0, value)[1]
        parts += [svg.line(left, at, left + width, at, stroke=svg.RULE),
                  svg.text(left - 8, at + 4, f"{value:,}", size=12, anchor="end")]
    parts += [svg.text(place(t, 1)[0] - (8 if t == 90 else 0), top + height + 18, f"{t}°", size=12, anchor="middle")
              for t in (0, 30, 60, 90)]
    parts += [svg.path(_polyline(curve), stroke=svg.MUTED, stroke_width=2),
              svg.line(x, top, x, top + height, stroke=svg.INK, stroke_dasharray="3 3"),
              svg.tag("circle", cx=x, cy=y, r=6, fill=svg.INK if gap else HEAD_COLORS[3])]
    return parts


def _degrees_up_to(label: str, most: int) -> Callable:
    return lambda value, _: None if 0 <= value <= most else f"{label} = {value} is not possible here: choose 0 to {most}."


def plane_explorer() -> Explorer:
    """Two lines and a vector, by angles and length."""
    return Explorer(
        draw_plane,
        Slider("first", range(0, 180, 5), 10, label="H₁ angle", refuse=_degrees_up_to("H₁ angle", 179)),
        Slider("second", range(0, 180, 5), 70, label="H₂ angle", refuse=_degrees_up_to("H₂ angle", 179)),
        Slider("angle", range(0, 360, 5), 40, label="v angle", refuse=_degrees_up_to("v angle", 359)),
        Slider("length", (1, 2, 3), 3, label="v length"),
        Choice("show", ["pieces", "shadows"], "pieces"),
        presets={"right angles": {"first": 10, "second": 100, "angle": 40},
                 "nearly one line": {"first": 10, "second": 13, "angle": 40},
                 "one line, v off it": {"first": 10, "second": 10, "angle": 40},
                 "one line, v on it": {"first": 10, "second": 10, "angle": 10, "length": 2}})


# The angles explorer

WIDTHS = (24, 48, 96, 192, 384)
MAP = (34, 66, 300)             # left, top and size of the map of angles
PLOT = (456, 66, 372, 300)      # left, top, width and height of the distribution
BIN = 2                         # degrees in one bar


@dataclass(frozen=True)
class HeadAngles:
    """Angles in degrees between the subspaces of the heads of one layer."""

    every: torch.Tensor     # all principal angles of all pairs
    smallest: torch.Tensor  # [h, h], of each pair
    others: torch.Tensor    # [h], from each head to the sum of all the others


@lru_cache(maxsize=256)
def head_angles(d_model: int, h: int, orthogonal: bool, draw: int) -> HeadAngles:
    """All angles at once: products of all frames, then eigenvalues in batches; fast for the d_model on offer."""
    drawn = mh.random_bases(d_model, h, torch.Generator().manual_seed(draw), orthogonal)
    d_k = d_model // h
    frames = torch.linalg.qr(torch.stack(drawn).double().mT).Q.mT  # [h, d_k, d_model], orthonormal rows
    rows = frames.flatten(0, 1)  # [d_model, d_model]
    products = (rows @ rows.T).view(h, d_k, h, d_k).transpose(1, 2)  # [h, h, d_k, d_k]
    i, j = torch.triu_indices(h, h, 1)
    pairs = products[i, j]  # [h (h - 1) / 2, d_k, d_k], singular values are the cosines
    every = torch.linalg.eigvalsh(pairs @ pairs.mT).clamp(0, 1).sqrt().acos()  # [h (h - 1) / 2, d_k], falling
    smallest = torch.zeros(h, h, dtype=torch.float64)
    smallest[i, j] = smallest[j, i] = every[:, -1]
    # The projector onto a head along all the others has the norm 1 / sin of the angle between the two.
    shares = torch.linalg.inv(rows).view(d_model, h, d_k).transpose(0, 1)  # [h, d_model, d_k]
    others = torch.linalg.eigvalsh(shares.mT @ shares)[:, -1].clamp(min=1).rsqrt().asin()  # [h]
    return HeadAngles(*(x.rad2deg() for x in (every.flatten(), smallest, others)))


def draw_angles(d_model: int, h: int, bases: str, draw: int) -> Picture:
    """The smallest angle of every pair of heads as a map, and the distribution of all angles against the formula."""
    orthogonal = bases == "orthogonal"
    angles = head_angles(d_model, h, orthogonal, draw)
    parts = [*_map(angles), *_distribution(angles.every, None if orthogonal else h, PLOT)]
    d_k = d_model // h
    size = f"d_model = {d_model} = {h} × {d_k}"
    if orthogonal:
        status = f"{size}, orthogonal bases: every angle is 90°, also from one head to all the others together."
    else:
        pairs = angles.smallest[*torch.triu_indices(h, h, 1)]
        overlap = angles.every.deg2rad().cos().square().mean().item()
        spread = f"{pairs.min():.1f}° to {pairs.max():.1f}°" if h > 2 else f"{pairs[0]:.1f}°"
        status = (f"{size}, random bases, draw {draw}: two heads open by {spread} (limit {limit(h):.1f}°); from one head to "
                  f"all the others together {_small(angles.others.min())}° at the least. Mean cos² {overlap:.3f}, expected "
                  f"{1 / h:.3f}.")
    alt = f"A map of angles between {h} heads and a histogram of all their principal angles. {status}"
    return Picture(svg.svg(WIDTH, HEIGHT, *parts, alt=alt), alt, status, WIDTH)


def limit(h: int) -> float:
    """The smallest principal angle of two random heads out of h, in degrees, as d_model grows."""
    return math.degrees(math.acos(mh.largest_cosine_limit(1 / h)))


def _small(degrees: float) -> str:
    """Few digits: whole degrees from 10 on, a hundredth of one below 1."""
    return f"{degrees:.0f}" if degrees >= 10 else f"{degrees:.1f}" if degrees >= 1 else f"{degrees:.2f}"


def _map(angles: HeadAngles) -> list[str]:
    """The map of pairs, and a column of its own for each head against all the others."""
    left, top, size = MAP
    h = len(angles.others)
    cell, aside = size / h, left + size + 26
    parts = [svg.text(left, 20, "smallest angle between two heads", size=14, font_weight="600"),
             svg.heatmap(left, top, cell, angles.smallest.tolist(), WEIGHT_COLORS, 0, 90),
             svg.text(aside - 4, 38, "all the", size=12), svg.text(aside - 4, 54, "others", size=12)]
    for i in range(h):
        y = top + i * cell
        others = float(angles.others[i])
        parts += [svg.text(left - 6, y + cell / 2 + 4, i + 1, size=12, anchor="end"),
                  svg.text(left + (i + 0.5) * cell, top - 6, i + 1, size=12, anchor="middle"),
                  svg.rect(aside, y, 40, cell, fill=_color(others), shape_rendering="crispEdges"),
                  svg.text(aside + 20, y + cell / 2 + 4, _small(others), size=12, anchor="middle", fill=_ink(others))]
        if h <= 12:
            pairs = [(j, float(angles.smallest[i, j])) for j in range(h) if j != i]
            parts += [svg.text(left + (j + 0.5) * cell, y + cell / 2 + 4, _small(pair), size=12, anchor="middle",
                               fill=_ink(pair)) for j, pair in pairs]
    step = (size - 80) / len(WEIGHT_COLORS)
    parts += [svg.rect(left + 34 + n * step, top + size + 18, step + 0.5, 12, fill=color, shape_rendering="crispEdges")
              for n, color in enumerate(WEIGHT_COLORS)]
    parts += [svg.text(left, top + size + 29, "0°", size=12), svg.text(left + size - 40, top + size + 29, "90°", size=12)]
    return parts


def _color(degrees: float) -> str:
    return WEIGHT_COLORS[min(int(degrees / 90 * len(WEIGHT_COLORS)), len(WEIGHT_COLORS) - 1)]


def _ink(degrees: float) -> str:
    return "#ffffff" if degrees < 50 else "#000000"


def distribution(angles: torch.Tensor, h: int) -> Picture:
    """The distribution of all principal angles, in radians, between h random heads, against the formula."""
    parts = _distribution(angles.rad2deg().flatten(), h, (60, 46, 560, 240))
    alt = (f"A histogram of {angles.numel():,} principal angles between random heads and the curve of the formula for h = {h}. "
           f"They begin near {limit(h):.0f} degrees and end at 90.")
    return Picture(svg.svg(640, 330, *parts, alt=alt), alt, "Angles as measured and as the formula says.", 640)


def _distribution(degrees: torch.Tensor, h: int | None, box: tuple[int, int, int, int]) -> list[str]:
    """Bars of the share of angles in each degree; with h, the curve of the formula for h random heads and its lower end."""
    left, top, width, height = box
    counts = torch.histc(degrees.clamp(0, 90 - 1e-9), bins=90 // BIN, min=0, max=90)
    shares = (counts / counts.sum() / BIN).tolist()  # for each degree
    middles = [(n + 0.5) / 4 for n in range(360)]
    curve = [mh.angle_density(math.radians(t), 1 / h) * math.pi / 180 for t in middles] if h else []
    highest = 1.15 * max(*shares, *curve)

    def place(t: float, share: float) -> tuple[float, float]:
        return left + width * t / 90, top + height * (1 - share / highest)
    bars = "".join(f"M{svg.number(place(BIN * n, 0)[0])} {top + height}V{svg.number(place(0, share)[1])}"
                   f"h{svg.number(width * BIN / 90 - 1)}V{top + height}z" for n, share in enumerate(shares) if share)
    parts = [svg.text(left, 20, "all principal angles", size=14, font_weight="600"),
             svg.rect(left, top, width, height, stroke=svg.RULE), svg.path(bars, fill=HEAD_COLORS[0], fill_opacity=0.55)]
    tick = _round_share(highest)
    at = place(0, tick)[1]
    parts += [svg.line(left - 5, at, left, at), svg.text(left - 8, at + 4, f"{100 * tick:g} %", size=12, anchor="end"),
              svg.text(left - 8, top + height + 4, "0", size=12, anchor="end")]
    parts += [svg.text(place(t, 0)[0] - (8 if t == 90 else 0), top + height + 18, f"{t}°", size=12, anchor="middle")
              for t in (0, 30, 60, 90)]
    if h:
        points = [place(t, share) for t, share in zip(middles, curve)]
        end = place(limit(h), 0)[0]
        middle = min(max(end, left + 44), left + width - 44)  # of the words, so that they stay over the plot
        parts += [svg.path(_polyline(points), stroke=svg.INK, stroke_width=2),
                  svg.line(end, top, end, top + height, stroke=svg.INK, stroke_dasharray="3 3"),
                  svg.text(middle, top - 6, f"limit {limit(h):.1f}°", size=12, anchor="middle"),
                  svg.text(left + width, 20, "share per degree; line: formula", size=12, anchor="end", fill=svg.MUTED)]
    return parts


def _round_share(highest: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is not above `highest`."""
    power = 10.0 ** math.floor(math.log10(highest))
    return max(power * factor for factor in (1, 2, 5) if power * factor <= highest)


def _heads_on_offer(state: dict) -> list[int]:
    return [h for h in mh.divisors(state["d_model"]) if 2 <= h <= 16 and state["d_model"] // h >= 2]


def angles_explorer() -> Explorer:
    """The angles between the heads of a layer, random or orthogonal."""
    return Explorer(
        draw_angles,
        Slider("d_model", WIDTHS, 384), Slider("h", _heads_on_offer, 12),
        Choice("bases", ["random", "orthogonal"], "random"),
        Slider("draw", range(1, 6), 1, shown=lambda state: state["bases"] == "random"))


# Quizzes

def three_lines_quiz() -> Quiz:
    return Quiz(
        "Three lines through the origin of R³. Any two of them meet in 0 only. Is R³ their direct sum?",
        Option("yes: the dimensions 1 + 1 + 1 add up to 3, and no two lines overlap",
               "Both facts are true, and they are not enough: the third line may lie in the plane of the first two. Then "
               "the three reach only that plane."),
        Option("yes, whenever the lines are different",
               "Different lines meet in 0 only, so this is the same test of pairs. It does not see three lines in one "
               "plane."),
        Option("not always",
               "It depends on all three together. If they lie in one plane, a vector off the plane has no split. Otherwise "
               "the sum is direct.", right=True),
        Option("only if the lines are at right angles",
               "Right angles are enough, but not needed: any three lines that do not lie in one plane will do."))


def pieces_quiz() -> Quiz:
    return Quiz(
        "v = (1, 2) is the sum of a piece on the line of (1, 0) and a piece on the line of (1, 1). How long is the second "
        "piece?",
        Option("shorter than v: a part is smaller than the whole",
               "That holds if the lines are at right angles. Here they are oblique: the first piece points backward, and the "
               "second must be longer to make up for it."),
        Option("longer than v",
               "Only the second line leaves the axis, so it must bring the whole 2 of the second coordinate: (2, 2), of "
               "length 2.83, while v has 2.24. The first piece is (-1, 0).", right=True),
        Option("as long as v projected at right angles onto the second line",
               "That projection is (1.5, 1.5). To come back to v you would have to add (-0.5, 0.5), which does not lie on the "
               "first line."),
        Option("that is up to us: many pairs of pieces add up to v",
               "The two rows (1, 0) and (1, 1) form an invertible matrix. By the theorem there is exactly one split."))


def two_heads_quiz() -> Quiz:
    return Quiz(
        "Two heads read random subspaces of 64 dimensions in R^768. What is the smallest angle between them?",
        Option("about 90°: random directions in many dimensions are almost orthogonal",
               "Two random directions are. But a subspace of 64 dimensions has many directions to choose from, and the "
               "smallest angle is that of the best pair."),
        Option("about 56°",
               "Of all pairs of directions, the best has a cosine near 2 √(r (1 - r)), with r = 64 / 768: 0.55, so 56°.",
               right=True),
        Option("about 0°: two subspaces of 64 dimensions must touch somewhere",
               "They must if their dimensions add up to more than 768. 64 + 64 is far less."),
        Option("it can be anything: they are random",
               "It can, but in this many dimensions chance averages out. Over many pairs the angle moves by a few degrees "
               "only."))


def others_quiz() -> Quiz:
    return Quiz(
        "Twelve random heads in 768 dimensions: any two open by about 56°. And head 1 against the sum of the other eleven?",
        Option("about 56° too: it keeps its distance from each of them",
               "A direction can be far from each of eleven subspaces and close to a sum of vectors from all of them."),
        Option("about 90°: by the theorem the sum is direct",
               "Direct means that they share no direction but 0. Nothing is said about right angles."),
        Option("less than 1°",
               "The other eleven span 704 of 768 dimensions, and 64 + 704 = 768: two random subspaces of these sizes share "
               "no direction, just barely.", right=True),
        Option("exactly 0°: together they fill all of the space",
               "Eleven heads fill 704 dimensions. 64 are left, and at a random draw head 1 has no direction in common with "
               "the 704."))


def symmetry_quiz() -> Quiz:
    return Quiz(
        "Which change of the weights can alter what the layer computes?",
        Option("the heads in another order, in W_Q, W_K, W_V and W_O alike",
               "The output is a sum over heads, and a sum does not depend on the order."),
        Option("W_V of one head times an invertible matrix, its W_O block from the left times the inverse",
               "The two cancel inside the head: (x W_V N)(N⁻¹ W_O) = x W_V W_O, and the pattern is the same."),
        Option("one rotation of all d_model columns of W_Q, W_K and W_V, undone in W_O",
               "It mixes channels of different heads, and each head weighs its own channels with its own pattern. In "
               "general the output changes.", right=True),
        Option("W_Q of one head times an invertible matrix, its W_K times the inverse transposed",
               "The scores of that head stay as they are: (x W_Q G)(x W_K G⁻ᵀ)ᵀ = x W_Q W_Kᵀ xᵀ."))
