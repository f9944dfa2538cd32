"""How far training is: one integer, and everything that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """Training progress. `epoch_size` counts the samples trained on per epoch (Order.epoch_size), which with
    drop_last is a multiple of `global_batch_size`; steps are optimizer steps, the last of an epoch may be
    short."""

    samples_seen: int
    epoch_size: int
    global_batch_size: int

    @property
    def epoch(self) -> int:
        """Whole epochs done, so the number of the epoch under way."""
        return self.samples_seen // self.epoch_size

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.epoch_size // self.global_batch_size)

    @property
    def step_in_epoch(self) -> int:
        """Steps done in the epoch under way.

        After a resume with another global batch size the samples seen may end within a step; that step is
        done again.
        """
        return self.samples_seen % self.epoch_size // self.global_batch_size

    @property
    def step(self) -> int:
        """Optimizer steps done since the start."""
        return self.epoch * self.steps_per_epoch + self.step_in_epoch

    @property
    def step_samples(self) -> int:
        """How many samples the next step has."""
        first = self.step_in_epoch * self.global_batch_size
        return min(self.global_batch_size, self.epoch_size - first)

    def after(self, samples: int) -> Progress:
        """Progress once `samples` more have been trained on."""
        return replace(self, samples_seen=self.samples_seen + samples)
