"""A diffusers folder to a single .safetensors file in the original layout, and back, one tensor at a time.

A file of Stable Diffusion is the whole model; one of a flow-matching model is its transformer alone, as those of the
models' own code are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.component_shapes import expected_shapes, require_fitting_weights
from modules.checkpoint.formats.diffusers_folder import (
    ComponentWeights,
    DiffusersFolder,
    read_diffusers_folder,
    read_json_object,
)
from modules.checkpoint.formats.folder_copy import WHOLE_LAYOUT, copy_components, copy_without_weights
from modules.checkpoint.formats.original_names import (
    clip_name,
    open_clip_name,
    unet_name,
    vae_name,
)
from modules.checkpoint.formats.safetensors_file import LazyTensor, write_safetensors
from modules.config import ConfigError
from modules.config.family_about import family_about
from modules.diffusion.declared_schedule import VELOCITY_KEY, ZERO_SNR_KEY, declared_schedule
from modules.diffusion.model_files.open_file import open_model_file, shapes_of_file
from modules.diffusion.model_files.tensor_file import TensorFile
from modules.diffusion.transformer_files.names import TransformerLayout, transformer_layout
from modules.diffusion.transformer_files.original_name import ComponentConfig, NameMapper, OriginalName
from modules.diffusion.transformer_files.tensor_forms import original_shape, to_diffusers, to_original
from modules.diffusion.transformer_files.whole import SAME_ARCHITECTURE, Network, find_originals
from modules.facts import all_facts, whole_model, whole_models
from modules.files import PARTIAL, remove_tree

_PIPELINES: Final = ("Pipeline", "Img2ImgPipeline", "InpaintPipeline")
_SD: Final = frozenset(f"StableDiffusion{name}" for name in _PIPELINES)
_SDXL: Final = frozenset(f"StableDiffusionXL{name}" for name in _PIPELINES)
WEIGHT_FILES: Final = {
    "unet": "diffusion_pytorch_model.safetensors",
    "transformer": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
    "text_encoder": "model.safetensors",
    "text_encoder_2": "model.safetensors",
}
# Stable Diffusion 2 never uses OpenCLIP's last layer, so diffusers leaves it out; other tools expect it.
_NUM_LAYERS_WITHOUT_LAST: Final = 23


def architecture_of(model: DiffusersFolder) -> str:
    """The model's modelspec name; empty if it has no single-file layout."""
    if model.pipeline in _SDXL:
        return "stable-diffusion-xl-v1-base"
    if model.pipeline in _SD:
        if not _is_open_clip(model):
            return "stable-diffusion-v1"
        return "stable-diffusion-v2-768-v" if _predicts_velocity(model) else "stable-diffusion-v2-512"
    layout = transformer_layout_of(model)
    return layout.architecture if layout else ""


def transformer_layout_of(model: DiffusersFolder) -> TransformerLayout | None:
    """How files of the model's transformer name its tensors; None for a model of another kind."""
    config = model.components.get("transformer", {})
    return transformer_layout(str(config.get("_class_name")), config, model.pipeline)


def write_single_file(folder: Path, file: Path, dtype: torch.dtype | None, metadata: Mapping[str, str]) -> None:
    """Write the diffusers folder `folder` as `file`, floating point tensors as `dtype`, or as they are stored.

    Raises ConfigError if the architecture has no such layout or the folder is damaged, OSError if the disk is full.
    """
    model = read_diffusers_folder(folder)
    with ExitStack() as open_files:
        tensors: dict[str, LazyTensor] = {}
        for component, mapper in _name_mappers(model).items():
            source = open_files.enter_context(ComponentWeights(folder / component))
            tensors |= _to_original(component, source, mapper, model, dtype)
        if _predicts_velocity(model):
            tensors[VELOCITY_KEY] = _empty()
            if model.scheduler.get("rescale_betas_zero_snr"):
                tensors[ZERO_SNR_KEY] = _empty()
        write_safetensors(file, tensors, metadata)


