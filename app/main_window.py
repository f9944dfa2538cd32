"""The main window: sidebar, header, current section, run bar."""

from __future__ import annotations

import importlib
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from app.form.setting_text import with_titles
from app.gc import TkThreadCollector
from app.preferences import Preferences
from app.runs.actions import RunActions
from app.runs.queue_watch import QueueWatch
from app.runs.status import Status
from app.sections import SECTIONS
from app.sections.places import in_order, section_of
from app.shell.closing import confirm_close
from app.shell.files import Files
from app.shell.header import Header
from app.shell.keys import bind_keys
from app.shell.palette import Palette
from app.shell.prebuild import prepare_sections
from app.shell.run_bar import RunBar
from app.shell.session import Session
from app.shell.sidebar import Sidebar
from app.shell.views import Views
from app.shell.window_geometry import WindowGeometry
from app.slices import each
from app.state import AppState
from app.toolkit import ctk
from app.widgets import theme
from app.widgets.appearance import follow_system
from app.widgets.buttons import Button, add_tooltip
from app.widgets.curtain import Curtain
from app.widgets.own_events import bind_own
from app.widgets.scroll import scroll_by_wheel, scroll_to_focus
from app.widgets.tooltip import Tooltip
from app.windows.dialog import is_opening, open_dialogs, raise_modal
from app.windows.faults import show_faults
from app.windows.shortcuts import show_shortcuts
from app.windows.welcome import show_welcome
from modules.config import TandemError
from modules.run.notification import show_on_desktop

SMALLEST = (720, 480)
SWITCH_S = 0.001  # how long a background thread may hold up the window; Python's default is 0.005
_WELCOME_MS = 50
NARROW_BELOW = 900  # unscaled pixels of the window's width
MODES: tuple[theme.Mode, ...] = ("system", "light", "dark")


