"""FSDP2 (fully_shard): each rank holds a shard of every weight and gathers full weights only while it needs them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from modules.config import ConfigError, TrainConfig
from modules.distributed.ddp import MIB, same_on_all_ranks, with_sync_batch_norm
from modules.distributed.formatting import format_ranks, join_with_and
from modules.distributed.process_group import Group
from modules.distributed.startup.member import disambiguate_hosts, ranks_by_machine
from modules.distributed.weights import FullTensor, Weights, swap_values
from modules.torch_compat import TorchTooOld, all_gather_single, found_overflows, gathered_apart, needs_zero_gradients


def apply_fsdp(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    config: TrainConfig,
    group: Group,
    compute_dtype: torch.dtype | None,
    convert: Callable[[nn.Module], None] = lambda unit: None,
) -> ShardedWeights:
    """Shard `model`, which is on the CPU, in place over the ranks of `shard_groups`, with rank 0's weights.

    Each block becomes a unit whose weights are gathered together, and the rest of the model one more.
    `compute_dtype` is autocast's dtype, None without autocast. `convert` is called with each unit before it is sharded,
    so that no rank ever holds all weights as training wants them. Raises ConfigError if the model cannot be sharded.
    """
    for name, weight in model.named_parameters():
        if weight.dim() == 0:
            raise ConfigError(
                f"training_mode is 'fully_sharded', which cannot shard the scalar {name!r} of this model; "
                "use 'distributed', or give that weight the shape [1] in the family."
            )
    if config.sync_batch_norm:
        model = with_sync_batch_norm(model, group)
    same = same_on_all_ranks([*model.parameters(), *model.buffers()], group)
    # None is the dtype of the weights; autocast decides per operation, so inputs such as timesteps keep their precision
    reduce_dtype = None if compute_dtype is None else torch.float32
    if config.fsdp_reduce_precision == "bf16":
        reduce_dtype = torch.bfloat16
    precision = MixedPrecisionPolicy(compute_dtype, reduce_dtype, cast_forward_inputs=False)
    largest = 0
    groups = shard_groups(config, group)
    mesh = _mesh(groups, group)
    with _if_torch_has_it("stochastic_rounding", config.stochastic_rounding):
        placement = _apart_in_bf16(groups, group) if config.stochastic_rounding else None
    offload = CPUOffloadPolicy(pin_memory=group.device.type == "cuda") if config.fsdp_cpu_offload else OffloadPolicy()
    units = [*fsdp_units(model, blocks), model]
    for unit in units:
        convert(unit)
        outside = [weight for weight in unit.parameters() if not isinstance(weight, DTensor)]
        largest = max(largest, sum(weight.numel() * weight.element_size() for weight in outside))
        if not same:
            _broadcast_from_rank0(unit, group.device)
        fully_shard(
            unit,
            mesh=mesh,
            reshard_after_forward=config.fsdp_reshard_after_forward,
            mp_policy=precision,
            offload_policy=offload,
            shard_placement_fn=placement,
        )
    assert isinstance(model, FSDPModule), "fully_shard changes the class"
    with _if_torch_has_it("find_unused_parameters", config.find_unused_parameters):
        needs_zero_gradients(model, wanted=config.find_unused_parameters)
    return ShardedWeights(model, mesh, group, f"{len(units)} units of at most {largest / MIB:.1f} MiB")


def shard_groups(config: TrainConfig, group: Group) -> list[list[int]]:
    """The ranks that divide the weights among them, rank 0's first: all, or by fsdp_replicate those of each machine.

    Raises ConfigError, on all ranks, if the machines have unequal numbers of them.
    """
    if config.fsdp_replicate == "none":
        return [list(range(group.world_size))]
    machines = ranks_by_machine(group.members)
    if len({len(ranks) for ranks in machines}) > 1:
        members = disambiguate_hosts(group.members)
        found = join_with_and(f"{format_ranks(ranks)} on {members[ranks[0]].host}" for ranks in machines)
        raise ConfigError(
            f"fsdp_replicate is machines, which needs as many processes on each machine, but there are {found}.",
            "Start as many on each (processes_per_node), or set fsdp_replicate to none.",
        )
    return machines


def _mesh(groups: Sequence[Sequence[int]], group: Group) -> DeviceMesh:
    """A new one of [replicas, shards], or of [shards] alone if there is one replica."""
    one = len(groups) == 1
    ranks = torch.tensor(groups[0] if one else groups)
    mesh = DeviceMesh(group.device.type, ranks, mesh_dim_names=("shard",) if one else ("replica", "shard"))
    group.inner.extend(mesh.get_all_groups())
    return mesh


@contextmanager
def _if_torch_has_it(setting: str, value: object) -> Iterator[None]:
    """Turns TorchTooOld into a ConfigError about a setting."""
    try:
        yield
    except TorchTooOld as error:
        raise ConfigError(f"{setting} is {value}, which with training_mode 'fully_sharded' {error}.") from error


def _apart_in_bf16(groups: Sequence[Sequence[int]], group: Group) -> Callable[[nn.Parameter], Any]:
    """Let the weights of a unit that are in bf16 be gathered and reduced apart from those in fp32.

    FSDP2 wants one dtype in whatever it gathers together, and gathers together what has one process group: those in
    bf16 get groups of their own, of the same ranks. A mesh of all ranks makes none.
    """
    if len(groups) > 1:
        own = _mesh(groups, group)
    else:
        group.inner.append(dist.new_group(groups[0]))
        own = DeviceMesh.from_group(group.inner[-1], group.device.type)
    return gathered_apart(own, lambda weight: weight.dtype == torch.bfloat16)


def fsdp_units(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """The blocks that can be FSDP units, inner ones first; excludes the model and blocks that share weights."""
    owners: dict[int, set[int]] = {}
    wanted = {id(block) for block in blocks if block is not model}
    found = [module for module in model.modules() if id(module) in wanted][::-1]
    inside = {id(module): {id(inner) for inner in module.modules()} for module in found}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            owners.setdefault(id(weight), set()).add(id(module))
    shared = [modules for modules in owners.values() if len(modules) > 1]
    return [
        module
        for module in found
        if all(modules <= inside[id(module)] or not modules & inside[id(module)] for modules in shared)
    ]


class ShardedWeights(Weights):
    """`local` holds this rank's shards as plain tensors, since custom kernels and optimizers do not support DTensor.

    A full tensor [N, ...] is split along its first dimension among the ranks of a group of `shard_groups`: each holds
    ceil(N / ranks) rows, the last ones fewer or none. Every group has all rows, the same as the others.
    """

    are_sharded = True

    def __init__(self, model: FSDPModule, mesh: DeviceMesh, group: Group, units_text: str) -> None:
        assert isinstance(model, nn.Module), "fully_shard changes its class, but it stays a module"
        super().__init__(model)
        self._fsdp = model
        self._units_text = units_text
        self._device = group.device
        shards = mesh.shape[-1]
        self.replicas = mesh.size() // shards
        self.shard_ranks = mesh.mesh.view(-1, shards)[0].tolist()
        self.shard_index = mesh.get_local_rank("shard")
        self._group = mesh.get_group("shard")
        self._is_rank0 = group.rank == 0
        self._shards = self.local
        # a shard and its plain tensor share storage: the next forward gathers what the optimizer has written
        self.local = {name: nn.Parameter(_local(weight.detach())) for name, weight in self._shards.items()}

    def summary(self) -> str:
        """How much memory sharding saves."""
        full, local = Counter[str](), Counter[str]()
        for weight in self.model.parameters():
            for kind in ("weights", "gradients") if weight.requires_grad else ("weights",):
                full[kind] += weight.numel() * weight.element_size()
                local[kind] += _local(weight.detach()).numel() * weight.element_size()
        replicas = f" Replicated on {self.replicas} machines, which exchange gradients." if self.replicas > 1 else ""
        weights, gradients = (f"{local[kind] / MIB:.1f} of {full[kind] / MIB:.1f} MiB of {kind}" for kind in full)
        return (
            f"Fully sharded in {self._units_text}: each rank holds {weights} and {gradients}, which saves "
            f"{(full.total() - local.total()) / MIB:.1f} MiB, and the same share of EMA and optimizer state.{replicas}"
        )

    def set_gradient_sync(self, *, enabled: bool) -> None:
        """Whether the next backward reduces gradients over the ranks or accumulates them unreduced, in full."""
        self._fsdp.set_requires_gradient_sync(enabled)

    def set_replica_sync(self, *, enabled: bool) -> None:
        """Whether the next backward reduces the shards' gradients over the replicas or accumulates them as they are."""
        self._fsdp.set_requires_all_reduce(enabled)

    def leaf_tensors(self) -> Mapping[str, Tensor]:
        """The full weights that forwards use, by name: gathered unit by unit, their data freed again."""
        found: dict[str, Tensor] = {}
        for unit in self._units():
            unit.unshard()
            full = {name: weight for name, weight in self.model.named_parameters() if not isinstance(weight, DTensor)}
            found |= {name: weight for name, weight in full.items() if name in self.shapes}
            unit.reshard()
        return {name: found[name] for name in self.shapes}

    def collect_gradients(self) -> None:
        """Move the gradients from the shards to the plain tensors, so that the next backward starts from none."""
        for name, shard in self._shards.items():
            self.local[name].grad = None if shard.grad is None else _local(shard.grad)
            shard.grad = None

    def total_norm(self, local_norm: Tensor) -> Tensor:
        """sqrt(sum of squared local norms), from one all-reduce in fp64 over all ranks: if replicas added up in another
        order each, they would clip to other bits and drift apart."""
        square = local_norm.to(self._device, torch.float64).square()
        dist.all_reduce(square)
        return (square / self.replicas).sqrt().to(local_norm)

    def over_shards(self, values: Tensor, how: Literal["sum", "max"]) -> Tensor:
        found = values.to(self._device, torch.float64).contiguous()
        dist.all_reduce(found, dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM, self._group)
        return found.to(values.device)

    def swap(self, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        """By value, one tensor at a time: the next forward gathers the shards from the memory that `local` shares."""
        swap_values(first, second)

    def reshard(self) -> None:
        """Free the full weights that the last forward gathered: they would go stale when the shards change."""
        for unit in self._units():
            unit.reshard()

    def shard(self, name: str, full: FullTensor) -> Tensor:
        if name not in self.shapes or full.shape != self.shapes[name]:
            return full[...]
        rows = self._rows(full.shape)
        return full[self.shard_index * rows : (self.shard_index + 1) * rows]

    def rows(self, name: str, local: Tensor) -> tuple[int, int] | None:
        """Which rows this rank's shard is."""
        if name not in self.shapes or local.shape != self.local[name].shape:
            return None
        total = self.shapes[name][0]
        return min(self.shard_index * self._rows(self.shapes[name]), total), total

    def full_tensor(self, name: str, local: Tensor) -> Tensor:
        """The rows of all of a group; the device holds one full tensor at a time."""
        if self.rows(name, local) is None:
            return local
        return self._gather(local, self.shapes[name])

    def full_state_dict(self) -> dict[str, Tensor]:
        return {
            name: self._gather(_local(tensor), tensor.shape) if isinstance(tensor, DTensor) else tensor
            for name, tensor in self.model.state_dict().items()
        }

    def _units(self) -> Iterator[FSDPModule]:
        return (module for module in self.model.modules() if isinstance(module, FSDPModule))

    def _gather(self, local: Tensor, shape: torch.Size) -> Tensor:
        rows = self._rows(shape)
        padded = local.new_zeros((rows, *shape[1:]), device=self._device)
        padded[: len(local)].copy_(local)
        gathered = padded.new_empty((rows * len(self.shard_ranks), *shape[1:]))
        all_gather_single(gathered, padded, self._group)
        return gathered[: shape[0]].cpu() if self._is_rank0 else gathered.new_empty(0)

    def _rows(self, shape: torch.Size) -> int:
        """Rows per rank, split like torch.chunk."""
        return math.ceil(shape[0] / len(self.shard_ranks))


class FsdpGradScaler(torch.amp.GradScaler):
    """An overflow in one rank's shards counts for all: they skip the same steps and use the same scale.

    torch's ShardedGradScaler does so as well, but its flag has a shape that fused optimizers reject.
    """

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Like torch's, then combines the overflow flags of all ranks."""
        super().unscale_(optimizer)
        if self.is_enabled():
            for found in found_overflows(self, optimizer):
                flag = found.to(self._device)
                dist.all_reduce(flag, dist.ReduceOp.MAX)
                found.copy_(flag)


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor), "fully_shard leaves no other parameters"
    return tensor.to_local()


@torch.no_grad()
def _broadcast_from_rank0(unit: nn.Module, device: torch.device) -> None:
    for tensor in (*unit.parameters(), *unit.buffers()):
        if not isinstance(tensor, DTensor):  # inner units are sharded already
            tensor.data = tensor.data.to(device)
            dist.broadcast(tensor.data, src=0)
