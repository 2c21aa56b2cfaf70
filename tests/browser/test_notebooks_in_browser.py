"""Every notebook of the course in JupyterLab, as a newcomer meets it: unrun, then run, then played with."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab import EXPLORER
from outputs import VIEW
from places import ROOT, has_weights

from multihead_lessons.explorer import MAX_HEIGHT, MAX_WIDTH

pytestmark = pytest.mark.slow

SHOTS = Path(os.environ.get("SHOTS", ROOT / "artifacts" / "screenshots"))
NOT_A_SIZE = "-999"
JUPYTERLABS_OWN_ALT = "Image"  # given to an image that has none

SLIDER, FIELD, TEXT = ".noUi-handle", "input[type=number]", "input[type=text]"
BUTTON_ROW, BUTTON = ".widget-toggle-buttons", ".widget-toggle-button"

# What an explorer shows at this moment. The block of the picture's words may be as wide as the page.
READ = """root => {
    const all = selector => [...root.querySelectorAll(selector)];
    const box = element => element.getBoundingClientRect();
    const places = [root.closest('.jp-OutputArea-output'), root, ...all('.widget-box')];
    return {
        picture: root.querySelector('svg')?.outerHTML,
        status: root.querySelector('p[role=status]')?.innerText,
        alert: root.querySelector('p[role=alert]')?.innerText,
        values: all('input[type=number]').map(field => field.valueAsNumber),
        positions: all('.noUi-handle').map(handle => Number(handle.getAttribute('aria-valuenow'))),
        lowest: all('.noUi-handle').map(handle => Number(handle.getAttribute('aria-valuemin'))),
        highest: all('.noUi-handle').map(handle => Number(handle.getAttribute('aria-valuemax'))),
        width: Math.max(...all('svg, button, input, .slider').map(part => box(part).right)) - box(root).left,
        height: Math.max(...all('svg').map(part => box(part).height)),
        overflow: Math.max(...places.map(place => place.scrollWidth - place.clientWidth)),
    };
}"""

# The same, once the answer to a move is there: something new is shown, and it stays for eight frames of 16 ms
# with the kernel at rest. After five seconds, whatever is shown then.
READ_WHEN_SETTLED = f"""async (root, before) => {{
    const read = {READ}, shown = state => JSON.stringify([state.picture, state.status, state.alert]);
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    let state = before, still = 0;
    for (const end = Date.now() + 5000; Date.now() < end && still < 8;) {{
        await new Promise(resolve => setTimeout(resolve, 16));
        const next = read(root);
        const same = JSON.stringify(next) === JSON.stringify(state) && kernel.status === 'idle';
        still = same && shown(next) !== shown(before) ? still + 1 : 0;
        state = next;
    }}
    return state;
}}"""


def changed(explorer, before: dict, act: Callable[[], object]) -> dict:
    """The state after `act`, which must change what is shown."""
    act()
    return explorer.evaluate(READ_WHEN_SETTLED, before)


def moved(explorer, before: dict, act: Callable[[], object], what: str) -> dict:
    """The state after a move to another valid setting: a new picture that fits, a new sentence, no alert."""
    after = changed(explorer, before, act)
    assert after.get("alert") is None, f"{what} was answered with: {after['alert']}"
    assert after["picture"] != before["picture"], f"{what} left the picture as it was at {after['values']}"
    assert after["status"] != before["status"], f"{what} left the sentence as it was: {after['status']}"
    assert_fits(after)
    return after


def assert_fits(state: dict) -> None:
    assert state["picture"] and state["status"], "an explorer shows no picture, or no sentence about it"
    assert state["width"] <= MAX_WIDTH, f"{state['status']}: the explorer is {state['width']} px wide"
    assert state["height"] <= MAX_HEIGHT, f"{state['status']}: the picture is {state['height']} px high"
    assert state["overflow"] <= 0, f"{state['status']}: {state['overflow']} px are cut off"


def sliders(notebook) -> Iterator[tuple]:
    """Each explorer with the index of each slider that it shows now, the slider's handle and its number field."""
    for explorer in notebook.explorers():
        handles, fields = explorer.locator(SLIDER).all(), explorer.locator(FIELD).all()
        assert len(handles) == len(fields), f"{len(handles)} sliders have {len(fields)} number fields"
        for i, (handle, field) in enumerate(zip(handles, fields)):
            if handle.is_visible():
                yield explorer, i, handle, field


