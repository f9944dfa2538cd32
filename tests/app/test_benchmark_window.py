"""The window of the benchmark: a real one of two cases, stopped, compared, and what is wrong with its input."""

from __future__ import annotations

import json
import tkinter as tk
from pathlib import Path

import pytest
from PIL import Image

from app.widgets.buttons import Button
from app.windows.benchmark import BenchmarkWindow
from modules.run.benchmark.records import BenchmarkResult, CaseResult, Measured
from tests.app.driver import Driver
from tests.runs import tiny_config

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(shared_driver: Driver, shared_home: Path, images: Path) -> BenchmarkWindow:
    """The window for a tiny model, opened by the section's event; it measures nothing by itself."""
    shared_driver.draft.open_config(tiny_config(images, shared_home / "benchmark", batch_size=4))
    found = BenchmarkWindow(shared_driver.window, shared_driver.window.state_)
    found.show()
    assert found.child is None
    return found


def enter(opened: BenchmarkWindow, **values: str) -> None:
    for name, value in values.items():
        opened.options.entries[name].show(value)


def test_cases_are_measured_saved_and_compared(opened: BenchmarkWindow, shared_driver: Driver, tmp_path: Path) -> None:
    driver = shared_driver
    enter(opened, steps="3", batch_sizes="2")
    opened.button.invoke()
    assert opened.button.cget("text") == "Stop"
    driver.wait(lambda: "Case 1 of 2: 1 process, batch size 4" in opened.status.cget("text"), "the first case")
    driver.wait(lambda: len(opened.pages.table.get_children()) == 1, "its row, before the end")
    assert opened.child is not None
    driver.wait(lambda: opened.child is None, "the end")
    assert opened.status.cget("text") == "All cases were measured."
    rows = [opened.pages.table.item(item, "values") for item in opened.pages.table.get_children()]
    assert [row[:2] for row in rows] == [("1", "4"), ("1", "2")]
    assert opened.pages.table.selection() == ("0",), "the row that the note is about"
    assert opened.pages.note.cget("text").startswith("1 rank, batch size 4: on average a step takes")
    opened.pages.table.selection_set("1")
    driver.wait(
        lambda: opened.pages.note.cget("text").startswith("1 rank, batch size 2: on average a step takes"),
        "the selected case",
    )
    assert opened.pages.plot is not None
    assert opened.pages.plot.width() > 500
    opened.save("png", tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as image:
        assert image.width > 1000
    opened.save("json", tmp_path / "now.json")
    data = json.loads((tmp_path / "now.json").read_text())
    assert data["config"] == "unsaved settings"
    data["machine"], data["cases"][0]["measured"]["seconds"] = "another", 2 * data["cases"][0]["measured"]["seconds"]
    (tmp_path / "before.json").write_text(json.dumps(data))
    opened.compare(tmp_path / "before.json")
    assert opened.pages.choice.get() == "Comparison"
    rows = [opened.pages.compared.item(item, "values") for item in opened.pages.compared.get_children()]
    assert [(row[0], row[1], row[4], row[-1]) for row in rows] == [
        ("1", "4", "+100.0%", "faster"),
        ("1", "2", "+0.0%", "the same"),
    ]
    assert "machine: another ->" in opened.pages.note.cget("text")
    (tmp_path / "none.json").write_text("{}")
    opened.compare(tmp_path / "none.json")
    assert "choose a file that Save… has written" in opened.status.cget("text")
    opened.compare(tmp_path / "before.json")
    assert not opened.status.cget("text"), "what was wrong with the other file is over"
    opened.dialog.close()


def test_stopping_keeps_what_was_measured(opened: BenchmarkWindow, shared_driver: Driver) -> None:
    enter(opened, steps="2", batch_sizes="2 3")
    width = opened.button.winfo_reqwidth()
    opened.button.invoke()
    shared_driver.wait(lambda: len(opened.pages.table.get_children()) == 1, "the first case")
    opened.button.invoke()
    shared_driver.wait(lambda: opened.child is None, "the end")
    assert opened.status.cget("text") == "Stopped; the cases before are shown."
    assert opened.button.cget("text") == "Measure again"
    assert opened.button.winfo_reqwidth() == width, "the other buttons stay in their places"
    assert isinstance(opened.result, BenchmarkResult)
    opened.dialog.close()


def test_wrong_numbers_an_earlier_result_and_closing(
    opened: BenchmarkWindow, shared_driver: Driver, tmp_path: Path
) -> None:
    """Wrong numbers are named; the comparison is never an empty page; closing stops the program."""
    enter(opened, ranks="1 two")
    opened.button.invoke()
    assert opened.status.cget("text") == "Processes: 'two' is no whole number from 1 to 100,000."
    enter(opened, ranks="", steps="3 4")
    opened.button.invoke()
    assert opened.status.cget("text") == "Steps: give one number, such as 30."
    assert opened.child is None
    measured = Measured(3, 12, 3.0, 1.0, 1.5, {"forward": 1.0}, [1024.0], ["cpu"])
    BenchmarkResult("cats.yaml", "tiny", "another", {}, [CaseResult(1, 4, measured)]).save(tmp_path / "before.json")
    opened.compare(tmp_path / "before.json")
    row = ("1", "4", "4", "-", "-", "1000.0 ms ->", "1.00 GiB ->", "-", "")
    assert [opened.pages.compared.item(item, "values") for item in opened.pages.compared.get_children()] == [row]
    assert opened.pages.note.cget("text").startswith("This is the earlier result; Measure puts")
    enter(opened, steps="3")
    opened.button.invoke()
    child = opened.child
    assert child is not None
    assert opened.pages.choice.get() == "Comparison"
    assert [opened.pages.compared.item(item, "values") for item in opened.pages.compared.get_children()] == [row]
    assert opened.pages.note.cget("text").startswith("Each case appears beside")
    opened.dialog.close()
    shared_driver.settle()
    assert child.process.wait(timeout=60) is not None


def test_the_section_opens_it(shared_driver: Driver) -> None:
    window = shared_driver.window
    window.show_section("multi_gpu")
    shared_driver.wait(lambda: window.sections["multi_gpu"].winfo_viewable(), "the section")
    buttons = [each for each in window.sections["multi_gpu"].head.winfo_children() if isinstance(each, Button)]
    (button,) = [each for each in buttons if each.cget("text") == "Benchmark…"]
    button.invoke()

    def dialogs() -> list[tk.Toplevel]:
        found = [each for each in window.winfo_children() if isinstance(each, tk.Toplevel)]
        return [each for each in found if each.title() == "Benchmark"]

    shared_driver.wait(dialogs, "the window")
    dialogs()[0].destroy()
