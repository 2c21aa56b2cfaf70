# %% [markdown] strip=true minutes=2
# # Who lets the heads talk?
#
# On a highway each car keeps to its lane for miles. Then comes the interchange: from every lane a ramp leads
# to every exit, and what leaves by one exit is the sum of what all lanes sent there. Here the lanes are the
# heads, and the interchange is the matrix $W^O$. The image limps in one place: lanes share out the traffic,
# but every head has read the whole input.
#
# **You will be able to** join heads as the exact inverse of the split, write the layer's output as a sum with
# one term for each head, say what a lost head costs, and build the whole layer so that it equals PyTorch's
# under the same weights.
#
# **You should know** attention and the two-relation task ([lesson 01](01_one_head_averages.ipynb)), $d_k$
# ([lesson 02](02_splitting_d_model.ipynb)) and `split_heads` ([lesson 03](03_the_4d_pipeline.ipynb)).

# %%
try:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.testing import assert_close

    import multihead as mh
    from multihead.relations import relative_errors
    from multihead_lessons import lesson04 as lesson
    from multihead_lessons.exercises import check, show_solution
    from multihead_lessons.stored_relations import stored_layer
    from multihead_lessons.style import show
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{missing.name} is not installed here. Run `pip install -r requirements.txt` "
        "in the course's folder, then restart this kernel.") from None

# %% [markdown] minutes=1
# ## Back into one row
#
# Three tokens, two heads, two channels for each head. Each number is its own address, as in lesson 03.
# Suppose that every head returns just what it was given. Then joining must restore the input, number for
# number. `t1 c2` is channel 2 of token 1; the color is the head.

# %%
show(lesson.joining())

# %%
B, T, h, d_k = 1, 3, 2, 2
x = torch.arange(B * T * h * d_k).view(B, T, h * d_k)  # [B, T, h d_k]
heads = mh.split_heads(x, h)  # [B, h, T, d_k]
back = heads.transpose(1, 2)  # [B, T, h, d_k]
assert torch.equal(back.reshape(B, T, h * d_k), x)

other = torch.randn(2, 4, 5, 3)  # [B, h, T, d_k], any heads
assert torch.equal(mh.merge_heads(heads), x)
assert torch.equal(mh.split_heads(mh.merge_heads(other), 4), other)
print("Merging undoes splitting, and splitting undoes merging.")

# %% quiz="merge" minutes=1
lesson.merge_quiz()

# %% [markdown] minutes=1
# Heads come out of a matrix product, as a new contiguous tensor. A reshape alone then fills each row with
# several tokens of one head. The shape is right, so nothing complains. With and without the transpose the
# results agree for all inputs only if $T = 1$ or $h = 1$.

# %%
show(lesson.reshape_alone())

# %%
out = heads.contiguous()  # [B, h, T, d_k], new memory: head after head
try:
    out.transpose(1, 2).view(B, T, h * d_k)
except RuntimeError:
    print("view refuses")
else:
    raise AssertionError("view should have refused")
for T_, h_ in [(1, 4), (4, 1), (3, 2), (4, 4)]:
    y = torch.randn(2, h_, T_, 5)  # [B, h, T, d_k]
    alone = y.reshape(2, T_, h_ * 5)  # [B, T, h d_k], scrambled
    assert alone.shape == mh.merge_heads(y).shape
    assert torch.equal(alone, mh.merge_heads(y)) == (T_ == 1 or h_ == 1)
print("reshape alone is right exactly where T = 1 or h = 1")

# %% [markdown]
# ### Your turn: `merge_heads`

