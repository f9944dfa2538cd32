"""Real runs of a queue in real processes: failures, signals, kill -9, and two runs at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest

from modules.run import RunFolder, read_events
from modules.run.folder.pidfile import find_launcher
from modules.run.folder.run_lock import is_training
from modules.run.queue.entries import Entry
from modules.run.queue.folder import RunQueue
from modules.run.queue.runner import QueueRunner
from scripts import run_queue
from tests.nvml import RTX, fake_nvml
from tests.runs import ROOT, environment, tiny_config

pytestmark = pytest.mark.slow
SLOW: dict[str, Any] = {"family_options": {"slow_step_s": 0.05}, "max_steps": 100_000}


@pytest.fixture(autouse=True)
def no_process_left(tmp_path: Path) -> Iterator[None]:
    """Kill every process that a test leaves behind."""
    yield
    for process in psutil.process_iter():
        try:
            if any(str(tmp_path) in word for word in process.cmdline()) and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture
def queue(tmp_path: Path) -> RunQueue:
    return RunQueue(tmp_path / "runs")


def add(queue: RunQueue, images: Path, name: str, devices: list[int] | None = None, **settings: object) -> Entry:
    config = tiny_config(images, queue.runs_dir.parent, run_name=name, device="cpu", **settings)
    return queue.add(config, devices)


class Runner:
    """A process that works off a queue; its output is in a file."""

    def __init__(self, queue: RunQueue, *flags: str, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        argv = [
            sys.executable,
            str(ROOT / "scripts" / "run_queue.py"),
            "run",
            "--runs_dir",
            str(queue.runs_dir),
            *flags,
        ]
        self._file = queue.runs_dir.parent / f"runner-{time.monotonic_ns()}.txt"
        with self._file.open("wb") as out:
            env = {**environment(), **variables}
            self.process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, start_new_session=True)

    @property
    def output(self) -> str:
        text = self._file.read_text()
        assert "Traceback" not in text, text
        return text

    def wait(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(250)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.output) from None


def start(queue: RunQueue, *flags: str) -> Runner:
    return Runner(queue, *flags)


def until(queue: RunQueue, condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 250
    while not condition():
        assert time.monotonic() < deadline, f"no {what}: {[(e.name, e.state, e.reason) for e in queue.read().entries]}"
        time.sleep(0.05)


def steps(folder: RunFolder) -> list[int]:
    if not folder.events_file.exists():
        return []
    return [int(str(event["step"])) for event in read_events(folder.events_file) if event["type"] == "step"]


def folder_of(queue: RunQueue, name: str) -> RunFolder:
    return RunFolder(queue.runs_dir / name)


def states(queue: RunQueue) -> dict[str, str]:
    return {entry.name: entry.state for entry in queue.read().entries}


def test_a_failed_run_stops_the_queue_only_if_asked(
    queue: RunQueue, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(queue, tmp_path / "no_such_images", "broken")
    add(queue, images, "good", max_steps=2)
    runner = start(queue, "--stop_on_failure")
    assert runner.wait() == 3
    assert states(queue) == {"broken": "failed", "good": "waiting"}
    broken = queue.read().entry(1)
    assert broken.exit_code == 4
    assert "no_such_images' does not exist" in broken.reason
    queue.retry(1)
    queue.move(1, 0)
    runner = start(queue)
    assert runner.wait() == 3
    assert states(queue) == {"broken": "failed", "good": "finished"}
    good = queue.read().entry(2)
    assert (good.exit_code, good.reason) == (0, "Finished")
    assert good.started is not None
    assert good.ended is not None
    assert good.ended > good.started
    assert steps(folder_of(queue, "good"))[-1] == 2
    run_queue.main(["list", "--runs_dir", str(queue.runs_dir)])
    assert "(exit code 4)" in capsys.readouterr().out


def test_an_empty_queue_ends_with_the_window(queue: RunQueue) -> None:
    """Also with one that was killed; it stays a zombie here."""
    said: list[str] = []
    codes: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as window:
        runner = QueueRunner(queue, said.append, keep_waiting_for=window.pid)
        thread = threading.Thread(target=lambda: codes.append(runner.run()), daemon=True)
        thread.start()
        until(queue, lambda: said == ["Waiting for new entries."], "wait")
        window.kill()
        thread.join(60)
    assert codes == [0]


def test_a_stopped_run_waits_again_and_continues(queue: RunQueue, images: Path) -> None:
    add(queue, images, "long", **SLOW)
    add(queue, images, "next", max_steps=2)
    run = folder_of(queue, "long")
    runner = start(queue)
    until(queue, lambda: len(steps(run)) > 3, "steps")
    assert queue.has_runner()
    runner.process.send_signal(signal.SIGTERM)
    assert runner.wait() == 143
    assert "waits again" in runner.output
    assert [entry.name for entry in queue.read().waiting] == ["long", "next"]
    assert queue.read().entry(1).reason == "Continues from its last backup"
    assert not queue.has_runner()
    assert not is_training(run)
    reached = max(int(path.name.split("-")[1]) for path in run.backup_dir.glob("step-*"))
    assert reached > 3

    runner = start(queue, "--keep_waiting")  # the next `run` continues it
    until(queue, lambda: steps(run)[-1] > reached + 2, "more steps")
    assert reached + 1 in steps(run)
    assert 1 not in steps(run)[reached:], "not from the beginning"
    queue.remove(1, stop=True)  # entry 2 comes next, and then the queue waits
    until(queue, lambda: states(queue) == {"long": "removed", "next": "finished"}, "end")
    assert "Entry 1 (long) has ended; it was removed." in runner.output
    assert "waits again" not in runner.output
    assert runner.process.poll() is None
    add(queue, images, "late", max_steps=2)
    until(queue, lambda: states(queue)["late"] == "finished", "the late one")
    queue.want("pause")
    assert runner.wait() == 138


def test_kill_9_of_the_runner(queue: RunQueue, images: Path) -> None:
    """The run goes on; the next runner takes it over, and no second one may work beside it."""
    add(queue, images, "first", **SLOW)
    add(queue, images, "second", max_steps=2)
    run = folder_of(queue, "first")
    runner = start(queue)
    until(queue, lambda: len(steps(run)) > 3, "steps")
    runner.process.kill()
    runner.wait()
    before = len(steps(run))
    until(queue, lambda: len(steps(run)) > before + 3, "steps without a runner")
    assert states(queue) == {"first": "running", "second": "waiting"}
    assert not queue.has_runner()

    following = start(queue)
    until(queue, lambda: "Entry 1 (first) is already training" in following.output, "takeover")
    second = start(queue)
    assert second.wait() == 2
    assert "already works off the queue" in second.output
    (run.commands_dir / "stop").touch()
    assert following.wait() == 0
    assert states(queue) == {"first": "stopped", "second": "finished"}
    done = steps(run)
    assert done == list(range(1, len(done) + 1)), "one start, every step once"


def test_a_power_cut(queue: RunQueue, images: Path) -> None:
    """Everything is killed at once: the next runner continues from the newest backup."""
    add(queue, images, "cats", **{**SLOW, "backup_every": "5 steps"})
    run = folder_of(queue, "cats")
    runner = start(queue)
    until(queue, lambda: any(run.backup_dir.glob("step-*")) and len(steps(run)) > 8, "a backup")
    launcher = find_launcher(run)
    assert launcher is not None
    tree = [runner.process.pid, launcher.process.pid, *(each.pid for each in launcher.process.children(recursive=True))]
    for pid in tree:
        os.kill(pid, signal.SIGKILL)
    runner.wait()
    until(queue, lambda: not is_training(run), "end")
    count, newest = len(steps(run)), max(int(path.name.split("-")[1]) for path in run.backup_dir.glob("step-*"))
    following = start(queue)
    until(queue, lambda: len(steps(run)) > count + 2, "more steps")
    assert steps(run)[count] == newest + 1, "from the newest backup"
    following.process.send_signal(signal.SIGINT)
    assert following.wait() == 130
    output = following.output
    assert "was cut off; it will be continued" in output
    assert "Entry 1 (cats) continues" in output
    assert states(queue) == {"cats": "waiting"}


def test_disjoint_devices_run_at_the_same_time(queue: RunQueue, images: Path) -> None:
    add(queue, images, "zero", [0], **SLOW)
    add(queue, images, "all", max_steps=2)
    add(queue, images, "zero-again", [0], max_steps=2)
    add(queue, images, "one", [1], **SLOW)
    queue.move(4, 1)
    runner = start(queue)
    until(queue, lambda: min(len(steps(folder_of(queue, name))) for name in ("zero", "one")) > 3, "steps of both")
    assert states(queue) == {"zero": "running", "one": "running", "all": "waiting", "zero-again": "waiting"}
    queue.remove(1, stop=True)
    until(queue, lambda: states(queue)["zero"] == "removed" and not is_training(folder_of(queue, "zero")), "end of one")
    time.sleep(1)
    assert states(queue)["zero-again"] == "waiting", "it does not overtake the one that needs all devices"
    queue.remove(4, stop=True)
    assert runner.wait() == 0
    assert states(queue) == {"zero": "removed", "one": "removed", "all": "finished", "zero-again": "finished"}
    ends = {entry.name: entry.ended or 0.0 for entry in queue.read().entries}
    assert ends["all"] < ends["zero-again"]


def test_each_gpu_takes_the_next_entry(queue: RunQueue, images: Path, tmp_path: Path) -> None:
    """Also after a failure, a kill -9 of the runner and a stop; none overtakes one that needs two GPUs.

    The entries train on the CPU, for want of GPUs, and are given those of a stand-in for the driver.
    """
    second = {**RTX, "uuid": "GPU-bb"}
    variables = fake_nvml(RTX, second, path=environment().get("PYTHONPATH", "").split(":"))

    def needing(gpus: int, name: str, **settings: Any) -> None:
        number = add(queue, images, name, cache_dir=str(tmp_path / name), **settings).number
        queue.edit(lambda found: found.with_entry(found.entry(number).changed(gpus=gpus)))

    def given() -> dict[str, list[int] | None]:
        return {entry.name: entry.given for entry in queue.read().entries if entry.state == "running"}

    def visible(name: str) -> str:
        launcher = find_launcher(folder_of(queue, name))
        assert launcher is not None
        return launcher.process.environ()["CUDA_VISIBLE_DEVICES"]

    needing(1, "broken", concepts=[{"path": str(tmp_path / "no_such_images")}])
    needing(1, "a", **SLOW)
    needing(1, "b", **SLOW)
    needing(2, "pair", max_steps=2)
    needing(1, "c", max_steps=2)
    runner = Runner(queue, variables=variables)
    until(queue, lambda: given() == {"a": [1], "b": [0]}, "the GPU of the one that failed for b")
    assert states(queue)["broken"] == "failed"
    until(queue, lambda: min(len(steps(folder_of(queue, name))) for name in ("a", "b")) > 3, "steps of both")
    assert (visible("a"), visible("b")) == ("1", "0")
    until(queue, lambda: queue.read().entry(5).waits == "Waits for its turn after pair", "why c waits")
    assert queue.read().entry(4).waits == "Waits until 2 GPUs are free: a and b train"
    assert [entry.devices_text for entry in queue.read().entries] == ["0", "1", "0", "any 2", "any 1"]

    runner.process.kill()
    runner.wait()
    assert {entry.waits for entry in queue.read().as_seen(has_runner=queue.has_runner()).entries} == {""}
    following = Runner(queue, variables=variables)
    until(queue, lambda: following.output.count("is already training") == 2, "both taken over")
    until(queue, lambda: queue.read().entry(4).waits == "Waits until 2 GPUs are free: a and b train", "why it waits")
    assert given() == {"a": [1], "b": [0]}, "as before"
    following.process.send_signal(signal.SIGINT)
    assert following.wait() == 130
    assert [(each.name, each.given) for each in queue.read().waiting] == [
        ("a", None), ("b", None), ("pair", None), ("c", None)
    ], "in their order"  # fmt: skip

    last = Runner(queue, variables=variables)
    until(queue, lambda: given() == {"a": [0], "b": [1]}, "both again")
    for number in (2, 3):
        queue.remove(number, stop=True)
    assert last.wait() == 0
    assert states(queue) == {"broken": "failed", "a": "removed", "b": "removed", "pair": "finished", "c": "finished"}
    pair, single = queue.read().entry(4), queue.read().entry(5)
    assert (pair.given, single.given) == ([0, 1], [0])
    assert (pair.ended or 0.0) <= (single.started or 0.0), "c has not overtaken it"


def test_other_runs_are_waited_for(queue: RunQueue, images: Path) -> None:
    """A run of the same folder that was started by hand keeps its devices."""
    from modules.run.launch.detached import create_run, launch

    by_hand = create_run(tiny_config(images, queue.runs_dir.parent, run_name="by-hand", device="cpu", **SLOW))
    launch(by_hand)
    until(queue, lambda: steps(by_hand), "steps")
    add(queue, images, "mine", max_steps=2)
    runner = start(queue)
    waits = "Entry 1 (mine) waits for by-hand, which trains on this computer."
    until(queue, lambda: waits in runner.output, "word of the other run")
    assert states(queue) == {"mine": "waiting"}
    (by_hand.commands_dir / "stop").touch()
    assert runner.wait() == 0
    assert states(queue) == {"mine": "finished"}
