"""Which settings are a machine's own affair, and which the whole run must share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from modules.config import ConfigError, TrainConfig, dump

# Each machine may have its pictures, models and folders elsewhere, and other devices.
OWN_SETTINGS: Final = (
    "base_model",
    "cache_dir",
    "concepts.N.path",
    "device_ids",
    "family",
    "loader_workers",
    "node_rank",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "runs_dir",
)
# What machine 0 decides for all, whatever a machine's own config file says.
_DECIDED_BY_THE_FIRST: Final = ("initial_port", "master_addr", "processes_per_node", "run_name", "world_size")
_OWN: Final = re.compile("|".join(re.escape(name).replace("N", r"\d+") for name in OWN_SETTINGS))
_SHORTEST_TOKEN: Final = 16
# Tells the processes of a machine that joined with --allow_differences not to refuse its code.
ALLOW_DIFFERENCES: Final = "TANDEM_ALLOW_DIFFERENCES"


def check_own(assignments: Iterable[str]) -> None:
    """Raise ConfigError where a `--set` of a joining machine is not its own affair."""
    for assignment in assignments:
        name = assignment.partition("=")[0].strip().removeprefix("--")
        if not _OWN.fullmatch(name):
            raise ConfigError(
                f"{name} belongs to the whole run, so machine 0 decides it; a machine that joins may only set "
                f"{', '.join(OWN_SETTINGS)}",
                f"Leave --set {name} out here, or set it on machine 0",
            )


def check_token(token: str, advice: str = "Leave it out on machine 0 and Tandem makes one") -> None:
    """Raise ConfigError for a token that could be guessed or would not survive a command line."""
    wanted = f"use at least {_SHORTEST_TOKEN} letters and digits"
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token is {token!r}, which holds other things than plain letters and digits; {wanted}", advice
        )
    if len(token) < _SHORTEST_TOKEN:
        raise ConfigError(f"--token has {len(token)} characters; {wanted}", advice)


def shared_settings(config: TrainConfig) -> dict[str, str]:
    """Every setting that all machines must have in common, by name, as text."""
    found: dict[str, str] = {}
    for name, value in dump(config).items():
        if name == "concepts" and isinstance(value, list):
            found |= _of_concepts(value)
        elif not _OWN.fullmatch(name) and name not in _DECIDED_BY_THE_FIRST:
            found[name] = str(value)
    return found


def _of_concepts(concepts: list[Any]) -> dict[str, str]:
    found = {"concepts": f"{len(concepts)} of them"}
    for number, concept in enumerate(concepts):
        found |= {f"concepts.{number}.{name}": str(value) for name, value in concept.items() if name != "path"}
    return found
