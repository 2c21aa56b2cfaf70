"""`course open` copies what is missing, never touches what is there, and says what is older."""
import json
import subprocess

import pytest

from multihead_course import cli, opening


@pytest.fixture
def notebooks(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name in ("00_start_here", "01_test"):
        _write(folder / f"{name}.ipynb", inputs="first")
    return folder


def _write(path, inputs, text="lesson"):
    path.write_text(json.dumps({"cells": [text], "metadata": {opening.STAMP: {"inputs": inputs}}}), encoding="utf-8")


def test_copies_what_is_missing(notebooks, tmp_path):
    assert opening.prepare(notebooks, tmp_path / "my_work") == []
    assert sorted(path.name for path in (tmp_path / "my_work").iterdir()) == ["00_start_here.ipynb", "01_test.ipynb"]


def test_never_overwrites_and_reports_an_older_copy(notebooks, tmp_path):
    work = tmp_path / "my_work"
    opening.prepare(notebooks, work)
    _write(work / "01_test.ipynb", "first", text="my answer")
    assert opening.prepare(notebooks, work) == []  # edited, but not older
    _write(notebooks / "01_test.ipynb", "second")
    (work / "00_start_here.ipynb").unlink()
    sentences = opening.prepare(notebooks, work)
    assert len(sentences) == 1 and sentences[0].startswith("01_test.ipynb") and "untouched" in sentences[0]
    assert "my answer" in (work / "01_test.ipynb").read_text(encoding="utf-8")
    assert (work / "00_start_here.ipynb").exists()


def test_a_damaged_copy_is_reported_not_touched(notebooks, tmp_path):
    work = tmp_path / "my_work"
    opening.prepare(notebooks, work)
    (work / "01_test.ipynb").write_text("damaged", encoding="utf-8")
    assert opening.prepare(notebooks, work)[0].startswith("01_test.ipynb")
    assert (work / "01_test.ipynb").read_text(encoding="utf-8") == "damaged"


def test_without_notebooks_it_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="course build"):
        opening.prepare(tmp_path, tmp_path / "my_work")


def test_jupyterlab_starts_in_my_work_on_start_here(notebooks, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(subprocess, "call", lambda command: calls.append(command) or 0)
    assert cli.main(["open", "--into", str(tmp_path / "mine"), "--", "--no-browser"]) == 0
    assert f"--ServerApp.root_dir={(tmp_path / 'mine').resolve()}" in calls[0]
    assert "--LabApp.default_url=/lab/tree/00_start_here.ipynb" in calls[0] and calls[0][-1] == "--no-browser"
    assert (tmp_path / "mine" / "00_start_here.ipynb").exists()


def test_a_refusal_is_one_sentence(capsys):
    assert cli.main(["build", "--edition", "solution"]) == 1
    assert capsys.readouterr().err.startswith("course build: the solution edition needs --out DIR")
