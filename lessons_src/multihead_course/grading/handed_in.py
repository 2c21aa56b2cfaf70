"""Handed-in notebooks, in whatever state: read them, find the answers, decide which cells must run.

A submission is seen against the notebook that was released. What equals a released cell is the lesson's, and
runs only if something of the student's needs it; everything else is the student's own. So cells that were
copied, moved, deleted or stripped of their metadata change no mark.
"""
from __future__ import annotations

import ast
import json
import re
import stat
import symtable
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

MAX_BYTES = 50 << 20
MAX_SOURCE = 200_000  # characters of one cell
MAX_CELLS = 2_000
MAGIC = re.compile(r"^([ \t]*)[%!?].*$", re.MULTILINE)
ASSIGNED_MAGIC = re.compile(r"^(.*=\s*)[%!].*$", re.MULTILINE)
WORD = re.compile(r"[^\W\d]\w*")
DEFINITION = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)|^(\w+)\s*=(?!=)", re.MULTILINE)


class NeedsAPerson(Exception):
    """A submission, or a part of it, that no program should judge; the message says why."""


@dataclass(frozen=True)
class Cell:
    """A cell as it was handed in. kind is code, markdown or raw; name is nbgrader's grade_id or None."""

    kind: str
    source: str
    name: str | None = None

    @cached_property
    def normal(self) -> str:
        """The source without what editors change on their own: line ends, and spaces at ends."""
        return "\n".join(line.rstrip() for line in self.source.splitlines()).strip()

    @cached_property
    def binds(self) -> frozenset[str]:
        """Names that running the cell defines."""
        return self._names[0]

    @cached_property
    def needs(self) -> frozenset[str]:
        """Names that the cell looks up, now or when its functions are called."""
        return self._names[1]

    @cached_property
    def python(self) -> str:
        """The source with IPython's own lines taken out."""
        return ASSIGNED_MAGIC.sub(r"\1None", MAGIC.sub(r"\1pass", self.source))

    @cached_property
    def tree(self) -> ast.Module | None:
        """The source, parsed; None if it is not Python."""
        try:
            return ast.parse(self.python)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands there but comments."""
        return self.tree is not None and not self.tree.body

    @cached_property
    def mentions(self) -> frozenset[str]:
        """Every name and attribute in the source, wherever it stands."""
        nodes = ast.walk(self.tree) if self.tree else ()
        return frozenset(node.attr if isinstance(node, ast.Attribute) else node.id for node in nodes
                         if isinstance(node, (ast.Attribute, ast.Name)))

    @cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[str]]:
        try:
            table = symtable.symtable(self.python, "cell", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # not Python: guess
            bound = {name for pair in DEFINITION.findall(self.source) for name in pair if name}
            return frozenset(bound), frozenset(WORD.findall(self.source))
        symbols = table.get_symbols()
        bound = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
        needed = {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
        for inner in _inside(table):
            for symbol in inner.get_symbols():
                if symbol.is_global():
                    needed.add(symbol.get_name())
                    if symbol.is_declared_global() and symbol.is_assigned():
                        bound.add(symbol.get_name())
        return frozenset(bound), frozenset(needed)


def _inside(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _inside(child)


# Reading

def read(path: Path) -> list[Cell]:
    """The cells of a notebook file. Raises NeedsAPerson if nothing can be made of it."""
    try:
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode):
            raise NeedsAPerson(f"{path.name} is no file, but a link or a device.")
        if about.st_size > MAX_BYTES:
            size = f"{about.st_size >> 20} MB"
            raise NeedsAPerson(f"{path.name} has {size}. Clear its outputs and grade it again.")
        content = path.read_bytes()
    except OSError as error:
        raise NeedsAPerson(f"{path.name} cannot be read: {error.strerror}.") from None
    return cells_of(content, path.name)


def cells_of(content: bytes, name: str) -> list[Cell]:
    """The cells of a notebook in any of its formats and in any encoding that editors leave behind."""
    try:
        notebook = json.loads(_text(content))
    except RecursionError:
        raise NeedsAPerson(f"{name} is nested too deeply to be a notebook.") from None
    except ValueError as error:
        whole = "empty" if not content.strip(b"\0 \r\n\t") else f"no notebook, or a part of one ({error})"
        raise NeedsAPerson(f"{name} is {whole}. Ask for it again.") from None
    cells = list(_raw_cells(notebook))
    if not cells:
        raise NeedsAPerson(f"{name} has no cells. Ask for it again.")
    if len(cells) > MAX_CELLS:
        raise NeedsAPerson(f"{name} has {len(cells)} cells; the lesson has far fewer.")
    return [_cell(raw) for raw in cells]


def _text(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    content = content.strip(b"\0 \r\n\t")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _raw_cells(notebook: Any) -> Iterator[dict]:
    if not isinstance(notebook, dict):
        return
    sheets = notebook.get("worksheets")  # before format 4
    for sheet in [notebook, *(sheets if isinstance(sheets, list) else [])]:
        cells = sheet.get("cells") if isinstance(sheet, dict) else None
        yield from (cell for cell in cells if isinstance(cell, dict)) if isinstance(cells, list) else ()


def _cell(raw: dict) -> Cell:
    source = raw.get("source", raw.get("input", ""))
    source = "".join(part for part in source if isinstance(part, str)) if isinstance(source, list) else source
    source = source if isinstance(source, str) else ""
    source = source.encode("utf-8", "replace").decode()  # half a surrogate pair is no text
    source = source[:MAX_SOURCE].replace("\0", "")
    metadata = raw.get("metadata")
    about = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    name = about.get("grade_id") if isinstance(about, dict) else None
    kind = raw.get("cell_type")
    kind = kind if kind in ("markdown", "raw", "code") else "markdown"
    return Cell(kind, source, name if isinstance(name, str) else None)


# What was released

@dataclass(frozen=True)
class Part:
    """An exercise or a question of a released notebook: its points, and the heading above it."""

    points: float
    heading: str


@dataclass(frozen=True)
class Released:
    """A lesson as it was handed out."""

    cells: tuple[Cell, ...]
    exercises: dict[str, Part]
    questions: dict[str, Part]

    @cached_property
    def code(self) -> dict[str, Cell]:
        """The code cells by their normal source."""
        return {cell.normal: cell for cell in self.cells if cell.kind == "code"}

    @cached_property
    def texts(self) -> dict[str, str]:
        """The normal source of each named cell."""
        return {cell.name: cell.normal for cell in self.cells if cell.name}


def released(path: Path) -> Released:
    """Reads a released notebook. Raises ValueError if it holds nothing to grade."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        raw_cells = notebook["cells"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as a released notebook: {error}") from None
    exercises, questions, heading = {}, {}, ""
    for raw in raw_cells:
        cell, about = _cell(raw), raw.get("metadata", {}).get("nbgrader") or {}
        if cell.kind == "markdown":
            headings = [line.lstrip("# ") for line in cell.source.splitlines() if line.startswith("#")]
            heading = headings[-1] if headings else heading
        if about.get("grade") and about.get("solution"):
            questions[cell.name] = Part(about["points"], heading)
        elif about.get("grade"):
            exercises[cell.name.removeprefix("grade_")] = Part(about["points"], heading)
    if not exercises and not questions:
        raise ValueError(f"{path} has no cell that gives points; was it made by course release?")
    return Released(tuple(map(_cell, raw_cells)), exercises, questions)


