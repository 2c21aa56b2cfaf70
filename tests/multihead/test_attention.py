"""attention.py against torch's own functions and modules, closed forms, and explicit loops."""

import builtins
import dis
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from multihead.attention import MultiHeadAttention, attention, head_contributions, merge_heads, split_heads

B, H, T_Q, T_K, D_K, D_V = 2, 3, 4, 5, 6, 7  # all different, so that a mixed-up axis changes a shape

size = st.integers(1, 5)
seed = st.integers(0, 2**31)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
drawn = settings(max_examples=40, deadline=None)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def randn(*shapes, dtype=torch.float64, seed=0):
    """One random tensor for each shape."""
    g = generator(seed)
    return [torch.randn(shape, generator=g, dtype=dtype) for shape in shapes]


def random_qkv(dtype=torch.float64):
    return randn((B, H, T_Q, D_K), (B, H, T_K, D_K), (B, H, T_K, D_V), dtype=dtype)


def random_inputs(batch, T_q, T_k, d_model, *, dtype=torch.float64, seed=0):
    return randn((batch, T_q, d_model), (batch, T_k, d_model), (batch, T_k, d_model), dtype=dtype, seed=seed)


def random_mask(*shape, seed=0, every_row=False):
    """A boolean mask; with every_row, each query may attend to at least one key."""
    g = generator(seed)
    mask = torch.rand(shape, generator=g) < 0.6
    if every_row:
        keep = torch.randint(shape[-1], shape[:-1], generator=g)
        mask.scatter_(-1, keep.unsqueeze(-1), True)
    return mask


def broadcastable_shapes(*full):
    """Every shape that broadcasts to `full`: leading axes left out, any other axis set to 1."""
    for n in range(len(full) + 1):
        tail = full[len(full) - n :]
        yield from itertools.product(*[(1, s) for s in tail])


every_mask_shape = pytest.mark.parametrize("shape", list(broadcastable_shapes(B, H, T_Q, T_K)), ids=str)


def randomize(module, seed):
    """Random weights and biases, so that no bias is zero, as it is in a fresh torch module."""
    with torch.no_grad():
        for p, values in zip(module.parameters(), randn(*[p.shape for p in module.parameters()], seed=seed)):
            p.copy_(values / math.sqrt(p.shape[-1]))
    return module


def random_layer(*args, seed=0, dtype=torch.float64, **kwargs):
    return randomize(MultiHeadAttention(*args, **kwargs).to(dtype), seed)


def random_torch_module(*args, seed=0, dtype=torch.float64, **kwargs):
    return randomize(nn.MultiheadAttention(*args, **kwargs).to(dtype), seed)


# ---- attention ------------------------------------------------------------------------------------------


def test_scores_are_divided_by_the_root_of_d_k():
    q = torch.tensor([[1.0, 0.0, 0.0, 0.0]])  # d_k = 4, so scores are halved
    k = torch.tensor([[2 * math.log(3), 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0]])
    v = torch.tensor([[4.0], [8.0]])
    output, weights = attention(q, k, v)
    assert_close(weights, torch.tensor([[0.75, 0.25]]))  # softmax(log 3, 0)
    assert_close(output, torch.tensor([[5.0]]))


def test_equal_scores_average_the_allowed_values():
    q, k, v = torch.zeros(3, 2), torch.rand(3, 2), torch.tensor([[3.0], [6.0], [30.0]])
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    output, weights = attention(q, k, v, causal)
    assert_close(output, torch.tensor([[3.0], [4.5], [13.0]]))
    assert torch.equal(weights.count_nonzero(-1), torch.tensor([1, 2, 3]))


@dtypes
@drawn
@given(lead=st.lists(size, max_size=3), T_q=size, T_k=size, d_k=size, d_v=size, masked=st.booleans(),
       seed=seed)  # fmt: skip
