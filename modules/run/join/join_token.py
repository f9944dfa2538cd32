"""Where the join token comes from: the environment, a file or a prompt; never the command line, which `ps` shows."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
from collections.abc import Callable, MutableMapping
from getpass import getpass
from pathlib import Path
from typing import Final

from modules.config import ConfigError
from modules.files import FileFault, printable, read_text

JOIN_TOKEN: Final = "TANDEM_JOIN_TOKEN"  # the name of a variable
_IN_JOIN_LINE: Final = re.compile(rf"\s*{JOIN_TOKEN}=['\"]?([^\s'\"]+)")
_MIN_CHARS: Final = 32  # 128 bits in hexadecimal
_LARGEST_FILE: Final = 4096  # bytes
_ADVICE: Final = (
    "Use letters and digits such as those of: openssl rand -hex 16. Omit it on machine 0 and Tandem generates one"
)
_IN_ARGV: Final = (
    f"Warning: every user of this machine can read --token (with ps); set {JOIN_TOKEN} instead, or use --token_file. "
    "The next version refuses --token."
)

Echo = Callable[[str], None]


def generate_token() -> str:
    """A new token of 128 bits."""
    return secrets.token_hex(16)


class NextToken:
    """The token of the next run that a window starts: shown with its launch commands, then taken by one run."""

    def __init__(self) -> None:
        self._token = generate_token()

    def show(self) -> str:
        """The token, before the run starts."""
        return self._token

    def take(self) -> str:
        """The token, for a run that starts now; the next run has another."""
        taken, self._token = self._token, generate_token()
        return taken


def take_token(environment: MutableMapping[str, str]) -> str | None:
    """The token in the environment, removed from there so that no process started later has it."""
    return environment.pop(JOIN_TOKEN, None) or None


def find_token(in_argv: str | None, file: str | None, in_environment: str | None, warn: Echo) -> str | None:
    """The token that was given, None without one. Raises ConfigError if its file cannot be read."""
    if in_argv is not None:
        warn(_IN_ARGV)
        return in_argv
    return in_environment if file is None else _read_token_file(file, warn)


def ask_for_token() -> str | None:
    """The token typed at a prompt that does not show it, alone or as machine 0's line; None without a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return _without_join_line(getpass("The token of the run (in the line that machine 0 shows): ")) or None


def check_token(token: str, advice: str = _ADVICE) -> None:
    """Raise ConfigError, which does not repeat the token, for one that can be guessed or needs quotes in a shell."""
    wanted = f"it is at least {_MIN_CHARS} letters and digits"
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"the token contains characters other than plain letters and digits; {wanted}", advice)
    if len(token) < _MIN_CHARS:
        raise ConfigError(f"the token has {len(token)} characters; {wanted}", advice)


def with_token(command: str, token: str) -> str:
    """A command for another machine, as it is pasted there.

    The token is in the environment, which other users cannot see; most shells keep a line that begins with a space
    out of their history.
    """
    return f" {JOIN_TOKEN}={shlex.quote(token)} {command}"


def _without_join_line(text: str) -> str:
    """The token in a join line that begins with it; another text without the blanks around it."""
    found = _IN_JOIN_LINE.match(text)
    return text.strip() if found is None else found[1]


def _read_token_file(file: str, warn: Echo) -> str:
    try:
        text = _line_of_stdin() if file == "-" else read_text(Path(file), _LARGEST_FILE)
        is_shared = file != "-" and os.name == "posix" and bool(os.stat(file).st_mode & 0o044)
    except (OSError, FileFault) as error:
        reason = str(error) if isinstance(error, FileFault) else f"cannot be read: {error.strerror}"
        raise ConfigError(
            f"--token_file {printable(file)} {reason}", "Write the token alone into it; - means standard input"
        ) from None
    if is_shared:
        shown = printable(file)
        warn(f"Warning: other users of this machine can read {shown}; make it yours alone: chmod 600 {shown}")
    return _without_join_line(text)


def _line_of_stdin() -> str:
    """The first line, and no byte more: what follows may be for another reader of the descriptor."""
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # of a program that has replaced it
        return sys.stdin.readline(_LARGEST_FILE)
    line = b""
    while len(line) < _LARGEST_FILE and (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode(errors="replace")
