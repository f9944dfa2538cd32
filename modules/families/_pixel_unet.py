"""The network of pixel diffusion, and the options that describe it."""

from __future__ import annotations

import math

from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor, nn
from torch.nn import functional

from modules.config import Section, setting
from modules.diffusion.flow_matching import TIMESTEP_SCALE
from modules.diffusion.text_tokens import CaptionEmbedding
from modules.diffusion.timesteps import TimestepDistribution


class PixelOptions(Section):
    """`family_options` of this family."""

    width: int = setting(
        32,
        ge=8,
        le=512,
        title="Width (channels)",
        help="The capacity of the network. Twice the width takes about four times as long.",
        resume="fixed",
    )
    patch: int = setting(
        2,
        ge=1,
        le=8,
        title="Patch size",
        advanced=True,
        help="Side of the pixel squares that the network sees as one: 2 is about 4 times as fast as 1, but less sharp.",
        resume="fixed",
    )
    tokens: int = setting(
        16,
        ge=1,
        le=256,
        title="Maximum words per caption",
        advanced=True,
        help="Longer captions are truncated.",
        resume="fixed",
    )
    vocabulary: int = setting(
        2048,
        ge=16,
        le=1_000_000,
        title="Vocabulary size",
        advanced=True,
        help="How many words can be distinguished. If too few, different words mean the same to the model.",
        resume="fixed",
    )
    timesteps: TimestepDistribution = setting(
        "logit_normal",
        title="Timestep distribution",
        titles={"logit_normal": "Logit-normal"},
        advanced=True,
        help="uniform: all noise levels equally often. logit_normal: more often the middle ones, which decide shapes.",
        resume="warn",
    )
    shift: float = setting(
        6.0,
        ge=0.1,
        le=100,
        title="Timestep shift",
        advanced=True,
        help="Above 1, training and sampling spend more time at high noise levels, where the caption decides.",
        resume="warn",
    )


class CaptionedUNet(nn.Module):
    """The module that is trained: predicts the velocity at x_t, given t and the caption.

    The U-Net itself predicts x_0, from which the velocity follows: a clean image is far easier for a small network
    than the noise (Li & He 2025, arXiv:2511.13720; here the loss was a third lower).
    """

    def __init__(self, unet: UNet2DConditionModel, text_embedding: CaptionEmbedding, patch: int) -> None:
        super().__init__()
        self.unet = unet
        self.text_embedding = text_embedding
        self.patch = patch

    def forward(self, x_t: Tensor, t: Tensor, tokens: Tensor) -> Tensor:
        """The velocity fp32 [B, 3, H, W] for x_t [B, 3, H, W], t [B] and token ids int64 [B, T]."""
        words, caption = self.text_embedding(tokens)
        patches: Tensor = self.unet(
            functional.pixel_unshuffle(x_t, self.patch),
            t * TIMESTEP_SCALE,
            encoder_hidden_states=words,
            class_labels=caption,
            return_dict=False,
        )[0]
        x_0 = functional.pixel_shuffle(patches, self.patch)
        return (x_t - x_0) / t.view(-1, 1, 1, 1)  # x_t - x_0 = t (x_1 - x_0)


def build_model(options: PixelOptions) -> CaptionedUNet:
    """The network with new weights: two levels of downsampling, cross-attention at the lowest."""
    width, channels = options.width, 4 * options.width
    unet = UNet2DConditionModel(
        in_channels=3 * options.patch**2,
        out_channels=3 * options.patch**2,
        block_out_channels=(width, 2 * width, 2 * width),
        layers_per_block=1,
        down_block_types=("DownBlock2D",) * 3,
        mid_block_type="UNetMidBlock2DCrossAttn",
        up_block_types=("UpBlock2D",) * 3,
        norm_num_groups=math.gcd(width, 8),
        attention_head_dim=2,  # the number of heads, despite its name (see UNet2DConditionModel)
        cross_attention_dim=channels,
        # The sum of the words joins the embedding of t and scales every block's channels: colours come from there.
        class_embed_type="projection",
        projection_class_embeddings_input_dim=channels,
        resnet_time_scale_shift="scale_shift",
    )
    text = CaptionEmbedding(vocabulary=options.vocabulary, tokens=options.tokens, channels=channels)
    return CaptionedUNet(unet, text, options.patch)
