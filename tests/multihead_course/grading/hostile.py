"""Notebooks that cheat, that do damage, and that accidents have broken; and what each deserves.

In most of them only split_heads is not as it should be: predict_strides is right and must keep its points.
"""
import copy
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from submissions import (
    LESSON, RIGHT, SPLIT, STRIDES, cell_of, grade_id, hand_in, released, solved, source, with_cell,
)

SECRET = "canary-5b1f9d"  # stands in files that no submission may read, and in the grader's environment
KEPT = {"predict_strides": "passed", "copies": "not attempted"}
PERSON = dict.fromkeys(RIGHT, "needs a person")
ALL = dict.fromkeys(RIGHT, "passed")


Put = Callable[[Path, str], object]  # (course folder, student)


@dataclass(frozen=True)
class Hostile:
    """One submission. states: what each exercise deserves; says: words of the sentence on split_heads."""

    name: str
    put: Put
    states: dict[str, str]
    says: str = ""


BANK: list[Hostile] = []


def _add(name: str, notebook: dict | bytes | Put, split: str | dict = "failed", says: str = "") -> None:
    put = notebook if callable(notebook) else lambda course, student: hand_in(course, student, notebook)
    states = split if isinstance(split, dict) else {"split_heads": split, **KEPT}
    BANK.append(Hostile(name, put, states, says))


def _cheat(name: str, body: str, split: str = "failed", says: str = "") -> None:
    """A body for split_heads that must not be paid."""
    _add(name, solved(split_heads=body, predict_strides=STRIDES["formula"]), split, says)


def _around(name: str, cell: str, split: str = "passed", says: str = "", body: str = SPLIT["view"]) -> None:
    """A cell of the student's own before split_heads, which is right unless another body is given."""
    notebook = solved(split_heads=body, predict_strides=STRIDES["formula"])
    _add(name, with_cell(notebook, cell, before="split_heads"), split, says)


WRONG = "    return x.unflatten(-1, (h, x.shape[-1] // h))"

# Someone else's answer

_cheat("calls the library", "    return mh.split_heads(x, h)", says="library's own")
_cheat("imports the library", "from multihead.attention import split_heads\n", "failed", "library's own")
_cheat("library by a hidden name", "    return getattr(mh, 'split' + '_heads')(x, h)", says="library's own")
_cheat("library behind a name of its own", "from multihead import split_heads as cut\n\n"
                                           "def split_heads(x, h):\n    return cut(x, h)",
       says="library's own")
_cheat("library caught when it is missing", (
    "    try:\n        return mh.split_heads(x, h)\n    except Exception:\n        return x"))
_around("library's code, taken early", (
    "import types, torch\nimport multihead.attention as ours\n"
    "kept = types.FunctionType(ours.split_heads.__code__, {'torch': torch})"),
    "failed", body="    return kept(x, h)")
_cheat("library's source, by inspect", (
    "    import inspect\n    names = {}\n    exec(inspect.getsource(mh.split_heads), names)\n"
    "    return names['split_heads'](x, h)"),
    says="reads the source")
_cheat("library's source, by its file", (
    "    names = {}\n    exec(open(mh.attention.__code__.co_filename).read(), names)\n"
    "    return names['split_heads'](x, h)"),
    "needs a person", "Permission denied")
_cheat("library reached through the layer", (
    "    return mh.MultiHeadAttention.heads.__globals__['split_heads'](x, h)"), says="library's own")
_cheat("library imported afresh", (
    "    import sys, importlib\n"
    "    for name in [name for name in sys.modules if name.startswith('multihead')]:\n"
    "        del sys.modules[name]\n"
    "    return importlib.import_module('multihead.attention').split_heads(x, h)"),
    "needs a person", "Permission denied")
_cheat("memory searched for functions", (
    "    import gc, types\n"
    "    found = [f for f in gc.get_objects() if isinstance(f, types.FunctionType)\n"
    "             and f.__name__ == 'split_heads'\n"
    "             and f is not split_heads]\n    return found[0](x, h)"))
