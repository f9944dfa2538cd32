"""The layout of a Slurm job: how many nodes, how many processes on each, exclusive or shared."""

from __future__ import annotations

import re
from dataclasses import dataclass

from modules.config import ConfigError
from modules.run.cluster.job import pluralize, require_positive, time_limit_s
from modules.run.launch.slurm_environment import expand_nodes

_GPU_TYPE = re.compile(r"[\w.-]+", re.ASCII)
_MEMORY = re.compile(r"\d+[KMGT]?", re.ASCII | re.IGNORECASE)
_SBATCH_LINE = re.compile(r"-(-[a-z][\w-]*|[a-zA-Z])([ =].*)?", re.ASCII)
_EARLY_S = 60  # Slurm may send the signal this much early: man sbatch, --signal


@dataclass(frozen=True)
class SlurmRequest:
    """What the user requests; None leaves the choice to Tandem or the cluster."""

    gpus: int
    cache_gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    cpu: bool = False
    cpus_per_gpu: int | None = None
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    mem: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    exclusive: bool | None = None
    requeue: bool = True
    warn_s: int = 120
    sbatch_lines: tuple[str, ...] = ()
    setup_lines: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The device of one process."""
        return "CPU process" if self.cpu else "GPU"

    def check(self) -> None:
        """Raise ConfigError for the first value that Slurm would misinterpret."""
        counts = ("gpus", "cache_gpus", "nodes", "gpus_per_node", "cpus_per_gpu")
        require_positive(**{name: getattr(self, name) for name in counts})
        for name in ("partition", "account", "qos", "mem", "constraint", "nodelist", "gpu_type"):
            value = getattr(self, name)
            if value is not None and (not value or not value.isprintable() or re.search(r"\s", value)):
                raise ConfigError(f"--{name} is {value!r}; it must be one word")
        self._check_syntax()
        self._check_times()

    def _check_syntax(self) -> None:
        if self.gpu_type is not None and not _GPU_TYPE.fullmatch(self.gpu_type):
            raise ConfigError(
                f"--gpu_type is {self.gpu_type!r}; give only the name, such as a100, and the number with --gpus",
                'sinfo --format="%P %G" lists the names after "gpu:"',
            )
        if self.mem is not None and not _MEMORY.fullmatch(self.mem):
            raise ConfigError(
                f"--mem is {self.mem!r}; write a number and K, M, G or T (without one: MiB), such as 64G; 0 is all"
            )
        for name in ("sbatch_lines", "setup_lines"):
            for line in getattr(self, name):
                option = f"--{name.removesuffix('s')}"
                if len(line.splitlines()) > 1:
                    raise ConfigError(f"{option} contains a line break", "Repeat the option for each line")
                if name == "sbatch_lines" and not _SBATCH_LINE.fullmatch(line):
                    raise ConfigError(
                        f"{option} is {line!r}; it must be an option of sbatch as written after #SBATCH",
                        f"For example {option}=--mail-type=END",
                    )

    def _check_times(self) -> None:
        limit_s = None if self.time is None else time_limit_s(self.time)
        if not 0 < self.warn_s <= 65_535:  # the limits of sbatch --signal
            raise ConfigError(f"--warn_s is {self.warn_s}; it must be between 1 and 65535 seconds")
        if limit_s is not None and limit_s <= self.warn_s + _EARLY_S:
            raise ConfigError(
                f"--time is {self.time}, which is {limit_s} s, and --warn_s is {self.warn_s}: the job would be told to "
                f"stop before it has trained, as Slurm may signal it {_EARLY_S} s early",
                f"Request more than {self.warn_s + _EARLY_S} s of --time, or lower --warn_s",
            )


@dataclass(frozen=True)
class SlurmLayout:
    """Nodes and processes of one job; `warnings` are sentences to print."""

    nodes: int
    per_node: int
    exclusive: bool
    nodelist: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """The processes on all nodes together."""
        return self.nodes * self.per_node


def plan_layout(
    request: SlurmRequest, processes: int, option: str = "--gpus", *, nodes: int | None = None
) -> SlurmLayout:
    """Spread `processes`, requested by `option`, evenly over `nodes`, or over as few nodes as possible.

    Raises ConfigError if they do not spread evenly.
    """
    size = request.gpus_per_node
    fewest = 1 if size is None else -(-processes // size)
    named = [] if request.nodelist is None else expand_nodes(request.nodelist)
    warnings: list[str] = []
    if nodes is None and size is None and len(named) > 1 and processes > 1:
        nodes = len(named)
    elif nodes is None and len(named) > fewest:
        warnings += _excess_nodelist_warning(request, named)
        named = named[:fewest]
    count = fewest if nodes is None else nodes
    if nodes != request.nodes:
        named = named[:count]  # of a caching job, which needs fewer than the training
    if len(named) > count:
        raise ConfigError(
            f"--nodelist names {len(named)} nodes, but --nodes is {count}: Slurm gives a job every node named",
            f"Name {count} of them, or omit --nodelist",
        )
    per_node = _processes_per_node(request, processes, option, count)
    if count > fewest:
        warnings.append(_excess_nodes_warning(request, processes, per_node, count, fewest))
    exclusive = request.exclusive if request.exclusive is not None else size is not None and per_node == size
    return SlurmLayout(count, per_node, exclusive, ",".join(named) or None, tuple(warnings))


def _processes_per_node(request: SlurmRequest, processes: int, option: str, nodes: int) -> int:
    per_node, rest = divmod(processes, nodes)
    if not per_node or rest:
        allowed = " or ".join(str(each * nodes) for each in (per_node, per_node + 1) if each)
        raise ConfigError(
            f"{option} is {processes}, which does not spread evenly over {nodes} nodes; use {allowed}",
            "Or choose another number of --nodes",
        )
    size = request.gpus_per_node
    if size is not None and per_node > size:
        raise ConfigError(
            f"{option} is {processes} and --nodes is {nodes}, which is {per_node} on each, but --gpus_per_node says "
            f"that a node has {size}",
            f"Use --nodes {-(-processes // size)}, or omit it",
        )
    return per_node


def _excess_nodelist_warning(request: SlurmRequest, named: list[str]) -> list[str]:
    """None if the training or the caching needs all nodes that are named."""
    most, size = max(request.gpus, request.cache_gpus or 0), request.gpus_per_node
    needed = 1 if most == 1 else len(named) if size is None else -(-most // size)
    if len(named) <= needed:
        return []
    spread = f" Use --nodes {len(named)} to spread over all." if most > 1 else ""
    return [
        f"{_capacity(request, most, needed)}, but --nodelist names {len(named)} nodes, all of which Slurm would "
        f"give the job: only {', '.join(named[:needed])} is requested.{spread}"
    ]


def _excess_nodes_warning(request: SlurmRequest, processes: int, per_node: int, nodes: int, fewest: int) -> str:
    if request.gpus_per_node is None:
        fits = f"If one node of this cluster has {pluralize(processes, request.unit)}, one node is enough"
    else:
        fits = _capacity(request, processes, fewest)
    return (
        f"{fits}, but the job requests {nodes} nodes with {per_node} on each: gradients then travel over the network, "
        "which is slower, and the job may wait longer. Use --nodes 1 unless no node has enough free."
        if fewest == 1
        else f"{fits}, but the job requests {nodes}: omit --nodes unless they are not free."
    )


def _capacity(request: SlurmRequest, processes: int, fewest: int) -> str:
    where = "one node" if fewest == 1 else f"{fewest} nodes"
    return (
        f"{pluralize(processes, request.unit)} fit on {where}"
        if processes > 1
        else f"1 {request.unit} fits on one node"
    )
