"""Importing another trainer's settings in the window."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from tkinter import ttk

import pytest

from app.widgets.buttons import Segments
from app.windows import importer
from modules.config import load_config
from modules.importers import ImportResult, import_file
from tests.app.driver import Driver, everything

pytestmark = pytest.mark.slow

THEIRS = {
    "training_method": "FINE_TUNE",
    "model_type": "STABLE_DIFFUSION_15",
    "base_model_name": "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "epochs": 17,
    "learning_rate": 2e-5,
    "optimizer": {"optimizer": "ADAMW_8BIT"},
    "attention_mechanism": "FLASH",
    "concepts": [{"path": "pictures", "name": "cat"}],
    "samples": [{"prompt": "a cat"}],
}


@pytest.fixture
def theirs(home: Path) -> Path:
    """A file of OneTrainer beside its pictures."""
    (home / "pictures").mkdir()
    (home / "theirs.json").write_text(json.dumps(THEIRS), encoding="utf-8")
    return home / "theirs.json"


def rows(driver: Driver) -> list[tuple[str, ...]]:
    (dialog,) = driver.dialogs()
    (tree,) = [one for one in everything(dialog) if isinstance(one, ttk.Treeview)]
    return [tuple(map(str, tree.item(row, "values"))) for row in tree.get_children()]


def says(driver: Driver, words: str) -> bool:
    """Whether a dialog has these words."""
    return any(words in driver.text(dialog) for dialog in driver.dialogs())


def choose_list(driver: Driver, title: str) -> None:
    (dialog,) = driver.dialogs()
    (segments,) = [one for one in everything(dialog) if isinstance(one, Segments)]
    next(one for one in everything(segments) if hasattr(one, "invoke") and one.cget("text") == title).invoke()
    driver.settle()


def choose_file(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Make the file chooser return this file; the chooser has its own tests."""
    monkeypatch.setattr(importer, "choose_path", lambda *given: str(file))


def test_lists_are_shown_and_copied_and_escape_changes_nothing(
    driver: Driver, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = driver.draft.data
    monkeypatch.setattr(importer, "dry_run", lambda config: [])  # the next tests' subject, a program with torch
    choose_file(monkeypatch, theirs)
    driver.window.files.import_settings()
    driver.wait(lambda: says(driver, "The file is not modified"), "the lists")
    report = import_file(theirs).report
    assert len(rows(driver)) == len(report.not_imported)
    assert any("attention_mechanism" in row[0] for row in rows(driver))
    width = driver.dialogs()[0].winfo_width()
    choose_list(driver, f"Imported with a different meaning ({len(report.changed)})")
    assert driver.dialogs()[0].winfo_width() == width, "the buttons stay under the pointer"
    assert any(row[:2] == ('optimizer.optimizer "ADAMW_8BIT"', 'optimizer.name "adamw"') for row in rows(driver))
    choose_list(driver, f"Imported ({len(report.imported)})")
    assert ("epochs 17", "epochs 17", "") in rows(driver)
    assert str(report.imported[0]) in driver.text(driver.dialogs()[0])  # the chosen row as a sentence

    driver.answer("Copy the lists")
    assert "Not imported" in driver.window.clipboard_get()
    driver.press("Escape")
    assert driver.dialogs() == []
    assert driver.draft.data is before


def test_a_dialog_says_that_it_imports_and_cancels_it(
    driver: Driver, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, goes_on, has_ended = import_file(theirs), Event(), Event()

    def slow(file: str) -> ImportResult:
        goes_on.wait()
        has_ended.set()
        return found

    choose_file(monkeypatch, theirs)
    monkeypatch.setattr(importer, "import_and_check", slow)
    driver.window.files.import_settings()
    assert says(driver, "Importing theirs.json")
    assert driver.window.grab_current() is driver.dialogs()[0], "a second import cannot be started"
    driver.press("Escape")
    goes_on.set()
    driver.wait(lambda: has_ended.is_set() and not driver.window.state_.background._pending, "the end of the import")
    assert driver.dialogs() == []


def test_what_is_missing_is_shown_first(driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {**THEIRS, "base_model_name": "", "concepts": []}
    (home / "preset.json").write_text(json.dumps(theirs), encoding="utf-8")
    choose_file(monkeypatch, home / "preset.json")
    driver.window.files.import_settings()
    driver.wait(lambda: says(driver, "The file is not modified"), "the lists")
    found = [row[-1].partition(" ")[0] for row in rows(driver)]
    assert found == ["base_model", "concepts:"]
    assert "pretrained model" in driver.text(driver.dialogs()[0])
    driver.window.show_section("generate")
    driver.answer("Open")
    driver.settle()
    assert driver.window.run_bar._message == (
        "The settings of preset.json are open. Still to be set: Base model, Concepts."
    )
    assert driver.window.section == "model"
    driver.draft.new()


def test_unknown_file_gets_an_error_message(driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "a.json").write_text('{"x": 1}', encoding="utf-8")
    choose_file(monkeypatch, home / "a.json")
    driver.window.files.import_settings()
    driver.wait(lambda: says(driver, "Cannot open this file"), "the sentence")
    assert "no supported trainer has these settings" in driver.text(driver.dialogs()[0])
    driver.answer("Close")


def test_welcome_dialog_opens_the_import_and_it_is_saved(
    display: str, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_file(monkeypatch, theirs)
    with Driver.open(welcomed=False) as driver:
        driver.wait(driver.dialogs, "the welcome")
        driver.answer("Import settings")
        driver.wait(lambda: any("OneTrainer" in driver.text(one) for one in driver.dialogs()), "the lists")
        driver.answer("Open")
        assert driver.dialogs() == []
        driver.settle()
        assert driver.window.section == "model", "what is to be set first"
        message = driver.window.run_bar._message
        assert message.startswith("The settings of theirs.json are open."), message
        assert driver.draft.title == "From theirs.json"
        assert driver.draft.get("epochs") == 17
        assert driver.draft.get("concepts.0.path") == str(theirs.parent / "pictures")
        assert driver.draft.file is None
        assert driver.draft.is_dirty
        driver.save(theirs.parent / "ours.yaml")
        assert load_config(theirs.parent / "ours.yaml").learning_rate == 2e-5
        driver.window.state_.draft.new()
