"""The course's own packages as one wheel, for learners who have a notebook and nothing else."""
from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

SETUPTOOLS = 77  # the first to know the `license` of pyproject.toml
BESIDE_THE_PACKAGES = ("pyproject.toml", "README.md", "LICENSE")
NOT_SHIPPED = ("lessons", "__pycache__", "*.egg-info", ".ipynb_checkpoints")
VERSION = re.compile(r'^(version = "[^"]+)(")$', re.MULTILINE)


def wheel_name(root: Path) -> str:
    """The wheel's file name. Its version ends in a digest of what is in it, so that pip tells two states apart."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return f"{project['name'].replace('-', '_')}-{project['version']}+{_digest(root)}-py3-none-any.whl"


def build_wheel(root: Path) -> bytes:
    """The wheel, made from the tree at `root` without a network. The same tree gives the same bytes."""
    if sentence := cannot_build():
        raise ValueError(sentence)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(root / "lessons_src", copy / "lessons_src", ignore=shutil.ignore_patterns(*NOT_SHIPPED))
        for name in BESIDE_THE_PACKAGES:
            shutil.copyfile(root / name, copy / name)
        settings = copy / "pyproject.toml"
        settings.write_text(VERSION.sub(rf"\1+{_digest(root)}\2", settings.read_text(encoding="utf-8"), count=1),
                            encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation",
             "--wheel-dir", folder, copy], capture_output=True, text=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": "315532800"})  # the first moment that a zip file can name
        made = Path(folder) / wheel_name(root)
        if run.returncode or not made.exists():
            last = (run.stderr.strip() or run.stdout.strip() or "pip said nothing").splitlines()[-1]
            raise ValueError(f"the wheel of the course's packages could not be built: {last}")
        return made.read_bytes()


def cannot_build() -> str | None:
    """A sentence, if something that builds wheels is missing here."""
    for tool, needed in (("pip", 0), ("setuptools", SETUPTOOLS)):
        try:
            version = importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if not version or int(version.partition(".")[0]) < needed:
            found = f"{tool} {version} is too old" if version else f"{tool} is missing"
            return (f"{found} here, and the wheel beside a released notebook is built with it; run "
                    f"`python -m pip install \"setuptools>={SETUPTOOLS}\"`." if tool == "setuptools" else
                    f"{found} here, and the wheel beside a released notebook is built with it; run `python -m ensurepip`.")
    return None


def _digest(root: Path) -> str:
    packages = [path for path in (root / "lessons_src").rglob("*") if path.is_file() and not any(
        Path(part).match(pattern) for part in path.relative_to(root / "lessons_src").parts for pattern in NOT_SHIPPED)]
    hashed = hashlib.sha256()
    for path in sorted([*packages, root / "pyproject.toml"]):
        for piece in (path.relative_to(root).as_posix().encode(), path.read_bytes().replace(b"\r\n", b"\n")):
            hashed.update(piece + b"\0")
    return hashed.hexdigest()[:8]
