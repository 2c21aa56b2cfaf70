"""relations.py against loops, layers built by hand and the floor."""

import math

import pytest
import torch
from torch.testing import assert_close

from multihead.relations import RelationLayer, Task, evaluate, floor, relative_errors, train

TWO = Task(n_relations=2)
TASKS = [Task(), Task(4), Task(3, T=6, numbers=2), Task(typed=True), Task(3, T=6, typed=True, numbers=1)]
every_task = pytest.mark.parametrize("task", TASKS, ids=str)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# ---- the task -------------------------------------------------------------------------------------------


@every_task
def test_targets_are_the_attributes_pointed_at(task):
    n, T, m = task.n_relations, task.T, task.numbers
    x, targets, pointers = task.batch(generator(), 3)
    assert [y.shape for y in (x, targets, pointers)] == [(3, T, task.d_in), (3, T, task.d_out), (3, T, n)]
    for b in range(3):
        for t in range(T):
            for i in range(n):
                there = x[b, pointers[b, t, i], task.d_address + i * m :][:m]
                assert torch.equal(targets[b, t, i * m : (i + 1) * m], there)
                assert there.count_nonzero() == m


@every_task
def test_addresses_are_one_hot_positions_and_pointers(task):
    x, _, pointers = task.batch(generator(), 5)
    blocks = x[..., : task.d_address].unflatten(-1, (-1, task.T))  # [B, T, 1 + n, T]
    assert torch.equal(blocks.sum(-1), torch.ones(5, task.T, 1 + task.n_relations))
    assert torch.equal(blocks[:, :, 0].argmax(-1), torch.arange(task.T).expand(5, -1))
    assert torch.equal(blocks[:, :, 1:].argmax(-1), pointers)


def test_pointers_of_a_token_are_distinct_and_uniform():
    _, _, pointers = Task(3, T=5).batch(generator(), 4000)
    ordered = pointers.sort(-1).values
    assert (ordered.diff(dim=-1) > 0).all()
    for i in range(3):
        share = pointers[..., i].flatten().bincount(minlength=5) / (4000 * 5)
        assert_close(share, torch.full((5,), 0.2), atol=0.02, rtol=0)


def test_typed_tokens_keep_one_attribute_and_are_pointed_at_for_it():
    task = Task(3, T=6, typed=True)
    x, _, pointers = task.batch(generator(), 50)
    content = x[..., task.d_address :].unflatten(-1, (3, -1))  # [B, T, n, numbers]
    kept = torch.arange(6)[:, None] % 3 == torch.arange(3)
    assert torch.equal(content.ne(0).all(-1), kept.expand(50, 6, 3))
    assert torch.equal(content.ne(0).any(-1), kept.expand(50, 6, 3))
    assert torch.equal(pointers % 3, torch.arange(3).expand(50, 6, 3))
    assert pointers.unique().tolist() == list(range(6))


@every_task
def test_targets_are_standard_normal(task):
    _, targets, _ = task.batch(generator(), 4000)
    assert_close(targets.mean((0, 1)), torch.zeros(task.d_out), atol=0.06, rtol=0)
    assert_close(targets.var((0, 1)), torch.ones(task.d_out), atol=0.08, rtol=0)


@pytest.mark.parametrize("wrong, words", [
    (dict(n_relations=0), "n_relations = 0"),
    (dict(numbers=0), "numbers = 0"),
    (dict(n_relations=5, T=4), "n_relations = 5 and T = 4"),
    (dict(n_relations=3, T=8, typed=True), "n_relations = 3, T = 8"),
])  # fmt: skip
def test_task_refuses(wrong, words):
    with pytest.raises(ValueError, match=words):
        Task(**wrong)


# ---- the layer ------------------------------------------------------------------------------------------


def test_layer_equals_a_loop_over_heads():
    task = Task(3, T=6, numbers=2)
    layer = RelationLayer(task, h=4, width=20)
    x = task.batch(generator(), 2).x
    outputs, weights = layer.heads(x)
    address, content = x[..., : 4 * 6], x[..., 4 * 6 :]
    total = 0
    for i in range(4):
        rows = slice(5 * i, 5 * (i + 1))
        w_q, w_k, w_v = (w.weight[rows].T for w in (layer.w_q, layer.w_k, layer.w_v))
        pattern = ((address @ w_q) @ (address @ w_k).mT / math.sqrt(5)).softmax(-1)
        assert_close(weights[:, i], pattern)
        assert_close(outputs[:, i], pattern @ (content @ w_v))
        total = total + outputs[:, i] @ layer.w_o.weight[:, rows].T
    assert_close(layer(x), total)


