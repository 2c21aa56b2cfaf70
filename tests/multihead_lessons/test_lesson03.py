"""Lesson 03: the stills say what they claim, the explorer renders every kind of state, at GPT-3's sizes at once."""
import random

import pytest
import torch
from pictures import check_picture

from multihead_lessons import lesson03
from multihead_lessons.quiz import Quiz

STILLS = [lesson03.memory_line, lesson03.regrouping, lesson03.direct_view, lesson03.conventions, lesson03.merge_without_transpose, lesson03.who_meets_whom]


@pytest.mark.parametrize("still", STILLS, ids=lambda still: still.__name__)
def test_stills(still):
    check_picture(still())


def test_the_right_numbers_are_framed_in_the_direct_view():
    assert "8 of 12 places hold another number" in lesson03.direct_view().alt
    assert lesson03.direct_view().svg.count("stroke-dasharray") == 8


def test_states_of_the_pipeline_explorer():
    """Each size and index at each of its values, the others drawn at random: every kind of row is rendered."""
    explorer = lesson03.pipeline_explorer()
    draw = random.Random(0)

    def one(fixed: dict) -> dict:
        state = {}
        for control in explorer.controls:
            values = control.values(state)
            state[control.name] = fixed[control.name] if fixed.get(control.name) in values else draw.choice(values)
        return state
    states = [one({control.name: value}) for control in explorer.controls[:3] for value in control.values({}) for _ in range(4)]
    states += [one({"d_model": d, "h": h}) for d in (768, 12288) for h in explorer.controls[3].values({"d_model": d})]
    states += [one(preset) for preset in explorer.presets.values()]
    for number, state in enumerate(states):
        picture = lesson03.draw_pipeline(**state)
        if number % 5 == 0:  # measuring text is slow
            check_picture(picture)
        maps = state["B"] * state["h"]
        assert f"{maps:,} map{'s' * (maps > 1)} of" in picture.status


@pytest.mark.parametrize("B, T, d_model, h", [(2, 4, 768, 12), (1, 4, 48, 4), (2, 1, 48, 4), (2, 3, 8, 1)])
def test_the_copies_in_the_table_are_torchs(B, T, d_model, h):
    q, k, v = (torch.randn(B, T, d_model).view(B, T, h, -1).transpose(1, 2) for _ in range(3))

    def layer():
        out = (q @ k.mT).softmax(-1) @ v
        return out.transpose(1, 2).reshape(B, T, d_model)
    copied = 4 * sum(lesson03.copies_made(layer))
    picture = lesson03.draw_pipeline(B, T, d_model, h, 0, 0, 0, 0, "explicit")
    assert (f"{lesson03._size(copied)} is copied" if copied else "nothing is copied") in picture.status


def test_a_chosen_element_lies_where_the_picture_says():
    x = torch.arange(2 * 4 * 48).view(2, 4, 48)
    q = x.view(2, 4, 6, 8).transpose(1, 2)
    for index in [(0, 0, 0, 0), (1, 5, 3, 7), (1, 2, 0, 3)]:
        b, head, t, k = index
        assert f"lies at address {q[index]:,}." in lesson03.draw_pipeline(2, 4, 48, 6, b, head, t, k, "fused").status


@pytest.mark.parametrize("name, value, words", [
    ("h", 5, "h = 5 is not possible for d_model = 768"), ("T", 0, "choose 1 to"), ("k", 64, "indices 0 to 63"), ("b", 2, "indices 0 to 1")])
def test_an_impossible_value_is_answered(name, value, words):
    explorer = lesson03.pipeline_explorer()
    explorer.set(**{name: value})
    assert words in explorer.view.value and 'role="alert"' in explorer.view.value


def test_bytes_are_given_to_four_digits():
    assert [lesson03._size(count) for count in (0, 96, 1536, 1024**2 * 3 // 2, 1023 * 1024, 48 * 2**30)] == [
        "0 B", "96 B", "1.5 KiB", "1.5 MiB", "1,023 KiB", "48 GiB"]


def test_any_size_may_be_typed():
    explorer = lesson03.pipeline_explorer()
    explorer.set(T=777, d_model=1000, h=8)
    assert explorer.state["T"] == 777 and "1,000 = 8 × 125" in explorer.view.value


@pytest.mark.parametrize("make", [lesson03.direct_view_quiz, lesson03.skipped_transpose_quiz, lesson03.copy_quiz])
def test_quizzes_explain_every_choice(make):
    quiz = make()
    assert isinstance(quiz, Quiz) and all(len(option.because) > 40 for option in quiz.options)
