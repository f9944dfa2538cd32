"""Three ranks on two machines that share no folder: what one machine lacks, it prepares or is sent."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modules.config import TrainConfig
from modules.distributed import RankEnv
from modules.run import RunFolder, root_cause
from modules.training.studies.parity import weight_difference
from modules.training.worker import run_worker
from tests.data.helpers import write_image
from tests.pair_jobs import TIMEOUTS
from tests.ports import free_port
from tests.runs import Run, group_settings, in_ranks, same_state, tiny_config, train_alone

pytestmark = pytest.mark.slow

MACHINES = (0, 0, 1)  # of each rank
TRAINED = {"max_steps": 9, "precision": "fp64", "ema": True}
JOBS: dict[str, dict[str, object]] = {
    "whole": TRAINED,
    "half": {**TRAINED, "max_steps": 4},
    "resumed": {**TRAINED, "run_name": "half"},
    "sharded": {**TRAINED, "max_steps": 4, "training_mode": "fully_sharded"},
    "resumed sharded": {**TRAINED, "run_name": "sharded", "training_mode": "fully_sharded"},
    "other images": {"concepts": [{"path": "changed"}]},
    "live": {
        "concepts": [{"path": "growing"}],
        "epochs": 3,
        "max_steps": None,
        "rescan": "epoch",
        "family_options": {
            "moves": [  # by rank 0: in the first epoch other contents to each machine, in the second one equal ones
                *(f"3|{there}/one.bmp|{there}/growing/new.bmp" for there in ("../0", "../1")),
                "12|../1/other.bmp|../1/growing/new.bmp",
            ]
        },
    },
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    """A folder for each machine, in which all jobs have been done."""
    top = tmp_path_factory.mktemp("machines")
    for machine in set(MACHINES):
        shutil.copytree(images, top / str(machine) / "images")
        shutil.copytree(images, top / str(machine) / "changed")
        shutil.copytree(images, top / str(machine) / "growing")
        for number, name in enumerate(("one", "other")):  # files of one size
            write_image(top / str(machine) / f"{name}.bmp", seed=(number + machine) % 2)
    first = sorted((top / "1" / "changed").rglob("*.png"))[0]
    other = sorted((top / "1" / "changed").rglob("*.png"))[1]
    shutil.copy(other, first)
    for machine in set(MACHINES):
        for name in {"whole", "half", "sharded", "other images", "live"}:
            RunFolder.create(_config(name).model_copy(update={"runs_dir": str(top / str(machine) / "runs")}))
    ports = [free_port() for _ in range(len(JOBS) + 1)]
    in_ranks(_work, len(MACHINES), ports[-1], (top, ports))
    return top


def _config(name: str) -> TrainConfig:
    here = Path()  # everything below the folder the rank stands in
    settings = {"run_name": name.replace(" ", "-"), **group_settings(len(MACHINES)), **TIMEOUTS, **JOBS[name]}
    return tiny_config(Path("images"), here, **settings)


def _work(rank: RankEnv, top: Path, ports: list[int]) -> None:
    torch.set_num_threads(1)
    os.chdir(top / str(MACHINES[rank.rank]))
    for name, port in zip(JOBS, ports, strict=False):
        config = _config(name)
        folder = RunFolder(Path(config.runs_dir) / str(config.run_name))
        resume = "latest" if name.startswith("resumed") else None
        run_worker(config, folder, replace(rank, master_port=port), resume=resume)


def run_of(place: Path, name: str, machine: int = 0) -> Run:
    return Run(RunFolder(place / str(machine) / "runs" / str(_config(name).run_name)))


def test_each_machine_caches_all_images_over_its_ranks(place: Path) -> None:
    folders = [sorted(path.name for path in (place / str(n) / "cache").glob("rank-*")) for n in (0, 1)]
    assert folders == [["rank-0", "rank-1"], ["rank-2"]]
    said = (run_of(place, "whole").folder.log_file(0)).read_text()
    assert "ranks 0, 1" in said
    assert "rank 2" in said
    assert "each prepare all images" in said


def test_the_result_is_that_of_one_process(place: Path, images: Path, tmp_path: Path) -> None:
    code, alone = train_alone(tiny_config(images, tmp_path, **TRAINED))
    assert code == 0
    separate = run_of(place, "whole")
    assert separate.losses == pytest.approx(alone.losses, rel=1e-9)
    for name, weight in separate.state.weights.items():
        torch.testing.assert_close(weight, alone.state.weights[name], rtol=1e-9, atol=1e-12)


def test_a_machine_without_the_backup_gets_it_sent(place: Path) -> None:
    assert not any((place / "1" / "runs" / "half" / "backup").glob("*")), "machine 1 had none of its own"
    resumed = run_of(place, "resumed")
    assert [event["step"] for event in resumed.events("step")] == list(range(1, 10))
    assert same_state(resumed.state, run_of(place, "whole").state)
    assert not (place / "1" / "runs" / "half" / "received").exists(), "nothing is left lying about"


def test_parts_of_a_sharded_backup_are_sent_to_rank_0_and_back(place: Path) -> None:
    resumed, whole = run_of(place, "resumed sharded"), run_of(place, "whole")
    first = resumed.folder.backup_dir / "step-000004"
    assert len(list(first.glob("*-of-00003.safetensors"))) == 3 * len(MACHINES)
    assert resumed.losses == pytest.approx(whole.losses, rel=1e-9)
    assert weight_difference(resumed.state, whole.state) <= 1e-9
    other = run_of(place, "resumed sharded", machine=1).folder.path
    assert not any((other / "backup").glob("*"))
    assert not (other / "received").exists()


def test_different_pictures_are_refused_by_name(place: Path) -> None:
    cause = root_cause(run_of(place, "other images").folder)
    assert cause is not None
    assert cause.kind == "data"
    assert "have different images or captions" in cause.message
    changed = sorted((place / "1" / "changed").rglob("*.png"))[0]
    assert changed.name in cause.message
    assert not run_of(place, "other images").events("step")


def test_a_live_edit_is_taken_once_all_machines_have_it(place: Path) -> None:
    live = run_of(place, "live")
    told = live.warnings
    assert "training goes on with the data as it was: concepts: " in told
    assert "have different images or captions" in told
    assert "1 came (new.bmp). The next epoch has 42 samples." in told
    assert live.state.position.samples_seen == 41 + 41 + 42
