"""The explorer base: every state is reachable, bad input is answered, errors are shown, one change is one render."""
import html

import pytest

from multihead_lessons import svg
from multihead_lessons.explorer import Choice, Explorer, Slider, Text
from multihead_lessons.svg import Picture


def divisors(state):
    return [h for h in range(1, 17) if state["d_model"] % h == 0]


def picture(**state):
    words = ", ".join(f"{name} {value}" for name, value in state.items())
    return Picture(svg.svg(100, 50, svg.text(0, 20, words), alt=words), words, words, 100)


@pytest.fixture
def drawn():
    return []


@pytest.fixture
def explorer(drawn):
    def draw(**state):
        drawn.append(state)
        return picture(**state)
    return Explorer(draw, Slider("d_model", (48, 64, 96), 48), Slider("h", divisors, 6), Choice("kind", ["a", "b"], "a"),
                    presets={"small": {"d_model": 64, "h": 2}})


def control(explorer, name):
    return next(control for control in explorer.controls if control.name == name)


def test_every_state_renders_once(explorer, drawn):
    states = list(explorer.states())
    assert len(states) == 2 * (len(divisors({"d_model": 48})) + len(divisors({"d_model": 64})) + len(divisors({"d_model": 96})))
    for state in states:
        explorer.set(**state)
        assert explorer.state == state == drawn[-1]
    drawn.clear()
    control(explorer, "h").slider.value = 2
    assert len(drawn) == 1 and control(explorer, "h").field.value == 2


def test_a_dependent_slider_keeps_its_value_or_takes_the_nearest_below(explorer, drawn):
    drawn.clear()
    control(explorer, "d_model").slider.value = 64  # 6 does not divide 64
    assert drawn == [{"d_model": 64, "h": 4, "kind": "a"}]
    assert control(explorer, "h").slider.options == (1, 2, 4, 8, 16)
    control(explorer, "d_model").slider.value = 96
    assert explorer.state["h"] == 4


def test_a_handle_goes_home_before_its_options_change(explorer):
    """A page clamps a handle that fewer options do not reach and reports that as a reader's move."""
    seen = []
    control(explorer, "h").slider.observe(lambda change: seen.append((change["name"], change["new"])), ["index", "_options_labels"])
    control(explorer, "h").field.value = 16
    control(explorer, "d_model").slider.value = 64
    assert seen[1:3] == [("index", 0), ("_options_labels", ("1", "2", "4", "8", "16"))]
    assert control(explorer, "h").slider.value == 16


def test_a_typed_value_moves_the_slider(explorer):
    control(explorer, "h").field.value = 3
    assert control(explorer, "h").slider.value == 3 and 'role="status"' in explorer.view.value


def test_an_invalid_value_is_answered_and_the_picture_stays(explorer, drawn):
    before = explorer.view.value
    drawn.clear()
    control(explorer, "h").field.value = 5
    assert not drawn and control(explorer, "h").slider.value == 6
    assert explorer.view.value.endswith(before) and 'role="alert"' in explorer.view.value
    assert "h = 5 is not on offer here; choose from 1, 2, 3, 4, 6, 8, 12 and 16." in explorer.view.value
    control(explorer, "h").slider.value = 8  # and the next valid move takes the sentence away
    assert 'role="alert"' not in explorer.view.value and control(explorer, "h").field.value == 8


def test_the_arrows_of_a_field_go_to_the_next_value_on_offer():
    steps = [Explorer(picture, Slider("n", values, values[0])).controls[0].field.step
             for values in (range(0, 73, 6), range(1, 7), (2, 4, 6), (1, 3, 5), (1, 2, 4, 8), (3,))]
    assert steps == [6, 1, 2, 1, 1, 1]


def test_after_a_refusal_every_preset_leads_back(explorer):
    explorer.preset.value = "small"
    control(explorer, "h").field.value = 5
    assert 'role="alert"' in explorer.view.value and explorer.preset.value is None
    explorer.preset.value = "small"
    assert explorer.state == {"d_model": 64, "h": 2, "kind": "a"} and 'role="alert"' not in explorer.view.value


def test_the_last_valid_value_can_be_typed_again(explorer):
    control(explorer, "h").field.value = 5
    control(explorer, "h").field.value = 6
    assert 'role="alert"' not in explorer.view.value


def test_refuse_may_welcome_values_that_are_not_on_offer():
    explorer = Explorer(picture, Slider("T", (8, 16), 8, refuse=lambda T, _: None if T > 0 else f"T = {T} is not positive."))
    control(explorer, "T").field.value = 11
    assert explorer.state == {"T": 11} and control(explorer, "T").slider.options == (8, 11, 16)
    control(explorer, "T").field.value = -1
    assert "T = -1 is not positive." in explorer.view.value


