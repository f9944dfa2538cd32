"""The declared settings match the real classes, so that no keyword is misspelt or silently ignored."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from modules.config import ConfigError, TrainConfig, find_option, validate
from modules.config.sections.optimizers import OPTIMIZERS


def test_choices_and_help_follow_from_the_classes() -> None:
    option = find_option(TrainConfig, "optimizer.name")
    assert option is not None
    assert option.choices == tuple(OPTIMIZERS)
    assert all(f"{name}: {kind.__doc__}" in option.help for name, kind in OPTIMIZERS.items())
    assert all(next(iter(kind.model_fields)) == "name" for kind in OPTIMIZERS.values())


@pytest.mark.parametrize(
    "name", [*(name for name, kind in OPTIMIZERS.items() if kind.implementation), "torch.optim.Adamax"]
)
def test_arguments_are_keywords_of_the_target(name: str) -> None:
    torch = importlib.import_module("torch")
    optimizer = TrainConfig.model_validate({"optimizer": name}).optimizer
    module, _, class_name = optimizer.class_path().partition(":")
    pytest.importorskip(module, reason="bitsandbytes is optional and not installed")
    target = getattr(importlib.import_module(module), class_name)
    arguments = optimizer.keywords()
    assert set(arguments) <= set(inspect.signature(target).parameters) - {"kwargs", "params", "lr"}

    parameter = torch.nn.Parameter(torch.ones(4, 4))
    built = target([parameter], lr=1e-2, **arguments)
    for _ in range(3):
        parameter.grad = torch.ones(4, 4)
        built.step()
    assert torch.isfinite(parameter).all()
    assert (parameter < 1).all()


def test_the_learning_rate_of_adafactor_is_the_size_of_its_first_step() -> None:
    """Its first update is clipped to an RMS of clip_threshold, 1 (Shazeer and Stern 2018, arXiv:1804.04235, section 6).

    Other trainers step by it times the learning rate: ostris/ai-toolkit, toolkit/optimizer.py, and Nerogar/OneTrainer,
    modules/util/optimizer_util.py, have scale_parameter False unless it is given.
    """
    torch = importlib.import_module("torch")
    build_optimizer = importlib.import_module("modules.training.optim.optimizers").build_optimizer
    config = TrainConfig.model_validate({"optimizer": "adafactor", "learning_rate": 1e-3})
    weight = torch.nn.Parameter(torch.full((6, 4), 0.02, dtype=torch.float64))
    optimizer = build_optimizer([weight], config)
    weight.grad = torch.full((6, 4), -0.3, dtype=torch.float64)
    optimizer.step()
    assert (weight - 0.02).square().mean().sqrt().item() == pytest.approx(1e-3, rel=1e-6)


def test_a_config_that_says_so_still_scales_the_steps_by_the_weights() -> None:
    given = {"name": "adafactor", "scale_parameter": True}
    assert TrainConfig.model_validate({"optimizer": given}).optimizer.keywords()["scale_parameter"] is True


def test_adafactor_defaults_to_no_momentum() -> None:
    arguments = TrainConfig.model_validate({"optimizer": "adafactor"}).optimizer.keywords()
    assert arguments["betas"] == (None, 0.999)
    assert arguments["relative_step"] is False


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"name": "custom", "target": "os"}, "give an optimizer's class with its module"),
        ("torch.nn.Linear", "'torch.nn.Linear'; give an optimizer's class with its module"),
        ({"name": "custom", "target": "torch.optim.Adagrad", "arguments": "lr = 1"}, "set learning_rate"),
        (
            {"name": "custom", "target": "torch.optim.Adagrad", "arguments": "__import__('os')"},
            "no list of NAME = VALUE",
        ),
        ({"name": "custom", "target": "torch.optim.Adagrad", "arguments": "a=1) + f(b=2"}, "no list of NAME = VALUE"),
        ({"name": "custom", "arguments": {"eps": 1e-8}}, "target names no class"),
    ],
)
def test_a_class_of_ones_own_is_checked_without_running_anything(given: object, fault: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(fault)):
        validate({"optimizer": given}, "a test")


@pytest.mark.parametrize(
    ("target", "arguments", "fault"),
    [
        ("torch.optim.Adagard", "", r"has no optimizer Adagard\. Did you mean torch\.optim\.Adagrad\?"),
        ("torch.optim.LBFGS", "", "calls the loss several times in a step"),
        (
            "torch.optim.SparseAdam",
            "",
            r"SparseAdam cannot do a step here \(SparseAdam does not support",
        ),
        ("pytorch_optimizer.ScheduleFreeSGD", "", "trains other weights than those to be used"),
        ("torch.optim.Adagrad", "beta = 0.9", "It takes lr_decay, weight_decay"),
        ("torch.optim.Adagrad", "eps = -1", "Invalid epsilon value"),
        ("torch.optim.Adam", "betas = [0.9]", "list index out of range"),
        ("torch.optim.Adam", "fused = true, foreach = true", "cannot be `True` together"),
        ("pytorch_optimizer.LOMO", "", "no attribute 'parameters'"),
        ("pytorch_optimizer.DynamicLossScaler", "", "DynamicLossScaler. See its documentation"),
        ("", "", "the family brings no optimizer of its own"),
    ],
)
def test_a_class_that_cannot_train_is_refused(target: str, arguments: str, fault: str) -> None:
    optimizers = importlib.import_module("modules.training.optim.optimizers")
    given = {"name": "custom", "target": target, "arguments": arguments}
    config = TrainConfig.model_validate({"optimizer": given})
    with pytest.raises(ConfigError) as caught:
        optimizers.check_optimizer(config, None)
    assert re.search(fault, str(caught.value))


def test_arguments_are_a_text_or_a_mapping() -> None:
    given = {"name": "custom", "target": "torch.optim.Adam", "arguments": {"betas": [0.8, 0.9], "amsgrad": True}}
    assert TrainConfig.model_validate({"optimizer": given}).optimizer.keywords() == given["arguments"]
    given["arguments"] = "betas = [0.8, 0.9], amsgrad = true"
    assert TrainConfig.model_validate({"optimizer": given}).optimizer.keywords()["amsgrad"] is True
