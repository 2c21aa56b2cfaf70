"""subspaces.py against dense references, SciPy, exact integer arithmetic and closed forms."""

import inspect
import itertools
import math
from fractions import Fraction

import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from multihead.subspaces import (
    angle_density,
    condition_number,
    decompose,
    floor,
    is_direct_sum,
    largest_cosine_limit,
    layer_matrix,
    operator_schmidt_rank,
    overlap,
    principal_angles,
    projectors,
    random_bases,
    rearrange,
    schmidt_values,
)

T, D = 6, 12

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
drawn = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
either_dtype = st.sampled_from([torch.float32, torch.float64])


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def eps(dtype):
    return torch.finfo(dtype).eps


def exact_rank(rows):
    """Rank of a matrix of integers, by elimination with fractions."""
    rows, rank = [[Fraction(x) for x in row] for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((n for n in range(rank, len(rows)) if rows[n][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for n in range(rank + 1, len(rows)):
            factor = rows[n][column] / rows[rank][column]
            rows[n] = [x - factor * y for x, y in zip(rows[n], rows[rank])]
        rank += 1
    return rank


# ---- Schmidt rank ---------------------------------------------------------------------------------------


def heads(h, T=T, d=D, d_k=2, seed=0, dtype=torch.float64):
    """Softmax patterns [h, T, T] and maps [h, d, d] of rank min(d_k, d)."""
    patterns = randn(h, T, T, seed=seed).softmax(dim=-1)
    maps = randn(h, d, d_k, seed=seed + 1) @ randn(h, d_k, d, seed=seed + 2) / d
    return patterns.to(dtype), maps.to(dtype)


def dense_rank(patterns, maps):
    """Schmidt rank by its definition: every entry of the layer, rearranged."""
    T, d = patterns.shape[1], maps.shape[1]
    return int(torch.linalg.matrix_rank(rearrange(layer_matrix(patterns, maps), T, d), rtol=1e-9))


def shifts(n, T=T, d=D):
    """n heads with disjoint one-hot patterns, each of which passes on its own d / n channels."""
    patterns = torch.stack([torch.eye(T, dtype=torch.float64).roll(i, dims=1) for i in range(n)])
    channels = torch.arange(d) // (d // n)
    maps = torch.stack([torch.diag((channels == i).double()) for i in range(n)])
    return patterns, maps


def test_the_layer_matrix_acts_as_the_layer():
    patterns, maps = heads(2, T=3, d=4)
    V = randn(3, 4, seed=9)
    output = sum(A @ V @ M for A, M in zip(patterns, maps))
    assert_close(layer_matrix(patterns, maps) @ V.flatten(), output.flatten())


def test_the_layer_matrix_is_a_sum_of_kronecker_products():
    patterns, maps = heads(3, T=3, d=4)
    expected = sum(torch.kron(A, M.T.contiguous()) for A, M in zip(patterns, maps))
    assert_close(layer_matrix(patterns, maps), expected)


def test_rearranging_turns_a_kronecker_product_into_an_outer_product():
    A, N = randn(3, 3), randn(4, 4, seed=1)
    assert torch.equal(rearrange(torch.kron(A, N), 3, 4), torch.outer(A.flatten(), N.flatten()))


def test_rearranging_moves_each_entry_to_its_place():
    layer = torch.arange(36.0).view(6, 6)
    R = rearrange(layer, 2, 3)
    assert R.shape == (4, 9)
    for s, t, j, i in itertools.product(range(2), range(2), range(3), range(3)):
        assert R[2 * s + t, 3 * j + i] == layer[3 * s + j, 3 * t + i]


@dtypes
@pytest.mark.parametrize("h", [1, 2, 3, 4, 6, 12])
def test_independent_heads_have_rank_h(h, dtype):
    patterns, maps = heads(h, d_k=D // h, dtype=dtype)
    assert operator_schmidt_rank(patterns, maps) == h
    if dtype == torch.float64:
        assert dense_rank(patterns, maps) == h


@dtypes
@pytest.mark.parametrize("d_k", [1, 2, D, 4 * D])
def test_one_head_of_any_width_has_rank_1(d_k, dtype):
    assert operator_schmidt_rank(*heads(1, d_k=d_k, dtype=dtype)) == 1


@dtypes
def test_collapses(dtype):
    def rank(patterns, maps):
        result = operator_schmidt_rank(patterns.to(dtype), maps.to(dtype))
        assert result == dense_rank(patterns, maps)
        return result

    patterns, maps = heads(4)
    assert rank(patterns, maps) == 4
    assert rank(patterns[:1].expand(4, T, T), maps) == 1  # equal patterns
    assert rank(patterns[[0, 0, 1, 2]], maps) == 3
    assert rank(patterns, torch.cat([maps[:3], 2 * maps[:1] - maps[1:2]])) == 3  # dependent maps
    assert rank(torch.cat([patterns[:3], patterns[:3].mean(dim=0, keepdim=True)]), maps) == 3
    assert rank(patterns, maps[:1].expand(4, D, D)) == 1  # the sum of the patterns, with one map
    assert rank(*heads(4, T=1)) == 1  # one token: every pattern is [1]

    causal = torch.ones(T, T).tril().bool()
    patterns = randn(4, T, T).masked_fill(~causal, -math.inf).softmax(dim=-1)
    assert rank(patterns, maps) == 4
    patterns[:, 1:] = 0  # what reaches token 0 alone, which can attend to nothing but itself
    assert rank(patterns, maps) == 1


@dtypes
def test_the_rank_is_that_of_the_sum_not_of_patterns_and_maps_apart(dtype):
    """Heads 1 and 2 cancel: two independent patterns and two independent maps, but one term is left."""
    patterns, maps = heads(3, dtype=dtype)
    patterns, maps = patterns[[0, 0, 1]], torch.stack([maps[0], -maps[0], maps[1]])
    assert operator_schmidt_rank(patterns, maps) == 1
    assert operator_schmidt_rank(patterns[:2], maps[:2]) == 0


@dtypes
def test_cancellation_that_leaves_only_rounding_counts_as_zero(dtype):
    patterns, maps = heads(3, dtype=dtype)
    patterns = patterns[[0, 0, 0]]
    maps = torch.stack([maps[0], maps[1], -(maps[0] + maps[1])])  # rounded, so the sum is not quite zero
    assert operator_schmidt_rank(patterns, maps) == 0
    assert operator_schmidt_rank(patterns, torch.zeros_like(maps)) == 0


def test_a_residual_adds_one():
    patterns, maps = heads(3)
    patterns = torch.cat([patterns, torch.eye(T).double()[None]])
    maps = torch.cat([maps, torch.eye(D).double()[None]])
    assert operator_schmidt_rank(patterns, maps) == 4


@dtypes
def test_order_and_scale_of_heads_do_not_matter(dtype):
    patterns, maps = heads(4, dtype=dtype)
    maps[3] = 2 * maps[0] - maps[1]
    scale = torch.tensor([1e8, 1.0, 1e-8, 1e4], dtype=dtype).view(4, 1, 1)
    order = [2, 0, 3, 1]
    assert operator_schmidt_rank(patterns[order], maps[order]) == 3
    assert operator_schmidt_rank(patterns * scale, maps / scale) == 3
    assert operator_schmidt_rank(patterns * 1e-12, maps * 1e-12) == 3


@drawn
@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 4), seeds, either_dtype)
def test_rank_of_heads_mixed_from_few_patterns_and_few_maps(h, n, m, seed, dtype):
    """A_i = sum_a C[i, a] P_a, M_i = sum_b E[i, b] Q_b, integers C and E: the rank is that of C^T E."""
    g = torch.Generator().manual_seed(seed)
    C, E = torch.randint(-1, 2, (h, n), generator=g), torch.randint(-1, 2, (h, m), generator=g)
    patterns = (C.double() @ randn(n, 9, seed=1)).view(h, 3, 3).to(dtype)
    maps = (E.double() @ randn(m, 16, seed=2)).view(h, 4, 4).to(dtype)
    assert operator_schmidt_rank(patterns, maps) == exact_rank((C.T @ E).tolist())


def test_rank_of_a_layer_whose_matrix_fits_in_no_memory():
    patterns, maps = heads(3, T=200, d=500, dtype=torch.float32)  # L would have 10^10 entries
    assert operator_schmidt_rank(patterns, maps) == 3


@drawn
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), seeds)
def test_schmidt_values_are_the_singular_values_of_the_rearranged_layer(h, T, d, seed):
    patterns, maps = heads(h, T=T, d=d, seed=seed)
    layer = layer_matrix(patterns, maps)
    values, dense = schmidt_values(patterns, maps), torch.linalg.svdvals(rearrange(layer, T, d))
    assert len(values) == min(h, T * T, d * d)
    assert_close(values, dense[: len(values)])
    assert (dense[len(values):] < 1e-12).all()
    assert_close(values.square().sum(), layer.square().sum())


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_n_disjoint_relations(n):
    """Each of the n Schmidt values is |A_i| |M_i| = sqrt(T) sqrt(d / n), so K heads miss (n - K) / n."""
    patterns, maps = shifts(n)
    assert_close(schmidt_values(patterns, maps), torch.full((n,), math.sqrt(T * D / n), dtype=torch.float64))
    for K in range(n + 1):
        assert floor(patterns, maps, K) == pytest.approx((n - K) / n)
    assert floor(patterns, maps, n + 5) == 0


def test_every_blend_of_two_relations_misses_the_floor_of_one_half():
    patterns, maps = shifts(2)
    target = rearrange(layer_matrix(patterns, maps), T, D)
    for p in (0.0, 0.3, 0.5, 1.0):
        blend = (p * patterns[0] + (1 - p) * patterns[1]).flatten()
        best = torch.outer(blend, blend @ target) / blend.square().sum()  # the best map for this pattern
        missed = (target - best).square().sum() / target.square().sum()
        assert missed.item() == pytest.approx(floor(patterns, maps, 1))


@drawn
@given(st.integers(1, 4), st.integers(0, 4), seeds)
def test_no_layer_of_K_heads_beats_the_floor_and_the_best_terms_reach_it(h, K, seed):
    patterns, maps = heads(h, T=3, d=4, seed=seed)
    target = layer_matrix(patterns, maps)
    bound = floor(patterns, maps, K)
    if K:
        other = layer_matrix(*heads(K, T=3, d=4, seed=seed + 3))
        assert ((target - other).square().sum() / target.square().sum()).item() >= bound - 1e-12
    U, S, Vh = torch.linalg.svd(rearrange(target, 3, 4), full_matrices=False)
    missed = (U[:, K:] * S[K:]) @ Vh[K:]
    assert (missed.square().sum() / target.square().sum()).item() == pytest.approx(bound, abs=1e-12)


def test_the_floor_falls_with_more_heads_from_all_to_nothing():
    patterns, maps = heads(4)
    bounds = [floor(patterns, maps, K) for K in range(5)]
    assert bounds[0] == 1 and bounds[4] == 0
    assert bounds == sorted(bounds, reverse=True) and len(set(bounds)) == 5


@pytest.mark.parametrize("patterns, maps", [
    (torch.ones(T, T), torch.ones(D, D)),
    (torch.ones(2, T, T), torch.ones(3, D, D)),
    (torch.ones(0, T, T), torch.ones(0, D, D)),
    (torch.ones(2, T, T), torch.ones(2, D, D, dtype=torch.float64)),
])
def test_patterns_and_maps_must_fit(patterns, maps):
    for call in (operator_schmidt_rank, schmidt_values, layer_matrix, lambda *a: floor(*a, 1)):
        with pytest.raises(ValueError, match=r"patterns must be \[h, T, T\] and maps \[h, d, d\]") as error:
            call(patterns, maps)
        assert f"{tuple(patterns.shape)} {patterns.dtype}, {tuple(maps.shape)}" in str(error.value)


def test_bad_arguments_of_rank_rearrange_and_floor_are_named():
    patterns, maps = heads(2)
    with pytest.raises(ValueError, match="one float dtype; got .* torch.int64"):
        operator_schmidt_rank(patterns.long(), maps.long())
    with pytest.raises(ValueError, match=r"layer must be \[T d, T d\] = \[6, 6\]; got shape \(6, 5\)"):
        rearrange(torch.ones(6, 5), 2, 3)
    for K in (-1, 1.0, "2"):
        with pytest.raises(ValueError, match="K must be a whole number of heads, 0 or more; got "):
            floor(patterns, maps, K)
    with pytest.raises(ValueError, match="a layer that is zero"):
        floor(patterns[[0, 0]], torch.stack([maps[0], -maps[0]]), 1)


# ---- direct sums ----------------------------------------------------------------------------------------


def lines(angle, dtype=torch.float64):
    """Two lines in the plane at an angle, the first along e_1."""
    return [torch.tensor([[1.0, 0.0]], dtype=dtype),
            torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=dtype)]


