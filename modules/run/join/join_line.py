"""The join line that machine 0 prints: parsed (its address, the token, local settings), and as a file."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from modules import __version__
from modules.config import ConfigError, TrainConfig
from modules.files import read_text
from modules.run.folder.run_folder import RunFolder
from modules.run.format_duration import in_words
from modules.run.join.channel import Channel, ChannelClosed, OtherVersion, WrongToken, authenticate_to_server
from modules.run.join.join_token import JOIN_TOKEN, check_token

DEFAULT_PORT: Final = int(TrainConfig.model_fields["initial_port"].default) + 1
_LAST_PORT: Final = 65_535
_ADDRESS: Final = re.compile(
    r"(?P<bare6>[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F.:]*)"
    r"|\[(?P<host6>[^\]\s]+)\](:(?P<port6>\d+))?"
    r"|(?P<host>[^:\[\]\s]+)(:(?P<port>\d+))?"
)
SAME_VERSION: Final = "Install the same version on both machines (git pull, then ./scripts/setup.sh)"
_RETRY_FOR_S: Final = 20.0
_CONNECT_TIMEOUT_S: Final = 10.0
_NOTICE_AFTER_S: Final = 2.0


@dataclass(frozen=True)
class JoinLine:
    """The address of machine 0, the token, and this machine's local settings.

    `config` is set if this machine was started with a config and number of its own, which must match machine 0's.
    """

    host: str
    port: int
    token: str
    settings: tuple[str, ...] = ()
    config: TrainConfig | None = None
    allow_differences: bool = False
    trust_code: bool = False  # allow the Python files that the config names
    allow: tuple[str, ...] = ()  # folders and files that machine 0's config may name
    retry_for_s: float = _RETRY_FOR_S

    @classmethod
    def parse(cls, address: str, token: str | None, **more: object) -> JoinLine:
        """Parse HOST[:PORT] and the token. Raises ConfigError."""
        host, port = parse_address(address)
        if token is None:
            raise ConfigError(
                f"--join needs the token of the run, in {JOIN_TOKEN} or --token_file",
                "Copy the whole line that machine 0 shows",
            )
        check_token(token, "Copy the whole line from machine 0")
        return cls(host, port, token, **more)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of HOST[:PORT]. Raises ConfigError."""
    match = _ADDRESS.fullmatch(address)
    port = int(match["port"] or match["port6"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port <= _LAST_PORT:
        raise ConfigError(f"--join is {address!r}; it must be HOST or HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}")
    return match["bare6"] or match["host6"] or match["host"], port


def join_line_from_config(config: TrainConfig, token: str | None) -> JoinLine:
    """The join line of a machine started with a config and node_rank. Raises ConfigError without a token."""
    if token is None:
        raise ConfigError(
            f"node_rank is {config.node_rank}, but the token is missing, with which machines identify each other",
            f"Run the line that machine 0 shows, which needs no config; or set the same {JOIN_TOKEN} on every machine, "
            "or --token_file; or use the commands that --dry_run prints",
        )
    check_token(token)
    retry_for_s = float(config.startup_timeout_s)  # machine 0 may be started later
    return JoinLine(config.master_addr, config.initial_port + 1, token, config=config, retry_for_s=retry_for_s)


def write_join_line(folder: RunFolder, line: str) -> None:
    """Write log/join_line.txt, which only this user can read, for the window; never raises OSError."""
    with suppress(OSError):
        folder.join_line_file.unlink(missing_ok=True)
        descriptor = os.open(folder.join_line_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{line}\n")


def read_join_line(folder: RunFolder) -> str:
    """The join line of a run on several machines, until it ends; "" if there is none."""
    try:
        return read_text(folder.join_line_file, 64 << 10).rstrip()
    except (OSError, ValueError):
        return ""


def remove_join_line(folder: RunFolder) -> None:
    """Delete log/join_line.txt of a run that has ended."""
    with suppress(OSError):
        folder.join_line_file.unlink(missing_ok=True)


def connect(join_line: JoinLine, echo: Callable[[str], None]) -> Channel:
    """The channel to machine 0. Raises ConfigError if there is no answer or the token is wrong."""
    notice = threading.Timer(_NOTICE_AFTER_S, echo, [f"No answer yet; retrying for {in_words(join_line.retry_for_s)}."])
    notice.daemon = True
    notice.start()
    try:
        return _connect_with_retries(join_line)
    finally:
        notice.cancel()


def _connect_with_retries(join_line: JoinLine) -> Channel:
    deadline = time.monotonic() + join_line.retry_for_s
    while True:
        try:
            return _connect_once(join_line)
        except WrongToken:
            raise ConfigError(
                f"the token is not that of the run at {join_line}",
                "Copy the line that machine 0 shows now: each start has a token of its own, so the line of an earlier "
                "start joins no later one",
            ) from None
        except OtherVersion:
            raise ConfigError(
                f"machine 0 at {join_line} has another version of Tandem than this machine ({__version__}), so this "
                "one cannot join",
                SAME_VERSION,
            ) from None
        except socket.gaierror as error:
            raise ConfigError(f"--join: the name {join_line.host!r} cannot be resolved: {error.strerror}") from error
        except UnicodeError as error:  # e.g. two dots in a row
            raise ConfigError(f"--join: {join_line.host!r} is neither a host name nor an IP address") from error
        except (ChannelClosed, OSError) as error:  # a timeout is an OSError; machine 0 may be about to start
            if time.monotonic() > deadline:
                reason = getattr(error, "strerror", None) or str(error) or "no answer"
                raise ConfigError(
                    f"no run waits for machines at {join_line}: {reason}",
                    "Check that machine 0 is still waiting, that its address and port are right and that no firewall "
                    "blocks the port",
                ) from error
            time.sleep(0.5)


def _connect_once(join_line: JoinLine) -> Channel:
    connection = socket.create_connection((join_line.host, join_line.port), timeout=_CONNECT_TIMEOUT_S)
    try:
        return authenticate_to_server(connection, join_line.token, _CONNECT_TIMEOUT_S)
    except BaseException:
        connection.close()
        raise
