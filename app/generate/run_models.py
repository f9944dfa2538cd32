"""The models that finished runs have saved, and what to fill into the Generate page for one of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.base_model import BaseModelInfo, inspect_base_model
from modules.config import ConfigError, load_config
from modules.files import expand_home
from modules.run import RunFolder
from modules.run.folder.run_folder import newest_first, run_of_model
from modules.run.folder.saved_models import MODEL_INFO, saved_models, saved_step

MAX_RUNS: Final = 30  # listed
MAX_STEPS: Final = 5  # of each run
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
    reference: str = ""
    frames: int | None = None

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
            "frames": self.frames,
        }
        if self.prompt:
            found |= {"prompt": self.prompt, "negative_prompt": self.negative_prompt, "reference": self.reference}
        more = {"steps": self.steps, "guidance_scale": self.guidance_scale, "seed": self.seed}
        return found | {name: value for name, value in more.items() if value is not None}


def has_model(folder: RunFolder) -> bool:
    """Whether the run has saved a model, besides those of earlier steps."""
    return (folder.model_dir / MODEL_INFO).is_file()


def read_run_model(folder: RunFolder, step: int | None = None) -> RunModel:
    """What the run has saved: at a step, or last. Raises ConfigError if its config is damaged or there is no model."""
    if step is None and not has_model(folder) and (saved := saved_models(folder)):
        step = saved[-1].step
    place = folder.model_dir if step is None else folder.saved_dir(step)
    if not (place / MODEL_INFO).is_file():
        when = "yet" if step is None else f"at step {step:,}, or has removed it"
        raise ConfigError(f"The run {folder.name} has not saved a model {when}.", "Press Save while it is training.")
    config = load_config(folder.config_file)
    model, lora, name = str(place), "", folder.name if step is None else f"{folder.name}, step {step:,}"
    if config.method == "lora" and config.base_model:
        files = [place / each for each in _LORA_FILES]
        lora = str(next((file for file in files if file.is_file()), ""))
    if lora:
        base = str(config.base_model)
        model = str(Path(base).absolute()) if Path(base).exists() else base
    sample = next((each for each in config.samples if each.enabled), None)
    token = config.embedding_token if config.method == "embedding" else ""
    if sample is None:
        return RunModel(name, model, lora, token, prompt=token)
    return RunModel(
        name,
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
        sample.reference,
        sample.frames,
    )


def inspect_model(name: str) -> BaseModelInfo:
    """As the Model section does, but with models that Tandem has saved."""
    if os.path.isfile(expand_home(name) / MODEL_INFO):
        origin = _origin(expand_home(name))
        return BaseModelInfo(f"The model of the {origin}." if origin else "A model saved by Tandem.")
    info = inspect_base_model(name)
    return BaseModelInfo(info.description.replace("when training starts", "at the first use"), info.error)


def inspect_lora(name: str) -> BaseModelInfo:
    """Which run a LoRA file is from: all of them have the same name."""
    origin = _origin(expand_home(name))
    return BaseModelInfo(f"From the {origin}." if origin else "")


def _origin(path: Path) -> str:
    """The run whose model, or file of a model, a path is, and its step; empty if it is of no run."""
    run, step = run_of_model(path), saved_step(path)
    return "" if run is None else f"run {run.name}" if step is None else f"run {run.name}, step {step:,}"


def models_of_runs(runs_dir: Path) -> list[tuple[RunFolder, int | None]]:
    """What the runs in a folder have saved, the newest run first: each its last model (None), and those of its newest
    earlier steps."""
    found: list[tuple[RunFolder, int | None]] = []
    for run in newest_first(runs_dir, _saved_at)[:MAX_RUNS]:
        folder = RunFolder(run.path.absolute())
        found += [(folder, None)] if has_model(folder) else []
        found += [(folder, each.step) for each in saved_models(folder)[: -MAX_STEPS - 1 : -1]]
    return found


def _saved_at(run: RunFolder) -> float | None:
    """When the run has saved its newest model; None if it has none. Raises OSError."""
    places = [run.model_dir] if has_model(run) else []
    places += [each.folder for each in saved_models(run)]
    return max((place.stat().st_mtime for place in places), default=None)
