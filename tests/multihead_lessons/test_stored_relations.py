"""stored_relations.py: the stored file against the floor, against its own layers and against fresh runs."""

import json

import pytest
import torch
from torch.testing import assert_close

from multihead.relations import evaluate, floor
from multihead_lessons import stored_relations as stored
from multihead_lessons.stored_relations import (
    CASES, HEADS, PATH, TWO, WIDTHS, Case, stored_errors, stored_layer,
)

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_size = pytest.mark.parametrize("h, width", [(h, width) for h in HEADS for width in WIDTHS])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@every_case
def test_stored_errors_respect_the_floor(case):
    errors = stored_errors(case)
    assert errors.shape == (case.seeds, case.task.n_relations)
    totals = errors.mean(1)
    if case.floor is not None:
        assert totals.min() > case.floor - 0.002  # the scatter of a finite test set
        assert totals.median() < case.floor + 0.005


def test_one_head_shares_its_error_differently_from_seed_to_seed():
    errors = stored_errors(Case(TWO, 1))
    assert_close(errors.sum(1), torch.ones(20), atol=0.01, rtol=0)
    assert errors[:, 0].min() < 0.3 and errors[:, 0].max() > 0.7


def test_a_head_that_reads_content_gets_below_one_half_but_not_to_zero():
    """With one number in an attribute; with four it stays at one half."""
    one, four = (stored_errors(case).mean(1) for case in CASES if case.steps == 4000)
    assert 0.3 < one.min() and one.max() < 0.48
    assert_close(four, torch.full((3,), 0.5), atol=0.005, rtol=0)


@every_size
def test_stored_layers_have_their_stored_errors(h, width):
    layer, errors = stored_layer(h, width)
    assert (layer.h, layer.w_o.in_features) == (h, width)
    assert_close(evaluate(layer)[1], errors, atol=1e-4, rtol=1e-3)
    total = errors.mean().item()
    if (h, width) == (8, 16):
        assert 0.03 < total < 0.1
    else:
        assert total == pytest.approx(floor(2, h), abs=0.003)


def test_what_is_not_stored_is_refused_by_name():
    with pytest.raises(ValueError, match="n 2 h 16 width 32"):
        stored_errors(Case(TWO, 16))
    with pytest.raises(ValueError, match="layer h 16 width 16"):
        stored_layer(16, 16)


def test_the_file_is_what_the_script_writes():
    text = PATH.read_text(encoding="utf-8")
    assert stored._text(json.loads(text)) == text
    assert len(json.loads(text)) == len(CASES) + len(HEADS) * len(WIDTHS)
    assert len(text) < 300_000


def test_the_script_writes_its_file_and_repeats_itself(tmp_path, monkeypatch, capsys):
    case = Case(TWO, 2, steps=20, seeds=2)
    monkeypatch.setattr(stored, "CASES", [case])
    monkeypatch.setattr(stored, "HEADS", (2,))
    monkeypatch.setattr(stored, "WIDTHS", ())
    texts = []
    for run in ("first", "second"):
        monkeypatch.setattr(stored, "PATH", tmp_path / run / "relations.json")
        stored.main()
        texts.append(stored.PATH.read_bytes())
    assert texts[0] == texts[1]
    assert list(json.loads(texts[0])) == [str(case)]
    assert str(case) in capsys.readouterr().out


def test_one_layer_of_the_file_repeats():
    assert stored._layer_entry(2, 16)["errors"] == pytest.approx([0, 0], abs=0.003)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.steps == 600], ids=str)
def test_one_seed_of_each_row_repeats(case):
    """Totals only: how one head shares its error may differ where sums round differently."""
    fresh = stored._case_errors(case, seed=3)
    assert_close(fresh.mean(), stored_errors(case)[3].mean(), atol=0.002, rtol=0)
