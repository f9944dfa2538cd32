"""90 commands and signals at random moments: three ranks always act alike, and never deadlock."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modules.config import TrainConfig
from modules.distributed import RankEnv
from modules.run import RunFolder, request_command
from modules.training.worker import end_without_teardown, run_worker
from tests.ports import free_port
from tests.runs import Run, group_settings, in_ranks, recorded, tiny_config

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

RANKS = 3
RUNS = 6
COMMANDS_OF_A_RUN = 14  # and one that ends it
GUARD_S = 120.0  # against hanging only
# How a run is ended, and what the three ranks return with which reason in the events.
ENDINGS = ("stop", "terminate one", "terminate all", "interrupt one")
RETURNED = {"stop": (130, "stopped"), "terminate": (143, "terminated"), "interrupt": (130, "interrupted")}


def work(rank_env: RankEnv, config: TrainConfig, folder: Path, ports: list[int]) -> None:
    """One rank: the same run again and again, each time from its last backup."""
    torch.set_num_threads(1)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)  # between two runs
    (folder / f"pid-{rank_env.rank}").write_text(str(os.getpid()))
    for number, port in enumerate(ports):
        code = run_worker(config, RunFolder(folder), replace(rank_env, master_port=port), resume="latest")
        (folder / f"exit-{number}-{rank_env.rank}").write_text(str(code))
    end_without_teardown(0)


@contextmanager
def three_ranks(config: TrainConfig, folder: RunFolder) -> Iterator[Future[None]]:
    """Real processes that train in the background."""
    ports = [free_port() for _ in range(RUNS + 1)]
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(in_ranks, work, RANKS, ports[-1], (config, folder.path, ports[:-1]))


def wait_for(condition: Callable[[], bool], ranks: Future[None], what: str) -> None:
    deadline = time.monotonic() + GUARD_S
    while not condition():
        if ranks.done():
            ranks.result()
        if time.monotonic() > deadline:
            pytest.fail(f"no {what} in {GUARD_S:.0f} s")
        time.sleep(0.1)


def send(ending: str, folder: RunFolder, draw: random.Random) -> None:
    """End the run in one of these ways."""
    if ending == "stop":
        request_command(folder, "stop")
        return
    number = signal.SIGINT if ending.startswith("interrupt") else signal.SIGTERM
    chosen = range(RANKS) if ending.endswith("all") else [draw.randrange(RANKS)]
    for rank in chosen:
        os.kill(int((folder.path / f"pid-{rank}").read_text()), number)


@pytest.mark.timeout(600)
def test_all_ranks_obey_at_the_same_step(images: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("TANDEM_TEST_SEED", random.randrange(1_000_000)))
    sys.stdout.write(f"TANDEM_TEST_SEED={seed}\n")
    draw = random.Random(seed)
    options = {"record": str(tmp_path / "record"), "slow_step_s": 0.004}
    (tmp_path / "record").mkdir()
    config = tiny_config(
        images,
        tmp_path,
        **group_settings(RANKS),
        max_steps=1_000_000,
        epochs=1_000_000,
        samples=[{"prompt": "a red disc", "steps": 1}],
        step_timeout_s=60,
        family_options=options,
    )
    run = Run(RunFolder.create(config))
    endings = []
    with three_ranks(config, run.folder) as ranks:
        for number in range(RUNS):
            wait_for(lambda number=number: len(run.events("started")) > number, ranks, "start")  # type: ignore[misc]
            for _ in range(COMMANDS_OF_A_RUN):
                request_command(run.folder, draw.choice(("backup", "save", "sample")))
                time.sleep(draw.uniform(0, 0.12))
            endings.append(draw.choice(ENDINGS))
            send(endings[-1], run.folder, draw)
            wait_for(lambda number=number: len(run.events("finished")) > number, ranks, endings[-1])  # type: ignore[misc]
        ranks.result(GUARD_S)
    expected = [RETURNED[ending.split()[0]] for ending in endings]
    assert [event["reason"] for event in run.events("finished")] == [reason for _, reason in expected], endings
    for number, (code, _) in enumerate(expected):
        codes = [int((run.folder.path / f"exit-{number}-{rank}").read_text()) for rank in range(RANKS)]
        assert codes[0] in (0, code)
        assert len(set(codes)) == 1, (number, endings[number], codes)
    # The sum of the weights is another after every step: all ranks went through the same steps, to the same last one.
    weights = [recorded(tmp_path / "record", rank, skip_first_call=False).weights for rank in range(RANKS)]
    assert len(weights[0]) > RUNS
    assert weights[0] == weights[1] == weights[2]
    assert run.state.position.step == run.events("step")[-1]["step"]
    assert len(run.events("sample")) > 0
    assert not list(run.folder.commands_dir.iterdir())
    assert not [path for path in run.folder.path.rglob("*") if "partial" in path.name]
