"""after_runs.json in the user's config folder: commands that run on this computer once all results of a run are here.

A copy of a run may be a stranger's folder, so it never names a command: the random id of a start there leads to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from modules.config import ConfigError
from modules.files import FileFault, Record, printable, validate_record
from modules.files.private import NotPrivate, make_private_folder, read_private_json, write_private_json
from modules.files.user_folder import user_config_folder
from modules.run.folder.run_lock import file_lock
from modules.run.format_duration import in_words
from modules.run.hosts.host import LONGEST_COMMAND, MOST_MINUTES, Host

_MOST: Final = 100
_OTHERS_TAKE_S: Final = 5.0  # to change the file


class KeptCommand(Record):
    """The command of one start on `machine`.

    With `idle_minutes` it waits, once all results are here, until nothing has gone on there for as long: `runs_at`
    (seconds since 1970) is when that will be, `held` what went on at the last look, as the end of a sentence.
    """

    command: Annotated[str, Field(max_length=LONGEST_COMMAND)]
    machine: str
    idle_minutes: Annotated[float, Field(ge=0, le=MOST_MINUTES)] = 0.0
    runs_at: float | None = None
    held: str = ""

    def __str__(self) -> str:
        """A sentence for whoever waits with it."""
        left_s = max(0.0, (self.runs_at or 0.0) - time.time())
        when = f"once {self.machine} has been idle for {in_words(60 * self.idle_minutes)}; now {self.held}"
        if not self.held:
            when = f"in {in_words(left_s)} if {self.machine} stays idle"
        return f"“{printable(self.command, 200)}” runs here {when}."


def _of_text(kept: object) -> object:
    """A command alone, as files of before idle_minutes have it."""
    return {"command": kept, "machine": ""} if isinstance(kept, str) else kept


class _Commands(Record):
    commands: Annotated[dict[str, Annotated[KeptCommand, BeforeValidator(_of_text)]], Field(max_length=_MOST)]


def keep_command(start_id: str, host: Host) -> None:
    """Run the command of a machine, if it has one, once all results of this start are here. Raises ConfigError."""
    if host.then:
        with _changing() as commands:
            kept = KeptCommand(command=host.then, machine=host.name, idle_minutes=host.idle_minutes)
            commands[start_id] = kept


def kept_command(start_id: str) -> KeptCommand | None:
    """That of one start. Raises ConfigError."""
    return _read().get(start_id)


def take_command(start_id: str) -> bool:
    """Whether it was still kept; nobody else runs it from now on. Raises ConfigError."""
    with _changing() as commands:
        return commands.pop(start_id, None) is not None


def let_wait(start_id: str, left_s: float, held: str = "") -> float:
    """It runs so many seconds from now; another one that waits for its machine gives way. Returns its runs_at. Raises
    ConfigError."""
    runs_at = time.time() + left_s
    with _changing() as commands:
        if start_id in commands:
            kept = commands[start_id].model_copy(update={"runs_at": runs_at, "held": held})
            _remove_waiting(commands, kept.machine)
            commands[start_id] = kept
    return runs_at


def waiting_command(machine: str) -> tuple[str, KeptCommand] | None:
    """What waits until a machine has been idle, and the id of its start. Raises ConfigError."""
    found = [(start_id, kept) for start_id, kept in _read().items() if _waits(kept, machine)]
    return found[-1] if found else None


def needs_waiter(machine: str) -> bool:
    """Whether a command waits for a machine and no program is there to run it, as after a restart. Raises ConfigError,
    OSError."""
    if waiting_command(machine) is None:
        return False
    with file_lock(waiting_lock(machine)) as is_free:
        return is_free


def what_waits(machine: str) -> str:
    """A sentence of the command that waits for a machine, "" if none does. Raises ConfigError, OSError."""
    if (found := waiting_command(machine)) is None:
        return ""
    if not needs_waiter(machine):
        return str(found[1])
    idle, command = in_words(60 * found[1].idle_minutes), printable(found[1].command, 200)
    return (
        f"“{command}” is to run here once {machine} has been idle for {idle}, but no program waits for that now; pull "
        "a run of it to begin the wait anew."
    )


def call_off(machine: str) -> str:
    """Nothing waits for a machine any more; says what did, "" if nothing. Raises ConfigError."""
    if waiting_command(machine) is None:
        return ""
    with _changing() as commands:
        removed = _remove_waiting(commands, machine)
    return "".join(f"“{printable(kept.command, 200)}” does not run any more. " for kept in removed).rstrip()


def _remove_waiting(commands: dict[str, KeptCommand], machine: str) -> list[KeptCommand]:
    return [commands.pop(start_id) for start_id, kept in list(commands.items()) if _waits(kept, machine)]


def _waits(kept: KeptCommand, machine: str) -> bool:
    return kept.machine == machine and kept.runs_at is not None


def _file() -> Path:
    return user_config_folder() / "after_runs.json"


def waiting_lock(machine: str) -> Path:
    """The lock of the program that waits for a machine."""
    return _file().with_name(f"after_runs-{machine}.lock")


@contextmanager
def _changing() -> Iterator[dict[str, KeptCommand]]:
    """The commands, which are written at the end; no other program changes them meanwhile. Raises ConfigError."""
    try:
        make_private_folder(_file().parent)
        with file_lock(_file().with_suffix(".lock"), _OTHERS_TAKE_S) as is_alone:
            if not is_alone:
                raise ConfigError("another program is changing the commands after runs", "Try again")
            commands = _read()
            before = dict(commands)
            yield commands
            if commands != before:
                newest = list(commands.items())[-_MOST:]
                write_private_json(_file(), {"commands": {each: kept.model_dump() for each, kept in newest}})
    except OSError as error:
        raise ConfigError(f"{printable(_file())} cannot be written: {error.strerror or error}") from error


def _read() -> dict[str, KeptCommand]:
    """Raises ConfigError if the file is damaged, or others could have written it."""
    try:
        return validate_record(_Commands, read_private_json(_file())).commands
    except FileNotFoundError:
        return {}
    except NotPrivate as fault:
        raise ConfigError(f"the commands after runs: {fault}") from None
    except (FileFault, OSError) as fault:
        raise ConfigError(
            f"the commands after runs cannot be read: {printable(_file())} {fault}", "Mend or remove that file"
        ) from None
