"""Where the finished model goes if the disk of its run does not take it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from modules.checkpoint import save_model
from modules.training.actions import save
from tests.runs import Run, tiny_config, train_alone

Start = Callable[..., tuple[int, Run]]


@pytest.fixture
def start(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """A run whose disk takes no model, with a home folder of its own; the fault suite has real full disks."""

    def saved(export: object, folder: Path, *more: object) -> None:
        if folder.is_relative_to(tmp_path / "runs"):
            if folder.parent.name == "full":  # as safetensors says it on a real full disk
                raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        save_model(export, folder, *more)  # type: ignore[arg-type]

    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(save, "save_model", saved)
    settings = {"max_steps": 1, "runs_dir": str(tmp_path / "runs")}
    return lambda **more: train_alone(tiny_config(images, tmp_path, **{**settings, **more}))


def test_the_finished_model_goes_to_the_rescue_folder_and_beside_what_is_there(start: Start, tmp_path: Path) -> None:
    for run_name, name in (("x", "x"), ("x", "x-2"), ("full", "full")):
        code, run = start(rescue_dir=str(tmp_path / "usb"), run_name=run_name)
        assert code == 3
        assert f"is saved in {tmp_path / 'usb' / name / 'model'} instead" in run.failure(0)
        assert (tmp_path / "usb" / name / "model" / "weights.safetensors").is_file()
        assert not any((tmp_path / "home").iterdir())
        run.folder.path.rename(tmp_path / f"former {name}")


@pytest.mark.parametrize("has_room", [True, False])
def test_without_one_it_goes_to_the_home_folder_if_that_has_room(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    if not has_room:
        monkeypatch.setattr(save, "SPARE_BYTES", 1 << 60)
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder")
    code, run = start(rescue_dir=str(blocked))
    assert code == 3
    assert ("tandem-rescued" in run.failure(0)) is has_room
    assert ("No space left on device" in run.failure(0)) is True
    assert [path.name for path in (tmp_path / "home").rglob("weights.safetensors")] == [
        "weights.safetensors"
    ] * has_room
