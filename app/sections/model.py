"""What is trained: family, base model, method, and the options of the family."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.curves.memory_card import MemoryCard
from app.curves.noise_card import NoiseCard
from app.family_declaration import FamilyDeclaration
from app.form.cards import GAP, Card
from app.form.family_chooser import FamilyChooser
from app.form.family_fields import FamilyField, MethodField
from app.form.field import Field
from app.form.hardware_fit import HardwareFit, hardware_fit
from app.form.path_fields import BaseModelField
from app.form.setting_text import with_titles
from app.sections.form_section import FormSection, options_at
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Button, add_tooltip, card, frame, text, wrap_within
from app.windows.allow_code import ask_for_code
from modules.config import Option, TandemError
from modules.config.family_about import FamilyAbout, family_about
from modules.config.imported_code import read_with_imports
from modules.config.io.presets import PresetSummary
from modules.facts import family_names

_TALL_ENOUGH = 640  # unscaled height of a page that shows all families and the base model below them

FIELD_CLASSES: dict[str, type[Field]] = {"family": FamilyField, "base_model": BaseModelField, "method": MethodField}
FACTS = ("Size", "Memory", "Licence")


class Section(FormSection):
    """Family, base model and method; the family's options appear once its declaration is loaded."""

    name = "model"
    declared_in = ("Model",)
    cards = (Card("Model", ("family", "base_model", "method"), 0),)

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        self._shown: tuple[str, str, FamilyDeclaration | None] = ("", "", None)
        self._was_offered = False
        self._fit: HardwareFit | None = None
        super().__init__(parent, state)
        state.subscribe("family", self._changed, self)
        state.subscribe("place", self._read_fit, self)
        self._read_fit()
        self.bind("<Configure>", lambda event: self._offer_families(event.height), add="+")

    def build(self) -> None:
        self.families = FamilyChooser(self.scroll, self.state, self._browse)
        self.families.frame.grid(row=0, column=0, columnspan=2, sticky="ew", padx=GAP / 2, pady=(0, GAP))
        super().build()
        self.family_card = FamilyCard(self.scroll.inside, self._apply)
        self.columns.add(self.family_card.frame, 1)
        self._note = card(self.scroll.inside)
        self._status = text(self._note, "", colour=theme.MUTED)
        wrap_within(self._status, self._note)
        self._status.pack(padx=theme.px(16), pady=theme.px(16), anchor="w")
        self.review = Button(self._note, "Review the file…", self._review, bg=theme.CARD)
        self.again = Button(self._note, "Try again", self.state.family.retry, bg=theme.CARD)
        self.columns.add(self._note, 1)
        self._common_card = self.add_card("", [], 1)
        self.noise = NoiseCard(self.scroll.inside, self.state)
        self.columns.add(self.noise.frame, 1)
        self._advanced_card = self.add_card("", [], 0)
        self._free_card = self.add_card("", options_at(["family_options"]), 1)
        self.memory = MemoryCard(self.scroll.inside, self.state)
        self.columns.add(self.memory.frame, 0)

    def field_class(self, option: Option) -> type[Field]:
        return FIELD_CLASSES.get(option.path) or super().field_class(option)

    def _offer_families(self, height: int) -> None:
        """Show all families at first if nothing has been chosen and the base model stays in sight below them."""
        draft = self.state.draft
        if self._was_offered or not self.shown or height <= 1:
            return
        self._was_offered = True
        if height >= theme.px(_TALL_ENOUGH) and not (draft.name or draft.get("base_model")):
            self.families.fold()

    def refresh(self) -> None:
        self._show_family()
        self._propose_preset()
        self.families.refresh()
        super().refresh()
        self.noise.refresh()
        self.memory.refresh()

    def hide(self) -> None:
        super().hide()
        self.noise.hide()
        self.memory.hide()

    def jump_to(self, path: str) -> None:
        self._show_family()
        super().jump_to(path)

    def arrange(self) -> None:
        known = self.state.family.declaration is not None
        empty = set[str]() if known else {str(self._common_card.frame), str(self._advanced_card.frame)}
        if self._status.cget("text") == "":
            empty.add(str(self._note))
        if self.state.family.name not in family_names():
            empty.add(str(self.family_card.frame))
        if not (known and self.noise.is_wanted):
            empty.add(str(self.noise.frame))
        empty |= self.empty_cards()
        self.columns.arrange(lambda frame: str(frame) not in empty)

    def wants(self, option: Option) -> bool:
        if option.path == "family_options":
            return bool(self.state.family.error) and not self.state.family.not_allowed
        return super().wants(option)

    def _browse(self) -> None:
        field = self.find("family")
        if isinstance(field, FamilyField):
            field.browse()

    def _read_fit(self) -> None:
        """Say which models fit the devices where Train starts the run."""
        machine = self.state.place.machine
        self.state.background.run(lambda: hardware_fit(machine), self._fit_known)

    def _fit_known(self, fit: HardwareFit) -> None:
        self._fit = fit
        self.families.show_fit(fit)
        self._propose_preset()

    def _propose_preset(self) -> None:
        """The preset that is made for what is here, unless its settings apply already."""
        if self._fit is None:
            return
        draft = self.state.draft
        found = self._fit.preset(*(str(draft.get(path) or "") for path in ("family", "method", "base_model")))
        self.family_card.propose(None if found is None or draft.follows(found.name) else found, self._fit)

    def _apply(self, preset: PresetSummary) -> None:
        self.state.draft.apply_preset(preset.name)
        self.state.say(f"{preset.title}: set. Your data, prompts and machines stay. Ctrl+Z undoes it.")

    def _review(self) -> None:
        with suppress(TandemError):  # a file that cannot be read; the family's status says why
            files = read_with_imports(Path(self.state.family.name))
            ask_for_code(self, "model family", files, self.state.family.allow)

    def _show_family(self) -> None:
        """Show the options of the family, or why there are none."""
        name, error, declaration = self.state.family.name, self.state.family.error, self.state.family.declaration
        if (name, error, declaration) == self._shown:
            return
        self._shown = name, error, declaration
        about = family_about(name)
        self.family_card.show(about)
        name = about.title
        if self.state.family.not_allowed:
            self.review.pack(padx=theme.px(16), pady=(0, theme.px(16)), anchor="w")
        else:
            self.review.pack_forget()
        if error and not self.state.family.not_allowed:
            self.again.pack(padx=theme.px(16), pady=(0, theme.px(16)), anchor="w")
        else:
            self.again.pack_forget()
        title = f"Options of {name}"
        if declaration is not None:
            self._common_card.replace_options(title, [option for option in declaration.options if not option.advanced])
            more = f"More options of {name}"
            self._advanced_card.replace_options(more, [option for option in declaration.options if option.advanced])
            self.show_later(self._common_card, self._advanced_card)
            none = "" if declaration.options else f"{name} has no extra options."
            said = "" if declaration.name in family_names() else declaration.about
            self._status.configure(text=said or none)
        elif self.state.family.not_allowed:
            self._status.configure(text=f"{with_titles(error)}.")
        elif error:
            self._free_card.heading.configure(text=title)
            self._status.configure(
                text=f"{with_titles(error)}\nYou can type the options below; they are checked when training starts."
            )
        else:
            self._status.configure(text=f"Loading the options of {name}…")


