"""torchrun's folder for the errors of its processes, in the temporary folder: removed when torchrun has ended.

torchrun makes one at each start, torchelastic_*, and leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from modules.files import remove_tree

_VARIABLE: Final = "PET_LOG_DIR"  # torchrun's own, for --log_dir
_PREFIX: Final = "torchelastic_tandem_"


@contextmanager
def torchrun_folder(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Name the folder in `environment`, and remove it at the end; one that the user has named is kept.

    The supervisor uses it, because torchrun may be killed, and so does scripts/torchrun.py, because the supervisor may.
    """
    folder = environment.get(_VARIABLE) or mkdtemp(prefix=_PREFIX)
    environment[_VARIABLE] = folder
    try:
        yield
    finally:
        if Path(folder).name.startswith(_PREFIX):
            with suppress(OSError):
                remove_tree(Path(folder))
