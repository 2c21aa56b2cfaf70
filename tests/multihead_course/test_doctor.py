"""The doctor finds what would fail on the evening of the deadline, and says what to do."""
import importlib.metadata
import json
import shutil
from collections import namedtuple

import nbformat
import pytest
from places import ROOT

from multihead_course import cli, doctor as examining, release as releasing
from multihead_course.doctor import Finding, doctor
from multihead_course.release import release

NAME = "03_the_4d_pipeline"
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course folder as `release` writes it, with a stand-in for the wheel."""
    monkeypatch.setattr(releasing, "build_wheel", lambda root: b"wheel")
    release(ROOT, ["03"], tmp_path / "course", lambda _: None)
    return tmp_path / "course"


def sentences(findings, level="FIX"):
    return [finding.sentence for finding in findings if finding.level == level]


def folder(course):
    return list(examining._course_folder(ROOT, course))


def edit(course, edition, change):
    path = course / edition / NAME / f"{NAME}.ipynb"
    made = json.loads(path.read_text(encoding="utf-8"))
    change(made)
    path.write_text(json.dumps(made), encoding="utf-8")


# The course folder

def test_a_fresh_release_is_well(course):
    assert {finding.level for finding in folder(course)} == {"ok"}


def test_a_leak_is_to_be_fixed(course):
    source = nbformat.read(course / "source" / NAME / f"{NAME}.ipynb", 4)
    answer = next(cell.source for cell in source.cells if "BEGIN SOLUTION" in cell.source)
    edit(course, "release", lambda made: made["cells"][3].update(source=answer))
    found = folder(course)
    assert any("'### BEGIN SOLUTION'" in sentence for sentence in sentences(found))
    assert any("of 'split_heads'" in sentence for sentence in sentences(found))
    assert f"release/{NAME}/{NAME}.ipynb was edited, or made by something else." in sentences(found, "note")


def test_an_edited_source_is_noted_not_failed(course):
    edit(course, "source", lambda made: made["cells"][0].update(source="# My own title"))
    assert sentences(folder(course)) == []
    (note,) = sentences(folder(course), "note")
    assert note == f"source/{NAME}/{NAME}.ipynb was edited, or made by something else."


@pytest.mark.parametrize("damage, sentence", [
    (lambda course: (course / "release" / NAME / f"{NAME}.ipynb").write_text("{"), "notebook cannot be read"),
    (lambda course: next((course / "release" / NAME).glob("*.whl")).unlink(), "install is missing"),
    (lambda course: (course / "nbgrader_config.py").unlink(), "nbgrader_config.py is missing"),
    (lambda course: (course / "nbgrader_config.py").write_text(""), "does not set the course's stub"),
    (lambda course: shutil.rmtree(course / "release"), "holds no released lesson"),
])
def test_what_is_missing_is_to_be_fixed(course, damage, sentence):
    damage(course)
    assert [sentence in found for found in sentences(folder(course))] == [True]


# The machine

def test_the_environment_of_the_tests_is_well():
    assert sentences(examining._python_and_packages()) == []


def test_packages_that_do_not_fit_are_named(monkeypatch):
    monkeypatch.setattr(examining, "environment_report", lambda: "torch is too old.\nnbclient is missing.")
    assert sentences(examining._python_and_packages()) == ["torch is too old.", "nbclient is missing."]


def test_a_kernel_starts_and_finds_this_clone():
    assert [finding.level for finding in examining._kernel(ROOT)] == ["ok"]


def test_a_kernel_with_another_copy_of_the_course(monkeypatch):
    monkeypatch.setattr(examining, "WHERE_AM_I", "print('python\\n/elsewhere/multihead/__init__.py', end='')")
    found = list(examining._kernel(ROOT))
    assert "not from this clone" in sentences(found)[0] and "pip install -e ." in sentences(found)[0]


def test_a_kernel_without_the_course(monkeypatch):
    monkeypatch.setattr(examining, "WHERE_AM_I", "import a_package_that_nobody_has")
    assert "cannot import the course" in sentences(examining._kernel(ROOT))[0]


def test_nbgrader_is_optional_but_alembic_must_be_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.6")
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "alembic" else name)
    assert sentences(examining._nbgrader())[0].startswith("alembic cannot be found on PATH")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert [finding.level for finding in examining._nbgrader()] == ["ok"]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.8.0")
    assert [finding.level for finding in examining._nbgrader()] == ["note", "ok"]

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert [finding.level for finding in examining._nbgrader()] == ["note"]


@pytest.mark.parametrize("held, level, words", [
    (None, "ok", "all"), (1, "note", "this machine does not hold that a submission")])
def test_guards_are_reported_as_they_hold(monkeypatch, held, level, words):
    forking = pytest.importorskip("multihead_course.grading.forking")
    sandbox = pytest.importorskip("multihead_course.grading.sandbox")

    class Tried:
        def __init__(self, hidden):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def guards(self):
            return list(sandbox.GUARDS)[:held]
    monkeypatch.setattr(forking, "ForkingProcess", Tried)
    monkeypatch.setattr(sandbox, "supported", lambda: None)
    (finding,) = examining._guards(ROOT)
    assert finding.level == level and words in finding.sentence
    if held:
        assert "opens no connection" in finding.sentence and "reads Python" not in finding.sentence


def test_a_full_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10**12, 10**12, 10**8))
    assert sentences(examining._disk(tmp_path / "not" / "yet")) == ["0.1 GB are free; make room for 1 GB."]


def test_notebooks_that_the_lessons_do_not_make_are_noted(monkeypatch):
    monkeypatch.setattr(examining, "stale_notebooks", lambda *_: ["cell 1 differs.", "cell 2 differs."])
    assert sentences(examining._clone(ROOT), "note") == [
        "notebooks/ is not what the lessons make; course build --check says where."]
    monkeypatch.setattr(examining, "stale_notebooks", lambda *_: [])
    assert [finding.level for finding in examining._clone(ROOT)] == ["ok"]


def test_wheels_that_cannot_be_built(monkeypatch):
    monkeypatch.setattr(examining, "cannot_build", lambda: "setuptools is missing here.")
    assert sentences(examining._wheel()) == ["setuptools is missing here."]


def test_all_rooms_are_visited(monkeypatch, course):
    for name in ("_python_and_packages", "_kernel", "_nbgrader", "_guards", "_wheel", "_clone", "_disk",
                 "_course_folder"):
        monkeypatch.setattr(examining, name, lambda *_, name=name: iter([Finding("ok", name)]))
    assert len(list(doctor(ROOT))) == 7 and len(list(doctor(ROOT, course))) == 8


def test_the_command(monkeypatch, capsys, tmp_path):
    well = [Finding("note", "Hm."), Finding("ok", "Well.")]
    monkeypatch.setattr(examining, "doctor", lambda root, course: iter(well))
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out == "note Hm.\nok   Well.\nnothing to put right.\n"
    monkeypatch.setattr(examining, "doctor", lambda root, course: [Finding("FIX", f"{course.name} is bad.")])
    assert cli.main(["doctor", str(tmp_path / "homework")]) == 1
    assert capsys.readouterr().out == "FIX  homework is bad.\n1 to put right.\n"
