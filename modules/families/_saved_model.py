"""What a model folder says of itself: the class in its config.json, and the options with which it was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from pydantic import JsonValue
from torch import nn

from modules.config import ConfigError
from modules.files import FileFault, printable, read_json


def saved_options(folder: Path, class_name: str, what: str, advice: str) -> Mapping[str, JsonValue]:
    """The options in the config.json of `folder`, the config's base_model, which holds `what`, such as "classifier".

    Raises ConfigError, with `advice`, if it is no such folder.
    """
    try:
        config = read_json(folder / "config.json")
        if not isinstance(config, dict) or config.get("_class_name") != class_name:
            raise FileFault(f"is not that of a {what}")
        options = config.get("options")
        if not isinstance(options, dict):
            raise FileFault("has no options")
    except (OSError, FileFault) as error:
        reason = f"its config.json {error}" if isinstance(error, FileFault) else str(error)
        raise ConfigError(f"base_model: {str(folder)!r} is not a saved {what} ({reason}).", advice) from error
    return cast("dict[str, JsonValue]", options)


def require_described(folder: Path, stored: Mapping[str, Sequence[int]], network: nn.Module, index: str) -> None:
    """Raises ConfigError unless the tensors in `folder` have the names and shapes of `network`, which is built by the
    options in the file `index`, on the meta device: real ones, of any size, are built only for weights that exist."""
    described = {name: [*tensor.shape] for name, tensor in network.state_dict().items()}
    for name in sorted({*stored, *described}):
        found, wanted = stored.get(name), described.get(name)
        if found is None or wanted is None or [*found] != wanted:
            has, needs = ("no such tensor" if each is None else f"the shape {[*each]}" for each in (found, wanted))
            raise ConfigError(
                f"base_model: the model in {str(folder)!r} is damaged: for {printable(name, 200)!r} its weights have "
                f"{has}, and its {index} describes {needs}.",
                "Copy the model folder again.",
            )
