"""The tiny family of the tests, which takes a model from the hub before it begins; base_model names it."""

from __future__ import annotations

from typing import Self

from modules.config import TrainConfig
from modules.families.parts.hub import HubModel
from tests.tiny_family import TinyFamily


class HubFamily(TinyFamily):
    """Nothing of what it fetches is used."""

    @classmethod
    def on_hub(cls, config: TrainConfig) -> HubModel | None:
        """A configuration and a file of weights."""
        return HubModel(str(config.base_model), "", ("unet",), ("TinyPipeline",))

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """With weights from the seed."""
        model = cls.on_hub(config)
        assert model is not None
        assert (model.at_hand() / "unet" / "config.json").is_file()
        return super().load(config.model_copy(update={"base_model": None}))
