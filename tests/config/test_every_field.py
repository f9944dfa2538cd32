"""Every setting: any valid value survives saving and loading, any invalid one gets a helpful sentence."""

from __future__ import annotations

import json
import math
import string
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from modules.config import Option, TrainConfig, dump, explain, load_config, options, save_config
from modules.config.explain import format_value
from modules.config.names import known_names
from modules.config.run_names import sanitize_run_name
from modules.config.sections.optimizers import OPTIMIZERS

ALL = [option for option in options(TrainConfig) if option.path != "version"]
JARGON = ("Input should", "type=", "pydantic", "https", "Value error", "validation error", "\n")

CHARACTERS = st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029")
TEXT = st.text(CHARACTERS, max_size=20)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
INTERVALS = st.one_of(
    st.just("never"),
    st.integers(1, 10**9).map(lambda count: f"{count} steps"),
    st.floats(1e-6, 1e9).map(lambda count: f"{count!r} epochs"),
    st.floats(1e-6, 1e9).map(lambda count: f"{count!r} minutes"),
)


def name_of(option: Option) -> str:
    return f"{option.path}[{option.variant}]" if option.variant else option.path


def number(option: Option, whole: bool) -> st.SearchStrategy[Any]:
    bounds = option.bounds
    low = bounds.ge if bounds.ge is not None else bounds.gt
    high = bounds.le if bounds.le is not None else bounds.lt
    if whole:
        assert bounds.gt is None
        assert bounds.lt is None
        return st.integers(low, high)  # type: ignore[arg-type]
    return st.floats(low, high, exclude_min=bounds.gt is not None, exclude_max=bounds.lt is not None)


def valid(option: Option) -> st.SearchStrategy[Any]:
    """Any value the declaration allows, as in a file."""
    strategies = {
        "text": lambda: st.text(CHARACTERS, min_size=option.bounds.min_length or 0, max_size=30).filter(
            lambda text: not (option.picks and set(text) & set("$%~"))  # which a path reads as variables and folders
        ),
        "integer": lambda: number(option, whole=True),
        "number": lambda: number(option, whole=False),
        "switch": st.booleans,
        "choice": lambda: st.sampled_from(option.choices),
        "interval": lambda: INTERVALS,
        "integers": lambda: st.lists(number(option, whole=True), min_size=1, max_size=4, unique=True),
        "numbers": lambda: st.lists(number(option, False), min_size=option.length or 0, max_size=option.length),
        "mapping": lambda: st.dictionaries(TEXT, PLAIN, max_size=3),
        "list": lambda: st.lists(group(f"{option.path}.*."), min_size=1, max_size=2),
    }
    strategy = strategies[option.type]()
    return st.none() | strategy if option.optional else strategy


@cache  # a strategy that is made anew for each example is checked anew, which takes longer than to draw from it
def group(prefix: str, variant: str | None = None) -> st.SearchStrategy[dict[str, Any]]:
    inside = [o for o in ALL if o.path.startswith(prefix) and o.variant in (None, variant)]
    direct = {o.path.removeprefix(prefix): o for o in inside if "." not in o.path.removeprefix(prefix)}
    return st.fixed_dictionaries({name: valid(option) for name, option in direct.items()})


def whole_config(optimizer: str) -> st.SearchStrategy[dict[str, Any]]:
    own = group("optimizer.", optimizer).map(lambda data: {**data, "name": optimizer})
    return st.tuples(group(""), own).map(lambda pair: fitting({**pair[0], "optimizer": pair[1]}))


