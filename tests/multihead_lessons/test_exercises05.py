"""Banks of lesson 05: right answers in many styles pass, every mistake is named, pictures show it."""
import math

import pytest
import scipy.linalg
import torch
from banks import assert_every_misconception_is_named, assert_pairs_are_refused_and_named, assert_right, sentence, stranger
from pictures import check_picture

from multihead_lessons.exercises import examine, exercises
from multihead_lessons.exercises import lesson05 as bank

NAMES = ["is_direct_sum", "projectors", "decompose", "principal_angles"]


@pytest.mark.parametrize("name", NAMES)
def test_every_misconception_is_named(name):
    assert_every_misconception_is_named(exercises()[name])


@pytest.mark.parametrize("name", ["projectors", "principal_angles"])
def test_two_mistakes_at_once(name):
    assert_pairs_are_refused_and_named(exercises()[name])


# is_direct_sum

def by_rank(bases):
    rows = torch.cat(bases)
    return rows.shape[0] == rows.shape[1] == torch.linalg.matrix_rank(rows).item()


def by_rank_of_columns(bases):
    columns = torch.vstack([*bases]).T
    n, m = columns.shape
    return n == m and int(torch.linalg.matrix_rank(columns)) == n


def by_singular_values(bases):
    rows = torch.cat(bases)
    values = torch.linalg.svdvals(rows)
    return bool(rows.size(0) == rows.size(1) and values[-1] > 1e-11 * values[0])


def by_condition(bases):
    rows = torch.cat(bases)
    return len(rows) == rows.shape[1] and float(torch.linalg.cond(rows)) < 1e12


def by_sums_of_ranks(bases):
    ranks = [int(torch.linalg.matrix_rank(basis)) for basis in bases]
    return sum(ranks) == int(torch.linalg.matrix_rank(torch.cat(bases))) == bases[0].shape[1]


def by_sums_of_the_others(bases):
    def rank(some):
        return int(torch.linalg.matrix_rank(torch.cat(some)))
    if sum(map(len, bases)) != bases[0].shape[1]:
        return False
    return all(rank(bases) == len(basis) + rank(bases[:i] + bases[i + 1:]) for i, basis in enumerate(bases))


def by_growing(bases):
    reached = bases[0]
    for basis in bases[1:]:
        if torch.linalg.matrix_rank(torch.cat([reached, basis])) < len(reached) + len(basis):
            return False
        reached = torch.cat([reached, basis])
    return len(reached) == reached.shape[1]


def by_scaled_rows(bases):
    rows = torch.cat([basis / basis.norm(dim=1, keepdim=True) for basis in bases])
    return len(rows) == rows.shape[1] and torch.linalg.matrix_rank(rows).item() == len(rows)


def by_numpy(bases):
    import numpy as np
    rows = np.concatenate([basis.numpy() for basis in bases])
    return rows.shape[0] == rows.shape[1] and np.linalg.matrix_rank(rows) == rows.shape[0]


def by_a_tensor_that_is_true(bases):
    rows = torch.cat(bases)
    return torch.tensor(rows.size(0) == rows.size(1)) & (torch.linalg.matrix_rank(rows) == len(rows))


def by_qr(bases):
    rows = torch.cat(bases)
    if rows.shape[0] != rows.shape[1]:
        return False
    diagonal = torch.linalg.qr(rows).R.diagonal().abs()
    return (diagonal.min() > 1e-12 * diagonal.max()).item()


def test_right_tests_of_a_direct_sum_pass():
    assert_right("is_direct_sum", [by_rank, by_rank_of_columns, by_singular_values, by_condition, by_sums_of_ranks,
                                   by_sums_of_the_others, by_growing, by_scaled_rows, by_numpy, by_qr,
                                   by_a_tensor_that_is_true])


def test_a_gram_matrix_loses_the_nearly_touching_case():
    """Squares of singular values near 1e-7 drown in rounding."""
    def by_eigenvalues(bases):
        rows = torch.cat(bases)
        values = torch.linalg.eigvalsh(rows @ rows.T)
        return len(rows) == rows.shape[1] and bool(values[0] > 1e-10 * values[-1])
    assert "nearly touch" in sentence("is_direct_sum", by_eigenvalues)


@pytest.mark.parametrize("answer, words", [
    (lambda bases: int(by_rank(bases)), "must be True or False"),
    (lambda bases: None, "is there a return"),
    (lambda bases: torch.linalg.matrix_rank(torch.stack(bases)) > 0, "raises RuntimeError"),
    (lambda bases: bool(torch.linalg.det(torch.cat(bases)).abs() > 1e-12), "fewer rows than d_model"),
    (lambda bases: not by_rank(bases), "True."),
])
def test_other_tests_of_a_direct_sum_are_described(answer, words):
    assert words in sentence("is_direct_sum", answer)


