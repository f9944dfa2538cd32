"""Tells the user that a run has ended: a command or a webhook of the user's own, and on the desktop.

A config may be a stranger's, so none names a command: `--notify` does, TANDEM_NOTIFY, or notifications.json in the
folder of the user's settings.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import Field

from modules.config import ConfigError, TandemError
from modules.files import MASK, FileFault, Record, control_character, printable, validate_record
from modules.files.private import NotPrivate, read_private_json, write_private_json
from modules.files.user_folder import user_config_folder
from modules.machine import hostname
from modules.run.console import warn
from modules.run.endings import ENDINGS
from modules.run.exit_codes import FINISHED, INTERRUPTED, PAUSED, TERMINATED
from modules.run.folder.event_summary import EventSummary, follow_from_end
from modules.run.folder.run_folder import RunFolder
from modules.run.launch.restarts import is_restarted_after
from modules.run.supervise.signals import keep_exit_code

NOTIFY: Final = "TANDEM_NOTIFY"
_DESKTOP_S: Final = 15.0
_COMMAND_S: Final = 60.0
_LONGEST: Final = 4000  # characters of a command
_BY_CODE: Final = {FINISHED: "finished", INTERRUPTED: "interrupted", PAUSED: "paused", TERMINATED: "terminated"}
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_OF_CMD: Final = re.compile(r'[&|<>^%"!]')  # cmd.exe would read them in the value of a variable
_ON_MAC: Final = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
_ON_WINDOWS: Final = (
    "Add-Type -AssemblyName System.Windows.Forms,System.Drawing; $n = New-Object System.Windows.Forms.NotifyIcon; "
    "$n.Icon = [System.Drawing.SystemIcons]::Information; $n.Visible = $true; "
    "$n.ShowBalloonTip(9000, $env:TANDEM_TITLE, $env:TANDEM_TEXT, 'None'); Start-Sleep 10; $n.Dispose()"
)


@dataclass(frozen=True)
class RunEnd:
    """How a run ended: `state` is the reason of its `finished` event, `step` the last one, `error` one sentence."""

    state: str
    run: str
    step: int | None = None
    error: str = ""

    @property
    def text(self) -> str:
        """For a person, on one line."""
        title = ENDINGS[self.state].title if self.state in ENDINGS else self.state.capitalize()
        at = "" if self.step is None else f" at step {self.step:,}"
        return f"Tandem: {self.run}: {title}{at}." + (f" {self.error}" if self.error else "")


class _Kept(Record):
    target: Annotated[str, Field(max_length=_LONGEST)] = ""


def target_file() -> Path:
    """Where the user's own command or URL is."""
    return user_config_folder() / "notifications.json"


def kept_target() -> str:
    """The user's own command or URL; "" for none. Raises ConfigError if the file is damaged or not private."""
    file = target_file()
    try:
        return validate_record(_Kept, read_private_json(file)).target
    except FileNotFoundError:
        return ""
    except NotPrivate as fault:
        raise ConfigError(f"what to do when a run ends: {fault}") from None
    except (FileFault, OSError) as fault:
        raise ConfigError(f"what to do when a run ends cannot be read: {printable(file)} {fault}") from None


def keep_target(target: str) -> None:
    """Keep the user's command or URL. Raises ConfigError."""
    check_target(target)
    try:
        write_private_json(target_file(), {"target": target})
    except OSError as error:
        raise ConfigError(f"{printable(target_file())} cannot be written: {error.strerror or error}") from error


def take_notify(environment: MutableMapping[str, str]) -> str | None:
    """The command or URL in the environment, removed from there so that no process of the run has it."""
    return environment.pop(NOTIFY, None)


def find_target(in_argv: str | None, in_environment: str | None) -> str:
    """What was given, or the user's own; "" for none. Raises ConfigError if it is none; a kept one only warns."""
    given = in_argv if in_argv is not None else in_environment
    if given is not None:
        check_target(given)
        return given
    try:
        return kept_target()
    except ConfigError as error:
        warn(f"Warning: nobody is notified: {error}")
        return ""


def check_target(target: str) -> None:
    """Raise ConfigError for what is neither a command nor an https URL."""
    if control := control_character(target):
        raise ConfigError(f"notify holds the control character {control}; give a command, or an https URL")
    if len(target) > _LONGEST:
        raise ConfigError(f"notify has {len(target)} characters, at most {_LONGEST} are allowed")
    if not _is_url(target):
        return
    try:
        url = urlsplit(target)
        is_safe = url.scheme == "https" or url.hostname in _LOCAL
        is_whole = bool(url.hostname) and url.port != 0 and " " not in target and target.isascii()
    except ValueError:
        is_safe = is_whole = False
    if not is_safe or not is_whole:
        raise ConfigError(f"notify is {masked(target)}, which is no https URL", "Such as https://ntfy.sh/TOPIC")


