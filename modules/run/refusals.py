"""Starts that another one would repeat in vain, under torchrun of one's own: said once a machine, and not begun again.

torchrun starts all processes again after any exit code but 0, and each of them finds the same wrong setting. So the
first leaves a word for the others, in the folder that torchrun made for this start of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from modules.run.exit_codes import BAD_CONFIG, NO_DATA

_FINAL: Final = frozenset({BAD_CONFIG, NO_DATA})


def is_final(exit_code: int) -> bool:
    """Whether the settings or the pictures were refused, which another start would find alike."""
    return exit_code in _FINAL


def refused_before() -> int | None:
    """The exit code with which a process of the same torchrun was refused for good; None where none was."""
    word = _word()
    try:
        text = "" if word is None else word.read_text()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def refuse(exit_code: int) -> bool:
    """Leave the word, if it is final; False where another process of this machine has said the same before."""
    word = _word()
    if word is None or not is_final(exit_code):
        return True
    own = word.with_name(f"{word.name}.{os.getpid()}")
    try:
        own.write_text(str(exit_code))
        os.link(own, word)  # whole at once, and only for the first
    except FileExistsError:
        return False
    except OSError:
        return True
    finally:
        own.unlink(missing_ok=True)
    return True


def _word() -> Path | None:
    """Beside torchrun's folders attempt_N/LOCAL_RANK; None under another launcher."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    folders = Path(error_file).parents
    return folders[2] / "refused" if error_file and len(folders) > 2 else None
