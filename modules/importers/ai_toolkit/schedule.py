"""ai-toolkit's steps, schedules, rates and optimizers, whose settings depend on each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from modules.config.keywords import keywords_text
from modules.importers import common
from modules.importers.optimizers import optimizer_assignments
from modules.importers.readers import boolean, integer, number
from modules.importers.rules import Assignment, CombinedRule, Rule, UnsupportedValueError, Values

# Batches until an update. With the second, the older one, each batch is a step (jobs/process/BaseSDTrainProcess.py).
ACCUMULATION: Final[Mapping[str, object]] = {"train.gradient_accumulation": 1, "train.gradient_accumulation_steps": 1}
_PARAMS: Final = "train.lr_scheduler_params"
_BATCHES: Final = "its steps count batches, Tandem's optimizer steps"
_WARMUP: Final = "ai-toolkit itself ends with an error for num_warmup_steps of this schedule; here it begins after them"
_AUTOMAGIC: Final = "automagic starts there and adapts the rate of each weight; prodigy finds it, at 1"
_NO_SCHEDULE: Final = "ai-toolkit itself ends with an error for this schedule; set scheduler"
_EPS: Final = 1e-6  # toolkit/optimizer.py; those of torch have 1e-8
_RENAMED: Final[Mapping[str, str]] = {"adam8": "adam8bit", "adamw8": "adamw8bit"}


def _batches_per_step(values: Values) -> int:
    """By how much to divide a number of its steps."""
    return max(integer(values["train.gradient_accumulation_steps"]), 1)


def _steps(count: float, values: Values) -> int:
    return max(1, math.ceil(count / _batches_per_step(values))) if count > 0 else 0


def _changed(values: Values) -> str:
    return _BATCHES if _batches_per_step(values) > 1 else ""


def _length(values: Values) -> list[Assignment]:
    key, older = ACCUMULATION
    within, batches = integer(values[key]), integer(values[older])
    count, epochs = common.max_steps(_steps(integer(values["train.steps"]), values), "train.steps")
    found = [Assignment("max_steps", count.value, _changed(values), ("train.steps",)), epochs]
    if batches < 1:
        return [*found, Assignment("", why="set gradient_accumulation_steps to a number of batches", keys=(older,))]
    name = older if batches > 1 else key
    return [*found, Assignment("gradient_accumulation_steps", max(within, batches), keys=(name,))]


def _interval(key: str, target: str, default: int, why: str = "") -> CombinedRule:
    def read(values: Values) -> list[Assignment]:
        count = _steps(integer(values[key]), values)
        if target == "sample_every" and boolean(values["train.disable_sampling"]):
            return [Assignment(target, "never", "disable_sampling is set", (key,))]
        given = "; ".join(filter(None, (why, _changed(values))))
        return [Assignment(target, f"{count} steps" if count else "never", given, (key,))]

    return CombinedRule({key: default}, target, read, why, {**ACCUMULATION, "train.disable_sampling": False})


def _rate(values: Values) -> list[Assignment]:
    rate = number(values["train.lr"])
    if str(values["train.optimizer"]).lower().startswith("automagic"):
        return [Assignment("learning_rate", 1.0, _AUTOMAGIC)]
    if str(values["train.optimizer"]).lower().startswith(("prodigy", "dadaptation")) and rate < 0.1:
        return [Assignment("learning_rate", 1.0, "ai-toolkit uses 1 for this optimizer if it is below 0.1")]
    return [Assignment("learning_rate", rate)]


def _schedule(values: Values) -> list[Assignment]:
    name = str(values["train.lr_scheduler"]).lower()
    given = values[_PARAMS]
    rest = {str(key): value for key, value in given.items()} if isinstance(given, Mapping) else {}
    found = [Assignment("scheduler", common.SCHEDULES.get(name, name), keys=("train.lr_scheduler",))]
    if name == "linear":
        start, floor = rest.pop("start_factor", 1 / 3), number(rest.pop("end_factor", 1.0))
        if number(start) == 1 and floor < 1:
            found.append(Assignment("min_learning_rate_factor", floor, keys=(_PARAMS,)))
        else:  # by default it rises from 1/3 to 1
            total = _steps(integer(values["train.steps"]), values)
            arguments = {"start_factor": number(start), "end_factor": floor, "total_iters": total}
            found = [
                Assignment("scheduler", "custom", keys=("train.lr_scheduler",), quiet=True),
                Assignment("scheduler_target", "torch.optim.lr_scheduler.LinearLR", keys=("train.lr_scheduler",)),
                Assignment(
                    "scheduler_arguments", keywords_text(arguments), _changed(values), ("train.lr_scheduler", _PARAMS)
                ),
            ]
    elif name == "cosine_with_restarts":
        period = rest.pop("T_0", None)
        why = "" if period in (None, values["train.steps"]) else "ai-toolkit replaces T_0 by steps: it never restarts"
        found.append(Assignment("scheduler_cycles", 1, why, (_PARAMS,)))
    elif name not in ("constant", "constant_with_warmup", "cosine"):
        raise UnsupportedValueError(_NO_SCHEDULE)
    if name == "constant_with_warmup":
        found.append(_warmup(number(rest.pop("num_warmup_steps", 1000)), values))
    elif "num_warmup_steps" in rest:  # which torch's classes do not take
        found.append(replace(_warmup(number(rest.pop("num_warmup_steps")), values), why=_WARMUP))
    if name.startswith("cosine") and "eta_min" in rest:
        factor = min(number(rest.pop("eta_min")) / max(number(values["train.lr"]), 1e-12), 1.0)
        found.append(Assignment("min_learning_rate_factor", factor, keys=(_PARAMS,)))
    rest.pop("total_iters", None)  # replaced by the number of steps
    why = f"{', '.join(rest)}: Tandem's schedule has no such setting"
    return [*found, Assignment("", why=why, keys=(_PARAMS,))] if rest else found


def _warmup(count: float, values: Values) -> Assignment:
    """The steps, as get_constant_schedule_with_warmup of diffusers takes them: no share of the run."""
    if 0 < count < 1:
        why = "the schedule there counts steps: it warms up during the first one, not during a fraction of the run"
        return Assignment("warmup_steps", 1, why, (_PARAMS,))
    return Assignment("warmup_steps", _steps(integer(count), values), _changed(values), (_PARAMS,))


def _optimizer(values: Values) -> list[Assignment]:
    key, arguments_key = "train.optimizer", "train.optimizer_params"
    given = values[arguments_key]
    arguments = dict(given) if isinstance(given, Mapping) else {}
    name = str(values[key]).lower()
    plain = name if not name.startswith("prodigy") else "prodigy8bit" if name.startswith("prodigy8bit") else "prodigy"
    found = optimizer_assignments(_RENAMED.get(name, plain), arguments, key, arguments_key=arguments_key)
    if name.startswith(("adam", "prodigy", "dadaptation")) and "eps" not in arguments and found[0].value != "adafactor":
        found.append(Assignment("optimizer.eps", _EPS, keys=(key,)))
    return found


SCHEDULE_RULES: tuple[Rule | CombinedRule, ...] = (
    CombinedRule(
        {"train.steps": 1000, **ACCUMULATION}, "max_steps, epochs, gradient_accumulation_steps", _length,
        "ai-toolkit counts steps only; with gradient_accumulation_steps each batch is one",
    ),
    CombinedRule(
        {"train.lr": 1e-6}, "learning_rate", _rate, "at least 0.1 for prodigy, else 1; 1 in place of automagic's",
        {"train.optimizer": "adamw"},
    ),
    CombinedRule({"train.optimizer": "adamw", "train.optimizer_params": {}}, "optimizer", _optimizer),
    CombinedRule(
        {"train.lr_scheduler": "constant", _PARAMS: {}}, "scheduler, warmup_steps, scheduler_cycles, "
        "min_learning_rate_factor", _schedule, "linear rises there by default, as torch's LinearLR",
        {"train.lr": 1e-6, "train.steps": 1000, **ACCUMULATION},
    ),
    _interval("save.save_every", "save_every", 1000, "ai-toolkit resumes from what it saves, Tandem from backups"),
    _interval("sample.sample_every", "sample_every", 100),
)  # fmt: skip
