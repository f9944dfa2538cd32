"""The images of the demo presets, which are drawn where one is opened or started for the first time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from modules import ROOT
from modules.config import ConfigError, TrainConfig
from modules.config.io.presets import PRESETS
from modules.run.console import echo

DRAWN: Final = {  # preset -> its folder below the current one, and the program in scripts/ that fills it
    "demo": ("data/demo", "make_demo_data.py"),
    "classifier_demo": ("data/classes", "make_class_data.py"),
}


def is_demo(preset: str) -> bool:
    """Whether the images of this preset can be drawn."""
    return preset in DRAWN


def lacks_images(preset: str) -> bool:
    """Whether this is a demo preset, and its folder is not there or empty."""
    return is_demo(preset) and not next(Path(DRAWN[preset][0]).glob("*"), None)


def draw_images(preset: str) -> str:
    """Draw the images of a demo preset; what was drawn. Raises ConfigError where they cannot be written."""
    command = [sys.executable, str(ROOT / "scripts" / DRAWN[preset][1])]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(
            lines[-1] if lines else f"The images of {preset} cannot be drawn.",
            "They are drawn below the current folder: start in one where you may write",
        )
    return done.stdout.strip()


def demo_of(source: str | None, config: TrainConfig) -> str | None:
    """The demo preset that `source` is, by name or file, if the config has the preset's own concepts."""
    if source is None:
        return None
    preset = Path(source).stem if Path(source).resolve().parent == PRESETS else source
    if not is_demo(preset) or not any(Path(each.path).is_relative_to(DRAWN[preset][0]) for each in config.concepts):
        return None
    return preset


def draw_missing_images(source: str | None, config: TrainConfig) -> None:
    """For a command line: draw them if the config is a demo preset with its own concepts."""
    preset = demo_of(source, config)
    if preset is not None and lacks_images(preset):
        echo(f"Drawn: {draw_images(preset)}")
