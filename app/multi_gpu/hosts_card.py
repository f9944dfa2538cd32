"""The machines that Train starts over ssh: the list, a switch and a test for each."""

from __future__ import annotations

import shlex
import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from app.multi_gpu.joining import can_join, machine_count, switch, switched_on
from app.shell.ask import Choice, ask
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Switch, add_tooltip, card, frame, text, wrap_within
from app.widgets.ellipsis import fit
from app.widgets.scroll import Scroll
from app.windows.dialog import Dialog
from modules.config import ConfigError
from modules.files import printable
from modules.run.hosts.check import HostCheck, check_host
from modules.run.hosts.host import DEFAULT_PYTHON, Host
from modules.run.hosts.host_list import add_host, read_hosts, remove_host
from modules.run.hosts.ssh_line import fields_of_ssh_line
from modules.run.queue.places import is_cluster
from modules.run.remote.copy_folders import copies_of
from modules.run.remote.kept_commands import waiting_command
from modules.run.remote.link import home_of, is_for_runs
from modules.run.remote.machine import DEFAULT_FOLDER, host_for_runs, known_there, queued_for
from modules.run.remote.parts import named
from modules.run.slurm.options import words_for_each_start

_ABOUT: Final = (
    "Train starts these machines itself over ssh. Machines that are not in this list join with the line that a waiting "
    "run shows."
)
_ABOUT_PLACE: Final = (
    "Train starts the run on {place}, as chosen beside Train. Machines that are switched on here join it there, if "
    "Tandem has set them up by itself. This computer takes no part."
)
_ABOUT_CLUSTER: Final = (
    "Train starts the run on {place}, as chosen beside Train, where Slurm starts its processes: no machine of this "
    "list joins it."
)
WIDTH: Final = 460  # unscaled pixels
_FIELDS: Final = (
    ("name", "Name", "beta", ""),
    ("target", "ssh connects to", "me@10.0.0.2", "user@host, or a name of your ~/.ssh/config"),
    ("port", "Port", "22", "Empty: as in ~/.ssh/config"),
    ("key", "Private key", "~/.ssh/rented", "A file on this computer. Empty: as ssh chooses"),
    ("folder", "Tandem's folder there", "~/tandem", ""),
    ("python", "Python there", DEFAULT_PYTHON, "Empty: the one that ./scripts/setup.sh installed"),
    (
        "settings",
        "Settings of that machine",
        "concepts.0.path=/data/cats",
        "NAME=VALUE, separated by spaces; for other paths there",
    ),
    (
        "slurm",
        "Options for Slurm",
        "--partition gpu --gpus 4 --time 1-0",
        "Of a cluster's login node: runs wait in its queue. Empty: no cluster",
    ),
    ("price", "Price per hour", "1.89", "To see what runs have cost. Empty: not known"),
    ("stop_after", "Stop after hours", "5", "Of each start; then it backs up and pauses. Empty: no limit"),
    ("then", "Then run here", "vastai stop instance 1234", "Once all results are here, verified. Empty: nothing"),
    ("idle_minutes", "After idle minutes", "20", "In which nothing has gone on there. Empty: runs at once"),
)
_ONLY_FOR_RUNS: Final = 5  # the last fields
_FOR_RUNS: Final = {  # of a machine that Tandem sets up by itself
    "target": (
        "Address",
        "root@203.0.113.7",
        "user@address, a name of your ~/.ssh/config, or a whole line ssh -p …",
    ),
    "folder": ("Folder there", DEFAULT_FOLDER, "For Tandem alone: new or empty, on a disk that stays when it is off"),
    "python": ("Python there", "/venv/main/bin/python", "Empty: Tandem installs its own. Else one that has torch"),
}
_DIFFERENCES: Final = "Train even if Tandem's code or versions there differ; results may vary"


