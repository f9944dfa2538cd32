"""Frozen linear layers whose weights are kept in 8 or 4 bits or in host memory: under adapters, in text encoders.

int8: one scale for each output, absmax / 127. fp8: float8_e4m3fn with one scale for each output, absmax / 448. nf4:
blocks of 64 weights, each a scale and the 16 levels of NormalFloat (Dettmers et al. 2023, arXiv:2305.14314, appendix
E), as bitsandbytes keeps them without double quantisation. Weights are computed with in the dtype of the input. In
torch alone, so on any device, to the same values on each rank.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from modules.torch_compat import FakeTensor

QUANTIZED: Final = ("int8", "fp8", "nf4")
BLOCK: Final = 64  # weights of nf4 that share a scale
SCALE_BYTES: Final = 4
BITS_DTYPES: Final = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "nf4": torch.uint8}
_LARGEST: Final = {"int8": 127, "fp8": torch.finfo(torch.float8_e4m3fn).max, "nf4": 1}
_PIECES: Final = {"cpu": 1 << 18, "cuda": 1 << 24}  # weights that are converted at a time
NF4_LEVELS: Final = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
# Norms, embedders, and the first and last layer stay as they are, as in diffusers' layerwise casting
# (hooks/layerwise_casting.py, DEFAULT_SKIP_MODULES_PATTERN), besides what the model itself names.
_SKIPPED: Final = (r"embed", r"norm", r"^proj_in$", r"^proj_out$")
STORED_PLAIN: Final = "_stored_plain"  # of a network, some of whose layers its files have quantised: all others
_SKIP_LISTS: Final = ("_skip_layerwise_casting_patterns", "_keep_in_fp32_modules", STORED_PLAIN)


class Lender(Protocol):
    """Brings the bits of a layer to the device, to be used until those of another block are asked for."""

    def lend(self, layer: QuantizedLinear) -> Tensor: ...


class QuantizedLinear(nn.Linear):
    """A frozen linear layer; `weight` is what its bits stand for, computed anew each time."""

    _bits: Tensor  # no parameters or buffers: neither DDP nor backups have to do with them
    _scales: Tensor | None  # without them the bits are the weight
    _table: Tensor | None  # of `_byte_values`, beside the scales: a GPU would have to wait for one made at each use
    lender: Lender | None = None  # of bits that are kept in host memory
    is_outline = False  # see `outlines`

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # in place of the parameter
        """[out, in] in fp32, or in the dtype in which it is kept if it is not quantised."""
        if self.is_outline:
            return torch.empty(1, device=self._bits.device).expand(self.out_features, self.in_features)
        return self.dequantized(torch.float32 if self._scales is not None else self._bits.dtype).clone()

    def dequantized(self, dtype: torch.dtype, *, lent: bool = False) -> Tensor:
        """The weight [out, in], multiplied in fp32 and rounded once to `dtype`; lent, if it needs no conversion.

        With `lent` it may be overwritten by the next one that is asked for so.
        """
        bits = self._bits if self.lender is None else self.lender.lend(self)
        if self._scales is None:
            return bits.to(dtype)
        width = bits.shape[1] * (2 if bits.dtype == torch.uint8 else 1)
        if lent and bits.device.type == "cpu" and type(bits) is Tensor and not torch.compiler.is_compiling():
            weight = _workspace.empty(len(bits), width, dtype)
        else:
            weight = torch.empty(len(bits), width, dtype=dtype, device=bits.device)
        for rows in _pieces(weight, bits.device):
            torch.mul(_values(bits[rows], self._table), self._scales[rows], out=weight[rows])
        return weight.flatten()[: self.out_features * self.in_features].view(self.out_features, self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        kind = input.device.type
        if torch.is_autocast_enabled(kind) and input.dtype != torch.float64:
            input = input.to(torch.get_autocast_dtype(kind))
        return cast(Tensor, _Product.apply(input, self))  # type: ignore[no-untyped-call]

    def hold(self, bits: Tensor, scales: Tensor | None) -> None:
        """Make these the bits, and the scales in fp32 unless the bits are the weight."""
        self._bits, self._scales = bits, scales
        self._table = None if scales is None else _byte_values(bits.dtype, scales.device)

    def move(self, device: torch.device) -> None:
        """Take the bits to `device`, unless they are lent; the bias moves as others do."""
        self.hold(
            self._bits if self.lender is not None else self._bits.to(device),
            None if self._scales is None else self._scales.to(device),
        )


@contextmanager
def outlines(model: nn.Module) -> Iterator[None]:
    """Inside the block the `weight` of a QuantizedLinear has its shape, dtype and device, but no values: for code that
    asks for nothing else, as peft does of each layer that it adapts."""
    layers = [layer for layer in model.modules() if isinstance(layer, QuantizedLinear) and layer._scales is not None]
    for layer in layers:
        layer.is_outline = True
    try:
        yield
    finally:
        for layer in layers:
            layer.is_outline = False


class _Product(torch.autograd.Function):
    """Keeps no weight for the backward but its bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        bias = None if layer.bias is None else layer.bias.to(x.dtype)
        return functional.linear(x, layer.dequantized(x.dtype, lent=True), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return gradient @ ctx.layer.dequantized(gradient.dtype, lent=True), None


class _Workspace(threading.local):
    """Where a thread computes weights on the CPU, one at a time. Memory for each anew would leave gaps in that of the C
    library: hundreds of MB for a model of 1 GB, in some runs."""

    memory: Tensor | None = None

    def empty(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """[rows, width], until the next call."""
        size = rows * width * dtype.itemsize
        if self.memory is None or len(self.memory) < size:
            with torch.inference_mode(False):  # its tensors could not be written to in a training step
                self.memory = torch.empty(size, dtype=torch.uint8)
        return self.memory[:size].view(dtype).view(rows, width)


_workspace = _Workspace()


def _byte_values(dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """What each byte of bits stands for: of nf4 two levels in one complex64, [256]; of fp8 on a CPU, which has no
    instruction that converts it, one fp32, [256]; else None."""
    if dtype == torch.uint8:
        levels = torch.tensor(NF4_LEVELS, device=device)
        pairs = (levels.repeat_interleave(len(levels)), levels.repeat(len(levels)))
        return torch.view_as_complex(torch.stack(pairs, dim=1))
    if dtype == torch.float8_e4m3fn and device.type == "cpu":
        return torch.arange(256, dtype=torch.uint8).view(dtype).float()
    return None


def _values(bits: Tensor, table: Tensor | None) -> Tensor:
    """[rows, bytes] to [rows, weights], before the scale, in a dtype that holds them exactly."""
    if table is not None:
        found = table.index_select(0, bits.view(torch.uint8).flatten().int())
        return (torch.view_as_real(found) if table.is_complex() else found).view(len(bits), -1)
    if bits.dtype == torch.int8:
        return bits.float() if bits.device.type == "cpu" else bits  # which a GPU multiplies as it is
    return bits.to(torch.bfloat16)


@torch.no_grad()
def quantize_(layer: nn.Linear, kind: str, device: torch.device, into: tuple[Tensor, Tensor] | None = None) -> None:
    """Make a frozen `layer` a QuantizedLinear in place, its bits on `device`; `kind` is one of QUANTIZED.

    In pieces, so that next to none of it is in fp32 at a time. `into`: bits and scales of `quantized_shape` to fill.
    """
    rows, width = quantized_shape(layer, kind)
    weight = layer.weight.detach()
    if kind == "nf4":
        missing = -weight.numel() % BLOCK
        weight = (functional.pad(weight.flatten(), (0, missing)) if missing else weight).reshape(-1, BLOCK)
    bits, scales = into or (
        torch.empty(rows, width, dtype=BITS_DTYPES[kind], device=device),
        torch.empty(rows, 1, dtype=torch.float32, device=device),
    )
    for piece in _pieces(weight, device):
        values = weight[piece].to(device).to(torch.float32)  # at once, torch would convert in host memory, then copy
        largest = values.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        scales[piece] = largest / _LARGEST[kind]
        values = values / scales[piece]
        if kind == "nf4":
            levels = torch.tensor(NF4_LEVELS, device=device)
            # the nearest level: how many midpoints between levels lie below
            codes = torch.bucketize(values, (levels[1:] + levels[:-1]) / 2, out_int32=True).to(torch.uint8)
            bits[piece] = codes[:, ::2] << 4 | codes[:, 1::2]
        else:
            bits[piece] = (values if kind == "fp8" else values.round()).to(BITS_DTYPES[kind])
    replace_weight_(layer, bits, scales)


def _pieces(weight: Tensor, device: torch.device) -> Iterator[slice]:
    """Rows of `weight`, so many at a time that a GPU has enough to do, and a CPU's allocator reuses their memory."""
    piece = _PIECES.get(device.type, max(_PIECES.values())) // weight.shape[1]
    if isinstance(weight, FakeTensor):
        piece = len(weight)  # takes no memory, and the number of operations counts
    for start in range(0, len(weight), max(1, piece)):
        yield slice(start, start + max(1, piece))


@torch.no_grad()
def keep_in_host_memory_(layer: nn.Linear, dtype: torch.dtype) -> None:
    """Make a frozen `layer` a QuantizedLinear in place whose bits are its weight in `dtype`, on the CPU."""
    replace_weight_(layer, layer.weight.detach().to("cpu", dtype).contiguous(), None)


def replace_weight_(layer: nn.Linear, bits: Tensor, scales: Tensor | None) -> None:
    """Make `layer` a QuantizedLinear in place with these bits, and scales in fp32 unless the bits are the weight."""
    layer._parameters.pop("weight", None)
    layer.__class__ = QuantizedLinear
    cast(QuantizedLinear, layer).hold(bits, scales)


@torch.no_grad()
def dequantize_(layer: QuantizedLinear, weight: Tensor) -> None:
    """Make a layer in place an nn.Linear with this weight [out, in] in place of its bits."""
    del layer._bits, layer._scales, layer._table
    layer.__dict__.pop("lender", None)
    plain: nn.Linear = layer
    plain.__class__ = nn.Linear
    plain.weight = nn.Parameter(weight, requires_grad=False)


def can_be_quantized(name: str, layer: nn.Module, part: nn.Module) -> bool:
    """Whether the layer `name` of `part` is a frozen linear layer that no list keeps in the dtype of the others."""
    if type(layer) is not nn.Linear or any(weight.requires_grad for weight in layer.parameters()):
        return False
    plain = name.removesuffix(".base_layer")  # of peft
    own = [pattern for attribute in _SKIP_LISTS for pattern in getattr(part, attribute, None) or ()]
    return not any(re.search(pattern, plain) for pattern in (*_SKIPPED, *own))


def quantized_bytes(layer: nn.Linear, kind: str) -> int:
    """What `quantize_` keeps of the weight of `layer`, which may be on the meta device."""
    rows, width = quantized_shape(layer, kind)
    return rows * (width + SCALE_BYTES)


def quantized_shape(layer: nn.Linear, kind: str) -> tuple[int, int]:
    """Rows, each with a scale, and the bytes of each without it."""
    if kind == "nf4":
        return -(-layer.out_features * layer.in_features // BLOCK), BLOCK // 2
    return layer.out_features, layer.in_features