def random_split(sizes, seed, dtype=torch.float64):
    return list(randn(sum(sizes), sum(sizes), seed=seed, dtype=dtype).split(sizes))


def rank_47_of_48(dtype):
    """Four blocks of 12 independent rows; the second shares a direction with the first."""
    rows = randn(48, 48, dtype=dtype)
    rows[12] = rows[0] + rows[1]
    return list(rows.split(12))


@st.composite
def integer_splits(draw):
    """A square matrix of small integers, often singular, cut into bases at random rows."""
    d = draw(st.integers(1, 5))
    rows = draw(st.lists(st.lists(st.integers(-2, 2), min_size=d, max_size=d), min_size=d, max_size=d))
    cuts = sorted(draw(st.sets(st.integers(1, d - 1)))) if d > 1 else []
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, d])]
    return rows, sizes


@settings(max_examples=150, deadline=None)
@given(integer_splits(), either_dtype)
def test_a_split_is_direct_exactly_when_the_stacked_matrix_is_invertible(split, dtype):
    rows, sizes = split
    bases = list(torch.tensor(rows, dtype=dtype).split(sizes))
    direct = exact_rank(rows) == len(rows)
    assert is_direct_sum(bases) is direct
    if direct:
        projectors(bases)
    else:
        n = len(rows)
        with pytest.raises(ValueError, match=f"a direct sum of R\\^{n} needs {n} independent rows in all"):
            projectors(bases)


