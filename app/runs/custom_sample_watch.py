"""Notices that a custom sample arrives, and that a run ends without one that it was asked for."""

from __future__ import annotations

from typing import Final

from app.runs.control import RunControl
from modules.config import Sample
from modules.run.view.event_records import SampleFile

_UNKNOWN: Final = -1


class CustomSampleWatch:
    """Asked a few times a second; an image that a run had before it was followed is no news."""

    def __init__(self) -> None:
        self._run: RunControl | None = None
        self._count = _UNKNOWN  # of the samples that were looked at

    def arrived(self, run: RunControl | None) -> SampleFile | None:
        """The newest custom sample since the last call."""
        if run is not self._run:
            self._run, self._count = run, _UNKNOWN
        if run is None or not run.is_caught_up:
            return None
        with run.view.lock:
            count, samples = run.view.samples_count, run.view.samples
            new = count - self._count if 0 <= self._count < count else 0
            self._count = count
            latest = [samples[-1 - back] for back in range(min(new, len(samples)))]
        found = next((sample for sample in latest if sample.is_custom), None)
        if found is not None:
            run.awaited_sample = None
        return found

    def missed(self, run: RunControl | None) -> Sample | None:
        """What a run was asked for that has ended without generating it; once."""
        if run is None or run.awaited_sample is None or run.is_alive or not run.is_caught_up:
            return None
        missed, run.awaited_sample = run.awaited_sample, None
        return missed


def generate_fields(sample: Sample) -> dict[str, object]:
    """The fields of the page Generate for a sample, with its seed."""
    names = ("prompt", "negative_prompt", "width", "height", "frames", "steps", "guidance_scale", "seed", "reference")
    return {name: getattr(sample, name) for name in names} | {"random_seed": False}
