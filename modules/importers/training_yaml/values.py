"""Converters of the values that training scripts write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from modules.config.explain import format_value
from modules.config.keywords import keywords_text
from modules.config.names import class_of_torch
from modules.config.run_names import sanitize_run_name
from modules.importers import common
from modules.importers.optimizers import OF_TORCH, argument_assignments, optimizer_assignments
from modules.importers.readers import (
    PRECISIONS,
    boolean,
    choice,
    device_ids,
    integer,
    is_text,
    non_empty_text,
    number,
    optional_number,
)
from modules.importers.rules import (
    EMPTY_VALUES,
    Assignment,
    ChangedValue,
    PathValue,
    UnsupportedValueError,
    Values,
)

FOLDERS = {"data.train_dir": "train", "data.val_dir": "validation", "data.test_dir": "test"}
LOADER = ("pin_memory", "persistent_workers", "prefetch_factor", "drop_last", "shuffle")
OPTIMIZER_KEYS = dict.fromkeys(("training.optimizer", *(f"optimizer.{name}" for name in OF_TORCH)))
SMALL = "the residual network for small images has this name here"
_SMALL_RESNET = re.compile(r"(?:cifar_?)?resnet_?(20|32|44|56|110)")
_PRECISION_WORDS = {"16-mixed": "fp16", "bf16-mixed": "bf16", "32": "fp32", "16": "fp16", "32-true": "fp32"}

_SCHEDULES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("none", "constant"), "constant"),
    "linear": "linear",
    **dict.fromkeys(("cosine", "cosine_annealing", "cosineannealing", "cosineannealinglr"), "cosine"),
    **dict.fromkeys(("cosine_with_restarts", "cosine_warm_restarts", "cosineannealingwarmrestarts"),
                    "cosine_with_restarts"),
    **dict.fromkeys(("polynomial", "poly"), "polynomial"),
}  # fmt: skip
_NO_SCHEDULE: Final = (
    "Tandem has constant, linear, cosine, cosine_with_restarts and polynomial; set scheduler: one of them, or a class "
    "with its module, with scheduler_arguments and scheduler_interval"
)
_NO_METRIC: Final = (
    "it needs a metric, and Tandem's schedules depend on the step only, so that a resumed run goes on exactly; choose "
    "another, and set early_stopping_patience"
)
_SCHEDULER_CLASSES: Final = {  # torch's names without LR -> with it
    "step": "StepLR", "multistep": "MultiStepLR", "multi_step": "MultiStepLR", "exponential": "ExponentialLR",
    "onecycle": "OneCycleLR", "one_cycle": "OneCycleLR", "cyclic": "CyclicLR",
}  # fmt: skip
_WITH_LENGTH: Final = {  # Tandem's schedule -> torch's class, if the file gives this argument
    "cosine": ("CosineAnnealingLR", "t_max"),
    "cosine_with_restarts": ("CosineAnnealingWarmRestarts", "t_0"),
}
_EACH_BATCH: Final = ("OneCycleLR", "CyclicLR")  # their steps are those of the optimizer
_EACH_EPOCH: Final = "such scripts step it after each epoch; if yours does after each batch, set it to step"
_SCHEDULER: Final = {  # in lower case -> as torch writes it
    name.lower(): name
    for name in (
        *("step_size", "gamma", "milestones", "T_max", "T_0", "T_mult", "factor", "total_iters", "start_factor"),
        *("end_factor", "power", "max_lr", "base_lr", "total_steps", "epochs", "steps_per_epoch", "pct_start"),
        *("anneal_strategy", "cycle_momentum", "base_momentum", "max_momentum", "div_factor", "final_div_factor"),
        *("three_phase", "step_size_up", "step_size_down", "mode", "scale_mode", "patience", "threshold", "cooldown"),
    )
}
SCHEDULER_KEYS = dict.fromkeys(
    ("training.scheduler", "training.min_lr", "scheduler.interval", *(f"scheduler.{name}" for name in _SCHEDULER))
)
backend = choice({"nccl": "nccl", "gloo": "gloo"}, "Tandem uses nccl or gloo; set distributed_backend")
_MODES = choice(
    {
        "auto": "auto",
        **dict.fromkeys(("single", "none", "off", "false"), "single"),
        **dict.fromkeys(("dp", "data_parallel", "dataparallel"), "data_parallel"),
        **dict.fromkeys(("ddp", "distributed", "distributed_data_parallel", "distributeddataparallel", "true"),
                        "distributed"),
        **dict.fromkeys(("fsdp", "fully_sharded", "fsdp2"), "fully_sharded"),
    },
    "Tandem has single, data_parallel, ddp (distributed) and fsdp (fully_sharded); set training_mode",
)  # fmt: skip

_DIRECTIONS = choice({"min": "min", "max": "max", "auto": "auto"}, "it is min or max; set early_stopping_mode")


def schedule(values: Values) -> list[Assignment]:
    """One of Tandem's schedules, or torch's class with its arguments; and the lowest rate."""
    written = values["training.scheduler"]
    if written in EMPTY_VALUES:
        return _lowest_rate(values)
    key = ("training.scheduler",)
    given = {name: values[f"scheduler.{name}"] for name in _SCHEDULER if values[f"scheduler.{name}"] is not None}
    name = str(written).rpartition(".")[2].lower()
    if name == "reducelronplateau":
        raise UnsupportedValueError(_NO_METRIC)
    own = _SCHEDULES.get(name)
    kind, length = _WITH_LENGTH.get(own or "", ("", ""))
    if own is not None and length not in given:
        found = [Assignment("scheduler", own, keys=key), *_lowest_rate(values)]
        if own == "polynomial" and "power" in given:
            found.append(Assignment("scheduler_power", number(given["power"]), keys=("scheduler.power",)))
        return found
    target = class_of_torch("torch.optim.lr_scheduler", kind or _SCHEDULER_CLASSES.get(name, name))
    if target is None:
        raise UnsupportedValueError(_NO_SCHEDULE)
    arguments = {_SCHEDULER[name]: value for name, value in given.items()}
    keys = tuple(f"scheduler.{name}" for name in given)
    if kind and (lowest := optional_number(values["training.min_lr"])):
        arguments["eta_min"], keys = lowest, (*keys, "training.min_lr")
    found = [
        Assignment("scheduler", "custom", keys=key, quiet=True),
        Assignment("scheduler_target", target, keys=key),
        _interval(values["scheduler.interval"], target),
    ]
    return [*found, Assignment("scheduler_arguments", keywords_text(arguments), keys=keys)] if arguments else found


def _interval(given: object, target: str) -> Assignment:
    """After what a scheduler of torch takes its steps."""
    if given is not None:
        return Assignment("scheduler_interval", str(given).lower(), keys=("scheduler.interval",))
    is_each_batch = target.endswith(_EACH_BATCH)
    why = "" if is_each_batch else _EACH_EPOCH
    return Assignment("scheduler_interval", "step" if is_each_batch else "epoch", why, ("training.scheduler",))


def model(values: Values) -> list[Assignment]:
    """The classifier and its network, or the user's own file."""
    name = non_empty_text(values["model.name"])
    if name.endswith(".py"):
        return [Assignment("family", PathValue(name, "data"))]
    small = _SMALL_RESNET.fullmatch(name.lower())
    network = f"cifar_resnet{small[1]}" if small else name
    found = [
        Assignment("family", "classifier", keys=("model.name",), quiet=True),
        Assignment("family_options.network", network, "" if network == name else SMALL, ("model.name",)),
    ]
    if values["model.pretrained"] is not None:
        pretrained = boolean(values["model.pretrained"])
        found.append(Assignment("family_options.pretrained", pretrained, keys=("model.pretrained",)))
    return found


