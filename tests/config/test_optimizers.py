"""The declared settings match the real classes, so that no keyword is misspelt or silently ignored."""

from __future__ import annotations

import importlib
import inspect

import pytest

from modules.config import TrainConfig, find_option
from modules.config.sections.optimizers import OPTIMIZERS


def test_choices_and_help_follow_from_the_classes() -> None:
    option = find_option(TrainConfig, "optimizer.name")
    assert option is not None
    assert option.choices == tuple(OPTIMIZERS)
    assert all(f"{name}: {kind.__doc__}" in option.help for name, kind in OPTIMIZERS.items())
    assert all(next(iter(kind.model_fields)) == "name" for kind in OPTIMIZERS.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_arguments_are_keywords_of_the_target(name: str) -> None:
    torch = importlib.import_module("torch")
    optimizer = TrainConfig.model_validate({"optimizer": name}).optimizer
    module, _, class_name = optimizer.target.partition(":")
    pytest.importorskip(module, reason="bitsandbytes is optional and not installed")
    target = getattr(importlib.import_module(module), class_name)
    arguments = optimizer.arguments()
    assert set(arguments) <= set(inspect.signature(target).parameters) - {"kwargs", "params", "lr"}

    parameter = torch.nn.Parameter(torch.ones(4, 4))
    built = target([parameter], lr=1e-2, **arguments)
    for _ in range(3):
        parameter.grad = torch.ones(4, 4)
        built.step()
    assert torch.isfinite(parameter).all()
    assert (parameter < 1).all()


def test_adafactor_defaults_to_no_momentum() -> None:
    arguments = TrainConfig.model_validate({"optimizer": "adafactor"}).optimizer.arguments()
    assert arguments["betas"] == (None, 0.999)
    assert arguments["relative_step"] is False
