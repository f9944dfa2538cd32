"""Every private or version-bound name of torch that Tandem uses, for torch 2.11 to 2.15; no other module names one.

tests/test_torch_compat.py finds those that do. Names are taken where a module needs them, so a torch without one that
only a rare setting needs still trains everything else.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.multiprocessing.spawn import _prctl_pr_set_pdeathsig as set_parent_death_signal
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

__all__ = [
    "ATTENTION_OPERATORS",
    "COMPILER_CACHE",
    "CPU_ATTENTION",
    "FLIGHT_RECORDERS",
    "AnyBatchNorm",
    "DataDependentOutputException",
    "DisableTorchFunctionSubclass",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "HashStore",
    "PrefixStore",
    "Store",
    "TCPStore",
    "TorchDispatchMode",
    "TorchTooOld",
    "after_backward",
    "all_gather_single",
    "allow_recompiles",
    "compiler_cache",
    "ddp_options",
    "default_store",
    "found_overflows",
    "gathered_apart",
    "in_backward",
    "leave_out_compiler",
    "needs_zero_gradients",
    "set_group_timeout",
    "set_parent_death_signal",
    "shared_storage",
    "tree_leaves",
]


class TorchTooOld(RuntimeError):
    """The installed torch lacks what a setting needs; the message names the version that has it."""

    def __init__(self, version: str) -> None:
        super().__init__(f"needs torch {version} or newer; torch {torch.__version__} is installed")


# One process


CPU_ATTENTION: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # not in torch's registry of FLOPs
ATTENTION_OPERATORS: Final = (
    CPU_ATTENTION,
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_cudnn_attention,
    torch.ops.aten._flash_attention_forward,
    torch.ops.aten._efficient_attention_forward,
)


COMPILER_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"


def in_backward() -> bool:
    """Whether autograd is computing a backward on this thread; torch.utils.checkpoint asks in the same way."""
    return torch._C._current_graph_task_id() != -1


def after_backward(work: Callable[[], None]) -> None:
    """Within a backward: call `work` at its end, in the order of these calls."""
    torch.autograd.Variable._execution_engine.queue_callback(work)


def allow_recompiles(count: int) -> None:
    """Let torch.compile compile a function for at least `count` kinds of input."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, count)


def compiler_cache() -> str:
    """The folder of inductor's generated code, unless COMPILER_CACHE names one: torchinductor_USER in /tmp."""
    return str(importlib.import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir())


def leave_out_compiler() -> None:
    """For a process that compiles nothing. torch's optimizers, dispatch modes and DDP import torch.compile's front end,
    which takes half as long as torch, to tell it what it must not compile; from now on they do without. In a torch
    with other names for that (seen: 2.13), they import it as before.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    for method in (
        *(getattr(Optimizer, name, None) for name in names),
        getattr(DistributedDataParallel, "_inside_ddp_forward", None),
        *(mode.__torch_dispatch__ for mode in TorchDispatchMode.__subclasses__()),
    ):
        if method is not None:
            function: Any = inspect.unwrap(method)
            vars(function).setdefault("__dynamo_disable", function)  # where torch keeps the form that is not compiled
    for kind in vars(torch.optim).values():
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            continue
        step = vars(kind).get("step")
        if inspect.isfunction(step) and step.__code__.co_name == "_use_grad" and hasattr(step, "__wrapped__"):
            kind.step = _eager_step(step.__wrapped__)  # type: ignore[method-assign]
    DistributedDataParallel.__init__ = _without_compiler(DistributedDataParallel.__init__)  # type: ignore[method-assign]


def _eager_step(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def eager(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    return eager


def _without_compiler(build: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(build)
    def eager(*args: Any, **kwargs: Any) -> None:
        if "torch._dynamo" not in sys.modules:
            utils = _NotImported("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")  # the default
            vars(torch)["_dynamo"] = _NotImported("torch._dynamo", utils=utils)
        try:
            build(*args, **kwargs)
        finally:
            if isinstance(vars(torch).get("_dynamo"), _NotImported):
                del vars(torch)["_dynamo"]  # torch imports it when it is asked for it

    return eager


class _NotImported:
    """Has some attributes of a module, which it imports for the others."""

    def __init__(self, module: str, **known: object) -> None:
        self._module = module
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


def shared_storage(size: int) -> torch.UntypedStorage:
    """`size` bytes of shared memory. Raises RuntimeError if /dev/shm is full."""
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(size)
    return storage


def found_overflows(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    """After `unscale_`: the flags [1], one per device, that say whether a gradient was not finite; to be changed."""
    found: dict[torch.device, Tensor] = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return found.values()


# Process groups


FLIGHT_RECORDERS: Final[tuple[Callable[..., bytes], ...]] = tuple(
    getattr(c10d, name) for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json") if hasattr(c10d, name)
)
"""Gloo's recorder, and NCCL's if torch was built with it. Both are on unless TORCH_FR_BUFFER_SIZE is 0."""


def default_store() -> Store:
    """The store through which the default process group was formed."""
    return dist.distributed_c10d._get_default_store()


def set_group_timeout(group: dist.ProcessGroup | None, limit: timedelta) -> None:
    """From now on, collectives of `group` (None: the default group) that take longer than `limit` fail."""
    if hasattr(dist, "set_timeout"):  # torch 2.14
        dist.set_timeout(limit, group)
    else:
        dist.distributed_c10d._set_pg_timeout(limit, group)


def all_gather_single(gathered: Tensor, shard: Tensor, group: dist.ProcessGroup) -> None:
    """`shard` [N, ...] of every rank of `group` into `gathered` [ranks * N, ...]."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name, until torch 2.12
    gather(gathered, shard, group=group)


# DDP and FSDP2


def ddp_options(*, sync_buffers: bool, batched_copy: bool) -> dict[str, Any]:
    """DDP's arguments whose names depend on the version.

    `sync_buffers`: broadcast buffers in each forward. `batched_copy`: copy all gradients into a bucket at once, which
    is only faster; torch before 2.13 copies one by one.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return {name: sync_buffers, **({"batched_grad_copy": batched_copy} if "batched_grad_copy" in known else {})}


def needs_zero_gradients(model: FSDPModule, *, wanted: bool) -> None:
    """Whether weights that a rank's backward has left out take part in the reduction with zeros.

    Raises TorchTooOld if that is wanted before torch 2.13.
    """
    if hasattr(model, "set_reduce_scatter_unused_params"):
        model.set_reduce_scatter_unused_params(wanted)
    elif wanted:
        raise TorchTooOld("2.13")


def gathered_apart(mesh: DeviceMesh, chosen: Callable[[nn.Parameter], bool]) -> Callable[[nn.Parameter], Any]:
    """fully_shard's `shard_placement_fn` that lets the weights which are `chosen` be gathered over `mesh`, apart.

    `mesh` is of [shards] or [replicas, shards].

    Raises TorchTooOld before torch 2.13.
    """
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo, ShardPlacementResult
    except ImportError:
        raise TorchTooOld("2.13") from None
    replicated = HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0) if mesh.ndim > 1 else None
    apart = ShardPlacementResult(None, replicated or FSDPMeshInfo(mesh, shard_mesh_dim=0))
    return lambda weight: apart if chosen(weight) else None
