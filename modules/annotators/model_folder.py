"""The folder of a model in transformers' layout, or of a tagger: found or downloaded, and checked before loading."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from modules.config import ConfigError, TandemError
from modules.diffusion.base_model_files import REPO_ID, check_small_files, read_shapes
from modules.diffusion.finite import ADVICE, names_not_finite
from modules.diffusion.fitting_weights import require_stored
from modules.diffusion.hub.model import HubModel
from modules.diffusion.hub.one_model import (
    KNOWN_BY_TRANSFORMERS,
    NEEDS_OWN_CODE,
    OneModelKind,
    check_model_type,
    model_weights,
    required_model_files,
)
from modules.diffusion.library_errors import damage_refused, first_line
from modules.files import expand_home

PROCESSOR_FILES: Final = ("config.json", "*processor*.json", "*token*.json", "vocab.*", "merges.txt", "chat_template.*")
MODEL_FILES: Final = ("config.json", "generation_config.json")
ACCEPTED: Final = "Give a folder with the model, or its name on the hub (owner/model)."


def model_folder(
    name: str,
    kind: OneModelKind,
    types: Collection[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """The folder of the model `name`, a folder or a name on the hub, downloaded if it is not in the cache.

    A model in transformers' layout must be of one of `types`, have its weights in .safetensors files, and need no code
    of its own. Raises ConfigError.
    """
    try:
        folder = expand_home(name)
        if not folder.is_dir():
            folder = _hub_model(name, kind, types).ensure_cached(progress)
        files = {each.name for each in folder.iterdir() if each.is_file()}
        required_model_files(name, files, kind)
        if kind == "transformers":
            check_small_files(folder, [folder], "base_model")
            check_model_type(folder, types, name)
            read_shapes([folder / each for each in model_weights(name, files)])
    except ConfigError as error:
        raise ConfigError(error.message.replace("base_model", "--model", 1), error.advice) from error
    except OSError as error:
        raise ConfigError(f"--model: {name!r} cannot be read ({error.strerror or error}).", ACCEPTED) from error
    return folder


def find_device(name: str | None) -> torch.device:
    """The device called `name`; by default the first GPU, or the CPU. Raises ConfigError."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    if name is not None and name not in known:
        raise ConfigError(f"--device is {name!r}; on this computer use one of {', '.join(known)}.")
    return torch.device(name or ("cuda" if gpus else "cpu"))


def find_dtype(precision: str | None, device: torch.device) -> torch.dtype:
    """The number format of fp32, bf16 or fp16; by default bf16 on a GPU and fp32 on the CPU."""
    if precision is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def moved(inputs: Mapping[str, object], device: torch.device, dtype: torch.dtype) -> dict[str, object]:
    """The inputs of a model on the device; those of floating point in `dtype`."""
    return {
        name: value.to(device, dtype if value.is_floating_point() else None)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in inputs.items()
    }


@contextmanager
def loading(name: str, folder: Path, *files: str) -> Iterator[None]:
    """Inside, what transformers raises for a damaged model, of which it reads `files` (patterns), or for a missing
    package becomes one sentence."""
    again = "Copy or download it again, or use another."
    with damage_refused(f"--model: {name!r} cannot be loaded", again, folder=folder, files=files):
        try:
            yield
        except ImportError as error:
            package = "torchvision" if "orchvision" in str(error) else error.name
            raise ConfigError(
                f"--model: {name!r} needs a package that is not installed ({first_line(error)}).",
                f"Install it: .venv/bin/python -m pip install {package}" if package else "Choose another model.",
            ) from error
        except torch.OutOfMemoryError as error:
            raise TandemError(
                f"The model {name!r} does not fit into the memory of the device.",
                "Use --precision bf16, a smaller model, or --device cpu.",
            ) from error
        except ValueError as error:
            if "contains custom code" not in str(error):
                raise
            # a processor or tokenizer with an auto_map
            raise ConfigError(f"--model: {name!r} {NEEDS_OWN_CODE}.", KNOWN_BY_TRANSFORMERS) from error


def require_stored_model(name: str, folder: Path, build: Callable[[], torch.nn.Module]) -> None:
    """Raises ConfigError if the model `name` that `build` makes has many more numbers than its files."""
    files = {each.name for each in folder.iterdir() if each.is_file()}
    weights = [folder / each for each in model_weights(name, files)]
    require_stored(f"--model: {name!r}", weights, build)


def require_finite(name: str, model: torch.nn.Module) -> None:
    """Raises ConfigError if a weight of the model `name` is not finite: what it says would mean nothing."""
    damaged = next(names_not_finite(model), None)
    if damaged is not None:
        raise ConfigError(f"--model: the weights of {name!r} are not finite (NaN or infinity) in {damaged!r}.", ADVICE)


def _hub_model(name: str, kind: OneModelKind, types: Collection[str]) -> HubModel:
    found = REPO_ID.fullmatch(name)
    try:
        if found is not None:
            validate_repo_id(found["name"])
    except HFValidationError:
        found = None
    if found is None:
        raise ConfigError(f"base_model: there is no folder {name!r}.", ACCEPTED)
    return HubModel(found["name"], found["revision"] or "", (), tuple(sorted(types)), kind=kind)
