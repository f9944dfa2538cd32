"""What `--dry_run` says of the data: the summary and the warnings of a run, without writing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import ConfigError
from modules.families.pixel_diffusion import PixelDiffusion
from modules.run.suggestions import BatchMemory
from modules.training.data.dry_run import data_lines
from tests.data.helpers import config_for, write_image


def test_a_dry_run_says_what_a_run_would_and_writes_nothing(tmp_path: Path) -> None:
    write_image(tmp_path / "set/a.png")
    (tmp_path / "set/a.caption").write_text("a cat")
    config = config_for(tmp_path / "set", cache=tmp_path / "cache", validation_split=0.01)
    memory = BatchMemory(3 * 2**30, 2**30, 2**30, 64)  # of 64 pixels, four times as much as of 32
    lines, warnings = data_lines(config, PixelDiffusion, 1, memory)
    assert lines == [
        f"{tmp_path / 'set'}: 1 image",
        "  captions: 1 from NAME.caption, such as 'a cat' (a.png)",
        "These are at their defaults; rules of thumb suggest for the data:",
        "  global_batch_size=1: 32 are usual for training from scratch, but more than an epoch has.",
        "  epochs=2000: About 2000 steps of 1; at least 2000 are usual for training from scratch.",
        "  learning_rate=0.001: Usual for training from scratch with AdamW.",
    ]
    (warning,) = warnings
    assert warning.startswith("validation_split 0.01 holds out none of 1 images")
    with pytest.raises(ConfigError, match="none of the 1 images has a mask"):
        data_lines(config.model_copy(update={"masked_training": True}), PixelDiffusion)
    assert not (tmp_path / "cache").exists()
