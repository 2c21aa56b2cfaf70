"""A quiz: choose, commit, read why; nothing is given away before."""
import html

import pytest

from multihead_lessons.quiz import LONGEST_OPTION, Option, Quiz


@pytest.fixture
def quiz():
    return Quiz("Which <one>?", Option("the first", "No: too early."), Option("the second", "Yes: in time.", right=True),
                Option("the third", "No: too late."))


def test_nothing_can_be_committed_before_a_choice(quiz):
    assert quiz.commit.disabled and quiz.choice is None
    quiz.commit.click()
    assert quiz.answer.value == ""


def test_one_choice_at_a_time(quiz):
    quiz.buttons[0].value = True
    quiz.buttons[2].value = True
    assert [button.value for button in quiz.buttons] == [False, False, True] and not quiz.commit.disabled
    quiz.buttons[2].value = False
    assert quiz.commit.disabled


def test_a_wrong_choice_explains_its_belief_and_leaves_the_right_one_hidden(quiz):
    quiz.buttons[0].value = True
    assert quiz.answer.value == ""  # choosing is not committing
    quiz.commit.click()
    assert "A is not right." in quiz.answer.value and "too early" in quiz.answer.value and "in time" not in quiz.answer.value
    assert quiz.buttons[0].icon == "times" and quiz.buttons[1].icon == ""  # not by color alone
    quiz.buttons[1].value = True
    quiz.commit.click()
    assert "B is right." in quiz.answer.value and 'role="status"' in quiz.answer.value and quiz.buttons[1].icon == "check"


def test_the_stored_form_shows_question_and_options_without_the_answer(quiz):
    stored = quiz._repr_mimebundle_()
    assert all(words in stored["text/html"] for words in ("Which &lt;one&gt;?", "A.  the first", "C.  the third"))
    assert "in time" not in str(stored) and "right" not in html.unescape(stored["text/html"])


@pytest.mark.parametrize("options, sentence", [
    ([Option("a", "b"), Option("c", "d")], "exactly one"),
    ([Option("a", "b", right=True), Option("c", "d", right=True)], "exactly one")])
def test_exactly_one_option_is_right(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Quiz("?", *options)


def test_an_option_fits_on_a_line():
    with pytest.raises(ValueError, match="95 characters"):
        Option("x" * (LONGEST_OPTION + 1), "because")
