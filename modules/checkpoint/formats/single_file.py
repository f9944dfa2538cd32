"""A diffusers folder as one .safetensors file in the original layout, and back. Tensors pass one by one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.folders import Description, PartFiles, describe_folder
from modules.checkpoint.formats.kinds import original_architecture
from modules.checkpoint.formats.original_names import (
    Place,
    Places,
    clip_place,
    open_clip_place,
    unet_place,
    vae_place,
)
from modules.checkpoint.formats.tensor_files import Planned, TensorFile, write_tensor_file
from modules.config import ConfigError

_KINDS: Final = ("Pipeline", "Img2ImgPipeline", "InpaintPipeline")
_SD: Final = frozenset(f"StableDiffusion{kind}" for kind in _KINDS)
_SDXL: Final = frozenset(f"StableDiffusionXL{kind}" for kind in _KINDS)
_WEIGHTS: Final = {
    "unet": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
    "text_encoder": "model.safetensors",
    "text_encoder_2": "model.safetensors",
}
_ABSENT: Final = ("safety_checker", "feature_extractor", "image_encoder")  # a single file has none of them
_NOT_COPIED: Final = (
    ".safetensors", ".bin", ".ckpt", ".pt", ".msgpack", ".onnx", ".pb", ".index.json", ".md", ".png",
)  # fmt: skip
# OpenCLIP's last layer is never read by Stable Diffusion 2, so diffusers leaves it out; other tools load it.
_LAYERS_WITHOUT_LAST: Final = 23
_PREDICTIONS: Final = {"v": "v_prediction", "epsilon": "epsilon"}  # modelspec's words and diffusers'
_CALLED: Final = {
    "stable-diffusion-v1": "Stable Diffusion 1",
    "stable-diffusion-v2-512": "Stable Diffusion 2",
    "stable-diffusion-v2-768-v": "Stable Diffusion 2",
    "stable-diffusion-xl-v1-base": "Stable Diffusion XL",
}


def architecture_of(description: Description) -> str:
    """What modelspec calls this model; empty for those that have no single file."""
    if description.pipeline in _SDXL:
        return "stable-diffusion-xl-v1-base"
    if description.pipeline in _SD:
        if not _is_open_clip(description):
            return "stable-diffusion-v1"
        return "stable-diffusion-v2-768-v" if _predicts_velocity(description) else "stable-diffusion-v2-512"
    return ""


def single_file(folder: Path, file: Path, dtype: torch.dtype, metadata: Mapping[str, str]) -> None:
    """Write the diffusers folder `folder` as `file`.

    Raises ConfigError where the architecture has no such layout or the folder is damaged, OSError where the disk is
    full.
    """
    description = describe_folder(folder)
    with ExitStack() as open_files:
        tensors: dict[str, Planned] = {}
        for part, places in _places(description).items():
            source = open_files.enter_context(PartFiles(folder / part))
            tensors |= _original(part, source, places, description, dtype)
        if description.pipeline in _SDXL and _predicts_velocity(description):
            # Empty tensors by which ComfyUI and others tell: no other part of the file says so.
            tensors["v_pred"] = _empty()
            if description.scheduler.get("rescale_betas_zero_snr"):
                tensors["ztsnr"] = _empty()
        write_tensor_file(file, tensors, metadata)


def diffusers_folder(file: Path, layout: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the single file `file` as the diffusers folder `folder`, shaped like the folder `layout`.

    Whether it predicts noise or velocity is what the file says, and only where it is silent what the layout says.

    Of `layout` only the small files are used: configs, tokenizers, scheduler. `folder` must not exist yet. Raises
    ConfigError where the file is damaged or of another architecture, OSError where the disk is full.
    """
    description = describe_folder(layout)
    _refuse_another_architecture(file, description)
    partial_folder = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(partial_folder, ignore_errors=True)
    try:
        _copy_small_files(layout, partial_folder)
        _name_no_absent_parts(partial_folder / "model_index.json")
        with TensorFile(file) as source:
            _predict_as_the_file_says(source, partial_folder / "scheduler" / "scheduler_config.json")
            for part, places in _places(description).items():
                tensors = dict(_parted(source, part, places, description, dtype))
                write_tensor_file(partial_folder / part / _WEIGHTS[part], tensors, {})
        partial_folder.rename(folder)
    except BaseException:
        shutil.rmtree(partial_folder, ignore_errors=True)
        raise


