"""The memory of a run by what is in it: weights by format, gradients, optimizer, EMA, activations, frozen networks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.diffusion.quantized import QuantizedLinear
from modules.families._family import Family
from modules.run.format_memory import format_memory
from modules.torch_compat import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from modules.training.device.precision import Precision
from modules.training.memory.block_offload import aligned, offloaded_blocks
from modules.training.memory.live_bytes import LiveBytes, encoding_activations
from modules.training.memory.model_setup import prepare_model
from modules.training.memory.move_model import move_model
from modules.training.methods.submodules import submodule_of
from modules.training.optim.optimizers import OwnOptimizer, build_optimizer

GIB: Final = 2**30
Location = Literal["device", "host"]
Phase = Literal["training", "caching"]
_FORMATS: Final = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_BITS: Final = {torch.int8: "int8", torch.float8_e4m3fn: "fp8", torch.uint8: "nf4"}
# of optimizers whose step needs real memory: bytes of state for a weight, without the scales of its blocks
_STATE_OF_8BIT: Final = {"adamw_8bit": 2, "lion_8bit": 1}
_MEASURED: Final = (2, 4)  # samples in a micro-batch, from which larger ones are extrapolated
_SLOTS: Final = 2  # of block_offload
_GATHERED_BLOCKS: Final = 2  # FSDP gathers the next one while it computes one
TOKEN_TABLE = "token_embedding"


@dataclass(frozen=True)
class MemoryRow:
    """One line: what is kept, where, in how many bytes of one rank, and during what."""

    what: str
    place: Location
    bytes: int
    phase: Phase
    is_exact: bool = True


@dataclass(frozen=True)
class MemoryTable:
    """The rows of one rank; `has_activations` says whether they are among them. `trained` counts parameters."""

    rows: tuple[MemoryRow, ...]
    has_activations: bool
    trained: int

    def total(self, place: Location, phase: Phase, *, only_exact: bool = False) -> int:
        """Bytes of one rank that are needed at the same time."""
        return sum(
            row.bytes
            for row in self.rows
            if (row.place, row.phase) == (place, phase) and (row.is_exact or not only_exact)
        )

    def needed(self, *, only_exact: bool = False) -> int:
        """Bytes of the device: the more of training and of caching."""
        return max(self.total("device", phase, only_exact=only_exact) for phase in ("training", "caching"))

    def lines(self, device: str = "the device") -> list[str]:
        """For a terminal."""
        width = max((len(row.what) for row in self.rows), default=0)
        found: list[str] = []
        for place, phase, title in (
            ("device", "training", f"Memory of {device} while training:"),
            ("device", "caching", f"Memory of {device} while images are cached:"),
            ("host", "training", "Host memory of each process, besides Python and torch:"),
        ):
            rows = [row for row in self.rows if (row.place, row.phase) == (place, phase)]
            if not rows:
                continue
            found.append(title)
            found += [
                f"  {row.what:<{width}}  {format_memory(row.bytes):>11}{'' if row.is_exact else '  estimated'}"
                for row in rows
            ]
            total = sum(row.bytes for row in rows)
            is_whole = place == "host" or any(row.what.startswith("activations") for row in rows)
            more = "" if is_whole else ", without activations"
            found.append(f"  {'together' + more:<{width}}  {format_memory(total):>11}")
        return found

    def as_data(self) -> dict[str, object]:
        """For JSON."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "has_activations": self.has_activations,
            "trained": self.trained,
        }


