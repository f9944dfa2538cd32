"""How often each noise level is trained, beside the settings of the timestep distribution."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tkinter as tk
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from app.curves.sketch import Curve, Sketch
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import card, text, wrap_within
from modules import ROOT
from modules.facts import family_names
from modules.files import FileFault, decode_json, expand_home

SETTINGS: Final = ("family", "family_options", "base_model", "resolution")
FIRST_MS: Final = 1500  # after the card came into sight: a window that opens has other work
PAUSE_MS: Final = 120  # after the last change
IDLE_MS: Final = 60_000  # after which the process of a hidden card ends
_DISTRIBUTIONS: Final = ("family_options.timestep_distribution", "family_options.timesteps")


class NoiseCard:
    """The card `frame`; `refresh` after every change while it is in sight, `hide` when it is not."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        self.frame = card(parent)
        self.histogram = NoiseHistogram()
        self.is_busy = False
        self._state = state
        self._program = NoiseProgram()
        self._asked = ""
        self._job = ""
        self._idle_job = ""
        self.heading = text(self.frame, "Noise levels in training", "heading")
        self.heading.pack(anchor="w", padx=theme.px(16), pady=(theme.px(12), theme.px(4)))
        self.sketch = Sketch(self.frame)
        self.sketch.pack(fill="x", padx=theme.px(16))
        self.line = text(self.frame, "", "small", colour=theme.MUTED)
        wrap_within(self.line, self.frame)
        self.line.pack(fill="x", padx=theme.px(16), pady=(theme.px(2), theme.px(14)))
        tk.Misc.bind(self.frame, "<Destroy>", self._destroyed, add="+")

    @property
    def is_wanted(self) -> bool:
        """Whether the chosen family samples noise levels, and its options are known."""
        draft = self._state.draft
        has_one = any(option.path in _DISTRIBUTIONS for option in draft.family_options)
        return has_one and str(draft.data.get("family")) in family_names()

    def refresh(self) -> None:
        """Draw again, in the background, if a setting that matters has changed."""
        self._cancel("_idle_job")
        draft = self._state.draft
        wrong = any(fault.path.split(".")[0] in SETTINGS[1:] for fault in draft.faults)
        if not self.is_wanted or (wrong and draft.fault_at("base_model") is None):
            return  # the fields say what is wrong; the last valid histogram stays
        settings = {name: draft.data[name] for name in SETTINGS if draft.data.get(name) is not None}
        settings |= whole_path(settings, "base_model")
        if isinstance(options := settings.get("family_options"), Mapping):
            files = str(options.get("text_encoder_files") or "")
            whole = {"text_encoder_files": ", ".join(os.path.abspath(name.strip()) for name in files.split(","))}
            settings["family_options"] = {**options, **whole_path(options, "layout"), **(whole if files else {})}
        asked = json.dumps(settings)
        if asked == self._asked:
            return
        self._cancel("_job")
        self._job = self.frame.after(PAUSE_MS if self._asked else FIRST_MS, self._ask)
        self._asked = asked
        if not self.histogram.counts:
            self.line.configure(text="Drawing noise levels…")

    def hide(self) -> None:
        """End the process if the card stays hidden."""
        self._cancel("_idle_job")
        self._idle_job = self.frame.after(IDLE_MS, self._program.close)

    def _ask(self) -> None:
        self._job = ""
        if self.is_busy:
            return  # `_show` asks again
        asked, self.is_busy = self._asked, True
        program = self._program
        self._state.background.run(lambda: program.ask(json.loads(asked)), lambda found: self._show(asked, found))

    def _show(self, asked: str, found: NoiseHistogram) -> None:
        self.is_busy = False
        if asked != self._asked:
            self._ask()
            return
        if found.error:
            self.line.configure(text=found.error)
            return
        self.histogram = found
        most = max(found.counts, default=1)
        bars = [count / most for count in found.counts]
        self.sketch.show(Curve(bars, "little noise: details", "", "pure noise: composition", bars=True))
        self.line.configure(text=describe(found))

    def _cancel(self, name: str) -> None:
        if getattr(self, name):
            self.frame.after_cancel(getattr(self, name))
            setattr(self, name, "")

    def _destroyed(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self.frame:
            self._program.close()


def describe(found: NoiseHistogram) -> str:
    """One sentence on where the samples are."""
    total, third = sum(found.counts) or 1, len(found.counts) // 3
    parts = (sum(found.counts[:third]), sum(found.counts[third:-third]), sum(found.counts[-third:]))
    low, middle, high = (round(100 * part / total) for part in parts)
    note = f" ({found.note})" if found.note else ""
    shares = zip((low, middle, high), ("low", "middle", "high"), strict=True)
    said = ", ".join(f"{share}\u00a0%\u00a0{name}" for share, name in shares)  # no line begins with a sign
    return f"{total:,} noise levels, drawn as training draws them{note}: {said}."


def whole_path(settings: Mapping[str, object], name: str) -> dict[str, object]:
    """What the setting names, if it exists: the process has another working directory."""
    given = settings.get(name)
    place = expand_home(given) if isinstance(given, str) and given else None
    return {name: str(place.absolute())} if place is not None and os.path.exists(place) else {}


@dataclass(frozen=True)
class NoiseHistogram:
    """How often each of equally wide ranges of noise levels, from 0 to 1, is trained; or why that is unknown."""

    counts: tuple[int, ...] = ()
    note: str = ""
    error: str = ""


class NoiseProgram:
    """Call `ask` off the main thread, one call at a time; `close` from any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def ask(self, settings: Mapping[str, object]) -> NoiseHistogram:
        """The histogram for these settings; the first answer takes seconds, for it imports torch."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(settings) + "\n")
            process.stdin.flush()
            answer = decode_json(process.stdout.readline())
        except (OSError, ValueError):  # it has ended, or was closed meanwhile
            self.close()
            return NoiseHistogram(error="The noise levels cannot be computed.")
        return _parsed(answer)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what was not written any more
                    pipe and pipe.close()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "modules.families._noise_levels"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )


def _parsed(answer: object) -> NoiseHistogram:
    """Raises nothing: an answer of another form is an error, too."""
    data = answer if isinstance(answer, dict) else {}
    counts = data.get("counts")
    if isinstance(counts, list) and all(isinstance(each, int) for each in counts):
        return NoiseHistogram(tuple(counts), str(data.get("note", "")))
    return NoiseHistogram(error=str(data.get("error", FileFault("The answer cannot be read."))))
