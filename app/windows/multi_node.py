"""Multi-node window: number of machines, rendezvous address, and the launch commands."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial

from app.form.cards import FieldCard
from app.form.setting_text import with_titles
from app.multi_gpu.commands import Command, build_commands
from app.multi_gpu.plan_summary import INVALID_SETTINGS
from app.sections.form_section import options_at
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, frame, text, wrap_within
from app.widgets.copy_text import CopyText
from app.widgets.scroll import Scroll
from app.windows.dialog import Dialog
from modules.config import TrainConfig
from modules.machine import port_is_free, preferred_addresses

MACHINE_FIELDS = ("enable_multi_gpu", "num_nodes", "processes_per_node", "node_rank", "on_machine_loss", "max_restarts")
RENDEZVOUS_FIELDS = ("master_addr", "initial_port")
WIDTH, HEIGHT = 920, 560  # unscaled pixels
_PORT_PAUSE_MS = 400


class MultiNodeWindow:
    """Shows fields of the Multi-GPU section and the commands that LaunchPlan generates from them."""

    def __init__(self, parent: tk.Misc, state: AppState, save: Callable[[str], object]) -> None:
        self._save = save
        self.state = state
        self.commands: list[Command] = []
        self._made_for: TrainConfig | None = None  # the settings of the commands that are shown
        self._dialog = Dialog(
            parent,
            "Train on multiple machines",
            (
                "Every machine needs Tandem and the images. Start machine 0, then paste the join line on each of "
                "the others: it transfers the settings, and differences in code, packages or images are found "
                "before training starts."
            ),
            modal=False,
            wide=True,
        )
        self._dialog.window.resizable(True, True)
        self._area = Scroll(self._dialog.body, theme.CARD)
        self._area.configure(width=theme.px(WIDTH), height=theme.px(HEIGHT))  # the dialog takes less on a low screen
        self._area.pack_propagate(False)
        self._area.pack(fill="both", expand=True)
        body = self._area.inside
        fields = frame(body)
        fields.pack(fill="x")
        self._cards = [
            self._card(fields, "Machines", MACHINE_FIELDS),
            self._card(fields, "Address and port", RENDEZVOUS_FIELDS),
        ]
        for column, block in enumerate(self._cards):
            block.frame.grid(row=0, column=column, sticky="nsew", padx=(6, 0) if column else (0, 6))
            fields.columnconfigure(column, weight=1, uniform="half")
        self._build_addresses(self._cards[1])
        self._message = text(body, colour=theme.BAD, wrap=860)
        self._list = frame(body)
        self._list.pack(fill="both", expand=True, pady=(theme.px(12), 0))
        _paragraph(
            self._list,
            "“Generate launch commands” saves the settings to their file, and shows the exact command for each machine "
            "and that for a Slurm job.",
        ).pack(fill="x", pady=theme.px(8))
        self._dialog.button("Close", self._dialog.close)
        self._dialog.button("Generate launch commands", self.generate, "accent")
        self.state.subscribe("draft", self._changed, self._dialog.window)
        self._changed()

    def show(self) -> tk.Toplevel:
        """Open the window."""
        return self._dialog.show()

    def generate(self) -> None:
        """Generate the commands from the current settings, which must be saved to a file."""
        draft = self.state.draft
        if draft.config is None:
            self._show_message(INVALID_SETTINGS)
            return
        if draft.config.num_nodes > 1 and not draft.config.enable_multi_gpu:
            self._show_message("“Multi-GPU training” is off: switch it on above, several machines need it.")
            return
        is_new = draft.file is None or draft.is_dirty
        if is_new:
            self._save("the launch commands name this file")
        if draft.file is None or draft.is_dirty:
            self._show_message("The commands refer to the config file; save the settings first.")
            return
        config, file, token = draft.config, draft.file.absolute(), self.state.next_join_token.show()
        self._show_message("")
        is_free = (lambda port: True) if self._holds_ports() else port_is_free
        note = f"Saved to {file.name}, which the commands refer to." if is_new else ""
        self.state.background.run(
            lambda: build_commands(config, file, token, is_free),
            lambda found: self._show(found, note),
            self._show_message,
        )

    def _holds_ports(self) -> bool:
        """Whether the window's own run may hold the ports: it has ended before the run of these settings starts."""
        return self.state.run is not None and self.state.run.is_alive

    def _show(self, found: list[Command], note: str) -> None:
        self.commands = found
        self._made_for = self.state.draft.config if found else None
        for child in self._list.winfo_children():
            child.destroy()
        if note:
            _paragraph(self._list, note).pack(fill="x", pady=(0, theme.px(8)))
        for command in found:
            shown = CopyText(self._list, command.title, command.text, command.help, command.options)
            shown.pack(fill="x", pady=(0, theme.px(12)))
        if found:
            self._area.see(self._list, margin=0)

    def _card(self, parent: tk.Misc, title: str, paths: tuple[str, ...]) -> FieldCard:
        block = FieldCard(parent, title, options_at(paths), self.state)
        block.frame.configure(bg_color=theme.CARD)
        block.arrange(lambda option: True)
        return block

    def _build_addresses(self, block: FieldCard) -> None:
        """Buttons for this machine's addresses, and whether the port is free."""
        area = frame(block.frame)
        area.grid(row=100, column=0, columnspan=3, sticky="ew", padx=theme.px(16), pady=(theme.px(4), theme.px(12)))
        about = text(
            area,
            "Addresses of this machine; choose one that the other machines can reach:",
            "small",
            colour=theme.MUTED,
        )
        about.pack(anchor="w")
        row = frame(area)
        row.pack(anchor="w", pady=theme.px(4))
        for address in preferred_addresses()[:4]:
            Button(row, address, partial(self.state.draft.set, "master_addr", address), bg=theme.CARD).pack(
                side="left", padx=(0, 6)
            )
        self.port_status = text(area, font="small")
        self.port_status.pack(anchor="w")
        for label in (about, self.port_status):
            wrap_within(label, area, margin=0)
        self._port_job = ""

    def _changed(self) -> None:
        for block in self._cards:
            block.refresh()
        if self._made_for is not None and self.state.draft.config != self._made_for:
            self._show([], "The settings have changed since: generate the commands again.")
        window = self._dialog.window
        if self._port_job:
            window.after_cancel(self._port_job)
        self._port_job = window.after(_PORT_PAUSE_MS, self._check_port)

    def _check_port(self) -> None:
        self._port_job = ""
        value = str(self.state.draft.get("initial_port") or "")
        if not value.isdecimal():
            self.port_status.configure(text="")
            return
        port, draft = int(value), self.state.draft
        uses = {port: "for training", port + 1: "for joining"}
        both = f"Ports {port} (for training) and {port + 1} (for joining)"
        taken = [f"{number} ({use})" for number, use in uses.items() if not port_is_free(number)]
        if not draft.get("enable_multi_gpu") or draft.get("node_rank"):
            colour, status = theme.MUTED, f"{both} are used on machine 0, with “Multi-GPU training” on."
        elif taken and self._holds_ports():
            colour, status = theme.MUTED, f"{both} are those of the run that trains now, and free once it has ended."
        elif taken:
            colour = theme.BAD
            status = f"Not free on this machine: port {' and '.join(taken)}. Choose another."
        else:
            colour, status = theme.GOOD, f"{both} are free on this machine."
        theme.paint(self.port_status, fg=colour)
        self.port_status.configure(text=status)

    def _show_message(self, message: str) -> None:
        self._message.configure(text=with_titles(message))
        if message:
            self._message.pack(fill="x", pady=(theme.px(8), 0), before=self._list)
        else:
            self._message.pack_forget()


def _paragraph(parent: tk.Misc, content: str) -> tk.Frame:
    """A text that wraps in the width it has, which is less than usual on a small screen."""
    made = frame(parent)
    label = text(made, content, colour=theme.MUTED)
    wrap_within(label, made, 0)
    label.pack(anchor="w")
    return made
