"""Programs that are started in somebody else's folder run nothing that lies there, whatever its name."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from app.dry_run import dry_run
from app.family_declaration import load_declaration
from app.monitor.tensorboard import TensorBoard
from modules.config import ConfigError, TrainConfig, save_config
from modules.diffusion.hub.model import HubModel
from modules.run import RunFolder
from modules.run.supervise.supervisor import Supervisor
from scripts import train
from tests.runs import ROOT

NAMES = ("app", "huggingface_hub", "json", "modules", "multiprocessing", "tensorboard", "torch")

LOADER = """import multiprocessing
if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=print)
    worker.start()
    worker.join()
    raise SystemExit(worker.exitcode)
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a module of the current folder writes if it is imported."""
    folder, marker = tmp_path / "theirs", tmp_path / "marker"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r})\nraise SystemExit(9)\n")
    monkeypatch.chdir(folder)
    return marker


def test_the_processes_of_a_run(marker: Path, tmp_path: Path) -> None:
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path / "runs"), run_name="x"))
    (tmp_path / "work.py").write_text(LOADER)
    code = Supervisor([sys.executable, str(tmp_path / "work.py")], folder).run()
    assert not marker.exists(), marker.read_text()
    assert code == 0


@pytest.mark.slow
def test_a_download(marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    model = HubModel("owner/missing", "", ("unet",), ("TinyPipeline",))
    with pytest.raises(ConfigError, match="could not be downloaded"):
        model.download(lambda done, total: None)
    assert not marker.exists(), marker.read_text()


@pytest.mark.slow
def test_tensorboard(marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path / "runs"), run_name="x"))
    shared = tmp_path / "tmp"  # as /tmp, where TensorBoard would write to the end of another user's link
    shared.mkdir()
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", None)
    owner = SimpleNamespace(bind=lambda *_, **__: None, after=lambda *_: None)
    board = TensorBoard(owner, print, browse=print)  # type: ignore[arg-type]
    board.start(folder)
    assert board.server is not None
    process = board.server._process
    try:
        with pytest.raises(subprocess.TimeoutExpired):  # it listens until it is stopped
            process.wait(2)
    finally:
        (own,) = shared.iterdir()
        board.stop()
    assert own.name.startswith("tandem-tensorboard-")
    assert not own.exists()
    assert not marker.exists(), marker.read_text()


@pytest.mark.slow
def test_the_window(marker: Path) -> None:
    done = subprocess.run([str(ROOT / "start_ui.sh"), "--version"], capture_output=True, text=True, check=False)
    assert not marker.exists(), marker.read_text()
    assert done.stdout.startswith("Tandem ")


@pytest.mark.slow
def test_relative_paths_start_in_the_current_folder(
    marker: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path.cwd()
    (folder / "images").mkdir()
    Image.new("RGB", (64, 64)).save(folder / "images" / "a.png")
    (folder / "mine.py").write_text("from tests import tiny_family\nclass Mine(tiny_family.TinyFamily): ...\n")
    settings = {"family": "mine.py", "concepts": [{"path": "images"}], "base_model": None, "device": "cpu"}
    config = TrainConfig.model_validate(settings)
    save_config(config, folder / "config.json")
    assert load_declaration("mine.py").methods, "the window's form"
    assert dry_run(config) == [], "the window's check"
    assert train.main(["--config", str(folder / "config.json"), "--dry_run"]) == 0
    (folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(folder.parent / "elsewhere")
    assert train.main(["--config", str(folder / "config.json"), "--dry_run"]) == 4, "the family is beside the config"
    assert "the folder 'images' does not exist" in capsys.readouterr().err
    assert not marker.exists(), marker.read_text()
