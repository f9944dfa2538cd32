"""Run on Kubernetes: `python scripts/submit_kubernetes.py --config FILE --image NAME --volume CLAIM:PATH [--apply]`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_trust_code, add_version, allow_code, prepare_program, resolved_config

prepare_program()

from modules.config import ConfigError, TandemError, TrainConfig, preset_names
from modules.config.file_access import set_file_access
from modules.config.io.files import write_config_text
from modules.files import check_replaceable, printable
from modules.run.cluster.job import pluralize, without_effect
from modules.run.console import echo, warn
from modules.run.demo_images import DRAWN, demo_of
from modules.run.kubernetes.apply import PartlyApplied, apply
from modules.run.kubernetes.manifest import KubernetesJob, plan_job, render
from modules.run.kubernetes.placement import code_hashes
from modules.run.kubernetes.request import KubernetesRequest, Volume
from modules.run.remote.sending import only_there

_EXAMPLE = (
    "For example: python scripts/submit_kubernetes.py --config demo --run_name demo --image tandem:cpu --cpu --gpus 1 "
    "--volume work:/work"
)


def main(arguments: list[str] | None = None) -> int:
    """Check the settings, then show, write or apply the manifests; returns an exit code."""
    options = parser().parse_args(arguments)
    try:
        set_file_access()
        config = config_of(options)
        allow_code(config, trust=options.trust_code)
        job = job_of(options, config)
        text = render(job)
        check_startable_here(config)
        for warning in warnings_of(config, job):
            warn(f"Warning: {warning}")
        if options.output is not None:
            write(text, Path(options.output))
        if options.apply:
            echo(apply(job).rstrip())
        elif options.output is None:
            print(text, end="", flush=True)
        if options.apply or options.output is not None:
            report(job, None if options.apply else options.output)
    except TandemError as error:
        what = "Perhaps not all was applied" if isinstance(error, PartlyApplied) else "Nothing was applied"
        warn(f"{what}: {error}")
        return error.exit_code
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line: settings as for train.py, resources as for submit_slurm.py or under Kubernetes' own names."""
    top = argparse.ArgumentParser(
        description="Write the manifests of a run on Kubernetes, or apply them. docs/kubernetes.md explains them.",
        epilog=f"Presets: {', '.join(preset_names())}. All settings: docs/settings.md.",
        allow_abbrev=False,
    )
    top.add_argument("--config", metavar="FILE", help="a config file (JSON or YAML) or the name of a preset")
    top.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="override a setting")
    top.add_argument("--run_name", metavar="NAME", help="name of the run and of its folder below runs_dir")
    top.add_argument("--output", metavar="FILE", help="write the manifests to this file (default: show them)")
    end = top.add_mutually_exclusive_group()
    end.add_argument("--dry_run", action="store_true", help="apply nothing, which is the default")
    end.add_argument("--apply", action="store_true", help="apply the manifests to the cluster that kubectl is set to")
    processes = top.add_argument_group("processes, one GPU each")
    processes.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs of each machine (default: the config's world_size / machines)"
    )
    processes.add_argument(
        "--machines", type=int, metavar="N", help="number of machines, a pod each (default: the config's num_nodes)"
    )
    processes.add_argument("--cpu", action="store_true", help="train on the CPU, request no GPUs")
    processes.add_argument(
        "--cpus_per_gpu", type=int, metavar="N", help="cores for each process (default: 1 + loader_workers)"
    )
    cluster = top.add_argument_group("pods")
    cluster.add_argument("--image", metavar="NAME", help="image with Tandem, built from its Dockerfile")
    cluster.add_argument("--namespace", metavar="NAME", help="namespace (default: kubectl's own)")
    cluster.add_argument(
        "--volume",
        metavar="CLAIM:PATH",
        action="append",
        default=[],
        help="mount the volume of a claim there; relative paths of the config begin in the first",
    )
    cluster.add_argument(
        "--hub", metavar="PATH", help="folder for models of the hub (default: huggingface in the first volume)"
    )
    cluster.add_argument(
        "--secret",
        metavar="NAME",
        action="append",
        default=[],
        help="name of an existing secret whose keys, such as HF_TOKEN, become variables",
    )
    cluster.add_argument("--mem", metavar="SIZE", help="memory of each machine, e.g. 64Gi (default: not requested)")
    cluster.add_argument("--shm", metavar="SIZE", default="8Gi", help="shared memory of that, at most (default: 8Gi)")
    cluster.add_argument(
        "--gpu_resource", metavar="NAME", default="nvidia.com/gpu", help="resource (default: nvidia.com/gpu)"
    )
    cluster.add_argument(
        "--node_selector", metavar="NAME=VALUE", action="append", default=[], help="only nodes with this label"
    )
    cluster.add_argument("--time", metavar="LIMIT", help="of all starts together, e.g. 90 (minutes) or 1-12:00:00")
    cluster.add_argument(
        "--grace_s",
        type=int,
        default=120,
        metavar="N",
        help="seconds for the backup when a pod must end (default: 120)",
    )
    cluster.add_argument(
        "--retries", type=int, default=6, metavar="N", help="starts after failures of a machine (default: 6)"
    )
    cluster.add_argument("--user", type=int, default=1000, metavar="UID", help="user of the pods (default: 1000)")
    add_trust_code(top)
    add_version(top)
    return top