def test_attention_equals_torch(dtype, lead, T_q, T_k, d_k, d_v, masked, seed):
    q, k, v = randn((*lead, T_q, d_k), (*lead, T_k, d_k), (*lead, T_k, d_v), dtype=dtype, seed=seed)
    mask = random_mask(*lead, T_q, T_k, seed=seed) if masked else None  # some rows may be empty
    output, weights = attention(q, k, v, mask)
    assert output.dtype == weights.dtype == dtype
    assert_close(output, F.scaled_dot_product_attention(q, k, v, mask))
    # With the identity as values, torch's output is its weights.
    identity = torch.eye(T_k, dtype=dtype).expand(*lead, T_k, T_k)
    assert_close(weights, F.scaled_dot_product_attention(q, k, identity, mask))


@every_mask_shape
def test_mask_of_every_broadcastable_shape(shape):
    q, k, v = random_qkv()
    mask = random_mask(*shape, seed=len(shape))
    full = mask.expand(B, H, T_Q, T_K)
    output, weights = attention(q, k, v, mask)
    assert_close(output, F.scaled_dot_product_attention(q, k, v, full))
    assert (weights[~full] == 0).all() and (weights[full] > 0).all()
    assert_close(weights.sum(-1), full.any(-1).to(weights))


def test_broadcastable_shapes_are_complete():
    shapes = list(broadcastable_shapes(B, H, T_Q, T_K))
    assert len(set(shapes)) == 1 + 2 + 4 + 8 + 16
    assert all(torch.broadcast_shapes(s, (B, H, T_Q, T_K)) == (B, H, T_Q, T_K) for s in shapes)


@dtypes
def test_row_with_no_allowed_key_gives_zeros_and_zero_gradient(dtype):
    q, k, v = [x.requires_grad_() for x in random_qkv(dtype)]
    mask = random_mask(B, H, T_Q, T_K, every_row=True)
    mask[0, 1, 2] = False  # one empty row
    mask[1, 2] = False  # one head of one sequence with no allowed pair at all
    output, weights = attention(q, k, v, mask)
    for dead in (output[0, 1, 2], weights[0, 1, 2], output[1, 2], weights[1, 2]):
        assert (dead == 0).all()
    (output.square().sum() + weights.square().sum()).backward()
    for dead in (q.grad[0, 1, 2], q.grad[1, 2], k.grad[1, 2], v.grad[1, 2]):
        assert (dead == 0).all()
    assert all(x.grad.isfinite().all() and x.grad.any() for x in (q, k, v))


def test_nan_in_the_input_is_not_hidden():
    q, k, v = random_qkv()
    q[0, 0, 0] = math.nan
    output, weights = attention(q, k, v, torch.ones(T_Q, T_K, dtype=torch.bool))
    assert output[0, 0, 0].isnan().all() and weights[0, 0, 0].isnan().all()


@pytest.mark.parametrize("masked", [False, True])
def test_attention_gradients(masked):
    inputs = [x.requires_grad_() for x in randn((2, 3, 2), (2, 4, 2), (2, 4, 3))]
    mask = random_mask(2, 3, 4, every_row=True) if masked else None
    if masked:
        mask[1, 0] = False  # one empty row
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, mask), inputs)


@pytest.mark.parametrize(
    "q, k, v, message",
    [
        ((D_K,), (T_K, D_K), (T_K, D_V), r"at least 2 axes.*q \(6,\), k \(5, 6\), v \(5, 7\)"),
        ((T_Q, D_K), (D_K,), (T_K, D_V), r"at least 2 axes.*k \(6,\)"),
        ((T_Q, D_K), (T_K, D_K), (T_K,), r"at least 2 axes.*v \(5,\)"),
        ((2, T_Q, D_K), (3, T_K, D_K), (3, T_K, D_V), r"same leading axes.*q \(2, 4, 6\), k \(3, 5, 6\)"),
        ((2, T_Q, D_K), (2, T_K, D_K), (T_K, D_V), r"same leading axes.*v \(5, 7\)"),
        ((T_Q, 6), (T_K, 8), (T_K, D_V), "same d_k; got 6 in q and 8 in k"),
        ((T_Q, D_K), (5, D_K), (9, D_V), "same T_k; got 5 in k and 9 in v"),
    ],
)
def test_attention_refuses_shapes_that_do_not_fit(q, k, v, message):
    with pytest.raises(ValueError, match=message):
        attention(torch.ones(q), torch.ones(k), torch.ones(v))


