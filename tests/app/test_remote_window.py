"""From an address and a key to a model by the window alone, over a real ssh to another home."""

from __future__ import annotations

import subprocess
import sys
import tkinter as tk
from pathlib import Path
from typing import Any

import pytest

from app.runs.control import RunControl
from app.runs.status import Status
from app.widgets.popover import PopupMenu
from app.windows.machine import MachineWindow
from modules.config import TrainConfig, save_config
from modules.config.trusted_code import allow_family
from modules.files import Record
from modules.run import RunFolder
from modules.run.folder.pidfile import find_launcher
from modules.run.hosts.host_list import add_host, find_hosts, read_hosts
from modules.run.queue.folder import RunQueue
from modules.run.remote.copy_folders import remember_copies_in
from modules.run.remote.link import connect
from modules.run.remote.machine import host_for_runs
from modules.run.remote.run_copy import Copy, mark_copy
from tests import ssh_server
from tests.app.driver import Driver
from tests.conftest import draw_images
from tests.runs import tiny_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.end_to_end,
    pytest.mark.skipif(bool(ssh_server.skip_reason()), reason=ssh_server.skip_reason() or "possible"),
]


def chosen_beside_train(driver: Driver, label: str) -> None:
    """Open the menu beside Train and choose an entry."""
    driver.click_really(driver.window.run_bar.buttons.where)
    menu: PopupMenu = driver.window.__dict__["open_popover_"]
    menu.choose(label)
    driver.settle()


def dialog(driver: Driver, title: str) -> tk.Toplevel:
    """The dialog of this title, once it is there."""
    driver.wait(lambda: title in [each.title() for each in driver.dialogs()], f"{title}; there is {driver.text()}")
    return next(each for each in driver.dialogs() if each.title() == title)


def followed(driver: Driver) -> RunControl:
    """The run in the run bar."""
    run = driver.window.state_.run
    assert run is not None
    return run


def wait_for(driver: Driver, title: str) -> Status:
    """Until the run bar shows this."""
    bar, run = driver.window.run_bar, followed(driver)
    try:
        driver.wait(lambda: bar._title.cget("text") == title)
    except AssertionError:
        raise AssertionError(f"no {title}, but {run.status()}") from None
    return run.status()


def add_beta(driver: Driver, server: ssh_server.SshServer) -> None:
    """As somebody does who was given a line for a terminal: paste it, compare the host key, set it up."""
    chosen_beside_train(driver, "Add a machine…")
    dialog(driver, "Add a machine")
    driver.type(f"beta\tssh -p {server.port} root@127.0.0.1 -i {server.key}\t\t\t\t{sys.executable}")
    driver.click_button("Connect")
    asked = dialog(driver, "Is this beta?")
    shown = subprocess.run(["ssh-keygen", "-lf", server.place / "host_key.pub"], capture_output=True, check=True)
    assert shown.stdout.split()[1].decode() in driver.text(asked)
    driver.click_button("It is the same")
    asked = dialog(driver, "Set up beta?")
    assert "Tandem is not on beta (root@127.0.0.1) yet." in driver.text(asked)
    driver.click_button("Set up")
    driver.wait(lambda: driver.window.preferences.place == "beta", f"the setup: {driver.text()}")
    assert driver.dialogs() == []
    assert driver.window.run_bar.buttons.where.cget("text") == "beta"


