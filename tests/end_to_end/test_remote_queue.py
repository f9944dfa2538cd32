"""A queue whose entries train on another machine over a real ssh, killed at every stage of a run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from modules.config import save_config
from modules.run import RunFolder
from modules.run.folder.event_reader import read_events
from modules.run.folder.pidfile import find_launcher
from modules.run.queue.entries import Entry
from modules.run.queue.folder import RunQueue
from modules.run.queue.place_run import progress_of
from modules.run.remote.run_copy import Copy, read_copy
from tests.conftest import draw_images
from tests.runs import ROOT, environment, hashes, tiny_config
from tests.ssh_server import SshServer, skip_reason, ssh_server

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "possible"),
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """An sshd with another home."""
    there = {"OMP_NUM_THREADS": "1", "TANDEM_CONFIG_DIR": str(tmp_path / "config of beta")}
    with ssh_server(tmp_path / "ssh", variables=there) as running:
        monkeypatch.setenv("PATH", running.path)
        monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
        yield running


class Place:
    """A folder with a queue, in which the commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue = RunQueue(folder / "runs")
        folder.mkdir()

    def do(self, program: str, *words: str, code: int = 0) -> str:
        """What it prints."""
        argv = [sys.executable, str(ROOT / "scripts" / f"{program}.py"), *words]
        done = subprocess.run(
            argv,
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def runner(self) -> subprocess.Popen[bytes]:
        """One that works off the queue; what it prints is kept."""
        argv = [sys.executable, str(ROOT / "scripts" / "run_queue.py"), "run"]
        with (self.folder / "runner.txt").open("ab") as out:
            return subprocess.Popen(argv, cwd=self.folder, env=environment(), stdout=out, stderr=out)

    def entry(self, name: str) -> Entry:
        return next(entry for entry in self.queue.read().entries if entry.name == name)

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.folder / "runs" / name)

    def copy(self, name: str) -> Copy | None:
        return read_copy(self.run(name))

    def steps(self, name: str) -> int:
        return sum(event["type"] == "step" for event in read_events(self.run(name).events_file))

    def until(self, condition: Callable[[], object], what: str, *, every_s: float = 0.1) -> None:
        deadline = time.monotonic() + 200
        while not condition():
            said = (self.folder / "runner.txt").read_text()
            assert time.monotonic() < deadline, f"no {what}: {self.queue.read().entries} {said}"
            time.sleep(every_s)

    def power_cut(self, runner: subprocess.Popen[bytes], name: str) -> None:
        """Of this computer: the runner and the attendant of a run end at once."""
        attendant = find_launcher(self.run(name))
        assert attendant is not None
        attendant.process.kill()
        runner.kill()
        runner.wait()
        psutil.wait_procs([attendant.process], 30)


def test_entries_wait_for_a_gpu_here_or_there(server: SshServer, tmp_path: Path) -> None:
    """Two there, one after the other, and one here meanwhile; the same run at both places to the bit."""
    place, home = Place(tmp_path / "here"), server.home / ".tandem"
    images, fast = tmp_path / "images", tmp_path / "fast"
    images.mkdir()
    options = {"slow_step_s": 0.1, "slow_until": f"|{fast}"}
    config = tiny_config(
        draw_images(images, 8), tmp_path, runs_dir="runs", device="cpu", max_steps=100, family_options=options
    )
    save_config(config, tmp_path / "cats.json")
    add = ("add", str(tmp_path / "cats.json"), "--trust_code", "--run_name")
    place.do("remote", "add", "beta", f"root@{server.address}", "--port", str(server.port), "--key", str(server.key))
    assert "start with setup" in place.do("run_queue", *add, "first", "--on", "beta", code=3)
    place.do("remote", "setup", "beta", "--python", sys.executable)
    place.do("run_queue", *add, "first", "--on", "beta")
    endless = [f"--set={each}" for each in ("max_steps=100000", "epochs=100000", "family_options.slow_until=")]
    place.do("run_queue", *add, "endless", "--on", "beta", *endless)
    place.do("run_queue", *add, "local")

    runner = place.runner()  # killed while data is sent, while the run trains, and while its results come
    place.until(
        lambda: place.copy("first") is not None and find_launcher(place.run("first")), "attendant", every_s=0.005
    )
    place.power_cut(runner, "first")
    copy = place.copy("first")
    assert copy is not None
    assert copy.stage == "sending"
    runner = place.runner()
    place.until(lambda: place.steps("first") >= 3, "training there")
    assert progress_of(place.entry("first"), place.run("first")).startswith("on beta: step ")
    assert place.entry("endless").state == "waiting", "it needs the same devices there"
    place.power_cut(runner, "first")
    fast.touch()
    runner = place.runner()
    is_pulling = lambda: (found := place.copy("first")) is not None and found.stage == "pulling"  # noqa: E731
    place.until(is_pulling, "pulling", every_s=0.005)
    place.power_cut(runner, "first")
    runner = place.runner()

    place.until(lambda: place.steps("endless") >= 3, "second run")
    place.do("remote", "stop", "beta", "endless")  # by somebody: it is stopped, which is no failure
    place.until(lambda: runner.poll() is not None, "end of the queue")
    assert runner.returncode == 0
    assert place.entry("endless").state == "stopped"
    place.do("run_queue", "retry", "endless")
    for wanted, state, code in (("stop", "waiting", 130), ("remove", "removed", 0)):
        runner, before = place.runner(), place.steps("endless")
        place.until(lambda before=before: place.steps("endless") > before + 3, "resumed run")  # type: ignore[misc]
        place.do("run_queue", *(["stop"] if wanted == "stop" else ["remove", "endless", "--stop"]))
        assert (runner.wait(200), place.entry("endless").state) == (code, state)

    first, local = (place.entry(name) for name in ("first", "local"))
    assert (first.state, local.state) == ("finished", "finished"), (place.folder / "runner.txt").read_text()
    assert (local.started or 0) < (first.ended or 0), "at the same time"
    starts = {name: (home / "state" / f"{name}.times").read_text().splitlines() for name in ("first", "endless")}
    assert [line.split()[0] for line in starts["first"]] == ["start", "end"], "it was started once"
    assert len(starts["endless"]) == 6
    assert int(starts["endless"][0].split()[1]) >= int(starts["first"][1].split()[1]), "one after the other"
    for name in ("first", "local"):
        (place.run(name).model_dir / "tandem.json").unlink()  # it has the time and the paths
    assert hashes(place.run("first").model_dir) == hashes(place.run("local").model_dir) != {}
    assert list(place.run("endless").backup_dir.iterdir())
