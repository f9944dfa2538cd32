"""Each dialog at 150 % on a screen of 1280x800: all of it is in sight, or can be scrolled to."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.monitor.run_edits import RunNotesWindow
from app.monitor.samples import SampleIndex
from app.monitor.viewer import SampleViewer
from app.multi_gpu.hosts_card import HostDialog
from app.runs.ask_existing import ask_machines
from app.widgets import theme
from app.widgets.button import Button
from app.widgets.inputs import Entry
from app.widgets.scroll import enclosing
from app.windows.batch_size import BatchSizeWindow
from app.windows.benchmark import BenchmarkWindow
from app.windows.dialog import Dialog
from app.windows.error_details import ErrorDetails
from app.windows.file_dialog import FileDialog
from app.windows.importer import show_import
from app.windows.kubernetes import KubernetesWindow
from app.windows.machine import AddMachine, MachineWindow, SetUpWindow
from app.windows.preflight import PreflightWindow
from app.windows.shortcuts import show_shortcuts
from app.windows.suggested_settings import SuggestedSettings
from app.windows.welcome import show_welcome
from modules.config import TrainConfig
from modules.importers import import_file
from modules.run import RunFolder
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_command import ChangedKey
from modules.run.preflight_report.report import Cell, PreflightReport
from modules.run.suggestions import ConceptData
from modules.run.view.event_records import SampleFile
from tests.app.driver import Driver

ONETRAINER = Path(__file__).parents[1] / "importers" / "files" / "onetrainer.json"
MESSAGE = "resolution is 1000; use a multiple of 64, e.g. 960"


def preflight(driver: Driver) -> None:
    opened = PreflightWindow(driver.window, driver.window.state_, lambda why: None)
    opened.dialog.show()
    opened._result = opened.file("report.json")
    cell = Cell("Network", "all", "red", "a port is closed", "Open it.\nOr take another one.\nOr none.\nOr ask.")
    opened._result.write_text(PreflightReport("Preflight", (cell,) * 20).dump(), encoding="utf-8")
    opened.progressed("")
    opened.table.selection_set("0")


def file_chooser(driver: Driver, purpose: str) -> None:
    endings = (".yaml",) if purpose in ("open", "any") else ()
    FileDialog(driver.window, purpose, "A title", Path(), endings, "a.yaml")._dialog.show()  # type: ignore[arg-type]


def host(driver: Driver) -> None:
    opened = HostDialog(driver.window, lambda host: None)
    opened.show()
    opened.save()
    assert opened.message.cget("text"), "nothing is given: it says so"


def image(driver: Driver) -> None:
    sample = SampleFile(str(Path("gone.png").absolute()), "a red scarf and a blue hat, " * 12, 100, 1)
    SampleViewer(driver.window, SampleIndex(), sample)


def suggested_settings(driver: Driver) -> None:
    concepts = [{"path": f"folder {number} with a name of some words"} for number in range(12)]
    config = TrainConfig.model_validate({"concepts": concepts})
    driver.draft.open_config(config)
    data = [ConceptData(number, 10 if number else 1000, 10, 64, 64) for number in range(12)]
    SuggestedSettings(driver.window, driver.window.state_, config, data).show()


BETA = Host.make("beta", "root@203.0.113.7", "~/.tandem/code", port=40022, key="/home/me/.ssh/a_key_for_this_one")
DIALOGS: dict[str, Callable[[Driver], object]] = {
    "batch size": lambda driver: BatchSizeWindow(driver.window, driver.window.state_).dialog.show(),
    "benchmark": lambda driver: BenchmarkWindow(driver.window, driver.window.state_).show(),
    "error": lambda driver: details(driver, "\n".join([MESSAGE] * 40)).show(),
    "file to open": lambda driver: file_chooser(driver, "open"),
    "file to save": lambda driver: file_chooser(driver, "save"),
    "file or folder": lambda driver: file_chooser(driver, "any"),
    "folder": lambda driver: file_chooser(driver, "folder"),
    "host": host,
    "image": image,
    "kubernetes": lambda driver: KubernetesWindow(driver.window, driver.window.state_).show(),
    "machine for runs": lambda driver: HostDialog(driver.window, lambda host: None, for_runs=True).show(),
    "machine": lambda driver: MachineWindow(driver.window, driver.window.state_, BETA).dialog.show(),
    "machine that is set up": lambda driver: SetUpWindow(driver.window, driver.window.state_, BETA, None).dialog.show(),
    "key that is refused": lambda driver: AddMachine(driver.window, driver.window.state_)._show_refusal(BETA),
    "key that has changed": lambda driver: AddMachine(driver.window, driver.window.state_)._looked(
        BETA, ChangedKey("another host key")
    ),
    "suggested settings": suggested_settings,
    "import": lambda driver: show_import(driver.window, driver.window.state_, import_file(ONETRAINER)),
    "machines": lambda driver: ask_machines(driver.window, "cats", 3, ["beta"], lambda answer: None),
    "notes": lambda driver: RunNotesWindow(driver.window, RunFolder(Path("cats")), lambda: None).show(),
    "preflight": preflight,
    "shortcuts": lambda driver: show_shortcuts(driver.window),
    "welcome": lambda driver: show_welcome(driver.window, driver.window.state_, driver.window.files, lambda: None),
}


def details(driver: Driver, message: str) -> ErrorDetails:
    return ErrorDetails(driver.window, driver.window.state_, "The run failed", message, "resolution", lambda: None)


@pytest.fixture(scope="module")
def at_150(shared_driver: Driver) -> Driver:
    shared_driver.window.tk.call("wm", "geometry", ".", "1280x800+0+0")
    shared_driver.enlarge(150)
    return shared_driver


@pytest.fixture
def closed_dialogs(at_150: Driver) -> Iterator[Driver]:
    yield at_150
    for dialog in at_150.dialogs():
        dialog.destroy()


def cut_off(place: tk.Misc) -> Iterator[str]:
    """What has no room at all or less than it needs: labels, buttons and fields. What scrolls need only be as wide."""
    for child in place.winfo_children():
        if isinstance(child, tk.Toplevel) or not child.winfo_manager():
            continue
        if isinstance(child, (tk.Label, Button, Entry)) and child.winfo_reqheight() > 1:
            name = f"the field {child.get()!r}" if isinstance(child, Entry) else str(child.cget("text"))
            is_low = enclosing(child) is None and child.winfo_rooty() + child.winfo_reqheight() > lowest(child) + 1
            if name and (not child.winfo_ismapped() or child.winfo_reqwidth() > child.winfo_width() + 1 or is_low):
                yield name
        yield from cut_off(child)


def lowest(widget: tk.Misc) -> int:
    """Where on the screen the first of a widget and all that is around it ends."""
    ends = [widget.winfo_rooty() + widget.winfo_height()]
    while not isinstance(widget, tk.Toplevel):
        assert widget.master is not None
        widget = widget.master
        ends.append(widget.winfo_rooty() + widget.winfo_height())
    return min(ends)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIALOGS)
def test_nothing_of_a_dialog_is_cut_off_on_a_small_screen(closed_dialogs: Driver, name: str) -> None:
    DIALOGS[name](closed_dialogs)
    (window,) = closed_dialogs.dialogs()
    closed_dialogs.settle()
    assert list(cut_off(window)) == []
    assert window.winfo_rootx() >= 0
    assert window.winfo_rootx() + window.winfo_width() <= window.winfo_screenwidth()
    assert window.winfo_rooty() >= 0
    assert window.winfo_rooty() + window.winfo_height() <= window.winfo_screenheight()


def test_a_refused_key_takes_no_more_room_than_it_needs(closed_dialogs: Driver) -> None:
    DIALOGS["key that is refused"](closed_dialogs)
    (window,) = closed_dialogs.dialogs()
    closed_dialogs.settle()
    assert window.winfo_height() < theme.px(380), "the screen has 533 of these"
    assert window.winfo_height() >= window.winfo_reqheight()


def test_what_is_cut_off_is_found(closed_dialogs: Driver) -> None:
    dialog = Dialog(closed_dialogs.window, "Low")
    for number in range(60):
        tk.Label(dialog.body, text=f"line {number}").pack()
    dialog.show()
    closed_dialogs.settle()
    assert "line 59" in list(cut_off(dialog.window))


@pytest.mark.parametrize(("lines", "shown"), [(1, 1), (3, 3), (40, 16)])
def test_an_error_is_as_high_as_its_text(closed_dialogs: Driver, lines: int, shown: int) -> None:
    opened = details(closed_dialogs, "\n".join([MESSAGE] * lines))
    opened.show()
    closed_dialogs.settle()
    assert int(opened.text.cget("height")) == shown
