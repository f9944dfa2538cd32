"""The real commands as a person starts them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.runs import Run, environment, train_command


class Started:
    """A training that runs in the background."""

    def __init__(self, process: subprocess.Popen[str], run: Run) -> None:
        self.process = process
        self.run = run
        self._seen: dict[int, psutil.Process] = {}

    def wait_for(self, condition: Callable[[], bool], what: str, within_s: float = 90) -> None:
        """Wait until `condition`; fails where the process ends before, or after a guard against hanging."""
        deadline = time.monotonic() + within_s
        while not condition():
            self.family()
            assert self.process.poll() is None, f"ended before {what}: {self.process.communicate()}"
            assert time.monotonic() < deadline, f"no {what} in {within_s} s"
            time.sleep(0.05)

    def wait_for_step(self, step: int) -> None:
        """Wait until so many steps are told."""
        self.wait_for(lambda: len(self.run.events("step")) >= step, f"step {step}")

    def family(self) -> list[psutil.Process]:
        """The process and all that it has started so far, noted for `left`."""
        try:
            top = psutil.Process(self.process.pid)
            found = [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            found = []
        self._seen.update({each.pid: each for each in found})
        return found

    def end(self, within_s: float = 90) -> tuple[int, str]:
        """Wait for the end; exit code and all that was said."""
        self.family()
        out, error = self.process.communicate(timeout=within_s)
        return self.process.returncode, out + error

    def left(self) -> list[psutil.Process]:
        """What is still alive of all processes ever seen."""
        alive = [each for each in self._seen.values() if each.is_running()]
        return [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start `scripts/train.py` with a config and flags; whatever still runs after the test is killed."""
    all_started: list[Started] = []

    def begin(config: object, *flags: str, **variables: str) -> Started:
        from modules.config import TrainConfig
        from modules.run import RunFolder

        assert isinstance(config, TrainConfig)
        argv = train_command(config, tmp_path / "configs" / f"{len(all_started)}.json", *flags)
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**variables)
        )
        run = Run(RunFolder(Path(config.runs_dir) / str(config.run_name)))
        all_started.append(Started(process, run))
        return all_started[-1]

    yield begin
    for each in all_started:
        each.family()
        for process in each.left():
            process.kill()
        each.process.communicate()
