"""Exercises of lesson 02: head_dim, map_bytes, count_parameters, count_flops, published_head_dims."""
from __future__ import annotations

from functools import partial

import torch

from multihead.budget import count_flops, count_parameters, head_dim, map_bytes
from multihead_lessons import calling
from multihead_lessons.exercises.bank import Case, Exercise, Misconception


def _pick(generator: torch.Generator, *options):
    return options[int(torch.randint(len(options), (1,), generator=generator))]


def _too_much_or_too_little(reference, draw):
    """A probe: the first call whose count is wrong, and on which side."""
    def probe(answer, generator):
        for case in draw(generator):
            if case.raises:
                continue
            found, right = (count(*case.args, **case.kwargs) for count in (answer, reference))
            if found != right:
                named = [f"{name}={value}" for name, value in case.kwargs.items()]
                call = f"{reference.__name__}({', '.join([*map(str, case.args), *named])})"
                return f"{call} returns {found}, which is too {'much' if found > right else 'little'}."
        return None
    return probe


# head_dim

NO_WIDTH = ("When h does not divide d_model there is no valid split. Raise a ValueError whose message names both, d_model "
            "and h, instead of returning a number or leaving one out.")


def _draw_head_dim(generator: torch.Generator) -> list[Case]:
    splits = [(_pick(generator, 3, 4, 5), _pick(generator, 7, 8, 9)),
              (_pick(generator, 6, 8, 12), _pick(generator, 2, 4, 5)),
              (7, _pick(generator, 30, 40, 50))]  # h, d_k
    cases = [Case((h * d_k, h)) for h, d_k in splits]
    h, d_k = _pick(generator, 5, 6, 7), _pick(generator, 8, 9, 10)
    return cases + [
        Case((h * d_k + 2, h), because=NO_WIDTH, about="an h that does not divide d_model: raise a ValueError"),
        Case((h, h * d_k), because=NO_WIDTH, about="more heads than channels: raise a ValueError")]


