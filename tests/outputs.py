"""What strict nbval does not look at: pixels, cleared cells, missing pictures and widgets, execution counts, stderr."""
from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator

import numpy as np
from PIL import Image

VIEW = "application/vnd.jupyter.widget-view+json"
PNG = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")
RMS_TOLERANCE = 3.0  # of 255; font hinting differs by less, a changed line by more
BLANK = 1.0          # a picture whose pixels vary less than this shows nothing


def defects(stored, fresh) -> Iterator[str]:
    """One sentence for each way in which the stored outputs are not those of a fresh run."""
    code = [(old, new) for old, new in zip(stored.cells, fresh.cells, strict=True) if old.cell_type == "code"]
    for number, (old, new) in enumerate(code, 1):
        if old.execution_count != number:
            yield f"code cell {number} has execution count {old.execution_count}"
        before, after = _kinds(old), _kinds(new)
        if before != after:
            yield f"code cell {number} stores {before}, a fresh run gives {after}"
            continue
        for output in old.outputs:
            if output.get("name") == "stderr":
                yield f"code cell {number} stores something on stderr"
            if VIEW in output.get("data", {}) and not output["data"].get("text/html"):
                yield f"code cell {number} has a widget without a static form"
        for before, after in zip(_pictures(old), _pictures(new), strict=True):
            yield from _pixel_defects(number, before, after)


def _kinds(cell) -> list[tuple]:
    return [(out.output_type, out.get("name", ""), sorted(out.get("data", {})), len(_html_pngs(out))) for out in cell.outputs]


def _html_pngs(output) -> list[str]:
    return PNG.findall("".join(output.get("data", {}).get("text/html", "")))


def _pictures(cell) -> list[str]:
    return [png for output in cell.outputs for png in
            [*_html_pngs(output), *([output.data["image/png"]] if "image/png" in output.get("data", {}) else [])]]


def _pixel_defects(number: int, before: str, after: str) -> Iterator[str]:
    old, new = _pixels(before), _pixels(after)
    if old.shape != new.shape:
        yield f"code cell {number}: the picture is {old.shape}, a fresh run draws {new.shape}"
    elif (rms := float(np.sqrt(((old - new) ** 2).mean()))) > RMS_TOLERANCE:
        yield f"code cell {number}: the picture differs from a fresh run, RMS {rms:.1f}"
    elif old.std() < BLANK:
        yield f"code cell {number}: the picture is blank"


def _pixels(data: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"), dtype=float)
