"""What train_distributed.sh starts, with a Python in .venv that only prints its arguments."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="train_distributed.sh is for POSIX shells")


class Checkout:
    """A folder with train_distributed.sh, on a machine with or without GPUs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        shutil.copy2(ROOT / "train_distributed.sh", root)
        self._program("scripts/setup.sh", "exit ${SETUP_EXIT_CODE:-0}")
        # `python -c ...` is the question whether there is a GPU.
        self._program(
            ".venv/bin/python",
            'if [ "$1" = -c ]; then exit "$GPU_EXIT_CODE"; fi; for word; do echo "$word"; done; echo end',
        )

    def _program(self, name: str, script: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def start(self, *arguments: str, gpu: bool = True, setup_exit_code: int = 0) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "GPU_EXIT_CODE": "0" if gpu else "1",
            "SETUP_EXIT_CODE": str(setup_exit_code),
        }
        command = [str(self.root / "train_distributed.sh"), *arguments]
        return subprocess.run(command, cwd="/", env=environment, capture_output=True, encoding="utf-8", check=False)

    def started(self, *arguments: str, gpu: bool = True) -> list[list[str]]:
        """The programs it started, each with its arguments; programs are named relative to the checkout."""
        done = self.start(*arguments, gpu=gpu)
        assert done.returncode == 0, done.stderr
        commands = [command.splitlines() for command in done.stdout.removesuffix("end\n").split("end\n")]
        return [[str(Path(first).relative_to(self.root)), *rest] for first, *rest in commands]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a folder with spaces")


TRAIN = ["scripts/train.py", "--multi_gpu"]
DEMO = ["--config", "demo"]


def test_without_arguments_the_demo_on_every_gpu(checkout: Checkout) -> None:
    assert checkout.started() == [[*TRAIN, *DEMO]]


def test_without_a_gpu_two_processes(checkout: Checkout) -> None:
    assert checkout.started(gpu=False) == [[*TRAIN, "--set", "world_size=2", *DEMO]]


def test_number_of_gpus(checkout: Checkout) -> None:
    assert checkout.started("4") == [[*TRAIN, "--set", "world_size=4", *DEMO]]


def test_config_and_options_are_passed_on_as_they_are(checkout: Checkout) -> None:
    asked = ["my own.yaml", "--set", "run_name=a b", "--resume", "latest"]
    assert checkout.started("all", *asked) == [[*TRAIN, "--config", *asked]]


def test_options_without_a_config_belong_to_the_demo(checkout: Checkout) -> None:
    assert checkout.started("all", "--set", "epochs=2")[-1] == [*TRAIN, *DEMO, "--set", "epochs=2"]


def test_options_alone_are_for_every_gpu(checkout: Checkout) -> None:
    assert checkout.started("--set", "epochs=2") == [[*TRAIN, *DEMO, "--set", "epochs=2"]]


def test_a_resumed_run_has_its_own_config(checkout: Checkout) -> None:
    for asked in (["--resume", "latest"], ["--resume=latest"], ["--set", "epochs=2", "--resume", "latest"]):
        assert checkout.started(*asked) == [[*TRAIN, *asked]]
    assert checkout.started("all", "demo", "--resume", "latest") == [[*TRAIN, *DEMO, "--resume", "latest"]]


def test_users_own_world_size_comes_last_and_counts(checkout: Checkout) -> None:
    sets = ["--set", "world_size=2", *DEMO, "--set", "world_size=3"]
    assert checkout.started("all", "demo", "--set", "world_size=3", gpu=False)[-1] == [*TRAIN, *sets]


@pytest.mark.parametrize("first", ["0", "two", "4x", "1.5", "my_run.yaml", ""])
def test_first_argument_that_is_no_number(checkout: Checkout, first: str) -> None:
    done = checkout.start(first, "demo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"'{first}'" in done.stderr
    assert "all" in done.stderr


def test_help_sets_up_nothing(checkout: Checkout) -> None:
    done = checkout.start("--help", setup_exit_code=1)
    assert done.returncode == 0
    assert "NUM_GPUS" in done.stdout


def test_failed_setup_ends_it(checkout: Checkout) -> None:
    done = checkout.start(setup_exit_code=1)
    assert (done.returncode, done.stdout) == (1, "")
