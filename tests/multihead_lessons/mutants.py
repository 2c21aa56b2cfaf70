"""Small changes to a function's source, each a mistake that somebody could make while typing."""
from __future__ import annotations

import ast
import copy
import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
             ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
               ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}


def clone(reference: Any) -> Any:
    """The same function or class, compiled anew: an answer that is right and not the library's own object."""
    return _run(_tree(reference), reference)


def mutants(reference: Any) -> Iterator[tuple[str, Any]]:
    """(what changed, the changed function or class), one for each change. Messages of errors are left alone."""
    tree = _tree(reference)
    statements = {part: statement for statement in ast.walk(tree) if isinstance(statement, ast.stmt)
                  for part in ast.walk(statement)}  # the walk goes outside in, so the innermost statement stays
    for index, node in enumerate(ast.walk(tree)):
        if isinstance(statements.get(node), ast.Raise):
            continue
        for number, (words, _) in enumerate(_changes(node)):
            changed = copy.deepcopy(tree)
            target = next(other for place, other in enumerate(ast.walk(changed)) if place == index)
            list(_changes(target))[number][1]()
            yield f"{words}: {_line(node)} in: {_line(statements.get(node, node))}", _run(ast.fix_missing_locations(changed), reference)


def _tree(reference: Any) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(reference)))


def _line(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0]


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """(words, a function that makes the change in place) for each change of this node itself."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield "operator", lambda: setattr(node, "op", OPERATORS[type(node.op)]())
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        yield "operator", lambda: setattr(node, "op", OPERATORS[type(node.op)]())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield "comparison", lambda: node.ops.__setitem__(0, COMPARISONS[type(node.ops[0])]())
    elif isinstance(node, ast.BoolOp):
        yield "and/or", lambda: setattr(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert, ast.USub)):
        yield "sign or negation dropped", lambda: _become(node, node.operand)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "constant + 1", lambda: setattr(node, "value", node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant negated", lambda: setattr(node, "value", not node.value)
    if isinstance(node, (ast.Call, ast.Tuple, ast.List)):
        parts = node.args if isinstance(node, ast.Call) else node.elts
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if len(parts) > 1 and not stored and not _symmetric(node) and ast.unparse(parts[0]) != ast.unparse(parts[1]):
            yield "first two exchanged", lambda: parts.__setitem__(slice(0, 2), parts[1::-1])
    for block in ("body", "orelse"):
        statements = getattr(node, block, None)
        for place, statement in enumerate(statements if isinstance(statements, list) else []):
            if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return, ast.If, ast.For, ast.Expr)) and not (
                    isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                yield f"'{_line(statement)}' dropped", lambda s=statements, p=place: s.__setitem__(p, ast.Pass())


def _symmetric(node: ast.AST) -> bool:
    """A call that does not care about the order of its first two arguments."""
    function = getattr(node, "func", None)
    return getattr(function, "id", getattr(function, "attr", "")) in ("min", "max", "transpose", "swapaxes", "all", "any", "getattr")


def _become(node: ast.AST, other: ast.AST) -> None:
    """Turns a unary operation into + operand, which changes nothing else."""
    if isinstance(node.op, ast.Not):
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), other)
    else:
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else node.op
        if isinstance(node.op, ast.Invert):
            node.operand = ast.UnaryOp(ast.Invert(), other)


def _run(tree: ast.Module, reference: Any) -> Any:
    names = dict(vars(sys.modules[reference.__module__]))
    exec(compile(tree, f"<mutant of {reference.__name__}>", "exec"), names)
    return names[reference.__name__]