class FamilyCard:
    """The card `frame`; `show` and `propose` fill it. `apply` gets the proposed preset."""

    def __init__(self, parent: tk.Misc, apply: Callable[[PresetSummary], object]) -> None:
        self.frame = card(parent)
        head = frame(self.frame)
        head.pack(fill="x", padx=theme.px(16), pady=(theme.px(14), theme.px(8)))
        icons.label(head, "model", 30, theme.ACCENT_TEXT, theme.CARD).pack(side="left", padx=(0, theme.px(12)))
        names = frame(head)
        names.pack(side="left", fill="x", expand=True)
        self.title = text(names, "", "heading")
        self.title.pack(anchor="w")
        self.maker = text(names, "", "small", colour=theme.MUTED)
        self.maker.pack(anchor="w")
        self._facts = frame(self.frame)
        self._facts.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(12)))
        self._facts.grid_columnconfigure(1, weight=1)
        self.labels = [text(self._facts, title, colour=theme.MUTED) for title in FACTS]
        self.values = [text(self._facts, "") for _ in FACTS]
        for row, label in enumerate(self.labels):
            label.grid(row=row, column=0, sticky="nw", padx=(0, theme.px(16)), pady=theme.px(2))
        for value in self.values:
            wrap_within(value, self.frame, 120)
        self.text = text(self._facts, "")
        wrap_within(self.text, self.frame)
        self._preset_label = text(self._facts, "Preset", colour=theme.MUTED)
        self._preset: PresetSummary | None = None
        self.preset_button = Button(
            self._facts, "", lambda: self._preset and apply(self._preset), icon="presets", bg=theme.CARD
        )
        add_tooltip(self.preset_button, lambda: self._preset.about if self._preset else "")

    def show(self, about: FamilyAbout) -> None:
        """Show another family."""
        self.title.configure(text=about.title)
        self.maker.configure(text=f"{about.maker}  ·  {about.name}" if about.maker else about.name)
        contents = (
            (f"{about.size}, {about.weights} in bf16", about.memory, about.licence) if about.weights else ("",) * 3
        )
        for row, (label, value, content) in enumerate(zip(self.labels, self.values, contents, strict=True)):
            value.configure(text=content)
            for column, each in enumerate((label, value)):
                if content:
                    each.grid(row=row, column=column, sticky="nw", pady=theme.px(2))
                else:
                    each.grid_remove()
        self.text.configure(text=about.text)
        if about.text:
            self.text.grid(row=len(FACTS), column=0, columnspan=2, sticky="w")
        else:
            self.text.grid_remove()

    def propose(self, preset: PresetSummary | None, fit: HardwareFit) -> None:
        """Show a button that opens this preset, or none; `fit` says how much memory is there."""
        self._preset = preset
        for column, each in enumerate((self._preset_label, self.preset_button)):
            if preset is None:
                each.grid_remove()
            else:
                each.grid(row=len(FACTS) + 1, column=column, sticky="w", pady=theme.px(6))
        if preset is not None:
            is_larger = 0 < fit.gpu_gib < preset.memory_gb
            less = f" ({fit.whose} GPU has {fit.gpu_gib})" if is_larger else ""
            self.preset_button.configure(text=f"{preset.title}{less}")
