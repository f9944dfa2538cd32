"""The Multi-GPU section, the multi-node window and the preflight window, in the real window."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import tkinter as tk
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tkinter import ttk
from typing import Any

import pytest

from app.form.text_fields import TextField
from app.multi_gpu.gpu_list import GpuList, GpuReading
from app.multi_gpu.link_matrix import LinkMatrix
from app.multi_gpu.plan_summary import describe
from app.runs.control import create_run
from app.sections.multi_gpu import Section
from app.widgets.buttons import Button, Entry
from app.widgets.scroll import Scroll, enclosing
from app.windows.batch_size import BatchSizeWindow
from app.windows.multi_node import MultiNodeWindow
from app.windows.preflight import PreflightWindow
from modules.config import ConfigError, TrainConfig
from modules.machine import Gpu, GpuLoad, Link, preferred_addresses
from modules.run.hosts.hardware import Hardware
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host, hosts_file, remove_host
from modules.run.preflight_report.report import Cell, OtherMachine, PreflightReport
from modules.run.queue.folder import RunQueue
from modules.run.remote.machine import host_for_runs
from tests import ssh_server
from tests.app.driver import Driver
from tests.app.fake_runs import active, make_fake_run
from tests.ports import free_port
from tests.runs import ROOT, environment, tiny_config

GPUS = tuple(Gpu(number, "NVIDIA H100 80GB HBM3", 81_920, f"GPU-{number}") for number in range(4))
WITHOUT_GPU = Hardware(gpus=[], cores=64, name="beta", target="me@beta", port=None, at=1.0)
READING = GpuReading(GPUS, tuple(GpuLoad(gpu.index, 50, 40_000, 60, 300.5) for gpu in GPUS))


def multi_node_window(driver: Driver) -> MultiNodeWindow:
    return MultiNodeWindow(driver.window, driver.window.state_, driver.window.files.save)


@pytest.fixture
def section(shared_driver: Driver) -> Section:
    """The section of new settings, with several GPUs switched on."""
    shared_driver.draft.new()
    shared_driver.set("enable_multi_gpu", True)
    found = shared_driver.window.sections["multi_gpu"]
    assert isinstance(found, Section)
    return found


def test_switch_collapses_what_depends_on_it(section: Section, shared_driver: Driver) -> None:
    def shown() -> set[str]:
        shared_driver.settle()
        return {field.path for block in section.blocks for field in block.visible_fields()}

    everything = shown()
    assert {"enable_multi_gpu", "training_mode", "num_nodes", "step_timeout_s"} < everything
    shared_driver.set("num_nodes", 3)
    shared_driver.set("enable_multi_gpu", False)
    assert "num_nodes" in shown(), "it was changed"
    field: Any = section.find("num_nodes")
    shared_driver.draft.reset("num_nodes", field.option)
    assert not shown() & {"training_mode", "num_nodes", "step_timeout_s"}
    assert "enable_multi_gpu" in shown()
    shared_driver.window.state_.jump_to("num_nodes")
    assert "num_nodes" in shown(), "the search leads to it"
    shared_driver.set("enable_multi_gpu", True)
    assert shown() == everything


def test_the_head_of_a_card_says_only_what_holds_for_all_of_it(section: Section, shared_driver: Driver) -> None:
    shared_driver.set("enable_multi_gpu", True)
    rank = shared_driver.field("powersgd_rank")
    (card,) = [each for each in section.blocks if each.find("powersgd_rank")]
    assert card._reason_label.cget("text") == "", "most of the card is used without compression"
    assert rank.message.cget("text") == "Used only if “Gradient compression” is PowerSGD."
    shared_driver.set("enable_multi_gpu", False)


def test_machine_without_gpus_says_so(section: Section, shared_driver: Driver) -> None:
    shared_driver.wait(
        lambda: (
            (
                "No GPU found: training runs on the CPU. For a test of several processes that share it, switch on "
                "“Multi-GPU training” and set “World size”."
            )
            in shared_driver.text(section)
        ),
        "that there is no GPU",
    )


def test_checkboxes_select_gpus_and_keep_the_last(
    section: Section, shared_driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.sections.multi_gpu.read_gpus", lambda: READING)
    shared_driver.wait(lambda: section.gpus.selected() == [0, 1, 2, 3], "the GPUs of the next reading")
    section.gpus.toggle(1)
    assert shared_driver.draft.get("device_ids") == [0, 2, 3]
    section.gpus.canvas.focus_force()
    shared_driver.settle()
    shared_driver.press("Home", "Up", "Up", "Up", "space")  # the first
    assert shared_driver.draft.get("device_ids") == [2, 3]
    section.gpus.toggle(2)
    section.gpus.toggle(3)
    assert shared_driver.draft.get("device_ids") == [3], "one GPU stays on"
    for place in (0, 1, 2):
        section.gpus.toggle(place)
    assert shared_driver.draft.get("device_ids") is None, "all of them is the default"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"world_size": 4}, "4 processes × batch 2 × accumulation 1 = 8; learning rate 1e-4 becomes 2e-4."),
        (
            {"num_nodes": 2, "processes_per_node": (4,), "master_addr": "10.0.0.1"},
            "2 nodes × 4 processes × batch 2 × accumulation 1 = 16; learning rate 1e-4 becomes 2.83e-4.",
        ),
        ({"world_size": 4, "global_batch_size": 12}, "4 processes, effective batch fixed at 12; learning rate 1e-4."),
        ({"world_size": 2, "lr_scaling": "linear"}, "becomes 2e-4."),
        ({"world_size": 4, "optimizer": "prodigy", "learning_rate": 1.0}, "accumulation 1 = 8; learning rate 1."),
    ],
)
def test_summary_of_processes_batch_and_learning_rate(settings: dict[str, object], expected: str) -> None:
    given = {"enable_multi_gpu": True, "batch_size": 2, "learning_rate": 1e-4, **settings}
    sentence, fault, backend, _ = describe(TrainConfig.model_validate(given), WITHOUT_GPU)
    assert fault == ""
    assert backend.startswith("Gloo is used here: NCCL "), "what becomes of nccl on this machine"
    assert expected in sentence


def test_an_idle_section_does_not_plan_again_and_again(section: Section, shared_driver: Driver) -> None:
    window = shared_driver.window
    shared_driver.set("enable_multi_gpu", False)
    window.show_section("multi_gpu")
    shared_driver.settle()
    assert section.find("distributed_backend") is None, "it has no place for its note"
    shared_driver.wait(lambda: not section._planning and not window.state_.background._pending, "rest")


def test_impossible_settings_are_reported(section: Section, shared_driver: Driver) -> None:
    shared_driver.set("device_ids", [7])
    shared_driver.wait(lambda: "names GPU 7" in shared_driver.text(section), "why not")
    assert "device_ids" not in shared_driver.text(section)
    field = section.find("device_ids")
    assert isinstance(field, TextField)
    assert isinstance(field.control, Entry)
    assert field.message.cget("text").startswith("“GPU indices” names GPU 7")
    assert field.control._invalid, "the field itself is marked"
    shared_driver.set("device_ids", "")
    shared_driver.wait(lambda: not field.control._invalid, "the end of the mark")
    shared_driver.window.run_bar.actions._not_started("device_ids names GPU 7: no GPU is visible")
    shared_driver.settle()
    assert "“GPU indices” names GPU 7" in shared_driver.text(shared_driver.dialogs()[0])
    shared_driver.click_button("Show setting")
    assert shared_driver.window.state_.jump_target == "device_ids"


def test_links_are_coloured_by_speed(shared_driver: Driver, section: Section) -> None:
    matrix = LinkMatrix(section.scroll.inside)
    links = [Link(0, 1, "NV18"), Link(0, 2, "PIX"), Link(1, 2, "SYS", peer_access=False)]
    matrix.show(links)
    shared_driver.settle()
    assert len(matrix.canvas.find_all()) == 2 * 3 + 2 * 2 * 3  # two rows of numbers; a cell and its label, twice
    legend = str(matrix._legend.cget("text"))
    assert "NVLink" in legend
    assert "GPU 1 and GPU 2 have no peer-to-peer access" in legend
    matrix.frame.destroy()


@pytest.mark.slow
def test_commands_for_two_machines_work_when_pasted(
    section: Section, shared_driver: Driver, shared_home: Path, images: Path
) -> None:
    """Both commands, run in a shell as if pasted on two machines."""
    place = shared_home / "two machines"
    place.mkdir()
    config = tiny_config(images, place, enable_multi_gpu=True, max_steps=2, training_mode="distributed")
    shared_driver.draft.open_config(with_free_port(config))
    shared_driver.draft.set("num_nodes", 2)
    shared_driver.draft.set("processes_per_node", [1])
    shared_driver.draft.set("master_addr", "127.0.0.1")
    opened = multi_node_window(shared_driver)
    opened.show()
    shared_driver.draft.file = place / "it's mine.yaml"
    assert shared_driver.window.files.save()
    opened.generate()
    shared_driver.wait(lambda: len(opened.commands) == 6, "the commands")
    shared_driver.settle()
    first, join, *_, batch = opened.commands
    assert "--nodes 2" in batch.text
    copied = shell(join.text, place, images)
    try:
        done = subprocess.run(
            ["sh", "-c", first.text],
            env=environment(),
            cwd=place,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        joined = copied.communicate(timeout=200)[0]
    finally:
        copied.kill()
    assert done.returncode == 0, done.stdout + done.stderr + joined
    assert copied.returncode == 0, joined
    opened._dialog.close()


def with_free_port(config: TrainConfig) -> TrainConfig:
    return config.model_copy(update={"initial_port": free_port()})


def shell(command: str, place: Path, images: Path, **variables: str) -> subprocess.Popen[str]:
    """The join line as pasted on the other machine, with its own run and cache folders."""
    root = Path(__file__).resolve().parents[2]
    own = f"--set runs_dir='{place}/other runs' --set cache_dir='{place}/other cache'"
    line = f"cd '{root}' && {command.replace('.venv/bin/python', 'python', 1)} {own}"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    allowed = os.pathsep.join((str(images), str(root / "tests")))
    return subprocess.Popen(
        ["sh", "-c", line],
        env=environment(**{"PATH": path, "TANDEM_ALLOW": allowed, **variables}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def open_launch_commands(driver: Driver) -> tk.Toplevel:
    driver.go_to("multi_gpu")
    driver.click_button("Multiple machines…")
    (window,) = driver.dialogs()
    return window


def commands_in(window: tk.Misc) -> list[tk.Text]:
    """What shows the commands."""
    return [one for one in inside(window) if isinstance(one, tk.Text)]


def inside(widget: tk.Misc) -> Iterator[tk.Misc]:
    for child in widget.winfo_children():
        yield child
        yield from inside(child)


def test_one_machine_has_the_line_of_a_slurm_job(section: Section, shared_driver: Driver, shared_home: Path) -> None:
    driver = shared_driver
    driver.search_and_type("world_size", "2")
    driver.save(shared_home / "one.yaml")
    window = open_launch_commands(driver)
    driver.click_button("Generate launch commands")
    driver.wait(lambda: commands_in(window), "the line")
    (slurm,) = commands_in(window)
    assert "--gpus 2 --nodes 1" in slurm.get("1.0", "end")
    assert "“Number of machines” is 1" in driver.text(window)
    assert "Mono" in str(driver.label(window, "--cpu").cget("font")), "two hyphens, no dash"
    driver.press("Escape")


def test_press_does_not_scroll_what_is_under_the_pointer(section: Section, shared_driver: Driver) -> None:
    """A button at the edge of the visible part would else move away before the release."""
    driver, window = shared_driver, tk.Toplevel(shared_driver.window)
    area = Scroll(window)
    area.canvas.configure(height=100, width=200)
    area.pack()
    pressed: list[int] = []
    buttons = [Button(area.inside, f"Copy {number}", lambda: pressed.append(1)) for number in range(9)]
    for button in buttons:
        button.pack()
    driver.settle()
    at_edge = next(one for one in buttons if one.winfo_y() + one.winfo_height() > 60)
    driver.click_really(at_edge)
    driver.wait(lambda: driver.window.focus_get() is at_edge, "the focus")
    driver.wait(lambda: pressed, "the press")
    assert area.canvas.canvasy(0) == 0
    driver.click_really(buttons[0])
    at_edge.focus_set()  # as after a choice in its menu, when the pointer is elsewhere
    driver.wait(lambda: driver.window.focus_get() is at_edge, "the focus")
    driver.settle()
    assert area.canvas.canvasy(0) == 0, "it is in sight"
    buttons[-1].focus_set()
    driver.wait(lambda: area.canvas.canvasy(0) > 0, "the last button in sight")
    window.destroy()


@pytest.mark.slow
def test_launch_commands_are_seen_whole_and_scroll(
    section: Section, shared_driver: Driver, shared_home: Path, images: Path
) -> None:
    """Every line of every command, by the wheel over the commands themselves; both ports are checked."""
    driver = shared_driver
    with socket.create_server(("", 0)) as taken:
        join_port = taken.getsockname()[1]
        driver.draft.open_config(tiny_config(images, shared_home, distributed_backend="gloo", enable_multi_gpu=True))
        window = open_launch_commands(driver)
        for title, typed in (
            ("Number of machines", "2"),
            ("Processes per machine", "1"),
            ("Rendezvous address (first", "127.0.0.1"),
            ("Rendezvous port", str(join_port - 1)),
        ):
            driver.type_over(driver.beside(window, title), typed)
        taken_port = f"Not free on this machine: port {join_port} (for joining)"
        driver.wait(lambda: taken_port in driver.text(window), "that it is not free")
        switch = driver.beside(window, "Multi-GPU training")
        driver.click_really(switch)
        driver.wait(lambda: "are used on machine 0" in driver.text(window), "that no port is needed")
        driver.click_really(switch)
        driver.save(shared_home / "seen.yaml")
        run = make_fake_run(shared_home / "runs" / "now", steps=3, ended=None).path
        with active(run), socket.create_server(("", join_port - 1)):
            driver.window.state_.actions.follow(run)
            driver.wait(lambda: driver.window.state_.run and driver.window.state_.run.is_alive, "the run")
            driver.type_over(driver.beside(window, "Rendezvous port"), str(join_port - 1))
            driver.wait(lambda: "those of the run that trains now" in driver.text(window), "whose port it is")
            driver.click_button("Generate launch commands")
            driver.wait(lambda: len(commands_in(window)) == 6, "the commands")
            assert "Saved to" not in driver.text(window), "nothing was changed"
            assert f":{join_port}\n" in commands_in(window)[1].get("1.0", "end"), "of the run after this one"
            driver.follow_no_run()
    driver.click_button("Generate launch commands")
    driver.wait(lambda: len(commands_in(window)) == 6, "the commands")
    driver.settle()
    blocks = commands_in(window)
    assert "--nodes 2" in blocks[-1].get("1.0", "end")
    assert all(block.yview() == (0.0, 1.0) for block in blocks), "no line is hidden"
    area = enclosing(blocks[0])
    assert area is not None
    driver.wheel_over(blocks[0], 60)
    driver.wait(lambda: area.canvas.yview()[1] == 1.0, "the end of the page")
    last = blocks[-1]
    assert last.winfo_rooty() + last.winfo_height() <= area.winfo_rooty() + area.winfo_height()
    driver.wheel_over(blocks[-1], -60)
    driver.wait(lambda: area.canvas.yview()[0] == 0.0, "its beginning")
    driver.type_over(driver.beside(window, "Processes per machine"), "4, 2")
    assert commands_in(window) == [], "they are those of other settings"
    assert "generate the commands again" in driver.text(window)
    driver.click_button("Generate launch commands")
    driver.wait(lambda: commands_in(window), "those for unequal machines")
    assert "4 + 2 processes" in commands_in(window)[-1].get("1.0", "end")
    assert "Saved to seen.yaml" in driver.text(window)
    assert "submit_slurm" not in commands_in(window)[-1].get("1.0", "end"), "Slurm would start as many on each"
    driver.click_button("Close")


def open_preflight(driver: Driver) -> tk.Toplevel:
    driver.go_to("multi_gpu")
    driver.click_button("Preflight check")
    (window,) = driver.dialogs()
    return window


@pytest.mark.slow
def test_preflight_says_what_to_start_on_the_other_machine(
    section: Section, shared_driver: Driver, shared_home: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for machines that count their processes themselves, where the line is all that the other one needs."""
    driver = shared_driver
    monkeypatch.setattr(tempfile, "tempdir", str(shared_home))
    driver.draft.open_config(tiny_config(images, shared_home, enable_multi_gpu=True))
    driver.search_and_type("num_nodes", "2")
    driver.search_and_type("processes_per_node", "1, 1")
    driver.search_and_type("master_addr", preferred_addresses()[0])
    driver.save(shared_home / "two.yaml")
    window = open_preflight(driver)
    driver.wait(lambda: "Run these in Tandem's folder there" in driver.text(window), "that it waits")
    driver.wait(lambda: "Waiting for rank 1" in driver.text(window), "who is missing")
    assert "(machine 1)" in driver.text(window)
    assert "present: rank 0 on" in driver.text(window)
    driver.click_button("Stop")
    driver.wait(lambda: "Stopped before all was checked." in driver.text(window), "the stop")
    driver.click_button("Close")
    driver.search_and_type("processes_per_node", " ")
    window = open_preflight(driver)
    driver.wait(lambda: "missing: machine 1" in driver.text(window), "a machine that counts its processes itself")
    driver.click_button("Copy")
    command = window.clipboard_get()
    token = command.split("=")[1].split()[0]
    (folder,) = shared_home.glob("tandem-window-*")
    assert not [file for file in folder.iterdir() if token in file.read_text()], "the token is in no file"
    allowed = environment(TANDEM_ALLOW=f"{images}{os.pathsep}{ROOT / 'tests'}")
    other = subprocess.Popen(["sh", "-c", command], cwd=ROOT, env=allowed, stdout=subprocess.DEVNULL)
    driver.wait(lambda: "Check again" in driver.text(window), "the end of the preflight")
    assert other.wait(timeout=200) == 0
    assert "Waiting for" not in driver.text(window)
    assert "Click a row" in driver.text(window), "of the table, which is in place of it"
    driver.click_button("Close")


