"""Fields whose choices come from the model family: the family itself, the method, the submodules."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from app.form.choice_fields import MenuField
from app.form.field import CONTROL_WIDTH, ControlField
from app.form.text_fields import NARROWEST, TextField
from app.widgets import theme
from app.widgets.buttons import Button, popup_menu
from app.widgets.inputs import Entry, Menu
from app.windows.chooser import choose_path
from modules.config.family_files import family_names


class FamilyField(TextField):
    """A line of text, with a menu of the built-in families and a file chooser."""

    width = NARROWEST

    def build(self) -> None:
        super().build()
        self.choose = Button(self.area, icon="down", bg=self.bg, command=self._open)
        self.choose.pack(side="right", padx=(4, 0), before=self.control)

    def enable(self, enabled: bool) -> None:
        super().enable(enabled)
        self.choose.configure(state="normal" if enabled else "disabled")

    def _open(self) -> None:
        menu = popup_menu(self.area)
        for name in family_names():
            menu.add_command(label=name, command=partial(self._choose, name))
        menu.add_separator()
        menu.add_command(label="Custom Python file…", command=self._browse)
        self.control.update_idletasks()
        menu.tk_popup(
            self.control.winfo_rootx(), self.control.winfo_rooty() + self.control.winfo_height() + theme.px(2)
        )

    def _browse(self) -> None:
        chosen = choose_path(self.area, "open", self.option.title, Path(), (".py",))
        if chosen:
            self._choose(chosen)

    def _choose(self, name: str) -> None:
        self.control.show(name)
        self.put(name)


class MethodField(MenuField):
    """The methods of the chosen family; all methods until its declaration is loaded."""

    def refresh(self) -> None:
        family = self.state.draft.family
        is_loaded = family is not None and family.name == self.state.draft.get("family")
        methods = family.methods if family is not None and is_loaded else self.option.choices
        if methods != self.control.choices:
            self.control.set_choices(methods)
        super().refresh()
        chosen = self.state.draft.get(self.path)
        self.note("" if chosen in methods else f"{self.state.draft.get('family')} does not support {chosen}.")


class SubmoduleField(ControlField):
    """A drop-down list of the family's submodules; a line of text until its declaration is loaded."""

    control: Entry | Menu

    def build(self) -> None:
        self.menu = Menu(self.area, (), self.put, bg=self.bg, width=CONTROL_WIDTH)
        self.line = Entry(self.area, lambda text: self.put(text, typing=True), bg=self.bg, width=CONTROL_WIDTH)
        self.control = self.line
        self.line.pack(side="left", fill="x", expand=True)

    def refresh(self) -> None:
        family = self.state.family.declaration
        if family is not None:
            self.menu.set_choices(family.parts)
        wanted = self.line if family is None else self.menu
        if wanted is not self.control:
            self.control.pack_forget()
            self.control = wanted
            self.control.pack(side="left", fill="x", expand=True)
            self.control.show(self.to_text(self.state.draft.get(self.path)))
            self.control.mark(self.state.draft.fault_at(self.path) is not None)
            self.control.enable(self._active)
        super().refresh()