def button_rows(notebook) -> Iterator[tuple]:
    """Each explorer with the buttons of each of its rows of buttons."""
    for explorer in notebook.explorers():
        for row in explorer.locator(BUTTON_ROW).all():
            yield explorer, row.locator(BUTTON).all()


def inward(state: dict, i: int) -> tuple[str, str]:
    """Two arrow keys that each move slider i by one step, wherever its handle is."""
    assert state["lowest"][i] < state["highest"][i], f"a slider offers one value only: {state['values'][i]}"
    at_the_end = state["positions"][i] == state["highest"][i]
    return ("ArrowLeft", "ArrowRight") if at_the_end else ("ArrowRight", "ArrowLeft")


def test_the_file_shows_its_pictures_before_it_runs(run):
    for i, (cell, images) in enumerate(zip(run.cells, run.stored, strict=True)):
        bundles = [output.data for output in cell.get("outputs", []) if "data" in output]
        for bundle in bundles:
            assert VIEW not in bundle or "text/html" in bundle, f"cell {i} shows nothing before it runs"
        wanted = sum(map(pictures, bundles))
        if cell.cell_type == "code":
            assert len(images) == wanted, f"cell {i} stores {wanted} pictures and shows {len(images)}"
        assert_shown(images)


def test_it_runs_from_top_to_bottom(run):
    assert run.done, f"a cell raised an error: {run.notebook.problems}"
    assert run.notebook.problems == []
    for images in run.notebook.images():
        assert_shown(images)


def assert_shown(images: list[dict]) -> None:
    for image in images:
        given = image["alt"].strip() not in ("", JUPYTERLABS_OWN_ALT)
        assert given, f"a picture has no alternative text: {image['source']}"
        assert image["width"] > 0, f"a picture is not shown: {image['alt']}"


def pictures(bundle: dict) -> int:
    """How many images JupyterLab should show for an output; it prefers the HTML."""
    if "text/html" in bundle:
        return bundle["text/html"].count("<img")
    return any(mime.startswith("image/") for mime in bundle)


