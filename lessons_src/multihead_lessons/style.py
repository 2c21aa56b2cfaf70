"""The look that all lessons share: colors, and how a still is shown."""
from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING

from IPython.display import HTML, display

from multihead_lessons import svg
from multihead_lessons.svg import Picture

if TYPE_CHECKING:  # most lessons draw no Matplotlib figure, and it takes 28 MB of a kernel
    from matplotlib.figure import Figure

PARCHMENT = "#fcf0db"
NAVY = "#1b2a4e"

# One color per head: blue, teal, gold, coral, then a continuation chosen by random search for the largest smallest
# CIE76 distance between any two colors, over normal, deuteranope, protanope and tritanope vision (Machado et al. 2009,
# severity 1), among colors with a contrast of at least 3 to 1 on white and parchment and 2.5 to 1 on JupyterLab's dark
# page. Past 12 the colors repeat, so a head always carries a second cue: its number, position or hatch.
HEAD_COLORS = [
    "#1f4fe0",  # blue
    "#089ba0",  # teal
    "#a98400",  # gold
    "#da6a5d",  # coral
    "#743f9b",  # purple
    "#934052",  # wine
    "#3f6018",  # olive
    "#9976eb",  # lavender
    "#fa238f",  # magenta
    "#cf0b2b",  # red
    "#a06ec0",  # orchid
    "#a70c70",  # plum
]

# Attention weights from 0 to 1: sixteen steps of Matplotlib's viridis.
WEIGHT_COLORS = ["#440154", "#481a6c", "#472f7d", "#414487", "#39568c", "#31688e", "#2a788e", "#23888e",
                 "#1f988b", "#22a884", "#35b779", "#54c568", "#7ad151", "#a5db36", "#d2e21b", "#fde725"]

PIXELS_PER_INCH = 96  # CSS; so a point of text is a point at the size shown


def show(figure: Figure | Picture, alt: str | None = None) -> None:
    """Displays a still on opaque light paper with its alternative text, which `image/png` outputs lose in JupyterLab.

    A Matplotlib figure is shown at its size in inches, with twice as many pixels for dense screens. A Picture, which is an
    SVG of this package, brings its own alternative text.
    """
    if isinstance(figure, Picture):
        display(HTML(svg.as_image(figure.svg, figure.alt, figure.width)))
        return
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=2 * PIXELS_PER_INCH, metadata={"Software": None})
    width = round(figure.get_figwidth() * PIXELS_PER_INCH)
    picture = base64.b64encode(data.getvalue()).decode()
    display(HTML(f'<img alt="{html.escape(alt, quote=True)}" width="{width}" src="data:image/png;base64,{picture}">'))