def _refuse_another_architecture(file: Path, description: Description) -> None:
    """In words where the names tell it; where only shapes do, the first tensor that does not fit is named."""
    with TensorFile(file) as source:
        found = original_architecture(source.names)
    wanted = _CALLED.get(architecture_of(description), "")
    if found and wanted and found != wanted:
        raise ConfigError(
            f"{str(file)!r} is a {found} model, but the layout {str(description.folder)!r} is one of {wanted}.",
            "Give the layout of a model of the same architecture.",
        )


def _places(description: Description) -> dict[str, Places]:
    """How the names of each part change. Raises ConfigError for an architecture that has no original layout."""
    if description.pipeline in _SDXL:
        return {
            "unet": unet_place,
            "vae": vae_place,
            "text_encoder": clip_place("conditioner.embedders.0.transformer."),
            "text_encoder_2": open_clip_place("conditioner.embedders.1.model."),
        }
    if description.pipeline in _SD:
        text = open_clip_place("cond_stage_model.model.")
        if not _is_open_clip(description):
            text = clip_place("cond_stage_model.transformer.")
        return {"unet": unet_place, "vae": vae_place, "text_encoder": text}
    raise ConfigError(
        f"{str(description.folder)!r} holds a {description.pipeline}; a single file in the original layout is there "
        "for Stable Diffusion 1, 2 and XL.",
        "Use the diffusers folder.",
    )


def _is_open_clip(description: Description) -> bool:
    """Stable Diffusion 2 took OpenCLIP for OpenAI's CLIP, which alone has this activation function."""
    return description.parts.get("text_encoder", {}).get("hidden_act") != "quick_gelu"


def _predicts_velocity(description: Description) -> bool:
    return description.scheduler.get("prediction_type") == "v_prediction"


def _original(
    part: str, source: PartFiles, places: Places, description: Description, dtype: torch.dtype
) -> dict[str, Planned]:
    """The tensors of one part under their original names."""
    sources: dict[str, list[tuple[Place, str]]] = {}
    for name in sorted(source.names):
        place = places(name, description.parts[part])
        if place is not None:
            sources.setdefault(place.name, []).append((place, name))
        elif not name.endswith("position_ids"):  # counted again by whoever loads
            raise ConfigError(
                f"{str(description.folder)!r}: the tensor {name!r} of {part} has no place in the original layout, so "
                "this is no plain Stable Diffusion model.",
                "Use the diffusers folder.",
            )
    tensors = {}
    for original, pieces in sources.items():
        pieces.sort(key=lambda piece: piece[0].third or 0)
        shape = _original_shape(pieces[0][0], source.shape(pieces[0][1]))
        tensors[original] = Planned(shape, dtype, partial(_joined, source, pieces))
    return tensors | _last_layer(part, tensors, description)


def _original_shape(place: Place, shape: tuple[int, ...]) -> tuple[int, ...]:
    if place.third is not None:
        return (3 * shape[0], *shape[1:])
    if place.form == "conv":
        return (*shape[:2], 1, 1)
    return shape[::-1] if place.form == "transposed" else shape


def _joined(source: PartFiles, pieces: list[tuple[Place, str]]) -> Tensor:
    tensors = [source.read(name) for _, name in pieces]
    form = pieces[0][0].form
    if form == "conv":
        return tensors[0].reshape(*tensors[0].shape[:2], 1, 1)
    return tensors[0].T if form == "transposed" else torch.cat(tensors)