def test_every_explorer_has_a_stored_picture_and_every_slider_an_explorer(run):
    for i in run.notebook.cells_with(EXPLORER):
        assert run.stored[i], f"cell {i} makes an explorer and stores no picture of it"
    assert run.notebook.cells_with(f"{EXPLORER} {SLIDER}") == run.notebook.cells_with(SLIDER)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_screenshots(run, theme):
    """Leaves pictures for people to look at: the page in parts, each explorer, each still figure."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page = run.notebook.page
    run.notebook.set_theme(theme)
    for number in run.notebook.parts():
        page.screenshot(path=SHOTS / f"{run.name}-{theme}-{number:02}.png")
    for kind, selector in (("explorer", EXPLORER), ("figure", ".jp-OutputArea-output img")):
        for number, element in enumerate(page.locator(selector).all(), start=1):
            element.screenshot(path=SHOTS / f"{run.name}-{kind}-{number}-{theme}.png")
    run.notebook.set_theme("light")


def test_sliders_answer_the_arrow_keys(live):
    for explorer, i, handle, _ in sliders(live):
        before = start = explorer.evaluate(READ)
        for key in inward(start, i):
            handle.focus()
            after = moved(explorer, before, lambda: live.page.keyboard.press(key), key)
            step = 1 if key == "ArrowRight" else -1
            assert after["positions"][i] == before["positions"][i] + step
            assert (after["values"][i] - before["values"][i]) * step > 0, "the field lags behind the slider"
            before = after
        assert before["values"][i] == start["values"][i]


def test_fields_take_valid_numbers_and_explain_invalid_ones(live):
    for explorer, i, handle, field in sliders(live):
        start = explorer.evaluate(READ)
        handle.focus()
        moving = moved(explorer, start, lambda: live.page.keyboard.press(inward(start, i)[0]), "an arrow key")
        value = start["values"][i]
        typed = moved(explorer, moving, lambda: enter(field, value), f"typing {value}")
        assert typed["positions"][i] == start["positions"][i], "the slider did not follow the field"

        refused = changed(explorer, typed, lambda: enter(field, NOT_A_SIZE))
        answer = refused.get("alert") or "no word"
        assert NOT_A_SIZE in answer, f"{NOT_A_SIZE} was answered with: {answer}"
        assert (refused["picture"], refused["status"]) == (typed["picture"], typed["status"])
        assert_fits(refused)
        assert changed(explorer, refused, lambda: enter(field, value)) == typed


def test_text_fields_take_a_text_and_explain_an_empty_one(live):
    for explorer in live.explorers():
        for field in explorer.locator(TEXT).all():
            start, text = explorer.evaluate(READ), field.input_value()
            refused = changed(explorer, start, lambda: enter(field, ""))
            assert refused.get("alert"), "an empty text was answered with no word"
            assert (refused["picture"], refused["status"]) == (start["picture"], start["status"])
            assert_fits(refused)
            assert changed(explorer, refused, lambda: enter(field, text)) == start
            if has_weights():  # otherwise only recorded texts are welcome
                other = moved(explorer, start, lambda: enter(field, "A sentence of my own."), "another text")
                assert "sentence" in other["picture"]
                moved(explorer, other, lambda: enter(field, text), "the first text")


def enter(field, value: object) -> None:
    """Types a number and presses Enter, which must not lead away from the field."""
    field.fill(str(value))
    field.press("Enter")
    assert field.evaluate("field => field === document.activeElement"), "Enter took the focus from the field"


def test_sliders_can_be_dragged(live):
    for explorer, i, *_ in sliders(live):
        for end, to_the_right in (("lowest", False), ("highest", True)):
            before = explorer.evaluate(READ)
            if before["positions"][i] != before[end][i]:
                after = moved(explorer, before, lambda: drag(live.page, explorer, i, to_the_right), "a drag")
                assert after["positions"][i] == after[end][i], f"a drag to the {end} value ended elsewhere"
                rose = after["values"][i] > before["values"][i]
                assert rose == to_the_right, "the field lags behind the slider"


def drag(page, explorer, i: int, to_the_right: bool) -> None:
    """Moves handle i to the end of its rail with the mouse, and a little beyond."""
    explorer.locator(SLIDER).nth(i).hover()
    rail = explorer.locator(".noUi-base").nth(i).bounding_box()
    page.mouse.down()
    beyond = rail["width"] + 9 if to_the_right else -9
    page.mouse.move(rail["x"] + beyond, rail["y"] + rail["height"] / 2, steps=6)
    page.mouse.up()


def test_buttons_answer_keyboard_and_mouse(live):
    for explorer, buttons in button_rows(live):
        for i, button in enumerate(buttons):
            buttons[0].focus() if i == 0 else live.page.keyboard.press("Tab")
            chosen(explorer, button, lambda: live.page.keyboard.press("Space"))
        for button in reversed(buttons):
            chosen(explorer, button, button.click)


def chosen(explorer, button, act: Callable[[], object]) -> None:
    """Chooses one button of a row, unless it is the chosen one already."""
    def is_on() -> bool:
        return "mod-active" in button.get_attribute("class").split()

    if not is_on():
        moved(explorer, explorer.evaluate(READ), act, f"the button {button.inner_text()!r}")
        assert is_on(), f"the button {button.inner_text()!r} does not look chosen"


def test_fields_and_pictures_have_names_for_screen_readers(live):
    for i, explorer in enumerate(live.explorers()):
        names = live.accessible_names(f"document.querySelectorAll('{EXPLORER}')[{i}]")
        for kind, count in (("image", 1), ("spinbutton", explorer.locator(f"{FIELD}:visible").count()),
                            ("textbox", explorer.locator(TEXT).count()),
                            ("button", explorer.locator(BUTTON).count())):
            named = [name for role, name in names if role == kind and name.strip()]
            assert len(named) == count, f"{count} elements of kind {kind}, but these names: {named}"


def test_explorers_fit_a_page(live):
    for explorer in live.explorers():
        assert_fits(explorer.evaluate(READ))
