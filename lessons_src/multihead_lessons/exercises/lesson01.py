"""Exercises of lesson 01: attention, blend_errors, operator_schmidt_rank."""
from __future__ import annotations

import math
from functools import partial

import torch

import multihead as mh
from multihead_lessons import svg
from multihead_lessons.exercises.bank import Answer, Case, Exercise, Misconception, normal
from multihead_lessons.running import call
from multihead_lessons.style import HEAD_COLORS
from multihead_lessons.svg import Picture

# attention

SIZES = (3, 4, 5, 6, 7, 10)  # of B, h, T_q, T_k, d_k, d_v; none is a product, a square or a root of others


def _draw_attention(generator: torch.Generator) -> list[Case]:
    """No mask and every kind of mask, 2 to 4 axes; all sizes different, in another order each time."""
    B, h, T_q, T_k, d_k, d_v = torch.tensor(SIZES)[torch.randperm(6, generator=generator)].tolist()
    sizes = ((T_q, d_k), (T_k, d_k), (T_k, d_v))
    # Many take the root of a tensor. That is a float32 number, and only exact where the root is a whole number.
    even_root = ((T_q, 4), (T_k, 4), (T_k, d_v))

    def inputs(*leading: int, sizes=sizes, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        return tuple(normal(generator, *leading, T, d, dtype=dtype) for T, d in sizes)

    def mask(*shape: int) -> torch.Tensor:
        """Every row allows a key and blocks one."""
        order = torch.rand(*shape, generator=generator).argsort(-1)  # [..., T_k]
        return order < torch.randint(1, shape[-1], (*shape[:-1], 1), generator=generator)
    views = tuple(normal(generator, B, T, h * d).unflatten(-1, (h, d)).transpose(1, 2)
                  for T, d in sizes)  # each [B, h, T, d]
    views[0].requires_grad_()  # q alone: its gradient has to come through the weights
    for_each_head = {"mask": mask(B, h, T_q, T_k)}
    low = inputs(B, h, sizes=even_root, dtype=torch.float64)
    low[0][..., 0], low[1][..., 0] = 24.0, -24.0  # every score 288 lower: softmax does not care, a fill of -100 does
    return [
        Case(inputs(B, h)),
        Case((*inputs(B, h), mask(T_q, T_k)), about="one mask [T_q, T_k] for all"),
        Case((*inputs(B, h), mask(B, 1, T_q, T_k)), about="one mask for each sequence, [B, 1, T_q, T_k]"),
        Case((*inputs(B, h), mask(B, 1, 1, T_k)), about="a mask of keys, [B, 1, 1, T_k]"),
        Case(low, for_each_head, about="one mask for each head, float64 numbers, and scores far below 0"),
        Case((*inputs(B), mask(T_q, T_k)), about="three axes, [B, T, d]"),
        Case(inputs(), about="two axes, [T, d]"),
        Case(views, about="inputs that are transposed views, and a q that requires a gradient"),
    ]


def attention_variant(q, k, v, mask=None, scale="sqrt d_k", axis=-1, blocking="-inf", returned="both", values="v"):
    """attention with its choices open: divisor, axis of the softmax, effect of a mask, results, what is blended."""
    scores = q @ k.mT / _divisor(q, k, v, scale)
    weights = _softmax(_blocked(scores, mask, blocking), axis)
    if blocking == "after" and mask is not None:
        weights = weights * mask
    if scale == "after":
        weights = weights / math.sqrt(q.shape[-1])
    output = weights @ {"v": v, "k": k}[values]
    return {
        "both": lambda: (output, weights),
        "exchanged": lambda: (weights, output),
        "output": lambda: output,
        "weights": lambda: weights,
        "scores": lambda: (output, scores),
        "masked scores": lambda: (output, _blocked(scores, mask, blocking)),
        "unmasked": lambda: (output, _softmax(scores, axis)),
    }[returned]()


def _divisor(q, k, v, scale):
    d_k, h = q.shape[-1], q.shape[1] if q.ndim == 4 else 1
    return {
        "sqrt d_k": math.sqrt(d_k), "none": 1, "after": 1, "d_k": d_k, "up": 1 / math.sqrt(d_k), "fixed": 8,
        "sqrt d_model": math.sqrt(h * d_k), "sqrt d_v": math.sqrt(v.shape[-1]), "sqrt T_k": math.sqrt(k.shape[-2]),
    }[scale]


def _blocked(scores, mask, blocking):
    """The scores after the mask, if the mask acts on scores."""
    if blocking == "causal":
        mask, blocking = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), "-inf"
    if mask is None or blocking in ("ignored", "after"):
        return scores
    if blocking == "added":
        return scores + mask
    where, fill = {
        "-inf": (~mask, -math.inf), "finite": (~mask, -1e9), "zero": (~mask, 0.0), "+inf": (~mask, math.inf),
        "-100": (~mask, -100.0), "inverted": (mask, -math.inf), "axis": (~mask.unsqueeze(1), -math.inf),
    }[blocking]
    return scores.masked_fill(where, fill)


