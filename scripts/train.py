"""Train: `python scripts/train.py --config FILE [--multi_gpu]`; under torchrun or srun it is one rank of a group."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import (
    add_trust_code,
    add_version,
    allow_code,
    ask_about_code,
    ask_about_path,
    is_interactive,
    prepare_program,
    quick_imports,
)

prepare_program()

from modules.config import ConfigError, TandemError, TrainConfig, preset_names, resolve_config, save_config
from modules.config.file_access import set_file_access
from modules.files import printable
from modules.run import BAD_CONFIG, LaunchPlan, RunFolder
from modules.run.console import echo, warn
from modules.run.exit_codes import INTERRUPTED
from modules.run.folder.failures import record_start_failure
from modules.run.folder.folder_guard import remove_unstarted_run
from modules.run.folder.resume import LATEST, backup_at, check_resume, folder_to_resume, former_config, newest_run
from modules.run.folder.run_folder import check_run_name_free
from modules.run.folder.run_lock import check_not_training, supervisor_lock
from modules.run.join.client import join_run
from modules.run.join.join_line import JoinLine, join_line_from_config, parse_address
from modules.run.join.join_token import JOIN_TOKEN, ask_for_token, find_token, take_token
from modules.run.join.local_settings import check_local_settings
from modules.run.launch.environment import set_network_interfaces
from modules.run.launch.fatal_startup import previous_fatal_exit_code, report_fatal_startup
from modules.run.launch.preview import absolute_config_path, preview, to_arguments
from modules.run.launch.rank_env import RankEnv, read_rank_env, started_by_hand
from modules.run.launch.slurm_environment import check_gpus_of_step
from modules.run.launch.store_secret import NO_SECRET, store_secret
from modules.run.queued_output import queued_output
from modules.run.start import check_start, start_run
from modules.run.supervise.signals import block_pause_signal, ignore_signals_after_stop, ignore_termination_signals

# Flags that --dry_run repeats in the commands it shows.
REPEATED_FLAGS = (
    *("set", "run_name", "resume", "multi_gpu", "require_multi_gpu", "backend", "no_torchrun"),
    *("single_gpu_data_loading", "max_minutes"),
)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and train; returns one of the exit codes listed in README.md."""
    block_pause_signal()
    if arguments is None:  # as a program
        ignore_signals_after_stop()
    with queued_output():
        return _main(arguments)


def _main(arguments: list[str] | None) -> int:
    token = take_token(os.environ)
    options = parser().parse_args(arguments)
    if options.run_folder is None and (code := previous_fatal_exit_code()) is not None:
        return code
    try:
        set_file_access()
        if options.run_folder is not None:
            return run_supervised(RunFolder(Path(options.run_folder)), options)
        if options.join is not None:
            questions = (ask_about_path, ask_about_code) if is_interactive() else ()
            return join_run(join_line(options, token), echo, *questions)
        config = config_of(options)
        options.token = token_of(config, options, token)
        rank_env = read_rank_env(os.environ, config.initial_port)
        allow_code(config.family, trust=options.trust_code, may_ask=rank_env is None)
        if options.verify_parity:
            from modules.training.parity import verify_parity

            return verify_parity(config, print)
        if options.dry_run:
            return dry_run(config, options)
        if rank_env is not None:
            return run_as_rank(rank_env, config, options)
        exit_code = start(config, options)
        if arguments is None:  # as a program
            ignore_termination_signals()
        return exit_code
    except TandemError as error:
        if options.start_in is not None:
            record_start_failure(RunFolder(Path(options.start_in)), error)
        if report_fatal_startup(error.exit_code):
            print(f"Training did not start: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The command line; --set overrides any setting, the flags are shortcuts."""
    top = argparse.ArgumentParser(
        description="Train a model on one GPU, on all GPUs of this machine, or on several machines.",
        epilog=f"Presets: {', '.join(preset_names())}. All settings: docs/settings.md.",
        allow_abbrev=False,
    )
    top.add_argument(
        "--config", metavar="FILE", help="a config file (JSON or YAML), the name of a preset, or your own Python file"
    )
    top.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="override a setting, e.g. learning_rate=1e-4",
    )
    top.add_argument("--run_name", metavar="NAME", help="name of the run and of its folder below runs_dir")
    top.add_argument(
        "--resume", metavar="latest|PATH", help="resume from the newest backup of a run, or from a given one"
    )
    top.add_argument("--multi_gpu", action="store_true", help="train on all GPUs (or world_size processes)")
    top.add_argument("--require_multi_gpu", action="store_true", help="fail instead of falling back to one device")
    top.add_argument("--backend", choices=("nccl", "gloo"), help="communication backend")
    top.add_argument("--no_torchrun", action="store_true", help="start the processes without torchrun")
    top.add_argument("--max_minutes", type=float, metavar="N", help="back up and pause (exit code 138) after N minutes")
    top.add_argument("--single_gpu_data_loading", action="store_true", help="let one process encode all images")
    top.add_argument(
        "--profile", metavar="STEPS", help="record so many steps: a trace of each rank, and what takes longest"
    )
    top.add_argument("--dry_run", action="store_true", help="check the settings and show what would start")
    top.add_argument(
        "--verify_parity",
        action="store_true",
        help="train 20 steps with 1 and with several processes, and compare",
    )
    top.add_argument(
        "--join",
        metavar="HOST[:PORT]",
        help="join a run on several machines, with the line that machine 0 shows; needs no config",
    )
    top.add_argument(
        "--token_file",
        metavar="FILE",
        help=f"file with the secret of a run on several machines, - for standard input; or set {JOIN_TOKEN} (default: "
        "machine 0 generates one)",
    )
    top.add_argument("--token", metavar="WORD", help=argparse.SUPPRESS)  # visible to every user of the machine
    top.add_argument(
        "--allow",
        metavar="PATH",
        action="append",
        default=[],
        help="with --join: a folder or file on this machine that machine 0's config may name; once for each",
    )
    top.add_argument(
        "--allow_differences",
        action="store_true",
        help="with --join: train even if code or package versions differ from machine 0",
    )
    add_trust_code(top)
    # internal: set by the supervisor for the processes of a run, and by the window for a run folder it has created
    for internal in ("--run_folder", "--spawn", "--port", "--start_in"):
        top.add_argument(internal, help=argparse.SUPPRESS)
    add_version(top)
    return top


