"""The folders of this user for settings, and for what can be made again, shared by the window and the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_config_folder() -> Path:
    """TANDEM_CONFIG_DIR, or "tandem" in the system's usual folder for settings; it need not exist."""
    override = os.environ.get("TANDEM_CONFIG_DIR")
    if override:
        return Path(override)
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home()) / "Tandem"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Tandem"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tandem"


def user_cache_folder() -> Path:
    """ "tandem" in the system's usual folder for caches; it need not exist."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "tandem"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tandem"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
