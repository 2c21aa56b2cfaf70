"""Banks of lesson 03: right answers in many styles pass, every layout mistake is named."""
import einops
import numpy as np
import pytest
import torch
from banks import assert_every_misconception_is_named, assert_right, sentence

from multihead_lessons.exercises import examine, exercises
from multihead_lessons.exercises.lesson03 import COPIES, copies, predict_strides, split_picture
from multihead_lessons.lesson03 import copies_made


def by_view(x, h):
    B, T, d_model = x.shape
    return x.view(B, T, h, d_model // h).transpose(1, 2)


def by_reshape_and_permute(x, h):
    B, T, _ = x.shape
    return x.reshape(B, T, h, -1).permute(0, 2, 1, 3)


def by_unflatten(x, h):
    return x.unflatten(-1, (h, x.shape[-1] // h)).swapaxes(1, 2)


def by_einops(x, h):
    return einops.rearrange(x, "b t (h d) -> b h t d", h=h)


def by_einsum(x, h):
    B, T, d_model = x.shape
    return torch.einsum("bthd->bhtd", x.reshape(B, T, h, d_model // h)).contiguous()


def by_chunks(x, h):
    assert x.shape[-1] % h == 0
    return torch.stack(x.chunk(h, dim=-1), dim=1)


def by_chunks_unchecked(x, h):
    return torch.stack(x.chunk(h, dim=-1), dim=1)


def by_refusing_with_not_implemented(x, h):
    if x.shape[-1] % h:
        raise NotImplementedError("unequal heads")
    return by_view(x, h)


def by_split(x, h):
    d_k, rest = divmod(x.size(-1), h)
    if rest:
        raise ValueError("no equal heads")
    return torch.stack(torch.split(x, d_k, -1), 1)


def by_loop(x, h):
    B, T, d_model = x.shape
    if d_model % h:
        raise RuntimeError
    d_k = d_model // h
    out = x.new_empty(B, h, T, d_k)
    for i in range(h):
        out[:, i] = x[:, :, i * d_k:(i + 1) * d_k]
    return out


def by_index(x, h):
    channels = torch.arange(x.shape[-1]).view(h, -1)
    return x[:, :, channels].transpose(1, 2)


def by_fold_and_back(x, h):
    B, T, d = x.shape
    folded = x.reshape(B, T, h, d // h).transpose(1, 2).reshape(B * h, T, d // h)
    return folded.reshape(B, h, T, d // h)


def by_unfold(x, h):
    assert not x.shape[-1] % h
    d_k = x.shape[-1] // h
    return x.unfold(-1, d_k, d_k).transpose(1, 2)


def by_vmap(x, h):
    return torch.vmap(lambda tokens: tokens.reshape(tokens.shape[0], h, -1).transpose(0, 1))(x)


def by_transposed_view(x, h):
    B, T, d = x.shape
    return x.mT.reshape(B, h, d // h, T).mT


RIGHT = [by_view, by_reshape_and_permute, by_unflatten, by_einops, by_einsum, by_chunks, by_split, by_loop, by_index,
         by_fold_and_back, by_unfold, by_vmap, by_transposed_view, by_refusing_with_not_implemented]


def test_right_answers_in_every_style_pass():
    assert_right("split_heads", RIGHT)


@pytest.mark.parametrize("name", ["split_heads", "predict_strides", "copies"])
def test_every_misconception_is_named(name):
    assert_every_misconception_is_named(exercises()[name])


def test_wrong_answers_in_a_strangers_style_are_named():
    def scrambled(x, heads):
        return x.reshape(x.size(0), heads, x.size(1), x.size(2) // heads)

    def forgot(x, heads):
        return einops.rearrange(x, "b t (h d) -> b t h d", h=heads)

    def interleaved(x, heads):
        return einops.rearrange(x, "b t (d h) -> b h t d", h=heads)

    def stacked_first(x, heads):
        assert x.shape[-1] % heads == 0
        return torch.stack(x.chunk(heads, -1))

    def viewed(x, h):
        B, T, d_model = x.shape
        assert d_model % h == 0
        return x.view(B, h, T, d_model // h)

    def folded(x, h):
        B, T, d_model = x.shape
        assert d_model % h == 0
        return x.view(B * h, T, d_model // h)

    for answer, slug in [(scrambled, "direct view"), (viewed, "direct view"), (folded, "folded by view"), (forgot, "no transpose"), (interleaved, "strided"),
                         (stacked_first, "heads outermost")]:
        assert examine("split_heads", answer).misconception.startswith(slug)


@pytest.mark.parametrize("answer, words", [
    (lambda x, h: None, "is there a return"),
    (lambda x, h: x.view(2, 3), "raises RuntimeError"),
    (lambda x, h: by_view(x, h).float() if x.shape[-1] % h == 0 else 1 / 0, "precision is lost"),
    (lambda x, h: by_view(x, h) * float("nan"), "NaN"),
    (lambda x, h: by_view(x, h)[:, :, :-1], "must have the shape"),
    (lambda x, h: by_view(x, h).numpy(force=True), "must be a tensor"),
    (lambda x: x, "raises TypeError"),
    (lambda x, h: by_view(x, h).roll(1, dims=2), "the values are not"),
    (lambda x, h: by_view(x, h).half().double(), "the values are not"),
    (lambda x, h: by_view(x, h).half(), "precision is lost"),
    (lambda x, h: by_view(x.detach(), h), "no gradient flows back"),
    (by_chunks_unchecked, "must raise an exception"),
])
def test_other_answers_are_described(answer, words):
    assert words in sentence("split_heads", answer)


def test_only_some_heads_right_is_said():
    def half(x, h):
        out = by_view(x, h).clone()
        out[:, 1:] += 1
        return out
    assert "only the values of head 0 are" in sentence("split_heads", half)


def test_the_line_of_the_learners_own_code_is_named():
    def broken(x, h):
        B, T, d_model = x.shape
        return x.view(B, T, h + 1, d_model // h)
    assert '"return x.view(B, T, h + 1, d_model // h)", raises RuntimeError: shape' in sentence("split_heads", broken)


def test_the_picture_shows_wanted_and_found():
    picture = split_picture(lambda x, h: x.view(1, h, 3, 2))
    assert "20 of 24 places hold another number" in picture.alt
    assert split_picture(by_view) is None and split_picture(lambda x, h: 3) is None


@pytest.mark.parametrize("sizes", [(2, 4, 768, 12), (3, 5, 12, 2), (2, 2, 6, 3)])
def test_predict_strides_is_what_torch_has(sizes):
    B, T, d_model, h = sizes
    x = torch.empty(B, T, d_model)
    viewed = x.view(B, T, h, d_model // h)
    assert predict_strides(*sizes) == (x.stride(), viewed.stride(), viewed.transpose(1, 2).stride())


def test_right_strides_pass_as_tuples_or_lists():
    def measured(B, T, d_model, h):
        x = torch.empty(B, T, d_model, device="meta")
        y = x.view(B, T, h, -1)
        return [list(x.stride()), list(y.stride()), list(y.transpose(1, 2).stride())]
    def by_numpy(B, T, d_model, h):
        def strides(*shape):
            return tuple(np.cumprod((1, *shape[:0:-1]))[::-1])
        viewed = strides(B, T, h, d_model // h)
        return strides(B, T, d_model), viewed, (viewed[0], viewed[2], viewed[1], viewed[3])
    assert_right("predict_strides", [measured, by_numpy])


def test_the_place_of_a_wrong_stride_is_said():
    def almost(*sizes):
        a, b, c = predict_strides_again(*sizes)
        return a, b, (*c[:3], 2)
    assert "the value of the result at [2][3] is wrong" in sentence("predict_strides", almost)
    assert "the result[1] must be a tuple of 4" in sentence("predict_strides", lambda *sizes: (predict_strides_again(*sizes)[0],) * 3)


def predict_strides_again(B, T, d_model, h):
    return (T * d_model, d_model, 1), (T * d_model, d_model, d_model // h, 1), (T * d_model, d_model // h, d_model, 1)


def test_copies_is_what_torch_does():
    B, T, h, d_k = 2, 3, 4, 5
    d_model = h * d_k
    x = torch.randn(B, T, d_model)
    q, k, v = (torch.randn(B, T, d_model).view(B, T, h, d_k).transpose(1, 2) for _ in range(3))
    out = torch.randn(B, h, T, d_k)
    scope = dict(x=x, q=q, k=k, v=v, out=out, B=B, T=T, h=h, d_k=d_k, d_model=d_model, F=torch.nn.functional)
    for operation, (moves, _) in COPIES.items():
        assert bool(copies_made(lambda: eval(operation, scope))) == moves == copies(operation), operation


def test_copies_says_why_where_no_belief_explains_it():
    assert "q.contiguous() copies: q is not contiguous" in sentence(
        "copies", lambda operation: operation != "q.contiguous()" and COPIES[operation][0])
    assert "must be True or False; you return an int" in sentence("copies", lambda operation: int(COPIES[operation][0]))
    assert_right("copies", [lambda operation: COPIES[operation][0], lambda operation: np.bool_(COPIES[operation][0])])