def _softmax(scores, axis):
    if axis == "none":
        return scores
    if axis == "all":
        return scores.flatten().softmax(0).view_as(scores)
    return scores.softmax(axis)


def _mistake(slug: str, sentence: str, **changes) -> Misconception:
    return Misconception(slug, sentence, partial(attention_variant, **changes))


SCALE_MISTAKES = (
    _mistake("not scaled", (
        "The scores are not scaled. A dot product of d_k random terms has a standard deviation of sqrt(d_k); divide by "
        "it, so that the softmax does not saturate as d_k grows."), scale="none"),
    _mistake("divided by d_k", (
        "You divide the scores by d_k. Divide by its square root, math.sqrt(d_k)."), scale="d_k"),
    _mistake("sqrt of d_model", (
        "You divide by the square root of h d_k, the width of all heads together. A score is a dot product inside one "
        "head: d_k terms, so sqrt(d_k), the last size of q."), scale="sqrt d_model"),
    _mistake("sqrt of d_v", (
        "You divide by sqrt(d_v), taken from v. The scores come from q and k: divide by sqrt(d_k)."), scale="sqrt d_v"),
    _mistake("sqrt of T_k", (
        "You divide by the square root of the number of keys. A score has d_k terms, however many keys there are: read "
        "d_k from the last axis of q."), scale="sqrt T_k"),
    _mistake("scaled up", "You multiply the scores by sqrt(d_k). Divide.", scale="up"),
    _mistake("fixed scale", (
        "You divide by 8 whatever d_k is; that is sqrt(64). Take d_k from the last axis of q."), scale="fixed"),
    _mistake("scaled after the softmax", (
        "You scale the weights, after the softmax, so their rows no longer sum to 1. Scale the scores, before it."),
        scale="after"),
)

SOFTMAX_MISTAKES = (
    # Over a wrong axis a whole line may be blocked: then -inf gives NaN, and a finite fill does not.
    *(_mistake(slug, sentence, axis=axis, **fill) for axis, slug, sentence in (
        (-2, "over the queries", (
            "Your softmax runs over the queries, so columns sum to 1. Each query shares out one unit of attention over "
            "the keys: softmax over the last axis, dim=-1.")),
        (1, "over axis 1", (
            "Your softmax runs over axis 1, counted from the front. What that axis is depends on how many axes come "
            "before; with four it is the head. The keys are the last axis: dim=-1.")),
        (0, "over axis 0", (
            "Your softmax runs over axis 0, the first. With leading axes that is the batch. The keys are the last "
            "axis: dim=-1.")),
    ) for fill in ({}, {"blocking": "finite"})),
    _mistake("over everything", (
        "Your weights sum to 1 all together. Each row, one for each query, must sum to 1: softmax over dim=-1."),
        axis="all"),
    _mistake("no softmax", (
        "Your weights are the scores themselves. Apply a softmax over the keys, so that each row sums to 1."),
        axis="none"),
)

