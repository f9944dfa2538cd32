"""The virtual events by which sections and the run bar ask the main window to open something."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import Any, Protocol

from app.shell.files import Files
from app.shell.run_bar import RunBar
from app.state import AppState


class RequestTarget(Protocol):
    """What the requests act on: the main window."""

    files: Files
    run_bar: RunBar
    state_: AppState
    section: str
    sections: dict[str, Any]

    def show_section(self, name: str) -> None: ...


class _Window(Protocol):
    def show(self) -> tk.Toplevel: ...


def bind_requests(root: tk.Tk, window: RequestTarget) -> None:
    """Bind all requests; the windows' modules are imported when they are first opened."""
    state = window.state_
    opened: dict[str, tk.Toplevel] = {}

    def show_once(name: str, make: Callable[[], _Window]) -> None:
        """Show a window that is no dialog in front of all others, unless it is there already."""
        found = opened.get(name)
        if found is not None and found.winfo_exists():
            found.lift()
            found.focus_force()
        else:
            opened[name] = make().show()

    def open_multi_node() -> None:
        from app.windows.multi_node import MultiNodeWindow

        show_once("MultiNode", lambda: MultiNodeWindow(root, state, window.files.save))

    def open_preflight() -> None:
        from app.windows.preflight import PreflightWindow

        show_once("Preflight", lambda: PreflightWindow(root, state, window.files.save))

    def open_batch_size() -> None:
        from app.windows.batch_size import BatchSizeWindow

        show_once("FindBatchSize", lambda: BatchSizeWindow(root, state))

    def open_benchmark() -> None:
        from app.windows.benchmark import BenchmarkWindow

        show_once("Benchmark", lambda: BenchmarkWindow(root, state))

    def show_run() -> None:
        """Of a run that was started from the settings; the monitor's lists keep their place."""
        if window.section != "monitor":
            window.show_section("monitor")
            window.sections["monitor"].show_run()

    def show_log() -> None:
        window.show_section("monitor")
        window.sections["monitor"].show_log(None if state.run is None else state.run.status().problem)

    def show_result() -> None:
        from app.windows.result import ResultWindow

        if state.run is not None:
            ResultWindow(root, state, state.run.folder).show()

    def generate_with_run() -> None:
        window.show_section("generate")
        followed = None if state.run is None else state.run.folder
        if (folder := state.run_to_generate or followed) is not None:
            window.sections["generate"].use_run(folder, state.sample_to_generate)
        state.run_to_generate, state.sample_to_generate = None, {}

    def show_custom_sample() -> None:
        window.show_section("monitor")
        if (sample := window.run_bar.custom_sample) is not None:
            window.sections["monitor"].show_sample(sample)

    def show_problems() -> None:
        window.show_section("data")
        window.sections["data"].turn_to("problems")

    def annotate() -> None:
        folder = window.sections["data"].pages.folder_to_annotate
        window.show_section("tools")
        window.sections["tools"].open_page("annotate")
        window.sections["tools"].pages["annotate"].offer(folder)

    requests: dict[str, Callable[[], None]] = {
        "MultiNode": open_multi_node,
        "Preflight": open_preflight,
        "FindBatchSize": open_batch_size,
        "Benchmark": open_benchmark,
        "ShowError": lambda: window.run_bar.show_details(),  # another bar after a change of scale
        "ShowRun": show_run,
        "ShowLog": show_log,
        "ShowResult": show_result,
        "GenerateWithRun": generate_with_run,
        "ShowCustomSample": show_custom_sample,
        "ShowProblems": show_problems,
        "Annotate": annotate,
    }
    for name, action in requests.items():
        root.bind_all(f"<<{name}>>", lambda event, action=action: action())  # type: ignore[misc]
