"""What the heads of a layer can do together, and how the subspaces of heads share one vector space.

Part one measures a layer with frozen patterns: its Schmidt rank counts one head as 1, whatever its width.
Part two splits R^d_model into one subspace for each head: direct sums, projectors, principal angles.

Row vectors throughout. A basis is a [k, d_model] tensor with independent rows; it stands for the subspace
that its rows span. All work is done in the dtype of the arguments. Where a rank is decided, the docstring
gives the tolerance; it is far smaller in float64, so convert close cases first.
"""

import math

import torch

from multihead.budget import head_dim

# The layer V -> sum_i A_i V M_i on tokens V [T, d], with patterns A_i [T, T] and maps M_i [d, d], where
# M_i = W_V^(i) W_O^(i). If vec reads a matrix row by row, vec(A V M) = (A kron M^T) vec(V).
#
# Five functions of this module are model solutions: operator_schmidt_rank, projectors, decompose,
# is_direct_sum and principal_angles. Each checks its arguments in place and uses only torch, math and those
# before it.


def layer_matrix(patterns, maps):
    """The matrix L [T d, T d] of the layer: L @ V.flatten() is (sum_i A_i V M_i).flatten().

    patterns: [h, T, T]    maps: [h, d, d].    L = sum_i A_i kron M_i^T has (T d)^2 entries: for small layers.
    Raises ValueError unless there is one map for each pattern.
    """
    _check_heads(patterns, maps)
    # Token s and channel j of the output, then token t and channel i of the input.
    L = torch.einsum("hst,hij->sjti", patterns, maps)  # [T, d, T, d]
    return L.flatten(2).flatten(0, 1)  # [T d, T d]


def rearrange(layer, T, d):
    """The entries of a [T d, T d] matrix in a new order, [T^2, d^2]: A kron N becomes vec(A) vec(N)^T.

    The Schmidt rank of a layer is the ordinary rank of its rearranged matrix.
    Raises ValueError if layer is not [T d, T d].
    Source: Van Loan and Pitsianis, "Approximation with Kronecker Products", 1993.
    """
    if layer.shape != (T * d, T * d):
        raise ValueError(f"layer must be [T d, T d] = [{T * d}, {T * d}]; got shape {tuple(layer.shape)}")
    blocks = layer.reshape(T, d, T, d).transpose(1, 2)  # [T, T, d, d]
    return blocks.reshape(T * T, d * d)  # [T^2, d^2]


def operator_schmidt_rank(patterns, maps):
    """Schmidt rank of the layer V -> sum_i A_i V M_i: the least number of terms A V M that add up to it.

    patterns: [h, T, T]    maps: [h, d, d], of the same dtype.
    At most h, and equal to h exactly when the patterns are linearly independent and so are the maps; the
    width of a head does not enter. Singular values of the rearranged layer up to
    max(h, T, d) * eps * max_i |A_i| |M_i| count as zero (Frobenius norms, eps of the dtype).
    Raises ValueError unless there is one map for each pattern.
    """
    if (patterns.ndim != 3 or maps.ndim != 3 or not len(patterns) == len(maps) > 0
            or patterns.dtype != maps.dtype or not maps.is_floating_point()):
        raise ValueError("patterns must be [h, T, T] and maps [h, d, d] with one h and one float dtype; "
                         f"got {tuple(patterns.shape)} {patterns.dtype}, {tuple(maps.shape)} {maps.dtype}")
    A, M = patterns.flatten(1), maps.flatten(1)  # [h, T^2], [h, d^2]
    # But for the order of its columns, the rearranged layer is A^T M. With A^T = Q R, the orthonormal columns
    # of Q change no singular value, so R M is enough, with at most h rows.
    R = torch.linalg.qr(A.mT, mode="r").R  # [min(h, T^2), h]
    values = torch.linalg.svdvals(R @ M)  # [min(h, T^2, d^2)]
    # Heads may cancel, so the scale of rounding is that of the largest head, not of the largest value.
    eps = torch.finfo(values.dtype).eps
    tolerance = max(*patterns.shape, *maps.shape) * eps * (A.norm(dim=1) * M.norm(dim=1)).max()
    return int((values > tolerance).sum())


def schmidt_values(patterns, maps):
    """Singular values of the rearranged layer, falling: [min(h, T^2, d^2)]. All others are zero.

    patterns: [h, T, T]    maps: [h, d, d]. Their squares add up to the squared Frobenius norm of the layer.
    Raises ValueError unless there is one map for each pattern.
    """
    _check_heads(patterns, maps)
    R = torch.linalg.qr(patterns.flatten(1).mT, mode="r").R  # [min(h, T^2), h]
    return torch.linalg.svdvals(R @ maps.flatten(1))  # [min(h, T^2, d^2)]