def test_three_lines_in_a_plane_meet_only_in_zero_pairwise_and_are_no_direct_sum():
    three = [torch.tensor([row]) for row in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0])]
    for a, b in itertools.combinations(three, 2):
        assert principal_angles(a, b).item() > 0.7
    assert is_direct_sum(three) is False
    with pytest.raises(ValueError, match="needs 3 independent rows in all; got 3 rows of rank 2"):
        projectors(three)
    assert is_direct_sum([*three[:2], torch.tensor([[1.0, 1.0, 1.0]])]) is True


@dtypes
def test_rank_47_of_48(dtype):
    bases = rank_47_of_48(dtype)
    assert all(int(torch.linalg.matrix_rank(basis)) == 12 for basis in bases)
    assert is_direct_sum(bases) is False
    assert is_direct_sum(list(randn(48, 48, dtype=dtype).split(12))) is True
    for call in (projectors, lambda bases: decompose(bases[0][0], bases)):
        with pytest.raises(ValueError, match="got 48 rows of rank 47"):
            call(bases)


def test_dimensions_must_add_up_to_d_model():
    rows = list(randn(5, 4).split(1))
    assert is_direct_sum(rows[:3]) is False  # independent, but they do not reach all of R^4
    assert is_direct_sum(rows[:4]) is True
    assert is_direct_sum(rows) is False  # they reach all of R^4, in many ways
    for wrong, n, rank in ((rows[:3], 3, 3), (rows, 5, 4)):
        with pytest.raises(ValueError, match=f"needs 4 independent rows in all; got {n} rows of rank {rank}"):
            projectors(wrong)


