"""The samples of a run by step and by prompt, kept up to date as they come."""

from __future__ import annotations

from app.run_facts import SampleFile
from app.run_view import RunView


class SampleIndex:
    """A picture that was drawn again (a resumed run does steps again) replaces the former one of its name."""

    def __init__(self) -> None:
        self._seen = 0
        self._by_step: dict[int, dict[str, SampleFile]] = {}
        self._by_prompt: dict[str, dict[str, SampleFile]] = {}
        self._steps: list[int] = []

    def update(self, view: RunView) -> bool:
        """Take in what is new; whether there was anything."""
        with view.lock:
            if view.samples_count == self._seen:
                return False
            is_other = view.samples_count < self._seen
            count = len(view.samples) if is_other else min(len(view.samples), view.samples_count - self._seen)
            new = [view.samples[place] for place in range(len(view.samples) - count, len(view.samples))]
            self._seen = view.samples_count
        if is_other:
            self._by_step, self._by_prompt = {}, {}
        for sample in new:
            self._by_step.setdefault(sample.step, {})[sample.file] = sample
            self._by_prompt.setdefault(sample.prompt, {})[sample.file] = sample
        self._steps = sorted(self._by_step)
        return True

    @property
    def steps(self) -> list[int]:
        """All steps at which samples were drawn, in order."""
        return self._steps

    @property
    def prompts(self) -> list[str]:
        """All prompts in the order in which they came first."""
        return list(self._by_prompt)

    def at_step(self, step: int) -> list[SampleFile]:
        """The samples of a step in the order of their prompts."""
        return sorted(self._by_step.get(step, {}).values(), key=lambda sample: sample.file)

    def of_prompt(self, prompt: str) -> list[SampleFile]:
        """The samples of a prompt through time."""
        return sorted(self._by_prompt.get(prompt, {}).values(), key=lambda sample: (sample.step, sample.file))
