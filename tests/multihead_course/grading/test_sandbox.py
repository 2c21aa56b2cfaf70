"""The guards hold here, and it is noticed where they do not."""
import contextlib
import inspect
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from submissions import QUICK, SPLIT, SPLIT_WRONG, STRIDES

import multihead_lessons
from multihead_course.grading import forking as starting, remote, sandbox, wire
from multihead_course.grading.remote import Program, RemoteAnswer, Session
from multihead_lessons import calling
from multihead_lessons.exercises import examine, exercises, lesson04
from multihead_lessons.running import EndedProcess, TookTooLong


@contextlib.contextmanager
def _answer(forking, cells, name="split_heads", alone=False):
    uses = dict.fromkeys(exercises(), frozenset(exercises()))
    program = Program([("cell 1", cells)], list(exercises()), uses)
    with Session(forking.control, forking.limits, program) as session:
        with RemoteAnswer(session, name, alone) as answer:
            yield answer


def _function(body, name="split_heads", arguments="x, h"):
    return f"import torch\ndef {name}({arguments}):\n{body}"


def _value(forking, body):
    with _answer(forking, _function(body, arguments="*args")) as answer:
        return answer()


def test_all_guards_hold(forking):
    assert forking.held == list(sandbox.GUARDS)


def test_a_process_without_guards_is_found_out(tmp_path):
    (tmp_path / "file").write_text("secret")
    program = ("from pathlib import Path\nfrom multihead_course.grading.sandbox import Limits, try_guards\n"
               f"print(try_guards(Limits(), [Path({str(tmp_path)!r})]))")
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("body", [
    "    return open(torch.__file__).readline()",
    "    import fractions\n    return str(fractions.Fraction(1, 3))",
    "    import matplotlib.pyplot as plt\n    plt.plot([1])\n    plt.gcf().canvas.draw()\n    return 'drawn'",
    "    import random, datetime\n    return f'{random.random()} {datetime.datetime.now()}'",
    "    import threading\n    t = threading.Thread(target=print)\n    t.start()\n    return 'done'",
    "    from multihead_lessons.stored_relations import stored_errors\n    return stored_errors.__name__"])
def test_what_homework_needs_is_open(forking, body):
    assert isinstance(_value(forking, body), str)


@pytest.mark.parametrize("place", ["bank.py", "lesson03.py", "examining.py", "__init__.py"])
def test_the_exercises_cannot_be_read(forking, place):
    path = Path(multihead_lessons.__file__).parent / "exercises" / place
    assert path.exists()
    with pytest.raises(PermissionError):
        _value(forking, f"    return open({str(path)!r}).read()")


def test_nothing_of_the_exercises_is_in_memory(forking):
    loaded = _value(forking, "    import sys\n    return list(sys.modules)")
    assert [name for name in loaded if "exercises" in name] == ["multihead_lessons.exercises"]
    assert "multihead_lessons.lesson03" in loaded and "multihead.attention" in loaded
    body = "    from multihead_lessons import exercises as e\n    return [e.check('a', 1), e.grade('a', 1)]"
    assert _value(forking, body) == [None, None]
    assert _value(forking, "    import os\n    return dict(os.environ)") == {}


def test_neither_seed_nor_expected_values_are_sent(forking, monkeypatch):
    sent = []
    packed = wire.packed
    monkeypatch.setattr(wire, "packed", lambda message: (sent.append(message), packed(message))[1])
    seed = 8_675_309_421
    with _answer(forking, _function(SPLIT["view"])) as answer:
        assert examine("split_heads", answer, seed=seed).passed
    calls = [message for message in sent if message["do"] == "call"]
    assert len(calls) > 5 and str(seed) not in str(sent)
    assert {frozenset(call) for call in calls} == {frozenset({"do", "name", "run", "args", "kwargs"})}


@pytest.mark.parametrize("name, body", [*SPLIT.items(), *SPLIT_WRONG.items()])
def test_an_answer_gets_the_same_verdict_here_and_there(forking, name, body):
    names = {}
    exec(_function(body), names)
    here = examine("split_heads", names["split_heads"], seed=7)
    with _answer(forking, _function(body)) as answer:
        assert examine("split_heads", answer, seed=7) == here
    assert here.passed == (name in SPLIT) and here.misconception == (None if name in SPLIT else name)


@pytest.mark.parametrize("more, misconception", [
    ("kept[:] = right; return kept", "overwrites"),
    ("calls.append(1); return right if len(calls) < 4 else right[::-1]", "remembers")])
def test_what_only_a_second_call_shows_is_seen_there_too(forking, more, misconception):
    body = STRIDES["formula"].replace("return ", "right = ") + f"\n    {more}"
    cells = "kept, calls = [None] * 3, []\n" + _function(body, "predict_strides", "B, T, d_model, h")
    with _answer(forking, cells, "predict_strides") as answer:
        assert examine("predict_strides", answer, seed=1).misconception == misconception


IMPORTS = "import torch\nimport multihead as mh\nfrom torch import nn\n"
LAYER = IMPORTS + inspect.getsource(lesson04.MultiHeadAttention)


@pytest.mark.parametrize("edit, misconception", [
    (("", ""), None), (("return self.w_o(joined)", "return joined"), "no W_O"),
    (("class MultiHeadAttention(nn.Module)", "class MultiHeadAttention(mh.MultiHeadAttention)"), "library"),
    (("self.w_q = ", "self.w_query = "), "no way in"),
    (("heads.transpose(1, 2).flatten(2)", "mh.merge_heads(heads)"), None)])
