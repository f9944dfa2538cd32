"""The components of a Stable Diffusion pipeline: loaded from a folder or a single file, saved to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.loaders.single_file_utils import SingleFileComponentError, fetch_diffusers_config
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from safetensors.torch import save_file
from torch import nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from modules.config import ConfigError
from modules.diffusion import base_model_files
from modules.diffusion.component_files import load_network, load_part, scheduler_config
from modules.diffusion.declared_schedule import EDM_KEYS, DeclaredSchedule, declared_schedule, measured_schedule
from modules.diffusion.finite import require_finite
from modules.diffusion.fitting_weights import require_stored_component
from modules.diffusion.hub.model import HubModel
from modules.diffusion.library_errors import damage_refused, first_line
from modules.diffusion.model_files.scaled_file import is_aside
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.diffusion.samplers import build_scheduler
from modules.diffusion.stored_dtype import dtype_of
from modules.diffusion.text_encoders import TextEncoder, pool_at_end_token
from modules.facts import FamilyFacts, is_lora

CLASSES: Mapping[str, Any] = {
    "unet": UNet2DConditionModel,
    "vae": AutoencoderKL,
    "text_encoder": CLIPTextModel,
    "text_encoder_2": CLIPTextModelWithProjection,
    "tokenizer": CLIPTokenizer,
    "tokenizer_2": CLIPTokenizer,
}
# Names of tensors in a single file, which has the original layout.
ORIGINAL_UNET = "model.diffusion_model."
ORIGINAL_TEXT_ENCODER_2 = "conditioner.embedders.1."
ORIGINAL_COMPONENTS = (ORIGINAL_UNET, "first_stage_model.", "cond_stage_model.", "conditioner.")
ORIGINAL_CONV_IN = ORIGINAL_UNET + "input_blocks.0.0.weight"
INPAINTING_CHANNELS = 9  # latents (4), mask (1), latents of the masked image (4)


@dataclass
class Components:
    """The loaded components, on the CPU, each in the dtype of its file and, as far as possible, mapped from it."""

    unet: UNet2DConditionModel
    vae: AutoencoderKL
    encoders: dict[str, TextEncoder]
    tokenizers: dict[str, CLIPTokenizer]  # by the name of their encoder
    scheduler: dict[str, Any]  # its config

    @property
    def is_inpainting(self) -> bool:
        """Whether the UNet is that of an inpainting model."""
        return bool(self.unet.config["in_channels"] == INPAINTING_CHANNELS)

    @property
    def scaling_factor(self) -> float:
        """The factor between the autoencoder's latents and those that the UNet sees."""
        return float(self.vae.config["scaling_factor"])

    def latent_shape(self, height: int, width: int) -> tuple[int, int, int, int]:
        """[1, C, h, w] for an image of `height` x `width` pixels."""
        factor = 2 ** (len(self.vae.config["block_out_channels"]) - 1)
        return 1, int(self.vae.config["latent_channels"]), height // factor, width // factor


def load_components(base_model: str | None, layout: str, facts: FamilyFacts) -> Components:
    """All components. Raises ConfigError if the base model is missing, damaged, pickled or of another class.

    `layout` is a diffusers folder that gives a single file its configuration; empty to take it from the hub.
    """
    base = base_model_files.find_base_model(base_model, facts.pipelines, facts.components)
    if isinstance(base, HubModel):
        base = base.ensure_cached()
    with quiet_libraries():
        return _from_folder(base, facts) if base.is_dir() else _from_file(base, layout, facts)


def required_hub_model(base_model: str | None, layout: str, facts: FamilyFacts) -> HubModel | None:
    """What `load_components` needs from the hub, or None. Raises ConfigError for the same reasons."""
    base = base_model_files.find_base_model(base_model, facts.pipelines, facts.components)
    if isinstance(base, HubModel):
        return base
    return None if layout or base.is_dir() else _layout_on_hub(base, _shapes_in(base), facts)


def check_base_model(base: Path, layout: str, facts: FamilyFacts) -> None:
    """Raises ConfigError if `load_components` would refuse this folder or file; reads headers, and no weights."""
    if base.is_dir():
        base_model_files.check_folder(base, facts.pipelines, facts.components)
        return
    _check_file(base, _shapes_in(base), facts)
    if layout:
        _check_layout(layout, facts)


