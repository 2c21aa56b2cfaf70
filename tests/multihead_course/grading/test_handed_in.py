"""Which cells of a submission are the student's own, which must run, and which holds the answer."""
import pytest
from submissions import LESSON, POINTS, RIGHT, SPLIT, code, put, released, solved, with_cell

from multihead_course.grading import handed_in
from multihead_course.grading.handed_in import Cell, NeedsAPerson, Submission, cells_of, the_notebook


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return handed_in.released(put(tmp_path_factory.mktemp("release") / "released.ipynb", released()))


def _submission(release, notebook):
    import json
    return Submission(cells_of(json.dumps(notebook).encode(), "x.ipynb"), release)


def test_the_release_says_what_gives_points(release):
    assert {name: part.points for name, part in release.exercises.items()} == POINTS
    assert release.exercises["split_heads"].heading == "Your turn: `split_heads`"
    assert {name: part.points for name, part in release.questions.items()} == {"layout_bug": 2}


def test_only_what_is_needed_runs(release):
    submission = _submission(release, solved(split_heads=SPLIT["chunks"]))
    program = [cell.source for cell in submission.program()]
    assert [cell.name for cell in submission.own] == ["split_heads"]
    assert any("import torch\n" in source for source in program)  # the answer needs torch
    assert not any("lesson.pipeline_explorer" in source or "timeit" in source for source in program)
    assert len(program) == 4  # the imports, two stubs, the answer


def test_a_cell_brings_what_it_needs_in_its_turn(release):
    submission = _submission(release, with_cell(released(), "print(merge(fused_out))"))
    program = [cell.source for cell in submission.program()]
    merging = next(i for i, source in enumerate(program) if "merge = lambda" in source)
    assert any("viewed.transpose(1, 2)" in source for source in program[:merging])
    assert program[-1] == "print(merge(fused_out))"


def test_an_untouched_notebook_has_nothing_of_its_own(release):
    submission = _submission(release, released())
    assert submission.own == [] and not any(map(submission.attempted, release.exercises))
    assert submission.answer("layout_bug") is None


def test_a_written_answer_is_found(release):
    notebook = released()
    cell = next(cell for cell in notebook["cells"] if "YOUR ANSWER HERE" in "".join(cell["source"]))
    cell["source"] = "Each head got whole tokens."
    assert _submission(release, notebook).answer("layout_bug") == "Each head got whole tokens."


def test_the_last_definition_counts(release):
    notebook = with_cell(solved(**RIGHT), "def split_heads(x, h):\n    return None")
    assert _submission(release, notebook).definition("split_heads").source.endswith("return None")


@pytest.mark.parametrize("source, binds, needs", [
    ("import torch.nn as nn, math", {"nn", "math"}, set()),
    ("def f(x, h=size):\n    y = x + z\n    return g(y)", {"f"}, {"size", "z", "g"}),
    ("class A(nn.Module):\n    def forward(self, x):\n        return helper(x)", {"A"}, {"nn", "helper"}),
    ("f = lambda x: x @ w", {"f"}, {"w"}),
    ("for i in range(3):\n    t = [j for j in things]", {"i", "t"}, {"range", "things"}),
    ("def f():\n    global counter\n    counter = 1", {"f", "counter"}, {"counter"}),
    ("%%time\nx = !ls\n!pip install y\nz = x", {"x", "z"}, {"x"}),
    ("def broken(:\n    return a", {"broken"}, {"a"})])
def test_names(source, binds, needs):
    cell = Cell("code", source)
    assert cell.binds == binds and needs <= cell.needs
    assert "y" not in cell.binds | cell.needs or "y" in needs


@pytest.mark.parametrize("source", ["x = 'é😀'", "x = 1\r\ny = 2", "# \ud800"])
def test_any_text_is_read(source):
    import json
    (cell,) = cells_of(json.dumps({"cells": [code(source)]}).encode(), "x.ipynb")
    cell.source.encode("utf-8")


def test_the_notebook_is_found_or_the_question_is_put(tmp_path):
    with pytest.raises(NeedsAPerson, match="empty"):
        the_notebook(tmp_path, LESSON)
    put(tmp_path / ".ipynb_checkpoints" / f"{LESSON}.ipynb", b"old")
    put(tmp_path / "final.ipynb", b"new")
    assert the_notebook(tmp_path, LESSON) == (tmp_path / "final.ipynb", ["handed in as final.ipynb"])
    put(tmp_path / "final2.ipynb", b"newer")
    with pytest.raises(NeedsAPerson, match="2 notebooks"):
        the_notebook(tmp_path, LESSON)
    put(tmp_path / f"{LESSON}.ipynb", b"named")
    assert the_notebook(tmp_path, LESSON) == (tmp_path / f"{LESSON}.ipynb", [])
