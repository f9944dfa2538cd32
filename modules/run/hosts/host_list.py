"""hosts.json in the user's config folder: the machines that this user starts over ssh. Only the user can read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules.config import ConfigError, TrainConfig, dump, resolve_config
from modules.config.io.files import validate
from modules.config.io.override import override
from modules.files import FileFault, Record, printable, validate_record
from modules.files.private import NotPrivate, make_private_folder, read_private_json, write_private_json
from modules.files.user_folder import user_config_folder
from modules.run.folder.run_lock import file_lock
from modules.run.hosts.hardware import forget_hardware
from modules.run.hosts.host import Host

MOST_HOSTS: Final = 200
_OTHERS_TAKE_S: Final = 5.0  # to change the list
_REPAIR: Final = "Correct it, or move it away and add the machines again"


class _HostList(Record):
    hosts: Annotated[list[Host], Field(max_length=MOST_HOSTS)]


def hosts_file() -> Path:
    """Where the list is."""
    return user_config_folder() / "hosts.json"


def read_hosts() -> list[Host]:
    """The machines in their order; [] without a list. Raises ConfigError if the file is damaged or not private."""
    file = hosts_file()
    try:
        return validate_record(_HostList, read_private_json(file)).hosts
    except FileNotFoundError:
        return []
    except NotPrivate as fault:
        raise ConfigError(f"the list of machines: {fault}") from None
    except FileFault as fault:
        raise ConfigError(f"the list of machines {printable(file)} {fault}", _REPAIR) from None
    except OSError as error:
        raise ConfigError(f"the list of machines {printable(file)} cannot be read: {error.strerror}") from error


def add_host(host: Host) -> bool:
    """Add a machine, or replace the one of this name; returns whether it replaced one. Raises ConfigError."""
    with _alone():
        hosts = read_hosts()
        others = [each for each in hosts if each.name.lower() != host.name.lower()]  # a file in log/ has its name
        if len(others) >= MOST_HOSTS:
            raise ConfigError(f"the list has {MOST_HOSTS} machines; remove some first")
        is_known = len(others) < len(hosts)
        place = next((at for at, each in enumerate(hosts) if each.name.lower() == host.name.lower()), len(others))
        _write([*others[:place], host, *others[place:]])
    return is_known


def remove_host(name: str) -> None:
    """Take a machine off the list; nothing changes on it. Raises ConfigError."""
    with _alone():
        found = find_hosts([name])[0]
        _write([each for each in read_hosts() if each.name != found.name])
    forget_hardware(found.name)


def find_hosts(names: Sequence[str], add: str = "scripts/hosts.py add NAME USER@HOST FOLDER") -> list[Host]:
    """The machines of these names, each once. Raises ConfigError for a name that is not in the list, and says how to
    `add` it."""
    hosts = {host.name: host for host in read_hosts()}
    for name in names:
        if name not in hosts:
            known = ", ".join(hosts) or "none yet"
            raise ConfigError(
                f"no machine is named {printable(name, 100)!r}; the list has: {known}",
                f"Add it with: python {add}",
            )
    return [hosts[name] for name in dict.fromkeys(names)]


def known_hosts(names: Sequence[str]) -> list[str]:
    """Those of the names that are in the list, in its order. Raises ConfigError."""
    return [host.name for host in read_hosts() if host.name in names] if names else []


def named_hosts(text: str | None) -> list[Host]:
    """The machines of --hosts, "beta,gamma"; none without it. Raises ConfigError for a name that is not in the list."""
    return [] if text is None else find_hosts(split_names(text))


def resolve_with_hosts(source: str | None, assignments: Sequence[str], hosts: int) -> TrainConfig:
    """The config of this source for at least so many machines beside this one. Raises ConfigError."""
    config = resolve_config(source, assignments)
    if hosts < config.num_nodes:
        return config
    more = [f"num_nodes={1 + hosts}", "enable_multi_gpu=true"]
    # not read a second time, which would repeat what is said of the file
    return validate(override(dump(config), more), source or "The settings", more)


def split_names(text: str) -> list[str]:
    """The names in "beta,gamma". Raises ConfigError if there is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--hosts is empty; give names of scripts/hosts.py list, such as --hosts beta,gamma")
    return names


@contextmanager
def _alone() -> Iterator[None]:
    """No other program changes the list between reading and writing it. Raises ConfigError."""
    lock = hosts_file().with_suffix(".lock")
    try:
        make_private_folder(lock.parent)
        with file_lock(lock, _OTHERS_TAKE_S) as is_alone:
            if not is_alone:
                raise ConfigError("another program is changing the list of machines", "Try again")
            yield
    except OSError as error:
        raise _not_writable(error) from error


def _write(hosts: Sequence[Host]) -> None:
    try:
        write_private_json(hosts_file(), {"hosts": [host.model_dump() for host in hosts]})
    except OSError as error:
        raise _not_writable(error) from error


def _not_writable(error: OSError) -> ConfigError:
    return ConfigError(f"the list of machines {printable(hosts_file())} cannot be written: {error.strerror or error}")
