"""Sample images during training, and what else happens when."""

from __future__ import annotations

import tkinter as tk

from app.curves.timeline import TimelineCard
from app.form.cards import Card
from app.form.item_list import ItemListSpec
from app.form.item_row import ItemContent
from app.form.setting_text import format_value
from app.sections.form_section import FormSection, first_line
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import card, text, wrap_within
from modules.config import Option
from modules.facts import all_facts

NO_SAMPLES = "The model family generates no images, so there is nothing to sample."
NEVER, EACH_EPOCH = "never", "1 epochs"  # as intervals are written in files
EMPTY = "No samples yet.\nSamples show what the model can generate during training."


class Section(FormSection):
    """The sample prompts, and how often images are generated."""

    name = "sampling"
    declared_in = ("Sampling",)
    items = "samples"
    item_cards = (
        Card("This sample", ("prompt", "negative_prompt", "reference", "enabled"), 1),
        Card("Generation", ("width", "height", "frames", "steps", "guidance_scale", "seed"), 1),
    )
    cards = (Card("Interval", ("sample_every",), 0),)

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, state)
        state.subscribe("family", self._changed, self)

    def build(self) -> None:
        self.no_samples = card(self.scroll.inside)
        note = text(self.no_samples, NO_SAMPLES, colour=theme.MUTED)
        wrap_within(note, self.no_samples)
        note.pack(padx=theme.px(16), pady=theme.px(16), anchor="w")
        self.columns.add(self.no_samples, 0)
        self.list = self.add_list(
            ItemListSpec(self.items, "enabled", "Samples", "Add a sample", EMPTY, describe, added=self._added)
        )
        super().build()
        self.timeline = TimelineCard(self.scroll.inside, self.state)
        self.columns.add(self.timeline.frame, 0)

    def show(self) -> None:
        self.timeline.forget()
        super().show()

    def refresh(self) -> None:
        super().refresh()
        self.timeline.refresh()

    def arrange(self) -> None:
        """For a family that generates no images: nothing but samples that are left over."""
        declaration = self.state.family.declaration
        draws = declaration is None or declaration.draws_samples
        hidden = {str(self.no_samples)} if draws else set[str]()
        if not draws and not self.list.items:
            hidden |= {str(self.list.frame), *(str(block.frame) for block in self.blocks)}
        if declaration is not None and declaration.brings_data:  # how much is known once it has been built
            hidden |= {str(self.timeline.frame)}
        hidden |= self.empty_cards()
        self.columns.arrange(lambda frame: str(frame) not in hidden)

    def wants(self, option: Option) -> bool:
        """A reference image and frames only for families that take them, or if one is set although they do not."""
        facts = all_facts().get(self.state.family.name)
        taken = {"reference": facts and facts.sample_images, "frames": facts and facts.clips}
        is_foreign = option.name in taken and not taken[option.name]
        if is_foreign and not any(str(each.get(option.name) or "").strip() for each in self.list.items):
            return False
        return super().wants(option)

    def _added(self) -> None:
        """Go to the prompt of the new sample, which is next to be typed.

        A sample that is never drawn is rarely what was meant.
        """
        if self.state.draft.get("sample_every") == NEVER:
            self.state.draft.set("sample_every", EACH_EPOCH)
            self.state.say("Samples are drawn every epoch: “Sample every” changes that.")
        self.after_idle(self._focus_prompt)

    def _focus_prompt(self) -> None:
        field = self.find(f"samples.{self.list.selected}.prompt")
        if field is not None:
            field.focus()

    def _changed(self) -> None:
        if self.shown:
            self.refresh()


def describe(sample: dict[str, object]) -> ItemContent:
    """The text of a sample in the list."""
    width, height = sample.get("width"), sample.get("height")
    size = f"{width} × {height}  ·  " if width and height else ""
    settings = f"{format_value(sample.get('steps'))} steps  ·  seed {format_value(sample.get('seed'))}"
    return ItemContent(first_line(sample.get("prompt"), "no prompt yet"), f"{size}{settings}")