class MainWindow(ctk.CTk):
    """Sections are built when first shown, so that the window opens quickly."""

    def __init__(
        self, config_file: Path | None = None, run_folder: Path | None = None, *, keeps_session: bool = False
    ) -> None:
        """Opens `config_file`, or with `keeps_session` what was open last; shows `run_folder`, or the last run."""
        sys.setswitchinterval(SWITCH_S)
        self._collector = TkThreadCollector()
        self.preferences = Preferences.load()
        ctk.set_appearance_mode(
            "light" if self.preferences.mode == "light" else "dark"
        )  # stops customtkinter's own polling
        theme.set_scale(self.preferences.scale)
        super().__init__(fg_color=theme.WINDOW, className="Tandem")
        self.title("Tandem")
        self.report_callback_exception = self._report_bug
        self.state_ = AppState(self, self.preferences)
        self.files = self.state_.files = Files(self, self.state_)
        self.actions = self.state_.actions = RunActions(self, self.state_)
        self.state_.queue_watch = QueueWatch(self.state_)
        self.state_.views = Views(self, self, self.state_)
        self.palette = Palette(self)
        self._session = Session(self, self.state_) if keeps_session else None
        self.sections: dict[str, Any] = {}
        self.section = ""
        self._width = 0
        self._news = ""  # the end of a run, in the title until somebody looks
        self._run_folder = run_folder and run_folder.absolute()  # the session may bring another current folder
        self._window_geometry = WindowGeometry(
            self, self.preferences, SMALLEST, is_second=bool(self.state_.second_window)
        )
        self._stop_following = follow_system(self, self.preferences, self._mode_changed)
        self._build()
        bind_keys(self, self)
        scroll_by_wheel(self)
        scroll_to_focus(self)
        self.unbind("<Configure>")  # of customtkinter, which only needs it to scale the window
        bind_own(self, "<Configure>", self._resized)
        bind_own(self, "<FocusIn>", self._look_outside)
        self.protocol("WM_DELETE_WINDOW", self.close)
        self.state_.subscribe("jump", self._jump)
        self.state_.subscribe("draft", self._update_title)
        self.state_.subscribe("invalid", lambda: show_faults(self, self.state_, "Training cannot start yet."))
        self._collector.start(self)
        self._open_initial(config_file)
        self._curtain = Curtain(self, theme.WINDOW)
        self._prepare_sections()

    def show_section(self, name: str) -> None:
        """Show a section."""
        if name == self.section:
            return
        Tooltip.of(self).hide()
        previous = self.sections.get(self.section)
        section = self._section(name)
        self.section = self.preferences.section = name
        section.grid(row=1, column=1, sticky="nsew")
        section.show()
        if previous is not None:
            previous.grid_remove()
            previous.hide()
        self.sidebar.select(name)
        self.state_.notify("page")

    def set_advanced(self, advanced: bool) -> None:
        """Show all settings, or only the common ones."""
        if advanced != self.state_.advanced:
            self.state_.advanced = self.preferences.advanced = advanced
            self.state_.notify("draft")

    def set_mode(self, mode: theme.Mode) -> None:
        """Set the theme: light, dark, or follow the system."""
        self.preferences.mode = mode
        self._stop_following()
        self._stop_following = follow_system(self, self.preferences, self._mode_changed)
        self._label_bottom()
        self.preferences.save()

    def next_mode(self) -> None:
        self.set_mode(MODES[(MODES.index(self.preferences.mode) + 1) % len(MODES)])

    def set_scale(self, percent: int) -> None:
        """Scale the whole window: everything is rebuilt, what is in sight first; only open dialogs would be lost."""
        if percent == self.preferences.scale or is_opening(self):
            return
        if titles := open_dialogs(self):
            self.state_.say(f"Close “{titles[-1]}” first: a change of size would end it.")
            return
        self.preferences.scale = percent
        self.sections[self.section].hide()  # which saves what is being typed
        hidden = self._hidden_sections()
        for child in self.winfo_children():
            if child not in hidden:
                child.destroy()
        self.state_.slices.soon(each(hidden, lambda section: section.destroy()))
        theme.set_scale(percent)  # now: customtkinter would scale every widget that exists
        self.sections.clear()
        name, self.section, self._width = self.section, "", 0
        self._build()
        self.show_section(name)
        self._fit(self.winfo_width())
        self._prepare_sections()

    def scale_by(self, steps: int) -> None:
        place = theme.SCALES.index(self.preferences.scale) + steps
        self.set_scale(theme.SCALES[min(max(place, 0), len(theme.SCALES) - 1)])

    def undo(self) -> None:
        self._jump_to_change(self.state_.draft.undo())

    def redo(self) -> None:
        self._jump_to_change(self.state_.draft.redo())

    def save(self) -> object:
        return self.files.save()

    def open_files(self) -> None:
        self.files.show_open_menu(self.header.overflow.place_of(self.header.open))

    def open_presets(self) -> None:
        self.files.show_presets_menu(self.header.overflow.place_of(self.header.presets))

    def open_save_menu(self) -> None:
        self.files.show_save_menu(self.header.overflow.place_of(self.header.save_more))

    def next_fault(self, by: int) -> None:
        """Jump to the next or previous error."""
        faults = in_order(self.state_.draft.faults, self.state_.draft.family_options)
        if paths := list(dict.fromkeys(fault.path for fault in faults)):
            before = self.state_.jump_target
            place = paths.index(before) if before in paths else -1 if by > 0 else 0
            self.state_.jump_to(paths[(place + by) % len(paths)])

    def show_shortcuts(self) -> None:
        show_shortcuts(self)

    def close(self) -> None:
        """Ask about unsaved changes and an active run, then close; a dialog that is open is answered first."""
        if not raise_modal(self):
            self.files.confirm_unsaved(lambda: confirm_close(self, self.state_, self.destroy))

    def destroy(self) -> None:
        if found := self.sections.get(self.section):  # else the window has failed to open
            found.hide()
        if self._session is not None:
            self._session.close()
        self._window_geometry.save()
        self.preferences.save()
        self._stop_following()
        self._collector.stop()
        self.state_.close_jobs()
        for job in self.tk.splitlist(self.tk.call("after", "info")):
            self.tk.call("after", "cancel", job)  # customtkinter's timers, too: no callback may fire any more
        super().destroy()

    def _set_scaling(self, *scalings: float) -> None:
        """Do nothing: customtkinter would resize the window and lock its size for a second."""

    def _open_initial(self, config_file: Path | None) -> None:
        if config_file is not None:
            self.after_idle(self.files.open, config_file)
        elif self._session is not None and (message := self._session.restore()):
            self.run_bar.show_message(message)
        if self._session is not None:
            self._session.follow(stays=config_file is not None)
        self.show_section(self.preferences.section if self.preferences.section in SECTIONS else "model")
        if not self.preferences.welcomed and config_file is None and self._run_folder is None:
            self.after(_WELCOME_MS, self._welcome)
        self._update_title()
        self.after_idle(self.actions.attach, self._run_folder)

    def _welcome(self) -> None:
        """Once the page behind it is complete, whose drawing would delay its texts."""
        if self._curtain.winfo_exists() or self.state_.slices.is_busy:
            self.after(_WELCOME_MS, self._welcome)
        else:
            show_welcome(self, self.state_, self.files, self.open_presets)

    def _build(self) -> None:
        self.grid_columnconfigure(1, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self.sidebar = Sidebar(self, self.state_, self.show_section)
        self.sidebar.grid(row=0, column=0, rowspan=2, sticky="ns")
        self.header = Header(self, self.state_, self)
        self.header.grid(row=0, column=1, sticky="ew")
        self.run_bar = RunBar(self, self.state_, self.actions, self._run_ended)
        self.run_bar.grid(row=2, column=0, columnspan=2, sticky="ew")
        bottom = self.sidebar.bottom
        self._mode_button = Button(bottom, icon="system", style="quiet", bg=theme.SIDEBAR, command=self.next_mode)
        self._scale_button = Button(bottom, icon="scale", style="quiet", bg=theme.SIDEBAR, command=self._open_scales)
        self._bell_button = Button(
            bottom, icon="bell", style="quiet", bg=theme.SIDEBAR, command=lambda: self.state_.views.notifications()
        )
        self._help_button = Button(
            bottom, icon="keyboard", style="quiet", bg=theme.SIDEBAR, command=self.show_shortcuts
        )
        add_tooltip(self._mode_button, lambda: f"Theme: {self.preferences.mode}")
        add_tooltip(self._scale_button, lambda: f"Size: {self.preferences.scale} %")
        add_tooltip(self._bell_button, "Notifications when a run ends")
        add_tooltip(self._help_button, "Keyboard shortcuts (F1)")
        below = {
            self._scale_button: "Size",
            self._mode_button: "Theme",
            self._bell_button: "Notifications",
            self._help_button: "Keyboard shortcuts",
        }
        self.sidebar.set_below(below)  # the first of them is the way back to a smaller size
        self._label_bottom()

    def _label_bottom(self) -> None:
        icon = {"system": "system", "light": "sun", "dark": "moon"}[self.preferences.mode]
        self._mode_button.configure(icon=icon, icon_color=theme.MUTED)

    def _section(self, name: str) -> Any:
        if name not in self.sections:
            module = importlib.import_module(f"app.sections.{name}")
            self.sections[name] = module.Section(self, self.state_)
            self.run_bar.lift()  # keeps it last in the focus order
        return self.sections[name]

    def _prepare_sections(self) -> None:
        """Build the sections that have not been visited, while the window is left alone."""
        steps = prepare_sections(list(SECTIONS), self.sections, self._section, self.state_.background)
        self.state_.slices.in_quiet_moments(steps)

    def _jump(self) -> None:
        path = self.state_.jump_target
        name = "model" if path.startswith("family_options") else section_of(path)
        self.show_section(name)
        self.sections[name].jump_to(path)

    def _look_outside(self) -> None:
        """Another program may have changed what is shown."""
        if self._news:
            self._news = ""
            self._update_title()
        self.files.look_outside()
        if look := getattr(self.sections.get(self.section), "look_outside", None):
            look()

    def _jump_to_change(self, path: str | None) -> None:
        """After undo or redo, show the setting that changed."""
        if path is not None:
            self.state_.jump_to(path)

    def _resized(self) -> None:
        width = self.winfo_width()
        if width != self._width:
            self._width = width
            self._fit(width)

    def _fit(self, width: int) -> None:
        self.sidebar.narrow(width < theme.px(NARROW_BELOW))

    def _open_scales(self) -> None:
        from app.widgets.buttons import popup_menu

        menu = popup_menu(self)
        for percent in theme.SCALES:
            is_chosen = percent == self.preferences.scale
            menu.add_command(f"{percent} %", partial(self.set_scale, percent), is_chosen=is_chosen)
        menu.open_below(self._scale_button)

    def _update_title(self) -> None:
        draft = self.state_.draft
        second = " (second window)" if self.state_.second_window else ""
        self.title(f"{self._news}{'● ' if draft.is_dirty else ''}{draft.title} - Tandem{second}")

    def _run_ended(self, name: str, status: Status) -> None:
        """Say it where the user is, if that is not this window."""
        self.bell()
        if self.focus_displayof() is not None:
            return
        self._news = f"{name}: {status.title} - "
        self._update_title()
        if self.preferences.notifies:
            why = "" if status.problem is None else status.problem.text.split("\n")[0]
            told = partial(show_on_desktop, f"{name}: {status.title}", with_titles(why) or status.detail)
            self.state_.background.run(told, lambda nothing: None)

    def _mode_changed(self, dark: bool) -> None:
        hidden = self._hidden_sections()
        theme.set_dark(dark)
        theme.recolour(self, but=hidden)
        self.state_.slices.soon(each(hidden, theme.recolour))
        self.state_.notify("theme")

    def _hidden_sections(self) -> list[Any]:
        return [section for name, section in self.sections.items() if name != self.section]

    def _report_bug(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Report a bug in a callback: one line in the run bar, the traceback on the terminal. The window continues."""
        if isinstance(error, TandemError):
            self.run_bar.show_message(with_titles(str(error)))
        elif isinstance(error, OSError):  # a full disk, a folder that may not be read
            self.run_bar.show_message(f"{error.strerror or error}: {error.filename or 'a file'}")
        else:
            traceback.print_exception(kind, error, trace)
            self.run_bar.show_message(f"{kind.__name__}: {error}: a bug in the window; training continues.")
