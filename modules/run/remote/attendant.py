"""A run on another machine from its data to its results: each stage by itself, or all of them beside the copy.

The attendant is a program that the window starts as it starts a run here: it shows itself as the one that works in the
copy's folder, goes on where an earlier one has ended, and needs no window.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Annotated, Final

from pydantic import Field

from modules import ROOT
from modules.config import ConfigError, ResumeError, TandemError, TrainConfig, load_config
from modules.config.trusted_code import allow_code, foreign_classes
from modules.files import Record, printable, remove_tree
from modules.machine import hostname_variable
from modules.run.folder.pidfile import find_launcher, write_pidfile
from modules.run.folder.run_folder import RunFolder, check_run_name_free
from modules.run.format_progress import format_bytes
from modules.run.hosts.host import DEFAULT_PYTHON, Host
from modules.run.hosts.host_list import find_hosts
from modules.run.hosts.ssh_command import ChangedKey, KeyRefused, UnknownKey, Unreachable
from modules.run.launch.detached import start_detached
from modules.run.launch.preview import to_arguments
from modules.run.remote.after_run import run_command_after, run_when_idle
from modules.run.remote.copy_folders import remember_copies_in
from modules.run.remote.far_runs import RESUMES
from modules.run.remote.job import Job
from modules.run.remote.kept_commands import call_off, keep_command, needs_waiter
from modules.run.remote.link import Busy, Echo, Link, LinkLost, with_reconnects
from modules.run.remote.machine import described, time_and_cost, why_not_set_up
from modules.run.remote.parts import (
    Gathering,
    bring_logs,
    check_alike,
    check_places,
    check_reach,
    for_machines,
    machines_with,
    send_to_all,
    still_listed,
    together,
)
from modules.run.remote.run_copy import Copy, Follower, mark_copy, opened_copy, pull, read_copy
from modules.run.remote.sending import (
    Hello,
    Push,
    Upload,
    config_there,
    data_uploads,
    only_there,
    own_settings,
    sent_folders,
)
from modules.run.slurm.options import request_of_words
from modules.run.slurm.script import plan_jobs

_TOLD_EVERY_S: Final = 0.5
_CONNECTS_EVERY_S: Final = 30.0  # of a run that a queue has started
ADD: Final = "scripts/remote.py add NAME USER@ADDRESS"


def send_data(
    config: TrainConfig,
    host: Host,
    run: str,
    echo: Echo,
    share: Callable[[float], object] = lambda _: None,
    others: Sequence[Host] = (),
) -> list[Push]:
    """Send what the config names and the machine, and the `others` that join it, lack; `run` is the name that must be
    free there, or "".

    What waits until a machine has been idle is called off before. Returns what was sent, which `start_there` looks at
    once more. `share` gets how much is there, 0 to 1. Raises TandemError, also if the run could not be started there,
    OSError.
    """
    uploads = startable_uploads(config, host, run, echo, others)
    for name in uploads:
        if off := call_off(name):
            echo(off)
    for each in others:
        if each.then:
            echo(f"Note: the command of {each.name} does not run after this run; only that of {host.name} does.")
    return send_to_all([host, *others], lambda each, *told: _push_of(uploads[each.name], *told), echo, share)


def startable_uploads(
    config: TrainConfig, host: Host, run: str, echo: Echo, others: Sequence[Host] = ()
) -> dict[str, dict[str, list[Upload]]]:
    """As `data_uploads` for each machine by its name, of a run that could be started there. Raises TandemError."""
    for_machines(config, host, others)
    uploads = {each.name: data_uploads(config, own_settings(each)) for each in [host, *others]}
    for path, files in uploads[host.name].items():
        echo(f"Needed there: {path} ({_amount(files)})")
    homes = {each.name: _check_startable(config, each, run, echo) for each in [host, *others]}
    said = {each.name: described(each)[0] for each in [host, *others]}
    if others:
        check_alike(host, others, said)
        check_places(config, [host, *others], homes)
        check_reach(config, host, others)
    return uploads


def _check_startable(config: TrainConfig, host: Host, run: str, echo: Echo) -> str:
    """Tandem's folder there. Raises TandemError."""
    check = {
        "run": run,
        "machine": host.name,
        "python": host.python or DEFAULT_PYTHON,
        "paths": only_there(config, own_settings(host)),
    }

    def ask(link: Link) -> str:
        link.ask(Record, "check", **check)
        return link.ask(Hello, "hello").home

    return with_reconnects(host, echo, ask)


