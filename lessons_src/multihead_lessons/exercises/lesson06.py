"""Exercises of lesson 06: load_layer, previous_token_score, ablate."""
from __future__ import annotations

import math
from functools import partial

import torch

import multihead as mh
from multihead_lessons.calling import load_and_call
from multihead_lessons.exercises.bank import Case, Exercise, Misconception, normal


def _sizes(generator: torch.Generator) -> list[int]:
    """B, T, h, d_k: all different and above 1, in an order that changes from draw to draw."""
    return torch.tensor([2, 3, 4, 5])[torch.randperm(4, generator=generator)].tolist()


# load_layer

PARTS = {"w_q": "attention.self.query", "w_k": "attention.self.key", "w_v": "attention.self.value",
         "w_o": "attention.output.dense"}


def _draw_weights(generator: torch.Generator) -> list[Case]:
    sizes = _sizes(generator)

    def case(B, T, h, d_k, turned=False, **about):
        d_model = h * d_k
        weights = {}
        for part in PARTS.values():
            matrix = normal(generator, d_model, d_model) / math.sqrt(d_model)
            weights |= {f"{part}.weight": matrix.T if turned else matrix, f"{part}.bias": normal(generator, d_model)}
        return Case((weights, h, normal(generator, B, T, d_model)), **about)
    return [case(*sizes), case(*sizes[1:], sizes[0]),
            case(*sizes[2:], *sizes[:2], turned=True, about="weights that are transposed views")]


def layer_variant(weights, h, sources=("w_q", "w_k", "w_v", "w_o"), turned=(), biases="loaded", left=(), heads="h"):
    """load_layer with its choices open.

    sources: whose tensors w_q, w_k, w_v and w_o get;  turned: which matrices are transposed;  left: what is not loaded
    biases:  loaded, left as they were made, or none;  heads: h, or a number
    """
    d_model = len(weights["attention.self.query.bias"])
    layer = mh.MultiHeadAttention(d_model, h if heads == "h" else heads, bias=biases != "none")
    for ours, source in zip(PARTS, sources):
        linear, name = getattr(layer, ours), PARTS[source]
        if ours not in left:
            matrix = weights[f"{name}.weight"]
            linear.weight.copy_(matrix.T if ours in turned else matrix)
            if biases == "loaded":
                linear.bias.copy_(weights[f"{name}.bias"])
    return layer


def _exchanged(*sources):
    return partial(layer_variant, sources=(*sources, "w_o"))


def _other_names(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h, bias=True)
    layer.load_state_dict(weights)
    return layer


def _fixed_sizes(weights, h):
    layer = mh.MultiHeadAttention(384, 12, bias=True)
    layer.load_state_dict({f"{ours}.{kind}": weights[f"{part}.{kind}"]
                           for ours, part in PARTS.items() for kind in ("weight", "bias")})
    return layer


