"""What all families share that train the denoiser of a pipeline of diffusers: Stable Diffusion and transformers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self, TypeVar

import torch
from PIL import Image
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.data.batch import Example
from modules.diffusion.objectives import DenoisingLoss
from modules.diffusion.sample_inputs import SampleInputs
from modules.families._family import Family, SampleRequest
from modules.files.videos import Clip

Network = TypeVar("Network", bound=nn.Module)


class DiffusionFamily(Family):
    """A denoiser in the latents of a frozen autoencoder; its attributes are set by its subclasses."""

    image_cache = "optional"
    latent_names = ("mean", "spread", "kept", "reference")
    precision: str
    sample_inputs: SampleInputs
    denoising_loss: DenoisingLoss

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """From `base_model`, the weights that can be trained in fp32."""
        family = cls.load_for_training(config)
        family.model.float()
        return family

    def encode(self, example: Example) -> dict[str, Tensor]:
        """See `encode_batch`."""
        return dict(self.encode_batch([example], 1)[0])

    @torch.no_grad()
    def sample(self, request: SampleRequest) -> Image.Image | Clip:
        """As the diffusers pipeline generates it, from noise sampled on the CPU: a GPU's generator would differ.

        Raises ConfigError for an image that the model cannot generate.
        """
        self.check_request(request)
        was_training = self.model.training
        self.model.eval()
        try:
            return self.generate(request)
        finally:
            self.model.train(was_training)
            self.offload_frozen()

    def check_request(self, request: SampleRequest) -> None:
        """Raises ConfigError for an image that the model cannot generate."""

    @abstractmethod
    def generate(self, request: SampleRequest) -> Image.Image | Clip:
        """The image or clip of `sample`; the model is in evaluation mode, without gradients."""

    def sampling_device(self) -> torch.device:
        """Where samples are generated."""
        # the weights are on the CPU with fsdp_cpu_offload, and before training
        return next(self.model.parameters()).device if self.device.type == "cpu" else self.device

    def master_dtype(self) -> torch.dtype:
        """Of what is computed outside autocast."""
        return torch.float64 if self.precision == "fp64" else torch.float32


def on_device(network: Network, device: torch.device) -> Network:
    """The network, moved to `device` if it is elsewhere."""
    current = next(network.parameters()).device
    if current.type != device.type or device.index not in (None, current.index):  # `to` alone would take 1 ms
        network.to(device)
    return network
