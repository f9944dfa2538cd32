"""The tiny family, which first downloads the hub model named by base_model."""

from __future__ import annotations

from typing import Self

from modules.config import TrainConfig
from modules.diffusion.hub.model import HubModel
from tests.tiny_family import TinyFamily


class HubFamily(TinyFamily):
    """Uses nothing of what it downloads."""

    @classmethod
    def hub_model(cls, config: TrainConfig) -> HubModel | None:
        """A configuration and a file of weights."""
        return HubModel(str(config.base_model), "", ("unet",), ("TinyPipeline",))

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """With weights from the seed."""
        model = cls.hub_model(config)
        assert model is not None
        assert (model.ensure_cached() / "unet" / "config.json").is_file()
        return super().load(config.model_copy(update={"base_model": None}))
