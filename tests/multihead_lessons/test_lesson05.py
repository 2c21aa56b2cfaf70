"""Lesson 05: the stills say what they claim, both explorers render every kind of state, and their numbers are right."""
import itertools
import math
import random
import xml.etree.ElementTree as ET

import pytest
import torch
from pictures import SVG, check_picture

import multihead as mh
from multihead_lessons import lesson05, plane
from multihead_lessons.lesson05 import Split, draw_angles, draw_plane, head_angles
from multihead_lessons.quiz import Quiz

STILLS = [lesson05.three_spaces, lesson05.pieces_and_shadows, lesson05.three_lines, lesson05.angles_in_space]


@pytest.mark.parametrize("still", STILLS, ids=lambda still: still.__name__)
def test_stills(still):
    check_picture(still())


def texts(picture):
    return ["".join(text.itertext()) for text in ET.fromstring(picture.svg).iter(f"{SVG}text")]


def test_stills_hold_the_numbers_of_the_lesson():
    angles = [word for word in texts(lesson05.three_spaces()) if word.startswith("angle")]
    assert angles == ["angle 90°", "angle 45°", "angle 72°"]
    sums = {"(-1, 0) + (2, 2) = (1, 2) = v", "(1, 0) + (1.5, 1.5) = (2.5, 1.5), not v"}
    assert sums <= set(texts(lesson05.pieces_and_shadows()))
    assert {"one principal angle: 60°", "principal angles: 0° and 60°"} <= set(texts(lesson05.angles_in_space()))


def test_the_shadow_leaves_a_right_angle():
    x, y = lesson05.shadow((1.0, 2.0), (3.0, -1.0))
    assert math.isclose((1 - x) * 3 + (2 - y) * -1, 0, abs_tol=1e-12) and math.isclose(x * -1, y * 3)


# The plane

def test_states_of_the_plane_explorer():
    """Every angle of either line, every direction and length of v, lines that coincide, with the rest drawn at random."""
    explorer = lesson05.plane_explorer()
    draw = random.Random(0)
    ranges = {control.name: control.values({}) for control in explorer.controls}

    def states():
        for name, values in ranges.items():
            for value in values:
                yield {**{other: draw.choice(rest) for other, rest in ranges.items()}, name: value}
        for angle, length, show in itertools.product((10, 40, 190), ranges["length"], ranges["show"]):
            yield {"first": 10, "second": 10, "angle": angle, "length": length, "show": show}
        for second, angle in itertools.product((9, 11, 13, 100, 175, 179), (0, 10, 95, 270)):
            yield {"first": 10, "second": second, "angle": angle, "length": 3, "show": "pieces"}
        for preset in explorer.presets.values():
            yield {**explorer.state, **preset}
    for number, state in enumerate(states()):
        picture = draw_plane(**state)
        if number % 3 == 0:  # measuring text is slow
            check_picture(picture)


@pytest.mark.parametrize("first, second, angle, length", [
    (0, 90, 30, 2), (10, 70, 40, 3), (170, 5, 90, 1), (10, 11, 200, 3)])
def test_the_pieces_lie_on_their_lines_and_add_up_to_v(first, second, angle, length):
    split = Split(first, second, angle, length)
    pieces = split.pieces()
    for piece, (x, y) in zip(pieces, split.directions):
        assert math.isclose(piece[0] * y, piece[1] * x, abs_tol=1e-9)
    assert [sum(x) for x in zip(*pieces)] == pytest.approx(split.v)
    lengths = [f"{length:,.2f}" if length < 100 else f"{length:,.0f}" for length in (math.hypot(*piece) for piece in pieces)]
    status = draw_plane(first, second, angle, length, "pieces").status
    assert f"has one split, a piece of length {lengths[0]} and one of {lengths[1]}" in status


def test_uniqueness_dies_where_the_lines_meet():
    assert "has one split" in draw_plane(10, 11, 40, 3, "pieces").status
    off, on, back = (draw_plane(10, 10, angle, 3, "pieces").status for angle in (40, 10, 190))
    assert "has no split" in off and "infinitely many splits" in on and "infinitely many splits" in back
    assert "condition number: infinite" in texts(draw_plane(10, 10, 40, 3, "pieces"))


