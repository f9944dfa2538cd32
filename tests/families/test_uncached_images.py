"""Stable Diffusion without a cache: the latents of each batch are those that the cache would have given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import draw_images
from tests.runs import tiny_config, train_alone


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = draw_images(tmp_path_factory.mktemp("images"), 4)
    for number in (0, 2):
        (folder / f"{number:02d}-masklabel.png").write_bytes((folder / f"{number:02d}.png").read_bytes())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "base", "options"),
    [
        ("stable_diffusion", "sd_folder", {"latents": "mode", "offload_frozen": True}),
        ("stable_diffusion", "inpainting_folder", {"latents": "sample"}),
        ("stable_diffusion_xl", "sdxl_folder", {"latents": "sample"}),
    ],
)
def test_losses_are_those_of_a_cached_run(
    family: str,
    base: str,
    options: dict[str, object],
    masked_images: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    settings: dict[str, object] = {
        "family": family, "base_model": str(request.getfixturevalue(base)), "family_options": options, "resolution": 64,
        "masked_training": True, "max_steps": 2, "batch_size": 2, "global_batch_size": 3,
        "learning_rate": 1e-4,
    }  # fmt: skip
    losses = []
    for cached in (True, False):
        config = tiny_config(masked_images, tmp_path, **settings, cache_latents=cached, run_name=f"cached-{cached}")
        code, run = train_alone(config)
        assert code == 0, run.failure(0)
        losses.append(run.losses)
        assert any((tmp_path / "cache").glob("rank-*")), "only the first run fills it"
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
