# %% [markdown] minutes=1
# # Start here: what happens between $X$ and $\mathrm{MultiHead}(X)$?
#
# This course takes one layer apart: the multi-head attention of a Transformer. You will build it, measure it, break it
# in the ways that people break it in public code, and prove what it can and cannot do.
#
# Every statement about the layer's numbers is checked by a code cell next to it. Run the cells from the top with
# **Shift+Enter**, or all of them with **Run > Run All Cells**. Then move the sliders.

# %% minutes=1
try:
    import multihead as mh
    from multihead_lessons import lesson00
    from multihead_lessons.poster import POSTER_ALT, poster
    from multihead_lessons.style import show
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{missing.name} is not installed here. Run `pip install -r requirements.txt` "
        "in the course's folder, then restart this kernel.") from None

# %% [markdown]
# ## Is everything in place?
#
# The next cell looks at your Python and at the packages that the course needs. It prints one fixed sentence when all is
# well. Otherwise it says what is wrong and what to do.

# %% minutes=1
print(lesson00.environment_report())

# %% [markdown] minutes=3
# ## The layer on one page
#
# Read the poster from top to bottom. The input enters at the top; it is projected, cut into four lanes, and each lane
# makes its own attention pattern. At the foot the lanes are joined and mixed by one more matrix.

# %%
show(poster(), POSTER_ALT)

# %% [markdown] minutes=2
# **What the poster leaves out.** It writes $L$ for the number of tokens and $D$ for the width of the model; the lessons
# write $T$ and $d_\text{model}$.
#
# * The four jobs are an illustration. The patterns are computed, but from features built by hand. In a trained model
#   nothing in the layer assigns such jobs, and the number of a head carries no meaning from one model to the next.
# * It is the *projected* vector that is cut into lanes. The embedding itself is not cut: every head reads all of it.
# * "Independent" means exactly this: every vector splits in one and only one way into one part for each head. With
#   $h\,d_k = d_\text{model}$ that is so if and only if the heads' projection matrices of one kind, say all $W_i^Q$,
#   form an invertible matrix side by side. The subspaces are not orthogonal in general. Lesson 05 shows both.

# %% [markdown]
# ## Move it
#
# One projected vector of $d_\text{model}$ numbers is shared out among $h$ heads. **When $h$ grows, what shrinks, what
# grows, and what stays the same?** Make a guess. Then move $h$, by mouse or with the arrow keys, and watch the strip,
# the maps and the two counts at the foot.
#
# The maps come from an untrained layer with random weights and eight random tokens; the weights are larger than those
# of a fresh layer, so that the patterns show. Each map compares one head's pieces of eight queries (rows) with its
# pieces of eight keys (columns); row $i$ shows where token $i$ looks and sums to 1.

# %% minutes=5
lesson00.heads_explorer()

# %% [markdown] minutes=2
# The width of a head shrinks, $d_k = d_\text{model} / h$. The number of maps grows. The number of parameters stays: four
# matrices, for queries, keys, values and output, of $d_\text{model}^2$ numbers each.
#
# Not every $h$ is allowed. Type 5 into the field of $h$ and press Enter: the picture stays and a sentence tells you
# why. The next cell asserts the widths and the counts for every setting of the sliders, and that each row of each map
# sums to 1.

# %%
for d_model in lesson00.D_MODELS:
    for h in lesson00.heads_on_offer({"d_model": d_model}):
        maps = lesson00.head_maps(d_model, h)  # [h, T, T]
        assert maps.shape == (h, lesson00.T, lesson00.T)
        assert (maps.sum(dim=-1) - 1).abs().max() < 1e-12
        assert h * mh.head_dim(d_model, h) == d_model
        assert mh.count_parameters(d_model, h) == 4 * d_model**2
    layer = mh.MultiHeadAttention(d_model, h)  # and counted on a real one, with the last h
    assert sum(w.numel() for w in layer.parameters()) == 4 * d_model**2
print("Every setting of the sliders checks out.")

# %% [markdown] map=true
# ## The lessons
#
# Each lesson asks one question. The minutes are those of its core path; proofs and harder exercises that are marked
# *optional* come on top.