# %% exercise="merge_heads" solution="multihead.attention:merge_heads" points=3 minutes=3
def merge_heads(x):
    """[B, h, T, d_k] -> [B, T, h * d_k], the exact inverse of split_heads.

    Channels i * d_k to (i + 1) * d_k - 1 of each token come from head i.
    x may have any strides and dtype. Do not change it.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="merge_heads"
check("merge_heads", merge_heads)

# %% [markdown] hint="merge_heads"
# Which two axes did the split exchange last? Undo that first.
#
# ---
# Now the axes are $[B, T, h, d_k]$. Two of them become one.
#
# ---
# Exchange axes 1 and 2, then `reshape` to `B, T, h * d_k`. Not `view`: new heads do not lie as it wants.

# %% [markdown] minutes=1
# ## The number of a head is a label
#
# Deal the heads' blocks out in another order: the rows of `w_q`, `w_k`, `w_v`, and with them the columns of
# `w_o` (`nn.Linear` keeps a matrix as `[out, in]`). The layer is the same function. So "head 3" names a block
# of one set of weights, never a job.

# %%
layer = mh.MultiHeadAttention(d_model=24, h=4).double()
x = torch.randn(2, 5, 24, dtype=torch.float64)  # [B, T, d_model]
order = torch.arange(24).view(4, 6)[[2, 0, 3, 1]].flatten()  # blocks of six, reordered
shuffled = mh.MultiHeadAttention(d_model=24, h=4).double()
with torch.no_grad():
    for theirs, ours in zip((layer.w_q, layer.w_k, layer.w_v),
                            (shuffled.w_q, shuffled.w_k, shuffled.w_v)):
        ours.weight.copy_(theirs.weight[order])
    shuffled.w_o.weight.copy_(layer.w_o.weight)
    assert not torch.allclose(shuffled(x), layer(x))  # W_O still in the old order
    shuffled.w_o.weight.copy_(layer.w_o.weight[:, order])
    assert_close(shuffled(x), layer(x))
print("Another order in all four matrices: the same layer.")

# %% [markdown] minutes=1
# ## One matrix, cut into bands
#
# The joined row has $h\,d_k$ channels, so $W^O$ has as many rows. Head $i$'s channels meet a band of $d_k$
# rows, $W_i^O$, and no others:
#
# $$\mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\, W^O = \sum_{i=1}^{h} \mathrm{head}_i\, W_i^O$$
#
# Each term is a vector of the model's space, of width $d_\text{model}$: the **contribution** of one head.

# %%
show(lesson.bands())

# %%
head_1, head_2 = torch.tensor([2, 1]), torch.tensor([0, 3])  # one token, d_k = 2
w_o = torch.tensor([[1, 0, 2, 0],   # band of head 1
                    [0, 1, 0, 1],
                    [1, 1, 0, 0],   # band of head 2
                    [-1, 0, 0, 2]])  # [h d_k, d_model]
joined = torch.cat([head_1, head_2])  # [h d_k]
assert torch.equal(joined @ w_o, head_1 @ w_o[:2] + head_2 @ w_o[2:])
print("head 1", (head_1 @ w_o[:2]).tolist(), "  head 2", (head_2 @ w_o[2:]).tolist(),
      "  output", (joined @ w_o).tolist())

# %% [markdown] minutes=2
# ## They add, they cancel
#
# A model space of two channels can be drawn. Head 1 (blue) writes the same each time, head 2 (dashed) four
# different things, laid tip to tail. The thick arrow is the output. Compare the squared lengths: the output's
# is the sum of the two only at a right angle. Nothing in the layer keeps the heads at a right angle.

# %%
show(lesson.arrows())

# %%
for pair in lesson.PAIRS:
    c_1, c_2 = torch.tensor(pair.first), torch.tensor(pair.second)
    apart, together = int(c_1 @ c_1 + c_2 @ c_2), int((c_1 + c_2) @ (c_1 + c_2))
    assert together - apart == 2 * int(c_1 @ c_2)
    print(f"{pair.title:20} squares apart {apart:2}, together {together:2}")

# %% quiz="meeting" minutes=1
lesson.meeting_quiz()

# %% [markdown] minutes=1
# The next cell changes head 2's block of `w_v`, then one channel of the input. Before $W^O$ the first change
# stays in head 2; after it, it is in every channel. The second change is in every head at once: the
# *projected* vector is split, never the input.

# %%
def heads_changed(before, after):
    """For each head, whether its output has changed."""
    return [not torch.allclose(a, b) for a, b in zip(before.unbind(1), after.unbind(1))]

changed = mh.MultiHeadAttention(d_model=24, h=4).double()
changed.load_state_dict(layer.state_dict())
with torch.no_grad():
    changed.w_v.weight[6:12] += 1  # head 2's block
    heads, y = layer.heads(x)[0], layer(x)  # [B, h, T, d_k], [B, T, d_model]
    assert heads_changed(heads, changed.heads(x)[0]) == [False, True, False, False]
    assert ((changed(x) - y).abs().amax(dim=(0, 1)) > 1e-9).all()  # all 24 channels

    bumped = x.clone()
    bumped[:, :, 0] += 1  # one channel of the input
    assert heads_changed(heads, layer.heads(bumped)[0]) == [True, True, True, True]
print("Heads read everything, work apart, and meet in W_O, the one place where they do.")

# %% [markdown] minutes=1
# Nothing so far needs $d_v = d_k$, or $h\,d_v = d_\text{model}$. Queries and keys share $d_k$, because they
# are multiplied with one another. Values may have a width of their own: $W_i^V$ is $[d_\text{model}, d_v]$
# and $W^O$ is $[h\,d_v, d_\text{model}]$. Usually $d_k = d_v = d_\text{model} / h$, by convention.

# %%
d_model, h, d_k, d_v = 12, 3, 4, 7
w_q, w_k = torch.randn(2, d_model, h * d_k, dtype=torch.float64)  # each [d_model, h d_k]
w_v = torch.randn(d_model, h * d_v, dtype=torch.float64)
w_o = torch.randn(h * d_v, d_model, dtype=torch.float64)
z = torch.randn(2, 5, d_model, dtype=torch.float64)  # [B, T, d_model]
q, k, v = (mh.split_heads(z @ w, h) for w in (w_q, w_k, w_v))
wide, _ = mh.attention(q, k, v)  # [B, h, T, d_v]
assert wide.shape == (2, h, 5, d_v) and w_o.shape == (21, 12)
parts = [wide[:, i] @ w_o[i * d_v:(i + 1) * d_v] for i in range(h)]  # [B, T, d_model]
assert_close(mh.merge_heads(wide) @ w_o, sum(parts))
print("d_k = 4, d_v = 7: the heads join to 21 channels, W_O brings them back to 12.")

# %% [markdown]
# ### Your turn: `head_contributions`

# %% exercise="head_contributions" solution="multihead.attention:head_contributions" points=3 minutes=4
def head_contributions(heads, w_o):
    """What each head adds to the output: [B, h, T, d_model].

    heads: [B, h, T, d_k]    w_o: [h * d_k, d_model], applied as joined @ w_o.
    Summed over the heads, the result is merge_heads(heads) @ w_o.
    d_model need not be h * d_k. Both may have any strides and dtype.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="head_contributions"
