"""Lesson 04: the stills say what they claim, the explorer's numbers are those of the layer with its bands of W_O scaled."""
import random
import xml.etree.ElementTree as ET

import pytest
import torch
from pictures import check_picture

from multihead.relations import relative_errors
from multihead_lessons import lesson04
from multihead_lessons.quiz import Quiz
from multihead_lessons.stored_relations import HEADS, WIDTHS, stored_layer

STILLS = [lesson04.joining, lesson04.reshape_alone, lesson04.bands, lesson04.arrows]
every_size = pytest.mark.parametrize("h, d_model", [(h, d_model) for h in HEADS for d_model in WIDTHS])


def draw(h, d_model, *percent):
    gains = {f"gain_{i + 1}": percent[i] if i < len(percent) else 100 for i in range(lesson04.MOST)}
    return lesson04.draw_gains(h, d_model, **gains)


def texts(picture):
    return list(ET.fromstring(picture.svg).itertext())


@pytest.mark.parametrize("still", STILLS, ids=lambda still: still.__name__)
def test_stills(still):
    check_picture(still())


def test_the_right_numbers_are_framed_in_the_reshape():
    assert "8 of 12 places hold another number" in lesson04.reshape_alone().alt
    assert lesson04.reshape_alone().svg.count("stroke-dasharray") == 8


def test_the_pairs_do_what_their_titles_say():
    surplus = [lesson04.square(pair.total) - lesson04.square(pair.first) - lesson04.square(pair.second) for pair in lesson04.PAIRS]
    assert surplus[0] > 0 and surplus[1] == 0 and surplus[2] < 0 and lesson04.square(lesson04.PAIRS[3].total) == 0
    assert len({pair.first for pair in lesson04.PAIRS}) == 1


def scaled(h, d_model, gains):
    """The stored layer with head i's columns of w_o multiplied by gains[i], and its errors on the evaluation set."""
    layer = stored_layer(h, d_model)[0].double()
    with torch.no_grad():
        layer.w_o.weight *= torch.tensor(gains, dtype=torch.float64).repeat_interleave(d_model // h)
        batch = layer.task.batch(torch.Generator().manual_seed(0), lesson04.SEQUENCES)
        output = layer(batch.x.double())
    return output, batch.targets.double(), relative_errors(output, batch.targets.double(), 2)


@every_size
def test_errors_are_those_of_a_layer_with_scaled_bands(h, d_model):
    gains = [random.Random(i).choice(lesson04.GAINS) / 100 for i in range(h)]
    output, targets, errors = scaled(h, d_model, gains)
    assert lesson04.errors(h, d_model, gains) == pytest.approx(errors.tolist(), abs=1e-9)
    layer, given = lesson04.measured(h, d_model), torch.tensor(gains, dtype=torch.float64)
    torch.testing.assert_close(layer.written(given), output.square().unflatten(-1, (2, 4)).mean((0, 1, 3)))
    sequence, token = lesson04.EXAMPLE
    torch.testing.assert_close((layer.token * given[:, None, None]).sum(0).flatten(), output[sequence, token])
    torch.testing.assert_close(layer.wanted.flatten(), targets[sequence, token])


@every_size
def test_with_every_gain_at_one_the_errors_are_the_stored_ones(h, d_model):
    assert lesson04.errors(h, d_model, [1] * h) == pytest.approx(stored_layer(h, d_model)[1].tolist(), abs=0.01)


def test_without_any_head_the_error_is_one_and_a_head_alone_meets_nobody():
    assert lesson04.errors(4, 32, [0] * 4) == [1, 1]
    layer = lesson04.measured(4, 32)
    for i in range(4):
        alone = torch.eye(4, dtype=torch.float64)[i]
        torch.testing.assert_close(layer.written(alone), layer.written_apart(alone))


@every_size
def test_states_of_the_explorer(h, d_model):
    choose = random.Random(h * d_model)
    settings = [(100,) * 8, (0,) * 8, (200,) * 8, *[[choose.choice(lesson04.GAINS) for _ in range(8)] for _ in range(2)]]
    for percent in settings:
        picture = draw(h, d_model, *percent)
        check_picture(picture)
        labels = [words for words in texts(picture) if words.startswith("head ") and ":" in words]
        assert labels == [f"head {i + 1}: {f'{gain} %' if gain else 'off'}" for i, gain in enumerate(percent[:h])]
        a, b = lesson04.errors(h, d_model, [gain / 100 for gain in percent[:h]])
        assert f"error {a:.2f} on relation a, {b:.2f} on relation b." in picture.status


def test_the_words_about_adding_and_canceling():
    assert [lesson04._meeting(*pair) for pair in [(0.5, 0.9), (0.5, 0.3), (0.5, 0.51), (0, 0)]] == ["add", "cancel", "neither", "write 0"]
    assert {"add", "neither", "0.55", "0.99"} <= set(texts(draw(4, 32)))


def test_the_explorer_shows_a_slider_for_each_head():
    explorer = lesson04.gains_explorer()
    sliders = explorer.controls[2:]

    def shown():
        return sum(slider.widget.layout.display is None for slider in sliders)
    for h in HEADS:
        explorer.set(h=h)
        assert shown() == h and f"h = {h}" in explorer.view.value


def test_presets_and_typed_gains():
    explorer = lesson04.gains_explorer()
    assert explorer.preset.value == "all heads"
    explorer.preset.value = "h = 4, lose head 3"
    assert "gains 100, 100, 0, 100 %: error 0.13 on relation a" in explorer.view.value
    explorer.set(gain_1=155)
    assert "gains 155, 100, 0, 100 %: error 0.01 on relation a" in explorer.view.value and explorer.preset.value is None


@pytest.mark.parametrize("gain", [-1, 201])
def test_an_impossible_gain_is_answered(gain):
    explorer = lesson04.gains_explorer()
    explorer.set(gain_2=gain)
    assert f"head 2 = {gain} is not possible here: a gain is 0 to 200 percent." in explorer.view.value and 'role="alert"' in explorer.view.value


@pytest.mark.parametrize("make", [lesson04.merge_quiz, lesson04.meeting_quiz, lesson04.lost_head_quiz, lesson04.mask_quiz])
def test_quizzes_explain_every_choice(make):
    quiz = make()
    assert isinstance(quiz, Quiz) and all(len(option.because) > 40 for option in quiz.options)