def assert_titles(opened: PreflightWindow) -> None:
    """Settings and depth are called as in the window, not as in files and on the command line."""
    cells = (
        Cell("disk runs_dir", "alpha", "green", "76.0 GiB free"),
        Cell("loader", "alpha", "grey", "only with --test all"),
    )
    opened._result.write_text(PreflightReport("Preflight", cells).dump())
    opened.progressed("")
    shown = [opened.table.item(row, "values") for row in opened.table.get_children()]
    assert shown[0][0] == "disk “Runs folder”"
    assert shown[1][3] == "only with Thorough"
    opened.table.delete(*opened.table.get_children())


def test_stop_ends_the_preflight(section: Section, shared_driver: Driver) -> None:
    opened = PreflightWindow(shared_driver.window, shared_driver.window.state_, shared_driver.window.files.save)
    window = opened.show()
    assert opened.child is not None
    shared_driver.click_button("Stop")
    shared_driver.wait(lambda: opened.child is None, "the end")
    assert "Stopped before all was checked." in shared_driver.text(window)
    assert opened.button.cget("text") == "Check again"
    opened._result.write_text(PreflightReport("Preflight", waits_for=(OtherMachine(1, "python a.py"),)).dump())
    opened.progressed("")
    shared_driver.wait(lambda: "No other machine has joined yet." in shared_driver.text(window), "that it waits")
    cell = Cell("network", "all", "red", "10 MB/s", " ".join(["Use another network card, or a shorter cable."] * 30))
    assert_titles(opened)
    opened._result.write_text(PreflightReport("Preflight", (cell,) * 9).dump())
    opened.progressed("")
    below = opened.button.winfo_rooty()
    opened.table.bind("<Configure>", lambda event: time.sleep(0.01), add="+")  # as on a busy machine
    opened.table.selection_set("8")
    shared_driver.settle()
    advice, room = opened._advice, opened._below
    assert advice.cget("text") == f"10 MB/s\n{cell.advice}", "what is cut in the table, too"
    assert room.winfo_height() >= advice.winfo_reqheight() > 100, "every line"
    assert opened.button.winfo_rooty() == below
    shared_driver.wait(lambda: opened.table.bbox("8"), "the row in sight")
    opened.dialog.close()


