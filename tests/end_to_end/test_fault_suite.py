"""Any fault of a rank ends within 30 s in one message with rank and cause; no process and no partial file is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from modules.checkpoint import Backups
from modules.run import RunFolder
from tests.end_to_end.conftest import TrainingProcess
from tests.ports import free_port
from tests.runs import Run, environment, group_settings, tiny_config, train_command

pytestmark = [pytest.mark.long, pytest.mark.end_to_end, pytest.mark.slow]

# The promise is 30 s from the fault on, on a machine that has room for the ranks; this guards against hanging, from the
# start of Python on.
END_WITHIN_S = 300.0
HANGING: dict[str, object] = {"step_timeout_s": 12}
FORKED: dict[str, object] = {"loader_workers": 1}


@dataclass(frozen=True)
class Case:
    """A fault of tests/tiny_family.py, and what the message must contain."""

    fault: str
    ranks: int
    output: tuple[str, ...]
    spawned: bool = False
    settings: dict[str, object] = field(default_factory=dict)
    exit_code: int = 3


CASES = {
    "rank 0 killed, spawned": Case("kill:0:9", 2, ("rank 0 on", "(killed)", "SIGKILL"), spawned=True),
    "left without a word": Case("leave:0:9", 2, ("rank 0 on", "(gone)", "exited during the run")),
    "rank 0 stopped, spawned": Case("stop:0:9", 2, ("rank 0 on", "(stopped)", "state T"), spawned=True),
    "hangs in Python": Case(
        "hang:1:9", 2, ("Rank 1", "tiny_family.py:", "(hang)", "rank 0 waits in all_reduce"), settings=HANGING
    ),
    "hangs in the loader": Case(
        "loader_hang:1:60",
        2,
        ("Rank 1", "in the loader at tests/tiny_family.py:", "rank 0 waits in all_reduce", "generic_trainer.py:"),
        settings=HANGING,
    ),
    "hangs in a loader process": Case(
        "loader_hang:1:60", 2, ("Rank 1", "waiting for its worker processes"), settings={**HANGING, **FORKED}
    ),
    "loader process killed": Case(
        "loader_kill:1:60", 2, ("rank 1 on", "(loader)", "DataLoader worker"), settings=FORKED
    ),
    "another size": Case("other_size:1:9", 2, ("rank 1 on", "(mismatch)", "do not match each other")),
    "another collective": Case(
        "other_call:1:9", 3, ("rank 1 on", "(mismatch)", "rank 1 called barrier", "ranks 0 and 2 called all_reduce")
    ),
    "another group": Case("other_group:1:9", 2, ("rank 1 on", "(mismatch)", "tiny_family.py:"), spawned=True),
    "torchrun killed": Case("kill_parent:1:9", 2, ("the launcher on", "torchrun", "SIGKILL")),
    "spawning process killed": Case("kill_parent:1:9", 2, ("the launcher on", "spawn", "SIGKILL"), spawned=True),
    "torchrun stopped": Case("stop_parent:1:9", 2, ("the launcher on", "(launcher)", "state T")),
    "disk full": Case("fill_disk:1:9", 2, ("rank 1 on", "(disk full)", "No space left on device")),
}


@dataclass(frozen=True)
class Outcome:
    """The result of a case."""

    exit_code: int
    output: str
    seconds: float  # from the fault to the end
    left: list[int]
    run: Run


@contextmanager
def small_disk(place: Path) -> Iterator[bool]:
    """Mount a small disk at `place`; False if this user may not mount."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=False)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def run_case(case: Case, images: Path, place: Path, number: int) -> Outcome:
    """Run the real command with a fault in it."""
    options = {"faults": [case.fault], "slow_step_s": 0.02}
    settings = {"max_steps": 100_000, "epochs": 1_000_000, "backup_every": "4 steps", **case.settings}
    group = group_settings(case.ranks, free_port())
    config = tiny_config(images, place, **settings, **group, runs_dir=str(place / "disk"), family_options=options)
    argv = train_command(config, place / "c.json", *(["--no_torchrun"] if case.spawned else []))
    variables = environment(TANDEM_TEST_STRUCK=str(place / "struck"), TANDEM_TEST_DISK=str(place / "disk"))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    started = TrainingProcess(process, Run(RunFolder(place / "disk" / "x")))
    deadline = time.monotonic() + END_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline:
        started.processes()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    ended = time.time()
    if process.poll() is None:
        process.kill()
    output = "".join(process.communicate())
    left = started.leftovers()
    for each in left:
        each.kill()
    struck = place / "struck"
    seconds = ended - struck.stat().st_mtime if struck.exists() else -1.0
    return Outcome(process.returncode, output, seconds, [each.pid for each in left], started.run)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, images: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """All selected cases, two at a time: most of the time they wait for heartbeats."""
    chosen = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    top = tmp_path_factory.mktemp("faults")
    with small_disk(top / "small") as has_disk, ThreadPoolExecutor(2) as pool:
        futures = {}
        for number, (name, case) in enumerate(CASES.items()):
            if name not in chosen:
                continue
            place = top / str(number)
            place.mkdir()
            if case.fault.startswith("fill_disk"):
                if not has_disk:
                    continue
                (place / "disk").symlink_to(top / "small")
            futures[name] = pool.submit(run_case, case, images, place, number)
        yield futures


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_rank_and_cause_are_reported_and_nothing_is_left(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    if name not in outcomes:
        pytest.skip("only root may mount a small disk")
    case, outcome = CASES[name], outcomes[name].result()
    sys.stdout.write(f"{name}: {outcome.seconds:.1f} s\n")
    assert outcome.seconds >= 0, f"the fault never happened: {outcome.output}"
    assert outcome.exit_code == case.exit_code, outcome.output
    message = outcome.output[outcome.output.index("Training stopped:") :]
    for part in case.output:
        assert part in message, message
    assert message.count("Training stopped") == 1
    assert "Traceback (most" not in message
    assert outcome.left == []
    assert_nothing_half(outcome.run)


def assert_nothing_half(run: Run) -> None:
    """Every backup is valid, no partial file is left, and every event can be parsed."""
    folder = run.folder
    assert not [path for path in folder.path.rglob("*") if "partial" in path.name or path.suffix == ".reserve"]
    _, damaged = Backups(folder.backup_dir, keep=1).newest_valid()
    assert damaged == []
    for file in folder.log_dir.glob("*.error.json"):
        json.loads(file.read_text())
    if os.path.islink(folder.path.parent):
        return  # the full disk took no more events
    lines = folder.events_file.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["type"] for event in events][-2:] == ["error", "finished"]
    assert events[-1]["exit_code"] == 3
