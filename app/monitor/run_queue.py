"""The Queue page: the configs that wait for the GPUs, in their order. A process of its own works them off."""

from __future__ import annotations

import os
import time
import tkinter as tk
from collections.abc import Callable
from typing import Final

from app.form.setting_text import with_titles
from app.monitor.page import Page
from app.monitor.queue_bar import QueueBar
from app.monitor.queue_lengths import QueueLengths
from app.monitor.queue_reader import QueueContent, QueueReader
from app.monitor.queue_removal import QueueRemoval
from app.monitor.queue_table import queue_table, show_entries
from app.monitor.queue_texts import selected_text, state_text
from app.widgets import theme
from app.widgets.buttons import Button, add_tooltip, card, frame, handler, text
from app.widgets.table import Table
from modules.config import TandemError
from modules.files import printable
from modules.run.queue.entries import Entry, Queue
from modules.run.queue.folder import RunQueue
from modules.run.queue.start_runner import start_runner

_READ_EVERY_S: Final = 1.0
_IDLE_EVERY_S: Final = 3.0  # while nobody works it off
_STARTING_S: Final = 15.0  # the process needs a moment until it is seen
_HINT: Final = "Drag a row, or press Alt+Up or Alt+Down, to change the order."
_EMPTY: Final = "The queue is empty. “Add current settings” adds a copy of the settings in the window, as they are now."