@pytest.mark.parametrize("reads_content", [False, True])
def test_content_moves_patterns_only_if_the_layer_reads_it(reads_content):
    task = Task()
    layer = RelationLayer(task, 2, 16, reads_content=reads_content)
    x = task.batch(generator(), 2).x
    changed = x.clone()
    changed[..., task.d_address :] += 1
    assert torch.equal(layer.heads(x)[1], layer.heads(changed)[1]) is not reads_content
    assert not torch.equal(layer(x), layer(changed))


def test_values_never_see_addresses():
    x = TWO.batch(generator(), 2).x
    x[..., TWO.d_address :] = 0
    assert RelationLayer(TWO, 2, 16)(x).count_nonzero() == 0


@pytest.mark.parametrize("width", [16, 32, 64])
def test_the_number_of_weights_does_not_depend_on_h(width):
    counts = {sum(p.numel() for p in RelationLayer(TWO, h, width).parameters()) for h in (1, 2, 4, 8)}
    assert counts == {2 * 24 * width + 8 * width + width * 8}


def test_initial_weights_fill_the_range_of_nn_linear_and_differ():
    layer = RelationLayer(TWO, 2, 32)
    for linear in (layer.w_q, layer.w_k, layer.w_v, layer.w_o):
        bound = 1 / math.sqrt(linear.in_features)
        assert linear.bias is None
        assert 0.95 * bound < linear.weight.abs().max() <= bound
    assert not torch.equal(layer.w_q.weight, layer.w_k.weight)


@pytest.mark.parametrize("h, width", [(0, 16), (3, 16), (1, 0)])
def test_layer_refuses(h, width):
    with pytest.raises(ValueError, match=f"h = {h} and width = {width}"):
        RelationLayer(Task(), h, width)


# ---- layers built by hand -------------------------------------------------------------------------------

SHARP = 200.0  # so large a score that softmax rounds to one-hot in float32


def built_layer(h, attention_scores, read_out):
    """A layer for two relations whose d_k is at least 8 and whose head i scores the token of pointer r with
    attention_scores[i][r] and any other with 0. Its values are the content, written out times read_out[i].
    """
    layer = RelationLayer(TWO, h, 8 * h)
    for weight in layer.parameters():
        weight.requires_grad_(False).zero_()
    for i in range(h):
        head = slice(8 * i, 8 * (i + 1))
        layer.w_k.weight[head, :8] = torch.eye(8)
        for r in range(2):
            pointer = slice(8 * (1 + r), 8 * (2 + r))
            layer.w_q.weight[head, pointer] += attention_scores[i][r] * math.sqrt(8) * torch.eye(8)
        layer.w_v.weight[head] = torch.eye(8)
        layer.w_o.weight[:, head] = torch.diag(torch.tensor(read_out[i]).repeat_interleave(4))
    return layer


def test_two_heads_do_the_task_exactly():
    layer = built_layer(2, [(SHARP, 0.0), (0.0, SHARP)], [(1.0, 0.0), (0.0, 1.0)])
    x, targets, _ = TWO.batch(generator(), 50)
    assert_close(layer(x), targets)
    assert evaluate(layer)[0] < 1e-10


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8, 1.0])
def test_one_head_shares_one_unit_of_error(p):
    q = 1 - p
    scores = (SHARP + math.log(p), SHARP + math.log(q) if q else 0.0)
    best = (p / (p**2 + q**2), q / (p**2 + q**2))  # least squares, for a_j from p a_j + q a_k and for b_k
    layer = built_layer(1, [scores], [best])
    x, _, pointers = TWO.batch(generator(), 2)
    picked = layer.heads(x)[1][:, 0].gather(-1, pointers)  # [B, T, 2]
    assert_close(picked, torch.tensor([p, q]).expand_as(picked), atol=1e-4, rtol=0)
    total, errors = evaluate(layer)
    assert_close(errors, torch.tensor([q**2, p**2]) / (p**2 + q**2), atol=0.01, rtol=0)
    assert total == pytest.approx(floor(2, 1), abs=0.005)