_cheat("exercises imported", "    from multihead_lessons.exercises import lesson03\n"
                             "    return lesson03.split_variant(x, h)")
_cheat("exercises loaded from their file", (
    "    import importlib.util, multihead_lessons, os\n"
    "    place = os.path.join(os.path.dirname(multihead_lessons.__file__), 'exercises', 'lesson03.py')\n"
    "    spec = importlib.util.spec_from_file_location('bank', place)\n"
    "    bank = importlib.util.module_from_spec(spec)\n"
    "    spec.loader.exec_module(bank)\n"
    "    return bank.split_variant(x, h)"), "needs a person", "Permission denied")


def _reads(pattern: str) -> Callable[[Path, str], object]:
    """A notebook that shows what it finds in files of the course folder."""
    def put(course: Path, student: str) -> None:
        body = (f"    import glob\n"
                f"    pattern = {str(course / pattern)!r}\n"
                "    places = glob.glob(pattern, recursive=True) or [pattern]\n"
                "    raise ValueError(open(places[0]).read()[-80:])")
        hand_in(course, student, solved(split_heads=body, predict_strides=STRIDES["formula"]))
    return put


_add("reads the source with solutions", _reads(f"source/{LESSON}/{LESSON}.ipynb"), "needs a person",
     "Permission denied")
_add("reads another submission", _reads("submitted/*/*/*.ipynb"), "failed", "No such file")
_add("reads the seeds", _reads("../marks/seeds.json"), "needs a person", "Permission denied")
_add("reads the gradebook", _reads("gradebook.db"), "needs a person", "Permission denied")


def _rewrites(course: Path, student: str) -> None:
    body = (f"    import sqlite3\n    db = sqlite3.connect({str(course / 'gradebook.db')!r})\n"
            "    db.execute('update grade set manual_score = 995')\n    db.commit()\n    return x")
    hand_in(course, student, solved(split_heads=body, predict_strides=STRIDES["formula"]))


_add("rewrites the gradebook", _rewrites)
_cheat("reads the environment", "    import os\n"
                                "    raise ValueError(str(dict(os.environ)))", says="ValueError")
_cheat("reads the grader's memory", (
    "    import os\n    return open(f'/proc/{os.getppid()}/mem', 'rb').read()"), "needs a person")
_cheat("lists processes", "    import os\n    raise ValueError(str(os.listdir('/proc')))", "needs a person")
_cheat("shows its inputs", "    raise ValueError(str(x.flatten().tolist()))", says="ValueError")
_cheat("shows its inputs as words", (
    "    import base64\n    raise ValueError(base64.b64encode(x.detach().numpy().tobytes()).decode())"))
def _own_torch(course: Path, student: str) -> None:
    path = hand_in(course, student, solved(split_heads="import torch\n\ndef split_heads(x, h):\n"
                                                       "    return torch.right(x, h)",
                                           predict_strides=STRIDES["formula"]))
    (path.parent / "torch.py").write_text("right = print\n")


_add("torch.py beside the notebook", _own_torch)

# Comparisons and graders bent

_around("comparisons patched", (
    "import torch\ntorch.equal = torch.allclose = lambda *a, **k: True\n"
    "torch.isclose = lambda a, *r, **k: torch.ones_like(a, dtype=bool)\n"
    "torch.Tensor.__eq__ = lambda a, b: True"), "failed", body=WRONG)
_around("builtins patched", (
    "import builtins\nbuiltins.all = builtins.any = builtins.isinstance = lambda *a: True"),
    "failed", body=WRONG)
_cheat("always equal", (
    "    class Equal:\n        shape = property(lambda self: self)\n"
    "        def __eq__(self, other): return True\n"
    "        def __getattr__(self, name): return self\n        def __call__(self, *a, **k): return self\n"
    "    return Equal()"))