@pytest.mark.parametrize("dtype, small", [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
def test_lines_that_almost_meet_are_direct_until_rounding_hides_the_angle(dtype, small):
    assert is_direct_sum(lines(small, dtype)) is True
    assert is_direct_sum(lines(small * 1e-4, dtype)) is False
    assert is_direct_sum(lines(0.0, dtype)) is False


@dtypes
def test_only_the_spans_matter(dtype):
    bases = random_split([1, 2, 3], seed=3, dtype=dtype)
    P = projectors(bases)
    other = [1e-9 * bases[0], randn(2, 2, seed=4, dtype=dtype) @ bases[1], 1e6 * bases[2].flip(0)]
    assert is_direct_sum(other) is True
    assert_close(projectors(other), P, atol=200 * eps(dtype), rtol=0)
    bent = bases[1] * torch.tensor([[1.0], [1e-8]], dtype=dtype)
    assert_close(projectors([bases[0], bent, bases[2]]), P, atol=200 * eps(dtype), rtol=0)


@dtypes
def test_a_bad_basis_of_a_good_subspace_costs_no_accuracy(dtype):
    """The first three coordinates: by unit vectors, and by the almost parallel rows of a Hilbert matrix."""
    hilbert = torch.from_numpy(scipy.linalg.hilbert(3)) @ torch.eye(3, 5, dtype=torch.float64)
    other = randn(2, 5, dtype=dtype)
    good = projectors([torch.eye(3, 5, dtype=dtype), other])
    bad = projectors([hilbert.to(dtype), other])
    assert_close(bad, good, atol=8 * eps(dtype), rtol=0)


def test_a_zero_row_spans_nothing():
    assert is_direct_sum([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])]) is False