LOAD_LAYER = Exercise("load_layer", mh.load_layer, _draw_weights, (
    Misconception("other names", (
        "load_state_dict wants the layer's own names: w_q.weight, w_q.bias and so on, all eight. Make a dict "
        "that has the file's tensors under these names."), _other_names),
    Misconception("fixed sizes", (
        "The tensors do not fit into the layer that you built. Are 384 and 12 written into your code? Take "
        "d_model from a tensor's shape, and h from the argument."), _fixed_sizes),
    Misconception("not a module", (
        "Return the layer itself, the MultiHeadAttention that you filled, not its weights or its output."),
        lambda weights, h: weights),
    Misconception("nothing loaded", (
        "The layer still holds the random numbers that it was made with. load_state_dict(..., strict=False) "
        "passes over every name that it does not know."), partial(layer_variant, left=tuple(PARTS))),
    Misconception("no output weights", (
        "w_o still holds the random numbers that it was made with. In the file it is attention.output.dense."),
        partial(layer_variant, left=("w_o",))),
    Misconception("biases left", (
        "The matrices are loaded, the biases are not: they still hold random numbers. Each of the four parts "
        "has a weight and a bias."), partial(layer_variant, biases="left")),
    Misconception("no biases", (
        "This layer works without biases. Build it with bias=True and load the four biases as well."),
        partial(layer_variant, biases="none")),
    Misconception("transposed", (
        "The matrices are transposed. A weight in the file is [out, in], as nn.Linear keeps it, so it goes in "
        "as it is."), partial(layer_variant, turned=tuple(PARTS))),
    Misconception("output transposed", (
        "w_o is transposed. A weight in the file is [out, in], as nn.Linear keeps it, so it goes in as it is."),
        partial(layer_variant, turned=("w_o",))),
    Misconception("queries and keys exchanged", (
        "w_q got the key's tensors and w_k the query's."), _exchanged("w_k", "w_q", "w_v")),
    Misconception("keys and values exchanged", (
        "w_k got the value's tensors and w_v the key's."), _exchanged("w_q", "w_v", "w_k")),
    Misconception("queries and values exchanged", (
        "w_q got the value's tensors and w_v the query's."), _exchanged("w_v", "w_k", "w_q")),
    Misconception("keys as values", (
        "w_v got the key's tensors. It has its own: attention.self.value."), _exchanged("w_q", "w_k", "w_k")),
    Misconception("queries as keys", (
        "w_k got the query's tensors. It has its own: attention.self.key."), _exchanged("w_q", "w_q", "w_v")),
    Misconception("output as values", (
        "w_v got the tensors of attention.output.dense, which belong to w_o."),
        _exchanged("w_q", "w_k", "w_o")),
    Misconception("one head", (
        "The layer has one wide head. The weights are cut into h heads: pass h on."),
        partial(layer_variant, heads=1)),
), axes=("sequence", "token", "channel"), run=load_and_call, may_draw=True)


# previous_token_score

def _draw_maps(generator: torch.Generator) -> list[Case]:
    L, B, h, T = _sizes(generator)
    T += 4

    def maps(*leading, dtype=torch.float32):
        return (1.5 * normal(generator, *leading, T, T, dtype=dtype)).softmax(-1)
    turned = maps(B, h, L, dtype=torch.float64).movedim(2, 0)
    return [Case((maps(h),)), Case((maps(L, h),)),
            Case((turned,), about="maps [L, B, h, T, T] in float64, not contiguous"),
            Case((maps(L, h).requires_grad_(),), about="maps that require a gradient"),
            Case((maps(),), about="a single map [T, T]")]


def score_variant(maps, offset=-1, over="T - 1", rows="those that have one", by="mean"):
    """previous_token_score with its choices open.

    offset: how far from a token the one that counts is;  over: what the sum is divided by
    rows:   whether the first token counts;  by: how the tokens are put together
    """
    T = maps.shape[-1]
    weights = maps.diagonal(offset, -2, -1)  # [..., T - |offset|]
    if rows == "all, around the end":
        weights = torch.cat([maps[..., :1, -1], weights], dim=-1)  # [..., T]
    if rows == "all, the first at itself":
        weights = torch.cat([maps[..., :1, 0], weights], dim=-1)  # [..., T]
    if by != "mean":
        return {"sum": weights.sum, "largest": weights.amax, "median": lambda axis: weights.median(axis).values,
                "each": lambda axis: weights}[by](-1)
    return weights.sum(-1) / T if over == "T" else weights.mean(-1)


def _share_of_argmax(maps):
    T = maps.shape[-1]
    return (maps.argmax(-1)[..., 1:] == torch.arange(T - 1)).to(maps.dtype).mean(-1)


def _all_before(maps):
    return maps.tril(-1).sum(-1)[..., 1:].mean(-1)


