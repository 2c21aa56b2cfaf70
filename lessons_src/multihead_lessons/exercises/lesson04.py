"""Exercises of lesson 04: merge_heads, head_contributions, MultiHeadAttention."""
from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import multihead as mh
from multihead_lessons.calling import WEIGHTS, ask, build_and_call, fill
from multihead_lessons.exercises.bank import Case, Exercise, Misconception, normal
from multihead_lessons.provenance import Source, comparison

# merge_heads


def _sizes(generator: torch.Generator) -> list[int]:
    """B, T, h, d_k: all different and above 1, in an order that changes from draw to draw."""
    return torch.tensor([2, 3, 4, 5])[torch.randperm(4, generator=generator)].tolist()


def _draw_merge(generator: torch.Generator) -> list[Case]:
    sizes = _sizes(generator)
    cases = [Case((normal(generator, B, h, T, d_k),)) for B, T, h, d_k in (sizes, sizes[1:] + sizes[:1])]
    B, T, h, d_k = sizes
    split = mh.split_heads(normal(generator, B, T, h * d_k, dtype=torch.float64), h)
    cases.append(Case((split,), about="heads that are a transposed view, in float64"))
    cases.append(Case((normal(generator, B, h, T, d_k).requires_grad_(),), about="heads that require a gradient"))
    return cases


def _flat(order):
    """Permutes [B, h, T, d_k] and joins the last two axes: joins(x)."""
    return lambda x: x.permute(order).flatten(2)


NO_TRANSPOSE = (
    "You joined the axes without transposing back. In memory all tokens of head 0 come before any of head 1, so each "
    "row of your result is filled with several tokens of one head. Exchange axes 1 and 2 first: [B, T, h, d_k].")

MERGE_MISTAKES = (
    Misconception("no transpose", NO_TRANSPOSE, lambda x: x.reshape(x.shape[0], x.shape[2], -1)),
    Misconception("no transpose, by view", NO_TRANSPOSE, lambda x: x.view(x.shape[0], x.shape[2], -1)),
    Misconception("view", (
        "Your view refuses new, contiguous heads: after the transpose h and d_k do not lie side by side in memory, "
        "so no stride walks through both. reshape copies where it must; so does contiguous() before the view."),
        lambda x: x.transpose(1, 2).view(x.shape[0], x.shape[2], -1)),
    Misconception("interleaved", (
        "You put channel 0 of every head first, then channel 1 of every head. The heads lie one after the other: "
        "head 0's d_k channels, then head 1's. Join [h, d_k], with the head as the slower axis."),
        _flat((0, 2, 3, 1))),
    Misconception("wrong axes", (
        "You exchanged the last two axes, time and channel. The axes to exchange are 1 and 2, head and time."),
        lambda x: x.transpose(2, 3).reshape(x.shape[0], x.shape[2], -1)),
    Misconception("not joined", (
        "You transposed back but did not join the last two axes: the result still has four. Make [B, T, h, d_k] into"
        " [B, T, h * d_k]."),
        lambda x: x.transpose(1, 2)),
    Misconception("along time", (
        "You joined the heads along the time axis: [B, h * T, d_k]. Every token keeps its place; its heads lie side "
        "by side along the channels, the last axis."), lambda x: torch.cat(x.unbind(1), dim=1)),
    Misconception("along the batch", (
        "You joined the heads along the batch axis: [h * B, T, d_k]. They belong side by side along the channels, "
        "the last axis."),
        lambda x: torch.cat(x.unbind(1), dim=0)),
    Misconception("channels before time", (
        "Your result is [B, h * d_k, T]: the channels come before the tokens. Time is axis 1, as it was before the "
        "split."),
        lambda x: x.transpose(2, 3).flatten(1, 2)),
    Misconception("time first", (
        "Your result is [T, B, h * d_k]: batch and time have changed places. The batch stays axis 0."),
        _flat((2, 0, 1, 3))),
    Misconception("reversed", "The heads are joined in reverse order. Head 0's channels come first.",
                  lambda x: x.flip(1).transpose(1, 2).flatten(2)),
    Misconception("summed", (
        "You added the heads up: [B, T, d_k]. Their numbers are laid side by side, h * d_k for each token; adding "
        "them would lose all but one part in h."), lambda x: x.sum(1)),
    Misconception("averaged", (
        "You averaged the heads: [B, T, d_k]. Their numbers are laid side by side, h * d_k for each token; an "
        "average would lose all but one part in h."), lambda x: x.mean(1)),
    Misconception("maximum", (
        "You kept the largest entry over the heads: [B, T, d_k]. Their numbers are laid side by side, h * d_k for "
        "each token."),
        lambda x: x.amax(1)),
)