@pytest.mark.parametrize(
    "mask, found",
    [
        (torch.zeros(T_Q, T_K), "torch.float32"),
        (torch.ones(T_Q, T_K, dtype=torch.int64), "torch.int64"),
        (torch.ones(T_Q, T_K, dtype=torch.bool).numpy(), "bool"),
        ([[True] * T_K] * T_Q, "list"),
    ],
    ids=["additive", "int", "numpy", "list"],
)
def test_attention_refuses_a_mask_that_is_not_boolean(mask, found):
    with pytest.raises(ValueError, match=f"mask must be a boolean tensor, True = may attend; got {found}"):
        attention(*random_qkv(), mask)


@pytest.mark.parametrize(
    "shape",
    [(T_K, T_Q), (T_Q,), (B, T_Q, T_K), (H, B, T_Q, T_K), (1, B, H, T_Q, T_K), (B, H, T_Q, T_K, 1)],
    ids=str,
)
def test_attention_refuses_a_mask_that_does_not_broadcast(shape):
    with pytest.raises(ValueError, match=r"must broadcast to .*\(2, 3, 4, 5\)") as error:
        attention(*random_qkv(), torch.ones(shape, dtype=torch.bool))
    assert f"mask {shape}" in str(error.value) and "[B, 1, T_q, T_k]" in str(error.value)


# ---- split_heads and merge_heads ------------------------------------------------------------------------


@drawn
@given(batch=size, T=size, h=size, d_k=size)
def test_split_gives_each_head_its_block_of_channels(batch, T, h, d_k):
    x = torch.arange(batch * T * h * d_k).view(batch, T, h * d_k)
    heads = split_heads(x, h)
    assert heads.shape == (batch, h, T, d_k)
    for i in range(h):
        assert torch.equal(heads[:, i], x[:, :, i * d_k : (i + 1) * d_k])


@drawn
@given(batch=size, T=size, h=size, d_k=size)
def test_split_and_merge_are_inverses(batch, T, h, d_k):
    x = torch.arange(batch * T * h * d_k).view(batch, T, h * d_k)
    assert torch.equal(merge_heads(split_heads(x, h)), x)
    heads = torch.arange(batch * h * T * d_k).view(batch, h, T, d_k)
    assert torch.equal(split_heads(merge_heads(heads), h), heads)


def test_merge_puts_heads_side_by_side():
    heads = torch.arange(B * H * T_Q * D_K).view(B, H, T_Q, D_K)
    assert torch.equal(merge_heads(heads), torch.cat(list(heads.unbind(1)), dim=-1))


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(T_Q, B, H * D_K).transpose(0, 1),  # time-first
        torch.randn(B, T_Q, 3 * H * D_K)[..., H * D_K : 2 * H * D_K],  # a slice of fused q, k, v
        torch.randn(B, H * D_K, T_Q).mT,  # channels far apart in memory
        torch.randn(B, T_Q, 2 * H * D_K)[..., ::2],
        torch.randn(1, T_Q, 1).expand(B, T_Q, H * D_K),
    ],
    ids=["time_first", "fused_slice", "transposed", "every_other", "expanded"],
)
def test_split_is_a_view_of_any_strides(x):
    assert not x.is_contiguous()
    heads = split_heads(x, H)
    assert heads.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(heads, split_heads(x.contiguous(), H))
    assert torch.equal(merge_heads(heads), x)


