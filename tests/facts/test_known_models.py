"""Models that are known by their names on the hub."""

from __future__ import annotations

import pytest

from modules.config import ConfigError, TrainConfig
from modules.diffusion.transformer_files.names import transformer_files
from modules.facts import family_names, known_model, known_models
from modules.training.loop.checks import startup_problems


def test_names_are_found_whatever_their_case_and_revision() -> None:
    found = known_model("black-forest-labs/flux.1-DEV@main")
    assert found is not None
    assert found.family == "flux"
    assert known_model("someone/else") is None
    assert {model.family for model in known_models().values()} <= set(family_names())
    for model in known_models().values():  # also text encoders that can be trained take memory while they are frozen
        assert {name for name in model.networks if name.startswith("text_encoder")} <= set(model.frozen)


@pytest.mark.parametrize("family", ["stable_diffusion_xl", "z_image"])
def test_a_model_of_another_family_is_refused_without_a_network(family: str) -> None:
    config = TrainConfig.model_validate({"family": family, "base_model": "black-forest-labs/FLUX.1-dev"})
    said = [str(problem) for problem in startup_problems(config) if isinstance(problem, ConfigError)]
    assert any("is FLUX.1 dev and schnell, which the family" in text and "Set family to flux" in text for text in said)


def test_of_models_that_share_names_the_more_usual_comes_first() -> None:
    """A LoRA of a few layers of Z-Image was read as one of Lumina 2."""
    order = list(transformer_files())
    assert order.index("z_image") < order.index("lumina2")
    assert order.index("flux") < order.index("chroma")
