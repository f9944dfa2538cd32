"""Programs with one mistake each, which the pretended GPU must find; see run_checks.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest.mock import patch

import torch

from modules.checkpoint import TrainingState
from tests.fake_cuda.gpu import Gpu
from tests.fake_cuda.run_cases import Result, run_case


@dataclass(frozen=True)
class Mutant:
    """A case that is trained without a mistake, and with it."""

    case: str
    told: str  # part of what gives it away
    left_out: tuple[str, str] = ("", "")  # the file and function whose waits are left out
    races: bool = False  # whether they are looked for
    mistake: Callable[[], AbstractContextManager[object]] = nullcontext


def _batches_stay_on_the_host() -> AbstractContextManager[object]:
    from modules.data.batch import Batch

    former = Batch.to
    return patch.object(Batch, "to", lambda self, device, dtype: former(self, torch.device("cpu"), dtype))


def _dropout_has_no_seed() -> AbstractContextManager[object]:
    from modules.training.step.dropout import PerSampleDropout

    return patch.object(PerSampleDropout, "of", lambda *_: nullcontext())


def _losses_are_read_at_once() -> AbstractContextManager[object]:
    from modules.training.loop.generic_trainer import GenericTrainer

    former = GenericTrainer.optimizer_step

    def optimizer_step(self: GenericTrainer, samples: int) -> None:
        former(self, samples)
        self.metrics._unsent[-1].loss_and_norm.read()

    return patch.object(GenericTrainer, "optimizer_step", optimizer_step)


def _backups_are_written_at_once() -> AbstractContextManager[object]:
    """Before another wait of the main thread, for a loss, lets the copy arrive."""
    from modules.training.backup.writer import BackupWriter

    former = BackupWriter.submit

    def submit(self: BackupWriter, state: TrainingState, config_json: str) -> None:
        former(self, state, config_json)
        self.wait()

    return patch.object(BackupWriter, "submit", submit)


OFFLOAD: Final = "z_image lora int8 block_offload"  # of three blocks, for which there are two places
BACKUP: Final = "own dropout backup"
MUTANTS: Final[Mapping[str, Mutant]] = {
    "a block is overwritten while it is in use": Mutant(
        OFFLOAD, "data race, write by aten::copy_", ("block_offload.py", "_fetch"), races=True
    ),
    "a block is used before it has arrived": Mutant(
        OFFLOAD, "data race, read", ("block_offload.py", "lend"), races=True
    ),
    "a loss is read before it has arrived": Mutant(BACKUP, "device not ready", ("host_copy.py", "read")),
    "a loss is read as soon as it is computed": Mutant(BACKUP, "newest work", mistake=_losses_are_read_at_once),
    "a backup is written before it has arrived": Mutant(
        BACKUP, "another backup", ("state_copy.py", "take"), mistake=_backups_are_written_at_once
    ),
    "batches stay on the host": Mutant(BACKUP, "Input type", mistake=_batches_stay_on_the_host),
    "dropout has no seed": Mutant(BACKUP, "default generator", mistake=_dropout_has_no_seed),
}


def check_mutant(name: str, gpu: Gpu, place: Path) -> None:
    """Raises AssertionError if the mistake is not found, or if something is found without it."""
    mutant = MUTANTS[name]
    gpu.look_for_races(mutant.races)
    known = place / f"{mutant.case}.json"  # what it does without the mistake, which several mutants share
    try:
        if not known.exists():
            known.write_text(json.dumps(vars(run_case(mutant.case, place, gpu))))
        sound = Result(**json.loads(known.read_text()))
        assert sound.is_clean, sound.summary()
        with mutant.mistake(), waits_left_out(gpu, mutant.left_out):
            wrong = run_case(mutant.case, place, gpu)
        found = difference(sound, wrong)
        print("found:", found)
        assert found, "the mistake is not found"
        assert mutant.told in found, f"it is found by something else: {found}"
    finally:
        gpu.look_for_races(False)


def difference(sound: Result, wrong: Result) -> str:
    """What tells the wrong program from the sound one."""
    if wrong.exit_code:
        return wrong.message
    if not wrong.is_clean:
        return wrong.summary()
    if wrong.losses != sound.losses:
        return f"losses {wrong.losses} instead of {sound.losses}"
    return "another backup" if wrong.backups != sound.backups else ""


@contextmanager
def waits_left_out(gpu: Gpu, place: tuple[str, str]) -> Iterator[None]:
    """Inside the block the waits of `place` do nothing."""
    gpu.queue.left_out = place
    try:
        yield
    finally:
        gpu.queue.left_out = ("", "")
