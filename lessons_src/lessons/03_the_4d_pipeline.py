# %% [markdown] strip=true minutes=2
# # How do $[B, T, d_\text{model}]$ numbers become $[B, h, T, d_k]$ without moving?
#
# Lay a deck of cards in one row: "the first thirteen, the next thirteen" makes four hands, and no card has moved. But
# if the cards were dealt in rounds, a few to each player, and laid down in that order, every hand is spread over the
# row, and runs of thirteen are hands that nobody holds. In this layer a token is a round and a head is a player.
#
# **You will be able to** split heads without moving a number, predict shape and strides of every stage, say which step
# copies memory, and recognize four layout bugs by what they do.
#
# **You should know** matrix products in torch, what one head computes ([lesson 01](01_one_head_averages.ipynb)) and why
# $d_k = d_\text{model} / h$ ([lesson 02](02_splitting_d_model.ipynb)). The [symbols page](00_start_here.ipynb) has every
# shape. This lesson is about indices, so it counts heads and tokens from 0, as code does. `x.mT` exchanges the last two
# axes of `x`.

# %%
try:
    import torch
    import torch.nn.functional as F

    import multihead as mh
    from multihead_lessons import lesson03 as lesson
    from multihead_lessons.exercises import check, show_solution
    from multihead_lessons.style import show
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{missing.name} is not installed here. Run `pip install -r requirements.txt` "
        "in the course's folder, then restart this kernel.") from None

# %% [markdown] minutes=1
# ## Eight numbers
#
# Two tokens, two heads, two channels for each head: $T = 2$, $h = 2$, $d_k = 2$, $d_\text{model} = 4$. Each number is
# its own address: the number 5 lies at address 5.

# %%
B, T, h, d_k = 1, 2, 2, 2
d_model = h * d_k
x = torch.arange(B * T * d_model).view(B, T, d_model)  # [B, T, d_model]
x

# %% [markdown]
# In the picture, `t1 c2` is channel 2 of token 1. The color is the head that will own the channel.

# %%
show(lesson.memory_line())

# %% [markdown]
# Head 0 owns channels 0 and 1 *of every token*. In memory they are not neighbors: between the two blue pairs lie the
# channels of head 1.

# %% quiz="direct_view" minutes=1
lesson.direct_view_quiz()

# %% [markdown] minutes=2
# ## Cut, then exchange
#
# `view` cuts the last axis into two: $d_\text{model} = h \cdot d_k$. `transpose(1, 2)` exchanges the axes of time and
# heads. The picture shows the same eight numbers three times.

# %%
show(lesson.regrouping())

# %% [markdown] minutes=1
# Read the strides. A stride says how many places in memory one step along that axis moves ahead. `view` split the
# stride 1 of the channels into $(d_k, 1)$. `transpose` exchanged two strides. Neither touched a number, and the next
# cell asserts it: all three start at the same place in the same memory.

# %%
viewed = x.view(B, T, h, d_k)  # [B, T, h, d_k]
heads = viewed.transpose(1, 2)  # [B, h, T, d_k]
assert x.data_ptr() == viewed.data_ptr() == heads.data_ptr()
assert x.stride() == (8, 4, 1)
assert viewed.stride() == (8, 4, 2, 1)
assert heads.stride() == (8, 2, 4, 1)
assert heads[0, 0].tolist() == [[0, 1], [4, 5]]  # head 0: channels 0, 1 of each token
assert heads[0, 1].tolist() == [[2, 3], [6, 7]]  # head 1: channels 2, 3 of each token
print("Same memory, new strides.")

# %% [markdown] minutes=1
# ## The trap with the right shape
#
# Why not go straight to `view(B, h, T, d_k)`? With three tokens the two axes can no longer be mistaken for each other.
# Framed cells differ from the left.

# %%
show(lesson.direct_view())

# %% [markdown] minutes=1
# The shape is right, so nothing complains. But `view` reads memory in order, and in memory whole tokens follow one
# another. Here head 0 gets all of token 0 and half of token 1; in general it gets the first $T\,d_k$ numbers. The two
# results agree for all inputs only if $T = 1$ or $h = 1$.

# %%
for T_, h_ in [(1, 4), (4, 1), (3, 2), (4, 4)]:
    y = torch.arange(2 * T_ * h_ * 5).view(2, T_, h_ * 5)  # [B, T, d_model]
    direct = y.view(2, h_, T_, 5)  # [B, h, T, d_k], scrambled
    right = y.view(2, T_, h_, 5).transpose(1, 2)  # [B, h, T, d_k]
    assert direct.shape == right.shape
    assert torch.equal(direct, right) == (T_ == 1 or h_ == 1)
