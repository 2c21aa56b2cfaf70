"""Lesson 01: pictures say what they claim, explorers agree with closed forms, the live picture follows training."""
import random

import pytest
import torch
from matplotlib.figure import Figure
from pictures import check_picture

import multihead as mh
from multihead import relations
from multihead_lessons import lesson01
from multihead_lessons.exercises.lesson01 import blend_errors
from multihead_lessons.quiz import Quiz
from multihead_lessons.stored_relations import stored_layer

STILLS = [lesson01.rearranged, lesson01.seeds, lesson01.before_and_after, lesson01.bleu]


@pytest.mark.parametrize("still", STILLS, ids=lambda still: still.__name__)
def test_stills(still):
    check_picture(still())


# The triangle

def test_states_of_the_triangle():
    draw = random.Random(0)
    states = [{f"s{j}": draw.choice(lesson01.SCORES) for j in range(3)} for _ in range(12)]
    states += [{"s0": a, "s1": b, "s2": c} for a in (-6, 6) for b in (-6, 6) for c in (-6, 6)]
    for state in states:
        check_picture(lesson01.draw_triangle(**state))
    assert lesson01.triangle_explorer().state == {"s0": 1, "s1": 1, "s2": -1}


def test_the_blend_is_attentions():
    v = torch.tensor(lesson01.VALUES, dtype=torch.float64)
    for scores in [(1, 1, -1), (0, 0, 0), (-6, 3, 6)]:
        k = torch.tensor(scores, dtype=torch.float64)[:, None]
        output, weights = mh.attention(torch.ones(1, 1, dtype=torch.float64), k, v)
        assert lesson01.weights_of(scores) == pytest.approx(weights[0].tolist())
        assert lesson01.blend(lesson01.weights_of(scores)) == pytest.approx(output[0].tolist())


def test_a_corner_is_said_to_be_near_and_not_reached():
    assert "close to v2, not on it" in lesson01.draw_triangle(-6, -6, 6).status
    assert "close" not in lesson01.draw_triangle(1, 1, -1).status


# The blend

@pytest.mark.parametrize("p", range(0, 101, 5))
def test_one_head_lies_on_the_line(p):
    errors, _ = lesson01.readout(lesson01.blend_patterns(1, p, 0), (0, 1))
    assert errors.tolist() == pytest.approx(blend_errors(p / 100), abs=1e-9)


def test_the_readout_is_a_least_squares_fit():
    """For samples whose second moments are exactly white."""
    noise = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    white = torch.linalg.qr(noise).Q * 50**0.5  # [samples, 4 tokens]
    for heads in (1, 2):
        for p, elsewhere in [(75, 0), (55, 20), (50, 40), (0, 60)]:
            patterns = lesson01.blend_patterns(heads, p, elsewhere)
            blends = white @ patterns.mT  # [samples, heads]
            errors, coefficients = lesson01.readout(patterns, (0, 1))
            left = white[:, :2] - blends @ coefficients
            best = white[:, :2] - blends @ torch.linalg.lstsq(blends, white[:, :2], driver="gelsd").solution
            assert left.square().mean(0).tolist() == pytest.approx(errors.tolist(), abs=1e-9)
            assert best.square().mean(0).tolist() == pytest.approx(errors.tolist(), abs=1e-9)


def test_states_of_the_blend():
    states = list(lesson01.blend_explorer().states())
    assert len(states) == 2 * 21 * 7
    for number, state in enumerate(states):
        picture = lesson01.draw_blend(**state)
        if number % 9 == 0:  # measuring text is slow
            check_picture(picture)
        one, even, nothing_lost = state["heads"] == 1, state["p"] == 50, state["elsewhere"] == 0
        if nothing_lost:
            words = "on the line" if one or even else "both needs are met"
        else:
            words = "above the line" if one or even else "below the line"
        assert words in picture.status, picture.status
        assert ("second head adds nothing" in picture.status) == (not one and even)


# The limit

def test_the_rearranged_picture_shows_the_two_matrices():
    patterns, maps = lesson01.swap_and_keep()
    L = mh.layer_matrix(patterns, maps)
    numbers = "".join(str(int(x)) for x in torch.cat([L.flatten(), mh.rearrange(L, 2, 2).flatten()]))
    drawn = "".join(part[0] for part in lesson01.rearranged().svg.split('font-size="15"')[1:]
                    for part in [part.split(">", 1)[1]])
    assert drawn == numbers
    for row in mh.rearrange(L, 2, 2).int().tolist():
        assert "".join(map(str, row)) in lesson01.rearranged().alt
    assert mh.operator_schmidt_rank(patterns, maps) == 2


# The live experiment

def test_one_thread_is_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), lesson01.one_thread():
            assert torch.get_num_threads() == 1
            1 / 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def two_small_runs():
    task = relations.Task(T=4, numbers=1)
    return {"first": relations.RelationLayer(task, 1, 8), "second": relations.RelationLayer(task, 2, 8)}