PREVIOUS_TOKEN_SCORE = Exercise("previous_token_score", mh.previous_token_score, _draw_maps, (
    Misconception("next token", (
        "This is the weight on the next token. A row of the map is the token that looks, a column the one that "
        "it looks at: the entry wanted is [t, t - 1], one below the diagonal."),
        partial(score_variant, offset=1)),
    Misconception("itself", (
        "This is the weight of each token on itself, the diagonal. The token before is one column to the left."),
        partial(score_variant, offset=0)),
    Misconception("two before", (
        "This is the weight on the token two places before. Count one place."),
        partial(score_variant, offset=-2)),
    Misconception("divided by T", (
        "The sum is right, and divided by T. The first token has none before it, so T - 1 weights were added: "
        "divide by T - 1."), partial(score_variant, over="T")),
    Misconception("around the end", (
        "For the first token you took the last one: index 0 - 1 is -1, which counts from the end. The first "
        "token has none before it; leave it out."), partial(score_variant, rows="all, around the end")),
    Misconception("first at itself", (
        "For the first token you took its weight on itself. It has none before it; leave it out."),
        partial(score_variant, rows="all, the first at itself")),
    Misconception("sum", (
        "These are sums over the tokens. The score is the mean, so that long and short sentences compare."),
        partial(score_variant, by="sum")),
    Misconception("largest", (
        "You kept each map's largest weight. One token that looks back is no habit: take the mean over the "
        "tokens."), partial(score_variant, by="largest")),
    Misconception("median", (
        "You took the median over the tokens. The score is their mean."), partial(score_variant, by="median")),
    Misconception("each token", (
        "You return the weight for each token. Take the mean over the tokens, the last axis."),
        partial(score_variant, by="each")),
    Misconception("all before", (
        "You added up the weights on all tokens before. Only the one right before counts."), _all_before),
    Misconception("share of maxima", (
        "You count how often the token before gets the largest weight. The score is the weight itself, which "
        "also shows how large."), _share_of_argmax),
    Misconception("all heads at once", (
        "You averaged over the heads as well. Only the last two axes belong to a map: the result keeps all axes "
        "before them."), lambda maps: score_variant(maps).mean()),
), axes=("layer", "sequence", "head"))


# ablate

def _draw_heads(generator: torch.Generator) -> list[Case]:
    sizes = _sizes(generator)

    def case(B, T, h, d_k, count, dtype=torch.float32, **about):
        heads = mh.split_heads(normal(generator, B, T, h * d_k, dtype=dtype), h)  # [B, h, T, d_k], not contiguous
        silenced = torch.randperm(h, generator=generator)[:count(h)].tolist()
        return Case((heads, normal(generator, h * d_k, h * d_k + 3, dtype=dtype), silenced), **about)
    B, T, h, d_k = sizes
    return [case(*sizes, lambda h: 1), case(T, d_k, max(B, h), min(B, h), lambda h: 2, about="several heads silenced"),
            case(*sizes, lambda h: h - 1, torch.float64, about="float64"),
            case(d_k, h, B, T, lambda h: 0, about="no head silenced"),
            case(*sizes, lambda h: h, about="all heads silenced")]


def ablate_variant(heads, w_o, silenced, which="silenced", axis="head", rows="runs", value="zero", factor="none",
                   back=True):
    """ablate with its choices open.

    which: the heads that fall silent, as a function of the list or a name;  axis: what falls silent instead of heads
    rows:  which rows of w_o a head meets;  value: what a silenced head says;  factor: of the heads that are left
    back:  whether the axes of heads and time are exchanged back before they are joined
    """
    B, h, T, d_v = heads.shape
    silenced = {"silenced": silenced, "others": [i for i in range(h) if i not in silenced], "none": [],
                "first": silenced[:1], "one less": [(i - 1) % h for i in silenced],
                "up to": list(range(max(silenced, default=-1) + 1))}[which]
    heads = heads.clone()
    if axis == "time":
        heads[:, :, [i for i in silenced if i < T]] = 0
    elif axis == "channel":
        heads[..., [i for i in silenced if i < d_v]] = 0
    elif value == "mean":
        heads[:, silenced] = heads[:, silenced].mean((0, 2), keepdim=True)
    elif value == "others":
        left = [i for i in range(h) if i not in silenced]
        heads[:, silenced] = heads[:, left].mean(1, keepdim=True) if left else torch.zeros_like(heads[:, :1])
    else:
        heads[:, silenced] = 0
    if factor == "h / left":
        heads = heads * h / max(h - len(silenced), 1)
    if factor == "1 / h":
        heads = heads / h
    joined = (heads.transpose(1, 2) if back else heads).reshape(B, T, h * d_v)  # [B, T, h d_v]
    if rows == "strided":
        joined = joined.unflatten(-1, (h, d_v)).mT.flatten(2)  # [B, T, d_v h]
    return joined @ w_o