def test_a_preset_moves_all_its_controls_at_once_and_lets_go(explorer, drawn):
    drawn.clear()
    explorer.preset.value = "small"
    assert drawn == [{"d_model": 64, "h": 2, "kind": "a"}]
    control(explorer, "h").slider.value = 4
    assert explorer.preset.value is None


def test_a_follower_moves_along_until_it_is_moved_by_itself(drawn):
    def draw(**state):
        drawn.append(state)
        return picture(**state)
    explorer = Explorer(draw, Slider("d_model", (48, 64), 48), Slider("h", divisors, 12),
                        Slider("n", lambda state: [n for n in range(1, 17) if state["h"] % n == 0], 12, follows="h"),
                        presets={"shared": {"d_model": 64, "h": 16, "n": 4}})
    control(explorer, "h").slider.value = 16
    assert explorer.state["n"] == control(explorer, "n").field.value == 16
    control(explorer, "h").slider.value = 3
    control(explorer, "d_model").slider.value = 64  # 3 does not divide 64: both go to 2
    assert drawn[-1] == {"d_model": 64, "h": 2, "n": 2}
    explorer.preset.value = "shared"
    assert drawn[-1] == {"d_model": 64, "h": 16, "n": 4}
    control(explorer, "h").slider.value = 8  # apart now: n stays
    assert drawn[-1] == {"d_model": 64, "h": 8, "n": 4}
    control(explorer, "n").field.value = 8
    control(explorer, "h").slider.value = 4
    assert explorer.state["n"] == 4 and len(drawn) == 8


def test_an_error_in_the_picture_is_shown():
    def draw(h):
        if h == 2:
            raise RuntimeError("no <such> head")
        return picture(h=h)
    explorer = Explorer(draw, Slider("h", (1, 2), 1))
    control(explorer, "h").slider.value = 2
    assert "could not be drawn: RuntimeError: no &lt;such&gt; head" in explorer.view.value
    control(explorer, "h").slider.value = 1
    assert "could not" not in explorer.view.value


def test_the_static_form_is_an_image_with_alternative_text(explorer):
    bundle = explorer._repr_mimebundle_()
    assert 'alt="d_model 48, h 6, kind a"' in bundle["text/html"] and "data:image/svg+xml;base64," in bundle["text/html"]
    assert "<p>d_model 48" in bundle["text/html"] and bundle["text/plain"] == "d_model 48, h 6, kind a"
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_fixed_needs_no_theme():
    live = svg.svg(10, 10, svg.text(1, 2, "a < b", fill=svg.INK), svg.line(0, 0, 1, 1, stroke=svg.RULE), alt='say "h"')
    assert "var(" in live and "var(" not in svg.fixed(live)
    assert "a &lt; b" in live and 'aria-label="say &quot;h&quot;"' in live


def test_a_slider_without_a_meaning_is_hidden_and_keeps_its_value():
    gain = Slider("gain_2", (0, 100), 0, shown=lambda state: state["h"] >= 2)
    explorer = Explorer(picture, Slider("h", (1, 2), 2), gain)
    assert gain.widget.layout.display is None
    explorer.set(h=1)
    assert gain.widget.layout.display == "none" and explorer.state == {"h": 1, "gain_2": 0}
    explorer.set(h=2)
    assert gain.widget.layout.display is None and explorer.state["gain_2"] == 0


@pytest.fixture
def texts():
    return Explorer(picture, Text("sentence", "A cat.", examples=["Two cats."],
                                  refuse=lambda text, _: None if text.strip() else "Type a sentence."),
                    Slider("letter", lambda state: range(1, len(state["sentence"]) + 1), 2),
                    presets={"two": {"sentence": "Two cats.", "letter": 9}})


def test_a_text_is_taken_as_it_is_typed_and_later_controls_depend_on_it(texts):
    control(texts, "letter").slider.value = 6
    control(texts, "sentence").field.value = "<b>"
    assert texts.state == {"sentence": "<b>", "letter": 3} and "sentence <b>, letter 3" in html.unescape(texts.view.value)
    assert not control(texts, "sentence").field.continuous_update


def test_a_text_that_is_refused_is_answered_and_the_last_one_can_be_typed_again(texts):
    before = texts.view.value
    control(texts, "sentence").field.value = " "
    assert texts.view.value.endswith(before) and "Type a sentence." in texts.view.value and texts.state["sentence"] == "A cat."
    control(texts, "sentence").field.value = "A cat."
    assert texts.view.value == before


def test_presets_and_states_know_the_texts(texts):
    texts.preset.value = "two"
    assert texts.state == {"sentence": "Two cats.", "letter": 9} and control(texts, "sentence").field.value == "Two cats."
    assert len(list(texts.states())) == len("A cat.") + len("Two cats.")
    assert control(texts, "sentence").field.description == "sentence"  # its name for screen readers
