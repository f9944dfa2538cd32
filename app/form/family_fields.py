"""Fields whose choices come from the model family: the family itself, the method, the submodules."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from app.form.choice_fields import MenuField, SuggestionField
from app.form.family_method import choose_family
from app.form.field import CONTROL_WIDTH, ControlField
from app.form.setting_text import choice_title
from app.widgets.inputs import Entry, Menu
from app.widgets.popover import PopupMenu
from app.windows.chooser import choose_path
from modules.config import in_words
from modules.config.family_about import family_about
from modules.facts import family_names


class FamilyField(SuggestionField):
    """A line of text, with a menu of the built-in families and a file chooser."""

    def suggestions(self) -> tuple[str, ...]:
        return tuple(family_names())

    def to_text(self, value: object) -> str:
        name = super().to_text(value)
        return family_about(name).title if name in family_names() else name

    def parse(self, typed: str) -> object:
        """A built-in family by its title or its name in files, in any case; any other text is the file of one."""
        words = typed.strip().casefold()
        known = (name for name in family_names() if words in (name, family_about(name).title.casefold()))
        return next(known, None) or super().parse(typed)

    def _left(self) -> None:
        self.control.show(self.to_text(self.state.draft.get(self.path)))

    def add_to(self, menu: PopupMenu) -> None:
        """By the names that people know; the settings' own names stand at the right."""
        chosen = self.state.draft.get(self.path)
        for name in self.suggestions():
            about = family_about(name)
            action = partial(choose_family, self.state, name)
            menu.add_command(about.title, action, accelerator=name, detail=about.line, is_chosen=name == chosen)
        menu.add_separator()
        detail = "A model of your own: docs/custom_models.md"
        menu.add_command("Custom Python file…", self.browse, icon="file", detail=detail)

    def browse(self) -> None:
        """Ask for the Python file of a custom family."""
        chosen = choose_path(self.area, "open", self.option.title, Path(), (".py",))
        if chosen:
            self.choose(chosen)


METHODS: Final = {
    "fine_tune": "Trains all weights of the model, or of the chosen submodules.",
    "lora": "Trains small matrices beside the frozen weights: little memory, a small file.",
    "embedding": "Trains a new word for a thing or a style: the smallest file.",
}


class MethodField(MenuField):
    """The methods of the chosen family; all methods until its declaration is loaded."""

    details = METHODS

    def refresh(self) -> None:
        family = self.state.draft.family
        is_loaded = family is not None and family.name == self.state.draft.get("family")
        methods = family.methods if family is not None and is_loaded else self.option.choices
        if methods != self.control.choices:
            self.control.set_choices(methods)
        super().refresh()
        chosen = self.state.draft.get(self.path)
        name = family_about(str(self.state.draft.get("family") or "")).title
        said = f"{name} does not support “{choice_title('method', str(chosen))}”."
        self.note("" if chosen in methods else said)


def part_title(name: str) -> str:
    """A submodule as its menu shows it: "U-Net", "Text encoder 2"."""
    return {"unet": "U-Net", "vae": "VAE"}.get(name) or in_words(name)


class SubmoduleField(ControlField):
    """A drop-down list of the family's submodules; a line of text until its declaration is loaded."""

    control: Entry | Menu

    def build(self) -> None:
        self.menu = Menu(self.area, (), self.put, bg=self.bg, width=CONTROL_WIDTH, names_values=True)
        self.line = Entry(self.area, lambda text: self.put(text, typing=True), bg=self.bg, width=CONTROL_WIDTH)
        self.control = self.line
        self.line.pack(side="left", fill="x", expand=True)

    def refresh(self) -> None:
        family = self.state.family.declaration
        if family is not None:
            self.menu.set_choices(family.parts, {name: part_title(name) for name in family.parts})
        wanted = self.line if family is None else self.menu
        if wanted is not self.control:
            self.control.pack_forget()
            self.control = wanted
            self.control.pack(side="left", fill="x", expand=True)
            self.control.show(self.to_text(self.state.draft.get(self.path)))
            self.control.mark(self.state.draft.fault_at(self.path) is not None)
            self.control.enable(self._active)
        super().refresh()
