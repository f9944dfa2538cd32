"""The Multi-GPU section, the multi-node window and the preflight window, in the real window."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app import texts
from app.multi_gpu.link_matrix import LinkMatrix
from app.multi_gpu.readings import Reading
from app.multi_gpu.sentence import describe
from app.run_control import make_run
from app.sections.multi_gpu import Section
from app.windows.multi_node import MultiNodeWindow
from app.windows.preflight import PreflightWindow
from modules.config import ConfigError, TrainConfig
from modules.machine import Gpu, GpuLoad, Link
from tests.app.driving import Driver
from tests.ports import free_port
from tests.runs import environment, tiny_config

GPUS = tuple(Gpu(number, "NVIDIA H100 80GB HBM3", 81_920, f"GPU-{number}") for number in range(4))
READING = Reading(GPUS, tuple(GpuLoad(gpu.index, 50, 40_000, 60, 300.5) for gpu in GPUS))


@pytest.fixture
def section(shared_driver: Driver) -> Section:
    """The section of new settings, with several GPUs switched on."""
    shared_driver.draft.new()
    shared_driver.set("enable_multi_gpu", True)
    found = shared_driver.window.sections["multi_gpu"]
    assert isinstance(found, Section)
    return found


def test_a_machine_without_gpus_says_so(section: Section, shared_driver: Driver) -> None:
    shared_driver.wait(lambda: texts.NO_GPUS in shared_driver.words(section), "that there is no GPU")


def test_boxes_choose_gpus_and_the_last_one_stays(section: Section, shared_driver: Driver) -> None:
    section._take_in(READING)
    assert section.gpus.chosen() == [0, 1, 2, 3]
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
    ],
)
def test_the_sentence_says_what_the_settings_amount_to(settings: dict[str, object], expected: str) -> None:
    given = {"enable_multi_gpu": True, "batch_size": 2, "learning_rate": 1e-4, **settings}
    sentence, fault = describe(TrainConfig.model_validate(given))
    assert fault == ""
    assert expected in sentence


def test_settings_that_this_machine_cannot_do_are_told(section: Section, shared_driver: Driver) -> None:
    shared_driver.set("device_ids", [7])
    shared_driver.wait(lambda: "device_ids names GPU 7" in shared_driver.words(section), "why not")


def test_links_are_coloured_by_their_speed(shared_driver: Driver, section: Section) -> None:
    matrix = LinkMatrix(section.scroll.inside)
    links = [Link(0, 1, "NV18"), Link(0, 2, "PIX"), Link(1, 2, "SYS", peer_access=False)]
    matrix.show(links)
    shared_driver.settle()
    assert len(matrix.canvas.find_all()) == 2 * 3 + 2 * 2 * 3  # two rows of numbers; a cell and its label, twice
    told = str(matrix._words.cget("text"))
    assert "NVLink" in told
    assert "GPU 1 and GPU 2 cannot read each other's memory" in told
    matrix.frame.destroy()


def test_the_commands_of_two_machines_are_shown_and_one_trains(
    section: Section, shared_driver: Driver, shared_home: Path, pictures: Path
) -> None:
    """What is copied is pasted into a shell: with machines that share this one, both commands."""
    place = shared_home / "two machines"
    place.mkdir()
    config = tiny_config(pictures, place, enable_multi_gpu=True, max_steps=2, training_mode="distributed")
    shared_driver.draft.open_config(with_free_port(config))
    shared_driver.draft.set("num_nodes", 2)
    shared_driver.draft.set("processes_per_node", [1])
    shared_driver.draft.set("master_addr", "127.0.0.1")
    opened = MultiNodeWindow(shared_driver.window)
    opened.show()
    shared_driver.draft.file = place / "it's mine.yaml"
    assert shared_driver.window.files.save()
    opened.generate()
    shared_driver.wait(lambda: len(opened.commands) == 5, "the commands")
    shared_driver.settle()
    first, join, *_, batch = opened.commands
    assert "#SBATCH --nodes=2" in batch.text
    copied = shell(join.text, place)
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


def shell(command: str, place: Path) -> subprocess.Popen[str]:
    """The join line as the other machine's user would paste it in Tandem's folder, with folders of its own."""
    root = Path(__file__).resolve().parents[2]
    own = f"--set runs_dir='{place}/other runs' --set cache_dir='{place}/other cache'"
    line = f"cd '{root}' && {command.replace('.venv/bin/python', 'python', 1)} {own}"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.Popen(
        ["sh", "-c", line], env=environment(PATH=path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_the_multi_node_window_says_what_is_missing(section: Section, shared_driver: Driver) -> None:
    opened = MultiNodeWindow(shared_driver.window)
    opened.show()
    opened.generate()
    shared_driver.settle()
    assert texts.ONE_MACHINE in shared_driver.words(opened._dialog.window)
    opened._dialog.close()


def test_the_preflight_fills_its_table(
    section: Section, shared_driver: Driver, shared_home: Path, pictures: Path
) -> None:
    config = tiny_config(pictures, shared_home, enable_multi_gpu=True, world_size=2)
    shared_driver.draft.open_config(config)
    opened = PreflightWindow(shared_driver.window)
    opened.show()
    shared_driver.wait(lambda: opened._child is None, "the end of the preflight")
    assert opened.checkup is not None
    assert opened.checkup.complete
    assert len(opened.tree.get_children()) == len(opened.checkup.cells)
    assert opened.checkup.verdict in shared_driver.words(opened._dialog.window)
    opened._dialog.close()


def test_closing_the_preflight_ends_its_processes(section: Section, shared_driver: Driver) -> None:
    opened = PreflightWindow(shared_driver.window)
    opened.show()
    child = opened._child
    assert child is not None
    opened._dialog.close()
    shared_driver.settle()
    assert child.wait(timeout=60) is not None


def test_no_reading_is_shown_as_it_was(section: Section) -> None:
    section.gpus.show(replace(READING, loads=()), None)
    assert section.gpus.chosen() == [0, 1, 2, 3]


def test_a_run_on_two_machines_is_started_by_train_and_joined_by_the_copied_line(
    section: Section, shared_driver: Driver, shared_home: Path, pictures: Path
) -> None:
    driver, window = shared_driver, shared_driver.window
    place = shared_home / "by a click"
    place.mkdir()
    config = tiny_config(pictures, place, enable_multi_gpu=True, max_steps=3, training_mode="distributed")
    driver.draft.open_config(with_free_port(config))
    driver.draft.set("num_nodes", 2)
    driver.draft.set("processes_per_node", [1])
    driver.draft.set("master_addr", "127.0.0.1")
    window.run_bar.actions.train()
    driver.wait(lambda: window.run_bar.join.winfo_ismapped(), "the button for the join line")
    window.show_section("monitor")
    card = window.sections["monitor"].waiting
    driver.wait(lambda: "missing: machine 1" in card.news.cget("text"), "who is missing")
    assert window.state_.run is not None
    assert window.state_.run.status().words == texts.WAITING

    window.run_bar.join.invoke()
    line = window.clipboard_get()
    assert line == card.line.get()
    assert window.state_.join_token in line
    joined = shell(line, place)
    try:
        driver.wait(lambda: window.state_.run.status().kind == "finished", "the end")
        assert joined.wait(timeout=60) == 0
    finally:
        joined.kill()
        joined.communicate()
    driver.wait(lambda: not card.frame.winfo_ismapped(), "the card gone")


def test_the_wait_for_other_machines_ends_by_stop(
    section: Section, shared_driver: Driver, shared_home: Path, pictures: Path
) -> None:
    driver, window = shared_driver, shared_driver.window
    config = tiny_config(pictures, shared_home, enable_multi_gpu=True, training_mode="distributed")
    driver.draft.open_config(with_free_port(config))
    driver.draft.set("num_nodes", 2)
    driver.draft.set("master_addr", "127.0.0.1")
    window.run_bar.actions.train()
    driver.wait(lambda: window.state_.run and window.state_.run.status().kind == "waiting", "the wait")
    window.run_bar.stop.invoke()
    driver.wait(lambda: not window.state_.run.is_alive, "the end")
    assert window.state_.run.status().kind == "interrupted"


def test_another_machine_than_0_is_told_how_to_join(section: Section, shared_driver: Driver, pictures: Path) -> None:
    with pytest.raises(ConfigError, match="paste machine 0's join line"):
        make_run(TrainConfig.model_validate({"num_nodes": 2, "node_rank": 1, "master_addr": "127.0.0.1"}))