def write_diffusers_folder(file: Path, layout: Path, folder: Path, dtype: torch.dtype | None) -> None:
    """Write the single file `file` as the diffusers folder `folder`, with the configuration of the folder `layout`.

    Of `layout` only the small files are used: configs, tokenizers, scheduler; if the file is a transformer, also the
    weights of the other components. The prediction type (epsilon or v) comes from the file if it says so, else from
    the layout. Without `dtype` tensors keep theirs. `folder` must not exist yet. Raises ConfigError if the file is
    damaged or of another architecture, OSError if the disk is full.
    """
    model = read_diffusers_folder(layout)
    _require_same_architecture(file, model)
    partial_folder = folder.with_name(f"{PARTIAL}{folder.name}")
    remove_tree(partial_folder)
    try:
        copy_without_weights(layout, partial_folder)
        with open_model_file(file) as source:
            _copy_schedule(source, partial_folder / "scheduler" / "scheduler_config.json")
            for component, mapper in _name_mappers(model).items():
                tensors = dict(_from_original(source, component, mapper, model, dtype))
                write_safetensors(partial_folder / component / WEIGHT_FILES[component], tensors, {})
        if transformer_layout_of(model) is not None:
            copy_components(layout, partial_folder, leave_out="transformer")
        partial_folder.rename(folder)
    except BaseException:
        remove_tree(partial_folder)
        raise


def _require_same_architecture(file: Path, layout: DiffusersFolder) -> None:
    """Compares names; if only shapes differ, `_from_original` reports the first tensor that does not fit."""
    found, _ = whole_model(shapes_of_file(file))
    expected = whole_models().get(architecture_of(layout))
    if found and expected and found != expected.title:
        raise ConfigError(
            f"{str(file)!r} is a {found} model, but the layout {str(layout.folder)!r} is a {expected.title} model.",
            SAME_ARCHITECTURE,
        )


def name_mappers(architecture: str) -> dict[str, NameMapper]:
    """The name mapper of each component of "Stable Diffusion 1", "Stable Diffusion 2" or "Stable Diffusion XL"."""
    text = {
        "Stable Diffusion 1": {"text_encoder": clip_name("cond_stage_model.transformer.")},
        "Stable Diffusion 2": {"text_encoder": open_clip_name("cond_stage_model.model.")},
        "Stable Diffusion XL": {
            "text_encoder": clip_name("conditioner.embedders.0.transformer."),
            "text_encoder_2": open_clip_name("conditioner.embedders.1.model."),
        },
    }
    return {"unet": unet_name, "vae": vae_name, **text[architecture]}


def _name_mappers(model: DiffusersFolder) -> dict[str, NameMapper]:
    """The name mapper of each component. Raises ConfigError if the architecture has no original layout."""
    if (layout := transformer_layout_of(model)) is not None:
        return {"transformer": partial(_prefixed, layout)}
    architecture = architecture_of(model)
    if architecture:
        mappers = name_mappers(whole_models()[architecture].title)
        if missing := sorted(mappers.keys() - model.components.keys()):
            raise ConfigError(f"The model_index.json in {str(model.folder)!r} names no {missing[0]}.", WHOLE_LAYOUT)
        return mappers
    raise ConfigError(
        f"{str(model.folder)!r} contains a {model.pipeline}; single files in the original layout exist for "
        f"{', '.join(titles_of_files())}.",
        "Use the diffusers folder.",
    )


def titles_of_files() -> list[str]:
    """What the families are called whose models there are in single files of the original layout."""
    return [family_about(name).title for name, facts in all_facts().items() if facts.file or facts.whole_models]


def _prefixed(layout: TransformerLayout, name: str, config: ComponentConfig) -> OriginalName | None:
    found = layout.name(name, config)
    return found and replace(found, name=layout.prefix + found.name)


def _is_open_clip(model: DiffusersFolder) -> bool:
    """Whether the text encoder is OpenCLIP's (Stable Diffusion 2); only OpenAI's uses quick_gelu."""
    return model.components.get("text_encoder", {}).get("hidden_act") != "quick_gelu"


def _predicts_velocity(model: DiffusersFolder) -> bool:
    return model.scheduler.get("prediction_type") == "v_prediction"