@drawn
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), seeds, either_dtype)
def test_projectors_keep_their_own_basis_and_lose_the_others(sizes, seed, dtype):
    """This pins them down: all the bases together are a basis of the whole space."""
    bases = random_split(sizes, seed, dtype)
    P = projectors(bases)
    assert P.shape == (len(sizes), sum(sizes), sum(sizes)) and P.dtype == dtype
    tolerance = 50 * eps(dtype) * condition_number(bases) * (1 + P.abs().max().item())
    for i, j in itertools.product(range(len(bases)), repeat=2):
        wanted = bases[j] if i == j else torch.zeros_like(bases[j])
        assert_close(bases[j] @ P[i], wanted, atol=tolerance, rtol=0)


@dtypes
def test_projectors_are_idempotent_exclude_each_other_and_add_up_to_the_identity(dtype):
    sizes = [1, 2, 3]
    P = projectors(random_split(sizes, seed=3, dtype=dtype))
    close = {"atol": 100 * eps(dtype), "rtol": 0}
    assert_close(P.sum(dim=0), torch.eye(6, dtype=dtype), **close)
    for i, j in itertools.product(range(3), repeat=2):
        assert_close(P[i] @ P[j], P[i] if i == j else torch.zeros_like(P[i]), **close)
    traces = P.diagonal(dim1=1, dim2=2).sum(dim=1)
    assert_close(traces, torch.tensor(sizes, dtype=dtype), **close)  # of a projector: its rank


def test_projectors_of_orthogonal_subspaces_are_symmetric_and_oblique_ones_are_not():
    bases = list(torch.linalg.qr(randn(6, 6)).Q.split([1, 2, 3]))
    assert_close(projectors(bases), torch.stack([basis.T @ basis for basis in bases]))

    e = torch.eye(3, dtype=torch.float64)
    P = projectors([e[:1], e[1:2], e[1:2] + e[2:]])  # only the first is orthogonal to all the others
    assert_close(P[0], P[0].T)
    assert (P[1] - P[1].T).abs().max() > 0.5 and (P[2] - P[2].T).abs().max() > 0.5


@pytest.mark.parametrize("angle", [1e-9, 1e-4, 0.1, 1.0, math.pi / 2, 3.0])
def test_pieces_of_a_vector_between_two_lines(angle):
    """e_2 = -cot(angle) e_1 + (cot(angle) e_1 + e_2): pieces as long as 1 / sin(angle)."""
    cot = math.cos(angle) / math.sin(angle)
    pieces = decompose(torch.tensor([0.0, 1.0], dtype=torch.float64), lines(angle))
    wanted = torch.tensor([[-cot, 0.0], [cot, 1.0]], dtype=torch.float64)
    # Length 1 / sin(angle), relative error eps times the condition number, about 2 / sin(angle).
    assert_close(pieces, wanted, atol=4e-15 / math.sin(angle) ** 2, rtol=0)


@drawn
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), seeds, either_dtype)
def test_the_pieces_are_the_ones_the_vector_was_made_of(sizes, seed, dtype):
    bases = random_split(sizes, seed, dtype)
    made_of = torch.stack([randn(len(b), seed=seed + i, dtype=dtype) @ b for i, b in enumerate(bases)])
    v = made_of.sum(dim=0)
    pieces = decompose(v, bases)
    assert pieces.shape == (len(sizes), len(v)) and pieces.dtype == dtype
    size = (1 + projectors(bases).abs().max().item()) * (1 + made_of.abs().max().item())
    assert_close(pieces.sum(dim=0), v, atol=50 * eps(dtype) * size, rtol=0)
    assert_close(pieces, made_of, atol=50 * eps(dtype) * size * condition_number(bases), rtol=0)


def test_pieces_can_be_exact():
    bases = [torch.tensor([[0.0, 3.0, 0.0]]), torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 5.0]])]
    pieces = decompose(torch.tensor([7.0, 8.0, 9.0]), bases)
    assert_close(pieces, torch.tensor([[0.0, 8.0, 0.0], [7.0, 0.0, 9.0]]))