def test_from_an_address_and_a_key_to_a_model(
    display: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"OMP_NUM_THREADS": "1", "TANDEM_CONFIG_DIR": str(tmp_path / "config of beta")}
    options = {"slow_step_s": 0.05}
    (tmp_path / "images").mkdir()
    config = tiny_config(
        draw_images(tmp_path / "images", 8),
        tmp_path,
        run_name="cats",
        max_steps=100_000,
        epochs=100_000,
        family_options=options,
    )
    save_config(config, tmp_path / "cats.json")
    allow_family(config.family, trust=True, ask=None)
    copy, beta = tmp_path / "runs" / "cats", tmp_path / "ssh" / "home" / ".tandem"
    with ssh_server.ssh_server(tmp_path / "ssh", variables=there) as server:
        server.known_hosts.write_text("")
        monkeypatch.setenv("PATH", server.path)
        with Driver.open(tmp_path / "cats.json") as driver:
            add_beta(driver, server)
            assert find_hosts(["beta"])[0].port == server.port
            assert server.known_hosts.read_text().startswith(f"[127.0.0.1]:{server.port} ssh-ed25519 ")
            chosen_beside_train(driver, "Check the settings on beta…")
            window = dialog(driver, "Checking the settings on beta")
            driver.wait(lambda: "Nothing was started on beta." in driver.text(window), "the check")
            driver.click_button("Close")
            known = driver.window.state_.place.machine
            assert known is not None
            assert known.at, "its devices are known since it was chosen"
            driver.window.state_.views.preflight()
            window = dialog(driver, "Preflight check")
            driver.wait(lambda: "Ready to train" in driver.text(window), "the preflight of beta")
            assert "settings on beta" in driver.text(window)
            driver.click_button("Close")
            assert not (beta / "runs").exists()
            driver.press("F5")
            driver.wait(lambda: driver.window.state_.run, driver.text())
            wait_for(driver, "Training on beta")
            run = followed(driver)
            driver.press("F6")
            driver.wait(lambda: not run.is_pending("backup"), "the backup")
            assert list((beta / "runs" / "cats" / "backup").iterdir())
            run.detach()
        launcher = find_launcher(run.folder)
        assert launcher is not None, "it outlives the window"
        launcher.process.kill()
        with Driver.open(tmp_path / "cats.json", last_run=str(copy), place="beta") as driver:
            wait_for(driver, "Training on beta")
            driver.press("shift+F5")
            status = wait_for(driver, "Stopped")
            assert status.can_resume
            assert [file.name for file in (copy / "backup").iterdir()]
            queue = RunQueue(tmp_path / "runs")
            driver.press("F4")
            driver.wait(lambda: queue.read().waiting, "an entry")
            assert [(entry.name, entry.place) for entry in queue.read().waiting] == [("cats-2", "beta")]
            bar = driver.window.run_bar
            driver.wait(lambda: bar._full_detail().startswith("Queued for beta at place 1. To begin,"), "what is said")
            chosen_beside_train(driver, "What is on beta…")
            window = dialog(driver, "beta")
            driver.wait(lambda: "cats" in driver.text(window), "the list of what is there")
            driver.click_button("Clean all…")
            assert "also all runs with their models" in driver.text(dialog(driver, "Clean beta?"))
            driver.click_button("Remove")
            driver.wait(lambda: "Removed on beta" in driver.text(window), "the end of it")
            driver.click_button("Close")
        assert not beta.exists()


def test_the_other_runs_stay_in_sight_when_one_is_removed(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ssh_server.ssh_server(tmp_path / "ssh") as server:
        monkeypatch.setenv("PATH", server.path)
        given: dict[str, Any] = {"port": server.port, "key": str(server.key), "python": sys.executable}
        beta = host_for_runs("beta", "root@127.0.0.1", **given)
        with connect(beta) as link:
            link.ask(Record, "make")
        add_host(beta)
        elsewhere = RunFolder(tmp_path / "elsewhere" / "cats")
        elsewhere.make_directories()
        mark_copy(elsewhere, Copy(machine="beta"))
        remember_copies_in(elsewhere.path.parent)
        for name in ("cats", "dogs"):
            (server.home / ".tandem" / "runs" / name).mkdir(parents=True)
        opened = MachineWindow(driver.window, driver.window.state_, beta)
        window = opened.show()
        driver.wait(lambda: "dogs" in driver.text(window) and "cats" in driver.text(window), "both")
        opened._remove("dogs", False)  # as its bin does
        driver.click_button("Remove")
        driver.wait(lambda: "Removed on beta" in driver.text(window) and "cats" in driver.text(window), "the other")
        assert driver.text(opened._rows).count("dogs") == 0
        config = TrainConfig.model_validate({"family": "classifier", "run_name": "owls"})
        RunQueue(elsewhere.path.parent).add(config, place="beta")
        opened._remove("", True)
        assert "Entry 1 (owls) of the queue of " in driver.text(dialog(driver, "Clean beta?"))
        driver.click_button("Keep")
        for answer, left in (("Keep", ["beta"]), ("Remove", [])):
            driver.click_button("Remove from list…")
            said = driver.text(dialog(driver, "Remove beta?"))
            assert "On beta stay the runs cats (ended, 0 " in said
            assert f"Not all results of {elsewhere.path} are here" in said
            driver.click_button(answer)
            driver.settle()
            assert [host.name for host in read_hosts()] == left
        assert driver.dialogs() == []