def test_merge_copies_only_when_it_must():
    x = torch.randn(B, T_Q, H * D_K)
    heads = split_heads(x, H)
    assert merge_heads(heads).data_ptr() == x.data_ptr()
    contiguous = heads.contiguous()
    assert merge_heads(contiguous).data_ptr() != contiguous.data_ptr()


def test_contributions_add_up_to_the_output_and_belong_to_one_head_each():
    heads, w_o = randn((B, H, T_Q, D_V), (H * D_V, 11))
    parts = head_contributions(heads, w_o)
    assert parts.shape == (B, H, T_Q, 11)
    assert_close(parts.sum(dim=1), merge_heads(heads) @ w_o)
    for i in range(H):
        assert_close(parts[:, i], heads[:, i] @ w_o[i * D_V : (i + 1) * D_V])


def test_contributions_of_a_layer():
    layer = MultiHeadAttention(24, H).double()
    (x,) = randn((B, T_Q, 24))
    parts = head_contributions(layer.heads(x)[0], layer.w_o.weight.T)
    assert_close(parts.sum(dim=1), layer(x))


@pytest.mark.parametrize("heads, w_o", [((B, H, T_Q, D_V), (D_V, 11)), ((H, T_Q, D_V), (H * D_V, 11)), ((B, H, T_Q, D_V), (H * D_V,))])
def test_contributions_refuse_shapes_that_do_not_fit(heads, w_o):
    with pytest.raises(ValueError) as error:
        head_contributions(torch.ones(heads), torch.ones(w_o))
    assert str(heads) in str(error.value) and str(w_o) in str(error.value)


@pytest.mark.parametrize("h", [5, 48, 0, -2])
def test_split_refuses_a_number_of_heads_that_does_not_divide(h):
    with pytest.raises(ValueError, match=f"positive divisor of d_model; got h = {h} and d_model = 24"):
        split_heads(torch.ones(B, T_Q, 24), h)


@pytest.mark.parametrize("shape", [(24,), (T_Q, 24), (B, 1, T_Q, 24)], ids=str)
def test_split_refuses_other_than_three_axes(shape):
    with pytest.raises(ValueError, match=r"x must have 3 axes, \[B, T, d_model\]; got shape \(.*24") as error:
        split_heads(torch.ones(shape), 2)
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("shape", [(6,), (B, T_Q, 6), (1, B, H, T_Q, 6)], ids=str)
def test_merge_refuses_other_than_four_axes(shape):
    with pytest.raises(ValueError, match=r"x must have 4 axes, \[B, h, T, d_k\]; got shape") as error:
        merge_heads(torch.ones(shape))
    assert str(shape) in str(error.value)


def test_bodies_that_are_pasted_into_lessons_need_only_torch_and_math():
    for function in (attention, split_heads, merge_heads):
        used = {i.argval for i in dis.get_instructions(function) if i.opname == "LOAD_GLOBAL"}
        assert used - set(dir(builtins)) <= {"torch", "math"}


# ---- MultiHeadAttention ---------------------------------------------------------------------------------


