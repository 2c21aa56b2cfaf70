"""Lesson 06: the record is used and true, the page runs without weights, every kind of state of the explorers renders."""
import json
import random
import re
import runpy

import pytest
import torch
from pictures import check_picture

import multihead as mh
from multihead import weights
from multihead_lessons import lesson06, links, recorded
from multihead_lessons.quiz import Quiz

measured = recorded.Measured(available=False)


def of(name):
    """A recorded quantity."""
    return measured(name, None)


@pytest.fixture(scope="module")
def examples():
    return {sentence: of(f"maps: {sentence}") for sentence in lesson06.EXAMPLES}


# The record

def test_what_is_computed_is_held_against_the_record(monkeypatch):
    monkeypatch.setattr(recorded, "_record", lambda: {"score": {"digits": 2, "values": [0, 123]}})
    live = recorded.Measured(available=True)
    record = torch.tensor([0.0, 1.23], dtype=torch.float64)
    assert torch.equal(live("score", lambda: torch.tensor([0.004, 1.2349])), record)
    with pytest.raises(AssertionError, match="score, computed here, is not what is recorded"):
        live("score", lambda: torch.tensor([0.01, 1.23]))
    with pytest.raises(AssertionError, match=r"is \[3\] here and \[2\] in the record"):
        live("score", lambda: torch.zeros(3))
    assert torch.equal(recorded.Measured(available=False)("score", lambda: 1 / 0), record)


def test_another_models_numbers_are_its_own(monkeypatch):
    monkeypatch.setattr(recorded, "_record", lambda: {"score": {"digits": 2, "values": 5}})
    assert recorded.Measured(True, recorded=False)("score", lambda: torch.tensor(0.777), digits=1) == 0.8


def test_what_is_not_recorded_is_refused():
    with pytest.raises(ValueError, match="nothing is recorded under 'mine': compute a quantity of your own without"):
        recorded.Measured(True)("mine", lambda: torch.zeros(2))


def test_a_record_is_written_as_it_is_read(monkeypatch):
    new = {}
    monkeypatch.setattr(recorded, "being_written", new)
    live = recorded.Measured(True)
    assert live("a", lambda: torch.tensor([[True], [False]]), digits=0).tolist() == [[1], [0]]
    assert live("b", lambda: 0.12345) == 0.123
    assert new == {"a": {"digits": 0, "values": [[1], [0]]}, "b": {"digits": 3, "values": 123}}


def test_the_lesson_runs_without_weights_and_uses_the_whole_record(monkeypatch, capsys):
    def nothing(path=None):
        raise mh.NoWeights("The weights are not here. Run a line.")
    monkeypatch.setattr(weights, "find_weights", nothing)
    used, ask = set(), recorded.Measured.__call__

    def noted(self, name, compute, digits=3):
        used.add(name)
        return ask(self, name, compute, digits)
    monkeypatch.setattr(recorded.Measured, "__call__", noted)
    runpy.run_path(str(recorded.LESSON))
    said = "The weights are not here. Run a line. Until then this page shows recorded numbers and pictures."
    assert said in capsys.readouterr().out
    assert used == set(json.loads(recorded.PATH.read_text(encoding="utf-8")))


def test_the_lesson_holds_for_the_full_precision_file_too(monkeypatch):
    """Its asserts hold, though the numbers are its own."""
    file = weights.FULL.installed()
    if file is None:
        pytest.skip("The full-precision file is not installed; it is not needed.")
    monkeypatch.setattr(weights, "find_weights", lambda path=None: file)
    runpy.run_path(str(recorded.LESSON))


def test_the_install_line_is_the_same_everywhere():
    lesson = recorded.LESSON.read_text(encoding="utf-8")
    assert f"# %{weights.INSTALL}\n" in lesson


# The sentences and their links

def test_links_are_between_words_of_their_sentence():
    sentences = links.sentences()
    assert len(sentences) == 40 and sum(len(sentence.links) for sentence in sentences) == 287
    words = mh.split_words(sentences[0].text)
    assert [(link.relation, words[link.dependent], words[link.governor]) for link in sentences[0].links][:4] == [
        ("det", "the", "cat"), ("det", "a", "mouse"), ("det", "the", "floor"), ("obj", "mouse", "chased")]
    assert sentences[0].links[2].dependent == 7  # the.2
    for sentence in sentences:
        assert all(link.dependent != link.governor for link in sentence.links)
        assert 11 <= len(mh.WordPiece()(sentence.text).ids) <= 16


