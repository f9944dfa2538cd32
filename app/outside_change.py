"""What other programs make of the file that is being edited."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from modules.config import ConfigError
from modules.config.io.files import read_text


@dataclass(frozen=True)
class OutsideChange:
    """The text of a file that another program has changed; `fault` is why it holds no settings, or cannot be read."""

    text: str = ""
    fault: str = ""


def text_of(file: Path) -> str:
    """The content of a config file; empty if it cannot be read."""
    try:
        return read_text(file)
    except ConfigError:
        return ""


def change_since(file: Path, text: str) -> OutsideChange | None:
    """What has been made of a file since it held `text`.

    None if nothing, or if the file is gone: saving writes it again.
    """
    try:
        now = read_text(file)
    except ConfigError as error:
        return OutsideChange(fault=error.message) if os.path.exists(file) else None
    fault = "" if now.strip() else f"{file} is empty now."
    return None if now == text else OutsideChange(now, fault)
