from __future__ import annotations

from typing import Any

import pytest

from modules.config import ConfigError, TrainConfig, override, validate


def overridden(*assignments: str, data: dict[str, Any] | None = None) -> TrainConfig:
    return validate(override(data or {}, assignments), "test")


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("learning_rate=1e-4", 1e-4),
        ("learning_rate = 2", 2.0),
        ("ema=true", True),
        ("ema=on", True),
        ("max_steps=1e3", 1000),
        ("max_steps=none", None),
        ("max_grad_norm=null", None),
        ("run_name=2024", "2024"),
        ("model_title=a: b, #c [d", "a: b, #c [d"),
        ("run_name='quoted'", "quoted"),
        ("run_name=", None),
        ("model_title=a=b", "a=b"),
        ("model_title= a ", " a "),
        ("model_title = a ", "a"),
        ("cache_dir=no", "no"),
        ("device_ids=[0,1]", (0, 1)),
        ("device_ids=0,1", (0, 1)),
        ("device_ids=3", (3,)),
        ("device_ids=null", None),
        ("samples=[]", ()),
        ("lr_scaling=none", "none"),
        ("sample_every=1 epoch", "1 epoch"),
        ("family_options={width: 32}", {"width": 32}),
        ("family_options.width=32", {"width": 32}),
        ("family_options.net.widths=[1, 2]", {"net": {"widths": [1, 2]}}),
    ],
)
def test_values_are_converted_to_the_settings_type(assignment: str, value: object) -> None:
    name = assignment.partition("=")[0].partition(".")[0].strip()
    found = getattr(overridden(assignment), name)
    assert (str(found) if name == "sample_every" else found) == value


def test_list_items_are_set_by_index_and_appended() -> None:
    config = overridden(
        "concepts.0.path=a", "concepts.0.repeats=2", "concepts.1={path: b}", "samples.0.prompt=a cat: sitting"
    )
    assert [(c.path, c.repeats) for c in config.concepts] == [("a", 2.0), ("b", 1.0)]
    assert config.samples[0].prompt == "a cat: sitting"
    assert overridden("optimizer.betas.1=0.5").optimizer.keywords()["betas"] == (0.9, 0.5)
    with pytest.raises(ConfigError, match=r"concepts\.2: the list has 0 items"):
        overridden("concepts.2.path=a")


@pytest.mark.parametrize("choice", ["optimizer=sgd", "optimizer.name=sgd"])
def test_another_optimizer_drops_the_previous_settings(choice: str) -> None:
    data = {"optimizer": {"name": "adamw", "betas": [0.5, 0.5], "weight_decay": 0.3}}
    assert override(data, [choice])["optimizer"] == {"name": "sgd"}
    config = overridden("optimizer.momentum=0.5", choice, data=data)
    assert config.optimizer.keywords()["momentum"] == 0.5


def test_the_same_optimizer_keeps_its_settings() -> None:
    data = {"optimizer": {"name": "lion", "weight_decay": 0.3}}
    assert override(data, ["optimizer=lion"])["optimizer"] == data["optimizer"]
    assert override({"optimizer": "lion"}, ["optimizer.weight_decay=0.3"])["optimizer"] == data["optimizer"]
    whole = override({}, ["optimizer={name: sgd, momentum: 0.1}"])
    assert whole["optimizer"] == {"name": "sgd", "momentum": 0.1}


@pytest.mark.parametrize(
    ("given", "assignments", "expected"),
    [
        ({}, ["optimizer.target=torch.optim.Adagrad"], {"target": "torch.optim.Adagrad"}),
        ({}, ["optimizer={target: torch.optim.Adagrad}"], {"target": "torch.optim.Adagrad"}),
        ({"target": "torch.optim.Adagrad", "arguments": "eps = 1"}, ["optimizer.target=torch.optim.ASGD"],
         {"target": "torch.optim.ASGD"}),
        ({"target": "torch.optim.Adagrad", "arguments": {"eps": 1}}, ["optimizer.arguments.lr_decay=0.1"],
         {"target": "torch.optim.Adagrad", "arguments": "eps = 1, lr_decay = 0.1"}),
        ({"name": "lion"}, ["optimizer.arguments.maximize=true", "optimizer.target=torch.optim.Adagrad"],
         {"target": "torch.optim.Adagrad", "arguments": "maximize = True"}),
    ],
)  # fmt: skip
def test_a_class_alone_is_a_custom_optimizer(
    given: dict[str, object], assignments: list[str], expected: dict[str, str]
) -> None:
    """In one file as on top of another by an include or --set."""
    found = overridden(*assignments, data={"optimizer": given}).optimizer.model_dump()
    assert found == {"name": "custom", "arguments": "", **expected}
    with pytest.raises(ConfigError, match="not a setting of lion; only of custom"):
        overridden("optimizer=lion", "optimizer.target=torch.optim.Adagrad")
    assert override({"optimizer": {"eps": 0.1}}, ["optimizer.eps=0.2"])["optimizer"] == {"name": "adamw", "eps": 0.2}


