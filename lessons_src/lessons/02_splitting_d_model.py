# %% [markdown] strip=true minutes=2
# # If one head costs $d_\text{model}^2$ weights a matrix, what do twelve cost?
#
# A contest can pay for a fixed number of judging hours: all for one judge who weighs everything at once, or an eighth
# each for eight specialists. Does a specialist taste the whole dish, or an eighth of it? And what lies on the table
# when each has filled in a score sheet?
#
# **You will be able to** count the weights, the floating-point operations (FLOPs) and the bytes of an attention layer
# for any number of heads, say what stays the same and what grows when you split, and read the sizes of published
# models.
#
# **You should know** matrix products and `nn.Linear`, and what one head computes
# ([lesson 01](01_one_head_averages.ipynb)). The [symbols page](00_start_here.ipynb) has every shape.

# %%
try:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    import multihead as mh
    from multihead_lessons import lesson02 as lesson
    from multihead_lessons.exercises import check, show_solution
    from multihead_lessons.style import show
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{missing.name} is not installed here. Run `pip install -r requirements.txt` "
        "in the course's folder, then restart this kernel.") from None

# %% quiz="twelve_heads" minutes=1
lesson.twelve_heads_quiz()

# %% [markdown] minutes=1
# ## Sixteen weights
#
# Take $d_\text{model} = 4$. One matrix, $W^Q$ say, has $4 \times 4 = 16$ weights. Row $c$ meets channel $c$ of a
# token. The columns are shared out among the heads; the color is the head that owns the column.

# %%
show(lesson.columns())

# %% [markdown] minutes=1
# A head's block is as high as the whole matrix and $d_k = d_\text{model} / h$ wide. So $h$ heads have
#
# $$h \cdot (d_\text{model} \times d_k) = d_\text{model} \cdot h\,d_k = d_\text{model}^2$$
#
# weights in each of $W^Q$, $W^K$, $W^V$, and $W^O$ adds another $d_\text{model}^2$. The sum $4\,d_\text{model}^2$
# does not contain $h$. The next cell counts on real modules: the heads one by one, then the library's layer, then
# torch's own.

# %%
def weights(module):
    """Numbers that training can change."""
    return sum(p.numel() for p in module.parameters())

d_model = 768  # GPT-2 small
for h in (1, 2, 3, 4, 6, 8, 12, 16):
    d_k = mh.head_dim(d_model, h)
    heads = nn.ModuleList(nn.Linear(d_model, d_k, bias=False) for _ in range(h))
    assert weights(heads) == weights(nn.Linear(d_model, d_model, bias=False)) == 589_824
    assert weights(mh.MultiHeadAttention(d_model, h)) == 4 * d_model**2 == 2_359_296
    with_biases = 4 * d_model**2 + 4 * d_model
    assert weights(nn.MultiheadAttention(d_model, h)) == with_biases == 2_362_368
print("The same count for each of eight h, with biases and without.")

# %% [markdown] minutes=2
# ## Two mistakes that cancel
#
# A tempting calculation reaches the same $d_\text{model}^2$ on a wrong road. It gives each head $d_k \times d_k$
# weights, adds up the heads, and then multiplies by $h$ once more. **The first step takes too few rows, the last step
# counts the heads twice.** The two errors cancel, because $h\,d_k = d_\text{model}$. The next cell counts each step.

# %%
h = 12
d_k = mh.head_dim(d_model, h)
small = nn.ModuleList(nn.Linear(d_k, d_k, bias=False) for _ in range(h))  # too few rows
assert weights(small) == h * d_k**2 == d_model**2 // h == 49_152  # all heads, not one
assert h * weights(small) == d_model**2  # counted twice: the right number, by luck
right = nn.Linear(d_model, d_k, bias=False)
assert weights(right) == d_model * d_k == 49_152  # one head
assert h * weights(right) == d_model**2 == 589_824  # all heads
print("49,152 weights: one head of the layer, or all twelve d_k x d_k blocks.")

# %% [markdown] minutes=1
# A layer with $d_k \times d_k$ blocks does exist. It cuts $x$ itself into slices and projects each slice alone. Its
# matrix holds blocks on the diagonal and nothing elsewhere, $d_\text{model}^2 / h$ weights. Public code has it under
# the name of multi-head attention, often with one block for all slices.

