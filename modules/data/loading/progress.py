"""Training progress: one integer, and everything that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class Origin:
    """Where a run's order became another one (`Turn`): after so many samples and steps, in an epoch with `rest` samples
    to come. What follows are whole epochs."""

    samples: int
    step: int
    epoch: int
    rest: int


@dataclass(frozen=True)
class Progress:
    """Training progress. `epoch_size` is the number of samples per epoch (Order.epoch_size), with drop_last a multiple
    of `global_batch_size`; steps are optimizer steps, and the last step of an epoch may have fewer samples.

    What a training step asks for many times is computed once."""

    samples_seen: int
    epoch_size: int
    global_batch_size: int
    origin: Origin | None = None

    @property
    def epoch(self) -> int:
        """Complete epochs, which is the number of the current epoch counted from 0."""
        return self._place[0]

    @property
    def sample_in_epoch(self) -> int:
        """Samples seen in the current epoch, in that of the origin from there on."""
        return self._place[1]

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in each epoch."""
        return -(-self.epoch_size // self.global_batch_size)

    @property
    def step_in_epoch(self) -> int:
        """Steps done in the current epoch, counted as `sample_in_epoch`.

        After a resume with another global batch size, the samples seen may end within a step, which is then repeated.
        """
        return self.sample_in_epoch // self.global_batch_size

    @cached_property
    def step(self) -> int:
        """Optimizer steps done since the start."""
        return self.steps_until(self.epoch) + self.step_in_epoch

    @property
    def step_samples(self) -> int:
        """The number of samples in the next step."""
        first = self.step_in_epoch * self.global_batch_size
        return min(self.global_batch_size, self._place[2] - first)

    @property
    def epochs(self) -> float:
        """Epochs done, the current one in part."""
        return self.epoch + 1 - (self._place[2] - self.sample_in_epoch) / self.epoch_size

    def after(self, samples: int) -> Progress:
        """Progress after training on `samples` more."""
        return replace(self, samples_seen=self.samples_seen + samples)

    def steps_until(self, epoch: int) -> int:
        """Optimizer steps of the run when that many epochs are complete, at least those before the origin."""
        later = epoch - self._start.epoch - 1
        return self._start.step + (self._rest_steps + later * self.steps_per_epoch if later >= 0 else 0)

    def samples_until(self, step: int) -> int:
        """Samples of the run after that many steps, at least those before the origin."""
        start, steps = self._start, step - self._start.step
        if steps <= self._rest_steps:
            return start.samples + min(max(0, steps) * self.global_batch_size, start.rest)
        epochs, steps = divmod(steps - self._rest_steps, self.steps_per_epoch)
        return start.samples + start.rest + epochs * self.epoch_size + steps * self.global_batch_size

    @cached_property
    def _start(self) -> Origin:
        return self.origin or Origin(0, 0, 0, self.epoch_size)

    @property
    def _rest_steps(self) -> int:
        return -(-self._start.rest // self.global_batch_size)

    @cached_property
    def _place(self) -> tuple[int, int, int]:
        """The current epoch, the samples seen in it, and its size, both from the origin on."""
        since = self.samples_seen - self._start.samples
        if since < self._start.rest:
            return self._start.epoch, since, self._start.rest
        epochs, inside = divmod(since - self._start.rest, self.epoch_size)
        return self._start.epoch + 1 + epochs, inside, self.epoch_size
