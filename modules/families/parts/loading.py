"""Finding a base model on disk or on the hub, and looking whether it can be one, before anything large is read."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id
from safetensors import SafetensorError, safe_open

from modules.config import ConfigError
from modules.families.parts.hub import HubModel
from modules.families.parts.hub_files import PICKLES

HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+(/[\w.-]+)*))?")
FORMS = "Give a diffusers folder, a .safetensors file, or the name of a model on the hub, such as owner/model."


def find_base_model(name: str | None, pipelines: Collection[str], parts: Collection[str]) -> Path | HubModel:
    """The diffusers folder or .safetensors file that `base_model` means, or these `parts` of a model on the hub.

    Raises ConfigError where it can be nothing of the kind; the hub is not asked.
    """
    if name is None:
        raise ConfigError("base_model is empty; this family begins from a model.", FORMS)
    path = Path(name)
    if path.suffix.lower() in PICKLES:
        raise _pickled(path)
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix.lower() != ".safetensors":
            raise ConfigError(f"base_model: {name!r} is no .safetensors file.", FORMS)
        return path
    found = None if path.suffix.lower() == ".safetensors" else HUB_NAME.fullmatch(name)
    if found is None:
        raise ConfigError(f"base_model: there is no {name!r}.", FORMS)
    try:
        validate_repo_id(found["name"])
    except HFValidationError as error:  # such as ./model or a--b/c: a folder that is not there was meant
        raise ConfigError(f"base_model: there is no {name!r}.", FORMS) from error
    return HubModel(found["name"], found["revision"] or "", tuple(parts), tuple(sorted(pipelines)))


def check_folder(folder: Path, pipelines: Collection[str], parts: Collection[str]) -> None:
    """Raises ConfigError where `folder` is no whole diffusers pipeline of one of these kinds with these parts."""
    check_kind(folder, pipelines, str(folder))
    for part in parts:
        if part == "scheduler" or part.startswith("tokenizer"):
            _check_description(folder, part, "base_model")
        else:
            check_weights(weights_of(folder, part))


def check_layout(folder: Path, pipelines: Collection[str], parts: Collection[str]) -> None:
    """Raises ConfigError where `folder` does not describe such a pipeline."""
    check_kind(folder, pipelines, str(folder), "family_options.layout")
    for part in parts:
        _check_description(folder, part, "family_options.layout")


def check_kind(folder: Path, pipelines: Collection[str], called: str, option: str = "base_model") -> None:
    """Raises ConfigError where the model_index.json of `folder`, which people know as `called`, says otherwise."""
    index_file = folder / "model_index.json"
    try:
        kind = json.loads(index_file.read_text(encoding="utf-8"))["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{option}: {called!r} is no model folder: its model_index.json cannot be read ({type(error).__name__}).",
            FORMS,
        ) from error
    if kind not in pipelines:
        raise ConfigError(
            f"{option}: {called!r} holds a {kind}; this family trains {' or '.join(sorted(pipelines))}.",
            "Choose the family of that model, or another model.",
        )


def _check_description(folder: Path, part: str, option: str) -> None:
    if not any((folder / part).glob("*.json")):
        raise _incomplete(folder, part, option)


def weights_of(folder: Path, part: str) -> list[Path]:
    """The .safetensors files of one part. Raises ConfigError where it has none."""
    found = sorted((folder / part).glob("*.safetensors"))
    plain = [file for file in found if ".fp16" not in file.name and "non_ema" not in file.name]
    if not (folder / part / "config.json").is_file():
        raise _incomplete(folder, part)
    if not found:
        pickled = next((file for file in sorted((folder / part).iterdir()) if file.suffix in PICKLES), None)
        raise _incomplete(folder, part) if pickled is None else _pickled(pickled)
    return plain or found


def variant_of(files: list[Path]) -> str | None:
    """What diffusers calls the variant of weight files: "fp16" where their names say so."""
    return "fp16" if any(".fp16" in file.name for file in files) else None


def check_weights(files: list[Path]) -> dict[str, list[int]]:
    """The shapes of all tensors, by name. Raises ConfigError where a file is cut off or no safetensors file."""
    shapes = {}
    for file in files:
        try:
            with opened(file) as weights:
                for name in weights.keys():  # noqa: SIM118 - not a dict
                    shapes[name] = weights.get_slice(name).get_shape()
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"base_model: {str(file)!r} is damaged or was not copied to its end ({error}).",
                "Download or copy it again.",
            ) from error
    return shapes


def opened(file: Path) -> Any:
    """A .safetensors file, to be used in `with`; its library ships no types."""
    return safe_open(file, framework="pt")


def _incomplete(folder: Path, part: str, option: str = "base_model") -> ConfigError:
    return ConfigError(
        f"{option}: the model in {str(folder)!r} has no {part}; the folder {part!r} in it is missing or empty.",
        "Copy the whole model folder; of a model on the hub, choose one that has .safetensors weights.",
    )


def _pickled(file: Path) -> ConfigError:
    return ConfigError(
        f"base_model: {str(file)!r} is a pickled file, which can run any program when it is opened.",
        "Use the .safetensors form of the model; most are offered in both. To convert one that you trust, open it on "
        "a machine without your data: torch.load(FILE, weights_only=True), then safetensors.torch.save_file.",
    )
