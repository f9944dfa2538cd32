"""The secret of a run, with which its ranks authenticate what they tell each other through the store.

Whoever starts the run makes it. It goes to the ranks in an environment variable, which only the same user can read,
and never into an argument, a log or an event.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Final

from modules.config import ConfigError
from modules.run.join.keys import STORE_SECRET

SECRET_ADVICE: Final = (
    f"Start all processes with the same {STORE_SECRET}, such as the output of `openssl rand -hex 16`, or all without"
)
NO_SECRET: Final = (
    f"Note: {STORE_SECRET} is not set, so whoever reaches the master port can change what the processes tell each "
    "other. Set it to the same output of `openssl rand -hex 16` for all of them."
)
_MIN_CHARS: Final = 32  # 128 bits in hexadecimal
_MAX_CHARS: Final = 1024


def new_secret() -> str:
    """128 random bits."""
    return secrets.token_hex(16)


def store_secret(environ: Mapping[str, str] = os.environ) -> str | None:
    """The secret in the environment; None without one. Raises ConfigError if it can be guessed."""
    secret = environ.get(STORE_SECRET, "")
    if not secret:
        return None
    if not _MIN_CHARS <= len(secret) <= _MAX_CHARS or not secret.isprintable():  # its text must not be in the message
        raise ConfigError(
            f"the environment variable {STORE_SECRET} has {len(secret)} characters; it must have {_MIN_CHARS} to "
            f"{_MAX_CHARS}, all printable",
            SECRET_ADVICE,
        )
    return secret