def test_wrong_tests_in_a_strangers_style_are_named():
    def two_by_two(bases):
        for i in range(len(bases)):
            for j in range(i):
                if torch.linalg.matrix_rank(torch.cat([bases[i], bases[j]])) < len(bases[i]) + len(bases[j]):
                    return False
        return sum(map(len, bases)) == bases[0].size(1)

    def counts(bases):
        return sum(basis.size(0) for basis in bases) == bases[0].size(1)

    def spans(bases):
        return torch.linalg.matrix_rank(torch.cat(bases)).item() == bases[0].size(1)

    def invertible(bases):
        rows = torch.cat(bases)
        return rows.size(0) == rows.size(1) and bool(torch.linalg.det(rows) != 0)

    for answer, slug in [(two_by_two, "pairwise"), (counts, "dimensions only"), (spans, "rank only"),
                         (invertible, "determinant not zero"), (lambda bases: True, "each by itself")]:
        assert examine("is_direct_sum", answer).misconception == slug


# projectors

def checked(bases):
    """The stacked rows; ValueError unless they are square and of full rank."""
    rows = torch.cat(list(bases))
    if len(rows) != rows.shape[1] or int(torch.linalg.matrix_rank(rows)) < len(rows):
        raise ValueError("no unique split")
    return rows


def sizes(bases):
    return [len(basis) for basis in bases]


def by_inverse(bases):
    inverse = torch.linalg.inv(checked(bases))
    return torch.stack([part @ basis for part, basis in zip(inverse.split(sizes(bases), dim=1), bases)])


def by_solve(bases):
    rows, out = checked(bases), []
    for i in range(len(bases)):
        kept = torch.cat([basis if i == j else torch.zeros_like(basis) for j, basis in enumerate(bases)])
        out.append(torch.linalg.solve(rows, kept))
    return torch.stack(out)


def by_masks(bases):
    rows = checked(bases)
    owner = torch.repeat_interleave(torch.arange(len(bases)), torch.tensor(sizes(bases)))
    mask = (owner[None] == torch.arange(len(bases))[:, None]).to(rows.dtype)  # [h, d]
    return torch.linalg.inv(rows) @ (mask[:, :, None] * rows)


def by_block_loop(bases):
    rows = checked(bases)
    inverse, P, start = rows.inverse(), rows.new_zeros(len(bases), *rows.shape), 0
    for i, basis in enumerate(bases):
        stop = start + basis.shape[0]
        P[i] = inverse[:, start:stop] @ rows[start:stop]
        start = stop
    return P


def by_columns(bases):
    A = checked(bases).T
    inverse, out, start = torch.linalg.inv(A), [], 0
    for basis in bases:
        out.append((A[:, start:start + len(basis)] @ inverse[start:start + len(basis)]).T)
        start += len(basis)
    return torch.stack(out)


def by_normal_equations(bases):
    rows = checked(bases)
    inverse = rows.T @ torch.linalg.inv(rows @ rows.T)
    return torch.stack([part @ basis for part, basis in zip(inverse.split(sizes(bases), 1), bases)])


def by_pseudoinverse(bases):
    inverse = torch.linalg.pinv(checked(bases))
    return torch.stack([part.matmul(basis) for part, basis in zip(torch.split(inverse, sizes(bases), 1), bases)], 0)


def by_lstsq(bases):
    rows = checked(bases)
    coordinates = torch.linalg.lstsq(rows.T, torch.eye(len(rows), dtype=rows.dtype)).solution.T
    return torch.stack([part @ basis for part, basis in zip(coordinates.split(sizes(bases), dim=1), bases)])


def by_dual_frames(bases):
    """Onto each subspace along the others, by what is orthogonal to the others."""
    checked(bases)
    out = []
    for i, basis in enumerate(bases):
        others = torch.cat([*bases[:i], *bases[i + 1:]])
        null = torch.linalg.svd(others).Vh[len(others):]  # [k_i, d], orthogonal to the others
        out.append(null.mT @ torch.linalg.inv(basis @ null.mT) @ basis)
    return torch.stack(out)


def by_differences_of_sums(bases):
    checked(bases)
    rows, P, before = torch.cat(bases), [], torch.zeros(bases[0].shape[1], bases[0].shape[1], dtype=bases[0].dtype)
    for i in range(len(bases)):
        kept = torch.cat([basis * (j <= i) for j, basis in enumerate(bases)])
        P.append(torch.linalg.solve(rows, kept) - before)
        before = before + P[-1]
    return torch.stack(P)


