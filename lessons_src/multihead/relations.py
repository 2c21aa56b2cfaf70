"""The two-relation experiment: a task that one attention head cannot do and two can, with as many weights.

Every token holds n distinct random pointers, one for each relation, and n attributes of Gaussian numbers.
It must output attribute 0 of the token that its pointer 0 names, attribute 1 of the token that its pointer 1
names, and so on. One attention layer does it alone: no residual, no MLP, no bias, no mask.

Each function draws from generators of its own, so a seed fixes its result and torch's global random stream
neither matters nor moves. The tensors are small: after `torch.set_num_threads(1)` training is fastest.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from multihead.attention import attention, merge_heads, split_heads

WEIGHTS, TRAINING, TEST = range(3)  # what a seed is used for; each use has a random stream of its own


def _generator(seed, stream):
    """The random numbers of one seed for one use: no two (seed, stream) share a generator's seed."""
    return torch.Generator().manual_seed(3 * seed + stream)


class Batch(NamedTuple):
    """B sequences. Channels of x: position and n pointers (one-hot, T each), then content (n * numbers)."""

    x: torch.Tensor  # [B, T, d_in]
    targets: torch.Tensor  # [B, T, d_out]
    pointers: torch.Tensor  # [B, T, n], the number of the token that each pointer names


