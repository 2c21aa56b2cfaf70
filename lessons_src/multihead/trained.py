"""A trained model whose attention layers are `MultiHeadAttention`: all-MiniLM-L6-v2, 6 layers of 12 heads.

Architecture: Devlin et al., "BERT", NAACL 2019; each norm follows its sum, as in Vaswani et al. 2017.
Model: Wang et al., "MiniLM", NeurIPS 2020, made a sentence embedder by the sentence-transformers project
(Reimers and Gurevych, EMNLP 2019).
"""

import torch
import torch.nn.functional as F
from torch import nn

from multihead.attention import MultiHeadAttention
from multihead.weights import find_weights, read_weights

HEADS = 12
EPSILON = 1e-12  # of the layer norms

# load_layer, ablate and previous_token_score are model solutions: each uses only torch and the layer.


def load_trained(path=None):
    """The model with the weights from `path` if given, else from the first place where they are installed.

    Raises NoWeights, with a sentence that says what to do, where there are none.
    """
    return Encoder(read_weights(find_weights(path)), HEADS)


def load_layer(weights, h):
    """A MultiHeadAttention with h heads and the weights of one attention layer of a BERT model.

    weights: eight tensors by name, `weight` [d_model, d_model] and `bias` [d_model] of attention.self.query,
        attention.self.key, attention.self.value and attention.output.dense; a weight is [out, in]. The layer
        keeps the tensors and does not copy them.
    Raises ValueError if h does not divide d_model, KeyError if a tensor is missing.
    """
    names = {"w_q": "attention.self.query", "w_k": "attention.self.key",
             "w_v": "attention.self.value", "w_o": "attention.output.dense"}
    d_model = len(weights["attention.self.query.bias"])
    layer = MultiHeadAttention(d_model, h, bias=True)
    renamed = {f"{ours}.{kind}": weights[f"{theirs}.{kind}"]
               for ours, theirs in names.items() for kind in ("weight", "bias")}
    layer.load_state_dict(renamed, assign=True)  # the tensors themselves, not copies
    return layer


def ablate(heads, w_o, silenced):
    """The layer's output [B, T, d_model], before any bias, when the heads in `silenced` say nothing.

    heads: [B, h, T, d_v], the heads' outputs.    w_o: [h d_v, d_model].
    silenced: numbers of heads, from 0.
    Raises ValueError for a head that is not there.
    """
    h = heads.shape[1]
    if not all(0 <= head < h for head in silenced):
        raise ValueError(f"silenced must name heads from 0 to {h - 1}; got {list(silenced)}")
    speaks = torch.tensor([head not in silenced for head in range(h)])
    kept = heads * speaks[:, None, None]  # [B, h, T, d_v], zeros for a silenced head
    return kept.transpose(1, 2).flatten(2) @ w_o  # [B, T, d_model]


def previous_token_score(maps):
    """How much weight a token gives, on average, to the token before it: [..., T, T] -> [...].

    The first token has none before it and is left out, so the mean is over T - 1 tokens.
    Raises ValueError for fewer than two tokens, and for maps that are not square.
    """
    if maps.ndim < 2 or not maps.shape[-2] == maps.shape[-1] >= 2:
        raise ValueError(f"maps must be [..., T, T] with at least 2 tokens; got shape {tuple(maps.shape)}")
    return maps.diagonal(-1, -2, -1).mean(-1)


