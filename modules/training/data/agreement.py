"""Work of all ranks of which each part may fail on any of them, without ending the run: then all know, and leave it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from modules.config import TandemError
from modules.config.code_errors import describe_code_error
from modules.distributed import RankGroup, SharedFolderGroups

_FAULT: Final = "!"
_FINE: Final = "."

T = TypeVar("T")


class NotAgreed(Exception):
    """What has failed on some rank, as a sentence; each rank raises it."""


class AgreeingRanks:
    """The ranks, as `RankGroup`, for work that `agree` calls.

    Whatever they wait for is a gather of the same name, so that a rank on which something has failed can answer with
    that, whatever the others wait for.
    """

    def __init__(self, ranks: RankGroup, name: str, groups: SharedFolderGroups) -> None:
        """`name` is the one that messages show of what is waited for; `groups` those of all folders that are shared."""
        self.rank, self.world_size, self.machines = ranks.rank, ranks.world_size, ranks.machines
        self.backend, self.device, self.cluster_info = ranks.backend, ranks.device, ranks.cluster_info
        self.readings, self.on_wait = ranks.readings, ranks.on_wait
        self.all_reduce, self.gather_bytes, self.sync_metrics = ranks.all_reduce, ranks.gather_bytes, ranks.sync_metrics
        self.broadcast_folder, self.cancel, self.cancel_reason = (
            ranks.broadcast_folder,
            ranks.cancel,
            ranks.cancel_reason,
        )
        self._ranks, self._name, self._groups = ranks, name, groups
        self._is_waiting = False

    def agree(self, work: Callable[[], T]) -> T:
        """What `work` returns. Raises NotAgreed on all ranks if it has failed on some; what ends the group passes."""
        try:
            result = work()
            self.gather("", "")
        except NotAgreed:
            raise
        except Exception as error:
            if self._is_waiting:  # for ranks that have ended
                raise
            self._gather(_FAULT + (str(error) if isinstance(error, TandemError) else f"{describe_code_error(error)}."))
            raise
        return result

    def gather(self, name: str, text: str) -> list[str]:
        """The texts of all ranks, by rank; as the following, it raises NotAgreed."""
        return self._gather(_FINE + text)

    def run_on_rank0(self, name: str, work: Callable[[], None]) -> None:
        """Rank 0 works, the others wait."""
        if self.rank == 0:
            work()
        self.gather(name, "")

    def run_on_all(self, name: str, work: Callable[[], None]) -> None:
        """Each works, and waits for the others."""
        work()
        self.gather(name, "")

    def shared_folder_groups(self, name: str, folder: Path) -> SharedFolderGroups:
        """Those that were given."""
        return self._groups

    def _gather(self, text: str) -> list[str]:
        self._is_waiting = True
        texts = self._ranks.gather(self._name, text)
        self._is_waiting = False
        if fault := next((text for text in texts if text.startswith(_FAULT)), ""):
            raise NotAgreed(fault.removeprefix(_FAULT))
        return [text.removeprefix(_FINE) for text in texts]