# %%
show(lesson.diagonal())

# %% quiz="bump" minutes=1
lesson.bump_quiz()

# %% [markdown] minutes=1
# What does a head lose when it reads only a slice? Build that layer and bump the channels of $x$ one after the other.
# The rest stays, so a head that changes has read the bumped channel.

# %%
class SliceFirst(nn.Module):
    """Not multi-head attention: head i projects its own slice of x, and sees no more."""

    def __init__(self, d_model, h):
        super().__init__()
        self.h, d_k = h, d_model // h
        self.blocks = nn.ModuleList(nn.Linear(d_k, 3 * d_k, bias=False) for _ in range(h))

    def heads(self, x):
        slices = x.chunk(self.h, dim=-1)  # h times [B, T, d_k]
        qkv = torch.stack([w(s) for w, s in zip(self.blocks, slices)], 1)  # [B, h, T, 3 d_k]
        return mh.attention(*qkv.chunk(3, dim=-1))  # [B, h, T, d_k], [B, h, T, T]

# %%
def noticed(layer, x):
    """[d_model, h], True where a bump of a channel changes the output of a head."""
    before, _ = layer.heads(x)  # [B, h, T, d_k]
    rows = []
    for channel in range(x.shape[-1]):
        bumped = x.clone()
        bumped[..., channel] += 1
        change = (layer.heads(bumped)[0] - before).abs()  # [B, h, T, d_k]
        rows.append(change.amax(dim=(0, 2, 3)) > 1e-4)  # [h]
    return torch.stack(rows)  # [d_model, h]


torch.manual_seed(0)
x = torch.randn(2, 5, 8, dtype=torch.float64)  # [B, T, d_model]
whole = noticed(mh.MultiHeadAttention(8, 4).double(), x)
sliced = noticed(SliceFirst(8, 4).double(), x)
assert whole.all()
assert (sliced == torch.block_diag(*[torch.ones(2, 1)] * 4).bool()).all()
show(lesson.reach(whole, sliced))

# %% [markdown]
# In the real layer each head reads all channels: the *projected* vector is cut, not $x$. In the sliced layer a head
# is blind to all channels but its own $d_k$, when it chooses where to look and when it takes a value. $W^O$ mixes the
# heads later, but by then each has looked.

# %% [markdown]
# ### Your turn: `head_dim`

# %% exercise="head_dim" solution="multihead.budget:head_dim" points=2 minutes=3
def head_dim(d_model, h):
    """Width d_k = d_model / h of one head, an int, for positive integers d_model and h.

    Raise a ValueError whose message names both numbers when h does not divide d_model.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="head_dim"
check("head_dim", head_dim)

# %% [markdown] hint="head_dim"
# `/` gives a float. Which operator gives an int? And which one tells you that something is left over?
#
# ---
# `d_model % h` is what is left when the channels are dealt out to $h$ heads. Look at it before you divide.
#
# ---
# If the remainder is not 0, `raise ValueError(...)` with an f-string that holds `d_model` and `h`. Else the result is
# `d_model // h`.

# %% [markdown] minutes=2
# ## The products cost the same
#
# A multiply-add counts as two FLOPs. Each of the $4\,d_\text{model}^2$ weights is used once for every token:
# $8\,T\,d_\text{model}^2$. A head's $Q_i K_i^\top$ takes a dot product over $d_k$ channels for each of $T^2$ pairs,
# and $A_i V_i$ takes as many multiply-adds: over all heads $2 \cdot 2\,h\,T^2 d_k = 4\,T^2 d_\text{model}$. Together,
# for $B$ sequences,
#
# $$B\,(8\,T\,d_\text{model}^2 + 4\,T^2\,d_\text{model}),$$
#
# as long as $h\,d_k = d_\text{model}$ and each head has keys and values of its own. Again no $h$. ($d_\text{model}^2$
# alone is what one matrix takes for one token, in multiply-adds. A layer has four matrices and two more products.)
# Two tokens with $d_\text{model} = 4$: $8 \cdot 2 \cdot 16 + 4 \cdot 4 \cdot 4 = 320$.
#
# torch counts too, from the shapes. So the layers below may live on the *meta* device, where tensors have shapes and no
# numbers.

# %%
def counted_flops(run):
    """The FLOPs that torch counts while `run()` works: matrix products only."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()