def test_pairs_have_the_same_words_in_other_roles():
    assert len(links.pairs("paraphrases")) == 16
    for a, b in links.pairs("swapped"):
        assert a != b and sorted(a.split()) == sorted(b.split())


def test_the_best_offset_is_the_distance_that_most_links_have():
    subjects = links.Relation("", ("subj",))
    distances = [target - source for _, source, target in subjects.cases()]
    assert subjects.best_offset() == (1, distances.count(1))
    assert all(distances.count(distance) <= distances.count(1) for distance in distances)


def test_word_maps_sum_over_pieces_looked_at_and_average_over_those_that_look():
    maps = torch.arange(25.0).view(5, 5)
    spans = [range(1, 2), range(2, 4)]  # one word of one piece, one of two; tokens 0 and 4 are no words
    assert links.word_maps(maps, spans).tolist() == [[6, 7 + 8], [(11 + 16) / 2, (12 + 13 + 17 + 18) / 2]]


def test_a_word_is_never_found_by_itself():
    maps = torch.eye(5).mul(9).add(torch.tensor([0, 0.1, 0.3, 0.2, 0])).expand(2, 3, 5, 5)
    spans = [range(1, 2), range(2, 3), range(3, 4)]
    found = links.found(maps, spans)
    assert found.shape == (2, 3, 3) and found[0, 0].tolist() == [1, 2, 1]
    assert links.hits([(0, 0, 1), (0, 1, 0)], [found])[:, 0, 0].tolist() == [True, False]


def test_wilson_interval():
    assert links.wilson(9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-3)
    for right, n in [(0, 7), (3, 8), (43, 43)]:
        low, high = links.wilson(right, n)
        share = right / n
        for end in (low, high):  # the ends are where the score test just rejects
            assert (share - end)**2 == pytest.approx(1.96**2 * end * (1 - end) / n, abs=1e-12)


def test_cross_fitting_scores_each_half_with_the_head_chosen_on_the_other():
    scores = torch.tensor([[[1.0, 0.0]], [[0.0, 0.5]], [[1.0, 0.0]], [[0.0, 0.5]]])  # [4, 1, 2]
    half = torch.tensor([True, False, True, False])
    assert links.cross_fitted(scores, half).tolist() == [0, 0, 0, 0]
    luck = torch.rand(4000, 6, 12, generator=torch.Generator().manual_seed(0)) < 0.1
    assert abs(float(links.cross_fitted(luck, torch.arange(4000) % 2 == 0).mean()) - 0.1) < 0.02


# The explorers

def test_states_of_the_heads_explorer(examples):
    explorer = lesson06.heads_explorer(lesson06.NoModel("no weights"), examples)
    draw = random.Random(0)
    states = list(explorer.states())
    assert len(states) == 72 * sum(maps.shape[-1] for maps in examples.values())
    for state in draw.sample(states, 12) + [{**explorer.state, **preset} for preset in explorer.presets.values()]:
        picture = explorer.draw(**state)
        check_picture(picture)
        assert f"Head {state['layer']}-{state['head']}: token {state['token']}" in picture.status
    explorer.set(layer=1, head=3, token=7)
    shown = explorer.view.value
    assert "gives most weight, 1.00, to token 6" in shown and "1.00 to the token before" in shown


def test_the_map_drawn_is_the_chosen_heads(examples):
    sentence = lesson06.EXAMPLES[0]
    picture = lesson06.draw_head(sentence, 5, 2, 4, lambda text: examples[text])
    row = examples[sentence][4, 1, 3]
    assert f"{row.max():.2f}, to token {int(row.argmax()) + 1}" in picture.status


@pytest.fixture
def small_model():
    generator = torch.Generator().manual_seed(0)
    named = mh.random_weights(generator, vocabulary=30522, d_model=24, d_ff=8, std=0.5)
    return mh.Encoder(named, 12)


@pytest.mark.parametrize("text, words", [
    ("", "no word to read"), (" \t", "no word to read"),
    ("word " * 19, "has 21 tokens, with [CLS], [SEP] and pieces of words, and the picture has room for 20")])
def test_a_text_that_cannot_be_shown_is_answered(examples, small_model, text, words):
    explorer = lesson06.heads_explorer(small_model, examples)
    explorer.set(sentence=text)
    assert words in explorer.view.value and 'role="alert"' in explorer.view.value
    assert explorer.state["sentence"] == lesson06.EXAMPLES[0]


@pytest.mark.parametrize("text", ["", "A sentence of my own.", "word " * 300])
def test_without_a_model_only_recorded_sentences_are_shown(examples, text):
    explorer = lesson06.heads_explorer(lesson06.NoModel("no weights"), examples)
    explorer.set(sentence=text)
    assert "only the recorded sentences" in explorer.view.value and 'role="alert"' in explorer.view.value
    assert explorer.state["sentence"] == lesson06.EXAMPLES[0]