def test_right_projectors_in_every_style_pass():
    assert_right("projectors", [by_inverse, by_solve, by_masks, by_block_loop, by_columns, by_normal_equations,
                                by_pseudoinverse, by_lstsq, by_dual_frames, by_differences_of_sums])


@pytest.mark.parametrize("silent", [
    lambda bases: [part @ basis for part, basis in zip(torch.linalg.pinv(torch.cat(bases)).split(sizes(bases), 1), bases)],
    lambda bases: [part @ basis for part, basis in zip((torch.cat(bases) + 1e-300).pinverse().split(sizes(bases), 1), bases)],
])
def test_an_answer_that_does_not_raise_is_told_why_it_should(silent):
    words = sentence("projectors", lambda bases: torch.stack(silent(bases)))
    assert "the sum of the other two, so no vector has exactly one split" in words and "Test the rank" in words


def test_an_answer_that_only_counts_is_told_about_the_rank():
    def counting(bases):
        rows = torch.cat(bases)
        if len(rows) != rows.shape[1]:
            raise ValueError("count")
        return torch.stack([part @ basis for part, basis in zip(torch.linalg.pinv(rows).split(sizes(bases), 1), bases)])
    assert "rounding hides from inv and solve" in sentence("projectors", counting)


def test_an_answer_that_forgets_too_few_rows_is_told_so():
    def ranked(bases):
        rows = torch.cat(bases)
        if torch.linalg.matrix_rank(rows) < len(rows):
            raise ValueError("dependent")
        return torch.stack([part @ basis for part, basis in zip(torch.linalg.pinv(rows).split(sizes(bases), 1), bases)])
    assert "add up to less than d_model, so some vectors have no split" in sentence("projectors", ranked)


def test_wrong_projectors_in_a_strangers_style_are_named():
    def shadows(bases):
        checked(bases)
        return torch.stack([torch.linalg.pinv(basis) @ basis for basis in bases])

    def columns(bases):
        return by_columns(bases).transpose(1, 2)

    def gram_schmidt(bases):
        frames = torch.linalg.qr(checked(bases).T).Q.T.split(sizes(bases))
        return torch.stack([frame.T @ frame for frame in frames])

    def rest(bases):
        P = shadows(bases)
        return torch.stack([*P[:-1], torch.eye(P.shape[1], dtype=P.dtype) - P[:-1].sum(0)])

    for answer, slug in [(shadows, "orthogonal"), (columns, "transposed"), (gram_schmidt, "all orthonormalized"),
                         (rest, "unknown")]:
        assert examine("projectors", answer).misconception == slug


@pytest.mark.parametrize("answer, words", [
    (lambda bases: None, "is there a return"),
    (lambda bases: by_inverse(bases).float(), "precision is lost"),
    (lambda bases: by_inverse(bases) * math.nan, "NaN"),
    (lambda bases: by_inverse(bases).permute(1, 2, 0), "must have the shape"),
    (lambda bases: by_inverse(bases)[0], "must have the shape"),
    (lambda bases: by_inverse(bases).numpy(), "must be a tensor"),
    (lambda bases: torch.linalg.inv(torch.stack(bases)), "raises RuntimeError"),
    (lambda bases, d: None, "raises TypeError"),
    (lambda bases: by_inverse(bases) + 0.01, "the values are not"),
    (lambda bases: by_inverse([basis.mul_(2) for basis in bases]), "changes the tensor, list or dict"),
    (lambda bases: by_inverse(bases) if len(bases[0]) + len(bases[1]) + 4 == 9 else torch.zeros(1), "shape"),
])
def test_other_projectors_are_described(answer, words):
    assert words in sentence("projectors", answer)


def test_memorized_sizes_are_noticed():
    def fixed(bases):
        rows = checked(bases)
        if len(rows) != 9:
            return torch.zeros(len(bases), len(rows), len(rows), dtype=rows.dtype)
        return by_inverse(bases)
    assert "Are sizes fixed in your code?" in sentence("projectors", fixed)


# decompose

def via(projectors):
    def decompose(v, bases):
        return v @ projectors(bases)
    decompose.__name__ = f"via_{projectors.__name__}"
    return decompose


def by_coordinates(v, bases):
    c = torch.linalg.solve(checked(bases).T, v)
    return torch.stack([part @ basis for part, basis in zip(c.split(sizes(bases)), bases)])


def by_row_solve(v, bases):
    c = torch.linalg.solve(checked(bases), v[None], left=False)[0]
    pieces, start = torch.zeros(len(bases), len(v), dtype=v.dtype), 0
    for i, basis in enumerate(bases):
        pieces[i] = c[start:start + len(basis)] @ basis
        start += len(basis)
    return pieces


