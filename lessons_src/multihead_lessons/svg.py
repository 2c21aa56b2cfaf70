"""Small pieces of SVG, as strings. Lengths are CSS pixels, colors may be theme variables with a light fallback.

A live picture takes its ink from JupyterLab's theme variables, so that it follows light and dark. `fixed` replaces
every variable by its fallback: that is the form stored in a notebook, where no theme is at hand.
"""
from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """What a lesson shows: an `<svg>`, its alternative text, and one sentence that says what is to be seen."""

    svg: str
    alt: str
    status: str
    width: int


INK = "var(--jp-ui-font-color1, #1f2328)"
MUTED = "var(--jp-ui-font-color2, #57606a)"
RULE = "var(--jp-border-color1, #b4b9bf)"
PAPER = "var(--jp-layout-color1, #ffffff)"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"

_VARIABLE = re.compile(r"var\(--[\w-]+,\s*([^()]+)\)")


def number(value: float) -> str:
    """A coordinate with at most one decimal: short, and the same on every machine."""
    return f"{value:.1f}".removesuffix(".0")


def _written(key: str, value: float) -> str:
    """An opacity takes two decimals, or nearby weights look alike; everything else is a length."""
    return f"{value:.2f}" if key.endswith("opacity") else number(value)


def _length(value: float | str) -> float | str:
    return value if isinstance(value, str) else float(value)


def tag(name: str, content: str = "", /, **attributes: object) -> str:
    """One element. `stroke_width=2` becomes `stroke-width="2"`; attributes that are None are left out."""
    pairs = []
    for key, value in attributes.items():
        if value is not None:
            value = _written(key, value) if isinstance(value, float) else html.escape(str(value), quote=True)
            pairs.append(f' {key.rstrip("_").replace("_", "-")}="{value}"')
    return f"<{name}{''.join(pairs)}>{content}</{name}>" if content else f"<{name}{''.join(pairs)}/>"


def text(x: float, y: float, words: str, *, size: float = 13, anchor: str = "start", fill: str = INK,
         **attributes: object) -> str:
    """A line of text with its baseline at y; `anchor` is start, middle or end."""
    return tag("text", html.escape(str(words), quote=False), x=float(x), y=float(y), font_size=size,
               text_anchor=None if anchor == "start" else anchor, fill=fill, **attributes)


def rect(x: float, y: float, width: float | str, height: float | str, *, fill: str = "none", **attributes: object) -> str:
    """An axis-parallel rectangle with its top left corner at (x, y)."""
    return tag("rect", x=_length(x), y=_length(y), width=_length(width), height=_length(height), fill=fill, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str = INK, **attributes: object) -> str:
    """A straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), stroke=stroke, **attributes)


def path(d: str, *, fill: str = "none", **attributes: object) -> str:
    """A path from its `d` string."""
    return tag("path", d=d, fill=fill, **attributes)


def group(*parts: str, **attributes: object) -> str:
    """Elements that share attributes, a transform for example."""
    return tag("g", "".join(parts), **attributes)


def heatmap(x: float, y: float, cell: float, values: Sequence[Sequence[float]], ramp: Sequence[str],
            low: float = 0.0, high: float = 1.0) -> str:
    """Rows of square cells; a value from low to high takes its color from the ramp.

    Cells of one color are one path: sixteen maps of 8 x 8 stay below 20 kB.
    """
    squares: dict[int, list[str]] = {}
    for row, line_of_values in enumerate(values):
        for column, value in enumerate(line_of_values):
            level = min(max(int((value - low) / (high - low) * len(ramp)), 0), len(ramp) - 1)
            squares.setdefault(level, []).append(f"M{column} {row}h1v1h-1z")
    return group(*(path("".join(squares[level]), fill=ramp[level]) for level in sorted(squares)),
                 transform=f"translate({number(x)} {number(y)}) scale({number(cell)})", shape_rendering="crispEdges")


def svg(width: float, height: float, *parts: str, alt: str) -> str:
    """A whole picture. Screen readers meet one image with `alt` as its name."""
    return tag("svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=width,
               height=height, role="img", aria_label=alt, font_family=FONT, style="max-width:100%;height:auto")


def fixed(picture: str) -> str:
    """The same picture in light colors that need no theme, on opaque paper that is legible on a dark page too."""
    paper = rect(0, 0, "100%", "100%", fill=_VARIABLE.sub(r"\1", PAPER))
    return _VARIABLE.sub(r"\1", picture).replace(">", f">{paper}", 1)


def as_image(picture: str, alt: str, width: float) -> str:
    """An `<img>` that survives an untrusted notebook, which loses inline SVG and theme variables but keeps images."""
    data = base64.b64encode(fixed(picture).encode()).decode()
    return f'<img alt="{html.escape(alt, quote=True)}" width="{width}" src="data:image/svg+xml;base64,{data}">'
