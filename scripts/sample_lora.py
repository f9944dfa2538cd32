"""The LoRA files of scripts/sample.py, and the config of a model that Tandem did not write."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from modules.checkpoint import read_model_config
from modules.checkpoint.formats import AdapterWeights, SafetensorsFile, adapter_file, lora_of_family, read_adapter
from modules.checkpoint.formats.file_types import DESCRIPTIONS, detect_file_type
from modules.config import ConfigError, SubmoduleSettings, TrainConfig, validate
from modules.diffusion.base_model_files import index_in
from modules.diffusion.quantized import QuantizedLinear
from modules.facts import FamilyFacts, all_facts, family_names, known_model, shares_files
from modules.families._family import Family, trained_submodules
from modules.families._find_family import find_family
from modules.run.folder.run_folder import run_of_model
from modules.run.folder.saved_models import saved_step
from modules.training.memory.move_model import frozen_dtype
from modules.training.methods.lora import adapter_names, layer_name, merge_lora

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
USUAL_SIDE = 512  # pixels


@dataclass(frozen=True)
class LoraFile:
    """One `--lora` and its strength."""

    file: Path
    scale: float
    adapters: Sequence[AdapterWeights]

    def __str__(self) -> str:
        """The name and the strength, without the folder; a run's LoRA has the run's name, too."""
        run, step = run_of_model(self.file), saved_step(self.file)
        origin = "" if run is None else f"{run.name}/" if step is None else f"{run.name}/step {step}/"
        return f"{origin}{self.file.name}:{self.scale:g}"

    def merge_into(self, family: Family, dtype: torch.dtype = torch.float32) -> None:
        """Change the weights of `family.model`; for `dtype` see `merge_lora`.

        Raises ConfigError if the LoRA is for another model.
        """
        origin = lora_of_family(adapter_file(self.file))
        merge_lora(family, self.adapters, f"--lora {str(self.file)!r}", self.scale, origin, dtype)


def merged_dtype(family: Family, config: TrainConfig, adapters: int) -> torch.dtype:
    """In which weights are kept between merging and moving: if one of `adapters` is merged, rounded once, as moved."""
    is_kept = all(part.weights == "run" for part in config.parts)
    return frozen_dtype(family, config) if adapters == 1 and is_kept else torch.float32


class LoraLayers:
    """The layers that LoRAs change, as they were loaded, so that other strengths start from the same numbers.

    Make it before the model is moved and before anything is merged: the layers' weights stay in host memory.
    """

    def __init__(self, family: Family, loras: Sequence[LoraFile], dtype: torch.dtype) -> None:
        """For `dtype` see `merge_lora`. Raises ConfigError for a layer that is quantised in its file."""
        self._family, self._loras, self._dtype = family, loras, dtype
        layers = dict(family.model.named_modules())
        names = {layer_name(adapter) for lora in loras for adapter in lora.adapters}
        if quantized := sorted(name for name in names if isinstance(layers.get(name), QuantizedLinear)):
            raise _one_strength(quantized[0])
        found = {name: getattr(layers.get(name), "weight", None) for name in names}
        self._weights = {name: weight.detach() for name, weight in found.items() if isinstance(weight, torch.Tensor)}

    def merge(self, scale: float) -> list[LoraFile]:
        """Merge the LoRAs at this strength, as if the model had just been loaded; returns them with it.

        Raises ConfigError as they do.
        """
        layers = dict(self._family.model.named_modules())
        for name, weight in self._weights.items():
            layer = layers[name]
            if not isinstance(getattr(layer, "weight", None), torch.nn.Parameter):
                raise _one_strength(name)
            layer.weight.data = weight.clone()
        loras = [replace(lora, scale=scale) for lora in self._loras]
        for lora in loras:
            lora.merge_into(self._family, self._dtype)
        return loras


def _one_strength(layer: str) -> ConfigError:
    return ConfigError(f"--lora_scales: the layer {layer!r} is quantised, and takes one strength.", "Use --lora_scale.")


def model_folder(name: str) -> Path:
    """The folder given as `--model`. Raises ConfigError with a suggestion for a run, a backup or a file."""
    path = Path(name)
    inside = path / "model"
    if path.is_file():
        raise ConfigError(f"--model: {name!r} is a file.", f"Use the folder it is in, {path.parent}.")
    if (path / "tandem.json").is_file() or not path.is_dir():
        return path
    if (path / "config.json").is_file() and (path / "backup").is_dir():
        advice = f"Use its model folder, {inside}." if inside.is_dir() else "It has not saved a model yet."
        raise ConfigError(f"--model: {name!r} is the folder of a run.", advice)
    if (path / "progress.json").is_file():
        raise ConfigError(f"--model: {name!r} is a backup, which only resumes a run.", "Use runs/NAME/model.")
    return path


def model_config(options: argparse.Namespace) -> tuple[Path | None, TrainConfig]:
    """The folder that Tandem saved as `--model` and its config; None for the folder if Tandem did not write it."""
    name = str(options.model)
    if is_saved_model(name, options):
        if options.family:
            raise ConfigError("--family is for a model that Tandem did not write; omit it.")
        folder = model_folder(name)
        _require_model(folder, name)
        return folder, _with_layout(read_model_config(folder), options.layout)
    if Path(name).is_dir() and not (Path(name) / "model_index.json").is_file() and index_in(Path(name)) is None:
        folder = model_folder(name)  # raises for a run or a backup
        raise ConfigError(f"--model: {name!r} is not a model folder: it has no model_index.json.")
    if Path(name).suffix.lower() == ".safetensors" and Path(name).is_file() and not options.family:
        _require_whole_model(Path(name))
    trained = next((config for file in options.lora if (config := _trained_with(Path(file))) is not None), None)
    of_lora = "" if trained is None else trained.family
    family = options.family or find_family(name) or _family_on_the_hub(name) or of_lora
    if not options.family and shares_files(family, of_lora):  # a file does not tell them apart, a LoRA does
        family = of_lora
    if family not in family_names() and not family.endswith(".py"):
        what = f"--family is {family!r}" if family else f"--model: the family of {name!r} is not known"
        raise ConfigError(f"{what}.", f"Give --family: one of {', '.join(family_names())}.")
    given = {"layout": options.layout} if options.layout else {}
    if trained is None or trained.family != family:
        facts = all_facts().get(family, FamilyFacts(""))
        side = min((model.resolution for model in facts.whole_models.values()), default=USUAL_SIDE)
    else:
        given, side = {**trained.family_options, **given}, trained.resolution
    settings = {"family": family, "base_model": name, "family_options": given, "resolution": side}
    return None, validate(settings, "The command")


def _with_layout(config: TrainConfig, layout: str) -> TrainConfig:
    """The config of a saved model with `--layout`. Raises ConfigError if the model needs none."""
    if not layout:
        return config
    if config.method == "fine_tune":
        raise ConfigError("--layout: a model folder that Tandem wrote is complete; omit it.")
    return config.model_copy(update={"family_options": {**config.family_options, "layout": layout}})


def _trained_with(lora: Path) -> TrainConfig | None:
    """What a LoRA was trained with, if a run has saved its folder. Raises ConfigError if that is damaged."""
    folder = lora if lora.is_dir() else lora.parent
    return read_model_config(folder) if (folder / "tandem.json").is_file() else None


def is_saved_model(name: str, options: argparse.Namespace) -> bool:
    """Whether `--model` has to be a folder that Tandem saved: it has tandem.json, or can be nothing else."""
    path = Path(name)
    if (path / "tandem.json").is_file():
        return True
    is_other = path.is_file() and not (path.parent / "tandem.json").is_file()
    is_other = is_other or (path / "model_index.json").is_file() or index_in(path) is not None
    return not (is_other or options.lora or options.family or _family_on_the_hub(name))


def _family_on_the_hub(name: str) -> str:
    """The family of a published model, by its hub name; empty if it is not known."""
    known = None if Path(name).exists() else known_model(name)
    return "" if known is None else known.family


def _require_model(folder: Path, name: str) -> None:
    """Raises ConfigError if the folder cannot be that of a model, with what to try."""
    if folder.is_dir() and not (folder / "tandem.json").is_file():
        raise ConfigError(
            f"--model: {name!r} is no model: it has neither tandem.json, like what Tandem saves, nor "
            "model_index.json, like diffusers models."
        )
    if not folder.is_dir() and _HUB_NAME.fullmatch(name):
        raise ConfigError(
            f"--model: there is no folder {name!r}; of a Hugging Face model the family has to be chosen.",
            f"Give --family: one of {', '.join(family_names())}.",
        )


def _require_whole_model(file: Path) -> None:
    with SafetensorsFile(file) as opened:
        kind = detect_file_type(opened.names)
    if kind not in ("model", "transformer"):
        advice = "Give it as --lora, and its base model as --model." if kind == "lora" else ""
        raise ConfigError(f"--model: {str(file)!r} is {DESCRIPTIONS[kind]}, not a whole model.", advice)


def read_loras(files: Sequence[str], scales: Sequence[float], family: type[Family]) -> list[LoraFile]:
    """The LoRAs in `files`, before the model is loaded. Raises ConfigError."""
    names = adapter_names(family)
    return [
        LoraFile(Path(file), scale, read_adapter(Path(file), names)) for file, scale in zip(files, scales, strict=True)
    ]


def with_parts_of(config: TrainConfig, loras: Iterable[LoraFile], family: type[Family]) -> TrainConfig:
    """The config with every submodule that a LoRA changes among its `parts`, so that it is part of the model."""
    changed = {adapter.submodule for lora in loras for adapter in lora.adapters} & set(family.submodules)
    missing = changed - trained_submodules(config, family.submodules)
    if not missing:
        return config
    listed = [part for part in config.parts if part.part not in missing]
    kept = [] if config.parts else [SubmoduleSettings(part=family.submodules[0])]
    added = [SubmoduleSettings(part=name) for name in sorted(missing)]
    return config.model_copy(update={"parts": (*kept, *listed, *added)})
