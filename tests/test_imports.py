"""Imports flow one way: multihead_course -> multihead_lessons -> multihead -> torch."""
import ast
import subprocess
import sys

import pytest
from places import ROOT

PACKAGES = ROOT / "lessons_src"
ALLOWED = {
    "multihead": {"torch", "multihead"},
    "multihead_lessons": {"torch", "multihead", "multihead_lessons", "matplotlib", "numpy", "ipywidgets", "IPython", "packaging"},
    "multihead_course": {"multihead", "multihead_lessons", "multihead_course", "jupytext", "nbformat", "nbclient",
                         "torch", "numpy", "IPython", "traitlets", "matplotlib", "nbgrader"},  # these for grading
}


def imported(path):
    """Top-level names of everything that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write the package's name in imports"
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", ALLOWED)
def test_direction(package):
    files = sorted((PACKAGES / package).rglob("*.py"))
    assert len(files) > 1
    for path in files:
        foreign = set(imported(path)) - ALLOWED[package] - set(sys.stdlib_module_names)
        assert not foreign, f"{path.relative_to(ROOT)} must not import {sorted(foreign)}"


def test_nothing_is_imported_or_named_in_vain():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise",
                           "lessons_src", "tests"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", ["multihead"])
def test_mathematics_does_not_print(package):
    for path in (PACKAGES / package).rglob("*.py"):
        calls = [node.func.id for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        assert "print" not in calls, path.name


@pytest.mark.parametrize("lesson", ["lesson00", "lesson06"])
def test_a_lesson_without_matplotlib_figures_does_not_load_matplotlib(lesson):
    code = f"import sys; from multihead_lessons import {lesson}; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
