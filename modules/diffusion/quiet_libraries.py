"""diffusers and transformers without their progress bars and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Tandem reports what matters itself: also around an import of pipelines, which warns of optional packages."""
    from diffusers.utils import logging as diffusers_logging  # takes seconds to import, and not every rank needs it
    from transformers.utils import logging as transformers_logging

    libraries: list[Any] = [diffusers_logging, transformers_logging]
    levels = [library.get_verbosity() for library in libraries]
    for library in libraries:
        library.disable_progress_bar()
        library.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of diffusers' own use of what it will rename
            yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.set_verbosity(level)
