"""Training progress: one integer, and everything that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """Training progress. `epoch_size` is the number of samples per epoch (Order.epoch_size), with drop_last a multiple
    of `global_batch_size`; steps are optimizer steps, and the last step of an epoch may have fewer samples."""

    samples_seen: int
    epoch_size: int
    global_batch_size: int

    @property
    def epoch(self) -> int:
        """Complete epochs, which is the number of the current epoch counted from 0."""
        return self.samples_seen // self.epoch_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in each epoch."""
        return -(-self.epoch_size // self.global_batch_size)

    @property
    def step_in_epoch(self) -> int:
        """Steps done in the current epoch.

        After a resume with another global batch size, the samples seen may end within a step, which is then repeated.
        """
        return self.samples_seen % self.epoch_size // self.global_batch_size

    @property
    def step(self) -> int:
        """Optimizer steps done since the start."""
        return self.epoch * self.steps_per_epoch + self.step_in_epoch

    @property
    def step_samples(self) -> int:
        """The number of samples in the next step."""
        first = self.step_in_epoch * self.global_batch_size
        return min(self.global_batch_size, self.epoch_size - first)

    def after(self, samples: int) -> Progress:
        """Progress after training on `samples` more."""
        return replace(self, samples_seen=self.samples_seen + samples)
