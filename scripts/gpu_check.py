"""Train a tiny model in every distributed mode on this machine's GPUs, and report what works.

python scripts/gpu_check.py [--device cuda|cpu] [--markdown FILE] [--log FILE] [--only WORD ...]

With one GPU: an NCCL group of one process, and two gloo processes that share the GPU. With several: also NCCL on all of
them. Then each point of scripts/gpu_points.py in a process of its own. The table goes to docs/gpu_results.md, unless
--only leaves out a part of it. `--device cpu` runs the same code with two gloo processes, as far as it works without a
GPU.
Exit code 0: all checks passed; 3: at least one failed; 2: there is no GPU.
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

from modules.config import TandemError, TrainConfig, trusted_code
from modules.machine import visible_gpus
from modules.run import root_cause
from scripts.common import add_version
from scripts.gpu_check_list import GLOBAL_BATCH, ONLY_ON_GPU, SINGLE_PROCESS, Check, CheckFailed, Runs, checks
from scripts.gpu_points import POINTS, run_point
from scripts.make_demo_data import make_demo_data
from tests.runs import Job, group_exit_codes, group_settings, tiny_config, train_alone, train_group

WORKS, FAILED, NO_GPU = 0, 3, 2
RESULTS = ROOT / "docs" / "gpu_results.md"


@dataclass(frozen=True)
class Layout:
    """A backend and a number of processes on some devices."""

    label: str
    backend: str
    ranks: int
    visible: str | None  # CUDA_VISIBLE_DEVICES; None leaves it unchanged


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and print the table; returns an exit code."""
    options = parser().parse_args(arguments)
    os.environ[trusted_code.VARIABLE] = "any"  # the families of the tests
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    layouts = available_layouts(options.device)
    if not layouts:
        print("There is no CUDA GPU that torch can use here.")
        print("--device cpu runs the checks with two CPU processes.")
        return NO_GPU
    machine = describe_machine(options.device)
    print(machine, flush=True)
    words = options.only or [""]
    with tempfile.TemporaryDirectory(prefix="tandem-gpu-check-") as folder:
        table = run_checks(layouts, Path(folder), words, options.log)
        points = run_points(options.device, Path(folder) / "points", words)
    text, code = summary({**table, **({"alone": points} if points else {})})
    print(f"The output of the runs is in {options.log}.\n\n{text}")
    markdown = options.markdown or (RESULTS if options.device == "cuda" and options.only is None else None)
    if markdown is not None:
        markdown.write_text(f"# GPU check\n\n{machine}\n\n{text}\n")
    return code


def run_checks(layouts: list[Layout], folder: Path, words: list[str], log: Path) -> dict[str, dict[str, str]]:
    """The result of each check by layout and name; a failure starts with FAILED."""
    images = folder / "images"
    table: dict[str, dict[str, str]] = {}
    log.write_text("")
    if not any(word in check.name for layout in layouts for check in checks(layout.ranks) for word in words):
        return table
    with redirect_output(log):
        make_demo_data(images, count=41)
        alone = {name: train_alone(config_of(folder, images, name, given))[1] for name, given in SINGLE_PROCESS.items()}
    for layout in layouts:
        print(f"{layout.label} ...", flush=True)
        chosen = [check for check in checks(layout.ranks) if any(word in check.name for word in words)]
        with redirect_output(log), visible(layout.visible):
            runs = train_in_one_group(layout, folder / layout.label, images, chosen)
        table[layout.label] = {check.name: evaluate(check, runs[check.name], alone, layout) for check in chosen}
    return table


def run_points(device: str, place: Path, words: list[str]) -> dict[str, str]:
    """The figures of each point of scripts/gpu_points.py, one process after the other."""
    found = {}
    for number, name in enumerate(POINTS):
        if any(word in name for word in words):
            print(f"{name} ...", flush=True)
            found[name] = run_point(name, device, place / str(number))
    return found


@contextmanager
def redirect_output(log: Path) -> Iterator[None]:
    """Append what this process and its children print to a file."""
    saved = os.dup(1), os.dup(2)
    sys.stdout.flush()
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        for number, original in enumerate(saved, start=1):
            os.dup2(original, number)
            os.close(original)


