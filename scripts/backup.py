"""See, check, restore, export and remove the backups of a run: `python scripts/backup.py list runs/NAME`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_trust_code, allow_code, confirmed, exit_code_of, prepare_program, program_parser

prepare_program()

from modules.config import ConfigError, ResumeError, TandemError
from modules.config.file_access import set_file_access
from modules.files import is_link, printable
from modules.run import RunFolder
from modules.run.console import echo, warn
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED
from modules.run.folder.backup_list import BackupInfo, Rotation, list_backups, misplaced
from modules.run.folder.backup_manifest import find_damage, read_progress
from modules.run.folder.links import refuse_links
from modules.run.folder.run_lock import check_not_training, supervisor_lock
from modules.run.format_progress import format_bytes

EXAMPLES = """examples:
  the backups of a run, the newest first:
    python scripts/backup.py list runs/cats
  read every file of all of them, or of one, and compare the checksums:
    python scripts/backup.py verify runs/cats
    python scripts/backup.py verify runs/cats 500
  go back: `train.py --resume latest` then continues at step 500; or take a copy from another disk:
    python scripts/backup.py restore runs/cats 500
    python scripts/backup.py restore runs/cats /media/usb/cats/backup/step-000500
  remove all but the two newest and those of each 1,000 steps:
    python scripts/backup.py prune runs/cats --keep 2 --every 1000
  the model or LoRA of a backup, in runs/cats/saves/step-000500, or elsewhere:
    python scripts/backup.py export runs/cats 500
    python scripts/backup.py export runs/cats /media/usb/cats/backup/step-000500 --out cats-500

