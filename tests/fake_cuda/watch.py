"""What the pretended GPU sees: waits of the host, copies from pageable memory, draws, findings."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
_OUTSIDE = ("/.venv/", "/site-packages/", "<frozen")
_MACHINERY = {str(Path(__file__).resolve().with_name(f"{name}.py")) for name in ("gpu", "races", "streams", "watch")}


@dataclass(frozen=True)
class Wait:
    """The host waited at `line` for a stream; `behind`: how many operators had been issued after what it waited for.

    With 0 the queue is empty afterwards: the device waits for the host."""

    kind: str
    line: str
    behind: int = 0


@dataclass
class Watch:
    """What happened since `forget`; each with the line of the project that caused it."""

    waits: list[Wait] = field(default_factory=list)
    pageable: Counter[str] = field(default_factory=Counter)  # copies from or to memory that is not pinned
    draws: Counter[str] = field(default_factory=Counter)  # from the device's default generator
    findings: Counter[str] = field(default_factory=Counter)  # errors that a real GPU would not have told
    attention: Counter[str] = field(default_factory=Counter)  # calls by the kernel that CUDA would take

    def forget(self) -> None:
        """All but the findings."""
        self.waits.clear()
        for counter in (self.pageable, self.draws, self.attention):
            counter.clear()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """What happens in the block is forgotten, but for the findings."""
        kept = (self.waits, self.pageable, self.draws, self.attention)
        self.waits, self.pageable, self.draws, self.attention = [], Counter(), Counter(), Counter()
        try:
            yield
        finally:
            self.waits, self.pageable, self.draws, self.attention = kept

    def found(self, text: str) -> None:
        """An error of the program, at the current line."""
        self.findings[f"{text}: {line()}"] += 1


def line() -> str:
    """The innermost line of the project that is being executed, and within it of a library; autograd if none is."""
    shown: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        is_own = file.startswith(str(ROOT)) and file not in _MACHINERY and not any(part in file for part in _OUTSIDE)
        if is_own or (not shown and "/torch/" not in file and file not in _MACHINERY):
            name = str(Path(file).relative_to(ROOT)) if is_own else "/".join(Path(file).parts[-2:])
            shown.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        if is_own:
            break
        frame = frame.f_back
    return " < ".join(shown) or "autograd"