print("Equal exactly where T = 1 or h = 1.")

# %% quiz="skipped_transpose" minutes=1
lesson.skipped_transpose_quiz()

# %% [markdown] minutes=1
# ## The trap with the wrong shape
#
# A batched product, `q @ k.mT`, multiplies the *last two* axes. So it matters which axes those are. Each colored cell
# is a dot product that is computed.

# %%
show(lesson.who_meets_whom())

# %% [markdown] minutes=1
# Without the transpose the product runs and returns $[B, T, h, h]$: heads against heads inside one token. The next
# cell changes the last token's key and looks at the scores of token 0. With the transpose they change. Without it,
# they do not.

# %%
q_cut, k_cut = torch.randn(2, 2, 4, 3, 5).unbind()  # each [B, T, h, d_k]
k_changed = k_cut.clone()
k_changed[:, -1] += 1
assert (q_cut @ k_cut.mT).shape == (2, 4, 3, 3)  # [B, T, h, h]
assert torch.equal((q_cut @ k_cut.mT)[:, 0], (q_cut @ k_changed.mT)[:, 0])
q_heads, k_heads, k_heads_changed = (
    z.transpose(1, 2) for z in (q_cut, k_cut, k_changed))  # each [B, h, T, d_k]
scores = q_heads @ k_heads.mT  # [B, h, T, T]
assert not torch.allclose(scores[:, :, 0], (q_heads @ k_heads_changed.mT)[:, :, 0])
print("Without the transpose, tokens never meet.")

# %% [markdown] minutes=1
# The transpose is one way to name the right axes. `einsum` names them itself and needs none: `t` and `s` are
# two tokens, and `d` is summed over.

# %%
by_name = torch.einsum("bthd,bshd->bhts", q_cut, k_cut)  # [B, h, T, T]
assert torch.allclose(by_name, scores, atol=1e-5)
print("einsum gives the same scores.")

# %% [markdown]
# ### Your turn: `split_heads`
#
# Now write the split yourself. Later cells use the library's version, so you can go on in any case.

# %% exercise="split_heads" solution="multihead.attention:split_heads" points=3 minutes=5
def split_heads(x, h):
    """[B, T, d_model] -> [B, h, T, d_k] with d_k = d_model / h.

    Head i takes the channels i * d_k to (i + 1) * d_k - 1 of every token.
    Raise an exception, of any kind, when h does not divide d_model.
    x may have any strides and dtype. Do not change it.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="split_heads"
check("split_heads", split_heads)

# %% [markdown] hint="split_heads"
# Which axis holds the channels of all heads? Cut that one, and no other.
#
# ---
# After the cut the axes are $[B, T, h, d_k]$. One exchange is missing.
#
# ---
# Read `B, T, d_model` from `x.shape`. `view` (or `reshape`, or `unflatten`) gives `B, T, h, d_model // h`; then exchange
# axes 1 and 2. `view` itself raises when the product of the sizes is not that of `x`.

# %% [markdown] minutes=1
# ## Real sizes
#
# Now $B = 2$, $T = 4$, and the width and heads of GPT-2 small, $d_\text{model} = 768$, $h = 12$. A tensor is
# *contiguous* when its numbers lie in memory in the order of its indices, without gaps. Every shape and stride is
# asserted, then printed.

# %%
B, T, d_model, h = 2, 4, 768, 12
d_k = mh.head_dim(d_model, h)
x = torch.randn(B, T, d_model)  # [B, T, d_model]
viewed = x.view(B, T, h, d_k)  # [B, T, h, d_k]
q = viewed.transpose(1, 2)  # [B, h, T, d_k]
assert d_k == 64
assert x.shape == (2, 4, 768) and x.stride() == (3072, 768, 1)
assert viewed.shape == (2, 4, 12, 64) and viewed.stride() == (3072, 768, 64, 1)
assert q.shape == (2, 12, 4, 64) and q.stride() == (3072, 64, 768, 1)
assert x.data_ptr() == viewed.data_ptr() == q.data_ptr()
assert viewed.is_contiguous() and not q.is_contiguous()
for tensor in (x, viewed, q):
    print(list(tensor.shape), tensor.stride())

# %%
k, v = torch.randn(2, B, T, d_model).view(2, B, T, h, d_k).transpose(2, 3)  # each [B, h, T, d_k]
scores = q @ k.mT / d_k**0.5  # [B, h, T, T]
maps = scores.softmax(dim=-1)  # [B, h, T, T]
out = maps @ v  # [B, h, T, d_k]
assert scores.shape == maps.shape == (2, 12, 4, 4)
assert out.shape == (2, 12, 4, 64)
assert maps.sum(dim=-1).allclose(torch.ones(B, h, T))
print("scores", list(scores.shape), "maps", list(maps.shape), "out", list(out.shape))
print(B * h, "maps in the batch,", h, "for each sequence")

# %% [markdown] minutes=1
# ## Walk one number to its address
#
# The address of element $[b, i, t, k]$ is the sum of index times stride (plus the tensor's offset, here 0). Back from
# the address: whole tokens first, then the channel; channel $c$ belongs to head $\lfloor c / d_k \rfloor$.

# %%
index = (1, 5, 2, 9)  # sequence 1, head 5, token 2, channel 9 of the head
address = sum(i * stride for i, stride in zip(index, q.stride()))
assert x.flatten()[address] == q[index]
token, channel = divmod(address, d_model)
assert (token // T, channel // d_k, token % T, channel % d_k) == index
print("address", address, "is token", token, "of the batch, channel", channel)

# %% [markdown]
# ### Your turn: `predict_strides`
#
# Calculate what `stride()` will say.

# %% exercise="predict_strides" solution="multihead_lessons.exercises.lesson03:predict_strides" points=3 minutes=3
def predict_strides(B, T, d_model, h):
    """Three tuples of strides, in elements: of a contiguous x [B, T, d_model],
    of x.view(B, T, h, d_k), and of x.view(B, T, h, d_k).transpose(1, 2).

    Calculate them from the sizes, for sizes above 1 where h divides d_model.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="predict_strides"
