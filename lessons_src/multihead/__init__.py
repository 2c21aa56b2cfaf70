"""The mathematics of multi-head attention, in torch alone. `import multihead as mh` gives everything a lesson calls."""
from multihead.attention import MultiHeadAttention, attention, head_contributions, merge_heads, split_heads
from multihead.budget import (
    PRESETS, count_flops, count_parameters, divisors, head_dim, kv_cache_bytes, map_bytes, softmax_elements,
)
from multihead.layout import Layout, fold_is_free, heads_layout, pipeline
from multihead.subspaces import (
    angle_density, condition_number, decompose, is_direct_sum, largest_cosine_limit, layer_matrix, operator_schmidt_rank,
    overlap, principal_angles, projectors, random_bases, rearrange, schmidt_values,
)
from multihead.trained import Encoder, ablate, load_layer, load_trained, previous_token_score, random_weights
from multihead.weights import NoWeights
from multihead.wordpiece import WordPiece, split_words

__all__ = [
    "PRESETS", "Encoder", "Layout", "MultiHeadAttention", "NoWeights", "WordPiece", "ablate", "angle_density",
    "attention", "condition_number", "count_flops", "count_parameters", "decompose", "divisors",
    "fold_is_free", "head_contributions", "head_dim", "heads_layout", "is_direct_sum", "kv_cache_bytes",
    "largest_cosine_limit", "layer_matrix", "load_layer", "load_trained", "map_bytes", "merge_heads",
    "operator_schmidt_rank", "overlap", "pipeline", "previous_token_score", "principal_angles", "projectors",
    "random_bases", "random_weights", "rearrange", "schmidt_values", "softmax_elements", "split_heads",
    "split_words",
]