def folders(values: Values) -> list[Assignment]:
    """A concept for each folder of images."""
    found = []
    given = [(key, kind) for key, kind in FOLDERS.items() if values[key] not in EMPTY_VALUES]
    for index, (key, kind) in enumerate(given):
        path = PathValue(non_empty_text(values[key]), "data")
        found.append(Assignment(f"concepts.{index}.path", path, keys=(key,)))
        found.append(Assignment(f"concepts.{index}.kind", kind, keys=(key,), quiet=True))
        if kind == "train" and values["data.horizontal_flip"] is not None:
            chance = values["data.horizontal_flip"]
            flip = chance if isinstance(chance, bool) else number(chance) > 0
            why = "" if isinstance(chance, bool) or chance == 0.5 else "Tandem flips half of the images"
            found.append(Assignment(f"concepts.{index}.horizontal_flip", flip, why, ("data.horizontal_flip",)))
    return found


def length(values: Values) -> list[Assignment]:
    """Epochs and steps; a run without epochs ends after its steps."""
    found = []
    if values["training.epochs"] not in EMPTY_VALUES:
        found.append(Assignment("epochs", integer(values["training.epochs"]), keys=("training.epochs",)))
    if (steps := optional_number(values["training.max_steps"])) and steps > 0:
        count, key = integer(steps), "training.max_steps"
        found += [Assignment("max_steps", count, keys=(key,))] if found else common.max_steps(count, key)
    return found