check("predict_strides", predict_strides)

# %% [markdown] hint="predict_strides"
# One step along an axis moves past everything that the later axes hold.
#
# ---
# One step in time moves past a token: $d_\text{model}$ numbers, before and after the view. One step along the heads
# moves past the channels of one head.
#
# ---
# The view has strides $(T\,d_\text{model},\ d_\text{model},\ d_k,\ 1)$. The transpose exchanges the two in the middle.

# %% quiz="copy" minutes=1
lesson.copy_quiz()

# %% [markdown] minutes=1
# ## The copy that nobody sees
#
# `view` and `transpose` are free. The product that follows is not. A batched product has *one* batch axis with *one*
# stride, so torch folds $[B, h]$ into $[B h]$. That needs $\text{stride}_B = h \cdot \text{stride}_h$, or $B = 1$, or
# $h = 1$. Here $\text{stride}_B = T\,d_\text{model}$, while $h \cdot \text{stride}_h = d_\text{model}$. So for $T >
# 1$ both operands are cloned; and in the second product, $A V$, v is. `copies_made` lists the size of each clone
# among the operations that torch calls on the CPU. What a *kernel*, the routine behind one operation, moves inside
# itself it does not see.

# %%
assert q.stride(0) == 3072 and h * q.stride(1) == 768
assert lesson.copies_made(lambda: q @ k.mT) == [q.numel(), k.numel()]
assert lesson.copies_made(lambda: maps @ v) == [v.numel()]
assert lesson.copies_made(lambda: q.contiguous() @ k.contiguous().mT) == [
    q.numel(), k.numel()]  # no gain: now you made the copies yourself
assert lesson.copies_made(lambda: F.scaled_dot_product_attention(q, k, v)) == []
print("The two products clone q, k and v; the fused kernel clones nothing.")

# %% [markdown] minutes=1
# When is the fold free? It depends on how the projection wrote its result. *Time-first* stores $[T, B,
# d_\text{model}]$. *Packed* means that one matrix writes q, k and v side by side, and q is a slice: then even with $T
# = 1$, $\text{stride}_B$ is $3\,d_\text{model}$. The next cell tries the four habits at three sizes, on real tensors.

