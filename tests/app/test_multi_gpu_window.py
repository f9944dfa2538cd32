"""The Multi-GPU section, the multi-node window and the preflight window, in the real window."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.multi_gpu.gpu_list import GpuReading
from app.multi_gpu.link_matrix import LinkMatrix
from app.multi_gpu.plan_summary import describe
from app.runs.control import create_run
from app.sections.multi_gpu import Section
from app.windows.batch_size import BatchSizeWindow
from app.windows.multi_node import MultiNodeWindow
from app.windows.preflight import PreflightWindow
from modules.config import ConfigError, TrainConfig
from modules.machine import Gpu, GpuLoad, Link
from tests.app.driver import Driver
from tests.ports import free_port
from tests.runs import environment, tiny_config

GPUS = tuple(Gpu(number, "NVIDIA H100 80GB HBM3", 81_920, f"GPU-{number}") for number in range(4))
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


def test_machine_without_gpus_says_so(section: Section, shared_driver: Driver) -> None:
    shared_driver.wait(
        lambda: (
            (
                "No GPU found: training runs on the CPU. “World size” sets how many processes share it, "
                "which is useful for testing only."
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
        ({"world_size": 4}, "4 processes x batch 2 x accumulation 1 = 8; learning rate 0.0001 becomes 0.0002."),
        (
            {"num_nodes": 2, "processes_per_node": (4,), "master_addr": "10.0.0.1"},
            "2 nodes x 4 processes x batch 2 x accumulation 1 = 16; learning rate 0.0001 becomes 0.000283.",
        ),
        ({"world_size": 4, "global_batch_size": 12}, "4 processes, effective batch fixed at 12; learning rate 0.0001."),
        ({"world_size": 2, "lr_scaling": "linear"}, "becomes 0.0002."),
        ({"world_size": 4, "optimizer": "prodigy", "learning_rate": 1.0}, "accumulation 1 = 8; learning rate 1."),
    ],
)
def test_summary_of_processes_batch_and_learning_rate(settings: dict[str, object], expected: str) -> None:
    given = {"enable_multi_gpu": True, "batch_size": 2, "learning_rate": 1e-4, **settings}
    sentence, fault = describe(TrainConfig.model_validate(given))
    assert fault == ""
    assert expected in sentence


def test_impossible_settings_are_reported(section: Section, shared_driver: Driver) -> None:
    shared_driver.set("device_ids", [7])
    shared_driver.wait(lambda: "device_ids names GPU 7" in shared_driver.text(section), "why not")


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
    shared_driver.wait(lambda: len(opened.commands) == 5, "the commands")
    shared_driver.settle()
    first, join, *_, batch = opened.commands
    assert "#SBATCH --nodes=2" in batch.text
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
        joined = copied.communicate(timeout=100)[0]
    finally:
        copied.kill()
    assert done.returncode == 0, done.stdout + done.stderr + joined
    assert copied.returncode == 0, joined
    opened._dialog.close()


def with_free_port(config: TrainConfig) -> TrainConfig:
    return config.model_copy(update={"initial_port": free_port()})


def shell(command: str, place: Path, images: Path) -> subprocess.Popen[str]:
    """The join line as pasted on the other machine, with its own run and cache folders."""
    root = Path(__file__).resolve().parents[2]
    own = f"--set runs_dir='{place}/other runs' --set cache_dir='{place}/other cache'"
    line = f"cd '{root}' && {command.replace('.venv/bin/python', 'python', 1)} {own}"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    allowed = os.pathsep.join((str(images), str(root / "tests")))
    return subprocess.Popen(
        ["sh", "-c", line],
        env=environment(PATH=path, TANDEM_ALLOW=allowed),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_multi_node_window_reports_what_is_missing(section: Section, shared_driver: Driver) -> None:
    opened = multi_node_window(shared_driver)
    opened.show()
    opened.generate()
    shared_driver.settle()
    assert "“Number of machines” is 1; set how many machines train together." in shared_driver.text(
        opened._dialog.window
    )
    opened._dialog.close()


@pytest.mark.slow
def test_preflight_fills_its_table(section: Section, shared_driver: Driver, shared_home: Path, images: Path) -> None:
    config = tiny_config(images, shared_home, enable_multi_gpu=True, world_size=2)
    shared_driver.draft.open_config(config)
    opened = PreflightWindow(shared_driver.window, shared_driver.window.state_)
    opened.show()
    shared_driver.wait(lambda: opened.child is None, "the end of the preflight")
    assert opened.report is not None
    assert opened.report.complete
    assert len(opened.table.get_children()) == len(opened.report.cells)
    assert opened.report.verdict in shared_driver.text(opened.dialog.window)
    opened.dialog.close()


def test_closing_the_preflight_stops_its_processes(section: Section, shared_driver: Driver) -> None:
    opened = PreflightWindow(shared_driver.window, shared_driver.window.state_)
    opened.show()
    child = opened.child
    assert child is not None
    opened.dialog.close()
    shared_driver.settle()
    assert child.process.wait(timeout=60) is not None


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
    driver.wait(lambda: opened.child is None, "the refusal")
    assert "memory_target is 1.5; give the share of the memory" in opened.shown.get("1.0", "end")
    assert opened.use.cget("state") == "disabled"
    opened.target.show("0.9")
    opened.start()
    driver.wait(lambda: opened.child is None, "the end of the search")
    assert opened.result is not None
    assert "batch_size 2: fits" in opened.shown.get("1.0", "end")
    opened.use.invoke()
    assert driver.draft.get("batch_size") == opened.result.batch_size == 3


def test_closing_the_search_stops_its_processes(section: Section, shared_driver: Driver) -> None:
    opened = BatchSizeWindow(shared_driver.window, shared_driver.window.state_)
    opened.show()
    child = opened.child
    assert child is not None
    opened.dialog.close()
    shared_driver.settle()
    assert child.process.wait(timeout=60) is not None


def test_gpus_are_shown_without_load_readings(section: Section) -> None:
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
    window.run_bar.actions.train()
    driver.wait(lambda: window.run_bar.join.winfo_ismapped(), "the button for the join line")
    window.show_section("monitor")
    card = window.sections["monitor"].waiting
    driver.wait(lambda: "missing: machine 1" in card.messages.cget("text"), "who is missing")
    assert window.state_.run is not None
    assert window.state_.run.status().title == "Waiting for machines"

    window.run_bar.join.invoke()
    line = window.clipboard_get()
    assert line == card.line.get()
    assert window.state_.join_token in line
    joined = shell(line, place, images)
    try:
        driver.wait(lambda: window.state_.run.status().kind == "finished", "the end")
        assert joined.wait(timeout=60) == 0
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
    window.run_bar.stop.invoke()
    driver.wait(lambda: not window.state_.run.is_alive, "the end")
    assert window.state_.run.status().kind == "interrupted"


def test_machine_other_than_0_is_asked_to_join(section: Section, shared_driver: Driver, images: Path) -> None:
    with pytest.raises(ConfigError, match="paste machine 0's join line"):
        create_run(TrainConfig.model_validate({"num_nodes": 2, "node_rank": 1, "master_addr": "127.0.0.1"}))
