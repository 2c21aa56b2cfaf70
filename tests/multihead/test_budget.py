"""Counts against real modules, torch's own FLOP counter and real tensors; errors in words."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from multihead.attention import MultiHeadAttention
from multihead.budget import (
    PRESETS,
    count_flops,
    count_parameters,
    divisors,
    head_dim,
    kv_cache_bytes,
    map_bytes,
    softmax_elements,
)

untimed = settings(deadline=None)
NOT_SIZES = (0, -3, 2.0, "4", None)


def numel(module):
    return sum(p.numel() for p in module.parameters())


@st.composite
def layers(draw):
    """Arguments (d_model, h, n_kv_heads, d_k) of a small layer, defaults and free choices mixed."""
    h = draw(st.integers(1, 6))
    d_k = draw(st.none() | st.integers(1, 5))
    d_model = draw(st.integers(1, 13)) if d_k else h * draw(st.integers(1, 5))
    n_kv_heads = draw(st.none() | st.sampled_from(divisors(h)))
    return d_model, h, n_kv_heads, d_k


@untimed
@given(st.integers(1, 3000))
def test_divisors_are_exactly_the_numbers_that_divide(n):
    found = divisors(n)
    assert found == sorted(set(found))
    assert {h for h in range(1, n + 1) if n / h == n // h} == set(found)


@untimed
@given(st.integers(1, 200), st.integers(1, 200))
def test_head_dim_splits_evenly_or_says_which_h_do(d_model, h):
    if h in divisors(d_model):
        assert head_dim(d_model, h) * h == d_model
    else:
        with pytest.raises(ValueError) as error:
            head_dim(d_model, h)
        for fact in (f"d_model={d_model}", f"h={h}", str(divisors(d_model))):
            assert fact in str(error.value)


@untimed
@given(layers(), st.booleans())
def test_parameters_equal_the_module(layer, bias):
    d_model, h, n_kv_heads, d_k = layer
    module = MultiHeadAttention(d_model, h, n_kv_heads=n_kv_heads, d_k=d_k, bias=bias)
    assert count_parameters(*layer, bias=bias) == numel(module)


def test_parameters_equal_torchs_own_module_for_every_h():
    d = 48
    for h in divisors(d):
        assert count_parameters(d, h) == 4 * d**2
        assert count_parameters(d, h, bias=True) == 4 * d**2 + 4 * d == numel(nn.MultiheadAttention(d, h))


@untimed
@given(layers(), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_flops_equal_torchs_counter(layer, T, B, bias):
    d_model, h, n_kv_heads, d_k = layer
    module = MultiHeadAttention(d_model, h, n_kv_heads=n_kv_heads, d_k=d_k, bias=bias)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.randn(B, T, d_model))
    assert count_flops(d_model, h, T, B, n_kv_heads, d_k) == counter.get_total_flops()


def test_flops_reduce_to_the_closed_form_for_every_h():
    B, T, d = 3, 256, 768
    assert {count_flops(d, h, T, B) for h in divisors(d)} == {B * (8 * T * d**2 + 4 * T**2 * d)}
    assert count_flops(d, 12, T) == 1_409_286_144


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_maps_equal_the_tensor_that_the_layer_returns(dtype):
    B, T, h = 2, 5, 3
    layer = MultiHeadAttention(12, h).to(dtype)
    _, weights = layer.heads(torch.randn(B, T, 12, dtype=dtype))
    assert map_bytes(h, T, B, dtype) == weights.nbytes
    assert softmax_elements(h, T, B) == weights.numel()


def test_maps_default_to_one_float32_sequence():
    assert map_bytes(12, 1024) == 12 * map_bytes(1, 1024) == 48 * 2**20
    assert softmax_elements(12, 1024) == 12 * 1024**2


@untimed
@given(layers(), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))
def test_kv_cache_equals_the_stored_projections(layer, T, B, stack):
    d_model, h, n_kv_heads, d_k = layer
    module = MultiHeadAttention(d_model, h, n_kv_heads=n_kv_heads, d_k=d_k)
    x = torch.randn(B, T, d_model)
    stored = module.w_k(x).half().nbytes + module.w_v(x).half().nbytes
    assert kv_cache_bytes(d_model, h, T, B, stack, n_kv_heads, d_k) == stack * stored
    assert kv_cache_bytes(d_model, h, T, B, stack, n_kv_heads, d_k, torch.float32) == 2 * stack * stored


def preset(name):
    return next(p for p in PRESETS if p.name == name)


def test_presets_are_possible_layers():
    for p in PRESETS:
        assert count_parameters(p.d_model, p.h, p.n_kv_heads, p.d_k) > 0
        assert p.source
    assert [p.name for p in PRESETS if p.h * p.d_k != p.d_model] == ["T5-11B", "Gemma-7B"]


def test_presets_give_the_published_sums():
    llama, gpt2, t5 = preset("Llama-3-70B"), preset("GPT-2 small"), preset("T5-11B")
    assert count_parameters(llama.d_model, llama.h, llama.n_kv_heads) == 150_994_944
    assert count_parameters(llama.d_model, llama.h) == 268_435_456
    sizes = (llama.d_model, llama.h, 8192, 1, llama.layers)
    assert kv_cache_bytes(*sizes) == 8 * kv_cache_bytes(*sizes, n_kv_heads=llama.n_kv_heads)
    assert count_parameters(gpt2.d_model, gpt2.h, bias=True) == 2_362_368
    assert t5.h * t5.d_k == 16 * t5.d_model


def test_gpt3_is_counted_without_allocating_it():
    gpt3 = preset("GPT-3 175B")
    assert head_dim(gpt3.d_model, gpt3.h) == gpt3.d_k == 128
    assert count_parameters(gpt3.d_model, gpt3.h) == 4 * 12288**2
    assert count_flops(gpt3.d_model, gpt3.h, 2048) == 8 * 2048 * 12288**2 + 4 * 2048**2 * 12288


@pytest.mark.parametrize("bad", NOT_SIZES)
@pytest.mark.parametrize("call", [
    divisors,
    lambda n: head_dim(n, 4),
    lambda n: head_dim(8, n),
    lambda n: count_parameters(n, 4, d_k=2),
    lambda n: count_parameters(8, n, d_k=2),
    lambda n: count_flops(8, 2, n),
    lambda n: count_flops(8, 2, 4, n),
    lambda n: map_bytes(n, 4),
    lambda n: map_bytes(2, n),
    lambda n: map_bytes(2, 4, n),
    lambda n: softmax_elements(n, 4),
    lambda n: softmax_elements(2, n),
    lambda n: softmax_elements(2, 4, n),
    lambda n: kv_cache_bytes(8, 2, n),
    lambda n: kv_cache_bytes(8, 2, 4, n),
    lambda n: kv_cache_bytes(8, 2, 4, 1, n),
])
def test_a_size_that_is_no_positive_integer_is_named(call, bad):
    with pytest.raises(ValueError, match="positive integer") as error:
        call(bad)
    assert repr(bad) in str(error.value)


@pytest.mark.parametrize("bad", [size for size in NOT_SIZES if size is not None])
@pytest.mark.parametrize("name", ["n_kv_heads", "d_k"])
def test_optional_sizes_are_checked_too(name, bad):
    for call in (lambda: count_parameters(8, 4, **{name: bad}), lambda: count_flops(8, 4, 3, **{name: bad}),
                 lambda: kv_cache_bytes(8, 4, 3, **{name: bad})):
        with pytest.raises(ValueError, match="positive integer"):
            call()


def test_key_value_heads_must_divide_the_heads():
    for call in (lambda: count_parameters(24, 4, 3), lambda: count_flops(24, 4, 5, 1, 3),
                 lambda: kv_cache_bytes(24, 4, 5, n_kv_heads=3)):
        with pytest.raises(ValueError, match="n_kv_heads=3 must divide h=4"):
            call()


def test_h_must_divide_d_model_unless_d_k_is_given():
    for call in (lambda: count_parameters(8, 3), lambda: count_flops(8, 3, 4),
                 lambda: kv_cache_bytes(8, 3, 4)):
        with pytest.raises(ValueError, match="d_model=8 does not split into h=3"):
            call()
    assert count_parameters(8, 3, d_k=5) == 4 * 8 * 15


def test_model_solutions_use_only_torch_math_and_those_before_them():
    """The four bodies are pasted into a notebook, where nothing else of this module exists."""
    known = {"torch", "math"}
    for solution in (head_dim, count_parameters, count_flops, map_bytes):
        used = set(inspect.getclosurevars(solution).globals)
        assert used <= known, f"{solution.__name__} also uses {sorted(used - known)}"
        known.add(solution.__name__)
