"""The window whose settings, preferences and caches are on a full disk: it says what is not saved, and goes on."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

from modules.config import TrainConfig, load_config, save_config
from tests.app.driver import Driver

NOT_STARTED = "The program could not be started: "


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here: it needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(file: Path) -> None:
    """Until nothing fits any more."""
    with suppress(OSError), file.open("wb", buffering=0) as opened:
        while opened.write(bytes(4096)):
            pass


@pytest.mark.slow
def test_settings_on_a_full_disk(display: str, full_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(full_disk / "preferences"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(full_disk / "cache"))
    file = full_disk / "a.yaml"
    save_config(TrainConfig(epochs=5), file)
    with Driver.open(file) as driver:
        fill(full_disk / "filler")
        before, files = file.read_bytes(), sorted(path.name for path in full_disk.iterdir())
        driver.set("epochs", 7)
        driver.press("ctrl+s")
        (dialog,) = driver.dialogs()
        assert "No space left on device" in driver.text(dialog)
        assert "free some space" in driver.text(dialog)
        driver.press("Return")
        assert driver.dialogs() == []
        assert driver.draft.is_dirty
        assert file.read_bytes() == before
        driver.window.files.open(file)  # asks for nothing: the preferences cannot list it, which is no error
        driver.settle()
        if driver.dialogs():
            driver.answer("Cancel")
        for section in ("data", "training", "output"):
            driver.window.show_section(section)
        driver.set("epochs", 8)
        driver.window.preferences.save()
        assert sorted(path.name for path in full_disk.iterdir()) == files, "no partial file"
        assert not list((full_disk / "preferences").glob(".partial-*"))
        (full_disk / "filler").unlink()
        driver.press("ctrl+s")
        assert driver.dialogs() == []
        assert load_config(file).epochs == 8


@pytest.mark.slow
def test_programs_that_get_no_temporary_folder(driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(home / "full"))
    (home / "cats").mkdir()
    Image.new("RGB", (64, 64)).save(home / "cats" / "a.png")
    driver.draft.set("concepts", [{"path": str(home / "cats")}])
    driver.window.show_section("tools")
    section = driver.window.sections["tools"]
    for name in ("duplicates", "preview"):
        section.open_page(name)
        section.pages[name].start_button.invoke()
        assert section.pages[name].status.cget("text").startswith(NOT_STARTED), name
        assert section.pages[name].start_button.cget("state") == "normal"
    section.open_page("models")
    page = section.pages["models"]
    for field, value in {"source": "cats/a.png", "out": "b.safetensors"}.items():
        page.form.show(field, value)
    driver.click_button("Start")
    assert page.status.cget("text").startswith(f"Nothing was written. {NOT_STARTED}")
    section.open_page("annotate")
    page = section.pages["annotate"]
    page.setup.start()
    assert page.job.status.text.startswith(NOT_STARTED)
    driver.window.show_section("generate")
    page = driver.window.sections["generate"]
    page.form.show({"model": str(home / "cats"), "prompt": "a"})
    page.generate()
    assert page.status.cget("text").startswith(NOT_STARTED)

    driver.window.report_callback_exception = driver.window._report_bug
    driver.window.after(1, driver.window.state_.views.batch_size)
    driver.wait(lambda: "No such file or directory" in driver.text(driver.window.run_bar), "the sentence")
    assert driver.dialogs() == []