class Encoder(nn.Module):
    """A BERT encoder: numbers of tokens in, one vector for each token out.

    weights: the model's tensors by their published names, as `read_weights` or `random_weights` gives them;
        the encoder keeps them and does not copy them.
    h: heads of a layer.
    """

    def __init__(self, weights, h):
        super().__init__()
        names = {name for name in weights if name.startswith("encoder.layer.")}
        depth = 1 + max(int(name.split(".")[2]) for name in names)
        self.token = nn.Embedding.from_pretrained(weights["embeddings.word_embeddings.weight"])
        self.position = nn.Embedding.from_pretrained(weights["embeddings.position_embeddings.weight"])
        self.segment = nn.Parameter(weights["embeddings.token_type_embeddings.weight"][0])
        self.norm = _norm(weights, "embeddings.LayerNorm")
        self.layers = nn.ModuleList(Layer(_below(weights, f"encoder.layer.{i}."), h) for i in range(depth))
        self.eval().requires_grad_(False)

    def forward(self, ids, mask=None, *, silenced=(), positions=True):
        """(states [L + 1, B, T, d_model], maps [L, B, h, T, T]) for token numbers ids [B, T].

        states[l] is what enters layer l, states[L] is the result.
        mask: boolean [B, T], False for padding.    silenced: (layer, head) pairs, from 0, that say nothing.
        positions: False leaves the position embeddings out.
        Raises ValueError for more tokens than there are positions, and for a pair that names no head.
        """
        if ids.shape[1] > len(self.position.weight):
            raise ValueError(f"the model reads at most {len(self.position.weight)} tokens; got {ids.shape[1]}")
        silent = _by_layer(silenced, len(self.layers))
        x = self.token(ids) + self.segment  # [B, T, d_model]
        if positions:
            x = x + self.position.weight[:ids.shape[1]]
        states, maps = [self.norm(x)], []
        keys = None if mask is None else mask[:, None, None]  # [B, 1, 1, T]
        for layer, heads in zip(self.layers, silent):
            x, weights = layer(states[-1], keys, heads)
            states.append(x)
            maps.append(weights)
        return torch.stack(states), torch.stack(maps)  # [L + 1, B, T, d_model], [L, B, h, T, T]

    def embed(self, ids, mask=None, **options):
        """One vector of length 1 for each text, the mean over its tokens: [B, T] -> [B, d_model].

        mask and options: as in `forward`.
        """
        states, _ = self(ids, mask, **options)
        counted = torch.ones(ids.shape) if mask is None else mask  # [B, T]
        mean = (states[-1] * counted[..., None]).sum(1) / counted.sum(1, keepdim=True)  # [B, d_model]
        return F.normalize(mean, dim=-1)


class Layer(nn.Module):
    """Attention, then a feed-forward network; each is added to its input, and the sum is normalized."""

    def __init__(self, weights, h):
        super().__init__()
        self.attention = load_layer(weights, h)
        self.norm_1 = _norm(weights, "attention.output.LayerNorm")
        self.up, self.down = _linear(weights, "intermediate.dense"), _linear(weights, "output.dense")
        self.norm_2 = _norm(weights, "output.LayerNorm")

    def forward(self, x, mask=None, silenced=()):
        """(output [B, T, d_model], maps [B, h, T, T]). mask: [B, 1, 1, T]; silenced: numbers of heads."""
        heads, maps = self.attention.heads(x, mask=mask)  # [B, h, T, d_k], [B, h, T, T]
        w_o = self.attention.w_o
        x = self.norm_1(x + ablate(heads, w_o.weight.T, silenced) + w_o.bias)  # [B, T, d_model]
        return self.norm_2(x + self.down(F.gelu(self.up(x)))), maps


def random_weights(generator, *, vocabulary, positions=128, d_model=384, d_ff=1536, depth=6, std=0.02):
    """The weights of an encoder before training: normal numbers in the matrices, biases 0, norms 1."""
    shapes = {f"embeddings.{kind}_embeddings.weight": (size, d_model)
              for kind, size in (("word", vocabulary), ("position", positions), ("token_type", 2))}
    norms = ["embeddings.LayerNorm"]
    for at in (f"encoder.layer.{i}." for i in range(depth)):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{at}attention.{part}.weight"] = (d_model, d_model)
        shapes[f"{at}intermediate.dense.weight"] = (d_ff, d_model)
        shapes[f"{at}output.dense.weight"] = (d_model, d_ff)
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]

    sizes = [rows * columns for rows, columns in shapes.values()]
    numbers = torch.randn(sum(sizes), generator=generator).mul_(std).split(sizes)
    weights = {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), numbers)}
    weights |= {name.replace(".weight", ".bias"): torch.zeros(shape[0])
                for name, shape in shapes.items() if name.startswith("encoder")}
    for norm in norms:
        weights |= {f"{norm}.weight": torch.ones(d_model), f"{norm}.bias": torch.zeros(d_model)}
    return weights


def _by_layer(silenced, depth):
    """For each of `depth` layers the numbers of the heads that (layer, head) pairs name."""
    silenced = list(silenced)  # an iterator can be read once only
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 and pair[0] in range(depth)
               and isinstance(pair[1], int) for pair in silenced):
        raise ValueError(f"silenced must hold pairs (layer, head), with layers from 0 to {depth - 1}; got {silenced}")
    return [[head for at, head in silenced if at == number] for number in range(depth)]


def _below(weights, prefix):
    """The tensors whose names start with `prefix`, under the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _linear(weights, name):
    layer = nn.Linear(*reversed(weights[f"{name}.weight"].shape))
    layer.load_state_dict(_below(weights, f"{name}."), assign=True)
    return layer


def _norm(weights, name):
    layer = nn.LayerNorm(len(weights[f"{name}.bias"]), eps=EPSILON)
    layer.load_state_dict(_below(weights, f"{name}."), assign=True)
    return layer