@pytest.mark.slow
def test_the_largest_batch_is_found_and_used(
    section: Section, shared_driver: Driver, shared_home: Path, images: Path
) -> None:
    driver = shared_driver
    config = tiny_config(images, shared_home, family_options={"faults": ["fits:0:3"]}, batch_size=1)
    driver.draft.open_config(config)
    opened = BatchSizeWindow(driver.window, driver.window.state_)
    opened.target.show("1.5")
    opened.show()
    assert opened.child is None, "the share can be set before it starts"
    driver.click_button("Search")
    driver.wait(lambda: opened.child is None, "the refusal")
    assert "memory_target is 1.5; give the share of the memory" in opened.shown.get("1.0", "end")
    assert opened.use.cget("state") == "disabled"
    opened.target.show("0.9")
    opened.start()
    driver.wait(lambda: opened.child is None, "the end of the search")
    assert opened.result is not None, opened.shown.get("1.0", "end")
    assert "batch_size 2: fits" in opened.shown.get("1.0", "end")
    opened.use.invoke()
    assert driver.draft.get("batch_size") == opened.result.batch_size == 3


def test_closing_the_search_stops_its_processes(section: Section, shared_driver: Driver) -> None:
    opened = BatchSizeWindow(shared_driver.window, shared_driver.window.state_)
    opened.show()
    opened.start()
    child = opened.child
    assert child is not None
    opened.button.invoke()
    shared_driver.wait(lambda: opened.child is None, "the end of the search")
    assert opened.status.cget("text") == "Stopped."
    opened.start()
    child = opened.child
    assert child is not None
    opened.dialog.close()
    shared_driver.settle()
    assert child.process.wait(timeout=200) is not None