check("head_contributions", head_contributions)

# %% [markdown] hint="head_contributions"
# Which rows of `w_o` do the channels of head $i$ meet in the product?
#
# ---
# Cut the rows of `w_o` into $h$ bands of $d_k$: $[h, d_k, d_\text{model}]$.
#
# ---
# Multiply `heads` $[B, h, T, d_k]$ by the bands with `@`: the head axes meet, the last two are multiplied.
# `unflatten(0, (h, d_k))` cuts whatever the strides are.

# %% [markdown] minutes=1
# The same in the size of GPT-2 small, with random weights. The library's `head_contributions` takes
# `w_o.weight.T`, since `nn.Linear` computes `x @ weight.T`.

# %%
big = mh.MultiHeadAttention(d_model=768, h=12).double()
tokens = torch.randn(1, 16, 768, dtype=torch.float64)  # [B, T, d_model]
with torch.no_grad():
    heads, _ = big.heads(tokens)  # [B, h, T, d_k]
    parts = mh.head_contributions(heads, big.w_o.weight.T)  # [B, h, T, d_model]
    assert_close(parts.sum(dim=1), big(tokens))
    assert (parts.abs().amax(dim=(0, 2)) > 0).all()  # every head writes in every channel
print(list(parts.shape), "12 contributions, each in all 768 channels")