_cheat("a tensor that agrees", (
    "class Agreeable(torch.Tensor):\n    @classmethod\n"
    "    def __torch_function__(cls, f, types, args=(), kwargs=None):\n"
    "        return True if f is not torch.Tensor.detach else args[0]\n\ndef split_heads(x, h):\n"
    "    return x.as_subclass(Agreeable)"))
_around("cells rewritten by a transformer", (
    "shell = get_ipython()\n"
    "shell.input_transformers_cleanup.append(lambda lines: ['split_heads = \"mine\"\\n'])\n"
    "shell.ast_transformers.append(type('T', (), {'visit': lambda self, tree: tree})())"),
    "failed", body=WRONG)
_around("the shell replaced", (
    "shell = get_ipython()\nshell.run_cell = lambda *a, **k: None\nshell.user_ns = {}\n"
    "shell.events.register('pre_run_cell', lambda *a: 1 / 0)"),
    "failed", body=WRONG)
_around("examine replaced", (
    "import sys, types\nfake = types.ModuleType('multihead_lessons.exercises')\n"
    "fake.examine = fake.grade = fake.check = lambda *a, **k: True\n"
    "sys.modules['multihead_lessons.exercises'] = fake"), "failed", body=WRONG)
_around("the guarded call replaced", (
    "import multihead_lessons.running as r\n"
    "r.call = lambda f, *a, **k: r.Outcome(value='passed', returned='passed')\n"
    "r.SECONDS = 10 ** 9"), "failed", body=WRONG)
_around("replies forged on the line", (
    "import os, struct, json\ntext = json.dumps({'value': True, 'passed': True, 'points': 99}).encode()\n"
    "for fd in range(3, 64):\n    try:\n        os.write(fd, struct.pack('<II', len(text), 0) + text)\n"
    "    except OSError:\n        pass"),
    "failed", "left the time axis", body=WRONG)
_around("garbage on the line", (
    "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'\\xff' * 4096)\n"
    "    except OSError:\n        pass"),
    "failed", "left the time axis", body=WRONG)
_around("endless progress", (
    "import os, struct, json\ntext = json.dumps({'at': [0, 0]}).encode()\n"
    "frame = struct.pack('<II', len(text), 0) + text\n"
    "while True:\n    for fd in range(3, 12):\n        try:\n            os.write(fd, frame)\n"
    "        except OSError:\n            pass"),
    "failed", "left the time axis", body=WRONG)
_cheat("a pickle with a trap", (
    "    import os\n    class Trap:\n        def __reduce__(self):\n"
    "            return os.system, ('touch /tmp/trapped',)\n    return Trap()"))
_cheat("a mark as an output", "    import sys\n    sys.displayhook(3.0)\n    raise ValueError('3.0')")
_cheat("too deep a result", "    result = []\n    for _ in range(100000):\n        result = [result]\n"
                            "    return result")
_cheat("a result that holds itself", "    result = []\n    result.append(result)\n    return result")
_cheat("too large a number", "    return 10 ** 100000")
_cheat("a result of 400 MB", "    return torch.zeros(100_000_000)")
_cheat("a result of 4 GB, expanded", "    return torch.zeros(1).expand(1_000_000_000)")
_cheat("a sparse result", "    return x.to_sparse()")
_cheat("the name of another type", "    return type('<script>alert(1)</script>', (), {})()")
_cheat("not a function", "split_heads = 3\n", says="must be a function")
_cheat("raises to look like a stub", "    raise NotImplementedError()", "not attempted")

# Damage

_cheat("endless loop", "    while True:\n        pass", says="Does a loop never end?")
_cheat("endless loop that catches everything", "    while True:\n        try:\n            x + 1\n"
                                               "        except BaseException:\n            pass",
       says="Does a loop never end?")
_cheat("sleeps in C", "    import time\n    time.sleep(1000)\n    return x", says="Does a loop never end?")
_around("endless loop in a cell", "while True:\n    pass")
_around("endless loop in a cell that catches everything", "while True:\n    try:\n        pass\n"
                                                          "    except BaseException:\n        pass")
