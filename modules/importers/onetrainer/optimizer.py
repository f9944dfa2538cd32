"""OneTrainer's optimizers and schedules. Names and defaults as in its modules/util/config/TrainConfig.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from modules.config.keywords import keywords_text
from modules.config.sections.optimizers import CLASS_NAME
from modules.importers import common
from modules.importers.optimizers import optimizer_assignments
from modules.importers.readers import integer, items, number
from modules.importers.rules import Assignment, CombinedRule, Unsupported, UnsupportedValueError, Values

# Its schedules -> Tandem's and how they differ.
SCHEDULES = {
    **{name: (name, "") for name in ("constant", "linear", "cosine", "rex")},
    "cosine_with_restarts": (
        "cosine_with_restarts",
        "OneTrainer's rises as smoothly as it falls, Tandem's jumps",
    ),
    "cosine_with_hard_restarts": ("cosine_with_restarts", ""),
    "adafactor": ("constant", "it follows Adafactor's own learning rate, which is constant without relative_step"),
}
# Settings of OneTrainer's optimizers that those here have as well; None means the optimizer's default.
OPTIMIZER_KEYS = {
    "beta1": None, "beta2": None, "beta3": None, "eps": None, "weight_decay": None, "momentum": None,
    "nesterov": False, "fused": False, "clip_threshold": None, "decay_rate": None, "scale_parameter": False,
    "relative_step": False, "warmup_init": False, "d0": None, "d_coef": None, "use_bias_correction": False,
    "bias_correction": False, "safeguard_warmup": False, "decouple": False, "alpha": None, "centered": False,
    "lr_decay": None, "initial_accumulator_value": None, "initial_accumulator": None, "decoupled_decay": False,
    "fixed_decay": False, "cautious": False, "rectify": False, "k": None, "xi": None, "r": None, "adanorm": False,
    "dampening": None,
}  # fmt: skip
# The rest of its ~100 fields belong to single optimizers that Tandem does not have; these are their defaults
# (modules/util/optimizer_util.py), which a saved file contains.
OPTIMIZER_REST: Mapping[str, tuple[object, ...]] = {
    "eps": (1e-30,), "eps2": (1e-3, 1e-16), "growth_rate": ("inf", math.inf), "slice_p": (11,), "optim_bits": (32, 8),
    "min_8bit_size": (4096, 16384), "quant_block_size": (2048,), "percentile_clipping": (100,),
    "max_unorm": (1.0, 0.02), "adam_w_mode": (True,), "degenerated_to_sgd": (True,), "n_sma_threshold": (5,),
    "weight_lr_power": (2.0,), "log_every": (0,), "prodigy_steps": (0,), "schedulefree_c": (0.0,),
    "beta3_ema": (0.9999,), "alpha_grad": (100.0,), "ns_steps": (5,), "ortho_rank": (128,), "beta2_normuon": (0.95,),
    "auto_kappa_p": (True,), "normuon_variant": (True,), "MuonWithAuxAdam": (True,), "muon_adam_lr": (3e-4, 1e-6),
    "orthogonal_gradient": (False, "disabled"), "state_precision": ("auto",), "centered_wd_mode": ("full",),
    **dict.fromkeys(
        (
            "weight_decay_by_lr", "split_groups", "split_groups_mean", "factored", "factored_fp32", "use_stableadamw",
            "d_limiter", "use_schedulefree", "rms_rescaling",
        ),
        (True, False),
    ),
}  # fmt: skip
# Defaults there of optimizers that Tandem has, where they differ from those here.
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "ADAMW_ADV": {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
    **{name: {"beta1": 0.9, "beta2": 0.99} for name in ("PRODIGY_ADV", "PRODIGY_PLUS_SCHEDULE_FREE")},
    "LION_8BIT": {"beta1": 0.9, "beta2": 0.999},
    **{name: {"weight_decay": 0.01} for name in ("CAME", "CAME_8BIT")},
    **{name: {"weight_decay": 0.0} for name in ("MUON", "MUON_ADV", "ADAMUON_ADV")},
    "SGD_8BIT": {"momentum": 0.0},
    "SCHEDULE_FREE_SGD": {"momentum": 0.0, "weight_decay": 0.01},
}
# Optimizers that are a class of PyTorch or pytorch_optimizer: OneTrainer's own class, or one that calculates the same
# but for what is said. Each with its defaults there (modules/util/create.py).
_ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
_DECAY = {"decoupled_decay": True, "fixed_decay": False}
_OTHER_CLASSES: Mapping[str, tuple[str, Mapping[str, object], str]] = {
    "ADAGRAD": (
        "torch.optim.Adagrad", {"lr_decay": 0, "weight_decay": 0, "initial_accumulator_value": 0, "eps": 1e-10}, "",
    ),
    "RMSPROP": (
        "torch.optim.RMSprop", {"alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0, "centered": False}, "",
    ),
    "ADOPT": (
        "pytorch_optimizer.ADOPT", {**_ADAM, "beta2": 0.9999, "eps": 1e-6, **_DECAY, "decoupled_decay": False}, "",
    ),
    "AIDA": (
        "pytorch_optimizer.Aida", {**_ADAM, "k": 2, "xi": 1e-20, **_DECAY, "decoupled_decay": False, "rectify": False},
        "",
    ),
    "YOGI": ("pytorch_optimizer.Yogi", {**_ADAM, "eps": 1e-3, "initial_accumulator": 1e-6, **_DECAY}, ""),
    "TIGER": ("pytorch_optimizer.Tiger", {"beta1": 0.965, "weight_decay": 0.01, **_DECAY}, ""),
    "ADABELIEF": (
        "pytorch_optimizer.AdaBelief", {**_ADAM, "eps": 1e-16, **_DECAY, "rectify": True},
        "timm's class there, with small differences in rounding and rectification",
    ),
    "ADEMAMIX": (
        "pytorch_optimizer.AdEMAMix",
        {**_ADAM, "beta3": 0.9999, "alpha": 5, "weight_decay": 0.01, "decoupled_decay": True},
        "bitsandbytes' class there",
    ),
    "LAMB": (
        "pytorch_optimizer.Lamb", _ADAM, "bitsandbytes' class there, which limits the size of updates (max_unorm)",
    ),
    "LARS": (
        "pytorch_optimizer.LARS", {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False},
        "bitsandbytes' class there, which limits the size of updates (max_unorm)",
    ),
    "ADOPT_ADV": (
        "pytorch_optimizer.ADOPT", {**_ADAM, "beta2": 0.9999, "eps": 1e-6, "decoupled_decay": True},
        "its extensions are not supported",
    ),
    "SIGNSGD_ADV": (
        "pytorch_optimizer.SignSGD", {"momentum": 0.95, "weight_decay": 0.0}, "its extensions are not supported",
    ),
}  # fmt: skip
_ARGUMENT_NAMES = {"decoupled_decay": "weight_decouple"}
_MUON = {
    "MUON": "Tandem's takes AdamW's rates: set learning_rate to that of muon_adam_lr, or near it",
    "MUON_ADV": "its extensions are not supported",
    "ADAMUON_ADV": "its extensions are not supported",
}
_OTHER_OPTIMIZER = "for an optimizer that Tandem does not have"


def _optimizer(values: Values) -> list[Assignment]:
    key = "optimizer.optimizer"
    name = str(values[key]).upper()
    given = {each: values[f"optimizer.{each}"] for each in OPTIMIZER_KEYS}
    known = _OTHER_CLASSES.get(name.removesuffix("_8BIT"))
    if known is not None:
        return _other_class(name, given, *known)
    given = {each: None if value is False and OPTIMIZER_KEYS[each] is False else value for each, value in given.items()}
    own = _DEFAULTS.get(name, {})
    filled = {each: own.get(each) if value is None else value for each, value in given.items()}
    if filled["beta1"] is None and filled["beta2"] is not None:
        filled["beta1"] = 0.9
    found = optimizer_assignments("muon" if name in _MUON else name, filled, key, "optimizer.")
    if name in _MUON:
        found[0] = replace(found[0], why=_MUON[name])
    of_name = {f"optimizer.{each}" for each, value in given.items() if value is None}
    return [replace(each, keys=(key,)) if each.keys and set(each.keys) <= of_name else each for each in found]


def _other_class(
    name: str, given: Mapping[str, object], target: str, defaults: Mapping[str, object], why: str
) -> list[Assignment]:
    """One of a class that Tandem takes with its arguments."""
    key = "optimizer.optimizer"
    chosen = {each: default if given[each] is None else given[each] for each, default in defaults.items()}
    betas = [chosen.pop(each) for each in ("beta1", "beta2", "beta3") if each in chosen]
    found = {_ARGUMENT_NAMES.get(each, each): value for each, value in chosen.items()}
    if betas:
        found |= {"betas": betas} if len(betas) > 1 else {"beta": betas[0]}
    if name.endswith("_8BIT"):
        why = "; ".join(filter(None, (why, "its 8-bit state becomes 32-bit")))
    arguments = tuple(f"optimizer.{each}" for each in defaults)
    rest = [each for each, value in given.items() if each not in defaults and value not in (None, False)]
    return [
        Assignment("optimizer.name", "custom", why, (key,)),
        Assignment("optimizer.target", target, keys=(key,)),
        Assignment("optimizer.arguments", keywords_text(found), keys=(key, *arguments)),
        *(Assignment("", why=f"{target} has no such setting", keys=(f"optimizer.{each}",)) for each in rest),
    ]


def _schedule(values: Values) -> list[Assignment]:
    name = str(values["learning_rate_scheduler"]).lower()
    if name == "custom":
        return _scheduler_class(values)
    if name not in SCHEDULES:
        raise UnsupportedValueError("Tandem has no such schedule; set scheduler")
    target, why = SCHEDULES[name]
    found = [Assignment("scheduler", target, why, ("learning_rate_scheduler",))]
    if target == "cosine_with_restarts":
        key = "learning_rate_cycles"
        found.append(Assignment("scheduler_cycles", integer(values[key]), keys=(key,)))
    if target != "constant":
        key = "learning_rate_min_factor"
        found.append(Assignment("min_learning_rate_factor", number(values[key]), keys=(key,)))
    return found


def _scheduler_class(values: Values) -> list[Assignment]:
    """Its class with its parameters, whose values are literals or placeholders (create_lr_scheduler)."""
    key, target = ("custom_learning_rate_scheduler",), str(values["custom_learning_rate_scheduler"])
    if not CLASS_NAME.fullmatch(target):
        raise UnsupportedValueError("custom_learning_rate_scheduler names no class; set scheduler")
    found = [
        Assignment("scheduler", "custom", keys=("learning_rate_scheduler",)),
        Assignment("scheduler_target", target, keys=key),
    ]
    named = [each for each in items(values["scheduler_params"]) if isinstance(each, Mapping) and each.get("key")]
    known = {"%LR%": repr(values["learning_rate"]), "%EPOCHS%": str(values["epochs"])}
    given = {str(each["key"]): known.get(str(each.get("value")), str(each.get("value"))) for each in named}
    unknown = [value for value in given.values() if value.startswith("%")]
    if unknown:
        why = f"{', '.join(unknown)} depends on the number of images: set scheduler_arguments"
        return [*found, Assignment("", why=why, keys=("scheduler_params",))]
    text = ", ".join(f"{name} = {value}" for name, value in given.items())
    return [*found, Assignment("scheduler_arguments", text, keys=("scheduler_params",))] if text else found


SCHEDULE_RULE = CombinedRule(
    {
        "learning_rate_scheduler": "CONSTANT", "learning_rate_cycles": 1.0, "learning_rate_min_factor": 0.0,
        "custom_learning_rate_scheduler": None, "scheduler_params": [],
    },
    "scheduler, scheduler_cycles, min_learning_rate_factor, scheduler_target, scheduler_arguments", _schedule,
    uses={"learning_rate": 3e-6, "epochs": 100},
)  # fmt: skip
OPTIMIZER_RULE = CombinedRule(
    {"optimizer.optimizer": "ADAMW", **{f"optimizer.{name}": value for name, value in OPTIMIZER_KEYS.items()}},
    "optimizer", _optimizer, common.PLAIN_OPTIMIZER,
)  # fmt: skip
OPTIMIZER_UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("optimizer_defaults", "settings of optimizers that are not in use", is_group=True),
    Unsupported("optimizer.muon_adam_config", _OTHER_OPTIMIZER, is_group=True),
    Unsupported("optimizer.*", _OTHER_OPTIMIZER),
)
