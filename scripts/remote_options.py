"""The command line of scripts/remote.py: its actions, and the options of a run there."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence

from modules.config import ConfigError, TrainConfig
from modules.run.remote.machine import DEFAULT_FOLDER
from scripts import train_options
from scripts.common import program_parser

EXAMPLES = """examples, from an address and a key to a LoRA on this computer:
    python scripts/remote.py add rented root@203.0.113.7 --port 40022 --key ~/.ssh/rented
    python scripts/remote.py setup rented
    python scripts/remote.py preflight rented cats.yaml
    python scripts/remote.py start rented cats.yaml --multi_gpu
    python scripts/remote.py follow rented cats
    python scripts/remote.py pull rented cats
    python scripts/remote.py clean rented --all

ssh must reach the machine without a question: its host key is known (connect once by hand), and your key is accepted.
Docs: docs/remote.md.

exit codes: 0 done, 2 a mistake in the command, 3 the machine cannot be reached or has failed, 4 images of the
config are missing or cannot be read; of `follow`: the run's
"""
# Flags of scripts/train.py that a start there may have; the others are about this computer, or a run on several.
_FLAGS = frozenset({
    *("config", "set", "run_name", "multi_gpu", "require_multi_gpu", "backend", "no_torchrun"),
    *("max_minutes", "single_gpu_data_loading", "profile", "trust_code"),
})  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = program_parser("Train on another machine, which needs nothing but ssh, and follow the run here.", EXAMPLES)
    actions = top.add_subparsers(
        dest="action", required=True, metavar="add|setup|check|preflight|start|follow|stop|pull|tensorboard|list|clean"
    )

    def action(name: str, text: str, *, of_run: bool = False) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        made.add_argument("name", metavar="NAME", help="the machine's name in Tandem")
        if of_run:
            made.add_argument("run", metavar="RUN", help="the name of the run")
        return made

    add = action("add", "add a machine to the list of scripts/hosts.py, or replace the one of this name")
    add.add_argument(
        "target", metavar="USER@ADDRESS", help="what ssh connects to, a name of ~/.ssh/config, or a line ssh -p N ..."
    )
    add.add_argument("--port", type=int, metavar="N", help="of its sshd (default: as in ~/.ssh/config, or 22)")
    add.add_argument("--key", metavar="FILE", help="private key on this computer (default: as ssh chooses)")
    add.add_argument("--folder", metavar="DIR", help=f"where all of Tandem is there (default: {DEFAULT_FOLDER})")
    add.add_argument(
        "--price", type=float, metavar="N", help="of an hour there: list and follow say what runs have cost"
    )
    _add_ending(add, "each start of a run there, for a machine that is paid by the hour: ")
    add.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        help="a setting of each run there, e.g. concepts.0.path=/data/cats for images that are there already",
    )
    add.add_argument(
        "--slurm",
        action=argparse.BooleanOptionalAction,
        help="it is the login node of a Slurm cluster: runs wait in its queue. Options of scripts/submit_slurm.py for "
        "each of them may follow, such as --partition gpu --gpus 4 --time 1-0",
    )
    setup = action("setup", "send Tandem's code as it is here, and install its environment there")
    setup.add_argument(
        "--python", metavar="PATH", help="use this Python there, which has torch and Tandem's packages; install nothing"
    )
    start = action("start", "send what a config names and the machine lacks, and start the run there")
    start.add_argument(
        "config",
        nargs="+",
        metavar="CONFIG",
        help="a config file, or the name of a preset; of --resume, the run. Of a Slurm cluster several, each a job",
    )
    start.add_argument(
        "--resume", action="store_true", help="go on with the run CONFIG there, from its newest backup, as it was set"
    )
    start.add_argument(
        "--runs_dir", default="runs", metavar="DIR", help="of --resume, where the copy is (default: runs)"
    )
    _add_with(
        start, "machines of the list that join the run, with NAME as machine 0; of --resume, in place of those before"
    )
    start.add_argument("--send_token", action="store_true", help="give the run this shell's HF_TOKEN, for gated models")
    _add_ending(start, "this start, in place of what add has set: ")
    check = action("check", "show what scripts/train.py --dry_run says of a config there; nothing is started")
    check.add_argument("config", metavar="CONFIG", help="a config file, or the name of a preset")
    _add_with(check, "machines that would join the run: whether they can, and reach NAME")
    preflight = action("preflight", "test the devices, disks and data there for a run, as scripts/preflight.py does")
    preflight.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="a config file or the name of a preset: also its folders, images",
    )
    preflight.add_argument(
        "--test", choices=("basic", "all"), default="basic", help="basic: takes seconds; all: also the loader"
    )
    preflight.add_argument("--json", metavar="FILE", help="also write the report as JSON to this file here")
    preflight.epilog = "Options of scripts/train.py may follow, such as --set NAME=VALUE, --run_name, --multi_gpu."
    start.epilog = check.epilog = (
        f"{preflight.epilog[:-1]}; for a Slurm cluster also those of scripts/submit_slurm.py, such as --gpus 4 "
        "--nodes 2, before what add has set."
    )
    follow = action("follow", "bring a run's events, log and samples here until it ends", of_run=True)
    stopping = action("stop", "ask a run to back up and stop, as Stop does here", of_run=True)
    stopping.add_argument(
        "--force", action="store_true", help="end its processes at once: what it did since its last backup is lost"
    )
    pull_files = action("pull", "bring models and backups here, verified", of_run=True)
    pull_files.add_argument(
        "--backups", default="latest", metavar="latest|all|none|NAME", help="which backups (default: latest)"
    )
    board = action(
        "tensorboard", "show a run's curves in TensorBoard on this computer, and follow the run meanwhile", of_run=True
    )
    board.add_argument("--port", type=int, metavar="N", help="where it listens here (default: a free one from 6006 on)")
    for made in (follow, pull_files, board):
        made.add_argument("--runs_dir", default="runs", metavar="DIR", help="where the copy is (default: runs)")
    action("list", "list the runs there, and what the machine's disk holds")
    removal = action("clean", "remove the data, caches and hub models that were left there; or a run; or everything")
    what = removal.add_mutually_exclusive_group()
    what.add_argument("run", nargs="?", default="", metavar="RUN", help="only this run")
    what.add_argument("--all", action="store_true", help="all that is Tandem's, also its runs")
    removal.add_argument("--yes", action="store_true", help="do not ask")
    beside = actions.add_parser("attend")  # internal: all stages of a run that the window has begun
    beside.add_argument("--run_folder", required=True)
    return top


def _add_with(action: argparse.ArgumentParser, text: str) -> None:
    action.add_argument("--with", dest="others", metavar="NAME,NAME", help=text)


def _add_ending(action: argparse.ArgumentParser, of: str) -> None:
    action.add_argument(
        "--stop_after", type=float, metavar="HOURS", help=f"{of}back up and pause there after N hours; 0: no limit"
    )
    action.add_argument(
        "--then",
        metavar="COMMAND",
        help=f"{of}follow and pull in the background; once all is here and verified, run this here, e.g. to end the "
        "rent; '': none",
    )
    action.add_argument(
        "--idle_minutes",
        type=float,
        metavar="N",
        help=f"{of}with --then, run it only once nothing has gone on there for N minutes; 0: at once",
    )


def with_whole_line(arguments: list[str]) -> list[str]:
    """Of `add NAME ssh -p 40022 root@203.0.113.7` the line for ssh as one word, as if it were quoted; it ends before
    an option of this program."""
    if arguments[:1] != ["add"] or arguments[2:3] != ["ssh"]:
        return arguments
    end = next((at for at, word in enumerate(arguments) if re.match("--.", word)), len(arguments))
    return [*arguments[:2], shlex.join(arguments[2:end]), *arguments[end:]]


def ending_of(options: argparse.Namespace) -> dict[str, object]:
    """The fields of a machine that `_add_ending` gives."""
    given = {name: getattr(options, name) for name in ("stop_after", "then", "idle_minutes")}
    if given["then"] == "" and given["idle_minutes"] is None:
        given["idle_minutes"] = 0.0
    return {name: value for name, value in given.items() if value is not None}


def training_of(source: str, words: Sequence[str]) -> tuple[argparse.Namespace, TrainConfig]:
    """The options of train.py that these words are, and the config of the run. Raises ConfigError for one that is not
    for a run there."""
    training = train_options.parser().parse_args(["--config", source, *words])
    unused = train_options.parser().parse_args([])
    for flag, value in vars(training).items():
        if flag not in _FLAGS and value != getattr(unused, flag):
            raise ConfigError(f"--{flag} cannot be used for a run on another machine", "Leave it out")
    return training, train_options.config_of(training)