def warmup(values: Values) -> list[Assignment]:
    """Steps, or epochs as a share of all epochs."""
    if steps := optional_number(values["training.warmup_steps"]):
        return [Assignment("warmup_steps", integer(steps), keys=("training.warmup_steps",))]
    if not (epochs := optional_number(values["training.warmup_epochs"])):
        return []
    total = optional_number(values["training.epochs"])
    if not total or not 0 <= epochs <= total:
        raise UnsupportedValueError("the number of epochs is not known; set warmup_steps")
    why = "Tandem's is a share of all steps"
    return [Assignment("warmup_fraction", round(epochs / total, 6), why, ("training.warmup_epochs",))]


def _lowest_rate(values: Values) -> list[Assignment]:
    """The lowest learning rate as a part of the highest."""
    lowest = optional_number(values["training.min_lr"])
    if not lowest:
        return []
    highest = optional_number(values["training.learning_rate"])
    if not highest or not 0 <= lowest <= highest:
        raise UnsupportedValueError("it is not between 0 and the learning rate; set min_learning_rate_factor")
    why = "Tandem's is a part of the learning rate"
    return [Assignment("min_learning_rate_factor", float(f"{lowest / highest:.6g}"), why, ("training.min_lr",))]


def optimizer(values: Values) -> list[Assignment]:
    """The optimizer and its arguments."""
    given = {name: values[f"optimizer.{name}"] for name in OF_TORCH if values[f"optimizer.{name}"] is not None}
    if values["training.optimizer"] in EMPTY_VALUES:
        return argument_assignments("adamw", given, "optimizer.")
    return optimizer_assignments(values["training.optimizer"], given, "training.optimizer", "optimizer.")


def precision(values: Values) -> list[Assignment]:
    """Mixed precision; torch's autocast computes in fp16 on GPUs unless the script says otherwise."""
    amp, key = values["training.use_amp"], "training.use_amp"
    if isinstance(amp, str) and amp.lower() in PRECISIONS:
        return [Assignment("precision", PRECISIONS[amp.lower()], keys=(key,))]
    if amp is not None and not boolean(amp):
        return [Assignment("precision", "fp32", keys=(key,))]
    if (word := values["training.precision"]) is not None:
        name = str(word).lower()
        found = _PRECISION_WORDS.get(name) or PRECISIONS.get(name)
        if found is None:
            raise UnsupportedValueError("Tandem trains in fp32, tf32, bf16 or fp16; set precision")
        return [Assignment("precision", found)]
    why = "as torch's autocast on GPUs; bf16 needs no loss scaling"
    return [] if amp is None else [Assignment("precision", "fp16", why, (key,))]


def parallel(values: Values) -> list[Assignment]:
    """How many processes, and which kind."""
    found: list[Assignment] = []
    count = values["parallel.world_size"]
    if isinstance(count, (list, tuple)):  # the numbers of the GPUs, as Lightning's devices may be
        found.append(Assignment("device_ids", device_ids(count), keys=("parallel.world_size",), quiet=True))
        count = len(count)
    ranks = None if count in ("auto", -1, "-1") else optional_number(count)
    mode = values["parallel.mode"]
    chosen = None if mode in EMPTY_VALUES else _MODES(mode)
    if values["parallel.enabled"] is not None:
        on = boolean(values["parallel.enabled"])
        found.append(Assignment("enable_multi_gpu", on, keys=("parallel.enabled",)))
    elif chosen is not None or (ranks or 0) > 1:
        key = "parallel.mode" if chosen is not None else "parallel.world_size"
        found.append(Assignment("enable_multi_gpu", chosen != "single", keys=(key,), quiet=True))
    if chosen is not None:
        found.append(Assignment("training_mode", chosen, keys=("parallel.mode",)))
    if ranks and chosen not in ("single", "data_parallel"):
        found.append(Assignment("world_size", integer(ranks), keys=("parallel.world_size",)))
    return found


