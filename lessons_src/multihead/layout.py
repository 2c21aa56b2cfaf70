"""Where does each number of a tensor lie? Shapes, strides and offsets by arithmetic, as torch has them.

No storage is allocated, so the layout of a GPT-3 layer is worked out as fast as that of a toy. An address
counts elements (not bytes) from the start of the storage.
"""

import math
from dataclasses import dataclass

from multihead.budget import head_dim


@dataclass(frozen=True)
class Layout:
    """Shape, strides and offset of a tensor: element (i_0, i_1, ...) lies at offset + sum of i_n strides[n].

    The methods carry torch's names and give torch's results, strides of size-1 axes included. Sizes are at
    least 1. An index or axis that does not exist and a shape that does not fit raise ValueError.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self):
        if not all(isinstance(size, int) and size > 0 for size in self.shape):
            raise ValueError(f"every size must be a positive integer, got shape {self.shape}")
        if len(self.strides) != len(self.shape):
            raise ValueError(f"shape {self.shape} needs one stride for each axis, got strides {self.strides}")
        if not all(isinstance(step, int) and step >= 0 for step in (*self.strides, self.offset)):
            raise ValueError("strides and offset must be integers from 0 up, "
                             f"got strides {self.strides}, offset {self.offset}")

    @classmethod
    def contiguous(cls, shape):
        """The layout of a new tensor: each axis steps over everything that the later axes hold."""
        shape = tuple(shape)
        return cls(shape, tuple(math.prod(shape[axis + 1:]) for axis in range(len(shape))))

    @classmethod
    def of(cls, tensor):
        """The layout that a real torch tensor has."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def numel(self):
        """How many elements the layout addresses."""
        return math.prod(self.shape)

    def is_contiguous(self):
        """Whether the elements lie densely in index order. The stride of a size-1 axis does not matter."""
        dense = Layout.contiguous(self.shape).strides
        return all(size == 1 or a == b for size, a, b in zip(self.shape, self.strides, dense))

    def permute(self, *dims):
        """The axes in a new order."""
        axes = [self._axis(dim) for dim in dims]
        if sorted(axes) != list(range(len(self.shape))):
            raise ValueError(f"permute needs each axis of shape {self.shape} exactly once, got {dims}")
        return Layout(tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes), self.offset)

    def transpose(self, i, j):
        """Axes i and j exchanged."""
        i, j = self._axis(i), self._axis(j)
        axes = list(range(len(self.shape)))
        axes[i], axes[j] = j, i
        return self.permute(*axes)

    def narrow(self, dim, start, length):
        """Only the indices start to start + length - 1 of axis dim."""
        axis = self._axis(dim)
        size = self.shape[axis]
        if start not in range(size) or length not in range(1, size - start + 1):
            raise ValueError(f"axis {axis} has the indices 0 to {size - 1}; "
                             f"cannot take {length} of them from index {start} on")
        shape = (*self.shape[:axis], length, *self.shape[axis + 1:])
        return Layout(shape, self.strides, self.offset + start * self.strides[axis])

    def can_view(self, shape):
        """Whether `view` gives this shape without a copy. ValueError when the number of elements differs."""
        return self._view_strides(shape) is not None

    def view(self, *shape):
        """The same elements in the same index order under another shape, without moving one of them.

        Raises ValueError when the number of elements differs, or when elements would have to move.
        """
        strides = self._view_strides(shape)
        if strides is None:
            raise ValueError(f"shape {self.shape} with strides {self.strides} has no view of shape {shape}: "
                             "an axis would need more than one stride; reshape makes a copy instead")
        return Layout(shape, strides, self.offset)

    def reshape(self, *shape):
        """(layout, copied): the view and False if there is one, else a new contiguous tensor and True."""
        if self.can_view(shape):
            return self.view(*shape), False
        return Layout.contiguous(shape), True

    def address(self, *index):
        """The address of one element."""
        if len(index) != len(self.shape) or not all(i in range(n) for i, n in zip(index, self.shape)):
            raise ValueError(f"index {index} does not exist in shape {self.shape}")
        return self.offset + sum(i * stride for i, stride in zip(index, self.strides))

    def index_of(self, address):
        """The inverse of `address`: the index of the element there, or None if this layout has none there.

        Raises ValueError for a layout where an axis does not step clear of the smaller ones, as in an
        expanded tensor (stride 0). The methods above make no such layout from a contiguous one.
        """
        axes = sorted((a for a, size in enumerate(self.shape) if size > 1), key=lambda a: self.strides[a])
        reach = 0  # the largest step that the axes so far make together
        for axis in axes:
            if self.strides[axis] <= reach:
                raise ValueError(f"cannot invert shape {self.shape} with strides {self.strides}: axis {axis} "
                                 f"must step over the {reach} that axes with smaller strides reach together")
            reach += (self.shape[axis] - 1) * self.strides[axis]
        index, rest = [0] * len(self.shape), address - self.offset
        for axis in reversed(axes):
            index[axis], rest = divmod(rest, self.strides[axis])
        inside = all(i in range(size) for i, size in zip(index, self.shape))
        return tuple(index) if inside and rest == 0 else None

    def _axis(self, dim):
        """An axis number from 0 up; like torch, -1 means the last."""
        axes = len(self.shape)
        if dim not in range(-axes, axes):
            raise ValueError(f"axis {dim} does not exist in shape {self.shape}, which has {axes} axes")
        return dim % axes

    def _runs(self):
        """(elements, stride) of each run of axes that one stride walks through, the last run first."""
        runs, elements, stride = [], 1, (1, *self.strides)[-1]
        for size, step in zip(reversed(self.shape), reversed(self.strides)):
            if size > 1 and step != elements * stride:
                runs.append((elements, stride))
                elements, stride = 1, step
            elements *= size
        return [*runs, (elements, stride)]

    def _view_strides(self, shape):
        """torch's rule for `view`: whole axes of the new shape fill each run. None if they cannot."""
        if not all(isinstance(n, int) and n > 0 for n in shape) or math.prod(shape) != self.numel():
            raise ValueError(f"shape {self.shape} cannot become {shape}; "
                             f"the new sizes must be positive integers with the product {self.numel()}")
        axis, strides = len(shape), []
        for elements, stride in self._runs():
            filled = 1
            while axis > 0 and (filled < elements or shape[axis - 1] == 1):
                axis -= 1
                strides.insert(0, filled * stride)
                filled *= shape[axis]
            if filled != elements:
                return None
        return tuple(strides)


