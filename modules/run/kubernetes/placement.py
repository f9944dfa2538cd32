"""What a config must be to run in pods: each path in a volume, no password or token in its text."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from modules.config import ConfigError, TrainConfig, dump
from modules.config.imported_code import read_class, read_with_imports
from modules.config.trusted_code import foreign_classes
from modules.files import is_secret_name, mask_secrets, printable
from modules.files.display import control_character
from modules.run.join.allowed_paths import path_settings, paths_in, texts_in
from modules.run.kubernetes.request import KubernetesRequest, lies_in

_DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")


def check_paths(config: TrainConfig, request: KubernetesRequest) -> None:
    """Raise ConfigError for the first path of the config, or of `hub`, that is in no volume of the pods."""
    for name, path in [*_paths(config), *([("--hub", request.hub)] if request.hub else [])]:
        if control_character(path):
            raise ConfigError(f"{printable(name)} is {printable(repr(path))}, which has a control character")
        if not is_in_volume(path, request):
            volumes = ", ".join(volume.path for volume in request.volumes)
            raise ConfigError(
                f"{printable(name)} is {printable(repr(path))}, which is in no volume of the pods ({volumes})",
                f"Set it to its path there, or a relative one, which begins at {request.work}; or mount its volume "
                "with --volume CLAIM:PATH",
            )


def is_in_volume(path: str, request: KubernetesRequest) -> bool:
    """Whether a path of the config is one of a volume."""
    whole = whole_path_there(path, request)
    return not path.startswith("~") and not _DRIVE.match(path) and any(
        lies_in(whole, volume.path) for volume in request.volumes
    )  # fmt: skip


def whole_path_there(path: str, request: KubernetesRequest) -> str:
    """A path of the config in the pods."""
    whole = posixpath.normpath(posixpath.join(request.work, path))
    return f"/{whole.lstrip('/')}"  # of two slashes POSIX keeps both


def check_no_secret(config: TrainConfig) -> None:
    """Raise ConfigError, without its value, for a setting that holds a password or token: anybody who may read the
    job's ConfigMap could read it."""
    texts = (each for name, value in dump(config).items() for each in texts_in(value, name))
    for name, value in texts:
        if mask_secrets(value) != value or (value and is_secret_name(name.rpartition(".")[2])):
            raise ConfigError(
                f"{printable(name)} holds what looks like a password or an access token, which must not be in a "
                "manifest",
                "Put it into a secret of the cluster and name that with --secret; its keys, such as HF_TOKEN, become "
                "variables of the pods",
            )


def code_hashes(config: TrainConfig) -> list[str]:
    """The SHA-256 of each Python file that the config names, which has been allowed here. Raises ConfigError."""
    files = list(read_with_imports(Path(config.family))) if config.family.endswith(".py") else []
    for setting, path in foreign_classes(config):
        files += read_class(path, setting)
    return list(dict.fromkeys(file.sha256 for file in files))


def _paths(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """(name, path) of each that the run uses."""
    for name, value in path_settings(config):
        group, _, rest = name.partition(".")
        if group != "concepts" or config.concepts[int(rest.partition(".")[0])].enabled:
            yield from ((name, path) for path in paths_in(name, value))
