"""The tools at the right above the curves: show all, export, TensorBoard."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app import look, texts
from app.controls import Button, add_hint, frame, popup_menu, text
from app.cut import cut
from app.monitor.export import Sheet, save_numbers, save_plots
from app.monitor.tensorboard import TensorBoard
from app.run_control import RunControl
from app.state import AppState
from app.windows.chooser import choose

if TYPE_CHECKING:
    from app.monitor.curves import CurvesPage

_ROOM: Final = 60  # letters
_WORDS_FROM: Final = 860


class RunTools(tk.Frame):
    """Says in a line beside the buttons what came of them."""

    def __init__(self, parent: tk.Misc, state: AppState, page: CurvesPage, show_all: Callable[[], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        look.paint(self, bg=look.WINDOW)
        self._state = state
        self._page = page
        self._run: RunControl | None = None
        self.said = ""
        self.tensorboard = TensorBoard(self, self._say)
        self._line = text(self, "", "small", colour=look.MUTED, on=look.WINDOW)
        self._line.pack(side="left", padx=(0, look.px(10)))
        add_hint(self._line, lambda: self.said)
        self._line.bind("<Button-1>", lambda event: self.tensorboard.open_browser())
        buttons = frame(self, look.WINDOW)
        buttons.pack(side="left")
        Button(buttons, texts.WHOLE_RANGE, show_all, style="quiet", hint=texts.WHOLE_RANGE_HELP).pack(side="left")
        self.export = Button(
            buttons, texts.EXPORT, self._offer_exports, icon="file", style="quiet", hint=texts.EXPORT_HELP
        )
        self.export.pack(side="left")
        self.board = Button(
            buttons, texts.TENSORBOARD, self._start_board, icon="chart", style="quiet", hint=texts.TENSORBOARD_HELP
        )
        self.board.pack(side="left")

    def fit(self, width: int) -> None:
        """Icons without words where the tools' line is no wider than that, in unscaled pixels."""
        for button, words in ((self.export, texts.EXPORT), (self.board, texts.TENSORBOARD)):
            shown = words if width >= _WORDS_FROM else ""
            if button.cget("text") != shown:
                button.configure(text=shown, width=30)

    def followed(self, run: RunControl | None) -> None:
        """Another run is shown."""
        self._run = run
        for button in (self.export, self.board):
            button.configure(state="disabled" if run is None else "normal")

    def save_plots(self, file: Path) -> None:
        """Write what is shown as a picture, in a thread."""
        page, run = self._page, self._run
        if run is None:
            return
        sheets = [Sheet(plot.title, tuple(plot.lines), plot.span, plot.chart.log_scale) for plot in page.plots.values()]
        self._write(lambda: save_plots(sheets, page.axis, page.wanted, run.folder.name, file), file)

    def save_numbers(self, file: Path) -> None:
        """Write all numbers as a table, in a thread."""
        run = self._run
        if run is not None:
            self._write(lambda: save_numbers(run.folder, file), file)

    def _write(self, work: Callable[[], object], file: Path) -> None:
        self._state.background.run(work, lambda _: self._say(texts.EXPORTED.format(file=file.name)), self._say)

    def _offer_exports(self) -> None:
        menu = popup_menu(self)
        menu.add_command(label=texts.EXPORT_PNG, command=lambda: self._choose("png", self.save_plots))
        menu.add_command(label=texts.EXPORT_CSV, command=lambda: self._choose("csv", self.save_numbers))
        menu.tk_popup(self.export.winfo_rootx(), self.export.winfo_rooty() + self.export.winfo_height())

    def _choose(self, ending: str, save: Callable[[Path], object]) -> None:
        if self._run is None:
            return
        title = texts.EXPORT_PNG if ending == "png" else texts.EXPORT_CSV
        name = choose(self, "save", title, Path(), (f".{ending}",), f"{self._run.folder.name}.{ending}")
        if name:
            save(Path(name))

    def _start_board(self) -> None:
        if self._run is not None:
            self.tensorboard.start(self._run.folder)

    def _say(self, words: str) -> None:
        if self.winfo_exists():
            self.said = words
            self._line.configure(text=cut(words, _ROOM))
