"""What crosses the line arrives as it was sent, and nothing else can be made of what a stranger sends."""
import enum
import json
import socket
import struct

import pytest
import torch

from multihead_course.grading import wire
from multihead_lessons.calling import Float


@pytest.fixture
def line():
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


def _through(line, value):
    wire.send(line[0], value)
    return wire.receive(line[1], 5)


@pytest.mark.parametrize("tensor", [
    torch.randn(2, 3), torch.randn(2, 3, dtype=torch.float64).T, torch.randn(2, 5, 36)[..., 12:24],
    torch.tensor(3), torch.zeros(0, 3), torch.ones(1).expand(3, 4), torch.tensor([True, False]),
    torch.randn(3, 2).to(torch.bfloat16), torch.randn(4, dtype=torch.complex64).conj(),
    torch.randn(2, 3).transpose(0, 1).requires_grad_()],
    ids="plain transposed slice scalar empty expanded bool bfloat16 conjugate gradient".split())
def test_a_tensor_arrives_with_its_strides(line, tensor):
    found = _through(line, tensor)
    assert torch.equal(found, tensor) and found.dtype == tensor.dtype
    assert found.stride() == tensor.stride() and found.requires_grad == tensor.requires_grad


def test_a_large_view_of_a_small_part_is_sent_as_the_part(line):
    part = torch.zeros(wire.MAX_MEMORY // 4 + 1)[:3]
    assert torch.equal(_through(line, part), torch.zeros(3))


@pytest.mark.parametrize("value", [
    None, True, 3, -2.5, "text", (1, [2, (3,)]), {"a": 1, 2: "b"}, [], (), 2**70, torch.float16, Float(2.5)])
def test_plain_data_arrives(line, value):
    found = _through(line, value)
    assert found == value and type(found) is type(value)


def test_derived_numbers_arrive_as_plain_ones(line):
    assert _through(line, enum.IntEnum("N", "a").a) == 1
    assert type(_through(line, torch.Size([2, 3]))) is tuple


def test_other_objects_arrive_as_their_type_alone(line):
    found = _through(line, [torch.ones(2, 2).to_sparse(), type("<b>", (), {})(), torch.nn.Linear(1, 1)])
    assert [isinstance(one, wire.Unreadable) for one in found] == [True] * 3
    assert [type(one).__name__ for one in found] == ["sparse_coo_float32_tensor_on_cpu", "object", "Linear"]


def test_what_is_too_large_is_not_sent(line):
    with pytest.raises(wire.TooLarge):
        wire.send(line[0], torch.zeros(wire.MAX_MEMORY // 4 + 1))
    with pytest.raises(wire.TooLarge):
        wire.send(line[0], "x" * wire.MAX_TEXT)


def _tensor(**changes):
    about = {"tensor": "float32", "shape": [2], "strides": [1], "offset": 0, "bytes": 8, "grad": False}
    return {**about, **changes}


@pytest.mark.parametrize("text, memory", [
    ("{", b""), ("[" * 100_000, b""), ("9" * 10_000, b""), (_tensor(), b""), (_tensor(bytes=-8), b""),
    (_tensor(tensor="object"), bytes(8)),
    (_tensor(shape=[4]), bytes(8)), (_tensor(strides=[-1]), bytes(8)), (_tensor(offset=1), bytes(8)),
    (_tensor(shape=[10**12], strides=[0]), bytes(8)), (_tensor(shape=[1] * 40, strides=[1] * 40), bytes(8)),
    (_tensor(shape="no"), bytes(8)),
    ({"dict": [[[], 1]]}, b""), ({"dict": 3}, b""), (None, b"left over")])
def test_what_is_no_message_is_refused(line, text, memory):
    text = (text if isinstance(text, str) else json.dumps(text)).encode()
    line[0].sendall(struct.pack("<II", len(text), len(memory)) + text + memory)
    with pytest.raises(wire.Malformed):
        wire.receive(line[1], 5)


def test_a_length_is_not_believed(line):
    line[0].sendall(struct.pack("<II", 2**32 - 1, 0))
    with pytest.raises(wire.Malformed):
        wire.receive(line[1], 5)


def test_silence_and_the_end_of_the_line(line):
    with pytest.raises(TimeoutError):
        wire.receive(line[1], 0.05)
    line[0].close()
    with pytest.raises(EOFError):
        wire.receive(line[1], 5)
