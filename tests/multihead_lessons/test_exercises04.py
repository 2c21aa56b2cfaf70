"""Banks of lesson 04: right answers in many styles pass, every mistake in joining, summing and building is named."""
import math
from dataclasses import replace

import einops
import pytest
import torch
import torch.nn.functional as F
from banks import assert_every_misconception_is_named, assert_right, sentence, stranger
from torch import nn

import multihead as mh
from multihead_lessons.exercises import examine, exercises
from multihead_lessons.exercises.examining import examine_exercise
from multihead_lessons.exercises.lesson04 import MultiHeadAttention as Reference
from multihead_lessons.exercises.lesson04 import Variant, merge_picture


@pytest.mark.parametrize("name", ["merge_heads", "head_contributions", "MultiHeadAttention"])
def test_every_misconception_is_named(name):
    assert_every_misconception_is_named(exercises()[name])


# merge_heads

def merge_by_reshape(x):
    B, h, T, d_k = x.shape
    return x.transpose(1, 2).reshape(B, T, h * d_k)


def merge_by_contiguous_view(x):
    B, h, T, d_k = x.shape
    return x.transpose(1, 2).contiguous().view(B, T, -1)


def merge_by_permute_and_flatten(x):
    return x.permute(0, 2, 1, 3).flatten(2)


def merge_by_cat(x):
    return torch.cat(list(x.unbind(1)), dim=-1)


def merge_by_chunks(x):
    return torch.cat([part.squeeze(1) for part in x.chunk(x.shape[1], dim=1)], -1)


def merge_by_stack(x):
    return torch.stack([x[:, i] for i in range(x.size(1))], dim=2).flatten(start_dim=-2)


def merge_by_einops(x):
    return einops.rearrange(x, "b h t d -> b t (h d)")


def merge_by_einsum(x):
    B, h, T, d_k = x.shape
    return torch.einsum("bhtd->bthd", x).reshape(B, T, h * d_k)


def merge_by_loop(x):
    B, h, T, d_k = x.shape
    out = x.new_empty(B, T, h * d_k)
    for i in range(h):
        out[:, :, i * d_k:(i + 1) * d_k] = x[:, i]
    return out


def merge_by_vmap(x):
    return torch.vmap(lambda heads: torch.hstack(tuple(heads)))(x)


def merge_by_mT(x):
    B, h, T, d_k = x.shape
    return x.mT.reshape(B, h * d_k, T).mT


MERGES = [merge_by_reshape, merge_by_contiguous_view, merge_by_permute_and_flatten, merge_by_cat, merge_by_chunks, merge_by_stack,
          merge_by_einops, merge_by_einsum, merge_by_loop, merge_by_vmap, merge_by_mT]


def test_right_merges_in_every_style_pass():
    assert_right("merge_heads", MERGES)


def test_wrong_merges_in_a_strangers_style_are_named():
    def scrambled(heads):
        return heads.contiguous().view(heads.size(0), heads.size(2), heads.size(1) * heads.size(3))

    def stubborn(heads):
        b, n, t, d = heads.size()
        return heads.permute(0, 2, 1, 3).view(b, t, n * d)

    def interleaved(heads):
        return einops.rearrange(heads, "b h t d -> b t (d h)")

    def mean(heads):
        return sum(heads.unbind(1)) / heads.shape[1]

    def viewed(heads):
        b, n, t, d = heads.size()
        return heads.view(b, t, n * d)

    for answer, slug in [(scrambled, "no transpose"), (viewed, "no transpose, by view"), (stubborn, "view"), (interleaved, "interleaved"), (mean, "averaged")]:
        assert examine("merge_heads", answer).misconception == slug


def test_the_merge_picture_shows_wanted_and_found():
    picture = merge_picture(lambda x: x.reshape(1, 3, 4))
    assert "8 of 12 places hold another number" in picture.alt
    assert merge_picture(merge_by_reshape) is None and merge_picture(lambda x: 3) is None


# head_contributions

def by_slices(heads, w_o):
    d_k = heads.shape[-1]
    return torch.stack([heads[:, i] @ w_o[i * d_k:(i + 1) * d_k] for i in range(heads.shape[1])], dim=1)


def by_einsum(heads, w_o):
    h, d_k = heads.shape[1], heads.shape[3]
    return torch.einsum("bhtk,hkm->bhtm", heads, w_o.reshape(h, d_k, -1))


def by_unflatten(heads, w_o):
    return heads @ w_o.unflatten(0, (heads.size(1), heads.size(-1)))


