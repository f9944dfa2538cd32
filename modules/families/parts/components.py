"""The modules of a Stable Diffusion pipeline: read from a folder or from one file, and written to a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.loaders.single_file_utils import SingleFileComponentError, fetch_diffusers_config
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from diffusers.utils import logging as diffusers_logging
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer
from transformers.utils import logging as transformers_logging

from modules.config import ConfigError
from modules.families.parts import loading
from modules.families.parts.hub import HubModel
from modules.families.parts.text_encoders import TextEncoder

CLASSES: Mapping[str, Any] = {
    "unet": UNet2DConditionModel,
    "vae": AutoencoderKL,
    "text_encoder": CLIPTextModel,
    "text_encoder_2": CLIPTextModelWithProjection,
    "tokenizer": CLIPTokenizer,
    "tokenizer_2": CLIPTokenizer,
}
UNET_OF_A_FILE = "model.diffusion_model."
SECOND_ENCODER_OF_A_FILE = "conditioner.embedders.1."
FIRST_LAYER_OF_A_FILE = UNET_OF_A_FILE + "input_blocks.0.0.weight"
INPAINTING_CHANNELS = 9  # latents, mask, latents of what is kept


@dataclass(frozen=True)
class Kind:
    """A sort of pipeline: what diffusers calls it, and what it consists of."""

    pipeline: str
    inpainting: str
    encoders: Mapping[str, str]  # text encoder -> its tokenizer
    made_with: Mapping[str, object]  # beside the modules

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders of such a pipeline that training needs."""
        return ("unet", "vae", *self.encoders, *self.encoders.values(), "scheduler")

    @property
    def names(self) -> frozenset[str]:
        """What the model_index.json of such a model may say."""
        return frozenset({self.pipeline, self.inpainting, self.pipeline.replace("Pipeline", "Img2ImgPipeline")})


@dataclass
class Components:
    """The loaded modules, on the CPU."""

    unet: UNet2DConditionModel
    vae: AutoencoderKL
    encoders: dict[str, TextEncoder]
    tokenizers: dict[str, CLIPTokenizer]  # by the name of their encoder
    scheduler: dict[str, Any]  # its config

    @property
    def inpaints(self) -> bool:
        """Whether the UNet is one that fills holes of pictures."""
        return bool(self.unet.config["in_channels"] == INPAINTING_CHANNELS)

    @property
    def latent_scale(self) -> float:
        """What latents are multiplied by before noise is added."""
        return float(self.vae.config["scaling_factor"])

    def latent_shape(self, height: int, width: int) -> tuple[int, int, int, int]:
        """[1, C, h, w] of a picture of this size in pixels."""
        factor = 2 ** (len(self.vae.config["block_out_channels"]) - 1)
        return 1, int(self.vae.config["latent_channels"]), height // factor, width // factor


def load_components(base_model: str | None, layout: str, kind: Kind) -> Components:
    """All modules in fp32. Raises ConfigError where the base model is missing, damaged, pickled or of another kind."""
    base = loading.find_base_model(base_model, kind.names, kind.parts)
    if isinstance(base, HubModel):
        base = base.at_hand()
    with _quietly():
        return _from_folder(base, kind) if base.is_dir() else _from_file(base, layout, kind)


def model_on_hub(base_model: str | None, layout: str, kind: Kind) -> HubModel | None:
    """What `load_components` needs of the hub; None where it needs nothing. Raises ConfigError as that does."""
    base = loading.find_base_model(base_model, kind.names, kind.parts)
    if isinstance(base, HubModel):
        return base
    return None if layout or base.is_dir() else _layout_on_hub(base, loading.check_weights([base]), kind)


def save_components(components: Components, kind: Kind, changed: Mapping[str, nn.Module], folder: Path) -> None:
    """A folder that the pipeline's `from_pretrained` loads, with the modules `changed` in place of the loaded ones."""
    name = kind.inpainting if components.inpaints else kind.pipeline
    scheduler_class = components.scheduler["_class_name"]
    modules = {
        "unet": components.unet,
        "vae": components.vae,
        **components.encoders,
        **{kind.encoders[encoder]: tokenizer for encoder, tokenizer in components.tokenizers.items()},
        "scheduler": getattr(diffusers, scheduler_class).from_config(components.scheduler),
        **changed,
    }
    with _quietly():
        getattr(diffusers, name)(**modules, **kind.made_with).save_pretrained(folder)
        for encoder in kind.encoders:
            _name_as_ever(folder / encoder / "model.safetensors")


def with_weights(module: Any, state: Mapping[str, Tensor]) -> nn.Module:
    """A module of the same configuration with the weights `state`, on the CPU; fp64 becomes fp32."""
    plain = {n: t.to("cpu", torch.float32 if t.dtype == torch.float64 else None).contiguous() for n, t in state.items()}
    with torch.device("meta"):  # weights come from `state`; drawing new ones would disturb the random state
        is_unet = isinstance(module, UNet2DConditionModel)
        copy: nn.Module = type(module).from_config(module.config) if is_unet else type(module)(module.config)
    copy.load_state_dict(plain, assign=True)
    return copy


