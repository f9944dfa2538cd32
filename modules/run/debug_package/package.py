"""Writing a debug package as one zip file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from modules.files import open_for_writing
from modules.run.debug_package.contents import Part


def write_package(parts: Sequence[Part], file: Path) -> int:
    """Write the parts as a zip, replacing `file` once it is complete; returns its bytes. Raises OSError."""
    partial = file.with_name(f".partial-{os.getpid()}-{file.name}")
    try:
        with (
            os.fdopen(open_for_writing(partial), "w+b") as opened,
            zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED) as package,
        ):
            for part in parts:
                package.writestr(part.name, part.text.encode())
        partial.replace(file)
    except OSError as error:
        error.filename = str(file)  # the one that was asked for
        raise
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return file.stat().st_size
