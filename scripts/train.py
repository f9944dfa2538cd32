"""Train: `python scripts/train.py --config FILE [--multi_gpu]`; under torchrun or srun it is one rank of a group."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from modules.config import ConfigError, DataError, TandemError, TrainConfig, preset_names, resolve_config, save_config
from modules.run import BAD_CONFIG, LaunchPlan, RunFolder
from modules.run.console import say
from modules.run.group_place import place_from_environment, started_by_srun
from modules.run.resume import LATEST, folder_to_resume, given_backup, newest_run
from modules.run.start import start_run


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and train; returns the exit code of the run folder protocol."""
    options = parser().parse_args(arguments)
    try:
        if options.run_folder is not None:
            return work_in(RunFolder(Path(options.run_folder)), options)
        config = config_of(options)
        if options.verify_parity:
            from modules.training.parity import verify_parity

            return verify_parity(config, print)
        if options.dry_run:
            return dry_run(config, options)
        if is_rank_of_a_group():
            return join(config, options)
        return begin(config, options)
    except TandemError as error:
        print(f"Training did not start: {error}", file=sys.stderr)
        return error.exit_code


def parser() -> argparse.ArgumentParser:
    """The command line; every setting can be given by --set, the flags are those that people know."""
    top = argparse.ArgumentParser(
        prog="train.py",
        description="Train an image model on one GPU, on all GPUs of this machine, or on several machines.",
        epilog=f"Presets: {', '.join(preset_names())}. All settings: docs/settings.md.",
        allow_abbrev=False,
    )
    top.add_argument("--config", metavar="FILE", help="a config file (JSON or YAML) or the name of a preset")
    top.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="override a setting, e.g. learning_rate=1e-4",
    )
    top.add_argument("--run_name", metavar="NAME", help="the run's name, which is its folder's name below runs_dir")
    top.add_argument("--resume", metavar="latest|PATH", help="continue the newest backup of a run, or a given backup")
    top.add_argument("--multi_gpu", action="store_true", help="train on all GPUs (or world_size processes)")
    top.add_argument("--require_multi_gpu", action="store_true", help="fail instead of falling back to one device")
    top.add_argument("--backend", choices=("nccl", "gloo"), help="how GPUs talk to each other")
    top.add_argument("--no_torchrun", action="store_true", help="start the processes without torchrun")
    top.add_argument("--single_gpu_data_loading", action="store_true", help="let one process encode all pictures")
    top.add_argument("--dry_run", action="store_true", help="check the settings and show what would be started")
    top.add_argument(
        "--verify_parity",
        action="store_true",
        help="train 20 steps on 1 and on several processes, and compare",
    )
    for internal in ("--run_folder", "--spawn", "--port"):  # how a supervisor starts the processes of a run
        top.add_argument(internal, help=argparse.SUPPRESS)
    return top


def config_of(options: argparse.Namespace) -> TrainConfig:
    """The config that the command line describes. Raises ConfigError, also where none was given."""
    flags = {
        "enable_multi_gpu=true": options.multi_gpu or options.require_multi_gpu,
        "use_torchrun=false": options.no_torchrun,
        "distributed_data_loading=false": options.single_gpu_data_loading,
        f"distributed_backend={options.backend}": options.backend is not None,
        f"run_name={options.run_name}": options.run_name is not None,
    }
    source = options.config or config_of_resumed_run(options)
    return resolve_config(source, [*options.set, *(text for text, given in flags.items() if given)])


def config_of_resumed_run(options: argparse.Namespace) -> str:
    """A run can be continued without its config file: the run folder holds it."""
    if options.resume is None:
        raise ConfigError(
            f"--config is missing; give a file or one of the presets: {', '.join(preset_names())}.",
            "For example: python scripts/train.py --config demo",
        )
    if options.resume != LATEST:
        return str(given_backup(options.resume) / "config.json")
    settings = resolve_config(None, options.set)
    name = options.run_name or settings.run_name or newest_run(Path(settings.runs_dir))
    return str(RunFolder.open(settings.runs_dir, name).config_file)


def begin(config: TrainConfig, options: argparse.Namespace) -> int:
    """A plain start: make or open the run folder, start the processes, and watch over them."""
    LaunchPlan.from_config(config, config_path="config.json", require_multi_gpu=options.require_multi_gpu)
    if options.resume is not None:
        return resume(config, options)
    folder = RunFolder.create(config)
    say(f"Run folder: {folder.path}")
    return start_run(config, folder, say, require_multi_gpu=options.require_multi_gpu)


def resume(config: TrainConfig, options: argparse.Namespace) -> int:
    """As `begin`, in the folder of the run to continue, whose config is kept where the present one is refused."""
    folder = folder_to_resume(config, options.resume)
    former = folder.config_file.read_bytes()
    save_config(config, folder.config_file)
    say(f"Run folder: {folder.path}")
    extra = ["--resume", options.resume]
    code = start_run(config, folder, say, extra_args=extra, require_multi_gpu=options.require_multi_gpu)
    if code == BAD_CONFIG:
        folder.config_file.write_bytes(former)
    return code


def dry_run(config: TrainConfig, options: argparse.Namespace) -> int:
    """Check what can be checked without reading pictures, show the plan, and start nothing."""
    from modules.training.model_setup import check_available

    check_available(config)
    for concept in config.concepts:
        if concept.enabled and not Path(concept.path).is_dir():
            raise DataError(f"concepts: there is no folder {concept.path!r}.")
    plan = LaunchPlan.from_config(
        config,
        config_path=Path(config.runs_dir) / (config.run_name or "NAME") / "config.json",
        extra_args=["--resume", options.resume] if options.resume else [],
        require_multi_gpu=options.require_multi_gpu,
    )
    for reason in plan.reasons:
        print(f"Note: {reason}.")
    processes = "one process" if plan.world_size == 1 else f"{plan.world_size} processes ({plan.backend})"
    batch = config.global_batch_size or config.batch_size * plan.world_size * config.gradient_accumulation_steps
    print(f"Would train {config.family} in {processes}, {config.precision}, effective batch {batch}, with:")
    for name, value in plan.environment().items():
        print(f"  {name}={value}")
    print(f"  {plan.command_line()}")
    return 0


def is_rank_of_a_group() -> bool:
    """Whether torchrun, or srun with several tasks, started this process."""
    return ("RANK" in os.environ and "WORLD_SIZE" in os.environ) or started_by_srun(os.environ)


def join(config: TrainConfig, options: argparse.Namespace) -> int:
    """One rank of a group that somebody else started: rank 0 makes the run folder, the others are told."""
    from modules.distributed import open_store
    from modules.training.worker import run_worker, shared_run_folder

    place = place_from_environment(os.environ, config.initial_port)
    assert place is not None, "is_rank_of_a_group() says so"
    store = open_store(place, config.startup_timeout_s)
    folder = shared_run_folder(config, place, store, options.resume)
    return run_worker(config, folder, place, store, options.resume, supervised=False)


def work_in(folder: RunFolder, options: argparse.Namespace) -> int:
    """What a supervisor started: one rank, the only process, or the one that spawns the ranks."""
    from modules.training.worker import run_worker, spawn_workers, supervised_by_us

    config = resolve_config(options.config, options.set)
    if options.spawn is not None:
        return spawn_workers(config, folder, int(options.spawn), int(options.port), options.resume)
    place = place_from_environment(os.environ, config.initial_port) if is_rank_of_a_group() else None
    return run_worker(config, folder, place, resume=options.resume, supervised=supervised_by_us())


if __name__ == "__main__":
    sys.exit(main())
