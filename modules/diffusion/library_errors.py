"""What diffusers, transformers and tokenizers raise for a model that they cannot use, as one sentence."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer

from modules.config import ConfigError, TandemError
from modules.diffusion.base_model_files import DAMAGED
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.files import FileFault

_RUN_OUT: Final = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO)
_TOKENIZER: Final = "tokenizer.json"


@contextmanager
def damage_refused(
    label: str, advice: str = DAMAGED, *, folder: Path | None = None, files: Sequence[str] = ("*.json",)
) -> Iterator[None]:
    """Inside, whatever a library raises is a ConfigError: `label`, and what the library says. Memory of a device that
    is used up, and what Tandem raises itself, stay as they are.

    Of a `folder` whose `files`, patterns of names, a library reads together, the ones that it may mean are named.
    """
    try:
        with quiet_libraries():
            yield
    except (TandemError, torch.OutOfMemoryError):
        raise
    except BaseException as error:
        if not _is_of_library(error):
            raise
        if isinstance(error, ImportError):
            advice = "Install that package in Tandem's environment."
        elif _is_of_machine(error):
            advice = "The model may be whole: memory, the disk or the files that a process may open have run out."
        named = "" if folder is None else f" ({_suspects(folder, files)})"
        raise ConfigError(f"{label}{named}: {first_line(error)}", advice) from error


def first_line(error: BaseException) -> str:
    """The class of an error of a library and the first line of its text, with the second if it announces one; of a
    fault of a file the text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:300]
    return text if isinstance(error, FileFault) else f"{type(error).__name__}: {text}"


def _is_of_library(error: BaseException) -> bool:
    """Unlike Ctrl-C; tokenizers raises plain Exceptions, and its panics are not even these."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _is_of_machine(error: BaseException) -> bool:
    """Whether it says that memory, the disk or files to be opened have run out, whatever the model is."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) in _RUN_OUT:
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in said or "can't allocate memory" in said)


def _suspects(folder: Path, patterns: Sequence[str]) -> str:
    """The tokenizer.json, if that alone is damaged, else all others."""
    found = sorted({file.name for pattern in patterns for file in folder.glob(pattern)})
    if _TOKENIZER in found:
        try:
            Tokenizer.from_file(str(folder / _TOKENIZER))
        except BaseException as error:
            if not _is_of_library(error):
                raise
            return _TOKENIZER
        found.remove(_TOKENIZER)
    return " or ".join(found) or "a file is missing"
