"""Lesson 02: the stills say what they claim, the explorer counts as the layer does, at GPT-3's sizes at once."""
import io
import random
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from pictures import SVG, check_picture
from torch.utils.flop_counter import FlopCounterMode

import multihead as mh
from multihead_lessons import lesson02
from multihead_lessons.quiz import Quiz

STAIRCASE = torch.block_diag(*[torch.ones(2, 1)] * 4).bool()  # [d_model, h]
STILLS = [lesson02.columns, lesson02.diagonal, lesson02.sharing, lambda: lesson02.reach(~STAIRCASE, STAIRCASE)]


@pytest.mark.parametrize("still", STILLS)
def test_stills(still):
    check_picture(still())


def words(picture) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(picture.svg).iter(f"{SVG}text")]


def test_the_cuts_hold_as_many_weights_as_they_say():
    for picture, sums, missing in ((lesson02.columns(), (16, 16, 16), 0), (lesson02.diagonal(), (16, 8, 4), 20)):
        assert [int(line.split("= ")[1]) for line in words(picture) if "×" in line] == list(sums)
        assert picture.svg.count("stroke-dasharray") == missing
        assert picture.svg.count("<rect") - missing == sum(sums)


def test_the_reach_is_drawn_as_given():
    picture = lesson02.reach(torch.ones(8, 4, dtype=torch.bool), STAIRCASE)
    assert picture.svg.count("stroke-dasharray") == 24
    assert "32 of 32 cells are filled" in picture.alt and "Cut first: 8 are filled" in picture.alt


def test_the_shares_are_those_of_the_layers():
    lines = words(lesson02.sharing())
    for n_kv_heads in (8, 2, 1):
        numel = [sum(p.numel() for p in mh.MultiHeadAttention(24, 8, n_kv_heads=n).parameters()) for n in (n_kv_heads, 8)]
        assert f"weights  {100 * numel[0] / numel[1]:.4g} %" in lines
        assert f"keys and values kept  {100 * n_kv_heads / 8:.4g} %" in lines


def test_the_growth_is_drawn_from_real_maps():
    axes = lesson02.growth().axes[0]
    lines = {len(line.get_ydata()): line for line in axes.lines}
    assert lines[2].get_ydata()[0] * 2**20 == 4 * mh.count_parameters(768, 12)
    for h, line in zip((1, 4, 12), axes.lines):
        _, maps = mh.MultiHeadAttention(48, h).heads(torch.randn(1, 64, 48))
        assert line.get_xdata()[0] == 64 and line.get_ydata()[0] * 2**20 == maps.nbytes
    smallest = min(text.get_fontsize() for text in [*axes.texts, *axes.get_xticklabels(), axes.xaxis.label])
    assert smallest >= 9
    lesson02.growth().savefig(io.BytesIO())


# The explorer

def states(explorer, count: int):
    """Each value of each control, the presets, and then some: the other controls at random."""
    draw = random.Random(0)

    def complete(fixed: dict) -> dict:
        state = {}
        for control in explorer.controls:
            values = control.values(state)
            state[control.name] = fixed[control.name] if fixed.get(control.name) in values else draw.choice(values)
        return state
    yield from (complete(preset) for preset in explorer.presets.values())
    for control in explorer.controls[:2] + explorer.controls[4:]:
        yield from (complete({control.name: value}) for value in control.values({}))
    yield from (complete({}) for _ in range(count))


EXTREMES = [dict(d_model=d_model, d_k=d_k, h=h, n_kv_heads=n, T=T, B=B) for d_model, d_k, h, n, T, B in [
    (65_536, "d_model / h", 128, 128, 131_072, 1024), (65_536, "64", 1, 1, 131_072, 1024),
    (1, "256", 128, 128, 131_072, 1024), (1, "d_model / h", 1, 1, 1, 1), (65_536, "256", 128, 1, 1, 1)]]


def test_states_of_the_budget_explorer():
    explorer = lesson02.budget_explorer()
    seen = set()
    for number, state in enumerate([*EXTREMES, *states(explorer, 40)]):
        picture = lesson02.draw_budget(**state)
        if number % 3 == 0 or state in EXTREMES:  # measuring text is slow
            check_picture(picture)
        seen.add((picture.svg, tuple(state.values())))
    assert len({svg for svg, _ in seen}) == len({state for _, state in seen})


@pytest.mark.parametrize("d_model, h, n_kv_heads, d_k, T, B", [
    (48, 6, 6, 8, 5, 1), (48, 6, 2, 8, 5, 3), (24, 4, 4, 16, 7, 2), (24, 3, 1, 5, 7, 2)])