def _push_of(
    uploads: Mapping[str, Sequence[Upload]], echo: Echo, share: Callable[[float], object] = lambda _: None
) -> Push:
    return Push([upload for files in uploads.values() for upload in files], echo, sent_folders(uploads), share)


def _amount(files: Sequence[Upload]) -> str:
    return f"{len(files):,} file{'s' * (len(files) != 1)}, {format_bytes(sum(upload.size for upload in files))}"


def check_there(
    config: TrainConfig,
    host: Host,
    flags: Mapping[str, object],
    echo: Echo,
    *,
    given: Sequence[str] = (),
    others: Sequence[Host] = (),
) -> int:
    """What `train.py --dry_run` says there of the config as it would be sent, and its exit code; nothing is started.
    Of a cluster it is what Slurm says of the job with the options of the machine and those `given` besides.

    Models and family files are sent first, as it reads them; images are not: if some are missing there, it is told
    without them. Raises TandemError, also if the run could not be started there, OSError.
    """
    needed = NeededThere(config, host, config.run_name or "", echo, others)

    def check(link: Link) -> int:
        missing = needed.send(link)
        echo(f"{host.name} says:")
        home = link.ask(Hello, "hello").home
        arguments = {**flags, "trust_code": is_trusted(config), "remote_check": "no_data" if missing else "all"}
        link.tell(
            "dry_run",
            config=config_there(config, host, home, config.run_name),
            arguments=to_arguments(arguments),
            python=host.python or DEFAULT_PYTHON,
            slurm=host.slurm,
            given=list(given),
        )
        return link.read_lines(echo)

    return with_reconnects(host, echo, check)


class NeededThere:
    """What a config needs there to be looked at without a run: models and family files, but no images.

    Raises TandemError, also if the run could not be started there; OSError.
    """

    def __init__(self, config: TrainConfig, host: Host, run: str, echo: Echo, others: Sequence[Host] = ()) -> None:
        uploads = startable_uploads(config, host, run, echo, others)[host.name]
        models = data_uploads(config.model_copy(update={"concepts": []}), own_settings(host))
        self._images = _push_of({path: files for path, files in uploads.items() if path not in models}, echo)
        self._push, self._host, self._echo = _push_of(models, echo), host, echo

    def send(self, link: Link) -> bool:
        """Send what is missing there; returns whether images are missing, which is said."""
        self._push.send(link)
        missing = list(self._images.needed(link))
        if missing:
            what = f"{_amount(missing)} of images and captions"
            self._echo(f"Not on {self._host.name} yet: {what}, so it is checked without them.")
        return bool(missing)


def is_trusted(config: TrainConfig) -> bool:
    """Whether the machine must run code of a file that was allowed here."""
    return config.family.endswith(".py") or bool(foreign_classes(config))


def start_there(
    folder: RunFolder,
    config: TrainConfig,
    host: Host,
    start_id: str,
    flags: Mapping[str, object],
    token: str,
    pushes: Sequence[Push],
    echo: Echo,
    others: Sequence[Host] = (),
    *,
    given: Sequence[str] = (),
    needs_backup: bool = True,
) -> None:
    """Start the run of this folder, and have the `others` join it; asked again with the same `start_id`, it is the same
    one. On a cluster Slurm is to start it, with the options of the machine and those `given` besides. It has the
    shortest limit of hours of the machines, and the command of the first is kept for its end.

    What of the `pushes` somebody has removed there meanwhile is sent again. A resumed one that has no backup there
    begins again if it needs none. Raises TandemError.
    """
    keep_command(start_id, host)
    for each, push in zip(others, pushes[1:], strict=True):
        with_reconnects(each, echo, push.send)
    limit = _limit_of(config, together(host, others))
    more = {"joining": ",".join(each.name for each in others)} if others else {}

    def begin(link: Link) -> None:
        pushes[0].send(link)
        home = link.ask(Hello, "hello").home
        begun = link.ask(
            _Begun,
            "start",
            run=folder.name,
            machine=host.name,
            id=start_id,
            config=config_there(config, host, home, folder.name),
            arguments=to_arguments({**flags, **limit, **more, "trust_code": is_trusted(config)}),
            python=host.python or DEFAULT_PYTHON,
            token=token,
            variables=hostname_variable(host.name) if others else {},
            slurm=host.slurm,
            given=list(given),
            needs_backup=needs_backup,
        )
        for line in begun.said:
            echo(printable(line, 1000))

    with_reconnects(host, echo, begin)
    let_join(folder, config, host, start_id, token, echo, others)


