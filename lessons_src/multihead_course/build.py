"""Lessons into notebooks: `course build`.

An edition is a pure function of the lesson's cells. What execution adds, the outputs, is stored; whether it is still
true is the business of nbval and of the tests. `stale` compares everything else exactly.
"""
from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from multihead_course.lesson import ANSWER_STUB, QUESTION, Cell, Lesson, hints, read_lesson, solved

EDITIONS = ("learner", "solution")
STAMP = "multihead_course"
CELL_TIMEOUT = 120  # seconds
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
            "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"}}


class BuildRefused(ValueError):
    """A file is in the way that this command did not make."""


def lessons(root: Path) -> list[Lesson]:
    """The lessons of a source tree, in order."""
    return [read_lesson(path) for path in sorted((root / "lessons_src" / "lessons").glob("[0-9]*.py"))]


# One edition of one lesson, not yet executed

def notebook(lesson: Lesson, edition: str, inputs: str, course: Sequence[Lesson]) -> nbformat.NotebookNode:
    """The lesson's cells as a notebook without outputs, with links to the other lessons of the course.

    `inputs` is the digest of what its outputs depend on.
    """
    seen: Counter[str] = Counter()
    cells = []
    for cell in lesson.cells:
        if cell.keys.get("teaching") and edition == "learner":
            continue
        source = _source(cell, edition, lesson, course)
        new = (new_code_cell if cell.is_code else new_markdown_cell)(source)
        digest = _digest(cell.kind, source)
        new["id"] = _digest(digest, seen[digest])[:12]  # the same content twice gets two ids, an inserted cell moves none
        seen[digest] += 1
        if cell.keys.get("times"):
            new.metadata["tags"] = ["nbval-ignore-output"]
        cells.append(new)
    made = new_notebook(cells=cells, metadata={**METADATA, STAMP: {"edition": edition, "inputs": inputs}})
    made.nbformat_minor = 5
    return made


def _source(cell: Cell, edition: str, lesson: Lesson, course: Sequence[Lesson]) -> str:
    if cell.keys.get("strip"):
        return f"{cell.source}\n\n{_strip(lesson, course)}"
    if cell.keys.get("map"):
        return f"{cell.source}\n\n{_map(course)}"
    if cell.kind == "exercise" and edition == "solution":
        return solved(cell)
    if cell.kind == "hint":
        return _nested_hints(cell)
    if cell.kind == "question":
        return _question(cell, edition)
    return cell.source


def _strip(lesson: Lesson, course: Sequence[Lesson]) -> str:
    """The course as one line of links, this lesson in bold, then the way back and on."""
    line = " · ".join(f"**{other.label}**" if other.name == lesson.name else _link(other.label, other) for other in course)
    here = [other.name for other in course].index(lesson.name)
    steps = [f"previous: {_link(other.label, other)}" for other in course[max(here - 1, 0):here]]
    steps += [f"next: {_link(other.label, other)}" for other in course[here + 1:here + 2]]
    return "\n\n".join([line, " · ".join(steps)]).strip()


def _map(course: Sequence[Lesson]) -> str:
    """The course as a table: lesson, question, minutes of the core path."""
    rows = [f"| {_link(lesson.label, lesson)} | {lesson.question} | {lesson.core_minutes} |" for lesson in course]
    return "\n".join(["| lesson | its question | minutes |", "|:--|:--|--:|", *rows])


def _link(words: str, lesson: Lesson) -> str:
    return f"[{words}]({lesson.name}.ipynb)"


def _nested_hints(cell: Cell) -> str:
    """Three folds, each inside the one before it, so that a reader opens them one at a time."""
    first, second, third = hints(cell)
    third += f"\n\nTo read the library's version: `show_solution(\"{cell.name}\")`."
    fold = "<details><summary>{}</summary>\n\n{}\n\n{}</details>"
    inner = fold.format("The third hint, nearly the answer", third, "")
    return fold.format(f"Hint for <code>{cell.name}</code>", first, fold.format("A stronger hint", second, inner))


def _question(cell: Cell, edition: str) -> str:
    parts = QUESTION.match(cell.source)
    text = parts["text"].rstrip()
    if edition == "learner":
        return f"{text}\n\n{ANSWER_STUB}"
    return f"{text}\n\n**Model answer.** {parts['answer'].strip()}\n\n**Rubric.** {parts['rubric'].strip()}"


# What the outputs of a lesson depend on

def inputs_digest(lesson: Lesson, root: Path, edition: str) -> str:
    """A digest of the script, of every module of ours that it reaches through imports, and of the pins."""
    files = sorted(_reachable(lesson, root / "lessons_src"))
    parts = [(path.relative_to(root).as_posix(), path.read_bytes().replace(b"\r\n", b"\n")) for path in
             [lesson.path, *files, root / "requirements.txt"]]
    return _digest(edition, *(piece for part in parts for piece in part))


def _reachable(lesson: Lesson, packages: Path) -> set[Path]:
    pending = [_imports(cell.source) for cell in lesson.cells if cell.is_code]
    pending.append({cell.keys["solution"].partition(":")[0] for cell in lesson.cells if "solution" in cell.keys})
    found: set[Path] = set()
    while pending:
        for module in pending.pop():
            for path in _files(module, packages):
                if path not in found:
                    found.add(path)
                    if path.suffix == ".py":
                        pending.append(_imports(path.read_text(encoding="utf-8"), module))
    return found


