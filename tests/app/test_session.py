"""The settings of a window that was killed, closed or whose files are gone, in the next window."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.generate.history import History
from app.preferences import Preferences
from modules.config import TrainConfig, file_access, load_config, save_config
from modules.config.train_config import VERSION
from modules.run.hosts.host_list import read_hosts
from tests.app.driver import Driver
from tests.app.fake_runs import make_fake_run
from tests.runs import LATER_VERSIONS, copy_of_version

ROOT = Path(__file__).resolve().parents[2]

EDIT = """
import sys
from app.main_window import MainWindow
window = MainWindow(keeps_session=True)
def edit():
    window.files.open(__import__("pathlib").Path(sys.argv[1]))
    window.state_.draft.set("epochs", 77)
    window.state_.draft.set("batch_size", "many")
    window.show_section("monitor")
    window.sections["monitor"].open_page("runs")
    window.after(50, lambda: print("edited", flush=True))
window.after(500, edit)
window.mainloop()
"""


def session_file(home: Path) -> Path:
    return home / "preferences" / "session.json"


def edit_and_kill(display: str, home: Path) -> None:
    save_config(TrainConfig(epochs=33, seed=5), home / "a.yaml")
    environment = {**os.environ, "DISPLAY": display, "TANDEM_CONFIG_DIR": str(home / "preferences")}
    with subprocess.Popen(
        [sys.executable, "-c", EDIT, str(home / "a.yaml")], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "edited\n"
        give_up = time.monotonic() + 60
        while '"many"' not in (session_file(home).read_text() if session_file(home).exists() else ""):
            assert time.monotonic() < give_up, "the edits are not written"
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_unsaved_changes_survive_a_kill(display: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_and_kill(display, home)
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(home / "preferences"))
    left = Preferences.load()
    with Driver.open(keeps_session=True, section=left.section, pages=left.pages) as driver:
        assert (driver.window.section, driver.window.sections["monitor"].page) == ("monitor", "runs")
        draft = driver.draft
        assert draft.file == home / "a.yaml"
        assert (draft.get("epochs"), draft.get("batch_size"), draft.get("seed")) == (77, "many", 5)
        assert [fault.path for fault in draft.faults] == ["batch_size"]
        assert draft.is_dirty
        driver.window.undo()
        assert (draft.get("epochs"), draft.is_dirty) == (33, False)
        driver.settle()
    # closed without unsaved changes
    kept = {"file": str(home / "a.yaml"), "folder": "", "preset": "", "unsaved": None}
    assert json.loads(session_file(home).read_text()) == kept
    (home / "a.yaml").unlink()
    with Driver.open(keeps_session=True) as driver:
        assert driver.draft.get("epochs") == TrainConfig().epochs
        assert driver.draft.file is None
        assert "cannot be opened any more" in driver.window.run_bar._message
    session_file(home).write_text(json.dumps({"preset": "a\nb"}))
    with Driver.open(keeps_session=True) as driver:
        assert driver.window.run_bar._message.startswith(r"a\nb, which was open last")


def test_a_file_of_another_folder_comes_back_with_that_folder(
    display: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As opened with --config there: its relative paths would start among the user's files."""
    project, own = home / "project", home / "own"
    own.mkdir()
    (project / "pictures").mkdir(parents=True)
    save_config(TrainConfig.model_validate({"concepts": [{"path": "pictures"}]}), project / "a.yaml")
    monkeypatch.chdir(project)
    kept = session_file(home)
    with Driver.open(Path("a.yaml"), keeps_session=True, home=str(own)) as driver:
        driver.wait(lambda: driver.draft.file, "the file")
        driver.draft.set("seed", 7)
        driver.wait(
            lambda: session_file(home).exists() and '"seed": 7' in session_file(home).read_text(), "the session"
        )
        left = session_file(home).read_text()
    session_file(home).write_text(left)  # as if it had been killed
    for gone in (False, True):
        monkeypatch.chdir(own)
        if gone:
            project.rename(home / "moved")
            kept.write_text(left)
        with Driver.open(keeps_session=True, home=str(own)) as driver:
            said = driver.window.run_bar._message
            assert Path.cwd() == (own if gone else project)
            assert ("No such file or directory" if gone else f"start in {project}") in said
            if not gone:
                driver.draft.new()
                driver.wait(lambda: json.loads(kept.read_text())["folder"] == "", "a window at home")


@pytest.mark.parametrize("version", LATER_VERSIONS)
def test_a_session_of_before_opens(version: str, display: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_version(version, tmp_path / version)
    folder = tmp_path / version / "window"
    folder.chmod(0o700)
    (folder / "hosts.json").chmod(0o600)
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(folder))
    monkeypatch.chdir(folder.parent)
    left = Preferences.load()
    assert (left.section, left.recent, left.hosts) == ("monitor", [str(folder.parent / "edited.yaml")], ["beta"])
    assert [(host.name, host.target, host.port) for host in read_hosts()] == [("beta", "me@10.0.0.2", 2222)]
    assert [prompt.prompt for prompt in History.load().prompts] == ["a red square"]
    with Driver.open(keeps_session=True, section=left.section, hosts=left.hosts) as driver:
        draft = driver.draft
        assert draft.file == folder.parent / "edited.yaml"
        assert (draft.get("epochs"), draft.get("batch_size"), draft.faults, draft.is_dirty) == (77, 4, (), True)
        driver.window.undo()
        assert draft.config == load_config(folder.parent / "edited.yaml")


