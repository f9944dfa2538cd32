"""Runs the cases of a benchmark one after the other, each as a run of its own in a temporary folder."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from modules import __version__
from modules.config import EQUAL, ConfigError, Interval, TandemError, TrainConfig, balance_numbers
from modules.files import FileFault, printable, remove_tree
from modules.machine import system_hostname
from modules.run.benchmark.records import RESULT, VARIABLE, BenchmarkRequest, BenchmarkResult, CaseResult, Measured
from modules.run.exit_codes import FINISHED, INTERRUPTED
from modules.run.folder.failures import root_cause
from modules.run.folder.run_folder import RunFolder
from modules.run.hosts.host import Host
from modules.run.hosts.measuring import machines_text, on_machines
from modules.run.launch.plan import LaunchPlan
from modules.run.launch.rank_env import refuse_rank
from modules.run.start import check_start, start_run

_STOPPED = (INTERRUPTED, 143)


class BenchmarkStopped(TandemError):
    """A person has stopped it; what was measured before is complete."""


def cases_of(config: TrainConfig, ranks: Sequence[int], batch_sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(ranks, batch size) of each case: the scaling with the config's batch, then the batch sizes on the fewest ranks.

    Without `ranks`: 1, 2, 4, … and all that the config starts on this machine. Raises ConfigError if it starts fewer
    than asked.
    """
    config = on_machines(config, 1)
    most = LaunchPlan.from_config(config, config_path="config.json").world_size or 1
    if not ranks:
        doubled = [2**power for power in range(20) if 2**power < most]
        ranks = [*doubled, most]
    elif max(ranks) > most and not config.enable_multi_gpu:
        raise ConfigError(
            f"--ranks {max(ranks)} needs several processes, but the config trains in one; add --multi_gpu"
        )
    scaling = [(count, config.batch_size) for count in sorted(set(ranks))]
    sweep = [(min(ranks), size) for size in sorted(set(batch_sizes))]
    return list(dict.fromkeys([*scaling, *sweep]))


def run_benchmark(
    config: TrainConfig,
    name: str,
    cases: Sequence[tuple[int, int]],
    request: BenchmarkRequest,
    echo: Callable[[str], None],
    keep: Callable[[BenchmarkResult], None] = lambda result: None,
    hosts: Sequence[Host] = (),
) -> BenchmarkResult:
    """Measure all cases; `name` is what the user called the config. A case that fails does not end the others.

    The last case, with `hosts`, is all that the config starts on this machine and on those, over ssh. `keep` gets the
    result after each case, so that nothing measured is lost.

    Raises ConfigError for a config that this machine cannot start, and in a rank, and BenchmarkStopped.
    """
    refuse_rank(os.environ, "The benchmark")
    if note := machines_text(len(hosts), config.num_nodes):
        echo(note)
    here = this_machine([host.name for host in hosts])
    names = " and ".join(host.name for host in hosts)
    machine = f"{_machine()}{f'; {names}' if names else ''}"
    result = BenchmarkResult(name, printable(config.family), machine, {"tandem": __version__})
    count = len(cases) + bool(hosts)
    for number, (ranks, batch_size) in enumerate(cases, start=1):
        echo(f"\nCase {number} of {count}: {count_of(ranks, 'process', 'es')}, batch size {batch_size}")
        found = _run_case(case_config(config, ranks, batch_size, request), request, echo, ranks)
        result.cases.append(replace(found, machines=[here]))
        keep(result)
    if hosts:
        echo(f"\nCase {count} of {count}: this machine and {names}, batch size {config.batch_size}")
        case = several_machines_config(config, 1 + len(hosts), request)
        found = _run_case(case, request, echo, 1 + len(hosts), hosts)
        result.cases.append(replace(found, machines=[here, *(host.name for host in hosts)]))
        keep(result)
    return result


def this_machine(others: Sequence[str]) -> str:
    """This machine's name beside those of others in the list of machines."""
    name = printable(system_hostname())
    return f"{name} (this machine)" if name in others else name


def count_of(number: int, noun: str, plural: str = "s") -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}{plural if number != 1 else ''}"


def case_config(config: TrainConfig, ranks: int, batch_size: int, request: BenchmarkRequest) -> TrainConfig:
    """The config of one case on this machine."""
    alone = {"enable_multi_gpu": False, "training_mode": "auto", "world_size": None}
    many: dict[str, object] = {"enable_multi_gpu": True, "world_size": ranks}
    if len(balance_numbers(config.balance)) not in {0, ranks}:
        many["balance"] = EQUAL
    if ranks > 1 and config.device_ids is not None:
        many["device_ids"] = config.device_ids[:ranks]
    here = {"run_name": f"{ranks}-{batch_size}", "batch_size": batch_size, "num_nodes": 1, "node_rank": 0}
    case = {**here, "processes_per_node": None, **(alone if ranks == 1 else many)}
    return _steps_only(config, request).model_copy(update=case)


def several_machines_config(config: TrainConfig, machines: int, request: BenchmarkRequest) -> TrainConfig:
    """The config of the case on several machines, with all processes that the config starts there."""
    case = {"run_name": f"{machines}-machines", "enable_multi_gpu": True}
    return on_machines(_steps_only(config, request), machines).model_copy(update=case)


def _steps_only(config: TrainConfig, request: BenchmarkRequest) -> TrainConfig:
    """The config with the same model, data and step, for so many steps, and nothing beside them."""
    never = Interval(0, "never")
    return config.model_copy(
        update={
            "max_steps": request.warm_up + request.steps,
            "log_every": Interval(1, "steps"),
            "backup_every": never,
            "save_every": never,
            "sample_every": never,
            "validate_every": never,
            "early_stopping_patience": None,
            "restore_best": False,
            "cache_only": False,
            "tensorboard": False,
            "histograms_every": never,
            "profile_steps": 0,
            "max_restarts": 0,
        }
    )


def _run_case(
    config: TrainConfig,
    request: BenchmarkRequest,
    echo: Callable[[str], None],
    ranks: int,
    hosts: Sequence[Host] = (),
) -> CaseResult:
    """One case; `ranks` is how many it has, or at least."""
    batch_size = config.batch_size
    place = Path(tempfile.mkdtemp(prefix="tandem-benchmark-"))
    try:
        case = config.model_copy(update={"runs_dir": str(place)})
        check_start(case, require_multi_gpu=ranks > 1, token=None)
        folder = RunFolder.create(case)
        with _request_in_environment(request):
            code = start_run(case, folder, echo, require_multi_gpu=ranks > 1, hosts=hosts)
        if code in _STOPPED:
            raise BenchmarkStopped("The benchmark was stopped")
        if code == FINISHED:
            measured = Measured.load(folder.path / RESULT)
            return CaseResult(max(ranks, len(measured.devices)), batch_size, measured)
        failure = root_cause(folder)
        reason = f"exit code {code}" if failure is None else failure.message.splitlines()[0]
        return CaseResult(ranks, batch_size, None, printable(reason, 300))
    except TandemError as error:
        if not hosts or isinstance(error, BenchmarkStopped):
            raise
        return CaseResult(ranks, batch_size, None, printable(str(error), 300))  # another machine; the rest is measured
    except (OSError, FileFault) as error:
        return CaseResult(ranks, batch_size, None, printable(f"its result cannot be read: {error}", 300))
    finally:
        remove_tree(place)


@contextmanager
def _request_in_environment(request: BenchmarkRequest) -> Iterator[None]:
    os.environ.update(request.environment())
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


def _machine() -> str:
    return printable(f"{system_hostname()}, {platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores")
