"""The commands for several machines and for Slurm, without a window."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from app.multi_gpu.commands import build_commands
from modules.config import TrainConfig, save_config
from modules.run import RunFolder
from modules.run.slurm.options import request_of
from modules.run.slurm.script import plan_jobs, render
from scripts.submit_slurm import config_of, parser


def settings(images: Path, tmp_path: Path, **more: object) -> TrainConfig:
    given = {"concepts": [{"path": str(images)}], "runs_dir": str(tmp_path), "enable_multi_gpu": True, **more}
    return TrainConfig.model_validate(given)


def two_machines(images: Path, tmp_path: Path, *counts: int) -> TrainConfig:
    more = {"num_nodes": 2, "processes_per_node": list(counts) or None, "distributed_backend": "gloo"}
    return settings(images, tmp_path, master_addr="10.0.0.1", **more)


def batch_script(config: TrainConfig, tmp_path: Path) -> str:
    """The script that the window's line writes; it is read as scripts/submit_slurm.py reads it."""
    file = tmp_path / "it's mine.json"
    save_config(config, file)
    words = shlex.split(build_commands(config, file, "token")[-1].text)
    assert words[:3] == ["cd", str(Path.cwd()), "&&"], "where relative paths begin"
    assert words[4].endswith("submit_slurm.py")
    options = parser().parse_args(words[5:])
    read = config_of(options)
    request = request_of(options, read)
    return render(plan_jobs(read, request)[-1], request, RunFolder(tmp_path / "x"), Path.cwd())


@pytest.mark.parametrize("counts", [(4, 2), (1, 3)])
def test_no_slurm_script_for_unequal_machines(images: Path, tmp_path: Path, counts: tuple[int, int]) -> None:
    line = build_commands(two_machines(images, tmp_path, *counts), tmp_path / "config.yaml", "token")[-1].text
    assert "submit_slurm" not in line
    assert f"{counts[0]} + {counts[1]} processes" in line
    assert "Processes per machine" in line


def test_slurm_script_asks_for_what_the_machines_start(images: Path, tmp_path: Path) -> None:
    script = batch_script(two_machines(images, tmp_path, 3, 3), tmp_path)
    assert "#SBATCH --nodes=2" in script
    assert "#SBATCH --ntasks-per-node=3" in script
    assert "#SBATCH --gres=gpu:3" in script, "also if this computer, a login node, has none"


@pytest.mark.parametrize(
    ("more", "tasks"),
    [({"world_size": 64}, 64), ({"processes_per_node": [4]}, 4), ({}, 1), ({"training_mode": "single"}, 1)],
)
def test_slurm_script_of_one_node(images: Path, tmp_path: Path, more: dict[str, object], tasks: int) -> None:
    script = batch_script(settings(images, tmp_path, **more), tmp_path)
    assert "#SBATCH --nodes=1" in script
    assert f"#SBATCH --ntasks-per-node={tasks}" in script
    assert f"#SBATCH --gres=gpu:{tasks}" in script
    assert "#SBATCH --gres" not in batch_script(settings(images, tmp_path, **more, device="cpu"), tmp_path)


def test_options_of_the_slurm_line_are_explained_and_exist(images: Path, tmp_path: Path) -> None:
    (found,) = build_commands(settings(images, tmp_path), tmp_path / "config.yaml", "token")
    named = [word for option, _ in found.options for word in option.split() if word.startswith("--")]
    known = {name for action in parser()._actions for name in action.option_strings}
    assert {"--cpu", "--gpus", "--dry_run"} <= set(named) <= known


def test_torchrun_commands_have_their_folder_and_one_secret(images: Path, tmp_path: Path) -> None:
    found = build_commands(two_machines(images, tmp_path, 1), tmp_path / "config.yaml", "token")
    by_hand = [command.text for command in found if "torchrun" in command.title]
    assert len(by_hand) == 2
    assert all(text.startswith(f" cd {shlex.quote(str(Path.cwd()))} && ") for text in by_hand)
    secrets = {re.search(r"TANDEM_STORE_SECRET=([0-9a-f]{32}) ", text)[1] for text in by_hand}  # type: ignore[index]
    assert len(secrets) == 1


def test_the_first_machine_is_said_to_be_another_one(images: Path, tmp_path: Path) -> None:
    """10.0.0.1 is no address of this computer, whose network interface would be wrong there."""
    found = build_commands(two_machines(images, tmp_path, 1), tmp_path / "config.yaml", "token")
    assert "This computer does not have that address" in found[0].help
    assert not any("SOCKET_IFNAME" in command.text for command in found)