_around("endless print", "while True:\n    print('again')")
_cheat("fork bomb", "    import os\n    while True:\n        os.fork()", "needs a person", "not permitted")
_cheat("starts a program", "    import subprocess\n    subprocess.run(['true'])\n"
                           "    return x", "needs a person", "not permitted")
_around("daemon in a cell", "import os\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        pass")
_cheat("memory bomb", "    return [bytearray(1 << 28) for _ in range(64)]")
_around("memory bomb in a cell", "hoard = [bytearray(1 << 28) for _ in range(64)]")
_cheat("memory shared and anonymous", "    import mmap\n    return mmap.mmap(-1, 1 << 34)")
_cheat("thread bomb", ("    import threading, time\n    while True:\n"
                       "        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"))
_cheat("too deep a recursion", "    return split_heads(x, h)", says="RecursionError")
_cheat("exits", "    import sys\n    sys.exit(0)", says="SystemExit")
_cheat("exits hard", "    import os\n    os._exit(0)", says="ended the whole process")
_around("exits hard in a cell", "import os\nos._exit(0)")
_cheat("segmentation fault", "    import ctypes\n"
                             "    return ctypes.string_at(0)", says="ended the whole process")
_cheat("aborts", "    import os\n    os.abort()", says="ended the whole process")
_cheat("interrupts", "    raise KeyboardInterrupt", says="ended the whole process")
_cheat("kills its parent", "    import os, signal\n    os.kill(os.getppid(), signal.SIGKILL)\n"
                           "    return x", "needs a person", "not permitted")
_cheat("kills everything", "    import os, signal\n    os.kill(-1, signal.SIGKILL)\n"
                           "    return x", "needs a person", "not permitted")
_cheat("alarm", "    import signal, time\n    signal.setitimer(signal.ITIMER_REAL, 0.01)\n    time.sleep(1)\n"
                "    return x",
       says="ended the whole process")
_cheat("connects", "    import socket\n    socket.create_connection(('127.0.0.1', 80))\n"
                   "    return x", "needs a person", "not permitted")
_around("writes a large file", "with open('large', 'wb') as file:\n    for _ in range(1000):\n"
                               "        file.write(bytes(1 << 20))")
_around("prints 100 MB", "print('x' * 100_000_000)")
_cheat("changes its input", "    x.zero_()\n"
                            "    return x.unflatten(-1, (h, x.shape[-1] // h)).transpose(1, 2)")
_around("nested too deeply to compile", "y = " + "(" * 5000 + "1" + ")" * 5000)
_around("a cell of a megabyte", "words = '" + "x" * 1_000_000 + "'")


def _changes_permissions(course: Path, student: str) -> None:
    cell = f"import os\nos.chmod({str(course)!r}, 0)"
    hand_in(course, student, with_cell(solved(**RIGHT), cell, before="split_heads"))


_add("takes away permissions", _changes_permissions, ALL)

# Accidents: whoever did the work keeps the points


def _right(edit: Callable[[dict], object] = lambda notebook: None) -> dict:
    notebook = solved(**RIGHT)
    edit(notebook)
    return notebook


def _bytes(encode: Callable[[str], bytes]) -> bytes:
    return encode(json.dumps(_right(), ensure_ascii=False))


def _copy_of(name: str, text: str | None = None) -> Callable[[dict], object]:
    def edit(notebook: dict) -> None:
        cell = copy.deepcopy(cell_of(notebook, name))
        cell["source"] = text or cell["source"]
        notebook["cells"].insert(notebook["cells"].index(cell_of(notebook, name)) + 1, cell)
    return edit


def _without(*names: str) -> Callable[[dict], object]:
    return _keeping(lambda cell: grade_id(cell) not in names)


def _keeping(wanted: Callable[[dict], bool]) -> Callable[[dict], object]:
    return lambda notebook: notebook.update(cells=list(filter(wanted, notebook["cells"])))


def _each(change: Callable[[dict], object]) -> Callable[[dict], object]:
    return lambda notebook: [change(cell) for cell in notebook["cells"]]