def by_einsum(v, bases):
    return torch.einsum("d,hde->he", v, by_masks(bases))


def by_diagonal(v, bases):
    rows = checked(bases)
    c = v @ torch.linalg.inv(rows)
    owner = torch.repeat_interleave(torch.arange(len(bases)), torch.tensor(sizes(bases)))
    return torch.nn.functional.one_hot(owner, len(bases)).to(v.dtype).T @ (c[:, None] * rows)


def by_least_squares(v, bases):
    c = torch.linalg.lstsq(checked(bases).T, v[:, None]).solution[:, 0]
    return torch.stack([c_i @ basis for c_i, basis in zip(c.split(sizes(bases)), bases)])


def test_right_splits_in_every_style_pass():
    assert_right("decompose", [*map(via, (by_inverse, by_solve, by_columns, by_normal_equations, by_dual_frames)),
                               by_coordinates, by_row_solve, by_einsum, by_diagonal, by_least_squares])


def test_wrong_splits_in_a_strangers_style_are_named():
    def shadows(v, bases):
        checked(bases)
        return torch.stack([torch.linalg.lstsq(basis.T, v[:, None]).solution[:, 0] @ basis for basis in bases])

    def column_solve(v, bases):
        c = torch.linalg.solve(checked(bases), v)
        return torch.stack([part @ basis for part, basis in zip(c.split(sizes(bases)), bases)])

    def channels(v, bases):
        checked(bases)
        pieces, start = torch.zeros(len(bases), len(v), dtype=v.dtype), 0
        for i, basis in enumerate(bases):
            pieces[i, start:start + len(basis)] = v[start:start + len(basis)]
            start += len(basis)
        return pieces

    for answer, slug in [(shadows, "orthogonal"), (column_solve, "solved for columns"), (channels, "channels"),
                         (lambda v, bases: v @ by_inverse(bases).mT, "transposed")]:
        assert examine("decompose", answer).misconception == slug


def test_a_split_by_least_squares_alone_is_told_to_raise():
    def smallest(v, bases):
        c = torch.linalg.pinv(torch.cat(bases).T) @ v
        return torch.stack([part @ basis for part, basis in zip(c.split(sizes(bases)), bases)])
    assert "no vector has exactly one split, and your function returns numbers" in sentence("decompose", smallest)


@pytest.mark.parametrize("answer, words", [
    (lambda v, bases: by_coordinates(v, bases).sum(0), "must have the shape"),
    (lambda v, bases: by_coordinates(v, bases).T, "must have the shape"),
    (lambda v, bases: by_coordinates(v, bases) / 0, "the values are not"),
    (lambda v, bases: by_coordinates(v.mul_(1.5), bases), "changes the tensor, list or dict"),
    (lambda v, bases: 1 / 0, "raises ZeroDivisionError"),
])
def test_other_splits_are_described(answer, words):
    assert words in sentence("decompose", answer)


def test_a_wrong_projector_is_charged_there_and_not_in_decompose():
    space = {}
    exec("def projectors(bases):\n    return good(bases).mT\n\ndef decompose(v, bases):\n    return v @ projectors(bases)\n",
         space | {"good": by_inverse}, space)
    space["decompose"].__globals__.update(projectors=space["projectors"])
    verdict = examine("decompose", space["decompose"])
    assert verdict.passed and "library's projectors in place of yours" in verdict.message


# principal_angles

def frame(rows):
    return torch.linalg.qr(rows.T).Q.T


def by_arccos(a, b):
    return torch.linalg.svdvals(frame(a) @ frame(b).T).clamp(max=1).arccos()


def by_acos_and_sort(a, b):
    values = torch.linalg.svd(frame(b) @ frame(a).T)[1]
    return torch.acos(torch.clamp(values, -1, 1)).sort().values


def by_svd_frames(a, b):
    p, q = (torch.linalg.svd(rows, full_matrices=False).Vh for rows in (a, b))
    return torch.minimum(torch.linalg.svdvals(p @ q.mT), torch.tensor(1.0, dtype=a.dtype)).acos()


def by_gram_schmidt(a, b):
    def orthonormal(rows):
        done = []
        for row in rows:
            for _ in range(2):  # twice is enough
                for other in done:
                    row = row - (row @ other) * other
            done.append(row / row.norm())
        return torch.stack(done)
    return torch.linalg.svdvals(orthonormal(a) @ orthonormal(b).T).clamp(0, 1).arccos()


