"""Banks of lesson 01: right answers in many styles pass, every mistake is named, alone and in pairs."""
import functools
import itertools
import math
from fractions import Fraction

import einops
import numpy
import pytest
import torch
import torch.nn.functional as F
from banks import assert_every_misconception_is_named, assert_pairs_are_refused_and_named, assert_right, sentence
from pictures import check_picture

import multihead as mh
from multihead_lessons.exercises import examine, exercises
from multihead_lessons.exercises import lesson01 as bank
from multihead_lessons.exercises.lesson01 import blend_errors, weights_picture


@pytest.fixture(autouse=True)
def one_thread():
    """Threads do not help tensors this small, and on a busy machine they wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# attention

def plain(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return weights @ v, weights


def by_einsum(q, k, v, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", q, k) * q.shape[-1] ** -0.5
    scores = scores if mask is None else torch.where(mask, scores, torch.full_like(scores, -torch.inf))
    weights = scores.softmax(-1)
    return torch.einsum("...qk,...kv->...qv", weights, v), weights


def by_einops(q, k, v, mask=None):
    scores = einops.einsum(q, k, "... q d, ... k d -> ... q k") / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)  # a finite minimum
    weights = scores.softmax(dim=-1)
    return einops.einsum(weights, v, "... q k, ... k d -> ... q d"), weights


def by_folding(q, k, v, mask=None):
    """bmm on one batch of everything that comes before the tokens."""
    lead, (T_q, d_k), T_k = q.shape[:-2], q.shape[-2:], k.shape[-2]
    scores = torch.bmm(q.reshape(-1, T_q, d_k), k.reshape(-1, T_k, d_k).transpose(1, 2)) / d_k**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask.expand(*lead, T_q, T_k).reshape(-1, T_q, T_k), -1e9)
    weights = torch.softmax(scores, 2)
    out = torch.bmm(weights, v.reshape(-1, T_k, v.shape[-1]))
    return out.reshape(*lead, T_q, -1), weights.reshape(*lead, T_q, T_k)


def by_loops(q, k, v, mask=None):
    T_q, T_k, d_k = q.shape[-2], k.shape[-2], q.shape[-1]
    weights = q.new_zeros(*q.shape[:-2], T_q, T_k)
    allowed = torch.ones_like(weights, dtype=torch.bool) if mask is None else mask.expand_as(weights)
    for i in range(T_q):
        powers = [torch.exp((q[..., i, :] * k[..., j, :]).sum(-1) / math.sqrt(d_k)) * allowed[..., i, j]
                  for j in range(T_k)]
        for j in range(T_k):
            weights[..., i, j] = powers[j] / sum(powers)
    return (weights.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2), weights


def by_vmap(q, k, v, mask=None):
    if q.ndim == 2:
        return plain(q, k, v, mask)
    if mask is None:
        return torch.vmap(by_vmap)(q, k, v)
    return torch.vmap(by_vmap)(q, k, v, mask.expand(*q.shape[:-1], k.shape[-2]))


def additive(q, k, v, mask=None):
    bias = 0
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(mask.logical_not(), float("-inf"))
    weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, -1)
    return weights @ v, weights


def scaled_first(q, k, v, mask=None):
    q = q / math.sqrt(q.shape[-1])
    scores = q @ k.mT
    if mask is not None:
        scores = scores + torch.log(mask.to(scores.dtype))  # log 0 = -inf
    weights = scores.softmax(-1)
    return weights.matmul(v), weights


def in_float64(q, k, v, mask=None):
    return plain(q.double(), k.double(), v.double(), mask)


def renormalized(q, k, v, mask=None):
    """The mask after the softmax, with the rows shared out again: the same as before it."""
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    if mask is not None:
        weights = weights * mask
        weights = weights / weights.sum(-1, keepdim=True)
    return weights @ v, weights


def by_hand(q, k, v, mask=None):
    scores = torch.matmul(q, k.swapaxes(-1, -2)).div(math.sqrt(k.shape[-1]))
    if mask is not None:
        scores[~mask.expand_as(scores)] = -math.inf
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = powers / powers.sum(-1, keepdim=True)
    return [weights @ v, weights]


def on_all_four_axes(q, k, v, mask=None):
    lead = (None,) * (4 - q.ndim)
    out, weights = plain(q[lead], k[lead], v[lead], None if mask is None else mask)
    return out.view(*q.shape[:-1], -1), weights.view(*q.shape[:-1], -1)


def in_numpy(q, k, v, mask=None):
    dtype, (q, k, v) = q.dtype, (x.detach().numpy() for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / numpy.sqrt(q.shape[-1])
    scores = scores if mask is None else numpy.where(mask.numpy(), scores, -numpy.inf)
    powers = numpy.exp(scores)
    weights = powers / powers.sum(-1, keepdims=True)
    return torch.tensor(weights @ v, dtype=dtype), torch.tensor(weights, dtype=dtype)


def through_detached_weights(q, k, v, mask=None):
    weights = plain(q, k, v, mask)[1]
    return weights.detach() @ v, weights


def weights_to_draw(q, k, v, mask=None):
    out, weights = plain(q, k, v, mask)
    return out, weights.detach()


class Layer(torch.nn.Module):
    def forward(self, q, k, v, mask=None):
        return plain(q, k, v, mask)


def torchs_own(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), plain(q, k, v, mask)[1]


RIGHT = [plain, by_einsum, by_einops, by_folding, by_loops, by_vmap, additive, scaled_first, in_float64, renormalized,
         by_hand, on_all_four_axes, weights_to_draw, Layer(), torchs_own]


def test_right_attention_in_every_style_passes():
    assert_right("attention", RIGHT)


def test_torchs_own_attention_is_reported_to_the_instructor():
    assert examine("attention", torchs_own).notes == ("uses torch's own attention",)
    assert examine("attention", plain).notes == ()


@pytest.mark.parametrize("name", ["attention", "blend_errors", "operator_schmidt_rank"])
def test_every_misconception_is_named(name):
    assert_every_misconception_is_named(exercises()[name])


def test_two_mistakes_at_once_are_named():
    assert_pairs_are_refused_and_named(exercises()["attention"], seeds=[0])


def test_wrong_attention_in_a_strangers_style_is_named():
    def unscaled(query, key, value, mask=None):
        scores = torch.einsum("...qd,...kd->...qk", query, key)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        weights = F.softmax(scores, dim=-1)
        return weights @ value, weights

    def dropped(q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores.masked_fill(~mask, -math.inf)  # the result is thrown away
        weights = scores.softmax(-1)
        return weights @ v, weights

    def small_number(q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = (scores if mask is None else scores.masked_fill(~mask, 1e-9)).softmax(-1)
        return weights @ v, weights

    def multiplied(q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = (scores if mask is None else scores * mask).softmax(-1)
        return weights @ v, weights

    def torchs_old_convention(q, k, v, mask=None):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = (scores if mask is None else scores.masked_fill(mask, -math.inf)).softmax(-1)
        return weights @ v, weights

    def two_at_once(q, k, v, mask=None):
        scores = q @ k.mT if mask is None else (q @ k.mT).masked_fill(~mask, -1e9)
        weights = torch.softmax(scores, dim=-2)
        return weights @ v, weights

    near_0, both = {"blocked scores near 0"}, {"over the queries", "not scaled"}
    for answer, slugs in [(unscaled, {"not scaled"}), (dropped, {"mask ignored"}), (small_number, near_0), (multiplied, near_0),
                          (torchs_old_convention, {"mask inverted"}), (two_at_once, both)]:
        found = examine("attention", answer).misconception
        assert set(found.split("+")) == slugs, f"{answer.__name__} is taken for {found}"


@pytest.mark.parametrize("answer, words", [
    (lambda q, k, v, mask=None: None, "is there a return"),
    (lambda q, k, v, mask=None: (1, 2, 3), "must be a tuple of 2; you return a tuple of 3"),
    (lambda q, k, v: plain(q, k, v), "raises TypeError"),
    (lambda q, k, v, mask=None: (q @ k.T @ v, q), "raises RuntimeError"),
    (lambda q, k, v, mask=None: plain(q, k, v, None if mask is None else 1 - mask), "RuntimeError: Subtraction"),
    (lambda q, k, v, mask=None: plain(q, k, v, mask) if mask else plain(q, k, v), "Boolean value of Tensor"),
    (lambda q, k, v, mask=None: plain(q.float(), k.float(), v.float(), mask), "precision is lost"),
    (lambda q, k, v, mask=None: [x * float("nan") for x in plain(q, k, v, mask)], "NaN"),
    (lambda q, k, v, mask=None: [x[..., :-1] for x in plain(q, k, v, mask)], "must have the shape"),
    (lambda q, k, v, mask=None: tuple(x.numpy(force=True) for x in plain(q, k, v, mask)), "must be a tensor"),
    (lambda q, k, v, mask=None: plain(F.dropout(q, 0.1), k, v, mask), "random stream"),
    (lambda q, k, v, mask=None: mh.attention(q, k, v, mask), "library's own attention"),
    (in_numpy, "no gradient flows back"),
    (through_detached_weights, "no gradient flows back"),
], ids=["nothing", "three things", "no mask", ".T", "1 - mask", "if mask", "float", "NaN", "shape", "numpy", "dropout",
        "library", "through numpy", "detached weights"])
def test_other_answers_are_described(answer, words):
    assert words in sentence("attention", answer)


def test_an_input_that_is_changed_is_told():
    def in_place(q, k, v, mask=None):
        with torch.no_grad():
            q /= math.sqrt(q.shape[-1])
        scores = q @ k.mT
        weights = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)
        return weights @ v, weights
    assert "changes the tensor" in sentence("attention", in_place)


def test_memorized_sizes_are_told():
    def memorized(q, k, v, mask=None, seen=[]):
        seen.append(q.shape[-1]) if not seen else None
        scores = q @ k.mT / math.sqrt(seen[0])
        scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        return scores.softmax(-1) @ v, scores.softmax(-1)
    assert examine("attention", memorized, seed=0).passed  # all cases of one draw share d_k
    assert not examine("attention", memorized, seed=1).passed

    def four_axes_only(q, k, v, mask=None):
        B, h, T, d_k = q.shape
        return plain(q, k, v, mask)
    assert "not enough values to unpack" in sentence("attention", four_axes_only)


# What no misconception explains: the probes

def scaled_by(factor):
    return lambda q, k, v, mask=None: plain(q * factor, k, v, mask)


def filled_with(number):
    def answer(q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = (scores if mask is None else scores.masked_fill(~mask, number)).softmax(-1)
        return weights @ v, weights
    return answer


def with_positions(q, k, v, mask=None):
    return plain(q, k + torch.arange(k.shape[-2], dtype=k.dtype).unsqueeze(-1), v, mask)


@pytest.mark.parametrize("answer, words", [
    (scaled_by(0.3), "scores 0.30 times as large"),
    (filled_with(-3.0), "a blocked key still counts"),
    (lambda q, k, v, mask=None: [0.9 * x for x in plain(q, k, v, mask)], "yours sum to 0.90 up to 0.90"),
    (lambda q, k, v, mask=None: (plain(q, k, v, mask)[0] + 1, plain(q, k, v, mask)[1]), "is not weights @ v"),
    (with_positions, "must not depend on the order of the keys"),
], ids=["scale", "fill", "sums", "output", "positions"])
def test_a_property_that_fails_is_named(answer, words):
    assert words in sentence("attention", answer)


def test_probes_are_silent_about_right_answers_and_about_what_they_cannot_read():
    for probe in exercises()["attention"].probes:
        for answer in (plain, by_loops, lambda *inputs: None, lambda *inputs: 1 / 0,
                       lambda *inputs: [float("nan") * x for x in plain(*inputs)]):
            assert probe(answer, torch.Generator().manual_seed(0)) is None


def test_the_sizes_cannot_hide_a_wrong_scale():
    """No size is a product, a square or a root of others, so no two divisors agree."""
    for a, b, c in itertools.permutations(bank.SIZES, 3):
        assert a * b != c and a != b * b and a * b not in (64,) and a != 8


def test_the_picture_shows_wanted_and_found():
    picture = weights_picture(functools.partial(bank.attention_variant, blocking="ignored"))
    check_picture(picture)
    assert picture.alt.endswith("10 of 12 weights differ.") and picture.svg.count("blocked") == 4
    check_picture(weights_picture(functools.partial(bank.attention_variant, blocking="+inf")))
    assert weights_picture(plain) is None and weights_picture(lambda q, k, v, mask=None: 3) is None


# blend_errors

@pytest.mark.parametrize("p", [0, 0.1, 0.25, 0.5, 0.9, 1])
def test_blend_errors_are_those_of_a_fit(p):
    draw = torch.Generator().manual_seed(0)
    a, b, a_other, b_other = torch.randn(4, 200_000, generator=draw, dtype=torch.float64)
    z = torch.stack([p * a + (1 - p) * a_other, p * b_other + (1 - p) * b], 1)
    targets = torch.stack([a, b], 1)
    left = targets - z @ torch.linalg.lstsq(z, targets).solution
    assert blend_errors(p) == pytest.approx(left.square().mean(0).tolist(), abs=0.01)
    assert sum(blend_errors(p)) == pytest.approx(1)


def test_right_blend_errors_pass():
    def exact(p):
        p = Fraction(p)
        return tuple(float(w**2 / (p**2 + (1 - p) ** 2)) for w in (1 - p, p))

    def regression(p):
        weights = torch.tensor([p, 1 - p], dtype=torch.float64)
        return list(1 - weights**2 / weights.square().sum())

    def in_float32(p):
        p = torch.tensor(p)
        err_a = (1 - p) ** 2 / (p**2 + (1 - p) ** 2)
        return err_a, (1 - err_a).item()

    def by_factor(p):
        q = 1 - p
        c, d = p / (p * p + q * q), q / (p * p + q * q)
        return (1 - c * p) ** 2 + (c * q) ** 2, (1 - d * q) ** 2 + (d * p) ** 2
    assert_right("blend_errors", [exact, regression, in_float32, by_factor])


def clipped(p):
    q = 1 - min(p, 0.99)
    return q**2 / ((1 - q) ** 2 + q**2), (1 - q) ** 2 / ((1 - q) ** 2 + q**2)


def divided(p):
    odds = p / (1 - p)
    return 1 / (1 + odds**2), 1 / (1 + 1 / odds**2)


@pytest.mark.parametrize("answer, words", [
    (lambda p: 1 - p, "must be a tuple of 2"),
    (divided, "raises ZeroDivisionError: float division by zero"),
    (lambda p: None, "is there a return"),
    (clipped, "This is the case with p = 1."),
    (lambda p: (0.1, 0.1), "the value"),
], ids=["one number", "division", "nothing", "clipped", "constant"])
def test_other_blend_errors_are_described(answer, words):
    assert words in sentence("blend_errors", answer)


# operator_schmidt_rank

def test_right_ranks_pass():
    def product(patterns, maps):
        return torch.linalg.matrix_rank(patterns.flatten(1).mT @ maps.flatten(1))

    def kron(patterns, maps):
        (_, T, _), d = patterns.shape, maps.shape[-1]
        L = sum(torch.kron(a, m.T.contiguous()) for a, m in zip(patterns, maps))
        return int(torch.linalg.matrix_rank(L.reshape(T, d, T, d).permute(0, 2, 1, 3).reshape(T * T, d * d)))

    def svd(patterns, maps):
        R = torch.einsum("hst,hij->stij", patterns, maps).flatten(2).flatten(0, 1)
        values = torch.linalg.svdvals(R)
        return int((values > 1e-5 * values[0]).sum())

    def in_float64(patterns, maps):
        return product(patterns.double(), maps.double()).item()
    assert_right("operator_schmidt_rank", [product, kron, svd, in_float64])


def test_a_loose_tolerance_is_described():
    assert "the value is wrong" in sentence("operator_schmidt_rank", lambda patterns, maps: 1)
