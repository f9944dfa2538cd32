"""`python -m app`: as a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.placement import fitting
from app.preferences import Preferences, preferences_file
from modules.config import TrainConfig, save_config
from tests.app.driving import Driver

ROOT = Path(__file__).resolve().parents[2]

LOOK_INTO_THE_PROCESS = """
import sys
from app.main_window import MainWindow
from app.texts import SECTIONS
window = MainWindow()
for name in SECTIONS:
    window.show_section(name)
    window.update()
window.destroy()
print([name for name in sys.modules if name.partition(".")[0] in ("torch", "diffusers", "modules.training")])
"""


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**inherited, **environment}, capture_output=True, encoding="utf-8", check=False
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
@pytest.mark.parametrize("environment", [{}, {"DISPLAY": ""}, {"DISPLAY": ":9876"}])
def test_without_a_display_one_sentence_names_the_command(environment: dict[str, str]) -> None:
    done = start("-m", "app", **environment)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "python scripts/train.py --config FILE" in done.stderr


def test_help_needs_no_display() -> None:
    done = start("-m", "app", "--help")
    assert done.returncode == 0
    assert "--config" in done.stdout


def test_the_window_loads_no_torch(display: str, home: Path) -> None:
    done = start("-c", LOOK_INTO_THE_PROCESS, DISPLAY=display, TANDEM_CONFIG_DIR=str(home / "habits"))
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_a_config_is_opened_at_the_start(display: str, home: Path) -> None:
    save_config(TrainConfig(epochs=33), home / "a.yaml")
    with Driver.open(config_file=home / "a.yaml") as driver:
        driver.wait(lambda: driver.draft.get("epochs") == 33, "the file")


def test_a_config_that_is_not_there_is_told_at_the_start(display: str, home: Path) -> None:
    with Driver.open(config_file=home / "gone.yaml") as driver:
        driver.wait(driver.dialogs, "the sentence")
        assert "does not exist" in driver.words(driver.dialogs()[0])
        driver.press("Escape")


# What the window remembers


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"scale": "large", "recent": 3, "mode": "pink"}',
        b'{"scale": 1e999}',
    ],
)
def test_damaged_memory_costs_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "window.json"
    file.write_bytes(content)
    assert Preferences.load(file) == Preferences()


def test_memory_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "window.json"
    kept = Preferences(mode="light", scale=150, geometry="900x600+1+2", section="data")
    for number in range(12):
        kept.remember(tmp_path / f"{number}.yaml")
    kept.remember(tmp_path / "5.yaml")
    kept.save(file)
    loaded = Preferences.load(file)
    assert loaded == kept
    assert [Path(name).stem for name in loaded.recent] == ["5", "11", "10", "9", "8", "7", "6", "4", "3", "2"]


def test_memory_that_cannot_be_written_troubles_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Preferences().save(tmp_path / "file" / "window.json")


def test_the_place_of_the_memory_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path))
    assert preferences_file() == tmp_path / "window.json"


@pytest.mark.parametrize(
    ("kept", "place"),
    [
        ("", "1280x800+320+140"),
        ("nonsense", "1280x800+320+140"),
        ("900x700+40+30", "900x700+40+30"),
        ("900x700+-200+30", "900x700+-200+30"),  # partly out of sight on the left
        ("900x700+5000+30", "1280x800+320+140"),  # the second screen is gone
        ("900x700+40+2000", "1280x800+320+140"),
        ("4000x3000+0+0", "1920x1080+0+0"),
        ("10x10+0+0", "720x480+0+0"),
    ],
)
def test_a_window_is_never_out_of_sight(kept: str, place: str) -> None:
    assert fitting(kept, (1920, 1080), (720, 480)) == place
