"""What `--dry_run` says of the data: the summary and the warnings of a run, without writing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import ConfigError
from modules.families.pixel_diffusion import PixelDiffusion
from modules.training.data.dry_run import data_lines
from tests.data.helpers import config_for, write_image


def test_a_dry_run_says_what_a_run_would_and_writes_nothing(tmp_path: Path) -> None:
    write_image(tmp_path / "set/a.png")
    (tmp_path / "set/a.caption").write_text("a cat")
    config = config_for(tmp_path / "set", cache=tmp_path / "cache", validation_split=0.01)
    lines, warnings = data_lines(config, PixelDiffusion)
    assert lines == [
        f"{tmp_path / 'set'}: 1 image",
        "  captions: 1 from NAME.caption, such as 'a cat' (a.png)",
    ]
    (warning,) = warnings
    assert warning.startswith("validation_split 0.01 holds out none of 1 images")
    with pytest.raises(ConfigError, match="none of the 1 images has a mask"):
        data_lines(config.model_copy(update={"masked_training": True}), PixelDiffusion)
    assert not (tmp_path / "cache").exists()