def head_dim_variant(d_model, h, divide="//", complain="both"):
    """head_dim with its two choices open: how it divides, and what it does when something is left over."""
    if d_model % h:
        if complain == "assert":
            raise AssertionError
        if complain == "None":
            return None
        if complain != "nothing":
            names = {"both": f"{d_model}, {h}", "h": f"{h}", "d_model": f"{d_model}", "words": "no split"}
            raise ValueError(names[complain])
    return {"//": d_model // h, "/": d_model / h, "*": d_model * h, "upside down": h // d_model, "h": h}[divide]


def _remainder_of_the_wrong_one(d_model, h):
    if h % d_model:
        raise ValueError(f"{d_model}, {h}")
    return d_model // h


HEAD_DIM = Exercise("head_dim", head_dim, _draw_head_dim, (
    Misconception("float", (
        "You divide with /, which gives a float, 64.0 instead of 64. A width is a size, and view(B, T, h, "
        "64.0) is an error. Divide with //."), partial(head_dim_variant, divide="/")),
    Misconception("silent remainder", (
        "When h does not divide d_model, you return a width all the same and say nothing: no whole width fills "
        "the vector. Test d_model % h first and raise a ValueError."),
        partial(head_dim_variant, complain="nothing")),
    Misconception("returns None", (
        "When h does not divide d_model, you return None, and the caller goes on with it. Raise a ValueError "
        "that names both numbers."), partial(head_dim_variant, complain="None")),
    Misconception("assert", (
        "You use assert. It raises an AssertionError, and `python -O` leaves it out. Raise a ValueError that "
        "names both numbers."), partial(head_dim_variant, complain="assert")),
    Misconception("no numbers", (
        "Your ValueError names neither d_model nor h. Whoever reads it wants to know which sizes were wrong: "
        "put both into the message."), partial(head_dim_variant, complain="words")),
    Misconception("names h alone", (
        "Your ValueError names h, but not d_model. Put both numbers into the message."),
        partial(head_dim_variant, complain="h")),
    Misconception("names d_model alone", (
        "Your ValueError names d_model, but not h. Put both numbers into the message."),
        partial(head_dim_variant, complain="d_model")),
    Misconception("upside down", (
        "You divide h by d_model. The channels are shared out among the heads: d_model / h."),
        partial(head_dim_variant, divide="upside down")),
    Misconception("h", "You return the number of heads. The width of one head is d_model / h.",
                  partial(head_dim_variant, divide="h")),
    Misconception("product", (
        "You multiply. That is the width of h heads that are d_model wide each. The channels are shared out: "
        "d_model / h."), partial(head_dim_variant, divide="*")),
    Misconception("tests h % d_model", (
        "You test h % d_model, which is 0 only when d_model divides h. Test d_model % h: what is left when "
        "the channels are dealt out to h heads."), _remainder_of_the_wrong_one),
), run=calling.use_head_dim)


# map_bytes

def _draw_map_bytes(generator: torch.Generator) -> list[Case]:
    B, h, T = torch.tensor([3, 5, 7])[torch.randperm(3, generator=generator)].tolist()
    return [Case((h, T)), Case((T, h)), Case((h, T), {"B": B}, about="several sequences"),
            Case((h, T, B, torch.float16), about="float16, two bytes a number"),
            Case((T, B, h), {"dtype": torch.float64}, about="float64, eight bytes a number")]


def map_bytes_variant(h, T, B=1, dtype=torch.float32, heads="h", batch="B", pairs="T²", size="bytes", tensors=1):
    """map_bytes with its choices open."""
    entries = ({"h": h, "one": 1}[heads] * {"B": B, "one": 1}[batch]
               * {"T²": T * T, "T": T, "2 T": 2 * T, "half": T * (T + 1) // 2}[pairs])
    number = {"bytes": dtype.itemsize, "entries": 1, "always 4": 4, "bits": 8 * dtype.itemsize}[size]
    return tensors * entries * number


MAP_BYTES = Exercise("map_bytes", map_bytes, _draw_map_bytes, (
    Misconception("one map", "You count one map for all heads. Each head makes a map of its own: a factor h.",
                  partial(map_bytes_variant, heads="one")),
    Misconception("no batch", "You leave out B. Every sequence of the batch has its own maps.",
                  partial(map_bytes_variant, batch="one")),
    Misconception("T once", "A map has a row for each query and a column for each key: T × T entries, not T.",
                  partial(map_bytes_variant, pairs="T")),
    Misconception("T doubled", (
        "Your count is that of 2 T entries for each map. A map has a row for each query and a column for each key: T × T "
        "entries, T ** 2."),
        partial(map_bytes_variant, pairs="2 T")),
    Misconception("causal half", (
        "You count half of each map. A causal mask makes the other half zero, but the tensor [B, h, T, T] "
        "stores it."),
        partial(map_bytes_variant, pairs="half")),
    Misconception("entries", "You count the entries. Each takes dtype.itemsize bytes: 4 in float32.",
                  partial(map_bytes_variant, size="entries")),
    Misconception("always 4 bytes", (
        "You count 4 bytes for every dtype. Take dtype.itemsize: 2 in float16, 8 in float64."),
        partial(map_bytes_variant, size="always 4")),
    Misconception("bits", "You count bits. dtype.itemsize gives bytes.", partial(map_bytes_variant, size="bits")),
    Misconception("scores too", (
        "You count the scores as well as the maps. The exercise asks for the maps alone, one tensor [B, h, "
        "T, T]."),
        partial(map_bytes_variant, tensors=2)),
), probes=(_too_much_or_too_little(map_bytes, _draw_map_bytes),))


# What count_parameters and count_flops have in common: the layers that are drawn, and half of the mistakes

def _layers(generator: torch.Generator) -> list[tuple[str, tuple, dict]]:
    """(what is special, (d_model, h), options) of layers of every kind, all sizes different and above 1."""
    h, n_kv_heads = _pick(generator, (6, 2), (6, 3), (8, 2), (8, 4), (9, 3), (10, 5))
    width = _pick(generator, 5, 7, 11)  # d_model / h
    d_k, d_model = width + _pick(generator, 2, 6), h * width
    return [
        ("", (d_model, h), {}),
        ("", ((h + 1) * width, h + 1), {}),
        (f"n_kv_heads = {n_kv_heads} for h = {h}", (d_model, h), {"n_kv_heads": n_kv_heads}),
        (f"a given d_k = {d_k}, which is not d_model / h", (d_model, h), {"d_k": d_k}),
        ("n_kv_heads and d_k both given", (d_model, h), {"n_kv_heads": n_kv_heads, "d_k": d_k}),
        (f"a given d_k = {d_k}, so that {h} need not divide {d_model + 1}", (d_model + 1, h), {"d_k": d_k}),
    ]


def _impossible(generator: torch.Generator) -> list[tuple[str, tuple, dict]]:
    h, width = _pick(generator, 5, 6, 7), _pick(generator, 8, 9, 10)
    return [("an h that does not divide d_model, and no d_k given", (h * width + 2, h), {}),
            ("an n_kv_heads that does not divide h", (h * width, h), {"n_kv_heads": h - 2})]


def _filled_in(d_model, h, n_kv_heads, d_k, refuse="both", given="used"):
    """(n_kv_heads, d_k) with their defaults. What is refused, and whether a given d_k counts, is open."""
    split = d_k is None or given == "ignored"
    if d_model % h and (refuse == "too much" or split and refuse in ("both", "h")):
        raise ValueError(f"{h} does not divide {d_model}")
    n_kv_heads = h if n_kv_heads is None else n_kv_heads
    if h % n_kv_heads and refuse in ("both", "n_kv_heads", "too much"):
        raise ValueError(f"{n_kv_heads} does not divide {h}")
    return n_kv_heads, d_model // h if split else d_k


SHARED_MISTAKES = {  # slug -> (sentence, what it changes)
    "kv heads ignored": (
        "You do not use n_kv_heads. W_K and W_V have n_kv_heads d_k columns each.", {"shared": "none"}),
    "only k or v shared": (
        "With fewer key/value heads you make one of W_K and W_V narrower, not both. Each has n_kv_heads d_k "
        "columns.",
        {"shared": "k"}),
    "q or w_o shared": (
        "With fewer key/value heads you make three of the four matrices narrower. Only keys and values are "
        "shared: W_Q is still d_model × h d_k, and W_O is h d_k × d_model.", {"shared": "q, k, v"}),
    "all shared": (
        "With fewer key/value heads you make all four matrices narrower. Only keys and values are shared: "
        "W_Q is still d_model × h d_k, and W_O is h d_k × d_model.", {"shared": "all"}),
    "no w_o": (
        "You leave out W_O, the matrix that takes the joined heads back to d_model: h d_k × d_model.",
        {"output": "none"}),
    "w_o square": (
        "You count W_O as d_model × d_model. It takes in the joined heads: h d_k × d_model, which is the "
        "same only when h d_k = d_model.", {"output": "square"}),
    "d_k ignored": (
        "You do not use a given d_k, but divide d_model by h all the same. A given d_k is the width of a "
        "head, whatever d_model is.", {"given": "ignored", "refuse": "n_kv_heads"}),
    "d_k ignored, refuses": (
        "You do not use a given d_k: you always take d_model / h, and even refuse an h that does not divide "
        "d_model. When d_k is given, h need not divide d_model.", {"given": "ignored"}),
    "refuses though d_k is given": (
        "You refuse an h that does not divide d_model even when d_k is given. Then h d_k need not be d_model.",
        {"refuse": "too much"}),
    "any h": (
        "When h does not divide d_model and no d_k is given, you round the width and say nothing. Raise an "
        "exception.",
        {"refuse": "n_kv_heads"}),
    "any kv heads": (
        "You accept an n_kv_heads that does not divide h. The heads could not be served equally: raise an "
        "exception.",
        {"refuse": "h"}),
    "any counts": (
        "You accept counts that do not divide: an h that does not divide d_model when no d_k is given, and "
        "an n_kv_heads that does not divide h. Raise an exception for both.", {"refuse": "none"}),
}


def _shared_mistakes(variant) -> list[Misconception]:
    return [Misconception(slug, sentence, partial(variant, **changes))
            for slug, (sentence, changes) in SHARED_MISTAKES.items()]


# count_parameters

def parameters_variant(d_model, h, n_kv_heads=None, d_k=None, bias=False, *, layers="one", shared="k, v",
                       output="h d_k", rows="d_model", biases="columns", refuse="both", given="used"):
    """count_parameters with its choices open."""
    n_kv_heads, d_k = _filled_in(d_model, h, n_kv_heads, d_k, refuse, given)
    full, few = h * d_k, n_kv_heads * d_k
    q, k, v, o = {"k, v": (full, few, few, full), "none": (full, full, full, full),
                  "k": (full, few, full, full), "q, k, v": (few, few, few, full),
                  "k, v, o": (full, few, few, few), "all": (few, few, few, few)}[shared]
    w_qkv = (q + k + v) * {"d_model": d_model, "d_k": d_k}[rows]
    w_o = d_model * {"h d_k": o, "none": 0, "square": d_model, "one head": d_k}[output]
    added = {"columns": q + k + v + d_model, "none": 0, "d_model": 4 * d_model, "no output": q + k + v,
             "rows": 3 * d_model + full, "each head": q + k + v + h * d_model}[biases]
    return {"one": 1, "h": h}[layers] * (w_qkv + w_o + (added if bias else 0))


def _biases_always(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    return parameters_variant(d_model, h, n_kv_heads, d_k, bias=True)


def _one_head(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    _, d_k = _filled_in(d_model, h, n_kv_heads, d_k)
    return 4 * d_model * d_k + (3 * d_k + d_model if bias else 0)


def _blocks(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    n_kv_heads, d_k = _filled_in(d_model, h, n_kv_heads, d_k)
    return 2 * (h + n_kv_heads) * (d_k * d_k + (d_k if bias else 0))


def _square(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    return 4 * d_model**2 + (4 * d_model if bias else 0)


def _draw_parameters(generator: torch.Generator) -> list[Case]:
    layers = _layers(generator)
    cases = [Case(sizes, options, about) for about, sizes, options in layers]
    for about, sizes, options in (layers[0], layers[4]):
        cases.append(Case(sizes, {**options, "bias": True}, f"bias=True{' and ' if about else ''}{about}"))
    return cases + [Case(sizes, options, about, raises=True) for about, sizes, options in _impossible(generator)]


COUNT_PARAMETERS = Exercise("count_parameters", count_parameters, _draw_parameters, (
    Misconception("h layers", (
        "You count h whole layers. Twelve heads do not need twelve layers: each head is only d_k wide, and h "
        "d_k columns serve them all."), partial(parameters_variant, layers="h")),
    Misconception("d_k x d_k", (
        "You count d_k × d_k weights for a head's queries, keys and values. That is the layer that cuts x "
        "first. A head reads all d_model channels: d_model × d_k."), partial(parameters_variant, rows="d_k")),
    Misconception("d_k x d_k, w_o too", (
        "You count d_k × d_k weights for a head in every matrix. A head reads all d_model channels: d_model "
        "× d_k. And W_O takes in the joined heads: h d_k × d_model."), _blocks),
    Misconception("one head", (
        "You count one head. There are h of them: h d_k columns for the queries, n_kv_heads d_k for keys and "
        "for values."), _one_head),
    *_shared_mistakes(parameters_variant),
    Misconception("w_o shared", (
        "You make W_O as narrow as the shared keys. It takes in all h heads: h d_k × d_model."),
        partial(parameters_variant, shared="k, v, o")),
    Misconception("w_o of one head", (
        "You count W_O as d_k × d_model, the part that one head meets. It takes in all heads: h d_k × "
        "d_model."),
        partial(parameters_variant, output="one head")),
    Misconception("always 4 d_model squared", (
        "You return 4 d_model² (+ 4 d_model) for every layer. That is right when h d_k = d_model and every "
        "head has keys and values of its own. Count the four matrices one by one."), _square),
    Misconception("4 d_model squared without biases", (
        "You return 4 d_model² for every layer. That is right without biases, when h d_k = d_model and every head has keys "
        "and values of its own. Count the four matrices one by one."),
        lambda d_model, h, n_kv_heads=None, d_k=None, bias=False: 4 * d_model**2),
    Misconception("no biases", (
        "You do not use bias. With bias=True each of the four matrices adds one number for each of its "
        "columns."),
        partial(parameters_variant, biases="none")),
    Misconception("always biases", "You add the biases even when bias is False.", _biases_always),
    Misconception("biases 4 d_model", (
        "You add 4 d_model biases. A bias has one number for each column: h d_k for W_Q, n_kv_heads d_k for "
        "W_K and for W_V, d_model for W_O."), partial(parameters_variant, biases="d_model")),
    Misconception("no output bias", "You leave out the bias of W_O, d_model numbers.",
                  partial(parameters_variant, biases="no output")),
    Misconception("biases of rows", (
        "You count a bias for each row of a matrix, its inputs. There is one for each column: h d_k for W_Q, "
        "n_kv_heads d_k for W_K and for W_V, d_model for W_O."), partial(parameters_variant, biases="rows")),
    Misconception("output bias of each head", (
        "You count the bias of W_O once for each head. The heads are joined first: there is one, d_model "
        "numbers."),
        partial(parameters_variant, biases="each head")),
), probes=(_too_much_or_too_little(count_parameters, _draw_parameters),))


# count_flops

def flops_variant(d_model, h, T, B=1, n_kv_heads=None, d_k=None, *, adds=2, products=2, heads="h", width="d_k",
                  pairs="T²", batch="all", projected="tokens", softmax=0,
                  shared="k, v", output="h d_k", refuse="both", given="used"):
    """count_flops with its choices open; the weights are counted by parameters_variant."""
    weights = parameters_variant(d_model, h, n_kv_heads, d_k,
                                 shared=shared, output=output, refuse=refuse, given=given)
    n_kv_heads, d_k = _filled_in(d_model, h, n_kv_heads, d_k, refuse, given)
    product = ({"h": h, "n_kv_heads": n_kv_heads, "one": 1}[heads]
               * {"T²": T * T, "T": T, "half": T * (T + 1) // 2}[pairs]
               * {"d_k": d_k, "d_model": d_model, "none": 1}[width])
    attention = products * product + softmax * h * T * T
    projections = weights * {"tokens": T, "none": 0, "one token": 1, "h": h * T}[projected]
    return adds * {"all": B * (projections + attention), "none": projections + attention,
                   "projections": B * projections + attention, "products": projections + B * attention}[batch]


def _closed_form(d_model, h, T, B=1, n_kv_heads=None, d_k=None):
    return B * (8 * T * d_model**2 + 4 * T**2 * d_model)


def _draw_flops(generator: torch.Generator) -> list[Case]:
    T, B = _pick(generator, (13, 4), (17, 3), (19, 4))
    layers = _layers(generator)
    cases = [Case((*sizes, T + i), options, about) for i, (about, sizes, options) in enumerate(layers)]
    for about, sizes, options in (layers[0], layers[4]):
        cases.append(Case((*sizes, T), {"B": B, **options}, f"B = {B} sequences{' and ' if about else ''}{about}"))
    return cases + [Case((*sizes, T), options, about, raises=True)
                    for about, sizes, options in _impossible(generator)]


COUNT_FLOPS = Exercise("count_flops", count_flops, _draw_flops, (
    Misconception("multiply-adds", (
        "You count multiply-adds. Each is two operations, one multiplication and one addition: a factor 2."),
        partial(flops_variant, adds=1)),
    Misconception("projections only", (
        "You count the four projections, but not Q K^T and A V. Each of these takes h T² d_k multiply-adds."),
        partial(flops_variant, products=0)),
    Misconception("one product", (
        "Q K^T and A V come out at half. Is one of them missing, or a factor 2 that the projections have? Each takes h T² "
        "d_k multiply-adds."),
        partial(flops_variant, products=1)),
    Misconception("no projections", (
        "You count Q K^T and A V, but not the four projections. Each weight of the layer is used once for "
        "every token."),
        partial(flops_variant, projected="none")),
    Misconception("one token", (
        "You count the projections for one token. Each weight is used once for every one of the T tokens."),
        partial(flops_variant, projected="one token")),
    Misconception("projections h times", (
        "You multiply the projections by h. All heads together have h d_k columns, and these are in the "
        "weights already."), partial(flops_variant, projected="h")),
    Misconception("products once", (
        "You count Q K^T and A V for one head. There are h of them, also when they share keys and values."),
        partial(flops_variant, heads="one")),
    Misconception("products of kv heads", (
        "You count Q K^T and A V once for each key/value head. Sharing saves weights, not products: each of "
        "the h query heads still meets all pairs of tokens."), partial(flops_variant, heads="n_kv_heads")),
    Misconception("full width", (
        "You count Q K^T and A V with d_model channels for each head. A head is d_k wide: h T² d_k "
        "multiply-adds for each product."), partial(flops_variant, width="d_model")),
    Misconception("full width at once", (
        "You count Q K^T and A V with T² d_model multiply-adds for each. It is h T² d_k, which is the same only when "
        "h d_k = d_model."), partial(flops_variant, heads="one", width="d_model")),
    Misconception("no width", (
        "You count one operation for each pair of tokens and head. Each is a dot product over d_k channels."),
        partial(flops_variant, width="none")),
    Misconception("T once", "You count Q K^T and A V with T instead of T². Every query meets every key.",
                  partial(flops_variant, pairs="T")),
    Misconception("causal half", (
        "You count half of the pairs. There is no mask in this exercise: every query meets every key, T² "
        "pairs."),
        partial(flops_variant, pairs="half")),
    Misconception("softmax too", (
        "You count the h T² entries of the softmax as well. The exercise asks for the matrix products alone."),
        partial(flops_variant, softmax=1)),
    Misconception("no batch", "You leave out B. Every sequence costs the same again.",
                  partial(flops_variant, batch="none")),
    Misconception("B on the projections", "You multiply the projections by B, but not Q K^T and A V.",
                  partial(flops_variant, batch="projections")),
    Misconception("B on the products", "You multiply Q K^T and A V by B, but not the projections.",
                  partial(flops_variant, batch="products")),
    *_shared_mistakes(flops_variant),
    Misconception("closed form", (
        "You return B (8 T d_model² + 4 T² d_model) for every layer. That is right when h d_k = d_model and "
        "every head has keys and values of its own. Let the weights and h d_k come from the sizes."),
        _closed_form),
), probes=(_too_much_or_too_little(count_flops, _draw_flops),))


# published_head_dims

def published_head_dims():
    """The width of one head in three published models."""
    return {"GPT-2 small": head_dim(768, 12), "GPT-3 175B": head_dim(12288, 96), "Llama-3-70B": head_dim(8192, 64)}


def _published(gpt_2=64, gpt_3=128, llama=128):
    return {"GPT-2 small": gpt_2, "GPT-3 175B": gpt_3, "Llama-3-70B": llama}


PUBLISHED_HEAD_DIMS = Exercise("published_head_dims", published_head_dims, lambda generator: [Case(())], (
    Misconception("h", "These are the numbers of heads. The width of one head is d_model / h.",
                  lambda: _published(12, 96, 64)),
    Misconception("d_model", "These are the widths of the models. The width of one head is d_model / h.",
                  lambda: _published(768, 12288, 8192)),
    Misconception("all 64", (
        "You give 64 for all three. That is GPT-2 small; divide d_model by h for the other two."),
        lambda: _published(64, 64, 64)),
    Misconception("GPT-3 as GPT-2", "GPT-3 has wider heads than GPT-2 small: 12288 channels for 96 heads.",
                  lambda: _published(gpt_3=64)),
    Misconception("kv heads", (
        "For Llama-3-70B you divide by its 8 key/value heads. They are fewer than the query heads, not "
        "wider: d_k is 8192 divided by the 64 query heads."), lambda: _published(llama=1024)),
    Misconception("kv width", (
        "For Llama-3-70B you divide the 1024 columns of W_K by 64 heads. They belong to 8 heads: d_k = 1024 "
        "/ 8, and that is 8192 / 64."), lambda: _published(llama=16)),
))

EXERCISES = (HEAD_DIM, MAP_BYTES, COUNT_PARAMETERS, COUNT_FLOPS, PUBLISHED_HEAD_DIMS)