def test_gpus_are_shown_without_load_readings(section: Section) -> None:
    before = GpuList(section.scroll.inside, section.state, lambda _: None)
    assert before._message.cget("text") == "Looking for GPUs…", "the driver has not answered yet"
    before.show(GpuReading(), None)
    assert before._message.cget("text").startswith("No GPU found")
    before.frame.destroy()
    section.gpus.show(replace(READING, loads=()), None)
    assert section.gpus.selected() == [0, 1, 2, 3]


@pytest.mark.slow
def test_train_on_two_machines_with_the_copied_join_line(
    section: Section, shared_driver: Driver, shared_home: Path, images: Path
) -> None:
    driver, window = shared_driver, shared_driver.window
    place = shared_home / "by a click"
    place.mkdir()
    config = tiny_config(images, place, enable_multi_gpu=True, max_steps=3, training_mode="distributed")
    driver.draft.open_config(with_free_port(config))
    driver.draft.set("num_nodes", 2)
    driver.draft.set("processes_per_node", [1])
    driver.draft.set("master_addr", "127.0.0.1")
    token = window.state_.next_join_token.show()
    window.run_bar.actions.train()
    driver.wait(lambda: window.run_bar.buttons.join.winfo_ismapped(), "the button for the join line")
    window.show_section("monitor")
    card = window.sections["monitor"].waiting
    driver.wait(lambda: "missing: machine 1" in card.messages.cget("text"), "who is missing")
    assert window.state_.run is not None
    assert window.state_.run.status().title == "Waiting for machines"

    window.run_bar.buttons.join.invoke()
    line = window.clipboard_get()
    assert line == card.line.content
    assert token in line, "as the launch commands showed"
    assert window.state_.next_join_token.show() not in line, "the next run has another"
    driver.wait(lambda: card.allowing is not None, "what the other machine will ask")
    assert f"--allow {images}" in driver.text(card.allowing)
    assert "Folder, concept 1 (concepts.0.path)" in driver.text(card.allowing)
    assert card.allowing.content.startswith(line)
    joined = shell(card.allowing.content, place, images, TANDEM_ALLOW="")
    try:
        driver.wait(lambda: window.state_.run and window.state_.run.status().kind == "finished", "the end")
        assert joined.wait(timeout=200) == 0
    finally:
        joined.kill()
        joined.communicate()
    driver.wait(lambda: not card.frame.winfo_ismapped(), "the card gone")