MASK_MISTAKES = (
    _mistake("mask ignored", (
        "The mask has no effect. Is it used? masked_fill returns a new tensor and leaves the old one as it was: keep "
        "its result."), blocking="ignored"),
    _mistake("mask inverted", (
        "You block what the mask allows. Here True means that the query may attend to the key; fill where the mask is "
        "False."), blocking="inverted"),
    _mistake("blocked scores near 0", (
        "A blocked score becomes 0, or nearly (1e-9 is not -1e9), and e^0 = 1 is a full share. Fill with -inf before "
        "the softmax, so that the weight is exactly 0."), blocking="zero"),
    _mistake("fill not low enough", (
        "You fill blocked scores with a number that is not low enough: where all scores are far below 0, a blocked key wins. "
        "Fill with -inf, or with the least number of the dtype."), blocking="-100"),
    _mistake("mask added", (
        "You add the mask, as 0 and 1, to the scores. That raises the allowed ones a little and blocks nothing. Fill "
        "the blocked scores with -inf."), blocking="added"),
    _mistake("mask after the softmax", (
        "You set weights to 0 after the softmax and do not share them out again: rows sum to less than 1. Block the "
        "scores before the softmax."), blocking="after"),
    _mistake("filled with +inf", (
        "Under a mask your weights are NaN. A score of +inf does that, and so does a row in which every key is blocked (~ of "
        "an integer is never 0). Fill with -inf, and only where the mask is False."), blocking="+inf"),
    _mistake("mask axis inserted", (
        "You insert an axis into the mask. It already broadcasts to the scores' shape [..., T_q, T_k], aligned from "
        "the right: use it as it is."), blocking="axis"),
    _mistake("always causal", (
        "You apply a causal mask of your own. Block what the mask that is given blocks, and nothing when it is None."),
        blocking="causal"),
)

SCORES_RETURNED = ("The second result holds the scores. Return the weights, that is, the scores after the softmax: each "
                   "row sums to 1.")

RESULT_MISTAKES = (
    _mistake("order exchanged", (
        "You return (weights, output). The exercise asks for (output, weights)."), returned="exchanged"),
    _mistake("only the output", (
        "You return the output alone. The exercise asks for two things: (output, weights)."), returned="output"),
    _mistake("only the weights", (
        "You return the weights alone. Blend v with them, and return (output, weights)."), returned="weights"),
    _mistake("scores returned", SCORES_RETURNED, returned="scores"),
    _mistake("scores returned", SCORES_RETURNED, returned="masked scores"),
    _mistake("weights without the mask", (
        "The weights that you return are not those that made the output: the mask is missing in them."),
        returned="unmasked"),
    _mistake("keys as values", (
        "You blend the keys. Scores come from q and k; what the weights blend is v."), values="k"),
)


# Probes: properties that narrow down what no misconception explains

