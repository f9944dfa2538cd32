"""What will be trained, and the memory that it takes on each device, on the page of the model."""

from __future__ import annotations

import json
import subprocess
import tkinter as tk
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from app.child_program import start_module
from app.form.setting_text import choice_title, with_titles
from app.place import planned_world_size
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import card, frame, text, wrap_within
from modules.config import TrainConfig, dump
from modules.files import decode_json, expand_home, printable
from modules.run.format_memory import format_memory
from modules.run.hosts.hardware import Hardware
from modules.run.queue.own_copy import own_copy
from modules.run.suggestions import BatchMemory

PAUSE_MS: Final = 2000  # after the last change
_METHODS: Final = {"fine_tune": "Fine-tuning of the weights themselves", "embedding": "Embedding of a new word"}
TIMEOUT_S: Final = 120
_UNKNOWN: Final = "The memory cannot be computed."
_MOST_CHARS: Final = 400


class MemoryCard:
    """The card `frame`; `refresh` after every change while it is in sight, `hide` when it is not."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        self.frame = card(parent)
        self.program = MemoryProgram()
        self.answer = MemoryAnswer()
        self._state = state
        self._config: TrainConfig | None = None
        self._machine: Hardware | None = None  # that the answer is for; None: this computer
        self._answered: TrainConfig | None = None
        self._is_busy = False
        self._request = 0
        self._job = ""
        text(self.frame, "What will be trained", "heading").pack(
            anchor="w", padx=theme.px(16), pady=(theme.px(12), theme.px(4))
        )
        self.facts = frame(self.frame)
        self.facts.grid_columnconfigure(0, weight=1)
        self.warning = text(self.frame, "", "small", colour=theme.WARN)
        wrap_within(self.warning, self.frame, margin=36)
        self.line = text(self.frame, "", "small", colour=theme.MUTED)
        wrap_within(self.line, self.frame, margin=36)
        self.line.pack(side="bottom", anchor="w", padx=theme.px(16), pady=(0, theme.px(14)))
        tk.Misc.bind(self.frame, "<Destroy>", self._destroyed, add="+")

    @property
    def is_current(self) -> bool:
        """Whether it shows the answer for the current settings."""
        return self._answered is not None and self._answered == self._config

    def refresh(self) -> None:
        """Compute again, a moment later, if the settings are valid and have changed."""
        config = self._state.draft.config
        if config is None:
            self.hide()
            self._config = None
            self.line.configure(text="Known once the settings are valid.")
            return
        machine = self._state.place.machine
        if (config, machine) == (self._config, self._machine):
            return
        self.hide()
        if machine != self._machine:
            self._machine, self._answered = machine, None
        self._config = config
        if self.is_current:
            self._show_facts(config)
            self._say()
            return
        # the numbers shown are those of earlier settings
        for label in self.facts.winfo_children():
            theme.paint(label, fg=theme.FAINT)
        self.line.configure(text="Computing the memory…")
        self._job = self.frame.after(PAUSE_MS, self._ask)

    def hide(self) -> None:
        """Compute nothing any more; what has failed is tried again when it is next in sight."""
        self._request += 1
        if self._job:
            self.frame.after_cancel(self._job)
            self._job = ""
        if self._is_busy:
            self.program.stop()
        if not self.answer.rows:
            self._answered = None
        if not self.is_current:
            self._config = None

    def _ask(self) -> None:
        self._job = ""
        request, config, machine = self._request, self._config, self._machine
        if self._is_busy or config is None:
            return  # `_show` asks again
        self._is_busy = True
        program = self.program = MemoryProgram()
        self._state.background.run(
            lambda: memory_answer(program, config, machine),
            lambda answer: self._show(request, config, answer),
            lambda reason: self._show(request, config, MemoryAnswer(error=reason)),
        )

    def _show(self, request: int, config: TrainConfig, answer: MemoryAnswer) -> None:
        self._is_busy = False
        if request != self._request:  # stale
            if not self._job and not self.is_current:
                self._ask()
            return
        self.answer, self._answered = answer, config
        self._show_facts(config)
        self._say()

    def _show_facts(self, config: TrainConfig) -> None:
        for child in self.facts.winfo_children():
            child.destroy()
        rows = facts(config, self.answer)
        for number, (title, value, is_main) in enumerate(rows):
            style: theme.FontName = "body" if is_main else "small"
            colour = theme.TEXT if is_main else theme.MUTED
            name = text(self.facts, title, style, colour=colour)
            name.grid(row=number, column=0, sticky="w", padx=(0 if is_main else theme.px(12), theme.px(32)))
            name.configure(wraplength=theme.px(300))
            text(self.facts, value, style, colour=colour).grid(row=number, column=1, sticky="ne")
        if rows:
            self.facts.pack(anchor="w", padx=theme.px(16), pady=(0, theme.px(6)))  # values stay near their titles
        else:
            self.facts.pack_forget()
        self.warning.configure(text="\n".join(map(with_titles, self.answer.problems)))
        if self.answer.problems:
            self.warning.pack(anchor="w", padx=theme.px(16), pady=(0, theme.px(6)))
        else:
            self.warning.pack_forget()

    def _say(self) -> None:
        said = with_titles(self.answer.error) or remark(self.answer)
        if self._machine is not None and self.answer.rows:
            ask = "" if self._machine.at else f" “Ask {self._machine.name}” under Multi-GPU changes that."
            said += f" {self._machine}{ask}"
        self.line.configure(text=said)

    def _destroyed(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self.frame:
            self.program.stop()


def remark(answer: MemoryAnswer) -> str:
    """What is to be known of the numbers."""
    if not answer.rows:
        return "Known once the model is loaded."
    parts = [
        "" if answer.has_activations else "Activations come on top: this model's are not known in advance.",
        "" if all(row.is_exact for row in answer.rows) else "≈ marks an estimate.",
        "Only tensors are counted; CUDA and the gaps between them take about 1 GiB more on a GPU.",
    ]
    return " ".join(filter(None, parts))


def facts(config: TrainConfig, answer: MemoryAnswer) -> list[tuple[str, str, bool]]:
    """(title, value, whether it is a main line) of each line."""
    if not answer.rows:
        return []
    lines = [("Parameters trained", f"{answer.trained:,}", True), ("Method", _method(config), True)]
    for title, place, phase in (
        ("Memory of each device", "device", "training"),
        ("While images are cached", "device", "caching"),
        ("Host memory, besides Python and torch", "host", "training"),
    ):
        rows = [row for row in answer.rows if (row.place, row.phase) == (place, phase)]
        if not rows:
            continue
        total = _total(rows)
        lines.append((title, total if total.startswith(("≈", "under")) else f"about {total}", True))
        if place == "device":
            lines += [(_what(row), _total([row]), False) for row in rows]
    return lines


def _method(config: TrainConfig) -> str:
    if config.method != "lora":
        return _METHODS[config.method]
    if config.lora_from:
        return "LoRA, continued from a file"
    name = choice_title("lora_algorithm", config.lora_algorithm)
    return name if config.lora_algorithm == "oft" else f"{name} of rank {config.lora_rank}"


def _what(row: Row) -> str:
    """With the optimizer by its title: "optimizer state (AdamW)"."""
    what, found, name = row.what.removesuffix(")").rpartition(" (")
    return f"{what} ({choice_title('optimizer.name', name)})" if found and row.what.endswith(")") else row.what


def _total(rows: list[Row]) -> str:
    shown = format_memory(sum(row.bytes for row in rows))
    return shown if all(row.is_exact for row in rows) else f"≈ {shown}"


def memory_answer(program: MemoryProgram, config: TrainConfig, machine: Hardware | None) -> MemoryAnswer:
    """On this computer, or on a machine. Slow: call it off the main thread. Raises ConfigError, OSError."""
    whole_paths = own_copy(config, expand_home(config.runs_dir).absolute(), None)
    return program.ask(dump(whole_paths), planned_world_size(config, machine), machine)


@dataclass(frozen=True)
class Row:
    """What is kept in `bytes` of one device, or of the host for each process."""

    what: str
    place: Literal["device", "host"]
    phase: Literal["training", "caching"]
    bytes: int
    is_exact: bool


@dataclass(frozen=True)
class MemoryAnswer:
    """`trained` parameters and the memory of one device; no rows if the model is not known before it is loaded."""

    rows: tuple[Row, ...] = ()
    has_activations: bool = False
    trained: int = 0
    problems: tuple[str, ...] = ()
    error: str = ""
    batch: BatchMemory | None = None  # None also if the activations are not known


class MemoryProgram:
    """Call `ask` once, off the main thread; `stop` from any thread, also before."""

    def __init__(self) -> None:
        self._is_stopped = False
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def ask(self, settings: Mapping[str, object], world_size: int, machine: Hardware | None = None) -> MemoryAnswer:
        """The answer for a whole config, after seconds; `stop` makes it one with an error. Raises OSError."""
        there = [] if machine is None else [machine.model_dump_json()]
        if self._is_stopped:
            return MemoryAnswer(error=_UNKNOWN)
        process = self._process = start_module("modules.training.memory_table", str(world_size), *there)
        if self._is_stopped:  # while it was being started
            process.kill()
        try:
            output, said = process.communicate(json.dumps(settings), TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return MemoryAnswer(error=_UNKNOWN)
        if process.returncode == 0:
            return _parsed(output)
        line = said.strip().partition("\n")[0]
        is_sentence = process.returncode > 0 and line and not line.startswith("Traceback")
        return MemoryAnswer(error=printable(line, _MOST_CHARS) if is_sentence else _UNKNOWN)

    def stop(self) -> None:
        """End the process, and start none any more."""
        self._is_stopped = True
        if self._process is not None:
            self._process.kill()


def _parsed(output: str) -> MemoryAnswer:
    """Raises nothing: an answer of another form is an error, too."""
    try:
        data = cast("dict[str, object]", decode_json(output))
        rows = cast("list[dict[str, object]]", data["rows"])
        return MemoryAnswer(
            tuple(
                Row(str(row["what"]), _place(row), _phase(row), int(str(row["bytes"])), bool(row["is_exact"]))
                for row in rows
            ),
            bool(data["has_activations"]),
            int(str(data.get("trained", 0))),
            tuple(map(str, cast("list[object]", data["problems"]))),
            batch=BatchMemory(**cast("dict[str, int]", data["batch"])) if data.get("batch") else None,
        )
    except (ValueError, KeyError, TypeError):
        return MemoryAnswer(error=_UNKNOWN)


def _place(row: Mapping[str, object]) -> Literal["device", "host"]:
    return "device" if row["place"] == "device" else "host"


def _phase(row: Mapping[str, object]) -> Literal["training", "caching"]:
    return "training" if row["phase"] == "training" else "caching"