tiny = torch.randn(1, 2, 4)  # [B, T, d_model]
assert counted_flops(lambda: mh.MultiHeadAttention(4, 2)(tiny)) == 320

T = 256
with torch.device("meta"):
    shape = torch.randn(1, T, d_model)  # [B, T, d_model]
    for h in (1, 2, 3, 4, 6, 8, 12, 16):
        counted = counted_flops(lambda: mh.MultiHeadAttention(d_model, h)(shape))
        assert counted == 8 * T * d_model**2 + 4 * T**2 * d_model
        assert counted == mh.count_flops(d_model, h, T) == 1_409_286_144
print(f"{counted:,} FLOPs for each of eight h")

# %% quiz="growth" minutes=1
lesson.growth_quiz()

# %% [markdown] minutes=1
# ## What is not free
#
# Each head makes a map of its own, $T \times T$, and a map does not get smaller when the head gets narrower. The maps
# of a layer have $B\,h\,T^2$ entries. Each takes one exponential, which torch's counter leaves out, and a layer that
# stores its maps has as many numbers to keep.

# %%
for h in (1, 2, 4, 16):
    _, maps = mh.MultiHeadAttention(64, h).heads(torch.randn(1, 32, 64))  # [B, h, T, T]
    assert maps.numel() == mh.softmax_elements(h, 32) == h * 32**2
    assert maps.nbytes == mh.map_bytes(h, 32) == 4 * h * 32**2
assert mh.map_bytes(1, 1024) == 4 * 2**20  # 4 MiB
assert mh.map_bytes(12, 1024) == 48 * 2**20  # 48 MiB
print("T = 1024, float32: 4 MiB of maps for one head, 48 MiB for twelve")

# %%
show(lesson.growth(), lesson.GROWTH_ALT)

# %% [markdown]
# Here $d_\text{model} = 768$. The weights are the dashed line: 9 MiB in float32, for every $h$. With twelve heads the
# maps of one sequence outgrow them at $T = 444$, with four heads just after $T = 768$, with one head just after $T =
# 1536$.

# %%
nine_mib = 4 * mh.count_parameters(d_model, 1)
assert nine_mib == 9 * 2**20
assert mh.map_bytes(12, 443) < nine_mib < mh.map_bytes(12, 444)
assert mh.map_bytes(4, 768) == mh.map_bytes(1, 1536) == nine_mib
print("The lines cross where the text says.")

# %% [markdown] minutes=1
# **And the time?** Equal FLOPs are not equal time. Softmax and maps grow with $h$, and narrow products may keep a
# processor less busy. *Fused* attention does it all in one routine, a *kernel*, that works on pieces of the map and
# never stores the whole; the layers so far are *explicit*. The next cells assert that both agree, then print what
# your machine measures right now. Compare $h = 16$ with $h = 1$ in each row: short and wide, then long and narrow.

# %%
def fused(layer, x):
    """The same layer with torch's fused attention."""
    q, k, v = (mh.split_heads(w(x), layer.h) for w in (layer.w_q, layer.w_k, layer.w_v))
    joined = mh.merge_heads(F.scaled_dot_product_attention(q, k, v))  # [B, T, d_model]
    return layer.w_o(joined)  # [B, T, d_model]

layer = mh.MultiHeadAttention(96, 12)
x = torch.randn(2, 32, 96)  # [B, T, d_model]
torch.testing.assert_close(fused(layer, x), layer(x))
assert counted_flops(lambda: fused(layer, x)) == 2 * 8 * 32 * 96**2  # projections only
print("Same output; on the CPU, torch's counter sees nothing inside the fused kernel.")

# %% times=true
import timeit

@torch.no_grad()
def best(run):
    """Milliseconds of the fastest of five runs."""
    return 1000 * min(timeit.repeat(run, number=1, repeat=5))

