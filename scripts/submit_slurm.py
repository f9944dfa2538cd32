"""Submit a training to Slurm: `python scripts/submit_slurm.py --config FILE --gpus 4 [--cache_gpus 1] [--dry_run]`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.own_python import require_packages

require_packages()

from modules.config import ConfigError, TandemError, TrainConfig, preset_names, resolve_config, save_config
from modules.run import RunFolder
from modules.run.console import say
from modules.run.resume import LATEST, folder_to_resume
from modules.run.run_folder import not_writable
from modules.run.slurm.layout import SlurmRequest, counted
from modules.run.slurm.script import SlurmJob, log_of, plan_jobs, render, script_of
from modules.run.slurm.submit import SubmitError, cancel, submit


def main(arguments: list[str] | None = None) -> int:
    """Check the settings, write the scripts and submit them; returns 0, or the exit code of what was wrong."""
    options = parser().parse_args(arguments)

    try:
        config = config_of(options)
        request = request_of(options, config)
        jobs = plan_jobs(config, request)
        from modules.training.checks import check_startable  # torch takes seconds to import, so this comes last

        check_startable(config)
        for warning in warnings_of(config, jobs):
            print(f"Warning: {warning}", file=sys.stderr)
        if options.dry_run:
            show(jobs, request)
        else:
            submit_all(jobs, request, resume=options.resume is not None)
    except TandemError as error:
        print(f"Nothing was submitted: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line: settings as for train.py, and what Slurm is asked for under Slurm's own names."""
    top = argparse.ArgumentParser(
        prog="submit_slurm.py",
        description="Write a batch script that trains with Slurm, and submit it. docs/slurm.md explains every line.",
        epilog=f"Presets: {', '.join(preset_names())}. All settings: docs/settings.md.",
        allow_abbrev=False,
    )
    top.add_argument("--config", metavar="FILE", help="a config file (JSON or YAML) or the name of a preset")
    top.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="override a setting")
    top.add_argument("--run_name", metavar="NAME", help="the run's name, which is its folder's name below runs_dir")
    top.add_argument("--resume", choices=(LATEST,), help="submit a run again that is there: it goes on")
    top.add_argument("--dry_run", action="store_true", help="show the scripts, and write and submit nothing")
    gpus = top.add_argument_group("processes, each of which has a GPU")
    gpus.add_argument("--gpus", type=int, metavar="N", help="how many train (default: the config's world_size)")
    gpus.add_argument("--cache_gpus", type=int, metavar="N", help="fill the cache first, in a job with so many")
    gpus.add_argument(
        "--nodes", type=int, metavar="N", help="spread them over so many nodes (default: as few as can be)"
    )
    gpus.add_argument("--gpus_per_node", type=int, metavar="N", help="how many GPUs a node of the cluster has")
    gpus.add_argument("--gpu_type", metavar="NAME", help="their name in Slurm, such as a100")
    gpus.add_argument("--cpu", action="store_true", help="ask for no GPU: the processes compute on the CPU")
    gpus.add_argument(
        "--cpus_per_gpu", type=int, metavar="N", help="cores for each process (default: 1 + loader_workers)"
    )
    cluster = top.add_argument_group("as in sbatch")
    cluster.add_argument("--partition", metavar="NAME")
    cluster.add_argument("--time", metavar="LIMIT", help="such as 90 (minutes) or 1-12:00:00")
    cluster.add_argument("--account", metavar="NAME")
    cluster.add_argument("--qos", metavar="NAME")
    cluster.add_argument(
        "--mem", metavar="SIZE", help="memory on each node, such as 64G (default on a whole node: all)"
    )
    cluster.add_argument("--constraint", metavar="FEATURE")
    cluster.add_argument("--nodelist", metavar="NODES", help="such as gpu01 or gpu[01-02]")
    cluster.add_argument(
        "--exclusive",
        action=argparse.BooleanOptionalAction,
        help="share the nodes with nobody (default: where all of their GPUs are used)",
    )
    cluster.add_argument(
        "--requeue",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go back into the queue near the time limit and after a preemption, and continue (default: yes)",
    )
    cluster.add_argument(
        "--warn_s", type=int, default=120, metavar="N", help="seconds before the limit for the backup (default: 120)"
    )
    cluster.add_argument(
        "--sbatch_line", metavar="TEXT", action="append", default=[], help="one more #SBATCH line, e.g. --mail-type=END"
    )
    cluster.add_argument(
        "--setup_line",
        metavar="TEXT",
        action="append",
        default=[],
        help="a line of shell to run first, e.g. module load",
    )
    return top


