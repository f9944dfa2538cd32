"""How Stable Diffusion generates samples: as the diffusers pipeline does, with what never changes encoded once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor, nn

from modules.data.batch import Example
from modules.diffusion import samplers
from modules.diffusion.components import Components
from modules.diffusion.diffusion_model import DiffusionModel
from modules.diffusion.latents import blank_inpainting_input, decode_image
from modules.diffusion.losses import Prediction
from modules.diffusion.options import DiffusionOptions
from modules.diffusion.sample_transform import LatentSampleTransform
from modules.diffusion.text_encoders import TOKENS, PromptEncoding, encode_tokens
from modules.families._diffusion_family import DiffusionFamily, on_device
from modules.families._family import SampleRequest


class LatentSampling(DiffusionFamily):
    """The part of LatentDiffusion that samples; its attributes are set there."""

    model: DiffusionModel
    sample_transform: LatentSampleTransform
    options: DiffusionOptions
    components: Components
    encoding: PromptEncoding
    prediction: Prediction
    zero_terminal_snr: bool

    @staticmethod
    @abstractmethod
    def size_conditioning(example: Example) -> dict[str, Tensor]:
        """The UNet's size conditioning as `sizes` fp32 [6]; empty if it has none."""

    def sample_metadata(self) -> Mapping[str, str]:
        """The sampler; for "model" the name of the base model's scheduler."""
        name = self.options.sample_scheduler
        return {"sampler": str(self.components.scheduler["_class_name"]) if name == "model" else name}

    def generate(self, request: SampleRequest) -> Image.Image:
        """See DiffusionFamily."""
        device = self.sampling_device()
        guided = request.guidance_scale > 1.0
        prompts = [request.negative_prompt, request.prompt] if guided else [request.prompt]
        each = [self._encode_prompt(prompt, request, device) for prompt in prompts]
        self.offload_frozen()  # leaves the device's memory to the UNet
        conditioning = {name: torch.cat([one[name] for one in each]) for name in each[0]}
        generator = torch.Generator().manual_seed(request.seed)
        shape = self.components.latent_shape(request.height, request.width)
        x_1 = torch.randn(shape, generator=generator, dtype=self.master_dtype()).to(device)
        extra = self._blank_inpainting_input(request, device) if self.components.is_inpainting else None

        def predict(x_t: Tensor, timestep: Tensor) -> Tensor:
            if extra is not None:
                x_t = torch.cat([x_t, extra.to(x_t).expand(len(x_t), -1, -1, -1)], dim=1)
            return cast(Tensor, self.model(x_t, timestep, conditioning))

        scheduler = samplers.make_scheduler(
            self.options.sample_scheduler, self.components.scheduler, self._scheduler_overrides()
        )
        x_0 = samplers.denoise(
            predict, scheduler, x_1, request.steps, request.guidance_scale, generator, self.on_sampling_step
        )
        return decode_image(cast(Any, self._encoder_on("vae", device)), x_0 / self.components.scaling_factor)

    def _encode_prompt(self, prompt: str, request: SampleRequest, device: torch.device) -> dict[str, Tensor]:
        """The UNet's conditioning for one prompt, each tensor [1, ...]."""
        tokenizer, size = self.sample_transform.tokenizer, (request.height, request.width)
        conditioning: dict[str, Tensor] = {}
        for name in self.components.encoders:
            input_ids, key = tokenizer.input_ids(name, prompt)[None], name + TOKENS
            if name in self.encoders:
                encode = partial(self._encode_frozen_one, key)
                conditioning |= self.sample_inputs.get(name, input_ids, device, encode)
            else:
                conditioning[key] = input_ids.to(device)
        example = Example(torch.empty(3, *size, dtype=torch.uint8), None, (), size, (0, 0), flipped=False)
        sizes = {n: t[None].to(device, self.master_dtype()) for n, t in self.size_conditioning(example).items()}
        return cast(dict[str, Tensor], self.model(None, None, conditioning | sizes))

    def _encode_frozen_one(self, key: str, input_ids: Tensor) -> dict[str, Tensor]:
        return self._encode_frozen({key: input_ids})

    def _blank_inpainting_input(self, request: SampleRequest, device: torch.device) -> Tensor:
        """See `blank_inpainting_input`."""

        def encode(size: Tensor) -> dict[str, Tensor]:
            vae, (height, width) = cast(Any, self._encoder_on("vae", device)), size.tolist()
            return {"blank": blank_inpainting_input(vae, (height, width), self.components.scaling_factor)}

        size = torch.tensor([request.height, request.width])
        return self.sample_inputs.get("vae", size, device, encode)["blank"]

    def _encode_frozen(self, conditioning: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`conditioning` with the tokens of frozen text encoders encoded."""
        names = [name for name in self.encoders if name + TOKENS in conditioning]
        encoders = {name: self._encoder_on(name, conditioning[name + TOKENS].device) for name in names}
        with torch.no_grad():
            return encode_tokens(conditioning, encoders, self.encoding, self.master_dtype())

    def _scheduler_overrides(self) -> dict[str, object]:
        """The options' changes to the config of the base model's scheduler."""
        overrides: dict[str, object] = {"prediction_type": self.prediction}
        if self.zero_terminal_snr:
            overrides["rescale_betas_zero_snr"] = True
        if self.options.zero_terminal_snr:
            overrides["timestep_spacing"] = "trailing"
        return overrides

    def _encoder_on(self, name: str, device: torch.device) -> nn.Module:
        """The encoder, moved to `device` if it is elsewhere."""
        return on_device(self.encoders[name], device)
