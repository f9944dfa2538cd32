from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from modules.config import ConfigError, TrainConfig, explain, faults, validate
from modules.config.errors import MOST_FAULTS
from modules.config.names import nearest
from modules.config.section import MOST_ITEMS
from modules.config.sections.optimizers import OPTIMIZERS


def explained(data: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate(data)
    return explain(caught.value)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"concepts": [{"pth": "x"}]},
            'concepts.0.pth ("x") is not a known setting; did you mean concepts.0.path?',
        ),
        (
            {"optimizer": {"beta": 1}},
            "optimizer.beta (1) is not a known setting; did you mean optimizer.betas?",
        ),
        (
            {"optimizer": {"momentum": 0.5}},
            "optimizer.momentum (0.5) is not a known setting of adamw; only of sgd, muon.",
        ),
        (
            {"weight_decay": 1},
            "weight_decay (1) is not a known setting; did you mean optimizer.weight_decay?",
        ),
        (
            {"processes_per_node": 2},
            "processes_per_node is 2; it must be a list of whole numbers from 1 to 1024, such as [4, 2], "
            "or empty (null).",
        ),
        ({"lr": 1}, "lr (1) is not a known setting; did you mean learning_rate?"),
        ({"gpus": 2}, "gpus (2) is not a known setting; did you mean world_size?"),
        ({"save_dir": "x"}, 'save_dir ("x") is not a known setting; did you mean runs_dir?'),
        ({"test_batch_size": 2}, "test_batch_size (2) is not a known setting; did you mean validation_batch_size?"),
        ({"device": "gpu"}, 'device is "gpu"; it must be one of auto, cpu (did you mean auto?).'),
        ({"training_method": 1}, "training_method (1) is not a known setting; did you mean method?"),
        ({"Learning-Rate": 1}, "Learning-Rate (1) is not a known setting; did you mean learning_rate?"),
        (
            {"method": "lorra"},
            'method is "lorra"; it must be one of fine_tune, lora, embedding (did you mean lora?).',
        ),
        ({"resolution": 4}, "resolution is 4; it must be a whole number from 8 to 8192."),
        (
            {"optimizer": "adamm"},
            f'optimizer.name is "adamm"; it must be one of {", ".join(OPTIMIZERS)} (did you mean adam?).',
        ),
        ({"concepts": [3]}, "concepts.0 is 3; it must be a group of named settings."),
        (
            {"concepts": [{"path": "p", "repeats": 0}]},
            "concepts.0.repeats is 0; it must be a number above 0 and up to 10,000.",
        ),
        (
            {"samples": [{}]},
            "samples.0.prompt is missing; it must be text (in quotes, if it looks like a number).",
        ),
        ([1], "The config is [1]; it must be a group of named settings."),
    ],
)
def test_sentences(data: Any, sentence: str) -> None:
    assert explained(data) == [sentence]


def test_family_options_are_explained_without_pydantic_terms() -> None:
    (sentence,) = explained({"family_options": {"a": {"b": [float("nan")]}}})
    assert sentence.startswith("family_options.a is NaN; ")


def test_every_fault_has_one_sentence_and_a_path() -> None:
    data = {"resolution": "big", "optimizer": {"name": "lion", "betas": [0.5, 2], "eps": 1}, "ema": "maybe"}
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate(data)
    assert {fault.path for fault in faults(caught.value)} == {
        "resolution",
        "optimizer.betas.1",
        "optimizer.eps",
        "ema",
    }


def test_faults_carry_the_requirement() -> None:
    data = {"method": "a; it must be b", "resolution": 4, "Learning-Rate": 1}
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate(data)
    assert {fault.path: fault.requirement for fault in faults(caught.value)} == {
        "method": "one of fine_tune, lora, embedding",
        "resolution": "a whole number from 8 to 8192",
        "Learning-Rate": "",
    }


def test_unknown_names_without_a_match_list_the_known() -> None:
    (sentence,) = explained({"xyzzy": 1})
    assert "known here are family, base_model" in sentence
    assert "docs/settings.md" in sentence


def test_long_and_recursive_values_are_shortened() -> None:
    recursive: list[object] = []
    recursive.append(recursive)
    assert len(explained({"resolution": "x" * 10_000})[0]) < 200
    assert "nested list" in explained({"resolution": recursive})[0]


@pytest.mark.timeout(120)
def test_of_many_faults_the_first_are_explained() -> None:
    """A suggestion takes milliseconds; for all of these it would take an hour."""
    data = {f"learning_ratx{number}": 0 for number in range(60_000)}
    with pytest.raises(ConfigError) as caught:
        validate(data, "a.json")
    first, *lines = str(caught.value).split("\n")
    assert first == "a.json has 60000 invalid settings:"
    assert lines[0] == "  - learning_ratx0 (0) is not a known setting; did you mean learning_rate?"
    assert len(lines) == MOST_FAULTS + 1
    assert lines[-1] == f"  - and {60_000 - MOST_FAULTS} more."


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "item"), [("concepts", {"x": 0}), ("samples", {}), ("device_ids", "x")])
def test_endless_lists_are_refused(name: str, item: object) -> None:
    (sentence,) = explained({name: [item] * 200_000})
    assert sentence.endswith(f"; it has 200,000 items, and at most {MOST_ITEMS:,} are allowed.")
    assert len(sentence) < 200
    assert "has 200,000 items" in explained({"family_options": {str(number): 0 for number in range(200_000)}})[0]


def test_names_of_any_length_get_no_suggestion() -> None:
    assert nearest("learning_rat" + "e" * 20, ["learning_rate" + "e" * 20])
    assert nearest("learning_rat" + "e" * 100, ["learning_rate" + "e" * 100]) is None