def test_any_sentence_may_be_typed_where_there_is_a_model(examples, small_model):
    explorer = lesson06.heads_explorer(small_model, examples)
    for text in ("<b>1 & 2</b> \U0001f600", "internationalization, counterrevolutionaries", "one", "word " * 18):
        explorer.set(sentence=text)
        assert explorer.state["sentence"] == text and 'role="alert"' not in explorer.view.value
        for token in (1, len(mh.WordPiece()(text).pieces)):
            check_picture(explorer.draw(**{**explorer.state, "token": token}))


def test_states_of_the_pruning_explorer():
    explorer = lesson06.pruning_explorer(of("change").mean(-1), of("pruning"))
    for number, state in enumerate(explorer.states()):
        picture = explorer.draw(**state)
        if number % 4 == 0:
            check_picture(picture)
        assert picture.svg.count("l12 12m0 -12l-12 12") == state["silenced"]
    assert number == 38


def test_curves_end_where_the_reader_is():
    explorer = lesson06.pruning_explorer(of("change").mean(-1), of("pruning"))
    for silenced in (0, 12, 72):
        curves = re.findall(r'd="M([^"]*)"[^>]*stroke-dasharray', explorer.draw("at random", silenced).svg)
        assert [curve.count("L") for curve in curves] == [silenced // 6] * len(curves) and curves


def test_pruning_orders_hold_each_head_once():
    change = of("change").mean(-1)
    (least,), chances, (most,) = lesson06.pruning_orders(change)
    for order in (least, *chances, most):
        assert sorted(order) == [(layer, head) for layer in range(6) for head in range(12)]
    assert least == most[::-1] and change[most[0]] == change.max()
    assert len({tuple(order) for order in chances}) == 5


# The stills

TARGETS = ("the token before", "the next token", "[CLS]", "[SEP]")
RELATIONS = [("object → verb", "3-1", 42, 48, (0.75, 0.94), 0.46, 0.19),
             ("possessive → noun", "2-5 or 2-8", 16, 17, (0.73, 0.99), 0.82, 0)]
STILLS = {
    "grids": lambda: lesson06.head_grids({name: of(name).mean(0) for name in TARGETS}),
    "sinks": lambda: lesson06.sink_scatter(of("[CLS]").mean(0), of("from [CLS]")[0]),
    "relations": lambda: lesson06.relation_plot(RELATIONS),
    "importance": lambda: lesson06.importance_scatter(of("crispness"), of("change").mean(-1)),
    "overlap": lambda: lesson06.overlap_plot(of("pairs")[:, 0], of("random pairs")[0]),
}


@pytest.mark.parametrize("name", STILLS)
def test_stills(name):
    check_picture(STILLS[name]())


def test_stills_say_what_is_recorded():
    assert "the token before, 1-3 with 1.00; the next token, 2-9 with 0.65" in STILLS["grids"]().alt
    assert STILLS["sinks"]().svg.count("<circle") == 32
    assert re.search(r"number \d\d in how far", STILLS["importance"]().alt)


def test_a_frame_puts_numbers_where_the_axes_say():
    frame = lesson06.Frame(10, 20, 100, 50, (0, 4), (0.01, 1), log=True)
    assert frame.at(0, 0.01) == (10, 70) and frame.at(4, 1) == (110, 20) and frame.at(2, 0.1) == pytest.approx((60, 45))


@pytest.mark.parametrize("make", [lesson06.shuffled_quiz, lesson06.sink_quiz, lesson06.ablation_quiz,
                                  lesson06.direct_sum_quiz])
def test_quizzes_explain_every_choice(make):
    quiz = make()
    assert isinstance(quiz, Quiz) and all(len(option.because) > 40 for option in quiz.options)


def test_the_page_says_so_where_weights_are_missing(tmp_path, capsys):
    model, measure = lesson06.open_model(tmp_path / "nowhere.onnx")
    assert not model and not measure.available
    what_to_do = f"Run `%{weights.INSTALL}` (21 MB) in a cell of its own, then restart this kernel."
    assert f"{what_to_do} Until then" in capsys.readouterr().out
    for use in (lambda: model(torch.zeros(1, 3).long()), lambda: model.embed(None), lambda: model.layers):
        with pytest.raises(mh.NoWeights, match=re.escape(what_to_do)):
            use()
    assert repr(model) and not hasattr(model, "_ipython_display_")
