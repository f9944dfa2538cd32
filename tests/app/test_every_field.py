"""Every setting is set through its control in the real window, saved, and read back from the file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from app.sections.places import section_of
from modules.config import Option, TrainConfig, dump, load_config, options
from modules.config.io.text_formats import Data
from tests.app.driver import Driver

ALL = [
    option
    for option in options(TrainConfig)
    if option.path not in ("version", "concepts", "samples", "parts", "family_options")
]
VALUES: dict[str, object] = {
    "family": "my_family.py",
    "concepts.*.caption_extension": ".caption",
    "concepts.*.resolutions": "512 768",
    "frames": 21,  # 1 + a multiple of the family's step
    "resolution": 640,  # a multiple of the family's size step
    "device_ids": [0, 1],
    "run_name": "my-run",
    "master_addr": "gpu01",
    "processes_per_node": [2],
    "balance": "2, 1",
    "optimizer.name": "lion",
    "optimizer.target": "torch.optim.Adagrad",
    "optimizer.arguments": "lr_decay = 0.1",
    "scheduler": "cosine",
    "scheduler_target": "torch.optim.lr_scheduler.StepLR",
    "scheduler_arguments": "step_size = 9",
    "embedding_token": "<my-cat>",
    "learning_rate_factors": "head = 0.1",
    "lora_rank_pattern": "to_q = 8",
    "lora_alpha_pattern": "to_q = 0.5",
}
FIRST: dict[str, dict[str, object]] = {  # other settings that make a value valid
    "embedding_token": {"family": "my_family.py"},  # the built-in one has no textual inversion
    "lora_from_skip_unread": {"method": "lora", "lora_from": "cats.safetensors"},
    "embedding_init": {"family": "my_family.py"},
    "embedding_vectors": {"family": "my_family.py"},
    "parts": {"family": "my_family.py"},  # the built-in one has no submodules
    "parts.*.train": {"method": "embedding"},  # which needs no trained submodule
    "node_rank": {"enable_multi_gpu": True, "num_nodes": 3},
    "early_stopping_patience": {"validation_split": 0.25},
    "restore_best": {"validation_split": 0.25},
    "stochastic_rounding": {"precision": "bf16", "method": "fine_tune"},
    "block_offload": {"method": "lora"},
    "scheduler_arguments": {"scheduler": "custom", "scheduler_target": "torch.optim.lr_scheduler.StepLR"},
    "scheduler_target": {"scheduler": "custom"},
    "scheduler_interval": {"scheduler": "custom"},
    "fused_backward": {"max_grad_norm": None},
    "concepts.*.references": {"family": "flux_kontext"},  # which edits images
    "reference_resolution": {"family": "flux_kontext"},
    "reference_dropout": {"family": "flux_kontext"},
    "samples.*.reference": {"family": "flux_kontext"},
    **{name: {"family": "wan"} for name in ("frames", "fps", "clips", "samples.*.frames")},  # which trains on videos
}


def name_of(option: Option) -> str:
    return f"{option.path}[{option.variant}]" if option.variant else option.path


def another_value(option: Option) -> object:
    """A valid value other than the default."""
    if option.path in VALUES:
        return VALUES[option.path]
    low = next((limit for limit in (option.bounds.ge, option.bounds.gt) if limit is not None), None)
    high = next((limit for limit in (option.bounds.le, option.bounds.lt) if limit is not None), 1.0)
    match option.type:
        case "switch":
            return not option.default
        case "choice":
            return next(choice for choice in option.choices if choice != option.default)
        case "integer":
            return int(option.default) + 1 if isinstance(option.default, int) else int(low or 0) + 1
        case "number":
            assert low is not None
            middle = round(low + (high - low) / 4, 6)
            return middle if middle != option.default else round(low + (high - low) / 2, 6)
        case "numbers":
            return [0.5] * (option.length or 1)
        case "interval":
            return "7 epochs"
        case _:
            return f"some {option.name}"


def groups() -> Mapping[str, Sequence[Option]]:
    """Settings that are tried one after the other in one draft: those of an optimizer, of an item of a list, and of a
    section; each that needs others alone."""
    found: defaultdict[str, list[Option]] = defaultdict(list)
    for option in ALL:
        head, is_item, _ = option.path.partition(".*.")
        if option.path in FIRST or (option.depends_on and not is_item and not option.variant):
            found[option.path].append(option)
        else:
            found[option.variant or (head if is_item else section_of(option.path))].append(option)
    return found


def begin(driver: Driver, option: Option) -> None:
    """Start a draft, with an item if the setting is one of an item."""
    driver.draft.new()
    driver.settle()
    head, is_item, _ = option.path.partition(".*.")
    for path, value in {**FIRST.get(head, {}), **FIRST.get(option.path, {})}.items():
        driver.set(path, value)
    if is_item:
        driver.window.show_section({"concepts": "data", "samples": "sampling", "parts": "adapters"}[head])
        driver.window.sections[driver.window.section].list.add()
        required = next(one for one in ALL if one.path.startswith(f"{head}.*.") and one.required)
        driver.set(required.path.replace("*", "0"), "needed")


def activate(driver: Driver, option: Option) -> None:
    """Make the setting apply, also through the controls."""
    for term in (option.depends_on or "").replace("*", "0").split(" & "):
        path, _, wanted = term.partition("=")
        if path and not path.startswith("!"):
            if path == "samples":
                driver.window.show_section("sampling")
                driver.window.sections["sampling"].list.add()
                driver.set("samples.0.prompt", "needed")
                continue
            condition = next(one for one in ALL if one.path.replace("*", "0") == path)
            needed = wanted.split("|")[0] if wanted else another_value(condition)
            if not driver.draft.is_active(option) and driver.draft.get(path) != needed:
                driver.set(path, True if condition.type == "switch" else needed)
        elif path.startswith("!") and driver.draft.get(path[1:]) is True:
            driver.set(path[1:], False)


def at(data: Data, path: str) -> object:
    place: object = data
    for part in path.split("."):
        place = place[int(part)] if isinstance(place, list) else place[part]  # type: ignore[index]
    return place


@pytest.mark.parametrize("group", [*groups().values()], ids=groups().keys())
def test_settings_are_saved_and_reset(shared_driver: Driver, shared_home: Path, group: Sequence[Option]) -> None:
    driver = shared_driver
    begin(driver, group[0])
    for option in group:
        activate(driver, option)
        path, name = option.path.replace("*", "0"), name_of(option)
        before = driver.draft.get(path)
        value = another_value(option)

        driver.set(path, value)

        assert driver.draft.faults == (), name
        driver.save(shared_home / "config.yaml")
        assert at(dump(load_config(shared_home / "config.yaml")), path) == value, name

        field = driver.field(path)
        assert bool(field.reset.cget("image")) is not option.required, name
        if not option.required:
            field.reset.event_generate("<ButtonPress-1>")
            driver.settle()
            assert driver.draft.is_default(path, option), name
            assert driver.draft.get(path) in (before, option.default), name
            assert not driver.field(path).reset.cget("image"), name


@pytest.mark.slow
def test_every_setting_is_in_a_card(shared_driver: Driver) -> None:
    """A setting that is in no card would appear in the card "More"."""
    driver = shared_driver
    driver.draft.new()
    for name in ("model", "data", "training", "adapters", "multi_gpu", "sampling", "output"):
        driver.window.show_section(name)
        driver.settle()
        titles = [block.heading.cget("text") for block in driver.window.sections[name].blocks]
        assert "More" not in titles
