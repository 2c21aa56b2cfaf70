"""Reads a lesson, a percent script, into typed cells. Everything that can be wrong in a script is found here."""
from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import jupytext

STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
ANSWER_STUB = "YOUR ANSWER HERE"
MAX_CORE_MINUTES = 45

# The table of cell keys in CONTRIBUTING.md explains these to authors; a test holds the two together.
NAMED = ("exercise", "check", "quiz", "hint", "question")
KEYS: dict[str, tuple[type, set[str]]] = {  # key -> (type, kinds of cells that may carry it)
    **{name: (str, {name}) for name in NAMED},
    "solution": (str, {"exercise"}),
    "points": (int, {"exercise", "question"}),
    "minutes": (int, {"prose", "code", *NAMED}),
    "optional": (bool, {"prose", "code", *NAMED}),
    "times": (bool, {"code"}),
    "teaching": (bool, {"prose"}),
    "strip": (bool, {"prose"}),
    "map": (bool, {"prose"}),
}
REQUIRED = {"exercise": ("solution", "points", "minutes"), "question": ("points", "minutes")}
CELL_TYPE = {"prose": "markdown", "hint": "markdown", "question": "markdown",
             "code": "code", "exercise": "code", "check": "code", "quiz": "code"}
MARKER = re.compile(r"^\s*(?:#+|<!--)\s*(?:BEGIN|END)\s+(?:ANSWER|RUBRIC|SOLUTION|HIDDEN|TEST|QUESTION|MARK)\b.*$",
                    re.IGNORECASE | re.MULTILINE)
QUESTION = re.compile(r"\A(?P<text>.*?)^<!-- BEGIN ANSWER -->\n(?P<answer>.*?)^<!-- END ANSWER -->\n"
                      r"^<!-- BEGIN RUBRIC -->\n(?P<rubric>.*?)^<!-- END RUBRIC -->\s*\Z", re.DOTALL | re.MULTILINE)


class LessonError(ValueError):
    """A lesson script that cannot be built; the message says where and what would be right."""


@dataclass(frozen=True)
class Cell:
    """One cell of the script. `name` is the exercise, quiz or question that it belongs to, if any."""

    kind: str
    source: str
    line: int
    name: str | None = None
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def is_code(self) -> bool:
        return CELL_TYPE[self.kind] == "code"


@dataclass(frozen=True)
class Lesson:
    """A lesson script, checked."""

    path: Path
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def label(self) -> str:
        """The file's name for a reader: '04_concat_and_w_o' -> '04 concat and W_O'."""
        return self.name.replace("_", " ").replace("w o", "W_O").replace("d model", "d_model")

    @property
    def question(self) -> str:
        """The first heading."""
        return self.cells[0].source.splitlines()[0].removeprefix("# ")

    @property
    def core_minutes(self) -> int:
        return sum(cell.keys.get("minutes", 0) for cell in self.cells if not cell.keys.get("optional"))

    def named(self, kind: str) -> dict[str, Cell]:
        return {cell.name: cell for cell in self.cells if cell.kind == kind and cell.name}


def read_lesson(path: Path) -> Lesson:
    """Reads and checks `path`. Raises LessonError for anything that a learner or a grading tool would trip over."""
    script = path.read_text(encoding="utf-8")
    lines = [number for number, line in enumerate(script.splitlines(), 1) if line.startswith("# %%")]
    notebook = jupytext.reads(script, fmt="py:percent")
    cells = list(notebook.cells)
    if len(cells) == len(lines) + 1 and not script.startswith("# %%"):
        raise LessonError(f"{path.name}: text before the first '# %%'; start the script with a cell header.")
    parsed = tuple(_cell(path.name, line, raw) for line, raw in zip(lines, cells, strict=True))
    lesson = Lesson(path, parsed)
    if not parsed or parsed[0].kind != "prose" or not parsed[0].source.startswith("# "):
        raise LessonError(f"{path.name}: the first cell must be Markdown that starts with '# ' and the lesson's question.")
    _check_names(lesson)
    return lesson


def _cell(script: str, line: int, raw: Any) -> Cell:
    keys = {key: value for key, value in raw.metadata.items() if key != "lines_to_next_cell"}
    where = f"{script}, cell at line {line}"
    if "title" in keys:
        raise LessonError(f"{where}: '{keys['title']}' in the cell header is not a key; write key=value, "
                          f"with a key of {', '.join(KEYS)}.")
    if unknown := sorted(set(keys) - set(KEYS)):
        raise LessonError(f"{where}: unknown key '{unknown[0]}'; the keys are {', '.join(KEYS)}.")
    kinds = [name for name in NAMED if name in keys]
    if len(kinds) > 1:
        raise LessonError(f"{where}: keys {kinds[0]} and {kinds[1]} in one cell; a cell is one of {', '.join(NAMED)}.")
    kind = kinds[0] if kinds else {"markdown": "prose", "code": "code"}.get(raw.cell_type)
    if kind is None or CELL_TYPE[kind] != raw.cell_type:
        raise LessonError(f"{where}: a {kind or raw.cell_type} cell must be {CELL_TYPE.get(kind, 'markdown or code')}.")
    for key, value in keys.items():
        wanted, allowed = KEYS[key]
        if type(value) is not wanted:
            raise LessonError(f"{where}: {key}={value!r} must be {'true' if wanted is bool else f'a {wanted.__name__}'}.")
        if kind not in allowed:
            raise LessonError(f"{where}: key '{key}' has no meaning in a {kind} cell, only in {', '.join(sorted(allowed))}.")
    if missing := [key for key in REQUIRED.get(kind, ()) if key not in keys]:
        raise LessonError(f"{where}: a {kind} cell needs {missing[0]}=.")
    cell = Cell(kind, raw.source, line, keys.get(kind), {key: value for key, value in keys.items() if key != kind})
    _check_source(where, cell)
    return cell


