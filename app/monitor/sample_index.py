"""The samples of a run by step and by prompt, updated as they arrive."""

from __future__ import annotations

from dataclasses import replace

from modules.run.folder.run_folder import RunFolder
from modules.run.view.event_records import SampleFile
from modules.run.view.run_view import RunView


class SampleIndex:
    """A sample generated again by a resumed run replaces the previous one of that file name."""

    def __init__(self) -> None:
        self.resets = 0  # how often the run began anew
        self._read_count = 0
        self._by_step: dict[int, dict[str, SampleFile]] = {}
        self._by_prompt: dict[str, dict[str, SampleFile]] = {}
        self._steps: list[int] = []
        self.custom: list[SampleFile] = []  # in the order in which they came

    def update(self, view: RunView, folder: RunFolder) -> bool:
        """Add new samples of the run in `folder`; returns whether there were any."""
        with view.lock:
            if view.samples_count == self._read_count:
                return False
            was_reset = view.samples_count < self._read_count
            count = len(view.samples) if was_reset else min(len(view.samples), view.samples_count - self._read_count)
            new = [view.samples[index] for index in range(len(view.samples) - count, len(view.samples))]
            self._read_count = view.samples_count
        if was_reset:
            self.resets += 1
            self._by_step, self._by_prompt, self.custom = {}, {}, []
        for each in new:
            sample = replace(each, file=str(folder.sample_file(each.file)))
            self._by_step.setdefault(sample.step, {})[sample.file] = sample
            self._by_prompt.setdefault(sample.prompt, {})[sample.file] = sample
            self.custom += [sample] * sample.is_custom
        self._steps = sorted(self._by_step)
        return True

    @property
    def steps(self) -> list[int]:
        """All steps with samples, in order."""
        return self._steps

    @property
    def prompts(self) -> list[str]:
        """All prompts in order of first appearance."""
        return list(self._by_prompt)

    def at_step(self, step: int) -> list[SampleFile]:
        """The samples of a step in prompt order."""
        return sorted(self._by_step.get(step, {}).values(), key=lambda sample: sample.file)

    def of_prompt(self, prompt: str) -> list[SampleFile]:
        """The samples of a prompt in step order."""
        return sorted(self._by_prompt.get(prompt, {}).values(), key=lambda sample: (sample.step, sample.file))