def _output_channels(heads, w_o, silenced):
    y = ablate_variant(heads, w_o, [])
    d_v = heads.shape[3]
    for i in silenced:
        y[..., i * d_v:(i + 1) * d_v] = 0
    return y


def _not_projected(heads, w_o, silenced):
    return ablate_variant(heads, torch.eye(len(w_o), dtype=w_o.dtype), silenced)


def _not_summed(heads, w_o, silenced):
    parts = mh.head_contributions(heads, w_o).clone()  # [B, h, T, d_model]
    parts[:, silenced] = 0
    return parts


ABLATE = Exercise("ablate", mh.ablate, _draw_heads, (
    Misconception("the others", (
        "You silenced all heads but those in the list. Those in the list fall silent, the others speak."),
        partial(ablate_variant, which="others")),
    Misconception("nobody", (
        "No head is silent: this is the output of all of them. Is the list used, and the result kept?"),
        partial(ablate_variant, which="none")),
    Misconception("the first only", (
        "Only the first head of the list is silent. The list may name several."),
        partial(ablate_variant, which="first")),
    Misconception("from one", (
        "You count heads from 1, so the head before the one that is meant falls silent. The list counts from 0."),
        partial(ablate_variant, which="one less")),
    Misconception("all up to", (
        "Every head up to the largest number is silent. Only those in the list should be."),
        partial(ablate_variant, which="up to")),
    Misconception("tokens", (
        "You silenced tokens: axis 2 is time. The heads are axis 1."), partial(ablate_variant, axis="time")),
    Misconception("channels", (
        "You silenced a channel of every head: the last axis. The heads are axis 1."),
        partial(ablate_variant, axis="channel")),
    Misconception("mean", (
        "The silenced heads say their mean over the tokens. That is another method, mean ablation; here a "
        "silent head adds zero."), partial(ablate_variant, value="mean")),
    Misconception("mean of the others", (
        "The silenced heads say what the others say on average. A silent head adds zero."),
        partial(ablate_variant, value="others")),
    Misconception("made up for", (
        "You scaled the other heads up to make up for the silent ones, as dropout does in training. They stay "
        "as they are."), partial(ablate_variant, factor="h / left")),
    Misconception("averaged", (
        "The output is divided by h. Heads are summed through w_o, not averaged."),
        partial(ablate_variant, factor="1 / h")),
    Misconception("no transpose", (
        "You joined the heads without exchanging axes 1 and 2 first, so a row mixes several tokens of one head. "
        "Make [B, T, h, d_v] first."), partial(ablate_variant, back=False)),
    Misconception("strided", (
        "Head i met every h-th row of w_o. Join the heads with the head as the slower axis: it meets rows i d_v "
        "to (i + 1) d_v - 1."), partial(ablate_variant, rows="strided")),
    Misconception("output channels", (
        "You set channels of the finished output to zero. Every one of them is a sum over all heads. Silence "
        "the heads before w_o mixes them."), _output_channels),
    Misconception("not projected", (
        "You return the joined heads, before w_o. The layer's output is joined @ w_o."),
        _not_projected),
    Misconception("not summed", (
        "These are the contributions of each head. Add them up: the output is [B, T, d_model]."), _not_summed),
), axes=("sequence", "token", "channel"))

EXERCISES = (LOAD_LAYER, PREVIOUS_TOKEN_SCORE, ABLATE)
