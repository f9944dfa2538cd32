"""Submit a run to Slurm: `python scripts/submit_slurm.py --config FILE --gpus 4 [--cache_gpus 1] [--dry_run]`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import stat
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_trust_code, add_version, allow_code, prepare_program, resolved_config

prepare_program()

from modules.config import ConfigError, TandemError, TrainConfig, preset_names, resolve_config, save_config
from modules.config.file_access import set_file_access
from modules.run import RunFolder
from modules.run.cluster.command import SubmitError
from modules.run.cluster.job import pluralize, without_effect
from modules.run.console import echo, warn
from modules.run.demo_images import draw_missing_images
from modules.run.folder.resume import LATEST, folder_to_resume
from modules.run.folder.run_folder import not_writable_error
from modules.run.slurm.layout import SlurmRequest
from modules.run.slurm.options import add_resources, request_of
from modules.run.slurm.script import SlurmJob, log_path, plan_jobs, render, script_path
from modules.run.slurm.submit import cancel, submit, would_take


def main(arguments: list[str] | None = None) -> int:
    """Check the settings, write the scripts and submit them; returns an exit code."""
    options = parser().parse_args(arguments)
    try:
        set_file_access()
        config = config_of(options)
        allow_code(config, trust=options.trust_code)
        draw_missing_images(options.config, config)
        request = request_of(options, config)
        jobs = plan_jobs(config, request)
        from modules.training.loop.checks import check_startable  # torch takes seconds to import, so this comes last

        check_startable(config, has_data=options.remote_check != "no_data")
        for warning in warnings_of(config, jobs, request):
            warn(f"Warning: {warning}")
        if options.test_only:
            ask_for_all(jobs, request)
        elif options.dry_run:
            show(jobs, request)
        else:
            submit_all(jobs, request, resume=options.resume is not None)
    except TandemError as error:
        warn(f"Nothing was submitted: {error}")
        return error.exit_code
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line: settings as for train.py, resources under Slurm's own names."""
    top = argparse.ArgumentParser(
        description="Write a batch script that trains with Slurm, and submit it. docs/slurm.md explains every line.",
        epilog=f"Presets: {', '.join(preset_names())}. All settings: docs/settings.md.",
        allow_abbrev=False,
    )
    top.add_argument("--config", metavar="FILE", help="a config file (JSON or YAML) or the name of a preset")
    top.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="override a setting")
    top.add_argument("--run_name", metavar="NAME", help="name of the run and of its folder below runs_dir")
    top.add_argument("--resume", choices=(LATEST,), help="resume an existing run")
    top.add_argument("--dry_run", action="store_true", help="show the scripts without writing or submitting anything")
    top.add_argument(
        "--test_only", action="store_true", help="ask Slurm whether it would take the jobs, and when they would start"
    )
    top.add_argument("--remote_check", choices=("all", "no_data"), help=argparse.SUPPRESS)
    add_resources(top)
    add_trust_code(top)
    add_version(top)
    return top


def config_of(options: argparse.Namespace) -> TrainConfig:
    """The config of this command line. Raises ConfigError, also if none was given."""
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
    return resolved_config(source, [*options.set, *name])


def warnings_of(config: TrainConfig, jobs: list[SlurmJob], request: SlurmRequest) -> list[str]:
    """Warnings before the jobs wait in the queue, without duplicates."""
    sentences = [sentence for job in jobs for sentence in job.layout.warnings]
    layout = jobs[-1].layout
    more = {
        "max_restarts": (config.max_restarts > 0, "only torchrun restarts processes, and Slurm starts these"),
        "--gpu_type": (request.cpu and request.gpu_type is not None, "--cpu requests no GPUs"),
        "--cache_gpus": (config.cache_only and request.cache_gpus is not None, "cache_only is true: use --gpus"),
    }
    sentences += without_effect(config, nodes=layout.nodes, per_node=layout.per_node, cluster="Slurm", more=more)
    return list(dict.fromkeys(sentences))


def show(jobs: list[SlurmJob], request: SlurmRequest) -> None:
    """Print what would be submitted."""
    for job in jobs:
        folder = folder_to_be(job, jobs)
        warn(f"{script_path(folder)}:")  # what is redirected to a file is a script
        print(render(job, request, folder, Path.cwd()), flush=True)


def ask_for_all(jobs: list[SlurmJob], request: SlurmRequest) -> None:
    """Print what Slurm says of each job, of which it takes none. Raises SubmitError for one that it would reject."""
    for job in jobs:
        said = would_take(render(job, request, folder_to_be(job, jobs), Path.cwd()))
        echo(f"Would submit: {asked_for(job, request)}. Slurm says: {said}")


def folder_to_be(job: SlurmJob, jobs: list[SlurmJob]) -> RunFolder:
    """Where the run of a job would be."""
    return RunFolder(Path(job.config.runs_dir) / folder_name(job.config.run_name or "NAME", job, jobs))


def asked_for(job: SlurmJob, request: SlurmRequest) -> str:
    """ "training with 8 GPUs on one node"."""
    nodes = "one node" if job.layout.nodes == 1 else f"{job.layout.nodes} nodes"
    return f"{job.purpose} with {pluralize(job.layout.processes, request.unit)} on {nodes}"


def submit_all(jobs: list[SlurmJob], request: SlurmRequest, *, resume: bool) -> None:
    """Create a run folder for each job, write its script and submit it; cancels all if one is refused."""
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
            write_script(script_path(folder), render(job, request, folder, Path.cwd()))
            ids.append(submit(script_path(folder), after=ids[-1] if ids else None))
            report(job, request, folder, ids)
    except SubmitError:
        for job_id in ids:
            cancel(job_id)
        for folder in made:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    queue = ",".join(ids)
    echo(f"Queue:    squeue --jobs {queue}")
    echo(f"Stop:     scancel {queue}")


def folder_name(name: str, job: SlurmJob, jobs: list[SlurmJob]) -> str:
    """The run's name for the last job; earlier jobs have a suffix."""
    return name if job is jobs[-1] else f"{name}-{job.purpose}"


def open_folder(job: SlurmJob, *, resume: bool) -> RunFolder:
    """The folder of a new run, or of the run to resume, with the current config saved in it."""
    if not resume:
        return RunFolder.create(job.config)
    folder = folder_to_resume(job.config, LATEST)
    save_config(job.config, folder.config_file)
    return folder


def write_script(path: Path, text: str) -> None:
    """Write an executable batch script. Raises ConfigError if the folder is not writable."""
    try:
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    except OSError as error:
        raise not_writable_error(path.parent, error) from error


def report(job: SlurmJob, request: SlurmRequest, folder: RunFolder, ids: list[str]) -> None:
    """Print what was submitted, and how to follow it."""
    after = f", once job {ids[-2]} has ended well" if len(ids) > 1 else ""
    echo(f"Job {ids[-1]}: {asked_for(job, request)}{after}")
    echo(f"  Script: {script_path(folder)}")
    echo(f"  Watch:  tail -F {shlex.quote(str(log_path(folder, ids[-1])))}")
    echo(f"  Stop after a backup:  touch {shlex.quote(str(folder.commands_dir.resolve() / 'stop'))}")


if __name__ == "__main__":
    sys.exit(main())