def let_join(
    folder: RunFolder, config: TrainConfig, host: Host, start_id: str, token: str, echo: Echo, others: Sequence[Host]
) -> None:
    """Have the others join a run that has started. Raises TandemError."""
    Gathering(folder, config, host, others, start_id, is_trusted(config), token, echo).gather()


def check_job(config: TrainConfig, host: Host, given: Sequence[str]) -> None:
    """Raise ConfigError if Slurm is to start the run and the config does not fit the options of its job."""
    if host.slurm:
        plan_jobs(config, request_of_words([*host.slurm, *given], config))


def _limit_of(config: TrainConfig, host: Host) -> dict[str, object]:
    """The flag of a start on a machine with a limit of hours; {} without one, or if the config's own is as short."""
    minutes = 60 * host.stop_after
    own = config.max_minutes
    return {"max_minutes": f"{minutes:g}"} if minutes and (own is None or own > minutes) else {}


def has_come_about(folder: RunFolder, host: Host, echo: Echo) -> str | None:
    """The id of an earlier start of this run that was cut before its answer came, if the run is there; what another one
    has left here that was cut before is removed. Raises HostError."""
    copy = read_copy(folder)
    is_one = copy is not None and (copy.machine, copy.stage, copy.resumes) == (host.name, "sending", False)
    if copy is None or not is_one or find_launcher(folder) is not None:
        return None
    if copy.id and is_started(folder, host, copy.id, echo):
        return copy.id
    remove_tree(folder.path)
    return None


def may_have_started(folder: RunFolder, host: Host, start_id: str, echo: Echo) -> bool:
    """Whether a start that was asked for, and whose answer has not come, may have come about, which is said: also if
    the machine cannot be asked."""
    known = f"{folder.name} has started on {host.name}"
    try:
        if not is_started(folder, host, start_id, echo):
            return False
    except TandemError as error:
        known = f"Whether {folder.name} has started on {host.name} is not known: {error.message}"
    echo(f"{known}. Its copy stays here for follow, or for the same start again: {folder.path}")
    return True


def is_started(folder: RunFolder, host: Host, start_id: str, echo: Echo) -> bool:
    """Whether the machine knows this start, and its run is there. Raises ConfigError, HostError."""
    asked = {"run": folder.name, "id": start_id}
    return with_reconnects(host, echo, lambda link: link.ask(_Started, "started", **asked)).is_started


def new_start_id(*, resumes: bool = False) -> str:
    """By which the machine knows the same start again after a lost connection, and whether it resumes its run."""
    return f"{RESUMES if resumes else ''}{os.urandom(16).hex()}"


def resume_there(folder: RunFolder) -> Popen[bytes]:
    """Launch an attendant that resumes the run of a copy on its machine, from its newest backup there. Raises OSError,
    ResumeError."""
    copy = read_copy(folder)
    if copy is None:
        raise ResumeError(f"{folder.name} is not the copy of a run on another machine")
    if find_launcher(folder) is None:
        again = Copy(machine=copy.machine, stage="sending", attended=True, resumes=True, joined=copy.joined)
        mark_copy(folder, again)
    return launch_attendant(folder)


