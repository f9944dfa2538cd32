"""What can be checked of a config before anything is started, without reading an image or a weight."""

from __future__ import annotations

import os
from collections.abc import Callable

from modules.config import ConfigError, TandemError, TrainConfig
from modules.data.archives.cifar import is_archive
from modules.data.index.build import check_concepts
from modules.data.index.scan import missing
from modules.families._by_name import family_class
from modules.files import is_shard
from modules.files.addresses import is_address
from modules.training.memory.model_setup import check_available
from modules.training.methods.lora import check_lora_targets
from modules.training.methods.lora_files import expected_file_limits
from modules.training.state.sample_requests import sample_requests


def check_startable(config: TrainConfig, *, has_data: bool = True) -> list[str]:
    """Notes on the base model, and on what other programs will not take from a LoRA. Raises the first of
    `startup_problems`."""
    if problems := startup_problems(config, has_data=has_data):
        raise problems[0]
    family = family_class(config.family)
    return [*family.base_model_notes(config), *expected_file_limits(family, config)]


def startup_problems(config: TrainConfig, *, has_data: bool = True) -> list[TandemError]:
    """Why this config cannot be trained: its family, method, base model and samples, then its images.

    The hub is not contacted, and no run folder is needed. Unless it `has_data`, the images are still to come.
    """
    found = _raised(lambda: check_available(config))
    try:
        family = family_class(config.family)
    except ConfigError:
        return [*found, *(_data_problems(config) if has_data else [])]  # the family is among `found`
    found += (
        _raised(lambda: family.hub_model(config))
        or _raised(lambda: family.base_model_notes(config))
        or _raised(lambda: family.check_small_parts(config))
        or _raised(lambda: check_lora_targets(family, config))
    )
    if config.resolution % family.size_step == 0:  # samples may inherit it
        found += _raised(lambda: sample_requests(config, family.size_step))
    return found if family.brings_data or not has_data else [*found, *_data_problems(config)]


def _data_problems(config: TrainConfig) -> list[TandemError]:
    absent = {
        concept.path: missing(concept) for concept in config.concepts if concept.enabled and not _is_there(concept.path)
    }
    return [*_raised(lambda: check_concepts(config)), *absent.values()]


def _is_there(path: str) -> bool:
    if is_address(path) or os.path.isdir(path) or is_archive(path):
        return True
    return is_shard(path) and os.path.isfile(path)


def _raised(check: Callable[[], object]) -> list[TandemError]:
    try:
        check()
    except TandemError as error:
        return [error]
    return []
