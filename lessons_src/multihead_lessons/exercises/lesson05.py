"""Exercises of lesson 05: is_direct_sum, projectors, decompose, principal_angles."""
from __future__ import annotations

import itertools
from functools import partial

import torch

import multihead as mh
from multihead_lessons import calling
from multihead_lessons.exercises.bank import Case, Exercise, Misconception, normal
from multihead_lessons.plane import comparison

# Bases to draw: never so close to singular that two right methods differ


def spread(generator: torch.Generator, *sizes: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Bases [k_i, sum of k_i] in oblique directions; together their singular values run from 1/2 to 2."""
    d = sum(sizes)
    left, right = (torch.linalg.qr(normal(generator, d, d, dtype=torch.float64)).Q for _ in range(2))
    rows = left @ torch.linspace(0.5, 2, d, dtype=torch.float64).diag() @ right
    return list(rows.to(dtype).split(sizes))


def sharing(bases: list[torch.Tensor], target: int, *sources: int) -> list[torch.Tensor]:
    """The same, but the last row of one basis is a mixture of the rows of others, so that the rank is one less."""
    changed = [basis.clone() for basis in bases]
    rows = torch.cat([bases[source] for source in sources])  # [n, d_model]
    changed[target][-1] = torch.linspace(0.3, 1.1, len(rows), dtype=rows.dtype) @ rows
    return changed


def turned(bases: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same bases as views that are not contiguous."""
    return [basis.mT.contiguous().mT for basis in bases]


def _sizes(generator: torch.Generator) -> list[int]:
    return torch.tensor([2, 3, 4])[torch.randperm(3, generator=generator)].tolist()


def _rank(rows: torch.Tensor) -> int:
    return int(torch.linalg.matrix_rank(rows))


def _frame(basis: torch.Tensor) -> torch.Tensor:
    """Orthonormal rows with the same span."""
    return torch.linalg.qr(basis.mT).Q.mT


# is_direct_sum

def _draw_direct(generator: torch.Generator) -> list[Case]:
    sizes = _sizes(generator)
    bases = spread(generator, *sizes)
    extra = normal(generator, 2, sum(sizes), dtype=torch.float64)
    almost = spread(generator, 2, 3)
    almost[1][0] = almost[0][1] + 1e-7 * almost[1][0]
    units = list(torch.eye(sum(sizes), dtype=torch.float64).split(sizes))
    repeated = [units[0], units[1], torch.cat([units[2][1:], units[1][:1]])]
    orthogonal = list(torch.linalg.qr(normal(generator, 9, 9, dtype=torch.float64)).Q.split(sizes))
    shared = "two subspaces that have a direction in common: it can be given to either, so splits are not unique."
    return [
        Case((bases,), because="You say False for subspaces whose bases together are a basis of the whole space: True."),
        Case((sharing(bases, 2, 0, 1),), because=(
            "You say True for three subspaces of which any two meet in 0 only, although one direction of the third lies in "
            "the sum of the other two. That direction has two splits.")),
        Case((sharing(bases, 2, 0),), because=f"You say True for {shared}"),
        Case((sharing(bases, 1, 0),), because=f"You say True for {shared}"),
        Case((repeated,), because=f"You say True for {shared}"),
        Case((bases[:2],), about="two of three subspaces, with fewer rows than d_model", because=(
            "You say True although the dimensions add up to less than d_model: some vectors have no split.")),
        Case(([*bases, extra],), about="one subspace too many, with more rows than d_model", because=(
            "You say True although the dimensions add up to more than d_model: every vector has many splits.")),
        Case(([1e-3 * basis for basis in bases],), because=(
            "You say False when all basis vectors are short. Their length changes no span.")),
        Case((almost,), because=(
            "You say False for two subspaces with an angle of about 1e-7. That is hard on a computer, but it is a direct "
            "sum.")),
        Case((orthogonal,), because="You say False for orthogonal subspaces that fill the space: True."),
        Case((turned(spread(generator, *sizes, dtype=torch.float32)),), because=(
            "You say False for subspaces whose bases together are a basis of the whole space: True.")),
    ]


def _pairs_are_apart(bases, pairs):
    return all(_rank(torch.cat([bases[i], bases[j]])) == len(bases[i]) + len(bases[j]) for i, j in pairs)


def _fills(bases):
    return sum(len(basis) for basis in bases) == bases[0].shape[1]


def _pairwise(bases):
    return _fills(bases) and _pairwise_alone(bases)


def _pairwise_alone(bases):
    return _pairs_are_apart(bases, itertools.combinations(range(len(bases)), 2))


def _neighbors(bases):
    return _fills(bases) and _pairs_are_apart(bases, itertools.pairwise(range(len(bases))))


def _first_against_others(bases):
    return _fills(bases) and _rank(torch.cat(bases)) == len(bases[0]) + _rank(torch.cat(bases[1:]))


def _full_rank_each(bases):
    return all(_rank(basis) == len(basis) for basis in bases)


def _rank_only(bases):
    return _rank(torch.cat(bases)) == bases[0].shape[1]


def _independent_only(bases):
    rows = torch.cat(bases)
    return _rank(rows) == len(rows)


def _determinant(bases, above=0.0):
    return _fills(bases) and abs(float(torch.linalg.det(torch.cat(bases)))) > above


def _orthogonal(bases):
    rows = torch.cat([_frame(basis) for basis in bases])
    return _fills(bases) and torch.allclose(rows @ rows.mT, torch.eye(len(rows), dtype=rows.dtype), atol=1e-4)


def _coarse(bases):
    rows = torch.cat(bases)
    return _fills(bases) and int(torch.linalg.matrix_rank(rows, rtol=1e-4)) == len(rows)


SMALL_DETERMINANT = (
    "You say False when the basis vectors are short. A small determinant, or a small singular value by itself, says nothing: "
    "both shrink with the length of the vectors, although no span changes. Ask for the rank: its default tolerance is "
    "relative.")

DIRECT_MISTAKES = (
    Misconception("pairwise", (
        "You test the subspaces two by two. Three lines in a plane pass that test: any two meet in 0 only, but the third "
        "lies in the sum of the other two. Test all bases together: the rank of the stacked rows."), _pairwise),
    Misconception("pairwise without a count", (
        "You test the subspaces two by two, and you do not ask whether the dimensions add up to d_model. Both gaps close "
        "with one test of all bases together: the stacked rows must be square and of full rank."), _pairwise_alone),
    Misconception("neighbors", (
        "You test each subspace against the next one only. The first and the third may share a direction, and more than "
        "two may be dependent together. Stack all bases and take one rank."), _neighbors),
    Misconception("first against others", (
        "You test the first subspace against the sum of the others, and no other. The second and the third may still share "
        "a direction. One rank of all stacked rows covers every case."), _first_against_others),
    Misconception("dimensions only", (
        "You only count dimensions. Subspaces that share a direction can have the right dimensions too. Ask for the rank "
        "of all rows together, not of each basis by itself."), _fills),
    Misconception("each by itself", (
        "You say True every time. That each basis has independent rows is given. The question is whether all rows together "
        "are independent, and whether they fill the space."), _full_rank_each),
    Misconception("rank only", (
        "You ask whether the subspaces together reach the whole space. With more rows than d_model they can, and then "
        "splits are not unique. Count the rows as well."), _rank_only),
    Misconception("independence only", (
        "You ask whether all rows together are independent. Then no vector has two splits, but with fewer rows than "
        "d_model some vector has none. Count the rows as well."), _independent_only),
    Misconception("determinant not zero", (
        "You leave no room for rounding: the determinant of a singular matrix comes out as a small number, seldom as 0, and "
        "inv seldom raises. Ask for the rank, which has a tolerance."), _determinant),
    Misconception("small determinant", SMALL_DETERMINANT, partial(_determinant, above=1e-10), together=False),
    Misconception("small determinant, coarse", SMALL_DETERMINANT, partial(_determinant, above=1e-4), together=False),
    Misconception("orthogonal", (
        "You ask for right angles between the subspaces. A sum can be direct with oblique ones; orthogonal is more than "
        "direct."),
        _orthogonal),
    Misconception("coarse", (
        "You call the sum not direct when two subspaces nearly touch. Nearly is not quite: the split is unique, if long. "
        "Use the default tolerance of the rank, and stay in the dtype of the bases."), _coarse),
)

IS_DIRECT_SUM = Exercise("is_direct_sum", mh.is_direct_sum, _draw_direct, DIRECT_MISTAKES)


# projectors

def _no_split(generator: torch.Generator) -> list[tuple[list[torch.Tensor], str]]:
    """Bases without a unique split, and the sentence for an answer that does not raise."""
    sizes = _sizes(generator)
    bases = spread(generator, *sizes)
    silent = "and your function returns numbers all the same. "
    return [
        (sharing(bases, 2, 0, 1), (
            "Here one direction of the third subspace lies in the sum of the other two, so no vector has exactly one "
            "split, " + silent
            + "Test the rank before you invert: rounding hides from inv and solve that a matrix is singular.")),
        (bases[:2], ("Here the dimensions add up to less than d_model, so some vectors have no split, " + silent
                     + "Raise a ValueError unless the stacked rows are square and of full rank.")),
        ([*bases, bases[0] + normal(generator, *bases[0].shape, dtype=torch.float64)], (
            "Here the dimensions add up to more than d_model, so every vector has many splits, " + silent
            + "Raise a ValueError unless the stacked rows are square and of full rank.")),
    ]


def _draw_projectors(generator: torch.Generator) -> list[Case]:
    sizes = _sizes(generator)
    return [
        Case((spread(generator, *sizes),)),
        Case((spread(generator, *sizes[1:], *sizes[:1], 6),)),
        Case((turned(spread(generator, 3, 5, dtype=torch.float32)),), about="two bases in float32 that are not contiguous"),
        *(Case((bases,), about="bases without a unique split", raises=True, because=sentence)
          for bases, sentence in _no_split(generator)),
    ]


def projectors_variant(bases, kind="oblique", transposed=False):
    """projectors with its choices open; wrong kinds for the ways in which people cut a vector into pieces."""
    if not mh.is_direct_sum(bases):
        raise ValueError("no unique split")
    rows, sizes = torch.cat(tuple(bases)), [len(basis) for basis in bases]
    inverse = torch.linalg.inv(rows)
    whole = torch.eye(len(rows), dtype=rows.dtype)
    others = [torch.cat([*bases[:i], *bases[i + 1:]]) for i in range(len(bases))]
    P = {
        "oblique": lambda: [share @ basis for share, basis in zip(inverse.split(sizes, dim=1), bases)],
        "orthogonal": lambda: [_frame(basis).mT @ _frame(basis) for basis in bases],
        "gram": lambda: [basis.mT @ basis for basis in bases],
        "away from others": lambda: [whole - _frame(other).mT @ _frame(other) for other in others],
        "all orthonormalized": lambda: [frame.mT @ frame for frame in _frame(rows).split(sizes)],
        "coordinates": lambda: [column @ row for column, row in zip(whole.split(sizes, dim=1), whole.split(sizes))],
        "rows of the inverse": lambda: [basis.mT @ share for share, basis in zip(inverse.split(sizes), bases)],
        "equal blocks": lambda: [share @ block for share, block in
                                 zip(inverse.chunk(len(bases), dim=1), rows.chunk(len(bases)))],
    }[kind]()
    P = torch.stack(P)
    return P.mT if transposed else P


def _as_list(bases):
    return list(projectors_variant(bases))


def _shares(bases):
    if not mh.is_direct_sum(bases):
        raise ValueError("no unique split")
    return list(torch.linalg.inv(torch.cat(tuple(bases))).split([len(basis) for basis in bases], dim=1))


SHADOWS = (
    "You project orthogonally: what you get is the shadow of v on each subspace. Shadows add up to v only if the subspaces "
    "are orthogonal. The piece in subspace i leaves out what the other subspaces make of v: go along them, not at right "
    "angles. Start from all bases stacked, and solve for the coordinates of v.")
GRAM = (
    "You multiply by a basis and its transpose, without an inverse. That gives a piece only if all rows together are "
    "orthonormal. Solve for the coordinates of v in all the stacked rows first.")
AWAY = (
    "You take what is orthogonal to the sum of the others. That lies outside of the others, but not in subspace i. The "
    "piece must lie in subspace i, and v minus the piece in the sum of the others.")
ORTHONORMALIZED = (
    "You make all rows orthonormal together. The pieces then add up to v, but from the second subspace on they lie in "
    "other subspaces than the given ones.")
CHANNELS = (
    "You cut v by channels. That is the split into coordinate blocks; these subspaces lie in other directions. Channels "
    "belong to heads only after the projection.")
EQUAL = (
    "You cut the stacked rows into equal blocks. The bases here have different numbers of rows: cut where the bases end.")

PROJECTOR_MISTAKES = (
    Misconception("orthogonal", SHADOWS, partial(projectors_variant, kind="orthogonal")),
    Misconception("transposed", (
        "Your matrices are the transposes: they act on column vectors, P @ v. Here v is a row, and its piece is v @ P[i]."),
        partial(projectors_variant, transposed=True)),
    Misconception("gram", GRAM, partial(projectors_variant, kind="gram")),
    Misconception("away from others", AWAY, partial(projectors_variant, kind="away from others")),
    Misconception("all orthonormalized", ORTHONORMALIZED, partial(projectors_variant, kind="all orthonormalized")),
    Misconception("channels", CHANNELS, partial(projectors_variant, kind="coordinates")),
    Misconception("rows of the inverse", (
        "You cut the inverse along its rows. If E are the stacked rows, the coordinates of v are v @ inv(E), so the "
        "columns of inv(E) belong to the subspaces: cut along axis 1, and multiply the block by its basis from the right."),
        partial(projectors_variant, kind="rows of the inverse")),
    Misconception("equal blocks", EQUAL, partial(projectors_variant, kind="equal blocks")),
    Misconception("list", "The matrices are right. Stack them into one tensor [h, d_model, d_model].", _as_list),
    Misconception("coordinates only", (
        "You return the blocks [d_model, k_i] that take v to its coordinates in each basis. One step is missing: multiply "
        "each by its basis, to come back to vectors of R^d_model, and stack the results."), _shares),
)


def projectors_picture(answer):
    """The learner's split of a vector along two lines of the plane, beside the right one."""
    return _split_picture(lambda v, bases: v @ answer(bases))


PROJECTORS = Exercise("projectors", mh.projectors, _draw_projectors, PROJECTOR_MISTAKES,
                      axes=("subspace", "row", "column"), picture=projectors_picture)


# decompose

def _draw_decompose(generator: torch.Generator) -> list[Case]:
    sizes = _sizes(generator)
    d = sum(sizes)
    inside = spread(generator, *sizes)
    return [
        Case((normal(generator, d, dtype=torch.float64), spread(generator, *sizes))),
        Case((normal(generator, d + 6, dtype=torch.float64), spread(generator, *sizes[1:], *sizes[:1], 6))),
        Case((inside[1].sum(dim=0), inside), about="a v that lies in the second subspace, where all other pieces are 0"),
        Case((normal(generator, 8), turned(spread(generator, 3, 5, dtype=torch.float32))),
             about="two bases in float32 that are not contiguous"),
        *(Case((normal(generator, bases[0].shape[1], dtype=torch.float64), bases), about="bases without a unique split",
               raises=True, because=sentence)
          for bases, sentence in _no_split(generator)),
    ]


def decompose_variant(v, bases, kind="oblique"):
    """decompose by the variants of projectors."""
    return v @ projectors_variant(bases, kind)


def _column_projectors(v, bases):
    return projectors_variant(bases) @ v


def _solved_for_columns(v, bases):
    coordinates = torch.linalg.inv(_stacked(bases)) @ v
    return torch.stack([c @ basis for c, basis in zip(coordinates.split([len(basis) for basis in bases]), bases)])


def _coordinates(v, bases):
    return v @ torch.linalg.inv(_stacked(bases))


def _coordinate_list(v, bases):
    return list(_coordinates(v, bases).split([len(basis) for basis in bases]))


def _list_of_pieces(v, bases):
    return list(decompose_variant(v, bases))


def _one_after_another(v, bases, rest_to_last=False):
    _stacked(bases)
    pieces, left = [], v
    for i, basis in enumerate(bases):
        frame = _frame(basis)
        last = rest_to_last and i == len(bases) - 1
        pieces.append(left if last else left @ frame.mT @ frame)
        left = left - pieces[-1]
    return torch.stack(pieces)


def _stacked(bases):
    if not mh.is_direct_sum(bases):
        raise ValueError("no unique split")
    return torch.cat(tuple(bases))


ONE_BY_ONE = (
    "You take the shadow of v on the first subspace, then the shadow of what is left on the second, and so on. What the "
    "first takes is too much or too little, because the subspaces are not orthogonal. All coordinates have to be solved "
    "for at once.")

DECOMPOSE_MISTAKES = (
    Misconception("orthogonal", SHADOWS, partial(decompose_variant, kind="orthogonal"), together=False),
    Misconception("transposed", (
        "You multiply as if v were a column, P @ v. Here v is a row: its piece in subspace i is v @ P[i]."),
        _column_projectors),
    Misconception("gram", GRAM, partial(decompose_variant, kind="gram"), together=False),
    Misconception("away from others", AWAY, partial(decompose_variant, kind="away from others"), together=False),
    Misconception("all orthonormalized", ORTHONORMALIZED, partial(decompose_variant, kind="all orthonormalized"),
                  together=False),
    Misconception("channels", CHANNELS, partial(decompose_variant, kind="coordinates"), together=False),
    Misconception("solved for columns", (
        "You solve E c = v for the stacked rows E. The bases are rows: v = c E, so solve with the transpose, solve(E.mT, "
        "v), or take v @ inv(E)."), _solved_for_columns),
    Misconception("one after another", ONE_BY_ONE, _one_after_another),
    Misconception("one after another, rest to the last", (
        ONE_BY_ONE + " Giving the rest to the last subspace makes the sum right, but the rest does not lie in it."),
        partial(_one_after_another, rest_to_last=True), together=False),
    Misconception("equal blocks", EQUAL, partial(decompose_variant, kind="equal blocks"), together=False),
    Misconception("coordinates", (
        "You return the coordinates of v in the stacked bases, d_model numbers. The pieces are vectors: cut the "
        "coordinates where the bases end, and multiply each part by its basis."), _coordinates),
    Misconception("list of coordinates", (
        "You return the coordinates of v in each basis. The pieces are vectors of R^d_model: multiply each part by its "
        "basis, and stack the results."), _coordinate_list),
    Misconception("list", "The pieces are right. Stack them into one tensor [h, d_model].", _list_of_pieces),
)


def _split_picture(split):
    v, bases = torch.tensor([1.0, 2.0], dtype=torch.float64), [torch.tensor([[1.0, 0.0]], dtype=torch.float64),
                                                                torch.tensor([[1.0, 1.0]], dtype=torch.float64)]
    found, wanted = split(v, bases), mh.decompose(v, bases)
    drawable = isinstance(found, torch.Tensor) and found.shape == (2, 2) and bool(found.isfinite().all())
    if not drawable or torch.allclose(found, wanted):
        return None
    return comparison(v.tolist(), [basis[0].tolist() for basis in bases], wanted.tolist(), found.tolist())


DECOMPOSE = Exercise("decompose", mh.decompose, _draw_decompose, DECOMPOSE_MISTAKES, axes=("subspace", "channel"),
                     picture=_split_picture)


# principal_angles

def _draw_angles(generator: torch.Generator) -> list[Case]:
    """Subspaces in general position, two that share directions, and one inside the other."""
    def basis(k: int, d: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return (scale * normal(generator, k, d, dtype=torch.float64)).to(dtype)
    def inside(large: torch.Tensor, k: int) -> torch.Tensor:
        return normal(generator, k, len(large), dtype=torch.float64) @ large
    large, larger = basis(20, 30), basis(24, 40)
    return [
        Case((basis(2, 7), basis(3, 7))),
        Case((basis(4, 9, 0.05), basis(3, 9, 0.05)), about="more rows in a than in b, all of them short"),
        Case(tuple(turned([basis(5, 8), basis(6, 8)])), about="two subspaces that are too large to avoid each other"),
        Case((basis(2, 12, dtype=torch.float32), basis(4, 12, dtype=torch.float32)), about="float32"),
        Case((inside(large, 15), large), about="a subspace inside the other, where every angle is 0"),
        Case((larger, inside(larger, 16)), about="a subspace inside the other, where every angle is 0"),
    ]


def angles_variant(a, b, frames="orthonormal", bounded=True, values="angles", order="rising"):
    """principal_angles with its choices open."""
    if frames == "orthonormal":
        p, q = _frame(a), _frame(b)
    elif frames == "raw":
        p, q = a, b
    else:
        p, q = (torch.nn.functional.normalize(rows, dim=1) for rows in (a, b))
    cosines = torch.linalg.svdvals(p @ q.mT)  # falling
    if bounded:
        cosines = cosines.clamp(max=1)
    result = {"angles": torch.arccos, "cosines": lambda c: c, "degrees": lambda c: c.arccos().rad2deg(),
              "sines": torch.arcsin, "squares": lambda c: c.square().arccos()}[values](cosines)
    return result.flip(0) if order == "falling" else result


def _smallest(a, b):
    return float(angles_variant(a, b)[0])


def _largest(a, b):
    return float(angles_variant(a, b)[-1])


def _between_rows(a, b):
    p, q = (torch.nn.functional.normalize(rows, dim=1) for rows in (a, b))
    return (p @ q.mT).clamp(-1, 1).arccos()


def _of_projectors(a, b):
    p, q = _frame(a), _frame(b)
    return torch.linalg.svdvals(p.mT @ p @ q.mT @ q).clamp(max=1).arccos()


def _together(a, b):
    if len(a) + len(b) > a.shape[1]:
        return angles_variant(a, b)
    p, q = _frame(torch.cat([a, b])).split([len(a), len(b)])
    return torch.linalg.svdvals(p @ q.mT).clamp(max=1).arccos()


ANGLE_MISTAKES = (
    Misconception("cosines", "You return the cosines, the singular values. Take their arccos.",
                  partial(angles_variant, values="cosines")),
    Misconception("degrees", "You return degrees. The exercise asks for radians.",
                  partial(angles_variant, values="degrees")),
    Misconception("falling", (
        "Check the order: smallest angle first. Singular values come falling, so their arccos comes rising and needs no "
        "flip; eigenvalues come rising."),
        partial(angles_variant, order="falling")),
    Misconception("unbounded", (
        "Some of your angles are NaN. Rounding can make a cosine 1.0000000000000002, and arccos has no value above 1. "
        "Clamp the cosines to at most 1."), partial(angles_variant, bounded=False)),
    Misconception("raw rows", (
        "You take singular values of a @ b.mT for the rows as they are. These depend on the choice of the basis. Make the "
        "rows of a orthonormal first, and those of b, each by a QR of its own."), partial(angles_variant, frames="raw")),
    Misconception("unit rows", (
        "You scale each row to length 1, but the rows of one basis still are not orthogonal to each other, so the singular "
        "values are no cosines. Make them orthonormal, by QR for example."), partial(angles_variant, frames="unit")),
    Misconception("sines", (
        "You take the arcsin of the singular values. They are cosines: that gives 90 degrees minus each angle."),
        partial(angles_variant, values="sines")),
    Misconception("squares", (
        "You take the arccos of squared cosines. Eigenvalues of M M^T are squares of the singular values of M: take a root "
        "first."),
        partial(angles_variant, values="squares")),
    Misconception("smallest only", (
        "You return one angle, the smallest. Two subspaces of dimensions k and l have min(k, l) principal angles: return "
        "all of them."),
        _smallest),
    Misconception("largest only", (
        "You return one angle, the largest. Two subspaces of dimensions k and l have min(k, l) principal angles: return "
        "all of them."),
        _largest),
    Misconception("between rows", (
        "You measure the angle of every row of a with every row of b, [k, l]. These depend on the choice of the basis. "
        "Principal angles belong to the subspaces: orthonormalize, multiply, take singular values."), _between_rows),
    Misconception("of projectors", (
        "You take all d_model singular values of a product of projectors. Only min(k, l) of them belong to angles; the "
        "others are 0 and give 90 degrees more. Multiply the orthonormal rows instead: a [k, l] matrix."), _of_projectors),
    Misconception("orthonormalized together", (
        "You make the rows of a and b orthonormal together. That turns b away from a, and every angle comes out as 90 "
        "degrees. Give each basis a QR of its own."), _together),
)

PRINCIPAL_ANGLES = Exercise("principal_angles", mh.principal_angles, _draw_angles, ANGLE_MISTAKES, axes=("angle",),
                            run=calling.plainly_but_for_dust)

EXERCISES = (IS_DIRECT_SUM, PROJECTORS, DECOMPOSE, PRINCIPAL_ANGLES)
