"""The window: sidebar, header, the section in sight, run bar."""

from __future__ import annotations

import importlib
import sys
import tkinter as tk
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import customtkinter as ctk

from app import look, texts
from app.appearance import follow_system
from app.closing import close_gently
from app.controls import Button, add_hint
from app.files import Files
from app.garbage import GarbageOnTkThread
from app.header import Header
from app.hint import Hint
from app.keys import bind_keys
from app.placement import Placement
from app.preferences import Preferences
from app.run_bar import RunBar
from app.scroll import enclosing, scroll_by_wheel
from app.sidebar import Sidebar, section_of
from app.state import AppState
from app.windows.faults import show_faults
from app.windows.shortcuts import show_shortcuts
from app.windows.welcome import show_welcome
from modules.config import TandemError

SMALLEST = (720, 480)
SWITCH_S = 0.001  # for so long a thread that reads files may hold up the window, instead of Python's 0.005
NARROW_BELOW = 900  # unscaled pixels of the window's width
MODES: tuple[look.Mode, ...] = ("system", "light", "dark")


class MainWindow(ctk.CTk):
    """Sections are made when they are first shown, so that the window is there at once."""

    def __init__(self, config_file: Path | None = None, run_folder: Path | None = None) -> None:
        sys.setswitchinterval(SWITCH_S)
        self.preferences = Preferences.load()
        ctk.set_appearance_mode("light" if self.preferences.mode == "light" else "dark")  # ends its own polling
        look.set_scale(self.preferences.scale)
        super().__init__(fg_color=look.WINDOW, className="Tandem")
        self.title(texts.APP)
        self.report_callback_exception = self._defect
        self.state_ = AppState(self, self.preferences)
        self.files = Files(self, self.state_)
        self.sections: dict[str, Any] = {}
        self.section = ""
        self._width = 0
        self._run_folder = run_folder
        self._placement = Placement(self, self.preferences, SMALLEST)
        self._stop_following = follow_system(self, self.preferences, self._mode_changed)
        self._build()
        bind_keys(self)
        scroll_by_wheel(self)
        self.bind_all("<FocusIn>", _keep_in_sight, add="+")
        self.bind("<Configure>", self._resized, add="+")
        self.bind_all("<<MultiNode>>", lambda event: self.open_multi_node())
        self.bind_all("<<Preflight>>", lambda event: self.open_preflight())
        self.protocol("WM_DELETE_WINDOW", self.close)
        self.state_.subscribe("jump", self._jump)
        self.state_.subscribe("draft", self._retitle)
        self.state_.subscribe("missing", lambda: show_faults(self, self.state_, texts.CANNOT_TRAIN))
        self._garbage = GarbageOnTkThread(self)
        self._begin(config_file)

    # -- what people do

    def show_section(self, name: str) -> None:
        """Bring a section into sight."""
        if name == self.section:
            return
        Hint.of(self).hide()
        former = self.sections.get(self.section)
        chosen = self._section(name)
        self.section = self.preferences.section = name
        chosen.grid(row=1, column=1, sticky="nsew")
        chosen.show()
        if former is not None:
            former.grid_remove()
            former.hide()
        self.sidebar.select(name)

    def set_advanced(self, advanced: bool) -> None:
        """Show all settings, or the common ones."""
        if advanced != self.state_.advanced:
            self.state_.advanced = self.preferences.advanced = advanced
            self.state_.notify("draft")

    def set_mode(self, mode: look.Mode) -> None:
        """Light, dark, or as the system."""
        self.preferences.mode = mode
        self._stop_following()
        self._stop_following = follow_system(self, self.preferences, self._mode_changed)
        self._label_bottom()

    def next_mode(self) -> None:
        self.set_mode(MODES[(MODES.index(self.preferences.mode) + 1) % len(MODES)])

    def set_scale(self, percent: int) -> None:
        """Make everything larger or smaller: all is built anew, the draft and the run stay."""
        if percent == self.preferences.scale:
            return
        self.preferences.scale = percent
        look.set_scale(percent)
        for child in self.winfo_children():
            child.destroy()
        self.sections.clear()
        name, self.section, self._width = self.section, "", 0
        self._build()
        self.show_section(name)
        self._fit(self.winfo_width())

    def scale_by(self, steps: int) -> None:
        place = look.SCALES.index(self.preferences.scale) + steps
        self.set_scale(look.SCALES[min(max(place, 0), len(look.SCALES) - 1)])

    def open_multi_node(self) -> None:
        """The commands for several machines."""
        from app.windows.multi_node import MultiNodeWindow

        MultiNodeWindow(self).show()

    def open_preflight(self) -> None:
        """Try out devices, network and disks."""
        from app.windows.preflight import PreflightWindow

        PreflightWindow(self).show()

    def undo(self) -> None:
        self._travelled(self.state_.draft.undo())

    def redo(self) -> None:
        self._travelled(self.state_.draft.redo())

    def save(self) -> object:
        return self.files.save()

    def open_files(self) -> None:
        self.files.menu_below(self.header.open)

    def open_presets(self) -> None:
        self.files.presets_below(self.header.presets)

    def open_save_menu(self) -> None:
        self.files.save_menu_below(self.header.save_more)

    def next_fault(self, by: int) -> None:
        """Go to the next thing that is wrong."""
        faults = self.state_.draft.faults
        if faults:
            self._fault = (getattr(self, "_fault", -1 if by > 0 else 0) + by) % len(faults)
            self.state_.jump_to(faults[self._fault].path)

    def show_shortcuts(self) -> None:
        show_shortcuts(self)

    def close(self) -> None:
        """Ask about unsaved changes and a live run, then go."""
        self.files.when_safe(self._close_run)

    def destroy(self) -> None:
        self._placement.keep()
        self.preferences.save()
        self._stop_following()
        self._garbage.stop()
        for job in self.tk.splitlist(self.tk.call("after", "info")):
            self.tk.call("after", "cancel", job)  # customtkinter's clocks, too: nothing may come up any more
        super().destroy()

    def _set_scaling(self, *scalings: float) -> None:
        """customtkinter would give the window another size, and hold it there for a second."""

    # -- inside

    def _begin(self, config_file: Path | None) -> None:
        if config_file is not None:
            self.after_idle(self.files.open, config_file)
        self.show_section(self.preferences.section if self.preferences.section in texts.SECTIONS else "model")
        if not self.preferences.welcomed and config_file is None and self._run_folder is None:
            self.after(50, lambda: show_welcome(self))
        self._retitle()
        self.after_idle(self.run_bar.actions.attach, self._run_folder)

    def _build(self) -> None:
        self.grid_columnconfigure(1, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self.sidebar = Sidebar(self, self.state_, self.show_section)
        self.sidebar.grid(row=0, column=0, rowspan=2, sticky="ns")
        self.header = Header(self, self.state_, self)
        self.header.grid(row=0, column=1, sticky="ew")
        self.run_bar = RunBar(self, self.state_)
        self.run_bar.grid(row=2, column=0, columnspan=2, sticky="ew")
        bottom = self.sidebar.bottom
        self._mode_button = Button(bottom, icon="system", style="quiet", on=look.SIDEBAR, command=self.next_mode)
        self._scale_button = Button(bottom, icon="scale", style="quiet", on=look.SIDEBAR, command=self._open_scales)
        self._help_button = Button(bottom, icon="keyboard", style="quiet", on=look.SIDEBAR, command=self.show_shortcuts)
        add_hint(self._mode_button, lambda: texts.LOOK.format(mode=texts.MODES[self.preferences.mode]))
        add_hint(self._scale_button, lambda: texts.SCALE.format(scale=self.preferences.scale))
        add_hint(self._help_button, texts.HELP)
        self._label_bottom()

    def _label_bottom(self) -> None:
        from app import icons

        icon = {"system": "system", "light": "sun", "dark": "moon"}[self.preferences.mode]
        self._mode_button.configure(image=icons.ctk_image(icon, 18, look.MUTED))
        for button in (self._mode_button, self._scale_button, self._help_button):
            button.pack_forget()
            button.pack(side="top" if self._is_narrow() else "left", padx=2, pady=2)

    def _section(self, name: str) -> Any:
        if name not in self.sections:
            module = importlib.import_module(f"app.sections.{name}")
            self.sections[name] = module.Section(self, self.state_)
            self.run_bar.lift()  # last in the focus order
        return self.sections[name]

    def _jump(self) -> None:
        path = self.state_.jump_target
        name = "model" if path.startswith("family_options") else section_of(path)
        self.show_section(name)
        self.sections[name].jump_to(path)

    def _travelled(self, path: str | None) -> None:
        """After undo and redo: show where something changed."""
        if path is not None:
            self.state_.jump_to(path)

    def _resized(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self and event.width != self._width:
            self._width = event.width
            self._fit(event.width)

    def _fit(self, width: int) -> None:
        self.sidebar.narrow(width < look.px(NARROW_BELOW))
        self._label_bottom()

    def _is_narrow(self) -> bool:
        return bool(self.winfo_width() < look.px(NARROW_BELOW))

    def _open_scales(self) -> None:
        from app.controls import popup_menu

        menu = popup_menu(self)
        for percent in look.SCALES:
            mark = "✓  " if percent == self.preferences.scale else "     "
            menu.add_command(label=f"{mark}{percent} %", command=partial(self.set_scale, percent))
        button = self._scale_button
        menu.tk_popup(button.winfo_rootx() + button.winfo_width(), button.winfo_rooty() - look.px(60))

    def _retitle(self) -> None:
        draft = self.state_.draft
        name = draft.name or texts.UNTITLED
        self.title(f"{'● ' if draft.is_dirty else ''}{name} - {texts.APP}")

    def _mode_changed(self, dark: bool) -> None:
        look.set_dark(dark)
        self.state_.notify("look")

    def _close_run(self) -> None:
        close_gently(self, self.state_, self.destroy)

    def _defect(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """A defect in a callback: told in one line in the run bar, in full on the terminal; the window goes on."""
        if isinstance(error, TandemError):
            self.run_bar.say(str(error))
            return
        traceback.print_exception(kind, error, trace)
        self.run_bar.say(texts.SOMETHING_WRONG.format(error=f"{kind.__name__}: {error}"))


def _keep_in_sight(event: tk.Event[tk.Misc]) -> None:
    """Whatever gets the focus is scrolled into view."""
    area = enclosing(event.widget)
    if area is not None and event.widget is not area.canvas:
        area.see(event.widget)