def test_the_data_is_completed_and_not_modified() -> None:
    data = {"concepts": [{"path": "a"}]}
    result = override(data, ["concepts.0.path=b"])
    assert data == {"concepts": [{"path": "a"}]}
    assert result["resolution"] == 512


@pytest.mark.parametrize(
    ("assignment", "part"),
    [
        ("learning_rate", "write name=value"),
        ("=3", "write name=value"),
        ("lerning_rate=1", "did you mean learning_rate?"),
        ("lr=1", "did you mean learning_rate?"),
        ("num_processes=2", "did you mean world_size?"),
        ("use_amp=true", "did you mean precision?"),
        ("gradient_clip_val=1", "did you mean max_grad_norm?"),
        ("enable_distributed=true", "did you mean enable_multi_gpu?"),
        ("checkpoint_at=10", "did you mean backup_every?"),
        ("concepts.0.pth=x", "did you mean concepts.0.path?"),
        ("optimizer.beta=1", "did you mean optimizer.betas?"),
        ("optimizer.momentum=1", "is not a setting of adamw; only of sgd"),
        ("weight_decay=1", "did you mean optimizer.weight_decay?"),
        ("learning_rate.x=1", "not a known setting"),
        ("a.b.c=1", "not a known setting"),
        ("version=2", "cannot be set"),
        ("learning_rate=", "it must be a number above 0"),
        ("learning_rate=fast", 'learning_rate is "fast"; it must be a number above 0'),
        ("samples=[", "cannot be read"),
        ("optimizer=sdg", "did you mean sgd?"),
        ("optimizer=adagrad", "did you mean torch.optim.Adagrad?"),
        ("scheduler=StepLR", "did you mean torch.optim.lr_scheduler.StepLR?"),
        ("optimizer.arguments.x=1", "is not a setting of adamw; only of custom"),
        ("scheduler_arguments.=1", "no list of NAME = VALUE"),
        ("scheduler.gamma=1", "did you mean scheduler.arguments.gamma?"),
        ("ema=maybe", 'ema is "maybe"; it must be true or false'),
        ("resolution=512.7", "resolution is 512.7; it must be a whole number"),
        ("concepts.x.path=1", "not a known setting"),
    ],
)
def test_faults_are_explained(assignment: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overridden(assignment)
    assert part in str(caught.value)
    assert caught.value.exit_code == 2


def test_settings_inside_broken_data_are_explained() -> None:
    for broken in ("x", 3, {"a": 1}):
        with pytest.raises(ConfigError):
            overridden("concepts.0.path=a", data={"concepts": broken})
    with pytest.raises(ConfigError):
        overridden("optimizer.weight_decay=1", data={"optimizer": [1]})


def test_non_decimal_digits_are_no_list_index() -> None:
    with pytest.raises(ConfigError):
        override({}, ["concepts.\u00b2.path=x"])


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (
            ["scheduler=torch.optim.lr_scheduler.ExponentialLR"],
            ("custom", "torch.optim.lr_scheduler.ExponentialLR", ""),
        ),
        (["scheduler=cosine"], ("cosine", "", "")),
        (["scheduler_arguments=step_size = 5"], ("custom", "torch.optim.lr_scheduler.StepLR", "step_size = 5")),
        (
            ["scheduler_arguments.gamma=0.5"],
            ("custom", "torch.optim.lr_scheduler.StepLR", "step_size = 7, gamma = 0.5"),
        ),
        (
            ["scheduler.arguments.gamma=0.5"],
            ("custom", "torch.optim.lr_scheduler.StepLR", "step_size = 7, gamma = 0.5"),
        ),
        (["scheduler.target=a.Steps"], ("custom", "a.Steps", "")),
        (["scheduler=torch.optim.lr_scheduler.StepLR"], ("custom", "torch.optim.lr_scheduler.StepLR", "step_size = 7")),
    ],
)
def test_another_scheduler_takes_no_arguments_of_the_former(assignments: list[str], expected: tuple[str, ...]) -> None:
    given = {"scheduler": "torch.optim.lr_scheduler.StepLR", "scheduler_arguments": {"step_size": 7}}
    config = validate(override(given, assignments), "a test")
    assert (config.scheduler, config.scheduler_target, config.scheduler_arguments) == expected
    named = override({"scheduler": "cosine"}, ["scheduler_target=torch.optim.lr_scheduler.StepLR"])
    assert validate(named, "a test").scheduler == "custom"
