"""The tiny family with dropout by functions instead of layers, named by its path."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tests.tiny_family import TinyFamily, TinyNet, TinyOptions


class FunctionalNet(TinyNet):
    """Two convolutions, and an attention between the rows of the image."""

    def __init__(self, options: TinyOptions) -> None:
        super().__init__(options)
        self.rate = options.dropout

    def inside(self, x: Tensor) -> Tensor:
        """The first half."""
        hidden = functional.dropout(torch.tanh(self.first(x)), self.rate, self.training)
        seen = functional.scaled_dot_product_attention(
            hidden, hidden, hidden, dropout_p=self.rate if self.training else 0.0
        )
        out: Tensor = hidden + seen
        return out


class FunctionalFamily(TinyFamily):
    """Predicts the image behind the noise."""

    def __init__(self, options: TinyOptions) -> None:
        super().__init__(options)
        self.model = FunctionalNet(options)
