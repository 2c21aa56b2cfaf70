# %% [markdown] strip=true minutes=2
# # In what sense do the heads tile the space?
#
# A building of 768 rooms is let as twelve flats of 64. On the plan every room belongs to one flat and no room is let
# twice: the flats tile the building. The plan says nothing about the walls. Here they are thin and seldom at right
# angles: whoever plays in one flat is heard in the other eleven.
#
# **You will be able to** decide whether subspaces form a direct sum, split a vector into its pieces, measure the angles
# between two subspaces, and say which changes of the weights leave a layer as it is.
#
# **You should know** how $W^O$ joins the heads ([lesson 04](04_concat_and_w_o.ipynb)), and from linear algebra: span,
# rank, inverse, orthonormal rows. The [symbols page](00_start_here.ipynb) has every shape.

# %%
try:
    import math
    from itertools import combinations

    import torch

    import multihead as mh
    from multihead_lessons import lesson05 as lesson
    from multihead_lessons.exercises import check, show_solution
    from multihead_lessons.style import show
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{missing.name} is not installed here. Run `pip install -r requirements.txt` "
        "in the course's folder, then restart this kernel.") from None

# %% [markdown] minutes=2
# ## Three spaces, kept apart
#
# "The subspace of a head" can mean three things.
#
# * **Coordinate blocks.** $xW$ is cut into $h$ runs of $d_k$ numbers. These blocks are orthogonal, trivially: they use
#   different coordinates.
# * **What a head reads.** Head $i$ computes $x W_i$. A change of $x$ at right angles to all columns of $W_i$ goes
#   unnoticed, so head $i$ reads the span of these *columns*. $W^Q$, $W^K$ and $W^V$ each have their own.
# * **What a head writes to.** Its contribution is $\text{head}_i W_i^O$, so it lies in the span of the *rows* of
#   $W_i^O$.
#
# The smallest case: $d_\text{model} = 2$, two heads of one channel.

# %%
show(lesson.three_spaces())

# %%
W = torch.tensor([[2.0, 1.0], [1.0, 3.0]])  # [d_model, h d_k]: head 1 reads x @ (2, 1)
W_O = torch.tensor([[1.0, 1.0], [-1.0, 2.0]])  # [h d_k, d_model]: it writes along (1, 1)
blocks = list(torch.eye(2).split(1))  # 2 times [1, 2]
read, written = list(W.T.split(1)), list(W_O.split(1))  # 2 times [1, 2] each
for pair, degrees in [(blocks, 90), (read, 45), (written, 72)]:
    assert round(math.degrees(mh.principal_angles(*pair))) == degrees
x, unnoticed = torch.tensor([1.0, 1.0]), torch.tensor([-1.0, 2.0])
assert (x @ W)[0] == ((x + unnoticed) @ W)[0]  # head 1 does not see it
assert (x @ W)[1] != ((x + unnoticed) @ W)[1]  # head 2 does
print("Three pairs of lines: 90, 45 and 72 degrees.")

# %% [markdown] minutes=1
# ## Two meanings of "direct sum"
#
# * The **external** direct sum of some spaces is the space of all tuples, one vector from each. It always exists, and
#   dimensions add up. Concatenation builds it from the outputs of the heads.
# * A space is the **internal** direct sum of its subspaces $H_1, \dots, H_h$ if *every* vector $v$ in it is $v_1 +
#   \dots + v_h$ with $v_i \in H_i$ in *exactly one* way: its **split**, and the $v_i$ are its **pieces**. This can
#   fail.
#
# "Do the heads tile the space?" asks for the second, of the spaces read or of the spaces written.

# %%
a, b = torch.tensor([5.0, 6.0]), torch.tensor([7.0])  # external: from two spaces
assert torch.cat([a, b]).tolist() == [5, 6, 7]  # [2 + 1]; nothing can go wrong

v_1, v_2 = torch.tensor([4.0, 0.0]), torch.tensor([1.0, 1.0])  # internal: from two lines
assert (v_1 + v_2).tolist() == [5, 1]  # the one split of (5, 1) along (1, 0) and (1, 1)
print("A tuple of vectors, and a sum of vectors.")

