"""Starts a preflight without torchrun: one process per device of this machine, supervised until the last has ended."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from modules import ROOT
from modules.config import ConfigError, TrainConfig, save_config
from modules.files import FileFault, read_bytes, read_text
from modules.machine import find_free_port, hostname
from modules.run.exit_codes import FAILED, FINISHED
from modules.run.hosts.check import HostCheck, check_host
from modules.run.hosts.host import Host
from modules.run.hosts.measuring import on_machines
from modules.run.hosts.remote_machines import RemoteMachines
from modules.run.join.keys import STORE_SECRET
from modules.run.launch.plan import LaunchPlan, elsewhere
from modules.run.launch.rank_env import RankEnv
from modules.run.launch.store_secret import new_secret
from modules.run.preflight_report.joining import Group, JoinProgress, as_group, counts_itself, joined_machines
from modules.run.preflight_report.report import Cell, OtherMachine, PreflightReport
from modules.run.supervise.process_tree import ProcessTree
from modules.run.supervise.signals import termination_signals_ignored

SCRIPT: Final = ROOT / "scripts" / "preflight.py"
_PORT_RANGE: Final = range(20_000, 32_000)
_POLL_EVERY_S = 0.1
_EXIT_GRACE_S = 15.0
# A check of hundreds of pairs reports nothing for minutes.
_MAX_SILENCE_S = 600.0
_LARGEST_LOG: Final = 64 << 20  # bytes
WAITING: Final = "Waiting for "  # how a process begins a line about the ranks that are missing
_AT_ONCE: Final = 8


def start_preflight(
    config: TrainConfig,
    arguments: Sequence[str],
    wait_s: float,
    echo: Callable[[str], None],
    result: Path | None = None,
    *,
    has_config: bool = False,
    token: str | None = None,
    passed_on: Sequence[str] = (),
    of_ranks: Sequence[str] = (),
    hosts: Sequence[Host] = (),
) -> PreflightReport:
    """Start scripts/preflight.py for each rank of this machine and return their report.

    For a window to follow, the file `result` says at first what to start on the other machines; on the machine of
    rank 0 it is updated after each check. Machines whose processes are not given join with `token` or a generated one,
    and count them themselves; `passed_on` are the arguments of their command, `of_ranks` more for the ranks here, and
    `arguments` those of this command, for machines with processes that are given. `hosts` are started over ssh; one
    that cannot take part is a red cell, and the others are checked without it. Raises TandemError if this machine
    cannot run the config, or another one does not join.
    """
    with tempfile.TemporaryDirectory(prefix="tandem-preflight-") as folder:
        logs = Path(folder)
        result = logs / "report.json" if result is None else result
        PreflightReport("Preflight").save(result)
        progress = JoinProgress(SCRIPT, passed_on, echo, result)
        by_hand = config.num_nodes - 1 - len(hosts)
        found, cells = reachable_hosts(hosts, progress.report)
        progress.add(cells)
        if cells:
            config = on_machines(config, 1 + len(found) + by_hand)
        plan = LaunchPlan.from_config(as_group(config), config_path="config.json")
        for reason in plan.reasons:
            echo(f"Note: {reason}.")
        here = [*_saved(config, logs, has_config=has_config), *passed_on, *of_ranks]
        if found or counts_itself(config, plan):
            program = (str(SCRIPT.relative_to(ROOT)), *passed_on)
            remote = RemoteMachines(found, logs, progress.report, program=program)
            with joined_machines(
                config, plan, token, wait_s, progress, remote, by_hand, has_config=has_config
            ) as group:
                return _check_here(group.plan, group.secret, here, wait_s, echo, result, logs)
        others = _other_machines(plan, arguments)
        PreflightReport("Preflight", cells, waits_for=others).save(result)
        for other in others:
            echo(f"Run on machine {other.node_rank}, in Tandem's folder: {other.command}")
        secret = new_secret() if plan.num_nodes == 1 else None
        return _check_here(plan, secret, here, wait_s, echo, result, logs)


def check_joined(
    config: TrainConfig,
    group: Group,
    arguments: Sequence[str],
    wait_s: float,
    echo: Callable[[str], None],
    result: Path | None = None,
) -> PreflightReport:
    """As `start_preflight`, on a machine that has joined, with the config that machine 0 has sent."""
    with tempfile.TemporaryDirectory(prefix="tandem-preflight-") as folder:
        logs = Path(folder)
        result = logs / "report.json" if result is None else result
        PreflightReport("Preflight").save(result)
        here = [*_saved(config, logs, has_config=group.has_config), *arguments]
        return _check_here(group.plan, group.secret, here, wait_s, echo, result, logs)


def _saved(config: TrainConfig, logs: Path, *, has_config: bool) -> list[str]:
    """The arguments that name the config to the processes of this machine."""
    save_config(config, logs / "config.json")
    return ["--config" if has_config else "--settings", str(logs / "config.json")]


def _check_here(
    plan: LaunchPlan,
    secret: str | None,
    arguments: Sequence[str],
    wait_s: float,
    echo: Callable[[str], None],
    result: Path,
    logs: Path,
) -> PreflightReport:
    """Start the processes of this machine and wait for their report."""
    process_tree = ProcessTree()
    secrets_of_ranks = {} if secret is None else {STORE_SECRET: secret}
    children: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for rank_env in _rank_envs(plan):
            variables = {**os.environ, **secrets_of_ranks, **plan.environment(), **process_tree.variables}
            variables |= _variables(rank_env, plan)
            argv = [sys.executable, str(SCRIPT), *arguments, "--result", str(result)]
            children[rank_env.rank] = _start(argv, variables, _log(logs, rank_env.rank))
        _wait(list(children.values()), result, wait_s, _Relay(_log(logs, min(children)), echo))
        codes = {rank: child.poll() for rank, child in children.items()}
    finally:
        with termination_signals_ignored():  # such as the second Ctrl-C
            process_tree.terminate(patience_s=0.0)
            for child in children.values():
                child.wait()
    return _completed(read_report(result), codes, logs)


def _example(machines: int) -> str:
    """As many as two for each machine: "2, 2"."""
    return ", ".join(["2"] * min(machines, 4)) + (" …" if machines > 4 else "")


def _rank_envs(plan: LaunchPlan) -> list[RankEnv]:
    if plan.world_size is None:
        raise ConfigError(
            f"“Processes per machine” (processes_per_node) is empty, so the number of processes on the "
            f"{plan.num_nodes} machines is unknown",
            f"Enter one number for each machine, such as {_example(plan.num_nodes)}, or their sum as “World size” "
            "(world_size); or start the preflight on machine 0, which shows a line for the others that needs neither",
        )
    # On one machine any port will do; one far from the defaults is not taken by a run that starts meanwhile.
    port = plan.port if plan.num_nodes > 1 else find_free_port(secrets.choice(_PORT_RANGE))
    return [
        RankEnv(rank, local_rank, plan.world_size, plan.master_addr, port)
        for local_rank, rank in enumerate(plan.ranks())
    ]


def _other_machines(plan: LaunchPlan, arguments: Sequence[str]) -> tuple[OtherMachine, ...]:
    """What to run on the others: these arguments, with what only this machine could choose."""
    given = list(arguments)
    while "--json" in given:
        place = given.index("--json")
        del given[place : place + 2]
    given = [*(each for each in given if not each.startswith("--json=")), "--set", f"master_addr={plan.master_addr}"]
    start = [*elsewhere(SCRIPT), *given, "--set", f"initial_port={plan.port}"]
    return tuple(
        OtherMachine(node, shlex.join([*start, "--set", f"node_rank={node}"]))
        for node in range(plan.num_nodes)
        if node != plan.node_rank
    )


class _Relay:
    """Passes on what a process says in its log about the machines that it waits for."""

    def __init__(self, log: Path, echo: Callable[[str], None]) -> None:
        self._log = log
        self._echo = echo
        self._count = 0

    def update(self) -> None:
        """Pass on what is new."""
        try:
            whole_lines = read_bytes(self._log, _LARGEST_LOG).decode(errors="replace").split("\n")[:-1]
        except (OSError, FileFault):
            return
        waiting = [line.strip() for line in whole_lines if line.startswith(WAITING)]
        for line in waiting[self._count :]:
            self._echo(line)
        self._count = len(waiting)


def _variables(rank_env: RankEnv, plan: LaunchPlan) -> dict[str, str]:
    return {
        **rank_env.environment(),
        "LOCAL_WORLD_SIZE": str(plan.processes_here),
        "GROUP_RANK": str(plan.node_rank),
    }


def _start(argv: list[str], variables: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(argv, env=dict(variables), stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _wait(children: list[subprocess.Popen[bytes]], result: Path, wait_s: float, relay: _Relay) -> None:
    """Wait until all have ended, the grace period after the first exit is over, or there is no progress."""
    deadline = time.monotonic() + wait_s + _MAX_SILENCE_S
    first_end: float | None = None
    started = seen = _changed_at(result)
    while any(child.poll() is None for child in children):
        now = time.monotonic()
        if seen == started:
            relay.update()
        if (changed := _changed_at(result)) != seen:
            seen, deadline = changed, now + _MAX_SILENCE_S
        if children[0].poll() is not None and first_end is None:
            first_end = now
        if now > deadline or (first_end is not None and now > first_end + _EXIT_GRACE_S):
            return
        time.sleep(_POLL_EVERY_S)


def _changed_at(file: Path) -> int:
    """In nanoseconds; 0 if it is missing."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _completed(found: PreflightReport, codes: Mapping[int, int | None], logs: Path) -> PreflightReport:
    """The report, with a red cell for each process that failed."""
    cells = [
        Cell("processes", f"rank {rank}", "red", _describe_exit(code, _log(logs, rank)), _FAILED_ADVICE)
        for rank, code in codes.items()
        if code not in {None, FINISHED, FAILED}
    ]
    if not found.complete and not cells and not found.reds:
        last = found.cells[-1].check if found.cells else "the start"
        cells.append(Cell("processes", hostname(), "red", f"no progress after {last}", _FAILED_ADVICE))
    return found.with_cells(cells)