def test_what_a_newer_window_left_is_not_taken_for_settings(display: str, home: Path) -> None:
    session_file(home).write_text(json.dumps({"unsaved": {"version": VERSION + 1, "epochs": 77}}))
    with Driver.open(keeps_session=True) as driver:
        assert driver.draft.get("epochs") == TrainConfig().epochs
        assert "Update Tandem" in driver.window.run_bar._message
        driver.draft.set("seed", 12)
        driver.settle()
    kept = json.loads(session_file(home).with_name("session-unread.json").read_text())
    assert kept["unsaved"]["epochs"] == 77


HOLDER = """
import sys; from pathlib import Path
from modules.run.folder.run_lock import file_lock
with file_lock(Path(sys.argv[1])) as is_mine:
    print(is_mine, flush=True)
    sys.stdin.read()
"""


def test_a_second_window_leaves_the_session_to_the_first(display: str, home: Path) -> None:
    """What is unsaved there is not taken over, and what is changed here is no session until the first is closed."""
    save_config(TrainConfig(epochs=33), home / "a.yaml")
    of_first = json.dumps({"file": str(home / "a.yaml"), "preset": "", "unsaved": {"epochs": 77}})
    session_file(home).write_text(of_first)
    lock = session_file(home).with_suffix(".lock")
    argv = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == b"True\n"
        with Driver.open(keeps_session=True) as driver:
            assert (driver.draft.get("epochs"), driver.draft.is_dirty) == (33, False)
            said = "Another window is open, with unsaved changes that stay there."
            assert driver.window.run_bar._message == said
            assert driver.window.title().endswith("(second window)")
            assert driver.window.header._status.cget("text") == "second window"
            make_fake_run(home / "runs" / "mylora")
            driver.window.actions._attach_active([home / "runs" / "mylora"])
            assert driver.window.run_bar._message == f"{said} Following mylora, which was already training."
            driver.window._session.save(keeps_edits=True)  # type: ignore[union-attr]
            assert session_file(home).read_text() == of_first
            first.stdin.close()
            first.wait()
            driver.window._session.save(keeps_edits=True)  # type: ignore[union-attr]
            assert session_file(home).read_text() == of_first, "it was killed: the next window gets what is unsaved"
            session_file(home).write_text("{}")
            driver.draft.set("epochs", 5)
            driver.wait(lambda: '"epochs": 5' in session_file(home).read_text(), "a session of its own")
            assert not driver.window.title().endswith("(second window)")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"file": 3}',
        '{"preset": "../../etc/passwd", "unsaved": null}',
        '{"file": "/dev/zero"}',
        '{"unsaved": {"concepts": 7, "optimizer": [], "nonsense": {}, "epochs": {"a": [1]}}}',
    ],
)
def test_a_damaged_session_opens_a_usable_window(
    display: str, home: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    session_file(home).parent.mkdir(parents=True, exist_ok=True)
    session_file(home).write_text(content)
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(home / "preferences"))
    with Driver.open(keeps_session=True) as driver:
        driver.draft.set("seed", 12)
        driver.settle()
        assert driver.draft.get("seed") == 12


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such owners")
@pytest.mark.parametrize("whose", ["session.json", "a.yaml"])
def test_what_another_user_has_written_is_not_opened_unasked(
    display: str, home: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    save_config(TrainConfig(epochs=33), home / "a.yaml")
    session_file(home).write_text(json.dumps({"file": str(home / "a.yaml"), "preset": "", "unsaved": None}))
    before = session_file(home).read_text()
    theirs = session_file(home) if whose == "session.json" else home / whose
    monkeypatch.setattr(file_access, "other_owner", lambda file: "eve" if file == theirs else "")
    monkeypatch.setattr("app.preferences.other_owner", file_access.other_owner)
    with Driver.open(keeps_session=True) as driver:
        assert driver.draft.get("epochs") == TrainConfig().epochs
        assert driver.window.run_bar._message.startswith(f"{theirs} belongs to another user of this computer, eve")
        driver.draft.set("epochs", 5)
        driver.window._session.save(keeps_edits=True)  # type: ignore[union-attr]
        assert (session_file(home).read_text() == before) is (whose == "session.json"), "nobody's file is replaced"
        driver.window.files.open(home / "a.yaml")
        driver.settle()
        assert driver.draft.get("epochs") == 33, "a file that is chosen is asked for"


@pytest.mark.slow
def test_texts_that_are_none_in_utf_8_are_kept(display: str, home: Path) -> None:
    """A folder whose name is not UTF-8 is chosen like any other; half a surrogate pair comes from a foreign file."""
    folder = os.fsdecode(b"caf\xe9")
    unsaved = {
        "concepts": [{"path": folder}],
        "samples": [{"prompt": "\ud800"}],
        "family": "\ud800",
        "run_name": "\ud800",
    }
    session_file(home).write_text(json.dumps({"unsaved": unsaved}))
    with Driver.open(keeps_session=True, places={"folder": str(home)}) as driver:
        assert driver.draft.get("family") == "\ufffd"
        for section in ("data", "sampling", "output"):
            driver.window.show_section(section)
            driver.settle()
        driver.draft.set("epochs", 77)
        driver.wait(lambda: "77" in session_file(home).read_text(), "the session")
        saved = json.loads(session_file(home).read_text())["unsaved"]
        assert saved["concepts"][0]["path"] == folder
        driver.window.preferences.places["folder"] = folder
        driver.window.preferences.section = "data"
        driver.window.preferences.save()
        assert Preferences.load().section == "data"
