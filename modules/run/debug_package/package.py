"""Writing a debug package as one zip file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

from modules.files import open_for_writing, replacing
from modules.run.debug_package.contents import Part


def write_package(parts: Sequence[Part], file: Path) -> int:
    """Write the parts as a zip, replacing `file` once it is complete; returns its bytes. Raises OSError."""
    with (
        replacing(file) as partial,
        os.fdopen(open_for_writing(partial), "w+b") as opened,
        zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED) as package,
    ):
        for part in parts:
            package.writestr(part.name, part.text.encode())
    return file.stat().st_size
