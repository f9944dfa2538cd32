"""Hand-written training loops, with nothing around the step, that benchmarks compare the trainer with.

They get the trainer's batches: cached latents, encoded captions, noise and noise levels. Each is tuned: fused AdamW,
foreach clipping, autocast as the run has it, positions of tokens made once, and no value that is read back.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from modules.config import TrainConfig
from modules.data.batch import LENGTH, Batch

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class BareLoop:
    """Over batches in memory, which are where the model is."""

    def __init__(self, model: nn.Module, batches: Sequence[Batch], config: TrainConfig) -> None:
        self.model = model
        self.batches = itertools.cycle(batches)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=config.learning_rate, fused=True)
        self.max_norm = config.max_grad_norm
        self._dtype = _AUTOCAST.get(config.precision)
        self._device = self.parameters[0].device

    def step(self) -> None:
        """One optimizer step."""
        with self._autocast():
            loss = self.loss(next(self.batches).tensors)
        loss.backward()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def loss(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The mean squared error of a batch."""
        raise NotImplementedError

    def _autocast(self) -> AbstractContextManager[object]:
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, self._dtype)


class EpsilonLoop(BareLoop):
    """Of Stable Diffusion 1 and XL."""

    def loss(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """See BareLoop."""
        alpha_bar = tensors["alpha_bar"].to(torch.float32).view(-1, 1, 1, 1)
        x_t = alpha_bar.sqrt() * tensors["latents"] + (1 - alpha_bar).sqrt() * tensors["noise"]
        states, added = tensors["text_encoder.hidden"], None
        if "sizes" in tensors:
            states = torch.cat([states, tensors["text_encoder_2.hidden"]], dim=-1)
            added = {"text_embeds": tensors["text_encoder_2.pooled"], "time_ids": tensors["sizes"]}
        unet = self.model.get_submodule("unet")
        predicted = unet(
            x_t, tensors["timestep"], encoder_hidden_states=states, added_cond_kwargs=added, return_dict=False
        )[0]
        return functional.mse_loss(predicted.float(), tensors["noise"])


class VelocityLoop(BareLoop):
    """Of a flow-matching transformer."""

    def loss(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """See BareLoop."""
        x_0, noise, sigma = tensors["latents"], tensors["noise"], tensors["sigma"]
        x_t = torch.lerp(x_0, noise, sigma.view(-1, 1, 1, 1))
        predicted = self.velocity(self.model.get_submodule("transformer"), x_t, sigma, tensors)
        return functional.mse_loss(predicted.float(), noise - x_0)

    def velocity(self, transformer: nn.Module, x_t: Tensor, sigma: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """The prediction of noise - x_0."""
        raise NotImplementedError

    def places(self, *sizes: int) -> Tensor:
        """The positions of a grid, [product of sizes, len(sizes)]; made once."""
        if sizes not in self._places:
            axes = (torch.arange(size, device=self._device) for size in sizes)
            self._places[sizes] = torch.cartesian_prod(*axes).float()
        return self._places[sizes]

    def __init__(self, model: nn.Module, batches: Sequence[Batch], config: TrainConfig) -> None:
        super().__init__(model, batches, config)
        self._places: dict[tuple[int, ...], Tensor] = {}


class ZImageLoop(VelocityLoop):
    """Of Z-Image."""

    def velocity(self, transformer: nn.Module, x_t: Tensor, sigma: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """See VelocityLoop."""
        lengths = tensors["prompt.states" + LENGTH].tolist()  # they stay on the host
        states = [each[:length].to(x_t.dtype) for each, length in zip(tensors["prompt.states"], lengths, strict=True)]
        images = list(x_t.unsqueeze(2).unbind(0))
        predicted: list[Tensor] = transformer(images, 1 - sigma, states, return_dict=False)[0]
        return -torch.stack(predicted).squeeze(2)


class FluxLoop(VelocityLoop):
    """Of FLUX.1 dev, with its guidance input."""

    def velocity(self, transformer: nn.Module, x_t: Tensor, sigma: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """See VelocityLoop."""
        states, (height, width) = tensors["prompt"], (x_t.shape[2] // 2, x_t.shape[3] // 2)
        out: Tensor = transformer(
            hidden_states=functional.pixel_unshuffle(x_t, 2).flatten(2).transpose(1, 2),
            encoder_hidden_states=states,
            pooled_projections=tensors["pooled"],
            timestep=sigma,
            guidance=torch.ones_like(sigma),
            img_ids=self.places(1, height, width),
            txt_ids=self.places(1, 1, 1).expand(states.shape[1], -1),
            return_dict=False,
        )[0]
        return functional.pixel_shuffle(out.transpose(1, 2).unflatten(2, (height, width)), 2)


class Flux2Loop(VelocityLoop):
    """Of FLUX.2 klein."""

    def velocity(self, transformer: nn.Module, x_t: Tensor, sigma: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """See VelocityLoop."""
        batch, _, height, width = x_t.shape
        states = tensors["prompt"].to(x_t.dtype)
        out: Tensor = transformer(
            hidden_states=x_t.flatten(2).transpose(1, 2),
            encoder_hidden_states=states,
            timestep=sigma,
            img_ids=self.places(1, height, width, 1).expand(batch, -1, -1),
            txt_ids=self.places(1, 1, 1, states.shape[1]).expand(batch, -1, -1),
            guidance=None,
            return_dict=False,
        )[0]
        tokens: Tensor = out.transpose(1, 2)
        return tokens.unflatten(2, (height, width))  # type: ignore[no-any-return]  # torch's is untyped
