"""The tiny pipelines, written once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def sd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Stable Diffusion 1."""
    from tests.families.tiny_pipelines import tiny_sd  # only where it is wanted: diffusers takes seconds to import

    return tiny_sd(tmp_path_factory.mktemp("bases") / "sd")


@pytest.fixture(scope="session")
def sdxl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Stable Diffusion XL."""
    from tests.families.tiny_pipelines import tiny_sdxl

    return tiny_sdxl(tmp_path_factory.mktemp("bases") / "sdxl")


@pytest.fixture(scope="session")
def inpainting_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Stable Diffusion 1 that fills holes."""
    from tests.families.tiny_pipelines import tiny_sd

    return tiny_sd(tmp_path_factory.mktemp("bases") / "inpainting", channels=9)
