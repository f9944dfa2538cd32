"""Who fetches a base model from the hub, as far as the ranks' answers decide it; the hub itself is not asked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import huggingface_hub.constants
import pytest

from modules.config import ConfigError, TrainConfig
from modules.distributed import SharedFolderGroups
from modules.families._by_name import family_class
from modules.families._family import Family
from modules.monitoring import SilentReport
from modules.training.loop.setup import fetch_base_model
from tests.runs import ROOT

HERE, THERE = "0" * 40, "1" * 40


class TwoRanks:
    """Rank 0 of two, and what the other one sends."""

    rank, world_size = 0, 2

    def __init__(self, other: Mapping[str, str]) -> None:
        self.other = other
        self.shared_folders: list[Path] = []

    def gather(self, name: str, text: str) -> list[str]:
        return [text, self.other.get(name, text)]

    def shared_folder_groups(self, name: str, folder: Path) -> SharedFolderGroups:
        self.shared_folders.append(folder)
        return SharedFolderGroups(0, ((0, 1),))

    def run_on_rank0(self, name: str, work: Callable[[], None]) -> None:
        work()

    def run_on_all(self, name: str, work: Callable[[], None]) -> None:
        work()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache of a computer without a connection, with the model."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--owner--model"
    snapshot = repository / "snapshots" / HERE
    (snapshot / "unet").mkdir(parents=True)
    for name in ("model_index.json", "unet/config.json", "unet/model.safetensors"):
        (snapshot / name).write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(HERE)
    return tmp_path / "hub"


def fetch(**other: str) -> TwoRanks:
    config = TrainConfig(family=str(ROOT / "tests" / "hub_family.py"), base_model="owner/model")
    kind: type[Family] = family_class(config.family)
    ranks = TwoRanks({name.replace("_", " "): text for name, text in other.items()})
    fetch_base_model(kind, config, ranks, SilentReport(), lambda: None)  # type: ignore[arg-type]  # all it asks for
    return ranks


def test_all_alike(cache: Path) -> None:
    assert fetch().shared_folders == [cache]
    assert fetch(base_model="read only").shared_folders == [], "nothing is shared where nothing can be written"


def test_machines_that_differ(cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"'owner/model' is on the disk of rank 1, and not on that of rank 0"):
        fetch(base_model="")
    with pytest.raises(ConfigError, match=rf"rank 0 has another version .*{HERE}.* than rank 1 \({THERE}\).*@commit"):
        fetch(commit=THERE)