class QueuePage(Page):
    """Reads the queue once a second, in a thread; each change is made there, too."""

    def build(self) -> None:
        """The state and its buttons above, the table, what can be done with an entry below."""
        self.queue = Queue(entries=[])
        self.has_runner = False
        self._read_at = 0.0
        self._is_reading = False
        self._starting_until = 0.0
        self._problem = ""  # why the last change was refused, until the next one or another selection
        self._reader = QueueReader()
        self._removal = QueueRemoval(self, self._change, self.state.removed_entries)
        self._lengths = QueueLengths(self.state.background, self._read_now)
        self.settings: dict[int, str] = {}  # of each entry, those that differ first
        self.results: dict[int, str] = {}  # how far those are that run, and the losses of the finished
        self.durations_s: dict[int, float] = {}  # of their runs, as Runs shows them
        self._build_head()
        upper = card(self)
        upper.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        holder = frame(upper)
        holder.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))
        self.table = queue_table(holder)
        self.table.bind("<<TreeviewSelect>>", lambda event: self._selected())
        self.table.bind("<Double-Button-1>", lambda event: self.open_run())
        self.table.bind("<Return>", lambda event: self.open_run())
        self.table.bind("<Delete>", lambda event: self.remove())
        self.table.bind("<Alt-Up>", handler(lambda: self.move(-1)))
        self.table.bind("<Alt-Down>", handler(lambda: self.move(1)))
        self.drag = RowDrag(self.table, self._waiting_items, lambda item, place: self._move_to(int(item), place))
        self.bar = QueueBar(self, self)
        # before the table, which gets the room that is left
        self.bar.pack(side="bottom", fill="x", padx=theme.px(6), pady=(0, theme.px(6)), before=upper)
        self._show_buttons()

    @property
    def run_queue(self) -> RunQueue:
        """The queue of the folder in the settings."""
        return RunQueue(self.state.runs_dir)

    @property
    def selected(self) -> Entry | None:
        """The selected entry."""
        chosen = self.table.selection()
        return next((entry for entry in self.queue.entries if chosen and str(entry.number) == chosen[0]), None)

    def select(self, number: int) -> None:
        """Select an entry and give the table the focus."""
        if self.table.exists(str(number)):
            self.table.focus_set()
            self.table.focus(str(number))
            self.table.selection_set(str(number))

    def refresh(self) -> None:
        """Read the queue if it is time."""
        every = _READ_EVERY_S if self.has_runner or self._is_working() else _IDLE_EVERY_S
        if self._is_reading or self.drag.item or time.monotonic() - self._read_at < every:
            return
        self._is_reading = True
        queue = self.run_queue
        steps = self._lengths.known(queue, self.queue.entries)
        self.state.background.run(lambda: self._reader.read(queue, steps), self._show, self._unreadable)

    def toggle(self) -> None:
        """Start the queue, or pause it: what runs goes on to its end."""
        queue = self.run_queue
        if self.has_runner and self.queue.wanted == "run":
            self._change(lambda: queue.want("pause"))
            return
        self._starting_until = time.monotonic() + _STARTING_S
        self._show_state()
        self._change(lambda: start_runner(queue))

    def stop(self) -> None:
        """Stop the current runs after a backup; they wait again."""
        queue = self.run_queue
        self._change(lambda: queue.want("stop"))

    def move(self, by: int) -> None:
        """Move the selected entry among those that wait."""
        entry, queue = self.selected, self.run_queue
        if entry is not None and entry.state == "waiting":
            self._change(lambda: queue.move_by(entry.number, by))

    def remove(self) -> None:
        """Remove the selected entry; a run is stopped only after a question."""
        if (entry := self.selected) is not None:
            self._removal.remove(self.run_queue, entry, [each.number for each in self.queue.waiting])

    def undo_remove(self) -> None:
        """Take back the entry that was removed last, unless it had started."""
        self._removal.undo(self.run_queue, self.queue)

    def clear_ended(self) -> None:
        """Forget all entries that have ended."""
        self._change(self.run_queue.clear_ended)

    def set_devices(self, number: int, devices: list[int] | None) -> None:
        """Let an entry take other GPUs; None for any."""
        queue = self.run_queue
        self._change(lambda: queue.set_devices(number, devices), failed=self.bar.devices.refuse)

    def repeat(self) -> None:
        """Let the selected entry wait again."""
        entry, queue = self.selected, self.run_queue
        if entry is not None:
            self._change(lambda: queue.retry(entry.number))

    def open_run(self) -> None:
        """Show the run of the selected entry in the monitor."""
        entry = self.selected
        if entry is None:
            return
        folder = self.run_queue.run_folder(entry)
        if os.path.isdir(folder.path):
            self.state.actions.follow(folder.path)
            self.open_page("curves")
        else:
            self.complain(f"{printable(entry.name)} has no run folder yet.")

    def open_settings(self) -> None:
        """Edit a copy of the selected entry's settings."""
        entry = self.selected
        if entry is None:
            return
        try:
            config = self.run_queue.load(entry)
        except (TandemError, OSError) as error:
            self.complain(str(error).split("\n")[0])
        else:
            self.state.files.open_copy(config, entry.name)

    def _build_head(self) -> None:
        head = frame(self, theme.WINDOW)
        head.pack(fill="x", padx=theme.px(6), pady=(0, theme.px(8)))
        self.start_button = Button(head, "Start queue", self.toggle, icon="play")
        self.start_button.pack(side="left")
        self.stop_button = Button(
            head,
            "Stop",
            self.stop,
            icon="stop",
            tooltip="Stop the current runs after a backup; they wait again and are continued at the next start.",
        )
        self.stop_button.pack(side="left", padx=(8, 0))
        self.add_button = Button(
            head,
            "Add current settings",
            lambda: self.state.actions.enqueue(),
            icon="plus",
            tooltip="Add a copy of the current settings to the queue.  (F4)",
        )
        self.add_button.pack(side="left", padx=(8, 0))
        self.status = text(head, "", colour=theme.MUTED, bg=theme.WINDOW)
        self.status.pack(side="left", fill="x", expand=True, padx=theme.px(12))
        add_tooltip(self.start_button, self._help_of_start)

    def _help_of_start(self) -> str:
        if self._is_working():
            return "What runs goes on to its end; nothing more is started."
        if self.start_button.cget("state") == "disabled":
            return "Nothing waits in the queue yet."
        return "Work off the queue in a process of its own, which does not need this window."

    def _change(
        self,
        change: Callable[[], object],
        done: Callable[[], object] | None = None,
        failed: Callable[[], object] | None = None,
    ) -> None:
        """Make a change in a thread, and show what came of it."""
        self._problem = ""

        def made(_: object) -> None:
            if done is not None:
                done()
            self._read_now()

        def refused(reason: str) -> None:
            if failed is not None:
                failed()
            self._starting_until = 0.0
            self._read_now()
            self.complain(reason)

        self.state.background.run(change, made, refused)

    def complain(self, reason: str) -> None:
        """Show why something cannot be done."""
        self._problem = reason = with_titles(reason)
        self.bar.message.say(reason, theme.BAD)

    def _selected(self) -> None:
        self._problem = ""
        self._show_buttons()

    def _read_now(self) -> None:
        self._read_at = 0.0
        if self.winfo_exists():
            self.refresh()

    def _unreadable(self, reason: str) -> None:
        self._is_reading, self._read_at = False, time.monotonic()
        if self.winfo_exists():
            self.bar.message.say(reason, theme.BAD)

    def _show(self, found: QueueContent) -> None:
        self._is_reading, self._read_at = False, time.monotonic()
        if not self.winfo_exists() or self.drag.item:
            return
        self.queue, self.has_runner = found.queue, found.has_runner
        self.settings, self.results, self.durations_s = found.settings, found.results, found.durations_s
        self.state.queued = len(self.queue.waiting)
        if self.has_runner:
            self._starting_until = 0.0
        show_entries(self.table, found)
        self._show_state()
        self._show_buttons()
        self.state.queue_watch.follow(self.run_queue, self.queue)
        self._lengths.count(self.run_queue, self.queue.in_order())

    def _is_working(self) -> bool:
        return (self.has_runner and self.queue.wanted == "run") or time.monotonic() < self._starting_until

    def _show_state(self) -> None:
        said = state_text(self.queue, has_runner=self.has_runner, is_working=self._is_working())
        if self.status.cget("text") != said:
            self.status.configure(text=said)
        label, icon = ("Pause queue", "pause") if self._is_working() else ("Start queue", "play")
        if self.start_button.cget("text") != label:
            self.start_button.configure(text=label, icon=icon)
        self.stop_button.configure(state="normal" if self.has_runner and self.queue.wanted != "stop" else "disabled")
        has_work = self.has_runner or self._is_working() or any(entry.is_open for entry in self.queue.entries)
        self.start_button.configure(state="normal" if has_work else "disabled")

    def _show_buttons(self) -> None:
        entry, waiting = self.selected, [each.number for each in self.queue.waiting]
        has_ended = any(not each.is_open for each in self.queue.in_order())
        self.bar.show(entry, waiting, has_ended=has_ended, can_undo=self._removal.can_undo(self.queue))
        reason = self._problem or ("" if entry is None else self._about(entry))
        self.table.say("" if self.queue.in_order() else _EMPTY)
        self.bar.message.say(reason or (_HINT if len(waiting) > 1 else ""), theme.BAD if self._problem else theme.MUTED)

    def _about(self, entry: Entry) -> str:
        settings, results = self.settings.get(entry.number, ""), self.results.get(entry.number, "")
        folder, run_s = self.run_queue.run_folder(entry).path, self.durations_s.get(entry.number)
        return selected_text(entry, settings, results, folder, run_s)

    def _waiting_items(self) -> list[str]:
        return [str(entry.number) for entry in self.queue.waiting]

    def _move_to(self, number: int, place: int) -> None:
        queue = self.run_queue
        self._change(lambda: queue.move(number, place))


class RowDrag:
    """`movable`: the items that may be dragged, in their order; `moved` gets the item and its new place among them."""

    def __init__(self, table: Table, movable: Callable[[], list[str]], moved: Callable[[str, int], object]) -> None:
        self._table = table
        self._movable = movable
        self._moved = moved
        self.item = ""  # while it is held
        table.bind("<ButtonPress-1>", self._press, add="+")
        table.bind("<B1-Motion>", self._drag, add="+")
        table.bind("<ButtonRelease-1>", self._drop, add="+")

    def _press(self, event: tk.Event[tk.Misc]) -> None:
        item = self._table.identify_row(event.y)
        self.item = item if item in self._movable() else ""

    def _drag(self, event: tk.Event[tk.Misc]) -> None:
        """The row follows the pointer."""
        over = self._table.identify_row(event.y)
        if self.item and over != self.item and over in self._movable():
            self._table.move(self.item, "", self._table.index(over))

    def _drop(self, event: tk.Event[tk.Misc]) -> None:
        item, self.item = self.item, ""
        movable = self._movable()
        shown = [each for each in self._table.get_children() if each in movable]
        if item and shown != movable:
            self._moved(item, shown.index(item))
