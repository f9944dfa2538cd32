"""OneTrainer's optimizers and schedules. Names and defaults as in its modules/util/config/TrainConfig.py."""

from __future__ import annotations

from modules.importers import common
from modules.importers.optimizers import optimizer_assignments
from modules.importers.readers import integer, number
from modules.importers.rules import Assignment, CombinedRule, Unsupported, UnsupportedValueError, Values

# Its schedules -> Tandem's and how they differ.
SCHEDULES = {
    **{name: (name, "") for name in ("constant", "linear", "cosine")},
    "cosine_with_restarts": (
        "cosine_with_restarts",
        "OneTrainer's rises as smoothly as it falls, Tandem's jumps",
    ),
    "cosine_with_hard_restarts": ("cosine_with_restarts", ""),
    "rex": ("linear", "Tandem has no REX schedule; linear also decays to the end"),
    "adafactor": ("constant", "it follows Adafactor's own learning rate, which is constant without relative_step"),
}
# Optimizer settings that an optimizer of Tandem also has; None means the optimizer's default.
OPTIMIZER_KEYS = {
    "beta1": None, "beta2": None, "beta3": None, "eps": None, "weight_decay": None, "momentum": None,
    "nesterov": False, "fused": False, "clip_threshold": None, "decay_rate": None, "scale_parameter": False,
    "relative_step": False, "warmup_init": False, "d0": None, "d_coef": None, "use_bias_correction": False,
    "bias_correction": False, "safeguard_warmup": False, "decouple": False,
}  # fmt: skip
# The rest of its ~100 fields belong to optimizers that Tandem does not have; these are on by default.
OPTIMIZER_ON = (
    "weight_decay_by_lr", "split_groups", "split_groups_mean", "factored", "factored_fp32",
    "use_stableadamw", "d_limiter", "use_schedulefree", "rms_rescaling",
)  # fmt: skip
_OTHER_OPTIMIZER = "for an optimizer that Tandem does not have"


def _optimizer(values: Values) -> list[Assignment]:
    given = {name: values[f"optimizer.{name}"] for name in OPTIMIZER_KEYS}
    switched_off = [name for name, default in OPTIMIZER_KEYS.items() if default is False and given[name] is False]
    name = str(values["optimizer.optimizer"])
    if "adafactor" not in name.lower():
        given |= dict.fromkeys(switched_off)
    return optimizer_assignments(name, given, "optimizer.optimizer", "optimizer.")


def _schedule(values: Values) -> list[Assignment]:
    name = str(values["learning_rate_scheduler"]).lower()
    if name not in SCHEDULES:
        raise UnsupportedValueError("Tandem has no custom schedules; set scheduler")
    target, why = SCHEDULES[name]
    found = [Assignment("scheduler", target, why, ("learning_rate_scheduler",))]
    if target == "cosine_with_restarts":
        key = "learning_rate_cycles"
        found.append(Assignment("scheduler_cycles", integer(values[key]), keys=(key,)))
    if target != "constant":
        key = "learning_rate_min_factor"
        found.append(Assignment("min_learning_rate_factor", number(values[key]), keys=(key,)))
    return found


SCHEDULE_RULE = CombinedRule(
    {"learning_rate_scheduler": "CONSTANT", "learning_rate_cycles": 1.0, "learning_rate_min_factor": 0.0},
    "scheduler, scheduler_cycles, min_learning_rate_factor", _schedule,
)  # fmt: skip
OPTIMIZER_RULE = CombinedRule(
    {"optimizer.optimizer": "ADAMW", **{f"optimizer.{name}": value for name, value in OPTIMIZER_KEYS.items()}},
    "optimizer", _optimizer, common.PLAIN_OPTIMIZER,
)  # fmt: skip
OPTIMIZER_UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("custom_learning_rate_scheduler", "Tandem has no custom schedules"),
    Unsupported("scheduler_params", "Tandem has no custom schedules", is_group=True),
    Unsupported("optimizer_defaults", "settings of optimizers that are not in use", is_group=True),
    Unsupported(" ".join(f"optimizer.{name}" for name in OPTIMIZER_ON), _OTHER_OPTIMIZER, default=True),
    Unsupported("optimizer.muon_adam_config", _OTHER_OPTIMIZER, is_group=True),
    Unsupported("optimizer.orthogonal_gradient", _OTHER_OPTIMIZER, default="disabled"),
    Unsupported("optimizer.state_precision", _OTHER_OPTIMIZER, default="auto"),
    Unsupported("optimizer.centered_wd_mode", _OTHER_OPTIMIZER, default="full"),
    Unsupported("optimizer.*", _OTHER_OPTIMIZER),
)
