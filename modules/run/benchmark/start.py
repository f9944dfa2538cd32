"""Runs the cases of a benchmark one after the other, each as a run of its own in a temporary folder."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from modules import __version__
from modules.config import ConfigError, Interval, TandemError, TrainConfig
from modules.files import FileFault, printable, remove_tree
from modules.machine import hostname
from modules.run.benchmark.records import RESULT, VARIABLE, BenchmarkRequest, BenchmarkResult, CaseResult, Measured
from modules.run.exit_codes import FINISHED, INTERRUPTED
from modules.run.folder.failures import root_cause
from modules.run.folder.run_folder import RunFolder
from modules.run.launch.plan import LaunchPlan
from modules.run.start import check_start, start_run

_STOPPED = (INTERRUPTED, 143)


class BenchmarkStopped(TandemError):
    """A person has stopped it; what was measured before is complete."""


def cases_of(config: TrainConfig, ranks: Sequence[int], batch_sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(ranks, batch size) of each case: the scaling with the config's batch, then the batch sizes on the fewest ranks.

    Without `ranks`: 1, 2, 4, … and all that the config starts. Raises ConfigError if it starts fewer than asked.
    """
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
) -> BenchmarkResult:
    """Measure all cases; `name` is what the user called the config. A case that fails does not end the others.

    `keep` gets the result after each case, so that nothing measured is lost.

    Raises ConfigError for a config that this machine cannot start, and BenchmarkStopped.
    """
    result = BenchmarkResult(name, printable(config.family), _machine(), {"tandem": __version__})
    for number, (ranks, batch_size) in enumerate(cases, start=1):
        echo(f"\nCase {number} of {len(cases)}: {count_of(ranks, 'process', 'es')}, batch size {batch_size}")
        result.cases.append(_run_case(config, ranks, batch_size, request, echo))
        keep(result)
    return result


def count_of(number: int, noun: str, plural: str = "s") -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}{plural if number != 1 else ''}"


def case_config(
    config: TrainConfig, ranks: int, batch_size: int, request: BenchmarkRequest, runs_dir: Path
) -> TrainConfig:
    """The config of one case: the same model, data and step, for so many steps, and nothing beside them."""
    alone = {"enable_multi_gpu": False, "training_mode": "auto", "world_size": None}
    many: dict[str, object] = {"enable_multi_gpu": True, "world_size": ranks}
    if ranks > 1 and config.device_ids is not None:
        many["device_ids"] = config.device_ids[:ranks]
    never = Interval(0, "never")
    return config.model_copy(
        update={
            "runs_dir": str(runs_dir),
            "run_name": f"{ranks}-{batch_size}",
            "batch_size": batch_size,
            "max_steps": request.warm_up + request.steps,
            "num_nodes": 1,
            "node_rank": 0,
            "processes_per_node": None,
            "log_every": Interval(1, "steps"),
            "backup_every": never,
            "sample_every": never,
            "validate_every": never,
            "early_stopping_patience": None,
            "restore_best": False,
            "cache_only": False,
            "tensorboard": False,
            "histograms_every": never,
            "profile_steps": 0,
            "max_restarts": 0,
            **(alone if ranks == 1 else many),
        }
    )


def _run_case(
    config: TrainConfig, ranks: int, batch_size: int, request: BenchmarkRequest, echo: Callable[[str], None]
) -> CaseResult:
    place = Path(tempfile.mkdtemp(prefix="tandem-benchmark-"))
    try:
        case = case_config(config, ranks, batch_size, request, place)
        check_start(case, require_multi_gpu=ranks > 1, token=None)
        folder = RunFolder.create(case)
        with _told(request):
            code = start_run(case, folder, echo, require_multi_gpu=ranks > 1)
        if code in _STOPPED:
            raise BenchmarkStopped("The benchmark was stopped")
        if code == FINISHED:
            return CaseResult(ranks, batch_size, Measured.load(folder.path / RESULT))
        failure = root_cause(folder)
        reason = f"exit code {code}" if failure is None else failure.message.splitlines()[0]
        return CaseResult(ranks, batch_size, None, printable(reason, 300))
    except (OSError, FileFault) as error:
        return CaseResult(ranks, batch_size, None, printable(f"its result cannot be read: {error}", 300))
    finally:
        remove_tree(place)


@contextmanager
def _told(request: BenchmarkRequest) -> Iterator[None]:
    os.environ.update(request.environment())
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


def _machine() -> str:
    return printable(f"{hostname()}, {platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores")