for length, width in ((128, 768), (1024, 128)):
    tokens = torch.randn(1, length, width)  # [B, T, d_model]
    one, sixteen = (mh.MultiHeadAttention(width, h) for h in (1, 16))
    for name, run in (("explicit", lambda layer: layer(tokens)),
                      ("fused", lambda layer: fused(layer, tokens))):
        a, b = best(lambda: run(one)), best(lambda: run(sixteen))
        print(f"T = {length:4}, d_model = {width}, {name:8} "
              f"h = 1: {a:6.1f} ms   h = 16: {b:6.1f} ms   ratio {b / a:.1f}")

# %% [markdown]
# ### Your turn: `map_bytes`

# %% exercise="map_bytes" solution="multihead.budget:map_bytes" points=1 minutes=2
def map_bytes(h, T, B=1, dtype=torch.float32):
    """Bytes of the attention maps of one layer, stored as one tensor [B, h, T, T].

    dtype is a floating-point dtype of torch; dtype.itemsize is the size of one number.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="map_bytes"
check("map_bytes", map_bytes)

# %% [markdown] hint="map_bytes"
# How many numbers does a tensor of shape $[B, h, T, T]$ hold?
#
# ---
# $B\,h\,T^2$ numbers. How many bytes does one take?
#
# ---
# Multiply the number of entries by `dtype.itemsize`: 4 in float32, 2 in float16.

# %% [markdown] minutes=2
# ## Fewer keys and values
#
# A model that writes a text token by token, a *decoder*, keeps the keys and values of all tokens so far. With
# $n_\text{kv}$ heads for keys and values this *KV cache* holds $2\,n_\text{kv}\,d_k$ numbers for each token in each
# layer. In plain multi-head attention (MHA) $n_\text{kv} = h$. In *grouped-query attention* (GQA) several query heads
# share one key/value head; in *multi-query attention* (MQA) all share one.

# %% quiz="shared_heads" minutes=1
lesson.shared_heads_quiz()

# %%
show(lesson.sharing())

# %% [markdown]
# Only $W^K$ and $W^V$ get narrower, to $n_\text{kv}\,d_k$ columns. The layer has $2\,d_\text{model}\,h\,d_k +
# 2\,d_\text{model}\,n_\text{kv}\,d_k$ weights. The queries stay, and so do the maps: each query head still makes its
# own.

# %%
for n_kv, share in ((8, 1.0), (2, 0.625), (1, 0.5625)):
    layer = mh.MultiHeadAttention(64, 8, n_kv_heads=n_kv)
    assert weights(layer) == mh.count_parameters(64, 8, n_kv) == share * 4 * 64**2
    assert layer.heads(torch.randn(1, 5, 64))[1].shape == (1, 8, 5, 5)  # eight maps
    kept = mh.kv_cache_bytes(64, 8, 1, n_kv_heads=n_kv)
    assert kept / mh.kv_cache_bytes(64, 8, 1) == n_kv / 8
print("The shares in the picture hold, and there are always eight maps.")

# %% [markdown] minutes=1
# ## $d_k$ is a choice
#
# $d_k = d_\text{model} / h$ is a habit, not a law. A head may have any width: $W^Q$, $W^K$ and $W^V$ then have
# $h\,d_k$ columns, and $W^O$ has $h\,d_k$ rows. Three heads of width 7 on 12 channels work: 21 is not 12.

# %%
odd = mh.MultiHeadAttention(12, 3, d_k=7)
assert odd(torch.randn(2, 5, 12)).shape == (2, 5, 12)
assert weights(odd) == mh.count_parameters(12, 3, d_k=7) == 4 * 12 * 21 == 1008
print("It runs, with", weights(odd), "weights instead of", 4 * 12**2)

# %% [markdown]
# ### Your turn: `published_head_dims`

# %% exercise="published_head_dims" solution="multihead_lessons.exercises.lesson02:published_head_dims" points=1 minutes=1
def published_head_dims():
    """{"GPT-2 small": d_k, "GPT-3 175B": d_k, "Llama-3-70B": d_k}

    In all three d_k = d_model / h. d_model: 768, 12288, 8192. h: 12, 96, 64 query heads;
    Llama-3-70B has 8 key/value heads.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="published_head_dims"
check("published_head_dims", published_head_dims)

# %% [markdown] hint="published_head_dims"
# Read $d_\text{model}$ and $h$ of each model in the docstring.
#
# ---
# Llama-3-70B has two counts of heads. Which of them share out the 8192 channels of the queries?
#
# ---
# Call `head_dim` for 768 and 12, for 12288 and 96, for 8192 and 64.