@pytest.mark.parametrize("gap", [1, 15, 60, 90])
def test_condition_number_and_longest_piece_of_two_lines(gap):
    words = texts(draw_plane(20, 20 + gap, 20 + gap + 90, 1, "pieces"))
    half = math.radians(gap) / 2
    assert f"condition number {lesson05._figure(1 / math.tan(half))}" in words
    longest = lesson05._figure(1 / math.sin(2 * half))
    assert f"a vector of length 1 can have a piece of length {longest}" in words
    assert longest in words  # v at right angles to the second line reaches it


def test_shadows_add_up_to_v_only_at_right_angles():
    assert "their sum is v" in draw_plane(20, 110, 70, 3, "shadows").status
    # At 60 degrees, with v halfway: each shadow is 3 cos 30, their sum 2 * 3 * cos 30 squared = 4.5.
    assert "have the lengths 2.60 and 2.60; their sum misses v by 1.50." in draw_plane(10, 70, 40, 3, "shadows").status


@pytest.mark.parametrize("first, second, gap", [(0, 179, 1), (170, 10, 20), (0, 90, 90), (45, 45, 0), (20, 120, 80)])
def test_the_angle_between_two_lines(first, second, gap):
    assert Split(first, second, 0, 1).gap == gap


def test_every_move_changes_picture_and_sentence():
    explorer = lesson05.plane_explorer()
    seen = {explorer.view.value}
    for values in ({"first": 70}, {"angle": 45}, {"angle": 70}, {"length": 1}, {"show": "shadows"}, {"second": 160},
                   {"angle": 30}):
        explorer.set(**values)
        assert 'role="alert"' not in explorer.view.value and explorer.view.value not in seen
        seen.add(explorer.view.value)


@pytest.mark.parametrize("name, value, words", [
    ("first", 180, "H₁ angle = 180 is not possible here: choose 0 to 179."), ("angle", -1, "choose 0 to 359"),
    ("length", 7, "v length = 7 is not on offer here; choose from 1, 2 and 3.")])
def test_an_impossible_angle_is_answered(name, value, words):
    explorer = lesson05.plane_explorer()
    explorer.set(**{name: value})
    assert words in explorer.view.value and 'role="alert"' in explorer.view.value


def test_any_degree_may_be_typed():
    explorer = lesson05.plane_explorer()
    explorer.set(first=11, second=13)
    assert explorer.state["first"] == 11 and "open by 2°" in explorer.view.value


# Angles between heads

@pytest.mark.parametrize("d_model, h, orthogonal", [(24, 2, False), (24, 12, False), (48, 3, False), (48, 4, True)])
def test_the_angles_are_the_librarys(d_model, h, orthogonal):
    bases = [b.double() for b in mh.random_bases(d_model, h, torch.Generator().manual_seed(3), orthogonal)]
    angles = head_angles(d_model, h, orthogonal, 3)
    pairs = [mh.principal_angles(a, b).rad2deg() for a, b in itertools.combinations(bases, 2)]
    close = {"atol": 1e-3 if orthogonal else 1e-5, "rtol": 0}  # degrees
    torch.testing.assert_close(angles.every.sort().values, torch.cat(pairs).sort().values, **close)
    for (i, j), pair in zip(itertools.combinations(range(h), 2), pairs):
        assert angles.smallest[i, j] == angles.smallest[j, i]
        torch.testing.assert_close(angles.smallest[i, j], pair[0], **close)
    for i in range(h):
        others = torch.cat(bases[:i] + bases[i + 1:])
        torch.testing.assert_close(angles.others[i], mh.principal_angles(bases[i], others)[0].rad2deg(), **close)


def test_every_state_of_the_angles_explorer():
    """All sizes and kinds of bases; of the five draws one each, for they share the layout."""
    explorer = lesson05.angles_explorer()
    states = list(explorer.states())
    assert {state["d_model"] for state in states} == {24, 48, 96, 192, 384}
    seen = set()
    for number, state in enumerate(state for state in states if state["draw"] == 1 + state["h"] % 5):
        picture = draw_angles(**state)
        if state["d_model"] < 384 or number % 3 == 0:  # measuring text is slow
            check_picture(picture)
        assert state["h"] >= 2 and f"d_model = {state['d_model']} = {state['h']} ×" in picture.status
        assert ("every angle is 90°" in picture.status) == (state["bases"] == "orthogonal")
        seen.add(picture.status)
    assert len(seen) == len([state for state in states if state["draw"] == 1])