@dataclass(frozen=True)
class Task:
    """What the tokens hold.

    n_relations: n, how many pointers and attributes a token has.
    T: tokens in a sequence.
    typed: token s keeps attribute s % n only (the others are 0), and pointer i names one of the tokens that
        keep attribute i. Then one head can do the task: what it blends in from the wrong token is 0.
    numbers: how many numbers one attribute has.

    Raises ValueError if a size is below 1, if T < n, or if the tokens are typed and n does not divide T.
    """

    n_relations: int = 2
    T: int = 8
    typed: bool = False
    numbers: int = 4

    def __post_init__(self):
        n, T = self.n_relations, self.T
        if min(n, T, self.numbers) < 1:
            raise ValueError("n_relations, T and numbers must be at least 1; "
                             f"got n_relations = {n}, T = {T} and numbers = {self.numbers}")
        if T < n:
            raise ValueError(f"n distinct pointers need at least n tokens; got n_relations = {n} and T = {T}")
        if self.typed and T % n:
            raise ValueError(f"n_relations must divide T if tokens are typed; got n_relations = {n}, T = {T}")

    @property
    def d_address(self):
        """Channels that say where a token is and where it points; they come first in x."""
        return (1 + self.n_relations) * self.T

    @property
    def d_out(self):
        """Channels of content, and of the output."""
        return self.n_relations * self.numbers

    @property
    def d_in(self):
        """Channels of x."""
        return self.d_address + self.d_out

    def batch(self, generator, B):
        """B fresh sequences, a `Batch`. Every target number has mean 0 and variance 1."""
        n, T = self.n_relations, self.T
        content = torch.randn(B, T, n, self.numbers, generator=generator)  # [B, T, n, numbers]
        if self.typed:
            draws = torch.randint(T // n, (B, T, n), generator=generator)  # [B, T, n]
            pointers = draws * n + torch.arange(n)  # [B, T, n]
            kept = torch.arange(T)[:, None] % n == torch.arange(n)  # [T, n]
            content = content * kept[..., None]
        else:
            pointers = torch.rand(B, T, T, generator=generator).argsort(-1)[..., :n]  # [B, T, n]
        picked = pointers[..., None].expand_as(content)  # [B, T, n, numbers]
        targets = content.gather(1, picked).flatten(2)  # [B, T, d_out]
        addresses = torch.eye(T)[pointers].flatten(2)  # [B, T, n T]
        positions = torch.eye(T).expand(B, T, T)  # [B, T, T]
        x = torch.cat([positions, addresses, content.flatten(2)], dim=-1)  # [B, T, d_in]
        return Batch(x, targets, pointers)


class RelationLayer(nn.Module):
    """One attention layer for a task: h heads of width width / h, from d_in to d_out channels.

    task: the Task whose channels it reads and which `train` and `evaluate` use.
    width: h d_k, free of d_in. Neither the shapes nor the number of weights depend on h.
    reads_content: w_q, w_k and w_v read all channels of x. By default queries and keys see addresses alone
        and values see content alone, so patterns cannot depend on content, as the floor requires.
    seed: of the initial weights, uniform in +-1/sqrt(input channels), nn.Linear's range.

    Raises ValueError if h is not a positive divisor of width.
    """

    def __init__(self, task, h, width, *, reads_content=False, seed=0):
        super().__init__()
        if h < 1 or width < 1 or width % h:
            raise ValueError(f"h must be a positive divisor of width; got h = {h} and width = {width}")
        self.task, self.h, self.reads_content = task, h, reads_content
        d_address, d_content = (task.d_in, task.d_in) if reads_content else (task.d_address, task.d_out)
        generator = _generator(seed, WEIGHTS)
        self.w_q = _linear(d_address, width, generator)
        self.w_k = _linear(d_address, width, generator)
        self.w_v = _linear(d_content, width, generator)
        self.w_o = _linear(width, task.d_out, generator)

    def forward(self, x):
        """[B, T, d_in] -> [B, T, d_out]"""
        outputs, _ = self.heads(x)  # [B, h, T, d_k]
        return self.w_o(merge_heads(outputs))  # [B, T, d_out]

    def heads(self, x):
        """What each head computes before w_o: (outputs [B, h, T, d_k], weights [B, h, T, T])."""
        d_address = self.task.d_address
        address, content = (x, x) if self.reads_content else (x[..., :d_address], x[..., d_address:])
        q = split_heads(self.w_q(address), self.h)  # [B, h, T, d_k]
        k = split_heads(self.w_k(address), self.h)  # [B, h, T, d_k]
        v = split_heads(self.w_v(content), self.h)  # [B, h, T, d_k]
        return attention(q, k, v)


def _linear(d_in, d_out, generator):
    """nn.Linear without bias, its weight drawn from generator and from nothing else."""
    linear = nn.utils.skip_init(nn.Linear, d_in, d_out, bias=False)
    bound = 1 / math.sqrt(d_in)
    nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
    return linear


def train(layer, seed=0, *, steps=600, batch=64, lr=1e-2, progress=None):
    """Trains the layer in place and returns its learning curve: `steps` relative errors, one for each batch.

    Adam and a one-cycle schedule that peaks at lr; every step takes `batch` fresh sequences. Since the layer
    has never seen them, and targets have variance 1, the loss of a step is an unbiased relative error.
    progress: called after each step as progress(step, error), step from 1 to steps.

    Raises ValueError if steps is below 20: the learning rate rises over the first tenth of them.
    """
    if steps < 20:
        raise ValueError(f"steps must be at least 20, so that the learning rate can rise and fall; got {steps}")
    generator = _generator(seed, TRAINING)
    optimizer = torch.optim.Adam(layer.parameters(), lr, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.1)
    curve = []
    for step in range(1, steps + 1):
        x, targets, _ = layer.task.batch(generator, batch)
        loss = F.mse_loss(layer(x), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        curve.append(loss.item())
        if progress is not None:
            progress(step, curve[-1])
    return curve


@torch.no_grad()
def evaluate(layer, seed=0, *, B=4096):
    """(total, per relation [n]): relative errors of the layer on B test sequences; total is their mean.

    The seed sets the test sequences. Another seed moves the 0.5 of one head by about 0.001 at B = 4096.
    """
    x, targets, _ = layer.task.batch(_generator(seed, TEST), B)
    errors = relative_errors(layer(x), targets, layer.task.n_relations)  # [n]
    return errors.mean().item(), errors


def relative_errors(outputs, targets, n_relations):
    """Mean squared error of each relation over the targets' mean square [n]; answering 0 scores 1.

    outputs, targets: [B, T, n_relations * numbers], the relations one after the other.
    """
    per_relation = (-1, (n_relations, targets.shape[-1] // n_relations))
    errors = (outputs - targets).square().unflatten(*per_relation)  # [B, T, n, numbers]
    scale = targets.square().unflatten(*per_relation)  # [B, T, n, numbers]
    return errors.mean((0, 1, 3)) / scale.mean((0, 1, 3))  # [n]


def floor(n_relations, h):
    """The least expected relative error of h heads of any width on n relations: max(0, (n - h) / n).

    It holds if patterns do not depend on content and content is white, so not with `reads_content` and not
    for `typed` tokens. For given pointers the wanted map is sum_i P_i (x) M_i with n equal Schmidt
    coefficients (a token's pointers differ; relations read and write different channels), and h heads give a
    map of Schmidt rank at most h. By Eckart and Young (1936) the best such map loses n - h of the n equal
    squares.

    Raises ValueError if n_relations or h is below 1.
    """
    if n_relations < 1 or h < 1:
        raise ValueError(f"n_relations and h must be at least 1; got n_relations = {n_relations} and h = {h}")
    return max(0, n_relations - h) / n_relations
