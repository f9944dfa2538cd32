"""State shared by all parts of the window, and its change notifications. Main thread only."""

from __future__ import annotations

import tkinter as tk
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from app.background import Background
from app.draft import Draft
from app.family_loader import FamilyLoader
from app.place import Place
from app.preferences import Preferences
from app.runs.control import RunControl
from app.slices import Slices
from modules.config import TrainConfig
from modules.files import control_character
from modules.run import RunFolder
from modules.run.join.join_token import NextToken
from modules.run.view.event_records import SampleFile

if TYPE_CHECKING:
    from app.annotate.job import AnnotateJob
    from app.generate.job import GenerateJob
    from app.images.captions import Changes
    from app.tools.duplicates import Duplicates
    from app.tools.job import ModelJob
    from app.tools.line_program import LineProgram
    from modules.files.trash import Trashed
    from modules.run.queue.entries import Queue
    from modules.run.queue.folder import RunQueue


class QueueFollower(Protocol):
    """Knows how many entries of the queue wait, and follows what it starts: app/runs/queue_watch.py."""

    def refresh(self) -> None: ...

    def follow(self, queue: RunQueue, found: Queue) -> None: ...


class RunStarter(Protocol):
    """Starts and follows runs: app/runs/actions.py."""

    def follow(self, path: Path) -> None: ...
    def train(self) -> None: ...
    def enqueue(self) -> None: ...
    def resume(self) -> None: ...
    def resume_in(self, folder: RunFolder) -> None: ...


class Views(Protocol):
    """Opens what stands elsewhere in the window: app/shell/views.py."""

    asked: Any

    def multi_node(self) -> None: ...
    def preflight(self) -> None: ...
    def batch_size(self) -> None: ...
    def benchmark(self) -> None: ...
    def error(self) -> None: ...
    def run(self) -> None: ...
    def log(self) -> None: ...
    def sample(self, sample: SampleFile) -> None: ...
    def custom_sample(self) -> None: ...
    def result(self) -> None: ...
    def notifications(self) -> None: ...
    def add_machine(self) -> None: ...
    def connect(self, name: str) -> None: ...
    def machine(self, name: str) -> None: ...
    def check_there(self, name: str) -> None: ...
    def kubernetes(self) -> None: ...
    def set_up(self, name: str, why: str, then: Callable[[], object]) -> None: ...
    def generate(
        self, folder: RunFolder | None = None, fields: Mapping[str, object] | None = None, step: int | None = None
    ) -> None: ...
    def problems(self) -> None: ...
    def annotate(self, folder: Path | None) -> None: ...


class ConfigFiles(Protocol):
    """Opens settings, and asks about unsaved changes before: app/shell/files.py."""

    def open_copy(self, config: TrainConfig, name: str) -> None: ...
    def train_further(self, config: TrainConfig, folder: Path) -> None: ...


Topic = Literal["draft", "faults", "family", "run", "place", "theme", "jump", "invalid", "page", "captions"]


class AppState:
    """The draft of the config, the followed run, the preferences, and the listeners by topic.

    "draft": a value, the file or the history changed. "faults": the errors changed. "family": another family is being
    loaded, or has loaded. "run": another run is followed, or its state changed. "place": another machine is chosen,
    or more is known of its devices. "theme": the colours changed.
    "jump": `jump_to` was called. "invalid": Train was pressed while settings are invalid; the errors are to be listed.
    "page": another section or page is in sight. "captions": some were written or taken back for a page that a change of
    scale has replaced since.
    """

    def __init__(self, root: tk.Misc, preferences: Preferences) -> None:
        self.root = root
        self.preferences = preferences
        self.background = Background(root)
        self.slices = Slices(root)
        self.draft = Draft(self._draft_changed)
        self.family = FamilyLoader(root, self.background, self.draft, lambda: self.notify("family"))
        root.after_idle(self.family.refresh)
        self.run: RunControl | None = None
        self.queued = 0  # entries that wait in the queue, as far as that has been read
        self.queue_watch: QueueFollower  # set by the main window, as actions, files and views
        self.actions: RunStarter
        self.files: ConfigFiles
        self.views: Views
        # in the run bar, which sets it: a message, and what a click on it does
        self.say: Callable[..., object] = lambda message, action=None: None
        self.annotate_job: AnnotateJob | None = None  # as generate_job
        self.model_job: ModelJob | None = None  # as generate_job
        self.generate_job: GenerateJob | None = None  # outlives its page, which a change of scale builds anew
        self.programs: dict[str, LineProgram] = {}  # of the other pages that run one, as generate_job
        self.duplicates: Duplicates | None = None  # that have been found last
        self.trashed_runs: list[Trashed] = []  # by the last deletion
        self.trashed_images: list[list[Trashed]] = []  # by each deletion
        self.removed_entries: list[tuple[int, int]] = []  # of the queue, before they had started: number and place
        self.written_captions: list[Changes] = []  # what one press of Undo takes back, the last at the end
        self.second_window = ""  # says that another window is open, which has the session
        self.advanced = preferences.advanced
        self.jump_target = ""
        self.typed: defaultdict[str, dict[str, object]] = defaultdict(dict)  # form -> its fields; outlives it
        self.pages = preferences.pages  # of each section, the page in sight; outlives the section, too
        self.next_join_token = NextToken()
        self._listeners: dict[Topic, list[Callable[[], object]]] = defaultdict(list)
        self.place = Place(root, preferences, self.background, self.notify, self.subscribe)

    @property
    def runs_dir(self) -> Path:
        """The folder of runs in the settings; the usual one for what no folder can be called."""
        name = str(self.draft.get("runs_dir") or "")
        return Path(name if name and not control_character(name) else "runs")

    def close_jobs(self) -> None:
        """The window closes: end the programs that its pages have started, and follow no run any more."""
        if self.run is not None:
            self.run.detach()
        for job in (self.model_job, self.generate_job, self.annotate_job, *self.programs.values()):
            if job is not None:
                job.close()

    def subscribe(self, topic: Topic, callback: Callable[[], object], owner: tk.Misc | None = None) -> None:
        """Call `callback` at every change of the topic until `owner` is destroyed."""
        self._listeners[topic].append(callback)
        if owner is not None:
            # not owner.bind, which customtkinter's widgets forward to a canvas inside them
            tk.Misc.bind(owner, "<Destroy>", lambda event: self._unsubscribe(topic, callback, event, owner), add="+")

    def notify(self, topic: Topic) -> None:
        """Call all listeners of the topic."""
        for callback in list(self._listeners[topic]):
            callback()

    def jump_to(self, path: str) -> None:
        """Show the section of a setting, bring its field into view and mark it."""
        self.jump_target = path
        self.notify("jump")

    def set_page(self, section: str, page: str) -> None:
        """Remember which page of a section is in sight."""
        self.pages[section] = page
        self.notify("page")

    def _draft_changed(self, faults_too: bool) -> None:
        self.family.refresh()
        self.notify("draft")
        if faults_too:
            self.notify("faults")

    def _unsubscribe(
        self, topic: Topic, callback: Callable[[], object], event: tk.Event[tk.Misc], owner: tk.Misc
    ) -> None:
        if event.widget is owner and callback in self._listeners[topic]:
            self._listeners[topic].remove(callback)