# %% [markdown] minutes=1
# ## Published models
#
# Weights of one attention layer without biases, and the KV cache of one token in float16 over all layers. T5 has two
# stacks of layers; its cache is that of the self-attention in the stack that writes. Look for the two models whose
# $h\,d_k$ is not $d_\text{model}$, and for the one with fewer key/value heads.

# %%
print("model          d_model    h x d_k =  h d_k      weights  n_kv  layers  KV bytes")
for p in mh.PRESETS:
    n_kv = p.n_kv_heads or p.h
    count = mh.count_parameters(p.d_model, p.h, n_kv, p.d_k)
    kept = mh.kv_cache_bytes(p.d_model, p.h, 1, 1, p.layers, n_kv, p.d_k, torch.float16)
    print(f"{p.name:12} {p.d_model:9,} {p.h:4} x {p.d_k:3} = {p.h * p.d_k:6,} "
          f"{count:12,} {n_kv:5} {p.layers:7} {kept:9,}")
    with torch.device("meta"):  # the same counts from the layer itself, without its numbers
        layer = mh.MultiHeadAttention(p.d_model, p.h, n_kv_heads=n_kv, d_k=p.d_k)
        tokens = torch.randn(1, 2048, p.d_model)  # [B, T, d_model]
        assert weights(layer) == count
        flops = mh.count_flops(p.d_model, p.h, 2048, 1, n_kv, p.d_k)
        assert counted_flops(lambda: layer(tokens)) == flops

llama = next(p for p in mh.PRESETS if p.name == "Llama-3-70B")
grouped = mh.count_parameters(llama.d_model, llama.h, llama.n_kv_heads)
plain = mh.count_parameters(llama.d_model, llama.h)
assert (grouped, plain, grouped / plain) == (150_994_944, 268_435_456, 0.5625)
assert llama.h == 8 * llama.n_kv_heads  # so an eighth of the keys and values is kept
others = [p.name for p in mh.PRESETS if p.h * p.d_k != p.d_model]
assert others == ["T5-11B", "Gemma-7B"]

# %% [markdown]
# **Which of the four costs does a cut leave alone, which does it raise, and what does sharing keys and values save?**
# Each bar compares the layer with one head of width $d_\text{model}$; a grid line is a doubling. A diamond says
# "exactly the same". Move $h$; type $h = 5$ for 768 channels and read the answer; then lower $n_\text{kv}$; then
# choose $d_k$ freely. Nothing is allocated, so GPT-3 is as quick as a toy.

# %% minutes=4
lesson.budget_explorer()

# %% [markdown]
# ### Your turn: `count_parameters`

# %% exercise="count_parameters" solution="multihead.budget:count_parameters" points=4 minutes=5
def count_parameters(d_model, h, n_kv_heads=None, d_k=None, bias=False):
    """Weights of w_q, w_k, w_v and w_o, and with bias=True their four biases too.

    n_kv_heads is h unless given, d_k is d_model / h unless given; given, it may be any width.
    Calculate from the sizes. Raise an exception, of any kind, when h does not divide
    d_model and no d_k is given, or when n_kv_heads does not divide h.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="count_parameters"
check("count_parameters", count_parameters)

# %% [markdown] hint="count_parameters"
# Write down the shape of each of the four matrices first, with $h\,d_k$ where you would write $d_\text{model}$ by habit.
#
# ---
# $W^Q$ is $d_\text{model} \times h\,d_k$. $W^K$ and $W^V$ are $d_\text{model} \times n_\text{kv}\,d_k$. $W^O$ leads
# back. A bias has one number for each column.
#
# ---
# Fill in the two defaults, with `head_dim` for the width, and test `h % n_kv_heads`. The weights are
# $2\,d_\text{model}\,h\,d_k + 2\,d_\text{model}\,n_\text{kv}\,d_k$, the biases
# $h\,d_k + 2\,n_\text{kv}\,d_k + d_\text{model}$.

# %% [markdown]
# ### Your turn: `count_flops`

# %% exercise="count_flops" solution="multihead.budget:count_flops" points=3 minutes=4
def count_flops(d_model, h, T, B=1, n_kv_heads=None, d_k=None):
    """FLOPs of all matrix products of one forward pass, two for each multiply-add.

    Products: the four projections (without biases), Q K^T and A V of every head, no mask.
    Defaults and exceptions as in count_parameters, which you may call.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="count_flops"