def test_the_counts_are_those_of_the_layer(d_model, h, n_kv_heads, d_k, T, B):
    def measured(layer):
        x = torch.randn(B, T, d_model)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            _, maps = layer.heads(x)
            layer(x)
        flops = counter.get_total_flops() - _core_flops(layer, x)
        kept = (layer.w_k(x[0, 0]).half().nbytes + layer.w_v(x[0, 0]).half().nbytes)
        return sum(p.numel() for p in layer.parameters()), flops, maps.nbytes, kept
    found = lesson02.budget(d_model, h, n_kv_heads, d_k, T, B)
    ours = measured(mh.MultiHeadAttention(d_model, h, n_kv_heads=n_kv_heads, d_k=d_k))
    one = measured(mh.MultiHeadAttention(d_model, 1))
    assert list(found.values()) == list(zip(ours, one))


def _core_flops(layer, x) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer.heads(x)
    return counter.get_total_flops()


def test_a_cut_alone_changes_nothing_but_the_maps():
    for h in mh.divisors(768)[:14]:
        status = lesson02.draw_budget(768, "d_model / h", h, h, 1024, 1).status
        assert f"weights 1 ×, FLOPs 1 ×, maps {h} ×, kept keys and values 1 ×." in status


def test_one_times_is_said_only_when_it_is_exactly_one():
    picture = lesson02.draw_budget(65_535, "d_model / h", 1, 1, 16, 1)
    assert "weights 1 ×" in picture.status
    assert "weights about 1 ×" in lesson02.draw_budget(12_800 * 5 + 1, "128", 100 * 5, 500, 16, 1).status


def bar(svg_text: str) -> list[tuple[float, float]]:
    """(left, right) of each bar, in order."""
    return [(float(x), float(x) + float(width)) for x, width in
            re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="24"', svg_text)]


def test_bars_are_as_long_as_their_ratios():
    picture = lesson02.draw_budget(8192, "d_model / h", 64, 8, 1024, 1)
    weights, _, maps, kept = bar(picture.svg)
    assert maps == (lesson02.ONE, lesson02.ONE + 6 * lesson02.DOUBLING)  # 64 times
    assert kept == (lesson02.ONE - 3 * lesson02.DOUBLING, lesson02.ONE)  # an eighth
    assert weights[1] == lesson02.ONE and 0 < weights[1] - weights[0] < lesson02.DOUBLING  # between a half and one


def test_llama_and_t5_are_shown_as_published():
    explorer = lesson02.budget_explorer()
    explorer.preset.value = "Llama-3-70B"
    assert "150,994,944" in explorer.view.value and "weights 0.5625 ×" in explorer.view.value
    explorer.preset.value = "T5-11B"
    assert "128 × 128 = 16,384" in explorer.view.value and "weights 16 ×" in explorer.view.value
    explorer.preset.value = "GPT-3 175B"
    assert "603,979,776" in explorer.view.value and "maps 96 ×" in explorer.view.value


def test_every_preset_is_a_state_of_the_explorer():
    explorer = lesson02.budget_explorer()
    assert explorer.preset.value == "GPT-2 small"
    for name, preset in explorer.presets.items():
        explorer.preset.value = name
        assert preset.items() <= explorer.state.items() and 'role="alert"' not in explorer.view.value


@pytest.mark.parametrize("typed, words", [
    ({"h": 5}, "h = 5 does not divide d_model = 768: choose a divisor up to 128, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128."),
    ({"h": 0}, "h = 0 does not divide"), ({"h": 768}, "h = 768 is more than fits"),
    ({"n_kv_heads": 5}, "5 key/value heads cannot serve h = 12 heads equally: choose a divisor, 1, 2, 3, 4, 6, 12."),
    ({"n_kv_heads": 0}, "0 key/value heads cannot"), ({"n_kv_heads": -3}, "-3 key/value heads cannot"),
    ({"d_k": "64", "h": 200}, "choose 1 to 128"),
    ({"T": 0}, "choose 1 to"), ({"B": -1}, "choose 1 to"), ({"d_model": 0}, "choose 1 to 65,536")])
def test_an_impossible_count_is_answered(typed, words):
    explorer = lesson02.budget_explorer()
    explorer.set(**typed)
    assert words in explorer.view.value and 'role="alert"' in explorer.view.value


def test_more_heads_stay_plain_multi_head_until_the_reader_shares():
    explorer = lesson02.budget_explorer()
    explorer.set(h=16)
    assert explorer.state["n_kv_heads"] == 16
    explorer.set(n_kv_heads=4)
    explorer.set(h=8)
    assert explorer.state["n_kv_heads"] == 4


def test_any_h_goes_with_a_chosen_width():
    explorer = lesson02.budget_explorer()
    explorer.set(d_k="64", h=5)
    assert explorer.state["h"] == 5 and "5 × 64 = 320" in explorer.view.value
    explorer.set(d_k="d_model / h")
    assert explorer.state["h"] == 4


@pytest.mark.parametrize("make", [lesson02.twelve_heads_quiz, lesson02.bump_quiz, lesson02.growth_quiz,
                                  lesson02.shared_heads_quiz])
def test_quizzes(make):
    quiz = make()
    assert isinstance(quiz, Quiz) and len(quiz.options) == 4
    assert all(len(option.because) > 40 for option in quiz.options)