def test_near_singular_in_many_dimensions_still_adds_up():
    """One direction of block 2 leaves block 1 by 1e-7: pieces grow to about 1e7, and their sum is still v."""
    rows = torch.linalg.qr(randn(48, 48)).Q
    rows[12] = rows[0] + 1e-7 * rows[12]
    bases = list(rows.split(12))
    v = randn(48, seed=1)
    pieces = decompose(v, bases)
    assert 1e6 < pieces.norm(dim=1).max() < 1e8
    assert_close(pieces.sum(dim=0), v, atol=1e-7, rtol=0)
    for piece, basis in zip(pieces, bases):
        _, squared_distance, *_ = scipy.linalg.lstsq(basis.T.numpy(), piece.numpy())
        assert math.sqrt(squared_distance) <= 1e-12 * piece.norm().item()


def test_bases_are_left_as_they_were():
    bases = random_split([1, 2], seed=0)
    before = [basis.clone() for basis in bases]
    is_direct_sum(bases)
    decompose(randn(3), bases)
    principal_angles(*bases)
    assert all(torch.equal(a, b) for a, b in zip(bases, before))


def test_a_stacked_tensor_is_a_list_of_bases_too():
    stacked = randn(2, 3, 6)
    assert is_direct_sum(stacked) is True
    assert torch.equal(projectors(stacked), projectors(list(stacked)))


@pytest.mark.parametrize("bases", [
    [],
    [torch.ones(3)],
    [torch.ones(1, 2), torch.ones(1, 3)],
    [torch.ones(1, 2), torch.ones(1, 2, dtype=torch.float64)],
    [torch.tensor([[1, 0]]), torch.tensor([[0, 1]])],
])
def test_bases_must_fit_together(bases):
    for call in (projectors, is_direct_sum, lambda bases: decompose(torch.ones(2), bases)):
        with pytest.raises(ValueError, match=r"bases must be tensors \[k_i, d_model\] with one") as error:
            call(bases)
        assert str([(tuple(b.shape), b.dtype) for b in bases]) in str(error.value)


@pytest.mark.parametrize("v", [torch.ones(3).double(), torch.ones(1, 2).double(), torch.ones(2)])
def test_a_vector_must_fit_its_bases(v):
    with pytest.raises(ValueError, match=r"v must be \[2\] in torch.float64; got ") as error:
        decompose(v, lines(1.0))
    assert f"{list(v.shape)} in {v.dtype}" in str(error.value)


# ---- principal angles -----------------------------------------------------------------------------------

ANGLES = [0.0, 1e-9, 1e-6, 1e-4, 0.5, math.pi / 4, 1.0, math.pi / 2 - 1e-6, math.pi / 2 - 1e-9, math.pi / 2]


@dtypes
@pytest.mark.parametrize("angle", ANGLES)
def test_two_planes_in_space(angle, dtype):
    """They share e_1 and open by the angle around it."""
    a = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=dtype)
    b = torch.tensor([[1.0, 0.0, 0.0], [0.0, math.cos(angle), math.sin(angle)]], dtype=dtype)
    mixed = torch.tensor([[2.0, 1.0], [-1.0, 3.0]], dtype=dtype) @ b  # another basis of the same plane
    for other in (b, mixed):
        angles = principal_angles(a, other)
        assert angles.dtype == dtype
        assert_close(angles, torch.tensor([0.0, angle], dtype=dtype), atol=4 * eps(dtype), rtol=0)


def with_angles(angles, extra, d, seed, dtype=torch.float64):
    """Bases of two subspaces of R^d with these principal angles; the second has `extra` more rows."""
    k = len(angles)
    Q = torch.linalg.qr(randn(d, d, seed=seed)).Q
    angles = torch.tensor(angles, dtype=torch.float64)
    a = Q[:k]
    b = torch.cat([angles.cos().diag() @ Q[:k] + angles.sin().diag() @ Q[k: 2 * k], Q[2 * k: 2 * k + extra]])
    return a.to(dtype), b.to(dtype)


@drawn
@given(st.lists(st.sampled_from(ANGLES), min_size=1, max_size=4), st.integers(0, 3), seeds, either_dtype)
def test_subspaces_with_known_angles(wanted, extra, seed, dtype):
    a, b = with_angles(wanted, extra, d=2 * len(wanted) + extra + 1, seed=seed, dtype=dtype)
    expected = torch.tensor(sorted(wanted), dtype=dtype)
    assert_close(principal_angles(a, b), expected, atol=20 * eps(dtype), rtol=0)
    assert_close(principal_angles(b, a), expected, atol=20 * eps(dtype), rtol=0)
    mixed = torch.linalg.qr(randn(len(b), len(b), seed=seed)).Q.to(dtype) @ b * 1e-3
    assert_close(principal_angles(a, mixed), expected, atol=20 * eps(dtype), rtol=0)
    mean = sum(math.cos(x) ** 2 for x in wanted) / len(wanted)
    assert overlap(a, b) == pytest.approx(mean, abs=40 * eps(dtype))


