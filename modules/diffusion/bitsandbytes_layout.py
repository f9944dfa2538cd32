"""Linear layers that bitsandbytes has quantised, as diffusers and transformers save them; read without that package.

nf4, of a layer NAME (bitsandbytes/functional.py, QuantState.as_dict): NAME.weight, two weights in a byte, the first in
the upper half; NAME.weight.quant_map, the 16 levels; NAME.weight.absmax, the scales of blocks of 64 weights, in fp32,
or with double quantisation a byte each, for which nested_quant_map and nested_absmax are what quant_map and absmax are
for weights, and nested_offset is added; NAME.weight.quant_state.bitsandbytes__nf4, all else as JSON. int8
(bitsandbytes/nn/modules.py, Linear8bitLt): NAME.weight, and NAME.SCB, the largest weight of each output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import Field
from safetensors import SafetensorError
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.base_model_files import DAMAGED, open_safetensors, read_shapes
from modules.diffusion.quantized import BLOCK, NF4_LEVELS
from modules.files import FileFault, Record, decode_json, printable, read_json, validate_record

_STATE: Final = ".quant_state.bitsandbytes__"
_NF4_PARTS: Final = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", f"{_STATE}nf4")
_ENDS: Final = (*(f".weight{part}" for part in _NF4_PARTS), ".SCB", ".weight_format", ".weight")
_STATE_LIMIT: Final = 1 << 12  # bytes of JSON; it has some 170
_LARGEST: Final = 127  # of int8
_METHOD_LIMIT: Final = 60  # characters of a name in a message
READ: Final = "nf4 with blocks of 64 weights, also with double quantisation, and int8, both of bitsandbytes"
TAKE_ANOTHER: Final = (
    "Use the model that it was quantised from, in bf16: Tandem quantises it while it is loaded (parts.0.weights: nf4, "
    "and family_options.text_encoder_weights: nf4 for text encoders)."
)

Side = Annotated[int, Field(ge=1, le=1 << 24)]


class _State(Record):
    """The JSON of a layer in 4 bits."""

    quant_type: str
    blocksize: int
    shape: Annotated[list[Side], Field(min_length=2, max_length=2)]
    nested_blocksize: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    nested_offset: float | None = None


class _QuantizationConfig(Record):
    """What config.json says of the weights beside it, as far as it matters here."""

    quant_method: str = ""
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    bnb_4bit_quant_type: str = "fp4"


@dataclass(frozen=True)
class StoredLayer:
    """A linear layer in 4 or 8 bits, in a file, or in two: the libraries fill shards tensor by tensor."""

    file: Path  # of the tensor that tells its kind
    name: str
    shape: tuple[int, int]
    state: _State | None  # of nf4
    places: Mapping[str, Path] = field(repr=False)  # the file of each tensor of the component

    @property
    def kind(self) -> Literal["nf4", "int8"]:
        """As `parts.N.weights` calls it."""
        return "int8" if self.state is None else "nf4"

    @property
    def bytes(self) -> int:
        """What is kept of it in memory: bits, and one scale in fp32 for each block or output."""
        if self.state is None:
            return math.prod(self.shape) + 4 * self.shape[0]
        return -(-math.prod(self.shape) // BLOCK) * (BLOCK // 2 + 4)

    def empty(self) -> tuple[Tensor, Tensor]:
        """Bits and scales on torch's meta device."""
        if self.state is None:
            sizes = (self.shape, (self.shape[0], 1))
        else:
            blocks = -(-math.prod(self.shape) // BLOCK)
            sizes = ((blocks, BLOCK // 2), (blocks, 1))
        bits = torch.int8 if self.state is None else torch.uint8
        return torch.empty(sizes[0], dtype=bits, device="meta"), torch.empty(sizes[1], device="meta")

    def read(self) -> tuple[Tensor, Tensor]:
        """Bits, mapped from the file, and scales in fp32, as QuantizedLinear has them. Raises ConfigError."""
        try:
            with ExitStack() as stack:
                tensors = _Tensors(self.places, stack)
                read = _read_int8(tensors, self) if self.state is None else _read_nf4(tensors, self, self.state)
                if not bool(read[1].isfinite().all()):
                    raise FileFault("has scales that are not finite numbers")
                return read
        except (FileFault, OSError, SafetensorError) as error:
            raise ConfigError(f"base_model: {str(self.file)!r}: {self.name!r} {error}.", DAMAGED) from error


class _Tensors:
    """The tensors of several files, each of which is opened once, and closed with `stack`."""

    def __init__(self, places: Mapping[str, Path], stack: ExitStack) -> None:
        self.places, self._stack = places, stack
        self._opened: dict[Path, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def __getitem__(self, name: str) -> Tensor:
        """Mapped from its file. Raises FileFault if no file has it."""
        if name not in self.places:
            raise FileFault(f"lacks {name!r}")
        file = self.places[name]
        if file not in self._opened:
            self._opened[file] = self._stack.enter_context(open_safetensors(file))
        tensor: Tensor = self._opened[file].get_tensor(name)
        return tensor


def stored_layers(folder: Path, component: str, files: Sequence[Path]) -> dict[str, StoredLayer]:
    """The quantised layers in the `files` of a component, by name; empty if none are.

    Raises ConfigError if config.json or a file is of a method that is not read.
    """
    config = _method(folder / component / "config.json")
    shapes = {file: read_shapes([file]) for file in files}
    everything = {name: shape for own in shapes.values() for name, shape in own.items()}
    places = {name: file for file, own in shapes.items() for name in own}
    found: dict[str, StoredLayer] = {}
    for file, own in shapes.items():
        try:
            with ExitStack() as stack:
                tensors = _Tensors(places, stack)
                for name in own:
                    if (layer := _layer(tensors, name, everything)) is not None:
                        found[layer.name] = layer
        except (FileFault, OSError, SafetensorError) as error:
            raise ConfigError(f"base_model: {str(file)!r}: {error}.", TAKE_ANOTHER) from error
    if config and not found:
        raise ConfigError(
            f"base_model: {str(folder / component / 'config.json')!r} says that the weights are quantised by {config}, "
            "but no file beside it has its tensors.",
            "Copy or download the model folder again, or remove quantization_config from config.json.",
        )
    return found


def is_part_of(layers: Mapping[str, StoredLayer], name: str) -> bool:
    """Whether the tensor `name` of a file is one of those that a quantised layer is stored as."""
    layer = next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), None)
    return layer in layers


def plain_shapes(files: Sequence[Path], layers: Mapping[str, StoredLayer]) -> dict[str, list[int]]:
    """The shapes of all tensors as if the layers were not quantised, by name."""
    shapes = {name: shape for name, shape in read_shapes([*files]).items() if not is_part_of(layers, name)}
    return shapes | {f"{name}.weight": [*layer.shape] for name, layer in layers.items()}


def _method(config_json: Path) -> str:
    """What quantised the weights beside it; empty for nothing. Raises ConfigError unless it is read."""
    try:
        config = read_json(config_json, only_finite=False)
        given = config.get("quantization_config") if isinstance(config, dict) else None
        if given is None:
            return ""
        found = validate_record(_QuantizationConfig, given)
    except (FileFault, OSError) as error:
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
        raise ConfigError(f"base_model: quantization_config in {str(config_json)!r} {reason}.", DAMAGED) from error
    method = found.quant_method or ("bitsandbytes" if found.load_in_4bit or found.load_in_8bit else "")
    name = method or "a method without a name"
    if method == "bitsandbytes" and found.load_in_4bit:
        name = f"bitsandbytes {found.bnb_4bit_quant_type}"
    elif method == "bitsandbytes" and found.load_in_8bit:
        name = "bitsandbytes int8"
    if name not in ("bitsandbytes nf4", "bitsandbytes int8"):
        raise _not_read(config_json, f"its weights are quantised by {printable(name, _METHOD_LIMIT)}")
    return name


def _layer(tensors: _Tensors, name: str, shapes: Mapping[str, list[int]]) -> StoredLayer | None:
    """The quantised layer that has `name` as the tensor that tells its kind."""
    file = tensors.places[name]
    if _STATE in name:
        tensor, _, kind = name.partition(_STATE)
        if kind != "nf4" or not tensor.endswith(".weight"):
            raise _not_read(file, f"{tensor!r} is in {printable(kind, _METHOD_LIMIT)} of bitsandbytes")
        state = _read_state(tensors, name, shapes[name])
        if state.quant_type != "nf4" or state.blocksize != BLOCK:
            what = f"{printable(state.quant_type, _METHOD_LIMIT)} with blocks of {state.blocksize} weights"
            raise _not_read(file, f"{tensor!r} is in {what}")
        return StoredLayer(
            file, tensor.removesuffix(".weight"), (state.shape[0], state.shape[1]), state, tensors.places
        )
    if not name.endswith(".SCB"):
        return None
    layer = name.removesuffix(".SCB")
    shape = shapes.get(f"{layer}.weight")
    if shape is None:
        raise FileFault(f"has {name!r}, but lacks {layer + '.weight'!r}")
    if len(shape) != 2:
        raise FileFault(f"{layer + '.weight'!r} has the shape {shape}, but {name!r} says that it is a matrix in int8")
    return StoredLayer(file, layer, (shape[0], shape[1]), None, tensors.places)


def _read_state(tensors: _Tensors, name: str, shape: Sequence[int]) -> _State:
    if math.prod(shape) > _STATE_LIMIT:
        raise FileFault(f"{name!r} has {math.prod(shape)} bytes; at most {_STATE_LIMIT} are read")
    tensor = tensors[name]
    if tensor.dtype != torch.uint8:
        raise FileFault(f"{name!r} is not in bytes")
    try:
        return validate_record(_State, decode_json(bytes(tensor.flatten().tolist())))
    except FileFault as error:
        raise FileFault(f"{name!r} {error}") from error


def _read_nf4(tensors: _Tensors, layer: StoredLayer, state: _State) -> tuple[Tensor, Tensor]:
    count = math.prod(layer.shape)
    blocks = -(-count // BLOCK)

    def tensor(end: str, size: int, dtype: torch.dtype) -> Tensor:
        return _tensor(tensors, f"{layer.name}.weight{end}", (size,), dtype)

    if not torch.equal(tensor(".quant_map", len(NF4_LEVELS), torch.float32), torch.tensor(NF4_LEVELS)):
        raise FileFault("has other levels than those of NormalFloat in 4 bits, which are not read")
    if state.nested_offset is None:
        scales = tensor(".absmax", blocks, torch.float32)
    else:
        size = state.nested_blocksize or BLOCK
        places = tensor(".absmax", blocks, torch.uint8).int()
        largest = tensor(".nested_absmax", -(-blocks // size), torch.float32).repeat_interleave(size)[:blocks]
        scales = tensor(".nested_quant_map", 256, torch.float32)[places] * largest + state.nested_offset
    # bnb_4bit_quant_storage may call the bytes bf16
    bits = tensors[f"{layer.name}.weight"].reshape(-1).view(torch.uint8)
    if len(bits) != -(-count // 2):
        raise FileFault(f"has {len(bits)} bytes, while its shape {[*layer.shape]} in nf4 needs {-(-count // 2)}")
    if len(bits) != blocks * BLOCK // 2:
        bits = torch.nn.functional.pad(bits, (0, blocks * BLOCK // 2 - len(bits)))
    return bits.view(blocks, BLOCK // 2), scales.view(blocks, 1)


def _read_int8(tensors: _Tensors, layer: StoredLayer) -> tuple[Tensor, Tensor]:
    bits = _tensor(tensors, f"{layer.name}.weight", layer.shape, torch.int8)
    largest = _tensor(tensors, f"{layer.name}.SCB", layer.shape[:1], torch.float32)
    form = f"{layer.name}.weight_format"
    if form in tensors and int(_tensor(tensors, form, (), torch.uint8)) != 0:
        raise FileFault("has its weights in another order than row by row, which is not read")
    return bits, (largest / _LARGEST).view(-1, 1)


def _tensor(tensors: _Tensors, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """One tensor as it has to be. Raises FileFault for any other."""
    tensor = tensors[name]
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        given, wanted = (
            f"{list(s)} in {str(d).removeprefix('torch.')}" for s, d in ((tensor.shape, tensor.dtype), (shape, dtype))
        )
        raise FileFault(f"has {name!r} of the shape {given} instead of {wanted}")
    return tensor


def _not_read(file: Path, what: str) -> ConfigError:
    return ConfigError(
        f"base_model: {str(file)!r}: {what}; of models that are quantised already, Tandem reads {READ}.", TAKE_ANOTHER
    )
