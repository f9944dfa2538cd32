"""Values that depend on several of OneTrainer's settings."""

from __future__ import annotations

import math

from modules.config.interval import Interval
from modules.importers.readers import number, positive_number
from modules.importers.rules import Assignment, UnsupportedValueError, Values

# Whether each scaler counts the batch, the accumulated batches, and the GPUs (modules/util/enum/LearningRateScaler.py).
SCALERS = {
    "NONE": (False, False, False),
    "BATCH": (True, False, False),
    "GRADIENT_ACCUMULATION": (False, True, False),
    "BOTH": (True, True, False),
    "GLOBAL_BATCH": (True, False, True),
    "GLOBAL_BOTH": (True, True, True),
}
BATCHES = "OneTrainer's steps count batches, Tandem's optimizer steps"
ACCUMULATION = {"gradient_accumulation_steps": 1}
UNITS = {"EPOCH": "epochs", "STEP": "steps", "SECOND": "seconds", "MINUTE": "minutes", "HOUR": "hours"}
RATE_USES = {"batch_size": 1, "gradient_accumulation_steps": 1}


def interval(count: object, unit: object, values: Values) -> str:
    """Convert a number and a unit to an interval; raises UnsupportedValueError for an unknown unit."""
    name = str(unit).upper().removeprefix("TIMEUNIT.")
    if name == "NEVER" or count in (None, "", 0):
        return "never"
    if name not in UNITS:
        raise UnsupportedValueError(f"Tandem counts in steps, epochs and time, not in {name}")
    found = number(count)
    if name == "STEP" and found > 0:
        found = max(1, round(found / batches_per_step(values)))
    return str(Interval.parse(f"{found!r} {UNITS[name]}")) if found > 0 else "never"


def interval_change(unit: object, values: Values) -> str:
    """How the meaning of an interval in this unit differs; empty if it does not."""
    return BATCHES if str(unit).upper().endswith("STEP") and batches_per_step(values) > 1 else ""


def batches_per_step(values: Values) -> float:
    """How many of OneTrainer's steps are one of the optimizer (modules/trainer/GenericTrainer.py)."""
    return max(number(values["gradient_accumulation_steps"]), 1.0)


def warmup(values: Values) -> list[Assignment]:
    """The warm-up in optimizer steps, as in create_lr_scheduler of modules/util/create.py."""
    found = number(values["learning_rate_warmup_steps"])
    if 0 < found <= 1:
        return [Assignment("warmup_fraction", found)]
    why = interval_change("STEP", values)
    return [Assignment("warmup_steps", int(max(found, 0) / batches_per_step(values)), why)]


def _scaler(values: Values) -> tuple[str, tuple[bool, bool, bool]]:
    name = str(values["learning_rate_scaler"]).upper().removeprefix("LEARNINGRATESCALER.")
    return name, SCALERS.get(name, SCALERS["NONE"])


def rate_factor(values: Values) -> float:
    """The factor that OneTrainer applies to learning rates on one GPU: the square root of what its scaler selects."""
    by_batch, by_accumulation, _ = _scaler(values)[1]
    batch = number(values["batch_size"]) if by_batch else 1.0
    return math.sqrt(max(batch * (number(values["gradient_accumulation_steps"]) if by_accumulation else 1.0), 0.0))


def learning_rates(values: Values) -> list[Assignment]:
    """The run's learning rate on one GPU, and how it scales with the number of GPUs."""
    scaler, (_, _, by_gpus) = _scaler(values)
    factor = rate_factor(values)
    is_embedding = str(values["training_method"]).upper() == "EMBEDDING"
    key = "embedding_learning_rate" if is_embedding and values["embedding_learning_rate"] else "learning_rate"
    why = "" if factor == 1 else f"multiplied by {factor:.4g}, as learning_rate_scaler {scaler} does"
    found = [Assignment("learning_rate", positive_number(values[key]) * factor, why, (key,))]
    if key != "learning_rate":
        found.append(Assignment("", why="the embedding has its own learning rate", keys=("learning_rate",)))
    keys = ("learning_rate_scaler",)
    if scaler not in SCALERS:
        return [*found, Assignment("", why="OneTrainer has no such scaler: rates are not multiplied", keys=keys)]
    return [*found, Assignment("lr_scaling", "sqrt" if by_gpus else "none", keys=keys)]
