"""Every way to stop a run: a backup is made, the exit code tells them apart, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from app.runs.liveness import read_liveness
from modules.run import request_command
from tests.end_to_end.conftest import TrainingProcess
from tests.runs import (
    assert_error_message,
    environment,
    group_settings,
    run_command,
    tiny_config,
    train_command,
)

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

LONG = {"max_steps": 100_000, "epochs": 1_000_000, "family_options": {"slow_step_s": 0.05}}

Start = Callable[..., TrainingProcess]


def assert_stopped(training: TrainingProcess, exit_code: int, reason: str) -> None:
    code, output = training.wait()
    assert code == exit_code, output
    assert "Traceback" not in output
    assert training.leftovers() == []
    last = training.run.events()[-1]
    assert (last["type"], last["reason"], last["exit_code"]) == ("finished", reason, exit_code)
    assert training.run.state.position.step == training.run.events("step")[-1]["step"]
    assert list(training.run.folder.commands_dir.iterdir()) == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_sighup_ends_a_run_after_a_backup(start: Start, images: Path, tmp_path: Path, ranks: int) -> None:
    """To the supervisor, as by a closed terminal, and to one of the ranks."""
    many = group_settings(ranks) if ranks > 1 else {}
    training = start(tiny_config(images, tmp_path, **LONG, **many), "--no_torchrun")
    training.wait_for_step(5)
    if ranks > 1:
        [*_, rank] = [each for each in training.processes() if "spawn_main" in " ".join(each.cmdline())]
        rank.send_signal(signal.SIGHUP)
    else:
        training.process.send_signal(signal.SIGHUP)
    assert_stopped(training, 143, "terminated")


def test_commands_are_obeyed_one_after_the_other_then_ctrl_c(start: Start, images: Path, tmp_path: Path) -> None:
    """Ctrl-C as from a terminal where torchrun was started by hand: torchrun passes it on, so that the ranks get it
    twice, and it is one request."""
    samples = [{"prompt": "a red disc", "steps": 1}]
    config = tiny_config(images, tmp_path, **LONG, **group_settings(2), samples=samples, tensorboard=True)
    training = start(config)
    training.wait_for_step(3)
    run = training.run
    for name, is_done in (
        ("backup", lambda: bool(run.events("backup"))),
        ("sample", lambda: bool(run.events("sample"))),
        ("save", lambda: (run.folder.model_dir / "tandem.json").exists()),
    ):
        request_command(run.folder, name)
        training.wait_for(is_done, name)
        training.wait_for(lambda name=name: not (run.folder.commands_dir / name).exists(), f"no file {name}")  # type: ignore[misc]
    assert Path(str(run.events("sample")[0]["file"])).is_file()
    for each in training.processes():
        if each.pid != training.process.pid:
            each.send_signal(signal.SIGINT)
    assert_stopped(training, 130, "interrupted")
    written = [tmp_path / "runs", *(tmp_path / "runs").rglob("*"), tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert {path.name for path in run.folder.path.iterdir()} > {"events.jsonl", "backup", "model", "tensorboard"}
    others = {str(path): oct(path.stat().st_mode) for path in written if path.stat().st_mode & 0o077}
    assert others == {}, "nobody else can read what a run writes"


def test_a_run_can_be_stopped_while_it_caches(start: Start, images: Path, tmp_path: Path) -> None:
    slow = {"family_options": {"slow_encode_s": 1.0}}
    training = start(tiny_config(images, tmp_path, **slow, **group_settings(2)))
    is_caching = lambda: any(event.get("phase") == "caching" for event in training.run.events("phase"))  # noqa: E731
    training.wait_for(is_caching, "caching")
    request_command(training.run.folder, "stop")
    code, output = training.wait()
    assert code == 130, output
    caching = [event for event in training.run.events("phase") if event["phase"] == "caching"]
    assert all(event.get("done") != 41 for event in caching), "not all images first"
    assert training.leftovers() == []
    last = training.run.events()[-1]
    assert (last["type"], last["reason"]) == ("finished", "stopped")
    assert "Traceback" not in output


def test_a_run_is_resumed_after_a_killed_rank_and_without_a_reader(start: Start, images: Path, tmp_path: Path) -> None:
    """On one process instead of two; test_restarts has the weights of such a run."""
    training = start(tiny_config(images, tmp_path, **LONG, **group_settings(2), backup_every="4 steps"))
    training.wait_for_step(9)
    ranks = [each for each in training.processes() if each.environ().get("RANK") == "1"]
    assert ranks
    ranks[0].kill()
    code, output = training.wait()
    assert code == 3, output
    message = output[output.index("Training stopped:") :]
    assert all(part in message for part in ("rank 1 on", "(killed)", "SIGKILL")), message
    assert message.count("Training stopped") == 1
    assert training.leftovers() == []
    reached = training.run.state.position.step
    again = tiny_config(images, tmp_path, max_steps=reached + 2, epochs=LONG["epochs"])
    told = tmp_path / "told.txt"
    options = ["--resume", "latest", "--notify", f'echo "$TANDEM_STATE $TANDEM_STEP" > "{told}"']
    assert exit_code_without_a_reader(train_command(again, tmp_path / "again.json", *options)) == 0
    assert told.read_text() == f"finished {reached + 2}\n"
    assert training.run.state.position.step == reached + 2
    assert [event["step"] for event in training.run.events("step")][-2:] == [reached + 1, reached + 2]


def exit_code_without_a_reader(command: list[str]) -> int:
    """Run a command in a terminal after Ctrl-S, or rather with a full pipe: nothing that it prints can be written."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    done = subprocess.run(command, stdout=writer, stderr=writer, env=environment(), timeout=200, check=False)
    os.close(reader)
    os.close(writer)
    return done.returncode


def test_a_run_whose_folder_was_moved_is_known_in_the_new_one(start: Start, images: Path, tmp_path: Path) -> None:
    """It looked as if it had been killed: Stop was grey, and Resume started it a second time."""
    config = tiny_config(images, tmp_path, **LONG)
    training = start(config)
    training.wait_for_step(3)
    folder = training.run.folder
    folder.path.rename(tmp_path / "moved")
    training.wait_for(lambda: read_liveness(folder).launcher is not None, "the mark in the new folder")
    second = run_command(train_command(config, tmp_path / "again.json", "--resume", "latest"))
    assert_error_message(second, 2, "is still being trained")
    request_command(folder, "stop")
    assert_stopped(training, 130, "stopped")
    assert not read_liveness(folder).is_alive
