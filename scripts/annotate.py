"""Caption, tag and mask the images of a folder: `python scripts/annotate.py caption pictures/cats`.

What a model says is a proposal first, kept in annotations/; `apply` writes it beside the images, `undo` puts back what
was there. `--events` is for other programs; modules/annotation/messages.py describes what it prints.
"""

from __future__ import annotations

import argparse
import errno
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_version, prepare_program

prepare_program()

from modules.annotation import (
    DEFAULT_FOLDER,
    Message,
    ProposalSet,
    apply_proposals,
    proposal_sets,
    undo_proposals,
)
from modules.config import ConfigError, TandemError
from modules.config.file_access import set_file_access
from modules.run.console import echo, warn
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED
from scripts.annotate_events import Reporter
from scripts.annotate_options import TASKS, add_out, add_task_options

PROBLEMS: Final = FAILED  # some files could not be written or put back
EXIT_CODES: Final = """exit codes: 0 done, though some images may have failed; 2 a mistake in the command; 3 every image
failed, or some files could not be written or put back; 4 there are no images; 130 stopped"""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns an exit code."""
    options = parser().parse_args(arguments)
    reporter = Reporter(events=options.events)
    try:
        set_file_access()
        run: int = options.run(options, reporter)
    except TandemError as error:
        return failed(reporter, error, error.exit_code)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Free some space; the same command goes on where it stopped." if is_full else ""
        return failed(reporter, TandemError(f"{place}{error.strerror or error}.", advice), FAILED)
    except KeyboardInterrupt:
        warn("Stopped. What was proposed so far is kept; the same command goes on.")
        return INTERRUPTED
    return run


def failed(reporter: Reporter, error: TandemError, exit_code: int) -> int:
    """Report why it ends; returns the exit code."""
    if reporter.events:
        reporter.send(Message(failed=error.message, advice=error.advice))
    warn(str(error))
    return exit_code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description="Caption, tag and mask images with models; review, write and undo it.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    add_version(top)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for task, words in TASKS.items():
        command = commands.add_parser(
            task, help=words, description=f"{words[0].upper()}{words[1:]}.", allow_abbrev=False
        )
        add_task_options(command, task)
        command.set_defaults(run=propose)
    for name, run, words in (
        ("apply", apply, "write proposals beside the images, keeping what was there"),
        ("undo", undo, "put back what was there before"),
    ):
        command = commands.add_parser(name, help=words, allow_abbrev=False)
        command.add_argument("proposals", metavar="PROPOSALS", help=f"the folder of the proposals in {DEFAULT_FOLDER}")
        command.set_defaults(run=run)
    listing = commands.add_parser("list", help="show the sets of proposals", allow_abbrev=False)
    add_out(listing)
    listing.set_defaults(run=list_sets)
    for command in commands.choices.values():
        command.add_argument("--events", action="store_true", help="for other programs: print JSON lines")
    return top


def propose(options: argparse.Namespace, reporter: Reporter) -> int:
    """`caption`, `tag` or `mask`: propose, and without `--review` write it."""
    from scripts.annotate_run import make_proposals

    proposals, code = make_proposals(options, reporter)
    if proposals is None:
        return code
    if not options.review:
        return max(code, write(proposals, reporter))
    if not reporter.events and code == FINISHED:
        echo(f"Nothing is written yet; to write it: python scripts/annotate.py apply {proposals.path}")
    return code


def apply(options: argparse.Namespace, reporter: Reporter) -> int:
    """`apply PROPOSALS`."""
    return write(ProposalSet(options.proposals), reporter)


def write(proposals: ProposalSet, reporter: Reporter) -> int:
    """Write all proposals of a set; returns an exit code."""
    header = proposals.header()
    if not reporter.events:
        echo(f"Writing {header.task}s beside the images of {header.folder}")
    result = apply_proposals(proposals, lambda image, why: reporter.send(Message(image=image, error=why)))
    reporter.send(Message(written=result.written, unchanged=result.unchanged))
    if result.written and not reporter.events:
        echo(f"To undo it: python scripts/annotate.py undo {proposals.path}")
    return PROBLEMS if result.faults else 0


def undo(options: argparse.Namespace, reporter: Reporter) -> int:
    """`undo PROPOSALS`."""
    result = undo_proposals(
        ProposalSet(options.proposals), lambda file, why: reporter.send(Message(image=file, error=why))
    )
    reporter.send(Message(undone=result.undone, left=len(result.left)))
    return PROBLEMS if result.left else 0


def list_sets(options: argparse.Namespace, reporter: Reporter) -> int:
    """`list`."""
    sets = proposal_sets(Path(options.out))
    for each in sets:
        try:
            header = each.header()
            count = sum(proposal.is_wanted for proposal in each.read().values())
        except ConfigError as error:
            reporter.send(Message(note=str(error)))
            continue
        reporter.send(
            Message(
                proposals=str(each.path),
                task=header.task,
                folder=header.folder,
                model=header.model,
                state=each.state,
                made=header.made,
                images=count,
            )
        )
    if not sets:
        reporter.send(Message(note=f"There are no proposals in {options.out}."))
    return 0


if __name__ == "__main__":
    sys.exit(main())