# %% [markdown] minutes=1
# ## What a lost head costs
#
# Lesson 01 trained layers for the two-relation task. Here is the one with two heads. An output that is a sum
# can lose a term: the cell after the question leaves out one head at a time, on 1,024 sequences. An error of
# 1 is what an output of zeros gets.

# %% quiz="lost_head" minutes=1
lesson.lost_head_quiz()

# %%
trained, _ = stored_layer(h=2, width=32)
batch = trained.task.batch(torch.Generator().manual_seed(0), 1024)
with torch.no_grad():
    heads, _ = trained.heads(batch.x)  # [B, h, T, d_k]
    parts = mh.head_contributions(heads, trained.w_o.weight.T)  # [B, h, T, d_out]
    assert_close(parts.sum(dim=1), trained(batch.x))
complete = relative_errors(parts.sum(dim=1), batch.targets, 2)  # [relations]
assert complete.max() < 0.003
for head in range(2):
    lost = relative_errors(parts.sum(dim=1) - parts[:, head], batch.targets, 2)
    print(f"without head {head + 1}: relation a {lost[0]:.2f}, relation b {lost[1]:.2f}")

# %% [markdown] minutes=1
# **With more heads than relations, who does what, and can a neighbor stand in?** Each slider is the gain of a
# head in percent, 0 turns it off. A gain multiplies the head's band of $W^O$. The left half shows one token:
# the heads' rows add up to the sum. The right half measures all tokens. $d_\text{model}$ is the inner width
# $h\,d_k$; the channels of input and output are fixed.
#
# 1. With $h = 4$, $d_\text{model} = 32$: lose head 3. Then turn head 1 up. How far does the error fall, at
#    about which gain?
# 2. With $h = 8$, $d_\text{model} = 64$, the others left at 100 %: how many heads can be off at once before an
#    error passes 0.05?

# %% minutes=4
lesson.gains_explorer()

# %% [markdown] minutes=1
# The next cells answer both, with the explorer's own numbers. First $h = 4$. Over all tokens, what heads 1 and 3
# write into relation a points nearly the same way, with a cosine of 0.97. So head 1 at about 150 % stands in for head
# 3 (the least error is at 155 %). And the heads add: on relation a their single mean squares make 0.55, the mean
# square of their sum is 0.99.

# %%
from itertools import combinations

def without(off, h, d_model):
    """The larger of the two errors when the heads in `off` are lost, numbered from 0."""
    return max(lesson.errors(h, d_model, [head not in off for head in range(h)]))

print("h = 4, one lost:", *(f"{without([head], 4, 32):.2f}" for head in range(4)))
repaired = {gain: lesson.errors(4, 32, [gain / 100, 1, 0, 1])[0] for gain in range(201)}
assert 0.12 < repaired[100] < 0.15 and abs(min(repaired, key=repaired.get) - 155) < 3
assert repaired[155] < 0.01
print(f"head 3 lost, error on a: {repaired[100]:.2f}, with head 1 at 155 %: {repaired[155]:.2f}")

layer_4, everyone = lesson.measured(4, 32), torch.ones(4, dtype=torch.float64)
overlap = layer_4.overlap[0]  # [h, h], relation a
assert abs(overlap[0, 2] / (overlap[0, 0] * overlap[2, 2]).sqrt() - 0.97) < 0.01
assert abs(layer_4.written_apart(everyone)[0] - 0.55) < 0.01
assert abs(layer_4.written(everyone)[0] - 0.99) < 0.01

# %% [markdown]
# Now $h = 8$: with the others at 100 %, half of the heads can be off together. These are facts about these layers.
# Nothing in the architecture makes heads share a job, or keep to one.

# %%
sets = [off for n in range(9) for off in combinations(range(8), n)]
most = max((off for off in sets if without(off, 8, 64) < 0.05), key=len)
print("h = 8, lost together:", *(f"head {head + 1}" for head in most), sep="  ")