def fingerprint(module: nn.Module) -> str:
    """Other weights have another one, to the bit."""
    hasher = hashlib.sha256()
    for weight in module.parameters():
        hasher.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()[:32]


def _from_folder(folder: Path, kind: Kind) -> Components:
    loading.check_folder(folder, kind.names, kind.parts)
    loaded: dict[str, Any] = {}
    for part in ("unet", "vae", *kind.encoders, *kind.encoders.values()):
        more: dict[str, object] = {}
        if part not in kind.encoders.values():
            variant = loading.variant_of(loading.weights_of(folder, part))
            dtype = "torch_dtype" if part in ("unet", "vae") else "dtype"
            more = {"use_safetensors": True, "variant": variant, dtype: torch.float32}
        try:
            loaded[part] = CLASSES[part].from_pretrained(folder, subfolder=part, local_files_only=True, **more)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            raise ConfigError(
                f"base_model: {part} of the model in {str(folder)!r} cannot be loaded: {_first_line(error)}",
                "Copy or download the model folder again.",
            ) from error
    scheduler = diffusers.DDPMScheduler.load_config(folder, subfolder="scheduler", local_files_only=True)
    return _components(loaded, dict(scheduler), kind)


def _from_file(file: Path, layout: str, kind: Kind) -> Components:
    shapes = loading.check_weights([file])
    inpainting = _check_file(file, shapes, kind)
    config = Path(layout) if layout else _layout_on_hub(file, shapes, kind).at_hand()
    loading.check_layout(config, kind.names, (*kind.encoders.values(), "scheduler"))
    pipeline_class = getattr(diffusers, kind.inpainting if inpainting else kind.pipeline)
    without = {} if "text_encoder_2" in kind.encoders else {"safety_checker": None, "feature_extractor": None}
    try:
        pipeline = pipeline_class.from_single_file(
            str(file), torch_dtype=torch.float32, config=str(config), local_files_only=True, **without
        )
    except SingleFileComponentError as error:
        raise ConfigError(
            f"base_model: {str(file)!r} lacks a part of the model: {_first_line(error)}",
            "Use a file that holds the UNet, the text encoder and the autoencoder.",
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"base_model: {str(file)!r} cannot be loaded: {_first_line(error)}",
            "Is it a whole model of this family, and family_options.layout of the same kind?",
        ) from error
    return _components(pipeline.components, dict(pipeline.scheduler.config), kind)


def _layout_on_hub(file: Path, shapes: Mapping[str, list[int]], kind: Kind) -> HubModel:
    """Such a file holds weights only; the model on the hub whose configuration and tokenizers diffusers gives it."""
    _check_file(file, shapes, kind)
    hollow = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    name = str(fetch_diffusers_config(hollow)["pretrained_model_name_or_path"])
    return HubModel(name, "", kind.parts, tuple(sorted(kind.names)), weights=False, wanted_by=str(file))


def _check_file(file: Path, shapes: Mapping[str, list[int]], kind: Kind) -> bool:
    """Whether it is an inpainting model. Raises ConfigError where it is no whole model, or one of another family."""
    if not any(name.startswith(UNET_OF_A_FILE) for name in shapes):
        what = "a LoRA" if any("lora" in name for name in shapes) else "no Stable Diffusion model"
        raise ConfigError(f"base_model: {str(file)!r} is {what}.", "Give a whole model to begin from.")
    two_encoders = any(name.startswith(SECOND_ENCODER_OF_A_FILE) for name in shapes)
    if two_encoders != ("text_encoder_2" in kind.encoders):
        given, other = ("SDXL", "stable_diffusion_xl") if two_encoders else ("SD 1 or 2", "stable_diffusion")
        raise ConfigError(f"base_model: {str(file)!r} is a model of {given}.", f"Choose the family {other}.")
    return shapes.get(FIRST_LAYER_OF_A_FILE, [0, 0])[1] == INPAINTING_CHANNELS


def _components(loaded: Mapping[str, Any], scheduler: dict[str, Any], kind: Kind) -> Components:
    return Components(
        unet=loaded["unet"].float(),
        vae=loaded["vae"].float(),
        encoders={name: loaded[name].float() for name in kind.encoders},
        tokenizers={name: loaded[tokenizer] for name, tokenizer in kind.encoders.items()},
        scheduler=scheduler,
    )


def _name_as_ever(file: Path) -> None:
    """CLIP's weights under the names that every program knows; transformers 5 leaves the first one out."""
    with loading.opened(file) as weights:
        state = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118 - not a dict
    known = ("text_model.", "text_projection.")
    if not all(name.startswith(known) for name in state):
        save_file({f"text_model.{name}": tensor for name, tensor in state.items()}, file, metadata={"format": "pt"})


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the libraries' progress bars and remarks: Tandem tells what matters itself."""
    libraries: list[Any] = [diffusers_logging, transformers_logging]
    levels = [library.get_verbosity() for library in libraries]
    for library in libraries:
        library.disable_progress_bar()
        library.set_verbosity_error()
    try:
        yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.set_verbosity(level)
