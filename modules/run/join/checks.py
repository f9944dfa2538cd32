"""What machine 0 looks at before it lets another machine in: programs, settings, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modules.config import TrainConfig
from modules.run.join.fingerprint import (
    Listing,
    code_listing,
    compare_code,
    compare_data,
    compare_packages,
    concept_name,
    differing,
    digest,
    enabled_concepts,
    package_listing,
)
from modules.run.join.line import Message
from modules.run.join.rules import shared_settings
from modules.run.join.talk import Talk

_SHOWN = 3
_MOST_PROCESSES = 1024


class Refused(Exception):
    """A machine is not let in; the text says why, the advice what to do there."""

    def __init__(self, message: str, advice: str = "", *, kind: str = "process_group") -> None:
        super().__init__(message)
        self.advice = advice
        self.kind = kind


def check_programs(config: TrainConfig, arrival: Message, host: str) -> list[str]:
    """Compare code, packages and, where the machine brings its own, the config; what to tell all the same."""
    code = compare_code(code_listing(), strings(arrival["code"]), host)
    packages = compare_packages(package_listing(), strings(arrival["packages"]), host)
    refusals = (*code.refusals, *packages.refusals)
    if refusals and not arrival.get("allow_differences"):
        raise Refused(
            "; ".join((*refusals, *packages.warnings)),
            "Bring both machines to the same version (git pull, then the installer), or join with "
            "--allow_differences if you know that it does no harm",
        )
    if arrival.get("config") is not None:
        _check_config(config, strings(arrival["config"]), host)
    return [*refusals, *packages.warnings]


def check_pictures(config: TrainConfig, own: Sequence[Listing], talk: Talk, digests: Sequence[str], host: str) -> None:
    """Compare the pictures by digest, and by name only where those differ; the same for family and base model."""
    wrong = [number for number, listing in enumerate(own) if digest(listing) != digests[number]]
    if not wrong:
        return
    talk.send("list", which=wrong)
    theirs = [strings(listing) for listing in talk.expect("listings")["listings"]]
    names = [*(concept_name(config, number) for number in enabled_concepts(config)), "the model"]
    told = [compare_data(names[number], own[number], there, host) for number, there in zip(wrong, theirs, strict=True)]
    raise Refused("; ".join(told), "Copy the files so that both machines have the same", kind="data")


def process_count(given: object) -> int:
    """How many processes a machine says it brings. Raises ValueError for what cannot be."""
    if type(given) is not int or not 1 <= given <= _MOST_PROCESSES:
        raise ValueError("how many processes it brings")
    return given


def strings(given: object) -> dict[str, str]:
    """A listing as it came over the line. Raises TypeError for anything else."""
    if not isinstance(given, dict):
        raise TypeError("no listing")
    return {str(name): str(value) for name, value in given.items()}


def _check_config(config: TrainConfig, theirs: Mapping[str, str], host: str) -> None:
    own = shared_settings(config)
    names = differing(own, dict(theirs))
    if names:
        told = [f"{name} is {theirs.get(name)} on {host} and {own.get(name)} on machine 0" for name in names[:_SHOWN]]
        more = f", and {len(names) - _SHOWN} more settings differ" if len(names) > _SHOWN else ""
        raise Refused(
            f"the settings are not the same: {', '.join(told)}{more}",
            "Use the same config file and --set on both, or join with --join, which needs no config",
            kind="config",
        )