def _check_source(where: str, cell: Cell) -> None:
    if cell.kind == "question":
        if not QUESTION.match(cell.source):
            raise LessonError(f"{where}: a question holds its text, then '<!-- BEGIN ANSWER -->' ... '<!-- END ANSWER -->', "
                              "then '<!-- BEGIN RUBRIC -->' ... '<!-- END RUBRIC -->', each on a line of its own.")
        markers = 4
    else:
        markers = 0
    if len(found := MARKER.findall(cell.source)) != markers:
        raise LessonError(f"{where}: marker '{found[-1].strip()}' does not belong here.")
    if cell.kind == "hint" and len(hints(cell)) != 3:
        raise LessonError(f"{where}: {len(hints(cell))} hints; write three, separated by lines of '---'.")
    if cell.kind == "exercise":
        try:
            _check_stub(cell)
        except (SyntaxError, LessonError) as error:
            raise LessonError(f"{where}: {error}") from None


def hints(cell: Cell) -> list[str]:
    return [part.strip() for part in re.split(r"^---$", cell.source, flags=re.MULTILINE) if part.strip()]


def _check_names(lesson: Lesson) -> None:
    for kind in NAMED:
        names = [cell.name for cell in lesson.cells if cell.kind == kind]
        if twice := {name for name in names if names.count(name) > 1}:
            raise LessonError(f"{lesson.path.name}: two cells with {kind}=\"{sorted(twice)[0]}\"; a name is used once.")
    exercises = set(lesson.named("exercise"))
    for kind in ("check", "hint"):
        for name in exercises ^ set(lesson.named(kind)):
            raise LessonError(f"{lesson.path.name}: exercise and {kind} cells must come in pairs; '{name}' has only one.")
    if lesson.core_minutes > MAX_CORE_MINUTES:
        raise LessonError(f"{lesson.path.name}: the core path takes {lesson.core_minutes} minutes, more than "
                          f"{MAX_CORE_MINUTES}; shorten it or mark cells optional=true.")


# Exercises: the lesson holds signature, docstring and stub; the solution is written once, elsewhere.

def _definition(source: str) -> ast.FunctionDef | ast.ClassDef:
    body = ast.parse(source).body
    definitions = [node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    others = [node for node in body if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom))]
    if len(definitions) != 1 or others:
        raise LessonError("an exercise cell is one function or one class, with imports above it if it needs them.")
    return definitions[0]


def _functions(definition: ast.FunctionDef | ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """The functions whose bodies the learner writes: the function itself, or a class's methods."""
    if isinstance(definition, ast.FunctionDef):
        return {definition.name: definition}
    return {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}


def _body(function: ast.FunctionDef) -> list[ast.stmt]:
    """The statements after the docstring."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[1:] if has_docstring else function.body


def _check_stub(cell: Cell) -> None:
    definition = _definition(cell.source)
    if definition.name != cell.name:
        raise LessonError(f"the cell defines {definition.name}, but its exercise is named {cell.name}.")
    for function in _functions(definition).values():
        if _lines(cell.source, _body(function), comments_before=True) != STUB.splitlines():
            raise LessonError(f"the body of {function.name} must be the stub: {STUB.splitlines()}.")


def _lines(source: str, body: list[ast.stmt], comments_before: bool = False) -> list[str]:
    """The dedented source lines of consecutive statements; with the comment lines right above them if asked."""
    if not body:
        return []
    lines = source.splitlines()
    first, last = body[0].lineno - 1, body[-1].end_lineno
    while comments_before and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return textwrap.dedent("\n".join(lines[first:last])).splitlines()


def solution_object(address: str) -> Any:
    """The object that `solution="module:name"` names."""
    module, _, name = address.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise LessonError(f"solution=\"{address}\" names nothing; write solution=\"module:name\".") from None


def solved(cell: Cell) -> str:
    """The exercise cell with the solution's bodies in place of the stubs; signature and docstring stay the lesson's."""
    solution_source = textwrap.dedent(inspect.getsource(solution_object(cell.keys["solution"])))
    ours, theirs = _functions(_definition(cell.source)), _functions(_definition(solution_source))
    lines = cell.source.splitlines()
    for name, stub in sorted(ours.items(), key=lambda item: -item[1].lineno):  # from the bottom: line numbers stay valid
        if name not in theirs:
            raise LessonError(f"{cell.name}: {cell.keys['solution']} has no {name}.")
        if ast.unparse(stub.args) != ast.unparse(_without_annotations(theirs[name].args)):
            raise LessonError(f"{cell.name}: the lesson's signature {name}({ast.unparse(stub.args)}) differs from the "
                              f"solution's ({ast.unparse(theirs[name].args)}).")
        body = _body(stub)
        indent = " " * body[0].col_offset
        filled = textwrap.indent("\n".join(_lines(solution_source, _body(theirs[name]), comments_before=True)), indent)
        lines[body[0].lineno - 2:body[-1].end_lineno] = filled.splitlines()
    return "\n".join(lines)


def solution_lines(cell: Cell) -> list[str]:
    """The solution's own lines, dedented and without blank ones: what no release may hold."""
    solution_source = textwrap.dedent(inspect.getsource(solution_object(cell.keys["solution"])))
    functions = _functions(_definition(solution_source)).values()
    return [line.strip() for function in functions
            for line in _lines(solution_source, _body(function)) if line.strip()]


def _without_annotations(arguments: ast.arguments) -> ast.arguments:
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None
    return arguments