def fitting(data: dict[str, Any]) -> dict[str, Any]:
    """The same data, adjusted to the rules between settings."""
    if data["device"] == "cpu":
        data["device_ids"] = None
    data["node_rank"] = min(data["node_rank"], data["num_nodes"] - 1)
    data["master_addr"] = f"gpu{len(data['master_addr'])}"  # not every text is a host name
    data["run_name"] = data["run_name"] and sanitize_run_name(data["run_name"])
    own_speed = data["training_mode"] != "fully_sharded" and not data["sync_batch_norm"]
    data["balance"] = ("equal", "2.5, 1", "auto" if own_speed else "1, 3")[len(data["balance"]) % 3]
    if data["on_machine_loss"] == "continue" and ("," in data["balance"] or data["backup_every"] == "never"):
        data["on_machine_loss"] = "wait"
    data["initial_port"] = min(data["initial_port"], 65_534)  # machines join on the next port
    has_state_of_all = data["optimizer"]["name"] in ("schedule_free_adamw", "prodigy")
    if data["training_mode"] == "fully_sharded" or data["sync_batch_norm"] or has_state_of_all:
        data["local_steps"] = None
    if data["local_steps"] is not None:
        data["gradient_compression"] = "none"
    if data["device_ids"] is not None and data["world_size"] is not None:
        data["world_size"] = len(data["device_ids"]) * data["num_nodes"]
    if data["processes_per_node"] is not None:
        data["processes_per_node"] = data["processes_per_node"][:1]
        data["world_size"] = None
    if data["early_stopping_patience"] is not None or data["restore_best"]:
        data["early_stopping_mode"] = "min"  # not every text is a metric whose direction is known
        data["validate_every"] = "1 epoch"
        data["validation_split"] = max(data["validation_split"], 0.1)
    data["tensorboard"] = data["tensorboard"] or data["histograms_every"] != "never"
    if data["training_mode"] == "fully_sharded":
        data["channels_last"], data["gradient_compression"] = False, "none"
        if "minute" in data["histograms_every"]:
            data["histograms_every"] = "2 epochs"
        if not OPTIMIZERS[data["optimizer"]["name"]].is_elementwise:
            data["training_mode"] = "distributed"
    for number, concept in enumerate(data["concepts"]):
        concept["caption_extension"] = f".txt .caption{number}"
        concept["resolutions"] = f"512 {number + 600}"
        concept["references"], concept["mask_suffix"] = f"references {number}", f"-mask{number}.png"
    for sample in data["samples"]:
        sample["reference"] = "cat.png"
    data["family"] = "flux_kontext"  # which takes one
    for place, part in enumerate(data["parts"]):
        part.update(part=f"part {place}", train=True, weights="run", stop_after="3 epochs")
    data["learning_rate_factors"] = "head = 0.1"
    data["lora_targets"], data["embedding_token"] = "all", "<new>"  # not every text is a pattern or a word
    data["lora_rank_pattern"], data["lora_alpha_pattern"] = "to_q = 8", "to_q = 0.5"
    if data["optimizer"]["name"] == "schedule_free_adamw":
        data["ema"] = False
    if data["lora_algorithm"] != "lora":
        data.update(lora_weight_decompose=False, lora_dropout=0.0, lora_plus_ratio=1.0)
    data["embedding_init"] = data["embedding_init"].strip() or "cat"
    if not data["cache_latents"]:
        data["cache_only"] = False
    if data["warmup_steps"]:
        data["warmup_fraction"] = 0.0
    settle_memory(data)
    data["scheduler_target"] = "torch.optim.lr_scheduler.StepLR"
    data["scheduler_arguments"] = "step_size = 9"
    if data["optimizer"]["name"] == "custom":
        data["optimizer"].update(target="torch.optim.Adagrad", arguments="lr_decay = 0.1")
    if data["optimizer"]["name"] == "sgd" and data["optimizer"]["momentum"] == 0:
        data["optimizer"]["nesterov"] = False
    return data


def settle_memory(data: Any) -> None:
    """What the ways to save memory do not go with."""
    if not OPTIMIZERS[data["optimizer"]["name"]].per_parameter_step:
        data["stochastic_rounding"] = data["fused_backward"] = False
    if data["block_offload"]:
        data.update(method="lora", compile=False, stochastic_rounding=False)
        if data["training_mode"] in ("fully_sharded", "data_parallel"):
            data["training_mode"] = "distributed"
    if data["training_mode"] != "fully_sharded" or (data["world_size"] or 0) % data["num_nodes"]:
        data["fsdp_replicate"] = "none"
    if data["stochastic_rounding"]:
        data.update(precision="bf16", method="fine_tune", training_mode="distributed", fsdp_replicate="none")
        data["stochastic_rounding"] = data["optimizer"]["name"] != "schedule_free_adamw"
    if data["fused_backward"]:
        data.update(enable_multi_gpu=False, max_grad_norm=None, gradient_accumulation_steps=1, global_batch_size=None)
        data.update(histograms_every="never", precision="bf16")


