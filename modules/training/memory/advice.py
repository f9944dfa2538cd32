"""Whether a run fits a device, and which settings to change if it does not: each estimated as the run itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from modules.config import TandemError, TrainConfig
from modules.families._family import Family
from modules.run.format_memory import format_memory
from modules.training.memory.live_bytes import encoding_activations
from modules.training.memory.table import GIB, MemoryTable, memory_table

Change: TypeAlias = tuple[Callable[[dict[str, Any]], Mapping[str, Any]], list[str]]  # of a config's data, and its texts

# What a process takes of a GPU besides tensors: CUDA's context, workspaces of kernels, gaps between tensors.
RESERVED: Final = GIB
_SMALL_RESOLUTION: Final = 512
_KEPT_IN: Final = ("bf16", "int8", "nf4")
_ENCODER_OPTION: Final = "text_encoder_weights"  # of `family_options`


def memory_problem(table: MemoryTable, capacity: int, device: str) -> str:
    """A sentence if a run needs more than the `capacity` of a device in bytes; empty if it fits."""
    needed, certain = table.needed() + RESERVED, table.needed(only_exact=True)
    if needed <= capacity:
        return ""
    sure = f"{format_memory(certain)} of it without activations" if table.has_activations else "without activations"
    return f"This run needs about {format_memory(needed)} ({sure}), but {device} has {format_memory(capacity)}."


def settings_that_fit(kind: type[Family], config: TrainConfig, capacity: int, world_size: int = 1) -> list[str]:
    """Assignments, as `--set` takes them, with which the run fits `capacity` bytes; empty if none is known.

    Those that cost least are tried first, and each next one is added to them.
    """
    taken: list[str] = []
    current = config
    try:
        table = memory_table(kind, config, world_size, activations=False)
        if table is None:
            return []
        caching = table.total("device", "caching") + sum(encoding_activations(kind, config).values())
        for change, texts in _changes(kind, config, caching_fits=caching + RESERVED <= capacity):
            current = TrainConfig.model_validate(change(current.model_dump(mode="json")))
            taken += texts
            table = memory_table(kind, current, world_size, activations=False)
            if table is not None and table.needed() + RESERVED <= capacity:  # activations take seconds
                table = memory_table(kind, current, world_size)
            if table is not None and table.needed() + RESERVED <= capacity:
                return taken
    except (TandemError, ValueError):
        return []
    return []


def _changes(kind: type[Family], config: TrainConfig, *, caching_fits: bool) -> Iterator[Change]:
    """Changes to the data of a config, with the assignments that make them."""
    if config.ema and not config.ema_on_cpu:
        yield _put(ema_on_cpu=True)
    if not config.gradient_checkpointing:
        yield _put(gradient_checkpointing=True)
    if config.precision in ("fp32", "tf32"):
        yield _put(precision="bf16")
    if not caching_fits and _ENCODER_OPTION in kind.Options.model_fields:
        given = str(config.family_options.get(_ENCODER_OPTION, "run"))
        for weights in _KEPT_IN[_KEPT_IN.index(given) + 1 if given in _KEPT_IN else 1 :]:
            yield _encoders(weights)
    part = kind.submodules[0] if config.method == "lora" and kind.submodules else None
    if part is not None:
        given = {entry.part: entry.weights for entry in config.parts}.get(part, "run")
        start = _KEPT_IN.index(given) + 1 if given in _KEPT_IN else int(kind.half_frozen_weights)
        for weights in _KEPT_IN[start:2]:
            yield _parts(part, weights)
    if config.batch_size > 1:
        yield _put(batch_size=1, gradient_accumulation_steps=config.batch_size * config.gradient_accumulation_steps)
    if part is not None:
        yield _parts(part, "nf4")
    if config.fsdp_replicate != "none":
        yield _put(fsdp_replicate="none")
    if config.method == "fine_tune":
        yield from _changes_of_fine_tune(config)
    if config.resolution > _SMALL_RESOLUTION:
        yield _put(resolution=_SMALL_RESOLUTION)


def _changes_of_fine_tune(config: TrainConfig) -> Iterator[Change]:
    if config.optimizer.name != "adafactor":
        yield _put(optimizer={"name": "adafactor"})
    if config.precision == "bf16" and not config.stochastic_rounding:
        yield _put(stochastic_rounding=True)
    if not config.fused_backward and not config.enable_multi_gpu:
        yield _put(fused_backward=True, gradient_accumulation_steps=1, max_grad_norm=None)


def _put(**values: object) -> Change:
    return lambda data: {**data, **values}, [f"{name}={_plain(value)}" for name, value in values.items()]


def _encoders(weights: str) -> Change:
    """Keep the text encoders as `weights`."""

    def change(data: dict[str, Any]) -> Mapping[str, Any]:
        return {**data, "family_options": {**data["family_options"], _ENCODER_OPTION: weights}}

    return change, [f"family_options.{_ENCODER_OPTION}={weights}"]


def _parts(part: str, weights: str) -> Change:
    """Keep the frozen weights of a submodule as `weights`."""

    def change(data: dict[str, Any]) -> Mapping[str, Any]:
        others = [entry for entry in data["parts"] if entry["part"] != part]
        own = next((entry for entry in data["parts"] if entry["part"] == part), {"part": part})
        return {**data, "parts": [{**own, "weights": weights}, *others]}

    return change, [f"weights {weights} for the part {part}"]


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return str(value["name"])
    return "null" if value is None else str(value).lower()
