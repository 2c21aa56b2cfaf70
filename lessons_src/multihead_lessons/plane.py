"""Drawings of lines and vectors in a plane, and of the pieces of a vector along two lines.

A point is a pair of coordinates with y upward. Strokes end at the frame of their window.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from multihead_lessons import svg
from multihead_lessons.style import HEAD_COLORS
from multihead_lessons.svg import Picture

Point = Sequence[float]
NAMES = ("H₁", "H₂", "H₃")
LINE_DASHES = (None, "9 5", "2 4")  # the second cue beside the color: the first subspace is drawn through


@dataclass(frozen=True)
class Plane:
    """A square window on the points whose coordinates run from -reach to reach; left, top and size are pixels."""

    left: float
    top: float
    size: float
    reach: float

    def at(self, point: Point) -> tuple[float, float]:
        """Where a point lies, in pixels from the window's corner."""
        half = self.size / 2
        return half + half * point[0] / self.reach, half - half * point[1] / self.reach

    def window(self, *parts: str) -> str:
        """Frame and axes with the parts over them."""
        half = self.size / 2
        axes = [svg.line(0, half, self.size, half, stroke=svg.RULE), svg.line(half, 0, half, self.size, stroke=svg.RULE)]
        return self.group(svg.rect(0, 0, self.size, self.size, stroke=svg.RULE), *axes, *parts)

    def group(self, *parts: str) -> str:
        """Parts in the window's pixels, put in their place in the picture."""
        return svg.group(*parts, transform=f"translate({self.left:g} {self.top:g})")

    def line(self, direction: Point, color: str, dash: str | None = None, **attributes: object) -> str:
        """The line through the origin in a direction, from frame to frame."""
        scale = 2 * self.reach / math.hypot(*direction)
        far = direction[0] * scale, direction[1] * scale
        return self.segment((-far[0], -far[1]), far, color, dash, **attributes)

    def segment(self, start: Point, end: Point, color: str, dash: str | None = None, **attributes: object) -> str:
        """A thin stroke from point to point."""
        ends = self._within(start, end)
        return "" if ends is None else svg.line(*self.at(ends[0]), *self.at(ends[1]), stroke=color, stroke_dasharray=dash,
                                                **{"stroke_width": 1.5, **attributes})

    def arrow(self, start: Point, end: Point, color: str, width: float = 3.5) -> str:
        """A vector from point to point. Too short for a head, it is a dot; beyond the frame, its head is not seen."""
        if max(map(abs, end)) > self.reach:
            return self.segment(start, end, color, stroke_width=width)
        return arrow(*self.at(start), *self.at(end), color, width)

    def _within(self, start: Point, end: Point) -> tuple[Point, Point] | None:
        """The part of a segment inside the frame, by Liang and Barsky, or None."""
        first, last = 0.0, 1.0
        for a, b in zip(start, end):
            for distance, step in ((self.reach - a, b - a), (self.reach + a, a - b)):  # to one side, to the other
                if step == 0 and distance < 0:
                    return None
                if step > 0:
                    last = min(last, distance / step)
                elif step < 0:
                    first = max(first, distance / step)
        if first > last:
            return None
        at_first, at_last = ([a + t * (b - a) for a, b in zip(start, end)] for t in (first, last))
        return at_first, at_last

    def label(self, point: Point, words: str, *, aside: Point = (0, 0), size: float = 14, **attributes: object) -> str:
        """Words centered on a point, moved aside by some pixels (y upward), in pixels of the whole picture."""
        x, y = self.at(point)
        return svg.text(self.left + x + aside[0], self.top + y - aside[1] + size / 3, words, size=size, anchor="middle",
                        **attributes)

    def tip_label(self, tip: Point, words: str, **attributes: object) -> str:
        """Words 16 pixels beyond the tip of an arrow from the origin."""
        length = math.hypot(*tip)
        return self.label(tip, words, aside=(16 * tip[0] / length, 16 * tip[1] / length), **attributes)

    def end_label(self, direction: Point, words: str, **attributes: object) -> str:
        """Words beside a line, where it leaves the frame in this direction."""
        scale, length = 0.86 * self.reach / max(map(abs, direction)), math.hypot(*direction)
        return self.label((direction[0] * scale, direction[1] * scale), words,
                          aside=(-13 * direction[1] / length, 13 * direction[0] / length), **attributes)


