# %% [markdown] strip=true minutes=1
# # What can one head not do?
#
# You have one highlighter for a whole text. You mark the names, then the dates, and in the evening all of it
# is yellow: you still see *that* a word matters, and no longer *what for*. A second color would help; so
# would a text in which names and dates look different anyway. One attention head is one pen for everything,
# and this lesson says exactly what that costs.
#
# **You will be able to** write attention from scratch, predict what a blend of two tokens loses, prove what
# one head of any width cannot do, and say what an experiment with one head and with two shows, and what it
# does not.
#
# **You should know** matrix products in torch, `nn.Linear`, the softmax, and the rank of a matrix. The [symbols
# page](00_start_here.ipynb) has every shape.

# %%
try:
    import math

    import torch

    import multihead as mh
    from multihead import relations, subspaces
    from multihead_lessons import lesson01 as lesson
    from multihead_lessons.exercises import check, show_solution
    from multihead_lessons.stored_relations import CASES, stored_errors, stored_layer
    from multihead_lessons.style import show
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{missing.name} is not installed here. Run `pip install -r requirements.txt` "
        "in the course's folder, then restart this kernel.") from None

# %% [markdown] minutes=1
# ## Attention in four steps
#
# One token asks, three tokens answer. Its query meets each key in a dot product; the scores are divided by
# $\sqrt{d_k}$; a softmax turns them into a row of weights; the row blends the values. Here $d_k = 4$, so
# $\sqrt{d_k} = 2$.

# %%
d_k = 4
q = torch.tensor([1., 1., 1., -1.])  # [d_k], what the token asks for
k = torch.tensor([[1., 1., 0., 0.],
                  [0., 1., 1., 0.],
                  [0., -1., 0., 1.]])  # [T, d_k], what each token offers
v = torch.tensor([[0., 0.], [8., 0.], [2., 6.]])  # [T, d_v], what each token says
scores = k @ q / math.sqrt(d_k)  # [T]
alpha = scores.softmax(dim=0)  # [T]
z = alpha @ v  # [d_v]
assert scores.tolist() == [1, 1, -1]
assert alpha.min() > 0 and abs(alpha.sum() - 1) < 1e-6
print("weights", [round(weight, 2) for weight in alpha.tolist()])
print("z      ", [round(number, 2) for number in z.tolist()])

# %% quiz="directions" minutes=1
lesson.directions_quiz()

# %% [markdown] minutes=1
# ## Where can $z$ go?
#
# The weights are positive and sum to 1, so $z = \sum_j \alpha_j v_j$ is a *convex combination* of the values.
# **Can the scores move $z$ out of the triangle? Can they put it exactly on a corner?** Try.

# %% minutes=1
lesson.triangle_explorer()

# %% [markdown]
# Neither. Whatever the scores are, $z$ stays inside. A corner needs the weight 1, and in exact arithmetic
# finite scores give no such weight: it takes a mask. The next cell asserts both, for every position of the
# sliders.

# %%
for s0 in lesson.SCORES:
    for s1 in lesson.SCORES:
        for s2 in lesson.SCORES:
            weights = lesson.weights_of((s0, s1, s2))
            assert 0 < min(weights) and max(weights) < 1 and abs(sum(weights) - 1) < 1e-12
only_token_1 = torch.tensor([[False, True, False]])  # [T_q, T_k], True = may attend
masked_z, masked_row = mh.attention(q[None], k, v, only_token_1)
assert masked_row.tolist() == [[0, 1, 0]] and masked_z.tolist() == [[8, 0]]
print("Inside for all scores; on a corner with a mask.")

# %% [markdown]
# ### Your turn: `attention`
#
# Now for all tokens at once, for any number of axes in front, and with a mask. Put your code in place of the two stub
# lines, run the cell, then the check: it names the mistake if it knows it. After a pass, `show_solution("attention")`
# shows the library's version, which later cells use.

