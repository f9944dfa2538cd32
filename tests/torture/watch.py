"""Starts workers, kills those that hang, and counts the results."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from modules import ROOT

HANG_S = 5.0
_LOADING_S = 180.0  # imports and seeds, on a machine that has other work
_MOST_FAULTS = 50  # of one kind, then it is given up


@dataclass(frozen=True)
class Plan:
    """The cases `first` to `last` of a kind."""

    kind: str
    first: int
    last: int

    def after(self, number: int) -> Plan:
        """The cases after this one."""
        return Plan(self.kind, number + 1, self.last)


@dataclass(frozen=True)
class Fault:
    """A crash or a hang of one case."""

    kind: str
    number: int
    result: str
    detail: str


@dataclass
class Tally:
    """The results of one kind."""

    kind: str
    cases: int = 0
    refused: int = 0
    accepted: int = 0
    slowest_s: float = 0.0
    slowest: int = 0  # the number of that case
    seconds: float = 0.0
    faults: list[Fault] = field(default_factory=list)

    def count(self, result: str) -> int:
        """How many cases were a "crash" or a "hang"."""
        return sum(fault.result == result for fault in self.faults)

    def add(self, record: dict[str, Any]) -> None:
        """One case."""
        self.cases += 1
        if record["seconds"] > self.slowest_s:
            self.slowest_s, self.slowest = record["seconds"], record["number"]
        if record["result"] in ("crash", "hang"):
            self.faults.append(Fault(self.kind, record["number"], record["result"], record["detail"]))
        else:
            self.refused += record["result"] == "refused"
            self.accepted += record["result"] == "accepted"


def run(
    plans: Sequence[Plan],
    seed: str,
    folder: Path,
    *,
    hang_s: float = HANG_S,
    progress: Callable[[Tally], None] = lambda tally: None,
) -> list[Tally]:
    """Run all cases of `plans`, in one worker as long as it lives; `progress` is called after each case."""
    tallies = {plan.kind: Tally(plan.kind) for plan in plans}
    left = [plan for plan in plans if plan.first <= plan.last]
    while left:
        with _Worker(left, seed, folder) as worker:
            left = _follow(worker, left, tallies, hang_s, progress)
        hung = worker.hung
        if hung is not None:
            tallies[hung.kind].add({"number": hung.first, "result": "hang", "detail": worker.stack, "seconds": hang_s})
            progress(tallies[hung.kind])
        left = [plan for plan in left if len(tallies[plan.kind].faults) < _MOST_FAULTS]
    return list(tallies.values())


def _follow(
    worker: _Worker, left: Sequence[Plan], tallies: dict[str, Tally], hang_s: float, progress: Callable[[Tally], None]
) -> list[Plan]:
    """Count what the worker does; returns the plans that it has left when it ends."""
    plans = list(left)
    while plans:
        kind, started = plans[0].kind, time.monotonic()
        record = worker.next_record(hang_s)
        tallies[kind].seconds += time.monotonic() - started
        if record is None or "done" in record:
            break
        if "result" in record:
            tally = tallies[record["kind"]]
            tally.add(record)
            progress(tally)
            plans[0] = plans[0].after(record["number"])
            if plans[0].first > plans[0].last:
                plans.pop(0)
            if len(tally.faults) >= _MOST_FAULTS:
                return plans
    if plans and worker.current is None:
        raise RuntimeError(f"the worker ended before its first case of {plans[0].kind}:\n{worker.errors()}")
    if plans and worker.hung is None and worker.current is not None:
        number = worker.current.first
        detail = f"the worker ended with {worker.exit_code}: {worker.errors()[-1500:]}"
        tallies[plans[0].kind].add({"number": number, "result": "crash", "detail": detail, "seconds": 0.0})
        return [plans[0].after(number), *plans[1:]] if number < plans[0].last else plans[1:]
    if plans and worker.hung is not None:
        number = worker.hung.first
        return [plans[0].after(number), *plans[1:]] if number < plans[0].last else plans[1:]
    return plans


class _Worker:
    """A worker process."""

    def __init__(self, plans: Sequence[Plan], seed: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / "worker.txt").open("w+b")
        entries = [f"{plan.kind}:{plan.first}:{plan.last}" for plan in plans]
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.torture.worker", seed, str(folder), *entries],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._buffer = b""
        self.current: Plan | None = None  # the case that it runs
        self.hung: Plan | None = None
        self.stack = ""

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()

    @property
    def exit_code(self) -> int:
        """Of the ended process; negative for a signal."""
        return self._process.wait(10)

    def errors(self) -> str:
        """What it wrote to standard error."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def next_record(self, hang_s: float) -> dict[str, Any] | None:
        """The next record; None if the process has ended, or was killed because a case took longer than `hang_s`."""
        assert self._process.stdout is not None
        clock = _HangClock(self._process.pid, _LOADING_S if self.current is None else hang_s)
        while b"\n" not in self._buffer:
            if not select.select([self._process.stdout], [], [], min(1.0, hang_s / 2))[0]:
                if not clock.is_over():
                    continue
                self._kill_hung()
                return None
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        record: dict[str, Any] = json.loads(line)
        started = "number" in record and "result" not in record
        if "number" in record:
            self.current = Plan(record["kind"], record["number"], record["number"]) if started else None
        return record

    def _kill_hung(self) -> None:
        self.hung = self.current
        os.kill(self._process.pid, signal.SIGABRT)  # faulthandler writes where it is
        time.sleep(0.5)
        self.stack = self.errors()[-2500:]


class _HangClock:
    """Tells a process that hangs from one that a busy machine lets wait for a processor."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self._process = psutil.Process(pid)
        self._limit_s = limit_s
        self._started_at, self._cpu_s = time.monotonic(), self._used()
        self._last = self._cpu_s

    def is_over(self) -> bool:
        """After the limit: whether it has computed for that long, or has not computed since the last call."""
        before, self._last = self._last, self._used()
        if time.monotonic() - self._started_at < self._limit_s:
            return False
        is_waiting = self._last == before and self._process.status() != psutil.STATUS_RUNNING
        return is_waiting or self._last - self._cpu_s >= self._limit_s

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)
