"""What the search finds besides settings: pages, actions, runs and presets."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from app.home import current_folder
from app.monitor.run_list import RunList, RunSummary
from app.open_path import show_folder
from app.sections import SECTIONS
from app.shell.files import IMPORTS
from app.shell.keys import ShortcutTarget
from app.shell.run_buttons import help_text
from app.shell.search import Command
from app.widgets import theme
from app.windows.shortcuts import SHORTCUTS
from modules.config import preset_names
from modules.config.io.presets import OWN, preset_summary

_KEYS: Final = {meaning: keys.split("  ")[0] for _, group in SHORTCUTS for keys, meaning in group}
_MOST_RUNS: Final = 200
_MANY: Final = 2.0  # taken from the score of runs and presets
_TURN: Final = {"data": "turn_to", "monitor": "open_page", "tools": "open_page"}  # of sections with pages
_MODES: Final[dict[theme.Mode, str]] = {"light": "sun", "dark": "moon", "system": "system"}
_OF_RUN: Final = {  # button -> title, icon and other names
    "train": ("Train", "play", ("start",)),
    "enqueue": ("Add to queue", "plus", ()),
    "stop": ("Stop", "stop", ("end", "cancel", "pause")),
    "back_up": ("Back up", "backup", ("checkpoint",)),
    "sample": ("Sample", "image", ("generate samples now",)),
    "save": ("Save model", "save", ("export",)),
}


class Palette:
    """The commands of a window at this moment; `read_runs` finds the runs in a thread."""

    def __init__(self, window: ShortcutTarget) -> None:
        self._window, self._state = window, window.state_
        self._list = RunList()
        self._runs: list[RunSummary] = []

    def read_runs(self, done: Callable[[], object]) -> None:
        """Read the folders of runs again."""

        def read() -> list[RunSummary]:
            return self._list.scan_folders(folders, _MOST_RUNS)

        def found(runs: list[RunSummary]) -> None:
            self._runs = runs
            done()

        run = self._state.run
        folders = [] if run is None else [run.folder.path.parent]
        folders += [self._state.runs_dir.absolute()]
        self._state.background.run(read, found)

    def commands(self) -> list[Command]:
        """All, those first that are shown before anything is typed."""
        return [*self._of_run(), *self._of_window(), *self._places(), *self._of_runs(), *_presets(self._window)]

    def _of_run(self) -> Iterator[Command]:
        buttons, views = self._window.run_bar.buttons, self._state.views
        reasons, status = buttons.reasons(), buttons.status
        run = self._state.run
        resumes = help_text("resume", "", "" if run is None else run.folder.name, is_stopping=False)
        reason = "" if buttons.resume.winfo_manager() else "There is no run to resume."
        resume = Command("Resume", self._window.run_bar.press_resume, icon="refresh", detail=resumes, reason=reason)
        yield from () if reason else (resume,)  # the next thing to do, else one of the last
        for name, (title, icon, words) in _OF_RUN.items():
            button = getattr(buttons, name)
            detail = buttons.tooltip_text(button)
            yield Command(title, button.invoke, icon=icon, detail=detail, reason=reasons.get(name, ""), words=words)
        yield from (resume,) if reason else ()
        if run is None:
            return
        name = run.folder.name
        folder = partial(show_folder, self._state, run.folder.path, lambda reason: None)
        yield Command("Show result", views.result, icon="image", detail=f"Samples and files of {name}.")
        yield Command("Open run folder", folder, icon="folder", detail=str(run.folder.path))
        yield Command("Show log", views.log, icon="terminal", detail=f"The log of {name}.")
        if status.problem is not None:
            yield _keyed("Full error of the run", self._window.run_bar.show_details, "warning", status.problem.text)

    def _of_window(self) -> Iterator[Command]:
        window, files, views = self._window, self._window.files, self._state.views
        yield Command("Generate", views.generate, icon="generate", detail="Images with the model of the followed run.")
        yield _keyed("New settings", files.new, "file")
        yield _keyed("Open a config", files.choose, "open")
        yield Command("Import from another trainer", files.import_settings, icon="link", detail=IMPORTS)
        yield Command(
            "Folder of your files",
            files.choose_home,
            icon="folder",
            detail=f"Where runs and relative paths are: {current_folder()}",
            words=("home", "workspace", "runs folder"),
        )
        yield _keyed("Save", files.save, "save")
        yield _keyed("Save as", files.save_as, "save")
        yield Command("Save as preset", files.save_as_preset, icon="save", detail="It is then at the top of Presets.")
        yield _keyed("Undo", window.undo, "undo")
        yield _keyed("Redo", window.redo, "redo")
        yield _keyed("Next or previous error", partial(window.next_fault, 1), "warning")
        is_advanced = self._state.advanced
        level = "Simple settings" if is_advanced else "Advanced settings"
        yield _keyed(level, partial(window.set_advanced, not is_advanced), "presets", key="Simple or advanced")
        for mode, icon in _MODES.items():
            yield _keyed(
                f"{mode.capitalize()} theme",
                partial(window.set_mode, mode),
                icon,
                key="Light, dark or system",
                words=("colours", "mode", "appearance"),
            )
        for title, by in (("Larger", 1), ("Smaller", -1)):
            yield _keyed(title, partial(window.scale_by, by), "scale", key="Larger or smaller", words=("zoom", "size"))
        yield _keyed("100 %", partial(window.set_scale, 100), "scale")
        yield _keyed("Keyboard shortcuts", window.show_shortcuts, "keyboard", key="This list", words=("help",))
        yield Command(
            "Check before training",
            views.preflight,
            icon="check",
            detail="Devices, network, disks and data.",
            words=("preflight",),
        )
        yield Command(
            "Largest batch",
            views.batch_size,
            icon="multi_gpu",
            detail="Searches for it by trying.",
            words=("find batch size",),
        )
        yield Command(
            "Notifications",
            views.notifications,
            icon="bell",
            detail="What happens when a run ends: desktop, command, webhook.",
            words=("notify", "webhook", "alert"),
        )
        yield Command("Benchmark", views.benchmark, icon="chart", detail="These settings on 1 to all GPUs.")
        yield Command(
            "Run on Kubernetes",
            views.kubernetes,
            icon="multi_gpu",
            detail="Manifests, saved or applied with kubectl.",
            words=("cluster", "kubectl"),
        )
        yield Command(
            "Multiple machines",
            views.multi_node,
            icon="multi_gpu",
            detail="The lines that start or join them.",
            words=("nodes",),
        )

    def _places(self) -> Iterator[Command]:
        for section, (title, about) in SECTIONS.items():
            yield Command(title, partial(self._window.show_section, section), "Page", section, about)
            pages = importlib.import_module(f"app.sections.{section}").TABS if section in _TURN else {}
            for page, name in pages.items():
                yield Command(name, partial(self._open, section, page), "Page", section, f"In {title}.")

    def _open(self, section: str, page: str) -> None:
        self._window.show_section(section)
        getattr(self._window.sections[section], _TURN[section])(page)

    def _of_runs(self) -> Iterator[Command]:
        for run in self._runs:
            follow = partial(self._follow, run)
            detail = " · ".join(filter(None, (run.status.title, run.notes.line)))
            place = str(run.path)
            yield Command(run.name, follow, "Run", "monitor", detail, words=("follow",), penalty=_MANY, name=place)

    def _follow(self, run: RunSummary) -> None:
        self._state.actions.follow(run.path)
        self._state.views.run()


def _keyed(
    title: str, act: Callable[[], object], icon: str, detail: str = "", *, key: str = "", words: tuple[str, ...] = ()
) -> Command:
    """A command of the list of keys, where it is called `key`."""
    return Command(title, act, icon=icon, detail=detail or f"Key: {_KEYS[key or title]}.", words=words)


def _presets(window: ShortcutTarget) -> Iterator[Command]:
    for name in preset_names():
        about = preset_summary(name)
        act = partial(window.files.confirm_unsaved, partial(window.files.open_preset, name))
        title = about.title or name.removeprefix(f"{OWN}/")
        words = (name, about.family)
        yield Command(title, act, "Preset", "presets", about.about, words=words, penalty=_MANY, name=name)
