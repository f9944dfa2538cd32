"""torchrun started by hand: a failure is reported once, and a refusal is not retried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import save_config
from modules.run import RunFolder
from tests.ports import free_port
from tests.runs import ROOT, Run, environment, group_settings, tiny_config

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


def torchrun(*arguments: str, restarts: int = 2) -> subprocess.CompletedProcess[str]:
    """Run train.py in two processes, with a port that no other test uses."""
    rendezvous = ["--nproc_per_node=2", f"--max-restarts={restarts}", "--master_addr=127.0.0.1"]
    argv = [sys.executable, "-m", "torch.distributed.run", *rendezvous, f"--master_port={free_port()}"]
    return subprocess.run(
        [*argv, str(ROOT / "scripts" / "train.py"), *arguments],
        capture_output=True, text=True, check=False, env=environment(), timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "exit_code", "message"),
    [
        ("learnin_rate=1", 2, "Training did not start: learnin_rate"),  # before the rendezvous
        ("run_name=there", 2, "Training did not start: the run 'there' already exists"),  # by rank 0, for all
        ("concepts=[{path: EMPTY}]", 4, "Training did not start: No usable image in"),  # in the run
    ],
)
def test_a_refusal_is_reported_once_and_not_retried(
    images: Path, tmp_path: Path, setting: str, exit_code: int, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "runs" / "there").mkdir(parents=True)
    (tmp_path / "runs" / "there" / "something").touch()
    config = tiny_config(images, tmp_path, run_name=None, **group_settings(2))
    save_config(config, tmp_path / "c.json")
    done = torchrun("--config", str(tmp_path / "c.json"), "--set", setting.replace("EMPTY", str(tmp_path / "empty")))
    output = done.stdout + done.stderr
    assert output.count(message) == 1, output
    assert "starts all ranks again" not in output
    assert f"exitcode  : {exit_code}" in output
    assert len(list((tmp_path / "runs").iterdir())) <= 2, "one folder for all starts"


def test_the_death_of_torchrun_is_reported_once_by_the_ranks(images: Path, tmp_path: Path) -> None:
    options = {"faults": ["kill_parent:1:9"], "slow_step_s": 0.02}
    config = tiny_config(images, tmp_path, max_steps=100_000, **group_settings(2), family_options=options)
    save_config(config, tmp_path / "c.json")
    done = torchrun("--config", str(tmp_path / "c.json"), restarts=0)  # reads until the last rank has ended
    output = done.stdout + done.stderr
    assert output.count("Training stopped: ") == 1, output
    message = output[output.index("Training stopped: ") :]
    assert "TCPStore.cpp" not in output, "torch's own traces of a lost connection"
    for part in ("the launcher on ", "What to try: ", "rank-0.txt"):
        assert part in message, message
    kinds = [event["type"] for event in Run(RunFolder(tmp_path / "runs" / "x")).events()]
    assert kinds[-2:] == ["error", "finished"]
    assert kinds.count("finished") == 1


@pytest.mark.parametrize(("node", "cause"), [(0, "DistStoreError"), (1, "DistNetworkError")])
def test_a_machine_that_waits_in_vain_says_so(node: int, cause: str) -> None:
    port = free_port()
    argv = [sys.executable, str(ROOT / "scripts" / "torchrun.py"), "--nnodes=2", f"--node_rank={node}"]
    argv += ["--rdzv_conf=timeout=1", "--master_addr=127.0.0.1", f"--master_port={port}", "never_started.py"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment(), timeout=120)
    assert done.returncode == 3, done.stderr
    assert f"the machines could not form a group at 127.0.0.1:{port} within 1 s" in done.stderr
    assert "What to try: " in done.stderr
    assert "Traceback" not in done.stderr
    assert f"torch.distributed.{cause}: " in done.stderr.splitlines()[-1], "which the supervisor reads"


def test_a_rank_that_refuses_is_named_by_rank_0(images: Path, tmp_path: Path) -> None:
    """Two machines, of which the second keeps its runs elsewhere."""
    config = tiny_config(images, tmp_path, run_name=None, **group_settings(2))
    save_config(config, tmp_path / "c.json")
    elsewhere = ["--set", f"runs_dir={tmp_path / 'elsewhere'}"]
    argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1", "--max-restarts=0"]
    argv += ["--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    train = [str(ROOT / "scripts" / "train.py"), "--config", str(tmp_path / "c.json")]
    second = subprocess.Popen(
        [*argv, "--node_rank=1", *train, *elsewhere],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    first = subprocess.run(
        [*argv, "--node_rank=0", *train], capture_output=True, text=True, check=False, env=environment(), timeout=300
    )
    assert second.wait(60) == 1
    output = first.stdout + first.stderr
    assert "Training did not start: rank 1 on " in output, output
    assert "is not in runs_dir" in output
    assert "exitcode  : 2" in output
