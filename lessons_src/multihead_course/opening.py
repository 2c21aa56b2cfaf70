"""Opens the course for a learner: `course open`."""
from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from multihead_course.build import STAMP

START = "00_start_here.ipynb"


def open_course(notebooks: Path, work: Path, options: Sequence[str] = ()) -> int:
    """Copies what is missing into `work`, says what is older than its lesson, and runs JupyterLab there."""
    for sentence in prepare(notebooks, work):
        print(sentence)
    return subprocess.call([sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={work.resolve()}",
                            f"--LabApp.default_url=/lab/tree/{START}", *options])


def prepare(notebooks: Path, work: Path) -> list[str]:
    """Copies missing notebooks into `work`; never touches one that is there. Returns sentences for the learner."""
    available = sorted(notebooks.glob("*.ipynb"))
    if not available:
        raise ValueError(f"no notebooks in {notebooks}; get a whole copy of the course, or run course build.")
    work.mkdir(parents=True, exist_ok=True)
    sentences = []
    for source in available:
        copy = work / source.name
        if not copy.exists():
            shutil.copyfile(source, copy)
        elif _inputs(copy) != _inputs(source):
            sentences.append(f"{copy.name}: the lesson has changed since your copy was made. Yours is untouched; to get the "
                             "new one, rename yours and run this again.")
    return sentences


def _inputs(path: Path) -> str | None:
    """The digest of what a notebook was built from; None where a learner's editor has dropped it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["metadata"][STAMP]["inputs"]
    except (ValueError, KeyError, TypeError):
        return None