def _describe_exit(code: int | None, log: Path) -> str:
    try:
        lines = read_bytes(log, _LARGEST_LOG).decode(errors="replace").split("\n")
    except (OSError, FileFault) as error:
        lines = [f"its output {error}"]
    last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if code is not None and code < 0:
        return f"was killed (signal {signal.Signals(-code).name})"
    return f"ended with exit code {code}{f': {last_line}' if last_line else ''}"[:300]


def read_report(result: Path) -> PreflightReport:
    """What the processes have found so far; nothing if the file cannot be read."""
    try:
        return PreflightReport.parse(read_text(result))
    except (OSError, FileFault):
        return PreflightReport("Preflight")


def _log(logs: Path, rank: int) -> Path:
    return logs / f"rank-{rank}.txt"


_FAILED_ADVICE = "Run the preflight again; if it fails the same way, check dmesg on that machine for lack of memory."


def reachable_hosts(hosts: Sequence[Host], report: Callable[[str], None]) -> tuple[list[Host], tuple[Cell, ...]]:
    """The machines that can take part, and a finding about each. Takes some seconds; a signal ends it at once."""
    if not hosts:
        return [], ()
    report(f"Testing {', '.join(map(str, hosts))} over ssh.")
    pool = ThreadPoolExecutor(min(len(hosts), _AT_ONCE))
    try:
        checks = list(pool.map(check_host, hosts))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for ssh in psutil.Process().children():  # for which Python would wait before it ends
            with suppress(psutil.Error):
                ssh.kill()
        raise
    pool.shutdown()
    for check in checks:
        if check.fault:
            report(check.fault)  # which names the machine
    return [check.host for check in checks if not check.fault], tuple(map(_cell, checks))


def _cell(check: HostCheck) -> Cell:
    return Cell("ssh", check.host.name, "red" if check.fault else "green", str(check))
