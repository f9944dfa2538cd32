"""A preflight started plainly: one process for each device of this machine, watched until the last has ended."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from modules.config import ConfigError, TrainConfig
from modules.machine import find_free_port, hostname
from modules.run.checkup import Cell, Checkup
from modules.run.exit_codes import FAILED, FINISHED
from modules.run.group_place import Place
from modules.run.launch_plan import ROOT, LaunchPlan
from modules.run.process_family import ProcessFamily

SCRIPT: Final = ROOT / "scripts" / "preflight.py"
_OWN_PORTS: Final = range(20_000, 32_000)
_LOOK_EVERY_S = 0.1
_OTHERS_END_S = 15.0
# A check of hundreds of pairs says nothing for minutes.
_LONGEST_SILENCE_S = 600.0


def run_checkup(
    config: TrainConfig,
    arguments: Sequence[str],
    wait_s: float,
    say: Callable[[str], None],
    result: Path | None = None,
) -> Checkup:
    """Start scripts/preflight.py with `arguments` once a rank of this machine and return what they found.

    On the machine of rank 0 the file `result` grows with each check, for a window to watch. Raises ConfigError where
    this machine cannot do what the config asks.
    """
    plan = LaunchPlan.from_config(_as_group(config), config_path="config.json")
    for reason in plan.reasons:
        say(f"Note: {reason}.")
    family = ProcessFamily()
    with tempfile.TemporaryDirectory(prefix="tandem-preflight-") as folder:
        logs = Path(folder)
        result = logs / "checkup.json" if result is None else result
        result.unlink(missing_ok=True)
        children: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for place in _places(plan):
                variables = {**os.environ, **plan.environment(), **family.variables, **_variables(place, plan)}
                argv = [sys.executable, str(SCRIPT), *arguments, "--result", str(result)]
                children[place.rank] = _start(argv, variables, _log(logs, place.rank))
            _wait(list(children.values()), result, wait_s)
            codes = {rank: child.poll() for rank, child in children.items()}
        finally:
            family.end(patience_s=0.0)
            for child in children.values():
                child.wait()
        return _completed(_read(result), codes, logs)


def _as_group(config: TrainConfig) -> TrainConfig:
    mode = "auto" if config.training_mode in {"single", "data_parallel"} else config.training_mode
    return config.model_copy(update={"enable_multi_gpu": True, "training_mode": mode})


def _places(plan: LaunchPlan) -> list[Place]:
    if plan.world_size is None:
        raise ConfigError(
            f"processes_per_node is not set, so nobody knows how many processes the {plan.num_nodes} machines have",
            "Set processes_per_node or world_size, or start scripts/preflight.py with torchrun on every machine",
        )
    # On one machine any port will do, and one far from the usual ones is not taken by a run that starts meanwhile.
    port = plan.port if plan.num_nodes > 1 else find_free_port(secrets.choice(_OWN_PORTS))
    return [
        Place(rank, local_rank, plan.world_size, plan.master_addr, port) for local_rank, rank in enumerate(plan.ranks())
    ]


def _variables(place: Place, plan: LaunchPlan) -> dict[str, str]:
    return {
        **place.environment(),
        "LOCAL_WORLD_SIZE": str(plan.processes_here),
        "GROUP_RANK": str(plan.node_rank),
    }


def _start(argv: list[str], variables: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(argv, env=dict(variables), stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _wait(children: list[subprocess.Popen[bytes]], result: Path, wait_s: float) -> None:
    """Until all have ended, or the others have had their time after the first one ended, or nothing happens."""
    silent_until = time.monotonic() + wait_s + _LONGEST_SILENCE_S
    first_end: float | None = None
    seen = 0
    while any(child.poll() is None for child in children):
        now = time.monotonic()
        if result.exists() and (changed := result.stat().st_mtime_ns) != seen:
            seen, silent_until = changed, now + _LONGEST_SILENCE_S
        if children[0].poll() is not None and first_end is None:
            first_end = now
        if now > silent_until or (first_end is not None and now > first_end + _OTHERS_END_S):
            return
        time.sleep(_LOOK_EVERY_S)


def _completed(checkup: Checkup | None, codes: Mapping[int, int | None], logs: Path) -> Checkup:
    """With a red cell for each process that ended otherwise than it should."""
    found = Checkup("Preflight") if checkup is None else checkup
    cells = [
        Cell("processes", f"rank {rank}", "red", _how_ended(code, _log(logs, rank)), _ENDED)
        for rank, code in codes.items()
        if code not in {None, FINISHED, FAILED}
    ]
    if not found.complete and not cells and not found.reds:
        last = found.cells[-1].check if found.cells else "the start"
        cells.append(Cell("processes", hostname(), "red", f"nothing happened after {last}", _ENDED))
    return found.with_cells(cells)


def _how_ended(code: int | None, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if code is not None and code < 0:
        return f"was killed (signal {signal.Signals(-code).name})"
    return f"ended with exit code {code}{f': {said}' if said else ''}"[:300]


def _read(result: Path) -> Checkup | None:
    try:
        return Checkup.parse(result.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _log(logs: Path, rank: int) -> Path:
    return logs / f"rank-{rank}.txt"


_ENDED = "Start the preflight again; if it ends the same way, dmesg says whether memory ran out on that machine."
