"""Which settings each machine may choose itself, and which the whole run must share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from modules.config import ConfigError, TrainConfig, dump

# Images, models and folders may be in other places on each machine, and the devices may differ.
LOCAL_SETTINGS: Final = (
    "base_model",
    "cache_dir",
    "concepts.N.path",
    "concepts.N.references",
    "device",
    "device_ids",
    "family",
    "family_options.layout",
    "family_options.text_encoder_files",
    "loader_workers",
    "lora_from",
    "node_rank",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "runs_dir",
    "samples.N.reference",
    "training_adapter",
)
# Set by machine 0 for all machines, overriding a machine's own config file, or used by it alone.
_SET_BY_MACHINE_0: Final = ("initial_port", "master_addr", "processes_per_node", "rescue_dir", "run_name", "world_size")
_LOCAL: Final = re.compile("|".join(re.escape(name).replace("N", r"\d+") for name in LOCAL_SETTINGS))
# Set for the processes of a machine that joined with --allow_differences, so that they accept its code.
ALLOW_DIFFERENCES: Final = "TANDEM_ALLOW_DIFFERENCES"


def check_local_settings(assignments: Iterable[str]) -> None:
    """Raise ConfigError if a joining machine's `--set` names a setting of the whole run."""
    for assignment in assignments:
        name = assignment.partition("=")[0].strip().removeprefix("--")
        if not is_local(name):
            raise ConfigError(
                f"{name} applies to the whole run, so only machine 0 can set it; a joining machine may set only "
                f"{', '.join(LOCAL_SETTINGS)}",
                f"Omit --set {name} here, or set it on machine 0",
            )


def is_local(name: str) -> bool:
    """Whether each machine may choose this setting itself."""
    return _LOCAL.fullmatch(name) is not None


def shared_settings(config: TrainConfig) -> dict[str, str]:
    """Every setting that all machines must share: name -> value as text."""
    found: dict[str, str] = {}
    for name, value in dump(config).items():
        if name in ("concepts", "samples") and isinstance(value, list):
            found |= _settings_of_each(name, value)
        elif name == "family_options" and isinstance(value, dict):
            found |= {path: str(each) for option, each in value.items() if not is_local(path := f"{name}.{option}")}
        elif not is_local(name) and name not in _SET_BY_MACHINE_0:
            found[name] = str(value)
    return found


def _settings_of_each(group: str, items: list[Any]) -> dict[str, str]:
    found = {group: f"{len(items)} of them"}
    for number, item in enumerate(items):
        each = ((f"{group}.{number}.{name}", str(value)) for name, value in item.items())
        found |= {path: value for path, value in each if not is_local(path)}
    return found
