"""What one attention layer costs: weights, floating-point operations and bytes, as exact integers.

Nothing is allocated, so a layer of GPT-3's size is counted as fast as a toy. The layer is
`multihead.attention.MultiHeadAttention`: h query heads of width d_k, n_kv_heads key and value heads.
"""

from dataclasses import dataclass

import torch


def divisors(n):
    """Every h that splits n channels into equal heads: the divisors of n, in rising order."""
    if not (isinstance(n, int) and n > 0):
        raise ValueError(f"n must be a positive integer, got {n!r}")
    return [h for h in range(1, n + 1) if n % h == 0]


# The next four functions are the model solutions of lesson 02. Each checks its arguments in place and uses
# nothing but torch and those of the four that stand above it.


def head_dim(d_model, h):
    """Width d_k = d_model / h of one head.

    Raises ValueError when a size is not a positive integer, or when h does not divide d_model.
    """
    if not all(isinstance(n, int) and n > 0 for n in (d_model, h)):
        raise ValueError(f"d_model and h must be positive integers, got d_model={d_model!r}, h={h!r}")
    if d_model % h:
        valid = [n for n in range(1, d_model + 1) if d_model % n == 0]
        raise ValueError(f"d_model={d_model} does not split into h={h} equal heads; h can be any of {valid}")
    return d_model // h


def count_parameters(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    """Trainable numbers of the layer: w_q, w_k, w_v and w_o, and their four biases if there are any.

    n_kv_heads defaults to h and must divide it; d_k defaults to d_model / h. With both defaults the weights
    number 4 d_model^2 for every h.
    """
    d_k = head_dim(d_model, h) if d_k is None else d_k
    n_kv_heads = h if n_kv_heads is None else n_kv_heads
    if not all(isinstance(n, int) and n > 0 for n in (d_model, h, n_kv_heads, d_k)):
        raise ValueError("d_model, h, n_kv_heads and d_k must be positive integers, "
                         f"got {d_model!r}, {h!r}, {n_kv_heads!r} and {d_k!r}")
    if h % n_kv_heads:
        raise ValueError(f"n_kv_heads={n_kv_heads} must divide h={h}, so that each serves equally many heads")
    width, kv_width = h * d_k, n_kv_heads * d_k
    weights = d_model * width + 2 * d_model * kv_width + width * d_model  # w_q, then w_k and w_v, then w_o
    biases = width + 2 * kv_width + d_model
    return weights + biases if bias else weights


def count_flops(d_model, h, T, B=1, n_kv_heads=None, d_k=None):
    """Floating-point operations of all matrix products of one forward pass, two for each multiply-add.

    Softmax, scaling and biases are not matrix products and are not counted. With the defaults for n_kv_heads
    and d_k this is B (8 T d_model^2 + 4 T^2 d_model) for every h.
    """
    weights = count_parameters(d_model, h, n_kv_heads, d_k)  # each weight is used once for every token
    d_k = head_dim(d_model, h) if d_k is None else d_k
    if not all(isinstance(n, int) and n > 0 for n in (T, B)):
        raise ValueError(f"T and B must be positive integers, got T={T!r}, B={B!r}")
    score = blend = h * T * T * d_k  # every query head meets every pair of tokens, also when heads share keys
    return 2 * B * (T * weights + score + blend)


def map_bytes(h, T, B=1, dtype=torch.float32):
    """Bytes of the attention maps [B, h, T, T] of one layer, if they are stored (a fused kernel does not)."""
    if not all(isinstance(n, int) and n > 0 for n in (h, T, B)):
        raise ValueError(f"h, T and B must be positive integers, got h={h!r}, T={T!r}, B={B!r}")
    return B * h * T * T * dtype.itemsize


def softmax_elements(h, T, B=1):
    """Exponentials in the softmax of one layer: one for each entry of the maps, B h T^2."""
    return map_bytes(h, T, B, dtype=torch.uint8)  # at one byte an entry, bytes are entries


def kv_cache_bytes(d_model, h, T, B=1, layers=1, n_kv_heads=None, d_k=None, dtype=torch.float16):
    """Bytes of the keys and values that a decoder keeps for T tokens of B sequences in all its layers."""
    count_parameters(d_model, h, n_kv_heads, d_k)  # for its errors: the layer must be possible
    d_k = head_dim(d_model, h) if d_k is None else d_k
    n_kv_heads = h if n_kv_heads is None else n_kv_heads
    if not all(isinstance(n, int) and n > 0 for n in (T, B, layers)):
        raise ValueError("T, B and layers must be positive integers, "
                         f"got T={T!r}, B={B!r}, layers={layers!r}")
    return 2 * layers * B * n_kv_heads * T * d_k * dtype.itemsize


@dataclass(frozen=True)
class Preset:
    """Attention sizes of a published model; n_kv_heads is None where it equals h."""

    name: str
    d_model: int
    h: int
    d_k: int
    n_kv_heads: int | None
    layers: int  # in each stack: T5 has an encoder and a decoder
    source: str


PRESETS = (
    Preset("GPT-2 small", 768, 12, 64, None, 12, "configuration released with the weights (2019)"),
    Preset("GPT-3 175B", 12288, 96, 128, None, 96, "Brown et al. 2020, Table 2.1"),
    Preset("Llama-3-70B", 8192, 64, 128, 8, 80, "configuration released with the weights (2024)"),
    Preset("T5-11B", 1024, 128, 128, None, 24, "configuration released with the weights (2019)"),
    Preset("Gemma-7B", 3072, 16, 256, None, 28, "configuration released with the weights (2024)"),
)