# %% quiz="three_lines" minutes=1
lesson.three_lines_quiz()

# %%
show(lesson.three_lines())

# %%
lines = list(torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]]).split(1))  # 3 times [1, 3]
for one, other in combinations(lines, 2):
    assert torch.linalg.matrix_rank(torch.cat([one, other])) == 2  # they meet in 0 only
together = torch.cat(lines)  # [3, 3]
assert len(together) == 3 and torch.linalg.matrix_rank(together) == 2

v = torch.tensor([1.0, 1.0, 0.0])
for coordinates in ([1.0, 1.0, 0.0], [0.0, 0.0, 1.0]):
    assert torch.equal(torch.tensor(coordinates) @ together, v)  # two splits of v
assert not together[:, 2].any()  # no sum of pieces leaves the plane: (0, 0, 1) has none
print("Any two are apart, the dimensions add up to 3, the rank is 2.")

# %% [markdown] minutes=3
# ## When is the split unique?
#
# Write a basis of $H_i$ as the rows of $E_i$, a $k_i \times d$ matrix, and stack all of them to $E$. Suppose that
# $k_1 + \dots + k_h = d$, so that $E$ is square. For heads this is $h\,d_k = d_\text{model}$.
#
# **Theorem.** $\mathbb{R}^d$ is the direct sum of $H_1, \dots, H_h$ if and only if $E$ is invertible.
#
# **Proof.**
#
# 1. The rows of $E_i$ are independent, so each vector of $H_i$ is $c_i E_i$ for exactly one row $c_i$. Hence the
#    splits of $v$ are the solutions $c = (c_1, \dots, c_h)$ of $cE = v$, one for one.
# 2. If $E$ is invertible, every $v$ has the one solution $c = vE^{-1}$.
# 3. If not, some row $n \ne 0$ has $nE = 0$. With $c$, also $c + n$ solves $cE = v$, so *no* vector has exactly one
#    split. And $d$ dependent rows span less than $\mathbb{R}^d$, so some vector has none. $\blacksquare$
#
# Without $k_1 + \dots + k_h = d$ the space is never their direct sum: fewer rows do not reach every vector, and more
# are dependent, so step 3 applies. In any case all bases count *together*: $H_i$ must meet the *sum of the others* in
# 0 only.
#
# Now in 48 dimensions: four heads of twelve, each with independent rows, but head 2 has one direction in common with
# head 1.

# %% minutes=1
g = torch.Generator().manual_seed(5)
bases = [basis.double() for basis in mh.random_bases(48, 4, g)]  # 4 times [12, 48]
assert mh.is_direct_sum(bases)
bases[1][0] = bases[0][0] + bases[0][1]
E = torch.cat(bases)  # [48, 48]
assert all(torch.linalg.matrix_rank(basis) == 12 for basis in bases)
assert torch.linalg.matrix_rank(E) == 47 and not mh.is_direct_sum(bases)
print("Four times rank 12, together rank 47 of 48.")

# %% [markdown]
# Step 3 at work: $n$ says "two rows of head 1, minus the row of head 2 that is their sum". Adding $3n$ to the
# coordinates of a vector gives a second split of it.

# %%
n = torch.zeros(48).double()
n[0] = n[1] = 1
n[12] = -1  # n @ E = 0
c = torch.randn(48, generator=g).double()
split = [part @ basis for part, basis in zip(c.split(12), bases)]  # 4 times [48]
other = [part @ basis for part, basis in zip((c + 3 * n).split(12), bases)]
torch.testing.assert_close(sum(split), sum(other))  # the same vector
assert not torch.allclose(split[0], other[0])  # another piece of head 1
print("One vector with two splits.")

# %% [markdown]
# And a vector with none: every sum of pieces is $cE$. A vector $u$ of length 1 that is orthogonal to every row of $E$
# has $cE \cdot u = 0$ for all $c$, while $u \cdot u = 1$.

