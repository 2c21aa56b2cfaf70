"""Explorers: controls, one picture, one sentence.

The picture is a pure function of the controls' values, `draw(**state) -> Picture`. Everything here only carries values
to it and its answer to the page: a change costs one message to the browser. A callback's error and an invalid entry
are shown in the explorer itself, because JupyterLab shows neither.
"""
from __future__ import annotations

import html
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from multihead_lessons import svg
from multihead_lessons.svg import Picture

State = Mapping[str, Any]
LINE = "margin:0;line-height:1.5;white-space:normal"  # of a sentence: it breaks where the page ends

MAX_WIDTH, MAX_HEIGHT = 860, 460  # one screen of JupyterLab with the controls above; tested for every state


class Slider:
    """A slider over the valid values, and a number field that names it: a slider has no name for screen readers.

    values:  the values on offer, a sequence or a function of the state of the controls before this one
    refuse:  `refuse(value, state)` returns None for a typed value that is welcome, else one sentence that says why not;
             by default only the values on offer are welcome
    follows: a control before this one; while the two have the same value, this one moves along with it
    shown:   whether it has a meaning in the state of the controls before this one; a hidden slider keeps its value
    """

    def __init__(self, name: str, values: Sequence[int] | Callable[[State], Sequence[int]], start: int, *,
                 label: str | None = None, refuse: Callable[[int, State], str | None] | None = None,
                 follows: str | None = None, shown: Callable[[State], bool] = lambda state: True):
        self.name, self.label, self.start, self.follows = name, label or name, start, follows
        self._values, self._shown = values, shown
        self._refuse = refuse or self._not_on_offer
        self.field = widgets.IntText(value=start, description=self.label, style={"description_width": "58px"},
                                     layout=widgets.Layout(width="146px"))
        self.slider = widgets.SelectionSlider(options=[start], value=start, readout=False,
                                              layout=widgets.Layout(width="110px", margin="2px 10px 2px 2px"))
        self.widget = widgets.HBox([self.field, self.slider])

    def values(self, state: State) -> list[int]:
        return list(self._values(state) if callable(self._values) else self._values)

    def _not_on_offer(self, value: int, state: State) -> str | None:
        values = self.values(state)
        return None if value in values else f"{self.label} = {value} is not on offer here; choose from {_listed(values)}."

    def observe(self, changed: Callable[[Slider, Any], None]) -> None:
        self.slider.observe(lambda change: changed(self, change["new"]), "value")
        self.field.observe(lambda change: changed(self, change["new"]), "value")

    def refusal(self, value: int, state: State) -> str | None:
        return self._refuse(value, state)

    def nearest(self, value: int, state: State) -> int:
        """The value itself when it is welcome, else the largest one on offer that is not above it."""
        values = self.values(state)
        if self.refusal(value, state) is None:
            return value
        return max((offer for offer in values if offer <= value), default=values[0])

    def put(self, value: int, state: State) -> None:
        options = sorted({*self.values(state), value})
        if list(self.slider.options) != options:
            self.slider.index = 0  # else the page clamps a handle that fewer options do not reach, and reports a move
            self.slider.options = options
            self.field.step = _step(options)
        self.slider.value = self.field.value = value
        self.widget.layout.display = None if self._shown(state) else "none"


def within(name: str, most: int) -> Callable[[int, State], str | None]:
    """A `refuse` that welcomes 1 to `most`."""
    return lambda value, _: (None if 1 <= value <= most else
                             f"{name} = {value} is not possible here: choose 1 to {most:,}.")


class Choice:
    """A row of buttons, one for each option. JupyterLab takes the arrow keys of menus and radio buttons, not of these."""

    follows = None

    def __init__(self, name: str, options: Sequence[Any], start: Any, *, label: str | None = None):
        self.name, self.label, self.start, self._options = name, label or name, start, list(options)
        self.buttons = _button_row(self._options, start)
        self.widget = _labeled(self.label, self.buttons)

    def values(self, state: State) -> list[Any]:
        return self._options

    def observe(self, changed: Callable[[Choice, Any], None]) -> None:
        self.buttons.observe(lambda change: changed(self, change["new"]), "value")

    def refusal(self, value: Any, state: State) -> str | None:
        return None

    def nearest(self, value: Any, state: State) -> Any:
        return value

    def put(self, value: Any, state: State) -> None:
        self.buttons.value = value


class Text:
    """A line of text, taken when the reader presses Enter or leaves the field.

    examples: texts that the presets put there
    refuse:   `refuse(value, state)` returns None for a text that is welcome, else one sentence that says why not
    """

    follows = None

    def __init__(self, name: str, start: str, *, label: str | None = None, examples: Sequence[str] = (),
                 refuse: Callable[[str, State], str | None] = lambda value, state: None):
        self.name, self.label, self.start = name, label or name, start
        self._examples, self._refuse = list(dict.fromkeys([start, *examples])), refuse
        self.widget = self.field = widgets.Text(value=start, description=self.label, continuous_update=False,
                                                style={"description_width": "initial"}, layout=widgets.Layout(width="640px"))

    def values(self, state: State) -> list[str]:
        return self._examples

    def observe(self, changed: Callable[[Text, Any], None]) -> None:
        self.field.observe(lambda change: changed(self, change["new"]), "value")

    def refusal(self, value: str, state: State) -> str | None:
        return self._refuse(value, state)

    def nearest(self, value: str, state: State) -> str:
        return self.start if self.refusal(value, state) else value

    def put(self, value: str, state: State) -> None:
        self.field.value = value


