"""User errors end with a short message, the right exit code and no traceback."""

from __future__ import annotations

import re
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from modules.config import TrainConfig, save_config
from modules.run import RunFolder
from modules.run.start import start_run
from scripts import preflight, sample, train
from tests.runs import assert_error_message, group_settings, run_command, tiny_config, train_alone, train_command

pytestmark = pytest.mark.end_to_end


def run_train(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and error output of train.py in this process; these errors are found before torch is imported."""
    capsys.readouterr()
    code = train.main(list(arguments))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert len(captured.err.strip().splitlines()) <= 4, captured.err
    return code, captured.err


def test_without_a_config_it_says_what_to_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = run_train(capsys, "--config", str(tmp_path / "missing.json"))
    assert code == 2
    assert "missing.json" in message


def test_an_unknown_preset_names_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    code, message = run_train(capsys, "--config", "demoo")
    assert code == 2
    assert "demoo" in message


def test_a_wrong_field_names_it(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = train_command(tiny_config(images, tmp_path), tmp_path / "c.json")[2:]
    code, message = run_train(capsys, *argv, "--set", "batch_siez=4")
    assert code == 2
    assert "batch_size" in message
    code, message = run_train(capsys, *argv, "--set", "batch_size=-1")
    assert code == 2
    assert "batch_size" in message


def test_a_folder_in_place_of_a_file_of_the_run_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = TrainConfig(family="demo", device="cpu", runs_dir=str(tmp_path), run_name="x")
    folder = RunFolder.create(config)
    folder.resume_config_file.mkdir()
    before = folder.config_file.read_bytes()
    argv = ["--set", f"runs_dir={tmp_path}", "--run_name", "x", "--resume", "latest"]
    code, message = run_train(capsys, *argv, "--set", "max_steps=7")
    assert code == 2
    assert f"{folder.resume_config_file}: Is a directory" in message
    assert folder.config_file.read_bytes() == before


def test_a_run_name_with_slashes_is_refused(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = train_command(tiny_config(images, tmp_path), tmp_path / "c.json")[2:]
    code, message = run_train(capsys, *argv, "--run_name", "../up")
    assert code == 2
    assert "run_name" in message
    assert not (tmp_path / "up").exists()


def test_a_run_folder_that_cannot_be_written_is_refused(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    config = tiny_config(images, tmp_path, runs_dir=str(tmp_path / "file" / "runs"))
    code, message = run_train(capsys, *train_command(config, tmp_path / "c.json")[2:])
    assert code == 2
    assert "runs_dir" in message


def test_a_world_larger_than_the_machine_is_refused(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(images, tmp_path, **group_settings(5000))
    code, message = run_train(capsys, *train_command(config, tmp_path / "c.json")[2:])
    assert code == 2
    assert "world_size is 5000" in message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--run_name", "../up"), "run_name is '../up'"),
        (("--run_name", "there"), "the run 'there' already exists"),
        (("--resume", "nowhere/step-000001"), "there is no backup at 'nowhere/step-000001'"),
        (("--resume", "latest", "--run_name", "never"), "there is no run 'never'"),
        (("--token", "short"), "the token has 5 characters"),
        (("--token", "0" * 32), "the token is for runs on several machines"),
        (("--set", "num_nodes=2", "--set", "initial_port=65535"), "initial_port is 65535, and machines join on the"),
    ],
)
def test_a_dry_run_refuses_what_a_start_would(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    (tmp_path / "runs" / "there").mkdir(parents=True)
    (tmp_path / "runs" / "there" / "something").touch()
    argv = train_command(tiny_config(images, tmp_path), tmp_path / "c.json")[2:]
    code, words = run_train(capsys, *argv, "--dry_run", *flags)
    assert code == 2
    assert message in words


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        ("concepts=[]", 4, "there is no concept that is switched on"),
        ("family=stable_diffusion", 2, "base_model is empty"),
    ],
)
def test_a_dry_run_refuses_what_cannot_be_trained(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, code: int, message: str
) -> None:
    argv = train_command(tiny_config(images, tmp_path), tmp_path / "c.json")[2:]
    kept = ("--set", "family_options={}", "--set", "resolution=64", "--set", "samples=[]")
    found, words = run_train(capsys, *argv, "--dry_run", *kept, "--set", settings)
    assert found == code
    assert message in words


def test_a_warm_up_longer_than_the_run_is_warned_of(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a dry run, which counts the steps, and at the start."""
    config = tiny_config(images, tmp_path, max_steps=None, epochs=1, warmup_steps=500)
    argv = train_command(config, tmp_path / "c.json")[2:]
    long = "learning rate rises over 500 steps, but the run ends after"
    assert train.main([*argv, "--dry_run"]) == 0
    assert long in capfd.readouterr().out
    code, run = train_alone(config)
    assert code == 0
    assert long in run.warnings


@pytest.mark.parametrize("value", ["nan", "-1", "inf", "soon"])
def test_an_invalid_preflight_timeout_is_refused(capsys: pytest.CaptureFixture[str], value: str) -> None:
    for option in ("--patience", "--wait"):
        with pytest.raises(SystemExit) as left:
            preflight.main([f"{option}={value}"])
        assert left.value.code == 2
        assert f"argument {option}: it is '{value}'; give seconds between 1 and 86400" in capsys.readouterr().err


@pytest.mark.parametrize("resume", ["latest", "nowhere/step-000001"])
def test_resuming_what_is_not_there_is_refused(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], resume: str
) -> None:
    argv = train_command(tiny_config(images, tmp_path), tmp_path / "c.json")[2:]
    code, message = run_train(capsys, *argv, "--resume", resume)
    assert code == 2
    assert "resume" in message or "no run" in message


