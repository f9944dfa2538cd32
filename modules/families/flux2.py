"""FLUX.2 (Black Forest Labs 2025, 2026): dev, which is guidance-distilled, with 32 B parameters, and klein."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE
from torch import Tensor

from modules.diffusion.flow_matching import SigmaShift
from modules.diffusion.flow_options import FlowOptions, GuidedFlowOptions
from modules.diffusion.latent_tokens import from_tokens, to_tokens
from modules.diffusion.references import References
from modules.diffusion.text_states import TextBatch
from modules.facts.flux2 import FACTS
from modules.families._family import SampleRequest
from modules.families._flow_transformer import FlowTransformer

PROMPT = "prompt"
# mu of diffusers' `compute_empirical_mu` for 50 steps, linear in the tokens up to 4300 of them
_SHARE = 40 / 190
_SLOPE = _SHARE * 0.00016927 + (1 - _SHARE) * 8.73809524e-05
_INTERCEPT = _SHARE * 0.45666666 + (1 - _SHARE) * 1.89833333


class Flux2(FlowTransformer):
    """Three layers of Qwen3 (klein) or Mistral Small 3 (dev) encode the prompt, padded; latents are 2 x 2 patches,
    normalised by a batch norm."""

    facts = FACTS
    Options = GuidedFlowOptions
    text_names = (PROMPT,)
    packed_latents = 1
    pixels_per_latent = 16

    def velocity(self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None) -> Tensor:
        return self.edit_velocity(x_t, sigma, text, guidance, References((), ()))

    def edit_velocity(
        self, x_t: Tensor, sigma: Tensor, text: TextBatch, guidance: Tensor | None, references: References
    ) -> Tensor:
        """The tokens of references follow those of the image, with 10, 20 and so on as the first of their positions."""
        images = (x_t, *references.latents)
        positions = torch.cat([_positions(x_t.device, 10 * n, *each.shape[2:], 1) for n, each in enumerate(images)])
        words, tokens = text[PROMPT].shape[1], x_t.shape[2] * x_t.shape[3]
        mask = references.mask(words + tokens, words + len(positions))
        prediction = self.model(
            hidden_states=torch.cat([to_tokens(each, 1) for each in images], dim=1),
            timestep=sigma,
            guidance=guidance,
            encoder_hidden_states=text[PROMPT],
            txt_ids=_positions(x_t.device, 0, 1, 1, words).expand(len(x_t), -1, -1),
            img_ids=positions.expand(len(x_t), -1, -1),
            joint_attention_kwargs=None if mask is None else {"attention_mask": mask},
            return_dict=False,
        )[0]
        return from_tokens(prediction[:, :tokens], x_t.shape, 1)

    def reference_arguments(self, request: SampleRequest) -> dict[str, Any]:
        return {"image": self.reference_images(request) or None}

    def encode_prompt(self, pipeline: Any, prompt: str, device: torch.device) -> dict[str, Tensor]:
        states, _ = pipeline.encode_prompt(prompt, device, max_sequence_length=self.caption_limit)
        return {PROMPT: states[0]}

    def pipeline_arguments(
        self, prompt: Mapping[str, Tensor], negative: Mapping[str, Tensor], guidance_scale: float
    ) -> dict[str, Any]:
        """A distilled klein ignores the guidance scale, and dev takes no negative prompt."""
        arguments = {"prompt_embeds": prompt[PROMPT], "guidance_scale": guidance_scale}
        return arguments if self._is_dev else {**arguments, "negative_prompt_embeds": negative[PROMPT]}

    def count_tokens(self, caption: str) -> int:
        """Dev's pipeline puts its system message before the caption."""
        if not self._is_dev:
            return super().count_tokens(caption)
        roles = (("system", SYSTEM_MESSAGE), ("user", caption))
        messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in roles]
        return len(self.components.tokenizers["tokenizer"].apply_chat_template(messages, return_dict=False))

    @property
    def _is_dev(self) -> bool:
        return "Klein" not in self.components.pipeline_class.__name__

    @classmethod
    def shift_of(cls, options: FlowOptions, scheduler: Mapping[str, Any], index: Mapping[str, Any]) -> SigmaShift:
        """The pipeline's own, if the scheduler shifts by resolution."""
        if options.timestep_shift == "model" and scheduler.get("use_dynamic_shifting"):
            return SigmaShift(slope=_SLOPE, intercept=_INTERCEPT)
        return super().shift_of(options, scheduler, index)


def _positions(device: torch.device, first: int, *sizes: int) -> Tensor:
    """`first` and all places in a grid of these three `sizes`: int64 [N, 4]."""
    places = [torch.arange(size, device=device) for size in sizes]
    return torch.cartesian_prod(torch.arange(first, first + 1, device=device), *places)
