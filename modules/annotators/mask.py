"""Masks of what a text names, by CLIPSeg.

Lüddecke and Ecker 2022, "Image Segmentation Using Text and Image Prompts".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from PIL import Image
from transformers import CLIPSegConfig, CLIPSegForImageSegmentation, CLIPSegProcessor

from modules.annotators.model_folder import (
    MODEL_FILES,
    PROCESSOR_FILES,
    loading,
    moved,
    require_finite,
    require_stored_model,
)
from modules.diffusion.image_processors import check_image_sizes
from modules.diffusion.quiet_libraries import quiet_libraries

MODEL_TYPES: Final = frozenset({"clipseg"})


@dataclass(frozen=True)
class MaskShape:
    """How a mask is made of the probabilities; the defaults are OneTrainer's.

    `smooth` is the radius of an average in pixels of the model's own grid (352 x 352), `expand` that by which the white
    part grows, in pixels of the image; `invert` swaps white and black.
    """

    threshold: float = 0.3
    smooth: int = 5
    expand: int = 10
    invert: bool = False

    def mask(self, probabilities: torch.Tensor, size: tuple[int, int]) -> Image.Image:
        """A mask (mode L, black and white) of `size` (width, height) from probabilities [H, W] of the model's grid."""
        grid = probabilities[None, None].float()
        if self.smooth:
            side = 2 * self.smooth + 1
            padded = F.pad(grid, [self.smooth] * 4, mode="replicate")
            grid = F.avg_pool2d(padded, side, stride=1)
        grid = F.interpolate(grid, (size[1], size[0]), mode="bilinear", align_corners=False)
        white = (grid > self.threshold).float()
        if self.expand:  # a square, one side after the other
            side = 2 * self.expand + 1
            white = F.max_pool2d(white, (side, 1), stride=1, padding=(self.expand, 0))
            white = F.max_pool2d(white, (1, side), stride=1, padding=(0, self.expand))
        if self.invert:
            white = 1 - white
        return Image.fromarray((white[0, 0] * 255).to(torch.uint8).cpu().numpy(), "L")


class Masker:
    """A CLIPSeg model with one or several prompts: white is what any of them names."""

    longest: int | None = None  # a mask is as large as its image

    def __init__(
        self, folder: Path, device: torch.device, dtype: torch.dtype, *, prompts: Sequence[str], shape: MaskShape,
        name: str,
    ) -> None:  # fmt: skip
        """Raises ConfigError if the model cannot be loaded."""
        self._device, self._dtype, self._prompts, self._shape = device, dtype, list(prompts), shape
        with loading(name, folder, *PROCESSOR_FILES):
            self._processor: Any = CLIPSegProcessor.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        with loading(name, folder, *MODEL_FILES):
            config = CLIPSegConfig.from_pretrained(folder, local_files_only=True)
            require_stored_model(name, folder, lambda: CLIPSegForImageSegmentation(config))
            self._model: Any = cast(Any, CLIPSegForImageSegmentation).from_pretrained(
                folder, dtype=dtype, use_safetensors=True, local_files_only=True
            )
            self._model.eval().to(device)
        require_finite(name, self._model)
        check_image_sizes(self._processor.image_processor, name)

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[Image.Image]:
        """A mask for each image."""
        return [self._shape.mask(self._probabilities(image), image.size) for image in images]

    def _probabilities(self, image: Image.Image) -> torch.Tensor:
        """[H, W], the largest of all prompts."""
        with quiet_libraries():
            inputs = self._processor(
                text=self._prompts,
                images=[image] * len(self._prompts),
                padding="max_length",
                max_length=self._model.config.text_config.max_position_embeddings,  # a tokenizer may name any
                truncation=True,
                return_tensors="pt",
            )
            logits: torch.Tensor = self._model(**moved(inputs, self._device, self._dtype)).logits
        grids = logits.float().sigmoid()
        return grids.reshape(-1, *grids.shape[-2:]).amax(dim=0)