check("count_flops", count_flops)

# %% [markdown] hint="count_flops"
# Count multiply-adds for one sequence. Double at the end, and multiply by $B$.
#
# ---
# The projections use every weight once for each token: $T$ times the number of weights. $Q K^\top$ takes $T^2 d_k$ for
# each of the $h$ heads, whether or not they share keys.
#
# ---
# The sum for one sequence is $T \cdot \text{weights} + 2\,h\,T^2 d_k$, in multiply-adds, with the weights from
# `count_parameters`.

# %% [markdown] minutes=2
# ## You may have heard
#
# * **"More heads, more parameters."** With $h\,d_k = d_\text{model}$ and $n_\text{kv} = h$ the count does not depend on
#   $h$.
# * **"Each head gets a slice of the embedding."** Each gets a slice of the *projection*, and reads the whole embedding.
# * **"The split is free."** Maps and exponentials grow as $h\,T^2$.
# * **"Twelve heads are twelve times slower."** The products take the same FLOPs, not the same time: they write and read
#   $h$ maps, and the softmax grows with them. The factor depends on $T$, $d_\text{model}$ and the kernel: above, you
#   measured it for sixteen heads.
# * **"Expressivity grows $h$-fold."** By which measure? The scores of one head have rank at most $d_k$, and that *falls*
#   with $h$. What grows is the number of patterns (lesson 01).
# * **"$d_\text{model} = h\,d_k$ is a law of this layer."** It is a design choice, and so is one key/value head for each
#   query head.
#
# Each of them in code:

# %%
assert len({weights(nn.MultiheadAttention(48, h)) for h in (1, 2, 4, 12)}) == 1
assert whole.all() and sliced.sum() == 8  # sliced: one head for each of 8 channels
assert mh.map_bytes(12, T) == 12 * mh.map_bytes(1, T)
assert mh.count_flops(768, 12, T) == mh.count_flops(768, 1, T)
for h in (1, 4):
    narrow = mh.MultiHeadAttention(12, h).double()
    tokens = torch.randn(1, 40, 12, dtype=torch.float64)  # [B, T, d_model]
    q, k = (mh.split_heads(w(tokens), h) for w in (narrow.w_q, narrow.w_k))
    assert (torch.linalg.matrix_rank(q @ k.mT) == 12 // h).all()  # each head's scores
assert mh.MultiHeadAttention(12, 6, n_kv_heads=2, d_k=7)(tokens.float()).shape == (1, 40, 12)
print("Each of them, exposed.")

# %% [markdown] question="same_budget" points=2 minutes=3
# **In your own words.** A colleague goes from 8 heads to 32 with the same $d_\text{model}$ and says: "Weights and
# FLOPs are the same, so memory and time must be." Explain in three sentences or so what is right, what is not, and
# for which inputs the colleague will notice.
#
# <!-- BEGIN ANSWER -->
# Right: each head is four times narrower, so W_Q, W_K, W_V and W_O keep their sizes and the matrix products take the
# same number of FLOPs. Not right: each head has a T x T map of its own, so exponentials, and stored maps where
# attention is not fused, grow fourfold, and the products of the heads get narrower. The maps grow with T squared, so
# it shows with long sequences and small d_model; with short ones the projections dominate.
# <!-- END ANSWER -->
# <!-- BEGIN RUBRIC -->
# One point: weights and matrix-product FLOPs stay because h d_k stays. One point: maps or softmax grow with h (h
# T^2), so the colleague notices for long sequences. "Narrower products" alone, without the maps, earns half a point
# for the second.
# <!-- END RUBRIC -->

# %% [markdown] minutes=1
# ## In three lines
#
# * Each head reads all $d_\text{model}$ channels and owns $d_k$ columns: $h\,(d_\text{model} \times d_k) =
#   d_\text{model}^2$ weights a matrix, $4\,d_\text{model}^2$ a layer, for every $h$ that divides $d_\text{model}$.
# * The matrix products cost the same FLOPs for every $h$; maps and exponentials grow as $h\,T^2$.
# * $h\,d_k = d_\text{model}$ and $n_\text{kv} = h$ are choices: sharing keys and values leaves Llama-3-70B 56.25 % of
#   its attention weights and an eighth of the cache.
#
# **Next:** the projected vector is one row of $d_\text{model}$ numbers. Lesson 03 regroups it into heads without moving
# one of them.
#
# **Sources.** Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, section 3.2.2, which calls the cost
# "similar" to that of one full head. Brown et al. 2020, Table 2.1 (GPT-3). Public configurations of GPT-2,
# Llama-3-70B, T5-11B and Gemma-7B. Shazeer, arXiv 1911.02150 (multi-query). Ainslie et al., arXiv 2305.13245
# (grouped-query). Bhojanapalli et al., ICML 2020, on the rank of a head. The mistakes: pytorch #60445 (more heads,
# more parameters), aladdinpersson/Machine-Learning-Collection #3 and pbloem/former #13 (slices of the input).

# %% [markdown] optional=true minutes=3
# ## Optional: where the maps outgrow the weights
#
# The maps of one sequence are $h\,T^2$ numbers, the weights $4\,d_\text{model}^2$. They are equal where $T =
# 2\,d_\text{model} / \sqrt{h}$. With $h = d_\text{model} / d_k$ that is $T = 2\sqrt{d_\text{model}\,d_k}$: at a fixed
# width of the heads, doubling $d_\text{model}$ moves the crossing by a factor of $\sqrt{2}$ only. The next cell
# asserts it for every preset with $h\,d_k = d_\text{model}$ and $n_\text{kv} = h$.

# %% optional=true
import math

for p in mh.PRESETS:
    if p.h * p.d_k == p.d_model and p.n_kv_heads in (None, p.h):
        last = math.isqrt(4 * p.d_model * p.d_k)  # the last T where the maps are not more
        full = mh.count_parameters(p.d_model, p.h)
        assert p.h * last**2 <= full < p.h * (last + 1)**2
        print(f"{p.name:12} maps outgrow 4 d_model² weights from T = {last + 1:,} on")

# %% [markdown] optional=true minutes=3
# ## Optional: put your own functions to work
#
# If `check` passed your functions, the next cell counts the published models with them. Otherwise it says so and uses
# the library's.

# %% optional=true
from multihead_lessons.exercises import examine

mine = {"count_parameters": count_parameters, "count_flops": count_flops}
passed = all(examine(name, answer).passed for name, answer in mine.items())
counts = mine if passed else {name: getattr(mh, name) for name in mine}
for p in mh.PRESETS:
    sizes = dict(n_kv_heads=p.n_kv_heads, d_k=p.d_k)
    found = counts["count_parameters"](p.d_model, p.h, **sizes)
    flops = counts["count_flops"](p.d_model, p.h, 1024, **sizes)
    assert found == mh.count_parameters(p.d_model, p.h, **sizes)
    assert flops == mh.count_flops(p.d_model, p.h, 1024, **sizes)
print("Counted right, with", "your functions." if passed else "the library's functions.")

# %% [markdown] teaching=true
# ## Teaching notes
#
# **Minutes.** The sum in the course map is the core path at reading pace; in class, 55 with the quizzes asked aloud.
#
# **On the board.** The 4 × 4 matrix. Let the room color the columns for two heads, then ask for the picture that
# belongs to $h\,(d_k \times d_k)$: the diagonal blocks appear by themselves, and with them the question who reads the
# empty ones.
#
# **Ask the room.** "Which of the numbers on this page would change if the heads shared one map?" (Exponentials, map
# bytes, $W^Q$, $W^K$ and $Q K^\top$ fall to $1/h$ if the one map is made by a head $d_k$ wide; $W^V$, $W^O$ and $AV$
# stay.) "Why does GQA save hardly any FLOPs at long $T$?" (The $T^2$ terms count query heads.)
#
# **Where they stumble.** $d_\text{model}^2$ taken for the cost of a layer, when it is one matrix; multiply-adds
# against FLOPs, a factor 2; biases multiplied by $h$. On a shared machine the measured times wobble: read the ratios,
# and run the cell twice.