# %% [markdown] minutes=1
# ## One layer, five ways to write it
#
# The formula speaks of separate heads. Code runs one batched product, and this course's library wraps it in a
# module. PyTorch has a function and a module. Are they the same layer? Here are the first two, from the pieces
# of lessons 01, 03 and 04, with weights as arguments, $[d_\text{in}, d_\text{out}]$. A mask is boolean, True =
# may attend, here written out to $[B, h, T, T]$.

# %%
def separate_heads(x, w_q, w_k, w_v, w_o, h, mask=None):
    """Each head by itself, with its own columns of the matrices: the formula."""
    d_k = w_q.shape[1] // h
    outputs = []
    for i in range(h):
        own = slice(i * d_k, (i + 1) * d_k)
        q, k, v = x @ w_q[:, own], x @ w_k[:, own], x @ w_v[:, own]  # each [B, T, d_k]
        own_mask = None if mask is None else mask[:, i]  # [B, T, T]
        outputs.append(mh.attention(q, k, v, own_mask)[0])  # [B, T, d_k]
    return torch.cat(outputs, dim=-1) @ w_o  # [B, T, d_model]

def batched(x, w_q, w_k, w_v, w_o, h, mask=None):
    """All heads in one product: project, split, attend, merge, mix."""
    q, k, v = (mh.split_heads(x @ w, h) for w in (w_q, w_k, w_v))  # each [B, h, T, d_k]
    outputs, _ = mh.attention(q, k, v, mask)  # [B, h, T, d_k]
    return mh.merge_heads(outputs) @ w_o  # [B, T, d_model]

# %% quiz="mask" minutes=1
lesson.mask_quiz()

# %% [markdown] minutes=1
# `F.scaled_dot_product_attention` reads a boolean mask as we do. `nn.MultiheadAttention` reads it the other
# way: True = **blocked**, as in its `key_padding_mask`. It wants $[T, T]$ or $[B h, T, T]$, where row $b\,h +
# i$ is head $i$ of sequence $b$. Its three input matrices are stacked in one, $[3\,d_\text{model},
# d_\text{model}]$: queries, keys, values, from the top.

# %%
B, T, d_model, h = 2, 5, 24, 4
layer = mh.MultiHeadAttention(d_model, h).double()
module = layer.to_torch()  # nn.MultiheadAttention with the same weights
assert torch.equal(module.in_proj_weight,
                   torch.cat([layer.w_q.weight, layer.w_k.weight, layer.w_v.weight]))
assert torch.equal(module.out_proj.weight, layer.w_o.weight)

causal = torch.ones(T, T, dtype=torch.bool).tril()  # [T, T], True = may attend
x = torch.randn(B, T, d_model, dtype=torch.float64)  # [B, T, d_model]
assert_close(module(x, x, x, attn_mask=~causal)[0], layer(x, mask=causal))
theirs, _ = module(x, x, x, attn_mask=causal)  # our convention, their module
assert theirs[:, -1].isnan().all()
print("stacked as q, k, v; with our mask as it is, the last token becomes NaN")

# %% [markdown]
# Now the table: the four other ways against the loop, under three masks, with one set of weights. "Equal"
# means: within $10^{-12}$, in float64.

# %%
real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])  # [B, T], False = padding
masks = {"no mask": None, "causal": causal.expand(B, h, T, T),
         "padding": real[:, None, None, :].expand(B, h, T, T)}
weights = [w.weight.T for w in (layer.w_q, layer.w_k, layer.w_v, layer.w_o)]
q, k, v = (mh.split_heads(x @ w, h) for w in weights[:3])  # each [B, h, T, d_k]
ways = {
    "batched": lambda mask: batched(x, *weights, h, mask),
    "multihead.MultiHeadAttention": lambda mask: layer(x, mask=mask),
    "F.scaled_dot_product_attention": lambda mask: layer.w_o(
        mh.merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))),
    "nn.MultiheadAttention": lambda mask: module(
        x, x, x, attn_mask=None if mask is None else ~mask.flatten(0, 1))[0],
}
print(f"{'compared with the loop':30}", *(f"{name:>9}" for name in masks))
with torch.no_grad():
    for name, way in ways.items():
        for mask in masks.values():
            loop = separate_heads(x, *weights, h, mask)  # [B, T, d_model]
            assert_close(way(mask), loop, rtol=0, atol=1e-12)
        print(f"{name:30}", *(f"{'equal':>9}" for _ in masks))