def config_of(options: argparse.Namespace) -> TrainConfig:
    """The config of this command line. Raises ConfigError, also if none was given."""
    flags = {
        "enable_multi_gpu=true": options.multi_gpu or options.require_multi_gpu,
        "use_torchrun=false": options.no_torchrun,
        "distributed_data_loading=false": options.single_gpu_data_loading,
        f"distributed_backend={options.backend}": options.backend is not None,
        f"max_minutes={options.max_minutes}": options.max_minutes is not None,
        f"run_name={options.run_name}": options.run_name is not None,
        f"profile_steps={options.profile}": options.profile is not None,
    }
    if options.config is None and options.resume is None:
        options.config = own_file(options.set)
    source = options.config or config_of_resumed_run(options)
    return resolve_config(source, [*options.set, *(assignment for assignment, is_given in flags.items() if is_given)])


def own_file(assignments: Sequence[str]) -> str | None:
    """The Python file that `--set family=FILE` names: it needs no config besides."""
    named = [text.removeprefix("family=") for text in assignments if text.startswith("family=")]
    return named[-1] if named and named[-1].endswith(".py") else None


def config_of_resumed_run(options: argparse.Namespace) -> str:
    """The config saved in the folder of the run to resume. Raises ConfigError if there is no run to resume."""
    if options.resume is None:
        raise ConfigError(
            f"--config is missing; give a file or one of the presets: {', '.join(preset_names())}.",
            "For example: python scripts/train.py --config demo",
        )
    if options.resume != LATEST:
        return str(backup_at(options.resume) / "config.json")
    settings = resolve_config(None, options.set)
    name = options.run_name or settings.run_name or newest_run(Path(settings.runs_dir))
    return str(RunFolder.open(settings.runs_dir, name).config_file)


def join_line(options: argparse.Namespace, token: str | None) -> JoinLine:
    """The join line given by `--join` and related flags. Raises ConfigError for flags that only machine 0 may set."""
    allowed = {"join", "token", "token_file", "set", "allow", "allow_differences", "trust_code"}
    others = [name for name, value in vars(options).items() if name not in allowed and value not in (None, False, [])]
    if others:
        raise ConfigError(f"--{others[0]} cannot be used with --join: machine 0 decides it for the whole run")
    check_local_settings(options.set)
    parse_address(options.join)  # before a token is asked for
    for path in options.allow:
        if not os.path.lexists(os.path.expanduser(path)):
            warn(f"Warning: --allow {printable(path)} does not exist on this machine.")
    return JoinLine.parse(
        options.join,
        find_token(options.token, options.token_file, token, warn) or ask_for_token(),
        settings=tuple(options.set),
        allow=tuple(options.allow),
        allow_differences=options.allow_differences,
        trust_code=options.trust_code,
    )