def masked(target: str) -> str:
    """What a log may say of it: a URL's path and a command's arguments are often secrets."""
    if not _is_url(target):
        program, _, rest = target.strip().partition(" ")
        if not re.fullmatch(r"[\w./\\:~-]+", program) or "://" in program:  # such as TOKEN=... before the program
            return MASK
        return printable(f"{program} {MASK}" if rest else program, 100)
    scheme, _, rest = target.partition("://")
    return printable(f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}/{MASK}", 100)


def notifying(target: str, folder: RunFolder, run: Callable[[], int]) -> int:
    """`run` a run in its folder, and tell how it has ended; returns its exit code, and raises what it raises."""
    tell = end_told(target, folder)
    try:
        code = run()
    except TandemError as error:
        keep_exit_code()
        notify(target, RunEnd("failed", folder.name, error=_sentence(str(error))))
        raise
    tell(code)
    return code


def end_told(target: str, folder: RunFolder) -> Callable[[int], None]:
    """What tells how the run that now starts in `folder` has ended, once it is called with its exit code.

    A failure after which torchrun starts it again is no end. In a program that ends with its run, signals do not change
    the exit code any more.
    """
    events, reader = EventSummary(), follow_from_end(folder.events_file)

    def tell(code: int) -> None:
        keep_exit_code()
        if target and not is_restarted_after(code):
            events.read(reader)
            notify(target, end_of_run(folder, events, code))

    return tell


def end_of_run(folder: RunFolder, seen: EventSummary, code: int) -> RunEnd:
    """How the run of a folder has ended, by the events of this start and its exit code."""
    state = seen.reason if seen.exit_code == code and seen.reason else _BY_CODE.get(code, "failed")
    error = seen.error.message if state == "failed" and seen.error is not None else ""
    return RunEnd(printable(state, 40), folder.name, seen.step, _sentence(error))


def notify(target: str, end: RunEnd) -> str:
    """Tell it; returns why that failed, after a warning, or ""."""
    if not target:
        return ""
    try:
        if _is_url(target):
            _post(target, end)
        else:
            _run(target, end)
    except KeyboardInterrupt:
        reason = "interrupted"
    except subprocess.TimeoutExpired:
        reason = f"it took more than {_COMMAND_S:.0f} s"
    except OSError as error:
        reason = printable(error.strerror or type(error).__name__)
    else:
        return ""
    warn(f"Warning: the notification by {masked(target)} failed: {reason}.")
    return reason


def show_on_desktop(title: str, text: str) -> None:
    """A notification of the desktop, where there is a program for it; nothing else depends on it."""
    environment = None
    if sys.platform == "darwin":
        command = ["osascript", "-e", _ON_MAC, title, text]
    elif sys.platform == "win32":
        command = ["powershell", "-NoProfile", "-NonInteractive", "-Command", _ON_WINDOWS]
        environment = {**os.environ, "TANDEM_TITLE": title, "TANDEM_TEXT": text}
    else:  # the body is markup
        command = ["notify-send", "--app-name=Tandem", "--", title, html.escape(text, quote=False)]
    if shutil.which(command[0]) is None:
        return
    try:
        subprocess.run(
            command,
            env=environment,
            timeout=_DESKTOP_S,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            creationflags=int(getattr(subprocess, "CREATE_NO_WINDOW", 0)),
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return


def _post(url: str, end: RunEnd) -> None:
    """Slack and others show `text`, Discord `content`."""
    from modules.run.webhook import post_json

    facts = {**asdict(end), "host": hostname(), "time": time.time(), "text": end.text, "content": end.text}
    post_json(url, facts)


def _run(command: str, end: RunEnd) -> None:
    """By the user's shell; what it is told of the run is in variables, so that no name is read as a command."""
    told = {
        "STATE": end.state,
        "RUN": end.run,
        "STEP": "" if end.step is None else str(end.step),
        "ERROR": end.error,
        "TEXT": end.text,
    }
    safe = {name: _OF_CMD.sub(" ", value) if sys.platform == "win32" else value for name, value in told.items()}
    variables = {f"TANDEM_{name}": value for name, value in safe.items()}
    done = subprocess.run(  # noqa: S602  # the user wrote it for their shell
        command,
        shell=True,
        env={**os.environ, **variables},
        timeout=_COMMAND_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise OSError(0, f"exit code {done.returncode}")


def _is_url(target: str) -> bool:
    return re.match(r"(?i)https?:|[a-z][a-z\d+.-]*://", target.strip()) is not None  # file:// is no command, either


def _sentence(text: str) -> str:
    return printable(text.strip().split("\n")[0], 500)
