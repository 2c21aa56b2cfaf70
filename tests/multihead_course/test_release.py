"""Homework from lessons: what students get, what only instructors get, what a release never overwrites."""
import csv
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from places import ROOT
from test_lesson import GOOD

from multihead_course import cli, release as releasing, wheel
from multihead_course.build import lessons
from multihead_course.leaks import leaks
from multihead_course.lesson import STUB, read_lesson, solution_lines
from multihead_course.release import ReleaseRefused, editions, release, stale
from multihead_lessons.exercises import grade

HOMEWORK = [lesson for lesson in lessons(ROOT) if lesson.named("exercise") or lesson.named("question")]
PIPELINE = next(lesson for lesson in HOMEWORK if lesson.name == "03_the_4d_pipeline")
SOLUTION = solution_lines(PIPELINE.named("exercise")["split_heads"])
WHEEL = "multihead_course-0-py3-none-any.whl"
MORE = '''
# %% [markdown] teaching=true
# Ask the room.

# %% [markdown] strip=true
# See the [symbols page](00_start_here.ipynb) and [02](02_more.ipynb#here), or [a paper](https://example.org).

# %%
print("Run `pip install -r requirements.txt` in the course's folder.")
'''


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A source tree with one lesson to hand in and one to read. Its wheel is a stand-in, made at once."""
    folder = tmp_path / "tree" / "lessons_src" / "lessons"
    folder.mkdir(parents=True)
    (folder / "01_test.py").write_text(GOOD + MORE, encoding="utf-8")
    (folder / "02_more.py").write_text("# %% [markdown]\n# # Only to read?\n", encoding="utf-8")
    (folder.parent / "multihead").mkdir()
    (folder.parent / "multihead" / "__init__.py").write_text("")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / "tree" / name)
    monkeypatch.setattr(releasing, "build_wheel", lambda root: wheel.wheel_name(root).encode())
    return tmp_path / "tree"


@pytest.fixture
def run(tree, tmp_path):
    def release_into_course(*wanted):
        said = []
        release(tree, wanted or ["01"], tmp_path / "course", said.append)
        return said
    return release_into_course


def files(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def graded(made):
    """grade_id -> cell, of the cells that nbgrader knows."""
    return {cell.metadata.nbgrader.grade_id: cell for cell in made.cells if "nbgrader" in cell.metadata}


def without_markers(cell):
    return "\n".join(line for line in cell.source.splitlines() if " SOLUTION" not in line)


def change_the_lesson(tree):
    with open(tree / "lessons_src" / "lessons" / "01_test.py", "a", encoding="utf-8") as file:
        file.write("\n# %%\n1 + 1\n")


# What is in a source and in a release

def test_source_and_release_of_a_lesson(tree):
    source, handed_out = editions(read_lesson(tree / "lessons_src" / "lessons" / "01_test.py"), WHEEL)
    ours, theirs = graded(source), graded(handed_out)
    assert list(ours) == list(theirs) == ["split_heads", "check_split_heads", "grade_split_heads", "why"]

    def roles(name):
        return {key: value for key, value in ours[name].metadata.nbgrader.items() if key != "grade_id"}
    plain = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    assert roles("split_heads") == {**plain, "solution": True}
    assert roles("check_split_heads") == {**plain, "locked": True}
    assert roles("grade_split_heads") == {**plain, "grade": True, "locked": True, "points": 3}
    assert roles("why") == {**plain, "grade": True, "solution": True, "points": 2}

    top, _, solution = ours["split_heads"].source.partition("    ### BEGIN SOLUTION\n")
    assert "transpose" in solution and solution.endswith("\n    ### END SOLUTION")
    assert theirs["split_heads"].source == top + "    # YOUR CODE HERE\n    raise NotImplementedError()"
    assert "<!-- BEGIN SOLUTION -->\n**Model answer.** Because." in ours["why"].source
    assert ours["why"].source.endswith('**Rubric.** Two points for "because".\n<!-- END SOLUTION -->')
    assert theirs["why"].source == "Why?\n\nYOUR ANSWER HERE"
    protection = {name: tuple(map(cell.metadata.get, ("deletable", "editable")))
                  for name, cell in theirs.items()}
    assert protection == {"split_heads": (False, None), "check_split_heads": (False, False),
                          "grade_split_heads": (False, False), "why": (False, None)}
    assert f"pip install ./{WHEEL}" in source.cells[1].source


def test_checksums_are_nbgraders(tree):
    utils = pytest.importorskip("nbgrader.utils")
    _, handed_out = editions(read_lesson(tree / "lessons_src" / "lessons" / "01_test.py"), WHEEL)
    for cell in graded(handed_out).values():
        assert cell.metadata.nbgrader.checksum == utils.compute_checksum(cell)


def test_a_release_stands_alone(tree):
    _, handed_out = editions(read_lesson(tree / "lessons_src" / "lessons" / "01_test.py"), WHEEL)
    text = "\n".join(cell.source for cell in handed_out.cells)
    assert "See the symbols page and 02, or [a paper](https://example.org)." in text
    assert f"Run `python -m pip install ./{WHEEL}` in this notebook's folder." in text
    assert "Ask the room" not in text


def test_every_method_of_a_class_is_a_region_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "layers.py").write_text(
        "class Pair:\n    def first(self, x):\n        x = x + 1\n\n        return x\n\n"
        "    def second(self, x):\n        return x * 2\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    stub = "        # YOUR CODE HERE\n        raise NotImplementedError()\n"
    script = GOOD[:GOOD.index("# %% exercise")] + (
        '# %% exercise="Pair" solution="layers:Pair" points=1 minutes=1\n'
        f"class Pair:\n    def first(self, x):\n{stub}\n    def second(self, x):\n{stub}") + (
        '\n# %% check="Pair"\n1\n\n# %% [markdown] hint="Pair"\n# 1\n#\n# ---\n# 2\n#\n# ---\n# 3\n')
    (tmp_path / "01_pair.py").write_text(script, encoding="utf-8")
    both = editions(read_lesson(tmp_path / "01_pair.py"), WHEEL)
    source, handed_out = (graded(made)["Pair"].source for made in both)
    page = "class Pair:\n    def first(self, x):\n{}\n\n    def second(self, x):\n{}"
    marked = "        ### BEGIN SOLUTION\n{}\n        ### END SOLUTION"
    assert source == page.format(marked.format("        x = x + 1\n\n        return x"),
                                 marked.format("        return x * 2"))
    assert handed_out == page.format(stub.rstrip(), stub.rstrip())


def test_ids_and_all_other_cells_are_the_same_in_both(tree):
    source, handed_out = editions(read_lesson(tree / "lessons_src" / "lessons" / "01_test.py"), WHEEL)
    assert [cell.id for cell in source.cells] == [cell.id for cell in handed_out.cells]
    assert len({cell.id for cell in source.cells}) == len(source.cells)
    differing = [a.id for a, b in zip(source.cells, handed_out.cells) if a.source != b.source]
    assert differing == [graded(source)["split_heads"].id, graded(source)["why"].id]
    for made in (source, handed_out):
        nbformat.validate(made)


@pytest.mark.parametrize("lesson", HOMEWORK, ids=lambda lesson: lesson.name)
def test_no_release_of_the_course_gives_anything_away(lesson):
    source, handed_out = editions(lesson, WHEEL)
    made = json.loads(nbformat.writes(handed_out))
    assert leaks(lesson, made) == []
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in made["cells"])
    text = "\n".join(cell.source for cell in handed_out.cells)
    assert "requirements.txt" not in text and ".ipynb)" not in text
    assert leaks(lesson, json.loads(nbformat.writes(source)))
    for cell in graded(source).values():
        if cell.cell_type == "code":
            compile(cell.source, cell.id, "exec")
    points = {name: cell.metadata.nbgrader.get("points") for name, cell in graded(handed_out).items()}
    assert {name: number for name, number in points.items() if number is not None} == {
        **{f"grade_{name}": cell.keys["points"] for name, cell in lesson.named("exercise").items()},
        **{name: cell.keys["points"] for name, cell in lesson.named("question").items()}}


@pytest.mark.parametrize("give_away, what", [
    (lambda cell: cell.update(source="# a comment\n### begin solution"), "marker"),
    (lambda cell: cell.update(source="Three lines:\n" + "\n".join(SOLUTION[1:4])), "'split_heads'"),
    (lambda cell: cell.update(source=[f"  {line}\n" for line in SOLUTION]), "'split_heads'"),
    (lambda cell: cell.update(source="Well.\n  Because.\n"), "'why'"),
    (lambda cell: cell.update(outputs=[{"output_type": "stream", "text": ["Because.\n"]}]), "'why'"),
    (lambda cell: cell["metadata"].update(tags=['Two points for "because".']), "'why'"),
    (lambda cell: cell["metadata"].update(exercise="split_heads"), "metadata 'exercise'"),
])
def test_the_gate_finds_what_is_given_away(tree, give_away, what):
    lesson = read_lesson(tree / "lessons_src" / "lessons" / "01_test.py")
    made = json.loads(nbformat.writes(editions(lesson, WHEEL)[1]))
    assert leaks(lesson, made) == []
    give_away(made["cells"][-1])
    assert [what in sentence for sentence in leaks(lesson, made)] == [True]


def test_the_gate_finds_a_paired_notebook(tree):
    lesson = read_lesson(tree / "lessons_src" / "lessons" / "01_test.py")
    made = json.loads(nbformat.writes(editions(lesson, WHEEL)[1]))
    made["metadata"]["jupytext"] = {"formats": "ipynb,py:percent"}
    assert leaks(lesson, made) == ["01_test holds metadata 'jupytext'."]


# The cell that carries the points

def test_grade_says_nothing_for_a_right_answer_and_raises_the_verdict_for_a_wrong_one(capfd):
    assert grade("split_heads", lambda x, h: x.unflatten(-1, (h, x.shape[-1] // h)).transpose(1, 2)) is None
    with pytest.raises(AssertionError, match=r"^split_heads: You went straight to \[B, h, T, d_k\]"):
        grade("split_heads", lambda x, h: x.reshape(x.shape[0], h, x.shape[1], -1))
    assert capfd.readouterr() == ("", "")


# Names of lessons

@pytest.mark.parametrize("word", ["01", "01_test", "lessons_src/lessons/01_test.py", "x/01_test.ipynb"])
def test_a_lesson_may_be_named_in_several_ways(run, tmp_path, word):
    run(word, "01")
    assert [path.name for path in (tmp_path / "course" / "release").iterdir()] == ["01_test"]


@pytest.mark.parametrize("word, sentence", [("1", "no lesson '1'; the lessons are 01_test, 02_more"),
                                            ("02", "02_more has no exercise and no question")])
def test_a_lesson_that_cannot_be_released(run, tmp_path, word, sentence):
    with pytest.raises(ValueError, match=sentence):
        run("01", word)
    assert not (tmp_path / "course").exists()


# What a release writes, and what it leaves alone

def test_files_of_a_release(run, tree, tmp_path):
    assert run()[-1] == "01_test: written to source/ and release/"
    name = wheel.wheel_name(tree)
    assert set(files(tmp_path / "course")) == {".course.json", "nbgrader_config.py"} | {
        f"{edition}/01_test/{file}" for edition in ("source", "release") for file in ("01_test.ipynb", name)}
    assert name in (tmp_path / "course" / "release" / "01_test" / "01_test.ipynb").read_text(encoding="utf-8")
    assert stale(tree, tmp_path / "course") == []


def test_a_second_release_changes_no_byte_and_builds_no_wheel(run, tmp_path, monkeypatch):
    run()
    before = files(tmp_path / "course")
    monkeypatch.setattr(releasing, "build_wheel", None)
    assert run() == ["01_test: up to date"]
    assert files(tmp_path / "course") == before


def test_a_changed_lesson_and_changed_packages_are_released_anew(run, tree, tmp_path):
    run()
    old = wheel.wheel_name(tree)
    change_the_lesson(tree)
    assert wheel.wheel_name(tree) == old
    (tree / "lessons_src" / "multihead" / "__init__.py").write_text("x = 1\n")
    assert len(stale(tree, tmp_path / "course")) == 2
    run()
    there = files(tmp_path / "course")
    assert b"1 + 1" in there["release/01_test/01_test.ipynb"]
    new = wheel.wheel_name(tree)
    assert new != old
    wheels = {name for name in there if name.endswith(".whl")}
    assert wheels == {f"source/01_test/{new}", f"release/01_test/{new}"}
    assert stale(tree, tmp_path / "course") == []


@pytest.mark.parametrize("edition", ["source", "release"])
@pytest.mark.parametrize("file", ["01_test.ipynb", "wheel"])
def test_what_an_instructor_has_edited_is_refused_by_name_and_kept(run, tree, tmp_path, edition, file):
    run()
    edited = tmp_path / "course" / edition / "01_test" / (wheel.wheel_name(tree) if file == "wheel" else file)
    edited.write_bytes(edited.read_bytes() + b"\n")
    change_the_lesson(tree)
    before = files(tmp_path / "course")
    with pytest.raises(ReleaseRefused, match=f"{edition}/01_test/.*: edited by hand"):
        run()
    assert files(tmp_path / "course") == before
    if file == "01_test.ipynb":
        sentence = f"{edition}/01_test/{file} was edited, or made by something else."
        assert sentence in stale(tree, tmp_path / "course")


def test_a_folder_that_lost_its_record_is_known_by_what_is_in_it(run, tmp_path):
    run()
    before = files(tmp_path / "course")
    (tmp_path / "course" / ".course.json").unlink()
    assert run()[-1] == "01_test: up to date"
    assert files(tmp_path / "course") == before


def test_a_folder_of_somebody_else_is_refused(run, tmp_path):
    theirs = tmp_path / "course" / "source" / "01_test" / "01_test.ipynb"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    with pytest.raises(ReleaseRefused, match="source/01_test/01_test.ipynb"):
        run()
    assert list(files(tmp_path / "course").values()) == [b"mine"]


def test_other_files_of_an_instructor_stay(run, tree, tmp_path):
    run()
    (tmp_path / "course" / "source" / "01_test" / "data.csv").write_text("1")
    (tmp_path / "course" / "nbgrader_config.py").write_text("mine")
    change_the_lesson(tree)
    assert run()[-1] == "nbgrader_config.py: yours, left as it is"
    assert (tmp_path / "course" / "source" / "01_test" / "data.csv").read_text() == "1"
    assert (tmp_path / "course" / "nbgrader_config.py").read_text() == "mine"


def test_once_submissions_are_in_the_release_stays_as_students_had_it(run, tree, tmp_path):
    run()
    (tmp_path / "course" / "submitted" / "ada" / "01_test").mkdir(parents=True)
    assert run() == ["01_test: up to date"]
    change_the_lesson(tree)
    before = files(tmp_path / "course")
    with pytest.raises(ReleaseRefused, match="submissions for 01_test are in"):
        run()
    assert files(tmp_path / "course") == before


def test_a_lesson_that_gives_its_solution_away_is_not_released(run, tree, tmp_path):
    with open(tree / "lessons_src" / "lessons" / "01_test.py", "a", encoding="utf-8") as file:
        file.write("\n# %% [markdown]\n# Because.\n")
    with pytest.raises(ReleaseRefused, match="01_test holds what only an instructor may read of 'why'"):
        run()
    assert not (tmp_path / "course").exists()


def test_a_damaged_record_is_reported(run, tmp_path):
    run()
    (tmp_path / "course" / ".course.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        run()


def test_nbgraders_settings(run, tmp_path):
    run()
    settings = tmp_path / "course" / "nbgrader_config.py"
    config = _Settings()
    exec(settings.read_text(encoding="utf-8"), {"get_config": lambda: config, "__file__": str(settings)})
    assert config.ClearSolutions.code_stub == {"python": STUB}
    assert config.CourseDirectory.root == str(tmp_path / "course") and config.CourseDirectory.course_id
    assert config.Execute.timeout > 30 and config.Execute.shutdown_kernel == "immediate"


class _Settings:
    def __getattr__(self, name):
        self.__dict__[name] = _Settings()
        return self.__dict__[name]


def test_the_command(tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "ROOT", tree)
    assert cli.main(["release", "01", "--out", str(tmp_path / "course")]) == 0
    assert (tmp_path / "course" / "release" / "01_test" / "01_test.ipynb").exists()
    assert cli.main(["release", "07", "--out", str(tmp_path / "course")]) == 1
    assert capsys.readouterr().err.startswith("course release: there is no lesson '07'")


# The wheel

def test_the_wheel_of_the_course(tmp_path):
    built = tmp_path / wheel.wheel_name(ROOT)
    built.write_bytes(wheel.build_wheel(ROOT))
    with zipfile.ZipFile(built) as archive:
        names = archive.namelist()
        metadata = next(archive.read(name).decode() for name in names if name.endswith("METADATA"))
    assert f"Version: {built.name.split('-')[1]}\n" in metadata and "+" in built.name
    assert {"multihead/attention.py", "multihead_lessons/exercises/bank.py",
            "multihead_lessons/data/relations.json"} <= set(names)
    packages = ("multihead/", "multihead_lessons/", "multihead_course/", "multihead_course-")
    assert [name for name in names if not name.startswith(packages)] == []
    assert not any("lessons/0" in name or name.endswith((".ipynb", ".pyc")) for name in names)


@pytest.mark.parametrize("tool, version, sentence", [
    ("setuptools", None, "setuptools is missing here"), ("pip", None, "pip is missing here"),
    ("setuptools", "65.5.0", "setuptools 65.5.0 is too old here")])
def test_what_the_wheel_needs_is_said(monkeypatch, tool, version, sentence):
    real = importlib.metadata.version

    def pretended(name):
        if name == tool and version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version if name == tool else real(name)
    monkeypatch.setattr(importlib.metadata, "version", pretended)
    with pytest.raises(ValueError, match=sentence):
        wheel.build_wheel(ROOT)


@pytest.mark.slow
def test_the_same_tree_gives_the_same_wheel():
    assert wheel.build_wheel(ROOT) == wheel.build_wheel(ROOT)


# With nbgrader itself

def nbgrader(course, *arguments):
    """Runs nbgrader in the course folder and returns what it says. It finds alembic by PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run([sys.executable, "-m", "nbgrader", *arguments], cwd=course, timeout=600,
                          capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def nbgraders_course(tmp_path_factory):
    """All homework of the course, released by us and then once more by nbgrader."""
    pytest.importorskip("nbgrader")
    course = tmp_path_factory.mktemp("homework") / "course"
    release(ROOT, [lesson.name for lesson in HOMEWORK], course, lambda _: None)
    shutil.copytree(course / "release", course / "ours")
    for lesson in HOMEWORK:
        nbgrader(course, "generate_assignment", lesson.name, "--force")
    return course


@pytest.mark.slow
@pytest.mark.parametrize("lesson", HOMEWORK, ids=lambda lesson: lesson.name)
def test_nbgrader_makes_the_same_release_of_our_source(nbgraders_course, lesson):
    assert files(nbgraders_course / "release" / lesson.name) == files(nbgraders_course / "ours" / lesson.name)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", HOMEWORK, ids=lambda lesson: lesson.name)
def test_nbgrader_validates_the_source_and_not_the_release(nbgraders_course, lesson):
    notebook = f"{lesson.name}/{lesson.name}.ipynb"
    said = nbgrader(nbgraders_course, "validate", f"source/{notebook}")
    assert "Success! Your notebook passes all the tests." in said
    said = nbgrader(nbgraders_course, "validate", f"release/{notebook}")
    assert all(f"AssertionError: {name}: not attempted yet." in said for name in lesson.named("exercise"))


@pytest.mark.slow
def test_nbgrader_gives_the_right_marks(nbgraders_course):
    name = "03_the_4d_pipeline"
    source, handed_out = (nbformat.read(nbgraders_course / edition / name / f"{name}.ipynb", 4)
                          for edition in ("source", "release"))
    untouched = graded(handed_out)["layout_bug"].source
    solved = {name: without_markers(cell) for name, cell in graded(source).items()}
    wrong = {**solved, "layout_bug": untouched,
             "split_heads": "def split_heads(x, h):\n    return x.reshape(x.shape[0], h, x.shape[1], -1)"}
    for student, answers in (("honest", solved), ("wrong", wrong)):
        for grade_id, cell in graded(handed_out).items():
            cell.source = answers[grade_id]
        place = nbgraders_course / "submitted" / student / name / f"{name}.ipynb"
        place.parent.mkdir(parents=True)
        nbformat.write(handed_out, place)
    nbgrader(nbgraders_course, "autograde", name)
    nbgrader(nbgraders_course, "export")
    with open(nbgraders_course / "grades.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["assignment"] == name]
    marks = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in rows}
    assert marks == {"honest": (8, 10), "wrong": (5, 10)}  # the question's two points are a human's to give
    nbgrader(nbgraders_course, "generate_feedback", name)
    feedback = (nbgraders_course / "feedback" / "wrong" / name / f"{name}.html").read_text(encoding="utf-8")
    assert "split_heads: You went straight to" in feedback and "BEGIN SOLUTION" not in feedback
