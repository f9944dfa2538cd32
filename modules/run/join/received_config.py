"""What a joining machine takes from machine 0's config: allowed paths, the same family, and never where to write."""

from __future__ import annotations

from collections.abc import Callable

from modules import __version__
from modules.config import ConfigError, TrainConfig, override, validate
from modules.config.io.migrations import migrate
from modules.config.io.text_formats import Data
from modules.config.trusted_code import allow_code
from modules.files import printable
from modules.machine import hostname
from modules.run.join.allowed_paths import OWN_FOLDERS, Ask, check_paths, path_settings
from modules.run.join.fingerprint import code_listing, family_identity, package_listing
from modules.run.join.join_line import JoinLine
from modules.run.join.local_settings import shared_settings
from modules.run.join.machine_zero import MachineZero
from modules.run.join.messages import Welcome, record


def receive_config(
    machine_zero: MachineZero,
    join_line: JoinLine,
    echo: Callable[[str], None],
    ask: Ask | None,
    ask_about_code: Ask | None,
) -> tuple[Welcome, TrainConfig]:
    """Introduce this machine; what machine 0 answers, and its config for this machine, once it may be used here.

    Raises TandemError if machine 0 rejects this machine, or if nobody here has allowed what the config names.
    """
    own = join_line.config
    machine_zero.send(
        "hello",
        host=hostname(),
        tandem=__version__,
        code=code_listing(),
        packages=package_listing(),
        config=None if own is None else shared_settings(own),
        number=None if own is None else own.node_rank,
        allow_differences=join_line.allow_differences,
    )
    welcome = record(Welcome, machine_zero.expect("welcome"))
    machine_zero.introduce(welcome.host, welcome.nonce)
    config = merge_config(join_line, welcome, machine_zero.name)
    purpose = "a preflight" if welcome.preflight else f"the run {printable(welcome.run_name, 200)!r}"
    echo(
        f"{machine_zero.name} has accepted the token; this is machine {config.node_rank} of {welcome.machines}, "
        f"for {purpose}."
    )
    check_named_paths(config, join_line, "", machine_zero.announced(ask))
    check_family(config, join_line, welcome, machine_zero.name, machine_zero.announced(ask_about_code))
    for note in welcome.notes:
        echo(f"Note: {printable(note)}.")
    return welcome, config


def merge_config(join_line: JoinLine, welcome: Welcome, host: str) -> TrainConfig:
    """Machine 0's config with this machine's local settings; it alone decides where it writes. Raises ConfigError."""
    own = join_line.config
    if own is None:
        folders = {name: TrainConfig.model_fields[name].default for name in OWN_FOLDERS}
        data: Data = {**migrate(dict(welcome.config), f"The config of {host}"), **folders}
    else:
        data = own.model_dump(mode="json")
    number = [f"node_rank={welcome.number}", f"master_addr={join_line.host}"]
    where = f"The config of {host}" if own is None else "The config"
    return validate(override(data, [*join_line.settings, *number]), where)


def check_named_paths(config: TrainConfig, join_line: JoinLine, resume: str, ask: Ask | None) -> None:
    """Raise TandemError unless a person here has allowed each path that machine 0 names."""
    own = [assignment.partition("=")[0].strip().removeprefix("--") for assignment in join_line.settings]
    if join_line.trust_code:
        own.append("family")
    if join_line.config is not None:
        own += [name for name, _ in path_settings(config)]
    check_paths(config, own, resume, join_line.allow, ask)


def check_family(config: TrainConfig, join_line: JoinLine, welcome: Welcome, host: str, ask: Ask | None) -> None:
    """Raise ConfigError if the family's code differs, or if it is a file that nobody here has allowed to run.

    `ask` puts the question whether it may.
    """
    if welcome.family != family_identity(config):
        raise ConfigError(
            f"family: {config.family!r} is not the same here as on {host}",
            "Copy the family's file and those that it imports from there; if it is in another place here, use --set "
            "family=FILE",
        )
    allow_code(config, trust=join_line.trust_code, ask=ask)
