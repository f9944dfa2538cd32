"""Resuming on several ranks of one machine: one of them hashes each file of the backup, and the best weights."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modules.checkpoint import best_weights
from modules.config import TrainConfig
from modules.distributed import RankEnv
from modules.run import RunFolder
from modules.run.folder import backup_manifest
from modules.run.folder.backup_list import complete_backups
from modules.training.worker import run_worker
from tests.pair_jobs import TIMEOUTS
from tests.ports import free_port
from tests.runs import Run, group_settings, in_ranks, same_state, tiny_config

pytestmark = pytest.mark.slow

RANKS = 2
MODES = ("distributed", "fully_sharded")
CASES = ("latest", "damaged", "path", "none")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    """Runs of both modes, of which copies were resumed in each case."""
    top = tmp_path_factory.mktemp("verified")
    for mode in MODES:
        RunFolder.create(_config(images, top, mode, mode, 4))
    ports = [free_port() for _ in range(len(MODES) * (1 + len(CASES)) + 1)]
    in_ranks(_work, RANKS, ports[-1], (top, images, ports[:-1]))
    return top


def _config(images: Path, top: Path, mode: str, name: str, max_steps: int) -> TrainConfig:
    settings = {**group_settings(RANKS), **TIMEOUTS, "training_mode": mode, "precision": "fp64"}
    if mode == "distributed":
        settings |= {"validation_split": 0.2, "validate_every": "4 steps", "restore_best": True}
    settings |= {"backup_every": "2 steps", "backups_kept": 5, "run_name": name, "max_steps": max_steps}
    return tiny_config(images, top, **settings)


def _work(rank: RankEnv, top: Path, images: Path, ports: list[int]) -> None:
    torch.set_num_threads(1)
    hashed: dict[str, int] = {}
    file_sha256 = backup_manifest.file_sha256

    def counted(path: Path) -> str:
        hashed[f"{path.parent.name}/{path.name}"] = hashed.get(f"{path.parent.name}/{path.name}", 0) + 1
        return file_sha256(path)

    backup_manifest.file_sha256 = best_weights.file_sha256 = counted  # type: ignore[attr-defined]
    left = iter(ports)
    for mode in MODES:
        config = _config(images, top, mode, mode, 4)
        folder = RunFolder(top / "runs" / mode)
        code = run_worker(config, folder, replace(rank, master_port=next(left)))
        assert code == 0
        for case in CASES:
            name = f"{mode}-{case}"
            copy = RunFolder(top / "runs" / name)
            if rank.rank == 0:
                _prepare(folder, copy, case)
            while not copy.path.exists():
                time.sleep(0.01)
            hashed.clear()
            resume = str(copy.backup_dir / "step-000002") if case == "path" else "latest"
            later = _config(images, top, mode, name, 5)
            code = run_worker(later, copy, replace(rank, master_port=next(left)), resume=resume)
            (top / f"{name}-{rank.rank}.json").write_text(json.dumps({"code": code, "hashed": hashed}))


def _prepare(folder: RunFolder, copy: RunFolder, case: str) -> None:
    """A copy of a run, as another start finds it."""
    partial = copy.path.with_name(f".{copy.path.name}")
    shutil.copytree(folder.path, partial)
    backups = complete_backups(partial / "backup")
    for backup in {"damaged": backups[-1:], "none": backups}.get(case, []):
        weights = sorted(backup.glob("weights*"))[-1]
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    partial.rename(copy.path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_one_rank_hashes_each_file_once(place: Path, mode: str, case: str) -> None:
    run = Run(RunFolder(place / "runs" / f"{mode}-{case}"))
    ranks = [json.loads((place / f"{mode}-{case}-{rank}.json").read_text()) for rank in range(RANKS)]
    assert [len(rank["hashed"]) > 0 for rank in ranks] == [True, False]
    assert set(ranks[0]["hashed"].values()) == {1}
    read = {name.split("/")[0] for name in ranks[0]["hashed"] if "-loss-" not in name}
    if mode == "distributed" and case != "none":
        best = [name for name in ranks[0]["hashed"] if "-loss-" in name]
        assert best == [f"{next(run.folder.best_dir.iterdir()).name}/weights.safetensors"]
    newest = complete_backups(run.folder.backup_dir)
    if case == "none":
        assert all(rank["code"] != 0 for rank in ranks)
        assert len(read) == len(newest)
        assert "no backup in" in run.failure(0)
        return
    assert [rank["code"] for rank in ranks] == [0, 0]
    expected = {"latest": {"step-000004"}, "damaged": {"step-000004", "step-000002"}, "path": {"step-000002"}}
    assert read == expected[case]
    used = run.folder.backup_dir / ("step-000004" if case == "latest" else "step-000002")
    files = {f"{used.name}/{name}" for name in backup_manifest.read_manifest(used).files}
    assert files <= ranks[0]["hashed"].keys(), "every part"
    assert ("is damaged" in run.warnings) == (case == "damaged")
    assert same_state(run.state, Run(RunFolder(place / "runs" / f"{mode}-latest")).state)