# A submission against its release

@dataclass(frozen=True)
class Submission:
    """A handed-in notebook and the release that it answers."""

    cells: Sequence[Cell]
    release: Released

    @cached_property
    def own(self) -> list[Cell]:
        """What the student wrote that can run: code that was not handed out, exercises that became text."""
        locked = {name for name in self.release.texts if name.partition("_")[0] in ("grade", "check")}
        own = [cell for cell in self.cells if cell.kind == "code" and cell.normal not in self.release.code
               and cell.name not in locked and not cell.is_empty]
        written = {name for cell in own for name in cell.binds}
        return [cell for cell in self.cells if cell in own or self._is_lost_code(cell, written)]

    def _is_lost_code(self, cell: Cell, written: Iterable[str]) -> bool:
        if cell.kind == "code" or cell.normal in self.release.texts.values():
            return False
        return cell.tree is not None and bool(cell.binds & set(self.release.exercises) - set(written))

    def attempted(self, exercise: str) -> bool:
        """Whether anything of the student's own has to do with it."""
        return any(cell.name == exercise or exercise in cell.binds | cell.needs for cell in self.own)

    def definition(self, exercise: str) -> Cell | None:
        """The cell that holds the answer: the last that defines it, else the one that is named so."""
        return next((cell for cell in reversed(self.own) if exercise in cell.binds),
                    next((cell for cell in self.own if cell.name == exercise), None))

    def program(self) -> list[Cell]:
        """The cells that must run: those of the release that are needed, then the student's own."""
        lesson = list(self.release.code.values())
        bound = {name for cell in self.own for name in cell.binds}
        needed = {name for cell in self.own for name in cell.needs} | set(self.release.exercises)
        bound |= {cell.name for cell in self.own if cell.name}  # a stub that was written over is gone
        chosen: list[Cell] = []
        while pending := needed - bound:
            last = {name: cell for cell in lesson for name in cell.binds & pending}
            chosen += [cell for cell in last.values() if cell not in chosen]
            bound |= pending
            needed = {name for cell in chosen for name in cell.needs}
        return [cell for cell in lesson if cell in chosen] + self.own

    def uses(self, exercise: str) -> frozenset[str]:
        """Names that the answer looks up, itself or through other functions of the student's."""
        found: set[str] = set()
        pending = {exercise}
        while pending:
            found |= pending
            pending = {name for cell in self.own if cell.binds & pending for name in cell.needs} - found
        return frozenset(found)

    def answer(self, question: str) -> str | None:
        """The text of a free answer; None if the cell is gone or as it was handed out."""
        found = [cell.normal for cell in self.cells if cell.name == question]
        return next((text for text in found if text != self.release.texts[question]), None)


def the_notebook(folder: Path, name: str) -> tuple[Path, list[str]]:
    """The notebook of a submission, and notes on how it was found. Raises NeedsAPerson if it is not clear."""
    if folder.is_symlink():
        raise NeedsAPerson(f"{folder.name} is a link to another folder.")
    wanted = folder / f"{name}.ipynb"
    found = sorted(path for path in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
    if wanted in found:
        return wanted, []
    if not found:
        others = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) if folder.is_dir() else ""
        raise NeedsAPerson(f"there is no notebook here, only {others}." if others else "the folder is empty.")
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise NeedsAPerson(f"{len(found)} notebooks, and none is {name}.ipynb: {names}. Leave one of them.")
    return found[0], [f"handed in as {found[0].name}"]
