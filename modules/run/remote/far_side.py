"""The program that answers on the other machine: it keeps everything of Tandem's there in one folder.

Its text, with far_files.py, slurm_jobs.py and far_part.py, is sent over ssh at the start of each connection and run by
any Python from 3.8 on, so it needs nothing but the standard library, is never of another version than this side, and
leaves no file. Both sides speak in messages: two lengths of 4 bytes, then a JSON object and bytes. The other side is
modules/run/remote/link.py. What it does in runs on several machines is in far_part.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from modules.run.remote.far_files import read as _read
from modules.run.remote.far_files import remove as _remove
from modules.run.remote.far_files import write as _write
from modules.run.remote.slurm_jobs import SlurmFault, SlurmRuns, find_commands

if sys.platform != "win32":  # which has this file only for what both sides share
    import fcntl

MARK = b"\nTANDEM-REMOTE\n"  # before it may be what a login shell prints
MOST_JSON = 4 << 20  # bytes of one message
MOST_DATA = 1 << 20
PIECE = 256 << 10
MOST_LOG = 64 << 20  # bytes of a log that is followed; a longer one stays there
MOST_WHOLE = 64 << 20  # of a sample or a report
LOGS = re.compile(r"events\.jsonl|log/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.txt")  # they only grow
WHOLES = re.compile(r"samples/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}|log/[A-Za-z0-9_-]{1,100}\.error\.json")
KEPT_SECRET = "log/join_line.txt"
RESUMES = "resume-"  # how the id of a start begins that resumes a run
FORCE_STOP = "force_stop"  # what is asked of a run beside its own commands
COMMANDS = ("stop", "backup", "save", "sample", "custom_sample", FORCE_STOP)

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_MARKER = ".tandem"
_MARKER_TEXT = "Everything in this folder is Tandem's, sent from another computer: tandem remote clean removes it.\n"
_DATA = ("data", "partial", "cache", "programs", "manifest.json")
_OWN = (*_DATA, "code", "config", "runs", "state", "rescued")  # and with the folder itself:
_LOCKS = ("push.lock", "setup.lock", "use.lock")  # use.lock: what is here is compared, or read, or a run started
_WITH_THE_FOLDER = (*_LOCKS, "push.again", _MARKER)
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


class Broken(Exception):
    """The other side has gone, or what it sends is no message."""


class Refused(Exception):
    """Why something is not done: one sentence, for the person at the other side."""


class Busy(Refused):
    """As Refused, until what somebody else does here is over."""


def send(pipe: IO[bytes], message: Mapping[str, Any], data: bytes = b"") -> None:
    """Write one message. Raises OSError."""
    text = json.dumps(message).encode()
    pipe.write(struct.pack(">II", len(text), len(data)) + text + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The JSON text and the bytes of the next message; None at the end. Raises Broken."""
    header = pipe.read(8)
    if not header:
        return None
    if len(header) < 8:
        raise Broken("ended in the middle of a message")
    lengths = struct.unpack(">II", header)
    if lengths[0] > MOST_JSON or lengths[1] > MOST_DATA:
        raise Broken("a message is too long")
    text, data = (pipe.read(length) for length in lengths)
    if (len(text), len(data)) != lengths:
        raise Broken("ended in the middle of a message")
    return text, data


