"""A pretended GPU: tensors whose device is cuda:0, computed on the CPU, for a torch built without CUDA.

`install()` registers device.cpp, and replaces what torch.cuda asks of a driver. Values are those of the CPU; devices,
dtypes and autocast those of a GPU. It is strict, as the slowest and the fastest GPU at once:

- an operator whose tensors are on different devices raises, as CUDA's does;
- every wait of the host (`.item()`, `.cpu()`, `nonzero`, a mask as index, `synchronize` ...) is told with its line;
- a copy to the host that is `non_blocking` arrives only when the host waits for an event after it, its stream or the
  device: until then its target holds garbage, so that who reads too early finds it;
- pinned memory that changes before the copy from it was waited for is a finding, and so is a data race, if wanted;
- memory is counted, and torch.OutOfMemoryError raised where a device has no more.

What it does not know: speed, the numbers of CUDA's kernels, and which kernels exist for which dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from tests.fake_cuda.build import extension
from tests.fake_cuda.races import Races
from tests.fake_cuda.streams import Queue, StreamContext
from tests.fake_cuda.watch import Watch, line

GIB: Final = 1 << 30
GARBAGE: Final = 0xAB


@dataclass(frozen=True)
class Card:
    """What is pretended."""

    devices: int = 1
    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    total_bytes: int = 80 * GIB
    others_bytes: int = GIB  # of other processes and the context
    races: bool = False  # whether data races are looked for, which takes time


@dataclass
class Gpu:
    """The installed one."""

    card: Card
    extension: ModuleType
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self) -> None:
        self.queue = Queue(self.extension, self.watch)
        self.extension.set_device_count(self.card.devices)
        self.extension.listen(self.on_host_read, self.on_draw, self.on_access, self.on_host_copy)
        self.look_for_races(self.card.races)
        for index in range(self.card.devices):
            self.set_total(self.card.total_bytes, index)

    def look_for_races(self, wanted: bool) -> None:
        """From now on; what was before is forgotten."""
        self.queue.races = Races() if wanted else None
        self.extension.tell_accesses(wanted)

    def set_total(self, total_bytes: int, index: int = 0) -> None:
        """A device has this much memory from now on."""
        memory = self.extension.memory(index)
        memory.total = memory.most = total_bytes
        memory.others = self.card.others_bytes

    @property
    def contexts(self) -> set[int]:
        """The devices of which this process has taken memory or on which it has started work."""
        found: set[int] = self.extension.contexts()
        return found

    # What device.cpp calls; a returned text is an error

    def on_host_read(self, operator: str, stream: int) -> str | None:
        """An operator that waits for its stream."""
        if self.queue.sync_mode in ("error", 2):
            return "called a synchronizing CUDA operation"
        self.queue.wait(operator, stream)
        return None

    def on_draw(self, operator: str) -> None:
        """A random number of the device's default generator."""
        self.watch.draws[f"{operator} {line()}"] += 1

    def on_access(self, operator: str, stream: int, read: set[int], written: set[int], freed: set[int]) -> None:
        """An operator reads and writes memory."""
        races = self.queue.races
        for race in () if races is None else races.access(operator, stream, read, written, freed):
            self.watch.found(f"data race, {race}")

    def on_host_copy(self, target: Tensor, source: Tensor, to_host: bool, non_blocking: bool, stream: int) -> None:
        """A copy between the host and a device; both are CPU tensors here."""
        pinned = self.extension.is_pinned(target if to_host else source)
        direction = "device to host" if to_host else "host to device"
        if not pinned:
            self.watch.pageable[f"{direction} {line()}"] += 1
        if not non_blocking:
            self.queue.wait(f"copy {direction}", stream)
            target.copy_(source)
        elif to_host:
            self._copy_to_host_later(target, source, stream, pinned)
        else:
            target.copy_(source)
            if pinned:
                self._expect_unchanged(source, stream)

    def _copy_to_host_later(self, target: Tensor, source: Tensor, stream: int, pinned: bool) -> None:
        if not pinned:
            self.watch.found("a non_blocking copy to pageable host memory, a race unless the device is waited for")
        arriving = torch.empty_like(target).copy_(source)
        if target.is_contiguous():
            _bytes_of(target).fill_(GARBAGE)

        def arrive() -> None:
            with torch.no_grad():
                target.copy_(arriving)

        self.queue.later(stream, arrive)

    def _expect_unchanged(self, source: Tensor, stream: int) -> None:
        before, where = source.detach().clone(), line()

        def check() -> None:
            # to the bit: NaN is not equal to itself
            if not torch.equal(_bytes_of(before), _bytes_of(source.detach().clone())):
                self.watch.findings[f"pinned memory was written before the copy from it was waited for: {where}"] += 1

        self.queue.later(stream, check)


