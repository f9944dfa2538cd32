"""Runs on another machine over ssh, followed here: `python scripts/remote.py add NAME USER@ADDRESS`, then `setup`."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import allow_code, confirmed, exit_code_of, is_interactive, prepare_program

prepare_program()

from modules import __version__
from modules.config import ConfigError, load_config
from modules.config.file_access import set_file_access
from modules.files import Record, printable, remove_tree
from modules.run import RunFolder
from modules.run.console import echo
from modules.run.exit_codes import FINISHED, INTERRUPTED
from modules.run.folder.commands import FORCE_STOP
from modules.run.folder.pidfile import find_launcher, pidfile_held
from modules.run.folder.run_folder import check_run_name, check_run_name_free
from modules.run.format_duration import in_words
from modules.run.hosts.check import ask_host, summary_of
from modules.run.hosts.hardware import known_hardware
from modules.run.hosts.host import DEFAULT_PYTHON, Host
from modules.run.hosts.host_list import add_host, find_hosts, read_hosts
from modules.run.hosts.ssh_command import HostError, Unreachable
from modules.run.hosts.ssh_line import fields_of_ssh_line
from modules.run.join.fingerprint import compare_packages
from modules.run.preflight_report.report import PreflightReport
from modules.run.remote.after_run import run_command_after
from modules.run.remote.attendant import (
    ADD,
    attend,
    check_job,
    check_there,
    has_come_about,
    is_started,
    launch_attendant,
    let_join,
    may_have_started,
    new_start_id,
    send_data,
    start_there,
)
from modules.run.remote.copy_folders import remember_copies_in
from modules.run.remote.job import Job
from modules.run.remote.kept_commands import call_off, keep_command, needs_waiter, waiting_command, what_waits
from modules.run.remote.link import Link, home_of, is_for_runs, with_reconnects
from modules.run.remote.machine import (
    RunsThere,
    clean,
    described,
    host_for_runs,
    named_for_removal,
    queued_for,
    runs_there,
    time_and_cost,
)
from modules.run.remote.parts import bring_logs, for_machines, machines_with, resumed_with, still_listed, together
from modules.run.remote.preflight import preflight_there
from modules.run.remote.run_copy import (
    Copy,
    Follower,
    mark_copy,
    mark_stage,
    opened_copy,
    pull,
    read_copy,
    require_machine,
)
from modules.run.remote.sending import Hello, Push, code_uploads
from modules.run.slurm.options import split_words, words_for_each_start
from modules.run.tensorboard import TensorBoardServer
from scripts.remote_options import ending_of, parser, training_of, with_whole_line

_CALLED_OFF = "A start there calls it off, and so does stop of a run that has ended."
_BACKUP = re.compile(r"none|latest|all|[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


class _Taken(Record):
    is_active: bool
    has_waited: bool = False


def main(arguments: list[str] | None = None) -> int:
    """Do what was asked; returns an exit code."""
    top = parser()
    options, others = top.parse_known_args(with_whole_line(sys.argv[1:] if arguments is None else arguments))
    options.train = others
    return exit_code_of(partial(_act, options, top), "a file")


def _act(options: argparse.Namespace, top: argparse.ArgumentParser) -> int:
    set_file_access()
    takes_slurm = options.action in ("start", "check") or (options.action == "add" and options.slurm)
    options.job, options.train = split_words(options.train) if takes_slurm else ([], options.train)
    if options.action == "preflight" and (words := split_words(options.train)[0]):
        raise ConfigError(f"{words[0]} is of a Slurm job, and preflight tests the login node", "Leave it out")
    takes_options = options.action in ("start", "check") or (options.action == "preflight" and options.config)
    if options.train and not takes_options:
        top.error(f"unrecognized arguments: {' '.join(options.train)}")
    return ACTIONS[options.action](options)


def _others(options: argparse.Namespace, host: Host, before: Sequence[str] = ()) -> list[Host]:
    """The machines of --with, "beta,gamma"; without it those of `before`. Raises ConfigError."""
    given = options.others
    names = before if given is None else [name for each in given.split(",") if (name := each.strip())]
    return machines_with(host, names, ADD)


def _require_joined(folder: RunFolder, others: Sequence[Host]) -> None:
    """Raise ConfigError unless the run that has started waits for these machines."""
    copy = read_copy(folder)
    assert copy is not None  # as its start was found
    if (given := ",".join(each.name for each in others)) != (before := ",".join(copy.joined)):
        raise ConfigError(
            f"--with is {given!r}, but {folder.name} has started on {copy.machine} with {before!r}",
            "Give the same ones, or stop it there and give another --run_name",
        )


def add(options: argparse.Namespace) -> int:
    """`add`."""
    folder, home = options.folder, str(Path.home())  # which this shell may have put in place of ~
    if folder is not None and folder.startswith(f"{home}/"):
        folder = f"~{folder.removeprefix(home)}"
    line = fields_of_ssh_line(options.target)
    if (port := line.get("port", "")) and not (port.isascii() and port.isdecimal()):
        raise ConfigError(f"host: port is {port!r}; use a number from 1 to 65535")
    target, key = line.get("target", options.target), options.key or line.get("key")
    port_given = options.port or (int(port) if port else None)
    given = {"folder": folder, "key": key, "port": port_given, "price": options.price, "settings": options.set}
    given = {name: value for name, value in given.items() if value is not None} | ending_of(options)
    if options.slurm is not None:
        given["slurm"] = words_for_each_start(options.job) if options.slurm else []
    before = [each for each in read_hosts() if each.name == options.name and is_for_runs(each)]
    fields = {"port", "key", "python", "price", "settings", "slurm", "stop_after", "then", "idle_minutes"}
    old = {"folder": home_of(before[0]), **before[0].model_dump(include=fields)} if before else {}
    kept = {name: value for name, value in old.items() if value and name not in given}
    host = host_for_runs(options.name, target, **{**kept, **given})
    verb = "Replaced" if add_host(host) else "Added"
    echo(f"{verb} {host}. Set it up with: python scripts/remote.py setup {host.name}")
    if options.then == "" and (off := call_off(host.name)):
        echo(off)
    elif options.then is not None:
        _say_what_waits(host)
    if kept:
        said = {name: " ".join(value) if isinstance(value, list) else value for name, value in kept.items()}
        echo(f"Kept as before: {', '.join(f'{name} {value}' for name, value in said.items())}.")
    return FINISHED


def setup(options: argparse.Namespace) -> int:
    """`setup`."""
    host = _host(options)
    if options.python is not None:
        host = Host.make(
            **{**host.model_dump(), "python": options.python}  # checked as any that is typed
        )
    push = Push(code_uploads(), echo, ["code"])
    with_reconnects(host, echo, partial(_set_up, host=host, push=push))
    add_host(host)
    there, here = described(host)
    echo(f"{host} is ready. {summary_of(there)}")
    for difference in compare_packages(here.packages, there.packages, host.name).errors:
        echo(f"Note: {difference.replace('machine 0', 'this computer')}.")
    if there.obstacle and not host.slurm:
        echo(f"Warning: {host} cannot use its GPUs: {printable(there.obstacle)}")
    return FINISHED


def _set_up(link: Link, *, host: Host, push: Push) -> None:
    link.ask(Record, "make")
    hello = link.ask(Hello, "hello")
    echo(f"{host}: Tandem {__version__} goes to {printable(hello.home)}.")
    runs = link.ask(RunsThere, "runs")
    active = [run.name for run in runs.runs if run.is_active]
    if active and push.is_needed(link):
        raise HostError(
            f"the run {printable(active[0])} is active on {host}, and its code would change under it",
            "Stop it, or wait until it has ended",
        )
    push.send(link)
    if host.python:
        return
    echo("Installing the environment there; a first time takes minutes.")
    link.tell("run_setup")
    if (code := link.read_lines(echo)) != 0:
        raise HostError(
            f"setup.sh has failed on {host} (exit code {code}), see above",
            "Mend it and run setup again, or give an environment that exists: --python PATH",
        )


def start(options: argparse.Namespace) -> int:
    """`start`."""
    host = _host(options)
    try:
        host = Host.make(**{**host.model_dump(), **ending_of(options)})
    except ConfigError as error:
        raise ConfigError(error.message.replace("host: ", "--", 1)) from None
    _require_slurm(options, host)
    if len(options.config) > 1:
        return _start_all(options, host)
    [options.config] = options.config
    if options.resume:
        return _resume(options, host)
    training, config = training_of(options.config, options.train)
    if options.stop_after and training.max_minutes is not None:
        raise ConfigError("--stop_after and --max_minutes are both given, and are the same limit", "Leave one out")
    token = os.environ.get("HF_TOKEN", "") if options.send_token else ""
    if options.send_token and not token:
        raise ConfigError("--send_token is given, but HF_TOKEN is not set in this shell", "Set it, or leave it out")
    others = _others(options, host)
    config = for_machines(config, host, others)
    if config.run_name is not None:
        former = RunFolder(Path(config.runs_dir) / config.run_name)
        if (start_id := has_come_about(former, host, echo)) is not None:
            _require_joined(former, others)
            let_join(former, config, host, start_id, token, echo, others)
            mark_stage(former, "running")
            _go_on(options, former, host, config.runs_dir)
            return FINISHED
        check_run_name_free(Path(config.runs_dir), config.run_name)
    allow_code(config, trust=training.trust_code)
    check_job(config, host, options.job)
    pushes = send_data(config, host, config.run_name or "", echo, others=others)
    was_there = config.run_name is not None and os.path.lexists(Path(config.runs_dir) / config.run_name)
    folder = RunFolder.create(config)
    copy = Copy(machine=host.name, stage="sending", id=new_start_id(), joined=[each.name for each in others])
    is_asked = False
    try:
        mark_copy(folder, copy)
        remember_copies_in(folder.path.parent)
        flags = {} if host.slurm else {"require_multi_gpu": training.require_multi_gpu}
        with pidfile_held(folder):
            is_asked = True
            start_there(folder, config, host, copy.id, flags, token, pushes, echo, others, given=options.job)
        mark_stage(folder, "running")
    except BaseException:
        if not was_there and not (is_asked and may_have_started(folder, host, copy.id, echo)):
            remove_tree(folder.path)
        raise
    _go_on(options, folder, host, config.runs_dir)
    return FINISHED


def _require_slurm(options: argparse.Namespace, host: Host) -> None:
    """Raise ConfigError for what only a cluster takes."""
    has_several = isinstance(options.config, list) and len(options.config) > 1
    given = "several configs are" if has_several else "".join(f"{each} is" for each in options.job[:1])
    if given and not host.slurm:
        raise ConfigError(
            f"{given} for a Slurm cluster, and {host} was not added as one",
            f"Leave it out, or say that it is one: python scripts/remote.py add {host.name} {host.target} --slurm",
        )


def _start_all(options: argparse.Namespace, host: Host) -> int:
    """A job for each config: they share no script, so each may ask for other resources, and waits, stops, goes on and
    is followed by itself. All are checked before the first is sent."""
    if options.resume:
        raise ConfigError("--resume goes on with one run", "Give one name")
    named: list[str | None] = []
    for each in options.config:
        training, config = training_of(each, options.train)
        allow_code(config, trust=training.trust_code)
        check_job(config, host, options.job)
        if config.run_name is not None and config.run_name in named:
            raise ConfigError(f"run_name is {config.run_name!r} in several of the configs", "Give each another one")
        copy = None if config.run_name is None else read_copy(RunFolder(Path(config.runs_dir) / config.run_name))
        if config.run_name is not None and (copy is None or copy.stage != "sending"):  # one that was cut is looked at
            check_run_name_free(Path(config.runs_dir), config.run_name)
        named.append(config.run_name)
    for each in options.config:
        start(argparse.Namespace(**{**vars(options), "config": [each]}))
    return FINISHED


def check(options: argparse.Namespace) -> int:
    """`check`."""
    host = _host(options)
    _require_slurm(options, host)
    training, config = training_of(options.config, options.train)
    allow_code(config, trust=training.trust_code)
    others = _others(options, host)
    config = for_machines(config, host, others)
    check_job(config, host, options.job)
    flags = {} if host.slurm else {"require_multi_gpu": training.require_multi_gpu}
    code = check_there(config, host, flags, echo, given=options.job, others=others)
    echo(f"Nothing was started on {host.name}{'' if code == FINISHED else ', and it could not be: see above'}.")
    return code


def preflight(options: argparse.Namespace) -> int:
    """`preflight`."""
    host, config = _host(options), None
    if options.config is not None:
        training, config = training_of(options.config, options.train)
        allow_code(config, trust=training.trust_code)
    told, last = 0, PreflightReport("")

    def show(report: PreflightReport) -> None:
        nonlocal told, last
        for cell in report.cells[told:]:
            for line in cell.lines():
                echo(line)
        told, last = max(told, len(report.cells)), report
        if options.json is not None:
            report.save(Path(options.json))

    code = preflight_there(config, host, ["--test", options.test], echo, show)
    if last.cells:
        for line in last.end():
            echo(line)
    return code


def _resume(options: argparse.Namespace, host: Host) -> int:
    """`start --resume`, with the settings that the run has there; data that is missing there by now is sent again."""
    if options.train:
        raise ConfigError(
            f"{options.train[0]} cannot be used with --resume: the run goes on as it was set", "Leave it out"
        )
    _copy_of(RunFolder(Path(options.runs_dir) / options.config), host, options.config)
    token = os.environ.get("HF_TOKEN", "") if options.send_token else ""
    with opened_copy(options.runs_dir, options.config, host.name) as folder:
        before = read_copy(folder)
        assert before is not None  # as it was above
        others = _others(options, host, before.joined)
        is_cut = before.stage == "sending" and before.resumes and bool(before.id)
        if is_cut and is_started(folder, host, before.id, echo):
            start_id = before.id
            let_join(folder, load_config(folder.config_file), host, start_id, token, echo, others)
        else:
            start_id = _resume_copy(folder, before, host, token, others, options.job)
        mark_copy(folder, Copy(machine=host.name, id=start_id, joined=[each.name for each in others]))
    _go_on(options, folder, host, options.runs_dir)
    return FINISHED


def _resume_copy(
    folder: RunFolder, before: Copy, host: Host, token: str, others: Sequence[Host], given: Sequence[str]
) -> str:
    """The id of the start that resumes it there; the copy is as `before` if that is known not to have come about."""
    config = load_config(folder.config_file)
    allow_code(config, trust=False)
    config, flags = resumed_with(config, host, others)
    pushes = send_data(config, host, "", echo, others=others)
    names = [each.name for each in others]
    copy = Copy(machine=host.name, stage="sending", resumes=True, id=new_start_id(resumes=True), joined=names)
    mark_copy(folder, copy)
    try:
        start_there(folder, config, host, copy.id, flags, token, pushes, echo, others, given=given)
    except BaseException:
        if not may_have_started(folder, host, copy.id, echo):
            mark_copy(folder, before)
        raise
    return copy.id


def _go_on(options: argparse.Namespace, folder: RunFolder, host: Host, runs_dir: str) -> None:
    """After the start there, follow and pull beside the copy if a command is to run then, or say how it is done."""
    if off := call_off(host.name):
        echo(off)
    if not host.then:
        echo(f"{_begun(host)}. It needs no connection. Its copy here: {folder.path}")
        named = argparse.Namespace(name=host.name, run=folder.name, runs_dir=runs_dir)
        echo(f"Follow it with: {_command('follow', named)}")
        return
    copy = read_copy(folder)
    assert copy is not None  # which this program has written
    keep_command(copy.id, host)
    mark_copy(folder, copy.model_copy(update={"attended": True}))
    launch_attendant(RunFolder(folder.path.absolute()))
    echo(f"{_begun(host)}. It needs no connection. Its copy here: {folder.path}")
    idle = f" and {host.name} has been idle for {in_words(60 * host.idle_minutes)}" if host.idle_minutes else ""
    echo(
        f"It is followed and pulled in the background, and your command runs once all is here{idle}: see "
        "log/remote.txt of the copy. If this computer was off meanwhile, the window goes on with it, or follow and "
        "pull do."
    )


def _begun(host: Host) -> str:
    return f"In the queue of {host}" if host.slurm else f"Started on {host}"


def follow(options: argparse.Namespace) -> int:
    """`follow`."""
    host = _host(options)
    try:
        return _follow(host, options)
    except KeyboardInterrupt:
        echo(_left_alone(options))
        return INTERRUPTED


def _left_alone(options: argparse.Namespace) -> str:
    return f"Not followed any longer; it goes on there. Stop it with: {_command('stop', options)}"


def _follow(host: Host, options: argparse.Namespace) -> int:
    with opened_copy(options.runs_dir, options.run, host.name) as folder:
        remember_copies_in(folder.path.parent)
        follower = Follower(folder, echo, host.python or DEFAULT_PYTHON, _Teller())
        code = with_reconnects(host, echo, follower.follow)
        mark_stage(folder, "pulling")
        copy = read_copy(folder)
        others = still_listed([] if copy is None else copy.joined)
        bring_logs(folder, others)
    if code is None:
        why = "it was killed, or the machine was restarted" if follower.job is None else str(follower.job).rstrip(".")
        raise HostError(
            f"{options.run} has ended on {host} without an exit code: {why}",
            "Its backups are there: pull them, and resume here with --resume",
        )
    took = time_and_cost(follower.seconds, together(host, others))
    echo(f"{options.run} has ended on {host} with exit code {code} after {took}.")
    echo(f"Get its results: {_command('pull', options)}")
    return code


def tensorboard(options: argparse.Namespace) -> int:
    """`tensorboard`: here, of the copy, whose files are those there, so that nothing has to listen there."""
    host = _host(options)
    folder = RunFolder(Path(options.runs_dir) / options.run)
    copy = _copy_of(folder, host, options.run)
    has_config = folder.config_file.is_file()  # one that only follow has made here has none before it follows
    if not folder.tensorboard_dir.is_dir() and has_config and not load_config(folder.config_file).tensorboard:
        raise ConfigError(
            f"{options.run} writes no files for TensorBoard: tensorboard is false in its config",
            f"See its curves with: python scripts/monitor.py {folder.path}",
        )
    server, is_followed = TensorBoardServer(folder, options.port), False
    try:
        while not server.answers():
            if not server.runs:
                raise ConfigError(f"TensorBoard did not start: {server.last_log_line()}")
            time.sleep(0.1)
        echo(f"TensorBoard of the runs in {folder.path.parent}: {server.url} It ends with this program: Ctrl-C.")
        if copy.stage == "running" and find_launcher(folder) is None:
            is_followed = True
            try:
                _follow(host, options)
            except HostError as error:
                echo(f"{error} TensorBoard shows what is here.")
            is_followed = False
        server.wait()
        raise ConfigError(f"TensorBoard has ended: {server.last_log_line()}")
    except KeyboardInterrupt:
        if is_followed:
            echo(_left_alone(options))
        return FINISHED
    finally:
        server.stop()


def _copy_of(folder: RunFolder, host: Host, run: str) -> Copy:
    """What is known of the copy of a run on this machine. Raises ConfigError if it is none."""
    check_run_name(run)
    if (copy := read_copy(folder)) is None:
        raise ConfigError(
            f"{folder.path} is not the copy of a run on another machine",
            f"Bring it here first: python scripts/remote.py follow {host.name} {run}",
        )
    require_machine(folder, copy, host.name)
    return copy


class _Teller:
    """Says what is new of a job, but not that the time at which it may start has moved."""

    def __init__(self) -> None:
        self._last: Job | None = None

    def __call__(self, job: Job) -> None:
        same = {"starts": None}
        if self._last is None or job.model_copy(update=same) != self._last.model_copy(update=same):
            echo(str(job))
        self._last = job


def stop(options: argparse.Namespace) -> int:
    """`stop`."""
    host = _host(options)
    stop = {"run": options.run, "command": FORCE_STOP if options.force else "stop", "content": ""}
    try:
        answer = with_reconnects(
            host, echo, lambda link: link.ask(_Taken, "command", **stop, python=host.python or DEFAULT_PYTHON)
        )
    except Unreachable as error:
        if waits := what_waits(host.name):
            echo(f"{waits} Call it off without a connection: {_add_without_command(host)}")
        raise HostError(
            f"{error.message}. {options.run} goes on there: nothing has asked it to stop",
            "Try again when there is a connection, or switch the machine off where you rent it; what was brought here "
            "stays here",
        ) from error
    asked = "It is ended at once; " if options.force else "It will back up and stop; "
    asked = "Its job has left the queue; " if answer.has_waited else asked
    said = f"{asked}follow shows its end." if answer.is_active else f"It has ended already. {call_off(host.name)}"
    echo(f"{options.run} on {host}: {said}".rstrip())
    return FINISHED


def pull_results(options: argparse.Namespace) -> int:
    """`pull`."""
    host = _host(options)
    if not _BACKUP.fullmatch(options.backups):
        raise ConfigError(f"--backups is {options.backups!r}; use latest, all, none or a name such as step-000100")
    with opened_copy(options.runs_dir, options.run, host.name) as folder:
        came = list[str]()

        def bring(link: Link) -> None:
            came.extend(pull(link, folder, options.backups, echo))

        with_reconnects(host, echo, bring)
        copy = read_copy(folder)
        if copy is not None and copy.stage in ("pulling", "complete"):
            mark_copy(folder, copy.model_copy(update={"stage": "complete", "said": "", "done": None, "fault": ""}))
        echo(f"{', '.join(came) if came else 'Nothing new'} in {folder.path}: the same as on {host}, to the byte.")
        run_command_after(folder, host, options.backups, echo)
    if needs_waiter(host.name):
        launch_attendant(RunFolder(folder.path.absolute()))
    if waiting := waiting_command(host.name):  # whose program may just begin
        echo(f"{waiting[1]} {_CALLED_OFF}")
    return FINISHED


def show_list(options: argparse.Namespace) -> int:
    """`list`."""
    host = _host(options)
    there = runs_there(host, echo)
    width = max((len(run.name) for run in there.runs), default=0)
    for run in there.runs:
        echo(printable(f"{run.name:<{width}}  {run}, {time_and_cost(run.seconds, host)}"))
    echo(str(there))
    _say_devices(host)
    _say_what_waits(host)
    if host.price and len(there.runs) > 1:
        echo(f"Runs in all: {time_and_cost(sum(run.seconds for run in there.runs), host)}.")
    return FINISHED


def _say_devices(host: Host) -> None:
    """As the machine says now; as it has said last, if it does not answer, such as before `setup`."""
    with suppress(HostError):
        ask_host(host)
    echo(printable(known_hardware(host)))


def _say_what_waits(host: Host) -> None:
    if waits := what_waits(host.name):
        echo(f"{waits} {_CALLED_OFF}")


def clean_up(options: argparse.Namespace) -> int:
    """`clean`."""
    host = _host(options)
    what = named_for_removal(options.run, everything=options.all)
    if options.all and (queued := queued_for(host.name)):
        echo(f"Note: {queued}")
    if not options.yes and not confirmed(f"Remove {what} on {host}? What was pulled stays here. [y/N] "):
        if not is_interactive():
            raise ConfigError("nobody is there to ask whether it may be removed", "Give --yes")
        return FINISHED
    echo(clean(host, options.run, everything=options.all, echo=echo))
    return FINISHED


def attend_to_copy(options: argparse.Namespace) -> int:
    """`attend`."""
    attend(Path(options.run_folder), echo)
    return FINISHED


def _command(action: str, options: argparse.Namespace) -> str:
    """What to type for a run."""
    folder = [] if action == "stop" or options.runs_dir == "runs" else ["--runs_dir", options.runs_dir]
    return shlex.join(["python", "scripts/remote.py", action, options.name, options.run, *folder])


def _add_without_command(host: Host) -> str:
    return shlex.join(["python", "scripts/remote.py", "add", host.name, host.target, "--then", ""])


def _host(options: argparse.Namespace) -> Host:
    return find_hosts([options.name], ADD)[0]


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "add": add,
    "setup": setup,
    "check": check,
    "preflight": preflight,
    "start": start,
    "follow": follow,
    "stop": stop,
    "pull": pull_results,
    "tensorboard": tensorboard,
    "list": show_list,
    "clean": clean_up,
    "attend": attend_to_copy,
}


if __name__ == "__main__":
    sys.exit(main())
