"""What every explorer picture must be."""
import xml.etree.ElementTree as ET

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from multihead_lessons.explorer import MAX_HEIGHT, MAX_WIDTH
from multihead_lessons.svg import Picture

SVG = "{http://www.w3.org/2000/svg}"
SMALLEST_TEXT = 12  # CSS pixels, 9 pt
DEJAVU = FontProperties(family="DejaVu Sans")


def check_picture(picture: Picture) -> None:
    """Well-formed, named, within one screen, no text too small or out of the frame, and no two texts on one another."""
    root = ET.fromstring(picture.svg)
    width, height = float(root.get("width")), float(root.get("height"))
    assert width == picture.width <= MAX_WIDTH and height <= MAX_HEIGHT
    assert root.get("role") == "img" and root.get("aria-label") == picture.alt and len(picture.alt) > 20
    assert picture.status.endswith(".")
    boxes = [_box(text) for text in root.iter(f"{SVG}text") if not text.get("transform")]
    for left, top, right, bottom, words in boxes:
        assert 0 <= left and right <= width and 0 <= top and bottom <= height, f"'{words}' leaves the picture"
    for i, (left, top, right, bottom, words) in enumerate(boxes):
        for other_left, other_top, other_right, other_bottom, other in boxes[:i]:
            apart = right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
            assert apart, f"'{words}' overlaps '{other}'"


def _box(text) -> tuple[float, float, float, float, str]:
    """A text's box in DejaVu Sans, wider than the fonts that most systems use."""
    words, size = "".join(text.itertext()), float(text.get("font-size"))
    assert size >= SMALLEST_TEXT, f"'{words}' is set in {size} px"
    x, y = float(text.get("x")), float(text.get("y"))
    extent = TextPath((0, 0), words, size=size, prop=DEJAVU).get_extents()
    width = extent.width if words.strip() else 0
    left = x - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
    return left, y - extent.y1, left + width, y - extent.y0, words
