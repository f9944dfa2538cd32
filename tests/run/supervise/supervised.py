"""Starts fake ranks under a supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from modules.run import RunFolder, read_events
from modules.run.launch.plan import TORCHRUN
from modules.run.supervise.supervisor import GracePeriods, Supervisor
from tests.ports import free_port

WORKER: Final = Path(__file__).parent / "fake_worker.py"


def torchrun(folder: RunFolder, *roles: str) -> list[str]:
    options = [f"--nproc_per_node={len(roles)}", "--nnodes=1", "--master_addr=127.0.0.1"]
    port = f"--master_port={free_port()}"
    return [
        sys.executable,
        str(TORCHRUN),
        *options,
        port,
        str(WORKER),
        str(folder.path),
        *roles,
    ]


def supervise(folder: RunFolder, *roles: str, grace_s: float = 2.0) -> int:
    environment = {"OMP_NUM_THREADS": "1"}
    argv = torchrun(folder, *roles)
    ranks = range(len(roles))
    return Supervisor(argv, folder, environment=environment, ranks=ranks, grace=GracePeriods(failure_s=grace_s)).run()


def supervise_in_subprocess(
    folder: RunFolder, *argv: str, ranks: range = range(2), late_signal: int = 0
) -> subprocess.Popen[str]:
    """The supervisor in a separate process, which can receive signals; one of them after the run has ended."""
    code = (
        "import signal, sys; from pathlib import Path; from modules.run import RunFolder; "
        "from modules.run.supervise.signals import ignore_signals_after_stop; "
        "from modules.run.supervise.supervisor import Supervisor; ignore_signals_after_stop(); "
        f"code = Supervisor(sys.argv[2:], RunFolder(Path(sys.argv[1])), ranks={ranks!r}).run(); "
        f"{late_signal} and signal.raise_signal({late_signal}); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, str(folder.path), *argv]
    root = str(WORKER.parents[3])
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def wait_until_started(folder: RunFolder, count: int) -> None:
    give_up = time.monotonic() + 100
    while len(list(folder.log_dir.glob("started-*"))) < count:
        assert time.monotonic() < give_up, folder.launcher_log.read_text()
        time.sleep(0.02)
    time.sleep(0.2)


def last_finished(folder: RunFolder) -> dict[str, object]:
    return [event for event in read_events(folder.events_file) if event["type"] == "finished"][-1]


def leave_half_written(folder: RunFolder) -> None:
    """What a kill may leave: a backup that was being replaced, and parts of another one, of a model and of an image."""
    for name in ("backup/.partial-former-step-000003", "backup/.partial-step-000004", ".partial-model"):
        (folder.path / name).mkdir(parents=True)
        (folder.path / name / "weights.safetensors").write_bytes(b"half")
    folder.samples_dir.mkdir()
    (folder.samples_dir / ".partial-step-000004-00.png").touch()
    (folder.path / f".partial-{folder.name}.safetensors").touch()