# %% exercise="attention" solution="multihead.attention:attention" points=4 minutes=6
def attention(q, k, v, mask=None):
    """softmax(q k^T / sqrt(d_k)) v, and the weights that made it.

    q [..., T_q, d_k], k [..., T_k, d_k], v [..., T_k, d_v]: the same leading axes, any
    number of them, any strides, any float dtype. Do not change them. Gradients must flow back.
    mask: boolean, True = may attend, broadcastable to the scores' shape [..., T_q, T_k].
    None allows everything. Every query is allowed at least one key. No dropout.
    Return (output [..., T_q, d_v], weights [..., T_q, T_k]).
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="attention"
check("attention", attention)

# %% [markdown] hint="attention"
# The four steps above, with a matrix of queries instead of one. Which two axes does each product use, and
# which axis is the softmax over?
#
# ---
# The scores are $[..., T_q, T_k]$: multiply `q` with `k.mT`, which exchanges only the last two axes. A row
# belongs to a query and sums to 1, so the softmax goes over the last axis. What number must a blocked score
# become, so that its weight is 0?
#
# ---
# Divide by the square root of `q.shape[-1]`. If there is a mask, `masked_fill` the places where it is False
# with `-math.inf`, and keep the tensor that it returns. Softmax over `dim=-1`, then a product with `v`.

# %% [markdown] minutes=1
# ## Two needs, one blend
#
# Say that a verb needs one number from its subject and another from an adjective. Every token carries both
# kinds, $v = (a, b)$. The verb needs $a$ of token $j$ and $b$ of token $k$. One head has one row: weight
# $p$ on $j$, weight $q = 1 - p$ on $k$, nothing elsewhere. (From here on $q$ is a share, not a query, and
# $k$ names a token.) What comes out is
#
# $$z = p\,v_j + q\,v_k = (p\,a_j + q\,a_k,\;\; p\,b_j + q\,b_k).$$
#
# In the first channel $a_k$ is noise, in the second $b_j$. The matrix $W^O$ may still rescale and mix the
# channels of $z$: it is the linear *read-out*. Call the mean square of what it misses of a number the
# *error*; answering 0 has the error 1. The values are *white*: mean 0, variance 1, uncorrelated.

# %% quiz="blend" minutes=1
lesson.blend_quiz()

# %%
draw = torch.Generator().manual_seed(0)
numbers = torch.randn(1000, 4, generator=draw, dtype=torch.float64)
white = torch.linalg.qr(numbers - numbers.mean(dim=0)).Q * 1000**0.5  # [samples, 4]
v_j, v_k = white.split(2, dim=1)  # [samples, 2] each: a and b of the token
wanted = torch.stack([v_j[:, 0], v_k[:, 1]], dim=1)  # [samples, 2]: a of j, b of k
rows = []
for p in (1.0, 0.75, 0.5, 0.25):
    z = p * v_j + (1 - p) * v_k  # [samples, 2]
    w_o = torch.linalg.lstsq(z, wanted).solution  # [2, 2], the best there is
    err_a, err_b = (z @ w_o - wanted).square().mean(dim=0).tolist()
    assert abs(err_a + err_b - 1) < 1e-9
    rows.append(f"p = {p:.2f}: error of a {err_a:.2f}, of b {err_b:.2f}")
print("\n".join(rows))

# %% [markdown] minutes=1
# The samples were made white to the last digit, the best read-out was fitted for each $p$, and the two errors
# add up to 1 each time. In a plane with one error to the right and the other upward, that is a line. **Is
# there a setting below it? And what does a second head change, even one that looks at nearly the same
# tokens?** In the explorer the second head has the shares of the first exchanged.

# %% minutes=2
lesson.blend_explorer()

# %% [markdown] minutes=1
# One head never gets below the line; weight that goes elsewhere lifts it above. Two heads reach the corner,
# where both errors are 0, for every $p$ but one half, as long as nothing goes elsewhere. If each passes on both
# channels, they need not specialize: 55 % and 45 % is enough, because $W^O$ can solve two equations for two
# unknowns. The price is
# the factor that it multiplies with, 5.5 instead of 1, and noise would be multiplied too. At one half the two
# patterns are equal, and the second equation says nothing new.

# %%
for p in range(0, 101, 5):
    for elsewhere in range(0, 61, 10):
        one = lesson.readout(lesson.blend_patterns(1, p, elsewhere), (0, 1))[0].sum()
        two = lesson.readout(lesson.blend_patterns(2, p, elsewhere), (0, 1))[0].sum()
        assert abs(one - 1) < 1e-9 if elsewhere == 0 else one > 1 + 1e-9
        assert (two < 1e-9) == (elsewhere == 0 and p != 50)
        assert p != 50 or abs(two - one) < 1e-9
_, factors = lesson.readout(lesson.blend_patterns(2, 55, 0), (0, 1))
assert abs(factors.abs().max() - 5.5) < 1e-9
print("One head: on the line or above it. Two heads: 0, unless their patterns are equal.")

# %% [markdown]
# ### Your turn: `blend_errors`
#
# Find the formula behind the line. Which factor $c$ makes $E(c\,(p\,a_j + q\,a_k) - a_j)^2$ least, and how
# much is left? ($E$ is the mean over all values.)

# %% exercise="blend_errors" solution="multihead_lessons.exercises.lesson01:blend_errors" points=2 minutes=3
def blend_errors(p):
    """(err_a, err_b): the errors of the best linear read-out of z = p v_j + (1 - p) v_k.

    Wanted are a of token j and b of token k; the values are white.
    p is a Python float, 0 <= p <= 1, both ends included. An error is a mean square;
    answering 0 has the error 1. Return two numbers, exact up to rounding: do not sample.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="blend_errors"
check("blend_errors", blend_errors)

# %% [markdown] hint="blend_errors"
# Expand the square. The values are white, so $E\,a_j^2 = E\,a_k^2 = 1$ and $E\,a_j a_k = 0$. What is left is
# a parabola in $c$.
#
# ---
# It is $(cp - 1)^2 + (cq)^2$. Set its derivative to 0.
#
# ---
# $c = p / (p^2 + q^2)$. Put it back, and do the same for $b$ with $p$ and $q$ exchanged. The two errors add
# up to 1.

# %% [markdown] minutes=1
# <details><summary>The formula, to compare with yours</summary>
#
# $\mathrm{err}_a = q^2 / (p^2 + q^2)$ and $\mathrm{err}_b = p^2 / (p^2 + q^2)$.
#
# </details>
#
# What one need gains, the other loses exactly.
#
# **But blending is not losing.** Let token $j$ be a noun that carries only $a$, and token $k$ an adjective
# that carries only $b$. Nothing then disturbs either channel, and $W^O$ reads both from one blend, exactly.
# The trouble begins only where both tokens fill the *same* channels.

# %%
noun, adjective = torch.tensor([4., 0.]), torch.tensor([0., 6.])  # (a, b) each
z = (noun + adjective) / 2
assert z.tolist() == [2, 3]
assert (2 * z).tolist() == [4, 6]
print("One blend, both numbers recovered:", (2 * z).tolist())

