"""What the hub's library raises, as a sentence: what is wrong, and what to try."""

from __future__ import annotations

import errno

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
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def fault_of(error: Exception, called: str) -> ConfigError:
    """`called` is the model as people write it, owner/model or owner/model@revision."""
    name, _, revision = called.partition("@")
    page, has_token = f"{constants.ENDPOINT}/{name}", get_token() is not None
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, GatedRepoError):
        told = "and the account of your token has not" if has_token else "and you are not logged in"
        advice = f"Accept it at {page}, then {_LOG_IN}, with the account that accepted it."
        return ConfigError(f"base_model: {called!r} asks for its licence to be accepted, {told}.", advice)
    if isinstance(error, RevisionNotFoundError):
        return ConfigError(
            f"base_model: {name!r} has no branch, tag or commit {revision!r}.",
            f"{page}/tree/main lists those it has; without @{revision} the main branch is taken.",
        )
    if isinstance(error, RemoteEntryNotFoundError):
        file = str(error.response.url).partition("/resolve/")[2].partition("/")[2]
        return ConfigError(
            f"base_model: the hub lists {file} of {called!r}, but does not have it.",
            "The model may just be changing: start again in a while, or give an earlier commit (owner/model@commit).",
        )
    if isinstance(error, RepositoryNotFoundError) or _may_not_be_known(error):
        told = "for the account of your token" if has_token else "as you are not logged in"
        advice = f"Check the spelling; to a private model, {_LOG_IN}, with an account that may read it."
        return ConfigError(f"base_model: there is no folder {called!r}, and no such model on the hub {told}.", advice)
    if isinstance(error, HfHubHTTPError):
        return _refused(error, called)
    if isinstance(error, OSError) and error.errno in _FULL:
        return disk_full(called)
    if isinstance(error, OSError) and error.errno in _NOT_OURS:
        return ConfigError(
            f"base_model: {called!r} cannot be downloaded to {constants.HF_HUB_CACHE!r}: {error.strerror}.",
            "Set HF_HOME to a folder that you may write to.",
        )
    return ConfigError(
        f"base_model: there is no folder {called!r}, and as a model of the hub it could not be downloaded from "
        f"{constants.ENDPOINT} ({cause_of(error)}).",
        "Check the connection (and HTTPS_PROXY, HF_ENDPOINT), or download it elsewhere and give the folder. Files that "
        "are complete are kept.",
    )


def cause_of(error: Exception) -> str:
    """In a few words."""
    cause = error.__cause__ or error  # "cannot find the files in the local cache" is not what is wrong
    return f"{type(cause).__name__}: {_first_line(cause)}"


def disk_full(called: str, needs: int | None = None, free: int | None = None) -> ConfigError:
    """Sizes in bytes, where they are known."""
    figures = (
        "" if needs is None or free is None else f" {needs / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free."
    )
    return ConfigError(
        f"base_model: the disk of {constants.HF_HUB_CACHE!r} is too full to download {called!r}.{figures}",
        "Free space there, or set HF_HOME to a folder on a larger disk. Files that are complete are kept.",
    )


def _may_not_be_known(error: Exception) -> bool:
    """Mirrors of the hub, too, answer 401 for what does not exist and for what this person may not know of."""
    if not isinstance(error, HfHubHTTPError) or error.response.status_code != 401:
        return False
    return error.response.headers.get("X-Error-Message") != _WRONG_TOKEN


def _refused(error: HfHubHTTPError, called: str) -> ConfigError:
    status, said = error.response.status_code, error.response.headers.get("X-Error-Message") or _first_line(error)
    if status == 401:
        return ConfigError(
            f"base_model: the hub does not accept your token, asked for {called!r} ({said}).",
            "Log in again with `hf auth login`, or correct or unset HF_TOKEN.",
        )
    if status == 403:
        return ConfigError(
            f"base_model: the hub lets your token not read {called!r} ({said}).",
            "Give the token the right to read this model, in the hub's settings under Access Tokens.",
        )
    if status == 429:
        return ConfigError(
            f"base_model: the hub answers no more requests for {called!r} at present: there were too many.",
            f"Wait a few minutes; {_LOG_IN} for a higher limit.",
        )
    return ConfigError(
        f"base_model: the hub could not answer for {called!r} ({status}: {said}).",
        "Start again in a while: files that are complete are kept.",
    )


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "").strip()[:300]