def _named(*names: str) -> Put:
    return lambda course, student: [hand_in(course, student, _right(), name) for name in names]


def _retyped(kind: str) -> Callable[[dict], object]:
    return lambda notebook: cell_of(notebook, "split_heads").update(cell_type=kind)


_filled = source(cell_of(_right(), "split_heads"))
_stub = source(cell_of(released(), "split_heads"))
_add("solution cell copied", _right(_copy_of("split_heads")), ALL)
_add("stub pasted below the solution", _right(_copy_of("split_heads", _stub)), ALL)
_add("grade cell copied", _right(_copy_of("grade_split_heads")), ALL)
_add("grade cell worth 1000 points", _right(
    lambda notebook: cell_of(notebook, "grade_split_heads")["metadata"]["nbgrader"].update(points=1000)), ALL)
_add("grade cell emptied", {**solved(split_heads=WRONG, predict_strides=STRIDES["formula"]), "cells": [
    {**cell, "source": "pass"} if grade_id(cell) == "grade_split_heads" else cell
    for cell in solved(split_heads=WRONG, predict_strides=STRIDES["formula"])["cells"]]})
_add("solution cell deleted", _right(_without("split_heads")), {**ALL, "split_heads": "not attempted"})
_add("grade and check cells deleted", _right(
    _without(*(f"{kind}_{name}" for kind in ("grade", "check") for name in RIGHT))), ALL)
_add("lesson's cells deleted", _right(_keeping(lambda cell: grade_id(cell) in RIGHT)), ALL)
_add("cells in reverse order", _right(lambda n: n["cells"].reverse()), ALL)
_add("solution became text", _right(_retyped("markdown")), ALL)
_add("solution became raw", _right(_retyped("raw")), ALL)
_add("metadata stripped", _right(_each(lambda cell: cell.update(metadata={}))), ALL)
_add("metadata of an older schema", _right(
    _each(lambda cell: cell["metadata"].get("nbgrader", {}).update(schema_version=1))), ALL)
_add("metadata of a kind of its own", _right(_each(lambda cell: cell.update(metadata=[1, 2]))), ALL)
_add("cells that are none", _right(lambda notebook: notebook["cells"].extend(
    [None, 3, {"source": None}, {"cell_type": "code", "source": [1, None]}])), ALL)
_add("ids missing", _right(_each(lambda cell: cell.pop("id", None))), ALL)
_add("saved by format 3", {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": [
    {"cell_type": cell["cell_type"], "metadata": {},
     "input" if cell["cell_type"] == "code" else "source": source(cell).splitlines(True)}
    for cell in _right()["cells"]]}]}, ALL)
_add("Windows line ends", _right(
    _each(lambda cell: cell.update(source=source(cell).replace("\n", "\r\n")))), ALL)
_add("renamed file", _named("homework final (1).ipynb"), ALL)
_add("in a folder of its own", _named(f"homework/{LESSON}.ipynb"), ALL)
_add("byte order mark", _bytes(lambda text: b"\xef\xbb\xbf" + text.encode()), ALL)
_add("UTF-16", _bytes(lambda text: text.encode("utf-16")), ALL)
_add("Latin-1", _bytes(lambda text: text.encode("latin-1", "replace") + b"\n"), ALL)
_add("zeros at the end", _bytes(lambda text: text.encode() + bytes(512)), ALL)
_add("half a surrogate pair", json.dumps(_right(lambda n: with_cell(n, "mood = '\ud83d'"))).encode(), ALL)
_add("truncated", _bytes(lambda text: text.encode()[:20_000]), PERSON, "Ask for it again")
_add("empty file", b"", PERSON, "empty")
_add("no JSON", b"PK\x03\x04 a zip file, in truth", PERSON, "no notebook")
_add("JSON of another kind", b"[1, 2, 3]", PERSON, "no cells")
_add("nested without end", b'{"cells":' + b"[" * 200_000, PERSON)
_add("no cells", {**released(), "cells": []}, PERSON, "no cells")
_add("too large", lambda course, student: hand_in(course, student, b"{" + b" " * (51 << 20)), PERSON,
     "Clear its outputs")
