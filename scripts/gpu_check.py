"""Trains a tiny model in every distributed way on this machine's GPUs, and says what works.

python scripts/gpu_check.py [--device cuda|cpu] [--markdown FILE] [--log FILE] [--only WORD ...]

With one GPU: an NCCL group of one process, and two gloo processes that share the GPU. With several: NCCL on all of them
as well. `--device cpu` goes through the same list with two gloo processes, as far as it works without a GPU.
Exit code 0: everything works; 3: something does not; 2: there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch

from modules.config import TandemError, TrainConfig
from modules.machine import visible_gpus
from modules.run import root_cause
from scripts.gpu_check_list import ALONE, GLOBAL_BATCH, Check, Fault, Runs, checks
from scripts.make_demo_data import make_demo_data
from tests.runs import Job, group_exit_codes, group_settings, tiny_config, train_alone, train_group

WORKS, FAILED, NO_GPU = 0, 3, 2


@dataclass(frozen=True)
class Layout:
    """One way to use the devices."""

    label: str
    backend: str
    ranks: int
    visible: str | None  # what CUDA_VISIBLE_DEVICES is set to; None: as it is


def main() -> int:
    arguments = parser().parse_args()
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    layouts = layouts_for(arguments.device)
    if not layouts:
        print("There is no CUDA GPU that torch can use here.")
        print("--device cpu goes through the list with two CPU processes.")
        return NO_GPU
    machine = described(arguments.device)
    print(machine, flush=True)
    with tempfile.TemporaryDirectory(prefix="tandem-gpu-check-") as folder:
        table = tried(layouts, Path(folder), arguments.only or [""], arguments.log)
    text, code = summary(table)
    print(f"What the runs said is in {arguments.log}.\n\n{text}")
    if arguments.markdown is not None:
        arguments.markdown.write_text(f"# GPU check\n\n{machine}\n\n{text}\n")
    return code


def tried(layouts: list[Layout], folder: Path, words: list[str], log: Path) -> dict[str, dict[str, str]]:
    """What came of each check, by layout and name; what begins with FAILED has failed."""
    pictures = folder / "pictures"
    table = {}
    log.write_text("")
    with said_to(log):
        make_demo_data(pictures, count=41)
        alone = {name: train_alone(config_of(folder, pictures, name, given))[1] for name, given in ALONE.items()}
    for layout in layouts:
        print(f"{layout.label} ...", flush=True)
        chosen = [check for check in checks(layout.ranks) if any(word in check.name for word in words)]
        with said_to(log), visible(layout.visible):
            runs = trained_together(layout, folder / layout.label, pictures, chosen)
        table[layout.label] = {check.name: judged(check, runs[check.name], alone, layout) for check in chosen}
    return table


@contextmanager
def said_to(log: Path) -> Iterator[None]:
    """What this process and its children print goes to the end of a file."""
    kept = os.dup(1), os.dup(2)
    sys.stdout.flush()
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        for number, former in enumerate(kept, start=1):
            os.dup2(former, number)
            os.close(former)


@contextmanager
def visible(gpus: str | None) -> Iterator[None]:
    """The GPUs that processes started inside the block see; None leaves it as it is."""
    former = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    try:
        yield
    finally:
        if former is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = former
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)


def layouts_for(device: str) -> list[Layout]:
    """What this machine can try; nothing without a GPU."""
    if device == "cpu":
        return [Layout("gloo, 2 CPU processes", "gloo", 2, "")]
    gpus = visible_gpus() if torch.version.cuda else []
    if not gpus:
        return []
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    alone = [Layout("NCCL, 1 process", "nccl", 1, first), Layout("gloo, 2 processes on 1 GPU", "gloo", 2, first)]
    return [*alone, *([Layout(f"NCCL, {len(gpus)} GPUs", "nccl", len(gpus), None)] if len(gpus) > 1 else [])]


def trained_together(layout: Layout, place: Path, pictures: Path, chosen: list[Check]) -> dict[str, Runs | str]:
    """The runs of every check, in one group of processes; where that breaks, in one for each check."""
    try:
        return {**trained(layout, place / "together", pictures, chosen)}
    except TandemError:
        found: dict[str, Runs | str] = {}
        for number, check in enumerate(chosen):
            try:
                found.update(trained(layout, place / str(number), pictures, [check]))
            except TandemError as error:
                found[check.name] = " ".join(str(error).split())[-300:]
        return found


def trained(layout: Layout, place: Path, pictures: Path, chosen: list[Check]) -> dict[str, Runs]:
    """Raises TrainingError where a process of the group broke."""
    group = {**group_settings(layout.ranks), "distributed_backend": layout.backend}
    jobs = {}
    for number, check in enumerate(chosen):
        for job, settings in check.jobs.items():
            # the resumed run goes on in the folder of the half one
            name = f"{number}-{'half' if job == 'resumed' else job}"
            config = config_of(place, pictures, name, {**group, **settings})
            jobs[f"{check.name}/{job}"] = Job(config, "latest" if job == "resumed" else None)
    runs = train_group(layout.ranks, jobs)
    return {check.name: {job: runs[f"{check.name}/{job}"] for job in check.jobs} for check in chosen}


def judged(check: Check, runs: Runs | str, reference: Runs, layout: Layout) -> str:
    """One cell of the table."""
    if isinstance(runs, str):
        return f"FAILED: {runs}"
    for run in runs.values():
        if any(group_exit_codes(run, layout.ranks)):
            cause = root_cause(run.folder)
            told = "no reason was recorded" if cause is None else cause.message.splitlines()[0]
            refused = cause is not None and cause.kind == "config" and layout.visible == ""
            return f"not on the CPU: {told}" if refused else f"FAILED: {told}"
    try:
        return check.judge(runs, reference)
    except Fault as fault:
        return f"FAILED: {fault}"


def config_of(place: Path, pictures: Path, name: str, settings: Mapping[str, object]) -> TrainConfig:
    """A run of ten steps of the tests' tiny family."""
    patience = {"startup_timeout_s": 180, "step_timeout_s": 60, "max_steps": 10, "global_batch_size": GLOBAL_BATCH}
    place.mkdir(parents=True, exist_ok=True)
    return tiny_config(pictures, place, **{**patience, "run_name": name.replace(" ", "-"), **settings})