# %%
expected = {  # (time first, packed): free for (B, T) = (2, 4), (1, 4), (2, 1)?
    (False, False): (False, True, True),
    (False, True): (False, True, False),
    (True, False): (True, True, True),
    (True, True): (False, True, False),
}
print("                     B=2,T=4  B=1,T=4  B=2,T=1")
for (time_first, packed), row in expected.items():
    for (B_, T_), free in zip([(2, 4), (1, 4), (2, 1)], row):
        outer = (T_, B_) if time_first else (B_, T_)
        written = torch.randn(*outer, (3 if packed else 1) * d_model)
        y = written[..., :d_model].unflatten(-1, (h, d_k))  # [*outer, h, d_k]
        y = y.permute(1, 2, 0, 3) if time_first else y.transpose(1, 2)  # [B, h, T, d_k]
        assert (y.flatten(0, 1).data_ptr() == y.data_ptr()) == free
        layout = mh.heads_layout(B_, T_, h, d_k, time_first=time_first, packed=packed)
        assert layout.strides == y.stride() and mh.fold_is_free(layout) == free
    name = ("time-first" if time_first else "batch-first") + (", packed" if packed else "")
    print(f"{name:20}", *("free   " if free else "copy   " for free in row), sep=" ")

# %% [markdown] minutes=1
# ## The way back
#
# Merging undoes the split: transpose back, then join the last two axes. `out` is a new contiguous tensor, so for $T >
# 1$ and $h > 1$ the axes $h$ and $d_k$ do not lie side by side after the transpose. `view` refuses, `reshape` copies.
# The fused kernel writes in the order $[B, T, h, d_k]$ (on the CPU, in this version of torch), so there the merge is
# free.

# %%
try:
    out.transpose(1, 2).view(B, T, d_model)
except RuntimeError:
    print("view refuses")
else:
    raise AssertionError("view should have refused")
merge = lambda z: z.transpose(1, 2).reshape(B, T, d_model)  # [B, T, d_model]
fused_out = F.scaled_dot_product_attention(q, k, v)  # [B, h, T, d_k]
assert lesson.copies_made(lambda: merge(out)) == [out.numel()]
assert lesson.copies_made(lambda: merge(fused_out)) == []
assert torch.allclose(merge(out), merge(fused_out), atol=1e-5)
print("reshape copies after the explicit product, not after the fused kernel")

# %% [markdown] minutes=1
# **Which stages move numbers, and how does that change with $B$, $T$ and $h$?** Move the controls, or take a preset.
# A row with a triangle copies; the row `folded q, k` shows the shape of q, and k is folded in the same way. Set $B =
# 1$ and watch two of them go. The lower half walks one element to its address and back; any index can be typed.

# %% minutes=4
lesson.pipeline_explorer()

# %% [markdown] minutes=1
# And the merge that forgets the transpose? `reshape` never refuses, so it runs. Here every row of the result mixes
# tokens.

# %%
show(lesson.merge_without_transpose())

# %%
wrong, right = out.reshape(B, T, d_model), merge(out)  # both [B, T, d_model]
assert wrong.shape == right.shape and not torch.allclose(wrong, right)
assert torch.equal(mh.merge_heads(out), right)
print("Right shape, wrong order.")

# %% [markdown]
# ### Your turn: `copies`
#
# Decide for nine operations whether numbers move.

