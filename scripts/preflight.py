"""Test all that a run on several devices needs: `python scripts/preflight.py`, or under torchrun on N machines."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import (
    add_allow,
    add_local_rank,
    add_trust_code,
    add_version,
    allow_code,
    ask_about_code,
    ask_about_path,
    is_interactive,
    option_groups,
    prepare_program,
    resolved_config,
)

prepare_program()

from modules.config import ConfigError, TandemError, TrainConfig
from modules.config.file_access import set_file_access
from modules.run.console import echo, warn
from modules.run.demo_images import draw_missing_images
from modules.run.exit_codes import BAD_CONFIG, INTERRUPTED
from modules.run.hosts.host_list import named_hosts
from modules.run.hosts.stop_from_stdin import stop_at_line_of_stdin
from modules.run.join.join_line import JoinLine
from modules.run.join.join_token import JOIN_TOKEN, ask_for_token, find_token, take_token
from modules.run.join.session import StopRequested, raise_on_stop_signals
from modules.run.launch.rank_env import RankEnv, launch_notes, launched_rank_env, read_rank_env, use_own_slice
from modules.run.preflight_report.joining import join_preflight
from modules.run.preflight_report.report import PreflightReport
from modules.run.preflight_report.start import check_joined, read_report, start_preflight
from scripts.train_options import check_hosts

MAX_SECONDS = 86_400
DEFAULT_PATIENCE_S = 30.0


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the checks; exit code 0 if all pass, 3 with a red cell, 2 for bad arguments."""
    argv = sys.argv[1:] if arguments is None else arguments
    token = take_token(os.environ)
    options = parser().parse_args(argv)
    try:
        set_file_access()
        if options.join is not None:
            with raise_on_stop_signals():
                line = join_line(options, token)
                if options.stop_from_stdin:  # after the token, which comes the same way
                    stop_at_line_of_stdin(also_at_end=True)
                return as_joined(line, options)
        hosts = named_hosts(options.hosts)
        config = resolved_config(options.config or options.settings, [*options.set, *_flags(options)], len(hosts))
        read = launched_rank_env if options.result is None else read_rank_env  # start_preflight makes groups of one
        rank_env = read(os.environ, config.initial_port)
        check_hosts(config, options, rank_env)
        if rank_env is not None:
            return as_rank(rank_env, config, options)
        allow_code(config, trust=options.trust_code)
        draw_missing_images(options.config, config)
        with raise_on_stop_signals():
            if options.stop_from_stdin:
                stop_at_line_of_stdin(also_at_end=True)
            report = start_preflight(
                config,
                argv,
                options.wait,
                echo,
                _result_of(options),
                has_config=options.config is not None,
                token=token,
                passed_on=_of_tasks(options),
                of_ranks=["--test", options.test, "--wait", f"{options.wait:g}", *_remote_check(options)],
                hosts=hosts,
            )
    except TandemError as error:
        warn(f"Preflight did not start: {error}")
        return error.exit_code
    except OSError as error:
        warn(f"--json: {options.json} cannot be written: {error.strerror or error}.")
        return BAD_CONFIG
    except (KeyboardInterrupt, StopRequested) as stop:
        warn("Stopped before all was checked.")
        return stop.exit_code if isinstance(stop, StopRequested) else INTERRUPTED
    show(report, options)
    return report.exit_code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description="Check devices, network, disks and data before a run; docs/preflight.md explains every row.",
        allow_abbrev=False,
    )
    run, devices, machines, output = option_groups(top)
    run.add_argument("--config", metavar="FILE", help="the run's config: also checks its folders, images and loader")
    run.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="override a setting")
    run.add_argument(
        "--test",
        choices=("basic", "all"),
        default="basic",
        help="basic: takes seconds; all: also large transfers and the loader",
    )
    devices.add_argument("--backend", choices=("nccl", "gloo"), help="communication backend")
    output.add_argument("--json", metavar="FILE", help="also write the report as JSON")
    run.add_argument(
        "--patience", metavar="SECONDS", type=seconds, default=DEFAULT_PATIENCE_S, help="timeout of one task"
    )
    run.add_argument(
        "--wait", metavar="SECONDS", type=seconds, default=300.0, help="how long to wait for other machines"
    )
    machines.add_argument(
        "--join",
        metavar="HOST[:PORT]",
        help="join the preflight of several machines, with the line that machine 0 shows",
    )
    machines.add_argument(
        "--hosts",
        metavar="NAME,NAME",
        help="start these machines over ssh, so that they join (scripts/hosts.py lists, adds and tests them)",
    )
    machines.add_argument(
        "--token_file",
        metavar="FILE",
        help=f"with --join: file with the token, - for standard input; or set {JOIN_TOKEN}",
    )
    add_allow(machines)
    top.add_argument("--stop_from_stdin", action="store_true", help=argparse.SUPPRESS)  # a line "stop" acts as Ctrl-C
    # internal: for another computer, which reads the report as --json writes it, and has the images here or not yet
    top.add_argument("--remote_check", choices=("all", "no_data"), help=argparse.SUPPRESS)
    top.add_argument("--settings", help=argparse.SUPPRESS)  # as --config, on a machine that has joined without one
    top.add_argument("--result", help=argparse.SUPPRESS)  # where the processes report to the one that started them
    add_trust_code(run)
    add_local_rank(top)
    add_version(top)
    return top


