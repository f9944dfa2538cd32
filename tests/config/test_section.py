from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from modules.config import Section, TrainConfig, explain, setting


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"learning_rate": "1e-4"}, 1e-4),
        ({"learning_rate": " 0.5 "}, 0.5),
        ({"learning_rate": 1}, 1.0),
        ({"max_steps": "1e3"}, 1000),
        ({"max_steps": 1000.0}, 1000),
        ({"seed": "9007199254740993"}, 9007199254740993),
        ({"ema": "yes"}, True),
        ({"ema": "off"}, False),
        ({"device_ids": ["0", "1"]}, (0, 1)),
        ({"device_ids": None}, None),
    ],
)
def test_text_is_converted_to_numbers_and_booleans(given: dict[str, Any], read: object) -> None:
    config = TrainConfig.model_validate(given)
    value = getattr(config, next(iter(given)))
    assert value == read
    assert type(value) is type(read)


@pytest.mark.parametrize(
    "given",
    [
        {"resolution": 512.7},
        {"resolution": True},
        {"learning_rate": False},
        {"learning_rate": "abc"},
        {"learning_rate": float("nan")},
        {"learning_rate": "inf"},
        {"max_grad_norm": float("inf")},
        {"run_name": 2024},
        {"concepts": [{"path": None}]},
    ],
)
def test_nothing_is_rounded_or_guessed(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TrainConfig.model_validate(given)


def test_sections_are_frozen_and_know_their_names() -> None:
    config = TrainConfig()
    with pytest.raises(ValidationError):
        config.learning_rate = 1.0
    with pytest.raises(ValidationError):
        TrainConfig.model_validate({"lerning_rate": 1.0})


class FamilyOptions(Section):
    """Options as a model family declares them."""

    section_title = "Test family"
    channels: int = setting(32, title="Channels", help="Width of the network.", ge=8, le=512)


def test_family_options_are_explained_too() -> None:
    with pytest.raises(ValidationError) as caught:
        FamilyOptions.model_validate({"channels": 4, "chanels": 5})
    assert explain(caught.value, FamilyOptions, "family_options") == [
        "family_options.channels is 4; it must be a whole number from 8 to 512.",
        "family_options.chanels (5) is not a known setting; did you mean family_options.channels?",
    ]


def test_family_files_may_still_declare_resume_told() -> None:
    field = setting(1, title="Layers", help="Number of layers.", resume="told")  # type: ignore[arg-type]
    assert field.json_schema_extra["resume"] == "warn"
