"""A rank or a whole machine fails: every machine's supervisor reports the same rank, host and cause."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.run import RunFolder
from tests.hosts import ROOT, Host, skip_reason, two_hosts
from tests.runs import Run, environment, group_settings, tiny_config

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(bool(skip_reason()), reason=skip_reason()),
    pytest.mark.timeout(400),
]

SUPERVISE = (
    "import sys; from pathlib import Path; from modules.run import RunFolder; "
    "from modules.run.supervise.supervisor import Supervisor; "
    "ranks = range(int(sys.argv[2]), int(sys.argv[3])); "
    "folder = RunFolder(Path(sys.argv[1])); "
    f"sys.exit(Supervisor(sys.argv[4:], folder, ranks=ranks, store_secret='{'0' * 32}').run())"
)
GUARD_S = 120.0

Fault = Callable[[Host, Host], None]


def outcomes(images: Path, place: Path, faults: list[str], inject: Fault | None) -> list[tuple[str, int, str, Run]]:
    """Rank 0 on alpha, ranks 1 and 2 on beta, each with its own run folder; name, exit code, output and run."""
    with two_hosts() as hosts:
        processes, runs, first = [], [], 0
        for number, (host, count) in enumerate(zip(hosts, (1, 2), strict=True)):
            options = {"faults": faults, "slow_step_s": 0.02}
            long = {"max_steps": 100_000, "epochs": 1_000_000, "family_options": options}
            (place / host.name).mkdir()
            folder = RunFolder.create(tiny_config(images, place / host.name, **group_settings(3), **long))
            rendezvous = ["--nnodes=2", f"--nproc_per_node={count}", f"--node_rank={number}"]
            rendezvous += [f"--master_addr={hosts[0].address}", "--master_port=29555"]
            script = [str(ROOT / "scripts" / "train.py"), "--config", str(folder.config_file)]
            torchrun = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                *rendezvous,
                *script,
                "--run_folder",
                str(folder.path),
            ]
            argv = [sys.executable, "-c", SUPERVISE, str(folder.path), str(first), str(first + count), *torchrun]
            processes.append(host.start(argv, environment(GLOO_SOCKET_IFNAME="cable", PYTHONPATH=str(ROOT))))
            runs.append(Run(folder))
            first += count
        wait_for_end_of_one(processes, runs[0], lambda: inject(*hosts) if inject else None)
        outputs = [process.communicate(timeout=GUARD_S)[0] for process in processes]
        assert [host.processes() for host in hosts] == [[], []]
    ended = zip(hosts, processes, outputs, runs, strict=True)
    return [(host.name, process.returncode, output, run) for host, process, output, run in ended]


def wait_for_end_of_one(processes: list[subprocess.Popen[str]], run: Run, inject: Callable[[], None]) -> None:
    """Let it train for some steps, then inject the fault."""
    wait_for_steps(run, 20, lambda: any(process.poll() is not None for process in processes))
    inject()


def wait_for_steps(run: Run, count: int, is_over: Callable[[], bool] = lambda: False) -> None:
    """Wait for this many steps, or the end of the run."""
    deadline = time.monotonic() + GUARD_S
    while len(run.events("step")) < count and not is_over():
        assert time.monotonic() < deadline, "no step"
        time.sleep(0.1)


def test_a_killed_rank_is_named_on_both_machines(images: Path, tmp_path: Path) -> None:
    for name, code, output, run in outcomes(images, tmp_path, ["kill:2:30"], None):
        assert code == 3, output
        assert "Training stopped: rank 2 on beta failed" in output, (name, output)
        assert output.count("Training stopped") == 1
        assert name == "beta" or run.events()[-1]["type"] == "finished"


def test_a_short_network_outage_is_survived_a_long_one_reported(images: Path, tmp_path: Path) -> None:
    other = {
        "alpha": r"Host beta \(ranks 1 and 2\) sent no heartbeat for \d+ s and cannot be reached\.",
        "beta": r"Host alpha \(rank 0\) sent no heartbeat for \d+ s and cannot be reached\.",
    }
    run = Run(RunFolder(tmp_path / "alpha" / "runs" / "x"))
    out: list[float] = []

    def loose_contact(alpha: Host, beta: Host) -> None:
        beta.unplug()
        time.sleep(6)  # and what a busy machine takes to unplug and plug in; ten seconds are promised
        beta.plug_in()
        wait_for_steps(run, len(run.events("step")) + 20)
        beta.unplug()
        out.append(time.time())

    for name, code, output, _ in outcomes(images, tmp_path, [], loose_contact):
        sys.stdout.write(f"{name}: {time.time() - out[0]:.1f} s\n")
        assert code == 3, output
        assert re.search(other[name], output), output