def test_a_layer_is_built_loaded_and_called_there(forking, edit, misconception):
    with _answer(forking, LAYER.replace(*edit), "MultiHeadAttention", alone=True) as answer:
        assert examine("MultiHeadAttention", answer, seed=3).misconception == misconception


def test_every_way_of_calling_is_open_to_a_fork():
    for exercise in exercises().values():
        assert getattr(calling, exercise.run.__name__, None) is exercise.run, exercise.name


def test_every_input_of_every_exercise_can_be_sent():
    left, right = socket.socketpair()
    with left, right:
        for exercise in exercises().values():
            for case in exercise.draw(torch.Generator().manual_seed(1)):
                wire.send(left, [case.args, dict(case.kwargs)])
                assert str(wire.receive(right, 5)) == str([case.args, dict(case.kwargs)]), exercise.name


def test_a_mistake_in_a_helper_is_charged_once(forking):
    cells = _function(SPLIT_WRONG["direct view"]) + "\n" + LAYER.replace(
        "self.w_q(x).unflatten(-1, (self.h, -1)).transpose(1, 2)", "split_heads(self.w_q(x), self.h)")
    with _answer(forking, cells, "split_heads") as answer:
        assert not examine("split_heads", answer, seed=1).passed
    with _answer(forking, cells, "MultiHeadAttention") as answer:
        verdict = examine("MultiHeadAttention", answer, seed=1)
    assert verdict.passed and "split_heads in place of yours" in verdict.message


def test_torchs_own_attention_is_reported(forking):
    body = "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask), q @ k.mT"
    with _answer(forking, _function(body, "attention", "q, k, v, mask=None"), "attention") as answer:
        assert examine("attention", answer, seed=1).notes == ("uses torch's own attention",)


def test_the_line_of_a_failure_is_told_and_inputs_are_not(forking):
    with _answer(forking, _function("    y = x + 1\n    raise ValueError(y.tolist())")) as answer:
        message = examine("split_heads", answer, seed=1).message
    assert message.startswith('line 4, "raise ValueError(y.tolist())", raises ValueError: [[[')
    assert not any(sign.isdigit() for sign in message.partition("ValueError: ")[2])


def test_statements_that_hang_or_end_the_process_are_skipped(forking):
    cells = "import os, time\ntime.sleep(100)\nwhile True: pass\nos._exit(0)\n" + _function(SPLIT["view"])
    with _answer(forking, cells) as answer:
        assert examine("split_heads", answer, seed=1).passed
        kinds = [failure.kind for failure in answer.here.failures]
        assert kinds == ["TookTooLong", "EndedProcess", "TookTooLong"]
        assert sorted(answer.session.program.skip) == [[0, 1], [0, 2], [0, 3]]


def test_a_process_that_ends_in_every_statement_is_given_up(forking):
    with pytest.raises(EndedProcess), _answer(forking, "import os\n" + "os._exit(0)\n" * remote.STARTS):
        pass


def test_a_call_that_cannot_be_interrupted_ends_the_fork(forking):
    with _answer(forking, "import time\ndef split_heads(x, h):\n    time.sleep(100)") as answer:
        verdict = examine("split_heads", answer, seed=1)
        assert verdict.message == "no result after some seconds; the call was running. Does a loop never end?"
        with pytest.raises(EndedProcess):
            answer(torch.ones(1), 1)


def test_nothing_outlives_the_forking_process(tmp_path):
    with starting.ForkingProcess([tmp_path], QUICK) as process:
        process.guards()
        session = process.process.pid
        with _answer(process, _function("    return 1", arguments="*args")) as answer:
            assert answer() == 1 and len(_session(session)) == 2
        hangs = "import time\ndef split_heads(x, h):\n    time.sleep(100)"
        with pytest.raises(TookTooLong), _answer(process, hangs) as answer:
            answer(torch.ones(1), 1)
    for _ in range(50):
        if not _session(session):
            break
        time.sleep(0.1)
    assert not _session(session)


def _session(leader):
    """Living processes of this session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(") ")[2].split()[:4]
        except OSError:  # it has ended meanwhile
            continue
        if state != "Z" and int(session) == leader:
            found.append(int(entry.name))
    return found


def test_hidden_places_are_left_out_of_what_is_granted(tmp_path):
    for name in ("a/b/secret.py", "a/b/open.py", "a/c/d.py", "e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    granted = set(sandbox.without(tmp_path, [tmp_path / "a" / "b" / "secret.py"]))
    assert granted == {tmp_path / name for name in ("a/b/open.py", "a/c", "e.py")}
    assert set(sandbox.without(tmp_path / "a", [tmp_path])) == {tmp_path / "a"}


def test_no_exercise_lies_in_what_is_granted():
    hidden = [path.resolve() for path in starting._exercises() if path.exists()]
    assert any(path.name == "exercises" for path in hidden)
    for place in starting._readable():
        for path in sandbox.without(place, hidden):
            near = {path, *path.parents}
            assert not any(secret in near or path in secret.parents for secret in hidden)


@pytest.mark.skipif(os.geteuid() == 0, reason="for ordinary users")
def test_no_root_is_needed(forking):
    assert forking.held == list(sandbox.GUARDS)
