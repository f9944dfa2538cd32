"""What an autoencoder computes while images are cached, without its weights, for estimates of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import diffusers
import torch
from torch import Tensor

from modules.diffusion import base_model_files
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.facts import known_model
from modules.facts._networks import VIDEO_VAE, VIDEO_VAE_2

_VIDEO_CLASSES: Final = ("AutoencoderKLQwenImage", "AutoencoderKLWan")  # which take frames
_CLASSES: Final = ("AutoencoderKL", "AutoencoderKLFlux2", *_VIDEO_CLASSES)
# Those that are known by name, by their billions of parameters: the class, and the configuration.
_VIDEO: Final[Mapping[float, tuple[str, Mapping[str, object]]]] = {
    VIDEO_VAE["vae"]: ("AutoencoderKLQwenImage", {}),
    VIDEO_VAE_2["vae"]: (
        "AutoencoderKLWan",
        {
            "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "in_channels": 12, "out_channels": 12,
            "is_residual": True, "patch_size": 2, "scale_factor_spatial": 16,
        },
    ),
}  # fmt: skip
# Of all others; some differ in the last layer alone.
_KL: Final = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "sample_size": 1024,  # the side of a tile; 512 in Stable Diffusion 1
}


def meta_encoder(folder: Path | None, name: str, *, tiling: bool) -> Callable[[Tensor], Tensor] | None:
    """From images [B, 3, H, W], or clips [B, 3, F, H, W], to latents, in fp32, by the autoencoder in `folder`, or of
    the model with this hub name; with `tiling` those of the first tile.

    None if it is not known. It is built as torch builds tensors, so call this and the result within FakeTensorMode.
    Raises ConfigError if it cannot be built.
    """
    with quiet_libraries():
        vae = _known(name) if folder is None else _of_folder(folder)
    if vae is None:
        return None
    is_video = type(vae).__name__ in _VIDEO_CLASSES
    tile = (vae.tile_sample_min_height if is_video else vae.tile_sample_min_size) if tiling else None

    @torch.no_grad()
    def encode(images: Tensor) -> Tensor:
        images = images[..., :tile, :tile]  # one tile after the other is encoded alike
        images = images.unsqueeze(2) if is_video and images.ndim == 4 else images
        latents: Tensor = vae.encode(images, return_dict=False)[0].mean
        return latents

    return encode


def _of_folder(folder: Path) -> Any:
    if not (folder / "vae" / "config.json").is_file():
        return None
    base_model_files.check_small_files(folder, [folder / "vae"], "base_model")
    with damage_refused(f"base_model: vae/config.json of the model in {str(folder)!r} cannot be used"):
        config = diffusers.AutoencoderKL.load_config(folder, subfolder="vae", local_files_only=True)
        kind = config["_class_name"]
        return getattr(diffusers, kind).from_config(config) if kind in _CLASSES else None


def _known(name: str) -> Any:
    known = known_model(name)
    if known is None or "vae" not in known.frozen:
        return None
    kind, config = _VIDEO.get(known.frozen["vae"], ("AutoencoderKL", _KL))
    return getattr(diffusers, kind)(**config)