def gpus(value: object) -> object:
    """The numbers of the GPUs."""
    return device_ids(value)


def device(value: object) -> object:
    """auto, or the CPU."""
    name = str(value).lower().partition(":")[0]
    if name not in ("auto", "cuda", "gpu", "cpu"):
        raise UnsupportedValueError("Tandem trains on NVIDIA GPUs or the CPU; set device")
    return "cpu" if name == "cpu" else "auto"


STOPPING: Final = (
    *("early_stopping.enabled", "early_stopping.patience", "early_stopping.metric", "early_stopping.mode"),
    *("early_stopping.min_delta", "early_stopping.callback", "training.early_stop"),
)
_LIGHTNING_PATIENCE: Final = 3  # of EarlyStopping, if its callback gives none


def early_stopping(values: Values) -> list[Assignment]:
    """Patience, metric, direction and smallest change, unless it is switched off."""
    enabled = values["early_stopping.enabled"]
    if enabled is not None and not boolean(enabled):
        return []
    found: list[Assignment] = []
    found += _patience(values)
    if is_text(values["early_stopping.metric"]):
        found += _metric(str(values["early_stopping.metric"]))
    for key, read in (("mode", _DIRECTIONS), ("min_delta", _least_change)):
        if (value := values[f"early_stopping.{key}"]) is not None:
            found.append(Assignment(f"early_stopping_{key}", read(value), keys=(f"early_stopping.{key}",)))
    return found


def _patience(values: Values) -> list[Assignment]:
    """In validations without improvement; nothing if there is no early stopping."""
    switch = tuple(key for key in ("early_stopping.enabled", "early_stopping.callback") if values[key] is not None)
    if patience := optional_number(values["early_stopping.patience"]):
        keys = (*switch, "early_stopping.patience")
        return [Assignment("early_stopping_patience", integer(patience), keys=keys)]
    if allowed := optional_number(values["training.early_stop"]):
        why = "the template stops after one validation more than early_stop without improvement"
        keys = (*switch, "training.early_stop")
        return [Assignment("early_stopping_patience", integer(allowed) + 1, why, keys)]
    if values["early_stopping.callback"] is not None and values["early_stopping.patience"] is None:
        why = "Lightning's default patience"
        return [Assignment("early_stopping_patience", _LIGHTNING_PATIENCE, why, switch)]
    return []


def _least_change(value: object) -> object:
    return abs(number(value))


def _metric(written: str) -> list[Assignment]:
    """The metric from "val_loss", "val/acc" or "min val_loss"."""
    key = ("early_stopping.metric",)
    direction, _, name = written.strip().lower().rpartition(" ")
    plain = re.sub(r"^(val|valid|validation|eval)[_/.]", "", name)
    metric = {"acc": "accuracy", "acc1": "accuracy", "top1": "accuracy", "acc5": "top5_accuracy"}.get(plain, plain)
    found = [Assignment("early_stopping_metric", metric, keys=key)]
    return [*found, Assignment("early_stopping_mode", direction, keys=key)] if direction in ("min", "max") else found


def run_name(value: object) -> object:
    """A name that a folder may have."""
    written = non_empty_text(value)
    name = sanitize_run_name(written)
    return name if name == written else ChangedValue(name, "a name that every file system takes")


def image_size(value: object) -> object:
    """The side of the images, from 32 or [3, 32, 32]."""
    sides = [integer(each) for each in (value if isinstance(value, (list, tuple)) else [value])]
    sides = sides[1:] if len(sides) == 3 else sides
    if not sides or len(set(sides)) > 1:
        raise UnsupportedValueError(f"{format_value(value)} is no side of a square; set resolution")
    return sides[0]