def install(card: Card | None = None) -> Gpu:
    """Once in a process, before anything touches CUDA."""
    # which ask at their import whether torch is built with CUDA
    import torch._dynamo
    import torch._inductor.utils
    import torch.distributed.tensor

    gpu = Gpu(card or Card(), extension())
    replaced = {**_device_functions(gpu), **_stream_functions(gpu), **_random_functions(gpu), **_memory_functions(gpu)}
    for module in (torch.cuda, torch.cuda.random, torch.cuda.memory):
        for name, value in replaced.items():
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, value)
    for name, value in _c_functions(gpu).items():
        setattr(torch._C, name, value)
    torch.version.cuda = "13.0"
    _resize_storages(gpu.extension)
    _choose_attention(gpu.watch)
    _compile_eagerly()
    return gpu


def _device_functions(gpu: Gpu) -> Mapping[str, object]:
    card, exchange = gpu.card, gpu.extension.exchange_device
    index_of = gpu.queue.device_index
    properties = [
        SimpleNamespace(
            name=card.name,
            major=card.capability[0],
            minor=card.capability[1],
            total_memory=card.total_bytes,
            multi_processor_count=132,
            uuid=f"5f2e0000-0000-0000-0000-{index:012d}",
            warp_size=32,
            is_integrated=False,
            gcnArchName="",
            max_threads_per_multi_processor=2048,
            L2_cache_size=50 << 20,
        )
        for index in range(card.devices)
    ]

    class CurrentDevice:
        """torch.cuda.device."""

        def __init__(self, device: object) -> None:
            self.index = -1 if device is None else index_of(device)

        def __enter__(self) -> None:
            self.before = exchange(self.index)

        def __exit__(self, *_: object) -> None:
            exchange(self.before)

    def properties_of(device: object = None) -> SimpleNamespace:
        found = properties[index_of(device)]
        found.total_memory = gpu.extension.memory(index_of(device)).total
        return found

    return {
        "pretended": True,
        "device": CurrentDevice,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda call, **_: call(),
        "_is_in_bad_fork": lambda: False,
        "_is_compiled": lambda: True,
        "device_count": lambda: card.devices,
        "current_device": lambda: int(gpu.extension.current_device()),
        "set_device": lambda device: exchange(index_of(device)),
        "_exchange_device": lambda index: exchange(index),  # torch.compile needs functions, and different ones
        "_maybe_exchange_device": lambda index: exchange(index),
        "get_device_properties": properties_of,
        "get_device_name": lambda device=None: card.name,
        "get_device_capability": lambda device=None: card.capability,
        "get_arch_list": lambda: ["sm_80", "sm_90"],
        "is_bf16_supported": lambda including_emulation=True: card.capability >= (8, 0),
    }


def _c_functions(gpu: Gpu) -> Mapping[str, object]:
    exchange = gpu.extension.exchange_device
    return {
        "_cuda_getDevice": lambda: gpu.extension.current_device(),
        "_cuda_setDevice": lambda index: exchange(index),
        "_cuda_exchangeDevice": lambda index: exchange(index),
        "_cuda_maybeExchangeDevice": lambda index: exchange(index),
        "_cuda_getDeviceCount": lambda: gpu.card.devices,
        "_cuda_emptyCache": gpu.extension.empty_cache,
        "_cuda_isCurrentStreamCapturing": lambda: False,
    }


def _stream_functions(gpu: Gpu) -> Mapping[str, object]:
    stream_type, event_type = gpu.queue.stream_types()
    index_of = gpu.queue.device_index

    def synchronize(device: object = None) -> None:
        gpu.queue.wait("cuda.synchronize", None)

    def current_stream(device: object = None) -> object:
        index = index_of(device)
        return stream_type(index, stream_id=gpu.extension.current_stream(index))

    return {
        "Stream": stream_type,
        "Event": event_type,
        "stream": StreamContext,
        "synchronize": synchronize,
        "current_stream": current_stream,
        "default_stream": lambda device=None: stream_type(index_of(device), stream_id=0),
        "set_stream": lambda stream: gpu.extension.set_stream(stream.device_index, stream.stream_id),
        "is_current_stream_capturing": lambda: False,
        "set_sync_debug_mode": lambda mode: setattr(gpu.queue, "sync_mode", mode),
        "get_sync_debug_mode": lambda: gpu.queue.sync_mode,
    }


