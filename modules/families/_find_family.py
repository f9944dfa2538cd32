"""The family of a whole model that Tandem did not write."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from modules.config import ConfigError, TrainConfig
from modules.config.family_about import family_about
from modules.diffusion import base_model_files
from modules.diffusion.components import ORIGINAL_TEXT_ENCODER_2, ORIGINAL_UNET
from modules.diffusion.model_files.open_file import shapes_of_file
from modules.diffusion.transformer_files.loading import of_base_model
from modules.facts import all_facts, family_of_file, is_lora, known_model, shares_files
from modules.files import FileFault


def find_family(model: str) -> str:
    """The name of the family that trains the diffusers folder or single file `model`; empty if that is unknown.

    Nothing is read but names. Raises ConfigError if the file is damaged or not a model file.
    """
    path = Path(model)
    if path.is_dir() and (index := base_model_files.index_in(path)) is not None:
        path = index
    if path.is_dir():
        try:
            pipeline = base_model_files.pipeline_class(path)
        except (OSError, FileFault):
            return ""
        return next((name for name, facts in all_facts().items() if pipeline in facts.pipelines), "")
    if not path.is_file():
        return ""
    if not base_model_files.is_model_file(path):
        raise ConfigError(f"{model!r} is not a .safetensors or .gguf file.", base_model_files.ACCEPTED)
    with of_base_model():
        names = shapes_of_file(path)
    if (flow := family_of_file(names, path.name)) in all_facts() and not is_lora(names):
        return flow
    if not any(name.startswith(ORIGINAL_UNET) for name in names):
        return ""
    two_encoders = any(name.startswith(ORIGINAL_TEXT_ENCODER_2) for name in names)
    unets = {name: facts.encoders for name, facts in all_facts().items() if facts.network == "unet"}
    return next(name for name, encoders in unets.items() if ("text_encoder_2" in encoders) == two_encoders)


def distillation_notes(config: TrainConfig) -> list[str]:
    """That training takes away what a model was distilled for, and what to do; empty for others, and with an adapter
    that prevents it."""
    known = known_model(config.base_model or "")
    if known is None or not known.trained_instead or config.training_adapter is not None:
        return []
    return [
        f"base_model: {config.base_model} was distilled to generate in few steps, which training gradually undoes. "
        f"Train {known.trained_instead} instead: its LoRAs work with both; or set training_adapter to an adapter that "
        "was made for it (docs/models.md)."
    ]


def check_family(config: TrainConfig, pipelines: Collection[str]) -> None:
    """Raises ConfigError if the base model is a folder or file of another pipeline than these, which another family
    trains."""
    _check_known_model(config, pipelines)
    if config.base_model is None:
        return
    base = Path(config.base_model)
    try:
        is_file, is_folder = base.is_file(), base.is_dir()
    except OSError:
        return  # a name that is too long
    if (is_file and base_model_files.is_model_file(base)) or (is_folder and base_model_files.index_in(base)):
        _check_family_of_file(config, config.base_model, pipelines)
        return
    if not is_folder:
        return
    try:
        pipeline = base_model_files.pipeline_class(base)
    except (OSError, FileFault):
        return  # loading the model will say what is wrong with it
    right = "" if pipeline in pipelines else find_family(config.base_model)
    if right:
        raise ConfigError(
            f"base_model: {config.base_model!r} is a {pipeline}, which the family {config.family!r} does not train.",
            f"Set family to {right}, or choose another model.",
        )


def _check_family_of_file(config: TrainConfig, file: str, pipelines: Collection[str]) -> None:
    right = find_family(file)
    alike = (facts for name, facts in all_facts().items() if name == right or shares_files(name, right))
    if right and not any(set(facts.pipelines) & set(pipelines) for facts in alike):
        raise ConfigError(
            f"base_model: {file!r} is a model of {family_about(right).title}, which the family {config.family!r} does "
            "not train.",
            f"Set family to {right}, or choose another model.",
        )


def _check_known_model(config: TrainConfig, pipelines: Collection[str]) -> None:
    """Raises ConfigError if the base model is the hub name of a model that another family trains."""
    known = known_model(config.base_model or "")
    if known is None or set(all_facts()[known.family].pipelines) & set(pipelines):
        return
    if not Path(str(config.base_model)).exists():
        title = family_about(known.family).title
        raise ConfigError(
            f"base_model: {config.base_model!r} is {title}, which the family {config.family!r} does not train.",
            f"Set family to {known.family}, or choose another model.",
        )
