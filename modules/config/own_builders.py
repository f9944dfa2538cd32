"""The optimizer and scheduler that a family's own file builds, beside a config that names others."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from modules.config.errors import ConfigError
from modules.config.imported_code import read_code
from modules.config.sections.optimizers import Custom
from modules.config.train_config import TrainConfig

_SETTINGS: Final = {"build_optimizer": "optimizer", "build_scheduler": "scheduler"}
_OF_FUNCTIONS: Final = {"build_model", "build_data", "loss"}  # what a file without a Family class defines


def beside_own(config: TrainConfig, function: str) -> ConfigError:
    """That the config names another optimizer or scheduler than the one that `function` of the family builds."""
    setting = _SETTINGS[function]
    named = config.optimizer.name if setting == "optimizer" else config.scheduler
    return ConfigError(
        f"the family builds {'an' if setting == 'optimizer' else 'a'} {setting} of its own, but {setting} is {named}",
        f"Set {setting} to custom, without a target, to use it, or take {function} away",
    )


def own_optimizer_note(config: TrainConfig) -> str:
    """A sentence on an optimizer that is none of Tandem's; empty without one."""
    if not isinstance(config.optimizer, Custom):
        return ""
    target, arguments = config.optimizer.target, config.optimizer.arguments
    named = f"{target}({arguments})" if target else "one of the family's or program's own"
    return f"The optimizer is {named}."


def check_own_builders(config: TrainConfig) -> None:
    """Raises ConfigError if the family's file, which is not run, builds what the config names another of."""
    if not config.family.endswith(".py"):
        return
    try:
        body = ast.parse(read_code(Path(config.family)).content).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # whoever runs it says what is wrong
    defined = {each.name for each in body if isinstance(each, ast.FunctionDef)}
    is_used = {
        "build_optimizer": config.optimizer.name == "custom" and not config.optimizer.class_path(),
        "build_scheduler": config.scheduler == "custom" and not config.scheduler_target,
    }
    for function, used in is_used.items():
        if not used and defined >= {*_OF_FUNCTIONS, function}:
            raise beside_own(config, function)
