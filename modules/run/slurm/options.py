"""The options of a Slurm job as words of a command line: what `add_resources` reads is the same here and on a login
node."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final, NoReturn

from modules.config import ConfigError, TrainConfig
from modules.run.slurm.layout import SlurmRequest

_SAME: Final = (
    *("cache_gpus", "gpus_per_node", "gpu_type", "cpu", "cpus_per_gpu", "partition", "time", "account", "qos", "mem"),
    *("constraint", "nodelist", "exclusive", "requeue", "warn_s"),
)


def add_resources(top: argparse.ArgumentParser) -> None:
    """Resources under Slurm's own names."""
    gpus = top.add_argument_group("processes, one GPU each")
    gpus.add_argument("--gpus", type=int, metavar="N", help="GPUs for training (default: the config's world_size)")
    gpus.add_argument("--cache_gpus", type=int, metavar="N", help="fill the cache first, in a job with this many GPUs")
    gpus.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: as few as possible)")
    gpus.add_argument("--gpus_per_node", type=int, metavar="N", help="GPUs of each node of the cluster")
    gpus.add_argument("--gpu_type", metavar="NAME", help="GPU type in Slurm, e.g. a100")
    gpus.add_argument("--cpu", action="store_true", help="train on the CPU, request no GPUs")
    gpus.add_argument(
        "--cpus_per_gpu", type=int, metavar="N", help="cores for each process (default: 1 + loader_workers)"
    )
    cluster = top.add_argument_group("as in sbatch")
    cluster.add_argument("--partition", metavar="NAME")
    cluster.add_argument("--time", metavar="LIMIT", help="e.g. 90 (minutes) or 1-12:00:00")
    cluster.add_argument("--account", metavar="NAME")
    cluster.add_argument("--qos", metavar="NAME")
    cluster.add_argument("--mem", metavar="SIZE", help="memory of each node, e.g. 64G (default on a whole node: all)")
    cluster.add_argument("--constraint", metavar="FEATURE")
    cluster.add_argument("--nodelist", metavar="NODES", help="e.g. gpu01 or gpu[01-02]")
    cluster.add_argument(
        "--exclusive",
        action=argparse.BooleanOptionalAction,
        help="exclusive nodes (default: if all of their GPUs are used)",
    )
    cluster.add_argument(
        "--requeue",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="requeue near the time limit and after a preemption, and resume (default: yes)",
    )
    cluster.add_argument(
        "--warn_s", type=int, default=120, metavar="N", help="seconds before the time limit to back up (default: 120)"
    )
    cluster.add_argument(
        "--sbatch_line", metavar="TEXT", action="append", default=[], help="one more #SBATCH line, e.g. --mail-type=END"
    )
    cluster.add_argument(
        "--setup_line",
        metavar="TEXT",
        action="append",
        default=[],
        help="a shell line to run first, e.g. module load",
    )


def request_of(options: argparse.Namespace, config: TrainConfig) -> SlurmRequest:
    """The resources to request. Raises ConfigError if the number of GPUs is unknown."""
    gpus = config.world_size if options.gpus is None else options.gpus
    if gpus is None:
        raise ConfigError(
            "--gpus is missing, and the config has no world_size", "Set the number of GPUs, e.g. --gpus 4"
        )
    return SlurmRequest(
        gpus=gpus,
        nodes=config.num_nodes if options.nodes is None and config.num_nodes > 1 else options.nodes,
        **{name: getattr(options, name) for name in _SAME},
        sbatch_lines=tuple(options.sbatch_line),
        setup_lines=tuple(options.setup_line),
    )


class _Resources(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"of the options for Slurm, {message}")


def _resources() -> argparse.ArgumentParser:
    made = _Resources(add_help=False, allow_abbrev=False)
    add_resources(made)
    return made


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of a command line the options of a Slurm job, one word each, and all other words. Raises ConfigError for a value
    that is none."""
    parser = _resources()
    unset = argparse.Namespace(**dict.fromkeys(vars(parser.parse_args([]))))  # also a default may be given
    options, others = parser.parse_known_args(words, unset)
    return [word for name, value in vars(options).items() for word in _words_of(name, value)], others


def _words_of(name: str, value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}={each}" for each in (value if isinstance(value, list) else [value])]


def request_of_words(words: Sequence[str], config: TrainConfig) -> SlurmRequest:
    """What the words of a job request, checked. Raises ConfigError for one that is no option, or a value that is
    none."""
    options, others = _resources().parse_known_args(words)
    if others:
        raise ConfigError(f"{others[0]!r} is no option for Slurm", "Use those of scripts/submit_slurm.py --help")
    request = request_of(options, config)
    request.check()
    if request.cache_gpus is not None:
        raise ConfigError("--cache_gpus cannot be used from here", "Leave it out: the job fills the cache by itself")
    return request


def words_for_each_start(words: Sequence[str]) -> list[str]:
    """The options that all jobs of a cluster have, one word each; at least one. Raises ConfigError."""
    found, others = split_words(words)
    request_of_words([*found, *others], TrainConfig.model_construct(world_size=1, num_nodes=1))
    return found or ["--requeue"]  # which is the default