def test_stop_ends_the_wait_for_other_machines(
    section: Section, shared_driver: Driver, shared_home: Path, images: Path
) -> None:
    driver, window = shared_driver, shared_driver.window
    config = tiny_config(images, shared_home, enable_multi_gpu=True, training_mode="distributed")
    driver.draft.open_config(with_free_port(config))
    driver.draft.set("num_nodes", 2)
    driver.draft.set("master_addr", "127.0.0.1")
    window.run_bar.actions.train()
    driver.wait(lambda: window.state_.run and window.state_.run.status().kind == "waiting", "the wait")
    window.run_bar.buttons.stop.invoke()
    driver.wait(lambda: window.state_.run and not window.state_.run.is_alive, "the end")
    assert window.state_.run is not None
    status = window.state_.run.status()
    assert (status.kind, status.title) == ("stopped", "Stopped"), "as in the list of runs"


@pytest.mark.skipif(bool(ssh_server.skip_reason()), reason=ssh_server.skip_reason() or "possible")
def test_a_machine_is_added_tested_and_started_by_train(
    section: Section, shared_driver: Driver, shared_home: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By real clicks and keys; what sshd refuses ends the run with that reason."""
    driver, window, card = shared_driver, shared_driver.window, section.hosts
    config = tiny_config(images, shared_home, run_name="by-ssh", training_mode="distributed")
    driver.draft.open_config(with_free_port(config))
    window.show_section("multi_gpu")
    driver.settle()
    height = card.frame.winfo_height()
    with ssh_server.ssh_server(shared_home / "ssh") as server:
        monkeypatch.setenv("PATH", server.path)
        driver.click_button("Add…")
        driver.type("beta\troot@127.0.0.1\t70000\t\t")
        driver.type(f"{ROOT}")
        driver.press("Return")
        (dialog,) = driver.dialogs()
        assert "“Port” is '70000'; use a number from 1 to 65535" in driver.text(dialog)
        driver.press("ctrl+a")
        driver.type(f"{server.port}\t\t\t\t\t")
        driver.press("Return")
        assert driver.dialogs(), "Return changes the switch that has the focus, and nothing is saved yet"
        driver.click_button("Save and test")
        assert driver.dialogs() == []
        driver.wait(lambda: "Connecting" not in card.results["beta"][0], "the result of the test")
        assert card.results["beta"][0].startswith("Ready: Tandem ")
        assert card.hosts[0].allow_differences
        driver.click_really(card.switches["beta"])
        assert driver.draft.get("num_nodes") == 2
        assert driver.draft.get("enable_multi_gpu") is True
        assert "Train starts beta, 2 machines in all." in driver.text(section)
        for before, after in (("2", 1), ("1", 2)):  # as typed
            driver.set("num_nodes", before)
            driver.click_really(card.switches["beta"])
            assert driver.draft.get("num_nodes") == after
        driver.set("num_nodes", "2")
        card.refresh()
        assert "Train starts beta, 2 machines in all." in driver.text(section)
        search = BatchSizeWindow(window, window.state_)
        assert driver.draft.config is not None
        assert search.hosts(driver.draft.config) == ["--hosts", "beta"]
        search.dialog.close()
        queue = RunQueue(config.runs_dir)
        window.run_bar.actions.enqueue()
        driver.wait(lambda: queue.read().waiting, "the entry")
        assert queue.read().waiting[0].hosts == ["beta"]
        add_host(card.hosts[0].model_copy(update={"folder": "~/nowhere"}))
        add_host(Host.make("long", f"me@{'a-long-name.' * 9}org", "~/tandem"))
        card.read()
        driver.wait(lambda: "me@a-long-name.a-long" in driver.text(card.frame), "the address")
        assert re.search(r"me@a-long-[^\n]*…", driver.text(card.frame)), "cut visibly"
        lock = hosts_file().with_suffix(".lock")
        lock.unlink()
        lock.mkdir()
        card.remove(card.hosts[1])
        assert "cannot be written" in driver.text(card.frame)
        lock.rmdir()
        card.remove(card.hosts[1])
        assert [host.name for host in card.hosts] == ["beta"]
        checked = open_preflight(driver)
        driver.wait(lambda: "Check again" in driver.text(checked), "the end of the preflight")
        assert "ssh (beta)" in driver.text(checked), "it starts what Train would start"
        table = next(one for one in inside(checked) if isinstance(one, ttk.Treeview))
        assert table.item("0", "values")[:3] == ("ssh", "beta", "failed")
        assert len(table.get_children()) > 1, "this machine is checked without it"
        driver.click_button("Close")
        window.run_bar.actions.train()
        driver.wait(lambda: window.state_.run and window.state_.run.status().kind == "failed", "the refusal")
        assert window.state_.run is not None
        problem = window.state_.run.status().problem
        assert problem is not None
        assert "beta (root@127.0.0.1) has no folder ~/nowhere" in problem.text
    card.remove(card.hosts[0])
    driver.wait(driver.dialogs, "the question about the entry of the queue")
    assert "is to run on beta, and would fail then." in driver.text(driver.dialogs()[0])
    driver.click_button("Remove")
    driver.wait(lambda: not card.hosts, "that beta is off the list")
    assert driver.draft.get("num_nodes") == 1
    assert window.preferences.hosts == []
    assert "beta" not in driver.text(card.frame)
    driver.settle()
    assert card.frame.winfo_height() == height


def test_machines_join_a_run_on_another_one(section: Section, shared_driver: Driver, shared_home: Path) -> None:
    """The switches of the card and the menu beside Train are the same; what was set up by hand joins this computer."""
    driver, window, card = shared_driver, shared_driver.window, section.hosts
    for name in ("alpha", "beta"):
        add_host(host_for_runs(name, f"root@{name}.example"))
    add_host(Host.make("gamma", "me@gamma.example", "~/tandem"))
    driver.draft.new()
    window.show_section("multi_gpu")
    card.read()
    window.preferences.place = "alpha"
    window.state_.notify("run")
    driver.settle()
    assert "Train starts the run on alpha, as chosen beside Train." in driver.text(section)
    for each in ("alpha", "gamma", "beta"):
        driver.click_really(card.switches[each])
    assert [name for name, each in card.switches.items() if each.get()] == window.preferences.hosts == ["beta"]
    assert driver.draft.get("num_nodes") == 2
    assert driver.draft.get("enable_multi_gpu") is True
    assert "Train starts the run on alpha, and beta joins it there." in driver.text(section)
    assert window.run_bar.buttons.where.cget("text") == "alpha +1"
    driver.set("num_nodes", "3")
    assert "“Number of machines” is 3: set 2." in driver.text(section)
    driver.set("num_nodes", "2")
    driver.click_really(window.run_bar.buttons.where)
    menu = window.__dict__["open_popover_"]
    assert [label for label in menu.labels() if label.startswith(("On ", "With "))] == [
        *("On this computer", "On alpha", "On beta", "With beta"),
    ]
    buttons = window.run_bar.buttons
    assert "the GPUs of alpha and beta." in buttons.tooltip_text(buttons.enqueue)
    add_host(host_for_runs("alpha", "root@alpha.example", slurm=["--cpu"]))
    window.state_.notify("run")
    driver.settle()
    assert buttons.where.cget("text") == "alpha", "nothing joins a run on a cluster"
    assert "no machine of this list joins it" in driver.text(section)
    assert "joins it there" not in driver.text(section)
    add_host(host_for_runs("alpha", "root@alpha.example"))
    menu.choose("With beta")
    driver.settle()
    assert driver.draft.get("num_nodes") == 1
    assert window.run_bar.buttons.where.cget("text") == "alpha"
    assert "beta" not in card.effect.cget("text")
    window.preferences.place = ""
    for host in list(card.hosts):
        remove_host(host.name)
    card.read()


def test_machine_other_than_0_is_asked_to_join(section: Section, shared_driver: Driver, images: Path) -> None:
    with pytest.raises(ConfigError, match="paste machine 0's join line"):
        create_run(TrainConfig.model_validate({"num_nodes": 2, "node_rank": 1, "master_addr": "127.0.0.1"}))