def _called(answer: Answer, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(output, weights), or None if the answer does not get as far as two tensors of finite numbers."""
    outcome = call(lambda: answer(*inputs), list(inputs))
    value = outcome.value
    if outcome.failed or not isinstance(value, (tuple, list)) or len(value) != 2:
        return None
    if not all(isinstance(part, torch.Tensor) and bool(part.isfinite().all()) for part in value):
        return None
    return value[0].double(), value[1].double()


def _probe_inputs(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [2, 3, 4, 7], k [2, 3, 4, 7], v [2, 3, 4, 5]: as many queries as keys, for a causal mask."""
    return normal(generator, 2, 3, 4, 7), normal(generator, 2, 3, 4, 7), normal(generator, 2, 3, 4, 5)


def _far(a: torch.Tensor, b: torch.Tensor, distance: float = 1e-3) -> bool:
    return bool((a - b).abs().max() > distance)


def rows_sum_to_one(answer: Answer, generator: torch.Generator) -> str | None:
    """Each row of weights must sum to 1."""
    if (found := _called(answer, *_probe_inputs(generator))) is None:
        return None
    sums = found[1].sum(-1)
    if not _far(sums, torch.ones(())):
        return None
    return f"each row of the weights must sum to 1; yours sum to {sums.min():.2f} up to {sums.max():.2f}."


def scores_have_the_right_scale(answer: Answer, generator: torch.Generator) -> str | None:
    """Log weights differ within a row as the scaled scores do; their ratio gives the scale away."""
    q, k, v = _probe_inputs(generator)
    found = _called(answer, q, k, v)
    if found is None or found[1].shape != (2, 3, 4, 4) or bool((found[1] <= 0).any()):
        return None
    logs, scores = (x - x.mean(-1, keepdim=True) for x in (found[1].log(), (q @ k.mT).double() / math.sqrt(7)))
    factor = (logs * scores).sum() / scores.square().sum()
    if _far(logs, factor * scores) or not _far(factor, torch.ones(())):
        return None
    return f"the weights are those of scores {factor:.2f} times as large as they should be. What do you divide by?"


def blocked_keys_do_not_leak(answer: Answer, generator: torch.Generator) -> str | None:
    """Under a causal mask, another last token must not change the outputs of the tokens before it."""
    q, k, v = _probe_inputs(generator)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    k_other, v_other = k.clone(), v.clone()
    k_other[..., -1, :] += 1
    v_other[..., -1, :] += 1
    found, other = _called(answer, q, k, v, causal), _called(answer, q, k_other, v_other, causal)
    if found is None or other is None or not found[0].shape == other[0].shape == (2, 3, 4, 5):
        return None
    if not _far(found[0][..., :-1, :], other[0][..., :-1, :]):
        return None
    return ("a blocked key still counts: under a causal mask the last token changes the outputs of earlier tokens. Make "
            "blocked scores -inf (or as low as -1e9) before the softmax.")


def outputs_are_blends(answer: Answer, generator: torch.Generator) -> str | None:
    """The output must be what the returned weights make of v."""
    q, k, v = _probe_inputs(generator)
    found = _called(answer, q, k, v)
    if found is None or (found[0].shape, found[1].shape) != ((2, 3, 4, 5), (2, 3, 4, 4)):
        return None
    return "the output is not weights @ v with the weights that you return." if _far(
        found[0], found[1] @ v.double()) else None


def order_of_keys_does_not_matter(answer: Answer, generator: torch.Generator) -> str | None:
    """Keys and values in another order, both alike, give the same output."""
    q, k, v = _probe_inputs(generator)
    order = torch.tensor([2, 0, 3, 1])
    found, other = _called(answer, q, k, v), _called(answer, q, k[..., order, :], v[..., order, :])
    if found is None or other is None or found[0].shape != other[0].shape or not _far(found[0], other[0]):
        return None
    return "without a mask the output must not depend on the order of the keys; yours does. Does a position enter?"


# The picture: wanted and found weights

PICTURE_MASK = torch.tensor([[True, True, False, False], [True, True, True, False], [False, True, True, True]])


def weights_picture(answer: Answer) -> Picture | None:
    """Wanted and found weights of three queries over four keys under a mask; None if there is nothing to see."""
    draw = torch.Generator().manual_seed(1)
    inputs = (normal(draw, 3, 5), normal(draw, 4, 5), normal(draw, 4, 2), PICTURE_MASK)
    found = call(lambda: answer(*inputs), list(inputs)).value
    yours = found[1] if isinstance(found, (tuple, list)) and len(found) == 2 else None
    if not isinstance(yours, torch.Tensor) or yours.shape != (3, 4):
        return None
    wanted = mh.attention(*inputs)[1]
    strange = ~torch.isclose(yours.to(wanted), wanted, rtol=0, atol=5e-3)  # NaN is strange
    if not bool(strange.any()):
        return None
    parts = [*_table_of_weights(70, "wanted", wanted, torch.zeros_like(strange)),
             *_table_of_weights(450, "yours", yours, strange)]
    words = f"{int(strange.sum())} of 12 weights differ"
    alt = f"Weights of three queries over four keys, wanted and yours, with the sum of each row: {words}."
    return Picture(svg.svg(790, 190, *parts, alt=alt), alt, f"{words}; they have dashed frames.", 790)


def _table_of_weights(left: float, title: str, weights: torch.Tensor, strange: torch.Tensor) -> list[str]:
    """A grid of weights with the sum of each row at its right; strange places have dashed frames."""
    cell, sums = 58, left + 58 * 4 + 36
    parts = [svg.text(left, 20, f"{title}: weights under a mask", size=14, font_weight="600"),
             *(svg.text(left + cell * (c + 0.5), 44, f"key {c}", anchor="middle") for c in range(4)),
             svg.text(sums, 44, "sum", anchor="middle", fill=svg.MUTED)]
    for r, row in enumerate(weights.tolist()):
        y = 52 + 42 * r
        parts += [svg.text(left - 8, y + 24, f"query {r}", anchor="end"),
                  svg.text(sums, y + 24, f"{sum(row):.2f}", anchor="middle", fill=svg.MUTED)]
        for c, weight in enumerate(row):
            x, share = left + cell * c, min(max(weight, 0), 1) if math.isfinite(weight) else 0
            look = {"stroke": svg.INK, "stroke_width": 2.5, "stroke_dasharray": "4 3"} if strange[r, c] else {
                "stroke": svg.RULE}
            words = "blocked" if not PICTURE_MASK[r, c] and weight == 0 else f"{weight:.2f}"
            parts += [svg.rect(x + 2, y + 2, cell - 4, 34, fill=HEAD_COLORS[0], fill_opacity=0.04 + 0.6 * share, **look),
                      svg.text(x + cell / 2, y + 24, words, size=12, anchor="middle")]
    return parts


ATTENTION = Exercise(
    "attention", mh.attention, _draw_attention, SCALE_MISTAKES + SOFTMAX_MISTAKES + MASK_MISTAKES + RESULT_MISTAKES,
    probes=(rows_sum_to_one, scores_have_the_right_scale, outputs_are_blends, blocked_keys_do_not_leak,
            order_of_keys_does_not_matter), picture=weights_picture)


# blend_errors

def blend_errors(p):
    """(err_a, err_b): what the best linear read-out of p v_j + (1 - p) v_k misses of a of token j and b of token k."""
    q = 1 - p
    total = p**2 + q**2  # the variance of the blend
    return q**2 / total, p**2 / total


def _draw_blend(generator: torch.Generator) -> list[Case]:
    """Shares on both sides of one half, away from it and from the ends; then the ends and the middle."""
    small, large = (0.1 + 0.3 * torch.rand(2, generator=generator, dtype=torch.float64)).tolist()
    return [Case((small,)), Case((1 - large,), about="another p"), Case((0.0,), about="p = 0"),
            Case((1.0,), about="p = 1"), Case((0.5,), about="p = 1/2")]


def _errors(form):
    """A wrong blend_errors: form(weight on the wanted token, weight on the other) is taken for the error."""
    return lambda p: (form(p, 1 - p), form(1 - p, p))


BLEND_MISTAKES = (
    Misconception("factor", (
        "You return the factors c of the best read-out. Put each back into the mean square: what is left is the error."),
        _errors(lambda p, q: p / (p**2 + q**2))),
    Misconception("exchanged", (
        "The two errors are exchanged (or you return what is explained instead of what is missed). p is the weight of the "
        "token that holds a: the larger p, the smaller err_a."), _errors(lambda p, q: p**2 / (p**2 + q**2))),
    Misconception("not squared", (
        "You share out the weights themselves. Errors are mean squares: the blend holds p² of the one variance and q² of "
        "the other."), _errors(lambda p, q: q)),
    Misconception("no read-out", (
        "You compare the blend with a as it stands: E(p a + q a' - a)² = (1 - p)² + q². A read-out may multiply the blend "
        "first. Which factor makes the error least?"), _errors(lambda p, q: 2 * q**2)),
    Misconception("divided by p", (
        "You read a as the blend divided by p. That removes the bias and keeps all of the other token, q²/p². A smaller "
        "factor has a smaller error: which one makes it least?"), _errors(lambda p, q: q**2 / p**2)),
    Misconception("not normalized", (
        "You return the variance that the other token brings in, as it is. Compare it with the variance of the whole "
        "blend."), _errors(lambda p, q: q**2)),
    Misconception("root", (
        "You return root mean squares. The exercise asks for mean squares, so that the two add up to 1."),
        _errors(lambda p, q: q / math.sqrt(p**2 + q**2))),
    Misconception("half", (
        "Your errors are half of what they should be: each is relative to the variance of its own need, so their sum is "
        "1."), _errors(lambda p, q: q**2 / (2 * (p**2 + q**2)))),
    Misconception("mixed term", (
        "You have the product p q in it. Values of two tokens are uncorrelated, so no mixed term is left."),
        _errors(lambda p, q: p * q / (p**2 + q**2))),
)

BLEND_ERRORS = Exercise("blend_errors", blend_errors, _draw_blend, BLEND_MISTAKES)


# operator_schmidt_rank

def _draw_rank(generator: torch.Generator) -> list[Case]:
    """Independent heads, and each way in which they can be dependent; float64 except for one case."""
    T, d, h = torch.tensor([4, 5, 3])[torch.randperm(3, generator=generator)].tolist()

    def patterns(h: int, T: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return normal(generator, h, T, T, dtype=dtype).softmax(-1)

    def maps(h: int, d: int, d_k: int = 2, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return normal(generator, h, d, d_k, dtype=dtype) @ normal(generator, h, d_k, d, dtype=dtype)
    dependent = maps(4, 6)
    dependent[3] = 2 * dependent[0] - dependent[1]
    looks, opposite = patterns(3, T), maps(3, d)
    looks[2], opposite[2] = looks[0], -opposite[0]
    single = (patterns(2, 7, torch.float32), maps(2, 6, dtype=torch.float32))
    return [
        Case((patterns(h, T), maps(h, d))),
        Case((patterns(1, T).repeat(3, 1, 1), maps(3, d)), about="three heads with the same pattern"),
        Case((patterns(4, 5), dependent), about="four heads, the last map a combination of two others"),
        Case((looks, opposite), about="two heads that cancel, and a third"),
        Case((patterns(3, 1), maps(3, d)), about="T = 1, where every pattern is [[1]]"),
        Case((patterns(1, T), maps(1, d, d_k=d)), about="one head whose map has full rank"),
        Case((patterns(2, T), torch.zeros(2, d, d, dtype=torch.float64)), about="maps that are all zero"),
        Case(single, about="float32 numbers, whose rounding is about 1e-7 of the largest value"),
    ]


def _rank(matrix: torch.Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix))


def _reshaped(patterns: torch.Tensor, maps: torch.Tensor) -> int:
    return _rank(mh.layer_matrix(patterns, maps).reshape(patterns.shape[-1]**2, -1))


RANK_MISTAKES = (
    Misconception("number of heads", (
        "You count the heads. That is the most the rank can be; heads with dependent patterns, or dependent maps, count "
        "for less."), lambda patterns, maps: len(patterns)),
    Misconception("patterns only", (
        "You take the rank of the patterns alone. Dependent maps lower the rank as well."),
        lambda patterns, maps: _rank(patterns.flatten(1))),
    Misconception("maps only", (
        "You take the rank of the maps alone. Dependent patterns lower the rank as well."),
        lambda patterns, maps: _rank(maps.flatten(1))),
    Misconception("smaller of two ranks", (
        "You take the smaller of two ranks, of the patterns and of the maps. That is an upper bound. Heads with equal "
        "patterns and opposite maps cancel, and then the rank is smaller than both. Look at the rank of a product."),
        lambda patterns, maps: min(_rank(patterns.flatten(1)), _rank(maps.flatten(1)))),
    Misconception("ordinary rank", (
        "You take the ordinary rank of the layer's matrix L. It counts dimensions of the output. Rearrange L first, so "
        "that each term A kron M^T becomes a matrix of rank 1."),
        lambda patterns, maps: _rank(mh.layer_matrix(patterns, maps))),
    Misconception("reshaped without a transpose", (
        "You reshape L to [T², d²] directly. That reads L row by row; a block of L must become one row: [T, d, T, d], then "
        "exchange axes 1 and 2, then reshape."), _reshaped),
    Misconception("widths added up", (
        "You add up the ranks of the maps. The width of a head does not enter: a head of any width is one term."),
        lambda patterns, maps: sum(map(_rank, maps))),
    Misconception("rank of the summed map", (
        "You add up the maps first. Each map acts with a pattern of its own, so they must be kept apart."),
        lambda patterns, maps: _rank(maps.sum(0))),
    Misconception("rank of the summed pattern", (
        "You add up the patterns first. Each pattern acts with a map of its own, so they must be kept apart."),
        lambda patterns, maps: _rank(patterns.sum(0))),
)

OPERATOR_SCHMIDT_RANK = Exercise("operator_schmidt_rank", mh.operator_schmidt_rank, _draw_rank, RANK_MISTAKES)

EXERCISES = (ATTENTION, BLEND_ERRORS, OPERATOR_SCHMIDT_RANK)
