"""fully_shard (FSDP2): every rank holds its part of each weight, and fetches the others' while it needs them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from modules.config import ConfigError, TrainConfig
from modules.distributed.process_group import Group
from modules.distributed.weights import Weights
from modules.distributed.wrapping import same_everywhere, with_synchronised_batch_norm

MIB = 2**20


def shard(
    model: nn.Module, blocks: Sequence[nn.Module], config: TrainConfig, group: Group, compute: torch.dtype | None
) -> ShardedWeights:
    """Spread `model`, which is on the CPU, over all ranks, from rank 0's weights; `compute` is autocast's format.

    Each block becomes a unit whose weights are fetched together, and what is outside them another. The model stays
    the same object. Raises ConfigError where it cannot be sharded.
    """
    for name, weight in model.named_parameters():
        if weight.dim() == 0:
            raise ConfigError(
                f"training_mode is 'fully_sharded', which cannot divide the single number {name!r} of this model; "
                "use 'distributed', or give that weight the shape [1] in the family."
            )
    if config.sync_batch_norm:
        model = with_synchronised_batch_norm(model, group)
    same = same_everywhere(model, group)
    largest = 0
    mesh = init_device_mesh(group.device.type, (group.place.world_size,))
    offload = CPUOffloadPolicy(pin_memory=group.device.type == "cuda") if config.fsdp_cpu_offload else OffloadPolicy()
    units = [*separate(model, blocks), model]
    for unit in units:
        outside = [weight for weight in unit.parameters() if not isinstance(weight, DTensor)]
        largest = max(largest, sum(weight.numel() * weight.element_size() for weight in outside))
        if not same:
            _take_over_rank_0(unit, group.device)
        fully_shard(
            unit,
            mesh=mesh,
            reshard_after_forward=config.fsdp_reshard_after_forward,
            # autocast decides operation by operation, so inputs such as timesteps stay as exact as they are
            mp_policy=MixedPrecisionPolicy(compute, _reduction(config, compute), cast_forward_inputs=False),
            offload_policy=offload,
        )
    assert isinstance(model, FSDPModule), "fully_shard makes it one"
    model.set_reduce_scatter_unused_params(config.find_unused_parameters)
    return ShardedWeights(model, group, f"{len(units)} units of at most {largest / MIB:.1f} MiB")


def separate(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """The blocks that can be units of their own, inner ones first: not the model, and none that shares a weight."""
    owners: dict[int, set[int]] = {}
    wanted = {id(block) for block in blocks if block is not model}
    found = [part for part in model.modules() if id(part) in wanted][::-1]
    inside = {id(part): {id(inner) for inner in part.modules()} for part in found}
    for part in model.modules():
        for weight in part.parameters(recurse=False):
            owners.setdefault(id(weight), set()).add(id(part))
    shared = [places for places in owners.values() if len(places) > 1]
    return [
        part for part in found if all(places <= inside[id(part)] or not places & inside[id(part)] for places in shared)
    ]


class ShardedWeights(Weights):
    """The plain tensors behind this rank's shards: kernels, and optimizers from anywhere, know no DTensor."""

    def __init__(self, model: FSDPModule, group: Group, units: str) -> None:
        assert isinstance(model, nn.Module), "fully_shard changes its class, but a module it stays"
        super().__init__(model)
        self._fsdp = model
        self._division = units
        self._device = group.device
        self._rank, self._world_size = group.place.rank, group.place.world_size
        self._shards = self.own
        # a shard and its plain tensor share their storage: what the optimizer writes is what the next forward fetches
        self.own = {name: nn.Parameter(_local(weight.detach())) for name, weight in self._shards.items()}

    def opening(self) -> str:
        """What sharding saves."""
        whole, own = Counter[str](), Counter[str]()
        for weight in self.model.parameters():
            for kind in ("weights", "gradients") if weight.requires_grad else ("weights",):
                whole[kind] += weight.numel() * weight.element_size()
                own[kind] += _local(weight.detach()).numel() * weight.element_size()
        weights, gradients = (f"{own[kind] / MIB:.1f} of {whole[kind] / MIB:.1f} MiB of {kind}" for kind in whole)
        return (
            f"Fully sharded in {self._division}: a rank keeps {weights} and {gradients}, which saves "
            f"{(whole.total() - own.total()) / MIB:.1f} MiB, and the same part of averages and optimizer state."
        )

    def reduce_gradients(self, *, now: bool) -> None:
        """Whether the next backward sums the gradients over the ranks, or keeps them whole for a later one."""
        self._fsdp.set_requires_gradient_sync(now)

    def share_buffers(self) -> None:
        """Every rank gets rank 0's, such as the running averages of BatchNorm."""
        for buffer in self.model.buffers():
            if not buffer.is_complex():  # a table of constants, which gloo cannot send
                dist.broadcast(buffer, src=0)

    def leaves(self) -> Mapping[str, Tensor]:
        """The whole weights that forwards use, by name: fetched unit by unit, and given back empty."""
        found: dict[str, Tensor] = {}
        for unit in self._units():
            unit.unshard()
            whole = {name: weight for name, weight in self.model.named_parameters() if not isinstance(weight, DTensor)}
            found.update({name: weight for name, weight in whole.items() if name in self.shapes})
            unit.reshard()
        return {name: found[name] for name in self.shapes}

    def take_gradients(self) -> None:
        """From the shards to the plain tensors; the next backward begins anew."""
        for name, shard in self._shards.items():
            self.own[name].grad = None if shard.grad is None else _local(shard.grad)
            shard.grad = None

    def total_norm(self, own: Tensor) -> Tensor:
        """The square root of the sum of the squares on all ranks."""
        square = own.to(self._device, torch.float64).square()
        dist.all_reduce(square)
        return square.sqrt().to(own)

    def settle(self) -> None:
        """Give back what the last forward has fetched: nothing would notice that the shards change."""
        for unit in self._units():
            unit.reshard()

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's rows."""
        if name not in self.shapes or whole.shape != self.shapes[name]:
            return whole
        rows = self._rows(whole.shape)
        return whole[self._rank * rows : (self._rank + 1) * rows]

    def whole(self, name: str, own: Tensor) -> Tensor:
        """All ranks' rows; one tensor at a time is whole on the device."""
        if name not in self.shapes or own.shape != self.own[name].shape:
            return own
        return self._gathered(own, self.shapes[name])

    def whole_model(self) -> dict[str, Tensor]:
        """See Weights."""
        state = self.model.state_dict()
        return {
            name: self._gathered(_local(tensor), tensor.shape) if isinstance(tensor, DTensor) else tensor
            for name, tensor in state.items()
        }

    def _units(self) -> Iterator[FSDPModule]:
        return (part for part in self.model.modules() if isinstance(part, FSDPModule))

    def _gathered(self, own: Tensor, shape: torch.Size) -> Tensor:
        rows = self._rows(shape)
        padded = own.new_zeros((rows, *shape[1:]), device=self._device)
        padded[: len(own)].copy_(own)
        gathered = padded.new_empty((rows * self._world_size, *shape[1:]))
        dist.all_gather_single(gathered, padded)
        return gathered[: shape[0]].cpu() if self._rank == 0 else gathered.new_empty(0)

    def _rows(self, shape: torch.Size) -> int:
        """Rows on each rank, as torch.chunk divides them: the last ranks may have fewer, or none."""
        return math.ceil(shape[0] / self._world_size)


class SharedGradScaler(torch.amp.GradScaler):
    """An overflow in one rank's shards counts for all: they pass over the same steps and scale alike.

    torch's ShardedGradScaler does so as well, but its flag has a shape that fused optimizers refuse.
    """

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """As torch's, then all ranks look at each other's flags."""
        super().unscale_(optimizer)
        if self.is_enabled():
            for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
                everywhere = found.to(self._device)
                dist.all_reduce(everywhere, dist.ReduceOp.MAX)
                found.copy_(everywhere)


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor), "fully_shard leaves no other weights"
    return tensor.to_local()


def _reduction(config: TrainConfig, compute: torch.dtype | None) -> torch.dtype | None:
    """The format in which gradients are summed; None: that of the weights."""
    if config.fsdp_reduce_precision == "bf16":
        return torch.bfloat16
    return None if compute is None else torch.float32


@torch.no_grad()
def _take_over_rank_0(unit: nn.Module, device: torch.device) -> None:
    for tensor in (*unit.parameters(), *unit.buffers()):
        if not isinstance(tensor, DTensor):  # a unit inside has its part already
            tensor.data = tensor.data.to(device)
            dist.broadcast(tensor.data, src=0)
