"""Notebooks in turn, and executed afresh, each once."""
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from places import NOTEBOOKS


@cache
def _executed(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", store_widget_state=False, coalesce_streams=True,
                   resources={"metadata": {"path": str(path.parent)}}).execute()
    return notebook


@pytest.fixture
def execute():
    """`execute(path)` is the notebook with the outputs of a fresh run; a cell that raises fails the test."""
    return _executed


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook_path(request):
    """Each learner notebook in turn."""
    return request.param