def _last_layer(part: str, tensors: Mapping[str, Planned], description: Description) -> dict[str, Planned]:
    """The layer that diffusers left out, as a copy of the one before it."""
    config = description.parts[part]
    if part != "text_encoder" or config.get("num_hidden_layers") != _LAYERS_WITHOUT_LAST:
        return {}
    last, next_one = (f".resblocks.{_LAYERS_WITHOUT_LAST - 1 + more}." for more in (0, 1))
    return {name.replace(last, next_one): tensor for name, tensor in tensors.items() if last in name}


def _empty() -> Planned:
    return Planned((0,), torch.float32, partial(torch.zeros, 0))


def _parted(
    source: TensorFile, part: str, places: Places, description: Description, dtype: torch.dtype
) -> Iterator[tuple[str, Planned]]:
    """The tensors of one part under diffusers' names, as the classes of `description` want them."""
    for name, shape in expected_shapes(part, description).items():
        place = places(name, description.parts[part])
        if place is None or place.name not in source.names:
            missing = name if place is None else place.name
            raise ConfigError(
                f"{str(source.path)!r} has no {missing!r}, which {part} of a {description.pipeline} needs.",
                "Is it a whole model of the same architecture as the layout?",
            )
        stored = source.shape(place.name)
        if _original_shape(place, shape) != stored and not (place.form == "conv" and shape == stored):
            raise ConfigError(
                f"{str(source.path)!r}: {place.name!r} has the shape {list(stored)}, but {part} of the layout "
                f"{str(description.folder)!r} makes it {list(_original_shape(place, shape))}.",
                "Give the layout of a model of the same architecture.",
            )
        yield name, Planned(shape, dtype, partial(_taken, source, place, shape))


def _taken(source: TensorFile, place: Place, shape: tuple[int, ...]) -> Tensor:
    tensor = source.read(place.name)
    if place.third is not None:
        return tensor.chunk(3)[place.third].clone()
    return tensor.T if place.form == "transposed" else tensor.reshape(shape)


def expected_shapes(part: str, description: Description) -> dict[str, tuple[int, ...]]:
    """The tensors that the class of a part has with this config."""
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL  # takes seconds to import
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = dict(description.parts[part])
    module: torch.nn.Module
    with torch.device("meta"):
        if part in ("unet", "vae"):
            model_class = UNet2DConditionModel if part == "unet" else AutoencoderKL
            module = model_class.from_config(config)
        else:
            text_class = CLIPTextModel if part == "text_encoder" else CLIPTextModelWithProjection
            module = text_class(CLIPTextConfig.from_dict(config))
    names = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if part in ("unet", "vae"):
        return names
    # Under the names that every version of transformers reads.
    return {
        name if name.startswith(("text_model.", "text_projection.")) else f"text_model.{name}": shape
        for name, shape in names.items()
    }


def _predict_as_the_file_says(source: TensorFile, scheduler_file: Path) -> None:
    said = _PREDICTIONS.get(source.metadata.get("modelspec.prediction_type", ""))
    if "v_pred" in source.names:
        said = "v_prediction"
    if said is None or not scheduler_file.is_file():
        return
    scheduler = json.loads(scheduler_file.read_text(encoding="utf-8"))
    scheduler["prediction_type"] = said
    if "ztsnr" in source.names:
        scheduler["rescale_betas_zero_snr"] = True
    scheduler_file.write_text(json.dumps(scheduler, indent=2) + "\n", encoding="utf-8")


def _copy_small_files(layout: Path, folder: Path) -> None:
    """All but weights, parts that are not written, and hidden files. Raises OSError at the first that fails."""
    for place, folders, files in os.walk(layout, followlinks=True):
        folders[:] = [name for name in folders if name not in _ABSENT and not name.startswith(".")]
        target = folder / Path(place).relative_to(layout)
        target.mkdir(parents=True)
        for name in files:
            if not name.endswith(_NOT_COPIED) and not name.startswith("."):
                shutil.copy(Path(place) / name, target / name)


def _name_no_absent_parts(index_file: Path) -> None:
    index = json.loads(index_file.read_text(encoding="utf-8"))
    index.update({name: [None, None] for name in _ABSENT if name in index})
    index_file.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
