"""A script with a mistake is refused with the place and the remedy."""
import textwrap

import pytest

from multihead_course import lesson as lessons
from multihead_course.lesson import CELL_TYPE, KEYS, LessonError, read_lesson, solution_lines, solved

GOOD = '''\
# %% [markdown] minutes=2
# # Who gets which channel?

# %% exercise="split_heads" solution="multihead.attention:split_heads" points=3 minutes=10
def split_heads(x, h):
    """The lesson's own docstring."""
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="split_heads"
check("split_heads", split_heads)

# %% [markdown] hint="split_heads"
# One.
#
# ---
# Two.
#
# ---
# Three.

# %% [markdown] question="why" points=2 minutes=5
# Why?
#
# <!-- BEGIN ANSWER -->
# Because.
# <!-- END ANSWER -->
# <!-- BEGIN RUBRIC -->
# Two points for "because".
# <!-- END RUBRIC -->
'''


@pytest.fixture
def read(tmp_path):
    def from_text(script):
        path = tmp_path / "01_test.py"
        path.write_text(script, encoding="utf-8")
        return read_lesson(path)
    return from_text


def test_a_good_lesson_is_read(read):
    lesson = read(GOOD)
    assert [cell.kind for cell in lesson.cells] == ["prose", "exercise", "check", "hint", "question"]
    assert lesson.core_minutes == 17
    assert lesson.question == "Who gets which channel?"
    assert lesson.cells[1].line == 4 and lesson.cells[1].keys["points"] == 3


def test_the_solution_keeps_the_lessons_signature_and_docstring(read):
    source = solved(read(GOOD).cells[1])
    assert '"""The lesson\'s own docstring."""' in source and "YOUR CODE" not in source
    import torch
    namespace = {"torch": torch}
    exec(source, namespace)  # the pasted body stands on its own
    assert namespace["split_heads"](torch.zeros(2, 5, 12), 3).shape == (2, 3, 5, 4)


def test_solution_lines_are_those_of_the_body(read):
    lines = solution_lines(read(GOOD).cells[1])
    assert any("transpose" in line for line in lines) and not any("def split_heads" in line for line in lines)


@pytest.mark.parametrize("old, new, sentence", [
    ("minutes=2\n", "minuts=2\n", "unknown key 'minuts'"),
    ("[markdown] minutes=2", "[markdown] minutes=2 important", "unknown key 'important'"),
    ("# %% check", "# %% exercize check", "is not a key"),
    ("points=3", 'points="3"', "must be a int"),
    ("points=3 ", "", "needs points="),
    ("# %% check=\"split_heads\"", '# %% check="split_heads" times=true', "has no meaning in a check cell"),
    ("# %% [markdown] hint", "# %% hint", "must be markdown"),
    ("# %% check=\"split_heads\"", '# %% check="split_heads" quiz="a"', "in one cell"),
    ("# %% check=\"split_heads\"\ncheck(\"split_heads\", split_heads)\n", "", "must come in pairs"),
    ("hint=\"split_heads\"", "hint=\"merge_heads\"", "must come in pairs"),
    ("# Two.\n#\n# ---\n", "", "2 hints; write three"),
    ("# <!-- END ANSWER -->\n", "", "each on a line of its own"),
    ("BEGIN RUBRIC", "BEGIN RUBRICS", "each on a line of its own"),
    ("    # YOUR CODE HERE\n    raise NotImplementedError()", "    return x", "must be the stub"),
    ("    # YOUR CODE HERE\n", "", "must be the stub"),
    ("def split_heads(x, h):", "def split(x, h):", "named split_heads"),
    ("def split_heads(x, h):", "y = 1\ndef split_heads(x, h):", "one function or one class"),
    ("check(\"split_heads\", split_heads)", "# BEGIN SOLUTION\npass", "marker '# BEGIN SOLUTION' does not belong"),
    ("check(\"split_heads\", split_heads)", "### begin hidden tests\npass", "does not belong"),
    ("minutes=10", "minutes=50", "more than 45"),
    ("# # Who", "# Who", "starts with '# '"),
    ("# %% [markdown] minutes=2", "print(1)\n# %% [markdown] minutes=2", "before the first"),
])
def test_a_mistake_is_a_build_error(read, old, new, sentence):
    assert GOOD.count(old), f"the script has no {old!r} to spoil"
    with pytest.raises(LessonError, match=r"01_test\.py") as caught:
        read(GOOD.replace(old, new, 1))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("old, new, sentence", [
    ("def split_heads(x, h):", "def split_heads(x, heads):", "signature"),
    ("def split_heads(x, h):", "def split_heads(x, h=4):", "signature"),
    ("attention:split_heads", "attention:split_head", "names nothing"),
    ("multihead.attention:split_heads", "multihead.attention.split_heads", "names nothing"),
])
def test_a_solution_that_does_not_fit_is_a_build_error(read, old, new, sentence):
    with pytest.raises(LessonError, match=sentence):
        solved(read(GOOD.replace(old, new, 1)).cells[1])


def test_a_class_is_solved_method_by_method(read, tmp_path, monkeypatch):
    (tmp_path / "reference.py").write_text(textwrap.dedent('''
        class Layer:
            def __init__(self, n):
                # keep the size
                self.n = n

            def double(self):
                return 2 * self.n
        '''))
    monkeypatch.syspath_prepend(tmp_path)
    script = textwrap.dedent('''\
        # %% [markdown]
        # # A class

        # %% exercise="Layer" solution="reference:Layer" points=1 minutes=1
        class Layer:
            """A layer."""

            def __init__(self, n):
                # YOUR CODE HERE
                raise NotImplementedError()

            def double(self):
                """Twice n."""
                # YOUR CODE HERE
                raise NotImplementedError()

        # %% check="Layer"
        pass

        # %% [markdown] hint="Layer"
        # 1
        # ---
        # 2
        # ---
        # 3
        ''')
    source = solved(read(script).cells[1])
    namespace = {}
    exec(source, namespace)
    assert namespace["Layer"](4).double() == 8
    assert "# keep the size" in source and "NotImplementedError" not in source


def test_contributing_lists_every_key():
    table = (lessons.Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for key in KEYS:
        assert f"| `{key}=" in table, f"CONTRIBUTING.md lacks the cell key {key}"
    assert table.count("\n| `") == len(KEYS)
    assert set(CELL_TYPE) >= {kind for _, kinds in KEYS.values() for kind in kinds}