# %% exercise="copies" solution="multihead_lessons.exercises.lesson03:copies" points=2 minutes=3
def copies(operation):
    """True if the operation copies numbers that exist already, else False.

    x is contiguous [B, T, d_model]; q, k, v are tensors like x after
    .view(B, T, h, d_k).transpose(1, 2); out is a new contiguous [B, h, T, d_k].
    B, T, h, d_k are above 1, on the CPU. operation is one of these strings:
    "x.view(B, T, h, d_k)"        "x.unflatten(-1, (h, d_k))"    "q.mT"
    "q.contiguous()"              "q.flatten(0, 1)"              "q @ k.mT"
    "F.scaled_dot_product_attention(q, k, v)"
    "q.transpose(1, 2).reshape(B, T, d_model)"
    "out.transpose(1, 2).reshape(B, T, d_model)"
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="copies"
check("copies", copies)

# %% [markdown] hint="copies"
# For each operation: is there a shape with strides that gives the result over the old storage?
#
# ---
# Joining two axes is free only where one stride walks through both. A product joins $B$ and $h$ before it multiplies.
#
# ---
# Four of the nine copy: one asks for a copy outright, two join axes whose strides do not fit, one is a product.

# %% [markdown] minutes=1
# ## One product or a loop over heads
#
# The batched product and a loop over heads give the same numbers, up to rounding. They differ in time: the loop makes
# one call for each head and stacks the results. The next cells assert the first and measure the second.

# %%
def one_by_one(q, k):
    """Scores of each head by itself, stacked."""
    return torch.stack([q[:, i] @ k[:, i].mT for i in range(q.shape[1])], dim=1)  # [B, h, T, T]

assert torch.allclose(one_by_one(q, k), q @ k.mT, atol=1e-4)
print("The loop and the batched product agree.")

# %% times=true
import timeit

for name, product in [("batched", lambda: q @ k.mT), ("loop", lambda: one_by_one(q, k))]:
    best = min(timeit.repeat(product, number=50, repeat=5)) / 50
    print(f"{name:8} {1e6 * best:8.1f} µs")

# %% [markdown] minutes=1
# ## Another way to deal the channels
#
# Which channels belong to head $i$ is a convention. This course, like most code, takes contiguous runs. The *strided*
# split takes every $h$-th channel. Both are sound, as long as training and use agree. Reorder the columns of $W^Q$,
# $W^K$, $W^V$ and, in the same way, the rows of $W^O$, and one turns into the other. The picture shows which channels
# each head gets; the color is still the owner under contiguous runs.

# %%
show(lesson.conventions())

# %%
def strided_split(z, h):
    """[B, T, d_model] -> [B, h, T, d_k], every h-th channel for head i."""
    return z.unflatten(-1, (-1, h)).permute(0, 3, 1, 2)  # [B, T, d_k, h] -> [B, h, T, d_k]

def layer_with(split, x, w_q, w_k, w_v, w_o):
    """A whole layer of two heads; the strided split joins its heads in the same order."""
    heads = mh.attention(*(split(x @ w, 2) for w in (w_q, w_k, w_v)))[0]  # [B, h, T, d_k]
    joined = torch.empty_like(x)  # [B, T, d_model]
    split(joined, 2).copy_(heads)  # the split is a view, so this writes each head back
    return joined @ w_o

tokens, *weights = torch.randn(5, 8, 8, dtype=torch.float64)
order = torch.arange(8).view(4, 2).T.flatten()  # channels 0, 2, 4, 6, then 1, 3, 5, 7
w_q, w_k, w_v, w_o = weights
reordered = (w_q[:, order], w_k[:, order], w_v[:, order], w_o[order])
strided = layer_with(strided_split, tokens[None], *weights)
contiguous = layer_with(mh.split_heads, tokens[None], *reordered)
assert torch.allclose(strided, contiguous)
print("A strided layer is a contiguous layer with reordered weights.")

# %% [markdown] minutes=2
# ## You may have heard
#
# * **"Splitting copies nothing, from start to finish."** The split is free. The next product copies q and k, in this
#   layout and for $B$, $T$, $h$ above 1.
# * **"Without the transpose the product fails."** It runs and computes something else.
# * **"`.T` transposes the last two axes."** On four axes it reverses all of them; use `.mT`.
# * **"`[B, h, T, d_k]` is the shape of attention."** It is one habit. FlashAttention takes $[B, T, h, d_k]$,
#   Megatron-LM stores time first, and PyTorch's own module folds to $[B h, T, d_k]$ when it returns the weights.
# * **"Twelve heads make twelve maps for a batch."** Twelve for each sequence.
#
# Each of them in code:

# %%
import warnings

assert len(lesson.copies_made(lambda: q @ k.mT)) == 2
assert (viewed @ viewed.mT).shape == (B, T, h, h)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns about this very mistake
    try:
        assert q.T.shape == (d_k, T, h, B)
    except RuntimeError:
        pass  # a later torch refuses, as its warning says
assert q.mT.shape == (B, h, d_k, T)
assert torch.allclose(torch.einsum("bthd,bshd->bhts", viewed, viewed), q @ q.mT, atol=1e-4)
assert maps.flatten(0, 1).shape[0] == B * h == 24
print("Each of them, exposed.")

# %% [markdown]
# <details><summary>What this means for a GPU, and where the habit comes from</summary>
#
# cuBLAS has a strided-batched product, `gemmStridedBatched`, since CUDA 8.0 (NVIDIA's post of 27 February 2017). It
# takes one batch stride for each operand. It is an extension by the vendor, not part of the reference BLAS. A
# batch-first $[B, h, T, d_k]$ view with $B$, $T$, $h$ above 1 has two batch strides that do not fold, so it cannot be
# handed over in one call without a copy. Fused attention kernels take a stride for $B$ and one for $h$. Megatron-LM
# changed its layout to time-first to avoid the transposes and to use the strided-batched product (Narayanan et al.
# 2021, section 4.2).
#
# The $B h$ products of one launch are independent. How many run at once on the processors of a GPU depends on their
# size and on occupancy. We checked the copies above on the CPU; on a GPU, run a profiler before you believe them.
#
# The layout came from model code, not from a framework's own operator: `split_heads` of tensor2tensor (2017) reshapes
# and calls `tf.transpose`. Today PyTorch's `scaled_dot_product_attention` takes it as its argument.
#
# </details>

# %% [markdown] question="layout_bug" points=2 minutes=3
# **In your own words.** A colleague's layer trains, the loss goes down, every shape is right, but the attention maps
# make no sense. You find `q.view(B, h, T, d_k)`. Explain in two or three sentences what each head received instead of
# its channels, and why no shape check could find it.
#
# <!-- BEGIN ANSWER -->
# view reads the memory in order, and the memory holds token after token. So each head received a run of T d_k
# neighboring numbers, cut into pieces of d_k, instead of its d_k channels of every token; its time axis mixes tokens
# and channels. The shape of the result is the same as that of the right split, so a check of shapes cannot tell them
# apart; only a comparison of values can.
# <!-- END ANSWER -->
# <!-- BEGIN RUBRIC -->
# One point: says that heads received runs of neighboring numbers of some tokens (or: that time was cut, not
# channels). One point: says that the wrong and the right result have the same shape, so that only values show it. No
# point for "a transpose is missing" alone.
# <!-- END RUBRIC -->

# %% [markdown] minutes=1
# ## In three lines
#
# * `view(B, T, h, d_k)` cuts the channels, `transpose(1, 2)` brings the heads forward; strides change, numbers stay.
# * Three bugs run without a complaint: `view(B, h, T, d_k)` deals out runs of neighboring numbers, a missing
#   transpose compares heads, a merge without a transpose mixes tokens.
# * The explicit products copy q, k and v unless $B$ and $h$ fold into one stride; the merge copies after them, not after
#   the fused kernel on the CPU.
#
# **Next:** the heads have worked side by side. In lesson 04 they are joined, and one matrix lets them talk.
#
# **Sources.** Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, section 3.2.2. PyTorch's documentation of
# `Tensor.view` for the rule of the fold. Narayanan et al., arXiv 2104.04473, section 4.2. tensor2tensor,
# `layers/common_attention.py`. flash-attention #566 for its layout; NVIDIA's post "cuBLAS Strided Batched Matrix
# Multiply". Asked in public: annotated-transformer #17, hyunwoongko/transformer #15, bentrevett/pytorch-seq2seq #148
# (why not view at once?), lucidrains/vit-pytorch #90 (why transpose?). The fold and the merge without a transpose, as
# a live bug: 649453932/Chinese-Text-Classification-Pytorch #53.

# %% [markdown] optional=true minutes=3
# ## Optional: put your own function to work
#
# If your `split_heads` passes, the next cell runs a whole layer with it; otherwise with the library's. It says which.

# %% optional=true
from multihead_lessons.exercises import examine

passed = examine("split_heads", split_heads).passed
split = split_heads if passed else mh.split_heads
layer = mh.MultiHeadAttention(48, 4)
tokens = torch.randn(2, 5, 48)  # [B, T, d_model]
parts = [split(w(tokens), 4) for w in (layer.w_q, layer.w_k, layer.w_v)]  # each [B, h, T, d_k]
joined = mh.merge_heads(mh.attention(*parts)[0])  # [B, T, d_model]
assert torch.allclose(layer.w_o(joined), layer(tokens), atol=1e-5)
print("The layer gives the same output with", "your" if passed else "the library's", "split_heads.")

# %% [markdown] teaching=true
# ## Teaching notes
#
# **Minutes.** The sum in the course map is the core path at reading pace; in class, 50 with the quizzes asked aloud.
#
# **On the board.** The eight cells of the memory line, in two colors. Let the room say which cells head 0 owns before
# you write a single shape. Then cross out "view(B, h, T, d_k)" by reading off the first four cells.
#
# **Ask the room.** "Which of today's four bugs does torch catch for you?" (At most one: `.T`, where the sizes happen
# not to fit, or in a torch that refuses it. The other three are valid operations.) "What would you print to find the
# direct view in a colleague's code?" (Values on an address-coded input, never shapes.)
#
# **Where they stumble.** Strides in bytes against elements; `contiguous()` taken for a cure of the hidden copies,
# when it only moves them to another line.