def merge_picture(answer):
    """Where each number went, for three tokens and two heads of two channels, or None if the answer has no picture."""
    source = Source(T=3, d_model=4, h=2)
    found = answer(mh.split_heads(source.tensor(), source.h).contiguous())
    wanted = source.tensor()
    if not isinstance(found, torch.Tensor) or found.ndim < 2 or found.numel() > 24 or torch.equal(found, wanted):
        return None
    return comparison(wanted, found, source)


MERGE_HEADS = Exercise("merge_heads", mh.merge_heads, _draw_merge, MERGE_MISTAKES, axes=("sequence", "token", "channel"),
                       picture=merge_picture)


# head_contributions


def _draw_contributions(generator: torch.Generator) -> list[Case]:
    sizes = _sizes(generator)
    cases = [Case((normal(generator, B, h, T, d_k), normal(generator, h * d_k, h * d_k)))
             for B, T, h, d_k in (sizes, sizes[1:] + sizes[:1])]
    B, T, h, d_k = sizes
    heads = mh.split_heads(normal(generator, B, T, h * d_k, dtype=torch.float64), h)
    weight = normal(generator, h * d_k, h * d_k, dtype=torch.float64)  # of a linear layer, [out, in]
    cases.append(Case((heads, weight.T), about="heads and w_o that are transposed views, in float64"))
    cases.append(Case((normal(generator, B, h, T, d_k), normal(generator, h * d_k, h * (d_k + 1))), about=(
        "a d_model that is not h * d_k")))
    cases.append(Case((normal(generator, B, h, T, d_k).requires_grad_(), normal(generator, h * d_k, h * d_k)), about=(
        "heads that require a gradient")))
    return cases


def contributions_variant(heads, w_o, blocks="runs", axes="head first", share=False):
    """head_contributions with its choices open.

    blocks: which rows of w_o a head meets;  axes: the order of the result's;  share: whether it is divided by h
    """
    h, d_k = heads.shape[1], heads.shape[3]
    rows = {
        "runs": lambda: w_o.unflatten(0, (h, d_k)),
        "strided": lambda: w_o.unflatten(0, (d_k, h)).transpose(0, 1),
        "columns": lambda: w_o[:, :h * d_k].T.unflatten(0, (h, d_k)),
        "the first": lambda: w_o[:d_k].expand(h, -1, -1),
        "reversed": lambda: w_o.unflatten(0, (h, d_k)).flip(0),
    }[blocks]()  # [h, d_k, d_model]
    parts = heads @ rows  # [B, h, T, d_model]
    parts = parts / h if share else parts
    return {"head first": parts, "time first": parts.transpose(1, 2), "heads outermost": parts.transpose(0, 1)}[axes]


def _summed(heads, w_o):
    return mh.merge_heads(heads) @ w_o


def _whole(heads, w_o):
    return _summed(heads, w_o).unsqueeze(1).expand(-1, heads.shape[1], -1, -1) / heads.shape[1]


def _split_output(heads, w_o):
    return mh.split_heads(_summed(heads, w_o), heads.shape[1])


COLUMNS = (
    "You used the columns of w_o, or its transpose. w_o acts from the right, joined @ w_o, so a channel of the joined row "
    "meets a row of w_o.")


def _transposed(heads, w_o):
    return heads @ w_o.T.unflatten(0, (heads.shape[1], heads.shape[3]))  # possible only if w_o is square


def _transposed_by_reshape(heads, w_o):
    return heads @ w_o.T.reshape(heads.shape[1], heads.shape[3], -1)