def floor(patterns, maps, K):
    """Floor F: the least share of this layer's output, in mean square, that any layer of K heads must miss.

    patterns: [h, T, T]    maps: [h, d, d].
    The sum of the squared Schmidt values after the first K, over the sum of all: from 1 for K = 0 to 0 for
    K = h. It holds for heads of any width if the entries of V are white (mean 0, variance 1, uncorrelated)
    and the patterns do not depend on V. K patterns that come from a softmax may be unable to reach it.
    Raises ValueError for a negative K and for a layer that is zero.
    Source: Eckart and Young, "The approximation of one matrix by another of lower rank", 1936.
    """
    if not (isinstance(K, int) and K >= 0):
        raise ValueError(f"K must be a whole number of heads, 0 or more; got {K!r}")
    if operator_schmidt_rank(patterns, maps) == 0:
        raise ValueError("the heads add up to a layer that is zero, so it has no output to miss; "
                         "it must have a Schmidt rank of at least 1")
    energy = schmidt_values(patterns, maps).square()  # [min(h, T^2, d^2)]
    return float(energy[K:].sum() / energy.sum())


def _check_heads(patterns, maps):
    if (patterns.ndim != 3 or maps.ndim != 3 or not len(patterns) == len(maps) > 0
            or patterns.dtype != maps.dtype):
        raise ValueError("patterns must be [h, T, T] and maps [h, d, d] with one h and one dtype; "
                         f"got {tuple(patterns.shape)} {patterns.dtype}, {tuple(maps.shape)} {maps.dtype}")


# Subspaces H_1, ..., H_h of R^d_model, given by bases: a list of h tensors [k_i, d_model]. R^d_model is their
# direct sum if every vector is v_1 + ... + v_h, with each v_i in H_i, in exactly one way.


def projectors(bases):
    """Matrices P [h, d_model, d_model]: v @ P[i] is the piece of v in subspace i, and the pieces add up to v.

    bases: list of h tensors [k_i, d_model] whose spans have R^d_model as their direct sum.
    P[i] @ P[i] = P[i] and P[i] @ P[j] = 0. P[i] is symmetric exactly when subspace i is orthogonal to
    all the others; otherwise it is oblique, and a piece can be longer than v.
    Raises ValueError if the sum is not direct or not all of R^d_model; the test is that of `is_direct_sum`.
    """
    if ({(b.ndim, b.is_floating_point()) for b in bases} != {(2, True)}
            or len({(b.shape[1], b.dtype) for b in bases}) > 1):
        raise ValueError("bases must be tensors [k_i, d_model] with one d_model and one float dtype; "
                         f"got {[(tuple(b.shape), b.dtype) for b in bases]}")
    rows = torch.cat(tuple(bases))  # [sum of k_i, d_model]
    d_model = rows.shape[1]
    rank = int(torch.linalg.matrix_rank(torch.nn.functional.normalize(rows, dim=1)))
    if not len(rows) == rank == d_model:
        raise ValueError(f"a direct sum of R^{d_model} needs {d_model} independent rows in all; "
                         f"got {len(rows)} rows of rank {rank}")
    # With orthonormal rows in each subspace, the inverse is as well conditioned as the subspaces allow.
    frames = [torch.linalg.qr(basis.mT).Q.mT for basis in bases]  # h times [k_i, d_model]
    inverse = torch.linalg.inv(torch.cat(frames))  # [d_model, d_model], takes v to its coordinates
    shares = inverse.split([len(frame) for frame in frames], dim=1)  # h times [d_model, k_i]
    return torch.stack([share @ frame for share, frame in zip(shares, frames)])  # [h, d_model, d_model]


def decompose(v, bases):
    """The pieces [h, d_model] of a vector v [d_model], one from each subspace, that add up to v.

    bases: list of h tensors [k_i, d_model] whose spans have R^d_model as their direct sum, in the dtype of v.
    Raises ValueError where `projectors` does, and if v does not fit the bases.
    """
    P = projectors(bases)  # [h, d_model, d_model]
    if v.shape != P.shape[2:] or v.dtype != P.dtype:
        raise ValueError(f"v must be [{P.shape[2]}] in {P.dtype}; got {list(v.shape)} in {v.dtype}")
    return v @ P  # [h, d_model]


def is_direct_sum(bases):
    """Whether every vector of R^d_model is the sum of one vector from each subspace in exactly one way.

    bases: list of h tensors [k_i, d_model].
    True exactly when the k_i add up to d_model and all the rows together are independent. Their rank is taken
    after scaling each row to length 1, with the tolerance of torch.linalg.matrix_rank: singular values up to
    d_model * eps times the largest count as zero.
    Raises ValueError unless all bases have the same d_model and floating-point dtype.
    """
    if ({(b.ndim, b.is_floating_point()) for b in bases} != {(2, True)}
            or len({(b.shape[1], b.dtype) for b in bases}) > 1):
        raise ValueError("bases must be tensors [k_i, d_model] with one d_model and one float dtype; "
                         f"got {[(tuple(b.shape), b.dtype) for b in bases]}")
    rows = torch.cat(tuple(bases))  # [sum of k_i, d_model]
    rows = torch.nn.functional.normalize(rows, dim=1)  # a longer basis vector spans no more
    return len(rows) == int(torch.linalg.matrix_rank(rows)) == rows.shape[1]