# %%
u = torch.linalg.svd(E).Vh[-1]  # [48], orthogonal to every row of E
assert (E @ u).abs().max() < 1e-9 and math.isclose(u @ u, 1)
print("u has no split.")

# %% [markdown]
# ### Your turn: `is_direct_sum`

# %% exercise="is_direct_sum" solution="multihead.subspaces:is_direct_sum" points=3 minutes=3
def is_direct_sum(bases):
    """True if every vector of R^d_model has exactly one split, else False.

    bases: list of h tensors [k_i, d_model], each with independent rows; the k_i may
    differ, and need not add up to d_model.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="is_direct_sum"
check("is_direct_sum", is_direct_sum)

# %% [markdown] hint="is_direct_sum"
# Which two things does the theorem ask of the stacked rows?
#
# ---
# The stack must be square, and its rank must be full. The rank has a tolerance for rounding; a determinant has none.
#
# ---
# `torch.cat` stacks the bases. Compare `len` of the stack, its number of columns, and `torch.linalg.matrix_rank` as an
# `int`: all three must agree.

# %% quiz="pieces" minutes=1
lesson.pieces_quiz()

# %% [markdown] minutes=1
# ## Pieces are not shadows
#
# To find the piece of $v$ in a subspace, go from $v$ along the *other* subspaces, not at right angles to this one.

# %%
show(lesson.pieces_and_shadows())

# %% [markdown] minutes=1
# The map from $v$ to its piece in $H_i$ is linear: $v \mapsto v P_i$. $P_i$ is the **projector** onto $H_i$ along the
# others. It leaves vectors of $H_i$ alone and sends those of the others to 0. It is symmetric only if $H_i$ is
# orthogonal to all the others; otherwise it is *oblique*.

# %%
pair = [torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])]
P = mh.projectors(pair)  # [h, d_model, d_model]
v = torch.tensor([1.0, 2.0])
torch.testing.assert_close(v @ P, torch.tensor([[-1.0, 0.0], [2.0, 2.0]]))  # the pieces
torch.testing.assert_close(P.sum(dim=0), torch.eye(2))  # pieces add up to v
torch.testing.assert_close(P @ P, P)  # the piece of a piece
torch.testing.assert_close(P[0] @ P[1], torch.zeros(2, 2))
assert not torch.allclose(P, P.mT)  # oblique
assert (v @ P[1]).norm() > v.norm()  # a piece longer than the whole
print("v = (-1, 0) + (2, 2).")

# %% [markdown] minutes=1
# **What happens to the pieces as the lines close?** The condition number, the largest over the smallest singular
# value of the stacked unit vectors, tells how near they are to being one line. Bring $H_2$ toward $H_1$, one degree
# at a time (type the angle). Find the moment when uniqueness dies, with $v$ on the line and off it. Then switch to
# shadows: where do they add up to $v$?

# %% minutes=2
lesson.plane_explorer()

# %% [markdown]
# ### Your turn: `projectors` and `decompose`

# %% exercise="projectors" solution="multihead.subspaces:projectors" points=4 minutes=4
def projectors(bases):
    """Tensor P [h, d_model, d_model]: v @ P[i] is the piece of v [d_model] in subspace i.

    bases: list of h tensors [k_i, d_model], each with independent rows; the k_i may differ.
    Raise a ValueError unless every vector has exactly one split.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="projectors"
check("projectors", projectors)

# %% [markdown] hint="projectors"
# Two steps: from $v$ to its coordinates in all the bases at once, then from the coordinates of basis $i$ back to a
# vector.
#
# ---
# The coordinates are $c = vE^{-1}$. Those of subspace $i$ come from some *columns* of $E^{-1}$. Its piece is $c_i E_i$.
#
# ---
# $P_i$ is block $i$ of the columns of $E^{-1}$, a $d \times k_i$ matrix, times $E_i$. `split` with a list of sizes and
# `dim=1` cuts the inverse; `torch.stack` joins the results. First raise unless the rows are square and of full rank.

