"""What a joining machine takes from machine 0's config: allowed paths, the same family, and never where to write."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config import ConfigError, TrainConfig, override, validate
from modules.config.trusted_code import allow_family
from modules.run.join.allowed_paths import OWN_FOLDERS, Ask, check_paths, path_settings
from modules.run.join.fingerprint import family_identity
from modules.run.join.join_line import JoinLine
from modules.run.join.messages import Welcome


def merge_config(join_line: JoinLine, welcome: Welcome, host: str) -> TrainConfig:
    """Machine 0's config with this machine's local settings; it alone decides where it writes. Raises ConfigError."""
    own = join_line.config
    if own is None:
        folders = {name: TrainConfig.model_fields[name].default for name in OWN_FOLDERS}
        data: Mapping[str, object] = {**welcome.config, **folders}
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
            "Copy the family's file from there; if it is in another place here, use --set family=FILE",
        )
    allow_family(config.family, trust=join_line.trust_code, ask=ask)