def test_one_head_does_typed_tokens_exactly():
    one_head = built_layer(1, [(SHARP, SHARP)], [(2.0, 2.0)])
    layer = RelationLayer(Task(typed=True), 1, 8)
    layer.load_state_dict(one_head.state_dict())
    assert evaluate(layer)[0] < 1e-10


# ---- errors and floor -----------------------------------------------------------------------------------


def test_relative_errors_by_hand():
    targets = torch.tensor([[[1.0, 3.0, 2.0, 2.0]]])  # two relations of two numbers; mean squares 5 and 4
    outputs = torch.tensor([[[2.0, 3.0, 2.0, 0.0]]])  # mean squared errors 1/2 and 2
    assert_close(relative_errors(outputs, targets, 2), torch.tensor([0.1, 0.5]))
    assert torch.equal(relative_errors(0 * targets, targets, 2), torch.ones(2))


def test_total_is_the_mean_over_relations():
    total, errors = evaluate(RelationLayer(Task(4), 2, 32))
    assert errors.shape == (4,)
    assert total == pytest.approx(errors.mean().item())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_floor_is_the_tail_of_the_schmidt_spectrum(n):
    """The wanted map [T d, T d] for drawn pointers, rearranged so that its rank is its Schmidt rank."""
    task = Task(n, T=4, numbers=2)
    pointers = task.batch(generator(), 1).pointers[0]  # [T, n]
    wanted = torch.zeros(4, task.d_out, 4, task.d_out)  # [token out, channel out, token in, channel in]
    for t in range(4):
        for i in range(n):
            for channel in range(2 * i, 2 * i + 2):
                wanted[t, channel, pointers[t, i], channel] = 1
    energy = torch.linalg.svdvals(wanted.transpose(1, 2).flatten(2).flatten(0, 1)).square()
    for h in range(1, 5):
        assert floor(n, h) == pytest.approx((energy[h:].sum() / energy.sum()).item(), abs=1e-6)


@pytest.mark.parametrize("n, h", [(0, 1), (2, 0)])
def test_floor_refuses(n, h):
    with pytest.raises(ValueError, match=f"n_relations = {n} and h = {h}"):
        floor(n, h)


# ---- training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task, h, width, low, high", [
    (TWO, 1, 32, 0.49, 0.54), (TWO, 2, 32, 0.0, 0.02), (TWO, 1, 128, 0.49, 0.54),
    (Task(typed=True), 1, 32, 0.0, 0.02),
], ids=str)  # fmt: skip
def test_a_short_training_ends_on_the_right_side_of_the_floor(task, h, width, low, high):
    layer = RelationLayer(task, h, width, seed=1)
    train(layer, seed=1, steps=200)
    assert low < evaluate(layer)[0] < high


def test_training_reports_every_step():
    steps = []
    curve = train(RelationLayer(TWO, 2, 16), steps=20, progress=lambda *step: steps.append(step))
    assert steps == list(enumerate(curve, start=1)) and len(curve) == 20
    assert curve[0] == pytest.approx(1, abs=0.2)  # a fresh layer answers almost 0


def test_training_refuses_too_few_steps():
    with pytest.raises(ValueError, match="got 19"):
        train(RelationLayer(TWO, 2, 16), steps=19)


def trained(weight_seed, data_seed):
    layer = RelationLayer(TWO, 2, 16, seed=weight_seed)
    return layer, train(layer, data_seed, steps=20)


def test_a_seed_fixes_everything_whatever_the_global_stream():
    torch.manual_seed(1)
    layer, curve = trained(3, 4)
    torch.manual_seed(2)
    again, curve_again = trained(3, 4)
    assert curve == curve_again
    assert all(map(torch.equal, layer.parameters(), again.parameters()))
    assert torch.equal(evaluate(layer, 5)[1], evaluate(again, 5)[1])


def test_the_global_stream_does_not_move():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    evaluate(trained(0, 0)[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_of_weights_training_and_test_all_matter():
    layer, curve = trained(0, 0)
    assert not torch.equal(RelationLayer(TWO, 2, 16).w_q.weight, RelationLayer(TWO, 2, 16, seed=1).w_q.weight)
    assert trained(0, 1)[1] != curve
    assert evaluate(layer, 0)[0] != evaluate(layer, 1)[0]
