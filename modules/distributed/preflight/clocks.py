"""How far the clocks of the hosts are apart, measured over the round trip through the store."""

from __future__ import annotations

import time
from collections.abc import Iterable

from modules.distributed.preflight.conductor import Answer, Conductor, Context
from modules.distributed.preflight.words import lost_cells
from modules.run.checkup import Cell

APART_S = 2.0
FAR_APART_S = 60.0
_ROUNDS = 3


def clock(context: Context) -> Answer:
    """The task: the time here."""
    return {"time": time.time()}


def check(conductor: Conductor) -> Iterable[Cell]:
    """One cell for each other host."""
    here, *others = conductor.firsts
    for member in others:
        rounds = []
        for _ in range(_ROUNDS):
            began = time.time()
            answer = conductor.ask([member.rank], "clock").get(member.rank)
            ended = time.time()
            if answer is not None:
                rounds.append((ended - began, float(str(answer["time"])) - (began + ended) / 2))
        yield from lost_cells("clocks", conductor)
        if rounds:
            yield judge(member.host, here.host, *min(rounds))


def judge(host: str, first_host: str, round_trip_s: float, apart_s: float) -> Cell:
    """The cell for one host whose clock shows `apart_s` more than the first host's."""
    if abs(apart_s) <= max(APART_S, round_trip_s):
        return Cell("clocks", host, "green", f"as on {first_host} (within {max(abs(apart_s), round_trip_s):.2g} s)")
    way = "ahead of" if apart_s > 0 else "behind"
    colour = "red" if abs(apart_s) > FAR_APART_S else "yellow"
    return Cell(
        "clocks", host, "red" if colour == "red" else "yellow", f"{abs(apart_s):.0f} s {way} {first_host}", ADVICE
    )


ADVICE = "Turn on time synchronisation on both machines: timedatectl set-ntp true."
