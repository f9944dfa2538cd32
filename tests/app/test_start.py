"""`python -m app` as a separate process, and the preferences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.home import enter_home
from app.preferences import Preferences, preferences_file
from app.shell.window_geometry import usable_geometry
from modules.config import TrainConfig, dump, save_config
from tests.app.driver import Driver

ROOT = Path(__file__).resolve().parents[2]

LIST_IMPORTS = """
import sys
from app.main_window import MainWindow
from app.sections import SECTIONS
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
def test_no_display_prints_the_training_command(environment: dict[str, str]) -> None:
    done = start("-m", "app", **environment)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "python scripts/train.py --config FILE" in done.stderr


@pytest.mark.slow
def test_help_needs_no_display() -> None:
    done = start("-m", "app", "--help")
    assert done.returncode == 0
    assert "--config" in done.stdout


@pytest.mark.slow
def test_window_loads_no_torch(display: str, home: Path) -> None:
    done = start("-c", LIST_IMPORTS, DISPLAY=display, TANDEM_CONFIG_DIR=str(home / "preferences"))
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_config_is_opened_at_the_start(display: str, home: Path) -> None:
    save_config(TrainConfig(epochs=33), home / "a.yaml")
    with Driver.open(config_file=home / "a.yaml") as driver:
        driver.wait(lambda: driver.draft.get("epochs") == 33, "the file")


def test_missing_config_is_reported_at_start(display: str, home: Path) -> None:
    with Driver.open(config_file=home / "gone.yaml") as driver:
        driver.wait(driver.dialogs, "the sentence")
        (dialog,) = driver.dialogs()
        assert "does not exist" in driver.text(dialog)
        driver.wait(lambda: dialog.winfo_rootx() > driver.window.winfo_rootx() + 100, "its place in the middle")
        driver.press("Escape")


# The folder of the user's files


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the system keeps them; the current folder and that of the preferences are others, and empty."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "preferences"))
    monkeypatch.setattr("app.home.user_documents_path", lambda: tmp_path / "Dokumente")
    return tmp_path / "Dokumente"


def test_first_start_keeps_files_in_the_documents(documents: Path) -> None:
    assert enter_home(Preferences.load()) == ""
    assert Path.cwd() == documents / "Tandem"
    os.chdir(documents)
    Preferences(welcomed=True).save()
    assert enter_home(Preferences.load()) == ""
    assert Path.cwd() == documents / "Tandem", "and the next one, whatever a second window saves"


@pytest.mark.parametrize("sign", ["runs", "older", "documents"])
def test_where_tandem_is_in_use_the_folder_stays(documents: Path, sign: str) -> None:
    if sign == "runs":
        Path("runs").mkdir()
    elif sign == "older":
        Preferences(welcomed=True).save()
    else:
        documents.write_text("not a folder")
    here = Path.cwd()
    assert enter_home(Preferences.load()) == ""
    assert (Path.cwd(), Preferences.load().home) == (here, "")


def test_a_folder_that_is_gone_is_said_and_not_made_anew(documents: Path) -> None:
    Preferences(welcomed=True).choose_home(documents)
    assert enter_home(Preferences.load()).startswith(
        f"{documents} cannot be used: No such file or directory. Until the next start, relative paths start in "
        f"{Path.cwd()}."
    )
    assert Preferences.load().home == str(documents)
    assert not documents.exists()