# %% [markdown]
# ### Your turn: the whole layer
#
# Put it together as a module, with your own functions of earlier lessons, with `mh.split_heads`,
# `mh.attention` and `mh.merge_heads`, or with plain torch.

# %% exercise="MultiHeadAttention" solution="multihead_lessons.exercises.lesson04:MultiHeadAttention" points=6 minutes=8
class MultiHeadAttention(nn.Module):
    """Multi-head self-attention with h heads of width d_k = d_model / h.

    The check copies weights into your layer. Either name four nn.Linear layers
    without bias w_q, w_k, w_v and w_o, each d_model to d_model; or, for any other
    build, write load_weights(self, w_q, w_k, w_v, w_o), which is given four
    matrices [out, in]. All weights must be parameters of the module. No dropout.
    """

    def __init__(self, d_model, h):
        """If h does not divide d_model, here or forward must raise an exception."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def forward(self, x, mask=None):
        """[B, T, d_model] -> [B, T, d_model]

        mask: boolean, True = may attend, broadcastable to [B, h, T, T].
        No query is without an allowed key.
        """
        # YOUR CODE HERE
        raise NotImplementedError()

# %% check="MultiHeadAttention"
check("MultiHeadAttention", MultiHeadAttention)

# %% [markdown] hint="MultiHeadAttention"
# Five steps, one line each: project, split, attend, merge, mix. Which of them have weights, and so belong in
# `__init__`?
#
# ---
# The scores are $[B, h, T, T]$. Divide by the root of a head's width, not the model's. Where the mask is
# False, the scores must be $-\infty$ before the softmax over the last axis.
#
# ---
# `super().__init__()`, then four `nn.Linear(d_model, d_model, bias=False)`. In `forward`: the body of
# `batched` above, with `self.w_q(x)` for `x @ w_q`, and `return self.w_o(...)`.

# %% [markdown] minutes=1
# ## The 96 heads of GPT-3
#
# GPT-3 (175 billion parameters) has $d_\text{model} = 12288 = 96 \times 128$: 96 heads in each of its 96
# layers, 9,216 in all. The same table of its paper prints two models whose numbers do not multiply up: XL has
# 24 heads of 128 beside 2048, 13B has 40 of 128 beside 5140. With $W^O$ of shape $[h\,d_k, d_\text{model}]$
# neither would be impossible.
#
# Does it therefore watch 96 different things? 96 heads compute 96 maps. That the maps differ is up to
# training. When the heads of GPT-2 small were inspected one by one, more than 90 % of them seemed to do
# several jobs; the authors call their method a rough heuristic.

# %%
assert 96 * 128 == 12288 and 96 * 96 == 9216
assert 24 * 128 != 2048 and 40 * 128 != 5140
print("96 heads of 128 make 12,288")

# %% [markdown] question="no_w_o" points=2 minutes=2
# **In your own words.** A colleague deletes $W^O$: "a linear layer after linear layers is wasted". The shapes
# still fit, since $h\,d_k = d_\text{model}$. What can the layer no longer do? Say it for one output channel,
# and for two heads that found the same thing.
#
# <!-- BEGIN ANSWER -->
# Without W^O, that is with the identity in its place, output channel c is a channel of one head, the one that
# owns it. No channel can combine what two heads found: their results lie side by side, and neither adding nor
# canceling happens in this layer. Each head can also write into its own d_k channels only, instead of into
# any direction of the model's space. For one head the remark is right, W_V and W_O are one linear map of rank
# at most d_k; but W_V acts inside a head, before the joining, so no choice of it replaces the mixing between
# heads.
# <!-- END ANSWER -->
# <!-- BEGIN RUBRIC -->
# One point: an output channel then depends on one head only (or: heads can write only into their own d_k
# channels). One point: the heads no longer meet in this layer, so their findings cannot add or cancel. No
# point for "fewer parameters" or "worse training" alone.
# <!-- END RUBRIC -->

# %% [markdown] minutes=2
# ## You may have heard
#
# * **"$W^O$ is optional glue."** Without it, an output channel hears one head only.
# * **"Heads are averaged."** They are laid side by side. An average keeps one number in $h$.
# * **"Heads are soundproof: no interference."** They compute apart, but are trained together, and their
#   contributions add up in shared channels. Opposite ones cancel to 0.
# * **"Each head gets its lane of the input."** One bumped channel of the input changed every head.
# * **"`view` merges the heads back."** Not from a new, contiguous product. **"`reshape` alone does."** It
#   scrambles the tokens.
# * **"Head 3 does coreference."** Shuffle the heads: the layer is the same, and "head 3" is another one.
#
# Each of them in code:

# %%
with torch.no_grad():
    heads, y = layer.heads(x)[0], layer(x)  # [B, h, T, d_k], [B, T, d_model]
    parts = mh.head_contributions(heads, layer.w_o.weight.T)  # [B, h, T, d_model]
assert (mh.merge_heads(heads)[..., :6] == heads[:, 0]).all()  # 6 channels, head 1 alone
assert heads.mean(dim=1).numel() * h == mh.merge_heads(heads).numel()
assert not torch.allclose(parts.square().sum(), y.square().sum(), rtol=1e-6)
assert torch.equal(heads[:, 0] @ weights[3][:6] + heads[:, 0] @ -weights[3][:6], 0 * y)
assert all(heads_changed(heads, layer.heads(x + torch.eye(d_model)[0])[0]))
assert not heads.transpose(1, 2).is_contiguous()  # so view refuses
assert not torch.allclose(heads.reshape(B, T, d_model), mh.merge_heads(heads))
assert_close(parts[:, [2, 0, 3, 1]].sum(dim=1), y)
print("Each of them, exposed.")

# %% [markdown]
# <details><summary>What the paper showed in 2017, and where to go after this course</summary>
#
# The paper that introduced this layer shows translation, and its later versions parsing. It did not sweep
# recurrent and convolutional networks from all of language processing at a stroke. That took years, and was
# done by whole Transformers, not by this layer alone.
#
# The layer never stands alone. A residual connection adds its output to its input, and layer normalization
# rescales the vectors around it; why deep stacks want that is a question about depth, not about heads. Models
# that write text use the causal mask of this lesson, and keep the keys and values of earlier tokens in a
# cache.
#
# </details>

# %% [markdown] minutes=1
# ## In three lines
#
# * Merging undoes splitting: transpose back, then join. The order of the heads is a label.
# * The output is a sum, one contribution $\mathrm{head}_i\,W_i^O$ for each head. Heads read everything, work
#   apart, and meet only there, where they add or cancel.
# * Loop, batched product and PyTorch's own layers are one function, once the weights are packed alike and the
#   mask is read alike.
#
# **Next:** every head writes into a subspace of the model's space. Lesson 05 asks in what sense these
# subspaces tile it.
#
# **Sources.** Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, section 3.2.2. Elhage et al., *A
# Mathematical Framework for Transformer Circuits*, 2021, for heads as a sum. Brown et al. 2020, table 2.1, for GPT-3.
# Krzyzanowski, Kissane, Conmy and Nanda, *We Inspected Every Head In GPT-2 Small using SAEs So You Don't Have To*,
# Alignment Forum, 2024. PyTorch's documentation of `nn.MultiheadAttention`. The bugs: fairseq #2598 (view),
# 649453932/Chinese-Text-Classification-Pytorch #53 (no transpose back), google-research/bert #994 and pbloem/former
# #23 (are heads averaged?).

# %% [markdown] optional=true minutes=3
# ## Optional: a head has one map, of rank $d_k$
#
# Head $i$ turns tokens $X$ into $A_i X W_i^V W_i^O$. Its two matrices act as one, $M_i = W_i^V W_i^O$, of
# shape $[d_\text{model}, d_\text{model}]$ and of rank at most $d_k$. So $h$ narrow heads cost the matrix
# products of one full-width head (when $h\,d_k = d_\text{model}$), but each of them is narrow.
#
# An invertible change of basis $G$ inside a head is invisible: $W_i^V G$ with $G^{-1} W_i^O$ leaves $M_i$ alone,
# and $W_i^Q G$ with $W_i^K G^{-\top}$ leaves the scores alone. A rotation that mixes the channels of several
# heads does change the layer, in general. Lesson 05 comes back to this.

# %% optional=true
blocks = weights[3].unflatten(0, (h, 6))  # [h, d_k, d_model]
values = weights[2].unflatten(1, (h, 6)).transpose(0, 1)  # [h, d_model, d_k]
maps = values @ blocks  # [h, d_model, d_model]
_, patterns = layer.heads(x)  # [B, h, T, T]
assert_close((patterns @ x.unsqueeze(1) @ maps).sum(dim=1), layer(x))
assert torch.linalg.matrix_rank(maps).tolist() == [6] * h
assert len({mh.count_flops(d_model, heads_, T) for heads_ in (1, 2, 4, 12)}) == 1

G = torch.randn(6, 6, dtype=torch.float64) + 4 * torch.eye(6, dtype=torch.float64)
G_inv = torch.linalg.inv(G)
assert_close((values[0] @ G) @ (G_inv @ blocks[0]), maps[0])
own_q, own_k = weights[0][:, :6], weights[1][:, :6]  # head 1's columns, [d_model, d_k]
assert_close((own_q @ G) @ (own_k @ G_inv.T).T, own_q @ own_k.T)

turn = torch.linalg.qr(torch.randn(d_model, d_model, dtype=torch.float64)).Q
mixed = batched(x, *(w @ turn for w in weights[:3]), turn.T @ weights[3], h)  # [B, T, d_model]
assert not torch.allclose(mixed, layer(x))
print("One map for each head, of rank 6 in 24 channels.")

# %% [markdown] optional=true minutes=2
# ## Optional: an average is a special $W^O$
#
# Averaging the heads and multiplying by one small matrix $M$ is the same as a $W^O$ whose bands are all $M /
# h$. So a layer that averages is a layer that joins, with one band that all $h$ heads share.

# %% optional=true
M = torch.randn(6, d_model, dtype=torch.float64)  # [d_k, d_model]
assert_close(heads.mean(dim=1) @ M, mh.merge_heads(heads) @ (M / h).repeat(h, 1))
print("Averaging is joining with equal bands.")

# %% [markdown] optional=true minutes=1
# ## Optional: put your own layer to work
#
# If `check` passed your `MultiHeadAttention`, the next cell gives it the weights of PyTorch's module and
# compares. Otherwise it says so and uses the library's.

# %% optional=true
from multihead_lessons.calling import loaded
from multihead_lessons.exercises import examine

passed = examine("MultiHeadAttention", MultiHeadAttention).passed
mine = MultiHeadAttention if passed else mh.MultiHeadAttention
own = loaded(mine, d_model, h, [w.T.detach() for w in weights])  # [out, in] again
assert_close(own(x), module(x, x, x)[0])
whose = "Your layer" if passed else "The library's layer"
print(whose, "gives the same output as nn.MultiheadAttention.")

# %% [markdown] teaching=true
# ## Teaching notes
#
# **Minutes.** The sum in the course map is the core path at reading pace. In class, let the last exercise run
# over into homework.
#
# **On the board.** The row and the three bands, in three colors. Ask for the first entry of the output and
# collect who contributes to it. Then draw two arrows and let the room say how long the sum is. Someone adds
# the lengths.
#
# **Ask the room.** "Where in this layer can head 1 learn what head 2 found?" (Nowhere. Only the next layer
# can.) "If two heads are equal, what does turning one off cost?" (A quarter of the signal's square if they
# wrote half each: the error is the square of what is missing.)
#
# **Where they stumble.** $W^O$'s bands are rows on paper and columns in `nn.Linear`'s weight. The two mask
# conventions of one library. In the explorer: a gain changes the output linearly and the error quadratically.