def _random_functions(gpu: Gpu) -> Mapping[str, object]:
    generators = tuple(gpu.extension.default_generator(index) for index in range(gpu.card.devices))

    def generator(device: object = None) -> torch.Generator:
        found: torch.Generator = generators[gpu.queue.device_index(device)]
        return found

    return {
        "default_generators": generators,
        "manual_seed": lambda seed: generator().manual_seed(seed),
        "manual_seed_all": lambda seed: [each.manual_seed(seed) for each in generators],
        "initial_seed": lambda: generator().initial_seed(),
        "get_rng_state": lambda device="cuda": generator(device).get_state(),
        "set_rng_state": lambda state, device="cuda": generator(device).set_state(state),
        "get_rng_state_all": lambda: [each.get_state() for each in generators],
    }


def _memory_functions(gpu: Gpu) -> Mapping[str, object]:
    def memory(device: object = None) -> Any:
        return gpu.extension.memory(gpu.queue.device_index(device))

    def reader(name: str) -> Callable[..., int]:
        return lambda device=None: int(getattr(memory(device), name))

    def mem_get_info(device: object = None) -> tuple[int, int]:
        found = memory(device)
        return found.total - found.others - found.reserved, found.total

    def reset_peak_memory_stats(device: object = None) -> None:
        found = memory(device)
        found.peak_allocated, found.peak_reserved = found.allocated, found.reserved

    def set_fraction(fraction: float, device: object = None) -> None:
        found = memory(device)
        found.most = int(fraction * found.total)

    def nested_stats(device: object = None) -> dict[str, object]:
        found = memory(device)
        allocated = {"current": found.allocated, "peak": found.peak_allocated}
        reserved = {"current": found.reserved, "peak": found.peak_reserved}
        stats = {"allocated_bytes": allocated, "active_bytes": allocated, "reserved_bytes": reserved}
        each: dict[str, object] = {name: {"all": values} for name, values in stats.items()}
        return {**each, "num_ooms": found.refusals, "num_alloc_retries": 0}

    def register(address: int, size: int, flags: int) -> int:
        gpu.extension.pin(address, size)
        return 0

    def unregister(address: int) -> int:
        gpu.extension.unpin(address)
        return 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    return {
        "cudart": lambda: runtime,
        "mem_get_info": mem_get_info,
        "memory_allocated": reader("allocated"),
        "max_memory_allocated": reader("peak_allocated"),
        "memory_reserved": reader("reserved"),
        "max_memory_reserved": reader("peak_reserved"),
        "memory_stats_as_nested_dict": nested_stats,
        "memory_stats": lambda device=None: {},
        "reset_peak_memory_stats": reset_peak_memory_stats,
        "set_per_process_memory_fraction": set_fraction,
        "empty_cache": gpu.extension.empty_cache,
        "ipc_collect": lambda: None,
    }


def _resize_storages(extension: ModuleType) -> None:
    """FSDP gives the memory of gathered weights back without dropping their tensors; torch does it in CUDA's code."""
    kind: Any = torch.UntypedStorage
    former = kind.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        if self.device.type != "cuda":
            return former(self, size)
        extension.resize_storage(self, size)
        return self

    kind.resize_ = resize_


def _choose_attention(watch: Watch) -> None:
    """The kernel that CUDA would take, of which the CPU has one that takes as little memory: flash and cuDNN take
    neither a mask nor fp32; without it the scores of all pairs of tokens are kept."""
    attention = torch.nn.functional.scaled_dot_product_attention
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if type(attn_mask) not in (Tensor, type(None)):  # it decides itself, as torch's function lets it
            given: dict[str, Any] = {
                "dropout_p": dropout_p,
                "is_causal": is_causal,
                "scale": scale,
                "enable_gqa": enable_gqa,
            }
            whole: Tensor = handle_torch_function(
                scaled_dot_product_attention, (attn_mask,), query, key, value, attn_mask, **given
            )
            return whole
        if query.device.type != "cuda":
            return attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
        is_half = dtype in (torch.float16, torch.bfloat16)
        watch.attention["flash" if is_half and attn_mask is None else "efficient" if is_half else "slow"] += 1
        if dropout_p or query.dim() != 4 or query.shape[-1] != value.shape[-1]:
            return attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if enable_gqa:
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=dtype).masked_fill_(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            attn_mask = attn_mask.to(dtype)
        output: Tensor = flash(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
        return output

    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention  # before a library has imported it


def _compile_eagerly() -> None:
    """There is no compiler for the pretended device: torch.compile traces, and runs what it has traced."""
    compiled = torch.compile

    def compile_(model: Any = None, *, backend: str = "eager", **options: Any) -> Any:
        return compiled(model, backend="eager" if backend == "inductor" else backend, **options)

    torch.compile = compile_  # type: ignore[assignment]


def _bytes_of(tensor: Tensor) -> Tensor:
    """uint8 [bytes] of a contiguous tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8)