def attend(path: Path, echo: Echo) -> None:
    """Go through all stages that the copy in this folder has before it, and leave the folder to others while a command
    waits for the machine. Raises TandemError and OSError, which the copy keeps."""
    copy = read_copy(RunFolder(path))
    if copy is None:
        raise ConfigError(f"{path} is not the copy of a run on another machine")
    if copy.is_underway or copy.fault:
        with opened_copy(path.parent, path.name, copy.machine) as folder:
            try:
                host = find_hosts([copy.machine], ADD)[0]
                sends = copy.stage == "sending"
                others = machines_with(host, copy.joined, ADD) if sends else still_listed(copy.joined)
                _Attendant(folder, host, others, copy, echo).go()
            except (TandemError, OSError) as error:
                _keep_fault(folder, error)
                raise
    try:
        run_when_idle(path.parent, copy.machine, echo)
    except (TandemError, OSError) as error:
        with suppress(ConfigError), opened_copy(path.parent, path.name, copy.machine) as folder:
            _keep_fault(folder, error)
        raise


def _keep_fault(folder: RunFolder, error: Exception) -> None:
    if (last := read_copy(folder)) is not None:
        mark_copy(folder, last.model_copy(update={"said": "", "fault": str(error)}))


class _Started(Record):
    is_started: bool


class _Begun(Record):
    said: Annotated[list[Annotated[str, Field(max_length=10_000)]], Field(max_length=100)] = Field(default_factory=list)


class _Attendant:
    def __init__(self, folder: RunFolder, host: Host, others: Sequence[Host], copy: Copy, echo: Echo) -> None:
        self._folder, self._host, self._others, self._copy, self._echo = folder, host, others, copy, echo
        self._told_at = 0.0

    def go(self) -> None:
        self._tell(attended=True, said="", fault="")
        if self._copy.stage == "sending":
            if not self._has_been_sent():
                return
            self._tell(stage="running", resumes=False, said="", done=None)
            if off := call_off(self._copy.machine):
                self._echo(off)
        if self._copy.stage == "running":
            follower = Follower(self._folder, lambda _: None, self._host.python or DEFAULT_PYTHON, self._tell_job)

            def follow(link: Link) -> int | None:
                self._tell(said="")
                return follower.follow(link)

            code = with_reconnects(self._host, self._say, follow, is_patient=True)
            self._echo(f"It has ended after {time_and_cost(follower.seconds, together(self._host, self._others))}.")
            bring_logs(self._folder, self._others)
            self._tell(stage="pulling", said="", job="", done=None, code=code)
        if self._copy.stage == "pulling":

            def bring(link: Link) -> None:
                pull(link, self._folder, "latest", self._say, self._share)

            with_reconnects(self._host, self._say, bring, is_patient=True)
            self._tell(stage="complete", said="", done=None)
            run_command_after(self._folder, self._host, "latest", self._echo)

    def _has_been_sent(self) -> bool:
        """Whether it was started, now or before, and not stopped before that; one of a queue waits for a connection,
        and for a machine that is busy."""
        while True:
            try:
                if not self._copy.id or not is_started(self._folder, self._host, self._copy.id, self._say):
                    return self._send()
                config = load_config(self._folder.config_file)
                let_join(self._folder, config, self._host, self._copy.id, self._token, self._say, self._others)
                return True
            except (Unreachable, LinkLost, Busy) as error:
                if not self._copy.queued:
                    raise
                until = "that is over" if isinstance(error, Busy) else "there is a connection"
                self._say(f"{error.message}. Trying again until {until}.")
            time.sleep(_CONNECTS_EVERY_S)

    def _send(self) -> bool:
        """Whether it was started, and not stopped before."""
        stop = self._folder.commands_dir / "stop"
        if self._copy.id and stop.exists():
            stop.unlink()
            self._tell(id="")
            return False
        self._tell(id="")
        config = load_config(self._folder.config_file)
        allow_code(config, trust=False, ask=None)  # the window has asked
        resumes = self._copy.resumes
        name = "" if resumes else self._folder.name
        pushes = send_data(config, self._host, name, self._say, self._share, self._others)
        self._tell(id=new_start_id(resumes=resumes), said="Starting there.", done=None)
        flags = dict[str, object]()
        if self._copy.queued and resumes and "device_ids" not in own_settings(self._host):
            flags = {"set": [f"device_ids={json.dumps(config.device_ids)}"]}  # which may be chosen while it waits
        start_there(
            *(self._folder, config, self._host, self._copy.id, flags, self._token, pushes, self._say, self._others),
            needs_backup=not self._copy.queued,
        )
        return True

    @property
    def _token(self) -> str:
        return os.environ.get("HF_TOKEN", "") if self._copy.sends_token else ""

    def _say(self, line: str) -> None:
        self._echo(line)
        self._tell(said=line)

    def _tell_job(self, job: Job) -> None:
        self._echo(str(job))
        self._tell(job="" if job.runs else str(job))

    def _share(self, done: float) -> None:
        if time.monotonic() - self._told_at > _TOLD_EVERY_S:
            self._tell(done=min(1.0, done))

    def _tell(self, **changes: object) -> None:
        self._copy = self._copy.model_copy(update=changes)
        self._told_at = time.monotonic()
        mark_copy(self._folder, self._copy)


