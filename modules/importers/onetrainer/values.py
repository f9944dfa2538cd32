"""Values that depend on several of OneTrainer's settings."""

from __future__ import annotations

import math

from modules.config.interval import Interval
from modules.importers.readers import number, positive_number
from modules.importers.rules import Assignment, UnsupportedValueError, Values

UNITS = {"EPOCH": "epochs", "STEP": "steps", "SECOND": "seconds", "MINUTE": "minutes", "HOUR": "hours"}
RATE_USES = {"batch_size": 1, "gradient_accumulation_steps": 1}


def interval(count: object, unit: object) -> str:
    """Convert a number and a unit to an interval; raises UnsupportedValueError for an unknown unit."""
    name = str(unit).upper().removeprefix("TIMEUNIT.")
    if name == "NEVER" or count in (None, "", 0):
        return "never"
    if name not in UNITS:
        raise UnsupportedValueError(f"Tandem counts in steps, epochs and time, not in {name}")
    found = number(count)
    return str(Interval.parse(f"{found!r} {UNITS[name]}")) if found > 0 else "never"


def rate_factor(values: Values) -> float:
    """The factor that OneTrainer applies to learning rates on one GPU: the square root of what its scaler selects."""
    scaler = str(values["learning_rate_scaler"]).upper()
    batch = number(values["batch_size"]) if scaler in ("BATCH", "GLOBAL_BATCH", "BOTH", "GLOBAL_BOTH") else 1.0
    accumulates = scaler in ("GRADIENT_ACCUMULATION", "BOTH", "GLOBAL_BOTH")
    steps = number(values["gradient_accumulation_steps"]) if accumulates else 1.0
    return math.sqrt(max(batch * steps, 0.0))


def learning_rates(values: Values) -> list[Assignment]:
    """The run's learning rate on one GPU, and how it scales with the number of GPUs."""
    scaler = str(values["learning_rate_scaler"]).upper()
    factor = rate_factor(values)
    is_embedding = str(values["training_method"]).upper() == "EMBEDDING"
    key = "embedding_learning_rate" if is_embedding and values["embedding_learning_rate"] else "learning_rate"
    why = "" if factor == 1 else f"multiplied by {factor:.4g}, as learning_rate_scaler {scaler} does"
    found = [Assignment("learning_rate", positive_number(values[key]) * factor, why, (key,))]
    if key != "learning_rate":
        found.append(Assignment("", why="the embedding has its own learning rate", keys=("learning_rate",)))
    grows = scaler.startswith("GLOBAL_")
    return [*found, Assignment("lr_scaling", "sqrt" if grows else "none", keys=("learning_rate_scaler",))]