def loop_over_heads(layer, query, key, value, mask=None):
    """The layer written as the paper writes it: one small projection and one softmax for each head."""
    group = layer.h // layer.n_kv_heads
    outputs, total = [], 0 if layer.w_o.bias is None else layer.w_o.bias

    def project(linear, x, i):
        rows = slice(i * layer.d_k, (i + 1) * layer.d_k)
        return F.linear(x, linear.weight[rows], None if linear.bias is None else linear.bias[rows])

    for i in range(layer.h):
        q = project(layer.w_q, query, i)
        k, v = project(layer.w_k, key, i // group), project(layer.w_v, value, i // group)
        scores = torch.einsum("bqd,bkd->bqk", q, k) / layer.d_k**0.5
        if mask is not None:
            scores = torch.where(mask[:, i], scores, -math.inf)
        outputs.append((scores.exp() / scores.exp().sum(-1, keepdim=True)) @ v)
        total = total + F.linear(outputs[i], layer.w_o.weight[:, i * layer.d_k : (i + 1) * layer.d_k])
    return torch.stack(outputs, dim=1), total


@drawn
@given(batch=size, T_q=size, T_k=size, n_kv=st.integers(1, 3), group=st.integers(1, 3), d_k=size,
       d_model=st.integers(1, 12), bias=st.booleans(), seed=seed)  # fmt: skip
def test_layer_equals_a_loop_over_heads(batch, T_q, T_k, n_kv, group, d_k, d_model, bias, seed):
    layer = random_layer(d_model, n_kv * group, n_kv_heads=n_kv, d_k=d_k, bias=bias, seed=seed)
    inputs = random_inputs(batch, T_q, T_k, d_model, seed=seed)
    mask = random_mask(batch, layer.h, T_q, T_k, seed=seed, every_row=True)
    outputs, total = loop_over_heads(layer, *inputs, mask)
    assert_close(layer.heads(*inputs, mask)[0], outputs)
    assert_close(layer(*inputs, mask), total)


@dtypes
@pytest.mark.parametrize("direction", ["to_torch", "from_torch"])
@drawn
@given(batch=size, T_q=size, T_k=size, h=size, d_k=size, bias=st.booleans(), masked=st.booleans(), seed=seed)
def test_layer_equals_torch_module(dtype, direction, batch, T_q, T_k, h, d_k, bias, masked, seed):
    if direction == "to_torch":
        layer = random_layer(h * d_k, h, bias=bias, dtype=dtype, seed=seed)
        module = layer.to_torch()
    else:
        module = random_torch_module(h * d_k, h, bias=bias, batch_first=True, dtype=dtype, seed=seed)
        layer = MultiHeadAttention.from_torch(module)
    inputs = random_inputs(batch, T_q, T_k, h * d_k, dtype=dtype, seed=seed)
    mask = random_mask(batch, h, T_q, T_k, seed=seed, every_row=True) if masked else None
    blocked = ~mask.flatten(0, 1) if masked else None  # [B * h, T_q, T_k], torch's own convention
    output, weights = module(*inputs, attn_mask=blocked, average_attn_weights=False)
    assert_close(layer(*inputs, mask), output)
    assert_close(layer.heads(*inputs, mask)[1], weights)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("masked", [False, True])
def test_grouped_heads_equal_torch(n_kv_heads, masked):
    layer = random_layer(10, 6, n_kv_heads=n_kv_heads, d_k=4, bias=True)
    query, key, value = random_inputs(B, T_Q, T_K, 10)
    mask = random_mask(B, 6, T_Q, T_K) if masked else None
    q = layer.w_q(query).unflatten(-1, (6, 4)).transpose(1, 2)
    k = layer.w_k(key).unflatten(-1, (n_kv_heads, 4)).transpose(1, 2)
    v = layer.w_v(value).unflatten(-1, (n_kv_heads, 4)).transpose(1, 2)
    outputs, weights = layer.heads(query, key, value, mask)
    assert weights.shape == (B, 6, T_Q, T_K)
    assert_close(outputs, F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True))


def test_key_defaults_to_query_and_value_to_key():
    layer = random_layer(12, 3)
    query, key, value = random_inputs(B, T_Q, T_K, 12)
    assert torch.equal(layer(query), layer(query, query, query))
    assert torch.equal(layer(query, key), layer(query, key, key))
    assert torch.equal(layer(key, value=value), layer(key, key, value))


@every_mask_shape
def test_layer_takes_a_mask_of_every_broadcastable_shape(shape):
    layer = random_layer(12, H)
    inputs = random_inputs(B, T_Q, T_K, 12)
    mask = random_mask(*shape, seed=len(shape))
    full = mask.expand(B, H, T_Q, T_K)
    assert_close(layer(*inputs, mask), layer(*inputs, full))
    assert torch.equal(layer.heads(*inputs, mask)[1] > 0, full)


