"""One rank of runs on the pretended GPUs, each on its own: python -m tests.fake_cuda.run_ranks RANK JOB...

JOB is PORT:FOLDER of a run folder that exists. Prints a line of JSON for each, a `run_cases.Result`.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch

from tests.fake_cuda.gpu import Card, Gpu, install
from tests.fake_cuda.run_cases import Result, recorded_steps

WORLD_SIZE = 2


def main(rank: int, jobs: list[str]) -> int:
    """Exit code 0, whatever the runs do."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    gpu = install(Card(devices=WORLD_SIZE))
    for job in jobs:
        port, _, folder = job.partition(":")
        with redirect_stdout(sys.stderr):
            result = run_rank(rank, int(port), Path(folder), gpu)
        print(json.dumps(vars(result)), flush=True)
    return 0


def run_rank(rank: int, port: int, path: Path, gpu: Gpu) -> Result:
    """This rank's part of a run."""
    from modules.config import load_config, trusted_code
    from modules.distributed import RankEnv
    from modules.run import RunFolder
    from modules.training.worker import run_worker

    os.environ[trusted_code.VARIABLE] = "any"  # the family files of the tests
    folder = RunFolder(path)
    result = Result(path.name)
    gpu.watch.findings.clear()
    with recorded_steps(gpu, result):
        result.exit_code = run_worker(
            load_config(folder.config_file), folder, RankEnv(rank, rank, WORLD_SIZE, "127.0.0.1", port)
        )
    gpu.queue.complete()
    result.findings = dict(gpu.watch.findings)
    result.contexts = sorted(gpu.contexts)
    failure = folder.failure_file(rank)
    result.message = failure.read_text() if failure.exists() else ""
    return result


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