def memory_table(
    kind: type[Family], config: TrainConfig, world_size: int = 1, *, activations: bool = True
) -> MemoryTable | None:
    """What each of `world_size` ranks keeps; None if the model is not known before it is loaded.

    No memory is taken and nothing is read but headers. Raises ConfigError as set-up does. Without `activations` it
    takes a second, with them some seconds for a large model.
    """
    replicas = config.num_nodes if config.fsdp_replicate == "machines" else 1
    shards = max(1, world_size // replicas) if config.training_mode == "fully_sharded" else 1
    with fake_family(kind, config.model_copy(update={"block_offload": 0.0})) as family:
        if family is None:
            return None
        offloaded = offloaded_blocks(family.model, config.block_offload) if config.block_offload else []
        trained = sum(weight.numel() for weight in family.model.parameters() if weight.requires_grad)
        rows = [*_weights(family, shards, offloaded), *_offloaded(offloaded), *_state(family, config, shards)]
        if shards > 1:
            rows.append(_gathered(family.model, config))
            rounding = _rounding(family.model, shards)
        peak = _activations(kind, family, config) if activations else None
    if peak is not None:
        clip = "" if config.clip_step is None else f"{config.frames} frames of "
        size = f"{clip}{config.largest_resolution} x {config.largest_resolution}"
        rows.append(MemoryRow(f"activations of {config.batch_size} x {size} pixels", "device", peak, "training", False))
    if config.fsdp_cpu_offload and shards > 1:
        kept = ("activations", "gathered")
        rows = [row if row.what.startswith(kept) else MemoryRow(row.what, "host", row.bytes, row.phase) for row in rows]
        rows.append(MemoryRow("rounding of pinned weights and gradients", "host", rounding, "training", False))
    if activations:
        encoding = encoding_activations(kind, config)
        rows += [MemoryRow(what, "device", size, "caching", False) for what, size in encoding.items()]
    saved = sum(row.bytes for row in rows if row.what.startswith(("trained", "optimizer", "EMA", "outer")))
    rows.append(MemoryRow("copy of what is trained, while a backup is written", "host", saved, "training"))
    return MemoryTable((*rows, *_frozen(kind, config)), peak is not None, trained)


def _weights(family: Family, shards: int, offloaded: Sequence[Sequence[nn.Linear]]) -> list[MemoryRow]:
    """Frozen and trained weights of each submodule by format, each storage once, without those of offloaded layers."""
    sizes: Counter[tuple[bool, str, str]] = Counter()
    elsewhere = {layer for block in offloaded for layer in block}
    seen = {id(weight) for layer in elsewhere for name, weight in layer.named_parameters() if name == "weight"}
    for name, module in family.model.named_modules():
        part = submodule_of(name, family.submodules) or "model"
        if isinstance(module, QuantizedLinear) and module not in elsewhere:
            bits = _BITS.get(module._bits.dtype)
            sizes[False, part, f"{bits} with scales" if bits else _format(module._bits)] += _layer_bytes(module)
        own = [(each, each.requires_grad) for each in module.parameters(recurse=False)]
        own += [(each, False) for each in module.buffers(recurse=False)]
        for tensor, is_trained in own:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                sizes[is_trained, part, _format(tensor)] += _shard_bytes(
                    tensor, shards if isinstance(tensor, nn.Parameter) else 1
                )
    return [
        MemoryRow(f"{'trained' if trained else 'frozen'} weights of {part}, {kind}", "device", size, "training")
        for (trained, part, kind), size in sorted(sizes.items(), key=lambda each: -each[1])
    ]


def _offloaded(blocks: Sequence[Sequence[nn.Linear]]) -> list[MemoryRow]:
    """The layers of `block_offload`: all of them on the host, two blocks of them on the device, with all scales."""
    sizes = [sum(aligned(_bits_bytes(layer)) for layer in block) for block in blocks]
    if not sizes:
        return []
    rows = [
        MemoryRow("two of the offloaded blocks", "device", _SLOTS * max(sizes), "training", False),
        MemoryRow(f"frozen weights of {len(sizes)} offloaded blocks", "host", sum(sizes), "training", False),
    ]
    scales = sum(_layer_bytes(layer) - _bits_bytes(layer) for block in blocks for layer in block)
    return [*rows, MemoryRow("scales of the offloaded blocks", "device", scales, "training")] if scales else rows


def _bits_bytes(layer: nn.Linear) -> int:
    return layer._bits.nbytes if isinstance(layer, QuantizedLinear) else layer.weight.nbytes


def _layer_bytes(layer: nn.Linear) -> int:
    if isinstance(layer, QuantizedLinear):
        return sum(tensor.nbytes for tensor in (layer._bits, layer._scales) if tensor is not None)
    return layer.weight.nbytes


def _state(family: Family, config: TrainConfig, shards: int) -> list[MemoryRow]:
    trained = [weight for weight in family.model.parameters() if weight.requires_grad]
    own = [nn.Parameter(torch.empty(_shard_shape(weight, shards), dtype=weight.dtype)) for weight in trained]
    size = sum(weight.nbytes for weight in own)
    held_by_optimizer = [nn.Parameter(weight.float()) if weight.dtype == torch.bfloat16 else weight for weight in own]
    state, is_exact = _optimizer_bytes(held_by_optimizer, config, family.own_optimizer(config))
    gradients = max((weight.nbytes for weight in own), default=0) if config.fused_backward else size
    rows = [
        MemoryRow("gradients", "device", gradients, "training"),
        MemoryRow(f"optimizer state ({config.optimizer.name})", "device", state, "training", is_exact),
    ]
    if config.ema:
        average = sum(weight.nbytes for weight in held_by_optimizer)  # in fp32 as well
        rows.append(
            MemoryRow("EMA of the trained weights", "host" if config.ema_on_cpu else "device", average, "training")
        )
        if config.ema_on_cpu:
            rows.append(MemoryRow("copy of the weights for the EMA", "host", size, "training", False))
    if config.local_steps is not None and config.num_nodes > 1:  # on the first rank of each machine
        outer = 2 * sum(weight.nbytes for weight in held_by_optimizer)
        rows.append(MemoryRow("outer state (local_steps)", "host", outer, "training"))
    return rows


def _optimizer_bytes(
    weights: Sequence[nn.Parameter], config: TrainConfig, own: OwnOptimizer | None
) -> tuple[int, bool]:
    """What the optimizer keeps after its first step, and whether that is known exactly."""
    if config.optimizer.name in _STATE_OF_8BIT:
        return sum(weight.numel() for weight in weights) * _STATE_OF_8BIT[config.optimizer.name], False
    optimizer = build_optimizer(weights, config, own)
    for weight in weights:
        weight.grad = torch.empty_like(weight)
    call_in_fake(optimizer.step)  # state is made before values are looked at
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in _tensors(kept)), True


