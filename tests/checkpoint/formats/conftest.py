"""Tiny pipelines on disk, built once a session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def sd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Stable Diffusion 1."""
    from tests.families.tiny_pipelines import tiny_sd  # only where it is wanted: diffusers takes seconds to import

    return tiny_sd(tmp_path_factory.mktemp("bases") / "sd")


@pytest.fixture(scope="session")
def sd2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Stable Diffusion 2 that predicts velocity."""
    from tests.families.tiny_pipelines import tiny_sd

    return tiny_sd(tmp_path_factory.mktemp("bases") / "sd2", version=2, prediction_type="v_prediction")


@pytest.fixture(scope="session")
def small_sdxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny SDXL whose UNet has fewer blocks than the real one."""
    from tests.families.tiny_pipelines import tiny_sdxl

    return tiny_sdxl(tmp_path_factory.mktemp("bases") / "small_sdxl")


@pytest.fixture(scope="session")
def sdxl(tmp_path_factory: pytest.TempPathFactory, small_sdxl: Path) -> Path:
    """The folder of a tiny SDXL with all the blocks of the real one."""
    from tests.checkpoint.formats.real_blocks import with_the_real_blocks

    return with_the_real_blocks(shutil.copytree(small_sdxl, tmp_path_factory.mktemp("bases") / "sdxl"))


@pytest.fixture(scope="session")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny pipeline of a flow-matching family, made when it is first asked for."""
    from modules.diffusion.quiet_libraries import quiet_libraries
    from tests.families.tiny_flow_pipelines import TINY

    place = tmp_path_factory.mktemp("flow")

    def folder(family: str) -> Path:
        if not (place / family).exists():
            with quiet_libraries():
                TINY[family](place / family)
        return place / family

    return folder
