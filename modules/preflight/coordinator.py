"""Rank 0 sends tasks and the others answer through the store, each with a deadline, so no rank can hang the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from modules.config import TrainConfig
from modules.distributed.formatting import error_summary
from modules.distributed.health.timed_store import StoreClosed, StoreTimeout, TimedStore
from modules.distributed.process_group import Group
from modules.distributed.run_store import parse_value
from modules.distributed.startup.member import Member
from modules.files import Record
from modules.run.format_duration import in_words

_POLL_EVERY_S = 0.005
_GRACE_S = 5.0
_END = "end"

Answer = dict[str, object]


@dataclass(frozen=True)
class PreflightOptions:
    """What to check, and how; `config` holds the defaults if `has_config` is False, and its images are still to be sent
    here if `has_data` is False. Times are in seconds."""

    config: TrainConfig
    has_config: bool = False
    has_data: bool = True
    thorough: bool = False
    timeout_s: float = 30.0  # for each task
    wait_s: float = 300.0  # for all processes to join


@dataclass(frozen=True, kw_only=True)
class Context(PreflightOptions):
    """What a task may need; `group` is None if the process group did not form."""

    own: Member
    everyone: tuple[Member, ...]
    group: Group | None
    device: torch.device
    backend: str
    master: tuple[str, int]

    @property
    def folders(self) -> dict[str, Path]:
        """The folders that a run writes to, by setting."""
        return {"runs_dir": Path(self.config.runs_dir), "cache_dir": Path(self.config.cache_dir)}


Task = Callable[..., Answer]  # (context, **arguments), all of them JSON


class _Order(Record):
    """What rank 0 asks a rank to do."""

    task: str
    arguments: dict[str, object]


@dataclass
class Coordinator:
    """Rank 0's side: sends tasks to the ranks and collects their answers."""

    store: TimedStore
    context: Context
    tasks: Mapping[str, Task]
    lost: dict[int, str] = field(default_factory=dict)  # rank -> what happened
    matrices: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # shown below the table
    _asked: dict[int, int] = field(default_factory=dict)

    @property
    def alive(self) -> list[Member]:
        """The ranks that have answered everything so far."""
        return [member for member in self.context.everyone if member.rank not in self.lost]

    @property
    def first_ranks(self) -> list[Member]:
        """The first live rank of each host."""
        return list({(member.host, member.machine_id): member for member in reversed(self.alive)}.values())[::-1]

    def ask(
        self, ranks: Iterable[int], task: str, limit_s: float | None = None, **arguments: object
    ) -> dict[int, Answer]:
        """The answers by rank. A rank that does not answer in time is added to `lost` and never asked again."""
        asked = [rank for rank in ranks if rank not in self.lost]
        limit_s = self.context.timeout_s if limit_s is None else limit_s
        started = time.monotonic()
        waiting = [rank for rank in asked if rank != 0]
        for rank in waiting:
            self._asked[rank] = self._asked.get(rank, 0) + 1
            self.store.set(f"task/{rank}/{self._asked[rank]}", json.dumps({"task": task, "arguments": arguments}))
        answers = {0: run_task(self.tasks, self.context, task, arguments)} if 0 in asked else {}
        # The others get at least as much time again as this rank took; if it failed, they have failed or are gone.
        now = time.monotonic()
        failed = "error" in answers.get(0, {})
        deadline = now + _GRACE_S if failed else max(started + limit_s, now + _GRACE_S + (now - started))
        while waiting and time.monotonic() < deadline:
            for rank in list(waiting):
                text = self.store.find(f"answer/{rank}/{self._asked[rank]}")
                if text is not None:
                    answers[rank] = parse_value(Answer, text, f"the answer of rank {rank}")
                    waiting.remove(rank)
            if waiting:
                time.sleep(_POLL_EVERY_S)
        for rank in waiting:
            self.lost[rank] = f"did not answer within {in_words(limit_s)}"
        return dict(sorted(answers.items()))

    def end(self, report: str) -> None:
        """Send the report to all ranks and wait until they have it, since rank 0 may host the store."""
        self.ask([member.rank for member in self.alive if member.rank != 0], _END, _GRACE_S, report=report)


def answer_tasks(store: TimedStore, context: Context, tasks: Mapping[str, Task], timeout_s: float) -> str:
    """The other ranks' side: run tasks until the end; returns the report that rank 0 sends.

    Raises StoreClosed or StoreTimeout if rank 0 or its machine is gone, or sends no task for `timeout_s` seconds.
    """
    rank, number, deadline = context.own.rank, 1, time.monotonic() + timeout_s
    while True:
        text = store.find(f"task/{rank}/{number}")
        if text is not None:
            order = parse_value(_Order, text, "the task")
            task, arguments = order.task, order.arguments
            answer = {} if task == _END else run_task(tasks, context, task, arguments)
            store.set(f"answer/{rank}/{number}", json.dumps(answer))
            if task == _END:
                return str(arguments["report"])
            number, deadline = number + 1, time.monotonic() + timeout_s
        elif time.monotonic() > deadline:
            raise StoreTimeout
        time.sleep(_POLL_EVERY_S)


def run_task(tasks: Mapping[str, Task], context: Context, task: str, arguments: Mapping[str, object]) -> Answer:
    """This rank's answer; an error is an answer, too."""
    try:
        return tasks[task](context, **arguments)
    except (StoreClosed, StoreTimeout):
        raise
    except Exception as error:  # noqa: BLE001  # a check exists to find out what is broken, so any error is its result
        return {"error": error_summary(error)[:300]}
