"""Values as bytes between the grader and a submission: JSON, and the memory of tensors. Nothing is unpickled.

A message is two lengths (4 bytes each), JSON, then the memory of all tensors in it. The other side can only
send wrong numbers: types come from a fixed list, and lengths are checked before anything is made of them.
"""
from __future__ import annotations

import json
import re
import socket
import struct
import time
from typing import Any

import numpy as np
import torch

from multihead_lessons import calling

MAX_TEXT = 4 << 20     # bytes of JSON in one message
MAX_MEMORY = 64 << 20  # bytes of tensors in one message
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}
NAME = re.compile(r"[A-Za-z_]\w{0,40}")


class Malformed(ValueError):
    """The other side sent something that is no message."""


class TooLarge(ValueError):
    """A value that does not fit into one message."""


class Unreadable:
    """Stands for a value that is neither a tensor nor plain data. Its class is named as the value's was."""


def send(channel: socket.socket, message: Any) -> None:
    """Sends one message. Raises TooLarge before anything is sent."""
    channel.sendall(packed(message))


def packed(message: Any) -> bytes:
    """A message as bytes. Raises TooLarge."""
    memory: list[bytes] = []
    text = json.dumps(_pack(message, memory)).encode()
    size = sum(map(len, memory))
    if len(text) > MAX_TEXT or size > MAX_MEMORY:
        raise TooLarge(f"{(len(text) + size) >> 20} MB")
    return b"".join([struct.pack("<II", len(text), size), text, *memory])


def receive(channel: socket.socket, seconds: float | None = None) -> Any:
    """The next message. Raises TimeoutError when time is up, EOFError at the end, Malformed for all else."""
    deadline = None if seconds is None else time.monotonic() + seconds
    text_size, memory_size = struct.unpack("<II", _exactly(channel, 8, deadline))
    if text_size > MAX_TEXT or memory_size > MAX_MEMORY:
        raise Malformed("too large")
    text, memory = _exactly(channel, text_size, deadline), _exactly(channel, memory_size, deadline)
    try:
        return _unpack(json.loads(text), memoryview(memory))
    except (ValueError, TypeError, LookupError, RuntimeError, OverflowError) as error:
        raise Malformed(type(error).__name__) from None


def _exactly(channel: socket.socket, size: int, deadline: float | None) -> bytearray:
    found, at = bytearray(size), 0
    while at < size:
        channel.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-3))
        count = channel.recv_into(memoryview(found)[at:])
        if not count:
            raise EOFError
        at += count
    return found


def _pack(value: Any, memory: list[bytes]) -> Any:
    if isinstance(value, torch.Tensor):
        return _pack_tensor(value, memory)
    if isinstance(value, calling.Float):
        return {"float": value.value}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, np.bool_):
        return bool(value)
    if value is None:
        return None
    for kind in (bool, int, float, str):  # of a class derived from one of these, the plain value
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [_pack(part, memory) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[_pack(key, memory), _pack(part, memory)] for key, part in value.items()]}
    return {"other": type(value).__name__}


def _pack_tensor(tensor: torch.Tensor, memory: list[bytes]) -> Any:
    """Shape, strides and memory: an input that is a view arrives as the same view."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return {"other": f"{tensor.layout}_{dtype}_tensor_on_{tensor.device.type}".replace("torch.", "")}
    plain = tensor.detach().resolve_conj().resolve_neg()
    size = plain.numel() * plain.element_size()
    if size > MAX_MEMORY:
        raise TooLarge(f"a tensor of {size >> 20} MB")
    storage = plain.untyped_storage()
    if len(storage) > MAX_MEMORY:  # a small part of something large
        plain = plain.clone()
        storage = plain.untyped_storage()
    memory.append(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes())
    return {"tensor": dtype, "shape": list(plain.shape), "strides": list(plain.stride()),
            "offset": plain.storage_offset(), "bytes": len(memory[-1]), "grad": tensor.requires_grad}


def _unpack(value: Any, memory: memoryview) -> Any:
    reader = [memory]  # what is left of it: tensors come in the order in which their memory does
    found = _unpack_from(value, reader)
    if len(reader[0]):
        raise Malformed("more memory than tensors")
    return found


def _unpack_from(value: Any, reader: list[memoryview]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return _unpack_tensor(value, reader)
    if "float" in value:
        return calling.Float(float(value["float"]))
    if "dtype" in value:
        return DTYPES[value["dtype"]]
    if "tuple" in value:
        return tuple(_unpack_from(part, reader) for part in value["tuple"])
    if "list" in value:
        return [_unpack_from(part, reader) for part in value["list"]]
    if "dict" in value:
        return {_unpack_from(key, reader): _unpack_from(part, reader) for key, part in value["dict"]}
    return stand_in(value.get("other"))


def stand_in(name: Any) -> Unreadable:
    """An object whose class has this name, if it is a name."""
    return type(name if isinstance(name, str) and NAME.fullmatch(name) else "object", (Unreadable,), {})()


def _unpack_tensor(about: dict, reader: list[memoryview]) -> torch.Tensor:
    dtype, shape, size = DTYPES[about["tensor"]], [int(n) for n in about["shape"]], int(about["bytes"])
    if not 0 <= size <= len(reader[0]) or min(shape, default=0) < 0 or len(shape) > 16:
        raise Malformed("bad tensor")
    numbers = 1
    for length in shape:
        numbers *= length
    if numbers * dtype.itemsize > MAX_MEMORY:  # an expanded tensor says much with little memory
        raise Malformed("bad tensor")
    own, reader[0] = bytearray(reader[0][:size]), reader[0][size:]
    flat = torch.frombuffer(own, dtype=dtype) if size else torch.empty(0, dtype=dtype)
    tensor = flat.as_strided(shape, [int(n) for n in about["strides"]], int(about["offset"]))
    return tensor.requires_grad_() if about["grad"] is True and dtype.is_floating_point else tensor
