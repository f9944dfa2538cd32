"""The arithmetic of a run before it starts: effective batch and learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modules.config import TrainConfig, effective_batch, learning_rate_scale, ranks_together
from modules.data.loading.data_record import FormerData


@dataclass(frozen=True)
class InitialModel:
    """What a run started from: the base model's name, and a digest of each module whose weights no backup holds."""

    base_model: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What stays the same over the whole run, also when it is resumed on another number of ranks."""

    global_batch_size: int
    original_learning_rate: float
    learning_rate: float
    explanation: str  # one line for the terminal; empty if nothing was scaled
    initial_model: InitialModel = field(default_factory=InitialModel)
    former: FormerData | None = None  # what a resumed run was trained on
    by_image: bool = True  # whether `Order` goes by image; not in runs that began up to 0.2.0


def plan_run(config: TrainConfig, world_size: int) -> Plan:
    """The plan for a run that starts with `world_size` ranks.

    With `global_batch_size` set the learning rate is not scaled: the run is then the same on any number of ranks.
    """
    batch, factor = effective_batch(config, world_size), learning_rate_scale(config, world_size)
    scaled = config.learning_rate * factor
    explanation = (
        f"Learning rate {config.learning_rate:g} becomes {scaled:.3g} "
        f"({config.lr_scaling} scaling over {ranks_together(config, world_size)} ranks)."
    )
    return Plan(batch, config.learning_rate, scaled, explanation if factor != 1.0 else "")
