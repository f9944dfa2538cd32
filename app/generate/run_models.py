"""The models that finished runs have saved, and what to fill into the Generate page for one of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.base_model import BaseModelInfo, inspect_base_model
from modules.config import ConfigError, TrainConfig, load_config
from modules.files import expand_home
from modules.run import RunFolder
from modules.run.folder.run_folder import newest_first, run_of_model

MAX_RUNS: Final = 30  # listed
_SAVED_INFO: Final = "tandem.json"  # in a folder that Tandem has saved
_LORA_FILES: Final = ("pytorch_lora_weights.safetensors", "lora_kohya.safetensors")


@dataclass(frozen=True)
class RunModel:
    """What a run has saved: a whole model, or a LoRA and the base model it belongs to."""

    name: str
    model: str
    lora: str = ""
    token: str = ""  # the word that stands for a trained embedding
    prompt: str = ""
    negative_prompt: str = ""
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None

    @property
    def fields(self) -> dict[str, object]:
        """Values for the page; settings that the run says nothing about stay."""
        found: dict[str, object] = {
            "model": self.model,
            "lora": self.lora,
            "lora_scale": (1.0,),
            "family": "automatic",  # the LoRA's folder says it
            "width": self.width,
            "height": self.height,
        }
        if self.prompt:
            found |= {"prompt": self.prompt, "negative_prompt": self.negative_prompt}
        more = {"steps": self.steps, "guidance_scale": self.guidance_scale, "seed": self.seed}
        return found | {name: value for name, value in more.items() if value is not None}


def has_model(folder: RunFolder) -> bool:
    """Whether the run has saved a model."""
    return (folder.model_dir / _SAVED_INFO).is_file()


def read_run_model(folder: RunFolder) -> RunModel:
    """What the run has saved. Raises ConfigError if its config is damaged or there is no model."""
    if not has_model(folder):
        raise ConfigError(f"The run {folder.name} has not saved a model yet.", "Press Save while it is training.")
    config = load_config(folder.config_file)
    model, lora = str(folder.model_dir), ""
    if config.method == "lora" and config.base_model:
        files = [folder.model_dir / name for name in _LORA_FILES]
        lora = str(next((file for file in files if file.is_file()), ""))
    if lora:
        model = _base_of(config)
    sample = next((each for each in config.samples if each.enabled), None)
    token = config.embedding_token if config.method == "embedding" else ""
    if sample is None:
        return RunModel(folder.name, model, lora, token, prompt=token)
    return RunModel(
        folder.name,
        model,
        lora,
        token,
        sample.prompt,
        sample.negative_prompt,
        sample.width,
        sample.height,
        sample.steps,
        sample.guidance_scale,
        sample.seed,
    )


def inspect_model(name: str) -> BaseModelInfo:
    """As the Model section does, but with models that Tandem has saved."""
    if os.path.isfile(expand_home(name) / _SAVED_INFO):
        run = run_of_model(expand_home(name))
        return BaseModelInfo(f"The model of the run {run.name}." if run else "A model saved by Tandem.")
    info = inspect_base_model(name)
    return BaseModelInfo(info.description.replace("when training starts", "at the first use"), info.error)


def inspect_lora(name: str) -> BaseModelInfo:
    """Which run a LoRA file is from: all of them have the same name."""
    run = run_of_model(expand_home(name))
    return BaseModelInfo(f"From the run {run.name}." if run else "")


def finished_runs(runs_dir: Path) -> list[RunFolder]:
    """The runs in a folder that have saved a model, newest first."""
    found = newest_first(runs_dir, lambda run: run.model_dir.stat().st_mtime if has_model(run) else None)
    return [RunFolder(run.path.absolute()) for run in found[:MAX_RUNS]]


def _base_of(config: TrainConfig) -> str:
    base = str(config.base_model)
    return str(Path(base).absolute()) if Path(base).exists() else base
