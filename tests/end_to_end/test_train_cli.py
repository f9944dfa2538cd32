"""examples/train_cli.py: the flags that training scripts have."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from examples import train_cli
from modules.config import load_config
from modules.run import RunFolder
from tests.classes import write_classes
from tests.ports import free_port
from tests.runs import ROOT, Run, run_command

SCRIPT = str(ROOT / "examples" / "train_cli.py")
# Each takes seconds to import, in every rank.
LEFT_OUT = {"diffusers", "transformers", "peft", "accelerate", "matplotlib"}


@pytest.mark.slow
@pytest.mark.end_to_end
def test_two_ranks_and_a_resume(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", 12)
    write_classes(tmp_path / "val", 4)
    command = [
        *(sys.executable, SCRIPT, "--data", str(tmp_path / "train"), "--val-data", str(tmp_path / "val")),
        *("--model", "cifar_resnet20", "--image-size", "16", "--epochs", "1", "--batch-size", "3", "--lr", "0.05"),
        *("--use-amp", "--use-ema", "--distributed", "--world-size", "2", "--backend", "gloo", "--workers", "0"),
        *("--output-dir", str(tmp_path / "runs"), "--name", "mine"),
    ]
    others = {
        "cache_dir": tmp_path / "cache",
        "family_options.width": 4,
        "initial_port": free_port(),
        "pin_memory": "false",
    }
    first = run_command([*command, *(part for name, value in others.items() for part in ("--set", f"{name}={value}"))])
    assert first.returncode == 0, first.stdout + first.stderr
    run = Run(RunFolder(tmp_path / "runs" / "mine"))
    config = load_config(run.folder.config_file)
    assert (config.family, config.precision, config.ema, config.world_size) == ("classifier", "bf16", True, 2)
    assert run.state.position.world_size == 2
    assert run.state.position.step == 2
    assert run.events("validation")
    again = run_command(
        [sys.executable, SCRIPT, "--resume", "--output-dir", str(tmp_path / "runs"), "--epochs", "2"],
        PYTHONPROFILEIMPORTTIME="1",
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert run.state.position.step == 4
    assert "Resuming at step 2 (the backup was made by 2 ranks)." in again.stdout
    imports = (run.folder.log_dir / "launcher.txt").read_text()
    imported = set(re.findall(r"\| +([\w.]+)$", imports, re.MULTILINE))
    assert {"torch", "modules.training.worker"} <= imported
    assert imported & LEFT_OUT == set()


def test_without_data_the_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert train_cli.main(["--epochs", "1"]) == 2
    assert capsys.readouterr().err.startswith("--data is missing: ")


def test_a_wrong_value_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert train_cli.main(["--data", "x", "--epochs", "-1"]) == 2
    assert capsys.readouterr().err.startswith("Training did not start: epochs is -1")
