"""The mathematics of multi-head attention, in torch alone. `import multihead as mh` gives everything a lesson calls."""
from multihead.attention import MultiHeadAttention, attention, merge_heads, split_heads
from multihead.budget import (
    PRESETS, count_flops, count_parameters, divisors, head_dim, kv_cache_bytes, map_bytes, softmax_elements,
)
from multihead.layout import Layout, fold_is_free, heads_layout, pipeline

__all__ = [
    "PRESETS", "Layout", "MultiHeadAttention", "attention", "count_flops", "count_parameters", "divisors",
    "fold_is_free", "head_dim", "heads_layout", "kv_cache_bytes", "map_bytes", "merge_heads", "pipeline",
    "softmax_elements", "split_heads",
]
