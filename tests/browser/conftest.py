"""Fixtures of the browser tests: Chromium, JupyterLab, and each notebook of the course open and run in it."""
from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from lab import NotebookPage, chromium, find_chromium, jupyterlab
from places import NOTEBOOKS


def _cannot_run(sentence: str) -> None:
    """Skips on a reader's machine. In CI a test that did not run must not look like one that passed."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(sentence)


@pytest.fixture(scope="module")
def browser():
    if importlib.util.find_spec("playwright") is None:
        _cannot_run("Playwright is not installed: run `pip install -r tests/requirements.txt`.")
    if (program := find_chromium()) is None:
        _cannot_run("No Chromium found: install it, or let the variable CHROMIUM name the program.")
    with chromium(program) as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the copies of the notebooks lie: JupyterLab writes beside what it opens."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def lab(folder) -> Iterator[str]:
    with jupyterlab(folder) as address:
        yield address


@dataclass
class Run:
    """A notebook that was opened and then run from top to bottom.

    cells:    the cells of the file
    stored:   the images of each cell as the untrusted file showed them, before anything ran
    notebook: the page since then
    done:     whether no cell raised
    """

    name: str
    cells: list[nbformat.NotebookNode]
    stored: list[list[dict]]
    notebook: NotebookPage
    done: bool


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def run(request, browser, folder, lab) -> Iterator[Run]:
    path = Path(shutil.copy(request.param, folder))
    notebook = NotebookPage(browser, lab, path.name)
    try:
        cells, stored = nbformat.read(path, as_version=4).cells, notebook.images()
        yield Run(path.stem, cells, stored, notebook, notebook.run_all())
    finally:
        notebook.close()


@pytest.fixture
def live(run) -> Iterator[NotebookPage]:
    """The notebook after its run. The test fails when page, console or kernel report an error meanwhile."""
    before = len(run.notebook.problems)
    yield run.notebook
    assert run.notebook.problems[before:] == []