def config_of(options: argparse.Namespace) -> TrainConfig:
    """The config that the command line describes. Raises ConfigError, also where none was given."""
    name = () if options.run_name is None else (f"run_name={options.run_name}",)
    source = options.config
    if source is None and options.resume is not None:
        settings = resolve_config(None, [*options.set, *name])
        source = str(folder_to_resume(settings, LATEST).config_file)
    if source is None:
        raise ConfigError(
            f"--config is missing; give a file or one of the presets: {', '.join(preset_names())}.",
            "For example: python scripts/submit_slurm.py --config demo --gpus 2",
        )
    return resolve_config(source, [*options.set, *name])


def request_of(options: argparse.Namespace, config: TrainConfig) -> SlurmRequest:
    """What is asked of Slurm. Raises ConfigError where nobody says how many GPUs."""
    gpus = config.world_size if options.gpus is None else options.gpus
    if gpus is None:
        raise ConfigError(
            "--gpus is missing, and the config has no world_size", "Say how many GPUs train, e.g. --gpus 4"
        )
    same = ("cache_gpus", "gpus_per_node", "gpu_type", "cpu", "cpus_per_gpu", "partition", "time", "account", "qos")
    more = ("mem", "constraint", "nodelist", "exclusive", "requeue", "warn_s")
    return SlurmRequest(
        gpus=gpus,
        nodes=config.num_nodes if options.nodes is None and config.num_nodes > 1 else options.nodes,
        **{name: getattr(options, name) for name in (*same, *more)},
        sbatch_lines=tuple(options.sbatch_line),
        setup_lines=tuple(options.setup_line),
    )


def warnings_of(config: TrainConfig, jobs: list[SlurmJob]) -> list[str]:
    """What the person should know before the jobs wait in the queue; each sentence once."""
    sentences = [sentence for job in jobs for sentence in job.layout.warnings]
    if config.device_ids is not None:
        sentences.append("device_ids has no effect: Slurm chooses the GPUs.")
    return list(dict.fromkeys(sentences))


def show(jobs: list[SlurmJob], request: SlurmRequest) -> None:
    """Print what would be submitted."""
    for job in jobs:
        name = job.config.run_name or "NAME"
        folder = RunFolder(Path(job.config.runs_dir) / folder_name(name, job, jobs))
        print(f"# {script_of(folder)}\n{render(job, request, folder, Path.cwd())}")


def submit_all(jobs: list[SlurmJob], request: SlurmRequest, *, resume: bool) -> None:
    """Make a run folder for each job, write its script there, and hand it to sbatch."""
    training = open_folder(jobs[-1], resume=resume)
    made = [] if resume else [training]
    ids: list[str] = []
    try:
        for job in jobs:
            name = folder_name(training.name, job, jobs)
            folder = training
            if job is not jobs[-1]:
                folder = RunFolder.create(job.config.model_copy(update={"run_name": name}))
                made.append(folder)
            write_script(script_of(folder), render(job, request, folder, Path.cwd()))
            ids.append(submit(script_of(folder), after=ids[-1] if ids else None))
            tell(job, request, folder, ids)
    except SubmitError:
        for job_id in ids:
            cancel(job_id)
        for folder in made:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    queue = ",".join(ids)
    say(f"Queue:    squeue --jobs {queue}")
    say(f"Stop:     scancel {queue}")


def folder_name(name: str, job: SlurmJob, jobs: list[SlurmJob]) -> str:
    """The run's own name for the last job; one that goes before it has a folder beside it."""
    return name if job is jobs[-1] else f"{name}-{job.purpose}"


def open_folder(job: SlurmJob, *, resume: bool) -> RunFolder:
    """The new run's folder, or that of the run to go on with, which gets the config of now."""
    if not resume:
        return RunFolder.create(job.config)
    folder = folder_to_resume(job.config, LATEST)
    save_config(job.config, folder.config_file)
    return folder


def write_script(path: Path, text: str) -> None:
    """Write a batch script. Raises ConfigError where the folder does not allow it."""
    try:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    except OSError as error:
        raise not_writable(path.parent, error) from error


def tell(job: SlurmJob, request: SlurmRequest, folder: RunFolder, ids: list[str]) -> None:
    """Say what was submitted, and how to look at it."""
    nodes = "one node" if job.layout.nodes == 1 else f"{job.layout.nodes} nodes"
    after = f", once job {ids[-2]} has ended well" if len(ids) > 1 else ""
    say(f"Job {ids[-1]}: {job.purpose} with {counted(job.layout.processes, request.unit)} on {nodes}{after}")
    say(f"  Script: {script_of(folder)}")
    say(f"  Watch:  tail -F {shlex.quote(str(log_of(folder, ids[-1])))}")
    say(f"  Stop after a backup:  touch {shlex.quote(str(folder.commands_dir.resolve() / 'stop'))}")


if __name__ == "__main__":
    sys.exit(main())