def test_three_axes_are_one_mask_per_head():
    layer = random_layer(12, H)
    x, square = randn((B, T_K, 12), (H, T_K, 12))
    per_head, per_sequence = random_mask(H, T_K, T_K), random_mask(B, T_K, T_K)
    assert torch.equal(layer.heads(x, mask=per_head)[1] > 0, per_head.expand(B, H, T_K, T_K))
    with pytest.raises(ValueError, match=r"mask \(2, 5, 5\) must broadcast to .*\[B, 1, T_q, T_k\]"):
        layer(x, mask=per_sequence)
    with_head_axis = layer.heads(x, mask=per_sequence[:, None])[1] > 0
    assert torch.equal(with_head_axis, per_sequence[:, None].expand(B, H, T_K, T_K))
    # With as many sequences as heads, three axes still mean one mask per head.
    assert torch.equal(layer.heads(square, mask=per_head)[1] > 0, per_head.expand(H, H, T_K, T_K))


def test_query_with_no_allowed_key_gets_zeros_here_and_nan_from_torch():
    layer = random_layer(12, 3, bias=True)
    (x,) = randn((B, T_K, 12))
    mask = torch.ones(T_K, T_K, dtype=torch.bool)
    mask[1] = False
    outputs, weights = layer.heads(x, mask=mask)
    assert (outputs[:, :, 1] == 0).all() and (weights[:, :, 1] == 0).all()
    ours = layer(x, mask=mask)
    assert torch.equal(ours[:, 1], layer.w_o.bias.expand(B, 12))
    theirs, _ = layer.to_torch()(x, x, x, attn_mask=~mask)
    assert theirs[:, 1].isnan().all()
    alive = mask.any(-1)
    assert_close(ours[:, alive], theirs[:, alive])
    ours.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_layer_gradients():
    layer = random_layer(4, 2, n_kv_heads=1, bias=True)
    inputs = [x.requires_grad_() for x in random_inputs(2, 2, 3, 4)]
    mask = random_mask(2, 3, every_row=True)
    weights = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    names = [name for name, _ in layer.named_parameters()]

    def call(query, key, value, *params):
        return torch.func.functional_call(layer, dict(zip(names, params)), (query, key, value, mask))

    assert torch.autograd.gradcheck(call, (*inputs, *weights))


