"""The copy of a config that a queue keeps: it means the same in any current folder, and on other machines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from modules import ROOT
from modules.config import ConfigError, TrainConfig, dump, validate
from modules.files import whole_path
from modules.run.join.allowed_paths import OWN_FOLDERS, path_settings, separator_of

_OF_THIS_MACHINE: Final = (*OWN_FOLDERS, "rescue_dir", "family")
_ALWAYS_FOLDERS: Final = (*OWN_FOLDERS, "concepts", "rescue_dir")  # others may be names on the hub


def own_copy(
    config: TrainConfig, runs_dir: Path, devices: Sequence[int] | None, *, has_hosts: bool = False
) -> TrainConfig:
    """The config with `runs_dir` and `devices`, and with whole paths instead of those below the current folder.

    If it `has_hosts`, which are other machines, paths below Tandem's folder stay as they are: each machine looks them
    up in its own. Raises ConfigError, such as for devices beside a different number of processes.
    """
    data: dict[str, Any] = dict(dump(config))
    is_in_tandem = has_hosts and os.path.samefile(os.curdir, ROOT)
    for name, value in path_settings(config):
        first, separator = name.partition(".")[0], separator_of(name)
        if not value or (is_in_tandem and first not in _OF_THIS_MACHINE):
            continue
        parts = [each.strip() for each in value.split(separator)] if separator else [value]
        whole = [str(whole_path(each)) if _is_here(each, first) else each for each in parts]
        if whole != parts:
            _set(data, name.split("."), f"{separator} ".join(whole))
    data["runs_dir"] = str(runs_dir)
    copy = validate(data, "the entry")
    return copy if devices is None else on_devices(copy, devices)


def _is_here(path: str, setting: str) -> bool:
    return bool(path) and not os.path.isabs(path) and (setting in _ALWAYS_FOLDERS or os.path.exists(path))


def on_devices(config: TrainConfig, devices: Sequence[int] | None) -> TrainConfig:
    """The config for these GPUs; None for all. Raises ConfigError, such as for a different number of processes."""
    if config.device == "cpu":
        return config
    return validate({**dump(config), "device_ids": None if devices is None else list(devices)}, "the entry")


def _set(data: Any, path: Sequence[str], value: str) -> None:
    for part in path[:-1]:
        data = data[int(part) if isinstance(data, list) else part]
    last = path[-1]
    data[int(last) if isinstance(data, list) else last] = value


def check_trains_there(config: TrainConfig, joined: Sequence[str]) -> None:
    """Raise ConfigError for a run on more machines than another one and those that have `joined` it."""
    if config.num_nodes > 1 + len(joined):
        raise ConfigError(
            f"num_nodes is {config.num_nodes}, but {1 + len(joined)} take part in an entry for another machine",
            f"Set num_nodes={1 + len(joined)}, or name those that join it: --with NAME,NAME, or their switches under "
            "Multi-GPU",
        )
