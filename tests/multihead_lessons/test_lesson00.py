"""Start here: the environment cell and every state of the first explorer."""
import importlib.metadata
import xml.etree.ElementTree as ET

import pytest
import torch
from pictures import check_picture

import multihead as mh
from multihead_lessons import lesson00
from multihead_lessons.explorer import Explorer


def test_a_good_environment_gets_the_fixed_sentence():
    assert lesson00.environment_report() == "All is well: the course is ready to run."


@pytest.mark.parametrize("version, sentence", [(None, "torch is missing; run"), ("2.5.1+cpu", "torch 2.5.1+cpu does not fit")])
def test_a_bad_environment_is_told_what_to_do(monkeypatch, version, sentence):
    real = importlib.metadata.version

    def fake(name):
        if name == "torch" and version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version if name == "torch" else real(name)
    monkeypatch.setattr(importlib.metadata, "version", fake)
    assert lesson00.environment_report().startswith(sentence) and "requirements.txt" in lesson00.environment_report()


def test_an_old_python_is_told(monkeypatch):
    monkeypatch.setattr(lesson00.platform, "python_version", lambda: "3.10.9")
    assert lesson00.environment_report() == "Python 3.10.9 does not fit; the course needs >=3.11."


def test_every_state_of_the_first_explorer():
    states = list(lesson00.heads_explorer().states())
    assert len(states) == 40
    seen = set()
    for state in states:
        picture = lesson00.draw_heads(**state)
        check_picture(picture)
        heads = [text for text in ET.fromstring(picture.svg).itertext() if text.startswith("head ")]
        assert heads == [f"head {i + 1}" for i in range(state["h"])]
        seen.add(picture.svg)
    assert len(seen) == len(states)


def test_maps_are_those_of_the_cut_layer():
    maps = lesson00.head_maps(48, 4)
    q, k = (x[0] for x in lesson00._queries_and_keys(48))
    for i in range(4):
        block = slice(12 * i, 12 * (i + 1))
        expected = (q[:, block] @ k[:, block].T / 12**0.5).softmax(-1)
        torch.testing.assert_close(maps[i], expected)


@pytest.mark.parametrize("h, sentence", [(5, "does not divide d_model = 48"), (0, "does not divide"), (-2, "does not divide"),
                                         (48, "room for 16 heads")])
def test_a_typed_h_that_is_not_on_offer(h, sentence):
    explorer = lesson00.heads_explorer()
    assert isinstance(explorer, Explorer)
    explorer.controls[1].field.value = h
    assert sentence in explorer.view.value and "1, 2, 3, 4, 6, 8, 12, 16" in explorer.view.value


def test_the_parameter_count_in_the_picture_is_the_layers():
    layer = mh.MultiHeadAttention(96, 6)
    assert f"{sum(p.numel() for p in layer.parameters()):,} parameters" in lesson00.draw_heads(96, 6).status
