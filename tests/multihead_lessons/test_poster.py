import math
import re
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.image import imread
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path
from matplotlib.text import Text

from multihead_lessons.poster import D_K, LANES, POSTER_ALT, SENTENCE, SHARPNESS
from multihead_lessons.poster import lane_patterns, poster, save_poster
from multihead_lessons.style import HEAD_COLORS, NAVY, PARCHMENT, WEIGHT_COLORS

SHOWN, BORDER = 760, 8  # pixels
SYNTAX, POSITION, COREFERENCE, TOPIC = range(4)


# --- the patterns ---


def weight(lane, query, key):
    return lane_patterns()[lane][SENTENCE.index(query), SENTENCE.index(key)].item()


def matched(n):
    """Weight on each of n matching keys, from the definition of softmax."""
    match = math.exp(SHARPNESS**2 / math.sqrt(D_K))
    return match / (n * match + len(SENTENCE) - n)


def test_every_pattern_is_row_stochastic():
    patterns = lane_patterns()
    assert len(patterns) == len(LANES) == 4
    for pattern in patterns:
        assert pattern.shape == (len(SENTENCE), len(SENTENCE))
        assert (pattern >= 0).all()
        torch.testing.assert_close(pattern.sum(dim=-1), torch.ones(len(SENTENCE)))


@pytest.mark.parametrize(
    "lane, query, keys",
    [
        (SYNTAX, "say", ["sailors"]),  # plural verb, plural subject
        (SYNTAX, "needs", ["boat"]),  # singular verb, singular subject
        (COREFERENCE, "their", ["sailors"]),
        *[(TOPIC, noun, ["sailors", "boat", "sails"]) for noun in ("sailors", "boat", "sails")],
        (POSITION, "The", ["sailors"]),
        (POSITION, "sails", ["new"]),
        *[(POSITION, SENTENCE[i], [SENTENCE[i - 1], SENTENCE[i + 1]]) for i in range(1, len(SENTENCE) - 1)],
    ],
)
def test_weight_goes_where_the_job_says(lane, query, keys):
    for key in keys:
        assert weight(lane, query, key) == pytest.approx(matched(len(keys)), abs=1e-6)
    assert sum(weight(lane, query, key) for key in keys) > 0.97


@pytest.mark.parametrize(
    "lane, workers",
    [(SYNTAX, {"say", "needs"}), (COREFERENCE, {"their"}), (TOPIC, {"sailors", "boat", "sails"})],
)
def test_words_without_a_match_spread_evenly(lane, workers):
    pattern = lane_patterns()[lane]
    for i, word in enumerate(SENTENCE):
        even = torch.full((len(SENTENCE),), 1 / len(SENTENCE))
        assert torch.allclose(pattern[i], even) == (word not in workers)


# --- the drawing ---


@pytest.fixture(scope="module")
def drawn():
    figure = poster()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return figure, canvas


@pytest.fixture(scope="module")
def texts(drawn):
    return [text for text in drawn[0].findobj(Text) if text.get_text()]


def box(text, drawn):
    return text.get_window_extent(drawn[1].get_renderer())


def plain(words):
    """The letters of a text without mathtext's commands and without spaces."""
    commands = {r"\ldots": "...", r"\in": "∈", r"\times": "×", r"\sqrt": "√", r"\,": "", r"\ ": ""}
    for command, meaning in commands.items():
        words = words.replace(command, meaning)
    words = re.sub(r"\\math(rm|bb)\{(\w+)\}", r"\2", words)
    return re.sub(r"[\s${}]", "", words)


@pytest.mark.parametrize(
    "specified",
    [
        "Multi-Head Attention: Parallel Semantic Lenses",
        "Splitting embedding dimension D into h independent subspaces of size d_k = D/h.",
        "X ∈ R^L×D",
        "W_i^Q, W_i^K, W_i^V",
        *[f"W_{i}^{kind}" for i in (1, 2, 3, 4) for kind in "QKV"],
        "Syntactic role",
        "subject-verb agreement",
        "Positional proximity",
        "immediately adjacent words",
        "Coreference",
        "pronouns to antecedents",
        "Semantic topic",
        "associated nouns",
        "Concat(head_1, ..., head_h) ∈ R^L×D",
        "W^O ∈ R^D×D",
        "MHA(Q, K, V) = Concat(head_1, ..., head_h) W^O. "
        "Allows simultaneous attention to information from different representation subspaces.",
        "softmax(QK^T/√d_k), computed in code from hand-built one-hot features of this sentence",
    ],
)
def test_specified_text_is_on_the_poster(specified, texts):
    assert plain(specified) in "".join(plain(text.get_text()) for text in texts)


def test_the_sentence_is_printed_once_in_x_and_twice_in_each_lane(texts):
    printed = [text.get_text() for text in texts]
    assert [printed.count(word) for word in SENTENCE] == [1 + 2 * len(LANES)] * len(SENTENCE)


def test_lines_show_the_computed_weights(drawn):
    collections = drawn[0].findobj(LineCollection)
    assert len(collections) == len(LANES)
    for collection, pattern, color in zip(collections, lane_patterns(), HEAD_COLORS):
        widths = torch.tensor(collection.get_linewidths())
        expected = pattern.flatten() / pattern.sum()
        torch.testing.assert_close(widths / widths.sum(), expected, check_dtype=False)
        assert {to_hex(c) for c in collection.get_colors()} == {color}


