"""Settings that suit the images, method and hardware, each with its reason, and a button that takes them over."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from app.curves.memory_card import MemoryProgram, memory_answer
from app.form.setting_text import display_value
from app.place import planned_world_size
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import frame, text
from app.widgets.ellipsis import fit
from app.windows.dialog import Dialog
from modules.config import TrainConfig, find_option
from modules.run.suggestions import BatchMemory, ConceptData, Suggestion, suggest, with_suggestions

_ABOUT: Final = "Rules of thumb for these images, this method and this hardware. One Undo takes all of them back."
_COMPUTING: Final = "Computing how many images fit into the memory…"
_UNKNOWN: Final = "How many images fit is not known before the model is loaded: Multi-GPU, Find the largest batch."
_NONE: Final = "No image that is trained on has been found."
_COLUMN, _GAP, _REASON, _EDGE = 170, 20, 380, 30  # unscaled pixels
_MOST_ROWS: Final = 8  # of them the last are repeats


class SuggestedSettings:
    """A dialog; `suggestions` are known at once, how many images fit only after some seconds, from another process."""

    def __init__(self, owner: tk.Misc, state: AppState, config: TrainConfig, data: Sequence[ConceptData]) -> None:
        self._state, self._config, self._data = state, config, data
        self._machine = state.place.machine
        family = state.family.declaration
        self._size_step = 8 if family is None else family.size_step
        self._program = MemoryProgram()
        about = _ABOUT if self._machine is None else f"{_ABOUT} {self._machine}"
        self.dialog = Dialog(owner, "Suggested settings", about, wide=True)
        self._rows = frame(self.dialog.body)
        self._rows.pack(fill="x")
        room = owner.winfo_screenwidth() / theme.scale() - 2 * _EDGE
        self._wrap = round(min(_REASON, room - 2 * (_COLUMN + _GAP)))  # at 200 % a screen has little room
        self.line = text(self.dialog.body, _COMPUTING, "small", colour=theme.MUTED, wrap=round(min(720, room)))
        self.line.pack(anchor="w", pady=(theme.px(8), 0))
        self.dialog.button("Close", self.dialog.close)
        self.apply_button = self.dialog.button("Apply", self._apply, "accent")
        self.dialog.on_return(self._apply)
        self.suggestions: list[Suggestion] = []
        self._show(1, None)

    def show(self) -> tk.Toplevel:
        """Open it, and compute the memory in the background."""
        window = self.dialog.show()
        tk.Misc.bind(window, "<Destroy>", lambda event: self._program.stop(), add="+")
        self._state.background.run(self._ask, self._answered, lambda reason: self._answered((1, None)))
        return window

    def _ask(self) -> tuple[int, BatchMemory | None]:
        """Processes and memory; slow."""
        world_size = planned_world_size(self._config, self._machine)
        suggested = with_suggestions(self._config, self._suggest(world_size, None))
        one = suggested.model_copy(update={"batch_size": 1})
        return world_size, memory_answer(self._program, one, self._machine).batch

    def _answered(self, answer: tuple[int, BatchMemory | None]) -> None:
        if self.dialog.window.winfo_exists():
            if answer[1]:
                self.line.pack_forget()
            self.line.configure(text=_UNKNOWN)
            self._show(*answer)
            self.dialog.place()

    def _suggest(self, world_size: int, memory: BatchMemory | None) -> list[Suggestion]:
        step = self._size_step
        return suggest(self._config, self._data, size_step=step, world_size=world_size, memory=memory)

    def _show(self, world_size: int, memory: BatchMemory | None) -> None:
        self.suggestions = self._suggest(world_size, memory)
        for child in self._rows.winfo_children():
            child.destroy()
        by_rank = sorted(self.suggestions, key=lambda each: each.path.startswith("concepts."))
        for row, each in enumerate(by_rank[:_MOST_ROWS]):
            self._show_row(row, each)
        if not self.suggestions:
            self.line.configure(text=_NONE)
        more = len(by_rank) - _MOST_ROWS
        if more > 0:
            text(self._rows, f"and the repeats of {more:,} more concepts", colour=theme.MUTED).grid(
                columnspan=3, sticky="w"
            )
        self.apply_button.configure(state="normal" if self._changes() else "disabled")

    def _show_row(self, row: int, each: Suggestion) -> None:
        option = find_option(TrainConfig, each.path)
        assert option is not None
        title = option.title
        if each.path.startswith("concepts."):
            concept = self._config.concepts[int(each.path.split(".")[1])]
            title = f"Repeats of {concept.name or PurePath(concept.path).name}"
            title = fit(self._rows, title, theme.tk_font("strong"), theme.px(_COLUMN))
        before, after = (display_value(option, value) for value in (self._state.draft.get(each.path), each.value))
        is_kept = before == after
        for column, (content, font, colour, wrap) in enumerate(
            (
                (title, "strong", theme.TEXT, _COLUMN),
                (
                    after if is_kept else f"{before} → {after}",
                    "body",
                    theme.MUTED if is_kept else theme.ACCENT_TEXT,
                    _COLUMN,
                ),
                (each.reason, "small", theme.MUTED, self._wrap),
            )
        ):
            label = text(self._rows, content, font, colour=colour, wrap=wrap)  # type: ignore[arg-type]
            label.grid(row=row, column=column, sticky="nw", padx=(0, theme.px(_GAP)), pady=theme.px(5))

    def _changes(self) -> dict[str, object]:
        draft = self._state.draft
        return {each.path: each.value for each in self.suggestions if draft.get(each.path) != each.value}

    def _apply(self) -> None:
        changes = self._changes()
        if not changes:
            return
        self.dialog.close()
        self._state.draft.set_together(changes)
        count = f"{len(changes)} setting{'s' * (len(changes) != 1)}"
        self._state.say(f"{count} changed; Undo takes {'them' if len(changes) > 1 else 'it'} back.")
