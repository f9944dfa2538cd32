"""Repairs a config with errors as far as possible, and makes new items for its lists."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config import TrainConfig, dump, find_option, options
from modules.config.io.text_formats import Data
from modules.config.sections.optimizer import with_scheduler_settings
from modules.config.sections.optimizers import in_full
from modules.files import encodable


def repaired(data: Mapping[str, object]) -> Data:
    """The data on top of the defaults, without unknown names, and with texts that the window can show."""
    result = dump(TrainConfig())
    for name, given in with_scheduler_settings(data).items():
        value = _with_encodable_texts(given)
        if name == "optimizer":
            result[name] = _repaired_optimizer(value)
        elif name in ("concepts", "samples", "parts"):
            items = value if isinstance(value, list) else []
            result[name] = [
                {**new_item(name), **{k: v for k, v in item.items() if find_option(TrainConfig, f"{name}.0.{k}")}}
                for item in items
                if isinstance(item, dict)
            ]
        elif name in result:
            result[name] = value
    return result


def _with_encodable_texts(value: object) -> object:
    if isinstance(value, dict):
        return {encodable(str(name)): _with_encodable_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_encodable_texts(each) for each in value]
    return encodable(value) if isinstance(value, str) else value


def _repaired_optimizer(value: object) -> object:
    given = in_full(value)
    option = find_option(TrainConfig, "optimizer.name")
    assert option is not None
    if not isinstance(given, dict):
        return {"name": given}
    name = given["name"]
    if name not in option.choices:
        return {"name": name}
    complete = dump(TrainConfig.model_validate({"optimizer": name}))["optimizer"]
    assert isinstance(complete, dict)
    return {known: given.get(known, default) for known, default in complete.items()}


def new_item(name: str) -> Data:
    """A new concept, sample or submodule; required values are empty."""
    inside = [option for option in options(TrainConfig) if option.path.startswith(f"{name}.*.")]
    return {option.name: "" if option.required else option.default for option in inside}
