"""The line that machine 0 shows, as the joining machine understands it: an address, a token, its own settings."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from modules.config import ConfigError, TrainConfig
from modules.run.join.line import Line, LineClosed, WrongToken, greet_host
from modules.run.join.rules import check_token

DEFAULT_PORT: Final = int(TrainConfig.model_fields["initial_port"].default) + 1
_LAST_PORT: Final = 65_535
_ADDRESS: Final = re.compile(
    r"(?P<bare6>[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F.:]*)"
    r"|\[(?P<host6>[^\]\s]+)\](:(?P<port6>\d+))?"
    r"|(?P<host>[^:\[\]\s]+)(:(?P<port>\d+))?"
)
_PATIENCE_S: Final = 20.0
_GREETING_S: Final = 10.0
_SILENT_S: Final = 2.0


@dataclass(frozen=True)
class Invitation:
    """What the copied line says: where machine 0 is, the token, and what is this machine's own affair.

    `config` is given where this machine has a config and a number of its own, which then must agree with machine 0's.
    """

    host: str
    port: int
    token: str
    settings: tuple[str, ...] = ()
    config: TrainConfig | None = None
    allow_differences: bool = False
    patience_s: float = _PATIENCE_S

    @classmethod
    def of(cls, address: str, token: str | None, **more: object) -> Invitation:
        """From HOST[:PORT] and the token. Raises ConfigError."""
        match = _ADDRESS.fullmatch(address)
        port = int(match["port"] or match["port6"] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port <= _LAST_PORT:
            raise ConfigError(f"--join is {address!r}; it must be HOST or HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}")
        if token is None:
            raise ConfigError("--join needs --token", "Copy the whole line that machine 0 shows")
        check_token(token, "Copy the whole line from machine 0")
        return cls(match["bare6"] or match["host6"] or match["host"], port, token, **more)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def invitation_by_number(config: TrainConfig, token: str | None) -> Invitation:
    """That of a machine that was started with a config and a number of its own. Raises ConfigError without a token."""
    if token is None:
        raise ConfigError(
            f"node_rank is {config.node_rank}, but --token is missing, by which the machines of a run know each other",
            "Start the line that machine 0 shows, which needs no config; or give the same --token on every machine; "
            "or use the commands that --dry_run shows",
        )
    patience_s = float(config.startup_timeout_s)  # machine 0 may be started later
    return Invitation(config.master_addr, config.initial_port + 1, token, config=config, patience_s=patience_s)


def knock(invitation: Invitation, say: Callable[[str], None]) -> Line:
    """The line to machine 0. Raises ConfigError where nobody answers, or the token is wrong."""
    words = f"Nobody answers there yet; trying for {invitation.patience_s:.0f} s."
    waiting = threading.Timer(_SILENT_S, say, [words])
    waiting.daemon = True
    waiting.start()
    try:
        return _answered(invitation)
    finally:
        waiting.cancel()


def _answered(invitation: Invitation) -> Line:
    deadline = time.monotonic() + invitation.patience_s
    while True:
        try:
            return _connected(invitation)
        except WrongToken:
            raise ConfigError(
                f"the token is not that of the run at {invitation}",
                "Copy the whole line from machine 0 again; a new start has a new token",
            ) from None
        except socket.gaierror as error:
            raise ConfigError(f"--join: the name {invitation.host!r} is not known here: {error.strerror}") from error
        except UnicodeError as error:  # such as two dots in a row
            raise ConfigError(f"--join: {invitation.host!r} is neither a host name nor an IP address") from error
        except (LineClosed, OSError) as error:  # a time-out is an OSError; machine 0 may be about to start
            if time.monotonic() > deadline:
                reason = str(error) or "no answer"
                raise ConfigError(
                    f"no run waits for machines at {invitation}: {reason}",
                    "Check that machine 0 still waits, and that its address and port are right and no firewall "
                    "closes the port",
                ) from error
            time.sleep(0.5)


def _connected(invitation: Invitation) -> Line:
    connection = socket.create_connection((invitation.host, invitation.port), timeout=_GREETING_S)
    try:
        return greet_host(connection, invitation.token, _GREETING_S)
    except BaseException:
        connection.close()
        raise
