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
from fnmatch import fnmatch
from pathlib import Path

SETUPTOOLS = 77  # the first that knows the `license` of pyproject.toml
SETTINGS = "pyproject.toml"
NOT_SHIPPED = ("lessons", "__pycache__", "*.egg-info", ".ipynb_checkpoints")
VERSION = re.compile(r'^(version = "[^"]+)(")$', re.MULTILINE)
FIRST_DATE = "315532800"  # seconds: the first moment that a zip file can name


def wheel_name(root: Path) -> str:
    """The wheel's file name. Its version ends in a digest of the packages, so that pip tells states apart."""
    project = tomllib.loads((root / SETTINGS).read_text(encoding="utf-8"))["project"]
    return f"{project['name'].replace('-', '_')}-{project['version']}+{_digest(root)}-py3-none-any.whl"


def build_wheel(root: Path) -> bytes:
    """The wheel, made from the tree at `root` without a network. The same tree gives the same bytes."""
    if sentence := cannot_build():
        raise ValueError(sentence)
    skipped = shutil.ignore_patterns(*NOT_SHIPPED)
    settings = (root / SETTINGS).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        tree, made = Path(folder) / "tree", Path(folder) / wheel_name(root)
        shutil.copytree(root / "lessons_src", tree / "lessons_src", ignore=skipped)
        for name in ("README.md", "LICENSE"):
            shutil.copyfile(root / name, tree / name)
        settings = VERSION.sub(rf"\1+{_digest(root)}\2", settings, count=1)
        (tree / SETTINGS).write_text(settings, encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps",
             "--no-build-isolation", "--wheel-dir", folder, tree],
            capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": FIRST_DATE})
        if run.returncode or not made.exists():
            last = (run.stderr.strip() or run.stdout.strip() or "pip said nothing").splitlines()[-1]
            raise ValueError(f"the wheel of the course's packages could not be built: {last}")
        return made.read_bytes()


def cannot_build() -> str | None:
    """A sentence, if something that builds wheels is missing here."""
    for tool, oldest, remedy in (("pip", 0, "-m ensurepip"),
                                 ("setuptools", SETUPTOOLS, f'-m pip install "setuptools>={SETUPTOOLS}"')):
        try:
            version = importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            version = None
        if version is None or int(version.partition(".")[0]) < oldest:
            problem = f"{tool} is missing" if version is None else f"{tool} {version} is too old"
            return f"{problem} here, and the wheel for students is built with it; run `python {remedy}`."
    return None


def _digest(root: Path) -> str:
    """Of the packages and of the settings, whatever the line ends."""
    packages = root / "lessons_src"
    shipped = [path for path in packages.rglob("*") if path.is_file() and not any(
        fnmatch(part, pattern) for part in path.relative_to(packages).parts for pattern in NOT_SHIPPED)]
    hashed = hashlib.sha256()
    for path in sorted([*shipped, root / SETTINGS]):
        for piece in (path.relative_to(root).as_posix().encode(), path.read_bytes().replace(b"\r\n", b"\n")):
            hashed.update(piece + b"\0")
    return hashed.hexdigest()[:8]