def principal_angles(a, b):
    """The min(k, l) principal angles between the row spaces of a [k, d_model] and b [l, d_model].

    Radians, rising, from 0 (a direction in both spaces) to pi/2 (orthogonal directions).
    The absolute error is a few eps times the condition numbers of a and b at every angle, tiny ones included.
    Raises ValueError unless a and b have the same d_model and floating-point dtype, and for dependent rows;
    the rank of a and of b is taken as in `is_direct_sum`.
    Source: Bjorck and Golub, "Numerical methods for computing angles between linear subspaces", 1973.
    """
    if ({(x.ndim, x.is_floating_point()) for x in (a, b)} != {(2, True)}
            or (a.shape[1], a.dtype) != (b.shape[1], b.dtype)):
        raise ValueError("a and b must be [k, d_model] and [l, d_model], of one d_model and one float dtype; "
                         f"got {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}")
    frames = []
    for basis in sorted((a, b), key=len):
        columns = torch.nn.functional.normalize(basis, dim=1).mT  # [d_model, k]
        rank = int(torch.linalg.matrix_rank(columns))
        if rank < len(basis):
            raise ValueError(f"the rows of a basis must be independent; got {len(basis)} rows of rank {rank}")
        frames.append(torch.linalg.qr(columns).Q)  # [d_model, k], orthonormal columns
    small, large = frames
    shadow = large.mT @ small  # [max(k, l), min(k, l)], the smaller space projected onto the larger
    cosines = torch.linalg.svdvals(shadow)  # [min(k, l)], falling
    sines = torch.linalg.svdvals(small - large @ shadow).flip(0)  # [min(k, l)], rising
    # A cosine does not resolve angles near 0, and a sine none near pi/2; the two together resolve all.
    return torch.atan2(sines, cosines)  # [min(k, l)]


def overlap(a, b):
    """Mean squared cosine of the principal angles: 0 if orthogonal, 1 if one space contains the other.

    a: [k, d_model]    b: [l, d_model].
    For independent, uniformly distributed subspaces its expectation is max(k, l) / d_model.
    Raises ValueError where `principal_angles` does.
    """
    return float(principal_angles(a, b).cos().square().mean())


def condition_number(bases):
    """Largest over smallest singular value of all the rows together: 1 if they are orthonormal.

    bases: list of h tensors [k_i, d_model].
    It depends on the bases, not on their spans alone. For dependent rows it is infinite in exact arithmetic;
    rounding can leave a number of the order of 1 / eps.
    Raises ValueError unless the k_i add up to d_model.
    """
    total = sum(len(basis) for basis in bases)
    if total == 0 or any(basis.shape[1:] != (total,) for basis in bases):
        raise ValueError("bases must be tensors [k_i, d_model] with k_i that add up to d_model; "
                         f"got {[tuple(basis.shape) for basis in bases]}")
    return float(torch.linalg.cond(torch.cat(tuple(bases))))


def largest_cosine_limit(ratio):
    """2 sqrt(r (1 - r)), the largest principal cosine of two random subspaces with r = d_k / d_model.

    It is the limit as d_model grows with r fixed, 0 < r <= 1/2, for two independent and uniformly distributed
    subspaces of dimension d_k.
    Raises ValueError for other r. Above 1/2 the two subspaces share a direction: the largest cosine is 1.
    Source: Wachter 1980 for the law of all cosines; Johnstone 2008 for the largest.
    """
    if not 0 < ratio <= 0.5:
        raise ValueError(f"ratio = d_k / d_model must be above 0 and at most 1/2; got {ratio}")
    return 2 * math.sqrt(ratio * (1 - ratio))


def angle_density(angle, ratio):
    """Density of the principal angles of two random subspaces at an angle, per radian: a float.

    It is sqrt(c^2 - cos(angle)^2) / (pi r sin(angle)) with c = largest_cosine_limit(r), and 0 where
    cos(angle) > c. Same limit, ratio r, ValueError and source as there. 0 < angle <= pi/2 radians.
    The mean of cos(angle)^2 under it is r. For r = 1/2 it is 2 / pi at every angle.
    """
    excess = largest_cosine_limit(ratio) ** 2 - math.cos(angle) ** 2
    return math.sqrt(max(excess, 0)) / (math.pi * ratio * math.sin(angle))


def random_bases(d_model, h, generator, orthogonal=False):
    """List of h random bases [d_k, d_model], d_k = d_model / h, in torch's default dtype.

    Entries are standard normal, so the spans are independent and uniformly distributed, and their sum is
    direct with probability 1. With orthogonal=True all d_model rows together are orthonormal instead.
    generator: a torch.Generator.
    Raises ValueError if h does not divide d_model.
    """
    d_k = head_dim(d_model, h)
    rows = torch.randn(d_model, d_model, generator=generator)  # [d_model, d_model]
    if orthogonal:
        rows = torch.linalg.qr(rows).Q
    return list(rows.split(d_k))  # h times [d_k, d_model]
