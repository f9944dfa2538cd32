"""The declared settings against the real classes, so that no keyword is misspelt or silently swallowed."""

from __future__ import annotations

import importlib
import inspect

import pytest

from modules.config import TrainConfig, find_option

NAME = find_option(TrainConfig, "optimizer.name")
NAMES = NAME.choices if NAME else ()


@pytest.mark.parametrize("name", NAMES)
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


def test_adafactor_without_momentum_keeps_no_history_of_every_weight() -> None:
    arguments = TrainConfig.model_validate({"optimizer": "adafactor"}).optimizer.arguments()
    assert arguments["betas"] == (None, 0.999)
    assert arguments["relative_step"] is False