class FarSide:
    """Does what it is asked in the folder `home`, and answers."""

    def __init__(self, folder: str, source: IO[bytes], answers: IO[bytes]) -> None:
        self.home = os.path.abspath(os.path.expanduser(folder))
        self._source, self._answers = source, answers
        self._manifest: dict[str, list[Any]] | None = None  # path -> size, date here, date there, sha256
        self._locks: dict[str, IO[str]] = {}  # held until this connection ends
        self._named: set[str] = set()  # the files of the push that were compared
        self._slurm = SlurmRuns(self._at("state"), self._at("runs"))
        self._has_failed = False  # a piece of a file: no more of them are taken, and this was said

    def serve(self) -> None:
        """Until the other side ends."""
        actions: dict[str, Callable[[dict[str, Any], bytes], None]] = {
            name[3:]: getattr(self, name) for name in dir(self) if name.startswith("do_")
        }
        try:
            while (message := receive(self._source)) is not None:
                asked = json.loads(message[0])
                try:
                    if asked["do"] not in ("hello", "make"):
                        self._require_own()
                    actions[asked["do"]](asked, message[1])
                except (Refused, SlurmFault) as error:
                    self._answer(error=str(error), passes=isinstance(error, Busy))
                except OSError as error:  # one without a name is of writing the file that is sent, to a full disk
                    where = error.filename or asked.get("path") or self.home
                    self._answer(error=f"{where}: {error.strerror}")
        finally:
            self._save_manifest()
            for lock in self._locks.values():
                lock.close()

    def _answer(self, data: bytes = b"", **message: Any) -> None:
        send(self._answers, message, data)

    # The folder

    def do_hello(self, _asked: dict[str, Any], _data: bytes) -> None:
        place = self.home
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        self._answer(
            home=self.home,
            is_ours=os.path.isfile(self._at(_MARKER)),
            free=shutil.disk_usage(place).free,
            python="{}.{}.{}".format(*sys.version_info[:3]),
            system=sys.platform,
        )

    def do_make(self, _asked: dict[str, Any], _data: bytes) -> None:
        """Make the folder, which must be new, empty or Tandem's."""
        if sys.platform == "win32":
            raise Refused("Windows there is not supported; Linux and macOS are")
        is_new = not os.path.lexists(self.home) or os.path.isfile(self._at(_MARKER))
        if not is_new and (os.path.islink(self.home) or not os.path.isdir(self.home) or os.listdir(self.home)):
            raise Refused(f"{self.home} exists there and was not made by Tandem; choose another --folder")
        os.makedirs(self.home, 0o700, exist_ok=True)
        if os.stat(self.home).st_uid != os.geteuid():
            raise Refused(f"{self.home} belongs to another user there; choose another --folder")
        os.chmod(self.home, 0o700)
        with open(self._at(_MARKER), "w") as file:
            file.write(_MARKER_TEXT)
        self._answer()

    def _require_own(self) -> None:
        if not os.path.isfile(self._at(_MARKER)):
            raise Refused(f"Tandem has no folder {self.home} there; start with setup")

    def _at(self, *parts: str) -> str:
        return os.path.join(self.home, *parts)

    def _inside(self, path: str) -> str:
        """The place of a path that the other side names: below code/ or data/."""
        parts = path.split("/")
        if parts[0] not in ("code", "data") or len(parts) < 2 or any(each in ("", ".", "..") for each in parts):
            raise Refused(f"{path!r} is no place for a file")
        return self._at(*parts)

    # Files that come here

    def do_compare(self, asked: dict[str, Any], _data: bytes) -> None:
        """Which of the files (path, size, date) are not known to be here; their hashes are not asked for."""
        self._keep_all()
        manifest = self._read_manifest()
        needed = []
        for number, (path, size, date) in enumerate(asked["files"]):
            self._named.add(unicodedata.normalize("NFC", path))  # as a file system there may write it otherwise
            entry = manifest.get(path)
            if not (entry and entry[:2] == [size, date] and self._is_unchanged(path, entry)):
                needed.append(number)
        self._answer(numbers=needed)

    def do_offer(self, asked: dict[str, Any], _data: bytes) -> None:
        """Where each file (path, size, date, sha256) is to go on; -1: it is here."""
        self._lock_pushes(asked["session"])
        found = []
        for path, size, date, digest in asked["files"]:
            place = self._inside(path)
            if self._has(path, place, size, digest):
                self._remember(path, size, date, digest)
                found.append(-1)
                continue
            partial = self._partial(path, digest)
            kept = os.path.getsize(partial) if os.path.exists(partial) else 0
            if kept > size:
                os.unlink(partial)
                kept = 0
            found.append(kept)
        self._answer(numbers=found)

    def do_put(self, asked: dict[str, Any], data: bytes) -> None:
        """A piece of a file; no answer unless something is wrong, which is said once."""
        if self._has_failed:
            return
        self._has_failed = True
        self._take_piece(asked, data)
        self._has_failed = False

    def _take_piece(self, asked: dict[str, Any], data: bytes) -> None:
        path, digest = asked["path"], asked["sha256"]
        place, partial = self._inside(path), self._partial(path, digest)
        os.makedirs(os.path.dirname(partial), exist_ok=True)
        with open(partial, "ab") as file:
            if file.seek(0, os.SEEK_END) != asked["offset"]:
                raise Refused(f"{path} is not where it was left")
            file.write(data)
        if not asked["last"]:
            return
        if _sha256(partial) != digest:
            os.unlink(partial)
            raise Refused(f"{path} has changed while it was sent, or was damaged on its way; start again")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)  # a folder here that is a file there now
        os.replace(partial, place)
        self._remember(path, asked["size"], asked["date"], digest)

    def do_saved(self, _asked: dict[str, Any], _data: bytes) -> None:
        """All that was put before is here."""
        self._save_manifest()
        self._answer()

    def do_prune(self, asked: dict[str, Any], _data: bytes) -> None:
        """Remove from the sent `folders` what was not compared before, so that no run reads what is not there any more.

        What was made in code/ there stays: .venv, __pycache__, tandem.egg-info.
        """
        found = [path for folder in asked["folders"] for path in self._unnamed(folder)]
        if found:
            self._lock_pushes(asked["session"])
        for path in found:
            place = self._inside(path)
            kind, *below = os.path.dirname(path).split("/")
            if os.path.realpath(os.path.dirname(place)) != os.path.join(os.path.realpath(self._at(kind)), *below):
                raise Refused(f"{place} is not in the folder that is sent, and behind a link; remove it, or the link")
            for name in self._active() if path.startswith("data/") else ():
                if self._reads(name, place):
                    raise Refused(
                        f"the active run {name} may read {place}, which is not any more in the folder that is sent; "
                        "stop it, or wait until it has ended"
                    )
        for path in found:
            os.unlink(self._inside(path))
            self._read_manifest().pop(path, None)
        self._answer()

    def _unnamed(self, top: str) -> Iterator[str]:
        is_code = top == "code"
        for folder, folders, files in os.walk(self._at("code") if is_code else self._inside(top)):
            if is_code:
                folders[:] = [each for each in folders if not each.startswith((".", "__")) and ".egg" not in each]
                files = [each for each in files if not each.startswith(".")]
            for each in files:
                path = os.path.relpath(os.path.join(folder, each), self.home)
                if unicodedata.normalize("NFC", path) not in self._named:
                    yield path

    def _reads(self, name: str, place: str) -> bool:
        """Whether the config of a run may name a file, or a folder that it is in; too often rather than not."""
        try:
            with open(self._at("runs", name, "config.json")) as file:
                parts = [each.strip() for each in re.split('[";,]', file.read())]
        except (OSError, ValueError):
            return True
        data, wanted = (json.dumps(each)[1:-1] for each in (self._at("data"), place))
        return any(each.startswith(data) and wanted.startswith(each) for each in parts)

    def _has(self, path: str, place: str, size: int, digest: str) -> bool:
        if not os.path.isfile(place) or os.path.getsize(place) != size:
            return False
        entry = self._read_manifest().get(path)
        is_known = entry is not None and entry[0] == size and self._is_unchanged(path, entry)
        return bool((entry[3] if entry is not None and is_known else _sha256(place)) == digest)

    def _is_unchanged(self, path: str, entry: list[Any]) -> bool:
        try:
            found = os.stat(self._inside(path))
        except OSError:
            return False
        return [found.st_size, found.st_mtime_ns] == [entry[0], entry[2]]

    def _remember(self, path: str, size: int, date: int, digest: str) -> None:
        there = os.stat(self._inside(path)).st_mtime_ns
        self._read_manifest()[path] = [size, date, there, digest]

    def _partial(self, path: str, digest: str) -> str:
        name = hashlib.sha256(f"{path}\0{digest}".encode("utf-8", "surrogateescape")).hexdigest()
        return self._at("partial", name)

    def _read_manifest(self) -> dict[str, list[Any]]:
        if self._manifest is None:
            try:
                with open(self._at("manifest.json")) as file:
                    self._manifest = json.load(file)
            except (OSError, ValueError):  # then what is here is hashed
                self._manifest = {}
        return self._manifest

    def _save_manifest(self) -> None:
        if self._manifest is not None and os.path.isfile(self._at(_MARKER)):
            _write(self._at("manifest.json"), json.dumps(self._manifest))

    def _locked(self, name: str, kind: int) -> IO[str] | None:
        """The open file of a lock that is held now; None if another connection or program holds it."""
        while True:
            file = open(self._at(name), "a+")  # noqa: SIM115
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                if os.path.exists(file.name) and os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                    return file
            except OSError:
                file.close()
                return None
            file.close()  # of a file that was removed meanwhile: its lock keeps nobody out

    def _keep_all(self) -> None:
        """Nothing is cleaned from now on until this connection ends, so that a run finds what was compared."""
        if "use.lock" in self._locks:
            return
        for pause_s in (0.02, 0.05, 0.1, 0.0):  # do_activity holds it for microseconds
            file = self._locked("use.lock", fcntl.LOCK_SH)
            if file is not None:
                self._locks["use.lock"] = file
                return
            time.sleep(pause_s)
        raise Busy("this machine is being cleaned; try again after that")

    def _lock_pushes(self, session: str) -> None:
        """One push at a time. A connection of the same one that was cut, and has not noticed it here, ends itself."""
        if "push.lock" in self._locks:
            return
        for _ in range(100):
            file = self._locked("push.lock", fcntl.LOCK_EX)
            if file is not None:
                break
            if _read(self._at("push.lock")) == session:
                _write(self._at("push.again"), session)
            time.sleep(0.1)
        else:
            raise Busy("another push to this machine is under way; try again after it")
        self._locks["push.lock"] = file
        _remove(self._at("push.again"))
        file.truncate(0)
        file.write(session)
        file.flush()
        threading.Thread(target=self._give_way, args=(session,), daemon=True).start()

    def _give_way(self, session: str) -> None:
        """End this program once a later connection of the same push asks for it. No process id is kept for that: it
        could be another program's by then, or one's in another container."""
        while _read(self._at("push.again")) != session:
            if self._locks["push.lock"].closed:
                return
            time.sleep(0.1)
        os._exit(1)

    # Programs

    def do_run_setup(self, _asked: dict[str, Any], _data: bytes) -> None:
        """Run setup.sh, and tell each line it prints; one at a time, also after a connection was lost."""
        lock = os.open(self._at("setup.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._wait_for(lock)
            self._run_and_tell(["sh", self._at("code", "scripts", "setup.sh")], lock)  # held for as long as it lives
        finally:
            os.close(lock)

    def _run_and_tell(self, argv: list[str], *descriptors: int) -> None:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._at("code"),
            env={**os.environ, **self._variables()},
            pass_fds=descriptors,
        )
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._answer(line[:PIECE], line=True)
        self._answer(code=process.wait())

    def _wait_for(self, lock: int) -> None:
        """Hold the lock. Raises Broken if the other side ends before."""
        is_told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if not is_told:
                    self._answer(
                        b"A setup that was begun before is still at work there; waiting for its end.", line=True
                    )
                is_told = True
            if select.select([self._source], [], [], _POLL_S)[0]:
                raise Broken("the other side has gone")

    def do_check(self, asked: dict[str, Any], _data: bytes) -> None:
        """Before anything is sent: whether a run of this name, if it has one, can be started with these paths."""
        if asked["run"]:
            name = self._run_name(asked)
            is_active = self._is_active(name)
            if is_active or self._is_in_the_way(name):
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
            _write(config, asked["config"])
            argv = [self._python(asked["python"]), program, "--config", config, only]
            self._run_and_tell([*argv, *asked["arguments"], *asked.get("slurm", ()), *asked.get("given", ())])
        finally:
            _remove(config)

    def do_preflight(self, asked: dict[str, Any], _data: bytes) -> None:
        """Run preflight.py, with a config or without, and tell its lines, its report (JSON) whenever it has changed,
        and its exit code. It ends with this connection, or at any request."""
        self._keep_all()
        os.makedirs(self._at("partial"), exist_ok=True)
        config, report = (self._at("partial", f"preflight-{os.getpid()}{end}.json") for end in ("", "-report"))
        argv = [self._python(asked["python"]), "scripts/preflight.py", "--stop_from_stdin", "--json", report]
        try:
            if asked["config"]:
                _write(config, asked["config"])
                argv += ["--config", config]
            process = subprocess.Popen(
                [*argv, *asked["arguments"]],
                stdin=subprocess.PIPE,  # of which the end stops it, also if this program is killed
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._at("code"),
                env={**os.environ, **self._variables()},
                start_new_session=True,
            )
            try:
                self._tell_of_preflight(process, report)
            finally:
                _end(process)
        finally:
            _remove(config)
            _remove(report)

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
            found = _read_bytes(report, MOST_DATA)
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
        name = self._run_name(asked)
        self._keep_all()
        os.makedirs(self._at("state"), exist_ok=True)
        is_known = _read(self._state(name, "id")) == asked["id"]
        lock = self._locked(os.path.join("state", f"{name}.lock"), fcntl.LOCK_EX)
        while lock is None and is_known and asked.get("slurm"):  # an earlier connection of this start still submits it
            time.sleep(_POLL_S)
            lock = self._locked(os.path.join("state", f"{name}.lock"), fcntl.LOCK_EX)
            is_known = _read(self._state(name, "id")) == asked["id"]  # not if that was refused
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
                elif not is_known and self._is_in_the_way(name):
                    raise self._taken(asked, is_active=False)
                if not (is_known and self._has_begun(name, asked["id"])):
                    said = self._launch(name, asked, lock.fileno())
        answer: dict[str, Any] = {"said": said} if said else {}
        self._answer(**answer)

    def do_started(self, asked: dict[str, Any], _data: bytes) -> None:
        """Whether the start with this id has come about, and its run has not been removed."""
        self._answer(is_started=self._is_started(self._run_name(asked), asked["id"]))

    def _is_started(self, name: str, start_id: str) -> bool:
        is_known = _read(self._state(name, "id")) == start_id
        return is_known and (self._is_active(name) or self._has_begun(name, start_id))

    def _require_backup(self, asked: dict[str, Any]) -> None:
        folder = self._run_folder(asked)
        backups = [each for each in _listed(os.path.join(folder, "backup")) if _PLAIN.fullmatch(each)]
        has_run = os.path.exists(os.path.join(folder, "events.jsonl")) or not self._slurm.job_id(asked["run"])
        if asked["needs_backup"] and has_run and not backups:  # a job that left the queue has lost nothing
            raise Refused(f"the run {asked['run']} has no backup there to be resumed from")

    def _has_begun(self, name: str, start_id: str = "") -> bool:
        """A run that has begun is not begun again over what it has made, such as after the machine was restarted. What
        is left of a start that was cut before, such as by a full disk, is none."""
        folder = self._at("runs", name)
        if os.path.isdir(folder) and self._slurm.job_id(name):
            return True
        made = [os.path.join(folder, "events.jsonl"), os.path.join(folder, "log", "console.txt")]
        has_ended = os.path.isdir(folder) and os.path.exists(self._state(name, "exit"))
        if start_id.startswith(RESUMES):  # what is there was made before
            return has_ended
        return has_ended or any(os.path.isfile(each) and os.path.getsize(each) for each in made)

    def _is_in_the_way(self, name: str) -> bool:
        """Whether another run, or a folder that no start has made, has the place of a new one."""
        is_made = bool(_read(self._state(name, "id")))
        return self._has_begun(name) or (os.path.lexists(self._at("runs", name)) and not is_made)

    def _launch(self, name: str, asked: dict[str, Any], lock: int) -> list[str]:
        """Start it; what the person at the other side should know."""
        folder, exit_file, jobs = self._at("runs", name), self._state(name, "exit"), self._state(name, "jobs")
        resumes = asked["id"].startswith(RESUMES)
        if asked.get("slurm"):
            argv = [self._python(asked["python"]), "scripts/submit_slurm.py"]
            code, variables = self._at("code"), self._variables()
            return self._slurm.submit(name, asked, argv, code, variables, lock, resumes=resumes)
        # of an earlier start, the secret of one that was killed; before the id says whose they would be
        for each in (exit_file, jobs, self._state(name, "part"), os.path.join(folder, KEPT_SECRET)):
            _remove(each)
        _write(self._state(name, "id"), asked["id"])
        for each in ("commands", "samples", "backup", "log"):
            os.makedirs(os.path.join(folder, each), exist_ok=True)
        config = os.path.join(folder, "config.json")
        if not resumes:
            _write(config, asked["config"])
        script = (
            'times=$1; shift; echo "start $(date +%s)" >>"$times"; "$@"; code=$?; echo "end $(date +%s)" >>"$times"; '
            'echo $code >"$0.new" && mv "$0.new" "$0"'
        )
        argv = [self._python(asked["python"]), "scripts/train.py", "--config", config, "--start_in", folder]
        argv += ["--resume", "latest"] if resumes else []
        token = {"HF_TOKEN": asked["token"]} if asked["token"] else {}
        with open(os.path.join(folder, "log", "console.txt"), "ab" if resumes else "wb") as console:
            subprocess.Popen(
                ["/bin/sh", "-c", script, exit_file, self._state(name, "times"), *argv, *asked["arguments"]],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                cwd=self._at("code"),
                env={**os.environ, **self._variables(), **asked.get("variables", {}), **token},
                start_new_session=True,
                pass_fds=[lock],  # held for as long as the run or its shell lives
            )
        return []

    def _python(self, given: str) -> str:
        path = os.path.expanduser(given)
        return path if "/" not in path or os.path.isabs(path) else self._at("code", path)

    def _variables(self) -> dict[str, str]:
        """What programs keep for later is here, too: hub models, packages, kernels, answers to questions."""
        return {
            "XDG_CACHE_HOME": self._at("programs"),
            "TRITON_CACHE_DIR": self._at("programs", "triton"),
            "TANDEM_CONFIG_DIR": self._at("config"),
        }

    # Runs

    def _run_name(self, asked: dict[str, Any]) -> str:
        name = asked["run"]
        if not _PLAIN.fullmatch(name):
            raise Refused(f"{name!r} is no name of a run there; use letters a to z, digits, -, _ and ., at most 200")
        return str(name)

    def _run_folder(self, asked: dict[str, Any]) -> str:
        folder = self._at("runs", self._run_name(asked))
        if not os.path.isdir(folder) or os.path.islink(folder):
            names = ", ".join(sorted(self._names())) or "none"
            raise Refused(f"there is no run {asked['run']} there; its runs are: {names}")
        return folder

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._at("runs")) as entries:
                return [e.name for e in entries if _PLAIN.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def _active(self) -> list[str]:
        """Of all runs, also of one whose folder was moved away."""
        locks = [each[: -len(".lock")] for each in _listed(self._at("state")) if each.endswith(".lock")]
        return sorted(each for each in locks if self._is_active(each))

    def _state(self, name: str, kind: str) -> str:
        return self._at("state", f"{name}.{kind}")

    def _recorded(self, name: str, kind: str) -> str:
        """What is kept of a run; "" if nothing."""
        return _read(self._state(name, kind))

    def _record(self, name: str, kind: str, text: str) -> None:
        _write(self._state(name, kind), text)

    def _is_active(self, name: str) -> bool:
        return self._is_held(self._state(name, "lock")) or self._slurm.is_alive(name)

    def _is_held(self, path: str, *, alone: bool = True) -> bool:
        """Whether a program holds this lock, or holds it `alone`."""
        try:
            lock = os.open(path, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if alone else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def _exit_code(self, name: str) -> int | None:
        text = _read(self._state(name, "exit")).strip()
        if not text:  # which the file system may show later than Slurm, or never, of a killed script
            return self._slurm.exit_code(name)
        return int(text) if text.isdecimal() else None

    def _seconds(self, name: str) -> int:
        """How long the starts of a run have taken so far; of one that was killed, until the last that it has told."""
        events, total, begun = self._at("runs", name, "events.jsonl"), 0, 0
        for line in _read(self._state(name, "times")).splitlines():
            word, _, at = line.partition(" ")
            if not at.isdecimal():
                continue
            total += int(at) - begun if begun and word == "end" else 0
            begun = int(at) if word == "start" else 0
        if begun and self._is_active(name):
            total += int(time.time()) - begun
        elif begun and os.path.isfile(events):
            total += max(0, int(os.path.getmtime(events)) - begun)
        return max(0, total)

    def do_runs(self, _asked: dict[str, Any], _data: bytes) -> None:
        """All runs, and what the folder holds besides."""
        self._remove_tokens()
        found = [
            {
                "name": name,
                "is_active": self._is_active(name),
                "job": self._slurm.job(name),
                "code": self._exit_code(name),
                "bytes": _bytes_in(self._at("runs", name)),
                "seconds": self._seconds(name),
                "part_of": self._recorded(name, "part"),
            }
            for name in sorted(self._names(), key=lambda name: os.path.getmtime(self._at("runs", name)))
        ]
        others = {each: _bytes_in(self._at(each)) for each in ("data", "cache", "programs")}
        self._answer(runs=found, others=others, free=shutil.disk_usage(self.home).free)

    def _remove_tokens(self) -> None:
        """Of all runs that have ended or never came about, also without a folder."""
        for name in [each[: -len(".token")] for each in _listed(self._at("state")) if each.endswith(".token")]:
            if not self._is_active(name):
                self._slurm.remove_token(name)

    def do_activity(self, _asked: dict[str, Any], _data: bytes) -> None:
        """What goes on here: the active runs with the GPUs that they take, and whether files are being sent, compared
        or read, or an environment is installed."""
        sends, installs = (self._is_held(self._at(each)) for each in ("push.lock", "setup.lock"))
        reads = self._is_held(self._at("use.lock"), alone=False)
        runs = self._active()[:100]
        devices = [self._devices_of(name) for name in runs]
        self._answer(runs=runs, devices=devices, sends=sends, installs=installs, reads=reads)

    def _devices_of(self, name: str) -> list[int] | None:
        """The indices of the GPUs that a run takes; None for all, or if it does not say."""
        try:
            with open(self._at("runs", name, "config.json")) as file:
                devices = json.load(file)["device_ids"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        is_list = isinstance(devices, list) and len(devices) <= 64
        return devices if is_list and all(type(each) is int and each >= 0 for each in devices) else None

    def do_command(self, asked: dict[str, Any], _data: bytes) -> None:
        """Ask an active run for something, as a file in its commands/ does, or end it at once."""
        folder, name, command = self._run_folder(asked), self._run_name(asked), asked["command"]
        if command not in COMMANDS:
            raise Refused(f"{command!r} is no command of a run; use one of {', '.join(COMMANDS)}")
        is_active, has_waited = self._is_active(name), False
        is_end = is_active and command in ("stop", FORCE_STOP) and bool(self._slurm.job_id(name))
        if is_end and (has_waited := self._slurm.leave_queue(name)):
            pass
        elif is_end and command == FORCE_STOP:
            self._slurm.end(name)
        elif is_active and command == FORCE_STOP:
            argv = [self._python(asked["python"]), "-c", _ENDS_A_RUN, folder]
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2, cwd=self._at("code"))
        elif is_active:
            _write(os.path.join(folder, "commands", command), asked["content"])
        self._answer(is_active=is_active, has_waited=has_waited, taken=command)

    def do_follow(self, asked: dict[str, Any], _data: bytes) -> None:
        """Send what is new until the run has ended, and then its exit code.

        `logs` are the sizes of the copies over there, `digest` is the hash of that of the events, `wholes` are the
        sizes of samples and reports. Commands to the run may come meanwhile.
        """
        folder, name = self._run_folder(asked), self._run_name(asked)
        logs, wholes = asked["logs"], asked["wholes"]
        self._keep_all()
        self._require_beginning(folder, logs.get("events.jsonl", 0), asked["digest"])
        if asked["config"]:
            with open(os.path.join(folder, "config.json"), "rb") as file:
                self._answer(file.read(MOST_DATA), file="config.json", last=True)
        told, told_job = time.monotonic(), None
        command: tuple[dict[str, Any], bytes] | None = None  # that has no answer yet
        tried = -_TRIES_AGAIN_S
        while True:
            is_active = self._is_active(name)  # before what it wrote last is looked for
            for path in list(_followed(folder)):
                if self._send_new(folder, path, logs, wholes):
                    told = time.monotonic()
            if (job := self._slurm.job(name)) != told_job:
                told_job = job
                self._answer(job=job)
            if not is_active:
                self._slurm.remove_token(name)
                self._answer(end=True, code=self._exit_code(name), seconds=self._seconds(name))
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

    def _require_beginning(self, folder: str, size: int, digest: str) -> None:
        if size and _sha256(os.path.join(folder, "events.jsonl"), size) != digest:
            raise Refused(
                f"events.jsonl of the copy is not the beginning of that of the run {os.path.basename(folder)} there; "
                "was it resumed? Use another --runs_dir for what is there"
            )

    def _send_new(self, folder: str, path: str, logs: dict[str, int], wholes: dict[str, int]) -> bool:
        """Send what a file has more than its copy; returns whether that was anything."""
        place = os.path.join(folder, path)
        try:
            size = os.lstat(place).st_size
            if LOGS.fullmatch(path):
                return self._send_log(place, path, size, logs)
            if wholes.get(path) == size or size > MOST_WHOLE:
                return False
            with open(place, "rb") as file:
                for piece in iter(lambda: file.read(PIECE), b""):
                    self._answer(piece, file=path, last=False)
            self._answer(file=path, last=True)
        except FileNotFoundError:  # removed, or replaced, meanwhile
            return False
        wholes[path] = size
        return True

    def _send_log(self, place: str, path: str, size: int, logs: dict[str, int]) -> bool:
        start = logs.get(path, 0)
        most = size if path == "events.jsonl" else min(size, MOST_LOG)
        if size < start:  # a log begins anew
            start = 0
        if start >= most:
            return False
        with open(place, "rb") as file:
            file.seek(start)
            while start < most and (piece := file.read(min(PIECE, most - start))):
                self._answer(piece, file=path, offset=start)
                start += len(piece)
        logs[path] = start
        return True

    def do_results(self, asked: dict[str, Any], _data: bytes) -> None:
        """Path, size and sha256 of all files of the model and of the chosen backups."""
        folder, name = self._run_folder(asked), self._run_name(asked)
        self._keep_all()
        self._require_beginning(folder, asked["events"], asked["digest"])
        backups = sorted(each for each in _listed(os.path.join(folder, "backup")) if _PLAIN.fullmatch(each))
        wanted = {"none": [], "all": backups, "latest": backups[-1:]}.get(asked["backups"], [asked["backups"]])
        if missing := [each for each in wanted if each not in backups]:
            raise Refused(f"there is no backup {missing[0]} there; its backups are: {', '.join(backups) or 'none'}")
        tops = [each for each in (*_RESULTS, f"{name}.safetensors") if os.path.lexists(os.path.join(folder, each))]
        tops += [f"backup/{each}" for each in wanted]
        found: list[dict[str, Any]] = []
        for top in tops:
            for path in _files_in(folder, top):
                place = os.path.join(folder, path)
                found.append({"path": path, "size": os.path.getsize(place), "sha256": _sha256(place)})
                if len(found) == 1000:
                    self._answer(files=found, more=True)
                    found = []
        self._answer(files=found, more=False)

    def do_get(self, asked: dict[str, Any], _data: bytes) -> None:
        """The bytes of one file of a run from `offset` on."""
        folder, path = self._run_folder(asked), asked["path"]
        self._keep_all()
        if not all(_PLAIN.fullmatch(each) for each in path.split("/")):
            raise Refused(f"{path!r} is no file of a run")
        with open(os.path.join(folder, path), "rb") as file:
            file.seek(asked["offset"])
            for piece in iter(lambda: file.read(PIECE), b""):
                self._answer(piece, last=False)
        self._answer(last=True)

    def do_clean(self, asked: dict[str, Any], _data: bytes) -> None:
        """Remove a run, or what runs can fetch again, or everything; nothing that is not Tandem's."""
        names: tuple[str, ...] = _LOCKS
        if not asked["run"]:
            self._require_none_active()  # before the locks, of which its reader may hold one
        else:
            self._run_folder(asked)  # which must be there
            if self._slurm.is_alive(self._run_name(asked)):
                job = self._slurm.described(asked["run"])
                raise Refused(f"the run {asked['run']} is active there, as {job}; stop it first")
            os.makedirs(self._at("state"), exist_ok=True)
            names = (f"state/{self._run_name(asked)}.lock",)
        held: list[IO[str]] = []
        try:
            for name in names:
                held.append(self._alone(name))
            left = self._clean(asked)
        finally:
            for each in held:
                each.close()
        self._answer(left=left[:100])

    def _require_none_active(self) -> None:
        if active := self._active():
            raise Refused(self._activity_of(active[0]))

    def _alone(self, name: str) -> IO[str]:
        file = self._locked(name, fcntl.LOCK_EX)
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
        if machine := self._recorded(run, "part"):
            return f"this machine takes part in the run {run}, which is active on {machine}; stop it there first"
        return f"the run {run} is active there; stop it first"

    def _clean(self, asked: dict[str, Any]) -> list[str]:
        if asked["run"]:
            folder, name = self._run_folder(asked), self._run_name(asked)
            shutil.rmtree(folder)
            for kind in ("id", "exit", "times", "part", "txt", "jobs", "slurm", "token", "lock"):
                _remove(self._state(name, kind))
            return []
        self._require_none_active()
        self._remove_tokens()
        self._manifest = None
        removed = [*(_OWN if asked["all"] else _DATA), *filter(_PARTIAL.fullmatch, os.listdir(self.home))]
        places = [self._at(each) for each in removed]
        links = [*places, *(self._at("runs", each) for each in _listed(self._at("runs")) if asked["all"])]
        left = [os.path.realpath(each) for each in links if os.path.islink(each) and os.path.exists(each)]
        for each in places:
            _remove(each)
        if asked["all"]:
            others = sorted(each for each in os.listdir(self.home) if each not in _WITH_THE_FOLDER)
            left += others
            if not others:  # while anything is left, the folder is known as Tandem's
                for each in _WITH_THE_FOLDER:
                    _remove(self._at(each))
                os.rmdir(self.home)
        return left


def _followed(folder: str) -> Iterator[str]:
    """The files of a run that a copy follows; logs first, so that a sample is there when the events name it."""
    found = [f"{part}/{name}" for part in ("log", "samples") for name in sorted(_listed(os.path.join(folder, part)))]
    for path in [*found, "events.jsonl"]:
        if not (LOGS.fullmatch(path) or WHOLES.fullmatch(path)) or path == KEPT_SECRET:
            continue
        try:
            if stat.S_ISREG(os.lstat(os.path.join(folder, path)).st_mode):
                yield path
        except OSError:
            continue


def _files_in(folder: str, top: str) -> Iterator[str]:
    """The regular files of a file or folder of a run with plain names: no links, nothing half-written."""
    place = os.path.join(folder, top)
    if os.path.islink(place):
        return
    if os.path.isfile(place):
        yield top
        return
    for name in sorted(_listed(place)):
        if _PLAIN.fullmatch(name):
            yield from _files_in(folder, f"{top}/{name}")


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sha256(path: str, size: int = -1) -> str:
    """Of a file, or of its first bytes."""
    digest = hashlib.sha256()
    left = size if size >= 0 else sys.maxsize
    try:
        with open(path, "rb") as file:
            while left and (piece := file.read(min(left, MOST_DATA))):
                digest.update(piece)
                left -= len(piece)
    except FileNotFoundError:
        return ""
    return digest.hexdigest() if size < 0 or not left else ""


def _bytes_in(path: str) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for each in files:
            try:
                total += os.lstat(os.path.join(folder, each)).st_size
            except OSError:
                continue
    return total


def _read_bytes(path: str, most: int) -> bytes:
    """All of a file of at most so many bytes; b"" of a longer one, and without one."""
    try:
        with open(path, "rb") as file:
            found = file.read(most + 1)
    except OSError:
        return b""
    return found if len(found) <= most else b""


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
