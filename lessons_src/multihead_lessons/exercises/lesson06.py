"""Exercises of lesson 06: load_layer, previous_token_score, ablate."""
from __future__ import annotations

import math
from functools import partial

import torch

import multihead as mh
from multihead_lessons import calling
from multihead_lessons.exercises.bank import Case, Exercise, Misconception, normal


def _sizes(generator: torch.Generator) -> list[int]:
    """B, T, h, d_k: all different and above 1, in an order that changes from draw to draw."""
    return torch.tensor([2, 3, 4, 5])[torch.randperm(4, generator=generator)].tolist()


# load_layer

PARTS = {"w_q": "attention.self.query", "w_k": "attention.self.key", "w_v": "attention.self.value",
         "w_o": "attention.output.dense"}


def _draw_weights(generator: torch.Generator) -> list[Case]:
    sizes = _sizes(generator)

    def case(B, T, h, d_k, turned=False, dealt=False, **about):
        d_model = h * d_k
        weights = {}
        for part in PARTS.values():
            matrix = normal(generator, d_model, d_model) / math.sqrt(d_model)
            weights |= {f"{part}.weight": matrix.T if turned else matrix, f"{part}.bias": normal(generator, d_model)}
        if dealt:  # as in the model's file
            weights = {name: weights[name] for name in sorted(weights)}
        return Case((weights, h, normal(generator, B, T, d_model)), **about)
    return [case(*sizes), case(*sizes[1:], sizes[0], dealt=True, about="the tensors in another order in the dict"),
            case(*sizes[2:], *sizes[:2], turned=True, about="weights that are transposed views")]


@torch.no_grad()
def layer_variant(weights, h, sources=("w_q", "w_k", "w_v", "w_o"), turned=(), biases="loaded", left=(), heads="h"):
    """load_layer with its choices open.

    sources: whose tensors w_q, w_k, w_v and w_o get;  turned: which matrices are transposed
    left:    what is not loaded, w_q or w_q.bias;  biases: loaded, left as they were made, or none;  heads: h, or a number
    """
    d_model = len(weights["attention.self.query.bias"])
    layer = mh.MultiHeadAttention(d_model, h if heads == "h" else heads, bias=biases != "none")
    for ours, source in zip(PARTS, sources):
        linear, name = getattr(layer, ours), PARTS[source]
        if ours not in left:
            matrix = weights[f"{name}.weight"]
            linear.weight.copy_(matrix.T if ours in turned else matrix)
            if biases == "loaded" and f"{ours}.bias" not in left:
                linear.bias.copy_(weights[f"{name}.bias"])
    return layer


def _other_names(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h, bias=True)
    layer.load_state_dict(weights)
    return layer


def _fixed_sizes(weights, h):
    layer = mh.MultiHeadAttention(384, 12, bias=True)
    layer.load_state_dict({f"{ours}.{kind}": weights[f"{part}.{kind}"]
                           for ours, part in PARTS.items() for kind in ("weight", "bias")})
    return layer


def _raising(kind):
    def wrong(weights, h):
        raise kind
    return wrong


@torch.no_grad()
def _by_place(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h, bias=True)
    for linear, (matrix, bias) in zip((layer.w_q, layer.w_k, layer.w_v, layer.w_o), zip(*[iter(weights.values())] * 2)):
        linear.weight.data, linear.bias.data = matrix, bias
    return layer


@torch.no_grad()
def _by_place_in_the_state_dict(weights, h):
    layer = mh.MultiHeadAttention(len(weights["attention.self.query.bias"]), h, bias=True)
    layer.load_state_dict(dict(zip(layer.state_dict(), weights.values())))
    return layer


NAMES = tuple(PARTS)
BY_PLACE = "You take the tensors by their place in the dict. In another dict they stand in another order: take each by its name."


