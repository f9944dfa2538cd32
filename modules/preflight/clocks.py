"""How much the hosts' clocks differ, measured with round trips through the store."""

from __future__ import annotations

import time
from collections.abc import Iterable

from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.run.preflight_report.report import Cell

WARNS_ABOVE_S = 2.0
FAILS_ABOVE_S = 60.0
_ROUNDS = 3


def read_clock(context: Context) -> Answer:
    """Task: this host's time."""
    return {"time": time.time()}


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """Yield one cell for each other host."""
    here, *others = coordinator.first_ranks
    for member in others:
        rounds = []
        for _ in range(_ROUNDS):
            started = time.time()
            answer = coordinator.ask([member.rank], "read_clock").get(member.rank)
            ended = time.time()
            if answer is not None:
                rounds.append((ended - started, float(str(answer["time"])) - (started + ended) / 2))
        if rounds:
            yield judge(member.host, here.host, *min(rounds))


def judge(host: str, first_host: str, round_trip_s: float, ahead_s: float) -> Cell:
    """The cell for a host whose clock is `ahead_s` seconds ahead of the first host's."""
    if abs(ahead_s) <= max(WARNS_ABOVE_S, round_trip_s):
        within_s = max(abs(ahead_s), round_trip_s)
        return Cell("clocks", host, "green", f"same as on {first_host} (within {within_s:.2g} s)")
    way = "ahead of" if ahead_s > 0 else "behind"
    value = f"{abs(ahead_s):.0f} s {way} {first_host}"
    return Cell("clocks", host, "red" if abs(ahead_s) > FAILS_ABOVE_S else "yellow", value, ADVICE)


ADVICE = "Enable time synchronisation on both machines: timedatectl set-ntp true."
