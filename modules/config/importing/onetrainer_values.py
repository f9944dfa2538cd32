"""OneTrainer: what several of its settings amount to together."""

from __future__ import annotations

import math

from modules.config.importing.readers import items, number, positive, whole
from modules.config.importing.rules import NotCarriedError, Outcome, Values
from modules.config.interval import Interval

UNITS = {"EPOCH": "epochs", "STEP": "steps", "SECOND": "seconds", "MINUTE": "minutes", "HOUR": "hours"}
RATE_USES = {"batch_size": 1, "gradient_accumulation_steps": 1}


def interval(count: object, unit: object) -> str:
    """A number with one of their units as ours; raises NotCarriedError for a unit without an equal."""
    name = str(unit).upper().removeprefix("TIMEUNIT.")
    if name == "NEVER" or count in (None, "", 0):
        return "never"
    if name not in UNITS:
        raise NotCarriedError(f"Tandem counts in steps, epochs and time, and has nothing like {name}")
    found = number(count)
    return str(Interval.parse(f"{found!r} {UNITS[name]}")) if found > 0 else "never"


def rate_factor(values: Values) -> float:
    """By what OneTrainer multiplies learning rates on one GPU: the square root of what its scaler names."""
    scaler = str(values["learning_rate_scaler"]).upper()
    batch = number(values["batch_size"]) if scaler in ("BATCH", "GLOBAL_BATCH", "BOTH", "GLOBAL_BOTH") else 1.0
    steps = (
        number(values["gradient_accumulation_steps"])
        if scaler in ("GRADIENT_ACCUMULATION", "BOTH", "GLOBAL_BOTH")
        else 1.0
    )
    return math.sqrt(max(batch * steps, 0.0))


def learning_rates(values: Values) -> list[Outcome]:
    """The run's learning rate as it is on one GPU, and how it grows with their number."""
    scaler = str(values["learning_rate_scaler"]).upper()
    factor = rate_factor(values)
    is_embedding = str(values["training_method"]).upper() == "EMBEDDING"
    key = "embedding_learning_rate" if is_embedding and values["embedding_learning_rate"] else "learning_rate"
    why = "" if factor == 1 else f"multiplied by {factor:.4g}, as learning_rate_scaler {scaler} does"
    found = [Outcome("learning_rate", positive(values[key]) * factor, why, (key,))]
    if key != "learning_rate":
        found.append(Outcome("", why="the embedding has its own learning rate", keys=("learning_rate",)))
    grows = scaler.startswith("GLOBAL_")
    return [*found, Outcome("lr_scaling", "sqrt" if grows else "none", keys=("learning_rate_scaler",))]


def device_ids(value: object) -> object:
    """Numbers with commas as a list."""
    return [whole(part.strip()) for one in items(value) for part in str(one).split(",") if part.strip()] or None
