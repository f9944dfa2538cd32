"""Everything but the window and the programs."""

from pathlib import Path
from typing import Final

__version__ = "0.4.0"
ROOT: Final = Path(__file__).resolve().parent.parent  # the folder of pyproject.toml, presets/ and scripts/