# %% [markdown] minutes=4
# ## Symbols, shapes, formulas
#
# Keep this page at hand. Vectors are rows, so a matrix acts from the right: `x @ W`. In running text and in pictures
# $W^O$ is also written W_O, in code `w_o`.
#
# | symbol | in code | what it is |
# |:--|:--|:--|
# | | | a *token* is a word or a piece of one; it enters the layer as a vector |
# | $B$ | `B` | sequences in a batch |
# | $T$ | `T` | tokens in a sequence; $T_q$, $T_k$ where queries and keys differ in number |
# | $d_\text{model}$ | `d_model` | numbers, or channels, in the vector of one token |
# | $h$ | `h` | heads, numbered from 1 in the text and from 0 in code |
# | $d_k$ | `d_k` | width of one head; usually $d_\text{model} / h$ |
# | $d_v$ | `d_v` | width of one head's values; $d_v = d_k$ unless the text says otherwise |
# | $M$ | `mask` | boolean, True = may attend |
#
# | tensor | shape | formula |
# |:--|:--|:--|
# | input | $[B, T, d_\text{model}]$ | $X$ |
# | weights of head $i$ | $[d_\text{model}, d_k]$ each | $W_i^Q,\; W_i^K,\; W_i^V$ |
# | queries, keys, values, all heads | $[B, h, T, d_k]$ | $Q_i = X W_i^Q,\quad K_i = X W_i^K,\quad V_i = X W_i^V$ |
# | scores | $[B, h, T, T]$ | $S_i = Q_i K_i^\top / \sqrt{d_k}$ |
# | attention maps | $[B, h, T, T]$ | $A_i = \mathrm{softmax}(S_i)$ over the last axis: each row sums to 1; where $M$ is False, $S_i$ counts as $-\infty$ |
# | head outputs | $[B, h, T, d_k]$ | $\mathrm{head}_i = A_i V_i$ |
# | joined | $[B, T, h\,d_k]$ | $\mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)$ |
# | output | $[B, T, d_\text{model}]$ | $\mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\, W^O$ with $W^O$ of shape $[h\,d_k, d_\text{model}]$ |
#
# The next cell runs the layer and asserts these shapes on a small example.

# %%
import torch

B, T, d_model, h = 2, 5, 48, 4
d_k = mh.head_dim(d_model, h)
layer = mh.MultiHeadAttention(d_model, h)
x = torch.randn(B, T, d_model)  # [B, T, d_model]
q, k, v = (mh.split_heads(w(x), h) for w in (layer.w_q, layer.w_k, layer.w_v))
assert q.shape == k.shape == v.shape == (B, h, T, d_k)
assert layer.w_q.weight.T[:, :d_k].shape == (d_model, d_k)  # W_1^Q
assert (q @ k.mT).shape == (B, h, T, T)
assert layer.w_o.weight.T.shape == (h * d_k, d_model)
head_outputs, maps = layer.heads(x)
assert head_outputs.shape == (B, h, T, d_k)
assert maps.shape == (B, h, T, T)
assert mh.merge_heads(head_outputs).shape == (B, T, h * d_k)
assert layer(x).shape == (B, T, d_model)
print("Every shape in the table holds.")

# %% [markdown] minutes=2
# ## Keep your work
#
# **On your own machine.** The command `course open` has copied the lessons into the folder `my_work/`, and this is one
# of the copies. Save as usual. The command never overwrites a copy: run it again after an update, and it adds what is
# missing and names every copy that is older than its lesson. To start a lesson afresh, rename your copy and run
# `course open` again.
#
# **On Binder.** The server forgets everything soon after you leave it. Before you go, choose **File > Download** for
# each notebook that you changed. When you come back, drag the file from your computer into the file browser on the left
# and let it replace the one there.
#
# Each open notebook keeps a kernel of its own, a few hundred megabytes of memory. When you leave a lesson, choose
# **File > Close and Shut Down Notebook**.

# %% [markdown] strip=true
# ## Where to go
#
# Go on with the next lesson, or with the question that you came for. Every lesson has this line of links.
