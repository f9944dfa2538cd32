"""The start-up report: what every rank runs on, told by all to all before the first work, and what is odd about it."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
import torch.distributed as dist

from modules.config import ConfigError, TrainConfig
from modules.distributed.process_group import Group
from modules.distributed.rank_facts import Differences, RankFacts, measured_speed, sources
from modules.distributed.sign_in import Member
from modules.run.group_place import Place
from modules.run.join.fingerprint import differing
from modules.run.join.rules import ALLOW_DIFFERENCES, shared_settings

Gather = Callable[[str, str], list[str]]  # (name, this rank's text) -> the texts of all ranks

_PROBE_BYTES = 1 << 20
_NAMED = 4


@dataclass(frozen=True)
class Roster:
    """All ranks in order. Mixed models have `speeds`; several hosts `link_mb_s`, a second and in each direction."""

    rows: tuple[RankFacts, ...]
    speeds: tuple[float, ...] = ()
    link_mb_s: float | None = None

    @property
    def hosts(self) -> dict[str, list[RankFacts]]:
        """The rows of each host."""
        found: dict[str, list[RankFacts]] = defaultdict(list)
        for row in self.rows:
            found[row.host].append(row)
        return dict(found)


def take_roster(group: Group, config: TrainConfig | None, gather: Gather) -> Roster:
    """Every rank of the group calls it. Raises ConfigError, on all alike, where code or settings differ."""
    own_place = group.members[group.place.rank]
    machines = [member.machine_id for member in group.members]
    first_of_host = machines.index(own_place.machine_id) == own_place.rank
    own = RankFacts.here(own_place, group.device, group.backend, config, first_of_host=first_of_host)
    gather("clocks", "")
    own = replace(own, clock=time.time())
    rows = tuple(RankFacts.parse(text) for text in gather("roster", own.dump()))
    _refuse_differences(rows, config, gather)
    return Roster(
        rows,
        tuple(map(float, gather("speeds", str(measured_speed(group.device))))) if has_mixed_gpus(rows) else (),
        _slowest(gather("link", str(_link_mb_s(group)))) if len(set(machines)) > 1 else None,
    )


def has_mixed_gpus(rows: Sequence[RankFacts]) -> bool:
    """Whether the ranks compute on GPUs of several models."""
    return len({row.model for row in rows}) > 1 and all(row.on_gpu for row in rows)


def _refuse_differences(rows: Sequence[RankFacts], config: TrainConfig | None, gather: Gather) -> None:
    firsts = [row for row in rows if row.code]
    if len({row.settings for row in rows}) == 1 and len({row.code for row in firsts}) == 1:
        return
    ours = {"settings": {} if config is None else shared_settings(config), "files": sources(config)}
    theirs: dict[str, dict[str, str]] = json.loads(gather("facts of rank 0", json.dumps(ours))[0])
    host = rows[dist.get_rank()].host
    settings, files = (tuple(differing(ours[kind], theirs[kind])) for kind in ("settings", "files"))
    own = Differences(host, settings, () if ALLOW_DIFFERENCES in os.environ else files)
    told = [Differences(**json.loads(text)) for text in gather("differences", json.dumps(asdict(own)))]
    raise_differences(rows[0].host, told)


def raise_differences(first_host: str, told: Sequence[Differences]) -> None:
    """Raise ConfigError for the first rank that has something otherwise than rank 0."""
    for rank, each in enumerate(told):
        kind, names = ("settings", each.settings) if each.settings else ("files of Tandem", each.files)
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise ConfigError(
                f"{kind} differ between {first_host} (rank 0) and {each.host} (rank {rank}): "
                f"{', '.join(names[:_NAMED])}{more}.",
                "Start every machine with the same config file."
                if each.settings
                else "Bring every machine to the same version of Tandem, such as with git pull.",
            )


def _link_mb_s(group: Group) -> float:
    """How much an all-reduce moves over the slowest link, in MB a second and direction."""
    tensor = torch.ones(_PROBE_BYTES // 4, device=group.device)
    dist.all_reduce(tensor)
    began = time.perf_counter()
    dist.all_reduce(tensor)
    tensor.sum().item()
    count = group.place.world_size
    return 2 * (count - 1) / count * _PROBE_BYTES / 1e6 / (time.perf_counter() - began)


def _slowest(texts: Sequence[str]) -> float:
    return min(map(float, texts))


def own_roster(device: torch.device) -> Roster:
    """The roster of a process without a group."""
    member = Member.here(Place(rank=0, local_rank=0, world_size=1, master_addr="", master_port=0))
    return Roster((RankFacts.here(member, device, "none", None, first_of_host=True),))
