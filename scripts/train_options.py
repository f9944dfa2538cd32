"""The command line of scripts/train.py: its flags, the config that they name, and the line that joins a run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from modules.config import ConfigError, TrainConfig, preset_names, resolve_config
from modules.files import printable
from modules.run import RunFolder
from modules.run.console import warn
from modules.run.folder.resume import LATEST, backup_at, newest_run
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import named_hosts
from modules.run.join.join_line import JoinLine, parse_address
from modules.run.join.join_token import JOIN_TOKEN, ask_for_token, find_token
from modules.run.join.local_settings import check_local_settings
from modules.run.launch.rank_env import RankEnv
from modules.run.notification import NOTIFY
from scripts.common import add_allow, add_local_rank, add_trust_code, add_version, option_groups, resolved_config

# Flags that --dry_run repeats in the commands it shows.
REPEATED_FLAGS = (
    *("set", "run_name", "resume", "multi_gpu", "require_multi_gpu", "backend", "no_torchrun"),
    *("single_gpu_data_loading", "max_minutes"),
)


def parser() -> argparse.ArgumentParser:
    """The command line; --set overrides any setting, the flags are shortcuts."""
    top = argparse.ArgumentParser(
        description="Train a model on one GPU, on all GPUs of this machine, or on several machines.",
        epilog=f"Presets: {', '.join(preset_names())}. All settings: docs/settings.md.",
        allow_abbrev=False,
    )
    run, devices, machines, _ = option_groups(top)
    run.add_argument(
        "--config", metavar="FILE", help="a config file (JSON or YAML), the name of a preset, or your own Python file"
    )
    run.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="override a setting, e.g. learning_rate=1e-4",
    )
    run.add_argument("--run_name", metavar="NAME", help="name of the run and of its folder below runs_dir")
    run.add_argument(
        "--resume", metavar="latest|PATH", help="resume from the newest backup of a run, or from a given one"
    )
    devices.add_argument("--multi_gpu", action="store_true", help="train on all GPUs (or world_size processes)")
    devices.add_argument("--require_multi_gpu", action="store_true", help="fail instead of falling back to one device")
    devices.add_argument("--backend", choices=("nccl", "gloo"), help="communication backend")
    devices.add_argument("--no_torchrun", action="store_true", help="start the processes without torchrun")
    run.add_argument("--max_minutes", type=float, metavar="N", help="back up and pause (exit code 138) after N minutes")
    devices.add_argument("--single_gpu_data_loading", action="store_true", help="let one process encode all images")
    run.add_argument(
        "--profile", metavar="STEPS", help="record so many steps: a trace of each rank, and what takes longest"
    )
    run.add_argument(
        "--notify",
        metavar="COMMAND|URL",
        help=f"when the run ends or fails, run this command, or POST JSON to this https URL; or set {NOTIFY} "
        "(default: what Notifications in the window says; '' for none)",
    )
    run.add_argument("--dry_run", action="store_true", help="check the settings and show what would start")
    run.add_argument(
        "--verify_parity",
        action="store_true",
        help="train 20 steps with 1 and with several processes, and compare",
    )
    machines.add_argument(
        "--join",
        metavar="HOST[:PORT]",
        help="join a run on several machines, with the line that machine 0 shows; needs no config",
    )
    machines.add_argument(
        "--hosts",
        metavar="NAME,NAME",
        help="start these machines over ssh, so that they join this run (scripts/hosts.py lists, adds and tests them)",
    )
    machines.add_argument(
        "--token_file",
        metavar="FILE",
        help=f"file with the secret of a run on several machines, - for standard input; or set {JOIN_TOKEN} (default: "
        "machine 0 generates one)",
    )
    top.add_argument("--token", metavar="WORD", help=argparse.SUPPRESS)  # visible to every user of the machine
    add_allow(machines)
    machines.add_argument(
        "--allow_differences",
        action="store_true",
        help="with --join: train even if code or package versions differ from machine 0",
    )
    add_trust_code(run)
    add_local_rank(top)
    # internal: a line "stop" on standard input acts as Ctrl-C
    top.add_argument("--stop_from_stdin", action="store_true", help=argparse.SUPPRESS)
    # internal: set by the supervisor for the processes of a run, and by the window for a run folder it has created
    for internal in ("--run_folder", "--spawn", "--port", "--start_in"):
        top.add_argument(internal, help=argparse.SUPPRESS)
    # internal: NAME,NAME of machines that another computer has join this one
    top.add_argument("--joining", help=argparse.SUPPRESS)
    # internal: of --dry_run for another computer, which has the config's images here or not yet
    top.add_argument("--remote_check", choices=("all", "no_data"), help=argparse.SUPPRESS)
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
    assignments = [*options.set, *(assignment for assignment, is_given in flags.items() if is_given)]
    return resolved_config(source, assignments, len(hosts_of(options)))


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


def join_line(options: argparse.Namespace, token: str | None, own: Sequence[str] = ()) -> JoinLine:
    """The join line given by `--join` and related flags, with `own` settings of this machine.

    Raises ConfigError for flags that only machine 0 may set.
    """
    allowed = {"join", "token", "token_file", "stop_from_stdin", "set", "allow", "allow_differences", "trust_code"}
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
        settings=(*options.set, *own),
        allow=tuple(options.allow),
        allow_differences=options.allow_differences,
        trust_code=options.trust_code,
    )


def token_of(config: TrainConfig, options: argparse.Namespace, in_environment: str | None) -> str | None:
    """The token of a run on several machines, if one was given."""
    return find_token(options.token, options.token_file, None if config.num_nodes == 1 else in_environment, warn)


def hosts_of(options: argparse.Namespace) -> list[Host]:
    """The machines that this run starts over ssh. Raises ConfigError for a name that is not in the list."""
    return named_hosts(options.hosts)


def joining_of(options: argparse.Namespace) -> list[str]:
    """The names of the machines that another computer has join this run."""
    return [] if options.joining is None else options.joining.split(",")


def check_hosts(config: TrainConfig, options: argparse.Namespace, rank_env: RankEnv | None) -> None:
    """Raise ConfigError unless this process is machine 0, which alone starts others over ssh."""
    if options.hosts is not None and (rank_env is not None or config.node_rank > 0):
        raise ConfigError(
            "--hosts is for machine 0, which starts the others over ssh, and this process is "
            + (f"machine {config.node_rank}" if rank_env is None else "a rank of torchrun or srun"),
            "Omit --hosts here",
        )


def check_rank(config: TrainConfig, options: argparse.Namespace, rank_env: RankEnv | None) -> None:
    """Raise ConfigError for what this process cannot do as a rank of a group that another program has started."""
    check_hosts(config, options, rank_env)
    if rank_env is not None and options.verify_parity:
        raise ConfigError(
            "--verify_parity starts the processes that it compares itself, and this process is a rank of torchrun or "
            "srun",
            "Start it without them, or unset RANK and WORLD_SIZE (in a step of srun, SLURM_PROCID)",
        )
    if rank_env is not None and options.require_multi_gpu and rank_env.world_size == 1:
        raise ConfigError(
            "several GPUs are required (--require_multi_gpu), but torchrun has started one process",
            "Raise --nproc_per_node, or start scripts/train.py without torchrun",
        )