exit codes: 0 done and undamaged, 2 a mistake in the command or no such run, 3 a backup is damaged or cannot be written
"""


def main(arguments: list[str] | None = None) -> int:
    """Do what was asked; returns an exit code."""
    options = parser().parse_args(arguments)
    return exit_code_of(partial(do, options), options.run)


def do(options: argparse.Namespace) -> int:
    """The action that was asked for."""
    set_file_access()
    run = open_run(options.run)
    if options.action in ("list", "verify"):
        return {"list": show, "verify": verify}[options.action](options, run)
    if options.action == "export" and options.out is not None:
        return export(options, run)
    with supervisor_lock(run):  # nobody continues the run meanwhile
        check_not_training(run)
        return {"restore": restore, "prune": prune, "export": export}[options.action](options, run)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = program_parser("See, check, restore, export and remove the backups of a run.", EXAMPLES)
    actions = top.add_subparsers(dest="action", required=True, metavar="list|verify|restore|export|prune")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("run", metavar="RUN", help="the folder of a run, such as runs/NAME")
        return action

    listing = add("list", "list the backups, the newest first, without reading their weights")
    listing.add_argument("--json", metavar="FILE", help="also write it as JSON")
    checking = add("verify", "read every file of the backups and compare the checksums")
    checking.add_argument("steps", metavar="STEP", nargs="*", type=int, help="only those of these steps")
    checking.add_argument("--json", metavar="FILE", help="also write it as JSON")
    going_back = add("restore", "make a backup the one that --resume latest continues from; the others stay")
    going_back.add_argument(
        "backup", metavar="STEP|FOLDER", help="the step of a backup of the run, or a copy elsewhere"
    )
    exporting = add(
        "export", "write the model or LoRA of a backup, as the run would have saved it then; needs no images"
    )
    exporting.add_argument("backup", metavar="STEP|FOLDER", help="the step of a backup of the run, or a copy elsewhere")
    exporting.add_argument(
        "--out", metavar="FOLDER", help="a new folder for it (default: saves/step-NNNNNN of the run, which has ended)"
    )
    exporting.add_argument("--base_model", help="the base model, if it was moved")
    exporting.add_argument("--overwrite", action="store_true", help="replace a model that is there")
    add_trust_code(exporting)
    removing = add("prune", "remove old backups; the newest undamaged one always stays")
    removing.add_argument("--keep", type=int, metavar="N", help="keep the N newest (default: backups_kept of the run)")
    removing.add_argument("--every", type=int, default=0, metavar="STEPS", help="keep those of each so many steps, too")
    removing.add_argument("--older_than", type=float, default=0.0, metavar="DAYS", help="keep all that are younger")
    removing.add_argument("--yes", action="store_true", help="do not ask")
    removing.add_argument("--dry_run", action="store_true", help="only say what would be removed")
    return top


def open_run(given: str) -> RunFolder:
    """The run whose folder is `given`. Raises ConfigError if there is none, or it has links."""
    folder = RunFolder(Path(given))
    if not folder.backup_dir.is_dir():
        what = "has no backup folder" if folder.path.is_dir() else "does not exist"
        raise ConfigError(f"{given!r} {what}", "Give the folder of a run, such as runs/NAME")
    refuse_links(folder.path)
    if is_link(folder.backup_dir):
        raise ConfigError(f"{printable(folder.backup_dir)} is a link to another folder", "Give the run that it is of")
    return folder


def show(options: argparse.Namespace, run: RunFolder) -> int:
    """`list`."""
    backups = backups_of(run)
    _write_json(backups, options.json)
    if not backups:
        echo(f"{run.path} has no backups.")
    else:
        rows = [("step", "epoch", "written", "size", "ranks", ""), *(_row(each) for each in backups)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False))
            echo(f"{'  '.join(cells)}  {row[-1]}".rstrip())
    return FAILED if any(each.fault for each in backups) else FINISHED


def verify(options: argparse.Namespace, run: RunFolder) -> int:
    """`verify`."""
    asked = {backup_of_step(run, step) for step in options.steps}
    chosen = [each for each in backups_of(run) if not asked or each.folder in asked]
    if not chosen:
        warn(f"{run.path} has no backups.")
        return FAILED
    checked = []
    for each in chosen:
        fault = misplaced(each.folder) or find_damage(each.folder) or ""
        if not os.path.lexists(each.folder):
            echo(f"{each.folder} has been removed meanwhile by the run, which writes newer ones.")
            continue
        checked.append(replace(each, fault=fault))
        echo(checked[-1].fault or f"{each.folder} is undamaged.")
    _write_json(checked, options.json)
    return FAILED if any(each.fault for each in checked) else FINISHED


def restore(options: argparse.Namespace, run: RunFolder) -> int:
    """`restore`."""
    from modules.checkpoint.manage_backups import go_back_to

    folder = go_back_to(run.backup_dir, given_backup(options, run))
    echo(f"The run continues from {folder}: scripts/train.py --resume latest --run_name {run.name}")
    return FINISHED


def export(options: argparse.Namespace, run: RunFolder) -> int:
    """`export`."""
    from modules.config import load_config
    from modules.training.loop.export_backup import export_backup

    backup = given_backup(options, run)
    if fault := misplaced(backup):
        raise ResumeError(fault)
    config = load_config(backup / "config.json")
    if options.base_model is not None:
        config = config.model_copy(update={"base_model": options.base_model})
    allow_code(config, trust=options.trust_code)
    step = read_progress(backup).step
    out = run.saved_dir(step) if options.out is None else Path(options.out)
    file = run.saved_file(step) if options.out is None else out.with_name(f"{out.name}.safetensors")
    taken = next((each for each in (out, file) if os.path.lexists(each)), None)
    if taken is not None and not options.overwrite:
        raise ConfigError(f"{printable(taken)} exists", "Give another --out, or --overwrite to replace what was saved")
    written = export_backup(backup, config, run.name, out, file)
    echo(f"The model of step {step} is saved in {' and '.join(map(str, written))}.")
    if options.out is None and config.saves_kept:
        echo(f"If the run goes on, it keeps {config.saves_kept} models there (saves_kept); --out saves it elsewhere.")
    return FINISHED


def prune(options: argparse.Namespace, run: RunFolder) -> int:
    """`prune`."""
    from modules.checkpoint import Backups
    from modules.checkpoint.manage_backups import remove_backups

    keep = kept_by_config(run) if options.keep is None else options.keep
    for name, value, least in (("keep", keep, 1), ("every", options.every, 0), ("older_than", options.older_than, 0)):
        if not value >= least:
            raise ConfigError(f"--{name} is {value}; use {least} or more.")
    backups, rotation = backups_of(run), Rotation(keep, options.every, options.older_than)
    newest, faults = Backups(run.backup_dir, keep=1).newest_valid()
    for fault in faults:
        warn(fault)
    removed = [each for each in rotation.outdated(backups) if each.folder != newest]
    if not removed:
        echo("Nothing to remove.")
        return FINISHED
    total = sum(each.size for each in removed)
    names = ", ".join(each.folder.name for each in removed)
    echo(f"{len(removed)} of {len(backups)} backups, {format_bytes(total)}: {names}")
    if options.dry_run:
        return FINISHED
    if not options.yes and not confirmed():
        warn("Nothing was removed. Answer y, or start it with --yes.")
        return INTERRUPTED
    if left := remove_backups(run.backup_dir, [each.folder.name for each in removed]):
        warn(f"These could not be removed: {', '.join(left)}. May you write to {run.backup_dir}?")
        return FAILED
    echo(f"Removed; {format_bytes(total)} are free again.")
    return FINISHED


def backups_of(run: RunFolder) -> list[BackupInfo]:
    """The newest first."""
    return list_backups(run.backup_dir)


def given_backup(options: argparse.Namespace, run: RunFolder) -> Path:
    """The folder of the backup that was given by its step or folder. Raises ConfigError if there is none."""
    given: str = options.backup
    source = backup_of_step(run, int(given)) if given.isdecimal() else Path(given)
    if not source.is_dir():
        raise ConfigError(f"There is no backup at {given!r}", "Give the number of its step, or its folder")
    return source


def backup_of_step(run: RunFolder, step: int) -> Path:
    """Raises ConfigError if there is none."""
    found = run.backup_dir / f"step-{step:06d}"
    if found.is_dir():
        return found
    steps = [each.folder.name.removeprefix("step-").lstrip("0") or "0" for each in backups_of(run)]
    raise ConfigError(f"{run.path} has no backup of step {step}", f"It has those of {', '.join(steps) or 'none'}")


def kept_by_config(run: RunFolder) -> int:
    """`backups_kept` of the run's config. Raises ConfigError."""
    from modules.config import load_config

    return load_config(run.config_file).backups_kept