# %% quiz="wider" minutes=1
lesson.wider_quiz()

# %% [markdown] minutes=1
# ## The exact limit
#
# Hold the patterns fixed for a moment and let only $V$, $[T, d]$, vary, the values before $W_i^V$. Head $i$ has
# the pattern $A_i$, $[T, T]$, its attention map, and the linear map $M_i = W_i^V W_i^O$, $[d, d]$, where $W_i^O$
# is its $d_k$ rows of $W^O$ ($M_i$ is no mask). The heads' contributions add up:
#
# $$V \;\longmapsto\; \sum_{i=1}^{h} A_i V M_i .$$
#
# The smallest case: two tokens, two heads, two channels. Head 1 takes channel 0 from the *other* token, head
# 2 takes channel 1 from the token *itself*.

# %%
patterns, maps = lesson.swap_and_keep()  # [h, T, T], [h, d, d]
V = torch.tensor([[1., 2.], [3., 4.]])  # [T, d]
Y = sum(A @ V @ M for A, M in zip(patterns, maps))  # [T, d]
assert Y.tolist() == [[3, 2], [1, 4]]
L = sum(torch.kron(A, M.T.contiguous()) for A, M in zip(patterns, maps))  # [T d, T d]
assert torch.equal(L @ V.flatten(), Y.flatten())  # rows of V one after the other
print("The layer as a matrix:", L.tolist())

# %% [markdown]
# Write each block of $L$ as a row, and look at the rank.

# %%
R = L.view(2, 2, 2, 2).transpose(1, 2).reshape(4, 4)  # [T^2, d^2], a block of L is a row
assert torch.equal(L, mh.layer_matrix(patterns, maps))
assert torch.equal(R, mh.rearrange(L, 2, 2))
assert torch.linalg.matrix_rank(R) == 2
print("rank of the rearranged matrix:", int(torch.linalg.matrix_rank(R)))

# %% [markdown]
# In the picture `t0 ← t1` is what token 0 takes from token 1, and `c1←c0` is output channel 1 from input
# channel 0.

# %%
show(lesson.rearranged())

# %% [markdown] minutes=1
# In the rearranged matrix $R(L)$ a row says which tokens are joined, a column which channels. One head alone
# fills it with multiples of one row: the same map, weighted by its pattern. That is a matrix of rank 1
# (0 if the map is 0), however wide the head is.
#
# **Theorem A.** Call the rank of $R(L)$ the *Schmidt rank* of the layer. It is the least number of terms
# $A V M$ that add up to the layer. It is at most $h$, and it is $h$ exactly when $A_1, \ldots, A_h$ are
# linearly independent and $M_1, \ldots, M_h$ are linearly independent.

# %% [markdown] minutes=3
# **Proof.** Write $\mathrm{vec}$ for reading a matrix row by row.
#
# 1. Entry $(s, j)$ of $A V M$ is $\sum_{t, c} A_{st} V_{tc} M_{cj}$. So the matrix of $V \mapsto A V M$ has
#    the entry $A_{st} M_{cj}$ in row $(s, j)$ and column $(t, c)$: it is $A \otimes M^\top$, whose block
#    $(s, t)$ is $A_{st} M^\top$.
# 2. $R$ moves that entry to row $(s, t)$ and column $(j, c)$. It only reorders entries, so it is linear and
#    loses nothing. And $R(A \otimes M^\top) = \mathrm{vec}(A)\, \mathrm{vec}(M^\top)^\top$, a column times a
#    row.
# 3. Therefore $R(L) = \sum_i \mathrm{vec}(A_i)\, \mathrm{vec}(M_i^\top)^\top = P Q^\top$, where $P$,
#    $[T^2, h]$, has the columns $\mathrm{vec}(A_i)$, and $Q$, $[d^2, h]$, has the columns
#    $\mathrm{vec}(M_i^\top)$.
# 4. The rank of a product is at most $h$, the size in the middle. If both families are independent, $P$ is
#    injective and $Q^\top$ is onto $\mathbb{R}^h$, so the rank is $h$. If one family is dependent, $P$ or $Q$
#    has a rank below $h$, and so has the product.
# 5. A matrix of rank $r$ is a sum of $r$ columns times rows and of no fewer, and every column times row is
#    $R(A \otimes M^\top)$ for some $A$ and $M$. Hence the least number of terms. $\blacksquare$
#
# The next cells check it with random softmax patterns, by rearrangement and singular values.

# %%
T, d = 8, 24
draw = torch.Generator().manual_seed(1)

def random_layer(h, d_k):
    """h softmax patterns [h, T, T] and h maps of rank d_k [h, d, d]."""
    patterns = torch.randn(h, T, T, generator=draw, dtype=torch.float64).softmax(dim=-1)
    w_v = torch.randn(h, d, d_k, generator=draw, dtype=torch.float64)
    w_o = torch.randn(h, d_k, d, generator=draw, dtype=torch.float64)
    return patterns, w_v @ w_o  # [h, T, T], [h, d, d]

