"""A course folder with lesson 03, and notebooks as students hand them in."""
import copy
import json
from functools import cache
from pathlib import Path

import nbformat
from places import ROOT

from multihead_course.build import lessons
from multihead_course.grading.sandbox import Limits
from multihead_course.release import CONFIG, _config, editions

LESSON = "03_the_4d_pipeline"
STUB = "# YOUR CODE HERE\n    raise NotImplementedError()"
QUICK = Limits(statement=1.0, call=1.0, total=6.0, grace=0.5)
POINTS = {"split_heads": 3, "predict_strides": 3, "copies": 2}


@cache
def _editions():
    lesson = next(lesson for lesson in lessons(ROOT) if lesson.name == LESSON)
    return [json.loads(nbformat.writes(edition)) for edition in editions(lesson, "course-0-py3-none-any.whl")]


def released() -> dict:
    """The notebook that students get."""
    return copy.deepcopy(_editions()[1])


def course_folder(folder: Path) -> Path:
    """`folder` with the lesson's source and release in it."""
    for edition, notebook in zip(("source", "release"), _editions()):
        put(folder / edition / LESSON / f"{LESSON}.ipynb", notebook)
    put(folder / CONFIG, _config())
    return folder


def put(path: Path, content: dict | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def hand_in(course: Path, student: str, content: dict | bytes, name: str = f"{LESSON}.ipynb") -> Path:
    return put(course / "submitted" / student / LESSON / name, content)


def source(cell: dict) -> str:
    return "".join(cell["source"])


def grade_id(cell: dict) -> str | None:
    return (cell["metadata"].get("nbgrader") or {}).get("grade_id")


def cell_of(notebook: dict, name: str) -> dict:
    """The cell with this grade_id."""
    return next(cell for cell in notebook["cells"] if grade_id(cell) == name)


def solved(**bodies: str) -> dict:
    """The released notebook with these exercises answered: by a body, or by a whole cell if not indented."""
    notebook = released()
    for name, body in bodies.items():
        cell = cell_of(notebook, name)
        text = source(cell)
        cell["source"] = text.replace(STUB, body.strip()) if body.startswith("    ") else body
        assert cell["source"] != text
    return notebook


def code(text: str, **metadata) -> dict:
    return {"cell_type": "code", "id": f"added-{abs(hash(text)) % 10**8}", "metadata": metadata,
            "source": text, "outputs": [], "execution_count": None}


def with_cell(notebook: dict, text: str, before: str | None = None) -> dict:
    """The notebook with one more code cell: before the cell with this grade_id, or at the end."""
    index = len(notebook["cells"]) if before is None else notebook["cells"].index(cell_of(notebook, before))
    notebook["cells"].insert(index, code(text))
    return notebook


# Answers. Right ones by the way they go; wrong ones by the misconception that they make.

SPLIT = {
    "view": "    B, T, d_model = x.shape\n    return x.view(B, T, h, d_model // h).transpose(1, 2)",
    "reshape": "    B, T, d_model = x.shape\n    assert d_model % h == 0\n"
               "    return x.reshape(B, T, h, d_model // h).permute(0, 2, 1, 3)",
    "unflatten": "    return x.unflatten(-1, (h, x.shape[-1] // h)).transpose(1, 2)",
    "chunks": "    if x.shape[-1] % h != 0:\n        raise ValueError('no')\n"
              "    return torch.stack(x.chunk(h, dim=-1), dim=1)",
    "swapaxes": "    return x.reshape(*x.shape[:2], h, x.shape[-1] // h).swapaxes(1, 2).contiguous()",
    "loop": ("    d_k, rest = divmod(x.shape[-1], h)\n    if rest:\n"
             "        raise ValueError(f'{h} does not divide {x.shape[-1]}')\n"
             "    return torch.cat([x[:, None, :, i * d_k:(i + 1) * d_k] for i in range(h)], dim=1)"),
    "prints": "    import sys, warnings\n    warnings.warn('mind the shape')\n"
              "    print('splitting', file=sys.stderr)\n"
              "    return x.unflatten(-1, (h, x.shape[-1] // h)).transpose(1, 2)",
}
SPLIT_WRONG = {
    "direct view": "    B, T, d_model = x.shape\n    if d_model % h:\n        raise ValueError\n"
                   "    return x.reshape(B, h, T, d_model // h)",
    "no transpose": "    return x.unflatten(-1, (h, x.shape[-1] // h))",
    "strided": "    return x.unflatten(-1, (x.shape[-1] // h, h)).permute(0, 3, 1, 2)",
    "folded": "    return x.unflatten(-1, (h, x.shape[-1] // h)).transpose(1, 2).flatten(0, 1)",
    "list": "    if x.shape[-1] % h:\n        raise ValueError\n    return list(x.chunk(h, dim=-1))",
    "silent remainder": "    d_k = x.shape[-1] // h\n"
                        "    return x[..., :h * d_k].unflatten(-1, (h, d_k)).transpose(1, 2)",
    "wrong axes exchanged": "    return x.unflatten(-1, (h, x.shape[-1] // h)).transpose(2, 3)",
}
STRIDES = {
    "formula": ("    d_k = d_model // h\n"
                "    return (T * d_model, d_model, 1), (T * d_model, d_model, d_k, 1), "
                "(T * d_model, d_k, d_model, 1)"),
    "asks torch": ("    x = torch.empty(B, T, d_model)\n    view = x.view(B, T, h, d_model // h)\n"
                   "    return x.stride(), view.stride(), view.transpose(1, 2).stride()"),
    "lists": ("    d_k = d_model // h\n    view = [T * d_model, d_model, d_k, 1]\n"
              "    return [T * d_model, d_model, 1], view, [view[0], view[2], view[1], view[3]]"),
}
STRIDES_WRONG = {
    "bytes": ("    d_k = d_model // h\n"
              "    return (4 * T * d_model, 4 * d_model, 4), (4 * T * d_model, 4 * d_model, 4 * d_k, 4), "
              "(4 * T * d_model, 4 * d_k, 4 * d_model, 4)"),
    "as if copied": ("    d_k = d_model // h\n"
                     "    return (T * d_model, d_model, 1), (T * d_model, d_model, d_k, 1), "
                     "(T * d_model, T * d_k, d_k, 1)"),
    "not exchanged": ("    d_k = d_model // h\n    view = (T * d_model, d_model, d_k, 1)\n"
                      "    return (T * d_model, d_model, 1), view, view"),
    "shapes": "    return (B, T, d_model), (B, T, h, d_model // h), (B, h, T, d_model // h)",
}
COPIES = {
    "set": ("    return operation in {'q.contiguous()', 'q.flatten(0, 1)', 'q @ k.mT',\n"
            "                         'out.transpose(1, 2).reshape(B, T, d_model)'}"),
    "words": ("    words = ('contiguous', 'flatten(0', '@', 'out.')\n"
              "    return any(word in operation for word in words)"),
}
COPIES_WRONG = {
    "nothing": "    return False",
    "everything": "    return True",
    "products are free": ("    return operation in {'q.contiguous()', 'q.flatten(0, 1)',\n"
                          "                         'out.transpose(1, 2).reshape(B, T, d_model)'}"),
}
RIGHT = {"split_heads": SPLIT["view"], "predict_strides": STRIDES["formula"], "copies": COPIES["set"]}


def honest() -> dict[str, tuple[dict, dict[str, str | None]]]:
    """Forty people who did their best: student -> (notebook, the mistake in each exercise or None)."""
    pools = {name: [(None, body) for body in right.values()] + list(wrong.items()) + [("stub", None)]
             for name, right, wrong in (("split_heads", SPLIT, SPLIT_WRONG),
                                        ("predict_strides", STRIDES, STRIDES_WRONG),
                                        ("copies", COPIES, COPIES_WRONG))}
    found = {}
    for i in range(40):
        chosen = {name: pool[i % len(pool)] for name, pool in pools.items()}
        bodies = {name: body for name, (_, body) in chosen.items() if body is not None}
        found[f"honest{i:02}"] = solved(**bodies), {name: mistake for name, (mistake, _) in chosen.items()}
    return found
