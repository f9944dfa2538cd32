"""What every rank of the group runs on, exchanged at start-up; refuses ranks with different code or settings."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
import torch.distributed as dist

from modules.config import ConfigError, TrainConfig
from modules.distributed.formatting import first_names
from modules.distributed.process_group import Group
from modules.distributed.run_store import parse_value
from modules.distributed.shared_folders import Gather
from modules.distributed.startup.member import Member
from modules.distributed.startup.rank_info import Differences, RankInfo, measure_speed, source_hashes
from modules.run.join.fingerprint import differing_names
from modules.run.join.local_settings import ALLOW_DIFFERENCES, shared_settings
from modules.run.launch.rank_env import RankEnv

_PROBE_BYTES = 1 << 20
_PROBES = 5
NAMES_SHOWN = 4
SAME_CONFIG = "Use the same config file on every machine."
SAME_CODE = "Install the same version of Tandem on every machine, for example with git pull."


@dataclass(frozen=True)
class ClusterInfo:
    """All ranks in order.

    `speeds` (matrix products per second) is set for mixed GPU models, `link_mb_s` (megabytes per second in each
    direction over the slowest link) for several hosts.
    """

    rows: tuple[RankInfo, ...]
    speeds: tuple[float, ...] = ()
    link_mb_s: float | None = None

    @property
    def hosts(self) -> dict[str, list[RankInfo]]:
        """The rows of each host."""
        found: dict[str, list[RankInfo]] = {}
        for row in self.rows:
            found.setdefault(row.host, []).append(row)
        return found


def gather_cluster_info(group: Group, config: TrainConfig | None, gather: Gather) -> ClusterInfo:
    """Called by every rank. Raises ConfigError, on all of them, if code or settings differ."""
    own_member = group.members[group.rank]
    machines = [member.machine_id for member in group.members]
    is_first_of_host = machines.index(own_member.machine_id) == own_member.rank
    own = RankInfo.of_this_process(own_member, group.device, group.backend, config, is_first_of_host=is_first_of_host)
    gather("clocks", "")
    own = replace(own, clock=time.time())
    rows = tuple(RankInfo.parse(text, rank) for rank, text in enumerate(gather("cluster info", own.dump())))
    _refuse_differences(rows, config, gather)
    is_mixed = len({row.model for row in rows}) > 1 and all(row.on_gpu for row in rows)
    return ClusterInfo(
        rows,
        _numbers(gather("speeds", str(measure_speed(group.device)))) if is_mixed else (),
        min(_numbers(gather("link", str(measure_link_mb_s(group))))) if len(set(machines)) > 1 else None,
    )


def _numbers(texts: Sequence[str]) -> tuple[float, ...]:
    return tuple(parse_value(float, text, f"the measurement of rank {rank}") for rank, text in enumerate(texts))


def _refuse_differences(rows: Sequence[RankInfo], config: TrainConfig | None, gather: Gather) -> None:
    firsts = [row for row in rows if row.code]
    if len({row.settings for row in rows}) == 1 and len({row.code for row in firsts}) == 1:
        return
    ours = {"settings": {} if config is None else shared_settings(config), "files": source_hashes(config)}
    sent = gather("sources of rank 0", json.dumps(ours))[0]
    theirs = parse_value(dict[str, dict[str, str]], sent, "the settings of rank 0")
    host = rows[dist.get_rank()].host
    settings, files = (tuple(differing_names(ours[kind], theirs.get(kind, {}))) for kind in ("settings", "files"))
    own = Differences(host, settings, () if ALLOW_DIFFERENCES in os.environ else files)
    differences = [
        parse_value(Differences, text, f"the differences of rank {rank}")
        for rank, text in enumerate(gather("differences", json.dumps(asdict(own))))
    ]
    raise_differences(rows[0].host, differences)


def raise_differences(first_host: str, differences: Sequence[Differences]) -> None:
    """Raises ConfigError for the first rank that differs from rank 0."""
    for rank, each in enumerate(differences):
        kind, names = ("settings", each.settings) if each.settings else ("files of Tandem", each.files)
        if names:
            raise ConfigError(
                f"{kind} differ between {first_host} (rank 0) and {each.host} (rank {rank}): "
                f"{first_names(names, NAMES_SHOWN)}.",
                SAME_CONFIG if each.settings else SAME_CODE,
            )


def measure_link_mb_s(group: Group) -> float:
    """How much an all-reduce moves over the slowest link, in MB per second in each direction."""
    tensor = torch.ones(_PROBE_BYTES // 4, device=group.device)
    fastest_s = math.inf
    # The first one opens connections. One that is slowed down by another program, or by a rank that comes late, must
    # not count as a slow link; NCCL only queues its work, so the device is waited for on both sides of the clock.
    for number in range(1 + _PROBES):
        _wait_for(tensor)
        started = time.perf_counter()
        dist.all_reduce(tensor)
        _wait_for(tensor)
        if number:
            fastest_s = min(fastest_s, time.perf_counter() - started)
    count = group.world_size
    return 2 * (count - 1) / count * _PROBE_BYTES / 1e6 / fastest_s


def _wait_for(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def local_cluster_info(device: torch.device) -> ClusterInfo:
    """The cluster info of a process without a group."""
    member = Member.of_this_process(RankEnv(rank=0, local_rank=0, world_size=1, master_addr="", master_port=0))
    return ClusterInfo((RankInfo.of_this_process(member, device, "none", None, is_first_of_host=True),))