def by_chunks(heads, w_o):
    return torch.stack([head @ block for head, block in zip(heads.unbind(1), w_o.chunk(heads.shape[1]))], 1)


def by_blanking(heads, w_o):
    """Joins a copy in which every other head is 0, and multiplies by the whole matrix."""
    B, h, T, d_k = heads.shape
    parts = []
    for i in range(h):
        only = torch.zeros_like(heads)
        only[:, i] = heads[:, i]
        parts.append(only.transpose(1, 2).reshape(B, T, h * d_k) @ w_o)
    return torch.stack(parts, dim=1)


def by_difference(heads, w_o):
    """The output minus the output without the head, in double precision."""
    def joined(x):
        return x.double().transpose(1, 2).flatten(2) @ w_o.double()
    keep = 1 - torch.eye(heads.shape[1]).double()
    return torch.stack([joined(heads) - joined(heads * keep[i, :, None, None]) for i in range(heads.shape[1])], 1).to(heads.dtype)


def by_einops(heads, w_o):
    return einops.einsum(heads, einops.rearrange(w_o, "(h k) m -> h k m", h=heads.shape[1]), "b h t k, h k m -> b h t m")


def by_bmm(heads, w_o):
    B, h, T, d_k = heads.shape
    folded = heads.transpose(0, 1).reshape(h, B * T, d_k)
    return torch.bmm(folded, w_o.reshape(h, d_k, w_o.shape[1])).view(h, B, T, -1).transpose(0, 1)


def by_linear(heads, w_o):
    d_k = heads.shape[-1]
    return torch.stack([F.linear(heads[:, i], w_o[i * d_k:(i + 1) * d_k].T) for i in range(heads.shape[1])], 1)


def by_broadcast(heads, w_o):
    h, d_k = heads.shape[1], heads.shape[-1]
    return (heads.unsqueeze(-1) * w_o.reshape(h, 1, d_k, -1)).sum(-2)


CONTRIBUTIONS = [by_slices, by_einsum, by_unflatten, by_chunks, by_blanking, by_difference, by_einops, by_bmm, by_linear, by_broadcast]


def test_right_contributions_in_every_style_pass():
    assert_right("head_contributions", CONTRIBUTIONS)


def test_wrong_contributions_in_a_strangers_style_are_named():
    def columns(heads, w_o):
        k = heads.shape[-1]
        return torch.stack([heads[:, i] @ w_o[:, i * k:(i + 1) * k].T for i in range(heads.shape[1])], 1)

    def same_rows(heads, w_o):
        return heads @ w_o[:heads.shape[-1]]

    def output(heads, w_o):
        return merge_by_cat(heads) @ w_o

    for answer, slug in [(same_rows, "the first rows"), (output, "summed"), (columns, "columns")]:
        assert examine("head_contributions", answer).misconception == slug


# MultiHeadAttention

class Plain(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        assert d_model % h == 0
        self.h, self.d_k = h, d_model // h
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def split(self, x):
        return x.view(x.size(0), -1, self.h, self.d_k).transpose(1, 2)

    def attend(self, q, k, v, mask):
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return F.softmax(scores, dim=-1) @ v

    def forward(self, x, mask=None):
        out = self.attend(*map(self.split, (self.w_q(x), self.w_k(x), self.w_v(x))), mask)
        return self.w_o(out.transpose(1, 2).contiguous().view(x.size(0), -1, self.h * self.d_k))


class AdditiveMask(Plain):
    def attend(self, q, k, v, mask):
        bias = torch.zeros_like(q[..., :1] @ k[..., :1].mT)
        if mask is not None:
            bias = bias.masked_fill(mask.logical_not(), float("-inf"))
        return ((q / self.d_k**0.5) @ k.mT + bias).softmax(-1) @ v


class FiniteMinimum(Plain):
    def attend(self, q, k, v, mask):
        scores = q * self.d_k**-0.5 @ k.mT
        if mask is not None:
            scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ v


class OwnSoftmax(Plain):
    def attend(self, q, k, v, mask):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(self.d_k)
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        powers = powers if mask is None else powers * mask
        return powers / powers.sum(-1, keepdim=True) @ v


class Sdpa(Plain):
    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class InDouble(Plain):
    def attend(self, q, k, v, mask):
        return super().attend(q.double(), k.double(), v.double(), mask).to(q.dtype)


class NoDropout(Plain):
    def __init__(self, d_model, h, dropout=0.0):
        super().__init__(d_model, h)
        self.dropout = nn.Dropout(dropout)

    def attend(self, q, k, v, mask):
        return self.dropout(super().attend(q, k, v, mask))


class FoldedBatch(Plain):
    def attend(self, q, k, v, mask):
        B, h, T, d_k = q.shape
        scores = torch.bmm(q.reshape(B * h, T, d_k), k.reshape(B * h, T, d_k).transpose(1, 2)) / d_k**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask.expand(B, h, T, T).reshape(B * h, T, T), -math.inf)
        return torch.bmm(scores.softmax(2), v.reshape(B * h, T, d_k)).view(B, h, T, d_k)