@contextmanager
def visible(gpus: str | None) -> Iterator[None]:
    """Set CUDA_VISIBLE_DEVICES for processes started inside the block; None leaves it unchanged."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    try:
        yield
    finally:
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)


def available_layouts(device: str) -> list[Layout]:
    """The layouts this machine has; none without a GPU."""
    if device == "cpu":
        return [Layout("gloo, 2 CPU processes", "gloo", 2, "")]
    gpus = visible_gpus() if torch.version.cuda else []
    if not gpus:
        return []
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    alone = [Layout("NCCL, 1 process", "nccl", 1, first), Layout("gloo, 2 processes on 1 GPU", "gloo", 2, first)]
    return [*alone, *([Layout(f"NCCL, {len(gpus)} GPUs", "nccl", len(gpus), None)] if len(gpus) > 1 else [])]


def train_in_one_group(layout: Layout, place: Path, images: Path, chosen: list[Check]) -> dict[str, Runs | str]:
    """The runs of every check in one group of processes; if that breaks, in one group per check."""
    try:
        return {**train_jobs(layout, place / "together", images, chosen)}
    except TandemError:
        found: dict[str, Runs | str] = {}
        for number, check in enumerate(chosen):
            try:
                found.update(train_jobs(layout, place / str(number), images, [check]))
            except TandemError as error:
                found[check.name] = " ".join(str(error).split())[-300:]
        return found


def train_jobs(layout: Layout, place: Path, images: Path, chosen: list[Check]) -> dict[str, Runs]:
    """Train the jobs of some checks in one group. Raises TrainingError if a process of the group crashed."""
    group = {**group_settings(layout.ranks), "distributed_backend": layout.backend}
    jobs = {}
    for number, check in enumerate(chosen):
        for job, settings in check.jobs.items():
            # the resumed run continues in the folder of the half one
            name = f"{number}-{'half' if job == 'resumed' else job}"
            config = config_of(place, images, name, {**group, **settings})
            jobs[f"{check.name}/{job}"] = Job(config, "latest" if job == "resumed" else None)
    runs = train_group(layout.ranks, jobs)
    return {check.name: {job: runs[f"{check.name}/{job}"] for job in check.jobs} for check in chosen}


def evaluate(check: Check, runs: Runs | str, reference: Runs, layout: Layout) -> str:
    """One cell of the table."""
    if isinstance(runs, str):
        return f"FAILED: {runs}"
    for run in runs.values():
        if any(group_exit_codes(run, layout.ranks)):
            cause = root_cause(run.folder)
            reason = "no reason was recorded" if cause is None else cause.message.splitlines()[0]
            refused = cause is not None and cause.kind == "config" and layout.visible == ""
            return f"{ONLY_ON_GPU}: {reason}" if refused else f"FAILED: {reason}"
    try:
        return check.evaluate(runs, reference)
    except CheckFailed as error:
        return f"FAILED: {error}"


def config_of(place: Path, images: Path, name: str, settings: Mapping[str, object]) -> TrainConfig:
    """Ten steps of the tests' tiny family."""
    defaults = {"startup_timeout_s": 180, "step_timeout_s": 60, "max_steps": 10, "global_batch_size": GLOBAL_BATCH}
    place.mkdir(parents=True, exist_ok=True)
    return tiny_config(images, place, **{**defaults, "run_name": name.replace(" ", "-"), **settings})


def describe_machine(device: str) -> str:
    """Devices and versions in one line."""
    versions = f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    if device == "cpu":
        return f"CPU, {versions}"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return f"{len(names)} GPU: {', '.join(sorted(set(names)))}; {versions}, CUDA {torch.version.cuda}, NCCL {nccl}"


def summary(table: Mapping[str, Mapping[str, str]]) -> tuple[str, int]:
    """The table in Markdown with a verdict below it, and the exit code."""
    names = list(dict.fromkeys(name for found in table.values() for name in found))
    rows = [["", *table], *([name, *(found.get(name, "") for found in table.values())] for name in names)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    cells = [cell for found in table.values() for cell in found.values()]
    failed = sum(cell.startswith("FAILED") for cell in cells)
    left_out = sum(cell.startswith(ONLY_ON_GPU) for cell in cells)
    verdict = f"{failed} of {len(cells)} checks FAILED." if failed else f"All {len(cells) - left_out} checks passed."
    if left_out:
        verdict += f" {left_out} cannot run on the CPU."
    return "\n".join([*lines, "", verdict]), FAILED if failed else WORKS


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: two gloo processes, without a GPU")
    top.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="also write the table there (default on a GPU: docs/gpu_results.md)",
    )
    top.add_argument("--log", type=Path, metavar="FILE", default=Path("gpu_check.log"), help="output of the runs")
    top.add_argument("--only", action="append", metavar="WORD", help="only checks whose name contains this")
    add_version(top)
    return top


if __name__ == "__main__":
    sys.exit(main())
