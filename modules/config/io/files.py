"""Config files in JSON or YAML, by file extension."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from modules import files
from modules.config.all_faults import all_faults
from modules.config.errors import ConfigError
from modules.config.io.composition import compose
from modules.config.io.migrations import ambiguous_settings, migrate
from modules.config.io.text_formats import Data, read_json, read_yaml, write_json, write_yaml
from modules.config.options import sections_of
from modules.config.train_config import TrainConfig
from modules.files import FileFault

log = logging.getLogger("tandem")

LARGEST_CONFIG = 1 << 20  # bytes; a hundred times what a long config takes
READERS: dict[str, Callable[[str], object]] = {".json": read_json, ".yaml": read_yaml, ".yml": read_yaml}
WRITERS: dict[str, Callable[[Data], str]] = {".json": write_json, ".yaml": write_yaml, ".yml": write_yaml}


def load_config(path: str | Path) -> TrainConfig:
    """Load a config from a JSON or YAML file, including older versions; raises ConfigError for any fault."""
    return validate(read_data(path), files.printable(path))


def save_config(config: TrainConfig, path: str | Path) -> None:
    """Write a complete config atomically; raises ConfigError."""
    writer = WRITERS.get(Path(os.path.realpath(path)).suffix.lower())
    if writer is None:
        raise ConfigError(f"{path}: {_EXTENSIONS}")
    data = dump(config)
    if len(json.dumps(data, ensure_ascii=False)) > LARGEST_CONFIG:  # as YAML it takes seconds, and cannot be read again
        raise ConfigError(
            f"{files.printable(path)} cannot be written: with {len(config.concepts):,} concepts and "
            f"{len(config.samples):,} samples it would be larger than 1 MiB.",
            "Put folders into one folder, which is then one concept with its subfolders.",
        )
    write_config_text(path, writer(data))


def write_config_text(path: str | Path, text: str) -> None:
    """Write the text of a config atomically; raises ConfigError."""
    try:
        write_atomically(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {files.write_fault(error, path)}.",
            "Choose another location or free some space.",
        ) from error
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise ConfigError(f"{path} cannot be written: a text contains the lone surrogate {half}.") from error


def read_data(path: str | Path, warn: Callable[[str], object] = log.warning) -> Data:
    """The settings in a file and in those that it includes, migrated to the current version but not yet validated;
    raises ConfigError."""
    return compose(Path(path), partial(_read_one, warn=warn))


def config_files(path: str | Path) -> list[Path]:
    """The files that a config is made of, each as often as it is read; raises ConfigError."""
    found: list[Path] = []

    def read(file: Path) -> Data:
        found.append(file)
        return _read_one(file, lambda sentence: None)

    compose(Path(path), read)
    return found


def _read_one(path: Path, warn: Callable[[str], object]) -> Data:
    shown, data = files.printable(path), parse(path, read_text(path))
    migrated = _with_own_file(migrate(data, shown), path.parent)
    for sentence in ambiguous_settings(data, shown):
        warn(sentence)
    return migrated


def _with_own_file(data: Data, folder: Path) -> Data:
    """`data` with the path of a family's file beside the config, if the current folder has no such file."""
    family = data.get("family")
    if (
        not (isinstance(family, str) and family.endswith(".py") and family[0] not in "/\\~")
        or Path(family).is_absolute()
    ):
        return data
    beside = str(folder / family)
    return {**data, "family": beside} if os.path.isfile(beside) and not os.path.isfile(family) else data


def parse(path: str | Path, text: str) -> Data:
    """The settings in the text of a file, as they are written there; raises ConfigError."""
    reader, shown = READERS.get(Path(path).suffix.lower()), files.printable(path)
    if reader is None:
        raise ConfigError(f"{shown}: {_EXTENSIONS}")
    try:
        data = reader(text)
    except ValueError as error:
        raise ConfigError(f"{shown} cannot be read: {error}.") from None
    if data is None:
        raise ConfigError(f"{shown} is empty; it must contain settings, such as learning_rate: 0.0001.")
    if not isinstance(data, dict):
        raise ConfigError(
            f"{shown}: the file contains {_KINDS.get(type(data), 'a value')}; it must contain names with values, "
            "such as learning_rate: 0.0001."
        )
    return data


def validate(data: Mapping[str, object], source: str, assignments: Iterable[str] = ()) -> TrainConfig:
    """Validate plain data; raises one ConfigError that lists every fault.

    `source` names where the data is from. Faults in the settings of `assignments` ("path=value"), which the user has
    just given, are listed without it.
    """
    try:
        return TrainConfig.model_validate(data)
    except ValidationError:
        found = all_faults(data)
        given = {_head(assignment.partition("=")[0].strip().removeprefix("--")) for assignment in assignments}
        is_given = all(_head(fault.path) in given for fault in found)
        raise ConfigError.from_faults("" if is_given else source, [fault.sentence for fault in found]) from None


def _head(path: str) -> str:
    """The setting or section that a dotted path begins with."""
    return path.partition(".")[0]


def dump(config: TrainConfig) -> Data:
    """Every setting as in a file, in the order of the sections."""
    data = config.model_dump(mode="json")
    order = [name for section in sections_of(TrainConfig) for name in section.model_fields]
    return {name: data[name] for name in ["version", *order]}


_ADVICE = {"is a folder, not a file": "Give the config file in it."}
_KINDS: dict[type, str] = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
_EXTENSIONS = "the name of a config file must end in .json, .yaml or .yml."


def read_text(path: Path, limit: int = LARGEST_CONFIG) -> str:
    """The text of a file that the user named; raises ConfigError with the reason and what to do."""
    try:
        return files.read_text(path, limit)
    except FileNotFoundError:
        raise ConfigError(f"{files.printable(path)} does not exist.", "Check the name, or name a preset.") from None
    except FileFault as fault:
        raise ConfigError(f"{files.printable(path)} {fault}.", _ADVICE.get(str(fault), "")) from None
    except OSError as error:
        raise ConfigError(f"{files.printable(path)} cannot be read: {error.strerror or error}.") from None


def write_atomically(target: Path, text: str) -> None:
    with (
        files.replacing(target) as partial,
        os.fdopen(files.open_for_writing(partial), "w", encoding="utf-8", newline="\n") as file,
    ):
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
