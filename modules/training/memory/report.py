"""What `--dry_run` and the start of a run say about memory."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import torch

from modules.config import ConfigError, TandemError, TrainConfig
from modules.config.io.presets import preset_data, preset_names
from modules.families._by_name import family_class
from modules.families._family import Family
from modules.machine import visible_gpus
from modules.machine.host import usable_memory_mib
from modules.run.format_memory import format_memory
from modules.run.hosts.hardware import Hardware
from modules.run.suggestions import BatchMemory
from modules.training.memory.advice import RESERVED, memory_problem, settings_that_fit
from modules.training.memory.table import GIB, MemoryTable, memory_table

MIB: Final = 2**20
# More than weights, gradients, optimizer and EMA take of a weight, in units of the weight: a model that fits with it
# is not looked at closely.
_AMPLE: Final = 8
_OF_CARD: Final = re.compile(r"\w+_(\d+)gb")  # the name of a preset that ships with Tandem
_SAME: Final = ("family", "base_model", "method")


def memory_report(
    config: TrainConfig, world_size: int = 1, machine: Hardware | None = None
) -> tuple[MemoryTable | None, list[str]]:
    """The table of a config that can be started, and sentences if its device has less; reads no weights.

    Without a GPU the memory of the `machine` counts, by default this one; of one whose devices are not known there are
    no sentences. Raises ConfigError as set-up does.
    """
    kind = family_class(config.family)
    table = memory_table(kind, config, world_size)
    if table is None:
        return None, []
    capacity, device = _smallest_device(config, machine)
    if not capacity:
        return table, []
    said = memory_problem(table, capacity, device)
    return table, [said, advice(kind, config, capacity, world_size)] if said else []


def batch_memory(config: TrainConfig, table: MemoryTable | None, machine: Hardware | None = None) -> BatchMemory | None:
    """What an image of a micro-batch takes of the config's smallest device; None if that or activations are not
    known."""
    capacity = _smallest_device(config, machine)[0]
    if table is None or not table.has_activations or not capacity:
        return None
    activations = sum(row.bytes for row in table.rows if row.what.startswith("activations"))
    fixed = table.total("device", "training") - activations + RESERVED
    return BatchMemory(capacity, fixed, activations // config.batch_size, config.largest_resolution)


def memory_lines(config: TrainConfig, table: MemoryTable | None, said: Sequence[str]) -> list[str]:
    """A `memory_report` for the terminal; empty if the model is not known before it is loaded."""
    if table is None:
        return []
    return [*table.lines(_smallest_device(config)[1]), *(f"Warning: {sentence}" for sentence in said)]


def advice(kind: type[Family], config: TrainConfig, capacity: int, world_size: int) -> str:
    """Which settings fit, and which preset is for such a device, in a sentence or two."""
    found = settings_that_fit(kind, config, capacity, world_size)
    preset = preset_for(config, capacity)
    fits = f"The preset {preset} is for a device of this size." if preset else ""
    if found:
        return f"It should fit with {', '.join(found)}. {fits}".strip()
    if fits:
        return fits
    more = " or training_mode fully_sharded on several GPUs" if world_size == 1 else ""
    return f"No settings are known with which it fits; use a LoRA of a smaller model{more} (docs/models.md)."


def check_memory(kind: type[Family], config: TrainConfig, device: torch.device, world_size: int) -> None:
    """Raises ConfigError if what must be kept cannot fit the device, whatever the activations; before loading."""
    if device.type == "cuda":
        capacity = torch.cuda.get_device_properties(device).total_memory
        name = f"the GPU ({torch.cuda.get_device_name(device)})"
    else:
        capacity, name = usable_memory_mib().total * MIB, "this machine"
    check_capacity(kind, config, capacity, name, world_size)


def check_capacity(kind: type[Family], config: TrainConfig, capacity: int, device: str, world_size: int) -> None:
    """As `check_memory`, for a device of `capacity` bytes."""
    try:
        model = kind.meta_model(config)
        if model is None or _AMPLE * sum(weight.nbytes for weight in model.parameters()) < capacity:
            return
        table = memory_table(kind, config, world_size, activations=False)
    except TandemError:
        return  # set-up says it with more context
    if table is None or (needed := table.needed(only_exact=True)) <= capacity:
        return
    raise ConfigError(
        f"This run keeps at least {format_memory(needed)} on its device, besides activations, but {device} has "
        f"{format_memory(capacity)}.",
        advice(kind, config, capacity, world_size),
    )


def preset_for(config: TrainConfig, capacity: int) -> str:
    """The preset of the same base model and method for the largest card of at most `capacity` bytes; empty if none."""
    found = {}
    for name in preset_names():
        size = _OF_CARD.fullmatch(name)
        if size is None or card_bytes(int(size[1])) > capacity:
            continue
        with suppress(ConfigError):  # it is damaged, or another user's
            data = preset_data(name)
            if [data.get(key) for key in _SAME] == [getattr(config, key) for key in _SAME]:
                found[int(size[1])] = name
    return found[max(found)] if found else ""


def card_bytes(gigabytes: int) -> int:
    """What a card sold with so many GB has for tensors: GB are GiB there."""
    return gigabytes * GIB - RESERVED


def _smallest_device(config: TrainConfig, machine: Hardware | None = None) -> tuple[int, str]:
    """Bytes and name of the GPU with the least memory, or of the machine; 0 bytes if nothing is known of it."""
    found = visible_gpus() if machine is None else machine.as_gpus
    gpus = [] if config.device == "cpu" else [gpu for gpu in found if gpu.memory_mib]
    if config.device_ids is not None:
        gpus = [gpu for place, gpu in enumerate(gpus) if place in config.device_ids] or gpus
    if not gpus:
        memory_mib = usable_memory_mib().total if machine is None else machine.memory_mib
        return memory_mib * MIB, f"{'this machine' if machine is None else machine.name} (no GPU)"
    least = min(gpus, key=lambda gpu: gpu.memory_mib)
    size = math.ceil(least.memory_mib / 1024)
    where = "" if machine is None else f" on {machine.name}"
    return least.memory_mib * MIB, f"each GPU{where} ({least.name}, {size} GiB)"
