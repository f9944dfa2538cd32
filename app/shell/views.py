"""The pages, windows and dialogs that sections and the run bar open in other places of the window."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.shell.files import Files
from app.shell.run_bar import RunBar
from app.state import AppState
from modules.run import RunFolder
from modules.run.hosts.host_list import find_hosts
from modules.run.view.event_records import SampleFile

if TYPE_CHECKING:
    from app.windows.custom_sample import CustomSampleDialog


class MainWindow(Protocol):
    """What they are opened in."""

    files: Files
    run_bar: RunBar
    section: str
    sections: dict[str, Any]

    def show_section(self, name: str) -> None: ...


class _Window(Protocol):
    def show(self) -> tk.Toplevel: ...


class Views:
    """Opens them; the windows' modules are imported when they are first opened."""

    def __init__(self, root: tk.Tk, window: MainWindow, state: AppState) -> None:
        self._root, self._window, self._state = root, window, state
        self._opened: dict[str, tk.Toplevel] = {}
        self.asked: CustomSampleDialog | None = None  # the last one

    def multi_node(self) -> None:
        """Multiple machines."""
        from app.windows.multi_node import MultiNodeWindow

        self._show_once("multi_node", lambda: MultiNodeWindow(self._root, self._state, self._window.files.save))

    def preflight(self) -> None:
        """The checks before a run."""
        from app.windows.preflight import PreflightWindow

        self._show_once("preflight", lambda: PreflightWindow(self._root, self._state, self._window.files.save))

    def batch_size(self) -> None:
        """The search for the largest batch."""
        from app.windows.batch_size import BatchSizeWindow

        self._show_once("batch_size", lambda: BatchSizeWindow(self._root, self._state))

    def benchmark(self) -> None:
        """The config on 1 to all devices."""
        from app.windows.benchmark import BenchmarkWindow

        self._show_once("benchmark", lambda: BenchmarkWindow(self._root, self._state))

    def error(self) -> None:
        """The details of what the run bar says."""
        self._window.run_bar.show_details()

    def run(self) -> None:
        """The monitor, of a run that was started from the settings; the monitor's lists keep their place."""
        if self._window.section != "monitor":
            self._page("monitor").show_run()

    def log(self) -> None:
        """The line of the followed run's problem in its log."""
        run = self._state.run
        self._page("monitor").show_log(None if run is None else run.status().problem)

    def sample(self, sample: SampleFile) -> None:
        """An image of the followed run."""
        self._page("monitor").show_sample(sample)

    def custom_sample(self) -> None:
        """The question what the followed run is to generate, or once it has ended the page Generate."""
        from app.windows.custom_sample import CustomSampleDialog

        if self._state.run is not None:
            run, typed = self._state.run, self._state.typed["custom_sample"]
            generate = partial(self.generate, run.folder)
            self.asked = CustomSampleDialog(self._root, run, typed, generate, self._state.say)
            self.asked.show()

    def result(self) -> None:
        """What the followed run has made."""
        from app.windows.result import ResultWindow

        if self._state.run is not None:
            ResultWindow(self._root, self._state, self._state.run.folder).show()

    def notifications(self) -> None:
        """What happens when a run ends."""
        from app.windows.notifications import NotificationsWindow

        NotificationsWindow(self._root, self._state).show()

    def add_machine(self) -> None:
        """Ask for a machine to train on."""
        from app.windows.machine import AddMachine

        AddMachine(self._root, self._state).start()

    def connect(self, name: str) -> None:
        """See whether a machine can train, and go on with what it needs."""
        from app.windows.machine import AddMachine

        AddMachine(self._root, self._state).connect(find_hosts([name])[0])

    def machine(self, name: str) -> None:
        """What is on a machine that Train starts runs on."""
        from app.windows.machine import MachineWindow

        MachineWindow(self._root, self._state, find_hosts([name])[0]).show()

    def check_there(self, name: str) -> None:
        """What a machine would do with the current settings."""
        from app.windows.machine import CheckWindow

        CheckWindow(self._root, self._state, find_hosts([name])[0]).show()

    def kubernetes(self) -> None:
        """The manifests of a run on Kubernetes."""
        from app.windows.kubernetes import KubernetesWindow

        self._show_once("kubernetes", lambda: KubernetesWindow(self._root, self._state))

    def set_up(self, name: str, why: str, then: Callable[[], object]) -> None:
        """Ask whether a machine is to be set up; `then` follows once it is."""
        from app.windows.machine import ask_to_set_up

        ask_to_set_up(self._root, self._state, find_hosts([name])[0], why, then)

    def generate(
        self,
        folder: RunFolder | None = None,
        fields: Mapping[str, object] | None = None,
        step: int | None = None,
    ) -> None:
        """The page Generate with a model of a run, by default the last of the followed one, and these of its fields."""
        page, run = self._page("generate"), self._state.run
        if (chosen := folder or (run and run.folder)) is not None:
            page.use_run(chosen, fields or {}, step)

    def problems(self) -> None:
        """The problems of the images."""
        self._page("data").turn_to("problems")

    def annotate(self, folder: Path | None) -> None:
        """Captions and masks, for the images of a folder."""
        page = self._page("tools")
        page.open_page("annotate")
        page.pages["annotate"].offer(folder)

    def _page(self, section: str) -> Any:
        self._window.show_section(section)
        return self._window.sections[section]

    def _show_once(self, name: str, make: Callable[[], _Window]) -> None:
        """Show a window that is no dialog in front of all others, unless it is there already."""
        found = self._opened.get(name)
        if found is not None and found.winfo_exists():
            found.lift()
            found.focus_force()
        else:
            self._opened[name] = make().show()
