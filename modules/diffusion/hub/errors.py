"""Errors of huggingface_hub as sentences: what is wrong, and what to try."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from modules.config import ConfigError

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_WRONG_TOKEN = "Invalid credentials in Authorization header"
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_UNREACHABLE: Final[dict[type[BaseException], str]] = {  # what the library's own error came from
    socket.gaierror: "its address cannot be found",
    ConnectionRefusedError: "nothing answers there",
    ssl.SSLError: "no secure connection is possible",
    TimeoutError: "it does not answer",
    ConnectionError: "the connection was cut off",
}


def explain_error(error: Exception, label: str) -> ConfigError:
    """`label` is the model as people write it: owner/model or owner/model@revision."""
    name, _, revision = label.partition("@")
    page, has_token = f"{constants.ENDPOINT}/{name}", get_token() is not None
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, GatedRepoError):
        status = "your account has not accepted it" if has_token else "you are not logged in"
        advice = f"Accept it at {page}, then {_LOG_IN}, with the account that accepted it."
        return ConfigError(f"base_model: {label!r} requires accepting its licence, and {status}.", advice)
    if isinstance(error, RevisionNotFoundError):
        return ConfigError(
            f"base_model: {name!r} has no branch, tag or commit {revision!r}.",
            f"{page}/tree/main lists the existing ones; without @{revision} the main branch is used.",
        )
    if isinstance(error, RemoteEntryNotFoundError):
        file = str(error.response.url).partition("/resolve/")[2].partition("/")[2]
        return ConfigError(
            f"base_model: the hub lists {file} of {label!r}, but does not have it.",
            "The model may be changing right now: try again later, or give an earlier commit (owner/model@commit).",
        )
    if isinstance(error, RepositoryNotFoundError) or _is_hidden(error):
        viewer = "visible to your account" if has_token else "visible without logging in"
        advice = f"Check the spelling; for a private model, {_LOG_IN}, with an account that may read it."
        return ConfigError(f"base_model: there is no folder {label!r}, and no such model on the hub {viewer}.", advice)
    if isinstance(error, HfHubHTTPError):
        return _http_error(error, label)
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return disk_full(label)
    if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
        return ConfigError(
            f"base_model: {label!r} cannot be downloaded to {constants.HF_HUB_CACHE!r}: {error.strerror}.",
            "Set HF_HOME to a folder that you may write to.",
        )
    return ConfigError(
        f"base_model: {label!r} is no folder here, and could not be downloaded from the hub {constants.ENDPOINT}: "
        f"{cause_of(error)}.",
        "Check the connection (and HTTPS_PROXY, HF_ENDPOINT), or download it elsewhere and give the folder. A later "
        "try keeps the files that are complete.",
    )


def cause_of(error: Exception) -> str:
    """Why the hub cannot be reached; of another error the type and the first line."""
    for each in _chain(error):
        if words := next((words for kind, words in _UNREACHABLE.items() if isinstance(each, kind)), ""):
            return words
    cause = error.__cause__ or error  # huggingface_hub wraps it in "cannot find the files in the local cache"
    return f"{type(cause).__name__}: {_first_line(cause)}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def disk_full(label: str, needed: int | None = None, free: int | None = None) -> ConfigError:
    """`needed` and `free` in bytes, if known."""
    sizes = "" if needed is None or free is None else f" It needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free."
    return ConfigError(
        f"base_model: the disk of {constants.HF_HUB_CACHE!r} is too full to download {label!r}.{sizes}",
        "Free space there, or set HF_HOME to a folder on a larger disk. Completed files are kept.",
    )


def _is_hidden(error: Exception) -> bool:
    """Mirrors of the hub also answer 401, both for what does not exist and for what this user may not see."""
    if not isinstance(error, HfHubHTTPError) or error.response.status_code != 401:
        return False
    return error.response.headers.get("X-Error-Message") != _WRONG_TOKEN


def _http_error(error: HfHubHTTPError, label: str) -> ConfigError:
    status, reason = error.response.status_code, error.server_message or _first_line(error)
    if status == 401:
        return ConfigError(
            f"base_model: the hub does not accept your token for {label!r} ({reason}).",
            "Log in again with `hf auth login`, or correct or unset HF_TOKEN.",
        )
    if status == 403:
        return ConfigError(
            f"base_model: your token cannot read {label!r} ({reason}).",
            "Give the token the permission to read this model, in the hub's settings under Access Tokens.",
        )
    if status == 429:
        return ConfigError(
            f"base_model: the hub rejected the request for {label!r}: too many requests.",
            f"Wait a few minutes; {_LOG_IN} for a higher limit.",
        )
    return ConfigError(
        f"base_model: the hub failed to serve {label!r} ({status}: {reason}).",
        "Try again later: completed files are kept.",
    )


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "").strip()[:300]