@pytest.mark.slow
def test_resuming_a_damaged_backup_is_refused(images: Path, tmp_path: Path) -> None:
    config = tiny_config(images, tmp_path, max_steps=2)
    _, run = train_alone(config)
    backup = run.folder.backup_dir / "step-000002"
    (backup / "weights.safetensors").write_bytes(b"")
    code, run = train_alone(config, str(backup))
    assert code == 2
    assert "step-000002" in run.failure(0)
    assert "the checksum of weights.safetensors does not match" in run.failure(0)


@pytest.mark.slow
def test_a_refused_resume_leaves_the_run_as_it_was(images: Path, tmp_path: Path) -> None:
    config = tiny_config(images, tmp_path)
    _, run = train_alone(config)
    save_config(config, run.folder.config_file)
    before = run.folder.config_file.read_bytes()
    argv = train_command(config, tmp_path / "c.json", "--resume", "latest", "--set", "optimizer.name=sgd")
    assert_error_message(run_command(argv), 2, "optimizer")
    assert run.folder.config_file.read_bytes() == before


def test_a_folder_of_broken_files_ends_with_code_four(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(b"not an image")
    done = run_command(train_command(tiny_config(folder, tmp_path), tmp_path / "c.json"))
    assert_error_message(done, 4, str(folder))


def test_an_empty_folder_ends_with_code_four(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, run = train_alone(tiny_config(tmp_path / "empty", tmp_path))
    assert code == 4
    assert str(tmp_path / "empty") in run.failure(0)


def test_an_unwritable_cache_is_reported(images: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, run = train_alone(tiny_config(images, tmp_path, cache_dir=str(tmp_path / "file" / "cache")))
    assert code == 2
    assert "cache_dir" in run.failure(0)


FULL_ENCODER = """
import torch
from tests.tiny_family import TinyFamily

class FullFamily(TinyFamily):
    def encode(self, example):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
"""


def test_out_of_memory_while_encoding_is_reported_as_caching(images: Path, tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL_ENCODER)
    code, run = train_alone(tiny_config(images, tmp_path, family=str(tmp_path / "full.py")))
    assert code == 3
    assert "CUDA out of memory" in run.failure(0)
    assert run.events("phase")[-1]["phase"] == "caching"


def test_an_unsupported_sample_size_is_refused(images: Path, tmp_path: Path) -> None:
    code, run = train_alone(tiny_config(images, tmp_path, samples=[{"prompt": "x", "width": 20}]))
    assert code == 2
    assert "samples.0.width is 20" in run.failure(0)
    assert "multiple of 8" in run.failure(0)


@pytest.mark.slow
def test_taken_ports_and_missing_cuda_are_replaced_and_noted(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One port is taken before the start; its replacement just after it was chosen, by a run of the same second."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said: list[str] = []
    replaced: list[int] = []
    with ExitStack() as others:

        def take(port: int) -> int:
            taken = others.enter_context(socket.socket())
            taken.bind(("", port))
            taken.listen()
            return int(taken.getsockname()[1])

        def echo(line: str) -> None:
            if (chosen := re.search(r"port (\d+) instead of", line)) and not replaced:
                replaced.append(take(int(chosen[1])))
            said.append(line)

        port = take(0)
        settings = group_settings(2, port) | {"distributed_backend": "nccl", "run_name": "ports"}
        config = tiny_config(images, tmp_path, max_steps=1, **settings)
        assert start_run(config, RunFolder.create(config), echo, require_multi_gpu=True) == 0
    text = "\n".join(said)
    assert len(re.findall(f"instead of {port}, which is in use", text)) == 2
    assert f"another program took port {replaced[0]}" in text
    assert "gloo instead of nccl" in text


@pytest.mark.slow
def test_without_a_process_group_one_device_trains(images: Path, tmp_path: Path) -> None:
    config = tiny_config(images, tmp_path, max_steps=1, **group_settings(2))
    pod = {"RANK": "0", "WORLD_SIZE": "1"}  # of a pod of one replica: no group, so the two processes are started
    done = run_command(train_command(config, tmp_path / "c.json"), GLOO_SOCKET_IFNAME="doesnotexist", **pod)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one device trains instead" in done.stdout
    assert "GLOO_SOCKET_IFNAME" in done.stderr
    shutil.rmtree(tmp_path / "runs")
    argv = train_command(config, tmp_path / "c.json", "--require_multi_gpu", "--no_torchrun")
    assert_error_message(run_command(argv, GLOO_SOCKET_IFNAME="doesnotexist"), 3, "could not form a group")


@pytest.mark.slow
def test_a_saved_model_generates_and_wrong_folders_are_refused(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = train_alone(tiny_config(images, tmp_path, max_steps=2))
    argv = ["--model", str(run.folder.model_dir), "--out", str(tmp_path / "out")]
    assert sample.main([*argv, "--prompt", "a", "--prompt", "b"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "grid-00.png",
        "sample-00.png",
        "sample-01.png",
    ]
    capsys.readouterr()
    assert sample.main([*argv, "--prompt", "c"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "out" / "sample-02.png")]  # beside the others
    for arguments, message in (
        (["--model", str(tmp_path)], "tandem.json"),
        (["--model", str(tmp_path / "missing")], "there is no folder"),
        (["--model", str(run.folder.model_dir), "--width", "20"], "multiple of 8"),
        (["--model", str(run.folder.model_dir), "--count", "0"], "--count"),
        (["--model", str(run.folder.model_dir), "--steps", "0"], "steps"),
        (["--model", str(run.folder.model_dir), "--base_model", "x"], "is a whole model"),
        (["--model", str(run.folder.path)], f"is the folder of a run. Use its model folder, {run.folder.model_dir}"),
        (["--model", str(next(run.folder.backup_dir.iterdir()))], "is a backup"),
        (["--model", str(run.folder.model_dir / "tandem.json")], "is a file"),
    ):
        capsys.readouterr()
        assert sample.main([*arguments, "--prompt", "x"]) == 2
        assert message in capsys.readouterr().err
