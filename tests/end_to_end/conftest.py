"""The real commands as a person starts them."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.runs import Run, environment, train_command


class TrainingProcess:
    """A run in the background, started by the real command."""

    def __init__(self, process: subprocess.Popen[str], run: Run) -> None:
        self.process = process
        self.run = run
        self._seen: dict[int, psutil.Process] = {}

    def wait_for(self, condition: Callable[[], bool], what: str, within_s: float = 200) -> None:
        """Wait until `condition`; fails if the process ends before, or after `within_s`."""
        deadline = time.monotonic() + within_s
        for count in itertools.count():
            if count % 10 == 0:  # a look at all processes takes milliseconds
                self.processes()
            if condition():
                return
            assert self.process.poll() is None, f"ended before {what}: {self.process.communicate()}"
            assert time.monotonic() < deadline, f"no {what} in {within_s} s"
            time.sleep(0.1)

    def wait_for_step(self, step: int) -> None:
        """Wait until this many steps are in the events."""
        self.wait_for(lambda: len(self.run.events("step")) >= step, f"step {step}")

    def processes(self) -> list[psutil.Process]:
        """The process and its descendants, remembered for `leftovers`."""
        try:
            top = psutil.Process(self.process.pid)
            found = [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            found = []
        self._seen.update({each.pid: each for each in found})
        return found

    def wait(self, within_s: float = 200) -> tuple[int, str]:
        """Wait for the end; the exit code and the whole output."""
        self.processes()
        out, error = self.process.communicate(timeout=within_s)
        return self.process.returncode, out + error

    def leftovers(self) -> list[psutil.Process]:
        """Processes ever seen that are still alive."""
        alive = [each for each in self._seen.values() if each.is_running()]
        return [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., TrainingProcess]]:
    """Start `scripts/train.py` with a config and flags; processes that outlive the test are killed."""
    all_started: list[TrainingProcess] = []

    def begin(config: object, *flags: str, **variables: str) -> TrainingProcess:
        from modules.config import TrainConfig
        from modules.run import RunFolder

        assert isinstance(config, TrainConfig)
        argv = train_command(config, tmp_path / "configs" / f"{len(all_started)}.json", *flags)
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**variables)
        )
        run = Run(RunFolder(Path(config.runs_dir) / str(config.run_name)))
        all_started.append(TrainingProcess(process, run))
        return all_started[-1]

    yield begin
    for each in all_started:
        each.processes()
        for process in each.leftovers():
            process.kill()
        each.process.communicate()
