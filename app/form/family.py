"""The model family, by name or by the path of a Python file, and the methods that it offers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from app import look, texts
from app.controls import Button, popup_menu
from app.family import family_names
from app.form.line import NARROWEST, TextField
from app.form.menu import MenuField
from app.windows.chooser import choose


class FamilyField(TextField):
    """A line of text with the built-in families one click away."""

    width = NARROWEST

    def build(self) -> None:
        super().build()
        self.choose = Button(self.area, icon="down", on=self.on, command=self._open)
        self.choose.pack(side="right", padx=(4, 0), before=self.control)

    def enable(self, enabled: bool) -> None:
        super().enable(enabled)
        self.choose.configure(state="normal" if enabled else "disabled")

    def _open(self) -> None:
        menu = popup_menu(self.area)
        for name in family_names():
            menu.add_command(label=name, command=partial(self._take, name))
        menu.add_separator()
        menu.add_command(label=texts.FAMILY_FILE, command=self._browse)
        self.control.update_idletasks()
        menu.tk_popup(self.control.winfo_rootx(), self.control.winfo_rooty() + self.control.winfo_height() + look.px(2))

    def _browse(self) -> None:
        chosen = choose(self.area, "open", self.option.title, Path(), (".py",))
        if chosen:
            self._take(chosen)

    def _take(self, name: str) -> None:
        self.control.show(name)
        self.put(name)


class MethodField(MenuField):
    """Only the methods that the chosen family knows, once it has said which."""

    def refresh(self) -> None:
        family = self.state.draft.family
        known = family is not None and family.name == self.state.draft.get("family")
        methods = family.methods if family is not None and known else self.option.choices
        if methods != self.control.choices:
            self.control.offer(methods)
        super().refresh()
        chosen = self.state.draft.get(self.path)
        self.note(
            "" if chosen in methods else texts.METHOD_UNKNOWN.format(name=self.state.draft.get("family"), method=chosen)
        )
