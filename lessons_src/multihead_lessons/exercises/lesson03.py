"""Exercises of lesson 03: split_heads, predict_strides, copies."""
from __future__ import annotations

from functools import partial

import torch

import multihead as mh
from multihead_lessons import calling
from multihead_lessons.exercises.bank import Case, Exercise, Misconception, normal
from multihead_lessons.provenance import Source, comparison

# split_heads


def _draw_split(generator: torch.Generator) -> list[Case]:
    """Sizes B, T, h, d_k all different and above 1, in an order that changes from draw to draw."""
    sizes = torch.tensor([2, 3, 4, 5])[torch.randperm(4, generator=generator)].tolist()
    cases = []
    for B, T, h, d_k in (sizes, sizes[1:] + sizes[:1]):
        cases.append(Case((normal(generator, B, T, h * d_k), h)))
    B, T, h, d_k = sizes
    fused = normal(generator, B, T, 3 * h * d_k, dtype=torch.float64)
    cases.append(Case((fused[..., h * d_k:2 * h * d_k], h), about="x a slice of a wider tensor, in float64"))
    cases.append(Case((normal(generator, B, T, h * d_k).requires_grad_(), h), about="an x that requires a gradient"))
    for d_model, heads in ((h * d_k + 1, h), (16, 5)):  # chunk(5) of 16 channels gives four equal chunks: no error by itself
        cases.append(Case((normal(generator, B, T, d_model), heads), raises=True, about=(
            "a d_model that h does not divide, where no equal split exists")))
    return cases


def split_variant(x, h, cut=(1, 2, 0), order=(0, 2, 1, 3)):
    """split_heads with its two choices open.

    cut:   the order in which the last axis is read: which of its parts is the head and which the channel, as strides
    order: the permutation of [B, T, h, d_k] that follows
    """
    B, T, d_model = x.shape
    d_k = d_model // h
    if h * d_k != d_model:
        raise ValueError(f"{h} does not divide {d_model}")
    pieces = {
        (1, 2, 0): lambda: x.reshape(B, T, h, d_k),                        # contiguous runs of d_k channels
        "strided": lambda: x.reshape(B, T, d_k, h).transpose(2, 3),        # every h-th channel
        "swapped": lambda: x.reshape(B, T, d_k, h),                        # d_k heads of width h
        "time first": lambda: x.reshape(T, B, h, d_k).transpose(0, 1),     # batch and time mistaken for each other
        "reversed": lambda: x.reshape(B, T, h, d_k).flip(2),
    }
    return pieces[cut]().permute(order)


