"""The dialog with which a machine is added to the list of those that Train starts over ssh, or changed."""

from __future__ import annotations

import shlex
import tkinter as tk
from collections.abc import Callable
from typing import Final

from app.widgets import theme
from app.widgets.buttons import Entry, Switch, frame, text
from app.widgets.scroll import Scroll
from app.windows.dialog import Dialog
from modules.config import ConfigError
from modules.run.hosts.host import DEFAULT_PYTHON, Host
from modules.run.hosts.host_list import add_host, read_hosts, remove_host

WIDTH: Final = 460  # unscaled pixels
_FIELDS: Final = (
    ("name", "Name", "beta", ""),
    ("target", "ssh connects to", "me@10.0.0.2", "user@host, or a name of your ~/.ssh/config"),
    ("port", "Port", "22", "Empty: as in ~/.ssh/config"),
    ("folder", "Tandem's folder there", "~/tandem", ""),
    ("python", "Python there", DEFAULT_PYTHON, "Empty: the one that ./scripts/setup.sh installed"),
    (
        "settings",
        "Settings of that machine",
        "concepts.0.path=/data/cats",
        "NAME=VALUE, separated by spaces; for other paths there",
    ),
)

_DIFFERENCES: Final = "Train even if Tandem's code or versions there differ; results may vary"


class HostDialog:
    """`saved` is called with the machine once it is in the list; `former` is the one to change."""

    def __init__(self, owner: tk.Misc, saved: Callable[[Host], object], former: Host | None = None) -> None:
        self._saved, self._former = saved, former
        about = "ssh must reach it without a question: connect to it once by hand, and copy your key with ssh-copy-id."
        self.dialog = Dialog(owner, "Add a machine" if former is None else f"Change {former.name}", about)
        self.message = text(self.dialog.body, "", "small", colour=theme.BAD, wrap=WIDTH + 60)
        self.message.pack(side="bottom", anchor="w", pady=(theme.px(8), 0))  # before the fields, which give way to it
        area = Scroll(self.dialog.body, theme.CARD)
        area.pack(fill="both", expand=True)
        body = area.inside
        body.grid_columnconfigure(1, weight=1)
        self.entries: dict[str, Entry] = {}
        for row, (name, title, example, explanation) in enumerate(_FIELDS):
            text(body, title).grid(row=row, column=0, sticky="nw", padx=(0, theme.px(16)), pady=theme.px(10))
            place = frame(body)
            place.grid(row=row, column=1, sticky="ew", padx=(Switch.RING, 0), pady=theme.px(4))
            self.entries[name] = Entry(place, width=WIDTH - 120, placeholder=example)
            self.entries[name].pack(fill="x")
            if explanation:
                text(place, explanation, "small", colour=theme.MUTED).pack(anchor="w", pady=(theme.px(2), 0))
        text(body, "Allow differences").grid(
            row=len(_FIELDS), column=0, sticky="nw", padx=(0, theme.px(16)), pady=theme.px(4)
        )
        place = frame(body)
        place.grid(row=len(_FIELDS), column=1, sticky="ew", pady=theme.px(4))
        self.allow_differences = Switch(place, lambda _: None)
        self.allow_differences.pack(anchor="w")
        text(place, _DIFFERENCES, "small", colour=theme.MUTED).pack(
            anchor="w", padx=(Switch.RING, 0), pady=(theme.px(2), 0)
        )
        area.ask_for_all()
        if former is not None:
            self._fill(former)
        self.dialog.button("Cancel", self.dialog.close)
        self.dialog.button("Save and test", self.save, "accent")
        self.dialog.on_return(self.save)

    def show(self) -> tk.Toplevel:
        """Open it, ready to type."""
        window = self.dialog.show()
        self.entries["name"].focus_set()
        return window

    def save(self) -> None:
        """Write the list, or say which field is wrong."""
        try:
            host = self._host()
            self._check_name(host.name)
            add_host(host)
            if self._former is not None and self._former.name.lower() != host.name.lower():
                remove_host(self._former.name)
        except ConfigError as error:
            self._show_fault(str(error))
            return
        self.dialog.close()
        self._saved(host)

    def _show_fault(self, message: str) -> None:
        for name, title, *_ in _FIELDS:
            if message.startswith(f"host: {name} is "):
                message = f"“{title}” {message.removeprefix(f'host: {name} ')}"
                self.entries[name].focus_set()
        self.message.configure(text=message)

    def _check_name(self, name: str) -> None:
        """Another machine's entry is not replaced without a word."""
        own = "" if self._former is None else self._former.name.lower()
        if name.lower() != own and any(name.lower() == host.name.lower() for host in read_hosts()):
            raise ConfigError(f"host: name is {name!r}, which another machine has; use another one")

    def _host(self) -> Host:
        given = {name: entry.get().strip() for name, entry in self.entries.items()}
        port = given["port"]
        if port and not (port.isascii() and port.isdecimal() and len(port) < 6):
            raise ConfigError(f"host: port is {port!r}; use a number from 1 to 65535, or leave it empty")
        try:
            settings = shlex.split(given["settings"])
        except ValueError as error:
            advice = "put a value with spaces between two quotation marks, such as 'cache_dir=/my disk/cache'"
            raise ConfigError(f"host: settings is {given['settings']!r}; {advice}") from error
        return Host.make(
            given["name"],
            given["target"],
            given["folder"],
            port=int(port) if port else None,
            python=given["python"],
            settings=settings,
            allow_differences=self.allow_differences.get(),
        )

    def _fill(self, host: Host) -> None:
        shown = {
            "name": host.name,
            "target": host.target,
            "port": "" if host.port is None else str(host.port),
            "folder": host.folder,
            "python": host.python,
            "settings": shlex.join(host.settings),
        }
        for name, value in shown.items():
            self.entries[name].show(value)
        self.allow_differences.show(host.allow_differences)