def arrow(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 3.5, dash: str | None = None) -> str:
    """An arrow between two pixels."""
    length, head = math.hypot(x2 - x1, y2 - y1), 2 * width + 5
    if length <= head:
        return svg.tag("circle", cx=float(x2), cy=float(y2), r=float(width), fill=color)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    neck_x, neck_y, half = x2 - head * ux, y2 - head * uy, head / 2
    points = [(x2, y2), (neck_x - half * uy, neck_y + half * ux), (neck_x + half * uy, neck_y - half * ux)]
    tip = "L".join(f"{svg.number(x)} {svg.number(y)}" for x, y in points)
    shaft = svg.line(x1, y1, neck_x, neck_y, stroke=color, stroke_width=float(width), stroke_dasharray=dash)
    return shaft + svg.path(f"M{tip}z", fill=color)


# A vector and its pieces along two lines

PANEL_SIZE = 290


def panel(number: int, title: str, v: Point, lines: Sequence[Point], ends: Sequence[Point], *,
          shadows: bool = False) -> list[str]:
    """One of two panels side by side: v, two lines, an arrow to each of two ends, and what the two add up to."""
    plane = Plane(10 + number * (PANEL_SIZE + 60), 30, PANEL_SIZE, 3.2)
    total = ends[0][0] + ends[1][0], ends[0][1] + ends[1][1]
    missed = math.dist(total, v) > 1e-6
    drawn = [*(plane.line(line, HEAD_COLORS[i], LINE_DASHES[i]) for i, line in enumerate(lines)),
             *(plane.segment(end, v if shadows else total, svg.MUTED, "3 3") for end in ends),
             *(plane.arrow((0, 0), end, HEAD_COLORS[i]) for i, end in enumerate(ends)), plane.arrow((0, 0), v, svg.INK)]
    if missed:
        drawn.append(plane.arrow((0, 0), total, svg.MUTED, 2))
    words = " + ".join(map(_coordinates, ends)) + f" = {_coordinates(total)}" + (", not v" if missed else " = v")
    return [svg.text(plane.left, 20, title, size=14, font_weight="600"), plane.window(*drawn),
            plane.tip_label(v, "v", font_weight="700"),
            *(plane.end_label((-line[0], -line[1]), NAMES[i], font_weight="700") for i, line in enumerate(lines)),
            svg.text(plane.left, plane.top + PANEL_SIZE + 20, words)]


def _coordinates(point: Point) -> str:
    return f"({', '.join(f'{round(x, 2) + 0.0:g}' for x in point)})"


def two_panels(first: list[str], second: list[str], alt: str, status: str) -> Picture:
    """Two panels as one picture."""
    width, height = 2 * (PANEL_SIZE + 60) - 10, PANEL_SIZE + 62
    return Picture(svg.svg(width, height, *first, *second, alt=alt), alt, status, width)


def comparison(v: Point, lines: Sequence[Point], wanted: Sequence[Point], found: Sequence[Point]) -> Picture:
    """The split of v that was wanted and the one that was found."""
    words = [" and ".join(map(_coordinates, ends)) for ends in (wanted, found)]
    alt = f"The vector v = {_coordinates(v)} and two lines. Its pieces are {words[0]}; your function gives {words[1]}."
    return two_panels(panel(0, "the pieces of v", v, lines, wanted), panel(1, "yours", v, lines, found), alt,
                      "Wanted and found, along two lines.")
