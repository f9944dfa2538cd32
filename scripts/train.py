"""Train: `python scripts/train.py --config FILE [--multi_gpu]`; under torchrun or srun it is one rank of a group."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.own_python import require_packages

require_packages()

from modules.config import ConfigError, TandemError, TrainConfig, preset_names, resolve_config, save_config
from modules.run import BAD_CONFIG, LaunchPlan, RunFolder
from modules.run.console import say
from modules.run.exit_codes import INTERRUPTED
from modules.run.folder_guard import remove_if_refused
from modules.run.group_place import Place, place_from_environment
from modules.run.join.guest import join_run
from modules.run.join.invitation import Invitation, invitation_by_number
from modules.run.launch_environment import add_network_cards
from modules.run.pause import hold_back_pause
from modules.run.preview import absolute_if_a_file, as_given, preview
from modules.run.refusals import refuse, refused_before
from modules.run.resume import LATEST, check_resume, folder_to_resume, given_backup, newest_run
from modules.run.run_folder import check_free
from modules.run.run_lock import check_not_training, supervising_in
from modules.run.slurm.environment import check_gpus_of_step
from modules.run.start import check_start, start_run

# What a displayed command repeats of the one that asked for it.
GIVEN_ON = (
    *("set", "run_name", "resume", "multi_gpu", "require_multi_gpu", "backend", "no_torchrun"),
    "single_gpu_data_loading",
)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and train; returns the exit code of the run folder protocol."""
    hold_back_pause()
    options = parser().parse_args(arguments)
    if options.run_folder is None and (code := refused_before()) is not None:
        return code
    try:
        if options.run_folder is not None:
            return work_in(RunFolder(Path(options.run_folder)), options)
        if options.join is not None:
            return join_run(invitation(options), say)
        config = config_of(options)
        if options.verify_parity:
            from modules.training.parity import verify_parity

            return verify_parity(config, print)
        if options.dry_run:
            return dry_run(config, options)
        place = place_from_environment(os.environ, config.initial_port)
        if place is not None:
            return take_place(place, config, options)
        return begin(config, options)
    except TandemError as error:
        if refuse(error.exit_code):
            print(f"Training did not start: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return INTERRUPTED


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
    top.add_argument(
        "--join",
        metavar="HOST[:PORT]",
        help="join the run that machine 0 shows the line of; needs no config, takes only this machine's own settings",
    )
    top.add_argument(
        "--token", metavar="WORD", help="the secret of a run on several machines; machine 0 makes one if none is given"
    )
    top.add_argument(
        "--allow_differences",
        action="store_true",
        help="with --join: train although code or package versions differ from machine 0's",
    )
    # how a supervisor starts the processes of a run, and the window a run whose folder it has made
    for internal in ("--run_folder", "--spawn", "--port", "--start_in"):
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


def invitation(options: argparse.Namespace) -> Invitation:
    """What `--join` and its companions say. Raises ConfigError where a flag belongs to machine 0."""
    own = {"join", "token", "set", "allow_differences"}
    others = [name for name, value in vars(options).items() if name not in own and value not in (None, False, [])]
    if others:
        raise ConfigError(f"--{others[0]} does not go with --join: machine 0 decides it for the whole run")
    return Invitation.of(
        options.join, options.token, settings=tuple(options.set), allow_differences=options.allow_differences
    )


def begin(config: TrainConfig, options: argparse.Namespace) -> int:
    """A plain start: make or open the run folder, start the processes, and watch over them."""
    check_start(config, require_multi_gpu=options.require_multi_gpu, token=options.token)
    if config.num_nodes > 1 and config.node_rank > 0:
        return join_run(invitation_by_number(config, options.token), say)
    if options.resume is not None:
        return resume(config, options)
    folder = RunFolder.create(config) if options.start_in is None else RunFolder(Path(options.start_in))
    say(f"Run folder: {folder.path}")
    code = start_run(config, folder, say, require_multi_gpu=options.require_multi_gpu, token=options.token)
    if config.run_name is None and options.start_in is None:
        remove_if_refused(folder)
    return code


def resume(config: TrainConfig, options: argparse.Namespace) -> int:
    """As `begin`, in the folder of the run to continue, whose config is kept where the present one is refused."""
    folder = folder_to_resume(config, options.resume) if options.start_in is None else RunFolder(Path(options.start_in))
    check_not_training(folder)
    extra = ["--resume", options.resume]
    with supervising_in(folder):  # before the config is touched, which another start may be about to read
        former = folder.config_file.read_bytes()
        save_config(config, folder.config_file)
        say(f"Run folder: {folder.path}")
        code = start_run(
            config, folder, say, extra_args=extra, require_multi_gpu=options.require_multi_gpu, token=options.token
        )
        if code == BAD_CONFIG:
            folder.config_file.write_bytes(former)
    return code


def dry_run(config: TrainConfig, options: argparse.Namespace) -> int:
    """Check what can be checked without reading pictures, show the plan, and start nothing."""
    from modules.training.checks import check_startable

    check_start(config, require_multi_gpu=options.require_multi_gpu, token=options.token)
    if options.resume is not None:
        check_resume(config, options.resume)
    elif config.run_name is not None:
        check_free(Path(config.runs_dir), config.run_name)
    check_startable(config)
    plan = LaunchPlan.from_config(
        config,
        config_path=absolute_if_a_file(options.config or config_of_resumed_run(options)),
        extra_args=as_given({name: getattr(options, name) for name in GIVEN_ON}),
        require_multi_gpu=options.require_multi_gpu,
    )
    print("\n".join(preview(config, plan)))
    return 0


def take_place(place: Place, config: TrainConfig, options: argparse.Namespace) -> int:
    """One rank of a group that somebody else started: rank 0 makes the run folder, the others are told."""
    from modules.distributed import open_store
    from modules.training.worker import run_worker, shared_run_folder

    add_network_cards(os.environ, place.master_addr)
    note = check_gpus_of_step(os.environ, config.distributed_backend)
    if note and place.rank == 0:
        say(f"Note: {note}.")
    store = open_store(place, config.startup_timeout_s, say)
    folder = shared_run_folder(config, place, store, options.resume)
    return run_worker(config, folder, place, store, options.resume, supervised=False)


def work_in(folder: RunFolder, options: argparse.Namespace) -> int:
    """What a supervisor started: one rank, the only process, or the one that spawns the ranks."""
    from modules.training.worker import run_worker, spawn_workers, supervised_by_us

    config = resolve_config(options.config, options.set)
    if options.spawn is not None:
        return spawn_workers(config, folder, int(options.spawn), int(options.port), options.resume)
    place = place_from_environment(os.environ, config.initial_port)
    if place is not None:
        add_network_cards(os.environ, place.master_addr)
    return run_worker(config, folder, place, resume=options.resume, supervised=supervised_by_us())


if __name__ == "__main__":
    sys.exit(main())
