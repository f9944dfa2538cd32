"""What the training loop stands on: the device, the other ranks and ways to wait for them. Here there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from modules.checkpoint import Position, TrainingState, read_backup
from modules.config import TrainConfig
from modules.distributed import Agreement, Neighbours, OwnAgreement, Weights, own_roster, readings
from modules.families.family import Family
from modules.monitoring import Report
from modules.run import RunFolder
from modules.training import chores
from modules.training.assembly import Parts
from modules.training.ledger import FIGURES, LOSSES
from modules.training.model_setup import compiled
from modules.training.sampling import Deeds
from modules.training.wishes import NAMES, Wishes

LIMIT = "samples_at_once"  # how many samples a rank's memory holds


class Surroundings:
    """One process on one device. Every method is a hook: other ways to train override these, and nothing else."""

    replica_index = 0
    replica_count = 1
    backend = "none"
    meets_in_forward = False  # whether ranks wait for each other in every forward, so that all need as many
    scaler_class: type[torch.amp.GradScaler] = torch.amp.GradScaler

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        report: Report,
        wishes: Wishes,
        resume: Path | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.report = report
        self.wishes = wishes
        self.backup = resume
        self.training = False  # whether the first step has begun
        self.parts: Parts

    @contextmanager
    def session(self) -> Iterator[None]:
        """The surroundings of the whole run: the device, and the agreement of this process with itself."""
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.roster = own_roster(self.device)
        self.agreement: Agreement | OwnAgreement = OwnAgreement(agreement_names(self.replica_count))
        with readings(self.roster, self.replica_index) as self.readings:
            yield

    def former_state(self) -> TrainingState | None:
        """The state of the backup to go on from."""
        return None if self.backup is None else read_backup(self.backup)

    def neighbours(self, name: str, folder: Path) -> Neighbours:
        """The ranks that see the same `folder`."""
        return Neighbours(0, ((0,),))

    def gather(self, name: str, text: str) -> list[str]:
        """What every rank has to say, in the order of ranks."""
        return [text]

    def place(self, family: Family) -> Weights:
        """Bring the family's model into the form in which it is trained; the weights as this rank holds them."""
        model = family.model.to(self.device)
        family.model = compiled(model) if self.config.compile else model
        return Weights(model)

    def accumulate(self, last: bool) -> AbstractContextManager[object]:
        """Around each micro-batch; gradients are reduced over the ranks only in the `last` one of a step."""
        return nullcontext()

    def check_stop(self) -> None:
        """Before the first step: raises StoppedBeforeTraining where somebody wishes the run to end."""
        self.wishes.check_stop()

    def total(self, value: float) -> float:
        """The sum over all ranks, waited for."""
        return value

    def agree(self, values: Mapping[str, float]) -> dict[str, float]:
        """The sums over all ranks of what was told the time before."""
        return self.agreement.exchange(values)

    def chore(self, name: str, position: Position) -> Deeds:
        """What there is to do for a chore."""
        return chores.CHORES[name](self.parts, position, self.report)

    def computed(self, deeds: Deeds) -> Deeds:
        """What a chore writes, computed by rank 0 alone, one deed after the other."""
        return deeds

    def together(self, name: str, work: Callable[[], None]) -> None:
        """Rank 0 works, the others meet it."""
        work()

    def apart(self, name: str, work: Callable[[], None]) -> None:
        """Every rank works on its part, then all meet."""
        work()


def agreement_names(replica_count: int) -> list[str]:
    """All that the ranks sum when they talk: wishes, losses, and figures that each rank fills in for itself."""
    return [*NAMES, *LOSSES, *(f"{figure}/{rank}" for figure in (*FIGURES, LIMIT) for rank in range(replica_count))]