def test_curves_grow_while_layers_train():
    layers = two_small_runs()
    live = lesson01.LearningCurves(layers, steps=40)
    seen = []
    live.picture.observe(lambda change: seen.append(change["new"]), "value")
    for name, layer in layers.items():
        curve = relations.train(layer, steps=40, batch=4, progress=live.follow(name))
        assert live.curves[name] == pytest.approx([sum(curve[i:i + 10]) / 10 for i in range(0, 40, 10)])
        assert f"Trained: {name}." in live.sentence.value and 'role="status"' in live.sentence.value
    assert len(seen) == 8
    assert "1 of 2 runs done" in seen[3] and "run 2 of 2, step 10 of 40" in seen[4] and "all runs are done" in seen[-1]
    sizes = {(svg.split('width="')[1].split('"')[0], svg.split('height="')[1].split('"')[0]) for svg in seen}
    assert sizes == {("840", "330")}  # the place of the picture never jumps


def test_the_stored_form_of_the_live_picture_does_not_depend_on_training():
    layers = two_small_runs()
    live = lesson01.LearningCurves(layers, steps=20)
    before = live._repr_mimebundle_()
    relations.train(layers["first"], steps=20, batch=4, progress=live.follow("first"))
    after = live._repr_mimebundle_()
    assert before["text/html"] == after["text/html"] and before["text/plain"] == after["text/plain"]
    assert '<img alt="Empty axes' in before["text/html"] and "application/vnd.jupyter.widget-view+json" in before


@pytest.mark.parametrize("lengths", [(0, 0, 0, 0), (1, 0, 0, 0), (60, 23, 0, 0), (60, 60, 60, 60)])
def test_states_of_the_live_picture(lengths):
    names = list(lesson01.SEEDS)
    curves = {name: [1.3 / (1 + i) for i in range(length)] for name, length in zip(names, lengths)}
    picture = lesson01.draw_curves(curves, {name: 8192 for name in names})
    check_picture(picture)
    assert ("Nothing is trained yet" in picture.status) == (sum(lengths) == 0)


def test_the_still_of_the_curves():
    figure = lesson01.learning_curves({name: [1.0, 0.5] * 30 for name in lesson01.SEEDS})
    assert isinstance(figure, Figure) and len(figure.axes[0].lines) == 4
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == list(lesson01.SEEDS)


# Stored layers

def test_states_of_the_trained_explorer():
    states = list(lesson01.trained_explorer().states())
    assert len(states) == 4 * 3 * 8
    for number, state in enumerate(states):
        picture = lesson01.draw_trained(**state)
        if number % 5 == 0:
            check_picture(picture)
        source_a, source_b = lesson01._targets()[state["token"]]
        assert f"needs a of token {source_a} and b of token {source_b}" in picture.status
        assert f"floor {relations.floor(2, state['h']):.2f}." in picture.status
        assert picture.svg.count("head ") == state["h"] and picture.status.count("head ") == state["h"]


def test_the_weights_in_the_status_are_the_layers():
    layer, errors = stored_layer(2, 32)
    sequence = lesson01._sequence()
    _, maps = layer.double().heads(sequence.x)
    a, b = sequence.pointers[0, 6].tolist()
    status = lesson01.draw_trained(2, 32, 6).status
    for head in (0, 1):
        assert f"head {head + 1} {maps[0, head, 6, a]:.2f} + {maps[0, head, 6, b]:.2f}" in status
    assert f"Errors {errors[0]:.2f} and {errors[1]:.2f}" in status


def test_the_heads_look_where_the_alternative_text_says():
    """One head: most on b, a little on a. Two heads: head 1 on b, head 2 on a."""
    sources = torch.tensor(lesson01._targets())  # [T, 2]
    one = lesson01.maps_of(stored_layer(1, 32)[0]).gather(2, sources[None])  # [1, T, 2]
    two = lesson01.maps_of(stored_layer(2, 32)[0]).gather(2, sources[None].expand(2, -1, -1))
    untrained = lesson01.maps_of(relations.RelationLayer(lesson01.TWO, 2, 32))
    assert one[0, :, 1].min() > 0.6 and 0.08 < one[0, :, 0].min() and one[0, :, 0].max() < 0.3
    assert two[0, :, 1].min() > 0.8 and two[1, :, 0].min() > 0.8
    assert (untrained - 1 / 8).abs().max() < 0.05


@pytest.mark.parametrize("name, value, words", [
    ("h", 3, "h = 3 is not on offer here; choose from 1, 2, 4 and 8"), ("d_model", 48, "choose from 16, 32 and 64"),
    ("token", 8, "token = 8")])
def test_a_layer_that_is_not_stored_is_answered(name, value, words):
    explorer = lesson01.trained_explorer()
    explorer.set(**{name: value})
    assert words in explorer.view.value and 'role="alert"' in explorer.view.value


@pytest.mark.parametrize("make", [lesson01.directions_quiz, lesson01.blend_quiz, lesson01.wider_quiz, lesson01.more_heads_quiz])
def test_quizzes_explain_every_choice(make):
    quiz = make()
    assert isinstance(quiz, Quiz) and all(len(option.because) > 40 for option in quiz.options)
