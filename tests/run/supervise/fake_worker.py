"""A rank without torch that plays a role. Usage: fake_worker.py RUN_FOLDER RANK0_ROLE RANK1_ROLE."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from modules.config import ConfigError
from modules.run import Commands, EventLog, Failure, RunFolder, record_failure


def main() -> None:
    folder, rank = RunFolder(Path(sys.argv[1])), int(os.environ.get("RANK", "0"))
    role, _, argument = sys.argv[2 + rank].partition(":")
    (folder.log_dir / f"started-{rank}").write_text(str(os.getpid()))
    try:
        ROLES[role](folder, argument)
    except Exception as error:  # noqa: BLE001 - a boundary, as in scripts/train.py
        record_failure(folder, Failure.from_exception(error, rank=rank, traceback=traceback.format_exc()))
        sys.exit(3)


def finish(folder: RunFolder, argument: str) -> None:
    log = EventLog(folder.events_file)
    log.write("finished", reason="finished", exit_code=int(argument or 0))
    log.close()


def train_until_stopped(folder: RunFolder, _: str) -> None:
    """Trains until a stop command, then makes a slow backup."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    commands = Commands(folder)
    log = EventLog(folder.events_file)
    log.write("phase", phase="training")
    while "stop" not in commands.pending():
        time.sleep(0.02)
    reason = commands.pending()["stop"]
    time.sleep(0.5)
    commands.done("stop")
    log.write("finished", reason=reason, exit_code={"interrupted": 130, "terminated": 143}.get(reason, 0))
    log.close()


def wait_for_signal(folder: RunFolder, _: str) -> None:
    """A rank on a node without rank 0: gets only signals."""
    received = []
    signal.signal(signal.SIGINT, lambda *_: received.append(1))
    while not received:
        time.sleep(0.02)


def wait_for_finish(folder: RunFolder, _: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while not (folder.events_file.exists() and b'"finished"' in folder.events_file.read_bytes()):
        time.sleep(0.05)


def stubborn(folder: RunFolder, _: str) -> None:
    """Stuck in a collective: ignores SIGTERM, and has a loader worker."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    time.sleep(300)


def wait_for_peer(folder: RunFolder) -> None:
    while len(list(folder.log_dir.glob("started-*"))) < 2:
        time.sleep(0.02)
    time.sleep(0.3)


def kill(folder: RunFolder, argument: str) -> None:
    wait_for_peer(folder)
    EventLog(folder.events_file).write("phase", phase="training")
    os.kill(os.getpid(), int(argument))


def fail(folder: RunFolder, argument: str) -> None:
    wait_for_peer(folder)
    raise RuntimeError(argument)


def lose_peer(folder: RunFolder, _: str) -> None:
    """The error gloo raises in a rank whose peer has died."""
    time.sleep(2)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:33411")


def reject(folder: RunFolder, argument: str) -> None:
    with (folder.log_dir / "rejected").open("a") as file:
        file.write("once\n")
    raise ConfigError(argument, "Set it to 512")


def uncaught(folder: RunFolder, argument: str) -> None:
    wait_for_peer(folder)
    os.close(sys.stdout.fileno())
    print(f"Traceback (most recent call last):\n  ...\nImportError: {argument}", file=sys.stderr, flush=True)
    os._exit(1)


def orphan(folder: RunFolder, _: str) -> None:
    """Finishes, but leaves a process behind."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    finish(folder, "0")


def kill_launcher(folder: RunFolder, _: str) -> None:
    wait_for_peer(folder)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(300)


def finish_and_hang(folder: RunFolder, argument: str) -> None:
    finish(folder, argument)
    stubborn(folder, "")


ROLES = {
    role.__name__: role
    for role in (
        finish,
        train_until_stopped,
        wait_for_signal,
        wait_for_finish,
        stubborn,
        kill,
        fail,
        lose_peer,
        reject,
        uncaught,
        orphan,
        kill_launcher,
        finish_and_hang,
    )
}

if __name__ == "__main__":
    main()