def _misplaced():
    """Each part with another part's tensors, and each two parts exchanged."""
    for i, ours in enumerate(NAMES):
        for source in NAMES[:i] + NAMES[i + 1:]:
            yield Misconception(
                f"{ours} from {source}", f"{ours} got the tensors of {PARTS[source]}. It has its own: {PARTS[ours]}.",
                partial(layer_variant, sources=(*NAMES[:i], source, *NAMES[i + 1:])), together=False)
        for j in range(i):
            order = list(NAMES)
            order[i], order[j] = order[j], order[i]
            yield Misconception(
                f"{NAMES[j]} and {ours} exchanged",
                f"{NAMES[j]} got the tensors of {PARTS[ours]}, and {ours} those of {PARTS[NAMES[j]]}.",
                partial(layer_variant, sources=tuple(order)), together=(i, j) == (1, 0))


def _left_out():
    """One part, all but one, or one bias not loaded."""
    for ours in NAMES:
        yield Misconception(
            f"no {ours}", f"{ours} still holds the random numbers that it was made with. In the file it is {PARTS[ours]}.",
            partial(layer_variant, left=(ours,)), together=ours == "w_o")
        if ours != "w_k":  # the keys' bias is not seen in an output
            yield Misconception(
                f"no bias of {ours}", f"The bias of {ours} still holds random numbers. In the file it is {PARTS[ours]}.bias.",
                partial(layer_variant, left=(f"{ours}.bias",)), together=False)
    for only, which in ((NAMES[0], "first"), (NAMES[-1], "last")):
        yield Misconception(
            f"only {only}", (
                f"Only the {which} part of the four is loaded. Is a return inside the loop, or is the layer built anew in each "
                "round?"),
            partial(layer_variant, left=tuple(name for name in NAMES if name != only)), together=False)


TRANSPOSED = "A weight in the file is [out, in], as nn.Linear keeps it, so it goes in as it is."

LOAD_LAYER = Exercise("load_layer", mh.load_layer, _draw_weights, (
    Misconception("no place for biases", (
        "Your layer has no biases, so there is no place for the four that the file has. Build it with bias=True."),
        _raising(calling.NoPlaceForBiases)),
    Misconception("something is None", (
        "Something that you use is None: the bias of a layer that was built without bias=True, or what weights.get returns for a "
        "name that the dict does not have."), _raising(calling.SomethingIsNone)),
    Misconception("writes into parameters", (
        "You write into parameters that autograd watches. Put the copying under `with torch.no_grad():`, or use "
        "load_state_dict."), _raising(calling.WritesIntoParameters)),
    Misconception("bias of the keys", (
        "Everything is loaded but the bias of the keys. No output can show it, because it adds one number to a whole row of "
        "scores; yet the layer was to have these weights, and attention.self.key.bias is not in it."),
        _raising(calling.KeyBiasNotLoaded)),
    Misconception("one layer for all", (
        "Two calls return the same layer, so the second overwrites the first. Build a new one in each call: a model has a "
        "layer for each set of weights."), _raising(calling.OneLayerForAll)),
    Misconception("not registered", (
        "The layer that you return holds no tensors that state_dict could find. Fill a MultiHeadAttention, or keep the tensors "
        "as nn.Parameter."), _raising(calling.NotRegistered)),
    Misconception("by place", BY_PLACE, _by_place),
    Misconception("by place in the state dict", BY_PLACE, _by_place_in_the_state_dict),
    Misconception("other names", (
        "load_state_dict wants the layer's own names, w_q.weight, w_q.bias and so on, all eight and no others. Make a dict "
        "that has the file's tensors under these names."), _other_names),
    Misconception("fixed sizes", (
        "A tensor does not fit into its place; load_state_dict by itself says which, and both shapes. Are 384 and 12 written "
        "into your code? Take d_model from a tensor's shape and h from the argument, and give each tensor to the place of its "
        "name, in the shape that it has."), _fixed_sizes),
    Misconception("not a module", (
        "Return the layer itself, the MultiHeadAttention that you filled, not its weights or its output. (Is there a return?)"),
        lambda weights, h: weights),
    Misconception("nothing loaded", (
        "The layer still holds the random numbers that it was made with. load_state_dict(..., strict=False) passes over names "
        "that it does not know; a loop variable or a copy of the state_dict that you set is not the layer either."),
        partial(layer_variant, left=tuple(PARTS))),
    Misconception("biases left", (
        "The matrices are loaded, the biases are not: they still hold random numbers. Each of the four parts "
        "has a weight and a bias."), partial(layer_variant, biases="left")),
    Misconception("no biases", (
        "This layer works without biases. Build it with bias=True and load the four biases as well."),
        partial(layer_variant, biases="none")),
    Misconception("transposed", (
        f"The matrices are transposed. {TRANSPOSED}"), partial(layer_variant, turned=NAMES)),
    *(Misconception(f"{name} transposed", f"{name} is transposed. {TRANSPOSED}", partial(layer_variant, turned=(name,)),
                    together=name == "w_o") for name in NAMES),
    Misconception("all but w_o transposed", f"w_q, w_k and w_v are transposed. {TRANSPOSED}",
                  partial(layer_variant, turned=NAMES[:3]), together=False),
    *_misplaced(),
    *_left_out(),
    Misconception("one head", (
        "The layer has one wide head. The weights are cut into h heads: pass h on."),
        partial(layer_variant, heads=1)),
), axes=("sequence", "token", "channel"), run=calling.load_and_call, may_draw=True)