def _tensors(values: Iterable[object]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


def _activations(kind: type[Family], family: Family, config: TrainConfig) -> int | None:
    """The peak of what forward and backward of a micro-batch take besides weights and gradients.

    Where gradients are dropped at the end of a step, those that a backward makes take the place of activations that it
    has used: what counts is then the peak of both together, less all gradients.
    Computed for up to four samples. More are extrapolated from two and four: what a sample adds does not depend on
    the others, while families that take samples one by one need minutes for ten thousand of them.
    """
    if config.device != "cpu":
        _norms_in_fp32(family.model)
    for weight in family.model.parameters():
        if weight.requires_grad and config.fused_backward:
            weight.register_post_accumulate_grad_hook(_drop_gradient)
    if config.batch_size <= _MEASURED[1]:
        return _peak(kind, family, config, config.batch_size)
    peaks = [_peak(kind, family, config, samples) for samples in _MEASURED]
    if peaks[0] is None or peaks[1] is None:
        return None
    more = config.batch_size - _MEASURED[1]
    return peaks[1] + max(peaks[1] - peaks[0], 0) * more // (_MEASURED[1] - _MEASURED[0])


def _peak(kind: type[Family], family: Family, config: TrainConfig, samples: int) -> int | None:
    trained = [weight for weight in family.model.parameters() if weight.requires_grad]
    are_kept = _keeps_gradients(config)
    for weight in trained:
        weight.grad = torch.zeros_like(weight) if are_kept else None
    with LiveBytes() as live, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's of kernels that only the CPU lacks
        loss = _forward(kind, family, config, samples)
        if loss is not None:
            loss.sum().backward()
    if loss is None:
        return None
    gradients: int = 0 if are_kept else sum(weight.nbytes for weight in trained)
    return max(0, int(live.peak) - gradients)


def _keeps_gradients(config: TrainConfig) -> bool:
    """Whether gradients are there before a backward: in DDP's buckets, or of the micro-batch before."""
    accumulates = config.gradient_accumulation_steps > 1 or (config.global_batch_size or 0) > config.batch_size
    return accumulates or config.enable_multi_gpu or config.fused_backward  # which drops them one by one


def _norms_in_fp32(model: nn.Module) -> None:
    """As CUDA's autocast computes them, and the CPU's does not: a quarter of a UNet's activations."""

    def widen(norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(each.float() for each in inputs)

    for module in model.modules():
        in_fp32 = all(weight.dtype == torch.float32 for weight in module.parameters(recurse=False))
        if type(module) in (nn.GroupNorm, nn.LayerNorm) and in_fp32:
            module.register_forward_pre_hook(widen)


def _drop_gradient(weight: Tensor) -> None:
    weight.grad = None


def _forward(kind: type[Family], family: Family, config: TrainConfig, samples: int) -> Tensor | None:
    with Precision(config.precision, torch.device("cpu")).autocast():
        size = (config.largest_resolution, config.largest_resolution)
        return kind.meta_loss(config, family.model, size, samples)


def _frozen(kind: type[Family], config: TrainConfig) -> list[MemoryRow]:
    rows = []
    for each in kind.frozen_networks(config):
        what = f"{each.name}, {each.weights}"
        rows.append(MemoryRow(what, "device", each.bytes, "caching", each.is_exact))
        if each.needed != "loaded":
            place: Location = "device" if each.needed == "steps" else "host"
            rows.append(MemoryRow(what, place, each.bytes, "training", each.is_exact))
    return rows


def _gathered(model: nn.Module, config: TrainConfig) -> MemoryRow:
    """Whole blocks during a forward of FSDP, in the dtype that they are gathered in."""
    names = {
        name
        for module in model.modules()
        for attribute in ("_no_split_modules", "_repeated_blocks")
        for name in getattr(module, attribute, None) or ()
    }
    half = 2 if config.precision in ("bf16", "fp16") else 1
    blocks = [
        sum(weight.nbytes for weight in module.parameters()) // half
        for module in model.modules()
        if type(module).__name__ in names
    ]
    whole = sum(weight.nbytes for weight in model.parameters()) // half
    largest = max(blocks, default=whole)
    return MemoryRow("gathered weights of two blocks", "device", _GATHERED_BLOCKS * largest, "training", False)


def _rounding(model: nn.Module, shards: int) -> int:
    """What FSDP's CPU offload takes besides: torch rounds each pinned weight and gradient up to a power of two."""
    sizes = [_shard_bytes(weight, shards) for weight in model.parameters()]
    sizes += [_shard_bytes(weight, shards) for weight in model.parameters() if weight.requires_grad]
    return sum((1 << (size - 1).bit_length()) - size for size in sizes if size)


def _format(tensor: Tensor) -> str:
    return _FORMATS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def _shard_shape(weight: Tensor, shards: int) -> list[int]:
    """Of rank 0: rows are divided, rounded up."""
    if shards == 1 or not weight.dim():
        return list(weight.shape)
    return [-(-weight.shape[0] // shards), *weight.shape[1:]]


def _shard_bytes(weight: Tensor, shards: int) -> int:
    numbers = 1
    for side in _shard_shape(weight, shards):
        numbers *= side
    return numbers * weight.element_size()


@contextmanager
def fake_family(kind: type[Family], config: TrainConfig) -> Iterator[Family | None]:
    """The family with nothing but its prepared model; inside the block every tensor is fake. None if unknown.

    Raises ConfigError as set-up does.
    """
    model = kind.meta_model(config)
    if model is None:
        yield None
        return
    family: Any = object.__new__(kind)
    family.model = model
    family.add_placeholder_token = partial(_add_tokens, model)
    # kohya's layout is checked with a family that has more than its model
    prepared = config.model_copy(update={"lora_layouts": "diffusers"})
    with torch.device("meta"):  # the layers that adapters add, too: to initialise those takes seconds
        prepare_model(family, prepared, Precision(config.precision, torch.device("meta")))
    with FakeTensorMode(allow_non_fake_inputs=True):
        _give_storages(model)
        move_model(family, config, torch.device("cpu"))
        yield family


def _give_storages(model: nn.Module) -> None:
    """Let the tensors of a model on the meta device be fake ones on the CPU, shared ones still shared."""
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            made[id(tensor)] = (
                nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
            )
        return made[id(tensor)]

    for module in model.modules():
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for store in stores:
            for name, value in list(store.items()):
                if isinstance(value, Tensor):
                    store[name] = fake(value)


def _add_tokens(model: nn.Module, token: str, vectors: int, init: str) -> Mapping[str, list[int]]:
    """As Family.add_placeholder_token, with as many rows for the token."""
    found = {}
    for name, table in list(model.named_modules()):
        if isinstance(table, nn.Embedding) and name.endswith(TOKEN_TABLE):
            parent, _, own = name.rpartition(".")
            larger = nn.Embedding(table.num_embeddings + vectors, table.embedding_dim)
            setattr(model.get_submodule(parent), own, larger)
            found[name] = list(range(table.num_embeddings, table.num_embeddings + vectors))
    return found


def call_in_fake(work: Callable[[], object]) -> bool:
    """Whether `work` ended; what depends on the values of tensors cannot be computed without memory."""
    try:
        work()
    except (DataDependentOutputException, DynamicOutputShapeException):
        return False
    return True
