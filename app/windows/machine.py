"""A machine on which Train starts runs: added, set up, asked what it would do, looked at and cleaned."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from app.multi_gpu.hosts_card import HostDialog, ask_to_remove, runs_dirs_of, take_off_list
from app.multi_gpu.joining import joining
from app.shell.ask import Choice, ask
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, frame, text, wrap_within
from app.widgets.copy_text import CopyText
from app.widgets.scroll import Scroll
from app.windows.child_program import OutputWindow
from app.windows.dialog import Dialog
from modules import ROOT
from modules.config import TandemError
from modules.files import printable
from modules.run.hosts.host import Host
from modules.run.hosts.host_key import HostKey, keep_key, shown_key
from modules.run.hosts.ssh_command import ChangedKey, KeyRefused, UnknownKey, copy_key_command, forget_key_command
from modules.run.remote.copy_folders import copies_of
from modules.run.remote.kept_commands import call_off, what_waits
from modules.run.remote.link import home_of
from modules.run.remote.machine import (
    RunsThere,
    clean,
    named_for_removal,
    queued_for,
    runs_there,
    time_and_cost,
    why_not_set_up,
)

_SCRIPT: Final = ROOT / "scripts" / "remote.py"
_WIDTH, _RUNS_HEIGHT, _CALL_OFF = 620, 220, 110  # unscaled pixels; the last is the width of a button
_COMPARE: Final = (
    "It is new to this computer. Compare the fingerprint with the one that its owner, or the page where it was rented, "
    "shows. If they differ, somebody else answers."
)
_KEY_THERE: Final = (
    "Tandem never types a password, and this machine accepts none of your keys. If you can log in with a password, run "
    "the line below once in a terminal and type it there. Of a rented machine, put your public key (a file .pub in "
    "~/.ssh) on the page where you rent it. A key with a passphrase must be in ssh-agent (ssh-add)."
)

_CHANGED_KEY: Final = (
    "It is not the key that is known here, so somebody else may be answering. If the machine was set up anew, or its "
    "address belonged to another one before, have the old key forgotten with the line below, and try again: the new "
    "one is shown, to be compared."
)


def _silent(_line: str) -> None:
    """What is told of a connection that is made again is no news here."""


class AddMachine:
    """Asks for a machine, connects to it, shows its host key if it is new here, and offers to set it up."""

    def __init__(self, owner: tk.Misc, state: AppState) -> None:
        self._owner, self._state = owner, state

    def start(self) -> None:
        """Ask for it."""
        HostDialog(self._owner, self.connect, for_runs=True).show()

    def connect(self, host: Host) -> None:
        """Connect to a machine of the list, and go on with what it needs."""
        self._state.say(f"Connecting to {host.name}…")
        self._state.background.run(partial(_look, host), partial(self._looked, host))

    def _looked(self, host: Host, found: str | HostKey | TandemError) -> None:
        self._state.say("")
        if isinstance(found, HostKey):
            self._compare(host, found)
        elif isinstance(found, KeyRefused):
            self._show_refusal(host)
        elif isinstance(found, ChangedKey):
            self._ask_for_line(host, f"{host.name} shows another host key", _CHANGED_KEY, forget_key_command(host))
        elif isinstance(found, TandemError):
            choices = (
                Choice("", "Close"),
                Choice("change", "Change…"),
                Choice("again", "Try again", style="accent"),
            )
            ask(self._owner, f"No connection to {host.name}", str(found), choices, partial(self._chosen, host))
        elif found:
            ask_to_set_up(self._owner, self._state, host, found, partial(self._choose, host))
        else:
            self._choose(host)

    def _chosen(self, host: Host, answer: str) -> None:
        if answer == "again":
            self.connect(host)
        elif answer == "change":
            HostDialog(self._owner, self.connect, host, self._state, for_runs=True).show()

    def _choose(self, host: Host) -> None:
        if host.name in joining(self._state):
            self._state.say(f"{host.name} is ready: it joins the runs on {self._state.preferences.place}.")
            return
        self._state.preferences.place = host.name
        self._state.preferences.save()
        self._state.place.refresh()
        self._state.notify("run")
        self._state.say(f"{host.name} is ready: Train starts runs there.")

    def _compare(self, host: Host, key: HostKey) -> None:
        def answered(answer: str) -> None:
            if answer:
                self._state.background.run(partial(keep_key, host, key), lambda _: self.connect(host), self._state.say)

        choices = (Choice("", "Cancel"), Choice("trust", "It is the same", style="accent"))
        port = "" if host.port is None else f", port {host.port},"
        question = f"{host.target}{port} shows this host key:\n\n{key.fingerprint}\n\n{_COMPARE}"
        ask(self._owner, f"Is this {host.name}?", question, choices, answered)

    def _show_refusal(self, host: Host) -> None:
        self._ask_for_line(host, f"{host.name} does not accept your key", _KEY_THERE, copy_key_command(host))

    def _ask_for_line(self, host: Host, title: str, why: str, line: str) -> None:
        dialog = Dialog(self._owner, title, why, wide=True)
        frame(dialog.body).pack(padx=theme.px(_WIDTH // 2))  # as wide as that
        CopyText(dialog.body, "In a terminal:", line).pack(fill="x")

        def choose(answer: str) -> None:
            dialog.close()
            self._chosen(host, answer)

        dialog.button("Close", dialog.close)
        dialog.button("Change…", partial(choose, "change"))
        dialog.button("Try again", partial(choose, "again"), "accent")
        dialog.show()


def _look(host: Host) -> str | HostKey | TandemError:
    """Why the machine must be set up, or ""; its key, if that is new here; or why there is no connection."""
    try:
        return why_not_set_up(host)
    except UnknownKey:
        try:
            return shown_key(host)
        except TandemError as error:
            return error
    except TandemError as error:
        return error


def ask_to_set_up(owner: tk.Misc, state: AppState, host: Host, why: str, then: Callable[[], object]) -> None:
    """Ask whether Tandem is to be set up on a machine; `then` follows once it is."""

    def answered(answer: str) -> None:
        if answer:
            SetUpWindow(owner, state, host, then).show()

    installs = f"uses {host.python}" if host.python else "installs an environment of several GB, which takes minutes"
    sends = f"Setting up sends Tandem's programs to {home_of(host)} there and {installs}."
    question = f"{why} {sends} “What is on {host.name}…” beside Train removes all of it."
    choices = (Choice("", "Later"), Choice("set up", "Set up", style="accent"))
    ask(owner, f"Set up {host.name}?", question, choices, answered)


class _RemoteWindow(OutputWindow):
    """Runs `remote.py` for a machine and shows what it says; the button starts it `again`."""

    def __init__(self, parent: tk.Misc, state: AppState, host: Host, title: str, about: str, again: str) -> None:
        super().__init__(parent, state, title, f"{host.target}. {about}", again)
        self._host = host


class CheckWindow(_RemoteWindow):
    """Runs `remote.py check` with the current settings."""

    def __init__(self, parent: tk.Misc, state: AppState, host: Host) -> None:
        about = "What Train would do there, and whether it fits the memory of its GPUs. Nothing is started."
        super().__init__(parent, state, host, f"Checking the settings on {host.name}", about, "Check again")

    def start(self) -> None:
        """Check the settings as they are now."""
        if (config := self.settings()) is None:
            self.button.configure(text=self.again)
            return
        others = joining(self.state) if self._host.name == self.state.preferences.place else []
        more = ["--with", ",".join(others)] if others else []
        self.run_shown("Checking…", _SCRIPT, ["check", self._host.name, self.saved(config), *more])

    def ended(self, exit_code: int, output: str) -> None:
        """Say what came of it."""
        super().ended(exit_code, output)
        if self.is_stopping:
            self.show_status("Stopped.", theme.MUTED)
            return
        last = output.strip().splitlines()[-1:] or ["It has ended without a word."]
        colour = theme.BAD if exit_code else theme.WARN if "\nWarning: " in output else theme.GOOD
        self.show_status(printable(last[0], 500), colour)


class SetUpWindow(_RemoteWindow):
    """Runs `remote.py setup`, which may be stopped and repeated; `then` follows once all is there."""

    def __init__(self, parent: tk.Misc, state: AppState, host: Host, then: Callable[[], object] | None) -> None:
        about = "It may be stopped, and goes on where it was."
        super().__init__(parent, state, host, f"Setting up {host.name}", about, "Set up again")
        self._then = then

    def start(self) -> None:
        """Begin, or go on."""
        self.run_shown("Setting up…", _SCRIPT, ["setup", self._host.name])

    def ended(self, exit_code: int, output: str) -> None:
        """Go on, or say why it has failed."""
        super().ended(exit_code, output)
        last = output.strip().splitlines()[-1:] or ["It has ended without a word."]
        if exit_code:
            stopped = ("Stopped. “Set up again” goes on.", theme.MUTED)
            self.show_status(*(stopped if self.is_stopping else (printable(last[0], 500), theme.BAD)))
        elif warnings := [line for line in output.splitlines() if line.startswith(("Note: ", "Warning: "))]:
            said = "\n".join([f"{self._host.name} is ready, but:", *warnings])
            self.show_status(printable(said, lines=True), theme.WARN)
            if self._then is not None:
                self.button.configure(text="Go on", command=self._go_on)
        elif self._then is None:
            self.show_status(printable(last[0], 500), theme.GOOD)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self.dialog.close()
        if self._then is not None:
            self._then()


class MachineWindow:
    """What Tandem keeps on a machine, and what removes it."""

    def __init__(self, owner: tk.Misc, state: AppState, host: Host) -> None:
        self._owner, self._state, self._host = owner, state, host
        self._names: list[str] = []  # of the runs there
        self.dialog = Dialog(owner, host.name, f"{host.target}, in {home_of(host)}. What came here stays here.")
        self.status = text(self.dialog.body, "Connecting…", colour=theme.MUTED)
        self.status.pack(fill="x", pady=(0, theme.px(8)))
        wrap_within(self.status, self.dialog.body, margin=0)
        self._waiting = frame(self.dialog.body)
        self._place = place = frame(self.dialog.body)
        place.configure(width=theme.px(_WIDTH), height=theme.px(_RUNS_HEIGHT))
        place.pack_propagate(False)
        place.pack(fill="both", expand=True)
        area = Scroll(place, theme.CARD)
        area.pack(fill="both", expand=True)
        self._rows = area.inside
        self.dialog.button("Close", self.dialog.close)
        self.dialog.button("Change…", self._change)
        self.dialog.button("Set up again", self._set_up)
        self.dialog.button("Remove from list…", self._forget)
        self.data = self.dialog.button("Clean data…", partial(self._remove, "", False))
        self.all = self.dialog.button("Clean all…", partial(self._remove, "", True), "danger")

    def show(self) -> tk.Toplevel:
        """Open it and look there."""
        window = self.dialog.show()
        self.look()
        return window

    def look(self, done: str = "") -> None:
        """Ask the machine; what was `done` there stays in sight."""

        def found(there: RunsThere) -> None:
            self._say(done or str(there), theme.GOOD if done else theme.MUTED)
            self._show(there)

        self._state.background.run(partial(what_waits, self._host.name), self._show_waiting, self._say_fault)
        self._state.background.run(partial(runs_there, self._host, _silent), found, self._say_fault)

    def _clear(self) -> None:
        for child in self._rows.winfo_children():
            child.destroy()

    def _show_waiting(self, waits: str) -> None:
        """The command that `waits` until the machine is idle, which needs no connection."""
        for child in self._waiting.winfo_children():
            child.destroy()
        if waits:
            Button(self._waiting, "Call off", self._call_off, bg=theme.CARD).pack(side="right")
            said = text(self._waiting, waits, "small")
            wrap_within(said, self._waiting, margin=_CALL_OFF)
            said.pack(side="left", fill="x", pady=(0, theme.px(4)))
            self._waiting.pack(fill="x", before=self._place)
        else:
            self._waiting.pack_forget()

    def _show(self, found: RunsThere) -> None:
        """All runs."""
        self._clear()
        self._names = [run.name for run in found.runs]
        for run in reversed(found.runs):
            row = frame(self._rows)
            row.pack(fill="x", pady=(0, theme.px(4)))
            remove = Button(
                row, icon="trash", command=partial(self._remove, run.name, False), style="quiet", bg=theme.CARD
            )
            remove.pack(side="right")
            text(row, printable(run.name, 60), "strong").pack(side="left")
            text(row, f"{run}, {time_and_cost(run.seconds, self._host)}", "small", colour=theme.MUTED).pack(
                side="left", padx=theme.px(10)
            )

    def _call_off(self) -> None:
        self._state.background.run(partial(call_off, self._host.name), self.look, self._say_fault)

    def _say(self, sentence: str, colour: theme.Colour) -> None:
        theme.paint(self.status, fg=colour)
        self.status.configure(text=sentence)

    def _say_fault(self, why: str) -> None:
        self._say(why, theme.BAD)

    def _change(self) -> None:
        self.dialog.close()
        connect = AddMachine(self._owner, self._state).connect
        HostDialog(self._owner, connect, self._host, self._state, for_runs=True).show()

    def _forget(self) -> None:
        self._say("Looking what is there…", theme.MUTED)
        ask_to_remove(self._owner, self._state, self._host, self._forgotten, self.look)

    def _forgotten(self) -> None:
        fault = take_off_list(self._state, self._host)
        if fault:
            self._say_fault(fault)
            return
        self.dialog.close()
        self._state.say(f"{self._host.name} is not in the list of machines any more.")

    def _set_up(self) -> None:
        self.dialog.close()
        SetUpWindow(self._owner, self._state, self._host, None).show()

    def _remove(self, run: str, everything: bool) -> None:
        what = named_for_removal(run, everything=everything)

        def answered(answer: str) -> None:
            if answer:
                self._say("Removing…", theme.MUTED)
                work = partial(clean, self._host, run, everything=everything, echo=_silent)
                self._state.background.run(work, partial(self._removed, everything), self._say_fault)

        choices = (Choice("", "Keep", style="accent"), Choice("remove", "Remove", style="danger"))
        question = f"This removes {what}, in {home_of(self._host)} on {self._host}. What came here stays here."
        if names := self._not_brought([run] if run else self._names if everything else []):
            question = f"{question}\n\nNot on this computer yet: the results of {', '.join(names)}."
        if everything and (queued := queued_for(self._host.name, runs_dirs_of(self._state))):
            question = f"{question}\n\n{queued}"
        ask(self._owner, f"Clean {self._host.name}?", question, choices, answered)

    def _not_brought(self, names: Sequence[str]) -> list[str]:
        """Those of the runs there of which no copy here has all results."""
        here = {
            folder.name for folder in copies_of(self._host.name, complete=True, runs_dirs=runs_dirs_of(self._state))
        }
        return [printable(name, 60) for name in names if name not in here]

    def _removed(self, everything: bool, said: str) -> None:
        self._say(said, theme.GOOD)
        self._state.say(said.split("\n")[0])
        self._clear()
        if not everything:  # else nothing is left to look at
            self.look(said)