ranks = {}
for h in (1, 2, 3, 4, 6, 12):
    patterns, maps = random_layer(h, d // h)
    R = mh.rearrange(mh.layer_matrix(patterns, maps), T, d)  # [T^2, d^2] = [64, 576]
    ranks[h] = int(torch.linalg.matrix_rank(R))  # by its singular values
    assert ranks[h] == h == mh.operator_schmidt_rank(patterns, maps)
print("Schmidt rank for each h:", ranks)

# %% [markdown] minutes=2
# ## Why one half?
#
# The verb's two needs are a layer: $A_1 V M_1 + A_2 V M_2$, where row $t$ of $A_1$ is 1 at the token that holds $t$'s
# $a$, $A_2$ does the same for $b$, and $M_1, M_2$ keep the channel of $a$ and of $b$. Its Schmidt rank is 2. How near
# can a layer of rank 1 come? For white values the mean square of what a layer misses, added up over its outputs, is
# the sum of the squared entries of the difference between the wanted matrix $L$ and its own; $R$ only reorders them.
# And by Eckart and Young, the best approximation of $R(L)$ by a matrix of rank $K$ misses exactly the sum of the
# squares of its singular values after the first $K$. For $n$ needs that name different tokens and fill different
# channels, equally many each, all $n$ of them are equal, so $K$ heads miss the share $(n - K)/n$ or more.
# **Conditions:** the values are white, and the patterns do not depend on them.

# %%
def needs(n, T=8):
    """A layer with n needs: need i of token t is met by token t + i + 1 (mod T)."""
    patterns = torch.stack([torch.eye(T).roll(i + 1, dims=1) for i in range(n)])
    maps = torch.stack([torch.diag(row) for row in torch.eye(n)])
    return patterns, maps  # [n, T, T], [n, n, n]

for n in (2, 3, 4):
    for K in range(1, n + 1):
        assert abs(subspaces.floor(*needs(n), K) - (n - K) / n) < 1e-6
        assert relations.floor(n, K) == (n - K) / n
print("two needs, one head:", relations.floor(2, 1))

# %% [markdown] minutes=1
# ## The experiment
#
# Does training find the floor? Eight tokens. Each holds its position, two random pointers to different tokens
# and two attributes $a$ and $b$ of four Gaussian numbers each. Token $t$ must output $a$ of the token that its first
# pointer names, and $b$ of the token that its second pointer names. One attention layer does it alone: no
# residual, no MLP, no bias. Queries and keys read positions and pointers, values read the attributes, so the
# conditions of the floor hold.

# %% [markdown]
# Four layers train below, on one core, for some seconds: one head, two heads with as many weights, one head
# that is four times wider, and one head on *typed* tokens, where half of the tokens carry only $a$ and half
# only $b$.

# %% minutes=1
plain, typed = relations.Task(), relations.Task(typed=True)
layers = {
    "1 head": relations.RelationLayer(plain, h=1, width=32),
    "2 heads": relations.RelationLayer(plain, h=2, width=32),
    "1 head, 4 × wider": relations.RelationLayer(plain, h=1, width=128),
    "1 head, typed tokens": relations.RelationLayer(typed, h=1, width=32),
}
live = lesson.LearningCurves(layers)
display(live)
with lesson.one_thread():
    for name, layer in layers.items():
        relations.train(layer, progress=live.follow(name))

# %% [markdown]
# The next cell keeps the curves as a picture and tests each layer on fresh sequences.

# %%
show(lesson.learning_curves(live.curves), lesson.LEARNING_CURVES_ALT)
rows = []
for name, layer in layers.items():
    error, _ = relations.evaluate(layer)  # on fresh test sequences
    expected = 0.0 if name in ("2 heads", "1 head, typed tokens") else 0.5
    assert abs(error - expected) < 0.01
    rows.append(f"{name:21} {live.weights[name]:5,} weights   error {error:.2f}")
assert live.weights["1 head, 4 × wider"] == 4 * live.weights["1 head"] == 4 * live.weights["2 heads"]
print("\n".join(rows))

# %% [markdown] minutes=1
# The wider head has four times the weights and stops at the same one half. That was one seed. Below are
# twenty of each, stored: each mark is one trained layer. How one head shares its error out is an accident of the
# seed. That the shares add up to 1 is not.

# %%
show(lesson.seeds())

# %% [markdown]
# With four needs instead of two, the floor is ¾ for one head, ½ for two, and 0 from four heads on. Of eighty
# runs, 79 lie there; one with four heads stops at ¼: nearly all of one need is missed.

# %%
for name, case in lesson.SEEDS.items():
    errors = stored_errors(case)  # [20 seeds, 2 needs]
    assert errors.shape == (20, 2)
    assert (errors.mean(dim=1) - case.floor).abs().max() < 0.005
shares = stored_errors(lesson.SEEDS["1 head"])[:, 0]
assert shares.min() < 0.06 and shares.max() > 0.96
print("Two needs: all 80 layers end within 0.005 of their floor.")
four = {case.h: stored_errors(case).mean(dim=1) for case in CASES if case.task.n_relations == 4}
there = {h: (errors - relations.floor(4, h)).abs() < 0.005 for h, errors in four.items()}
assert sum(len(errors) for errors in four.values()) == 80 and sum(map(sum, there.values())) == 79
assert abs(four[4][~there[4]].item() - 0.25) < 0.005
four_heads = next(case for case in CASES if case.task.n_relations == 4 and case.h == 4)
assert (stored_errors(four_heads) > 0.9).sum() == 1  # of all 20 runs and their 4 needs
print("Four needs, median for each h:", {h: round(e.median().item(), 2) for h, e in four.items()})

# %% [markdown]
# ## Patterns before and after
#
# The same layers as above at seed 0, from the store, on one sequence. The ring marks where $a$ has to come
# from, the square marks $b$.

# %%
show(lesson.before_and_after())

# %% [markdown] minutes=1
# Your formula can now be tested on a layer that nobody built by hand. Measure the mean weights $p$ and $q$
# that the trained head puts on its two tokens, and predict its two errors from them. (A little weight goes
# elsewhere, so $p + q$ is not quite 1.)

# %%
layer, measured = stored_layer(1, 32)
x, _, pointers = plain.batch(torch.Generator().manual_seed(5), 512)
_, weights = layer.heads(x)  # [B, 1, T, T]
on_a, on_b = weights[:, 0].gather(2, pointers).mean(dim=(0, 1)).tolist()
err_a, err_b = on_b**2 / (on_a**2 + on_b**2), on_a**2 / (on_a**2 + on_b**2)
assert abs(err_a - measured[0]) < 0.01 and abs(err_b - measured[1]) < 0.01
print(f"p = {on_a:.2f}, q = {on_b:.2f}")
print(f"predicted {err_a:.2f} and {err_b:.2f}")
print(f"measured  {measured[0]:.2f} and {measured[1]:.2f}")

# %% [markdown] minutes=1
# **What this shows.** With white values and patterns that do not read them, one head of any width stops at
# the floor, and training finds the floor. Two heads with the same number of weights do not stop there.
#
# **What it does not show.** That a language needs two heads: real values are not white, and typed tokens get through
# one head. That one head is lost in a deep model: a second layer can fetch what the first left out. That every head
# serves a need: at $h = 4$ below, two of four serve none. And if patterns may read the content, the *error* can fall
# below the floor, though not to 0 (Theorem B, at the end): in three long runs with one number per attribute it ended
# between 0.38 and 0.46.

# %%
for case in CASES:
    if case.reads_content and case.steps == 4000:
        errors = stored_errors(case).mean(dim=1)  # [3 seeds]
        if case.task.numbers == 1:
            assert 0.38 < errors.min() and errors.max() < 0.46
        else:  # with four numbers per attribute: still one half
            assert (errors - 0.5).abs().max() < 0.001
        print(case.task.numbers, "per attribute:", [round(error, 2) for error in errors.tolist()])

# %% [markdown] minutes=1
# ## Twelve trained layers
#
# **Which heads serve which need? And does a layer with more heads use them all?** Choose $h$, the width and a
# token. In this picture `d_model` is the inner width $h\,d_k$ of the layer; its inputs always have 32
# channels and its outputs 8. All layers were trained for 600 steps from seed 0.

# %% minutes=3
lesson.trained_explorer()

# %% [markdown]
# No: at $h = 4$ and width 64, heads 1 and 3 look at both tokens and do almost nothing. Leave their outputs out, and
# both errors stay below 0.01; heads 2 and 4 do the work. At $h = 8$ and width 16 a head has two channels, and the
# error stays above 0, at 0.06. There is no floor above 0 for eight heads; 600 steps were not enough (an optional cell
# at the end trains longer).

# %%
assert (plain.d_in, plain.d_out) == (32, 8)
for h in (1, 2, 4, 8):
    for width in (16, 32, 64):
        error = stored_layer(h, width)[1].mean()
        if (h, width) == (8, 16):
            assert round(error.item(), 2) == 0.06
        else:
            assert abs(error - relations.floor(2, h)) < 0.003
layer, _ = stored_layer(4, 64)
x, targets, pointers = plain.batch(torch.Generator().manual_seed(5), 512)
outputs, weights = layer.heads(x)  # [B, 4, T, 16], [B, 4, T, T]
shares = torch.stack([w.gather(2, pointers).mean(dim=(0, 1)) for w in weights.unbind(1)])
assert shares[[0, 2]].min() > 0.2  # [4, 2]: heads 1 and 3 look at both tokens
working = outputs * torch.tensor([0., 1., 0., 1.]).view(4, 1, 1)  # heads 2 and 4 alone
errors = relations.relative_errors(layer.w_o(mh.merge_heads(working)), targets, 2)  # [2]
assert errors.max() < 0.01
print("Eleven layers at their floor; 8 heads of 2 channels at 0.06.")

# %% quiz="more_heads" minutes=1
lesson.more_heads_quiz()

# %% [markdown] minutes=1
# ## What papers measured
#
# Vaswani et al. (2017), Table 3, rows (A): translation, development set, the budget kept while $h$ varies.
# One head is worst, and too many are worse again. The paper gives one number for each $h$, and no spread.

# %%
show(lesson.bleu())

# %% [markdown]
# | source | measured |
# |:--|:--|
# | Vaswani et al. 2017, Table 3 (A) | BLEU 24.9, 25.5, 25.8, 25.8, 25.4 for $h$ = 1, 4, 8, 16, 32 |
# | Michel et al. 2019, section 3.2, Table 1 | of 96 encoder heads, 8 change BLEU significantly when one is removed at test time; half of these 8 for the better |
# | Voita et al. 2019, abstract | 38 of 48 encoder heads pruned (English-Russian), at a cost of 0.15 BLEU |
# | Clark et al. 2019, Table 1 | BERT-base, layer-head: 8-10 attends from direct objects to their verbs (86.8 %; best fixed offset 40.0 %), 7-6 serves possessives (80.5 %; 47.7 %), 9-6 attends from prepositions to their objects (76.3 %; 34.6 %) |
# | the same table | one head can be best at several relations: 4-10 at `nn`, `amod`, `aux` |

# %%
bleu = lesson.BLEU
assert list(bleu.values()) == [24.9, 25.5, 25.8, 25.8, 25.4]
best = [h for h in bleu if bleu[h] == max(bleu.values())]
assert best == [8, 16] and bleu[32] < bleu[4] and round(bleu[8] - bleu[1], 1) == 0.9
assert round(bleu[8] - bleu[32], 1) == 0.4
print("best: h =", best, "- ahead of one head by 0.9 BLEU, of 32 heads by 0.4")

# %% [markdown] minutes=2
# ## You may have heard
#
# * **"One head looks in one direction."** A row spreads over as many tokens as it likes.
# * **"Heads put 95 % on one token."** They can: two channels are enough for that. Untrained ones, as torch
#   initializes them, do not, and nothing in the layer makes them.
# * **"Heads repeat each other"** and **"every head specializes."** Both are false as laws. Two heads above
#   look at different tokens; in one of twenty runs with four needs and four heads, nearly all of one need is
#   missed; and at $h = 4$, width 64 two of the four heads serve none.
# * **"One head averages, many heads specialize."** Every head averages. Many heads give many averages, each
#   with a linear map of its own.
# * **"$h$ heads are $h$ times as expressive."** The Schmidt rank may grow to $h$; the rank of each head's
#   linear map is at most $d/h$. With one budget and enough tokens neither class of layers contains the other
#   (Theorem C, at the end).
# * **"It is proven that head 2 of layer 4 finds direct objects."** What heads *can* do is proven; what they
#   learn is measured, and we found no source for that head. A head's number is a name inside one checkpoint:
#   exchange two heads, and the layer is the same function.
#
# Each of them in code:

# %%
x = torch.randn(1, 32, 96)  # [B, T, d_model]
layer, other = mh.MultiHeadAttention(96, 12), mh.MultiHeadAttention(96, 12)
_, weights = layer.heads(x)  # [1, 12, 32, 32]
# one direction?
assert (weights[0, 0, 0] > 0.01).sum() > 1
# 95 %? Not untrained; but keys on a circle, d_k = 2, point as sharply as you like.
circle = torch.arange(32) * 2 * math.pi / 32
keys = torch.stack([circle.cos(), circle.sin()], dim=1)  # [T, d_k]
pointed = mh.attention(2000 * keys, keys, keys)[1]  # [T, T]
assert weights.max() < 0.5 and pointed.diagonal().min() > 0.95
# Repeat each other? Always specialize?
two = lesson.maps_of(stored_layer(2, 32)[0])  # [2, T, T]
assert (two[0] - two[1]).abs().max() > 0.8
assert (stored_errors(four_heads) > 0.9).any(dim=1).sum() == 1  # of 20 runs
# Only one head averages?
assert torch.allclose(weights.sum(dim=-1), torch.ones(1, 12, 32), atol=1e-5)
# h times as expressive?
assert torch.linalg.matrix_rank(random_layer(12, d // 12)[1]).tolist() == [2] * 12
# Head 2? The heads from last to first: the same function.
order = torch.arange(96).view(12, 8).flip(0).flatten()
other.load_state_dict({name: w[:, order] if name == "w_o.weight" else w[order]
                       for name, w in layer.state_dict().items()})
assert torch.allclose(layer(x), other(x), atol=1e-5)
print("Each of them, exposed.")

# %% [markdown] question="one_head" points=2 minutes=2
# **In your own words.** A colleague has a one-head layer that confuses two needs of the same token, and wants
# to double the width of the head. Explain in two or three sentences why that will not help, and name one
# change to the *data* or to the *layer* that would.
#
# <!-- BEGIN ANSWER -->
# Width enters only the map M of a head. The head still has one row of weights for each token, so both values are
# blended with the same weights, whatever map acts before or after, and the layer keeps Schmidt rank 1. A second head
# with another pattern would help, or a second layer, or values of which the two tokens fill different channels (typed
# tokens).
# <!-- END ANSWER -->
# <!-- BEGIN RUBRIC -->
# One point: says that the pattern (the one row of weights) is the limit, or that a head of any width has
# Schmidt rank 1. One point: names a change that works: another head with a different pattern, another layer,
# or values in different channels. No point for "more parameters".
# <!-- END RUBRIC -->

# %% [markdown] minutes=1
# ## In three lines
#
# * A head blends values with one row of weights per token; if both tokens fill the same channels with white
#   values that the pattern does not read, the two errors add up to 1 or more.
# * With patterns held fixed, one head of any width has Schmidt rank 1; $h$ heads reach $h$ exactly when
#   patterns and maps are independent.
# * That is a limit of what can be computed. What trained heads do with it is measured, and it is mixed.
#
# **Next:** two heads need two patterns and two maps. Lesson 02 counts what they cost.
#
# **Sources.** Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, section 3.2 and Table 3. Michel,
# Levy and Neubig, NeurIPS 2019. Voita et al., ACL 2019. Clark et al., BlackboxNLP
# 2019. Van Loan and Pitsianis 1993 (rearrangement); Eckart and Young 1936. Bahdanau et al., arXiv 1409.0473.
# Luong et al., arXiv 1508.04025. Graves et al., arXiv 1410.5401. Lin et al., arXiv 1703.03130. Karpathy
# et al., arXiv 1506.02078. Bhojanapalli et al., ICML 2020 (Theorem C's companion). Liu et al., arXiv
# 2106.09650 (deep networks with one head).

# %% [markdown] optional=true minutes=2
# ## Optional: heads that count for fewer
#
# What looks like many heads, or like a wide one, and has a smaller Schmidt rank.

# %% optional=true
assert mh.operator_schmidt_rank(*random_layer(1, 4 * d)) == 1  # 4 times as wide as d
assert mh.operator_schmidt_rank(*random_layer(1, 768)) == 1  # as wide as GPT-2 small
patterns, maps = random_layer(4, 6)
assert mh.operator_schmidt_rank(patterns, maps) == 4
assert mh.operator_schmidt_rank(patterns[:1].repeat(4, 1, 1), maps) == 1  # equal patterns
maps[3] = 2 * maps[0] - maps[1]
assert mh.operator_schmidt_rank(patterns, maps) == 3  # dependent maps
one_token = torch.ones(4, 1, 1, dtype=torch.float64)
assert mh.operator_schmidt_rank(one_token, random_layer(4, 6)[1]) == 1  # T = 1
print("wide head 1, equal patterns 1, dependent maps 3, one token 1")

# %% [markdown] optional=true minutes=2
# ## Optional: history
#
# <details><summary>History: who proposed it, and what came before</summary>
#
# Bahdanau et al. (2014) and Luong et al. (2015) blend with one row of weights at a time. Several at once are
# older than the Transformer: Lin et al. (March 2017, cited by it) read a sentence with $r$ rows of attention,
# and the Neural Turing Machine (Graves et al. 2014) has several read heads. In the form used here,
# projections for each head and one output matrix, it is from Vaswani et al. (2017). The note on the first
# page of that paper says that the authors contributed equally, and that Noam Shazeer proposed scaled
# dot-product attention and multi-head attention.
#
# Heads are sometimes called an ensemble. An ensemble averages models that were trained apart; heads are
# trained together and added through a learned $W^O$. The reason that the paper gives is the one of this
# lesson: with a single head, averaging inhibits attending to information from different subspaces at
# different positions. It calls the cost similar to that of one head, not equal; lesson 02 counts it.
#
# Three findings are often told of attention heads. Coreference: there is such a head, 5-4 of BERT-base (Clark et
# al. 2019). Quotation marks: a result on LSTM cells (Karpathy et al. 2015). Indentation depth: we found no
# source.
#
# </details>

# %% [markdown] optional=true minutes=5
# ## Optional: patterns that read the content
#
# <details><summary>Theorem B: one head does not meet two needs, whatever its pattern depends on</summary>
#
# Let $f(c) = c_j M_1 + c_k M_2$ with $j \neq k$ and $M_1$, $M_2$ linearly independent; $c_s$ is the content
# of token $s$, a row. No $y(c) = \sum_s a_s(c)\, c_s M$ equals $f(c)$ for all contents $c$, for *any* scalar
# functions $a_s$ of all the content.
#
# **Proof.** Suppose it does. Set all contents to 0 except $c_j = x$. Then $a_j(x)\, x M = x M_1$ for every
# row $x$, where $a_j(x)$ depends on $x$.
#
# 1. If $xM = 0$, then $xM_1 = 0$: the kernel of $M$ lies in that of $M_1$. So $M_1 = M N$ for some linear $N$
#    on the image of $M$.
# 2. With $u = xM$ the equation reads $u N = a_j(x)\, u$: every vector of the image of $M$ is an eigenvector
#    of $N$. A linear map of which every vector is an eigenvector is a multiple of the identity, so
#    $N = t\,\mathrm{id}$ and $M_1 = t M$.
# 3. In the same way $M_2 = t' M$ for a number $t'$. Then $M_1$ and $M_2$ are dependent, against the
#    assumption. $\blacksquare$
#
# A bias in the values adds a constant, because each row of weights sums to 1, and $c = 0$ forces it to be
# zero. For patterns that are continuous in the contents, as a softmax's are, the theorem excludes the error 0. It
# gives no floor: three of the long runs above ended below one half, and three, with four numbers for each
# attribute, at one half.
#
# </details>

# %% [markdown] optional=true minutes=6
# ## Optional: same budget, neither contains the other
#
# <details><summary>Theorem C: some one-head layers are beyond <i>h</i> heads of width <i>d/h</i></summary>
#
# Let $d_k = d_v = d/h$ with $h \ge 2$, and $T > d_k + 1$. (i) Some $h$-head layers equal no one-head layer:
# Theorem A. (ii) Some one-head layers, of width $d$, equal no $h$-head layer.
#
# **Proof of (ii).** Take the layer $V \mapsto P V$, so $M = I$, with a softmax pattern $P$ of which the
# row-centered logarithm has the rank $d_k + 1$: one head of width $d > d_k$ has room for it. Suppose that
# $\sum_i A_i \otimes M_i^\top = P \otimes I$.
#
# 1. Apply both sides to values that are the same row for every token. Rows of patterns sum to 1, so
#    $\sum_i M_i = I$.
# 2. Each $M_i$ has a rank of at most $d_k$, and $h\,d_k = d$: the images must form a direct sum, and then
#    $M_i M_i = M_i$ and $M_i M_j = 0$ for $i \ne j$.
# 3. Follow the layer by $M_j$: only head $j$ is left, $A_j V M_j = P V M_j$, so $A_j = P$.
# 4. But $\log A_j$ is a score matrix of rank at most $d_k$ up to a constant in each row, so its row-centered
#    form has a rank of at most $d_k$. That of $P$ has more. $\blacksquare$
#
# </details>
#
# The cell shows the two ranks of step 4: of a random pattern over six tokens, and of heads of width $d_k$. A
# head that points hard at one token needs only $d_k = 2$, as the circle above showed; the limit bites on soft
# patterns with several peaks.

# %% optional=true
def centered_rank(weights):
    """Rank of log weights [T, T] after each row's mean is taken away."""
    logs = weights.log()
    return int(torch.linalg.matrix_rank(logs - logs.mean(dim=1, keepdim=True), rtol=1e-8))

pattern = torch.randn(6, 6, generator=draw, dtype=torch.float64).softmax(dim=1)
assert centered_rank(pattern) == 5
for d_k in (1, 2, 3):
    q, k = torch.randn(2, 6, d_k, generator=draw, dtype=torch.float64)
    assert centered_rank(mh.attention(q, k, k)[1]) == d_k
print("a pattern at large: rank 5; heads of width 1, 2, 3: ranks 1, 2, 3")

# %% [markdown] optional=true minutes=2
# ## Optional: two more cases of Theorem A
#
# A residual connection adds the term $I V I$, and so at most 1 to the rank. Under a causal mask token 0 sees
# only itself: all its rows are alike, and to it all heads count as one.

# %% optional=true
patterns, maps = random_layer(3, 8)
with_residual = (torch.cat([patterns, torch.eye(T, dtype=torch.float64)[None]]),
                 torch.cat([maps, torch.eye(d, dtype=torch.float64)[None]]))
assert mh.operator_schmidt_rank(*with_residual) == 4
causal = torch.ones(T, T, dtype=torch.bool).tril()
looks = torch.randn(3, T, 8, generator=draw, dtype=torch.float64)
rows = mh.attention(looks, looks.roll(1, dims=0), looks, causal)[1]  # [3, T, T]
assert torch.equal(rows[:, 0], torch.eye(T, dtype=torch.float64)[:1].expand(3, T))
print("three heads and a residual: rank 4; causal token 0: one row for all heads")

# %% [markdown] optional=true minutes=2
# ## Optional: eight narrow heads, trained longer
#
# Is 0.06 a limit? The same layer, $h = 8$ and width 16, with 2,000 steps instead of 600.

# %% optional=true
narrow = relations.RelationLayer(plain, h=8, width=16)
with lesson.one_thread():
    relations.train(narrow, steps=2000)
error, _ = relations.evaluate(narrow)
assert error < 0.02
print("after 2000 steps the error is below 0.02:", error < 0.02)

# %% [markdown] optional=true
# ### Optional, your turn: `operator_schmidt_rank`
#
# Theorem A as a function. Beware of heads that cancel.

# %% exercise="operator_schmidt_rank" solution="multihead.subspaces:operator_schmidt_rank" points=3 minutes=10 optional=true
def operator_schmidt_rank(patterns, maps):
    """The Schmidt rank of the layer V -> sum_i A_i V M_i, an int.

    patterns [h, T, T], maps [h, d, d], of one float dtype. Call 0 what is rounding.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="operator_schmidt_rank" optional=true
check("operator_schmidt_rank", operator_schmidt_rank)

# %% [markdown] hint="operator_schmidt_rank" optional=true
# Not the rank of $L$, but that of $R(L)$. Do you need $L$ at all?
#
# ---
# $R(L) = P Q^\top$, with one column of $P$ and one of $Q$ for each head. Transposing each map only reorders
# the columns of $R(L)$.
#
# ---
# `patterns.flatten(1)` is $P^\top$ and `maps.flatten(1)` is $Q^\top$ but for that order. Multiply
# `patterns.flatten(1).mT` with `maps.flatten(1)` and take the `matrix_rank`.

# %% [markdown] optional=true minutes=2
# ## Optional: put your own function to work
#
# If `check` passed your `attention`, the next cell runs a trained layer with it. Otherwise it uses the
# library's.

# %% optional=true
from multihead_lessons.exercises import examine

attend = attention if examine("attention", attention).passed else mh.attention
layer = stored_layer(2, 32)[0]
x, targets, _ = plain.batch(torch.Generator().manual_seed(6), 256)
address, content = x.split((plain.d_address, plain.d_out), dim=-1)
q, k = (mh.split_heads(w(address), 2) for w in (layer.w_q, layer.w_k))  # [B, h, T, d_k]
outputs, _ = attend(q, k, mh.split_heads(layer.w_v(content), 2))  # [B, h, T, d_k]
errors = relations.relative_errors(layer.w_o(mh.merge_heads(outputs)), targets, 2)  # [2]
assert errors.max() < 0.005
print("Two trained heads meet both needs with the attention in use.")

# %% [markdown] teaching=true
# ## Teaching notes
#
# **Minutes.** The core path is tight at reading pace. In class plan 60, or leave the proof of Theorem A for
# the next day and show only steps 2 and 3.
#
# **On the board.** The triangle, with $z$ inside. Then one row with $p$ and $1 - p$, and under it the two
# channels of the blend, wanted and unwanted parts in two colors. Last the 4 by 4 matrix $L$: cut it into
# blocks and write each block as a row; the rank can be read off.
#
# **Ask the room.** "What would you show someone who says that averaging destroys information?" (The typed
# tokens.) "Two heads with shares 55/45 and 45/55: have they specialized?" (No, and the layer is exact.)
# "Which condition of the floor do real layers break?" (Their patterns read the content, and their values are
# not white.)
#
# **Where they stumble.** Width and pattern are mixed up: ask what of a head the width changes. Rank of $L$ is
# taken for rank of $R(L)$. "Floor" is heard as a law for language models; it is a statement about a task.
