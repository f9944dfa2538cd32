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
from modules.run import RunFolder, request_command
from tests.end_to_end.conftest import TrainingProcess
from tests.runs import (
    Run,
    assert_error_message,
    environment,
    group_settings,
    run_command,
    same_state,
    tiny_config,
    train_command,
)

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

LONG = {"max_steps": 100_000, "epochs": 1_000_000, "family_options": {"slow_step_s": 0.01}}

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


@pytest.mark.parametrize(("number", "ranks"), [(signal.SIGHUP, 1), (signal.SIGINT, 2), (signal.SIGHUP, 2)])
def test_signals_end_a_run_after_a_backup(start: Start, images: Path, tmp_path: Path, number: int, ranks: int) -> None:
    """SIGHUP to the supervisor, as by a closed terminal, and to one of the ranks."""
    many = group_settings(ranks) if ranks > 1 else {}
    flags = ["--no_torchrun"] if number == signal.SIGHUP else []
    training = start(tiny_config(images, tmp_path, **LONG, **many), *flags)
    training.wait_for_step(5)
    if number == signal.SIGHUP and ranks > 1:
        [*_, rank] = [each for each in training.processes() if "spawn_main" in " ".join(each.cmdline())]
        rank.send_signal(number)
    else:
        training.process.send_signal(number)
    if number == signal.SIGINT:
        assert_stopped(training, 130, "interrupted")
    else:
        assert_stopped(training, 143, "terminated")


def test_ctrl_c_to_torchrun_and_its_ranks_is_one_request(start: Start, images: Path, tmp_path: Path) -> None:
    """As from a terminal where torchrun was started by hand; torchrun passes it on, so that the ranks get it twice."""
    training = start(tiny_config(images, tmp_path, **LONG, **group_settings(2)))
    training.wait_for_step(5)
    for each in training.processes():
        if each.pid != training.process.pid:
            each.send_signal(signal.SIGINT)
    assert_stopped(training, 130, "interrupted")


def test_commands_are_obeyed_one_after_the_other(start: Start, images: Path, tmp_path: Path) -> None:
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
    (run.folder.commands_dir / "stop").touch()
    assert_stopped(training, 130, "stopped")
    written = [tmp_path / "runs", *(tmp_path / "runs").rglob("*"), tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert {path.name for path in run.folder.path.iterdir()} > {"events.jsonl", "backup", "model", "tensorboard"}
    others = {str(path): oct(path.stat().st_mode) for path in written if path.stat().st_mode & 0o077}
    own = {str(run.folder.commands_dir / "stop")}
    assert set(others) <= own, "nobody else can read what a run writes"


def test_a_run_can_be_stopped_while_it_caches(start: Start, images: Path, tmp_path: Path) -> None:
    slow = {"family_options": {"slow_encode_s": 1.0}}
    training = start(tiny_config(images, tmp_path, **slow, **group_settings(2)))
    is_caching = lambda: any(event.get("phase") == "caching" for event in training.run.events("phase"))  # noqa: E731
    training.wait_for(is_caching, "caching")
    request_command(training.run.folder, "stop")
    code, output = training.wait(within_s=19)  # 41 images at one second each on two ranks would take longer
    assert code == 130, output
    assert training.leftovers() == []
    last = training.run.events()[-1]
    assert (last["type"], last["reason"]) == ("finished", "stopped")
    assert "Traceback" not in output


def test_after_a_killed_rank_a_resume_ends_in_the_same_weights(start: Start, images: Path, tmp_path: Path) -> None:
    settings = {"max_steps": 40, "backup_every": "4 steps", "ema": True, **group_settings(2)}
    slow = {"dropout": 0.2, "slow_step_s": 0.05}
    whole = tiny_config(images, tmp_path, run_name="whole", **settings, family_options={"dropout": 0.2})
    assert exit_code_without_a_reader(train_command(whole, tmp_path / "whole.json")) == 0
    training = start(tiny_config(images, tmp_path, **settings, family_options=slow))
    training.wait_for_step(9)
    ranks = [each for each in training.processes() if each.environ().get("RANK") == "1"]
    assert ranks
    ranks[0].kill()
    code, output = training.wait()
    assert code == 3, output
    assert "rank 1" in output
    assert "SIGKILL" in output
    assert training.leftovers() == []
    again = start(tiny_config(images, tmp_path, **settings, family_options=slow), "--resume", "latest")
    code, output = again.wait()
    assert code == 0, output
    assert "Resuming at step" in output
    assert same_state(again.run.state, Run(RunFolder(tmp_path / "runs" / "whole")).state)


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