def test_sizes_of_the_four_layers():
    layer = MultiHeadAttention(10, 6, n_kv_heads=2, d_k=4)
    assert (layer.d_model, layer.h, layer.n_kv_heads, layer.d_k) == (10, 6, 2, 4)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    # nn.Linear stores [out, in], and there is no bias unless asked for.
    assert shapes == {
        "w_q.weight": (24, 10), "w_k.weight": (8, 10), "w_v.weight": (8, 10), "w_o.weight": (10, 24),
    }  # fmt: skip
    assert MultiHeadAttention(12, 3).d_k == 4
    with_bias = {name for name, _ in MultiHeadAttention(12, 3, bias=True).named_parameters()}
    assert with_bias == {f"w_{w}.{kind}" for w in "qkvo" for kind in ("weight", "bias")}


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        ((10, 3), {}, "h must divide d_model if d_k is not given; got h = 3, d_model = 10"),
        ((10, 0), {}, "at least 1; got d_model = 10 and h = 0"),
        ((10, -2), {}, "at least 1; got d_model = 10 and h = -2"),
        ((0, 2), {}, "at least 1; got d_model = 0 and h = 2"),
        ((12, 6), {"n_kv_heads": 4}, "n_kv_heads must be a positive divisor of h; got 4 and h = 6"),
        ((12, 6), {"n_kv_heads": 12}, "n_kv_heads must be a positive divisor of h; got 12 and h = 6"),
        ((12, 6), {"n_kv_heads": 0}, "n_kv_heads must be a positive divisor of h; got 0 and h = 6"),
        ((12, 6), {"d_k": 0}, "d_k must be at least 1; got 0"),
    ],
)
def test_layer_refuses_sizes(args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(*args, **kwargs)


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("shape", [(5, 12), (B, 5, 11), (B, 3, 5, 12)], ids=str)
def test_layer_refuses_inputs_of_other_shapes(name, shape):
    inputs = dict.fromkeys(("query", "key", "value"), torch.ones(B, 5, 12)) | {name: torch.ones(shape)}
    with pytest.raises(ValueError, match=rf"{name} must be \[B, T, 12\]; got shape") as error:
        MultiHeadAttention(12, 3)(**inputs)
    assert str(shape) in str(error.value)


def test_layer_refuses_inputs_that_do_not_fit_together():
    layer = MultiHeadAttention(12, 3)
    with pytest.raises(ValueError, match="same T_k; got 5 in k and 6 in v"):
        layer(torch.ones(B, 4, 12), torch.ones(B, 5, 12), torch.ones(B, 6, 12))
    with pytest.raises(ValueError, match=r"same leading axes.*q \(2, 3, 4, 4\), k \(1, 3, 5, 4\)"):
        layer(torch.ones(2, 4, 12), torch.ones(1, 5, 12))
    with pytest.raises(ValueError, match="mask must be a boolean tensor.*torch.float32"):
        layer(torch.ones(B, 4, 12), mask=torch.zeros(4, 4))


# ---- weights to torch and back --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_weights_return_unchanged(dtype, bias, training):
    layer = random_layer(12, 3, bias=bias, dtype=dtype).train(training)
    module = layer.to_torch()
    back = MultiHeadAttention.from_torch(module)
    assert module.batch_first and module.training == back.training == training
    assert all(p.dtype == dtype for p in [*module.parameters(), *back.parameters()])
    assert (back.d_model, back.h, back.d_k, back.n_kv_heads) == (12, 3, 4, 3)
    assert_same_state(back, layer)
    assert_same_state(back.to_torch(), module)


def assert_same_state(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_moved_weights_are_copies():
    layer = random_layer(12, 3, bias=True)
    module = layer.to_torch()
    back = MultiHeadAttention.from_torch(module)
    pointers = [{p.untyped_storage().data_ptr() for p in m.parameters()} for m in (layer, module, back)]
    assert len(set.union(*pointers)) == sum(len(p) for p in pointers)
    assert all(p.requires_grad for p in [*module.parameters(), *back.parameters()])


def test_time_first_module_gives_a_batch_first_layer():
    module = random_torch_module(12, 3)
    (x,) = randn((B, T_K, 12))
    output, _ = module(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))
    assert_close(MultiHeadAttention.from_torch(module)(x), output.transpose(0, 1))


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"kdim": 8}, "kdim and vdim must equal embed_dim; got kdim = 8, vdim = 12 and embed_dim = 12"),
        ({"vdim": 8}, "kdim and vdim must equal embed_dim; got kdim = 12, vdim = 8 and embed_dim = 12"),
        ({"add_bias_kv": True}, "adds no extra key; .* add_bias_kv"),
        ({"add_zero_attn": True}, "adds no extra key; .* add_zero_attn"),
        ({"dropout": 0.1}, "has no dropout; got dropout = 0.1, so set module.dropout = 0.0"),
    ],
)
def test_from_torch_refuses_what_this_layer_cannot_do(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(12, 3, **kwargs))


def test_from_torch_takes_a_module_whose_dropout_was_set_to_zero():
    module = random_torch_module(12, 3, dropout=0.1, batch_first=True).eval()
    (x,) = randn((B, T_K, 12))
    expected, _ = module(x, x, x)
    module.dropout = 0.0
    assert_close(MultiHeadAttention.from_torch(module)(x), expected)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"n_kv_heads": 1}, "no grouped heads, so n_kv_heads must equal h; got n_kv_heads = 1 and h = 3"),
        ({"d_k": 5}, r"needs h \* d_k = d_model; got h = 3, d_k = 5 and d_model = 12"),
    ],
)
def test_to_torch_refuses_what_torch_cannot_do(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(12, 3, **kwargs).to_torch()