@drawn
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 4), seeds)
def test_angles_are_those_of_scipy(k, l, more, seed):
    d = max(k, l) + more
    a, b = randn(k, d, seed=seed), randn(l, d, seed=seed + 1)
    angles = principal_angles(a, b)
    assert angles.shape == (min(k, l),) and (angles.diff() >= 0).all()
    expected = torch.from_numpy(scipy.linalg.subspace_angles(a.T.numpy(), b.T.numpy())).flip(0)
    # SciPy may take a small angle from its cosine when another is large, which leaves about 1e-8 of it.
    assert_close(angles, expected, atol=1e-7, rtol=0)
    shared = max(0, k + l - d)  # two subspaces too large to avoid each other
    assert (angles[:shared] <= 1e-14 * (torch.linalg.cond(a) + torch.linalg.cond(b))).all()


def test_inside_and_orthogonal():
    rows = torch.linalg.qr(randn(6, 6)).Q
    zeros = torch.zeros(2, dtype=torch.float64)
    assert_close(principal_angles(rows[1:3], rows[:4]), zeros, atol=1e-15, rtol=0)
    assert overlap(rows[1:3], rows[:4]) == pytest.approx(1)
    assert_close(principal_angles(rows[:2], rows[3:]), torch.full((2,), math.pi / 2, dtype=torch.float64))
    assert overlap(rows[:2], rows[3:]) == pytest.approx(0)


def test_dependent_rows_have_no_angles():
    a = randn(3, 5)
    a[2] = a[0] - a[1]
    for call in (principal_angles, overlap):
        for pair in ((a, randn(2, 5)), (randn(2, 5), a)):
            with pytest.raises(ValueError, match="rows of a basis must be independent; got 3 rows of rank 2"):
                call(*pair)
    with pytest.raises(ValueError, match="got 3 rows of rank 2"):
        principal_angles(randn(3, 2), randn(1, 2))
    assert len(principal_angles(randn(2, 5) * torch.tensor([[1.0], [1e-20]]), randn(2, 5))) == 2


@pytest.mark.parametrize("a, b", [
    (torch.ones(1, 2), torch.ones(1, 3)),
    (torch.ones(2), torch.ones(1, 2)),
    (torch.ones(1, 2), torch.ones(1, 2, dtype=torch.float64)),
    (torch.tensor([[1, 0]]), torch.tensor([[0, 1]])),
])
def test_two_bases_must_fit(a, b):
    with pytest.raises(ValueError, match=r"a and b must be \[k, d_model\] and \[l, d_model\]") as error:
        principal_angles(a, b)
    assert f"{tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}" in str(error.value)


# ---- condition, random subspaces ------------------------------------------------------------------------


@pytest.mark.parametrize("angle", [1e-6, 1e-3, 0.5, math.pi / 2])
def test_condition_of_two_lines(angle):
    """Two unit vectors have singular values sqrt(1 + cos) and sqrt(1 - cos), with ratio cot(angle / 2)."""
    assert condition_number(lines(angle)) == pytest.approx(1 / math.tan(angle / 2), rel=1e-8)


def test_condition_belongs_to_the_bases():
    e = torch.eye(3)
    assert condition_number([e[:1], e[1:]]) == 1
    assert condition_number([4 * e[:1], e[1:]]) == 4
    assert condition_number(rank_47_of_48(torch.float64)) > 1e13
    assert condition_number([e[:1], e[:2]]) == math.inf


@pytest.mark.parametrize("bases", [
    [], [torch.ones(1, 2)], [torch.ones(1, 2), torch.ones(1, 3)], [torch.ones(2)],
])
def test_condition_needs_a_square_stack(bases):
    with pytest.raises(ValueError, match="with k_i that add up to d_model; got ") as error:
        condition_number(bases)
    assert str([tuple(basis.shape) for basis in bases]) in str(error.value)


def test_largest_cosine_limit():
    wanted = {2: 1.0, 4: 0.866, 8: 0.661, 12: 0.553, 64: 0.248}
    assert {h: round(largest_cosine_limit(1 / h), 3) for h in wanted} == wanted
    for ratio in (0.0, -0.1, 0.51, 1.0, math.nan):
        with pytest.raises(ValueError, match=f"above 0 and at most 1/2; got {ratio}"):
            largest_cosine_limit(ratio)


