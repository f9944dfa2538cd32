"""A file with weights in fp8 or int8 and their scales, as ComfyUI, musubi-tuner and others publish it.

Of a layer NAME: NAME.weight in one byte, and its scale, NAME.weight_scale, .scale_weight or .weight_scale_inv: a number
for all of it, one for each output [out] or [out, 1], or one for each block: of inputs [out, n, 1] or [out, n], or of
both [m, n] (weight_scale_inv: blocks of 128 x 128). A weight is what is stored times its scale, whatever the names say
(comfy_kitchen, tensor/fp8.py and int8.py; musubi-tuner, modules/fp8_optimization_utils.py; transformers, finegrained
fp8). .input_scale and .scale_input are for products in fp8. Which format it is says JSON in NAME.comfy_quant or in the
header (_quantization_metadata), before that a tensor scaled_fp8; here dtype and shapes do. With `convrot` a weight was
multiplied by regular Hadamard matrices (arXiv:2512.03673) before it was rounded, which are their own inverse.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import torch
from pydantic import Field
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.model_files.tensor_file import TensorFile, half_of_quantized
from modules.facts import file_prefix
from modules.files import FileFault, Record, decode_json, printable, validate_record

_SCALES: Final = (".weight_scale", ".scale_weight", ".weight_scale_inv")
_BLOCK: Final = 128  # of weight_scale_inv
_OF_INPUTS: Final = (".input_scale", ".scale_input")
_SETTINGS: Final = ".comfy_quant"
_MARKER: Final = "scaled_fp8"
IN_HEADER: Final = "_quantization_metadata"
_READ: Final = "float8_e4m3fn, float8_e5m2 and int8_tensorwise, also _rowwise and _blockwise"
_FORMATS: Final = ("float8_e4m3fn", "float8_e5m2", "int8")
_KINDS: Final = ("", "_tensorwise", "_rowwise", "_blockwise")
_ADVICE: Final = (
    "Use the file in bf16 or fp16 of the same model, which a run keeps in 4 or 8 bits with parts.0.weights nf4 or int8."
)
_STORED: Final = {torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8", torch.int8: "int8"}
_LONGEST_SETTINGS: Final = 1 << 12  # bytes of JSON; they have some 100
_LARGEST_ROTATION: Final = 4096
_PIECE: Final = 1 << 22  # weights that are computed in fp32 at a time

Group = Annotated[int, Field(ge=1, le=_LARGEST_ROTATION)]


class _Params(Record):
    """What the JSON of a layer says besides its format, there or one level further down."""

    convrot: bool = False
    convrot_groupsize: Group = 256


class _Settings(_Params):
    """The JSON of a layer."""

    format: str = ""
    params: _Params = _Params()

    @property
    def rotation(self) -> int:
        """Over how many inputs the weight was rotated; 0 for none."""
        found = next((each for each in (self, self.params) if each.convrot), None)
        return 0 if found is None else found.convrot_groupsize


class _InHeader(Record):
    layers: dict[str, _Settings]


@dataclass(frozen=True)
class _Layer:
    scale: str  # the name of the tensor
    rotation: int  # see `_Settings`


class ScaledFile(TensorFile):
    """Another file with its scales applied: weights become half precision, multiplied in fp32 and rounded once."""

    def __init__(self, source: TensorFile) -> None:
        """`source` is closed with it. Raises ConfigError if it is quantised in a way that is not read."""
        self.path, self.metadata = source.path, source.metadata
        self._source = source
        try:
            self._layers = dict(_layers(source))
        except FileFault as error:
            raise ConfigError(f"{str(source.path)!r} {error}.", _ADVICE) from error
        self.names = [name for name in source.names if not is_aside(name)]
        self._half = half_of_quantized([source.stored_dtype(name) for name in self.names])

    @staticmethod
    def has_scales(source: TensorFile) -> bool:
        """Whether a file has scales, or says that it is quantised."""
        return any(is_aside(name) for name in source.names)

    @property
    def quantized_as(self) -> str:
        kinds = {_STORED[self._source.stored_dtype(name)] for name in self._layers}
        return f"scaled {' and '.join(sorted(kinds))}" if kinds else self._source.quantized_as

    def close(self) -> None:
        self._source.close()

    def map(self, name: str) -> Tensor:
        layer = self._layers.get(name)
        stored = self._source.map(name)
        if layer is None:
            return stored
        block = _BLOCK if layer.scale.endswith("_inv") else 0
        try:
            return dequantized(stored, self._source.map(layer.scale), self._half, block=block, rotation=layer.rotation)
        except FileFault as error:
            raise ConfigError(f"{str(self.path)!r}: {name!r} {error}.", _ADVICE) from error

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def stored_dtype(self, name: str) -> torch.dtype:
        return self._half if name in self._layers else self._source.stored_dtype(name)


def dequantized(stored: Tensor, scale: Tensor, dtype: torch.dtype, *, block: int = 0, rotation: int = 0) -> Tensor:
    """`stored` in fp8 or int8 [out, in] times `scale`, computed in fp32 and rounded once to `dtype`.

    `block`: the side of the blocks of a scale [m, n], of which the last may be smaller; 0 for such that divide the
    sides. `rotation`: of so many inputs each, undone. Raises FileFault if the scale does not fit.
    """
    scale = scale.float()
    if scale.numel() == 1:
        scale = scale.reshape(1, 1)
    elif scale.dim() == 3 and scale.shape[2] == 1:
        scale = scale[:, :, 0]
    elif scale.dim() == 1:
        scale = scale[:, None]
    if scale.dim() != 2 or (stored.dim() != 2 and scale.numel() != 1):
        raise FileFault(f"of the shape {[*stored.shape]} has a scale of the shape {[*scale.shape]}, which is not read")
    rows = stored if stored.dim() == 2 else stored.reshape(1, -1)
    height, width = (_side(rows.shape[each], scale.shape[each], block, stored, scale) for each in (0, 1))
    weight = torch.empty(rows.shape, dtype=dtype)
    turn = _hadamard(rotation) if rotation > 1 else None
    if turn is not None and rows.shape[1] % rotation:
        raise FileFault(f"of the shape {[*stored.shape]} cannot have been rotated over {rotation} inputs")
    step = max(1, _PIECE // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        piece = rows[start : start + step].float()
        own = scale[torch.arange(start, start + len(piece)) // height]
        if width < rows.shape[1]:
            own = own.repeat_interleave(width, dim=1)[:, : rows.shape[1]]
        piece = piece * own
        if turn is not None:
            piece = (piece.reshape(-1, rotation) @ turn).reshape(piece.shape)
        weight[start : start + step] = piece
    return weight.reshape(stored.shape)


def _side(length: int, count: int, block: int, stored: Tensor, scale: Tensor) -> int:
    """The side of a block, of which `count` make up `length`."""
    if count == 1:
        return max(1, length)
    if block and count == -(-length // block):
        return block
    if block or length % count:
        raise FileFault(f"of the shape {[*stored.shape]} has a scale of the shape {[*scale.shape]}, which is not read")
    return length // count


@functools.cache
def _hadamard(size: int) -> Tensor:
    """The regular Hadamard matrix of this size over its root: orthogonal and symmetric. Raises FileFault for a size
    that is no power of 4."""
    four = torch.tensor([[1.0, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]])
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(matrix, four)
    if len(matrix) != size:
        raise FileFault(f"was rotated over {size} inputs, which is no power of 4")
    return matrix.div(size**0.5)


def is_aside(name: str) -> bool:
    """Whether a tensor is no part of the model, but of its quantisation."""
    return name.endswith((*_SCALES, *_OF_INPUTS, _SETTINGS)) or name.rpartition(".")[2] == _MARKER


def _layers(source: TensorFile) -> Iterator[tuple[str, _Layer]]:
    """The quantised layers, by the names of their weights. Raises FileFault."""
    settings, own = dict(_settings(source)), set(source.names)
    for name in source.names:
        end = next((end for end in _SCALES if name.endswith(end)), None)
        if end is None:
            continue
        layer = name.removesuffix(end)
        weight = f"{layer}.weight"
        if weight not in own:
            raise FileFault(f"has {printable(name, 200)!r}, but no {printable(weight, 200)!r}")
        given = settings.get(layer, _Settings())
        if given.format and given.format not in {form + kind for form in _FORMATS for kind in _KINDS}:
            raise FileFault(
                f"has {printable(layer, 200)!r} in the format {printable(given.format, 60)}; of quantised files are "
                f"read {_READ}"
            )
        if source.stored_dtype(weight) not in _STORED:
            kind = str(source.stored_dtype(weight)).removeprefix("torch.")
            raise FileFault(f"has {printable(weight, 200)!r} in {kind} with a scale; these are read in fp8 and int8")
        yield weight, _Layer(name, given.rotation)


def _settings(source: TensorFile) -> Iterator[tuple[str, _Settings]]:
    """What a file says of its layers, by their names. Raises FileFault."""
    prefix, own = file_prefix(source.names), set(source.names)
    if (text := source.metadata.get(IN_HEADER)) is not None:
        try:
            found: Mapping[str, _Settings] = validate_record(_InHeader, decode_json(text)).layers
        except FileFault as error:
            raise FileFault(f"has a header whose {IN_HEADER} {error}") from error
        for layer, settings in found.items():  # some programs leave out the prefix
            yield (layer if f"{layer}.weight" in own else prefix + layer), settings
    for name in source.names:
        if not name.endswith(_SETTINGS):
            continue
        shape, dtype = source.shape(name), source.stored_dtype(name)
        if len(shape) != 1 or shape[0] > _LONGEST_SETTINGS or dtype != torch.uint8:
            raise FileFault(f"has {printable(name, 200)!r}, which is no text of up to {_LONGEST_SETTINGS} bytes")
        try:
            given = validate_record(_Settings, decode_json(bytes(source.map(name).tolist()).rstrip(b"\0")))
        except FileFault as error:
            raise FileFault(f"has {printable(name, 200)!r}, which {error}") from error
        yield name.removesuffix(_SETTINGS), given
