"""Every layout against the real tensor that took the same steps; every copy against what torch dispatched."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from multihead.layout import Layout, fold_is_free, heads_layout, pipeline

SIZES = list(itertools.product((1, 2, 3), (1, 2, 4), (1, 2, 3), (1, 2, 5)))  # B, T, h, d_k
untimed = settings(deadline=None, max_examples=200)
COPIES = {"clone", "copy_", "_to_copy", "contiguous"}


class Dispatched(TorchDispatchMode):
    """Elements that torch copied, and the operands that reached its batched product."""

    def __init__(self):
        super().__init__()
        self.copied, self.operands = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in COPIES:
            self.copied.append(out.numel())
        if name == "bmm":
            self.operands.append([Layout.of(operand) for operand in args])
        return out


def dispatched(step):
    with Dispatched() as log:
        out = step()
    return out, log


def addressed(shape):
    """A contiguous tensor in which each element holds its own address."""
    return torch.arange(math.prod(shape)).view(shape)


def assert_same(layout, x):
    assert (layout.shape, layout.strides) == (tuple(x.shape), x.stride())
    assert layout.offset * x.itemsize == x.data_ptr() - x.untyped_storage().data_ptr()
    assert layout.numel() == x.numel()
    assert layout.is_contiguous() == x.is_contiguous()


shapes = st.lists(st.sampled_from((1, 1, 2, 3, 4, 6)), max_size=5).map(tuple)


@st.composite
def shapes_of(draw, numel):
    """A random shape with the given number of elements, size-1 axes among them."""
    shape = [1] * draw(st.integers(1, 5))
    for prime in (2, 3, 5):
        while numel % prime == 0:
            numel //= prime
            shape[draw(st.integers(0, len(shape) - 1))] *= prime
    shape[draw(st.integers(0, len(shape) - 1))] *= numel
    return tuple(shape)


@st.composite
def strided(draw):
    """A layout and a real tensor, after the same random chain of permutes, narrows and views."""
    shape = draw(shapes)
    layout, x = Layout.contiguous(shape), addressed(shape)
    for step in draw(st.lists(st.sampled_from(("permute", "transpose", "narrow", "view")), max_size=6)):
        if x.ndim == 0:
            break
        axes = st.integers(-x.ndim, x.ndim - 1)
        if step == "permute":
            args = draw(st.permutations(range(x.ndim)))
        elif step == "transpose":
            args = draw(axes), draw(axes)
        elif step == "narrow":
            dim = draw(axes)
            start = draw(st.integers(0, x.shape[dim] - 1))
            args = dim, start, draw(st.integers(1, x.shape[dim] - start))
        else:
            args = draw(shapes_of(x.numel()))
            if not layout.can_view(args):
                continue
        layout, x = getattr(layout, step)(*args), getattr(x, step)(*args)
    return layout, x


@st.composite
def any_strides(draw, ndim=None):
    """A tensor whose strides are the contiguous ones, or arbitrary (overlapping, too), axis by axis."""
    shape = draw(shapes if ndim is None else st.tuples(*[st.sampled_from((1, 2, 3))] * ndim))
    dense = Layout.contiguous(shape).strides
    strides = tuple(draw(st.sampled_from((stride, stride, 0, 1, 2, 3, 6, 12))) for stride in dense)
    return torch.empty(20_000).as_strided(shape, strides)


def torch_can_view(x, shape):
    try:
        x.view(shape)
    except RuntimeError:
        return False
    return True


@untimed
@given(strided())
def test_a_chain_of_steps_gives_torchs_layout(pair):
    layout, x = pair
    assert_same(layout, x)
    assert layout == Layout.of(x)


@untimed
@given(strided(), st.data())
def test_view_works_exactly_where_torchs_does(pair, data):
    layout, x = pair
    shape = data.draw(shapes_of(x.numel()))
    assert layout.can_view(shape) == torch_can_view(x, shape)
    if torch_can_view(x, shape):
        assert_same(layout.view(*shape), x.view(shape))
    else:
        with pytest.raises(ValueError, match="reshape makes a copy"):
            layout.view(*shape)


@untimed
@given(strided(), st.data())
def test_reshape_copies_exactly_where_torchs_does(pair, data):
    layout, x = pair
    shape = data.draw(shapes_of(x.numel()))
    reshaped, log = dispatched(lambda: x.reshape(shape))
    ours, copied = layout.reshape(*shape)
    assert_same(ours, reshaped)
    assert copied == bool(log.copied)
    assert copied == (reshaped.untyped_storage().data_ptr() != x.untyped_storage().data_ptr())


@untimed
@given(strided())
def test_addresses_are_where_the_numbers_lie(pair):
    layout, x = pair
    homes = {}
    for index in itertools.product(*map(range, layout.shape)):
        homes[layout.address(*index)] = index
        assert layout.address(*index) == x[index].item()
        assert layout.index_of(layout.address(*index)) == index
    for address in set(range(-3, x.untyped_storage().nbytes() // x.itemsize + 3)) - set(homes):
        assert layout.index_of(address) is None


@untimed
@given(any_strides(), st.data())
def test_contiguity_and_view_are_torchs_for_any_strides(x, data):
    assert_same(Layout.of(x), x)
    shape = data.draw(shapes_of(x.numel()))
    assert Layout.of(x).can_view(shape) == torch_can_view(x, shape)
    if torch_can_view(x, shape):
        assert_same(Layout.of(x).view(*shape), x.view(shape))


def test_expanded_layouts_follow_torch_but_have_no_inverse():
    x = torch.arange(3).expand(2, 3)
    layout = Layout.of(x)
    assert layout.strides == (0, 1)
    assert not layout.can_view((6,)) and layout.reshape(6)[1]
    with pytest.raises(ValueError, match="cannot invert"):
        layout.index_of(0)


def test_a_gpt3_layer_needs_no_storage():
    heads = Layout.contiguous((64, 2048, 12288)).view(64, 2048, 96, 128).transpose(1, 2)
    assert heads.strides == (2048 * 12288, 128, 12288, 1)
    assert heads.index_of(heads.address(63, 95, 2047, 127)) == (63, 95, 2047, 127)
    assert sum(s.copied_elements for s in pipeline(64, 2048, 12288, 96)) == 4 * 64 * 2048 * 12288


@pytest.mark.parametrize("call, words", [
    (lambda x: Layout((2, 0), (1, 1)), "positive integer"),
    (lambda x: Layout((2, 1.5), (1, 1)), "positive integer"),
    (lambda x: Layout((2, 3), (1,)), "one stride for each axis"),
    (lambda x: Layout((2, 3), (-3, 1)), "from 0 up"),
    (lambda x: Layout((2, 3), (3, 1), -1), "from 0 up"),
    (lambda x: Layout.contiguous((2, -3)), "positive integer"),
    (lambda x: x.view(5, 5), "product 24"),
    (lambda x: x.view(-2, -12), "product 24"),
    (lambda x: x.view(2.0, 12), "product 24"),
    (lambda x: x.reshape(25), "product 24"),
    (lambda x: x.can_view((25,)), "product 24"),
    (lambda x: x.transpose(0, 1).view(24), "more than one stride"),
    (lambda x: x.permute(0, 1), "exactly once"),
    (lambda x: x.permute(0, 1, 1), "exactly once"),
    (lambda x: x.permute(0, 1, 3), "axis 3 does not exist"),
    (lambda x: x.transpose(0, -4), "axis -4 does not exist"),
    (lambda x: x.narrow(3, 0, 1), "axis 3 does not exist"),
    (lambda x: x.narrow(1, 1, 3), "indices 0 to 2"),
    (lambda x: x.narrow(1, -1, 1), "indices 0 to 2"),
    (lambda x: x.narrow(1, 0, 0), "indices 0 to 2"),
    (lambda x: x.address(0, 0), "does not exist"),
    (lambda x: x.address(0, 3, 0), "does not exist"),
    (lambda x: x.address(0, -1, 0), "does not exist"),
])
def test_what_cannot_be_is_said_in_words(call, words):
    with pytest.raises(ValueError, match=words):
        call(Layout.contiguous((2, 3, 4)))


def real_heads(B, T, h, d_k, time_first, packed):
    """Queries as a model stores them, reached by the real steps."""
    tokens = (T, B) if time_first else (B, T)
    if packed:
        q, _, _ = torch.randn(*tokens, 3 * h * d_k).split(h * d_k, dim=-1)
    else:
        q = torch.randn(*tokens, h * d_k)
    q = q.view(*tokens, h, d_k)
    return q.permute(1, 2, 0, 3) if time_first else q.transpose(1, 2)


LAYOUTS = [dict(time_first=a, packed=b) for a in (False, True) for b in (False, True)]


@pytest.mark.parametrize("habit", LAYOUTS)
def test_the_four_habits_of_storage_and_their_folds(habit):
    for B, T, h, d_k in SIZES:
        q, k = (real_heads(B, T, h, d_k, **habit) for _ in range(2))
        layout = heads_layout(B, T, h, d_k, **habit)
        assert_same(layout, q)
        _, log = dispatched(lambda: q @ k.mT)
        free = fold_is_free(layout)
        assert log.copied == ([] if free else [q.numel(), k.numel()])
        assert free == (q.reshape(B * h, T, d_k).data_ptr() == q.data_ptr())
        assert log.operands[0][0] == layout.reshape(B * h, T, d_k)[0]


@untimed
@given(any_strides(ndim=4))
def test_the_fold_rule_is_views_rule_for_any_strides(x):
    B, h, T, d_k = x.shape
    assert fold_is_free(Layout.of(x)) == torch_can_view(x, (B * h, T, d_k))


def test_the_table_of_free_folds():
    B, T, h, d_k = 2, 4, 12, 64
    d = h * d_k
    table = {  # time_first, packed: strides at these sizes, then fold free at (B, T) = (2, 4), (1, 4), (2, 1)
        (False, False): ((T * d, d_k, d, 1), (False, True, True)),
        (False, True): ((3 * T * d, d_k, 3 * d, 1), (False, True, False)),
        (True, False): ((d, d_k, B * d, 1), (True, True, True)),
        (True, True): ((3 * d, d_k, 3 * B * d, 1), (False, True, False)),
    }
    for (time_first, packed), (strides, free) in table.items():
        layouts = [heads_layout(*sizes, h, d_k, time_first=time_first, packed=packed)
                   for sizes in ((B, T), (1, T), (B, 1))]
        assert layouts[0].strides == strides
        assert tuple(map(fold_is_free, layouts)) == free


def by_name(stages):
    assert len({s.name for s in stages}) == len(stages)
    return {s.name: s for s in stages}


def project_and_split(B, T, h, d_k, stages):
    """q, k, v as heads from real layers, each step compared with its stage."""
    x = torch.randn(B, T, h * d_k)
    heads = []
    for _ in "qkv":
        w = nn.Linear(h * d_k, h * d_k, bias=False).requires_grad_(False)
        steps = [("projected", lambda: w(x)), ("viewed", lambda: q.view(B, T, h, d_k)),
                 ("transposed", lambda: q.transpose(1, 2))]
        for name, step in steps:
            q, log = dispatched(step)
            assert_stage(stages[name], q, log)
        heads.append(q)
    return heads


def merge(out, B, T, d_model, stages):
    for name, step in [("transposed back", lambda: out.transpose(1, 2)),
                       ("merged", lambda: out.reshape(B, T, d_model))]:
        out, log = dispatched(step)
        assert_stage(stages[name], out, log)


def assert_stage(stage, out, log):
    assert_same(stage.layout, out)
    assert stage.copied_elements == sum(log.copied)


def test_every_stage_of_the_explicit_pipeline():
    for B, T, h, d_k in SIZES:
        stages = by_name(pipeline(B, T, h * d_k, h))
        q, k, v = project_and_split(B, T, h, d_k, stages)

        scores, log = dispatched(lambda: q @ k.mT)
        assert_same(stages["scores"].layout, scores)
        assert stages["folded q, k"].copied_elements + stages["scores"].copied_elements == sum(log.copied)
        assert stages["folded q, k"].layout == log.operands[0][0]

        maps, log = dispatched(lambda: (scores / math.sqrt(d_k)).softmax(-1))
        assert_stage(stages["maps"], maps, log)

        blended, log = dispatched(lambda: maps @ v)
        assert_same(stages["blended"].layout, blended)
        assert stages["folded v"].copied_elements + stages["blended"].copied_elements == sum(log.copied)
        assert stages["folded v"].layout == log.operands[0][1]

        merge(blended, B, T, h * d_k, stages)


def test_every_stage_of_the_fused_pipeline():
    for B, T, h, d_k in SIZES:
        stages = by_name(pipeline(B, T, h * d_k, h, fused_attention=True))
        q, k, v = project_and_split(B, T, h, d_k, stages)
        out, log = dispatched(lambda: F.scaled_dot_product_attention(q, k, v))
        assert_stage(stages["blended"], out, log)
        merge(out, B, T, h * d_k, stages)
        assert not any(stage.copied_elements for stage in stages.values())


@pytest.mark.parametrize("fused_attention", [False, True])
def test_the_code_of_the_stages_runs_and_gives_their_shapes(fused_attention):
    B, T, d_model, h = 2, 3, 20, 4
    stages = pipeline(B, T, d_model, h, fused_attention=fused_attention)
    lines = {"F": F, "math": math, "B": B, "T": T, "d_model": d_model, "h": h, "d_k": d_model // h,
             "w_q": nn.Linear(d_model, d_model), "x": torch.randn(B, T, d_model)}
    lines["k"] = lines["v"] = torch.randn(B, T, d_model).view(B, T, h, 5).transpose(1, 2)
    for stage in stages:
        name, assigned, _ = stage.code.partition(" = ")
        if assigned:
            exec(stage.code, lines)
            assert_same(stage.layout, lines[name])
        else:
            folded = eval(stage.code, lines)
            assert_same(stage.layout, folded[0] if isinstance(folded, tuple) else folded)


def test_notes_give_the_reason_for_the_copy_or_for_none():
    cases = [((2, 4, 768, 12), "stride_B = 3072 is not h stride_h = 768: both are copied"),
             ((1, 4, 768, 12), "B or h is 1: free"), ((2, 4, 768, 1), "B or h is 1: free"),
             ((2, 1, 768, 12), "stride_B = h stride_h = 768: free")]
    for sizes, words in cases:
        assert words in by_name(pipeline(*sizes))["folded q, k"].note
    assert "view raises, reshape copies" in by_name(pipeline(2, 4, 768, 12))["merged"].note
    assert "no copy" in by_name(pipeline(2, 4, 768, 12, fused_attention=True))["merged"].note


def test_a_pipeline_that_cannot_be_split_says_so():
    with pytest.raises(ValueError, match="d_model=10 does not split into h=4"):
        pipeline(2, 3, 10, 4)
    with pytest.raises(ValueError, match="positive integer"):
        pipeline(0, 3, 8, 4)