def described(device: str) -> str:
    """The machine in one line."""
    versions = f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    if device == "cpu":
        return f"CPU, {versions}"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return f"{len(names)} GPU: {', '.join(sorted(set(names)))}; {versions}, CUDA {torch.version.cuda}, NCCL {nccl}"


def summary(table: Mapping[str, Mapping[str, str]]) -> tuple[str, int]:
    """The table, in Markdown, with a verdict below it, and the exit code."""
    names = list(dict.fromkeys(name for found in table.values() for name in found))
    rows = [["", *table], *([name, *(found.get(name, "") for found in table.values())] for name in names)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    cells = [cell for found in table.values() for cell in found.values()]
    failed = sum(cell.startswith("FAILED") for cell in cells)
    left_out = sum(cell.startswith("not on the CPU") for cell in cells)
    verdict = f"{failed} of {len(cells)} checks FAILED." if failed else f"All {len(cells) - left_out} checks passed."
    if left_out:
        verdict += f" {left_out} cannot be tried on the CPU."
    return "\n".join([*lines, "", verdict]), FAILED if failed else WORKS


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: two gloo processes, without a GPU")
    top.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table there")
    top.add_argument("--log", type=Path, metavar="FILE", default=Path("gpu_check.log"), help="what the runs print")
    top.add_argument("--only", action="append", metavar="WORD", help="only the checks with this word in their name")
    return top


if __name__ == "__main__":
    sys.exit(main())