def _button_row(options: Sequence[Any], start: Any) -> widgets.ToggleButtons:
    return widgets.ToggleButtons(options=list(options), value=start, style={"button_width": "auto"})


def _labeled(label: str, buttons: widgets.ToggleButtons) -> widgets.HBox:
    """The label left of the buttons; their own description would stand above them and cost a line."""
    return widgets.HBox([widgets.Label(label, layout=widgets.Layout(margin="2px 8px 2px 12px")), buttons])


class Explorer:
    """Shows `draw(**state)` for the controls' values. Give the controls in order: each may depend on those before it.

    presets: named settings, each a value for some of the controls, offered as a row of buttons.
    """

    def __init__(self, draw: Callable[..., Picture], *controls: Slider | Choice | Text,
                 presets: Mapping[str, State] | None = None):
        self.draw, self.controls = draw, controls
        self.presets = dict(presets or {})
        self.state: dict[str, Any] = {}
        self._settling = False
        self.view = widgets.HTML()
        rows = [widgets.HBox([control.widget for control in controls], layout=widgets.Layout(flex_flow="row wrap"))]
        if self.presets:
            self.preset = _button_row(list(self.presets), None)
            self.preset.observe(self._preset_chosen, "value")
            rows.insert(0, _labeled("preset", self.preset))
        self.root = widgets.VBox([*rows, self.view])
        self.root.add_class("mha-explorer")
        self._settle({control.name: control.start for control in controls})
        for control in controls:
            control.observe(self._changed)
        self._render()

    def set(self, **values: Any) -> None:
        """Moves controls as a reader would; an invalid value is answered in the explorer."""
        for name, value in values.items():
            self._changed(next(control for control in self.controls if control.name == name), value)

    def states(self) -> Iterator[dict[str, Any]]:
        """Every state that the sliders, the buttons and the example texts can reach."""
        def extend(state: dict[str, Any], rest: Sequence[Slider | Choice | Text]) -> Iterator[dict[str, Any]]:
            if not rest:
                yield state
            else:
                for value in rest[0].values(state):
                    yield from extend({**state, rest[0].name: value}, rest[1:])
        return extend({}, self.controls)

    def _changed(self, control: Slider | Choice | Text, value: Any) -> None:
        if self._settling:
            return
        if sentence := control.refusal(value, self.state):
            if self.presets:
                self.preset.value = None  # so that each preset can be chosen to get back
            self._say(sentence)
        else:
            together = {other.name for other in self.controls if other.follows and other is not control
                        and self.state[other.name] == self.state[other.follows]}
            self._settle({**self.state, control.name: value}, together)
            self._render()

    def _preset_chosen(self, change: Mapping[str, Any]) -> None:
        if not self._settling and change["new"] is not None:
            self._settle({**self.state, **self.presets[change["new"]]})
            self._render()

    def _settle(self, wanted: State, together: Container[str] = ()) -> None:
        """Puts every control on its wanted value, or the nearest that the controls before it allow.

        Those named in `together` want the value of the control that they follow.

        A slider that gets new options jumps to the first of them and reports it; while settling, reports are ignored.
        """
        self._settling = True
        try:
            self.state = {}
            for control in self.controls:
                value = self.state[control.follows] if control.name in together else wanted[control.name]
                value = control.nearest(value, self.state)
                control.put(value, self.state)
                self.state[control.name] = value
            if self.presets:
                self.preset.value = next((name for name, preset in self.presets.items()
                                          if preset.items() <= self.state.items()), None)
        finally:
            self._settling = False

    _shown = ""

    def _render(self) -> None:
        try:
            picture = self.draw(**self.state)
        except Exception as error:  # shown, not swallowed: JupyterLab hides what a callback raises
            self._say(f"This picture could not be drawn: {type(error).__name__}: {error}")
        else:
            self._shown = f'{picture.svg}<p role="status" style="{LINE}">{html.escape(picture.status)}</p>'
            self.view.value = self._shown

    def _say(self, sentence: str) -> None:
        """Above the picture, next to the control that it is about; the picture stays."""
        self.view.value = f'<p role="alert" style="{LINE}"><b>{html.escape(sentence)}</b></p>{self._shown}'

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        picture = self.draw(**self.state)
        return {**self.root._repr_mimebundle_(**options),
                "text/html": (f"{svg.as_image(picture.svg, picture.alt, picture.width)}<p>{html.escape(picture.status)} "
                              "<i>Run this cell to move it.</i></p>"),
                "text/plain": picture.alt}


def _step(values: Sequence[int]) -> int:
    """How far the arrows of a number field go: to the next value on offer, if all are the same way apart."""
    steps = {b - a for a, b in zip(values, values[1:])}
    return steps.pop() if len(steps) == 1 and values[0] % min(steps) == 0 else 1


def _listed(values: Sequence[Any]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