def _shapes_in(file: Path) -> dict[str, list[int]]:
    """The shapes of all tensors of a model in one file, by name. Raises ConfigError if it is of another kind."""
    if file.suffix.lower() != ".safetensors":
        raise ConfigError(
            f"base_model: {str(file)!r} is no model in one .safetensors file, the only ones that this family reads.",
            "Give such a file, a diffusers folder, or the name of a model on the hub (owner/model).",
        )
    shapes = base_model_files.read_shapes([file])
    if any(map(is_aside, shapes)):
        raise ConfigError(
            f"base_model: {str(file)!r} holds quantised weights with scales, which are read of flow-matching "
            "transformers and text encoders alone.",
            "Use the file of the same model in fp16, bf16 or fp32.",
        )
    return shapes


def check_small_parts(base_model: str | None, layout: str, facts: FamilyFacts) -> None:
    """Load the tokenizers and build the scheduler if they are on this computer. Raises ConfigError as
    `load_components`."""
    base = base_model_files.find_base_model(base_model, facts.pipelines, facts.components)
    if isinstance(base, Path) and base.is_file():
        base = Path(layout) if layout else _layout_on_hub(base, _shapes_in(base), facts)
    folder = base.cached_folder() if isinstance(base, HubModel) else base
    if folder is not None:
        for name in facts.encoders.values():
            load_part(folder, name, CLASSES[name])
        scheduler_config(folder, "family_options.layout" if layout else "base_model")


def read_schedule(file: Path, layout: str) -> DeclaredSchedule | None:
    """What a single file says of its noise schedule; None if nothing. An explicit `layout` counts more than a guess.

    Raises ConfigError if the file is damaged.
    """
    _shapes_in(file)
    with base_model_files.open_safetensors(file) as opened:
        names = set(opened.keys())
        declared = declared_schedule(names, opened.metadata() or {})
        return declared if declared is not None or layout else measured_schedule(names, opened.get_tensor)


def save_pipeline(components: Components, facts: FamilyFacts, trained: Mapping[str, nn.Module], folder: Path) -> None:
    """Write a folder for the pipeline's `from_pretrained`, with the modules `trained` in place of the loaded ones."""
    name = _pipeline(facts, is_inpainting=components.is_inpainting)
    scheduler_class = components.scheduler["_class_name"]
    modules = {
        "unet": components.unet,
        "vae": components.vae,
        **components.encoders,
        **{facts.encoders[encoder]: tokenizer for encoder, tokenizer in components.tokenizers.items()},
        "scheduler": build_scheduler(getattr(diffusers, scheduler_class), components.scheduler),
        **trained,
    }
    with quiet_libraries():
        getattr(diffusers, name)(**modules, **facts.arguments).save_pretrained(folder)
        for encoder in facts.encoders:
            _restore_clip_prefix(folder / encoder / "model.safetensors")


def _pipeline(facts: FamilyFacts, *, is_inpainting: bool) -> str:
    return next(name for name in facts.pipelines if ("Inpaint" in name) == is_inpainting)


def _from_folder(folder: Path, facts: FamilyFacts) -> Components:
    base_model_files.check_folder(folder, facts.pipelines, facts.components)
    scheduler = scheduler_config(folder, "base_model")
    loaded: dict[str, Any] = {}
    for name in ("unet", "vae", *facts.encoders):
        dtype = dtype_of(base_model_files.weight_files(folder, name))
        loaded[name] = load_network(folder, name, CLASSES[name], dtype)
    for name in facts.encoders.values():
        loaded[name] = load_part(folder, name, CLASSES[name])
    return _components(loaded, scheduler, facts, folder)