# previous_token_score

def _draw_maps(generator: torch.Generator) -> list[Case]:
    L, B, h, T = _sizes(generator)
    T += 5  # so that T - 1 is none of the other sizes

    def maps(*leading, T=T, dtype=torch.float32):
        return (1.5 * normal(generator, *leading, T, T, dtype=dtype)).softmax(-1)
    turned = maps(B, h, L, dtype=torch.float64).movedim(2, 0)
    return [Case((maps(h),)), Case((maps(L, h),)),
            Case((turned,), about="maps [L, B, h, T, T] in float64, not contiguous"),
            Case((maps(L, h).requires_grad_(),), about="maps that require a gradient"),
            Case((maps(),), about="a single map [T, T]"), Case((maps(h, T=T + 2),), about="another number of tokens")]


def score_variant(maps, offset=-1, over="those", rows="those that have one", by="mean"):
    """previous_token_score with its choices open.

    offset: how far from a token the one that counts is;  over: what the sum is divided by
    rows:   whether the first token counts, or an end is left out;  by: how the tokens are put together
    """
    T = maps.shape[-1]
    maps = maps.softmax(-1) if by == "mean of a softmax" else maps
    weights = maps.diagonal(offset, -2, -1)  # [..., T - |offset|]
    if rows == "all, around the end":
        weights = torch.cat([maps[..., :1, -1], weights], dim=-1)  # [..., T]
    if rows == "all, the first at itself":
        weights = torch.cat([maps[..., :1, 0], weights], dim=-1)  # [..., T]
    if rows == "not the last":
        weights = weights[..., :-1]
    if rows == "not the second":
        weights = weights[..., 1:]
    if by in ("sum", "largest", "median", "each"):
        return {"sum": weights.sum, "largest": weights.amax, "median": lambda axis: weights.median(axis).values,
                "each": lambda axis: weights}[by](-1)
    return weights.mean(-1) if over == "those" else weights.sum(-1) / {"T": T, "T - 1": T - 1, "T squared": T * T}[over]


def _share_of_argmax(maps):
    T = maps.shape[-1]
    return (maps.argmax(-1)[..., 1:] == torch.arange(T - 1)).to(maps.dtype).mean(-1)


def _all_before(maps):
    return maps.tril(-1).sum(-1)[..., 1:].mean(-1)


def _both_neighbors(maps):
    return score_variant(maps) + score_variant(maps, offset=1)


def _first_column(maps):
    return maps[..., 1:, 0].mean(-1)


def _in_two_ways(slug, sentence, **choice):
    """The mistake with the mean over those that were taken, and with their sum over T - 1."""
    return (Misconception(slug, sentence, partial(score_variant, **choice)),
            Misconception(f"{slug}, over T - 1", sentence, partial(score_variant, over="T - 1", **choice), together=False))


