from __future__ import annotations

from typing import Literal

import pytest

from modules.config import SECTIONS, Section, TrainConfig, dump, find_option, is_active, options, setting

ALL = options(TrainConfig)


def test_every_field_of_every_section_is_an_option() -> None:
    paths = {option.path for option in ALL}
    fields = {name for section in SECTIONS for name in section.model_fields} - {"optimizer"}
    assert fields | {"optimizer.name", "version"} <= paths
    assert {option.section for option in ALL} == {section.section_title for section in SECTIONS} | {""}


@pytest.mark.parametrize("option", ALL, ids=lambda option: f"{option.path}-{option.variant}")
def test_every_option_has_a_title_and_help(option: object) -> None:
    found = next(other for other in ALL if other is option)
    assert found.title
    assert found.help
    assert found.help[-1] == "."
    assert len(found.help) > 20
    assert found.type != "choice" or len(found.choices) > 1
    for choice in found.choices:
        assert found.path in ("precision",) or choice.split("_")[0] in found.help.lower(), choice


def test_options_know_bounds_choices_units_and_lists() -> None:
    resolution = find_option(TrainConfig, "resolution")
    assert resolution is not None
    assert (resolution.bounds.ge, resolution.bounds.le, resolution.unit) == (8, 8192, "pixels")
    path = find_option(TrainConfig, "concepts.12.path")
    assert path is not None
    assert (path.path, path.required, path.picks, path.section) == ("concepts.*.path", True, "folder", "Data")
    betas = find_option(TrainConfig, "optimizer.betas", "came")
    assert betas is not None
    assert (betas.type, betas.length, betas.bounds.lt, betas.variant) == ("numbers", 3, 1, "came")
    assert find_option(TrainConfig, "optimizer.momentum", "adamw") is None


def test_defaults_are_as_in_a_file() -> None:
    data = dump(TrainConfig())
    for option in ALL:
        if "." not in option.path:
            assert option.default == data[option.path], option.path
    name = find_option(TrainConfig, "optimizer.name")
    assert name is not None
    assert name.default == "adamw"


def test_dependencies_name_known_settings() -> None:
    paths = {option.path for option in ALL}
    for option in ALL:
        for term in filter(None, (option.depends_on or "").split(" & ")):
            name, _, wanted = term.removeprefix("!").partition("=")
            assert name in paths, option
            other = find_option(TrainConfig, name, option.variant)
            assert other is not None, f"{option.variant} has no {name}"
            assert not wanted or set(wanted.split("|")) <= set(other.choices), option


def test_a_setting_needs_what_the_settings_that_it_depends_on_need() -> None:
    """Otherwise it stands there as if it had an effect, among others of its card that are greyed."""
    for option in ALL:
        terms = list(filter(None, (option.depends_on or "").split(" & ")))
        for term in terms:
            needed = find_option(TrainConfig, term.partition("=")[0], option.variant)
            if needed is not None:  # not one that has to be off
                assert set(filter(None, (needed.depends_on or "").split(" & "))) <= set(terms), option.path


@pytest.mark.parametrize(
    ("path", "variant", "given", "active"),
    [
        ("ema_decay", None, {}, False),
        ("ema_decay", None, {"ema": True}, True),
        ("prefetch_factor", None, {"loader_workers": 0}, False),
        ("scheduler_power", None, {"scheduler": "polynomial"}, True),
        ("scheduler_power", None, {"scheduler": "cosine"}, False),
        ("lr_scaling", None, {"enable_multi_gpu": True}, True),
        ("lr_scaling", None, {"enable_multi_gpu": True, "global_batch_size": 8}, False),
        ("early_stopping_patience", None, {}, False),
        ("optimizer.momentum", "sgd", {"optimizer": "sgd"}, True),
        ("optimizer.momentum", "sgd", {}, False),
        ("learning_rate", None, {}, True),
    ],
)
def test_is_active(path: str, variant: str | None, given: dict[str, object], active: bool) -> None:
    option = find_option(TrainConfig, path, variant)
    assert option is not None
    assert is_active(option, dump(TrainConfig.model_validate(given))) is active


def test_choices_of_a_users_family_may_be_numbers() -> None:
    class Options(Section):
        size: Literal[1, 2] = setting(1, title="Size", help="1 is small, 2 is large.")

    assert options(Options)[0].choice_titles == ("1", "2")
