"""Two samples of a prompt, of two steps or two runs, one over the other with a line to drag between them."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageTk

from app.monitor.run_samples import RunSamples
from app.monitor.tiles import fit_image, read_image
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Menu, add_tooltip, frame, handler
from app.widgets.ellipsis import fit
from modules.run.view.event_records import SampleFile

_LABELS: Final = 24  # unscaled height of the labels above the picture
_MARGIN: Final = 4
_LEAST: Final = 40  # pixels of a canvas in which a picture is seen
_KNOB: Final = 7
_BY: Final = 0.05  # of the width, by a key
_MENU: Final = 100  # unscaled pixels, at least
_PAUSE_MS: Final = 100  # after the last change of the size


class SampleCompare(tk.Frame):
    """Menus for the prompt and both sides above the picture. `show` chooses the first and the last step of one run, or
    the last ones of the first two.
    """

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self._runs: Sequence[RunSamples] = ()
        self._found: dict[str, SampleFile] = {}  # of the prompt, by what the menus show
        self.bar = frame(self)
        self.bar.pack(fill="x")
        self.left = Menu(self.bar, [], lambda value: self._compare(), width=_MENU)
        self.right = Menu(self.bar, [], lambda value: self._compare(), width=_MENU)
        self.prompt = Menu(self.bar, [], lambda value: self._choose_prompt(), width=_MENU)
        add_tooltip(self.left, "What is left of the line.")
        add_tooltip(self.right, "What is right of the line.")
        for menu, share in ((self.left, 4), (self.right, 4), (self.prompt, 6)):
            self.add(menu, share)
        self.picture = PictureSlider(self, state)
        self.picture.pack(fill="both", expand=True, pady=(theme.px(8), 0))

    def add(self, control: tk.Widget, share: int) -> None:
        """Put a control at the right end of the bar, with this share of its width."""
        column = self.bar.grid_size()[0]
        self.bar.columnconfigure(column, weight=share, uniform="controls")
        control.grid(row=0, column=column, sticky="ew", padx=(theme.px(8) if column else 0, 0))

    def show(self, runs: Sequence[RunSamples], prompt: str = "") -> None:
        """Compare samples of these, of `prompt` first."""
        self._runs = runs
        prompts = list(dict.fromkeys(prompt for run in runs for prompt in run.of_prompts))
        shared = [prompt for prompt in prompts if all(run.of(prompt) for run in runs)]
        self.prompt.set_choices(prompts)
        if self.prompt.value() not in prompts:
            self.prompt.show(prompt or next(iter([*shared, *prompts]), ""))
        self._choose_prompt(keeps=False)

    def _choose_prompt(self, *, keeps: bool = True) -> None:
        """Where both sides have a sample of this prompt, too, they stay."""
        of_runs = [
            {self._title(run, sample.step): sample for sample in run.of(self.prompt.value())} for run in self._runs
        ]
        self._found = {title: sample for of_run in of_runs for title, sample in of_run.items()}
        having = [list(of_run) for of_run in of_runs if of_run]
        if having:
            sides = having[0][-1 if len(having) > 1 else 0], having[1 if len(having) > 1 else 0][-1]
            for menu, title in zip((self.left, self.right), sides, strict=True):
                menu.set_choices(list(self._found))
                if not keeps or menu.value() not in self._found:
                    menu.show(title)
        self._compare()

    def _title(self, run: RunSamples, step: int) -> str:
        name = f"{run.name}, " if len(self._runs) > 1 else ""
        best = ", best" if step == run.best_step else ""
        return f"{name}step {step:,}{best}"

    def _compare(self) -> None:
        left, right = self.left.value(), self.right.value()
        if left in self._found and right in self._found:
            self.picture.show((self._found[left].file, left), (self._found[right].file, right))


class PictureSlider(tk.Canvas):
    """The left picture up to a line, the right one from there on; the pointer or the arrow keys move the line.

    Both have the size at which the left one fits. They are read in a thread.
    """

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0, takefocus=1, cursor="sb_h_double_arrow")
        self._state = state
        self.at = 0.5  # where the line is, in widths
        self._sides: tuple[tuple[str, str], ...] = ()  # the file and the label of each
        self._wanted: object = None  # what is being read
        self._job = ""
        self._images: tuple[Image.Image, Image.Image] | None = None
        self._photo: ImageTk.PhotoImage | None = None
        theme.paint(self, bg=theme.CARD)
        theme.follow(self, "pictures", self._draw)
        self.bind("<Configure>", lambda event: self._resized())
        for sequence in ("<Button-1>", "<B1-Motion>"):
            self.bind(sequence, lambda event: self._drag(event.x))
        for key, by in (("<Left>", -_BY), ("<Right>", _BY)):
            self.bind(key, handler(lambda by=by: self._move(self.at + by)))  # type: ignore[misc]
        for sequence in ("<FocusIn>", "<FocusOut>"):
            self.bind(sequence, lambda event: self._draw())

    def show(self, left: tuple[str, str], right: tuple[str, str]) -> None:
        """Show two files, each with its label."""
        self._sides = left, right
        self._read()

    def destroy(self) -> None:
        """Read nothing any more."""
        self._cancel()
        super().destroy()

    def _cancel(self) -> None:
        if self._job:
            self.after_cancel(self._job)
            self._job = ""

    def _resized(self) -> None:
        """Read the pictures once the window has been dragged to its size."""
        self._cancel()
        self._job = self.after(_PAUSE_MS, self._read)

    def _read(self) -> None:
        self._cancel()
        width = self.winfo_width() - 2 * theme.px(_MARGIN)
        height = self.winfo_height() - theme.px(_LABELS + _MARGIN)
        if not self._sides or min(width, height) < _LEAST:
            return
        (left, _), (right, _) = self._sides
        wanted = self._wanted = (left, right, width, height)
        self._state.background.run(lambda: _read_pair(*wanted), lambda images: self._show(wanted, images))

    def _show(self, wanted: object, images: tuple[Image.Image, Image.Image] | None) -> None:
        if self.winfo_exists() and wanted == self._wanted:
            self._images, self._photo = images, None
            self._draw()

    def _drag(self, x: int) -> None:
        self.focus_set()
        if self._images is not None:
            width = self._images[0].width
            self._move((x - (self.winfo_width() - width) / 2) / width)

    def _move(self, at: float) -> None:
        self.at = min(max(at, 0.0), 1.0)
        self._draw()

    def _draw(self) -> None:
        self.delete("all")
        middle, labels = self.winfo_width() // 2, theme.px(_LABELS)
        if self._images is None:
            if self._wanted is not None and self._sides:
                said = theme.resolve(theme.FAINT)
                self.create_text(middle, self.winfo_height() // 2, text="…", fill=said, font=theme.tk_font())
            return
        left, right = self._images
        (width, height), line = left.size, round(self.at * left.width)
        shown = right.copy()
        shown.paste(left.crop((0, 0, line, height)))
        if self._photo is None:
            self._photo = ImageTk.PhotoImage(shown, master=self)
        else:
            self._photo.paste(shown)
        x = middle - width // 2
        self.create_image(x, labels, anchor="nw", image=self._photo)
        small, ink = theme.tk_font("small"), theme.resolve(theme.TEXT)
        ends = max(x, 0) if width > self.winfo_width() // 2 else 0  # of labels that are wider than a narrow picture
        (_, first), (_, second) = self._sides
        room = middle - ends - theme.px(_MARGIN)
        self.create_text(ends, 0, anchor="nw", text=fit(self, first, small, room), fill=ink, font=small)
        self.create_text(
            self.winfo_width() - ends, 0, anchor="ne", text=fit(self, second, small, room), fill=ink, font=small
        )
        radius, y = theme.px(_KNOB), labels + height // 2
        accent, card = theme.resolve(theme.ACCENT), theme.resolve(theme.CARD)
        outline = ink if self.focus_get() is self else card
        self.create_line(x + line, labels, x + line, labels + height, fill=accent, width=theme.px(2))
        box = (x + line - radius, y - radius, x + line + radius, y + radius)
        self.create_oval(*box, fill=accent, outline=outline, width=theme.px(2))


def _read_pair(left: str, right: str, width: int, height: int) -> tuple[Image.Image, Image.Image] | None:
    """Both pictures at the size at which the left one fits; None if one of them cannot be read."""
    side = max(width, height)
    first, second = read_image(Path(left), side), read_image(Path(right), side)
    if first is None or second is None:
        return None
    first = fit_image(first, width, height)
    fitted = fit_image(second, *first.size)
    second = Image.new("RGB", first.size)
    second.paste(fitted, ((first.width - fitted.width) // 2, (first.height - fitted.height) // 2))
    return first, second
