"""Is this machine, and this course folder, ready for homework? `course doctor` says so in sentences."""
from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from multihead_course.build import lessons, stale as stale_notebooks
from multihead_course.leaks import leaks
from multihead_course.lesson import STUB
from multihead_course.release import CONFIG, released, stale
from multihead_course.wheel import cannot_build
from multihead_lessons.lesson00 import ALL_IS_WELL, environment_report

TESTED_NBGRADER = "0.9.6"
ENOUGH_DISK = 2**30  # bytes: feedback and copies of a thousand submissions
WHERE_AM_I = """\
import sys, multihead, multihead_lessons
print(sys.executable, multihead.__file__, sep="\\n", end="")"""


@dataclass(frozen=True)
class Finding:
    """One sentence of the doctor. Only what must be put right counts as failure."""

    level: str  # "ok", "note" or "FIX"
    sentence: str


def doctor(root: Path, course: Path | None = None) -> Iterator[Finding]:
    """Looks at the machine, at the clone in `root`, and at a course folder if one is given."""
    yield from _python_and_packages()
    yield from _kernel(root)
    yield from _nbgrader()
    yield from _guards(course or root / "notebooks")
    yield from _wheel()
    yield from _clone(root)
    yield from _disk(course or root)
    if course is not None:
        yield from _course_folder(root, course)


def _python_and_packages() -> Iterator[Finding]:
    report = environment_report()
    if report == ALL_IS_WELL:
        yield Finding("ok", f"Python {sys.version.split()[0]} and the installed packages fit the course.")
    else:
        yield from (Finding("FIX", sentence) for sentence in report.splitlines())


def _kernel(root: Path) -> Iterator[Finding]:
    """A kernel may be another Python than this one, without the course or with another copy of it."""
    asking = new_notebook(cells=[new_code_cell(WHERE_AM_I)])
    try:
        NotebookClient(asking, timeout=60, kernel_name="python3").execute(stderr=subprocess.DEVNULL)
        python, package = asking.cells[0].outputs[0].text.splitlines()
    except Exception as error:  # whatever goes wrong here goes wrong in every notebook
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        yield Finding("FIX", f"the kernel python3 does not start, or cannot import the course: {reason}")
        return
    if not Path(package).is_relative_to(root):
        yield Finding("FIX", f"the kernel python3 ({python}) imports multihead from {package}, not from this "
                             "clone, so other exercises than yours would judge; run "
                             "`python -m pip install -e .` in the clone.")
    elif not Path(python).samefile(sys.executable):
        yield Finding("note", f"the kernel python3 is {python}, not {sys.executable}; both use this clone.")
    else:
        yield Finding("ok", "a kernel starts and imports the course from this clone.")


def _nbgrader() -> Iterator[Finding]:
    install = f"run `python -m pip install nbgrader=={TESTED_NBGRADER}`"
    try:
        version = importlib.metadata.version("nbgrader")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("note", "nbgrader is not installed; release, collect and grade work without it. "
                              f"For its gradebook {install}.")
        return
    if version != TESTED_NBGRADER:
        yield Finding("note", f"nbgrader {version} is installed, and the course is tested with "
                              f"{TESTED_NBGRADER}. If something fails, {install}.")
    missing = [command for command in ("nbgrader", "alembic") if shutil.which(command) is None]
    if missing:
        yield Finding("FIX", f"{' and '.join(missing)} cannot be found on PATH, and nbgrader calls alembic "
                             "by name to make a gradebook; activate the environment, "
                             f"`source {Path(sys.executable).parent}/activate`.")
    else:
        yield Finding("ok", f"nbgrader {version} and alembic are on PATH.")


def _guards(hidden: Path) -> Iterator[Finding]:
    """What stands between the students' code and this machine, found by trying to get past it."""
    try:
        from multihead_course.grading import forking, sandbox  # needs modules that only some systems have
    except ImportError as error:
        yield Finding("note", f"course grade cannot run here: {error}.")
        return
    if sentence := sandbox.supported():
        yield Finding("note", f"course grade cannot run here: {sentence}")
        return
    try:
        with forking.ForkingProcess([hidden]) as process:
            held = process.guards()
    except (OSError, RuntimeError) as error:
        yield Finding("FIX", f"course grade cannot run here: {error}")
        return
    if failing := [promise for name, promise in sandbox.GUARDS.items() if name not in held]:
        yield Finding("note", "of what course grade promises, this machine does not hold that a submission "
                              f"{'; '.join(failing)}.")
    else:
        yield Finding("ok", "all guards of course grade hold: a submission "
                            f"{'; '.join(sandbox.GUARDS.values())}.")


def _wheel() -> Iterator[Finding]:
    sentence = cannot_build()
    yield Finding("FIX", sentence) if sentence else Finding("ok", "the wheel for students can be built.")


def _clone(root: Path) -> Iterator[Finding]:
    if stale_notebooks(root, root / "notebooks", "learner"):
        yield Finding("note", "notebooks/ is not what the lessons make; course build --check says where.")
    else:
        yield Finding("ok", "notebooks/ is what the lessons make.")


def _disk(place: Path) -> Iterator[Finding]:
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    amount = f"{free / 2**30:.1f} GB are free"
    if free >= ENOUGH_DISK:
        yield Finding("ok", f"{amount}.")
    else:
        yield Finding("FIX", f"{amount}; make room for {ENOUGH_DISK >> 30} GB.")


def _course_folder(root: Path, course: Path) -> Iterator[Finding]:
    names = released(course)
    if not names:
        yield Finding("FIX", f"{course} holds no released lesson; run course release LESSON --out {course}.")
        return
    if not os.access(course, os.W_OK):
        yield Finding("FIX", f"{course} cannot be written.")
    yield from _released(root, course, names)
    differing = stale(root, course)
    yield from (Finding("note", sentence) for sentence in differing)
    if not differing:
        yield Finding("ok", f"{', '.join(names)}: source and release are what course release writes.")
    config = course / CONFIG
    if not config.exists():
        yield Finding("FIX", f"{CONFIG} is missing, and nbgrader needs it; run course release again.")
    elif repr(STUB) not in config.read_text(encoding="utf-8"):
        yield Finding("FIX", f"{CONFIG} does not set the course's stub: ClearSolutions.code_stub must be "
                             f"{{\"python\": {STUB!r}}}, else no answer counts as not attempted.")


def _released(root: Path, course: Path, names: list[str]) -> Iterator[Finding]:
    """Are the notebooks in release/ readable, do they give nothing away, and does each have its wheel?"""
    by_name = {lesson.name: lesson for lesson in lessons(root)}
    clean = True
    for name in names:
        folder = course / "release" / name
        text = (folder / f"{name}.ipynb").read_text(encoding="utf-8")
        try:
            made = json.loads(text)
            problems = leaks(by_name[name], made) if name in by_name else []
        except (ValueError, KeyError, TypeError):
            problems = ["the notebook cannot be read."]
        else:
            if not any(path.name in text for path in folder.glob("*.whl")):
                problems.append("the wheel that the notebook tells students to install is missing.")
        clean = clean and not problems
        yield from (Finding("FIX", f"release/{name}: {problem}") for problem in problems)
    if clean:
        yield Finding("ok", "release/ holds no solution, model answer, marker or pairing metadata.")
