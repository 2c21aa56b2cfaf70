"""The public CI is valid, has every leg it should, and calls the same script as a developer does."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from places import ROOT

WORKFLOW = ROOT / ".github/workflows/ci.yml"
SMOKE = "python -m pytest -m smoke tests/test_notebooks.py"


@pytest.fixture(scope="module")
def workflow():
    # BaseLoader keeps every scalar a string: YAML 1.1 reads the key `on` as true and 3.10 as 3.1.
    return yaml.load(WORKFLOW.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def commands(job):
    return [step["run"] for step in job["steps"] if "run" in step]


def python_of(job):
    return next(step["with"]["python-version"] for step in job["steps"]
                if step.get("uses", "").startswith("actions/setup-python@"))


@pytest.mark.skipif(importlib.util.find_spec("check_jsonschema") is None,
                    reason="check-jsonschema is not installed; tests/requirements.txt brings it.")
def test_workflow_follows_the_schema():
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    checked = subprocess.run([*checker, WORKFLOW], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_runs_on_every_change_and_on_a_schedule(workflow):
    assert {"push", "pull_request", "schedule"} <= workflow["on"].keys()
    assert [len(entry["cron"].split()) for entry in workflow["on"]["schedule"]] == [5]
    # No job is switched off by a condition, so the scheduled run meets the newest releases.
    assert [name for name, job in workflow["jobs"].items() if "if" in job] == []


def test_strict_leg_is_the_developers_own_script_on_linux(workflow):
    strict = workflow["jobs"]["strict"]
    assert strict["runs-on"] == "ubuntu-latest"
    assert commands(strict) == ["bash .ci/run"]
    assert python_of(strict) == "3.11"


def test_smoke_legs_on_macos_and_windows_use_the_pins(workflow):
    systems = workflow["jobs"]["systems"]
    assert systems["runs-on"] == "${{ matrix.os }}"
    assert systems["strategy"]["matrix"]["os"] == ["macos-latest", "windows-latest"]
    assert commands(systems) == ["python -m pip install -r tests/requirements.txt", SMOKE]


def test_smoke_legs_with_the_oldest_and_newest_versions(workflow):
    versions = workflow["jobs"]["versions"]
    legs = {leg["name"]: leg for leg in versions["strategy"]["matrix"]["include"]}
    assert python_of(versions) == "${{ matrix.python }}"
    assert any("--resolution ${{ matrix.resolution }} --editable ." in line for line in commands(versions))
    assert commands(versions)[-1] == SMOKE
    assert legs["oldest"]["resolution"] == "lowest-direct"
    assert legs["newest"]["resolution"] == "highest"

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = SpecifierSet(project["requires-python"])
    assert f">={legs['oldest']['python']}" in str(supported)
    assert legs["newest"]["python"] in supported and legs["newest"]["python"] == "3.14"


def test_no_leg_is_allowed_to_fail(workflow):
    assert "continue-on-error" not in WORKFLOW.read_text(encoding="utf-8")


# The script that the strict leg runs

@pytest.mark.skipif(os.name == "nt", reason="The strict run is a bash script for Linux.")
def test_script_is_executable_and_parses():
    assert os.access(ROOT / ".ci/run", os.X_OK)
    parsed = subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert parsed.returncode == 0, parsed.stderr


def test_readme_marks_the_one_command_that_the_script_runs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    marked = r"^<!-- test-command -->\n+```\w*\n(.+?)\n```$"
    blocks = re.findall(marked, readme, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == readme.count("<!-- test-command -->") == 1
    assert "tests/requirements.txt" in blocks[0]
    assert ".venv-test/bin/python -m pytest" in blocks[0]
