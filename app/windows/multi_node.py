"""Several machines: who they are, where they meet, and the commands that start each of them."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from typing import TYPE_CHECKING

from app import look, texts
from app.controls import Button, frame, text
from app.form.build import FieldCard
from app.multi_gpu.commands import Command, commands
from app.scroll import Scroll
from app.sections.form_section import options_at
from app.windows.dialog import Dialog
from modules.machine import own_addresses, port_is_free

if TYPE_CHECKING:
    from app.main_window import MainWindow

MACHINES = ("num_nodes", "processes_per_node", "node_rank", "rendezvous", "max_restarts")
MEETING = ("master_addr", "initial_port")
_COPIED_MS = 1600
_PORT_PAUSE_MS = 400


class MultiNodeWindow:
    """The fields are those of the Multi-GPU section; what is generated is what LaunchPlan would run."""

    def __init__(self, window: MainWindow) -> None:
        self._main = window
        self.state = window.state_
        self.commands: list[Command] = []
        self._dialog = Dialog(window, texts.MULTI_NODE_TITLE, texts.MULTI_NODE_WORDS, modal=False)
        self._dialog.window.resizable(True, True)
        body = self._dialog.body
        fields = frame(body)
        fields.pack(fill="x")
        self._cards = [self._card(fields, texts.MACHINES, MACHINES), self._card(fields, texts.MEETING, MEETING)]
        self._build_addresses(self._cards[1])
        self._said = text(body, colour=look.BAD, wrap=860)
        self._list = Scroll(body, look.CARD)
        self._list.configure(height=look.px(300))
        self._list.pack_propagate(False)
        self._list.pack(fill="both", expand=True, pady=(look.px(8), 0))
        self._hint = text(self._list.inside, texts.GENERATE_HINT, colour=look.MUTED)
        self._hint.pack(anchor="w", padx=look.px(8), pady=look.px(8))
        self._dialog.button(texts.CLOSE, self._dialog.close)
        self.generate_button = self._dialog.button(texts.GENERATE, self.generate, "accent")
        self.state.subscribe("draft", self._changed, self._dialog.window)
        self._changed()

    def show(self) -> tk.Toplevel:
        """Open it."""
        return self._dialog.show()

    def generate(self) -> None:
        """Make the texts anew from the settings as they are, which must be in a file."""
        draft = self.state.draft
        if draft.config is None:
            self._say(texts.PLAN_UNKNOWN)
            return
        if draft.config.num_nodes < 2:
            self._say(texts.ONE_MACHINE)
            return
        if draft.file is None or draft.is_dirty:
            self._main.files.save()
        if draft.file is None or draft.is_dirty:
            self._say(texts.SAVE_FIRST)
            return
        config, file, token = draft.config, draft.file.absolute(), self.state.join_token
        self._say("")
        self.state.background.run(lambda: commands(config, file, token), self._show, self._say)

    def _show(self, found: list[Command]) -> None:
        self.commands = found
        for child in self._list.inside.winfo_children():
            child.destroy()
        for command in found:
            self._show_command(command)

    def _show_command(self, command: Command) -> None:
        block = frame(self._list.inside)
        block.pack(fill="x", padx=look.px(8), pady=(0, look.px(12)))
        head = frame(block)
        head.pack(fill="x")
        text(head, command.title, "strong").pack(side="left")
        button = Button(head, texts.COPY, on=look.CARD, width=84)
        button.configure(command=lambda: self._copy(command, button))
        button.pack(side="right")
        text(block, command.help, "small", colour=look.MUTED, wrap=700).pack(anchor="w", pady=(0, look.px(4)))
        lines = min(14, 1 + command.text.count("\n") + len(command.text) // 110 * ("\n" not in command.text))
        shown = tk.Text(
            block, height=lines, wrap="char" if "\n" not in command.text else "none", font=look.tk_font("mono"),
            relief="flat", borderwidth=0, padx=look.px(10), pady=look.px(8), highlightthickness=1,
        )  # fmt: skip
        look.paint(shown, bg=look.FIELD, fg=look.TEXT, highlightbackground=look.FIELD_LINE, highlightcolor=look.ACCENT)
        shown.insert("1.0", command.text)
        shown.configure(state="disabled")
        shown.pack(fill="x")

    def _copy(self, command: Command, button: Button) -> None:
        window = self._dialog.window
        window.clipboard_clear()
        window.clipboard_append(command.text)
        button.configure(text=texts.COPIED)

        def back() -> None:
            if button.winfo_exists():
                button.configure(text=texts.COPY)

        window.after(_COPIED_MS, back)

    def _card(self, parent: tk.Misc, title: str, paths: tuple[str, ...]) -> FieldCard:
        block = FieldCard(parent, title, options_at(paths), self.state)
        block.frame.configure(bg_color=look.CARD)
        block.frame.pack(side="left", fill="both", expand=True, padx=(0, look.px(8)))
        block.arrange(lambda option: True)
        return block

    def _build_addresses(self, block: FieldCard) -> None:
        """This machine's own addresses to choose from, and whether the port is free."""
        area = frame(block.frame)
        area.grid(row=100, column=0, columnspan=3, sticky="ew", padx=look.px(16), pady=(look.px(4), look.px(12)))
        text(area, texts.OWN_ADDRESSES, "small", colour=look.MUTED).pack(anchor="w")
        row = frame(area)
        row.pack(anchor="w", pady=look.px(4))
        for address in own_addresses()[:4]:
            Button(row, address, partial(self.state.draft.set, "master_addr", address), on=look.CARD).pack(
                side="left", padx=(0, 6)
            )
        self.port_words = text(area, font="small")
        self.port_words.pack(anchor="w")
        self._port_pause = ""

    def _changed(self) -> None:
        for block in self._cards:
            block.refresh()
        window = self._dialog.window
        if self._port_pause:
            window.after_cancel(self._port_pause)
        self._port_pause = window.after(_PORT_PAUSE_MS, self._look_at_port)

    def _look_at_port(self) -> None:
        self._port_pause = ""
        value = str(self.state.draft.get("initial_port") or "")
        if not value.isdecimal():
            self.port_words.configure(text="")
            return
        is_free = port_is_free(int(value))
        words = (texts.PORT_FREE if is_free else texts.PORT_TAKEN).format(port=value)
        look.paint(self.port_words, fg=look.GOOD if is_free else look.BAD)
        self.port_words.configure(text=words)

    def _say(self, words: str) -> None:
        self._said.configure(text=words)
        if words:
            self._said.pack(fill="x", pady=(look.px(8), 0), before=self._list)
        else:
            self._said.pack_forget()
