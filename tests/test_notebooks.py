"""The notebooks are true: a rebuild of the lessons, and every stored output is what a fresh run gives."""
from __future__ import annotations

import base64
import io
import re
import subprocess
import sys

import nbformat
import pytest
from places import NOTEBOOKS, ROOT, has_weights
from outputs import PNG, VIEW, defects
from PIL import Image, ImageOps

from multihead.weights import INSTALL
from multihead_course.build import build, stale


def nbval(folder) -> subprocess.CompletedProcess:
    """Strict comparison of every notebook in `folder`; only cells tagged as measured times are left out.

    One after another: two kernels that start at the same moment may choose the same port, and one of them dies.
    """
    left_out = [] if has_weights() else [f"--ignore={folder / '06_trained_heads.ipynb'}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=120", "-q", "-p", "no:cacheprovider",
         f"--nbval-sanitize-with={ROOT / 'tests' / 'nbval_sanitize.cfg'}", "--rootdir", folder,
         "-c", "/dev/null", *left_out, folder], capture_output=True, text=True, cwd=folder)


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS][:1] == ["00_start_here.ipynb"]


def test_notebooks_are_a_rebuild_of_the_lessons():
    assert stale(ROOT, ROOT / "notebooks", "learner") == []


@pytest.mark.smoke
def test_runs_from_top_to_bottom(notebook_path, execute):
    execute(notebook_path)


def test_learner_edition_strictly():
    result = nbval(ROOT / "notebooks")
    assert result.returncode == 0, result.stdout[-5000:]


def test_lesson_06_is_compared_too():
    if not has_weights():
        pytest.skip(f"Without its weights lesson 06 runs, but is not compared strictly. To compare it: `{INSTALL}`.")


def verdicts(notebooks) -> list[str]:
    """What the check cells of some notebooks say, without the exercises' names."""
    cells = [cell for path in notebooks for cell in nbformat.read(path, as_version=4).cells
             if cell.source.startswith('check("')]
    return [output.data["text/plain"].partition(": ")[2] for cell in cells for output in cell.outputs]


def test_every_check_waits_for_an_answer():
    assert len(verdicts(NOTEBOOKS)) > 20 and set(verdicts(NOTEBOOKS)) == {"not attempted yet."}


@pytest.mark.slow
def test_solution_edition_strictly(tmp_path):
    build(ROOT, tmp_path, "solution", say=lambda _: None)
    result = nbval(tmp_path)
    assert result.returncode == 0, result.stdout[-5000:]
    assert set(verdicts(sorted(tmp_path.glob("*.ipynb")))) == {"passed."}


def test_what_strict_comparison_does_not_see(notebook_path, execute):
    assert list(defects(nbformat.read(notebook_path, as_version=4), execute(notebook_path))) == []


def test_only_measured_times_are_left_out(notebook_path):
    """A cell that comparison skips carries the builder's tag, prints a time, and holds no marker of its own."""
    for cell in nbformat.read(notebook_path, as_version=4).cells:
        assert not re.search(r"NBVAL_|nbval-skip", cell.source)
        assert set(cell.metadata) <= {"tags"} and cell.metadata.get("tags", []) in ([], ["nbval-ignore-output"])
        if cell.metadata.get("tags"):
            assert re.search(r"\d\s*(ms|µs|s)\b", str(cell.outputs)), f"no time in the output of: {cell.source}"


def test_no_widget_state_is_stored(notebook_path):
    assert "widgets" not in nbformat.read(notebook_path, as_version=4).metadata


# Seeded defects: each must turn something red.

def _change_print(cells):
    cell = next(cell for cell in cells if any(out.output_type == "stream" for out in cell.outputs))
    cell.outputs[0].text = "Something else.\n"


def _clear_cell(cells):
    cell = next(cell for cell in cells if cell.outputs)
    cell.outputs, cell.execution_count = [], None


def _remove_widget(cells):
    output = next(out for cell in cells for out in cell.outputs if VIEW in out.get("data", {}))
    del output.data[VIEW]


def _remove_static_picture(cells):
    output = next(out for cell in cells for out in cell.outputs if VIEW in out.get("data", {}))
    del output.data["text/html"]


def _wrong_explorer_picture(cells):
    output = next(out for cell in cells for out in cell.outputs if VIEW in out.get("data", {}))
    output.data["text/html"] = output.data["text/html"].replace("svg+xml;base64,PHN2", "svg+xml;base64,PHN3")


def _wrong_still(cells):
    """Another picture of the same size: the same one upside down."""
    output = next(out for cell in cells for out in cell.outputs if PNG.search(out.get("data", {}).get("text/html", "")))
    data = PNG.search(output.data["text/html"])[1]
    flipped = io.BytesIO()
    ImageOps.flip(Image.open(io.BytesIO(base64.b64decode(data)))).save(flipped, "PNG")
    output.data["text/html"] = output.data["text/html"].replace(data, base64.b64encode(flipped.getvalue()).decode())


def _wrong_alternative_text(cells):
    output = next(out for cell in cells for out in cell.outputs if "alt=" in out.get("data", {}).get("text/html", ""))
    output.data["text/html"] = output.data["text/html"].replace('alt="', 'alt="Not ')


def _unsorted_counts(cells):
    cells[0].execution_count, cells[1].execution_count = cells[1].execution_count, cells[0].execution_count


DEFECTS = [_change_print, _clear_cell, _remove_widget, _remove_static_picture, _wrong_explorer_picture, _wrong_still,
           _wrong_alternative_text, _unsorted_counts]


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """One copy of a notebook for each defect, and what strict nbval says of them all: {name: (notebook, failed)}."""
    folder = tmp_path_factory.mktemp("seeded")
    broken = {}
    for seed in DEFECTS:
        name = seed.__name__.strip("_")
        broken[name] = nbformat.read(NOTEBOOKS[0], as_version=4)
        seed([cell for cell in broken[name].cells if cell.cell_type == "code"])
        nbformat.write(broken[name], folder / f"{name}.ipynb")
    report = nbval(folder).stdout
    return {name: (made, f"FAILED {name}.ipynb" in report) for name, made in broken.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [seed.__name__.strip("_") for seed in DEFECTS])
def test_a_seeded_output_defect_is_found(name, seeded, tmp_path, execute):
    broken, nbval_failed = seeded[name]
    assert nbval_failed or list(defects(broken, execute(NOTEBOOKS[0])))
    assert stale(ROOT, _notebooks_with(broken, tmp_path / "all"), "learner")  # and the edit itself is noticed


def _notebooks_with(broken, folder):
    folder.mkdir()
    for path in NOTEBOOKS:
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    nbformat.write(broken, folder / NOTEBOOKS[0].name)
    return folder


def test_a_hand_edited_source_is_found(tmp_path):
    broken = nbformat.read(NOTEBOOKS[0], as_version=4)
    broken.cells[0].source += "\nA line of my own."
    assert any("edited by hand" in sentence for sentence in stale(ROOT, _notebooks_with(broken, tmp_path / "all"), "learner"))