class NoTranspose(Plain):
    def forward(self, x, mask=None):
        q, k, v = (w(x).unflatten(-1, (self.h, self.d_k)) for w in (self.w_q, self.w_k, self.w_v))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return self.w_o(torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v).flatten(-2))


class Einops(Plain):
    def forward(self, x, mask=None):
        q, k, v = (einops.rearrange(w(x), "b t (h d) -> b h t d", h=self.h) for w in (self.w_q, self.w_k, self.w_v))
        return self.w_o(einops.rearrange(self.attend(q, k, v, mask), "b h t d -> b t (h d)"))


class LoopOverHeads(Plain):
    def forward(self, x, mask=None):
        B, T, d_model = x.shape
        mask = None if mask is None else mask.expand(B, self.h, T, T)
        out = 0
        for i in range(self.h):
            own = slice(i * self.d_k, (i + 1) * self.d_k)
            q, k, v = (x @ w.weight[own].T for w in (self.w_q, self.w_k, self.w_v))
            head = self.attend(q, k, v, None if mask is None else mask[:, i])
            out = out + head @ self.w_o.weight[:, own].T
        return out


class Fused(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        if d_model % h:
            raise ValueError("no equal heads")
        self.h = h
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def load_weights(self, w_q, w_k, w_v, w_o):
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([w_q, w_k, w_v]))
            self.out.weight.copy_(w_o)

    def forward(self, x, mask=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * (C // self.h)**-0.5
        scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))


class OneModuleForEachHead(nn.Module):
    class Head(nn.Module):
        def __init__(self, d_model, d_k):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(d_model, d_k, bias=False) for _ in range(3))

        def forward(self, x, mask):
            scores = self.q(x) @ self.k(x).mT / math.sqrt(self.q.out_features)
            return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1) @ self.v(x)

    def __init__(self, d_model, h):
        super().__init__()
        d_k, rest = divmod(d_model, h)
        assert not rest
        self.heads = nn.ModuleList(self.Head(d_model, d_k) for _ in range(h))
        self.join = nn.Linear(d_model, d_model, bias=False)

    def load_weights(self, w_q, w_k, w_v, w_o):
        for i, head in enumerate(self.heads):
            for linear, weight in ((head.q, w_q), (head.k, w_k), (head.v, w_v)):
                linear.weight = nn.Parameter(weight.chunk(len(self.heads))[i].clone())
        self.join.weight.data = w_o

    def forward(self, x, mask=None):
        if mask is not None:
            mask = mask.expand(len(x), len(self.heads), x.shape[1], x.shape[1])
        return self.join(torch.cat([head(x, None if mask is None else mask[:, i]) for i, head in enumerate(self.heads)], -1))