def _to_original(
    component: str, source: ComponentWeights, mapper: NameMapper, model: DiffusersFolder, dtype: torch.dtype | None
) -> dict[str, LazyTensor]:
    """The tensors of one component under their original names."""
    sources: dict[str, list[tuple[OriginalName, str]]] = {}
    for name in sorted(source.names):
        original = mapper(name, model.components[component])
        if original is not None:
            sources.setdefault(original.name, []).append((original, name))
        elif not name.endswith("position_ids"):  # recomputed when the file is loaded
            raise ConfigError(
                f"{str(model.folder)!r}: the tensor {name!r} of {component} does not exist in the original layout of "
                f"{model.pipeline}.",
                "Use the diffusers folder.",
            )
    require_fitting_weights(component, source, model)
    tensors = {}
    for original_name, pieces in sources.items():
        pieces.sort(key=lambda piece: piece[0].part or 0)
        names = [name for _, name in pieces]
        _require_parts(model, component, original_name, pieces)
        shape = original_shape(pieces[0][0], source.shape(names[0]))
        if pieces[0][0].part is not None:
            shape = (sum(source.shape(name)[0] for name in names), *shape[1:])
        stored = source.stored_dtype(names[0])
        make = partial(_read_as_original, source, pieces[0][0], names)
        tensors[original_name] = LazyTensor(shape, dtype or stored, make)
    return tensors | _missing_last_layer(component, tensors, model)


def _require_parts(
    model: DiffusersFolder, component: str, original: str, pieces: Sequence[tuple[OriginalName, str]]
) -> None:
    """Raises ConfigError if a part of a concatenated tensor is missing."""
    parts = [piece.part for piece, _ in pieces]
    if parts != [None] and parts not in (list(range(3)), list(range(4))):
        raise ConfigError(
            f"{str(model.folder)!r}: {component} has {pieces[0][1]!r}, but not all tensors that make up {original!r}.",
            "Copy or download the whole folder.",
        )


def _read_as_original(source: ComponentWeights, original: OriginalName, names: Sequence[str]) -> Tensor:
    return to_original(original, [source.read(name) for name in names])


def _missing_last_layer(
    component: str, tensors: Mapping[str, LazyTensor], model: DiffusersFolder
) -> dict[str, LazyTensor]:
    """The layer of OpenCLIP that diffusers leaves out, as a copy of the one before it."""
    config = model.components[component]
    if component != "text_encoder" or config.get("num_hidden_layers") != _NUM_LAYERS_WITHOUT_LAST:
        return {}
    last, missing = (f".resblocks.{_NUM_LAYERS_WITHOUT_LAST - 1 + offset}." for offset in (0, 1))
    return {name.replace(last, missing): tensor for name, tensor in tensors.items() if last in name}


def _empty() -> LazyTensor:
    return LazyTensor((0,), torch.float32, partial(torch.zeros, 0))


def _from_original(
    source: TensorFile, component: str, mapper: NameMapper, layout: DiffusersFolder, dtype: torch.dtype | None
) -> Iterator[tuple[str, LazyTensor]]:
    """The tensors of one component under diffusers' names, with the shapes that `layout` requires."""
    shapes, config = expected_shapes(component, layout), layout.components[component]
    network = Network(component, config, shapes, layout.pipeline, str(layout.folder))
    needed = find_originals(source, network, mapper)
    for name, (original, shape) in needed.items():
        chosen = dtype or source.stored_dtype(original.name)
        yield name, LazyTensor(shape, chosen, partial(_read_as_diffusers, source, original, shape))


def _read_as_diffusers(source: TensorFile, original: OriginalName, shape: tuple[int, ...]) -> Tensor:
    return to_diffusers(original, source.read(original.name), shape)


def _copy_schedule(source: TensorFile, scheduler_file: Path) -> None:
    """Set the scheduler's prediction type and zero terminal SNR to what the single file declares, if anything."""
    declared = declared_schedule(source.names, source.metadata)
    if declared is None or not scheduler_file.is_file():
        return
    scheduler = declared.apply(read_json_object(scheduler_file))
    scheduler_file.write_text(json.dumps(scheduler, indent=2) + "\n", encoding="utf-8")