def token_of(config: TrainConfig, options: argparse.Namespace, in_environment: str | None) -> str | None:
    """The token of a run on several machines, if one was given."""
    return find_token(options.token, options.token_file, None if config.num_nodes == 1 else in_environment, warn)


def start(config: TrainConfig, options: argparse.Namespace) -> int:
    """Create or open the run folder, start the processes and supervise them."""
    check_start(config, require_multi_gpu=options.require_multi_gpu, token=options.token)
    if config.num_nodes > 1 and config.node_rank > 0:
        return join_run(join_line_from_config(config, options.token or ask_for_token()), echo)
    if options.resume is not None:
        return resume(config, options)
    folder = RunFolder.create(config) if options.start_in is None else RunFolder(Path(options.start_in))
    echo(f"Run folder: {folder.path}")
    code = start_run(config, folder, echo, require_multi_gpu=options.require_multi_gpu, token=options.token)
    if config.run_name is None and options.start_in is None:
        remove_unstarted_run(folder)
    return code


def resume(config: TrainConfig, options: argparse.Namespace) -> int:
    """As `start`, in the folder of the run to resume; its config is restored if the new one is refused."""
    folder = folder_to_resume(config, options.resume) if options.start_in is None else RunFolder(Path(options.start_in))
    check_not_training(folder)
    extra = ["--resume", options.resume]
    with supervisor_lock(folder):  # before the config changes: another start may be about to read it
        previous = former_config(folder)
        save_config(config, folder.config_file)
        echo(f"Run folder: {folder.path}")
        code = start_run(
            config, folder, echo, extra_args=extra, require_multi_gpu=options.require_multi_gpu, token=options.token
        )
        if code == BAD_CONFIG:
            folder.config_file.write_bytes(previous)
    return code


def dry_run(config: TrainConfig, options: argparse.Namespace) -> int:
    """Check what can be checked without reading images, show the plan, and start nothing."""
    from modules.training.checks import check_startable

    check_start(config, require_multi_gpu=options.require_multi_gpu, token=options.token)
    if options.resume is not None:
        check_resume(config, options.resume)
    elif config.run_name is not None:
        check_run_name_free(Path(config.runs_dir), config.run_name)
    notes = check_startable(config)
    plan = LaunchPlan.from_config(
        config,
        config_path=absolute_config_path(options.config or config_of_resumed_run(options)),
        extra_args=to_arguments({name: getattr(options, name) for name in REPEATED_FLAGS}),
        require_multi_gpu=options.require_multi_gpu,
    )
    echo("\n".join([*(f"Note: {note}" for note in notes), *preview(config, plan)]))
    return 0


def run_as_rank(rank_env: RankEnv, config: TrainConfig, options: argparse.Namespace) -> int:
    """One rank under torchrun or srun: rank 0 creates the run folder and shares its path."""
    from modules.distributed import open_store
    from modules.training.run_location import shared_run_folder
    from modules.training.worker import run_worker

    set_network_interfaces(os.environ, rank_env.master_addr)
    note = check_gpus_of_step(os.environ, config.distributed_backend)
    if note and rank_env.rank == 0:
        echo(f"Note: {note}.")
    if note := started_by_hand(os.environ, rank_env):
        echo(note)
    if rank_env.rank == 0 and store_secret() is None:
        echo(NO_SECRET)
    store = open_store(rank_env, config.startup_timeout_s, echo)
    folder = shared_run_folder(config, rank_env, store, options.resume)
    return run_worker(config, folder, rank_env, store, options.resume, supervised=False)


def run_supervised(folder: RunFolder, options: argparse.Namespace) -> int:
    """A process started by the supervisor: one rank, the only process, or the one that spawns the ranks."""
    with quick_imports():
        from modules.training.worker import run_worker, spawn_workers, supervised_by_us

        if options.spawn is None:
            import_module("torch._dynamo")  # torch's optimizers do in the first step

    config = resolve_config(options.config, options.set)
    if options.spawn is not None:
        return spawn_workers(config, folder, int(options.spawn), int(options.port), options.resume)
    rank_env = read_rank_env(os.environ, config.initial_port)
    if rank_env is not None:
        set_network_interfaces(os.environ, rank_env.master_addr)
    return run_worker(config, folder, rank_env, resume=options.resume, supervised=supervised_by_us())


if __name__ == "__main__":
    sys.exit(main())
