"""Banks of lesson 02: right answers in many styles pass, every miscount is named."""
import math
from fractions import Fraction

import pytest
import torch
from banks import assert_every_misconception_is_named, assert_pairs_are_refused_and_named, assert_right, sentence
from torch import nn

import multihead as mh
from multihead_lessons.exercises import examine, exercises
from multihead_lessons.exercises.lesson02 import published_head_dims

NAMES = ["head_dim", "map_bytes", "count_parameters", "count_flops", "published_head_dims"]


@pytest.mark.parametrize("name", NAMES)
def test_every_misconception_is_named(name):
    assert_every_misconception_is_named(exercises()[name])


@pytest.mark.parametrize("name", NAMES[:-1])
def test_two_mistakes_at_once_are_named(name):
    assert_pairs_are_refused_and_named(exercises()[name], seeds=range(2))


# head_dim

def by_remainder(d_model, h):
    if d_model % h != 0:
        raise ValueError(f"d_model={d_model} cannot be split into h={h} heads")
    return d_model // h


def by_divmod(d_model, h):
    d_k, rest = divmod(d_model, h)
    if rest:
        raise ValueError("{} is not a multiple of {}".format(d_model, h))
    return d_k


def by_product(d_model, h):
    d_k = int(d_model / h)
    if d_k * h == d_model:
        return d_k
    raise ValueError("bad sizes: " + str(d_model) + "," + str(h))


def by_fraction(d_model, h):
    width = Fraction(d_model, h)
    if width.denominator > 1:
        raise ValueError(f"{h} heads, {d_model} channels")
    return width.numerator


def by_view(d_model, h):
    try:
        return torch.empty(d_model).view(h, -1).shape[1]
    except RuntimeError:
        raise ValueError(f"({d_model}, {h})") from None


def by_gcd(d_model, h):
    if math.gcd(d_model, h) < h:
        raise ValueError(f"h={h} | d_model={d_model} does not hold")
    return torch.tensor(d_model) // h


def test_head_dims_in_many_styles_pass():
    assert_right("head_dim", [by_remainder, by_divmod, by_product, by_fraction, by_view, by_gcd])