CONTRIBUTIONS = Exercise("head_contributions", mh.head_contributions, _draw_contributions, (
    Misconception("summed", (
        "This is the sum of all contributions, the output itself. Stop before the sum: one [T, d_model] for each "
        "head."), _summed),
    Misconception("output cut", (
        "You cut the finished output into h pieces of channels. Each of those channels holds the sum of all heads "
        "already. Cut w_o into bands of rows before the product."), _split_output),
    Misconception("equal shares", (
        "You gave every head the same share of the output. A contribution is what this head alone adds: its d_k "
        "channels times its d_k rows of w_o."), _whole),
    Misconception("columns", COLUMNS, partial(contributions_variant, blocks="columns")),
    Misconception("transposed", COLUMNS, _transposed),
    Misconception("transposed by reshape", COLUMNS, _transposed_by_reshape),
    Misconception("strided", (
        "Head i met every h-th row of w_o. The joined row holds head 0's channels first, then head 1's, so head i "
        "meets the run of rows i d_k to (i + 1) d_k - 1."), partial(contributions_variant, blocks="strided")),
    Misconception("the first rows", (
        "Every head met the first d_k rows of w_o. Head i meets its own: rows i d_k to (i + 1) d_k - 1."),
        partial(contributions_variant, blocks="the first")),
    Misconception("reversed", "The bands of w_o are in reverse order: head 0 meets the first d_k rows.",
                  partial(contributions_variant, blocks="reversed")),
    Misconception("time before heads", "The values are right, the axes are [B, T, h, d_model]. Wanted is [B, h, T, d_model].",
                  partial(contributions_variant, axes="time first")),
    Misconception("heads outermost", "The values are right, the axes are [h, B, T, d_model]. Wanted is [B, h, T, d_model].",
                  partial(contributions_variant, axes="heads outermost")),
    Misconception("divided by h", (
        "You divided by h. Contributions are added up, not averaged: their sum must be the output."),
        partial(contributions_variant, share=True)),
), axes=("sequence", "head", "token", "channel"))


