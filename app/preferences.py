"""What the window remembers from one day to the next: a small JSON file in the user's config folder."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Self

from app.look import SCALES

RECENT_FILES = 10


@dataclass
class Preferences:
    """Each value is checked when read, so that a damaged or foreign file costs nothing but the habit."""

    mode: str = "system"
    scale: int = 100
    advanced: bool = False
    geometry: str = ""
    maximised: bool = False
    section: str = "model"
    recent: list[str] = field(default_factory=list)
    last_run: str = ""
    welcomed: bool = False

    @classmethod
    def load(cls, file: Path | None = None) -> Self:
        """From the file; what is missing, damaged or of another type takes its default."""
        try:
            data = json.loads((file or preferences_file()).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            data = {}
        found = cls()
        for one in fields(cls):
            value = data.get(one.name) if isinstance(data, dict) else None
            if type(value) is type(getattr(found, one.name)):
                setattr(found, one.name, value)
        found.mode = found.mode if found.mode in ("system", "light", "dark") else "system"
        found.scale = found.scale if found.scale in SCALES else 100
        found.recent = [name for name in found.recent if isinstance(name, str)][:RECENT_FILES]
        return found

    def save(self, file: Path | None = None) -> None:
        """Write it; a folder that cannot be written is no reason to trouble anybody."""
        target = file or preferences_file()
        partial = target.with_name(f".partial-{os.getpid()}-{target.name}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False), encoding="utf-8")
            os.replace(partial, target)
        except (OSError, ValueError):
            return

    def remember(self, file: Path) -> None:
        """Put a config file at the head of the recent ones."""
        name = str(file.absolute())
        self.recent = [name, *(other for other in self.recent if other != name)][:RECENT_FILES]


def preferences_file() -> Path:
    """TANDEM_CONFIG_DIR, or the place that the system keeps for such files."""
    named = os.environ.get("TANDEM_CONFIG_DIR")
    if named:
        return Path(named) / "window.json"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home()) / "Tandem" / "window.json"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Tandem" / "window.json"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tandem" / "window.json"