def _metric(backup: Path) -> str:
    """Which metric its best validation is measured by."""
    from modules.config import load_config

    try:
        return printable(load_config(backup / "config.json").early_stopping_metric)
    except TandemError:
        return "metric"


def _row(backup: BackupInfo) -> tuple[str, ...]:
    position = backup.position
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(backup.written))
    if position is None:
        return (backup.folder.name.removeprefix("step-"), "-", written, format_bytes(backup.size), "-", backup.fault)
    best = position.best_validation
    note = backup.fault or ("" if best is None else f"best validation {_metric(backup.folder)} so far {best:.4g}")
    epochs = f"{position.epochs_done:.2f}"
    return (f"{position.step}", epochs, written, format_bytes(backup.size), f"{position.world_size}", note)


def _write_json(backups: list[BackupInfo], file: str | None) -> None:
    if file is not None:
        text = json.dumps([_as_json(each) for each in backups], indent=2)
        try:
            Path(file).write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            error.filename = file  # which a full disk does not name
            raise


def _as_json(backup: BackupInfo) -> dict[str, object]:
    position = backup.position
    return {
        "folder": str(backup.folder),
        "number": backup.number,
        "written": backup.written,
        "bytes": backup.size,
        "step": position.step if position else None,
        "epochs": position.epochs_done if position else None,
        "fault": backup.fault,
    }


if __name__ == "__main__":
    sys.exit(main())