# MultiHeadAttention


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention: four d_model x d_model matrices without bias, d_k = d_model / h."""

    def __init__(self, d_model, h):
        super().__init__()
        if d_model % h != 0:
            raise ValueError(f"h must divide d_model; got h = {h} and d_model = {d_model}")
        self.h = h
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w_v = nn.Linear(d_model, d_model, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, mask=None):
        q = self.w_q(x).unflatten(-1, (self.h, -1)).transpose(1, 2)  # [B, h, T, d_k]
        k = self.w_k(x).unflatten(-1, (self.h, -1)).transpose(1, 2)  # [B, h, T, d_k]
        v = self.w_v(x).unflatten(-1, (self.h, -1)).transpose(1, 2)  # [B, h, T, d_k]
        scores = q @ k.mT / q.shape[-1]**0.5  # [B, h, T, T]
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        heads = scores.softmax(dim=-1) @ v  # [B, h, T, d_k]
        joined = heads.transpose(1, 2).flatten(2)  # [B, T, d_model]
        return self.w_o(joined)


def _mask(generator, *shape):
    """A random boolean mask [..., T] with at least one True and one False in each row."""
    order = torch.rand(shape, generator=generator).argsort(-1).argsort(-1)
    return order < torch.randint(1, shape[-1], (*shape[:-1], 1), generator=generator)


def _draw_module(generator: torch.Generator) -> list[Case]:
    sizes = _sizes(generator)
    turned = [sizes[i:] + sizes[:i] for i in range(4)]

    def case(B, T, h, d_k, mask=None, dtype=torch.float32, **about):
        d_model = h * d_k
        weights = tuple(normal(generator, d_model, d_model, dtype=dtype) / math.sqrt(d_model) for _ in WEIGHTS)
        shape = {"one": (T, T), "sequence": (B, 1, T, T), "padding": (B, 1, 1, T), "head": (B, h, T, T)}.get(mask)
        x = normal(generator, B, T, d_model, dtype=dtype)
        return Case((d_model, h, weights, x, _mask(generator, *shape) if shape else None), **about)
    B, T, h, d_k = sizes
    odd = h * d_k + 1
    return [case(*turned[0]),
            case(*turned[1], "one", about="a mask [T, T]"),
            case(*turned[2], "sequence", about="a mask for each sequence, [B, 1, T, T]"),
            case(*turned[3], "padding", about="a mask of padding, [B, 1, 1, T]"),
            case(*turned[0], "head", torch.float64, about="a mask [B, h, T, T], in float64"),
            Case((odd, h, tuple(normal(generator, odd, odd) for _ in WEIGHTS), normal(generator, B, T, odd), None),
                 raises=True, about="a d_model that h does not divide, where no equal heads exist")]


class Variant(nn.Module):
    """MultiHeadAttention with its choices open: each keyword makes one mistake."""

    def __init__(self, d_model, h, *, reads="own", bias=False, turned=(), split="runs", axis="time",
                 scale="sqrt d_k", softmax=-1, mask="blocks", maps="own", merge="transposed", out="w_o"):
        super().__init__()
        if d_model % h:
            raise ValueError("h must divide d_model")
        self.h, self.d_k = h, d_model // h
        self.reads, self.turned, self.split, self.axis, self.scale = reads, turned, split, axis, scale
        self.softmax, self.mask, self.maps, self.merge, self.out = softmax, mask, maps, merge, out
        for name in WEIGHTS:
            setattr(self, name, nn.Linear(d_model, d_model, bias=bias))

    def forward(self, x, mask=None):
        x = x.transpose(0, 1) if self.axis == "batch" else x  # [B, T, d_model]
        q, k, v = map(self.into_heads, self.projected(x))
        weights = self.weights(q @ k.mT, mask)  # [B, h, T, T]
        if self.maps == "averaged":
            weights = weights.mean(1, keepdim=True)
        heads = weights @ v  # [B, h, T, d_k]
        keep = self.merge == "reshape" or self.split == "kept"
        joined = (heads if keep else heads.transpose(1, 2)).reshape(x.shape)  # [B, T, d_model]
        y = joined if self.out == "none" else self.linear(self.w_o, joined)  # [B, T, d_model]
        y = y / self.h if self.out == "averaged" else y + x if self.out == "residual" else y
        return y.transpose(0, 1) if self.axis == "batch" else y

    def linear(self, w, x):
        weight = w.weight.T if any(w is getattr(self, name) for name in self.turned) else w.weight
        if self.reads == "sliced" and w is not self.w_o:
            own = torch.ones(self.h, self.d_k, self.d_k, dtype=weight.dtype)
            weight = weight * torch.block_diag(*own)
        return F.linear(x, weight, w.bias)

    def projected(self, x):
        q, k, v = (self.linear(w, x) for w in (self.w_q, self.w_k, self.w_v))
        return {"k as q": (k, k, v), "q as k": (q, q, v), "k as v": (q, k, k), "q as v": (q, k, q),
                "v as k": (q, v, v), "x as v": (q, k, x), "q and k exchanged": (k, q, v)}.get(self.reads, (q, k, v))

    def into_heads(self, z):
        B, T, _ = z.shape
        return {"runs": lambda: z.reshape(B, T, self.h, self.d_k).transpose(1, 2),
                "direct": lambda: z.reshape(B, self.h, T, self.d_k),
                "strided": lambda: z.reshape(B, T, self.d_k, self.h).permute(0, 3, 1, 2),
                "kept": lambda: z.reshape(B, T, self.h, self.d_k)}[self.split]()

    def weights(self, products, mask):
        scales = {"d_model": math.sqrt(self.h * self.d_k), "none": 1, "after": 1, "d_k": self.d_k,
                  "T": math.sqrt(products.shape[-1]), "h": math.sqrt(self.h)}
        scores = products / scales.get(self.scale, math.sqrt(self.d_k))  # [B, h, T, T]
        if self.mask == "causal" or self.mask == "causal instead" and mask is not None:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if mask is not None and self.mask != "ignored":
            scores = {"inverted": lambda: scores.masked_fill(mask, -math.inf), "added": lambda: scores + mask,
                      "zeroed": lambda: scores * mask, "after": lambda: scores,
                      "plus inf": lambda: scores.masked_fill(~mask, math.inf)}.get(
                          self.mask, lambda: scores.masked_fill(~mask, -math.inf))()
        weights = scores.softmax(self.softmax)
        if mask is not None and self.mask == "after":
            weights = weights * mask
        return weights / math.sqrt(self.d_k) if self.scale == "after" else weights


ACROSS_SEQUENCES = (
    "Attention ran over the batch: sequences look at one another. x is [B, T, d_model]. Code for time-first tensors,"
    " or nn.MultiheadAttention without batch_first=True, takes axis 0 for time.")
INSIDE_TOKENS = (
    "The axes stayed [B, T, h, d_k], so the product compares the heads inside one token and tokens never meet. "
    "Exchange axes 1 and 2 before the product, and back after it.")


LOOKS_ACROSS = (
    "In your layer sequences look at one another. Does the attention run over the batch, or its softmax? x is "
    "[B, T, d_model]. Code for time-first tensors takes axis 0 for time.")
LOOKS_AT_NONE = (
    "In your layer tokens never meet. Do the axes stay [B, T, h, d_k]? Then the product compares the heads inside one "
    "token: exchange axes 1 and 2 before it, and back after it.")


def sees(answer, generator):
    """What a token in the middle of the first sequence looks at and should not, or that it looks at no other token."""
    B, T, h, d_k = _sizes(generator)
    middle = T // 2  # neither the first nor, from T = 3 on, the last: a causal answer looks at some token there
    weights = tuple(normal(generator, h * d_k, h * d_k) / math.sqrt(h * d_k) for _ in WEIGHTS)
    x = normal(generator, B, T, h * d_k)
    other_sequences, other_tokens = x + 1, x.clone()
    other_sequences[0] = x[0]
    other_tokens[0] += 1
    other_tokens[0, middle] = x[0, middle]

    def seen(x):
        return ask(answer, build_and_call, Case((h * d_k, h, weights, x, None)))[0, middle]
    if not seen(x).isfinite().all():
        return None
    if not torch.allclose(seen(x), seen(other_sequences)):
        return LOOKS_ACROSS
    return LOOKS_AT_NONE if torch.allclose(seen(x), seen(other_tokens)) else None


BLOCKED_IS_SEEN = (
    "In your layer a blocked key still has a say: when its token changes, so does the output at the others. Blocked "
    "scores must become -inf, or a number as low as -1e9, before the softmax.")


def leaks(answer, generator):
    """Whether a layer that is right without a mask lets a key through that the mask blocks for everybody."""
    B, T, h, d_k = _sizes(generator)
    weights = tuple(normal(generator, h * d_k, h * d_k) / math.sqrt(h * d_k) for _ in WEIGHTS)
    x = normal(generator, B, T, h * d_k)
    other = torch.cat([x[:, :-1], x[:, -1:] + 1], dim=1)
    last_blocked = (torch.arange(T) < T - 1).expand(T, T)

    def output(layer, tokens, mask):
        return ask(layer, build_and_call, Case((h * d_k, h, weights, tokens, mask)))[:, :-1]
    if not torch.allclose(output(answer, x, None), output(MultiHeadAttention, x, None), atol=1e-5):
        return None
    before, after = output(answer, x, last_blocked), output(answer, other, last_blocked)
    return BLOCKED_IS_SEEN if before.isfinite().all() and not torch.allclose(before, after, atol=1e-5) else None


class _Hidden(nn.Module):
    """The right layers under other names."""

    def __init__(self, d_model, h):
        super().__init__()
        self.layer = Variant(d_model, h)

    def forward(self, x, mask=None):
        return self.layer(x, mask)


class _Unregistered(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.layers = [Variant(d_model, h)]

    def load_weights(self, *weights):
        self.layers[0].to(weights[0].dtype)
        fill(self.layers[0], weights, None)

    def forward(self, x, mask=None):
        return self.layers[0](x, mask)


class _WithDropout(Variant):
    def forward(self, x, mask=None):
        return F.dropout(super().forward(x, mask), 0.1)


class _Narrow(Variant):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        self.w_q = self.w_k = self.w_v = nn.Linear(self.d_k, self.d_k, bias=False)


class _NarrowOutput(Variant):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        self.w_o = nn.Linear(self.d_k, d_model, bias=False)


class _Plain:
    """No nn.Module."""

    def __init__(self, d_model, h):
        if d_model % h:
            raise ValueError("h must divide d_model")


def _wrong(**choice):
    return partial(Variant, **choice)


MODULE_MISTAKES = (
    # Seen, not compared
    Misconception("not a module", (
        "This builds no nn.Module. Write class MultiHeadAttention(nn.Module) and call super().__init__() first in "
        "__init__; then layers that you assign to self are its own."), _Plain),
    Misconception("no way in", (
        "The check cannot give this layer its weights. Name the four nn.Linear layers w_q, w_k, w_v and w_o, or "
        "write a method load_weights(w_q, w_k, w_v, w_o) that copies four matrices [out, in] to where you keep "
        "yours."), _Hidden),
    Misconception("narrow projections", (
        "A projection of yours takes d_k channels: the input is cut into slices before it is projected. Every head "
        "reads all d_model channels. Project d_model to d_model first, then split the result."), _Narrow),
    Misconception("narrow output", (
        "Your w_o takes d_k channels: the heads are summed, averaged, or only one of them is used. They are laid "
        "side by side, so w_o takes h * d_k = d_model channels."), _NarrowOutput),
    Misconception("not registered", (
        "The layer computes with weights that are not its parameters, so an optimizer would never see them. Layers "
        "in a Python list or plain tensors are not registered: use nn.ModuleList, or nn.Parameter."), _Unregistered),
    Misconception("random", (
        "forward draws random numbers: dropout is active, or layers are made anew at each call. This layer has no "
        "dropout, and its layers are made once, in __init__."), _WithDropout),
    # Projections
    Misconception("biases", (
        "Your linear layers have a bias. Here the four matrices act alone: pass bias=False."), _wrong(bias=True)),
    Misconception("transposed weights", (
        "You multiply by the weights as they come, x @ w. They are [out, in], as nn.Linear keeps them, so the "
        "product is x @ w.T."),
        _wrong(turned=WEIGHTS)),
    Misconception("w_o transposed", (
        "The last product is with the transpose of w_o's weight. A weight is [out, in], so call the layer, self.w_o(joined), or "
        "multiply by self.w_o.weight.T."),
        _wrong(turned=("w_o",))),
    Misconception("sliced input", (
        "Each head projects only its own slice of the input. The input is never cut: every head reads all d_model "
        "channels. Project first, then split the result."), _wrong(reads="sliced")),
    Misconception("keys as values", "The values come from w_k. They have a matrix of their own, w_v.", _wrong(reads="k as v")),
    Misconception("queries as values", "The values come from w_q. They have a matrix of their own, w_v.", _wrong(reads="q as v")),
    Misconception("keys as queries", "The queries come from w_k. They have a matrix of their own, w_q.", _wrong(reads="k as q")),
    Misconception("queries as keys", "The keys come from w_q. They have a matrix of their own, w_k.", _wrong(reads="q as k")),
    Misconception("values as keys", "The keys come from w_v. They have a matrix of their own, w_k.", _wrong(reads="v as k")),
    Misconception("bare values", "The values are x itself. They are x projected by w_v.", _wrong(reads="x as v")),
    Misconception("q and k exchanged", (
        "Queries and keys have changed places: token i asks with its key. Row i of the scores is query i against all"
        " keys, q @ k.mT."),
        _wrong(reads="q and k exchanged")),
    # Layout
    Misconception("direct view", (
        "You went straight to [B, h, T, d_k] in one reshape, which deals out runs of whole tokens. Cut the channels "
        "first, to [B, T, h, d_k]; then exchange axes 1 and 2."), _wrong(split="direct")),
    Misconception("strided", (
        "Head i got every h-th channel. Here it takes a run of d_k: cut into [B, T, h, d_k], not [B, T, d_k, h]."),
        _wrong(split="strided")),
    Misconception("heads against heads", INSIDE_TOKENS, _wrong(split="kept")),
    Misconception("over the batch", ACROSS_SEQUENCES, _wrong(axis="batch")),
    Misconception("no transpose back", (
        "You joined the heads by a reshape without transposing back, so rows are filled with several tokens of one "
        "head. Make [B, h, T, d_k] into [B, T, h, d_k] first."), _wrong(merge="reshape")),
    # Scores
    Misconception("scale by d_model", (
        "You divide the scores by sqrt(d_model). A head's dot product has d_k terms, so the scale is sqrt(d_k)."),
        _wrong(scale="d_model")),
    Misconception("scale by T", (
        "You divide the scores by sqrt(T), the number of tokens. A head's dot product has d_k terms, so the scale is "
        "sqrt(d_k). Which axis does your size come from?"), _wrong(scale="T")),
    Misconception("scale by h", (
        "You divide the scores by sqrt(h), the number of heads. A head's dot product has d_k terms, so the scale is "
        "sqrt(d_k). Which axis does your size come from?"), _wrong(scale="h")),
    Misconception("no scale", "The scores are not scaled. Divide them by sqrt(d_k) before the softmax.", _wrong(scale="none")),
    Misconception("no root", "You divide the scores by d_k. The scale is its square root.", _wrong(scale="d_k")),
    Misconception("scale after softmax", (
        "You scale after the softmax, so the weights of a row no longer sum to 1. Divide the scores, before the "
        "softmax."),
        _wrong(scale="after")),
    Misconception("softmax over queries", (
        "The softmax runs over the queries, so the weights of one query do not sum to 1. Take it over the keys, the "
        "last axis."),
        _wrong(softmax=-2)),
    Misconception("softmax over the batch", (
        "The softmax runs over the batch, so the sequences share one weight for each pair of tokens. Take it over the "
        "keys, the last axis."),
        _wrong(softmax=0)),
    Misconception("softmax over heads", (
        "The softmax runs over the heads, so the heads share one weight for each pair of tokens. Take it over the "
        "keys, the last axis."),
        _wrong(softmax=1)),
    # Mask
    Misconception("mask inverted", (
        "The mask is read the other way round. Here True means may attend; blocked is where it is False. torch's "
        "nn.MultiheadAttention has the opposite convention for attn_mask."), _wrong(mask="inverted")),
    Misconception("mask ignored", (
        "The mask has no effect. Is it used at all? masked_fill returns a new tensor: keep its result."),
        _wrong(mask="ignored")),
    Misconception("mask added", (
        "The mask is added to the scores as 0 and 1. That favors the allowed keys a little and blocks none. Blocked "
        "scores must become -inf."),
        _wrong(mask="added")),
    Misconception("blocked scores at 0", (
        "Blocked scores become 0, or nearly 0, before the softmax. exp(0) is 1, so blocked keys still get weight. "
        "They must become -inf."),
        _wrong(mask="zeroed")),
    Misconception("mask after softmax", (
        "The mask is multiplied after the softmax, so the weights left in a row no longer sum to 1. Set blocked "
        "scores to -inf before the softmax."), _wrong(mask="after")),
    Misconception("plus infinity", "Blocked scores become +inf, and the softmax gives NaN. The sign must be minus.",
                  _wrong(mask="plus inf")),
    Misconception("always causal", (
        "A causal triangle is applied whatever mask comes, even when none does. Block what the mask blocks, and "
        "nothing without one."),
        _wrong(mask="causal")),
    Misconception("causal instead of the mask", (
        "Whatever mask comes, you block a causal triangle in its place. Block what the mask blocks: the keys where it is "
        "False."),
        _wrong(mask="causal instead")),
    # Joining
    Misconception("one map for all", (
        "The attention weights are averaged over the heads before use, so all heads look the same way. Each head "
        "blends with its own map."),
        _wrong(maps="averaged")),
    Misconception("no W_O", (
        "The result is the joined heads, before W_O. The output projection is missing, or its result is not the one "
        "that you return."),
        _wrong(out="none")),
    Misconception("averaged", (
        "The output is divided by h: the heads are averaged. Joining adds their contributions up."),
        _wrong(out="averaged")),
    Misconception("residual", (
        "You add the input x to the output. A transformer block does that, around this layer; the layer itself returns what "
        "w_o gives."),
        _wrong(out="residual")),
)

MULTI_HEAD_ATTENTION = Exercise("MultiHeadAttention", MultiHeadAttention, _draw_module, MODULE_MISTAKES,
                                axes=("sequence", "token", "channel"), probes=(sees, leaks), run=build_and_call, may_draw=True)

EXERCISES = (MERGE_HEADS, CONTRIBUTIONS, MULTI_HEAD_ATTENTION)
