"""A run that ends while the user is elsewhere is told to them."""

from __future__ import annotations

import os
import time
import tkinter as tk
from pathlib import Path

import pytest

from app.windows.notifications import NotificationsWindow
from modules.run.notification import kept_target, target_file
from tests.app.driver import Driver, write
from tests.app.fake_runs import active, line, make_fake_run


@pytest.mark.slow
def test_end_of_a_run_is_in_the_title_and_on_the_desktop(
    driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`notify-send` is a program that keeps its arguments."""
    told = home / "told.txt"
    (home / "notify-send").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{told}"\n')
    (home / "notify-send").chmod(0o700)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    run, state = make_fake_run(home / "runs" / "cats", steps=3, total=9, ended=None), driver.window.state_
    with active(run.path):
        state.actions.follow(run.path)
        driver.wait(lambda: state.run is not None and state.run.is_alive, "the run")
        driver.settle()
        other = tk.Tk()  # another program, for the window
        other.update()
        other.focus_force()
        other.update()
        driver.wait(lambda: driver.window.focus_displayof() is None, "the loss of the keyboard")
        with run.events_file.open("a") as file:
            file.write(line({"t": time.time(), "type": "error", "rank": 0, "message": "a <b>NaN</b>", "kind": "x"}))
            file.write(line({"t": time.time(), "type": "finished", "reason": "failed", "exit_code": 3}))
    driver.wait(lambda: driver.window.title().startswith("cats: Failed - "), "the title")
    driver.wait(lambda: told.exists() and told.read_text().endswith("\n"), "the desktop's")
    assert told.read_text().splitlines()[-2:] == ["cats: Failed", "a &lt;b&gt;NaN&lt;/b&gt;"]
    other.destroy()
    driver.window.focus_force()
    driver.wait(lambda: "Failed" not in driver.window.title(), "the title of before")


@pytest.mark.slow
def test_what_is_told_is_kept_in_a_file_of_the_user(driver: Driver, home: Path) -> None:
    shown = NotificationsWindow(driver.window, driver.window.state_)
    window = shown.show()
    write(shown.target, "http://example.org/hook")
    driver.answer("Save")
    assert "no https URL" in driver.text(window)
    write(shown.target, f'echo "$TANDEM_RUN" > "{home}/told.txt"')
    driver.answer("Test")
    driver.wait(lambda: "Sent." in driver.text(window), "the test")
    assert (home / "told.txt").read_text() == "test\n"
    driver.answer("Save")
    assert kept_target() == f'echo "$TANDEM_RUN" > "{home}/told.txt"'
    assert target_file().parent == home / "preferences"
