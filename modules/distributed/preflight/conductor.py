"""Rank 0 asks, the others answer through the store, each question with a deadline: nobody can hang the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from modules.config import TrainConfig
from modules.distributed.process_group import Group
from modules.distributed.sign_in import Member
from modules.distributed.timed_store import StoreGone, StoreSilent, TimedStore

_LOOK_EVERY_S = 0.005
_ECHO_S = 5.0
_END = "end"

Answer = dict[str, object]


@dataclass(frozen=True)
class Context:
    """What a rank needs to answer with; `group` is None where it did not form."""

    own: Member
    everyone: tuple[Member, ...]
    group: Group | None
    device: torch.device
    backend: str
    master: tuple[str, int]
    config: TrainConfig
    has_config: bool
    thorough: bool
    patience_s: float

    @property
    def folders(self) -> dict[str, Path]:
        """The folders that a run writes to, by the setting's name."""
        return {"runs_dir": Path(self.config.runs_dir), "cache_dir": Path(self.config.cache_dir)}


Task = Callable[..., Answer]  # (context, **arguments), all of them JSON


@dataclass
class Conductor:
    """Rank 0's side: asks living ranks and collects what they answer."""

    store: TimedStore
    context: Context
    tasks: Mapping[str, Task]
    lost: dict[int, str] = field(default_factory=dict)  # rank -> how it was lost
    matrices: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # what checks want shown below the table
    told: set[int] = field(default_factory=set)  # lost ranks that have a red cell already
    _asked: dict[int, int] = field(default_factory=dict)

    @property
    def living(self) -> list[Member]:
        """Who has answered everything so far."""
        return [member for member in self.context.everyone if member.rank not in self.lost]

    @property
    def firsts(self) -> list[Member]:
        """The first living rank of each host."""
        return list({(member.host, member.machine_id): member for member in reversed(self.living)}.values())[::-1]

    def ask(
        self, ranks: Iterable[int], task: str, within_s: float | None = None, **arguments: object
    ) -> dict[int, Answer]:
        """The answers by rank. Who gives none in time is lost: it is in `lost` and never asked again."""
        wanted = [rank for rank in ranks if rank not in self.lost]
        within_s = self.context.patience_s if within_s is None else within_s
        began = time.monotonic()
        for rank in wanted:
            if rank != 0:
                self._post(rank, task, arguments)
        answers = {0: perform(self.tasks, self.context, task, arguments)} if 0 in wanted else {}
        waiting = [rank for rank in wanted if rank != 0]
        # The others may take as long again as this rank did; where it failed, they have failed by now or are gone.
        now = time.monotonic()
        failed = "error" in answers.get(0, {})
        deadline = now + _ECHO_S if failed else max(began + within_s, now + _ECHO_S + (now - began))
        while waiting and time.monotonic() < deadline:
            for rank in list(waiting):
                key = f"answer/{rank}/{self._asked[rank]}"
                if self.store.known(key):
                    answers[rank] = json.loads(self.store.get(key))
                    waiting.remove(rank)
            if waiting:
                time.sleep(_LOOK_EVERY_S)
        for rank in waiting:
            self.lost[rank] = f"gave no answer within {within_s:.0f} s"
        return dict(sorted(answers.items()))

    def end(self, checkup: str) -> None:
        """Send everybody home, with the result; rank 0 may hold the store, so it waits until they have it."""
        self.context = replace(self.context, patience_s=_ECHO_S)
        self.ask([member.rank for member in self.living if member.rank != 0], _END, checkup=checkup)

    def _post(self, rank: int, task: str, arguments: Mapping[str, object]) -> None:
        self._asked[rank] = self._asked.get(rank, 0) + 1
        self.store.set(f"question/{rank}/{self._asked[rank]}", json.dumps([task, arguments]))


def answer_questions(store: TimedStore, context: Context, tasks: Mapping[str, Task], patience_s: float) -> str:
    """The other ranks' side: do what is asked until the end; returns the result that rank 0 sends.

    Raises StoreGone or StoreSilent where rank 0 or its machine is gone, also when it asks nothing for `patience_s`.
    """
    rank, number, deadline = context.own.rank, 1, time.monotonic() + patience_s
    while True:
        key = f"question/{rank}/{number}"
        if store.known(key):
            task, arguments = json.loads(store.get(key))
            if task == _END:
                store.set(f"answer/{rank}/{number}", "{}")
                return str(arguments["checkup"])
            store.set(f"answer/{rank}/{number}", json.dumps(perform(tasks, context, task, arguments)))
            number, deadline = number + 1, time.monotonic() + patience_s
        elif time.monotonic() > deadline:
            raise StoreSilent
        time.sleep(_LOOK_EVERY_S)


def perform(tasks: Mapping[str, Task], context: Context, task: str, arguments: Mapping[str, object]) -> Answer:
    """The answer of this rank; what goes wrong is an answer, too."""
    try:
        return tasks[task](context, **arguments)
    except (StoreGone, StoreSilent):
        raise
    except Exception as error:  # noqa: BLE001  # a check finds out what is broken: whatever it is, it is told
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        return {"error": text[:300]}
