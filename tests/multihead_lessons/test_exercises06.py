"""Banks of lesson 06: right answers in many styles pass, every mistake is named."""
import einops
import numpy as np
import pytest
import torch
from banks import (
    assert_every_misconception_is_named, assert_pairs_are_refused_and_named, assert_right, sentence, stranger,
)
from torch import nn

import multihead as mh
from multihead_lessons.exercises import examine, exercises
from multihead_lessons.exercises.lesson06 import PARTS


@pytest.mark.parametrize("name", ["load_layer", "previous_token_score", "ablate"])
def test_every_misconception_is_named(name):
    assert_every_misconception_is_named(exercises()[name])


@pytest.mark.parametrize("name", ["load_layer", "previous_token_score", "ablate"])
def test_pairs_of_misconceptions_are_refused_and_named(name):
    assert_pairs_are_refused_and_named(exercises()[name], seeds=range(1))


# load_layer

def renamed(weights):
    return {f"{ours}.{kind}": weights[f"{theirs}.{kind}"] for ours, theirs in PARTS.items() for kind in ("weight", "bias")}


def by_state_dict(weights, h):
    layer = mh.MultiHeadAttention(weights["attention.self.query.weight"].shape[1], h, bias=True)
    layer.load_state_dict(renamed(weights))
    return layer