def _from_file(file: Path, layout: str, facts: FamilyFacts) -> Components:
    shapes = _shapes_in(file)
    is_inpainting = _check_file(file, shapes, facts)
    config = Path(layout) if layout else _layout_on_hub(file, shapes, facts).ensure_cached()
    _check_layout(config, facts)
    for name in ("unet", "vae", *facts.encoders):
        require_stored_component(config, name, CLASSES[name], [file], "family_options.layout")
    pipeline_class = getattr(diffusers, _pipeline(facts, is_inpainting=is_inpainting))
    dtype = dtype_of([file], ORIGINAL_COMPONENTS)
    without = {} if "text_encoder_2" in facts.encoders else {"safety_checker": None, "feature_extractor": None}
    fits = "Is it a whole model of this family, and family_options.layout a model of the same architecture?"
    with damage_refused(f"base_model: {str(file)!r} cannot be loaded", fits):
        try:
            pipeline = pipeline_class.from_single_file(
                str(file), torch_dtype=dtype, config=str(config), local_files_only=True, **without
            )
        except SingleFileComponentError as error:
            raise ConfigError(
                f"base_model: {str(file)!r} lacks a component of the model: {first_line(error)}",
                "Use a file that contains the UNet, the text encoder and the autoencoder.",
            ) from error
    scheduler = dict(pipeline.scheduler.config)
    schedule = read_schedule(file, layout)
    return _components(pipeline.components, scheduler if schedule is None else schedule.apply(scheduler), facts, file)


def _check_layout(folder: str | Path, facts: FamilyFacts) -> None:
    base_model_files.check_layout(Path(folder), facts.pipelines, (*facts.encoders.values(), "scheduler"))
    scheduler_config(Path(folder), "family_options.layout")


def _layout_on_hub(file: Path, shapes: Mapping[str, list[int]], facts: FamilyFacts) -> HubModel:
    """The model on the hub from which diffusers takes the configuration and tokenizers of such a single file."""
    _check_file(file, shapes, facts)
    meta_tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    name = str(fetch_diffusers_config(meta_tensors)["pretrained_model_name_or_path"])
    return HubModel(name, "", facts.components, tuple(sorted(facts.pipelines)), weights=False, needed_by=str(file))


def _check_file(file: Path, shapes: Mapping[str, list[int]], facts: FamilyFacts) -> bool:
    """Whether it is an inpainting model. Raises ConfigError if it is not a whole model, or of another family."""
    if not any(name.startswith(ORIGINAL_UNET) for name in shapes):
        adapter = is_lora(shapes)
        what = "a LoRA" if adapter else "not a Stable Diffusion model"
        advice = f" {base_model_files.LORA_ADVICE}" if adapter else ""
        raise ConfigError(f"base_model: {str(file)!r} is {what}.", f"Give a whole model to start from.{advice}")
    if not EDM_KEYS.isdisjoint(shapes):
        raise ConfigError(
            f"base_model: {str(file)!r} is trained with EDM's noise levels, which are not those of Stable Diffusion; "
            "it is not supported.",
            "Choose another base model.",
        )
    two_encoders = any(name.startswith(ORIGINAL_TEXT_ENCODER_2) for name in shapes)
    if two_encoders != ("text_encoder_2" in facts.encoders):
        given, other = ("SDXL", "stable_diffusion_xl") if two_encoders else ("SD 1 or 2", "stable_diffusion")
        raise ConfigError(f"base_model: {str(file)!r} is an {given} model.", f"Choose the family {other}.")
    return shapes.get(ORIGINAL_CONV_IN, [0, 0])[1] == INPAINTING_CHANNELS


def _components(loaded: Mapping[str, Any], scheduler: dict[str, Any], facts: FamilyFacts, source: Path) -> Components:
    require_finite(loaded["vae"], "vae", source)  # training needs its encoder alone, and samples would be black
    encoders: dict[str, TextEncoder] = {name: loaded[name] for name in facts.encoders}
    tokenizers = {name: loaded[tokenizer] for name, tokenizer in facts.encoders.items()}
    for name, encoder in encoders.items():
        pool_at_end_token(encoder, tokenizers[name].eos_token_id)
    return Components(
        unet=loaded["unet"],
        vae=loaded["vae"],
        encoders=encoders,
        tokenizers=tokenizers,
        scheduler=scheduler,
    )


def _restore_clip_prefix(file: Path) -> None:
    """Rename CLIP's weights to what every program expects: transformers 5 leaves out the prefix text_model."""
    with base_model_files.open_safetensors(file) as weights:
        state = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118 - not a dict
    known = ("text_model.", "text_projection.")
    if not all(name.startswith(known) for name in state):
        save_file({f"text_model.{name}": tensor for name, tensor in state.items()}, file, metadata={"format": "pt"})