def seconds(text: str) -> float:
    """A duration from the command line. Raises argparse.ArgumentTypeError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"it is {text!r}; give seconds between 1 and {MAX_SECONDS}, such as 60")
    return value


def as_joined(line: JoinLine, options: argparse.Namespace) -> int:
    """Join machine 0's preflight, check this machine's part, and show the report."""
    questions = (ask_about_path, ask_about_code) if is_interactive() else ()
    config, group = join_preflight(line, echo, *questions)
    report = check_joined(config, group, _of_tasks(options), options.wait, echo, _result_of(options))
    show(report, options)
    return report.exit_code


def join_line(options: argparse.Namespace, token: str | None) -> JoinLine:
    """The line given by `--join`. Raises ConfigError for what machine 0 decides."""
    decided = {"--config": options.config, "--backend": options.backend, "--test": options.test != "basic"}
    decided["--hosts"] = options.hosts
    if given := [name for name, value in decided.items() if value]:
        raise ConfigError(f"{given[0]} cannot be used with --join: machine 0 decides it for all machines")
    return JoinLine.parse(
        options.join,
        find_token(None, options.token_file, token, warn) or ask_for_token(),
        settings=tuple(options.set),
        allow=tuple(options.allow),
        trust_code=options.trust_code,
    )


def as_rank(rank_env: RankEnv, config: TrainConfig, options: argparse.Namespace) -> int:
    """Run one process of the group; the first of each machine shows the report, or saves it for the parent process."""
    use_own_slice(os.environ, rank_env)
    for note in launch_notes(config, rank_env, os.environ) if options.result is None else []:
        echo(note)
    from modules.preflight import PreflightOptions, run_preflight

    os.environ.setdefault(
        "TORCH_NCCL_BLOCKING_WAIT", "1"
    )  # a timeout then raises an error instead of killing the process
    preflight_options = PreflightOptions(
        config,
        has_config=options.config is not None,  # and not --settings
        has_data=options.remote_check != "no_data",
        thorough=options.test == "all",
        timeout_s=options.patience,
        wait_s=options.wait,
    )

    result = None if options.result is None or rank_env.local_rank else Path(options.result)
    before = () if result is None else read_report(result).cells  # about the machines that are started over ssh

    def save(report: PreflightReport) -> None:
        if result is not None:
            replace(report, cells=(*before, *report.cells)).save(result)

    report = run_preflight(rank_env, preflight_options, echo, save)
    save(report)
    if options.result is None and rank_env.local_rank == 0:
        show(report, options)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(report.exit_code)  # threads of a network library may still wait for dead ranks


def show(report: PreflightReport, options: argparse.Namespace) -> None:
    """Print the table and write the JSON file."""
    for line in report.lines(shutil.get_terminal_size((100, 24)).columns) if options.remote_check is None else []:
        echo(line)
    if options.json is not None:
        try:
            report.save(Path(options.json))
        except OSError as error:
            warn(f"--json: {options.json} cannot be written: {error.strerror or error}.")


def _result_of(options: argparse.Namespace) -> Path | None:
    return None if options.json is None else Path(options.json)


def _of_tasks(options: argparse.Namespace) -> list[str]:
    """What the processes of all machines must share."""
    return [] if options.patience == DEFAULT_PATIENCE_S else ["--patience", f"{options.patience:g}"]


def _remote_check(options: argparse.Namespace) -> list[str]:
    return [] if options.remote_check is None else ["--remote_check", options.remote_check]


def _flags(options: argparse.Namespace) -> list[str]:
    return [] if options.backend is None else [f"distributed_backend={options.backend}"]


if __name__ == "__main__":
    sys.exit(main())