def _direct_view(x, h, join=torch.Tensor.reshape):
    B, T, d_model = x.shape
    return join(x, (B, h, T, d_model // h)) if d_model % h == 0 else _refuse(x, h)


def _folded(x, h):
    return split_variant(x, h).flatten(0, 1)


def _folded_by_view(x, h, join=torch.Tensor.reshape):
    B, T, d_model = x.shape
    return join(x, (B * h, T, d_model // h)) if d_model % h == 0 else _refuse(x, h)


def _folded_then_unfolded(x, h):
    return _folded(x, h).reshape(h, x.shape[0], x.shape[1], -1).transpose(0, 1)


def _heads_outermost(x, h):
    return split_variant(x, h).transpose(0, 1)


def _cut_after_transpose(x, h):
    B, T, d_model = x.shape
    return x.transpose(1, 2).reshape(B, h, T, d_model // h) if d_model % h == 0 else _refuse(x, h)


def _sizes_exchanged(x, h):
    T, B, d_model = x.shape
    return x.reshape(B, T, h, d_model // h).transpose(1, 2) if d_model % h == 0 else _refuse(x, h)


def _joined_along_batch(x, h):
    B, T, d_model = x.shape
    return torch.cat(x.chunk(h, -1), 0).reshape(B, h, T, d_model // h) if d_model % h == 0 else _refuse(x, h)


def _overlapping(x, h):
    d_k = x.shape[-1] // h
    return torch.stack([x[..., i:i + d_k] for i in range(h)], 1) if d_k * h == x.shape[-1] else _refuse(x, h)


def _list_of_heads(x, h):
    return list(split_variant(x, h).unbind(1))


def _silent(x, h):
    return split_variant(x[..., :x.shape[-1] // h * h], h)


def _repeated(x, h):
    d_k = x.shape[-1] // h
    return x[..., :d_k].unsqueeze(1).repeat(1, h, 1, 1) if d_k * h == x.shape[-1] else _refuse(x, h)


def _whole(x, h):
    return x.unsqueeze(1).repeat(1, h, 1, 1)


def _refuse(x, h):
    raise ValueError(f"{h} does not divide {x.shape[-1]}")


DIRECT = (
    "You went straight to [B, h, T, d_k] in one step. The shape is right, but the memory is read in order, so this deals out runs "
    "of T d_k neighboring numbers: a head gets neighboring channels of some tokens instead of its own channels of every token. "
    "Cut the last axis first, to [B, T, h, d_k]; then exchange axes 1 and 2.")

FOLDED = (
    "You folded to [B h, T, d_k] in one reshape, without a transpose. That deals out runs of T d_k neighboring numbers, and "
    "the batch and head axes should stay apart. Cut to [B, T, h, d_k], then exchange axes 1 and 2.")

SPLIT_MISTAKES = (
    Misconception("direct view", DIRECT, _direct_view),
    Misconception("direct view, strict", DIRECT, lambda x, h: _direct_view(x, h, torch.Tensor.view)),
    Misconception("no transpose", (
        "You left the time axis in front of the two new axes. The product q @ k.mT would then compare heads inside one "
        "token. Exchange axes 1 and 2 as well."), partial(split_variant, order=(0, 1, 2, 3))),
    Misconception("strided", (
        "Head i got every h-th channel, from channel i on. That is a valid convention, but not this one: here head i takes "
        "the run of channels i d_k to (i + 1) d_k - 1. Let the head be the slower of the two new axes: [B, T, h, d_k], "
        "not [B, T, d_k, h]."), partial(split_variant, cut="strided")),
    Misconception("h and d_k exchanged", (
        "You made d_k heads of width h. The new axes are h first, then d_k = d_model / h."),
        partial(split_variant, cut="swapped")),
    Misconception("time first", (
        "You reshape to [T, B, ...], but the numbers of x lie in the order [B, T, d_model]: this mixes tokens of different "
        "sequences. Keep the axes B, T in that order."), partial(split_variant, cut="time first")),
    Misconception("head order", (
        "The heads come out in reverse order. Head 0 takes the first d_k channels."), partial(split_variant, cut="reversed")),
    Misconception("wrong axes exchanged", (
        "You exchanged the head axis with the channel axis. Exchange it with the time axis: 1 and 2 of [B, T, h, d_k]."),
        partial(split_variant, order=(0, 1, 3, 2))),
    Misconception("channels before time", (
        "Time is the last axis, as in k.mT. The channels of the head belong there: leave them last."),
        partial(split_variant, order=(0, 2, 3, 1))),
    Misconception("all axes reversed", (
        ".T on four axes reverses all of them. You want only axes 1 and 2 exchanged: transpose(1, 2)."),
        partial(split_variant, order=(3, 2, 1, 0))),
    Misconception("folded", (
        "You folded the heads into the batch, [B h, T, d_k]. The numbers are right; the exercise asks for four axes, "
        "[B, h, T, d_k], with B and h apart."), _folded, together=False),
    Misconception("folded by view", FOLDED, _folded_by_view),
    Misconception("folded by view, strict", FOLDED, lambda x, h: _folded_by_view(x, h, torch.Tensor.view)),
    Misconception("unfolded wrongly", (
        "You took the folded axis [B h] apart as if the head were the slower part of it. The batch is: [B, h], not [h, B]."),
        _folded_then_unfolded),
    Misconception("heads outermost", (
        "The head axis comes first, [h, B, T, d_k]; that is what stacking the chunks on axis 0 gives. Put it after the "
        "batch: stack on axis 1."), _heads_outermost),
    Misconception("channels cut after a transpose", (
        "You moved the channels in front of time and then reshaped. The reshape reads runs that cross from one channel to the "
        "next. Cut the last axis while it is last, to [B, T, h, d_k]; then exchange axes 1 and 2."), _cut_after_transpose),
    Misconception("B and T exchanged", (
        "You take the sizes of x in the order T, B, d_model. They are B, T, d_model."), _sizes_exchanged),
    Misconception("joined along the batch", (
        "You joined the chunks along the batch axis and then reshaped to [B, h, ...]. In the joined axis the head is the slower "
        "part, not the batch. Stack them on a new axis 1 instead."), _joined_along_batch),
    Misconception("overlapping", (
        "Head i starts at channel i, so the heads overlap. It starts at channel i d_k."), _overlapping),
    Misconception("list", (
        "You return the heads one by one. Put them into one tensor with a head axis after the batch: [B, h, T, d_k]."),
        _list_of_heads),
    Misconception("silent remainder", (
        "When h does not divide d_model, you drop the channels that are left over and say nothing. Raise a ValueError."),
        _silent),
    Misconception("same channels for all", (
        "Every head got the same channels, the first d_k. Head i takes channels i d_k to (i + 1) d_k - 1."), _repeated),
    Misconception("not cut", (
        "Every head got a copy of the whole vector. Each takes d_k = d_model / h channels of its own."), _whole),
)


def split_picture(answer):
    """Where each number went, for three tokens and four heads of two channels, or None if the answer has no picture."""
    source = Source(T=3, d_model=8, h=4)
    found = answer(source.tensor(), source.h)
    wanted = mh.split_heads(source.tensor(), source.h)
    if not isinstance(found, torch.Tensor) or found.ndim < 2 or found.numel() > 48 or torch.equal(found, wanted):
        return None
    return comparison(wanted, found, source)


SPLIT_HEADS = Exercise("split_heads", mh.split_heads, _draw_split, SPLIT_MISTAKES,
                       axes=("sequence", "head", "token", "channel"), picture=split_picture)


# predict_strides

def predict_strides(B, T, d_model, h):
    """Strides of x [B, T, d_model], x.view(B, T, h, d_k) and x.view(B, T, h, d_k).transpose(1, 2), as three tuples."""
    d_k = d_model // h
    projected = (T * d_model, d_model, 1)
    viewed = (T * d_model, d_model, d_k, 1)
    transposed = (T * d_model, d_k, d_model, 1)
    return projected, viewed, transposed


def strides_variant(B, T, d_model, h, scale=1, first="T", viewed="view", transposed="swap", divide="//"):
    """predict_strides with its choices open. view="view" gives (outer, d_model, d_k, 1) for [B, T, h, d_k]."""
    d_k = d_model / h if divide == "/" else d_model // h
    outer = {"T": T * d_model, "B": B * d_model, "BT": B * T * d_model}[first]
    view = {"view": (outer, d_model, d_k, 1), "direct": (outer, T * d_k, d_k, 1), "h": (outer, d_model, h, 1)}[viewed]
    swapped = {"swap": (view[0], view[2], view[1], view[3]), "same": view, "moved": (outer, T * d_k, d_k, 1),
               "last": (view[0], view[1], view[3], view[2]), "first": (view[1], view[0], *view[2:])}[transposed]
    return tuple(tuple(scale * stride for stride in strides) for strides in ((outer, d_model, 1), view, swapped))


def _shapes(B, T, d_model, h):
    d_k = d_model // h
    return (B, T, d_model), (B, T, h, d_k), (B, h, T, d_k)


def _reversed(B, T, d_model, h):
    return tuple(strides[::-1] for strides in strides_variant(B, T, d_model, h))


def _own_size(B, T, d_model, h):
    d_k = d_model // h
    view = (B * T * d_model, T * d_model, d_model, d_k)
    return (B * T * d_model, T * d_model, d_model), view, (view[0], view[2], view[1], view[3])


def _draw_strides(generator: torch.Generator) -> list[Case]:
    sizes = torch.tensor([2, 3, 5, 7])[torch.randperm(4, generator=generator)].tolist()
    return [Case((B, T, h * d_k, h)) for B, T, h, d_k in (sizes, sizes[1:] + sizes[:1], sizes[2:] + sizes[:2])]


PREDICT_STRIDES = Exercise("predict_strides", predict_strides, _draw_strides, (
    Misconception("shapes", "These are the shapes. A stride says how far apart in memory two neighbors along an axis lie.", _shapes),
    Misconception("floats", ("You divide with /, which gives a float, 64.0 instead of 64. A stride is a whole number of elements. "
                             "Divide with //."), partial(strides_variant, divide="/")),
    Misconception("bytes", ("You count bytes, four for each float32. torch counts strides in elements, so the last stride of a "
                            "contiguous tensor is 1."), partial(strides_variant, scale=4)),
    Misconception("reversed", "The strides are in reverse order: the first belongs to axis 0, the batch.", _reversed),
    Misconception("not exchanged", ("The transposed strides are those of the view. transpose(1, 2) exchanges the strides of axes "
                                    "1 and 2 together with their sizes."), partial(strides_variant, transposed="same")),
    Misconception("as if copied", ("Your transposed strides are those of a new contiguous [B, h, T, d_k]. transpose moves no "
                                   "number: it exchanges two of the strides that are there."),
                  partial(strides_variant, transposed="moved")),
    Misconception("direct view", ("Your strides of the view are those of a contiguous [B, h, T, d_k]. The view is [B, T, h, d_k]: one "
                                  "step in time still skips a whole token, d_model numbers."),
                  partial(strides_variant, viewed="direct")),
    Misconception("h for d_k", ("One step along the head axis skips one head's channels: d_k numbers, not h."),
                  partial(strides_variant, viewed="h")),
    Misconception("last two", ("transpose(1, 2) exchanges axes 1 and 2, counted from 0. You exchanged axes 2 and 3."),
                  partial(strides_variant, transposed="last")),
    Misconception("first two", ("transpose(1, 2) exchanges axes 1 and 2, counted from 0: time and heads. You exchanged axes 0 and 1."),
                  partial(strides_variant, transposed="first")),
    Misconception("own size", ("A stride skips what the axes behind it hold, not its own size as well: one step in time skips one token, "
                               "d_model numbers."), _own_size),
    Misconception("batch size", ("One step along the batch axis skips one sequence: T d_model numbers. The number of sequences B plays no "
                                 "part in it."), partial(strides_variant, first="BT")),
    Misconception("B for T", "One step along the batch axis skips one sequence of T tokens: T d_model numbers, not B d_model.",
                  partial(strides_variant, first="B")),
), run=calling.plainly_with_floats_marked)


# copies

COPIES = {  # operation -> (does it copy?, why)
    "x.view(B, T, h, d_k)": (False, "view changes shape and strides only."),
    "x.unflatten(-1, (h, d_k))": (False, "unflatten is a view: new shape and strides, same storage."),
    "q.mT": (False, "mT exchanges two strides."),
    "q.contiguous()": (True, "q is not contiguous after the transpose, so contiguous() writes a new tensor."),
    "q.flatten(0, 1)": (True, ("folding B and h into one axis needs one stride for both, but stride_B = T d_model is not h stride_h = "
                               "d_model when T > 1.")),
    "q @ k.mT": (True, ("the batched product folds B and h into one axis first. Both operands are transposed views that do not fold, so "
                        "both are copied.")),
    "F.scaled_dot_product_attention(q, k, v)": (False, ("the fused kernel takes a stride for B and one for h, so it reads the views "
                                                        "as they are.")),
    "q.transpose(1, 2).reshape(B, T, d_model)": (False, ("transposing back restores the strides of x, so the reshape is a view.")),
    "out.transpose(1, 2).reshape(B, T, d_model)": (True, ("out is a new contiguous [B, h, T, d_k]. After the transpose, h and d_k do not "
                                                          "lie side by side, so reshape copies.")),
}


def copies(operation):
    """Whether `operation` copies numbers that exist already."""
    return operation in {
        "q.contiguous()",
        "q.flatten(0, 1)",
        "q @ k.mT",
        "out.transpose(1, 2).reshape(B, T, d_model)",
    }


def _draw_copies(generator: torch.Generator) -> list[Case]:
    operations = list(COPIES)
    order = torch.randperm(len(operations), generator=generator).tolist()
    return [Case((operation,), because=f"{operation} {'copies' if moves else 'copies nothing'}: {why}")
            for operation, (moves, why) in ((operations[i], COPIES[operations[i]]) for i in order)]


def believing(*, copying=(), free=()):
    """An answer that is right but for what it believes to copy, or to be free."""
    return lambda operation: (operation in copying or COPIES[operation][0]) and operation not in free


COPIES_EXERCISE = Exercise("copies", copies, _draw_copies, (
    Misconception("nothing", "You say that nothing ever copies. Which of these results can have no strides over the old storage?",
                  lambda operation: False),
    Misconception("everything", "You say that everything copies. Which of these only change shape and strides?", lambda operation: True),
    Misconception("products are free", (
        "You say that the product q @ k.mT copies nothing. It folds B and h into one axis first, and the transposed views do not fold: "
        "stride_B = T d_model is not h stride_h = d_model. Both operands are copied."), believing(free=("q @ k.mT",))),
    Misconception("reshape is free", (
        "You say that reshape and flatten never copy. They are views only where one stride can walk through the axes that they join."),
        believing(free=("q.flatten(0, 1)", "out.transpose(1, 2).reshape(B, T, d_model)"))),
    Misconception("reshape copies", (
        "You say that reshape always copies. Where the strides allow a view, as after transposing q back, it is one."),
        believing(copying=("q.transpose(1, 2).reshape(B, T, d_model)",))),
    Misconception("transposing copies", "You say that mT copies. It exchanges two strides and moves no number.",
                  believing(copying=("q.mT",))),
    Misconception("fused copies", (
        "You say that the fused kernel copies as the explicit product does. It takes a stride for B and one for h, and reads the views."),
        believing(copying=("F.scaled_dot_product_attention(q, k, v)",))),
))

EXERCISES = (SPLIT_HEADS, PREDICT_STRIDES, COPIES_EXERCISE)
