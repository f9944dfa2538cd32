"""A family of two parts for the tests of adapters, named by its path: a body that draws, and a reader of captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from modules.config import TrainConfig, setting
from modules.data.batch import Batch
from modules.families._family import SampleRequest
from tests.tiny_family import TinyFamily, TinyOptions, draw

WORDS, PLACES = 32, 6


class PartsOptions(TinyOptions):
    """What a family may do to its own model."""

    frozen: str = setting("", title="Frozen", help="A layer that the family itself freezes.")
    says_new: bool = setting(True, title="Says new", help="Whether captions hold the new word.")


class Reader(nn.Module):
    """Words [B, T] to one vector [B, C]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.fc1 = nn.Linear(width, width)
        self.drop = nn.Dropout(0.0)
        self.fc2 = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """See the class."""
        out: Tensor = self.fc2(self.drop(torch.tanh(self.fc1(self.table(tokens).mean(dim=1)))))
        return out


class Body(nn.Module):
    """x [B, 4, H, W] and the caption [B, C] to [B, 3, H, W]: a convolution, an attention, a convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.norm = nn.GroupNorm(1, width)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.ff = nn.Linear(width, width)
        self.second = nn.Conv2d(width, 3, 3, padding=1)
        self.recomputed = False

    def enable_gradient_checkpointing(self) -> None:
        """The switch that the trainer looks for."""
        self.recomputed = True

    def forward(self, x: Tensor, caption: Tensor) -> Tensor:
        """See the class."""
        hidden = self.norm(self.first(x)) + caption[:, :, None, None]
        flat = hidden.flatten(2).transpose(1, 2)
        flat = checkpoint(self.inside, flat, use_reentrant=False) if self.recomputed else self.inside(flat)
        out: Tensor = self.second(flat.transpose(1, 2).view_as(hidden))
        return out

    def inside(self, flat: Tensor) -> Tensor:
        """[B, N, C] to the same."""
        seen = functional.scaled_dot_product_attention(self.to_q(flat), self.to_k(flat), self.to_v(flat))
        out: Tensor = flat + seen + torch.tanh(self.ff(flat))
        return out


class PartsNet(nn.Module):
    """Both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.unet = Body(width)
        self.text_encoder = Reader(width)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """See the parts."""
        out: Tensor = self.unet(x, self.text_encoder(tokens))
        return out


class PartsFamily(TinyFamily):
    """Predicts the image behind the noise, conditioned on the caption."""

    Options: ClassVar[type[PartsOptions]] = PartsOptions
    methods = ("fine_tune", "lora", "embedding")
    submodules = ("unet", "text_encoder")
    adapter_prefixes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "unet": ("unet", "lora_unet"),
        "text_encoder": ("text_encoder", "lora_te"),
    }
    sample_transform = staticmethod(draw)
    new: tuple[int, ...] = ()

    def __init__(self, options: PartsOptions) -> None:
        super().__init__(options)
        self.says_new = options.says_new
        self.model: nn.Module = PartsNet(options.width)
        if options.frozen:
            self.model.get_submodule(options.frozen).requires_grad_(False)

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """Weights from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls(PartsOptions.model_validate(dict(config.family_options)))

    def add_placeholder_token(self, token: str, vectors: int, init: str) -> Mapping[str, list[int]]:
        """The table grows by `vectors` rows, each like the row of the first word."""
        reader = self.model.get_submodule("text_encoder")
        assert isinstance(reader, Reader)
        grown = nn.Embedding(WORDS + vectors, reader.table.embedding_dim)
        with torch.no_grad():
            grown.weight.copy_(torch.cat([reader.table.weight, reader.table.weight[:1].expand(vectors, -1)]))
        reader.table = grown
        self.new = tuple(range(WORDS, WORDS + vectors))
        return {"text_encoder.table": list(self.new)}

    def loss(self, batch: Batch) -> Tensor:
        """The error of each sample's predicted image, [B]."""
        pixels, noise = batch.tensors["pixels"], batch.tensors["noise"]
        t = batch.tensors["timestep"].view(-1, 1, 1, 1)
        noisy = torch.cat([(1 - t) * pixels + t * noise, t.expand_as(pixels[:, :1])], dim=1)
        return (self.model(noisy, self.tokens(batch.tensors["caption"])) - pixels).square().mean(dim=(1, 2, 3))

    @torch.no_grad()
    def sample(self, request: SampleRequest) -> Image.Image:
        """One pass over noise, with every word of the table in turn."""
        generator = torch.Generator().manual_seed(request.seed)
        noise = torch.randn(1, 4, request.height, request.width, generator=generator)
        weights = next(self.model.parameters())
        numbers = torch.tensor([[*range(PLACES), *self.new]], device=weights.device)
        levels = ((self.model(noise.to(weights), numbers)[0].float().clamp(-1, 1) + 1) * 127.5).to(torch.uint8)
        return Image.fromarray(levels.permute(1, 2, 0).contiguous().cpu().numpy())

    def tokens(self, captions: Tensor) -> Tensor:
        """[B] to [B, T]: words that follow from the caption's number, then the new ones in every second caption."""
        places = torch.arange(PLACES, device=captions.device)
        words = (captions.unsqueeze(1) // (places + 1)) % WORDS
        first = self.new[:1] if self.says_new else ()
        new = words.new_full((len(words), len(first)), sum(first))
        said = torch.where((captions % 2 == 0).unsqueeze(1), new, words[:, : len(first)])
        return torch.cat([words, said], dim=1)

    def blocks(self) -> Sequence[nn.Module]:
        """Its two parts."""
        return list(self.model.children())
