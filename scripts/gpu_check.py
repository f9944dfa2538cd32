"""Train a tiny model in every distributed mode on this machine's GPUs, and report what works.

python scripts/gpu_check.py [--out FOLDER] [--resume] [--minutes N] [--only WORD ...] [--wheels FOLDER] [--device cpu]
python scripts/gpu_check.py --plan [PYTHON]

First a run of the demo; then, with one GPU, an NCCL group of one process, and two gloo processes that share the GPU;
with several also NCCL on all of them; then each point of scripts/gpu_check_list.py. Each cell is printed and written
to cells.jsonl of the folder as it ends, so that nothing is lost if this is cut off, and --resume goes on. At the end
table.md is written there. `--device cpu` runs the same code with two gloo processes, as far as it works without a GPU.
Exit code 0: all that there was time for passed; 3: at least one failed; 2: there is no GPU, or the wheels do not fit.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_version, prepare_program, require_values
from scripts.gpu_check_list import FIRST, OF_A_CHECK, POINTS, ROOT, checks

# What an image of torch, transformers and accelerate for machines with GPUs is likely to lack, or to have too old.
WHEELS = (
    *("diffusers", "transformers", "peft", "pydantic", "pydantic-core", "typing-inspection", "annotated-types"),
    *("typing-extensions", "pytorch-optimizer", "importlib-metadata", "lazy-importer"),
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64")
CALL_MINUTES = 10
MARGIN_MINUTES = 0.5  # for the start and the end of a call


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and print the table, or print the plan; returns an exit code."""
    started = time.monotonic()
    require_values()
    options = parser().parse_args(arguments)
    if options.plan:
        print(plan(options.plan))
        return 0
    with tempfile.TemporaryDirectory(prefix="tandem-wheels-") as folder:
        if options.wheels is not None and not install(options.wheels, folder):
            return 2
        prepare_program()
        from scripts.gpu_cells import check_cells  # needs pydantic, perhaps from a wheel

        deadline = started + 60 * options.minutes
        return check_cells(options.device, options.only or [""], options.out, resume=options.resume, deadline=deadline)


def install(wheels: Path, folder: str) -> bool:
    """Install wheels into a folder that comes first for this process and those it starts; whether they fit."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    done = subprocess.run([*pip, "--target", folder, *map(str, sorted(wheels.glob("*.whl")))], check=False)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, folder)
    return done.returncode == 0


def plan(python: str) -> str:
    """How to run all of it in calls of ten minutes, on a machine with one GPU and no network."""
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE))
    wheels = [f"{name}=={pinned[name]}" for name in WHEELS]
    points = [*FIRST.values(), *POINTS.values()]
    limits = [*(point.limits for point in points), *[OF_A_CHECK] * (len(checks(1)) + len(checks(2)))]
    minutes = sum(limit.typical_s for limit in limits) / 60
    call = f"python3 scripts/gpu_check.py --out OUT --wheels WHEELS --minutes {CALL_MINUTES - MARGIN_MINUTES} --resume"
    platforms = " ".join(f"--platform {name}" for name in PLATFORMS)
    return "\n".join(
        [
            "On a machine with a network, whatever its system and Python, fetch the packages that the other one lacks:",
            f"python3 -m pip download --no-deps --only-binary=:all: --python-version {python} --implementation cp \\",
            f"    {platforms} -d WHEELS \\",
            *(f"    {' '.join(part)} \\" for part in (wheels[:4], wheels[4:8])),
            f"    {' '.join(wheels[8:])}",
            "",
            f"There, in a checkout: {len(limits)} cells, about {minutes:.0f} minutes on an H100.",
            "Each call needs the folder OUT as the one before it has left it:",
            *[call] * math.ceil(minutes / (CALL_MINUTES - MARGIN_MINUTES)),
        ]
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: two gloo processes, without a GPU")
    top.add_argument("--out", type=Path, metavar="FOLDER", default=Path("gpu_check"), help="default: gpu_check")
    top.add_argument("--resume", action="store_true", help="leave out the cells that the folder has from this machine")
    top.add_argument("--minutes", type=float, default=math.inf, metavar="N", help="end within this time")
    top.add_argument("--only", action="append", metavar="WORD", help="only checks whose name contains this")
    top.add_argument("--wheels", type=Path, metavar="FOLDER", help="packages to use before the installed ones")
    top.add_argument(
        "--plan",
        nargs="?",
        const="3.12",
        metavar="PYTHON",
        help="print the commands for a machine with this Python (default: 3.12) and no network",
    )
    add_version(top)
    return top


if __name__ == "__main__":
    sys.exit(main())