class HostsCard:
    """A card of the Multi-GPU section. A switch sets the number of machines as well, in the settings."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        self.frame = card(parent)
        self._state = state
        self.hosts: list[Host] = []
        self._fault = ""  # of the list's file
        self.switches: dict[str, Switch] = {}
        self.results: dict[str, tuple[str, theme.Colour]] = {}
        self._labels: dict[str, tk.Label] = {}
        head = frame(self.frame)
        head.pack(fill="x", padx=theme.px(16), pady=(theme.px(12), theme.px(4)))
        text(head, "Other machines (ssh)", "heading").pack(side="left")
        Button(head, "Add…", self.add, bg=theme.CARD).pack(side="right")
        self._about = self._line(_ABOUT, theme.MUTED)
        self._rows = frame(self.frame)
        self._rows.pack(fill="x", padx=theme.px(16), pady=(theme.px(8), theme.px(6)))
        self.effect = self._line("", theme.MUTED)
        self.read()
        state.subscribe("run", self.refresh, self.frame)  # where Train starts the run

    def read(self) -> None:
        """Show the list as it is on the disk."""
        former = self.hosts
        try:
            self.hosts = read_hosts()
            self._fault = ""
        except ConfigError as error:
            self.hosts, self._fault = [], str(error)
        if self.hosts != former:
            self._build()
        self.refresh()

    def refresh(self) -> None:
        """Show what the switches do with the current settings."""
        for name, switch_of in self.switches.items():
            switch_of.show(name in self.on)
        place = self._state.preferences.place
        about = _ABOUT if not place else _ABOUT_CLUSTER if is_cluster(place) else _ABOUT_PLACE
        self._about.configure(text=about.format(place=place))
        self._show_effect(*((self._fault, theme.BAD) if self._fault else self._describe_effect()))

    def add(self) -> None:
        """Ask for a machine."""
        HostDialog(self.frame, self._added).show()

    def change(self, host: Host) -> None:
        """Show its entry, to be changed."""
        HostDialog(self.frame, self._added, host, self._state, for_runs=is_for_runs(host)).show()

    def remove(self, host: Host) -> None:
        """Take it off the list, after a question if runs are there, or are to be."""
        if is_for_runs(host) or queued_for(host.name, runs_dirs_of(self._state)):
            keep = partial(self._show_result, host.name, *self.results.get(host.name, (host.folder, theme.MUTED)))
            self._show_result(host.name, "Looking what is there…", theme.MUTED)
            ask_to_remove(self.frame, self._state, host, partial(self._remove, host), keep)
        else:
            self._remove(host)

    def _remove(self, host: Host) -> None:
        self._switch(host.name, False)
        if fault := take_off_list(self._state, host):
            self._show_result(host.name, fault, theme.BAD)
        self.read()

    def test(self, host: Host) -> None:
        """Test it in the background; the result appears below its name."""
        self._show_result(host.name, "Connecting…", theme.MUTED)
        self._state.background.run(partial(check_host, host), self._tested)

    @property
    def on(self) -> list[str]:
        """The machines that are switched on, in the order of the list."""
        return switched_on(self._state, self.hosts)

    def _tested(self, check: HostCheck) -> None:
        colour = theme.BAD if check.fault else theme.GOOD
        self._show_result(check.host.name, str(check) if check.fault else f"Ready: {check}", colour)

    def _added(self, host: Host) -> None:
        self.read()
        self.test(host)

    def _switch(self, name: str, is_on: bool) -> None:
        """Remember the switch, or say why it cannot be on."""
        host = next(host for host in self.hosts if host.name == name)
        if is_on and not can_join(self._state, host):
            self._state.say(f"{self._tooltip(host)}.")
        else:
            switch(self._state, self.hosts, name, is_on)
        self.refresh()
        self._state.notify("run")  # the menu beside Train says who joins

    def _describe_effect(self) -> tuple[str, theme.Colour]:
        names, machines, place = self.on, machine_count(self._state), self._state.preferences.place
        if not names or machines is None:
            return "", theme.MUTED
        if machines < 2 or self._state.draft.get("enable_multi_gpu") is not True:
            alone = f"{place or 'this machine'} alone"
            return f"“Number of machines” is 1 or multi-GPU is off, so Train uses {alone}.", theme.WARN
        started, left, by_hand = names[: machines - 1], names[machines - 1 :], machines - 1 - len(names)
        sentence = f"Train starts {' and '.join(started)}, {machines} machines in all."
        if place:
            join = "joins" if len(started) == 1 else "join"
            sentence = f"Train starts the run on {place}, and {named(started)} {join} it there."
            if by_hand > 0:
                return f"{sentence} “Number of machines” is {machines}: set {len(names) + 1}.", theme.WARN
        if left:
            stays = "stays" if len(left) == 1 else "stay"
            return f"{sentence} {' and '.join(left)} {stays} out: raise “Number of machines”.", theme.WARN
        if by_hand > 0:
            sentence += f" {by_hand} more {'joins' if by_hand == 1 else 'join'} with the line that the run shows."
        return sentence, theme.MUTED

    def _build(self) -> None:
        for child in self._rows.winfo_children():
            child.destroy()
        self._rows.configure(height=1)  # Tk keeps the height of a frame that has become empty
        self.switches.clear()
        self._labels.clear()
        for host in self.hosts:
            self._row(host)

    def _row(self, host: Host) -> None:
        row = frame(self._rows)
        row.pack(fill="x", pady=(0, theme.px(10)))
        line = frame(row)
        line.pack(fill="x")
        switch_of = Switch(line, partial(self._switch, host.name))
        switch_of.pack(side="left", padx=(0, theme.px(10)))
        add_tooltip(switch_of, lambda: self._tooltip(host))
        self.switches[host.name] = switch_of
        for icon, tooltip, action in (("trash", "Remove", self.remove), ("more", "Change", self.change)):
            Button(
                line, icon=icon, command=partial(action, host), style="quiet", bg=theme.CARD, tooltip=tooltip
            ).pack(side="right")  # fmt: skip
        Button(line, "Test", partial(self.test, host), bg=theme.CARD).pack(side="right", padx=(8, 4))
        text(line, host.name, "strong").pack(side="left")
        where = host.target if host.port is None else f"{host.target}, port {host.port}"
        address = text(line, where, "small", colour=theme.MUTED)
        address.pack(side="left", padx=theme.px(8), fill="x", expand=True)
        address.bind("<Configure>", partial(_shorten, address, where), add="+")
        result = text(row, "", "small")
        wrap_within(result, row, margin=0)
        result.pack(fill="x", pady=(theme.px(2), 0))
        self._labels[host.name] = result
        self._show_result(host.name, *self.results.get(host.name, (host.folder, theme.MUTED)))

    def _tooltip(self, host: Host) -> str:
        place = self._state.preferences.place
        if not place:
            return f"Whether Train starts {host.name}"
        if host.name == place:
            return "Train starts the run here"
        if host.slurm or is_cluster(place):
            cluster = host.name if host.slurm else place
            return f"{cluster} is a Slurm cluster, which starts the processes of a run on its own nodes"
        joins = f"Whether {host.name} joins the run on {place}"
        return joins if is_for_runs(host) else f"{host.name} was set up by hand, and joins only runs on this computer"

    def _show_result(self, name: str, sentence: str, colour: theme.Colour) -> None:
        self.results[name] = (sentence, colour)
        label = self._labels.get(name)
        if label is not None and label.winfo_exists():
            theme.paint(label, fg=colour)
            label.configure(text=sentence)

    def _show_effect(self, sentence: str, colour: theme.Colour) -> None:
        theme.paint(self.effect, fg=colour)
        self.effect.configure(text=sentence)
        if sentence:
            self.effect.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(14)))
        else:
            self.effect.pack_forget()  # no empty line at the end of the card

    def _line(self, content: str, colour: theme.Colour) -> tk.Label:
        label = text(self.frame, content, "small", colour=colour)
        wrap_within(label, self.frame)
        label.pack(fill="x", padx=theme.px(16))
        return label


def _shorten(label: tk.Label, content: str, event: tk.Event[tk.Misc]) -> None:
    """Show as much of the text as there is room for."""
    label.configure(text=fit(label, content, theme.tk_font("small"), event.width))


def _number(given: Mapping[str, str], name: str, what: str) -> float:
    """Of a field that may be empty. Raises ConfigError."""
    typed = given.get(name, "").replace(",", ".") or "0"
    try:
        return float(typed)
    except ValueError:
        raise ConfigError(f"host: {name} is {typed!r}; use {what}, or leave it empty") from None


def runs_dirs_of(state: AppState) -> list[Path]:
    """The folders whose runs the window lists."""
    return [state.runs_dir, *map(Path, state.preferences.runs_folders)]


def take_off_list(state: AppState, host: Host) -> str:
    """Forget a machine; why not, if it cannot be done."""
    if state.preferences.place == host.name:
        state.preferences.place = ""
        state.preferences.save()
        state.notify("run")
    try:
        remove_host(host.name)
    except ConfigError as error:  # seen only if it is still there: somebody else may have removed it
        return str(error)
    return ""


def ask_to_remove(
    owner: tk.Misc, state: AppState, host: Host, remove: Callable[[], object], keep: Callable[[], object]
) -> None:
    """Ask whether a machine on which Tandem keeps something is to be taken off the list, and say what that is."""

    def found(known: str) -> None:
        if not known:
            remove()
            return
        choices = (Choice("", "Keep", style="accent"), Choice("remove", "Remove", style="danger"))
        question = f"{known}\n\nNothing changes there, and the window forgets it."
        if is_for_runs(host):
            question += f" To remove what is there first: “What is on {host.name}…” in the menu beside Train."
        ask(owner, f"Remove {host.name}?", question, choices, lambda answer: remove() if answer else keep())

    look = partial(known_there, host, lambda line: None, runs_dirs_of(state))
    state.background.run(look, found, found)


class HostDialog:
    """`saved` is called with the machine once it is in the list; `former` is the one to change, whose name `state` may
    have. One that is `for_runs` is set up by Tandem itself."""

    def __init__(
        self,
        owner: tk.Misc,
        saved: Callable[[Host], object],
        former: Host | None = None,
        state: AppState | None = None,
        *,
        for_runs: bool = False,
    ) -> None:
        self._saved, self._former, self._state, self._for_runs = saved, former, state, for_runs
        about = "ssh must reach it without a question: connect to it once by hand, and copy your key with ssh-copy-id."
        if for_runs:
            about = "A machine with GPUs that ssh reaches, rented or your own. Runs there need no connection."
        self.dialog = Dialog(owner, "Add a machine" if former is None else f"Change {former.name}", about)
        self.message = text(self.dialog.body, "", "small", colour=theme.BAD, wrap=WIDTH + 60)
        self.message.pack(side="bottom", anchor="w", pady=(theme.px(8), 0))  # before the fields, which give way to it
        area = Scroll(self.dialog.body, theme.CARD)
        area.pack(fill="both", expand=True)
        body = area.inside
        body.grid_columnconfigure(1, weight=1)
        self.entries: dict[str, Entry] = {}
        for row, (name, *words) in enumerate(_FIELDS if for_runs else _FIELDS[:-_ONLY_FOR_RUNS]):
            title, example, explanation = _FOR_RUNS.get(name, words) if for_runs else words
            text(body, title).grid(row=row, column=0, sticky="nw", padx=(0, theme.px(16)), pady=theme.px(10))
            place = frame(body)
            place.grid(row=row, column=1, sticky="ew", padx=(Switch.RING, 0), pady=theme.px(4))
            self.entries[name] = Entry(place, width=WIDTH - 120, placeholder=example)
            self.entries[name].pack(fill="x")
            if explanation:
                text(place, explanation, "small", colour=theme.MUTED).pack(anchor="w", pady=(theme.px(2), 0))
        self.allow_differences = Switch(body, lambda _: None)
        if not for_runs:
            self._ask_for_differences(body)
        area.ask_for_all()
        if former is not None:
            self._fill(former)
        self.dialog.button("Cancel", self.dialog.close)
        self.dialog.button("Connect" if for_runs else "Save and test", self.save, "accent")
        self.dialog.on_return(self.save)

    def _ask_for_differences(self, body: tk.Misc) -> None:
        row = len(_FIELDS)
        text(body, "Allow differences").grid(row=row, column=0, sticky="nw", padx=(0, theme.px(16)), pady=theme.px(4))
        place = frame(body)
        place.grid(row=row, column=1, sticky="ew", pady=theme.px(4))
        self.allow_differences = Switch(place, lambda _: None)
        self.allow_differences.pack(anchor="w")
        text(place, _DIFFERENCES, "small", colour=theme.MUTED).pack(
            anchor="w", padx=(Switch.RING, 0), pady=(theme.px(2), 0)
        )

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
            if self._former is not None and self._state is not None:
                self._state.preferences.rename_host(self._former.name, host.name)
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
        if self._former is None or self._state is None or name == self._former.name:
            return
        if copies := copies_of(self._former.name, complete=False, runs_dirs=runs_dirs_of(self._state)):
            raise ConfigError(
                f"host: name is {name!r}, and {copies[0].name} is still on {self._former.name}, by which its copy here "
                "knows the machine; press Continue until its results are here, or leave the name"
            )
        if waiting := waiting_command(self._former.name):
            raise ConfigError(f"host: name is {name!r}, and a command waits for {self._former.name}: {waiting[1]}")

    def _host(self) -> Host:
        given = {name: entry.get().strip() for name, entry in self.entries.items()}
        if self._for_runs:
            given |= fields_of_ssh_line(given["target"])
        port = given["port"]
        if port and not (port.isascii() and port.isdecimal() and len(port) < 6):
            raise ConfigError(f"host: port is {port!r}; use a number from 1 to 65535, or leave it empty")
        try:
            settings = shlex.split(given["settings"])
        except ValueError as error:
            advice = "put a value with spaces between two quotation marks, such as 'cache_dir=/my disk/cache'"
            raise ConfigError(f"host: settings is {given['settings']!r}; {advice}") from error
        slurm = given.get("slurm", "")
        try:
            job = words_for_each_start(shlex.split(slurm)) if slurm else []
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"host: slurm is {printable(slurm, 200)!r}; {error}") from error
        make = host_for_runs if self._for_runs else partial(Host.make, allow_differences=self.allow_differences.get())
        return make(
            given["name"],
            given["target"],
            folder=given["folder"],
            key=given["key"],
            port=int(port) if port else None,
            python=given["python"],
            settings=settings,
            slurm=job,
            price=_number(given, "price", "what an hour costs, such as 1.89"),
            stop_after=_number(given, "stop_after", "hours, such as 5"),
            then=given.get("then", ""),
            idle_minutes=_number(given, "idle_minutes", "minutes, such as 20"),
        )

    def _fill(self, host: Host) -> None:
        shown = {
            "name": host.name,
            "target": host.target,
            "port": "" if host.port is None else str(host.port),
            "key": host.key,
            "folder": home_of(host) if self._for_runs else host.folder,
            "python": host.python,
            "settings": shlex.join(host.settings),
            "slurm": shlex.join(host.slurm),
            "price": f"{host.price:g}" if host.price else "",
            "stop_after": f"{host.stop_after:g}" if host.stop_after else "",
            "then": host.then,
            "idle_minutes": f"{host.idle_minutes:g}" if host.idle_minutes else "",
        }
        for name, entry in self.entries.items():
            entry.show(shown[name])
        self.allow_differences.show(host.allow_differences)
