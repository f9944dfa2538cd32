"""Errors in code that is not Tandem's: the line of it that failed, or that ended the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType
from typing import Final, NoReturn

from modules.config.imported_code import LIBRARIES, OUR_FOLDERS

_MAX_MESSAGE_CHARS: Final = 500
_NOT_USERS: Final = ("<", *(f"{folder}{os.sep}" for folder in (*OUR_FOLDERS, *LIBRARIES)))


def describe_code_error(error: BaseException) -> str:
    """Such as "gnn.py, line 12, in __getitem__: KeyError: 'x'"; without a place if no line of the user's failed."""
    if isinstance(error, SystemExit):
        said = f": {error.code}" if isinstance(error.code, str) else f", with exit code {error.code or 0!r}"
        return f"{failed_line(error) or 'the code'}: {_shortened(f'it ended the program{said}')}"
    text = error.msg if isinstance(error, SyntaxError) else str(error)  # that of a SyntaxError ends with its line
    what = _shortened(f"{type(error).__name__}: {text}")
    return ": ".join(part for part in (failed_line(error), what) if part)


def _shortened(text: str) -> str:
    line = " ".join(text.split()).rstrip(" .:")
    return line if len(line) <= _MAX_MESSAGE_CHARS else line[: _MAX_MESSAGE_CHARS - 1] + "…"


def failed_line(error: BaseException) -> str:
    """Such as "gnn.py, line 12, in __getitem__": the innermost line that is neither Tandem's nor a library's; empty if
    there is none."""
    found, entry = "", error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if _is_users(code):
            place = f", in {code.co_name}" if not code.co_name.startswith("<") else ""
            found = f"{Path(code.co_filename).name}, line {entry.tb_lineno}{place}"
        entry = entry.tb_next
    if isinstance(error, SyntaxError) and error.lineno is not None and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    return found


def report_exits() -> None:
    """Have os._exit in a user's code raise SystemExit as sys.exit does, because the process would end without a word.

    In Tandem's code and in libraries, whose child processes end so, it ends the process as before.
    """
    os._exit = _exit_or_raise


def _exit_or_raise(status: int) -> NoReturn:
    if _is_users(sys._getframe(1).f_code):
        raise SystemExit(status)
    _end_process(status)


def _is_users(code: CodeType) -> bool:
    return not code.co_filename.startswith(_NOT_USERS)


_end_process = os._exit
