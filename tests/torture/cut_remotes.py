"""Cuts runs on another machine at random moments: `cut_remotes.py FOLDER SEED FIRST LAST`; prints a line for each case.

Each case goes from an address and a key to a model with the real commands and a real sshd on this computer, which has
another home. At moments of every stage, which follow from seed and number, the connection is cut, or one side is
killed; whatever was interrupted is then typed again, as docs/remote.md says. Every run ends in the weights of one that
nobody disturbed, every file here is that there, and after `clean --all` nothing is left there.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
import torch
from PIL import Image

from modules.config import save_config
from modules.files import remove_tree
from modules.run import RunFolder
from tests.conftest import draw_images
from tests.leftovers import watch_for_the_end
from tests.ports import free_port
from tests.runs import ROOT, Run, environment, hashes, same_state, tiny_config, train_alone
from tests.ssh_server import SshServer, ssh_server
from tests.torture.records import print_record

STAGES: Final = ("set-up", "push", "run", "pull", "clean")
ACTIONS: Final = {
    "cut": "the connection cut",
    "half": "the connection cut, which that side notices seconds later",
    "here": "the program here killed",
    "there": "the program there killed",
    "machine": "that machine restarted",
}
# What an undisturbed stage carries in both directions (2026-11-29), up to which moments are drawn; those of "run" are
# drawn by what the run has written there. A moment after the end of its stage disturbs nothing.
_BYTES: Final = {"set-up": 9_100_000, "push": 3_900_000, "pull": 2_600_000, "clean": 170_000}
_MOST_IN_A_STAGE: Final = 2
_LONGEST_DELAY_S: Final = 3.0
_NOTICED_AFTER_S: Final = 3.0
_ENDS_WITHIN_S: Final = 300.0  # a command
_PIECE: Final = 32 << 10
_FAR_PROGRAM: Final = "source = sys.stdin.buffer"  # in its command line
_PASSES: Final = "try again after"  # what the machine says while a connection that was cut is not noticed there
_SETTINGS: Final[dict[str, object]] = {
    "backup_every": "2 steps",
    "save_every": "3 steps",
    "tensorboard": True,
    "sample_every": "3 steps",
    "samples": [{"prompt": "a disc", "width": 16, "height": 16, "steps": 1}],
    "family_options": {"dropout": 0.2, "width": 2000, "slow_step_s": 0.1},
}


class Proxy:
    """Between ssh and sshd: carries bytes, and can cut."""

    def __init__(self, server: SshServer) -> None:
        self._server, self.port = server, free_port()
        self._listener = socket.create_server((server.address, self.port))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._left, self._action = -1, lambda: None
        known = server.known_hosts.read_text()
        server.known_hosts.write_text(known + known.replace(f":{server.port} ", f":{self.port} "))
        threading.Thread(target=self._serve, daemon=True).start()

    def after(self, count: int, action: Callable[[], None]) -> None:
        """Call `action` once as many bytes have passed."""
        with self._lock:
            self._left, self._action = count, action

    def cut(self, *, noticed_after_s: float = 0.0) -> None:
        """All connections, on this side at once."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for near, far in pairs:
            _shut(near)
            if noticed_after_s:
                timer = threading.Timer(noticed_after_s, _shut, [far])
                timer.daemon = True
                timer.start()
            else:
                _shut(far)

    def _serve(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection((self._server.address, self._server.port))
            pair = near, far
            with self._lock:
                self._pairs.append(pair)
            for source, target in (pair, pair[::-1]):
                threading.Thread(target=self._carry, args=(pair, source, target), daemon=True).start()

    def _carry(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                target.sendall(data)
                self._count(len(data))
        with self._lock:
            if pair not in self._pairs:  # it was cut, and not by one of its ends
                return
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _count(self, count: int) -> None:
        with self._lock:
            is_due = 0 <= self._left < count
            self._left = -1 if is_due else max(-1, self._left - count) if self._left >= 0 else -1
            action = self._action
        if is_due:
            action()


def _shut(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)


@dataclass(eq=False)
class Disturbance:
    """What is done `delay_s` after `count` bytes of a stage, carried or, of the run, written to its events there."""

    stage: str
    action: str
    count: int
    delay_s: float
    is_done: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        when = f"{self.delay_s:.2f} s after {self.count:,} bytes"
        return f"{self.stage}: {ACTIONS[self.action]} {when}{'' if self.is_done.is_set() else ', too late'}"


class Cases:
    """The cases of a seed, in one process."""

    def __init__(self, folder: Path, seed: str, server: SshServer) -> None:
        self.folder, self.seed, self.server = folder, seed, server
        self.proxy = Proxy(server)
        self.images = folder / "images"
        self.images.mkdir()
        draw_images(self.images, 8)
        draw = Random(0)
        for number in range(3):  # that take a while on their way
            Image.frombytes("RGB", (600, 600), draw.randbytes(3 * 600 * 600)).save(self.images / f"noise{number}.png")
        self.config = tiny_config(self.images, folder / "whole", **_SETTINGS)
        code, self.whole = train_alone(self.config)
        assert code == 0
        self.state = self.whole.state
        save_config(self.config.model_copy(update={"runs_dir": "runs"}), folder / "cats.json")
        self.here = folder / "case"
        self._running: subprocess.Popen[bytes] | None = None
        self._pending: list[Disturbance] = []
        self._lock = threading.Lock()  # of _pending

    def case(self, number: int) -> tuple[bool, str]:
        """Whether it was disturbed before the end of a stage, and how."""
        draw = Random(f"{self.seed} {number}")
        planned = [self._drawn(draw, stage) for stage in STAGES for _ in range(draw.randint(1, _MOST_IN_A_STAGE))]
        for left in (self.here, self.server.home):
            remove_tree(left)
            left.mkdir()
        try:
            self._whole_journey(planned)
        except AssertionError as error:
            raise AssertionError("\n".join([*map(str, planned), str(error)])) from error
        finally:
            self._end_stage()
            self._kill_all_there()
        return any(each.is_done.is_set() for each in planned), "; ".join(map(str, planned))

    def _drawn(self, draw: Random, stage: str) -> Disturbance:
        most = self.whole.folder.events_file.stat().st_size if stage == "run" else _BYTES[stage]
        delay_s = _LONGEST_DELAY_S * draw.random() ** 3  # mostly short ones
        return Disturbance(stage, draw.choice(list(ACTIONS)), draw.randint(1, most), delay_s)

    def _whole_journey(self, planned: Sequence[Disturbance]) -> None:
        config = str(self.folder / "cats.json")
        address = ["add", "beta", f"root@{self.server.address}", "--port", str(self.proxy.port)]
        self._until_done(*address, "--key", str(self.server.key))
        steps: dict[str, Callable[[], None]] = {
            "set-up": lambda: self._until_done("setup", "beta", "--python", sys.executable),
            "push": lambda: self._until_done("start", "beta", config),
            "run": partial(self._follow_to_the_end, config),
            "pull": lambda: self._until_done("pull", "beta", "x"),
            "clean": lambda: self._until_done("clean", "beta", "--all", "--yes"),
        }
        for name, step in steps.items():
            self._pending = [each for each in planned if each.stage == name]
            self._arm_next()
            step()
            self._end_stage()
            if name == "pull":
                self._require_the_same()
        assert not list(self.server.home.iterdir()), f"left there: {list(self.server.home.rglob('*'))[:20]}"
        psutil.wait_procs(left := self._there(), _ENDS_WITHIN_S)
        assert not (left := [each for each in left if each.is_running()]), f"at work there: {left}"

    def _follow_to_the_end(self, config: str) -> None:
        """What docs/remote.md says of a run that was killed: it goes on from its newest backup; without one, anew."""
        while (done := self._type("follow", "beta", "x")) != 0:
            if done == 3 and "has ended on beta" in self._said and "without an exit code" in self._said:
                self._until_done("start", "beta", "x", "--resume", may_fail="has no backup there")
                if "has no backup there" in self._said:
                    self._until_done("clean", "beta", "x", "--yes")
                    remove_tree(self.here / "runs" / "x")
                    self._until_done("start", "beta", config)
        assert "exit code 0" in self._said, self._said

    def _require_the_same(self) -> None:
        copy, there = RunFolder(self.here / "runs" / "x"), RunFolder(self.server.home / ".tandem" / "runs" / "x")
        assert copy.events_file.read_bytes() == there.events_file.read_bytes()
        newest = max(each.name for each in there.backup_dir.iterdir())
        for part, kept in ((copy.model_dir, ""), (copy.path / "saves", ""), (copy.backup_dir, newest)):
            other = hashes(there.path / part.relative_to(copy.path))
            assert hashes(part) == {name: each for name, each in other.items() if name.startswith(kept)} != {}, part
        for followed in ("samples", "tensorboard", "log"):
            here, other = hashes(copy.path / followed), hashes(there.path / followed)
            logs = {name: digest for name, digest in here.items() if not name.endswith(".lock")}
            assert {name: other.get(name) for name in logs} == logs != {}, f"{followed}: not as there"
            assert followed == "log" or here == other, followed
        for name, digest in hashes(self.whole.folder.model_dir).items():
            assert name == "tandem.json" or hashes(copy.model_dir)[name] == digest, f"other weights in {name}"
        assert same_state(Run(copy).state, self.state), "another state in the newest backup"
        left = [path.name for path in copy.path.rglob("*") if "partial" in path.name or path.name == "pulling"]
        assert not left, f"left here: {left}"

    # The commands

    def _until_done(self, *words: str, may_fail: str = "\n\n\n") -> None:
        """Type it until it succeeds, or fails with this sentence."""
        began = time.monotonic()
        while self._type(*words) != 0 and may_fail not in self._said:
            assert time.monotonic() - began < _ENDS_WITHIN_S, f"{words} never succeeds: {self._said}"

    def _type(self, *words: str) -> int:
        """The exit code of a command: one that nothing disturbs succeeds, another one fails with a sentence."""
        undone = [each for each in self._pending if not each.is_done.is_set()]
        program = [sys.executable, str(ROOT / "scripts" / "remote.py"), *words]
        with (self.folder / "said.txt").open("w+b") as said:
            self._running = subprocess.Popen(
                program, cwd=self.here, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment()
            )
            try:
                code = self._running.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._running.kill()
                self._running.wait()
                said.seek(0)
                raise AssertionError(f"{words} has not ended: {said.read().decode()[-1500:]}") from None
            self._running = None
            said.seek(0)
            self._said = said.read().decode()
        is_disturbed = any(each.is_done.is_set() for each in undone)
        what = f"{words} ended with {code}: {self._said[-3000:]}"
        assert "Traceback" not in self._said, what
        assert code in (0, 2, 3, 4, -9), what
        is_known = _PASSES in self._said or "without an exit code" in self._said or "has no backup there" in self._said
        assert code == 0 or is_disturbed or is_known, f"although nothing disturbed it, {what}"
        return code

    # The disturbances

    def _arm_next(self) -> None:
        pending = [each for each in self._pending if not each.is_done.is_set()]
        if pending and pending[0].stage == "run":
            threading.Thread(target=self._wait_for_events, args=(pending[0],), daemon=True).start()
        elif pending:
            self.proxy.after(pending[0].count, partial(self._disturb_later, pending[0]))

    def _wait_for_events(self, what: Disturbance) -> None:
        file = RunFolder(self.server.home / ".tandem" / "runs" / "x").events_file
        while what in self._pending:
            with suppress(OSError):
                if file.stat().st_size >= what.count:
                    self._disturb_later(what)
                    return
            time.sleep(0.002)

    def _disturb_later(self, what: Disturbance) -> None:
        timer = threading.Timer(what.delay_s, self._disturb, [what])
        timer.daemon = True
        timer.start()

    def _end_stage(self) -> None:
        with self._lock:  # no disturbance is under way any more
            self._pending = []
        self.proxy.after(-1, lambda: None)

    def _disturb(self, what: Disturbance) -> None:
        with self._lock:
            if what not in self._pending:
                return
            what.is_done.set()
            if what.action == "here" and self._running is not None:
                self._running.kill()
            elif what.action == "there":
                for process in self._there():
                    with suppress(psutil.Error):
                        if _FAR_PROGRAM in " ".join(process.cmdline()):
                            process.kill()
            elif what.action == "machine":
                self._kill_all_there()
            if what.action in ("cut", "half", "machine"):
                self.proxy.cut(noticed_after_s=_NOTICED_AFTER_S if what.action == "half" else 0)
            self._arm_next()

    def _kill_all_there(self) -> None:
        while found := self._there():
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(found, 10)

    def _there(self) -> list[psutil.Process]:
        """The processes of that machine's user."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                is_alive = process.status() != psutil.STATUS_ZOMBIE
                if is_alive and process.environ().get("HOME") == str(self.server.home):
                    found.append(process)
        return found


def main(folder: Path, seed: str, first: int, last: int) -> None:
    """Run these cases."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.set_num_threads(1)
    watch_for_the_end(os.environ)
    there = {"OMP_NUM_THREADS": "1", "TANDEM_CONFIG_DIR": str(folder / "config there")}
    with ssh_server(folder / "ssh", variables=there) as server:
        os.environ["PATH"] = server.path
        os.environ["TANDEM_CONFIG_DIR"] = str(folder / "config")
        with contextlib.redirect_stdout(io.StringIO()):
            cases = Cases(folder, seed, server)
        for number in range(first, last + 1):
            print_record(number, partial(cases.case, number))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