@pytest.mark.parametrize("answer, words", [
    (lambda d_model, h: d_model // h, "say nothing"),
    (lambda d_model, h: -1 if d_model % h else d_model // h, "instead of returning a number"),
    (lambda d_model, h: [][0] if d_model % h else d_model // h, "raises IndexError"),
    (lambda d_model, h: [][0] if d_model % h else d_model // h, "raise a ValueError"),
    (lambda d_model, h: d_model / h + 1, "must be an int; you return a Float"),
    (lambda d_model, h: float("nan"), "must be an int; you return a Float"),
    (lambda d_model, h: 1000 if d_model % h == 0 else by_divmod(d_model, h), "the value is wrong"),
    (lambda d_model: d_model, "raises TypeError"),
    (lambda d_model, h: print(d_model), "is there a return"),
])
def test_other_head_dims_are_described(answer, words):
    assert words in sentence("head_dim", answer)


def test_a_number_inside_another_does_not_count_as_named():
    def vague(d_model, h):
        if d_model % h:
            raise ValueError(f"9{d_model}9 and 9{h}9")
        return d_model // h
    assert examine("head_dim", vague).misconception == "no numbers"


# map_bytes

RIGHT_MAPS = [
    lambda h, T, B=1, dtype=torch.float32: B * h * T * T * dtype.itemsize,
    lambda h, T, B=1, dtype=torch.float32: B * h * T**2 * torch.finfo(dtype).bits // 8,
    lambda h, T, B=1, dtype=torch.float32: torch.empty(B, h, T, T, dtype=dtype).nbytes,
    lambda h, T, B=1, dtype=torch.float32: math.prod((B, h, T, T)) * torch.zeros((), dtype=dtype).element_size(),
    lambda h, T, B=1, dtype=torch.float32: sum(T * T * dtype.itemsize for _ in range(B) for _ in range(h)),
    lambda h, T, B=1, dtype=torch.float32: {torch.float16: 2, torch.float32: 4, torch.float64: 8}[dtype] * B * h * T * T,
]


def test_map_bytes_in_many_styles_pass():
    assert_right("map_bytes", RIGHT_MAPS)


@pytest.mark.parametrize("answer, words", [
    (lambda h, T, B=1, dtype=torch.float32: 4 * h * 26, "which is too"),
    (lambda h, T, B=1, dtype=torch.float32: float("nan"), "returns nan"),
    (lambda h, T, B=1, dtype=torch.float32: torch.empty(B, h, T, T), "a tensor of shape"),
    (lambda h, T: 4 * h * T * T, "raises TypeError"),
])
def test_other_map_bytes_are_described(answer, words):
    assert words in sentence("map_bytes", answer)


# count_parameters

def sizes(d_model, h, n_kv_heads=None, d_k=None):
    """The defaults filled in, or an exception."""
    if d_k is None:
        assert d_model % h == 0
        d_k = d_model // h
    n_kv_heads = n_kv_heads or h
    assert h % n_kv_heads == 0
    return h * d_k, n_kv_heads * d_k


def by_formula(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    return 2 * d_model * (full + few) + bias * (full + 2 * few + d_model)


def by_shapes(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    shapes = [(d_model, full), (d_model, few), (d_model, few), (full, d_model)]
    return sum(rows * columns + (columns if bias else 0) for rows, columns in shapes)


def by_rows(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    extra = 1 if bias else 0  # a bias is one more row
    return (d_model + extra) * (full + 2 * few) + (full + extra) * d_model


def by_heads(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    width, count = full // h, 0
    for _ in range(h):
        count += d_model * width + width * d_model + (width if bias else 0)
    for _ in range(few // width):
        count += 2 * (d_model * width + (width if bias else 0))
    return count + (d_model if bias else 0)


def by_meta_modules(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    pairs = [(d_model, full), (d_model, few), (d_model, few), (full, d_model)]
    with torch.device("meta"):
        return sum(p.numel() for pair in pairs for p in nn.Linear(*pair, bias=bias).parameters())


def by_empty_tensors(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    weights = [torch.empty(d_model, full), *torch.empty(2, d_model, few), torch.empty(full, d_model)]
    return sum(w.numel() + (w.shape[1] if bias else 0) for w in weights)


def by_head_dim_of_the_library(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    d_k = d_k or mh.head_dim(d_model, h)
    n = h if n_kv_heads is None else n_kv_heads
    if h % n > 0:
        raise RuntimeError
    return 2 * d_model * d_k * (h + n) + (d_k * (h + 2 * n) + d_model) * int(bias)


def by_float(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    return 4 * d_model * ((full + few) / 2) + (full + 2 * few + d_model if bias else 0.0)


def by_groups(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    group = full // few
    return 2 * d_model * full + 2 * d_model * full // group + (bias and full + 2 * few + d_model)


def by_fused_qkv(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    c_attn = (full + 2 * few) * d_model + (full + 2 * few if bias else 0)
    c_proj = full * d_model + (d_model if bias else 0)
    return c_attn + c_proj


RIGHT_PARAMETERS = [by_formula, by_shapes, by_rows, by_heads, by_meta_modules, by_empty_tensors,
                    by_head_dim_of_the_library, by_float, by_groups, by_fused_qkv]


def test_parameter_counts_in_ten_styles_pass():
    assert_right("count_parameters", RIGHT_PARAMETERS)


def test_miscounts_in_a_strangers_style_are_named():
    def the_tempting_chain(d_model, h, n_kv_heads=None, d_k=None, bias=False):
        full, few = sizes(d_model, h, n_kv_heads, d_k)
        width = full // h
        return sum(2 * width**2 for _ in range(h)) + 2 * few * width + bias * 2 * (full + few)

    def twelve_layers(d_model, h, n_kv_heads=None, d_k=None, bias=False):
        return sum(by_shapes(d_model, h, n_kv_heads, d_k, bias) for _ in range(h))

    def no_output(d_model, h, n_kv_heads=None, d_k=None, bias=False):
        full, few = sizes(d_model, h, n_kv_heads, d_k)
        return d_model * (full + 2 * few) + (full + 2 * few + d_model if bias else 0)

    def same_for_all(d_model, h, n_kv_heads=None, d_k=None, bias=False):
        return 4 * d_model * (d_model + bias)

    for answer, slug in [(lambda d_model, h, n_kv_heads=None, d_k=None, bias=False: 4 * d_model**2,
                          "4 d_model squared without biases"), (the_tempting_chain, "d_k x d_k, w_o too"), (twelve_layers, "h layers"), (no_output, "no w_o"),
                         (same_for_all, "always 4 d_model squared")]:
        assert examine("count_parameters", answer).misconception == slug


@pytest.mark.parametrize("answer, words", [
    (lambda *args, **options: 5, "too little"),
    (lambda *args, **options: by_formula(*args, **options) + 1, "too much"),
    (lambda *args, **options: float("nan"), "returns nan"),
    (lambda *args, **options: [by_formula(*args, **options)], "a list of 1"),
    (lambda *args, **options: by_formula(*args, **options) + options.get("n_kv_heads", 0), "case with n_kv_heads ="),
    (lambda d_model, h: 4 * d_model**2, "raises TypeError"),
    (lambda *args, **options: sum(p.numel() for p in mh.MultiHeadAttention(*args, **options).parameters()), "random"),
    (mh.count_parameters, "library's own"),
    (lambda *args, **options: mh.count_parameters(*args, **options), "library's own"),
])
def test_other_parameter_counts_are_described(answer, words):
    assert words in sentence("count_parameters", answer)


def test_memorized_sizes_are_noticed():
    def fixed(d_model, h, n_kv_heads=None, d_k=None, bias=False):
        first = exercises()["count_parameters"].draw(torch.Generator().manual_seed(0))[0].args
        if (n_kv_heads, d_k, bias) == (None, None, False) and d_model % h == 0:
            return by_formula(*first)
        return by_formula(d_model, h, n_kv_heads, d_k, bias)
    assert "Are sizes fixed in your code?" in sentence("count_parameters", fixed, seed=0)


# count_flops

def flops_by_formula(d_model, h, T, B=1, n_kv_heads=None, d_k=None):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    return B * (4 * T * d_model * (full + few) + 4 * T**2 * full)


def flops_by_products(d_model, h, T, B=1, n_kv_heads=None, d_k=None):
    full, few = sizes(d_model, h, n_kv_heads, d_k)
    products = [(T, d_model, full), (T, d_model, few), (T, d_model, few), (T, full, d_model)]
    products += [(T, full // h, T), (T, T, full // h)] * h
    return 2 * B * sum(math.prod(product) for product in products)


def flops_with_the_librarys_count(d_model, h, T, B=1, n_kv_heads=None, d_k=None):
    width = mh.head_dim(d_model, h) if d_k is None else d_k
    return 2 * B * (T * mh.count_parameters(d_model, h, n_kv_heads, d_k) + 2 * h * T * T * width)


def flops_by_sequences(d_model, h, T, B=1, n_kv_heads=None, d_k=None):
    return sum(flops_by_products(d_model, h, T, 1, n_kv_heads, d_k) for _ in range(B))


def flops_by_torchs_counter(d_model, h, T, B=1, n_kv_heads=None, d_k=None):
    from torch.utils.flop_counter import FlopCounterMode
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        layer = mh.MultiHeadAttention(d_model, h, n_kv_heads=n_kv_heads, d_k=d_k)
        layer(torch.empty(B, T, d_model))
    return counter.get_total_flops()


def test_flop_counts_in_many_styles_pass():
    assert_right("count_flops", [flops_by_formula, flops_by_products, flops_with_the_librarys_count,
                                 flops_by_sequences, flops_by_torchs_counter])


@pytest.mark.parametrize("answer, words", [
    (lambda *args, **options: 1, "too little"),
    (lambda *args, **options: flops_by_formula(*args, **options) * 3, "too much"),
    (lambda *args, **options: None, "is there a return"),
    (lambda *args, **options: flops_by_formula(*args) if not options else 1 / 0, "raises ZeroDivisionError"),
])
def test_other_flop_counts_are_described(answer, words):
    assert words in sentence("count_flops", answer)


# published_head_dims

def test_published_head_dims_are_those_of_the_presets():
    widths = {preset.name: preset.d_k for preset in mh.PRESETS}
    assert published_head_dims() == {"GPT-2 small": widths["GPT-2 small"], "GPT-3 175B": widths["GPT-3 175B"],
                                     "Llama-3-70B": widths["Llama-3-70B"]}
    assert_right("published_head_dims", [lambda: {"GPT-3 175B": 128, "Llama-3-70B": 128, "GPT-2 small": 64},
                                         lambda: dict(zip(("GPT-2 small", "GPT-3 175B", "Llama-3-70B"), (64.0, 128, 128)))])


@pytest.mark.parametrize("answer, words", [
    (lambda: [64, 128, 128], "must be a dict"), (lambda: {"GPT-2": 64}, "keys 'GPT-2 small', 'GPT-3 175B', 'Llama-3-70B'"),
    (lambda: {"GPT-2 small": 64, "GPT-3 175B": 100, "Llama-3-70B": 128}, "['GPT-3 175B'] is wrong")])
def test_other_published_head_dims_are_described(answer, words):
    assert words in sentence("published_head_dims", answer)
