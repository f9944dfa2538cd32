"""What all parts of the window share, and how they hear of changes. Main thread only."""

from __future__ import annotations

import secrets
import tkinter as tk
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from app.background import Background
from app.draft import Draft
from app.family_watch import FamilyWatch
from app.preferences import Preferences

if TYPE_CHECKING:
    from app.run_actions import RunActions
    from app.run_control import RunControl

Topic = Literal["draft", "faults", "family", "run", "look", "jump", "missing"]


class AppState:
    """The draft of the config, the followed run, the preferences, and the listeners of each topic.

    "draft": a value, the file or the history changed. "faults": what is wrong changed. "family": another family is
    asked, or has answered. "run": another run is
    followed, or its state changed. "look": colours changed. "jump": `jump_to` was called.
    "missing": Train was pressed while settings are wrong; whoever lists them shows the list.
    """

    def __init__(self, root: tk.Misc, preferences: Preferences) -> None:
        self.root = root
        self.preferences = preferences
        self.background = Background(root)
        self.draft = Draft(self._draft_changed)
        self.family = FamilyWatch(root, self.background, self.draft, lambda: self.notify("family"))
        root.after_idle(self.family.look)
        self.run: RunControl | None = None
        self.actions: RunActions  # of the run bar, which is made before any section
        self.advanced = preferences.advanced
        self.jump_target = ""
        self.join_token = secrets.token_hex(8)  # of the runs on several machines that this window starts
        self._listeners: dict[Topic, list[Callable[[], object]]] = defaultdict(list)

    def subscribe(self, topic: Topic, callback: Callable[[], object], owner: tk.Misc | None = None) -> None:
        """Call back at every change of the topic, until `owner` is destroyed."""
        self._listeners[topic].append(callback)
        if owner is not None:
            # not owner.bind, which customtkinter's widgets hand on to a canvas inside them
            tk.Misc.bind(owner, "<Destroy>", lambda event: self._forget(topic, callback, event, owner), add="+")

    def notify(self, topic: Topic) -> None:
        """Tell all who listen to the topic."""
        for callback in list(self._listeners[topic]):
            callback()

    def jump_to(self, path: str) -> None:
        """Show the section of a setting, bring its field into view and mark it."""
        self.jump_target = path
        self.notify("jump")

    def _draft_changed(self, faults_too: bool) -> None:
        self.family.look()
        self.notify("draft")
        if faults_too:
            self.notify("faults")

    def _forget(self, topic: Topic, callback: Callable[[], object], event: tk.Event[tk.Misc], owner: tk.Misc) -> None:
        if event.widget is owner and callback in self._listeners[topic]:
            self._listeners[topic].remove(callback)