@dataclass(frozen=True)
class NotReady:
    """Why a machine must be set up before a run; "": its keys are not accepted, or not its host key."""

    machine: str
    why: str


def not_ready(host: Host) -> NotReady | None:
    """Whether a run can be started on a machine as it is now: None. Raises HostError."""
    try:
        why = why_not_set_up(host)
    except (UnknownKey, ChangedKey, KeyRefused):
        return NotReady(host.name, "")
    return NotReady(host.name, why) if why else None


def begin(
    config: TrainConfig, machine: str, *, sends_token: bool, joined: Sequence[str] = ()
) -> tuple[RunFolder, Popen[bytes]] | NotReady:
    """Make the copy of a new run on a machine of the list, which others join, and launch its attendant; or which is
    not ready.

    Raises TandemError, also for data that is missing here; OSError.
    """
    host = find_hosts([machine], ADD)[0]
    others = machines_with(host, joined, ADD)
    config = for_machines(config, host, others)
    check_job(config, host, ())
    data_uploads(config, own_settings(host))  # which is only listed here
    if config.run_name is not None:
        _remove_unsent(RunFolder(Path(config.runs_dir) / config.run_name))
        check_run_name_free(Path(config.runs_dir), config.run_name)
    if lacks := next(filter(None, map(not_ready, [host, *others])), None):
        return lacks
    folder = RunFolder(RunFolder.create(config).path.absolute())
    names = [each.name for each in others]
    mark_copy(folder, Copy(machine=machine, stage="sending", attended=True, sends_token=sends_token, joined=names))
    remember_copies_in(folder.path.parent)
    return folder, launch_attendant(folder)


def _remove_unsent(folder: RunFolder) -> None:
    """What is left here of a start that never came about."""
    copy = read_copy(folder)
    is_unsent = copy is not None and copy.stage == "sending" and not copy.id and not copy.resumes
    if is_unsent and find_launcher(folder) is None:
        remove_tree(folder.path)


def go_on(folder: RunFolder) -> None:
    """Launch an attendant for a copy whose run, or whose machine's command, was left to itself, such as while this
    computer was off. Nobody has asked for it now, and the folder may be a stranger's: no run is started.

    Raises TandemError if the machine cannot say whether the start that was cut has come about; OSError."""
    copy = read_copy(folder)
    if copy is None or not copy.attended or find_launcher(folder) is not None:
        return
    if copy.stage == "sending" and copy.id:
        host = find_hosts([copy.machine], ADD)[0]
        if not is_started(folder, host, copy.id, lambda line: None):
            return
    if copy.lacks_results or (not copy.is_underway and needs_waiter(copy.machine)):
        launch_attendant(folder)


def launch_attendant(folder: RunFolder) -> Popen[bytes]:
    """Start a program that attends to the copy, in a session of its own. Raises OSError, and ResumeError if there is
    one."""
    if find_launcher(folder) is not None:
        raise ResumeError(f"another program follows {folder.name} already", "Wait until it ends, or stop it")
    argv = [sys.executable, str(ROOT / "scripts" / "remote.py"), "attend", "--run_folder", str(folder.path)]
    process = start_detached(argv, folder.log_dir / "remote.txt")
    if (copy := read_copy(folder)) is None or copy.is_underway:  # one that only waits is not at work in the folder
        write_pidfile(folder, process.pid)
    threading.Thread(target=process.wait, name=f"end of {folder.name}", daemon=True).start()
    return process
