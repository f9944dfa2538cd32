"""How a run that did not fail may end, in words; by the reason in its `finished` event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Ending:
    """`is_complete`: there is nothing to resume."""

    title: str
    detail: str = ""
    is_complete: bool = False

    @property
    def explanation(self) -> str:
        """The detail as a sentence."""
        return f"{self.detail[0].upper()}{self.detail[1:]}." if self.detail else ""

    def at_step(self, step: int, folder: object) -> str:
        """The last line on the terminal."""
        if self.is_complete:
            return f"{self.title} after step {step}. Everything is in {folder}."
        cause = f" ({self.detail})" if self.detail else ""
        return f"{self.title} at step {step}{cause}, after a backup. Continue with --resume latest."

    def sentence(self) -> str:
        """For a report."""
        more = f": {self.detail}" if self.detail else ""
        return f"{self.title}{more}." + ("" if self.is_complete else " --resume latest continues from the last backup.")


ENDINGS: Final[Mapping[str, Ending]] = {
    "finished": Ending("Finished", "all steps are done and the model is saved", is_complete=True),
    "early_stopping": Ending("Finished early", "validation no longer improved; the model is saved", is_complete=True),
    "cached": Ending("Images cached", "nothing was trained, as requested; training can now start at once", True),
    "stopped": Ending("Stopped"),
    "interrupted": Ending("Interrupted"),
    "paused": Ending("Paused", "by SIGUSR1 or max_minutes"),
    "terminated": Ending("Terminated externally", "the run received a stop signal"),
}