_add("two notebooks", _named("a.ipynb", "b.ipynb"), PERSON, "Leave one of them")
_add("a folder and no notebook", _named("readme.txt"), PERSON, "readme.txt")


def _link(course: Path, student: str) -> None:
    path = hand_in(course, student, b"")
    path.unlink()
    path.symlink_to(course / "source" / LESSON / f"{LESSON}.ipynb")


def _linked_folder(course: Path, student: str) -> None:
    folder = course / "submitted" / student / LESSON
    folder.parent.mkdir(parents=True)
    folder.symlink_to(course / "source" / LESSON)


def _pipe(course: Path, student: str) -> None:
    path = hand_in(course, student, b"")
    path.unlink()
    os.mkfifo(path)


_add("a link to the source", _link, PERSON, "a link or a device")
_add("a link to the folder of the source", _linked_folder, PERSON, "a link to another folder")
_add("a pipe", _pipe, PERSON, "a link or a device")
_add("exit() left in a cell", with_cell(_right(), "exit()", before="split_heads"), ALL)
_add("input()", with_cell(_right(), "name = input('your name?')", before="split_heads"), ALL)
_add("lines for the shell and magics", with_cell(_right(), "!pip install einops\n%matplotlib inline\n"
                                                           "files = !ls", before="split_heads"), ALL)
_add("timed solution", solved(**{**RIGHT, "split_heads": "%%time\n" + _filled}), ALL)
_add("syntax error in a cell", with_cell(_right(), "def broken(:", before="split_heads"), ALL)
_add("another cell uses the library", with_cell(_right(), "mh.split_heads(x, h)\n"
                                                          "mh.MultiHeadAttention(8, 2)(torch.ones(1, 2, 8))",
                                                before="split_heads"), ALL)
_add("another exercise uses the library", solved(**{**RIGHT, "predict_strides": (
    "    x = torch.empty(B, T, d_model)\n"
    "    return x.stride(), x.view(B, T, h, -1).stride(), mh.split_heads(x, h).stride()")}), ALL)
_add("compares with the library in its cell", solved(**{**RIGHT, "split_heads": (
    "import torch\n"
    "assert torch.equal(mh.split_heads(torch.ones(1, 2, 4), 2), mh.split_heads(torch.ones(1, 2, 4), 2))\n\n"
    + _filled)}), ALL)
_add("other default of dtype", with_cell(
    _right(), "torch.set_default_dtype(torch.float64)", before="split_heads"), ALL)
_add("asks for a GPU in a cell", with_cell(_right(), "x = torch.ones(2).cuda()", before="split_heads"), ALL)
_cheat("asks for a GPU", "    return x.cuda().unflatten(-1, (h, x.shape[-1] // h)).transpose(1, 2)",
       says="line")
_cheat("syntax error", "def split_heads(x, h)\n    return x", says="SyntaxError")
_cheat("conflict of versions", "<<<<<<< mine\ndef split_heads(x, h):\n    return x\n"
                               ">>>>>>> theirs", says="SyntaxError")
_cheat("other name", (
    "def splitheads(x, h):\n    return x.unflatten(-1, (h, x.shape[-1] // h)).transpose(1, 2)"),
    "needs a person", "splitheads")
_cheat("only a comment", "# I did not know how", "not attempted")
_around("needs a file", "with open('helper.py', 'w') as file:\n    file.write('cut = 1')\n"
                        "from helper import cut", "needs a person",
        "cell", body="    return cut(x, h)")
_add("helper in a cell below", with_cell(solved(**{**RIGHT, "split_heads": "    return cut(x, h)"}), (
    "def cut(x, h):\n    return x.unflatten(-1, (h, x.shape[-1] // h)).transpose(1, 2)")), ALL)
_add("untouched", released(), dict.fromkeys(RIGHT, "not attempted"))
