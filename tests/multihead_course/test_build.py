"""The builder: what each edition holds, what it executes, what it refuses."""
import json
import re
import shutil

import nbformat
import pytest
from places import NOTEBOOKS, ROOT
from test_lesson import GOOD

from multihead_course.build import EDITIONS, BuildRefused, build, inputs_digest, lessons, notebook, stale
from multihead_course.leaks import leaks
from multihead_course.lesson import STUB

CHECK_STAND_IN = "# %% minutes=1\ndef check(name, answer):\n    print('checked', name)\n\n# %% exercise"


@pytest.fixture
def tree(tmp_path):
    """A source tree with one lesson."""
    folder = tmp_path / "lessons_src" / "lessons"
    folder.mkdir(parents=True)
    (folder / "01_test.py").write_text(GOOD.replace("# %% exercise", CHECK_STAND_IN, 1), encoding="utf-8")
    (tmp_path / "lessons_src" / "multihead").mkdir()
    (tmp_path / "lessons_src" / "multihead" / "__init__.py").write_text("")
    (tmp_path / "lessons_src" / "multihead" / "attention.py").write_text("x = 1\n")
    (tmp_path / "requirements.txt").write_text("torch\n")
    return tmp_path


def run(tree, edition="learner"):
    said = []
    build(tree, tree / "out", edition, said.append)
    return said, nbformat.read(tree / "out" / "01_test.ipynb", as_version=4)


def test_learner_edition(tree):
    _, made = run(tree)
    sources = [cell.source for cell in made.cells]
    assert any(STUB.splitlines()[0] in source and "raise NotImplementedError()" in source for source in sources)
    assert "Why?\n\nYOUR ANSWER HERE" in sources
    hint = next(source for source in sources if "<details>" in source)
    assert hint.count("<details>") == hint.count("</details>") == 3
    assert hint.index("One.") < hint.index("Two.") < hint.index("Three.") < hint.index('show_solution("split_heads")')
    everything = nbformat.writes(made)
    assert "Because." not in everything and "Two points" not in everything and "unflatten" not in everything
    nbformat.validate(made)
    assert "widgets" not in made.metadata and "jupytext" not in made.metadata


def test_solution_edition(tree):
    _, made = run(tree, "solution")
    everything = nbformat.writes(made)
    assert "Because." in everything and "Two points" in everything and "NotImplementedError" not in everything
    assert "transpose" in next(cell.source for cell in made.cells if "def split_heads" in cell.source)


def test_a_second_build_executes_nothing_and_changes_no_byte(tree):
    run(tree)
    before = (tree / "out" / "01_test.ipynb").read_bytes()
    said, _ = run(tree)
    assert said == ["01_test: up to date"]
    assert (tree / "out" / "01_test.ipynb").read_bytes() == before
    assert b"\r" not in before
    shutil.rmtree(tree / "out")
    run(tree)
    assert (tree / "out" / "01_test.ipynb").read_bytes() == before


@pytest.mark.parametrize("path, more", [
    ("lessons_src/lessons/01_test.py", "\n# %%\n1 + 1\n"), ("lessons_src/multihead/attention.py", "y = 2\n"),
    ("requirements.txt", "numpy\n")])
def test_a_changed_input_is_noticed_and_rebuilt(tree, path, more):
    run(tree)
    with open(tree / path, "a", encoding="utf-8") as file:
        file.write(more)
    assert stale(tree, tree / "out", "learner")
    said, _ = run(tree)
    assert said[-1] == "01_test: built"
    assert stale(tree, tree / "out", "learner") == []


def test_inputs_do_not_depend_on_files_that_the_lesson_does_not_reach(tree):
    lesson = lessons(tree)[0]
    before = inputs_digest(lesson, tree, "learner")
    (tree / "lessons_src" / "multihead" / "unused.py").write_text("z = 3\n")
    assert inputs_digest(lesson, tree, "learner") == before


@pytest.mark.parametrize("edit", ["source", "output", "stamp", "not a notebook"])
def test_an_edited_notebook_is_refused_and_kept(tree, edit):
    run(tree)
    path = tree / "out" / "01_test.ipynb"
    made = json.loads(path.read_text(encoding="utf-8"))
    if edit == "source":
        made["cells"][0]["source"] = "My own text"
    elif edit == "output":
        made["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "mine"}]
    elif edit == "stamp":
        del made["metadata"]["multihead_course"]
    mine = json.dumps(made) if edit != "not a notebook" else "notes to myself"
    path.write_text(mine, encoding="utf-8")
    with pytest.raises(BuildRefused, match="move it away"):
        run(tree)
    assert path.read_text(encoding="utf-8") == mine
    assert stale(tree, tree / "out", "learner")


def test_a_failed_cell_leaves_the_old_notebook(tree):
    run(tree)
    before = (tree / "out" / "01_test.ipynb").read_bytes()
    with open(tree / "lessons_src" / "lessons" / "01_test.py", "a", encoding="utf-8") as file:
        file.write("\n# %%\n1 / 0\n")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        run(tree)
    assert (tree / "out" / "01_test.ipynb").read_bytes() == before


def test_a_notebook_without_lesson_is_removed_if_we_made_it_and_reported_if_not(tree):
    run(tree)
    (tree / "lessons_src" / "lessons" / "01_test.py").rename(tree / "lessons_src" / "lessons" / "02_test.py")
    assert any("belongs to no lesson" in sentence for sentence in stale(tree, tree / "out", "learner"))
    build(tree, tree / "out", "learner", lambda _: None)
    assert [path.name for path in (tree / "out").glob("*.ipynb")] == ["02_test.ipynb"]


def test_ids_come_from_content_and_ordinal(tree):
    lesson = lessons(tree)[0]
    before = [cell.id for cell in notebook(lesson, "learner", "", [lesson]).cells]
    assert len(set(before)) == len(before)
    path = lesson.path
    path.write_text(path.read_text(encoding="utf-8") + "\n# %%\n1\n\n# %%\n1\n", encoding="utf-8")
    lesson = lessons(tree)[0]
    after = [cell.id for cell in notebook(lesson, "learner", "", [lesson]).cells]
    assert after[:len(before)] == before and len(set(after)) == len(after) == len(before) + 2


# Gates on the real course

@pytest.mark.parametrize("lesson", lessons(ROOT), ids=lambda lesson: lesson.name)
def test_no_solution_leaks(lesson):
    made = json.loads((ROOT / "notebooks" / f"{lesson.name}.ipynb").read_text(encoding="utf-8"))
    assert leaks(lesson, made) == []


@pytest.mark.parametrize("lesson", lessons(ROOT), ids=lambda lesson: lesson.name)
def test_links_between_lessons_lead_somewhere(lesson):
    names = {path.name for path in NOTEBOOKS}
    for edition in EDITIONS:
        for cell in notebook(lesson, edition, "", lessons(ROOT)).cells:
            for target in re.findall(r"\]\(([^)#]+\.ipynb)[^)]*\)", cell.source):
                assert target in names
