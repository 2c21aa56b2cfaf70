"""The engine: what is no answer at all, what is not the learner's own, what is right once but not always."""
import functools
import time

import pytest
import torch
from banks import names, sentence

import multihead as mh
from multihead_lessons import running
from multihead_lessons.exercises import check, examine, exercises, show_solution
from multihead_lessons.exercises.carrying import own_helpers


def right(x, h):
    return x.view(*x.shape[:2], h, x.shape[-1] // h).transpose(1, 2)


def test_a_stub_is_not_attempted_yet():
    def split_heads(x, h):
        """[B, T, d_model] -> [B, h, T, d_k]"""
        # YOUR CODE HERE
        raise NotImplementedError()
    verdict = examine("split_heads", split_heads)
    assert not verdict.passed and verdict.misconception == "not attempted" and verdict.message == "not attempted yet."


@pytest.mark.parametrize("answer", [None, 3, "text", torch.ones(3)])
def test_something_that_cannot_be_called(answer):
    assert "must be a function" in sentence("split_heads", answer)


def test_an_unknown_exercise_is_named():
    with pytest.raises(ValueError, match="there is no exercise 'split_head'; the exercises are"):
        examine("split_head", right)


def _wrapping(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper


class _Callable:
    def __call__(self, x, h):
        from multihead.attention import split_heads as borrowed
        return borrowed(x, h)


@pytest.mark.parametrize("answer", [
    mh.split_heads, lambda x, h: mh.split_heads(x, h), functools.partial(mh.split_heads), _wrapping(mh.split_heads), _Callable(),
    lambda x, h: getattr(mh, "split" + "_heads")(x, h)], ids=["is", "calls", "partial", "wraps", "object", "hidden name"])
def test_the_librarys_own_is_refused(answer):
    assert "library's own split_heads" in sentence("split_heads", answer)


def test_reading_the_librarys_source_is_refused():
    def reader(x, h):
        import inspect
        scope = {}
        exec(inspect.getsource(mh.split_heads), scope)
        return scope["split_heads"](x, h)
    assert "reads the source" in sentence("split_heads", reader)


def test_other_library_functions_may_be_called():
    assert examine("split_heads", lambda x, h: right(x, x.shape[-1] // mh.head_dim(x.shape[-1], h))).passed


def test_an_endless_loop_is_stopped(monkeypatch):
    monkeypatch.setattr(running, "SECONDS", 0.3)

    def endless(x, h):
        while True:
            pass
    started = time.perf_counter()
    words = sentence("split_heads", endless)
    assert "Does a loop never end?" in words and '"pass"' in words or '"while True:"' in words
    assert time.perf_counter() - started < 30


def test_an_endless_loop_that_catches_exceptions_is_stopped(monkeypatch):
    monkeypatch.setattr(running, "SECONDS", 0.3)

    def stubborn(x, h):
        while True:
            try:
                x + 1
            except Exception:
                pass
    assert "Does a loop never end?" in sentence("split_heads", stubborn)


def test_a_changed_input_is_told():
    def in_place(x, h):
        with torch.no_grad():
            x += 1
        return right(x - 1, h)
    assert "changes the tensor" in sentence("split_heads", in_place)


def test_random_numbers_are_told():
    def noisy(x, h):
        return right(x, h) + 0 * torch.rand(())
    assert "torch's random stream" in sentence("split_heads", noisy)


def test_a_memorized_shape_is_told():
    def fixed(x, h, seen=[]):
        seen.append(x.shape) if not seen else None
        return right(x, h) if x.shape == seen[0] else right(x, h) + 1
    assert "Are sizes fixed in your code?" in sentence("split_heads", fixed)


def test_state_between_calls_is_told():
    calls = []

    def remembers(x, h):
        calls.append(1)
        return right(x, h) + (len(calls) > 5)
    assert "Keep no state" in sentence("split_heads", remembers)


def test_a_view_of_a_global_is_told():
    store = torch.zeros(10_000, dtype=torch.float64)

    def shared(x, h):
        result = right(x, h)
        place = store[:result.numel()].view(result.shape)
        return place.copy_(result)
    assert "you return the same tensor each time" in sentence("split_heads", shared)


def _notebook(source):
    """The namespace of a notebook with these cells."""
    names = {"torch": torch, "mh": mh}
    exec(source, names)
    return names


WRONG_HELPER = """
def head_dim(d_model, h):
    return h  # wrong

def split_heads(x, h):
    return x.reshape(*x.shape[:2], h, head_dim(x.shape[-1], h)).transpose(1, 2)
"""


def test_a_mistake_in_an_earlier_function_is_charged_once(monkeypatch):
    import multihead_lessons.exercises as package
    bank = exercises() | {"head_dim": package.Exercise("head_dim", mh.head_dim, lambda generator: [])}
    monkeypatch.setattr(package, "exercises", lambda: bank)
    names = _notebook(WRONG_HELPER)
    own = names["head_dim"]
    verdict = examine("split_heads", names["split_heads"])
    assert verdict.passed and verdict.message == "passed, with the library's head_dim in place of yours."
    assert names["head_dim"] is own

    names = _notebook(WRONG_HELPER.replace(".transpose(1, 2)", ""))  # and a mistake of its own
    assert examine("split_heads", names["split_heads"]).misconception == "no transpose"


def test_only_the_functions_to_blame_are_named(monkeypatch):
    import multihead_lessons.exercises as package
    bank = exercises() | {name: package.Exercise(name, getattr(mh, name), lambda generator: []) for name in ("head_dim", "divisors")}
    monkeypatch.setattr(package, "exercises", lambda: bank)
    names = _notebook(WRONG_HELPER + """
def divisors(n):
    return [n]

def merge_heads(x):
    return x
""")
    assert examine("split_heads", names["split_heads"]).message == "passed, with the library's head_dim in place of yours."


def test_an_import_is_nothing_that_a_learner_wrote():
    names = _notebook("""
from multihead import MultiHeadAttention

def load_layer(weights, h):
    return MultiHeadAttention(h, h, bias=True)
""")
    assert not examine("load_layer", names["load_layer"]).passed
    references = {name: exercise.reference for name, exercise in exercises().items()}
    assert own_helpers(names["load_layer"], references) == {}
    names["merge_heads"] = lambda x: x  # but this is
    assert list(own_helpers(names["load_layer"], references)) == ["merge_heads"]


def test_odd_objects_break_nothing():
    class Odd:
        def __call__(self, x):
            return x

        def __eq__(self, other):
            raise RuntimeError("no comparison")
        __hash__ = None

    def wraps_itself(x, h):
        raise KeyError("h")
    wraps_itself.__wrapped__ = wraps_itself
    assert "raises KeyError" in sentence("split_heads", wraps_itself)
    names = _notebook("def split_heads(x, h):\n    return merge_heads(x)\n")
    names["merge_heads"] = Odd()
    assert not examine("split_heads", names["split_heads"]).passed


def test_a_tensor_that_claims_to_equal_everything_is_wrong():
    class Agreeable(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return torch.ones(args[0].shape, dtype=torch.bool) if function in (torch.isclose, torch.Tensor.eq) else (
                super().__torch_function__(function, types, args, kwargs or {}))

    class Equal(int):
        def __eq__(self, other):
            return True
        __hash__ = int.__hash__
    assert not examine("split_heads", lambda x, h: torch.zeros_like(right(x, h)).as_subclass(Agreeable)).passed
    assert not examine("predict_strides", lambda *sizes: ((Equal(0),) * 3, (Equal(0),) * 4, (Equal(0),) * 4)).passed


def test_exit_is_an_answer_not_an_order():
    def leaves(x, h):
        raise SystemExit
    assert "raises SystemExit" in sentence("split_heads", leaves)


def test_what_an_answer_prints_is_not_shown(capsys):
    def chatty(x, h):
        print("x" * 100_000)
        return right(x, h)
    assert examine("split_heads", chatty).passed
    assert capsys.readouterr().out == ""


def test_torchs_own_attention_is_noted():
    seen = running.call(lambda: torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 2, 3, 4)] * 3), []).seen
    assert seen == {"torch attention"}


def test_the_learners_random_stream_is_untouched():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for name in names():
        examine(name, exercises()[name].reference)
        examine(name, lambda *args: None)
    assert torch.equal(before, torch.get_rng_state())


def test_the_same_seed_gives_the_same_verdict():
    def sometimes(x, h):
        return right(x, h) + (x.shape[0] == 2)
    assert [examine("split_heads", sometimes, seed=seed) for seed in range(6)] == [
        examine("split_heads", sometimes, seed=seed) for seed in range(6)]


def test_another_default_dtype_does_not_matter():
    torch.set_default_dtype(torch.float64)
    try:
        assert examine("split_heads", right).passed
    finally:
        torch.set_default_dtype(torch.float32)


def test_check_shows_a_sentence_and_for_layout_mistakes_a_picture(monkeypatch):
    shown = []
    monkeypatch.setattr("multihead_lessons.exercises.display", lambda data, **_: shown.append(data))
    check("split_heads", right)
    check("split_heads", lambda x, h: x.reshape(x.shape[0], h, x.shape[1], -1))
    check("split_heads", lambda x, h: 1 / 0)
    for stubborn in (SystemExit, KeyError, NotImplementedError):
        check("split_heads", _raising(stubborn))
    assert shown[0]["text/plain"] == "split_heads: passed." and "<img" not in shown[0]["text/html"]
    assert "in one step" in shown[1]["text/plain"] and '<img alt="wanted and yours' in shown[1]["text/html"]
    assert "ZeroDivisionError" in shown[2]["text/plain"] and all(len(data["text/plain"]) < 800 for data in shown)


def _raising(error):
    def answer(x, h):
        raise error
    return answer


def test_check_does_not_run_an_endless_loop_again(monkeypatch):
    monkeypatch.setattr(running, "SECONDS", 0.3)
    monkeypatch.setattr("multihead_lessons.exercises.display", lambda *_, **__: None)
    calls = []

    def endless(x, h):
        calls.append(1)
        while True:
            pass
    check("split_heads", endless)
    assert len(calls) == 1


def test_show_solution_shows_the_reference(monkeypatch):
    shown = []
    monkeypatch.setattr("multihead_lessons.exercises.display", shown.append)
    show_solution("split_heads")
    assert "def split_heads(x, h):" in shown[0].data