def _imports(source: str, module: str = "") -> set[str]:
    """Names of modules, and of names imported from modules, that may be modules themselves."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(_without_magics(source))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _without_magics(source: str) -> str:
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())


def _files(module: str, packages: Path) -> Iterable[Path]:
    """The files of a module of ours: its own, its packages' `__init__`, and the data beside a package's code."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        place = packages.joinpath(*parts[:depth])
        if place.with_suffix(".py").is_file():
            yield place.with_suffix(".py")
        elif (place / "__init__.py").is_file():
            yield place / "__init__.py"
            yield from sorted((place / "data").glob("*"))


def _digest(*pieces: object) -> str:
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece if isinstance(piece, bytes) else str(piece).encode())
        hashed.update(b"\0")
    return hashed.hexdigest()


# Building and comparing

def _plan(root: Path, edition: str) -> dict[str, nbformat.NotebookNode]:
    course = lessons(root)
    return {lesson.name: notebook(lesson, edition, inputs_digest(lesson, root, edition), course) for lesson in course}


def build(root: Path, out: Path, edition: str, say: Callable[[str], None] = print) -> None:
    """Writes one edition of every lesson into `out`; executes only what changed; refuses files it did not make."""
    out.mkdir(parents=True, exist_ok=True)
    planned = _plan(root, edition)
    for name, fresh in planned.items():
        path = out / f"{name}.ipynb"
        stored = _ours(path)
        if stored is not None and _comparable(stored) == _comparable(fresh):
            say(f"{name}: up to date")
            continue
        _execute(fresh, out, lambda done, of: say(f"{name}: cell {done} of {of}"))
        fresh.metadata[STAMP]["content"] = _content(fresh)
        path.write_text(nbformat.writes(fresh) + "\n", encoding="utf-8", newline="\n")
        say(f"{name}: built")
    for path in sorted(out.glob("*.ipynb")):
        if path.stem not in planned and _ours(path) is not None:
            path.unlink()
            say(f"{path.stem}: removed, its lesson is gone")


def stale(root: Path, out: Path, edition: str) -> list[str]:
    """One sentence for every way in which the notebooks of `out` are not what `build` would write."""
    sentences = []
    planned = _plan(root, edition)
    for name, fresh in planned.items():
        path = out / f"{name}.ipynb"
        if not path.exists():
            sentences.append(f"{path.name} is missing; run course build.")
            continue
        try:
            stored = _ours(path)
        except BuildRefused as refusal:
            sentences.append(str(refusal))
            continue
        before, after = _comparable(stored), _comparable(fresh)
        for index, (old, new) in enumerate(zip(before["cells"], after["cells"])):
            if old != new:
                sentences.append(f"{path.name}: cell {index + 1} differs from the lesson; run course build.")
        if len(before["cells"]) != len(after["cells"]):
            sentences.append(f"{path.name} has {len(before['cells'])} cells, the lesson makes {len(after['cells'])}; run course build.")
        if before["metadata"] != after["metadata"]:
            sentences.append(f"{path.name} was built from other sources or pins; run course build.")
    for path in sorted(out.glob("*.ipynb")):
        if path.stem not in planned:
            sentences.append(f"{path.name} belongs to no lesson; remove it.")
    return sentences


def _ours(path: Path) -> nbformat.NotebookNode | None:
    """The notebook at `path`, None if there is none. Raises BuildRefused if a hand has touched it."""
    if not path.exists():
        return None
    try:
        stored = nbformat.read(path, as_version=4)
        untouched = stored.metadata[STAMP]["content"] == _content(stored)
    except Exception:  # not a notebook, or one without the stamp
        untouched = False
    if not untouched:
        raise BuildRefused(f"{path.name} was edited by hand or made by something else; move it away, "
                           "and put changes into lessons_src/lessons.")
    return stored


def _comparable(made: nbformat.NotebookNode) -> dict:
    """Cell types, sources, metadata and ids, and the notebook's metadata: all but outputs, counts and their digest."""
    cells = [(cell.cell_type, cell.id, cell.source, json.dumps(cell.metadata, sort_keys=True)) for cell in made.cells]
    metadata = {**made.metadata, STAMP: {key: value for key, value in made.metadata[STAMP].items() if key != "content"}}
    return {"cells": cells, "metadata": json.dumps(metadata, sort_keys=True)}


def _content(made: nbformat.NotebookNode) -> str:
    """A digest of everything in the notebook, outputs included, by which a later edit is noticed."""
    return _digest(json.dumps(_comparable(made), sort_keys=True),
                   json.dumps([[cell.outputs, cell.execution_count] for cell in made.cells if cell.cell_type == "code"],
                              sort_keys=True))


def _execute(made: nbformat.NotebookNode, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Runs the notebook in a new kernel and stores its outputs, without widget state and without run times."""
    code = [index for index, cell in enumerate(made.cells) if cell.cell_type == "code"]
    client = NotebookClient(made, timeout=CELL_TIMEOUT, kernel_name="python3", store_widget_state=False,
                            record_timing=False, coalesce_streams=True,  # how a kernel cuts its prints is chance
                            resources={"metadata": {"path": str(folder)}},
                            on_cell_executed=lambda cell, cell_index, **_: progress(code.index(cell_index) + 1, len(code)))
    client.execute()
    made.metadata.update(METADATA)  # the kernel reports its own version, which is not ours to store
    made.metadata.pop("widgets", None)
