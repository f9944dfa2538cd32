"""The tiny family, of which rank 2 gets a weight that is not finite after the gradients of its steps 3 and 6."""

from __future__ import annotations

import torch
from torch import Tensor

from modules.data.batch import Batch
from tests.tiny_family import TinyFamily, _rank


class PoisonedFamily(TinyFamily):
    """Named by its path."""

    def loss(self, batch: Batch) -> Tensor:
        """See the module; the first call is the warm-up."""
        losses = super().loss(batch)
        if torch.is_grad_enabled() and _rank() == 2 and self.calls["loss"] in (4, 7):
            next(self.model.parameters()).data.view(-1)[0] = float("nan")
        return losses
