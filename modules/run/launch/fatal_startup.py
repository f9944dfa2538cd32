"""Startup errors that a restart would repeat, under a torchrun started by hand: reported once per machine.

torchrun restarts all processes after any non-zero exit code, and each would find the same invalid setting. So the
first one leaves a marker file for the others, in the folder that torchrun created for this launch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from modules.files import FileFault, read_text
from modules.run.exit_codes import BAD_CONFIG, NO_DATA

_FATAL: Final = frozenset({BAD_CONFIG, NO_DATA})


def is_fatal(exit_code: int) -> bool:
    """Whether the settings or the data were rejected, as they would be again after a restart."""
    return exit_code in _FATAL


def previous_fatal_exit_code() -> int | None:
    """The fatal exit code that another process of the same torchrun has reported; None if there is none."""
    marker = _marker_file()
    try:
        text = "" if marker is None else read_text(marker, 100)
    except (OSError, FileFault):
        return None
    return int(text) if text.isdecimal() else None


def report_fatal_startup(exit_code: int) -> bool:
    """Record the exit code if it is fatal; returns False if another process of this machine already did."""
    marker = _marker_file()
    if marker is None or not is_fatal(exit_code):
        return True
    own = marker.with_name(f"{marker.name}.{os.getpid()}")
    try:
        own.write_text(str(exit_code))
        os.link(own, marker)  # atomic, and succeeds only for the first
    except FileExistsError:
        return False
    except OSError:
        return True
    finally:
        own.unlink(missing_ok=True)
    return True


def _marker_file() -> Path | None:
    """Next to torchrun's folders attempt_N/LOCAL_RANK; None under another launcher."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    folders = Path(error_file).parents
    return folders[2] / "refused" if error_file and len(folders) > 2 else None
