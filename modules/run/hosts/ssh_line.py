"""A line for a terminal that connects to a machine, as those who rent machines out show it."""

from __future__ import annotations

import os
import shlex
from getopt import GetoptError, getopt
from typing import Final

from modules.config import ConfigError

# Of ssh's command line: all letters, those that lead elsewhere or by another way, and what fields have. Other options
# are about the terminal, or forward ports.
_SSH_OPTIONS: Final = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"
_NOT_KEPT: Final = ("-B", "-b", "-c", "-F", "-I", "-J", "-m", "-O", "-P", "-Q", "-W")
_FIELDS_OF_SSH: Final = {
    "-p": "port", "port": "port", "-i": "key", "identityfile": "key", "-l": "user", "user": "user",
}  # fmt: skip
_SET_BY_TANDEM: Final = (  # or of no use to it
    "batchmode", "connecttimeout", "identitiesonly", "loglevel", "serveralivecountmax", "serveraliveinterval",
    "stricthostkeychecking", "userknownhostsfile",
)  # fmt: skip


def fields_of_ssh_line(line: str) -> dict[str, str]:
    """The fields that a line such as "ssh -p 40022 root@203.0.113.7 -i ~/.ssh/rented" has, as those who rent machines
    out show it; none of an address alone. Raises ConfigError for what must not be left out and has no field."""
    try:  # on Windows a backslash is a part of a path
        words = shlex.split(line.replace("\\", "/") if os.name == "nt" else line)
        if words[:1] != ["ssh"]:
            if not words or not words[0].lower().startswith("ssh://"):
                return {}
            words = ["ssh", *words]
        options, rest = getopt(words[1:], _SSH_OPTIONS)
        more, _command = getopt(rest[1:], _SSH_OPTIONS)  # they may stand behind the address, too
    except (ValueError, GetoptError) as error:
        raise ConfigError(f"host: target is {line!r}, which ssh would not take: {error}; correct it") from None
    user, address, port = _parts_of(rest[0] if rest else "")
    found: dict[str, str] = {}
    for letter, value in (*options, *([("-l", user)] if user else ()), *([("-p", port)] if port else ()), *more):
        name, argument = letter, value
        if letter == "-o":  # whose names have no case, as letters have
            name, _, argument = value.replace("=", " ", 1).partition(" ")
            name = name.lower()
        if field := _FIELDS_OF_SSH.get(name):
            found.setdefault(field, argument.strip())  # of two, ssh takes the first
        elif letter in _NOT_KEPT or (letter == "-o" and name not in _SET_BY_TANDEM):
            raise ConfigError(
                f"host: target is {line!r}, whose {letter} {value} has no field here; put it into ~/.ssh/config, "
                "and give the name that it has there"
            )
    user = found.pop("user", "")
    return {**found, "target": f"{user}@{address}" if user else address}


def _parts_of(destination: str) -> tuple[str, str, str]:
    """User, address and port of `user@address` or `ssh://user@address:port`; empty where they are not given."""
    if not destination.lower().startswith("ssh://"):
        user, _, address = destination.rpartition("@")
        return user, address, ""
    user, _, address = destination[len("ssh://") :].rstrip("/").rpartition("@")
    host, colon, port = address.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = address, ""
    return user, host.strip("[]"), port