def by_copy(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.output.dense.bias"]), h, bias=True)
    with torch.no_grad():
        for linear, name in zip((layer.w_q, layer.w_k, layer.w_v, layer.w_o), PARTS.values()):
            linear.weight.copy_(weights[name + ".weight"])
            linear.bias.copy_(weights[name + ".bias"])
    return layer


def by_data(weights, h):
    layer = mh.MultiHeadAttention(weights["attention.self.key.weight"].size(0), h, bias=True)
    for ours, theirs in PARTS.items():
        getattr(layer, ours).weight.data = weights[f"{theirs}.weight"]
        getattr(layer, ours).bias.data = weights[f"{theirs}.bias"].clone()
    return layer


def by_new_parameters(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h, bias=True)
    for ours, theirs in PARTS.items():
        for kind in ("weight", "bias"):
            setattr(getattr(layer, ours), kind, nn.Parameter(weights[f"{theirs}.{kind}"].detach().clone()))
    return layer


def by_renaming(weights, h):
    found = {}
    for name, tensor in weights.items():
        for ours, theirs in PARTS.items():
            name = name.replace(theirs, ours)
        found[name] = tensor
    layer = mh.MultiHeadAttention(weights["attention.self.value.bias"].numel(), h, bias=True)
    layer.load_state_dict(found)
    return layer


def by_assigning(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h, bias=True)
    layer.load_state_dict(renamed(weights), assign=True)
    return layer.eval().requires_grad_(False)


def by_torchs_module(weights, h):
    d_model = len(weights["attention.self.query.bias"])
    theirs = nn.MultiheadAttention(d_model, h, batch_first=True)
    with torch.no_grad():
        for kind in ("weight", "bias"):
            packed = torch.cat([weights[f"attention.self.{part}.{kind}"] for part in ("query", "key", "value")])
            getattr(theirs, f"in_proj_{kind}").copy_(packed)
            getattr(theirs.out_proj, kind).copy_(weights[f"attention.output.dense.{kind}"])
    return mh.MultiHeadAttention.from_torch(theirs)


def by_a_layer_of_ones_own(weights, h):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            d_model = len(weights["attention.self.query.bias"])
            self.parts = nn.ModuleDict({ours: nn.Linear(d_model, d_model) for ours in PARTS})
            for ours, theirs in PARTS.items():
                self.parts[ours].load_state_dict({kind: weights[f"{theirs}.{kind}"] for kind in ("weight", "bias")})

        def forward(self, x):
            q, k, v = (mh.split_heads(self.parts[name](x), h) for name in ("w_q", "w_k", "w_v"))
            return self.parts["w_o"](mh.merge_heads(mh.attention(q, k, v)[0]))
    return Own()


def test_right_layers_pass():
    assert_right("load_layer", [by_state_dict, by_copy, by_data, by_new_parameters, by_renaming, by_assigning,
                                by_torchs_module, by_a_layer_of_ones_own])


def without_the_bias_of_the_keys(weights, h):
    """It adds one number to a whole row of scores, so the output is the same."""
    layer = by_copy(weights, h)
    nn.init.zeros_(layer.w_k.bias)
    return layer


def test_the_bias_of_the_keys_does_not_show_and_is_missed():
    weights, h, x = exercises()["load_layer"].draw(torch.Generator().manual_seed(0))[0].args
    layers = by_copy(weights, h), without_the_bias_of_the_keys(weights, h)
    torch.testing.assert_close(layers[0](x), layers[1](x))
    assert "but the bias of the keys" in sentence("load_layer", without_the_bias_of_the_keys)


def without_no_grad(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h, bias=True)
    layer.w_q.weight.copy_(weights["attention.self.query.weight"])
    return layer


def bias_forgotten(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h)
    layer.load_state_dict(renamed(weights))
    return layer


def bias_forgotten_and_copied(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h)
    with torch.no_grad():
        for ours, theirs in PARTS.items():
            getattr(layer, ours).weight.copy_(weights[f"{theirs}.weight"])
            getattr(layer, ours).bias.copy_(weights[f"{theirs}.bias"])
    return layer


def by_their_place(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h, bias=True)
    layer.load_state_dict(dict(zip(layer.state_dict(), weights.values())))
    return layer


def not_parameters(weights, h):
    class Own(nn.Module):
        def forward(self, x):
            return by_copy(weights, h)(x)
    return Own()


def kept():
    layers = {}

    def once(weights, h):
        d_model = len(weights["attention.self.query.bias"])
        layer = layers.setdefault((d_model, h), mh.MultiHeadAttention(d_model, h, bias=True))
        layer.load_state_dict(renamed(weights))
        return layer
    return once


@torch.no_grad()
def of_384(weights, h):
    layer = mh.MultiHeadAttention(384, 12, bias=True)
    for ours, theirs in PARTS.items():
        getattr(layer, ours).weight.copy_(weights[f"{theirs}.weight"])
    return layer


def only_the_first(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h, bias=True)
    for ours, theirs in PARTS.items():
        getattr(layer, ours).load_state_dict({kind: weights[f"{theirs}.{kind}"] for kind in ("weight", "bias")})
        return layer


@pytest.mark.parametrize("answer, words", [
    (without_no_grad, "parameters that autograd watches"),
    (bias_forgotten, "Build it with bias=True"),
    (bias_forgotten_and_copied, "Something that you use is None"),
    (lambda weights, h: weights.get("attention.query.weight").shape, "what weights.get returns for a name"),
    (by_their_place, "by their place in the dict"),
    (not_parameters, "holds no tensors that state_dict could find"),
    (kept(), "Two calls return the same layer"),
    (of_384, '.copy_(weights[f"{theirs}.weight"])", raises RuntimeError: The size of tensor a (384) must match'),
    (lambda weights, h: by_state_dict(weights, h).load_state_dict({**renamed(weights), "extra.bias": torch.ones(1)}),
     "all eight and no others"),
    (only_the_first, "Only the first part of the four is loaded"),
    (lambda weights, h: by_copy({**weights, **{name.replace("value", "output.dense").replace("self.output", "output"):
                                               weights[name] for name in weights if "value" in name}}, h),
     "w_o got the tensors of attention.self.value"),
    (lambda weights, h: None, "Is there a return?"),
    (lambda weights, h: by_copy(weights, h).state_dict(), "Return the layer itself"),
    (lambda weights, h: by_copy(weights, h + 100), "raises ValueError: h must divide d_model"),
    (lambda weights, h: by_copy({name: weights[name] for name in weights if "key" not in name}, h), "raises KeyError"),
    (lambda weights, h: mh.load_layer(weights, h), "the library's own"),
    (lambda weights, h: by_copy({name: tensor.add_(1) for name, tensor in weights.items()}, h), "changes the tensor"),
])
def test_other_layers_are_described(answer, words):
    assert words in sentence("load_layer", answer)


# previous_token_score

def by_diagonal(maps):
    return torch.diagonal(maps, offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


def by_shifted_rows(maps):
    return maps[..., 1:, :-1].diagonal(dim1=-2, dim2=-1).mean(-1)


def by_index(maps):
    t = torch.arange(1, maps.shape[-1])
    return maps[..., t, t - 1].mean(-1)


def by_loop_over_tokens(maps):
    T = maps.shape[-1]
    return sum(maps[..., t, t - 1] for t in range(1, T)) / (T - 1)


def by_stack(maps):
    return torch.stack([maps[..., t, t - 1] for t in range(1, maps.size(-1))], dim=-1).mean(dim=-1)


def by_mask(maps):
    T = maps.shape[-1]
    below = torch.eye(T, dtype=maps.dtype).roll(-1, dims=1)
    below[0, -1] = 0
    return (maps * below).sum((-2, -1)) / (T - 1)


def by_tril_and_triu(maps):
    return maps.tril(-1).triu(-1).sum(dim=(-1, -2)).div(maps.shape[-1] - 1)


def by_einsum(maps):
    return torch.einsum("...tt->...", maps[..., 1:, :-1]) / (maps.shape[-1] - 1)


def by_gather(maps):
    T = maps.shape[-1]
    before = torch.arange(T - 1).view(-1, 1).expand(*maps.shape[:-2], T - 1, 1)
    return maps[..., 1:, :].gather(-1, before).mean((-2, -1))


def by_flat_index(maps):
    T = maps.shape[-1]
    return maps.flatten(-2)[..., T::T + 1].mean(-1)


def by_einops(maps):
    return einops.reduce(by_stack_of_tokens(maps), "... t -> ...", "mean")


def by_stack_of_tokens(maps):
    return maps.diagonal(-1, -2, -1)


def by_trace(maps):
    T = maps.shape[-1]
    flat = maps[..., 1:, :-1].reshape(-1, T - 1, T - 1)
    return torch.stack([m.trace() for m in flat]).view(maps.shape[:-2]) / (T - 1)


def test_right_scores_pass():
    assert_right("previous_token_score", [by_diagonal, by_shifted_rows, by_index, by_loop_over_tokens, by_stack, by_mask,
                                          by_tril_and_triu, by_einsum, by_gather, by_flat_index, by_einops, by_trace])


def test_a_number_for_one_map_is_right_as_a_number():
    assert_right("previous_token_score", [lambda maps: by_diagonal(maps) if maps.ndim > 2 else float(by_diagonal(maps))])


@pytest.mark.parametrize("answer, words", [
    (lambda maps: None, "is there a return"),
    (lambda maps: by_diagonal(maps).unsqueeze(0), "must have the shape"),
    (lambda maps: by_diagonal(maps).float(), "precision is lost"),
    (lambda maps: by_diagonal(maps.detach()), "no gradient flows back"),
    (lambda maps: by_diagonal(maps).numpy(force=True), "must be a tensor"),
    (lambda maps: by_diagonal(maps) * float("nan"), "NaN"),
    (lambda maps: sum(maps[..., t, t - 1] for t in range(1, 7)) / 6, ""),
    (lambda maps: sum(maps[..., t, t - 1] for t in range(1, maps.shape[-1])) / 7, ""),
    (lambda maps: sum(maps[:, t, t - 1] for t in range(1, maps.shape[-1])) / (maps.shape[-1] - 1), ""),
    (lambda maps: torch.diagonal(maps, -1, 1, 2).mean(-1), "Count axes from the end"),
    (lambda maps: sum(maps[..., t, t - 1] for t in range(2, maps.shape[-1])) / (maps.shape[-1] - 1), "second token does not count"),
    (lambda maps: maps.diagonal(0, -2, -1).sum(-1) / (maps.shape[-1] - 1), "weight of each token on itself"),
    (lambda maps: (maps.argmax(-1)[..., 1:] == torch.arange(maps.shape[-1] - 1)).float().mean(-1), "how often the token before"),
    (lambda maps: by_diagonal(maps.mean(-3)) if maps.ndim == 3 else by_diagonal(maps), "must have the shape"),
    (lambda maps: by_diagonal(maps.sub_(0.1)), "changes the tensor"),
    (lambda maps: by_diagonal(maps) * (1 if maps.ndim > 2 else 1.01), "all of them differ. This is the case with a single map"),
    (lambda maps: by_diagonal(maps) * (1 if maps.ndim > 2 else float("nan")), "NaN"),
    (lambda maps: maps[..., 0, 99], "raises IndexError"),
])
def test_other_scores_are_described(answer, words):
    assert words in sentence("previous_token_score", answer)


def test_sizes_that_are_written_into_the_code_are_found():
    def fixed(maps):
        t = torch.arange(1, 6)
        return maps[..., t, t - 1].mean(-1)
    assert not examine("previous_token_score", fixed, seed=0).passed


# ablate

def by_zeros(heads, w_o, silenced):
    kept = heads.clone()
    kept[:, silenced] = 0
    return kept.transpose(1, 2).flatten(2) @ w_o


def by_mask_of_ones(heads, w_o, silenced):
    B, h, T, d_v = heads.shape
    speaks = torch.ones(h, 1, 1, dtype=heads.dtype)
    for i in silenced:
        speaks[i] = 0
    return (heads * speaks).transpose(1, 2).reshape(B, T, h * d_v) @ w_o


def by_loop_over_heads(heads, w_o, silenced):
    B, h, T, d_v = heads.shape
    out = torch.zeros(B, T, w_o.shape[1], dtype=heads.dtype)
    for i in range(h):
        if i not in silenced:
            out = out + heads[:, i] @ w_o[i * d_v:(i + 1) * d_v]
    return out


def by_contributions(heads, w_o, silenced):
    parts = mh.head_contributions(heads, w_o)
    left = [i for i in range(heads.shape[1]) if i not in set(silenced)]
    return parts[:, left].sum(1)


def by_zero_rows_of_w_o(heads, w_o, silenced):
    d_v = heads.shape[-1]
    w_o = w_o.clone()
    for i in silenced:
        w_o[i * d_v:(i + 1) * d_v] = 0
    return mh.merge_heads(heads) @ w_o


def by_removing(heads, w_o, silenced):
    B, h, T, d_v = heads.shape
    left = [i for i in range(h) if i not in silenced]
    blocks = w_o.unflatten(0, (h, d_v))[left].flatten(0, 1)
    return heads[:, left].transpose(1, 2).reshape(B, T, len(left) * d_v) @ blocks


def by_subtracting(heads, w_o, silenced):
    parts = mh.head_contributions(heads, w_o)
    out = parts.sum(1)
    for i in silenced:
        out = out - parts[:, i]
    return out


def by_einsum_over_heads(heads, w_o, silenced):
    h, d_v = heads.shape[1], heads.shape[3]
    speaks = torch.tensor([0.0 if i in silenced else 1.0 for i in range(h)], dtype=heads.dtype)
    return torch.einsum("bhtd,h,hdm->btm", heads, speaks, w_o.view(h, d_v, -1))


def by_einops_and_index_fill(heads, w_o, silenced):
    quiet = heads.index_fill(1, torch.tensor(silenced, dtype=torch.long), 0)
    return einops.rearrange(quiet, "b h t d -> b t (h d)") @ w_o


def by_masked_fill(heads, w_o, silenced):
    off = torch.zeros(heads.shape[1], dtype=torch.bool)
    off[silenced] = True
    return heads.masked_fill(off[:, None, None], 0.0).permute(0, 2, 1, 3).flatten(2).matmul(w_o)


def by_cat(heads, w_o, silenced):
    rows = [torch.zeros_like(head) if i in silenced else head for i, head in enumerate(heads.unbind(1))]
    return torch.cat(rows, dim=-1) @ w_o


def by_where(heads, w_o, silenced):
    off = torch.isin(torch.arange(heads.size(1)), torch.tensor(silenced, dtype=torch.long)).view(1, -1, 1, 1)
    return torch.where(off, torch.zeros((), dtype=heads.dtype), heads).transpose(1, 2).flatten(2) @ w_o


def test_right_ablations_pass():
    assert_right("ablate", [by_zeros, by_mask_of_ones, by_loop_over_heads, by_contributions, by_zero_rows_of_w_o,
                            by_removing, by_subtracting, by_einsum_over_heads, by_einops_and_index_fill, by_masked_fill,
                            by_cat, by_where])


def writes_into_its_input(heads, w_o, silenced):
    heads[:, silenced] = 0
    return mh.merge_heads(heads) @ w_o


def silences_sequences(heads, w_o, silenced):
    heads = heads.clone()
    heads[silenced] = 0
    return mh.merge_heads(heads) @ w_o


def joins_by_view(heads, w_o, silenced):
    B, h, T, d_v = heads.shape
    quiet = heads.clone()
    quiet[:, silenced] = 0
    return quiet.transpose(1, 2).view(B, T, h * d_v) @ w_o


def writes_into_contiguous_heads(heads, w_o, silenced):
    heads = heads.contiguous()
    heads[:, silenced] = 0
    return mh.merge_heads(heads) @ w_o


def into_a_linear(heads, w_o, silenced):
    """Its first weights are random, and it draws them; that is nobody's business."""
    last = nn.Linear(*w_o.shape, bias=False)
    last.weight = nn.Parameter(w_o.T)
    quiet = heads.clone()
    quiet[:, silenced] = 0
    return last(quiet.transpose(1, 2).flatten(2))


def test_a_linear_layer_may_be_built():
    assert_right("ablate", [into_a_linear])


@pytest.mark.parametrize("answer, words", [
    (lambda heads, w_o, silenced: None, "is there a return"),
    (writes_into_its_input, "changes the tensor"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, silenced).float(), "precision is lost"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, silenced)[..., :-1], "must have the shape"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, silenced) / 0 * 0, "NaN"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, silenced[0]), "Only the first head of the list"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, silenced).detach(), "no gradient flows back"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, range(min(silenced, default=0), max(silenced, default=-1) + 1)),
     "between the smallest and the largest"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, range(len(silenced))), "as many heads as the list has"),
    (silences_sequences, "axis 0 is the batch"),
    (joins_by_view, "view cannot join what the transpose has separated"),
    (writes_into_contiguous_heads, "contiguous may return the old memory"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, silenced.sort() or silenced), "changes the tensor, list or dict"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, silenced) if silenced else silenced[0], "raises IndexError"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, silenced).numpy(), "must be a tensor"),
    (lambda heads, w_o, silenced: heads @ w_o, "raises RuntimeError"),
    (lambda heads, w_o, silenced: by_zeros(heads, w_o, np.array(silenced, dtype=int)) + 1, "differ"),
])
def test_other_ablations_are_described(answer, words):
    assert words in sentence("ablate", answer)


@pytest.mark.parametrize("name", ["load_layer", "previous_token_score", "ablate"])
def test_the_library_is_not_an_answer(name):
    assert examine(name, getattr(mh, name)).misconception == "library"
    assert examine(name, stranger(getattr(mh, name))).misconception == "library"