def test_a_deleted_current_folder_is_left(documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Preferences(welcomed=True).save()
    monkeypatch.setenv("HOME", str(documents.parent))
    Path.cwd().rmdir()
    assert enter_home(Preferences.load()) == ""
    assert Path.cwd() == documents.parent


def test_welcome_and_open_menu_change_the_folder(display: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "first").mkdir()
    chosen = iter([home / "nowhere", home / "first", home, home / "first"])
    monkeypatch.setattr("app.windows.welcome.choose_path", lambda *given: str(next(chosen)))
    monkeypatch.setattr("app.shell.files.choose_path", lambda *given: str(next(chosen)))
    with Driver.open(welcomed=False) as driver:
        driver.wait(driver.dialogs, "the welcome")
        assert f"the folder you start Tandem from: {home}" in driver.text(driver.dialogs()[0])
        driver.answer("Change…")
        assert f"{home / 'nowhere'} cannot be used" in driver.text(driver.dialogs()[0])
        driver.answer("Change…")
        assert f"kept in {home / 'first'}" in driver.text(driver.dialogs()[0])
        assert Path.cwd() == home / "first"
        driver.press("Escape")
        driver.window.files.choose_home()
        assert Path.cwd() == home / "first", "what is open refers to it"
        assert Preferences.load().home == str(home)
        driver.window.files.choose_home()
        assert driver.window.run_bar._message == f"Your files stay in {home / 'first'}."
        assert Preferences.load().home == str(home / "first"), "taken back"


# Preferences


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
def test_damaged_preferences_give_defaults(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "window.json"
    file.write_bytes(content)
    assert Preferences.load(file) == Preferences()


@pytest.mark.parametrize("name", ["\0", "\ud800", "a\nb", "x" * 5000])
def test_names_that_no_file_can_have_are_left_out(name: str, home: Path) -> None:
    """The system raises for them, and the window would not be told what it waits for."""
    file = home / "preferences" / "window.json"
    names = {"recent": [name, "/a"], "runs_folders": [name, "/b"], "last_run": name, "places": {"x": name, "y": "/c"}}
    file.write_text(json.dumps(names))
    loaded = Preferences.load(file)
    assert (loaded.recent, loaded.runs_folders, loaded.last_run, loaded.places) == (["/a"], ["/b"], "", {"y": "/c"})


def test_a_run_folder_that_none_can_be_is_not_looked_for(display: str, home: Path) -> None:
    session = {"unsaved": {**dump(TrainConfig()), "runs_dir": "a\0b"}}
    (home / "preferences" / "session.json").write_text(json.dumps(session))
    seen: dict[str, Any] = {"section": "monitor", "pages": {"monitor": "queue"}, "last_run": "x" * 300}
    with Driver.open(keeps_session=True, **seen) as driver:
        assert driver.draft.get("runs_dir") == "a\0b"
        assert driver.draft.fault_at("runs_dir")
        for name in ("queue", "curves"):
            driver.window.sections["monitor"].open_page(name)
            driver.settle()
        page = driver.window.sections["monitor"].pages["queue"]
        driver.wait(lambda: not page._is_reading, "the queue")


def test_preferences_are_saved_and_loaded(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "window.json"
    saved = Preferences(mode="light", scale=150, geometry="900x600+1+2", section="data")
    for number in range(12):
        saved.add_recent(tmp_path / f"{number}.yaml")
    saved.add_recent(tmp_path / "5.yaml")
    saved.save(file)
    loaded = Preferences.load(file)
    assert loaded == saved
    assert [Path(name).stem for name in loaded.recent] == ["5", "11", "10", "9", "8", "7", "6", "4", "3", "2"]


def test_unwritable_preferences_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Preferences().save(tmp_path / "file" / "window.json")


def test_preferences_folder_can_be_overridden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path))
    assert preferences_file() == tmp_path / "window.json"


@pytest.mark.parametrize(
    ("saved", "place"),
    [
        ("", "1280x800+320+140"),
        ("nonsense", "1280x800+320+140"),
        ("900x700+40+30", "900x700+40+30"),
        ("900x700+-200+30", "900x700+-200+30"),  # partly off the screen
        ("900x700+5000+30", "1280x800+320+140"),  # the second screen is gone
        ("900x700+40+2000", "1280x800+320+140"),
        ("4000x3000+0+0", "1920x1080+0+0"),
        ("10x10+0+0", "720x480+0+0"),
    ],
)
def test_restored_window_is_on_the_screen(saved: str, place: str) -> None:
    assert usable_geometry(saved, (1920, 1080), (720, 480)) == place