class Tensors(nn.Module):
    """Parameters without any linear layer, one array [h, d_model, d_k] for each job."""

    def __init__(self, d_model, h):
        super().__init__()
        assert d_model % h == 0
        self.h = h
        self.q, self.k, self.v = (nn.Parameter(torch.empty(h, d_model, d_model // h)) for _ in range(3))
        self.o = nn.Parameter(torch.empty(h, d_model // h, d_model))

    @torch.no_grad()
    def load_weights(self, w_q, w_k, w_v, w_o):
        for ours, theirs in ((self.q, w_q), (self.k, w_k), (self.v, w_v)):
            ours.copy_(theirs.unflatten(0, (self.h, -1)).mT)
        self.o.copy_(w_o.T.unflatten(0, (self.h, -1)))

    def forward(self, x, mask=None):
        q, k, v = (torch.einsum("btm,hmd->bhtd", x, w) for w in (self.q, self.k, self.v))
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores + torch.where(mask, 0.0, -math.inf)
        return torch.einsum("bhts,bhsd,hdm->btm", scores.softmax(-1), v, self.o)


class TorchsModule(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.mha = nn.MultiheadAttention(d_model, h, bias=False, batch_first=True)

    @torch.no_grad()
    def load_weights(self, w_q, w_k, w_v, w_o):
        self.mha.in_proj_weight.copy_(torch.cat([w_q, w_k, w_v]))
        self.mha.out_proj.weight.copy_(w_o)

    def forward(self, x, mask=None):
        if mask is not None:
            mask = ~mask.expand(x.shape[0], self.mha.num_heads, x.shape[1], x.shape[1]).flatten(0, 1)
        return self.mha(x, x, x, attn_mask=mask, need_weights=False)[0]


class WithTheLibrarysPieces(Plain):
    def forward(self, x, mask=None):
        q, k, v = (mh.split_heads(w(x), self.h) for w in (self.w_q, self.w_k, self.w_v))
        return self.w_o(mh.merge_heads(mh.attention(q, k, v, mask)[0]))


RIGHT = [Plain, AdditiveMask, FiniteMinimum, OwnSoftmax, Sdpa, InDouble, NoDropout, FoldedBatch, NoTranspose, Einops, LoopOverHeads,
         Fused, OneModuleForEachHead, Tensors, TorchsModule, WithTheLibrarysPieces]


def test_right_layers_in_every_style_pass():
    assert_right("MultiHeadAttention", RIGHT, range(3))


@pytest.mark.parametrize("answer, noted", [(Sdpa, True), (TorchsModule, True), (Plain, False)])
def test_torchs_own_attention_is_noted(answer, noted):
    assert (examine("MultiHeadAttention", answer).notes == ("uses torch's own attention",)) == noted


def test_the_reference_is_the_librarys_layer_and_the_variant_without_a_choice_is_right():
    layer, ours = mh.MultiHeadAttention(24, 4), Reference(24, 4)
    ours.load_state_dict(layer.state_dict())
    x, mask = torch.randn(2, 5, 24), torch.ones(5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(ours(x), layer(x))
    torch.testing.assert_close(ours(x, mask), layer(x, mask=mask))
    assert_right("MultiHeadAttention", [stranger(Variant)])


class Subclass(mh.MultiHeadAttention):
    pass


class Wrapper(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.layer = mh.MultiHeadAttention(d_model, h)
        self.w_q, self.w_k, self.w_v, self.w_o = self.layer.w_q, self.layer.w_k, self.layer.w_v, self.layer.w_o

    def forward(self, x, mask=None):
        return self.layer(x, mask=mask)


@pytest.mark.parametrize("answer", [mh.MultiHeadAttention, Reference, Subclass, Wrapper], ids=["library", "reference", "subclass", "wrapper"])
def test_the_librarys_own_layer_is_refused(answer):
    assert "library's own MultiHeadAttention" in sentence("MultiHeadAttention", answer)


class SlicesFirst(OneModuleForEachHead):
    """Small layers, one for each slice of the input, with the matching blocks of the weights."""

    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        self.heads = nn.ModuleList(self.Head(d_model // h, d_model // h) for _ in range(h))

    def load_weights(self, w_q, w_k, w_v, w_o):
        super().load_weights(w_q, w_k, w_v, w_o)
        for i, head in enumerate(self.heads):
            for linear in (head.q, head.k, head.v):
                linear.weight = nn.Parameter(linear.weight.chunk(len(self.heads), dim=1)[i].clone())

    def forward(self, x, mask=None):
        h = len(self.heads)
        mask = None if mask is None else mask.expand(len(x), h, x.shape[1], x.shape[1])
        return self.join(torch.cat([head(part, None if mask is None else mask[:, i])
                                    for i, (head, part) in enumerate(zip(self.heads, x.chunk(h, -1)))], -1))


class ListOfHeads(OneModuleForEachHead):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        heads = list(self.heads)
        del self.heads
        self.heads = heads


class ListOfLayers(Plain):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        layers = [self.w_q, self.w_k, self.w_v]
        del self.w_q
        self.w_q = layers[:1]


class OutputKeptAsATensor(Fused):
    def load_weights(self, w_q, w_k, w_v, w_o):
        super().load_weights(w_q, w_k, w_v, w_o)
        del self.out
        self.out = lambda joined: joined @ w_o.T


class ForgetsTheOutputLayer(Plain):
    def forward(self, x, mask=None):
        out = self.attend(*map(self.split, (self.w_q(x), self.w_k(x), self.w_v(x))), mask).transpose(1, 2).flatten(2)
        self.w_o(out)
        return out


class HasNoOutputLayer(ForgetsTheOutputLayer):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        del self.w_o
        self.w_o = lambda out: out


class AddsHeads(Plain):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        self.w_o = nn.Linear(self.d_k, d_model, bias=False)

    def forward(self, x, mask=None):
        return self.w_o(self.attend(*map(self.split, (self.w_q(x), self.w_k(x), self.w_v(x))), mask).sum(1))


class ThrowsTheFilledScoresAway(Plain):
    def attend(self, q, k, v, mask):
        scores = q @ k.mT / math.sqrt(self.d_k)
        if mask is not None:
            scores.masked_fill(~mask, -math.inf)
        return scores.softmax(-1) @ v


class TinyFill(Plain):
    def attend(self, q, k, v, mask):
        scores = q @ k.mT / math.sqrt(self.d_k)
        return (scores if mask is None else scores.masked_fill(~mask, 1e-9)).softmax(-1) @ v


class OppositeSdpa(Plain):
    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else ~mask)


class TimeFirst(Plain):
    def split(self, x):
        return x.view(x.size(0), x.size(1) * self.h, self.d_k).transpose(0, 1).unflatten(0, (x.size(1), self.h))

    def forward(self, x, mask=None):
        T, B, d_model = x.shape
        out = self.attend(*map(self.split, (self.w_q(x), self.w_k(x), self.w_v(x))), mask)
        return self.w_o(out.permute(2, 0, 1, 3).reshape(T, B, d_model))


class TorchsModuleTimeFirst(TorchsModule):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        self.mha.batch_first = False

    def forward(self, x, mask=None):
        return self.mha(x, x, x, attn_mask=mask)[0]


class WithBiases(Plain):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))


class ActiveDropout(NoDropout):
    def __init__(self, d_model, h):
        super().__init__(d_model, h, dropout=0.1)


class DropoutInSdpa(Plain):
    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)


class UntransposedTensors(Fused):
    def forward(self, x, mask=None):
        B, T, C = x.shape
        q, k, v = (x @ w for w in self.qkv.weight.chunk(3))
        q, k, v = (z.view(B, T, self.h, -1).transpose(1, 2) for z in (q, k, v))
        scores = q @ k.mT / math.sqrt(C // self.h)
        scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C) @ self.out.weight


class OutputTransposed(Plain):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        self.w_o.forward = lambda joined: joined @ self.w_o.weight


class AddsItsInput(Plain):
    def forward(self, x, mask=None):
        return x + super().forward(x, mask)


class ScaledByTokens(Plain):
    def attend(self, q, k, v, mask):
        scores = q @ k.mT / math.sqrt(k.shape[2])
        return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1) @ v


@pytest.mark.parametrize("answer, slug", [
    (SlicesFirst, "sliced input"), (ListOfHeads, "not registered"), (ListOfLayers, "not registered"),
    (OutputKeptAsATensor, "not registered"), (ForgetsTheOutputLayer, "no W_O"), (HasNoOutputLayer, "no way in"), (AddsHeads, "narrow output"),
    (ThrowsTheFilledScoresAway, "mask ignored"), (TinyFill, "blocked scores at 0"), (OppositeSdpa, "mask inverted"),
    (TimeFirst, "over the batch"), (WithBiases, "biases"), (ActiveDropout, "random"), (DropoutInSdpa, "random"),
    (UntransposedTensors, "transposed weights"), (OutputTransposed, "w_o transposed"), (AddsItsInput, "residual"),
    (ScaledByTokens, "scale by T")], ids=lambda value: getattr(value, "__name__", value))
def test_wrong_layers_in_a_strangers_style_are_named(answer, slug):
    assert examine("MultiHeadAttention", answer).misconception == slug


def _pairs():
    return [(slug, wrong) for slug, _, wrong in exercises()["MultiHeadAttention"].explanations() if "+" in slug]


def _is_named(wrong, seed):
    verdict = examine("MultiHeadAttention", stranger(wrong), seed=seed)
    return not verdict.passed and verdict.misconception != "unknown"


def test_some_pairs_of_mistakes_are_refused_and_named():
    """Every ninth of the pairs; each mistake that can be paired is in some of them."""
    chosen = _pairs()[::9]
    assert {part for slug, _ in chosen for part in slug.split("+")} == {part for slug, _ in _pairs() for part in slug.split("+")}
    assert [slug for slug, wrong in chosen if not _is_named(wrong, seed=0)] == []


@pytest.mark.slow
def test_all_pairs_of_mistakes_are_refused_and_named():
    assert [slug for slug, wrong in _pairs() if not _is_named(wrong, seed=1)] == []


class Unsplittable(Plain):
    def __init__(self, d_model, h):
        super().__init__(d_model - d_model % h, h)
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def split(self, x):
        return super().split(x[..., :self.h * self.d_k])

    def forward(self, x, mask=None):
        out = self.attend(*map(self.split, (self.w_q(x), self.w_k(x), self.w_v(x))), mask).transpose(1, 2).flatten(2)
        return self.w_o(F.pad(out, (0, x.shape[-1] - out.shape[-1])))


class NeverRefuses(Plain):
    """Its inner width is h * d_k, so nothing fails where h does not divide d_model."""

    def __init__(self, d_model, h):
        nn.Module.__init__(self)
        self.h, self.d_k = h, d_model // h
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, h * self.d_k, bias=False) for _ in range(3))
        self.w_o = nn.Linear(h * self.d_k, d_model, bias=False)

    def split(self, x):
        return x.unflatten(-1, (self.h, self.d_k)).transpose(1, 2)

    def forward(self, x, mask=None):
        out = self.attend(*map(self.split, (self.w_q(x), self.w_k(x), self.w_v(x))), mask)
        return self.w_o(out.transpose(1, 2).flatten(2))


class IfMask(Plain):
    def attend(self, q, k, v, mask):
        scores = q @ k.mT / math.sqrt(self.d_k)
        if mask:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(-1) @ v


class Refuses(Plain):
    def __init__(self, d_model, h):
        super().__init__(d_model, h)
        self.w_o = nn.Linear(2 * d_model, d_model, bias=False)


class Single(Plain):
    def forward(self, x, mask=None):
        return super().forward(x, mask).float()


class ChangesX(Plain):
    def forward(self, x, mask=None):
        x *= 2
        return super().forward(x / 2, mask)


class WithoutSuper(nn.Module):
    def __init__(self, d_model, h):
        self.w_q = nn.Linear(d_model, d_model, bias=False)


def filled_with(number):
    class Filled(Plain):
        def attend(self, q, k, v, mask):
            scores = q @ k.mT / math.sqrt(self.d_k)
            return (scores if mask is None else scores.masked_fill(~mask, number)).softmax(-1) @ v
    return Filled


class Shifted(Plain):
    def forward(self, x, mask=None):
        return super().forward(x, mask).roll(1, dims=1)


class EachTokenAlone(Plain):
    def forward(self, x, mask=None):
        return self.w_o(torch.tanh(self.w_v(x)))


@pytest.mark.parametrize("answer, words", [
    (Unsplittable, "must raise an exception, and yours returns"),
    (NeverRefuses, "must raise an exception, and yours returns"),
    (IfMask, '"if mask:", raises RuntimeError: Boolean value of Tensor with more than one value is ambiguous. This is the case with a mask'),
    (Refuses, "w_o.weight must be ["),
    (Single, "precision is lost. Keep the input's dtype. This is the case with a mask [B, h, T, T], in float64"),
    (ChangesX, "changes the tensor, list or dict that it is given"),
    (WithoutSuper, "raises AttributeError: cannot assign module before Module.__init__() call"),
    (Shifted, "the values are not"),
    (filled_with(-5.0), "a blocked key still has a say"),
    (filled_with(1e9), "a blocked key still has a say"),
    (TorchsModuleTimeFirst, "sequences look at one another"),
    (EachTokenAlone, "tokens never meet"),
    (lambda d_model, h: None, "builds no nn.Module"),
    (3, "must be a class or a function"),
], ids=["no divisor", "never refuses", "if mask", "wide w_o", "float32", "changes x", "no super", "shifted", "filled with -5", "filled with 1e9", "time-first module", "each token alone", "None", "3"])
def test_other_layers_are_described(answer, words):
    assert words in sentence("MultiHeadAttention", answer)


def test_an_answer_that_raises_in_a_probe_is_described_all_the_same():
    def probe(answer, generator):
        raise RuntimeError("the answer cannot take this input")
    exercise = replace(exercises()["MultiHeadAttention"], probes=(probe,))
    assert "the values are not" in examine_exercise(exercise, Shifted).message


def test_a_stub_is_not_attempted_yet():
    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, h):
            # YOUR CODE HERE
            raise NotImplementedError()
    assert sentence("MultiHeadAttention", MultiHeadAttention) == "not attempted yet."