@pytest.mark.parametrize("ratio", [1 / 2, 1 / 3, 1 / 12, 1 / 64])
def test_angle_density_is_one_in_all_with_the_ratio_as_mean_squared_cosine(ratio):
    smallest = math.acos(largest_cosine_limit(ratio))
    step = (math.pi / 2 - smallest) / 20_000
    angles = [smallest + step * (n + 0.5) for n in range(20_000)]
    densities = [angle_density(angle, ratio) for angle in angles]
    assert sum(densities) * step == pytest.approx(1, abs=1e-5)
    assert sum(p * math.cos(x) ** 2 for p, x in zip(densities, angles)) * step == pytest.approx(ratio, abs=1e-5)
    assert ratio == 1 / 2 or angle_density(0.99 * smallest, ratio) == 0


def test_angles_of_two_random_halves_are_spread_evenly():
    for angle in (1e-3, 0.5, math.pi / 2):
        assert angle_density(angle, 1 / 2) == pytest.approx(2 / math.pi)


@pytest.mark.parametrize("h", [2, 4, 12])
def test_random_subspaces_follow_the_angle_density(h):
    """The share of angles below each of some angles, measured and integrated."""
    bases = [basis.double() for basis in random_bases(384, h, torch.Generator().manual_seed(1))]
    angles = torch.cat([principal_angles(bases[0], other) for other in bases[1:]])
    for degrees in (50, 60, 70, 80):
        step = math.radians(degrees) / 2000
        below = sum(angle_density(step * (n + 0.5), 1 / h) for n in range(2000)) * step
        assert (angles < math.radians(degrees)).double().mean().item() == pytest.approx(below, abs=0.02)


def test_random_subspaces_come_close_to_the_limit():
    bases = random_bases(768, 12, torch.Generator().manual_seed(0))
    for a, b in ((0, 1), (2, 7), (5, 11)):
        largest = principal_angles(bases[a], bases[b])[0].cos().item()
        assert largest == pytest.approx(largest_cosine_limit(1 / 12), abs=0.04)
        assert overlap(bases[a], bases[b]) == pytest.approx(1 / 12, abs=0.007)


def test_mean_overlap_of_random_subspaces():
    draws = [overlap(randn(2, 8, seed=2 * n), randn(3, 8, seed=2 * n + 1)) for n in range(200)]
    assert sum(draws) / len(draws) == pytest.approx(3 / 8, abs=0.03)


def test_two_random_halves_almost_touch_and_are_a_direct_sum():
    bases = [basis.double() for basis in random_bases(256, 2, torch.Generator().manual_seed(0))]
    assert 0 < math.degrees(principal_angles(*bases)[0]) < 1
    assert is_direct_sum(bases) is True


@pytest.mark.parametrize("orthogonal", [False, True])
def test_random_bases(orthogonal):
    def draw(seed):
        return random_bases(12, 3, torch.Generator().manual_seed(seed), orthogonal)

    bases = draw(0)
    assert isinstance(bases, list) and [tuple(basis.shape) for basis in bases] == [(4, 12)] * 3
    assert {basis.dtype for basis in bases} == {torch.get_default_dtype()}
    assert all(torch.equal(a, b) for a, b in zip(bases, draw(0)))
    assert not torch.equal(bases[0], draw(1)[0])
    assert is_direct_sum(bases) is True
    rows = torch.cat(bases)
    assert torch.allclose(rows @ rows.T, torch.eye(12), atol=1e-5) is orthogonal
    right_angles = (principal_angles(bases[0], bases[1]) - math.pi / 2).abs().max() < 1e-5
    assert bool(right_angles) is orthogonal


def test_random_bases_refuse_what_does_not_divide():
    with pytest.raises(ValueError, match="d_model=8 does not split into h=3"):
        random_bases(8, 3, torch.Generator())


def test_model_solutions_use_only_torch_math_and_those_before_them():
    """The bodies are pasted into notebooks, where nothing else of this module exists."""
    known = {"torch", "math"}
    for solution in (operator_schmidt_rank, projectors, decompose, is_direct_sum, principal_angles):
        used = set(inspect.getclosurevars(solution).globals)
        assert used <= known, f"{solution.__name__} also uses {sorted(used - known)}"
        known.add(solution.__name__)