def fold_is_free(layout):
    """Whether [B, h, T, d_k] folds to [B h, T, d_k], the batch axis of a batched product, as a view."""
    B, h, _, _ = layout.shape
    return B == 1 or h == 1 or layout.strides[0] == h * layout.strides[1]


def heads_layout(B, T, h, d_k, *, time_first=False, packed=False):
    """The layout of queries as heads [B, h, T, d_k], for four habits of storing what the projections write.

    time_first: storage order [T, B, h d_k] instead of [B, T, h d_k].
    packed: one projection writes q, k and v side by side, and q is a slice of width h d_k out of 3 h d_k.
    """
    tokens = (T, B) if time_first else (B, T)
    written = Layout.contiguous((*tokens, 3 * h * d_k if packed else h * d_k))
    heads = written.narrow(-1, 0, h * d_k).view(*tokens, h, d_k)
    return heads.permute(1, 2, 0, 3) if time_first else heads.transpose(1, 2)  # [B, h, T, d_k]


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline: the code that makes it, the layout it gives, and how many elements it copies.

    A product writes new numbers; that is its work, not a copy. A copy writes numbers that existed already.
    """

    name: str
    code: str
    layout: Layout
    copied_elements: int
    note: str


def pipeline(B, T, d_model, h, *, fused_attention=False):
    """The stages from projected queries [B, T, d_model] to merged heads [B, T, d_model], in order.

    Layouts and copies are torch's on the CPU, for x stored batch-first and three separate projections. Copies
    are those that torch dispatches; what a kernel moves for its own use inside is not seen.
    fused_attention: F.scaled_dot_product_attention instead of two products with a softmax between them.
    """
    d_k = head_dim(d_model, h)
    projected = Layout.contiguous((B, T, d_model))
    viewed = projected.view(B, T, h, d_k)
    heads = viewed.transpose(1, 2)  # [B, h, T, d_k]
    split = [
        Stage("projected", "q = w_q(x)", projected, 0, "The product writes q; k and v have the same layout."),
        Stage("viewed", "q = q.view(B, T, h, d_k)", viewed, 0, "New shape and strides, same storage."),
        Stage("transposed", "q = q.transpose(1, 2)", heads, 0, "Two axes change places; no number moves."),
    ]
    attention = _fused_stages(B, T, h, d_k) if fused_attention else _explicit_stages(heads)
    return split + attention + _merge_stages(attention[-1].layout)


def _explicit_stages(heads):
    """Two products with a softmax between them, from q, k and v with the layout heads, [B, h, T, d_k]."""
    B, h, T, d_k = heads.shape
    folded, copied = heads.reshape(B * h, T, d_k)
    moved = heads.numel() if copied else 0
    B_step, h_step = heads.strides[:2]
    if copied:
        reason = f"stride_B = {B_step} is not h stride_h = {h * h_step}"
    else:
        reason = "B or h is 1" if 1 in (B, h) else f"stride_B = h stride_h = {B_step}"
    maps, blended = Layout.contiguous((B, h, T, T)), Layout.contiguous((B, h, T, d_k))
    return [
        Stage("folded q, k", "q.reshape(B * h, T, d_k), k.mT.reshape(B * h, d_k, T)", folded, 2 * moved,
              f"Inside q @ k.mT (the layout is q's). {reason}: {'both are copied' if copied else 'free'}."),
        Stage("scores", "scores = q @ k.mT / math.sqrt(d_k)", maps, 0, "One batched product over B h heads."),
        Stage("maps", "maps = scores.softmax(-1)", maps, 0, "Every row sums to 1."),
        Stage("folded v", "v.reshape(B * h, T, d_k)", folded, moved,
              f"Inside maps @ v. {reason}: {'v is copied' if copied else 'free'}. "
              "The maps are contiguous and fold freely."),
        Stage("blended", "out = maps @ v", blended, 0, "The product writes a contiguous [B, h, T, d_k]."),
    ]


def _fused_stages(B, T, h, d_k):
    """One kernel from q, k and v to the blended values."""
    blended = Layout.contiguous((B, T, h, d_k)).transpose(1, 2)  # [B, h, T, d_k]
    return [Stage("blended", "out = F.scaled_dot_product_attention(q, k, v)", blended, 0,
                  "The kernel takes a stride for B and one for h; it writes in the order B, T, h, d_k.")]


def _merge_stages(blended):
    """From blended [B, h, T, d_k] to [B, T, d_model]."""
    B, h, T, d_k = blended.shape
    back = blended.transpose(1, 2)  # [B, T, h, d_k]
    merged, copied = back.reshape(B, T, h * d_k)
    note = (f"stride_h = {back.strides[2]} is not d_k = {d_k}: view raises, reshape copies." if copied
            else "One stride walks through h and d_k: a view, no copy.")
    return [
        Stage("transposed back", "out = out.transpose(1, 2)", back, 0, "Two axes change places again."),
        Stage("merged", "out = out.reshape(B, T, d_model)", merged, back.numel() if copied else 0, note),
    ]