def test_the_map_shows_the_smallest_angles():
    words = texts(draw_angles(96, 4, "random", 2))
    angles = head_angles(96, 4, False, 2)
    for i, j in itertools.permutations(range(4), 2):
        assert f"{angles.smallest[i, j]:.0f}" in words
    assert all(lesson05._small(float(angle)) in words for angle in angles.others)
    assert "limit 30.0°" in words  # arccos of 2 sqrt(3 / 16)


@pytest.mark.parametrize("h", [3, 6, 12])
def test_random_heads_lie_near_the_limit_and_almost_touch_the_others(h):
    angles = head_angles(384, h, False, 1)
    pairs = angles.smallest[*torch.triu_indices(h, h, 1)]
    assert (pairs - lesson05.limit(h)).abs().max() < 6
    assert angles.others.max() < 2


def test_a_draw_matters_only_at_random():
    explorer = lesson05.angles_explorer()
    before = explorer.view.value
    explorer.set(draw=2)
    assert explorer.view.value != before
    draw = explorer.controls[3].widget
    explorer.set(bases="orthogonal")
    assert draw.layout.display == "none" and "every angle is 90°" in explorer.view.value
    explorer.set(bases="random")
    assert draw.layout.display is None


@pytest.mark.parametrize("name, value, words", [
    ("h", 5, "h = 5 is not on offer here"), ("d_model", 768, "24, 48, 96, 192 and 384")])
def test_sizes_that_are_not_on_offer(name, value, words):
    explorer = lesson05.angles_explorer()
    explorer.set(**{name: value})
    assert words in explorer.view.value and 'role="alert"' in explorer.view.value


def test_the_histogram_counts_every_angle():
    """Two random halves: each degree holds its share, and the bars add up to one."""
    angles = torch.linspace(0.01, math.pi / 2, 900)
    picture = lesson05.distribution(angles, 2)
    check_picture(picture)
    bars = next(path for path in ET.fromstring(picture.svg).iter(f"{SVG}path") if path.get("fill-opacity")).get("d")
    assert bars.count("M") == 45


# Quizzes, and the drawing of a learner's split

@pytest.mark.parametrize("make", [
    lesson05.three_lines_quiz, lesson05.pieces_quiz, lesson05.two_heads_quiz, lesson05.others_quiz, lesson05.symmetry_quiz])
def test_quizzes_explain_every_choice(make):
    quiz = make()
    assert isinstance(quiz, Quiz) and all(len(option.because) > 40 for option in quiz.options)


def test_a_comparison_says_what_was_found():
    picture = plane.comparison((1, 2), [(1, 0), (1, 1)], [(-1, 0), (2, 2)], [(1, 0), (1.5, 1.5)])
    check_picture(picture)
    assert "your function gives (1, 0) and (1.5, 1.5)" in picture.alt
    assert "(1, 0) + (1.5, 1.5) = (2.5, 1.5), not v" in texts(picture)


def test_arrows_end_at_their_tips():
    assert "L" in plane.arrow(0, 0, 100, 0, "red") and plane.arrow(0, 0, 100, 0, "red").count("M100 0") == 1
    assert plane.arrow(0, 0, 3, 0, "red").startswith("<circle")


def test_strokes_end_at_the_frame():
    window = plane.Plane(0, 0, 200, 1)  # 100 pixels to the unit
    ends = ET.fromstring(window.segment((-3, 0.5), (5, 0.5), "red")).attrib
    assert [float(ends[name]) for name in ("x1", "y1", "x2", "y2")] == [0, 50, 200, 50]
    assert window.segment((2, -1), (2, 1), "red") == window.segment((3, 0), (0, 3), "red") == ""
    assert "path" in window.arrow((0, 0), (1, 1), "red") and "path" not in window.arrow((0, 0), (1, 1.1), "red")
    slanted = ET.fromstring(window.line((2, 1), "red")).attrib
    assert [float(slanted[name]) for name in ("x1", "y1", "x2", "y2")] == [0, 150, 200, 50]
