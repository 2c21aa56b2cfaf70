"""Scaled dot-product attention and the multi-head layer built from it.

Formulas: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, sections 3.2.1 and 3.2.2.
Row vectors throughout (`x @ W`). Masks are boolean: True = may attend.
"""

import math

import torch
from torch import nn


def attention(q, k, v, mask=None):
    """softmax(q k^T / sqrt(d_k)) v, with the weights it used.

    q: [..., T_q, d_k]    k: [..., T_k, d_k]    v: [..., T_k, d_v], all with the same leading axes.
    mask: boolean, True = may attend, broadcastable to the scores' shape [..., T_q, T_k].

    Returns (output [..., T_q, d_v], weights [..., T_q, T_k]). Each row of weights sums to 1, except that
    a query with no allowed key gets zeros: weights, output and gradient.
    Raises ValueError for shapes that do not fit together and for a mask that is not boolean.
    """
    if min(q.ndim, k.ndim, v.ndim) < 2 or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise ValueError(
            "q, k, v must have at least 2 axes, [..., T, d], and the same leading axes; "
            f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    d_k, T_k = q.shape[-1], k.shape[-2]
    if k.shape[-1] != d_k:
        raise ValueError(f"q and k must have the same d_k; got {d_k} in q and {k.shape[-1]} in k")
    if v.shape[-2] != T_k:
        raise ValueError(f"k and v must have the same T_k; got {T_k} in k and {v.shape[-2]} in v")

    scores = q @ k.mT / math.sqrt(d_k)  # [..., T_q, T_k]
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            kind = getattr(mask, "dtype", type(mask).__name__)
            raise ValueError(f"mask must be a boolean tensor, True = may attend; got {kind}")
        try:
            blocked = ~mask.expand(scores.shape)  # [..., T_q, T_k]
        except RuntimeError:
            raise ValueError(
                f"mask {tuple(mask.shape)} must broadcast to the scores' shape {tuple(scores.shape)}, "
                "axes aligned from the right; one mask per sequence is [B, 1, T_q, T_k]"
            ) from None
        weights = scores.masked_fill(blocked, -math.inf).softmax(dim=-1)
        weights = weights.masked_fill(blocked, 0.0)  # softmax gives NaN where a row has no allowed key
    return weights @ v, weights  # [..., T_q, d_v], [..., T_q, T_k]


def split_heads(x, h):
    """[B, T, d_model] -> [B, h, T, d_k] with d_k = d_model / h; a view, whatever the strides of x.

    Head i gets the channels i * d_k to (i + 1) * d_k - 1 of every token.
    Raises ValueError if x does not have 3 axes or h is not a positive divisor of d_model.
    """
    if x.ndim != 3:
        raise ValueError(f"x must have 3 axes, [B, T, d_model]; got shape {tuple(x.shape)}")
    B, T, d_model = x.shape
    if h < 1 or d_model % h != 0:
        raise ValueError(f"h must be a positive divisor of d_model; got h = {h} and d_model = {d_model}")
    x = x.view(B, T, h, d_model // h)  # [B, T, h, d_k]
    return x.transpose(1, 2)  # [B, h, T, d_k]


def merge_heads(x):
    """[B, h, T, d_k] -> [B, T, h * d_k], the exact inverse of split_heads.

    A view where the strides of x allow one, otherwise a copy.
    Raises ValueError if x does not have 4 axes.
    """
    if x.ndim != 4:
        raise ValueError(f"x must have 4 axes, [B, h, T, d_k]; got shape {tuple(x.shape)}")
    B, h, T, d_k = x.shape
    x = x.transpose(1, 2)  # [B, T, h, d_k]
    return x.reshape(B, T, h * d_k)  # [B, T, h * d_k]


def head_contributions(heads, w_o):
    """What each head adds to the output: [B, h, T, d_model], whose sum over the heads is merge_heads(heads) @ w_o.

    heads: [B, h, T, d_v], the heads' outputs.    w_o: [h d_v, d_model]; for a layer, `layer.w_o.weight.T`.
    Head i meets the rows i * d_v to (i + 1) * d_v - 1 of w_o, and no others.
    Raises ValueError if w_o does not have h d_v rows.
    """
    if heads.ndim != 4 or w_o.ndim != 2 or heads.shape[1] * heads.shape[3] != len(w_o):
        raise ValueError(
            "heads must be [B, h, T, d_v] and w_o [h d_v, d_model]; "
            f"got heads {tuple(heads.shape)} and w_o {tuple(w_o.shape)}"
        )
    B, h, T, d_v = heads.shape
    blocks = w_o.unflatten(0, (h, d_v))  # [h, d_v, d_model]
    return heads @ blocks  # [B, h, T, d_model]


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O, where head_i = attention(query W_i^Q, key W_i^K, value W_i^V).

    d_model: channels of inputs and output.    h: number of (query) heads.
    n_kv_heads: key/value heads, a divisor of h; default h. With fewer (grouped-query attention, Ainslie
        et al. 2023), each key/value head serves h / n_kv_heads consecutive query heads.
    d_k: width of a head; default d_model / h. When given, h need not divide d_model.
    bias: whether the four linear layers have one.

    w_q: d_model -> h d_k    w_k, w_v: d_model -> n_kv_heads d_k    w_o: h d_k -> d_model
    Raises ValueError for sizes below 1 and for sizes that do not divide as described.
    """

    def __init__(self, d_model, h, *, n_kv_heads=None, d_k=None, bias=False):
        super().__init__()
        n_kv_heads = h if n_kv_heads is None else n_kv_heads
        if d_model < 1 or h < 1:
            raise ValueError(f"d_model and h must be at least 1; got d_model = {d_model} and h = {h}")
        if n_kv_heads < 1 or h % n_kv_heads != 0:
            raise ValueError(f"n_kv_heads must be a positive divisor of h; got {n_kv_heads} and h = {h}")
        if d_k is None and d_model % h != 0:
            raise ValueError(f"h must divide d_model if d_k is not given; got h = {h}, d_model = {d_model}")
        if d_k is not None and d_k < 1:
            raise ValueError(f"d_k must be at least 1; got {d_k}")
        self.d_model, self.h, self.n_kv_heads = d_model, h, n_kv_heads
        self.d_k = d_model // h if d_k is None else d_k
        self.w_q = nn.Linear(d_model, h * self.d_k, bias=bias)
        self.w_k = nn.Linear(d_model, n_kv_heads * self.d_k, bias=bias)
        self.w_v = nn.Linear(d_model, n_kv_heads * self.d_k, bias=bias)
        self.w_o = nn.Linear(h * self.d_k, d_model, bias=bias)

    def forward(self, query, key=None, value=None, mask=None):
        """The layer's output [B, T_q, d_model]. Arguments and errors as in `heads`."""
        outputs, _ = self.heads(query, key, value, mask)  # [B, h, T_q, d_k]
        return self.w_o(merge_heads(outputs))  # [B, T_q, d_model]

    def heads(self, query, key=None, value=None, mask=None):
        """What each head computes before w_o: (outputs [B, h, T_q, d_k], weights [B, h, T_q, T_k]).

        query: [B, T_q, d_model]    key, value: [B, T_k, d_model]; key defaults to query, value to key.
        mask: boolean, True = may attend, broadcastable to [B, h, T_q, T_k]. Axes align from the right, so
            [h, T_q, T_k] is one mask per head; one mask per sequence is [B, 1, T_q, T_k]. A mask
            [B, T_q, T_k] is refused unless B is 1 or h, and is then read as one mask per head.
        Raises ValueError for inputs and masks of other shapes.
        """
        key = query if key is None else key
        value = key if value is None else value
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.ndim != 3 or x.shape[-1] != self.d_model:
                raise ValueError(f"{name} must be [B, T, {self.d_model}]; got shape {tuple(x.shape)}")
        q = split_heads(self.w_q(query), self.h)  # [B, h, T_q, d_k]
        k = split_heads(self.w_k(key), self.n_kv_heads)  # [B, n_kv_heads, T_k, d_k]
        v = split_heads(self.w_v(value), self.n_kv_heads)  # [B, n_kv_heads, T_k, d_k]
        if self.n_kv_heads != self.h:
            group = self.h // self.n_kv_heads
            k = k.repeat_interleave(group, dim=1)  # [B, h, T_k, d_k]
            v = v.repeat_interleave(group, dim=1)  # [B, h, T_k, d_k]
        return attention(q, k, v, mask)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention):
        """A layer with a copy of the weights of torch's module, in its dtype, on its device.

        This layer takes batch-first inputs whatever module.batch_first says.
        Raises ValueError if the module does something that this layer cannot.
        """
        d_model, bias = module.embed_dim, module.in_proj_bias is not None
        if (module.kdim, module.vdim) != (d_model, d_model):
            raise ValueError(
                f"kdim and vdim must equal embed_dim; got kdim = {module.kdim}, vdim = {module.vdim} and "
                f"embed_dim = {d_model}"
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError(
                "this layer adds no extra key; got a module with add_bias_kv or add_zero_attn, "
                "which would both have to be False"
            )
        if module.dropout > 0:
            raise ValueError(
                f"this layer has no dropout; got dropout = {module.dropout}, so set module.dropout = 0.0 "
                "first, which changes nothing in eval mode"
            )
        layer = cls(d_model, module.num_heads, bias=bias).to(module.in_proj_weight)
        theirs, ours = module.state_dict(), {}
        for kind in ("weight", "bias") if bias else ("weight",):
            ours[f"w_q.{kind}"], ours[f"w_k.{kind}"], ours[f"w_v.{kind}"] = theirs[f"in_proj_{kind}"].chunk(3)
            ours[f"w_o.{kind}"] = theirs[f"out_proj.{kind}"]
        layer.load_state_dict(ours)
        return layer.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """torch's module, batch-first, with a copy of these weights, in their dtype, on their device.

        Its attn_mask means the opposite: True = may NOT attend. Its output is NaN, not zeros plus w_o's bias,
        for a query with no allowed key when it returns weights, as it does by default.
        Raises ValueError for grouped heads and for h * d_k != d_model, which torch's module does not have.
        """
        if self.n_kv_heads != self.h:
            raise ValueError(
                "nn.MultiheadAttention has no grouped heads, so n_kv_heads must equal h; "
                f"got n_kv_heads = {self.n_kv_heads} and h = {self.h}"
            )
        if self.h * self.d_k != self.d_model:
            raise ValueError(
                "nn.MultiheadAttention needs h * d_k = d_model; "
                f"got h = {self.h}, d_k = {self.d_k} and d_model = {self.d_model}"
            )
        bias = self.w_q.bias is not None
        module = nn.MultiheadAttention(self.d_model, self.h, bias=bias, batch_first=True).to(self.w_q.weight)
        ours, theirs = self.state_dict(), {}
        for kind in ("weight", "bias") if bias else ("weight",):
            theirs[f"in_proj_{kind}"] = torch.cat([ours[f"{w}.{kind}"] for w in ("w_q", "w_k", "w_v")])
            theirs[f"out_proj.{kind}"] = ours[f"w_o.{kind}"]
        module.load_state_dict(theirs)
        return module.train(self.training)
