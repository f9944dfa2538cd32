"""The tiny family, which records at every call where its gradients are; named by its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from modules.config import TrainConfig, setting
from modules.data.batch import Batch
from tests.tiny_family import TinyFamily, TinyOptions, _rank


class GradientOptions(TinyOptions):
    """Where to record."""

    record_gradients: str = setting("", title="Record", help="A folder.")


class GradientFamily(TinyFamily):
    """Writes the address and the size of the memory behind each gradient, null if there is none."""

    Options: ClassVar[type[GradientOptions]] = GradientOptions

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """As the tiny family."""
        family = super().load(config)
        family.place = Path(str(config.family_options["record_gradients"]))
        return family

    place: Path

    def loss(self, batch: Batch) -> Tensor:
        """As the tiny family's."""
        if torch.is_grad_enabled():
            gradients = [weight.grad for weight in self.model.parameters()]
            memory = [g if g is None else g.untyped_storage() for g in gradients]
            found = [m if m is None else (m.data_ptr(), m.nbytes()) for m in memory]
            with (self.place / f"{self.options.width}-{_rank()}.jsonl").open("a") as file:
                file.write(json.dumps(found) + "\n")
        return super().loss(batch)
