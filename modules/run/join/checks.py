"""The checks of machine 0 before it accepts another machine: software, settings, data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from modules import __version__
from modules.config import TrainConfig
from modules.files import printable
from modules.run.folder.failures import Failure
from modules.run.join.channel import Message
from modules.run.join.fingerprint import (
    Listing,
    code_listing,
    compare_code,
    compare_data,
    compare_packages,
    concept_name,
    differing_names,
    digest,
    enabled_concepts,
    lacks_base_model,
    package_listing,
)
from modules.run.join.join_line import SAME_VERSION
from modules.run.join.local_settings import shared_settings
from modules.run.join.session import Session

_SHOWN = 3
_MAX_PROCESSES = 1024
_MAX_AGE_S = 3600.0


class JoinRejected(Exception):
    """A machine is rejected: the reason, and what to do there."""

    def __init__(
        self, message: str, advice: str = "", *, kind: str = "process_group", only_there: Sequence[str] = ()
    ) -> None:
        """`only_there`: HMACs of files that only the rejected machine has, which it can name."""
        super().__init__(message)
        self.advice = advice
        self.kind = kind
        self.only_there = list(only_there)


def check_software(config: TrainConfig, hello: Message, host: str) -> list[str]:
    """Compare code, packages and, if the machine has its own, the config; returns notes. Raises JoinRejected."""
    code = compare_code(code_listing(), strings(hello["code"]), host)
    packages = compare_packages(package_listing(), strings(hello["packages"]), host)
    version = printable(hello.get("tandem", __version__), 100)
    differs = (f"Tandem is {version} on {host} and {__version__} on machine 0",)
    errors = (*(code.errors if version == __version__ else differs), *packages.errors)
    if errors and not hello.get("allow_differences"):
        raise JoinRejected(
            "; ".join((*errors, *packages.warnings)),
            f"{SAME_VERSION}. If you know that the "
            "difference is harmless, add --allow_differences to the line that joins, or, for a machine that is started "
            "over ssh, to its entry in the list of machines (scripts/hosts.py add)",
        )
    if hello.get("config") is not None:
        _check_config(config, strings(hello["config"]), host)
    return [*errors, *packages.warnings]


def check_dataset(
    config: TrainConfig, own: Sequence[Listing], session: Session, ready: Message, key: str, host: str
) -> None:
    """Compare images, family and base model by digest, and file by file if those differ. Raises JoinRejected."""
    digests = ready["digests"]
    if not isinstance(digests, list) or len(digests) != len(own):
        raise ValueError("number of digests")
    wrong = [number for number, listing in enumerate(own) if digest(listing, key) != digests[number]]
    if not wrong:
        return
    session.send("request_listings", which=wrong)
    theirs = [strings(listing) for listing in session.expect("listings")["listings"]]
    names = [*(concept_name(config, number) for number in enabled_concepts(config)), "the model"]
    model = config.base_model
    if wrong[-1] == len(own) - 1 and model is not None and lacks_base_model(model, own[-1], theirs[-1], key):
        raise JoinRejected(
            f"base_model: there is no file or folder {model!r} on {host}",
            "Copy it from machine 0; if it is in another place there, join with --set base_model=PATH",
            kind="data",
        )
    found = [
        compare_data(names[number], own[number], there, key, host) for number, there in zip(wrong, theirs, strict=True)
    ]
    raise JoinRejected(
        "; ".join(each.message for each in found if each is not None) or "its digests and its listings do not agree",
        "Copy the files so that both machines have the same",
        kind="data",
        only_there=[name for each in found if each is not None for name in each.only_there],
    )


def failure_of(message: Message, ranks: range, host: str) -> Failure:
    """A failure that a machine reports of one of its own `ranks`; its clock may be wrong, so only the age is used.

    Raises ValueError for a rank of another machine: one may not end the run in another's name.
    """
    rank = message["rank"]
    if type(rank) is not int or rank not in ranks:
        raise ValueError(f"a failure of rank {printable(rank, 40)}, which is not its own")
    age_s = min(max(0.0, float(message["age_s"])), _MAX_AGE_S)
    texts = {name: str(message[name]) for name in ("kind", "message", "advice", "traceback")}
    return Failure(rank, host, **texts, time=time.time() - age_s).made_printable()


def process_count(given: object) -> int:
    """The validated number of processes of a machine. Raises ValueError."""
    if type(given) is not int or not 1 <= given <= _MAX_PROCESSES:
        raise ValueError("number of processes")
    return given


def strings(given: object) -> dict[str, str]:
    """A validated listing from another machine. Raises TypeError."""
    if not isinstance(given, dict):
        raise TypeError("not a listing")
    return {str(name): str(value) for name, value in given.items()}


def _check_config(config: TrainConfig, theirs: Mapping[str, str], host: str) -> None:
    own = shared_settings(config)
    names = differing_names(own, dict(theirs))
    if names:
        shown = [
            f"{printable(name, 100)} is {printable(theirs.get(name), 200)} on {host} and {own.get(name)} on machine 0"
            for name in names[:_SHOWN]
        ]
        more = f", and {len(names) - _SHOWN} more settings differ" if len(names) > _SHOWN else ""
        raise JoinRejected(
            f"the settings differ: {', '.join(shown)}{more}",
            "Use the same config file and --set on both, or join with --join, which needs no config",
            kind="config",
        )