PREVIOUS_TOKEN_SCORE = Exercise("previous_token_score", mh.previous_token_score, _draw_maps, (
    Misconception("next token", (
        "This is the weight on the next token. A row of the map is the token that looks, a column the one that "
        "it looks at: the entry wanted is [t, t - 1], one below the diagonal."),
        partial(score_variant, offset=1)),
    *_in_two_ways("itself", "This is the weight of each token on itself, the diagonal. The token before is one column to the left.",
                  offset=0),
    *_in_two_ways("two before", "This is the weight on the token two places before. Count one place.", offset=-2),
    Misconception("divided by T", (
        "You divide the sum by T. The first token has none before it, so T - 1 weights were added: divide by T - 1."),
        partial(score_variant, over="T")),
    Misconception("divided by T squared", (
        "You took the mean over all entries of the map. Only T - 1 of them are weights on the token before: divide by T - 1."),
        partial(score_variant, over="T squared")),
    *_in_two_ways("around the end", (
        "For the first token you took the last one: index 0 - 1 is -1, which counts from the end. The first "
        "token has none before it; leave it out."), rows="all, around the end"),
    *_in_two_ways("first at itself", (
        "For the first token you took its weight on itself. It has none before it; leave it out."),
        rows="all, the first at itself"),
    *_in_two_ways("last left out", "The last token does not count in your mean. It has one before it.", rows="not the last"),
    *_in_two_ways("second left out", (
        "The second token does not count in your mean. It has one before it: the first. Where does your range start?"),
        rows="not the second"),
    Misconception("softmax again", (
        "You take a softmax of the maps. Their rows are weights already and sum to 1."),
        partial(score_variant, by="mean of a softmax"), together=False),
    Misconception("both neighbors", "You added the weight on the next token. Only the one before counts.", _both_neighbors),
    Misconception("first column", "This is the weight on the first token. Wanted is the one right before, another for each row.",
                  _first_column),
    Misconception("sum", (
        "These are sums over the tokens. The score is the mean, so that long and short sentences compare."),
        partial(score_variant, by="sum")),
    Misconception("largest", (
        "You kept the largest of the weights on the token before. One token that looks back is no habit: take the mean "
        "over the tokens."), partial(score_variant, by="largest")),
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

    def case(B, T, h, d_k, silenced, dtype=torch.float32, **about):
        heads = mh.split_heads(normal(generator, B, T, h * d_k, dtype=dtype), h)  # [B, h, T, d_k], not contiguous
        if callable(silenced):
            silenced = torch.randperm(h, generator=generator)[:silenced(h)].tolist()
        w_o = normal(generator, h * d_k, h * d_k + h + 1, dtype=dtype)  # h divides its rows and not its columns
        return Case((heads, w_o, silenced), **about)
    B, T, h, d_k = sizes
    heads, w_o, silenced = case(2, 3, 5, 4, [3, 1]).args
    return [case(*sizes, lambda h: 1), case(T, d_k, max(B, h), min(B, h), lambda h: 2, about="several heads silenced"),
            Case((heads.contiguous(), w_o, silenced), about="silenced = [3, 1], five heads that lie in memory one after another"),
            Case((heads + 1, w_o.clone().requires_grad_(), [2]), about="a w_o that requires a gradient"),
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
                "first": silenced[:1], "last": silenced[-1:], "one less": [(i - 1) % h for i in silenced],
                "one more": [(i + 1) % h for i in silenced], "up to": list(range(max(silenced, default=-1) + 1)),
                "from": list(range(min(silenced, default=h), h)), "as many": list(range(len(silenced))),
                "between": list(range(min(silenced, default=0), max(silenced, default=-1) + 1))}[which]
    heads = heads.clone()
    if axis == "time":
        heads[:, :, [i for i in silenced if i < T]] = 0
    elif axis == "channel":
        heads[..., [i for i in silenced if i < d_v]] = 0
    elif axis == "batch":
        heads[[i for i in silenced if i < B]] = 0
    elif value in ("mean", "mean over the batch"):
        heads[:, silenced] = heads[:, silenced].mean(2 if value == "mean" else (0, 2), keepdim=True)
    elif value == "mean of all":
        heads[:, silenced] = heads.mean(1, keepdim=True)
    elif value == "one":
        heads[:, silenced] = 1
    elif value == "others":
        left = [i for i in range(h) if i not in silenced]
        heads[:, silenced] = heads[:, left].mean(1, keepdim=True) if left else torch.zeros_like(heads[:, :1])
    else:
        heads[:, silenced] = 0
    if factor == "h / left":
        heads = heads * h / max(h - len(silenced), 1)
    if factor == "1 / left":
        heads = heads / max(h - len(silenced), 1)
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


def _first_rows(heads, w_o, silenced):
    """The silent heads removed, and the others on the first rows of w_o."""
    B, h, T, d_v = heads.shape
    left = [i for i in range(h) if i not in silenced]
    return heads[:, left].transpose(1, 2).reshape(B, T, len(left) * d_v) @ w_o[:len(left) * d_v]


def _view(heads, w_o, silenced):
    B, h, T, d_v = heads.shape
    quiet = heads * torch.tensor([i not in silenced for i in range(h)])[:, None, None]
    return quiet.transpose(1, 2).view(B, T, h * d_v) @ w_o


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
    Misconception("the last only", (
        "Only the last head of the list is silent. Do you copy heads anew for each of them?"),
        partial(ablate_variant, which="last")),
    Misconception("one more", "The head after the one that is meant falls silent. The list counts from 0, and so does axis 1.",
                  partial(ablate_variant, which="one more")),
    Misconception("between", (
        "Every head between the smallest and the largest number is silent. Only those in the list should be."),
        partial(ablate_variant, which="between")),
    Misconception("from the smallest", "Every head from the smallest number on is silent. Only those in the list should be.",
                  partial(ablate_variant, which="from")),
    Misconception("as many", (
        "You silence as many heads as the list has, the first ones. Its numbers say which."),
        partial(ablate_variant, which="as many")),
    Misconception("from one", (
        "You count heads from 1, so the head before the one that is meant falls silent. The list counts from 0."),
        partial(ablate_variant, which="one less")),
    Misconception("all up to", (
        "Every head up to the largest number is silent. Only those in the list should be."),
        partial(ablate_variant, which="up to")),
    Misconception("tokens", (
        "You silenced tokens: axis 2 is time. The heads are axis 1."), partial(ablate_variant, axis="time")),
    Misconception("sequences", "You silenced sequences: axis 0 is the batch. The heads are axis 1.",
                  partial(ablate_variant, axis="batch")),
    Misconception("channels", (
        "You silenced a channel of every head: the last axis. The heads are axis 1."),
        partial(ablate_variant, axis="channel")),
    *(Misconception(value, (
        f"The silenced heads say their mean over the {over}. That is another method, mean ablation; here a silent head "
        "adds zero."), partial(ablate_variant, value=value), together=value == "mean")
      for value, over in (("mean", "tokens"), ("mean over the batch", "sequences and tokens"))),
    Misconception("mean of all", "The silenced heads say the mean of all heads. A silent head adds zero.",
                  partial(ablate_variant, value="mean of all"), together=False),
    Misconception("ones", "The silenced heads say 1 everywhere. A silent head adds zero.",
                  partial(ablate_variant, value="one"), together=False),
    Misconception("mean of the others", (
        "The silenced heads say what the others say on average. A silent head adds zero."),
        partial(ablate_variant, value="others")),
    Misconception("made up for", (
        "You scaled the other heads up to make up for the silent ones, as dropout does in training. They stay "
        "as they are."), partial(ablate_variant, factor="h / left")),
    Misconception("averaged", (
        "The output is divided by h. Heads are summed through w_o, not averaged."),
        partial(ablate_variant, factor="1 / h")),
    Misconception("averaged over the rest", (
        "The output is divided by the number of heads that are left. Heads are summed through w_o, not averaged."),
        partial(ablate_variant, factor="1 / left"), together=False),
    Misconception("first rows of w_o", (
        "You took the silent heads out and gave the others the first rows of w_o. Each head keeps its own rows: take out those "
        "of the silent heads too, or put zeros in their place."), _first_rows),
    Misconception("view", (
        "view cannot join what the transpose has separated, so it refuses heads that lie in memory one after another. reshape "
        "and flatten(2) copy where they must."), _view),
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
), axes=("sequence", "token", "channel"), may_draw=True)

EXERCISES = (LOAD_LAYER, PREVIOUS_TOKEN_SCORE, ABLATE)
