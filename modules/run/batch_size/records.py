"""What the search for the largest batch size is asked, and what it found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from modules.config import ConfigError, TrainConfig, effective_batch, learning_rate_scale
from modules.files import decode_json, read_text, validate_record

RESULT: Final = "batch_size.json"  # in the run folder of the search
VARIABLE: Final = "TANDEM_FIND_BATCH_SIZE"  # how the processes of a run are told to search instead of training
GIB: Final = 2**30


@dataclass(frozen=True)
class SearchRequest:
    """How much memory the batch may take. `memory_target` is a share of the memory of a GPU, or of the machine for
    processes on CPUs, unless `memory_limit_gb` says how many GiB each of those may take."""

    memory_target: float = 0.9
    memory_limit_gb: float | None = None

    def check(self) -> None:
        """Raises ConfigError for amounts that no memory has."""
        if not 0 < self.memory_target < 1:
            raise ConfigError(
                f"memory_target is {self.memory_target:g}; give the share of the memory that a run may take, a number "
                "between 0 and 1, such as 0.9."
            )
        if self.memory_limit_gb is not None and not 0 < self.memory_limit_gb < 2**20:
            raise ConfigError(
                f"memory_limit_gb is {self.memory_limit_gb:g}; give the GiB that each process may take, such as 16."
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> SearchRequest | None:
        """The request that this process was started with, if any. Raises FileFault if it is none."""
        text = environment.get(VARIABLE)
        return None if text is None else validate_record(cls, decode_json(text))

    def environment(self) -> dict[str, str]:
        """The variable that tells a process."""
        return {VARIABLE: json.dumps(asdict(self))}


@dataclass(frozen=True)
class RankBatchSize:
    """The largest batch of one rank, the memory that it took at its peak, and its limit, both in bytes."""

    device: str
    batch_size: int
    peak: int
    limit: int

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> RankBatchSize:
        """The output of `dump`. Raises FileFault if it is none."""
        return validate_record(cls, decode_json(text))


@dataclass(frozen=True)
class SearchResult:
    """What all ranks found; `most` is the largest batch that the data can fill."""

    ranks: tuple[RankBatchSize, ...]
    most: int

    @property
    def batch_size(self) -> int:
        """The largest batch per process that fits on every rank."""
        return min(rank.batch_size for rank in self.ranks)

    def save(self, path: Path) -> None:
        """Write it as JSON, for `load` and for other programs."""
        data = {**asdict(self), "batch_size": self.batch_size, "world_size": len(self.ranks)}
        path.write_text(json.dumps(data, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> SearchResult:
        """What `save` wrote. Raises OSError, or FileFault if it is none."""
        return validate_record(cls, decode_json(read_text(path)))

    def lines(self, config: TrainConfig) -> list[str]:
        """The result as text: each rank, the answer, and what it makes of the batch and the learning rate."""
        width = max(len(rank.device) for rank in self.ranks)
        found = [
            f"rank {number}  {rank.device:<{width}}  batch size {rank.batch_size:>5}  "
            f"{rank.peak / GIB:.2f} of at most {rank.limit / GIB:.2f} GiB"
            for number, rank in enumerate(self.ranks)
        ]
        return [*found, "", self._answer(), *self._consequences(config)]

    def _answer(self) -> str:
        """The answer in one sentence."""
        several = ", the smallest of all ranks" if len(self.ranks) > 1 else ""
        enough = "; more samples never come together in this data" if self.batch_size >= self.most else ""
        return f"Largest batch_size: {self.batch_size}{several}{enough}."

    def _consequences(self, config: TrainConfig) -> list[str]:
        world_size = len(self.ranks)
        of_ranks = f"{world_size} process{'es' * (world_size > 1)}"
        chosen = config.model_copy(update={"batch_size": self.batch_size})
        batch = effective_batch(chosen, world_size)
        if config.global_batch_size is not None:
            at_once = self.batch_size * world_size
            parts = -(-batch // at_once)
            return [
                f"global_batch_size stays {batch}, and so does the learning rate: {of_ranks} "
                f"take{'s' * (world_size == 1)} {at_once} samples at once, "
                f"so a step takes {parts} micro-batch{'es' * (parts > 1)} on each."
            ]
        rate, scaled = config.learning_rate, config.learning_rate * learning_rate_scale(config, world_size)
        becomes = f"becomes {scaled:.3g} (lr_scaling {config.lr_scaling})" if scaled != rate else "stays"
        before = effective_batch(config, world_size)
        advice = (
            f" It was chosen for a global batch of {before}: when that changes, it usually has to change, too."
            if batch != before
            else ""
        )
        return [
            f"With {of_ranks} x gradient_accumulation_steps {config.gradient_accumulation_steps}, one step takes "
            f"{batch} samples, and the learning rate {rate:g} {becomes}.{advice}"
        ]
