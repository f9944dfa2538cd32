"""The program that answers on the other machine: it keeps everything of Tandem's there in one folder.

Its text, with the other files that link.py names, is sent over ssh at the start of each connection and run by any
Python from 3.8 on, so it needs nothing but the standard library, is never of another version than this side, and leaves
no file. Both sides speak in messages (far_messages.py); the other side is modules/run/remote/link.py. What this one
does in runs on several machines is in far_part.py.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Any

from modules.run.remote.far_files import PLAIN, StateFiles, bytes_in, listed, read_bytes, remove, sha256, write
from modules.run.remote.far_followed import KEPT_SECRET, FollowedRun, files_in, require_beginning
from modules.run.remote.far_locks import FILES_OF_LOCKS, Locks
from modules.run.remote.far_messages import MARK, MOST_DATA, PIECE, Broken, Busy, Refused, receive, send
from modules.run.remote.far_runs import RESUMES, Runs
from modules.run.remote.far_sent import SentFiles
from modules.run.remote.slurm_jobs import SlurmFault, SlurmRuns, find_commands

FORCE_STOP = "force_stop"  # what is asked of a run beside its own commands
COMMANDS = ("stop", "backup", "save", "sample", "custom_sample", FORCE_STOP)

_MARKER = ".tandem"
_MARKER_TEXT = "Everything in this folder is Tandem's, sent from another computer: tandem remote clean removes it.\n"
_DATA = ("data", "partial", "cache", "programs", "manifest.json")
_OWN = (*_DATA, "code", "config", "runs", "state", "rescued")  # and with the folder itself:
_WITH_THE_FOLDER = (*FILES_OF_LOCKS, _MARKER)
_PARTIAL = re.compile(r"\.manifest\.json-\d+")
_POLL_S = 0.5
_ENDS_WITHIN_S = 60.0  # a preflight that is asked to, with what it has started
_TRIES_AGAIN_S = 2.0  # what Slurm was too busy for
_STILL_THERE_S = 1.0  # after which the other side may say something, too
_RESULTS = ("model", "best", "saves")
_ENDS_A_RUN = """import pathlib, sys
from modules.run.folder.run_folder import RunFolder
from modules.run.supervise.force_stop import force_stop
force_stop(RunFolder(pathlib.Path(sys.argv[1])))"""


class FarSide:
    """Does what it is asked in the folder `home`, and answers."""

    def __init__(self, folder: str, source: IO[bytes], answers: IO[bytes]) -> None:
        self.home = os.path.abspath(os.path.expanduser(folder))
        self._source, self._answers = source, answers
        self._variables = {  # what programs keep for later is here, too: hub models, packages, kernels, answers
            "XDG_CACHE_HOME": self._at("programs"),
            "TRITON_CACHE_DIR": self._at("programs", "triton"),
            "TANDEM_CONFIG_DIR": self._at("config"),
        }
        self._locks, self._sent, self._state = Locks(self.home), SentFiles(self.home), StateFiles(self._at("state"))
        self._slurm = SlurmRuns(self._state, self.home, self._variables)
        self._runs = Runs(self.home, self._locks, self._state, self._slurm)

    def serve(self) -> None:
        """Until the other side ends."""
        actions: dict[str, Callable[[dict[str, Any], bytes], None]] = {
            name[3:]: getattr(self, name) for name in dir(self) if name.startswith("do_")
        }
        try:
            while (message := receive(self._source)) is not None:
                asked = json.loads(message[0])
                try:
                    is_cleaned = asked["do"] == "clean" and asked["all"] and self._is_gone()
                    if asked["do"] not in ("hello", "make") and not self._is_own() and not is_cleaned:
                        raise Refused(f"Tandem has no folder {self.home} there; start with setup")
                    actions[asked["do"]](asked, message[1])
                except (Refused, SlurmFault) as error:
                    self._answer(error=str(error), passes=isinstance(error, Busy))
                except OSError as error:  # one without a name is of writing the file that is sent, to a full disk
                    where = error.filename or asked.get("path") or self.home
                    self._answer(error=f"{where}: {error.strerror}")
        finally:
            if self._is_own():
                self._sent.save()
            self._locks.close()

    def _answer(self, data: bytes = b"", **message: Any) -> None:
        send(self._answers, message, data)

    # The folder

    def do_hello(self, _asked: dict[str, Any], _data: bytes) -> None:
        place = self.home
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        self._answer(
            home=self.home,
            is_ours=self._is_own(),
            free=shutil.disk_usage(place).free,
            python="{}.{}.{}".format(*sys.version_info[:3]),
            system=sys.platform,
        )

    def do_make(self, _asked: dict[str, Any], _data: bytes) -> None:
        """Make the folder, which must be new, empty or Tandem's."""
        if sys.platform == "win32":
            raise Refused("Windows there is not supported; Linux and macOS are")
        is_new = not os.path.lexists(self.home) or self._is_own()
        if not is_new and (os.path.islink(self.home) or not os.path.isdir(self.home) or os.listdir(self.home)):
            raise Refused(f"{self.home} exists there and was not made by Tandem; choose another --folder")
        os.makedirs(self.home, 0o700, exist_ok=True)
        if os.stat(self.home).st_uid != os.geteuid():
            raise Refused(f"{self.home} belongs to another user there; choose another --folder")
        os.chmod(self.home, 0o700)
        with open(self._at(_MARKER), "w") as file:
            file.write(_MARKER_TEXT)
        self._answer()

    def _is_gone(self) -> bool:
        """Whether there is no folder, or an empty one that a killed `clean` may have left."""
        is_empty = os.path.isdir(self.home) and not os.path.islink(self.home) and not os.listdir(self.home)
        return not os.path.lexists(self.home) or is_empty

    def _is_own(self) -> bool:
        return os.path.isfile(self._at(_MARKER))

    def _at(self, *parts: str) -> str:
        return os.path.join(self.home, *parts)

    # Files that come here

    def do_compare(self, asked: dict[str, Any], _data: bytes) -> None:
        """Which of the files (path, size, date) are not known to be here; their hashes are not asked for."""
        self._locks.keep_all()
        self._answer(numbers=self._sent.unknown(asked["files"]))

    def do_offer(self, asked: dict[str, Any], _data: bytes) -> None:
        """Where each file (path, size, date, sha256) is to go on; -1: it is here."""
        self._locks.keep_pushes(asked["session"])
        self._answer(numbers=[self._sent.offset(*each) for each in asked["files"]])

    def do_put(self, asked: dict[str, Any], data: bytes) -> None:
        """A piece of a file; no answer unless something is wrong, which is said once."""
        self._sent.put(asked, data)

    def do_saved(self, _asked: dict[str, Any], _data: bytes) -> None:
        """All that was put before is here."""
        self._sent.save()
        self._answer()

    def do_prune(self, asked: dict[str, Any], _data: bytes) -> None:
        """Remove from the sent `folders` what was not compared before: no run is to read what is not there any more."""
        found = [path for folder in asked["folders"] for path in self._sent.unnamed(folder)]
        if found:
            self._locks.keep_pushes(asked["session"])
        for path in found:
            self._sent.require_removable(path)
            place = self._sent.place(path)
            for name in self._runs.active() if path.startswith("data/") else ():
                if self._runs.may_read(name, place):
                    raise Refused(
                        f"the active run {name} may read {place}, which is not any more in the folder that is sent; "
                        "stop it, or wait until it has ended"
                    )
        for path in found:
            self._sent.remove(path)
        self._answer()

    # Programs

    def do_run_setup(self, _asked: dict[str, Any], _data: bytes) -> None:
        """Run setup.sh, and tell each line it prints; one at a time, also after a connection was lost."""
        with self._wait_for_setup() as lock:
            self._run_and_tell(["sh", self._at("code", "scripts", "setup.sh")], lock.fileno())  # as long as it lives

    def _run_and_tell(self, argv: list[str], *descriptors: int) -> None:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._at("code"),
            env={**os.environ, **self._variables},
            pass_fds=descriptors,
        )
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._answer(line[:PIECE], line=True)
        self._answer(code=process.wait())

    def _wait_for_setup(self) -> IO[str]:
        """Its lock. Raises Broken if the other side ends before it is free."""
        is_told = False
        while (lock := self._locks.take("setup.lock")) is None:
            if not is_told:
                self._answer(b"A setup that was begun before is still at work there; waiting for its end.", line=True)
            is_told = True
            if select.select([self._source], [], [], _POLL_S)[0]:
                raise Broken("the other side has gone")
        return lock

    def do_check(self, asked: dict[str, Any], _data: bytes) -> None:
        """Before anything is sent: whether a run of this name, if it has one, can be started with these paths."""
        if asked["run"]:
            name = self._runs.name(asked["run"])
            is_active = self._runs.is_active(name)
            if is_active or self._runs.is_in_the_way(name):
                raise self._taken(asked, is_active=is_active)
        python = self._python(asked["python"])
        if shutil.which(python) is None:
            raise Refused(f"there is no Python {python} there; run setup again, or setup --python PATH")
        for name, path in asked["paths"]:
            place = os.path.expanduser(path)
            if not (os.path.isabs(place) and os.path.exists(place)):
                raise Refused(f"{name} is {path!r}, which is neither on the computer that starts the run nor there")
        self._answer()

    def do_dry_run(self, asked: dict[str, Any], _data: bytes) -> None:
        """What train.py, or submit_slurm.py, says of a config that it is not to start, line by line, and its exit
        code."""
        program, only = "scripts/train.py", "--dry_run"
        if asked.get("slurm"):
            find_commands()
            program, only = "scripts/submit_slurm.py", "--test_only"
        os.makedirs(self._at("partial"), exist_ok=True)
        config = self._at("partial", f"check-{os.getpid()}.json")
        try:
            write(config, asked["config"])
            argv = [self._python(asked["python"]), program, "--config", config, only]
            self._run_and_tell([*argv, *asked["arguments"], *asked.get("slurm", ()), *asked.get("given", ())])
        finally:
            remove(config)

    def do_preflight(self, asked: dict[str, Any], _data: bytes) -> None:
        """Run preflight.py, with a config or without, and tell its lines, its report (JSON) whenever it has changed,
        and its exit code. It ends with this connection, or at any request."""
        self._locks.keep_all()
        os.makedirs(self._at("partial"), exist_ok=True)
        config, report = (self._at("partial", f"preflight-{os.getpid()}{end}.json") for end in ("", "-report"))
        argv = [self._python(asked["python"]), "scripts/preflight.py", "--stop_from_stdin", "--json", report]
        try:
            if asked["config"]:
                write(config, asked["config"])
                argv += ["--config", config]
            process = subprocess.Popen(
                [*argv, *asked["arguments"]],
                stdin=subprocess.PIPE,  # of which the end stops it, also if this program is killed
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._at("code"),
                env={**os.environ, **self._variables},
                start_new_session=True,
            )
            try:
                self._tell_of_preflight(process, report)
            finally:
                _end(process)
        finally:
            remove(config)
            remove(report)

    def _tell_of_preflight(self, process: subprocess.Popen[bytes], report: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        output, pending, seen, told = process.stdout.fileno(), b"", b"", time.monotonic()
        while True:
            ready = select.select([output, self._source.fileno()], [], [], _POLL_S)[0]
            if self._source.fileno() in ready:
                if receive(self._source) is None:
                    raise Broken("the other side has gone")
                process.stdin.close()  # any request asks it to stop; its last lines and its exit code follow
            data = os.read(output, PIECE) if output in ready else None
            *lines, pending = (pending + (data or b"")).split(b"\n")
            for line in [*lines, *([pending] if pending and data == b"" else [])]:
                self._answer(line[:PIECE], line=True)
                told = time.monotonic()
            pending = pending[-PIECE:]
            found = read_bytes(report, MOST_DATA)
            if found and found != seen:
                self._answer(found, report=True)
                seen, told = found, time.monotonic()
            if data == b"":
                self._answer(code=process.wait())
                return
            if time.monotonic() - told > _STILL_THERE_S:  # so that a lost connection is noticed
                self._answer(still=True)
                told = time.monotonic()

    def _taken(self, asked: dict[str, Any], *, is_active: bool) -> Refused:
        name, machine = asked["run"], asked["machine"]
        what = f"the run {name} is active there" if is_active else f"a run {name} is there already"
        return Refused(
            f"{what}; choose another run name (--run_name), bring it here (tandem remote follow {machine} {name}), or "
            f"remove it there: tandem remote clean {machine} {name}"
        )

    def do_start(self, asked: dict[str, Any], _data: bytes) -> None:
        """Start a run in a session of its own, which needs no connection. Asked again with the same id, it is there."""
        name = self._runs.name(asked["run"])
        self._locks.keep_all()
        is_known, lock = self._runs.is_known(name, asked["id"]), self._runs.lock(name)
        while lock is None and is_known and asked.get("slurm"):  # an earlier connection of this start still submits it
            time.sleep(_POLL_S)
            lock, is_known = self._runs.lock(name), self._runs.is_known(name, asked["id"])  # not if that was refused
        said: list[str] = []
        if lock is None:
            if not is_known:
                raise self._taken(asked, is_active=True)
        else:
            with lock:
                if not is_known and self._slurm.is_alive(name):
                    raise self._taken(asked, is_active=True)
                if asked["id"].startswith(RESUMES):
                    self._require_backup(asked)
                elif not is_known and self._runs.is_in_the_way(name):
                    raise self._taken(asked, is_active=False)
                if not (is_known and self._runs.has_begun(name, asked["id"])):
                    said = self._launch(name, asked, lock.fileno())
        answer: dict[str, Any] = {"said": said} if said else {}
        self._answer(**answer)

    def do_started(self, asked: dict[str, Any], _data: bytes) -> None:
        """Whether the start with this id has come about, and its run has not been removed."""
        name = self._runs.name(asked["run"])
        is_started = self._runs.is_known(name, asked["id"]) and (
            self._runs.is_active(name) or self._runs.has_begun(name, asked["id"])
        )
        self._answer(is_started=is_started)

    def _require_backup(self, asked: dict[str, Any]) -> None:
        name = asked["run"]
        folder = self._runs.folder(name)
        has_run = os.path.exists(os.path.join(folder, "events.jsonl")) or not self._slurm.job_id(name)
        has_lost = has_run and not self._runs.backups(name)  # a job that left the queue has lost nothing
        if asked["needs_backup"] and has_lost:
            raise Refused(f"the run {name} has no backup there to be resumed from")

    def _launch(self, name: str, asked: dict[str, Any], lock: int) -> list[str]:
        """Start it; what the person at the other side should know."""
        folder = self._runs.path(name)
        resumes = asked["id"].startswith(RESUMES)
        if asked.get("slurm"):
            argv = [self._python(asked["python"]), "scripts/submit_slurm.py"]
            return self._slurm.submit(name, asked, argv, lock, resumes=resumes)
        self._state.remove(name, "exit", "jobs", "part")  # of an earlier start; before the id says whose they would be
        remove(os.path.join(folder, KEPT_SECRET))  # of a killed start
        self._state.write(name, "id", asked["id"])
        for each in ("commands", "samples", "backup", "log"):
            os.makedirs(os.path.join(folder, each), exist_ok=True)
        config = os.path.join(folder, "config.json")
        if not resumes:
            write(config, asked["config"])
        script = (
            'times=$1; shift; echo "start $(date +%s)" >>"$times"; "$@"; code=$?; echo "end $(date +%s)" >>"$times"; '
            'echo $code >"$0.new" && mv "$0.new" "$0"'
        )
        argv = [self._python(asked["python"]), "scripts/train.py", "--config", config, "--start_in", folder]
        argv += ["--resume", "latest"] if resumes else []
        with open(os.path.join(folder, "log", "console.txt"), "ab" if resumes else "wb") as console:
            self._begin(script, argv, asked, console, lock, subprocess.DEVNULL)
        return []

    def _begin(
        self, script: str, argv: list[str], asked: dict[str, Any], output: IO[bytes], lock: int, stdin: int
    ) -> subprocess.Popen[bytes]:
        """Start a script that keeps the exit code and the times of a run, in a session of its own."""
        token = {"HF_TOKEN": asked["token"]} if asked["token"] else {}
        kept = [self._state.path(asked["run"], kind) for kind in ("exit", "times")]
        return subprocess.Popen(
            ["/bin/sh", "-c", script, *kept, *argv, *asked["arguments"]],
            stdin=stdin,
            stdout=output,
            stderr=output,
            cwd=self._at("code"),
            env={**os.environ, **self._variables, **asked.get("variables", {}), **token},
            start_new_session=True,
            pass_fds=[lock],  # held for as long as what is started or its shell lives
        )

    def _python(self, given: str) -> str:
        path = os.path.expanduser(given)
        return path if "/" not in path or os.path.isabs(path) else self._at("code", path)

    # Runs

    def do_runs(self, _asked: dict[str, Any], _data: bytes) -> None:
        """All runs, and what the folder holds besides."""
        self._runs.remove_tokens()
        found = [
            {
                "name": name,
                "is_active": self._runs.is_active(name),
                "job": self._slurm.job(name),
                "code": self._runs.exit_code(name),
                "bytes": bytes_in(self._runs.path(name)),
                "seconds": self._runs.seconds(name),
                "part_of": self._state.read(name, "part"),
            }
            for name in sorted(self._runs.names(), key=lambda name: os.path.getmtime(self._runs.path(name)))
        ]
        others = {each: bytes_in(self._at(each)) for each in ("data", "cache", "programs")}
        self._answer(runs=found, others=others, free=shutil.disk_usage(self.home).free)

    def do_activity(self, _asked: dict[str, Any], _data: bytes) -> None:
        """What goes on here: the active runs with the GPUs that they take, and whether files are being sent, compared
        or read, or an environment is installed."""
        sends, installs = (self._locks.is_held(each) for each in ("push.lock", "setup.lock"))
        reads = self._locks.is_held("use.lock", alone=False)
        runs = self._runs.active()[:100]
        devices = [self._runs.devices(name) for name in runs]
        self._answer(runs=runs, devices=devices, sends=sends, installs=installs, reads=reads)

    def do_command(self, asked: dict[str, Any], _data: bytes) -> None:
        """Ask an active run for something, as a file in its commands/ does, or end it at once."""
        name, command = asked["run"], asked["command"]
        folder = self._runs.folder(name) if command == FORCE_STOP else self._runs.own_folder(name)
        if command not in COMMANDS:
            raise Refused(f"{command!r} is no command of a run; use one of {', '.join(COMMANDS)}")
        is_active, has_waited = self._runs.is_active(name), False
        is_end = is_active and command in ("stop", FORCE_STOP) and bool(self._slurm.job_id(name))
        if is_end and (has_waited := self._slurm.leave_queue(name)):
            pass
        elif is_end and command == FORCE_STOP:
            self._slurm.end(name)
        elif is_active and command == FORCE_STOP:
            argv = [self._python(asked["python"]), "-c", _ENDS_A_RUN, folder]
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2, cwd=self._at("code"))
        elif is_active:
            write(os.path.join(folder, "commands", command), asked["content"])
        self._answer(is_active=is_active, has_waited=has_waited, taken=command)

    def do_follow(self, asked: dict[str, Any], _data: bytes) -> None:
        """Send what is new until the run has ended, and then its exit code.

        `logs` are the sizes of the copies over there, `digest` is the hash of that of the events, `wholes` are the
        sizes of samples and reports. Commands to the run may come meanwhile.
        """
        name = asked["run"]
        folder = self._runs.own_folder(name)
        self._locks.keep_all()
        require_beginning(folder, asked["logs"].get("events.jsonl", 0), asked["digest"])
        if asked["config"]:
            with open(os.path.join(folder, "config.json"), "rb") as file:
                self._answer(file.read(MOST_DATA), file="config.json", last=True)
        followed = FollowedRun(folder, self._answer, asked["logs"], asked["wholes"])
        told, told_job = time.monotonic(), None
        command: tuple[dict[str, Any], bytes] | None = None  # that has no answer yet
        tried = -_TRIES_AGAIN_S
        while True:
            is_active = self._runs.is_active(name)  # before what it wrote last is looked for
            if has_sent := followed.send_new():
                told = time.monotonic()
            if (job := self._slurm.job(name)) != told_job:
                told_job = job
                self._answer(job=job)
            if not (is_active or has_sent):
                self._slurm.remove_token(name)
                self._answer(end=True, code=self._runs.exit_code(name), seconds=self._runs.seconds(name))
                return
            if time.monotonic() - told > _STILL_THERE_S:  # so that a lost connection is noticed
                self._answer()
                told = time.monotonic()
            if command is not None:
                time.sleep(_POLL_S)
            elif select.select([self._source], [], [], _POLL_S)[0]:  # which waits for the answer to each command
                message = receive(self._source)
                if message is None:
                    raise Broken("the other side has gone")
                command = json.loads(message[0]), message[1]
            if command is not None and time.monotonic() - tried >= _TRIES_AGAIN_S:
                try:
                    self.do_command(*command)
                    command = None
                except SlurmFault:  # which passes, as its controller is often too busy to answer
                    tried = time.monotonic()

    def do_results(self, asked: dict[str, Any], _data: bytes) -> None:
        """Path, size and sha256 of all files of the model and of the chosen backups."""
        name = asked["run"]
        folder = self._runs.own_folder(name)
        self._locks.keep_all()
        require_beginning(folder, asked["events"], asked["digest"])
        backups = self._runs.backups(name)
        wanted = {"none": [], "all": backups, "latest": backups[-1:]}.get(asked["backups"], [asked["backups"]])
        if missing := [each for each in wanted if each not in backups]:
            raise Refused(f"there is no backup {missing[0]} there; its backups are: {', '.join(backups) or 'none'}")
        tops = [each for each in (*_RESULTS, f"{name}.safetensors") if os.path.lexists(os.path.join(folder, each))]
        tops += [f"backup/{each}" for each in wanted]
        found: list[dict[str, Any]] = []
        for top in tops:
            for path in files_in(folder, top):
                place = os.path.join(folder, path)
                found.append({"path": path, "size": os.path.getsize(place), "sha256": sha256(place)})
                if len(found) == 1000:
                    self._answer(files=found, more=True)
                    found = []
        self._answer(files=found, more=False)

    def do_get(self, asked: dict[str, Any], _data: bytes) -> None:
        """The bytes of one file of a run from `offset` on."""
        folder, path = self._runs.folder(asked["run"]), asked["path"]
        self._locks.keep_all()
        if not all(PLAIN.fullmatch(each) for each in path.split("/")):
            raise Refused(f"{path!r} is no file of a run")
        with open(os.path.join(folder, path), "rb") as file:
            file.seek(asked["offset"])
            for piece in iter(lambda: file.read(PIECE), b""):
                self._answer(piece, last=False)
        self._answer(last=True)

    def do_clean(self, asked: dict[str, Any], _data: bytes) -> None:
        """Remove a run, or what runs can fetch again, or everything; nothing that is not Tandem's."""
        name = asked["run"]
        left: list[str] = []
        is_there = self._is_own()
        if not is_there:  # it was cleaned, such as by the same request, whose answer was lost
            if os.path.isdir(self.home):
                os.rmdir(self.home)
        elif name:
            self._runs.folder(name)  # which must be there
            if self._slurm.is_alive(name):
                raise Refused(f"the run {name} is active there, as {self._slurm.described(name)}; stop it first")
            os.makedirs(self._at("state"), exist_ok=True)
            with self._alone(f"state/{name}.lock"):
                self._runs.remove(name)
        else:
            self._require_none_active()  # before the locks, of which its reader may hold one
            with self._alone("push.lock"), self._alone("setup.lock"), self._alone("use.lock"):
                self._require_none_active()
                left = self._clean(is_all=asked["all"])
        answer: dict[str, Any] = {} if is_there else {"is_there": False}
        self._answer(left=left[:100], **answer)

    def _require_none_active(self) -> None:
        if active := self._runs.active():
            raise Refused(self._activity_of(active[0]))

    def _alone(self, name: str) -> IO[str]:
        file = self._locks.take(name)
        if file is not None:
            return file
        run = os.path.basename(name)[: -len(".lock")]
        busy = {
            "push.lock": "data is being sent to this machine; try again after that",
            "setup.lock": "this machine is being set up; try again after that",
            "use.lock": "a run is being started on this machine, or one is read from it; try again after that",
        }
        raise Refused(busy.get(name) or self._activity_of(run))

    def _activity_of(self, run: str) -> str:
        if machine := self._state.read(run, "part"):
            return f"this machine takes part in the run {run}, which is active on {machine}; stop it there first"
        return f"the run {run} is active there; stop it first"

    def _clean(self, *, is_all: bool) -> list[str]:
        """What is left of other people's."""
        self._runs.remove_tokens()
        self._sent.forget()
        removed = [*(_OWN if is_all else _DATA), *filter(_PARTIAL.fullmatch, os.listdir(self.home))]
        places = [self._at(each) for each in removed]
        links = [*places, *(self._at("runs", each) for each in listed(self._at("runs")) if is_all)]
        left = [os.path.realpath(each) for each in links if os.path.islink(each) and os.path.exists(each)]
        for each in places:
            remove(each)
        if is_all:
            others = sorted(each for each in os.listdir(self.home) if each not in _WITH_THE_FOLDER)
            left += others
            if not others:  # while anything is left, the folder is known as Tandem's
                for each in _WITH_THE_FOLDER:
                    remove(self._at(each))
                os.rmdir(self.home)
        return left


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait until a preflight whose standard input has ended has ended its processes; a hanging one is killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        if sys.platform != "win32":
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(folder: str, kind: type[FarSide] = FarSide) -> None:
    """Serve on the standard streams until the other side ends; what programs print here goes to standard error."""
    os.umask(0o077)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answers.write(MARK)
    answers.flush()
    try:
        kind(folder, sys.stdin.buffer, answers).serve()
    except (Broken, BrokenPipeError):
        sys.exit(1)
