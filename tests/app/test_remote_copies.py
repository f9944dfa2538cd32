"""Copies of runs on another machine in the window: none is lost by a new name, a Stop, a Clean or a resume here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.multi_gpu.hosts_card import HostDialog
from app.runs.control import RunControl
from app.windows.machine import MachineWindow
from modules.run import RunFolder
from modules.run.folder.pidfile import write_pidfile
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host, read_hosts
from modules.run.remote.copy_folders import remember_copies_in
from modules.run.remote.kept_commands import keep_command, let_wait, waiting_command
from modules.run.remote.machine import RunsThere, RunThere
from modules.run.remote.run_copy import Copy, mark_copy
from tests.app.driver import Driver
from tests.conftest import draw_images

BETA = Host.make("beta", "root@203.0.113.7", "~/.tandem/code")


@pytest.fixture
def copy(home: Path) -> RunFolder:
    """Of a run on beta, which goes on."""
    add_host(BETA)
    folder = RunFolder(home / "runs" / "cats")
    folder.make_directories()
    mark_copy(folder, Copy(machine="beta"))
    return folder


def test_a_machine_is_renamed_with_all_that_knows_its_name(driver: Driver, copy: RunFolder) -> None:
    driver.window.preferences.place = "beta"
    dialog = HostDialog(driver.window, lambda host: None, BETA, driver.window.state_, for_runs=True)
    dialog.show()
    dialog.entries["name"].show("gamma")
    dialog.save()
    said = dialog.message.cget("text")
    assert said.startswith("“Name” is 'gamma', and cats is still on beta"), said
    assert [host.name for host in read_hosts()] == ["beta"]
    mark_copy(copy, Copy(machine="beta", stage="complete"))
    for price, fault in (("cheap", "“Price per hour” is 'cheap'; use what an hour costs"), ("1,5", "")):
        dialog.entries["price"].show(price)
        dialog.save()
        assert dialog.message.winfo_exists() == bool(fault)
        assert not fault or dialog.message.cget("text").startswith(fault)
    assert [(host.name, host.price) for host in read_hosts()] == [("gamma", 1.5)]
    dialog = HostDialog(driver.window, lambda host: None, read_hosts()[0], driver.window.state_, for_runs=True)
    dialog.show()
    for hours, minutes, then, fault in (
        ("long", "", "echo off", "“Stop after hours” is 'long'; use hours, such as 5, or leave"),
        ("-1", "", "echo off", "“Stop after hours” is"),
        ("2.5", "some", "echo off", "“After idle minutes” is 'some'; use minutes, such as 20, or leave"),
        ("2.5", "20", "", "“After idle minutes” is 20, and there is no command"),
        ("2.5", "20", "echo off", ""),
    ):
        dialog.entries["stop_after"].show(hours)
        dialog.entries["idle_minutes"].show(minutes)
        dialog.entries["then"].show(then)
        dialog.save()
        assert dialog.message.winfo_exists() == bool(fault)
        assert not fault or dialog.message.cget("text").startswith(fault)
    host = read_hosts()[0]
    assert (host.price, host.stop_after, host.then, host.idle_minutes) == (1.5, 2.5, "echo off", 20)
    mark_copy(copy, Copy(machine="gamma", stage="complete", id="1"))
    keep_command("1", host)
    let_wait("1", 600)
    dialog = HostDialog(driver.window, lambda host: None, host, driver.window.state_, for_runs=True)
    dialog.show()
    dialog.entries["name"].show("delta")
    dialog.save()
    assert "and a command waits for gamma: “echo off” runs here in 10 minutes" in dialog.message.cget("text")
    driver.press("Escape")
    driver.click_really(driver.window.run_bar.buttons.where)
    rows = driver.window.__dict__["open_popover_"].rows
    assert "root@203.0.113.7, stops after 2.5 h, after 20 idle min runs echo off" in [row.detail for row in rows]
    driver.press("Escape")
    assert driver.window.preferences.place == "gamma"


def test_a_place_that_is_not_in_the_list_any_more(driver: Driver, home: Path) -> None:
    (home / "images").mkdir()
    driver.draft.set("concepts", [{"path": str(draw_images(home / "images", 1))}])
    driver.window.preferences.place = "gamma"
    driver.window.state_.actions.train()
    assert "gamma is not in the list of machines any more" in driver.window.run_bar._message
    assert not driver.window.preferences.place
    assert not driver.window.actions.is_starting, "the next Train is meant for this computer"


def test_results_that_would_be_lost_are_named(driver: Driver, copy: RunFolder, tmp_path: Path) -> None:
    window = MachineWindow(driver.window, driver.window.state_, BETA)
    window.dialog.show()
    runs = [RunThere(name=name, is_active=False, code=0, bytes=1) for name in ("cats", "dogs")]
    window._show(RunsThere(runs=runs, others={}, free=1))
    for brought, run, everything, named in (
        (False, "", True, "the results of cats, dogs."),
        (True, "", True, "the results of dogs."),
        (False, "cats", False, "the results of cats."),
        (True, "cats", False, ""),
        (False, "", False, ""),
    ):
        mark_copy(copy, Copy(machine="beta", stage="complete" if brought else "running"))
        window._remove(run, everything)
        driver.settle()
        said = driver.text(driver.dialogs()[-1])
        assert (named in said) if named else ("Not on this computer" not in said), said
        driver.press("Escape")
        driver.settle()
    dogs = RunFolder(tmp_path / "elsewhere" / "dogs")
    dogs.make_directories()
    mark_copy(dogs, Copy(machine="beta", stage="complete"))
    assert window._not_brought(["dogs"]) == ["dogs"]
    remember_copies_in(dogs.path.parent)
    assert window._not_brought(["dogs"]) == [], "wherever its copy is"


def test_a_command_that_waits_is_shown_and_called_off(driver: Driver, copy: RunFolder) -> None:
    """Beside the run whose results are here, and in the window of its machine, where nobody answers here."""
    keep_command("1", BETA.model_copy(update={"then": "echo off", "idle_minutes": 20}))
    let_wait("1", 600)
    mark_copy(copy, Copy(machine="beta", stage="complete", id="1"))
    driver.window.actions.follow(copy.path)
    run = driver.window.state_.run
    assert run is not None
    driver.wait(lambda: run.status().detail.startswith("“echo off” runs here in 10 minutes if beta stays idle."), "it")
    window = MachineWindow(driver.window, driver.window.state_, BETA)
    window.show()  # nobody answers there
    driver.wait(lambda: "no program waits for that now" in driver.text(window.dialog.body), "it")
    driver.click_button("Call off")
    driver.wait(lambda: waiting_command("beta") is None, "its end")
    driver.wait(lambda: "echo off" not in run.status().detail, "the status")


def test_stop_of_a_run_that_may_have_started_goes_there(copy: RunFolder) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as attendant:
        control = RunControl(copy.path)
        try:
            control._launcher = psutil.Process(attendant.pid)
            mark_copy(copy, Copy(machine="beta", stage="sending", id="1"))
            assert control.stop() == ""
            assert (copy.commands_dir / "stop").exists()
            assert attendant.poll() is None, "it brings the request there"
            mark_copy(copy, Copy(machine="beta", stage="sending"))
            assert control.stop() == ""
            assert attendant.wait(200) != 0, "there is nothing to stop but the transfer"
        finally:
            control.detach()


def test_force_stop_without_a_connection_says_what_it_can_do(driver: Driver, copy: RunFolder) -> None:
    """Stop is asked for first; then it can be forced once there is a connection, or the run be left to itself."""
    code = "import sys; lock = open(sys.argv[1], 'ab'); print(flush=True); input()"  # as pidfile_held has it
    argv = [sys.executable, "-c", code, str(copy.log_dir / "launcher.lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as attendant:
        assert attendant.stdout is not None
        attendant.stdout.readline()
        write_pidfile(copy, attendant.pid)
        mark_copy(copy, Copy(machine="beta", attended=True, said="The connection to beta was lost."))
        driver.window.actions.follow(copy.path)
        run = driver.window.state_.run
        assert run is not None
        driver.wait(lambda: run.status().kind == "away", "the status")
        driver.window.actions.stop()
        assert (copy.commands_dir / "stop").exists()
        assert driver.dialogs() == []
        driver.window.actions.stop()
        driver.settle()
        assert "There is no connection to beta, and the run there needs none" in driver.text(driver.dialogs()[0])
        driver.click_button("Stop following")
        driver.settle()
        driver.wait(lambda: attendant.poll() is not None, f"its end {driver.text()}")
        driver.wait(lambda: run.status().kind == "left", "what is left")
        assert "Continue follows it again" in run.status().detail


def test_a_copy_stays_one_until_it_is_resumed_here(
    driver: Driver, copy: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No config is there, so the start fails."""
    mark_copy(copy, Copy(machine="beta", stage="complete"))
    driver.window.state_.actions.resume_in(copy)
    driver.settle()
    driver.click_button("On this computer")
    driver.wait(lambda: "Training did not start" in [each.title() for each in driver.dialogs()], "the refusal")
    assert copy.remote_file.exists()
    driver.press("Escape")
