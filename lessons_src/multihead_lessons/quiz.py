"""A question to commit to before the next cell shows the answer. Every wrong choice explains the belief behind it.

What is right stands in the lesson's module, never in the notebook. Buttons, because JupyterLab keeps the arrow keys of
radio buttons and menus for itself: Tab moves, Space or Enter presses.
"""
from __future__ import annotations

import html
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import ipywidgets as widgets

LONGEST_OPTION = 95  # characters that fit on one line
LOOK = """<style>.mha-quiz .jupyter-button {text-align: left; white-space: normal; height: auto; min-height: 32px;
line-height: 1.5; padding: 4px 12px; overflow: visible} .mha-quiz p {margin: 0; line-height: 1.5}</style>"""


@dataclass(frozen=True)
class Option:
    """One answer on offer. `because` is what a learner hears who commits to it."""

    text: str
    because: str
    right: bool = False

    def __post_init__(self):
        if len(self.text) > LONGEST_OPTION:
            raise ValueError(f"an option has at most {LONGEST_OPTION} characters, this one has {len(self.text)}: {self.text}")


class Quiz:
    """Choose, commit, read why. A wrong choice leaves the others open."""

    def __init__(self, question: str, *options: Option):
        if sum(option.right for option in options) != 1:
            raise ValueError(f"a question has exactly one right option: {question}")
        self.question, self.options = question, options
        self.buttons = [widgets.ToggleButton(description=label, layout=widgets.Layout(width="700px", max_width="100%"))
                        for label in self._labels()]
        self.commit = widgets.Button(description="Commit", disabled=True, button_style="primary")
        self.answer = widgets.HTML()
        heading = widgets.HTML(f"{LOOK}<p><b>{html.escape(question)}</b></p>")
        self.root = widgets.VBox([heading, *self.buttons, self.commit, self.answer])
        self.root.add_class("mha-quiz")
        for button in self.buttons:
            button.observe(self._chosen, "value")
        self.commit.on_click(self._committed)

    def _labels(self) -> list[str]:
        return [f"{letter}.  {option.text}" for letter, option in zip(ascii_uppercase, self.options)]

    @property
    def choice(self) -> int | None:
        """Index of the pressed option."""
        return next((index for index, button in enumerate(self.buttons) if button.value), None)

    def _chosen(self, change: dict[str, Any]) -> None:
        if change["new"]:
            for button in self.buttons:
                if button is not change["owner"]:
                    button.value = False
        self.commit.disabled = self.choice is None

    def _committed(self, _: widgets.Button) -> None:
        if self.choice is None:
            return
        option, button, letter = self.options[self.choice], self.buttons[self.choice], ascii_uppercase[self.choice]
        button.button_style, button.icon = ("success", "check") if option.right else ("danger", "times")
        verdict = f"{letter} is right." if option.right else f"{letter} is not right."
        more = "" if option.right else " Choose again, or run on and see."
        self.answer.value = f'<p role="status"><b>{verdict}</b> {html.escape(option.because)}{more}</p>'

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        listed = "".join(f"<p>{html.escape(label)}</p>" for label in self._labels())
        return {**self.root._repr_mimebundle_(**kwargs),
                "text/html": f"<p><b>{html.escape(self.question)}</b></p>{listed}<p>Run this cell to answer.</p>",
                "text/plain": self.question}
