"""Errors that a user can cause or fix; everything else is a bug and keeps its traceback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from modules.files import printable

SHOWN_CHARACTERS = 20_000
MOST_FAULTS = 50  # that an error lists; a file may have a hundred thousand


class TandemError(Exception):
    """A failure in one or two sentences: what is wrong (`message`) and what to try (`advice`)."""

    exit_code: ClassVar[int] = 3
    kind: ClassVar[str] = "error"

    def __init__(self, message: str, advice: str = "") -> None:
        # it may quote a file, another machine or a model: a terminal must not obey that
        self.message = printable(message, SHOWN_CHARACTERS, lines=True)
        self.advice = printable(advice, SHOWN_CHARACTERS, lines=True)
        super().__init__(self.message)

    def __str__(self) -> str:
        return " ".join(_sentence(text) for text in (self.message, self.advice) if text)

    def __reduce__(self) -> tuple[type[TandemError], tuple[str, str]]:
        # Errors are pickled between processes (spawned ranks); keep the advice.
        return type(self), (self.message, self.advice)


class ConfigError(TandemError):
    """A config, preset, argument or run name that cannot be used; nothing has been started."""

    exit_code = 2
    kind = "config"

    @classmethod
    def from_faults(cls, source: str, faults: Sequence[str]) -> ConfigError:
        """One error for all faults of one source: a sentence for one, a list for several, of many the first.

        The source may have no name.
        """
        if len(faults) == 1:
            return cls(f"{source}: {faults[0]}" if source else faults[0])
        more = [f"and {len(faults) - MOST_FAULTS} more."] if len(faults) > MOST_FAULTS else []
        lines = "".join(f"\n  - {fault}" for fault in [*faults[:MOST_FAULTS], *more])
        return cls(f"{f'{source} has ' if source else ''}{len(faults)} invalid settings:{lines}")


class DataError(TandemError):
    """No usable images, or a data folder that cannot be read."""

    exit_code = 4
    kind = "data"


class ResumeError(TandemError):
    """A backup that is missing, damaged or from another run."""

    exit_code = 2
    kind = "resume"


class TrainingError(TandemError):
    """Training started and cannot continue."""

    exit_code = 3
    kind = "training"


def _sentence(text: str) -> str:
    """The text with a full stop, unless it already ends in punctuation."""
    return text if text.endswith((".", "!", "?", ":", "\n")) else f"{text}."