# %% exercise="decompose" solution="multihead.subspaces:decompose" points=2 minutes=2
def decompose(v, bases):
    """The pieces [h, d_model] of v [d_model], one from each subspace; they add up to v.

    Raise a ValueError unless every vector has exactly one split.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="decompose"
check("decompose", decompose)

# %% [markdown] hint="decompose"
# You have the matrices that give the pieces.
#
# ---
# $v$ is a row: it stands on the left of a matrix.
#
# ---
# `projectors(bases)` is $[h, d_\text{model}, d_\text{model}]$, and a vector times such a stack is one row for each
# matrix.

# %% [markdown] minutes=1
# ## What a direct sum is good for
#
# A layer's output is the sum of what its heads write (our layers have no bias). If $W^O$ is square and invertible,
# the subspaces written form a direct sum, and the output alone tells what every head wrote.

# %%
layer = mh.MultiHeadAttention(48, 4).double()
x = torch.randn(1, 5, 48).double()  # [B, T, d_model]
with torch.no_grad():
    W_O = layer.w_o.weight.T  # [h d_k, d_model]
    outputs, _ = layer.heads(x)  # [B, h, T, d_k]
    wrote = mh.head_contributions(outputs, W_O)[0, :, 0]  # [h, d_model], of token 0
    pieces = mh.decompose(layer(x)[0, 0], W_O.split(12))  # [h, d_model]
assert mh.is_direct_sum(W_O.split(12))
torch.testing.assert_close(pieces, wrote, atol=1e-6, rtol=0)
print("The pieces of the output are the contributions of the heads.")

# %% [markdown] minutes=1
# ## Principal angles
#
# How oblique are two subspaces? The first **principal angle** is the smallest angle between a vector of one and a
# vector of the other. The next is the smallest among the directions at right angles to these two, and so on, up to
# the dimension of the smaller space. With orthonormal rows $Q_a$ and $Q_b$, their cosines are the singular values of
# $Q_a Q_b^\top$. In the plane and in space you can see them.

# %%
show(lesson.angles_in_space())

# %%
t = math.radians(60)
floor = torch.eye(3)[:2]  # [2, 3]
line = torch.tensor([[0.0, math.cos(t), math.sin(t)]])  # [1, 3]
plane = torch.cat([floor[:1], line])  # [2, 3]
for other, degrees in [(line, [60]), (plane, [0, 60])]:
    found = mh.principal_angles(floor, other).rad2deg()
    assert found.round().tolist() == degrees
print("A line and a plane have one angle, two planes have two.")

# %% [markdown]
# ### Your turn: `principal_angles`

# %% exercise="principal_angles" solution="multihead.subspaces:principal_angles" points=3 minutes=4
def principal_angles(a, b):
    """The min(k, l) principal angles of the spans of a [k, d_model] and b [l, d_model].

    Radians, smallest first, to within 1e-6. The rows of a are independent, and so are
    those of b. One span may contain the other.
    """
    # YOUR CODE HERE
    raise NotImplementedError()

# %% check="principal_angles"
check("principal_angles", principal_angles)

# %% [markdown] hint="principal_angles"
# A basis is one of many. What can you replace it by, so that the result depends on the span alone?
#
# ---
# Orthonormal rows for each of the two, by a QR of the transpose. Then the singular values of the product are cosines.
#
# ---
# `torch.linalg.qr(a.mT).Q.mT` has orthonormal rows. `torch.linalg.svdvals` gives falling values. Rounding can lift one
# above 1, where `arccos` is NaN: clamp first.

# %% quiz="two_heads" minutes=1
lesson.two_heads_quiz()

# %% [markdown] minutes=1
# ## Twelve heads in 768 dimensions
#
# The next cell draws twelve random subspaces, six times over, with the seeds 0 to 5, and measures all 66 pairs of each
# draw. For two independent, uniformly random subspaces with $r = d_k / d_\text{model} = 1/h$, the mean of $\cos^2$ over
# the principal angles is $r$ in expectation, exactly. The largest cosine tends to $2\sqrt{r(1-r)}$ as $d_\text{model}$
# grows.

# %%
def all_angles(bases):
    """The principal angles of every pair, [pairs, d_k], in radians."""
    return torch.stack([mh.principal_angles(a, b) for a, b in combinations(bases, 2)])

def draw(d_model, h, seed, orthogonal=False):
    bases = mh.random_bases(d_model, h, torch.Generator().manual_seed(seed), orthogonal)
    return [basis.double() for basis in bases]  # h times [d_k, d_model]

angles = torch.cat([all_angles(draw(768, 12, seed)) for seed in range(6)])  # [396, 64]
smallest = angles[:, 0].rad2deg()  # [396]
overlap = angles.cos().square().mean(dim=1)  # [396], mean cos^2 by pair
limit = math.degrees(math.acos(mh.largest_cosine_limit(1 / 12)))
assert 53 < smallest.min() < limit < smallest.max() < 60
assert 0.075 < overlap.min() < 1 / 12 < overlap.max() < 0.092
assert abs(overlap.mean() - 1 / 12) < 5e-4
print(f"smallest angle of a pair: {smallest.min():.1f} to {smallest.max():.1f} degrees")
print(f"its limit: {limit:.1f} degrees")
print(f"mean cos^2 of all: {overlap.mean():.3f}, expected {1 / 12:.3f}")

# %% [markdown]
# Not only the smallest angle, the whole distribution has a formula in this limit: with $c = 2\sqrt{r(1-r)}$ the density
# at the angle $\theta$ is $\sqrt{c^2 - \cos^2\theta}\,/\,(\pi r \sin\theta)$, and 0 where $\cos\theta > c$.

# %%
show(lesson.distribution(angles, 12))

# %% [markdown]
# A fresh layer is such a draw, nearly: its weights are uniform numbers instead of normal ones. The subspaces that $Q$
# and $K$ of *one* head read are as far apart as those of two heads.

# %%
layer = mh.MultiHeadAttention(768, 12).double()
with torch.no_grad():
    q_1, q_2, *_ = layer.w_q.weight.split(64)  # the columns of W_Q, as rows [64, 768]
    k_1, *_ = layer.w_k.weight.split(64)
    o_1, o_2, *_ = layer.w_o.weight.T.split(64)  # the rows of W_O
    for a, b in [(q_1, q_2), (q_1, k_1), (o_1, o_2)]:
        assert 50 < math.degrees(mh.principal_angles(a, b)[0]) < 63
print("Read by two heads, by Q and K of one head, written by two heads: all alike.")

# %% quiz="others" minutes=1
lesson.others_quiz()

# %% [markdown] minutes=1
# ## Thin walls
#
# Head 1 keeps about 56 degrees from every other head, and less than 1 degree from all of them together. This angle
# decides how far pieces can outgrow the vector: the norm of $P_i$, the largest ratio of a piece to its vector, is
# $1 / \sin\theta$, with $\theta$ the smallest angle between $H_i$ and the sum of the others. Orthogonal subspaces have
# $\theta = 90°$, and no piece is longer than the vector.

# %%
bases = draw(768, 12, seed=0)
angle = mh.principal_angles(bases[0], torch.cat(bases[1:]))[0]
assert math.degrees(angle) < 1
assert 1 / angle.sin() > 100  # some piece is 100 times as long as its vector

halves = draw(768, 2, seed=0)
assert math.degrees(mh.principal_angles(*halves)[0]) < 1 and mh.is_direct_sum(halves)
right = all_angles(draw(768, 12, 0, orthogonal=True))  # [66, 64]
assert (right.rad2deg() - 90).abs().max() < 1e-3
print("Head 1 and the other eleven, or two halves: below 1 degree, and direct.")

# %% [markdown]
# The formula for the norm, checked on four heads in 48 dimensions; and one vector, split along random and along
# orthogonal subspaces. Only for the second do the squared lengths of the pieces add up to that of the vector.

# %%
bases = draw(48, 4, seed=0)
for i, P in enumerate(mh.projectors(bases)):
    others = torch.cat(bases[:i] + bases[i + 1:])  # [36, 48]
    stretch = 1 / mh.principal_angles(bases[i], others)[0].sin()
    torch.testing.assert_close(torch.linalg.matrix_norm(P, 2), stretch)

v = torch.randn(48, generator=torch.Generator().manual_seed(1)).double()
for kind, orthogonal in [("random", False), ("orthogonal", True)]:
    pieces = mh.decompose(v, draw(48, 4, 0, orthogonal))  # [4, 48]
    ratio = pieces.square().sum() / v.square().sum()
    assert abs(ratio - 1) < 1e-4 if orthogonal else ratio > 10
    print(f"{kind}: sum of |piece|^2 = {ratio:.0f} |v|^2")

# %% [markdown] minutes=1
# **What decides how far apart two heads are: $d_\text{model}$ or $h$?** Change one at a time and watch the map and the
# distribution. The column beside the map is a head against all the others. Then make the bases orthogonal.

# %% minutes=2
lesson.angles_explorer()

# %% [markdown]
# For large $d_\text{model}$ it is $h$: the limit depends on $r = 1/h$ alone. At small $d_\text{model}$ the smallest
# angles scatter more, and lie above it on average.

# %%
means = []
for d_model in (24, 96, 384):
    smallest_12 = all_angles(draw(d_model, 12, 0))[:, 0].rad2deg()  # [66], for h = 12
    means.append(smallest_12.mean())
    print(f"d_model = {d_model}: {smallest_12.min():.0f} to {smallest_12.max():.0f},",
          f"on average {means[-1]:.0f} degrees; limit {limit:.0f}")
assert means[0] > means[1] > means[2] > limit

# %% quiz="symmetry" minutes=1
lesson.symmetry_quiz()

# %% [markdown] minutes=1
# ## What leaves the layer as it is
#
# Two kinds of changes do: another order of the heads, and an invertible $d_k \times d_k$ matrix inside a head, one
# for $Q$ and $K$, one for $V$ and $O$. The second changes the basis and not the span: angles and pieces are facts
# about the heads, not about coordinates.

# %%
def run(x, w_q, w_k, w_v, w_o, h=4):
    q, k, v = (mh.split_heads(x @ w, h) for w in (w_q, w_k, w_v))  # each [B, h, T, d_k]
    return mh.merge_heads(mh.attention(q, k, v)[0]) @ w_o  # [B, T, d_model]

x = torch.randn(2, 5, 48).double()
w_q, w_k, w_v, w_o = torch.randn(4, 48, 48).double() / 48**0.5
y = run(x, w_q, w_k, w_v, w_o)

order = torch.arange(48).view(4, 12)[[2, 0, 3, 1]].flatten()
assert torch.allclose(run(x, w_q[:, order], w_k[:, order], w_v[:, order], w_o[order]), y)

near_1 = torch.eye(12) + 0.1 * torch.randn(2, 4, 12, 12)  # invertible
G, N = (torch.block_diag(*inner).double() for inner in near_1)  # each [h d_k, h d_k]
inside = w_q @ G, w_k @ torch.linalg.inv(G).T, w_v @ N, torch.linalg.inv(N) @ w_o
assert torch.allclose(run(x, *inside), y)
for before, after in zip(w_v.T.split(12), inside[2].T.split(12)):
    assert mh.principal_angles(before, after).max() < 1e-6  # the same subspace is read
print("The same function: heads in another order, other bases inside the heads.")

# %% [markdown]
# A rotation that mixes heads in general changes the function, in $Q$ and $K$ or in $V$ and $O$. (An exception: with one
# token every pattern is $[1]$, and a mixture of $V$, undone in $W^O$, goes unnoticed.)

# %%
R = torch.linalg.qr(torch.randn(48, 48).double()).Q  # orthogonal, and mixes heads
assert not torch.allclose(run(x, w_q @ R, w_k @ R, w_v, w_o), y, atol=1e-2)
assert not torch.allclose(run(x, w_q, w_k, w_v @ R, R.T @ w_o), y, atol=1e-2)
one = x[:, :1]  # [B, 1, d_model], one token
y_one = run(one, w_q, w_k, w_v, w_o)
assert torch.allclose(run(one, w_q, w_k, w_v @ R, R.T @ w_o), y_one)
print("Which head a channel belongs to does matter.")

# %% [markdown] minutes=2
# ## You may have heard
#
# * **"The heads split the space into orthogonal subspaces."** In general only the coordinate blocks are orthogonal.
#   Random subspaces of twelve heads in 768 dimensions open by about 56 degrees.
# * **"Disjoint in pairs, so the sum is direct."** Three lines in a plane. And no two subspaces are disjoint: all
#   contain 0.
# * **"$\mathbb{R}^{768}$ is isomorphic to twelve copies of $\mathbb{R}^{64}$, so the heads tile it."** That is a
#   count of dimensions. It holds for twelve equal heads as well.
# * **"The dimensions of the heads add up to $d_\text{model}$."** Only if $h\,d_k = d_\text{model}$. T5-11B has 128 heads
#   of 128 in 1024 dimensions.
# * **"Heads are soundproof."** Each reads every channel, and their contributions can cancel.
# * **"It is proved that the heads of BERT specialize in geometric functions."** Clark et al. measured how often the
#   word with the most attention is the annotated one, for the best of 144 heads, chosen on the same sentences: 86.8 %
#   for direct objects (8-10; best fixed offset 40.0 %), 80.5 % for possessives (7-6; 47.7 %), 76.3 % for objects of
#   prepositions (9-6, no punctuation head; 34.6 %). A pattern does not know what is read by $V$ and where it is
#   written.
#
# Each of them in code:

# %%
assert smallest.max() < 60
assert min(mh.principal_angles(a, b) for a, b in combinations(lines, 2)) > 0.7  # radians
assert not mh.is_direct_sum(lines)
assert not mh.is_direct_sum([torch.eye(768)[:64]] * 12)  # twelve equal heads of 64
t5 = next(preset for preset in mh.PRESETS if preset.name == "T5-11B")
assert t5.h * t5.d_k == 16_384 > t5.d_model == 1024
bumped = x.clone()
bumped[..., 0] += 1  # one channel
assert ((x @ w_q) != (bumped @ w_q)).any(dim=1).all()  # moves every channel of every head
head = torch.randn(12).double()
assert torch.equal(head @ w_o[:12] + head @ -w_o[:12], torch.zeros(48).double())
q, k, v = (mh.split_heads(x @ w, 4) for w in (w_q, w_k, w_v))
assert torch.equal(mh.attention(q, k, v)[1], mh.attention(q, k, 5 - v)[1])  # patterns
print("Each of them, exposed.")

# %% [markdown]
# <details><summary>History in two lines</summary>
#
# Grassmann calculated with sums of subspaces in 1844 and again in 1862; Peano stated the axioms of a vector space in
# 1888. "Direct sum" stands in the index of Wedderburn's *On Hypercomplex Numbers* (1907); who used the words first is
# unsettled.
#
# </details>

# %% [markdown] question="far_apart" points=2 minutes=2
# **In your own words.** "Any two of our twelve heads are more than 50 degrees apart. So every vector splits into head
# parts in exactly one way, and no part is longer than the vector." Which of the two conclusions follows? Say for each
# why, and what you would calculate instead.
#
# <!-- BEGIN ANSWER -->
# Neither. Angles of pairs say nothing about a head and the sum of the others: three lines in a plane can be 60 degrees
# apart in pairs, and no vector has exactly one split. To decide it, stack all bases and ask whether the matrix is square
# and of full rank. And where the split is unique, it is oblique: a part can be as long as 1 / sin(theta) times the
# vector, with theta the smallest angle between the head and the sum of all the others, which can be near 0. Calculate
# that angle, or the norm of the projector.
# <!-- END ANSWER -->
# <!-- BEGIN RUBRIC -->
# One point: uniqueness does not follow, because pairs do not count but all heads together (rank of the stacked bases).
# One point: the length does not follow, because pieces of oblique subspaces can outgrow the vector (norm of the
# projector, or angle to the sum of the others). Half of each point if the conclusion is rejected without a reason.
# <!-- END RUBRIC -->

# %% [markdown] minutes=1
# ## In three lines
#
# * The heads tile the space if the stacked bases form an invertible matrix: then every vector has exactly one split.
# * Direct is less than orthogonal: twelve random heads in 768 dimensions open by about 56 degrees in pairs, by less
#   than 1 against all the others, and pieces outgrow the vector.
# * Head order and bases inside a head are free; which head a channel belongs to is not.
#
# **Next:** all this holds at random weights. In lesson 06 we open a trained model and measure what its heads do.
#
# **Sources.** Björck and Golub, *Numerical methods for computing angles between linear subspaces*, 1973. Wachter,
# *The limiting empirical measure of multiple discriminant ratios*, 1980, for the law of the angles; Johnstone,
# *Multivariate analysis and Jacobi ensembles*, 2008, for the largest cosine. Clark et al., *What Does BERT Look At?*,
# 2019, table 1. Wedderburn, *On Hypercomplex Numbers*, 1907. The sizes of T5-11B are those of its released
# configuration.

# %% [markdown] optional=true minutes=3
# ## Optional: what only one head sees
#
# There is a second direct sum behind the subspaces that are read. The readings of all heads, $xW$, determine $x$ if $W$
# is invertible. Cut $U = W^{-1}$ into blocks of *rows*, $U_i$. Then $x = \sum_i (x W_i)\,U_i$: the rows of $U_i$ carry
# what head $i$ read back into the space. Because $U_i W_j = 0$ for $j \ne i$, they span the vectors that *no other head*
# sees.

# %% optional=true
U = torch.linalg.inv(w_q)  # [h d_k, d_model]
for i, rows in enumerate(U.split(12)):
    for j, columns in enumerate(w_q.split(12, dim=1)):
        expected = torch.eye(12) if i == j else torch.zeros(12, 12)
        torch.testing.assert_close(rows @ columns, expected.double(), atol=1e-7, rtol=0)
token = x[0, 0]  # [d_model]
parts = [token @ w @ u for w, u in zip(w_q.split(12, dim=1), U.split(12))]
parts = torch.stack(parts)  # [h, d_model]
torch.testing.assert_close(parts.sum(dim=0), token)
torch.testing.assert_close(parts, mh.decompose(token, U.split(12)), atol=1e-6, rtol=0)
print("What the heads read, carried back, is a split of x.")

# %% [markdown] optional=true minutes=2
# ## Optional: put your own functions to work
#
# If `check` passed your `principal_angles`, the next cell measures a layer with it. Otherwise it uses the library's.

# %% optional=true
from multihead_lessons.exercises import examine

passed = examine("principal_angles", principal_angles).passed
angles_between = principal_angles if passed else mh.principal_angles
for a, b in combinations(layer.w_v.weight.detach().split(64)[:4], 2):
    found = angles_between(a, b)  # [d_k]
    torch.testing.assert_close(found, mh.principal_angles(a, b), atol=1e-6, rtol=0)
print("The function in use measures the value subspaces as the library does.")

# %% [markdown] teaching=true
# ## Teaching notes
#
# **Minutes.** The sum in the course map is the core path at reading pace. In class, 60 with the quizzes asked aloud; the
# proof on the board takes ten of them.
#
# **On the board.** Two oblique lines and one vector. Let someone draw the pieces; most draw perpendiculars. Add up what
# they drew. Then close the lines until the parallelogram leaves the board.
#
# **Ask the room.** "Each head is 56 degrees from each other head. How can it be within 1 degree of their sum?" (In a
# plane: a vector at 45 degrees to both axes lies in their sum.) "Which of today's facts change if you choose another
# basis inside a head?" (The condition number does; spans, angles, projectors and pieces do not.)
#
# **Where they stumble.** Rows against columns: what is read are columns of $W$, what is written are rows of $W^O$,
# and `weight` of an `nn.Linear` is the transpose. Orthogonal against direct. A rank of all rows against a rank of
# each block.
