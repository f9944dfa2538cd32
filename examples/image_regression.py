"""A convolutional network that looks at an image and says where the disc is, and how large.

    python scripts/train.py --config examples/image_regression.py --multi_gpu --set epochs=10 --set batch_size=32 \\
        --set learning_rate=2e-3 --set validate_every="1 epoch"

The images are drawn; for your own, open a file in `Discs.__getitem__`. Colours and noise are drawn anew in each epoch,
with torch's global generator, which the trainer seeds for each sample: any number of ranks draws the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tandem import Section, setting


class Options(Section):
    """Fields in the window, and `--set family_options.width=32` on the command line."""

    width: int = setting(16, title="Width", help="Channels of the first layer.", ge=1)
    side: int = setting(32, title="Side", help="Of the images.", unit="pixels", ge=16)
    images: int = setting(1000, title="Images", help="How many images to train on.", ge=1)


class Discs(Dataset[tuple[Tensor, Tensor]]):
    """An image float [3, side, side] and its target [3]: x, y and radius of the disc, as parts of the side."""

    def __init__(self, count: int, side: int, seed: int, *, augment: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        place, radius = torch.rand(count, 2, generator=generator), torch.rand(count, 1, generator=generator)
        self.targets = torch.cat([0.2 + 0.6 * place, 0.05 + 0.15 * radius], dim=1)
        self.side, self.augment = side, augment

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y, radius = self.targets[index]
        grid = (torch.arange(self.side) + 0.5) / self.side
        disc = (grid[None, :] - x) ** 2 + (grid[:, None] - y) ** 2 < radius**2
        image = torch.where(disc, 1.0, 0.0).expand(3, -1, -1)
        if self.augment:
            image = image * torch.rand(3, 1, 1).clamp_min(0.3) + 0.1 * torch.randn(3, self.side, self.side)
        return image, self.targets[index]


def build_model(options: Options) -> nn.Module:
    width = options.width
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.GroupNorm(1, 2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * ((options.side + 3) // 4) ** 2, 3),
    )


def build_data(options: Options) -> tuple[Discs, Discs, Discs]:
    train = Discs(options.images, options.side, seed=1, augment=True)
    return train, Discs(101, options.side, seed=2, augment=False), Discs(100, options.side, seed=3, augment=False)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, targets = batch
    return (model(images) - targets).square().mean(dim=1)


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    images, targets = batch
    distance = (model(images) - targets)[:, :2].norm(dim=1)
    return {"distance": distance, "within_5_percent_accuracy": distance < 0.05}