def test_page_is_square_parchment_with_a_navy_border_of_8_px(drawn):
    pixels = np.asarray(drawn[1].buffer_rgba())[..., :3]
    assert pixels.shape == (SHOWN, SHOWN, 3)
    for side in range(4):
        edge = np.rot90(pixels, side)[:, SHOWN // 3]
        assert to_hex(edge[0] / 255) == to_hex(edge[BORDER - 1] / 255) == NAVY
        assert to_hex(edge[BORDER] / 255) == PARCHMENT


def test_title_is_navy_serif(texts):
    title = next(text for text in texts if text.get_text().startswith("Multi-Head"))
    assert to_hex(title.get_color()) == NAVY
    assert title.get_fontname() == "DejaVu Serif"


def test_no_text_overlaps_another(texts, drawn):
    boxes = [(text.get_text(), box(text, drawn)) for text in texts]
    assert [(a, b) for (a, box_a), (b, box_b) in combinations(boxes, 2) if box_a.overlaps(box_b)] == []


def test_no_text_touches_the_border(texts, drawn):
    low, high = BORDER + 4, SHOWN - BORDER - 4
    for text in texts:
        bounds = box(text, drawn)
        assert low <= min(bounds.min) and max(bounds.max) <= high, text.get_text()


def test_no_arrow_crosses_a_text(texts, drawn):
    arrows = drawn[0].findobj(FancyArrowPatch)
    assert len(arrows) == 4 * (3 + 3 + 1) + 2
    for arrow in arrows:
        for line in arrow.get_transform().transform_path(arrow.get_path()).to_polygons(closed_only=False):
            for text in texts:
                assert not Path(line).intersects_bbox(box(text, drawn), filled=False), text.get_text()


def test_text_is_at_least_9_pt_scripts_included(texts):
    for text in texts:
        words = text.get_text()
        math_parts = "".join(words.split("$")[1::2])
        smallest = 0.7 * text.get_size() if re.search(r"[_^]", math_parts) else text.get_size()
        assert smallest >= 9, words
        assert not re.search(r"[_^]\{[^}]*[_^]", math_parts), f"script on a script in {words}"


def linear(rgb):
    rgb = np.asarray(rgb)
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(a, b):
    """WCAG's contrast ratio."""
    darker, lighter = sorted(linear(color) @ [0.2126, 0.7152, 0.0722] for color in (a, b))
    return (lighter + 0.05) / (darker + 0.05)


def test_text_stands_out_from_what_is_behind_it():
    figure = poster()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    canvas = FigureCanvasAgg(figure)
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    for text in texts:
        text.set_visible(False)
    canvas.draw()
    behind = np.asarray(canvas.buffer_rgba())[::-1, :, :3] / 255  # row 0 at the bottom, as in the boxes
    for text, bounds in zip(texts, boxes):
        for x in np.linspace(bounds.x0, bounds.x1, 9).astype(int):
            paper = behind[int(bounds.y0 + bounds.y1) // 2, x]
            assert contrast(to_rgb(text.get_color()), paper) >= 4.5, text.get_text()


# --- the alternative text and the files ---


def test_alt_says_what_the_poster_says():
    alt = plain(POSTER_ALT).lower()
    assert plain(" ".join(SENTENCE)).lower() in alt
    for lane in LANES:
        assert plain(f"{lane.name}, {lane.job}").lower() in alt
    for said in ("“say” looks at “sailors”", "“needs” at “boat”", "“their” looks at “sailors”"):
        assert said in POSTER_ALT
    assert plain("MHA(Q, K, V) = Concat(head_1, ..., head_h) W^O.").lower() in alt


def test_saving_twice_gives_the_same_bytes(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = save_poster(tmp_path / "a"), save_poster(tmp_path / "b")
    assert [path.name for path in first] == ["poster.png", "poster.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]

    height, width = imread(first[0]).shape[:2]
    assert height == width >= 2000
    svg = ElementTree.parse(first[1]).getroot()
    assert svg.get("width") == svg.get("height")
    tags = {element.tag.rpartition("}")[2] for element in svg.iter()}
    assert "text" not in tags and "date" not in tags  # letters are paths; no clock


# --- the head colors ---

# Machado, Oliveira and Fernandes 2009, severity 1, for linear RGB.
VISION = {
    "normal": np.eye(3),
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
RGB_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(hex_color, vision):
    seen = np.clip(VISION[vision] @ linear(to_rgb(hex_color)), 0, 1)
    t = RGB_TO_XYZ @ seen / RGB_TO_XYZ.sum(axis=1)
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("count, floor", [(4, 26), (8, 22), (12, 16)])
def test_head_colors_differ_for_every_vision(vision, count, floor):
    seen = [lab(color, vision) for color in HEAD_COLORS[:count]]
    assert len(seen) == count
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > floor


@pytest.mark.parametrize("paper, least", [(PARCHMENT, 3), ("white", 3), ("#111111", 2.5)])
def test_head_colors_are_seen_on_paper_and_on_the_dark_page(paper, least):
    for color in HEAD_COLORS:
        assert contrast(to_rgb(color), to_rgb(paper)) >= least


def test_weight_colors_are_those_of_viridis():
    assert [to_hex(colormaps["viridis"](step / 15)) for step in range(16)] == WEIGHT_COLORS
