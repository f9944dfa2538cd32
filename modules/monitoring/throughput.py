"""Samples per second over the last steps, and the remaining time."""

from __future__ import annotations

from collections import deque

WINDOW = 50  # steps


class Throughput:
    """A moving window over the last steps. Pauses between steps (sampling, saving) do not count."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=WINDOW)
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._seen: int | None = None

    def add(self, samples_seen: int, seconds: float) -> None:
        """Add a step that took `seconds`, with `samples_seen` samples done after it."""
        if self._seen is not None:
            self._samples.append(samples_seen - self._seen)
            self._seconds.append(seconds)
        self._seen = samples_seen

    def samples_per_s(self) -> float:
        """Samples per second; 0 until the second step, because the first one includes the warm-up."""
        seconds = sum(self._seconds)
        return sum(self._samples) / seconds if seconds > 0 else 0.0

    def eta_s(self, remaining_samples: int) -> float | None:
        """Seconds for `remaining_samples` at the current speed; None while it is unknown."""
        speed = self.samples_per_s()
        return remaining_samples / speed if speed > 0 else None
