"""The devices of the machine on which Train starts runs, in the window: what it shows and computes is of that one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.curves.timeline import measured_rate
from app.multi_gpu.plan_summary import describe
from app.place import planned_world_size
from app.preferences import Preferences
from app.sections.model import Section
from app.windows.kubernetes import KubernetesWindow
from app.windows.preflight import PreflightWindow
from modules.config import TrainConfig, load_config
from modules.run.hosts.description import Devices, HostGpu
from modules.run.hosts.hardware import Hardware, keep_hardware, known_hardware
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host, remove_host
from modules.run.remote.run_copy import Copy, mark_copy
from tests.app.driver import Driver
from tests.app.fake_runs import make_fake_run

SMALL = [HostGpu(name="NVIDIA Small", memory_mib=512), HostGpu(name="NVIDIA Large", memory_mib=24_564)]


@pytest.fixture
def beta(driver: Driver) -> Host:
    """A machine of the list whose devices are known."""
    host = Host.make("beta", "me@192.0.2.1", "~/.tandem/code")
    add_host(host)
    keep_hardware(host, Devices(gpus=SMALL, cores=32, memory_mib=65_536))
    return host


def choose(driver: Driver, name: str) -> None:
    """As the menu beside Train does."""
    state = driver.window.state_
    state.preferences.place = name
    state.notify("run")
    driver.settle()


def test_what_is_known_of_a_machine(driver: Driver, beta: Host) -> None:
    known = known_hardware(beta)
    assert str(known).startswith(
        "beta has 1 x Small (0 GiB), 1 x Large (24 GiB), 32 CPU cores and 64 GiB of memory (20"
    )
    assert not known_hardware(beta.model_copy(update={"port": 40_022})).at, "it may be another one"
    remove_host("beta")
    assert not known_hardware(beta).at
    cluster = known_hardware(beta.model_copy(update={"slurm": ["--gpus=2"]}))
    assert "not known yet" not in str(cluster), "it never is"
    assert describe(TrainConfig(), cluster).sentence.startswith("beta is a Slurm cluster")


def test_processes_are_those_of_the_machine() -> None:
    given: dict[str, Any] = {"name": "beta", "target": "beta", "port": None, "cores": 64}
    two = Hardware(**given, gpus=SMALL, at=1.0)
    config = TrainConfig.model_validate({"enable_multi_gpu": True, "batch_size": 2})
    assert planned_world_size(config, two) == 2
    assert describe(config, two).sentence.startswith("On beta: 2 GPUs × batch 2 × accumulation 1 = 4;")
    fault = describe(config.model_copy(update={"device_ids": (2,)}), two).fault
    assert fault.startswith("device_ids names GPU 2: choose from 0, 1.")
    broken = two.model_copy(update={"obstacle": "no CUDA in this torch"})
    assert describe(config, broken).fault == "beta cannot use its GPUs: no CUDA in this torch."
    unknown = Hardware(**given, gpus=[], at=0)
    assert planned_world_size(config, unknown) == 1
    assert "known once the devices" in describe(config, unknown).sentence


@pytest.mark.slow
def test_the_window_shows_the_devices_of_the_chosen_machine(
    driver: Driver, beta: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.curves.memory_card.PAUSE_MS", 1)
    monkeypatch.setattr("app.curves.memory_card.TIMEOUT_S", 1000)
    state = driver.window.state_
    driver.wait(lambda: state.family.declaration is not None, "the family")
    choose(driver, "beta")
    driver.window.show_section("multi_gpu")
    page: Any = driver.window.sections["multi_gpu"]
    driver.wait(lambda: "GPUs on beta" in driver.text(page.gpus.frame), "its title")
    assert page.gpus.selected() == [0, 1]
    assert "32 CPU cores" in driver.text(page.gpus.frame)
    driver.set("enable_multi_gpu", True)
    driver.wait(lambda: page.plan_label.cget("text").startswith("On beta: 2 GPUs"), page.plan_label.cget("text"))
    assert "not on beta" in driver.text(driver.window.state_.views.batch_size() or driver.dialogs()[-1])
    driver.click_button("Close")

    driver.window.show_section("model")
    model = driver.window.sections["model"]
    assert isinstance(model, Section)
    driver.wait(lambda: model._fit is not None and model._fit.whose == "beta's", "its fit")
    tiles = model.families.tiles
    driver.wait(lambda: "LoRA fits beta's GPU" in [line for tile in tiles._tiles for line in tile.lines], "the tiles")
    driver.wait(lambda: model.memory.is_current, "the memory")
    assert "but each GPU on beta (NVIDIA Small, 1 GiB) has 512 MiB" in driver.text(model.memory.frame)

    choose(driver, "")
    assert not model.memory.is_current
    assert model.memory._machine is None, "it is computed for this computer"
    driver.window.show_section("multi_gpu")
    driver.wait(lambda: "GPUs on this machine" in driver.text(page.gpus.frame), "this computer's")
    driver.wait(lambda: page._reading is not None and page._reading.machine is None, "the driver")


@pytest.mark.slow
def test_a_machine_that_does_not_answer_says_so_and_keeps_what_is_known(driver: Driver, beta: Host) -> None:
    add_host(Host.make("gamma", "me@no-such.invalid", "~/.tandem/code", port=1))
    choose(driver, "gamma")
    driver.window.show_section("multi_gpu")
    page: Any = driver.window.sections["multi_gpu"]
    driver.wait(lambda: "could not be asked again" in driver.text(page.gpus.frame), "why")
    assert "The devices of gamma are not known yet" in driver.text(page.gpus.frame)
    assert page.gpus.ask_button.cget("text") == "Ask gamma"
    window = PreflightWindow(driver.window, driver.window.state_, lambda why: None)
    window.show()
    driver.wait(lambda: window.child is None, "its end")
    assert "gamma" in window.status.cget("text")
    window.dialog.close()


@pytest.mark.slow
def test_manifests_are_shown_saved_and_applied(
    driver: Driver, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nexit 0\n')
    kubectl.chmod(0o755)
    driver.draft.open_preset("demo")
    driver.set("run_name", "cats")
    opened = KubernetesWindow(driver.window, driver.window.state_)
    window = opened.show()

    def press(label: str, said: str) -> str:
        driver.click_button(label)
        driver.wait(lambda: opened.child is None and said in opened.status.cget("text"), opened.status.cget("text"))
        return driver.text(window) + opened.shown.get("1.0", "end")

    press("Show manifests", "Nothing was applied: --gpus is missing")
    for name, typed in {"image": "tandem:cpu", "gpus": "1", "volume": "work:/work", "more": "--cpu"}.items():
        opened.fields[name].show(typed)
    shown = press("Show manifests", "these are the manifests")
    assert "kind: Job" in shown
    assert "name: cats" in shown
    assert Preferences.load().kubernetes["volume"] == "work:/work"
    monkeypatch.setattr("app.windows.kubernetes.choose_path", lambda *_: str(home / "job.yaml"))
    press("Save…", "Saved in")
    assert "kind: Job" in (home / "job.yaml").read_text()
    assert not (tmp_path / "asked").exists()
    driver.click_button("Apply…")
    driver.click_button("Apply")
    driver.wait(lambda: opened.child is None and opened.status.cget("text") == "Applied.", "the end of it")
    assert "apply --server-side -f -" in (tmp_path / "asked").read_text()
    opened.dialog.close()


def test_the_speed_is_that_of_runs_at_the_same_place(tmp_path: Path) -> None:
    here, there = (make_fake_run(tmp_path / name, steps=20, ranks=1) for name in ("here", "there"))
    mark_copy(there, Copy(machine="beta"))
    config = load_config(here.config_file)
    for machine, run in (("", "here"), ("beta", "there")):
        rate = measured_rate(tmp_path, config, machine)
        assert rate is not None
        assert rate.run == run
    assert measured_rate(tmp_path, config, "gamma") is None