def by_cholesky(a, b):
    def orthonormal(rows):
        return torch.linalg.solve_triangular(torch.linalg.cholesky(rows @ rows.T), rows, upper=False)
    return torch.linalg.svdvals(orthonormal(a) @ orthonormal(b).T).clamp(max=1).arccos()


def by_sines(a, b):
    small, large = sorted((frame(a), frame(b)), key=len)
    cosines = torch.linalg.svdvals(small @ large.T)
    sines = torch.linalg.svdvals(small - small @ large.T @ large).flip(0)
    return torch.atan2(sines, cosines)


def by_numpy_angles(a, b):
    import numpy as np
    p, q = (np.linalg.qr(rows.numpy().T)[0] for rows in (a, b))
    return torch.from_numpy(np.arccos(np.clip(np.linalg.svd(p.T @ q, compute_uv=False), -1, 1)))


def by_scipy(a, b):
    return torch.from_numpy(scipy.linalg.subspace_angles(a.T.numpy(), b.T.numpy())[::-1].copy())


def by_polar_frames(a, b):
    def orthonormal(rows):
        U, _, Vh = torch.linalg.svd(rows, full_matrices=False)
        return U @ Vh
    return torch.linalg.svdvals(orthonormal(a) @ orthonormal(b).T).clamp(max=1).acos()


def by_projectors(a, b):
    p, q = frame(a), frame(b)
    count = min(len(a), len(b))
    return torch.linalg.svdvals(p.T @ (p @ q.T) @ q)[:count].clamp(max=1).arccos()


def by_whitening(a, b):
    def orthonormal(rows):
        values, vectors = torch.linalg.eigh(rows @ rows.T)
        return (vectors / values.sqrt()).T @ rows
    return torch.linalg.svdvals(orthonormal(a) @ orthonormal(b).T).clamp(max=1).arccos()


def test_right_angles_in_every_style_pass():
    assert_right("principal_angles", [by_arccos, by_acos_and_sort, by_svd_frames, by_gram_schmidt, by_cholesky, by_sines,
                                      by_numpy_angles, by_scipy, by_polar_frames, by_projectors, by_whitening])


def test_wrong_angles_in_a_strangers_style_are_named():
    def naive(a, b):
        return torch.acos(torch.linalg.svdvals(frame(a) @ frame(b).T))

    def in_degrees(a, b):
        return torch.rad2deg(by_arccos(a, b))

    def first(a, b):
        return by_sines(a, b).min()

    def overlaps(a, b):
        return by_arccos(a, b).cos()

    def eigenvalues(a, b):
        M = frame(a) @ frame(b).T if len(a) <= len(b) else frame(b) @ frame(a).T
        return torch.linalg.eigvalsh(M @ M.T).flip(0).clamp(0, 1).arccos()

    for answer, slug in [(naive, "unbounded"), (in_degrees, "degrees"), (first, "smallest only"), (overlaps, "cosines"),
                         (eigenvalues, "squares"), (lambda a, b: by_arccos(a, b).flip(0), "falling"),
                         (lambda a, b: by_arccos(a, b).rad2deg().flip(0), "falling+degrees")]:
        assert examine("principal_angles", answer).misconception == slug


@pytest.mark.parametrize("answer, words", [
    (lambda a, b: by_arccos(a, b).tolist(), "must be a tensor"),
    (lambda a, b: by_arccos(a, b)[:, None], "must have the shape"),
    (lambda a, b: by_arccos(a.float(), b.float()), "precision is lost"),
    (lambda a, b: by_arccos(a, b) * torch.rand(()), "random numbers"),
    (lambda a, b: torch.linalg.svdvals(torch.linalg.qr(a).Q.T @ torch.linalg.qr(b).Q), "raises RuntimeError"),
    (lambda a, b: by_arccos(a, b) + 1e-3, "the values are not"),
])
def test_other_angles_are_described(answer, words):
    assert words in sentence("principal_angles", answer)


# Pictures

def test_the_picture_shows_pieces_and_what_was_found():
    shadows = bank.projectors_picture(lambda bases: bank.projectors_variant(bases, "orthogonal"))
    check_picture(shadows)
    assert "your function gives (1, 0) and (1.5, 1.5)" in shadows.alt
    check_picture(bank.DECOMPOSE.picture(lambda v, bases: bank.decompose_variant(v, bases, "gram")))
    assert bank.projectors_picture(by_inverse) is None
    assert bank.DECOMPOSE.picture(by_coordinates) is None and bank.DECOMPOSE.picture(lambda v, bases: v) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_right_and_not_to_be_borrowed(name):
    assert "library's own" in sentence(name, stranger(exercises()[name].reference))