def paths(data: Any, prefix: str = "") -> set[str]:
    """The option paths of all values in the data."""
    found = set()
    for name, value in data.items():
        found.add(prefix + name)
        if name in ("concepts", "samples", "parts"):
            found |= {path for item in value for path in paths(item, f"{prefix}{name}.*.")}
        elif name == "optimizer":
            found = (found | paths(value, "optimizer.")) - {"optimizer"}
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@given(data=st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_valid_config_survives_json_and_yaml(tmp_path: Path, optimizer: str, data: st.DataObject) -> None:
    given_values = data.draw(whole_config(optimizer))
    assert paths(given_values) == {o.path for o in ALL if o.variant in (None, optimizer)}

    config = TrainConfig.model_validate(given_values)
    for name in ("config.json", "config.yaml"):
        save_config(config, tmp_path / name)
        assert load_config(tmp_path / name) == config
    written = dump(config)
    plain = {name: value for name, value in given_values.items() if not name.endswith("_every")}
    assert {name: written[name] for name in plain if name != "optimizer"} == {
        name: value for name, value in plain.items() if name != "optimizer"
    }


def places(data: dict[str, Any], path: str) -> list[tuple[dict[str, Any], str]]:
    """The groups of the data that have a line for the option at this path, with its name there."""
    *groups, name = path.split(".")
    inside: list[Any] = [data]
    for key in groups:
        inside = [item for each in inside for item in (each if key == "*" else [each[key]])]
    return [(each, name) for each in inside]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_line_taken_out_of_a_saved_file_is_its_default(tmp_path: Path, optimizer: str) -> None:
    file, chosen = tmp_path / "config.json", {"optimizer": optimizer, "masked_training": True}
    items = {"concepts": [{"path": "p"}], "samples": [{"prompt": "p"}], "parts": [{"part": "p"}]}
    save_config(TrainConfig.model_validate({**chosen, **items}), file)
    saved = json.loads(file.read_text())
    first = next(iter(OPTIMIZERS))
    for option in ALL:
        if option.required or option.variant not in ((None, first) if optimizer == first else (optimizer,)):
            continue
        without, with_default = deepcopy(saved), deepcopy(saved)
        for group_of, name in places(without, option.path):
            del group_of[name]
        for group_of, name in places(with_default, option.path):
            group_of[name] = option.default
        file.write_text(json.dumps(without))
        assert load_config(file) == TrainConfig.model_validate(with_default), name_of(option)


def around(option: Option, value: object) -> dict[str, Any]:
    """A config that is valid except for this value of this option."""
    data: dict[str, Any] = {"concepts": [{"path": "p"}], "samples": [{"prompt": "p"}], "parts": [{"part": "p"}]}
    data["optimizer"] = {"name": option.variant or "adamw"}
    *parents, last = option.path.replace("*", "0").split(".")
    place: Any = data
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return data


def sentences(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate(data)
    found = explain(caught.value)
    for sentence in found:
        assert not any(word in sentence for word in JARGON), sentence
        assert len(sentence) < 600
        assert sentence[-1] in ".?"
    return found


WRONG: dict[str, list[object]] = {
    "text": [3, True, ["a"], {"a": 1}, 1.5],
    "integer": ["abc", 1.5, True, False, [1], {"a": 1}, math.nan, math.inf, "1.5", "nan", ""],
    "number": ["abc", True, [1.0], {"a": 1}, math.nan, -math.inf, "inf", "1,5", ""],
    "switch": ["perhaps", 7, [True], 0.5, {}],
    "choice": ["zzz", 3, True, ["x"], ""],
    "interval": [
        "soon",
        -3,
        0,
        True,
        1.5,
        "0 steps",
        "1.5 steps",
        "-1 epochs",
        "1 week",
        [1],
        "inf steps",
        "",
    ],
    "integers": ["x", 3, {"a": 1}, True],
    "numbers": ["x", 3, {"a": 1}, True, [], [0.5], [0.5] * 9],
    "mapping": ["x", 3, [1], True],
    "list": ["x", 3, {"path": "p"}, True],
}
WRONG_ELEMENTS: dict[str, list[object]] = {
    "integers": ["a", 1.5, True, -1, math.nan, 10**7],
    "numbers": ["a", True, -0.1, 1.5, math.inf],
}


def outside(option: Option) -> list[object]:
    """Numbers just outside the bounds, and an empty text if one is required."""
    bounds = option.bounds
    if option.type == "text":
        return [""] if bounds.min_length else []
    if option.type not in ("integer", "number"):
        return []
    step = 1 if option.type == "integer" else 1e-3
    past: list[object] = []
    past += [] if bounds.ge is None else [bounds.ge - step]
    past += [] if bounds.gt is None else [bounds.gt, bounds.gt - step]
    past += [] if bounds.le is None else [bounds.le + step]
    past += [] if bounds.lt is None else [bounds.lt, bounds.lt + step]
    return past


@pytest.mark.parametrize("option", ALL, ids=name_of)
def test_wrong_values_get_one_sentence_with_what_is_allowed(option: Option) -> None:
    nothing = [] if option.optional else [None]
    right = {
        "optimizer.arguments": dict, "scheduler_arguments": dict, "concepts.*.resolutions": int,
        "concepts.*.references": list, "samples.*.reference": list,
    }.get(option.path)  # fmt: skip
    wrong = [each for each in WRONG[option.type] if type(each) is not right]
    for value in [*wrong, *outside(option), *nothing]:
        found = sentences(around(option, value))
        path = option.path.replace("*", "0")
        assert len(found) == 1, found
        assert found[0].startswith(f"{path} is {format_value(value)}; "), found[0]
        assert "must be" in found[0]
        assert all(choice in found[0] for choice in option.choices)
        if option.type in ("integer", "number"):
            assert str(option.bounds) in found[0]


@pytest.mark.parametrize("option", [o for o in ALL if o.type in WRONG_ELEMENTS], ids=name_of)
def test_wrong_list_elements_are_named_by_index(option: Option) -> None:
    for wrong in WRONG_ELEMENTS[option.type]:
        value: list[object] = [0.5] * (option.length or 1) if option.type == "numbers" else [0]
        value[-1] = wrong
        found = sentences(around(option, value))
        assert len(found) == 1, found
        assert found[0].startswith(f"{option.path}.{len(value) - 1} is {format_value(wrong)}; "), found[0]
        assert str(option.bounds) in found[0]


@pytest.mark.parametrize("option", ALL, ids=name_of)
@given(data=st.data())
@settings(max_examples=2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_values_of_any_type_are_explained(option: Option, data: st.DataObject) -> None:
    value = data.draw(PLAIN | st.binary(max_size=3) | st.floats() | st.integers(10**20, 10**30))
    try:
        TrainConfig.model_validate(around(option, deepcopy(value)))
    except ValidationError:
        found = sentences(around(option, value))
        assert all(sentence.startswith(option.path.split(".")[0]) for sentence in found)


@pytest.mark.parametrize("option", ALL, ids=name_of)
@given(data=st.data())
@settings(max_examples=2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_misspelt_names_get_a_suggestion(option: Option, data: st.DataObject) -> None:
    name = option.name
    place = data.draw(st.integers(1, len(name) - 1), label="place")
    letter = data.draw(st.sampled_from(string.ascii_lowercase), label="letter")
    misspelt = data.draw(
        st.sampled_from([name[:place] + name[place + 1 :], name[:place] + letter + name[place:], name.upper()])
    )
    path = option.path.replace("*", "0")
    known = known_names(TrainConfig, path, option.variant or "adamw")
    assume(misspelt not in known)

    wrong_path = path[: -len(name)] + misspelt
    wrong = around(option, option.default)
    right_group = around(option, "a value")
    target: Any = right_group
    for part in path.split(".")[:-1]:
        target = target[int(part)] if part.isdigit() else target[part]
    del target[name]
    target[misspelt] = "a value"
    if option.path == "optimizer.name":
        target["name"] = "adamw"
    assert wrong != right_group
    found = [sentence for sentence in sentences(right_group) if sentence.startswith(wrong_path)]
    assert len(found) == 1, found
    assert '"a value"' in found[0]
    assert "did you mean" in found[0] or "only of" in found[0], found[0]


@pytest.mark.parametrize("option", [o for o in ALL if len(o.name) > 5], ids=name_of)
def test_a_missing_letter_gets_the_right_suggestion(option: Option) -> None:
    path = option.path.replace("*", "0")
    group, dot, name = path.rpartition(".")
    data = around(option, "x")
    place: Any = data
    for part in group.split(".") if group else []:
        place = place[int(part)] if part.isdigit() else place[part]
    del place[name]
    place[name[:3] + name[4:]] = "x"
    assert sentences(data) == [f'{group}{dot}{name[:3]}{name[4:]} ("x") is not a known setting; did you mean {path}?']