def config_of(options: argparse.Namespace) -> TrainConfig:
    """The config of this command line. Raises ConfigError, also if none was given."""
    if options.config is None:
        raise ConfigError(
            f"--config is missing; give a file or one of the presets: {', '.join(preset_names())}.", _EXAMPLE
        )
    name = () if options.run_name is None else (f"run_name={options.run_name}",)
    return resolved_config(options.config, [*options.set, *name])


def job_of(options: argparse.Namespace, config: TrainConfig) -> KubernetesJob:
    """The job of this command line. Raises ConfigError."""
    machines = config.num_nodes if options.machines is None else options.machines
    gpus = options.gpus
    if gpus is None and config.world_size is not None and machines > 0:
        gpus, rest = divmod(config.world_size, machines)
        if rest:
            raise ConfigError(
                f"world_size is {config.world_size}, which does not spread evenly over {machines} machines",
                "Give the GPUs of each machine with --gpus",
            )
    for option, value, example in (("gpus", gpus, "--gpus 1"), ("image", options.image, "--image tandem:cuda")):
        if value is None:
            raise ConfigError(f"--{option} is missing", f"For example {example}")
    request = KubernetesRequest(
        gpus=gpus,
        machines=machines,
        volumes=tuple(map(Volume.parse, options.volume)),
        secrets=tuple(options.secret),
        node_selector=tuple(options.node_selector),
        **{
            name: getattr(options, name)
            for name in ("image", "cpu", "cpus_per_gpu", "mem", "shm", "gpu_resource", "namespace", "time", "grace_s")
        },
        **{name: getattr(options, name) for name in ("retries", "user", "hub")},
    )
    demo = demo_of(options.config, config)
    return plan_job(config, request, code=code_hashes(config), drawing=None if demo is None else DRAWN[demo])


def check_startable_here(config: TrainConfig) -> None:
    """Check the settings as a local start does, but for what is only in the volumes. Raises ConfigError."""
    if elsewhere := only_there(config, ()):
        name, path = elsewhere[0]
        echo_note(f"{name} is {path!r}, which is not on this computer: the pods check it, and what depends on it.")
        return
    from modules.training.loop.checks import check_startable  # torch takes seconds to import, so this comes last

    check_startable(config, has_data=False)


def echo_note(text: str) -> None:
    """A note, on standard error: what is redirected to a file is YAML."""
    warn(f"Note: {text}")


def warnings_of(config: TrainConfig, job: KubernetesJob) -> list[str]:
    """Warnings before the pods are started."""
    request = job.request
    several = request.machines > 1
    more = {
        "max_restarts": (config.max_restarts > 0 and several, "--retries is how often pods start again"),
        "--gpu_resource": (request.cpu and request.gpu_resource != "nvidia.com/gpu", "--cpu requests no GPUs"),
    }
    found = without_effect(config, nodes=request.machines, per_node=request.gpus, cluster="Kubernetes", more=more)
    if several:
        claims = ", ".join(volume.claim for volume in request.volumes)
        found.append(f"{request.machines} machines share the volumes ({claims}): their claims must be ReadWriteMany.")
    if request.mem is None:
        found.append(
            "without --mem the pods request no memory: the cluster may place them where there is too little, and ends "
            "them first when a node runs out."
        )
    return found


def write(text: str, path: Path) -> None:
    """Write the manifests. Raises ConfigError."""
    try:
        check_replaceable(path)
    except OSError as error:
        raise ConfigError(
            f"--output is {printable(path)}, which {error.strerror}", "Name a file, such as job.yaml"
        ) from error
    write_config_text(path, text)


def report(job: KubernetesJob, file: str | None) -> None:
    """How to apply what was written, or how to follow what was applied."""
    request = job.request
    where = "" if request.namespace is None else f" --namespace {request.namespace}"
    objects = "job,service,networkpolicy,configmap,secret" if request.machines > 1 else "job,configmap"
    machines = "one machine" if request.machines == 1 else f"each of {request.machines} machines"
    echo(f"Job {job.name}: training with {pluralize(request.gpus, request.unit)} on {machines}")
    if file is not None:
        echo(f"  Start:  kubectl apply --server-side -f {shlex.quote(file)}")
    first = f"{job.selector},batch.kubernetes.io/job-completion-index=0"
    echo(f"  Watch:  kubectl logs{where} --follow --tail=-1 -l {first}")
    echo(f"  Stop after a backup:  kubectl delete{where} job {job.name}")
    echo(f"  Remove all but the run:  kubectl delete{where} {objects} -l {job.selector}")


if __name__ == "__main__":
    sys.exit(main())
