"""From one cached example to the tensors of a sample for flow matching; runs in the loader's workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from modules.data.batch import DROPPED_REFERENCES, LENGTH, REFERENCE, REFERENCES, Example
from modules.diffusion.flow_matching import SigmaShift, sample_sigma
from modules.diffusion.flow_options import FirstFrameOptions, FlowOptions
from modules.diffusion.latent_space import LatentSpace
from modules.diffusion.pixels import downsample_mask, mask_loss_weights, mask_or_ones
from modules.diffusion.text_states import CAPTION, CAPTION_IDS, PICTURE, STATES, caption_bytes, unpack_caption
from modules.diffusion.uncached_images import IMAGE, LATENT_NOISE


@dataclass(frozen=True)
class FlowSampleTransform:
    """Samples latents, noise and noise level; finds the caption's states, or passes the caption on."""

    options: FlowOptions
    space: LatentSpace
    shift: SigmaShift
    latents_per_token: int  # of the transformer's patches
    unmasked_weight: float
    normalize_mask: bool
    text_names: tuple[str, ...]  # the tensors of a caption
    empty_caption: Mapping[str, Tensor]  # those of "", for dropped captions

    @property
    def varying_length(self) -> tuple[str, ...]:
        return (CAPTION, *(name for name in self.text_names if name.endswith(STATES)))

    def __call__(self, cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
        """latents and noise fp32 [C, h, w], of clips [C, f, h, w], sigma fp32 []; the tensors of the caption, or its
        bytes uint8 [N]; with a mask, loss weights [1, h, w] or [1, 1, h, w]. Where first frames may be given, sigma is
        [f], 0 of a given frame, and weights are [1, f, 1 or h, 1 or w]. Of an image that is not cached, image
        uint8 [3, H, W] and latent_noise [C, h, w] stand for latents, and likewise of clips.
        Of references reference.0 and so on, latents or images likewise, and references.length, how many are shown;
        picture.0 and so on, uint8 [3, H, W], if the text encoder will see them."""
        space = self.space
        sample: dict[str, Tensor] = {}
        if IMAGE in cached:
            _, *frames, height, width = cached[IMAGE].shape
            shape = space.shape(width, height, *frames)
            sample[IMAGE] = cached[IMAGE]
            if self.options.latents == "sample":
                sample[LATENT_NOISE] = torch.randn(shape, generator=generator)
        else:
            x_0 = cached["mean"].float()
            if "spread" in cached:
                x_0 = x_0 + cached["spread"].float() * torch.randn(x_0.shape, generator=generator)
            sample["latents"] = space.normalize(x_0)
            shape = x_0.shape
        sample["noise"] = torch.randn(shape, generator=generator)
        tokens = shape[1:].numel() // self.latents_per_token
        sample["sigma"] = sample_sigma(self.options, self.shift.of_tokens(tokens), generator)
        if CAPTION_IDS in cached:
            found = unpack_caption(cached, self.text_names, caption)
            sample |= self.empty_caption if found is None else found
        elif self.text_names:
            sample |= {name: cached[name] for name in self.text_names if name in cached} or self.empty_caption
        else:
            sample[CAPTION] = caption_bytes(caption)
        references = [name for name in cached if name.startswith(REFERENCE)]
        for name in references:
            latents = cached[name]
            sample[name] = space.normalize(latents.float()) if latents.is_floating_point() else latents
        sample |= {name: pixels for name, pixels in cached.items() if name.startswith(PICTURE)}
        if references:
            sample[REFERENCES + LENGTH] = torch.tensor(0 if DROPPED_REFERENCES in cached else len(references))
        if "mask" in cached:
            weights = mask_loss_weights(cached["mask"], self.unmasked_weight, normalize=self.normalize_mask)
            sample["weights"] = weights if space.frame_step is None else weights.unsqueeze(-3)  # alike in all frames
        if isinstance(self.options, FirstFrameOptions) and self.options.first_frame_conditioning:
            self._give_first_frame(sample, shape[1], self.options.first_frame_conditioning, generator)
        return sample

    def _give_first_frame(
        self, sample: dict[str, Tensor], frames: int, share: float, generator: torch.Generator
    ) -> None:
        """The noise level of each of `frames` latents, and the loss on all that are not given, for a `share` of clips.

        x_0 of the first latent is of the first frame alone, since the autoencoder looks back in time, never ahead.
        """
        trained = torch.ones(frames)
        if torch.rand((), generator=generator) < share and frames > 1:
            trained[0] = 0
        sample["sigma"] = sample["sigma"] * trained
        weights = (trained * (frames / trained.sum())).view(1, -1, 1, 1)  # the mean over what is trained
        sample["weights"] = weights * sample["weights"] if "weights" in sample else weights


@dataclass(frozen=True)
class FlowExample:
    """What is kept of an example whose latents are not cached."""

    masked: bool
    pixels_per_latent: int
    shows_pictures: bool  # to the text encoder

    def __call__(self, example: Example) -> dict[str, Tensor]:
        """image uint8 [3, H, W]; with masked training mask uint8 [1, h, w]; references, and pictures of
        them for the text encoder, uint8 [3, h, w] each."""
        encoded = {IMAGE: example.pixels}
        encoded |= {f"{REFERENCE}{number}": pixels for number, pixels in enumerate(example.references)}
        if self.shows_pictures:
            encoded |= {f"{PICTURE}{number}": pixels for number, pixels in enumerate(example.pictures)}
        if self.masked:
            height, width = (side // self.pixels_per_latent for side in example.pixels.shape[-2:])
            encoded["mask"] = downsample_mask(mask_or_ones(example), torch.Size((height, width)))
        return encoded
