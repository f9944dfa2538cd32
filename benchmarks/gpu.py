"""Tandem on one GPU at real sizes, against hand-written loops that do the same work in the same process, in turns.

python benchmarks/gpu.py [--minutes N] [--out FOLDER] [--only WORD ...] [--device cuda|cpu] [--tiny]

Base models have random weights (benchmarks/real_sizes.py). Each row has a process of its own, forked from this one,
which has imported everything and never touches the GPU; what memory it takes and what fails stays with it. Rows are
printed and appended to FOLDER/rows.jsonl as they end, the most telling ones first; a table of all of them follows.
`--device cpu` rehearses the same code with tiny networks, `--tiny` on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# `is_available` asks the driver's library for monitoring then: a process that had initialised CUDA could not be forked
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("PYTHONWARNINGS", "ignore::DeprecationWarning")

from benchmarks import gpu_processes
from benchmarks.gpu_row import Row, Site
from benchmarks.targets import Targets

STEPS, CACHING, TABLE = 0.97, 0.9, 0.05  # the targets
ROW_S, MOST_ROW_S = 25, 150  # what a row usually takes, and when it is ended
SCRATCH_BYTES = 48 << 30  # of base models, caches and backups

PEAKS = {"trainer": "peak", "bare": "bare_peak", "reserved": "reserved"}

LORA: Mapping[str, object] = {"method": "lora", "lora_rank": 16, "lora_alpha": 16}
ATTENTION: Mapping[str, object] = {**LORA, "lora_targets": "attention"}
MLP: Mapping[str, object] = {**LORA, "lora_targets": "attention_mlp"}
FULL: Mapping[str, object] = {"method": "fine_tune"}
CHECKPOINTED: Mapping[str, object] = {"gradient_checkpointing": True}


def kept(part: str, weights: str) -> Mapping[str, object]:
    """Frozen weights of a part in this format."""
    return {"parts": [{"part": part, "weights": weights}]}


SD15 = {**ATTENTION, **kept("unet", "bf16"), "batch_size": 4}
SDXL = {**ATTENTION, **kept("unet", "bf16"), "batch_size": 2}
FLUX = {**MLP, **kept("transformer", "bf16")}
FLUX_4 = {**FLUX, **CHECKPOINTED, "batch_size": 4}
Z_IMAGE = {**MLP, **kept("transformer", "bf16"), "batch_size": 2}

ROWS = [
    Row("sd15 lora", "sd15", SD15, backs_up=True),
    Row("flux lora", "flux", FLUX),
    Row("sd15 fine_tune", "sd15", {**FULL, "batch_size": 4}, backs_up=True),
    Row("sdxl lora", "sdxl", SDXL),
    Row("flux lora nf4", "flux", {**FLUX, **kept("transformer", "nf4")}, beside="flux lora"),
    Row("z_image lora", "z_image", Z_IMAGE),
    Row("flux lora batch 4", "flux", FLUX_4),
    Row("flux lora batch 4 block_offload", "flux", {**FLUX_4, "block_offload": 1.0}, "flux lora batch 4", least=0.85),
    Row("sd15 lora nccl", "sd15", SD15, "sd15 lora", least=0.98, has_ranks=True),
    Row("sd15 caching", "sd15", SD15, only_caches=True),
    Row("sdxl caching", "sdxl", SDXL, only_caches=True),
    Row("sdxl fine_tune checkpointing", "sdxl", {**FULL, **CHECKPOINTED}),
    Row("flux lora int8", "flux", {**FLUX, **kept("transformer", "int8")}, beside="flux lora"),
    Row("flux lora fp8", "flux", {**FLUX, **kept("transformer", "fp8")}, beside="flux lora"),
    Row("flux lora compile", "flux", {**FLUX, "compile": True}, beside="flux lora"),
    Row("sd15 fine_tune channels_last", "sd15", {**FULL, "batch_size": 4, "channels_last": True}, "sd15 fine_tune"),
    Row("flux fine_tune checkpointing", "flux", {**FULL, **CHECKPOINTED}),
    Row("sdxl lora compile", "sdxl", {**SDXL, "compile": True}, beside="sdxl lora"),
    Row("z_image fine_tune checkpointing", "z_image", {**FULL, **CHECKPOINTED}),
    Row("flux lora cudnn", "flux", {**FLUX, "attention_backend": "cudnn"}, beside="flux lora"),
    Row("sd15 fine_tune nccl", "sd15", {**FULL, "batch_size": 4}, "sd15 fine_tune", least=0.98, has_ranks=True),
]


def main() -> None:
    arguments = parser().parse_args()
    words, names = arguments.only or [""], {row.name for row in ROWS}
    chosen = [row for row in ROWS if row.name in words or any(w in row.name for w in words if w not in names)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    with scratch(arguments.scratch) as place:
        site = Site(place, arguments.device, arguments.tiny or arguments.device == "cpu")
        bench = Bench(site, arguments.out, arguments.minutes)
        bench.rates()
        for row in chosen:
            bench.row(row)
    bench.end()


class Bench:
    """Starts the processes, and keeps and prints what they find."""

    def __init__(self, site: Site, out: Path, minutes: float) -> None:
        self.site, self.out = site, out
        self.ends = time.monotonic() + 60 * minutes
        self.context: Any = multiprocessing.get_context("fork")
        rows = out / "rows.jsonl"  # of a call before this one, too
        kept = [json.loads(text) for text in rows.read_text().splitlines()] if rows.exists() else []
        self.found: dict[str, Mapping[str, Any]] = {row["name"]: row for row in kept}
        self.prepared: set[str] = set()

    def rates(self) -> None:
        """The device and what it does at most, to which the rows are compared."""
        found = self.work(gpu_processes.rates, self.site)
        if "error" in found and self.context.get_start_method() == "fork":
            print(f"Processes are started anew, not forked, because of {found['error']}", flush=True)
            self.context = multiprocessing.get_context("spawn")
            found = self.work(gpu_processes.rates, self.site)
        self.keep({"name": "rates", **found})
        print(f"  {json.dumps({name: value for name, value in self.found['rates'].items() if name != 'name'})}\n")

    def row(self, row: Row) -> None:
        """Measure a row, if there is time for it."""
        if self.ends - time.monotonic() < ROW_S:
            self.keep({"name": row.name, "error": "not started: the minutes are over"})
            return
        if row.model not in self.prepared:
            done = self.work(gpu_processes.prepare, row.model, self.site)
            if "error" in done:
                self.keep({"name": row.name, "error": f"its base model could not be written: {done['error']}"})
                return
            self.prepared.add(row.model)
        file = self.out / "estimate.json"
        table = None if row.only_caches else self.start(gpu_processes.estimate, row, self.site, file)
        started = time.monotonic()
        measure = gpu_processes.cache_in_turns if row.only_caches else gpu_processes.train_in_turns
        found = self.work(measure, row, self.site)
        if table is not None:
            table.join(20)
            table.kill()
        found["memory_table"] = read(file)
        file.unlink(missing_ok=True)
        shutil.rmtree(self.site.place / "runs", ignore_errors=True)
        self.keep({"name": row.name, "model": row.model, **found, "row_s": time.monotonic() - started})
        print(line(row, self.found), flush=True)

    def work(self, function: Callable[..., None], *arguments: object) -> dict[str, Any]:
        """What a process of `function` writes to the file that is its last argument; `error` says what ended it."""
        file = self.out / "result.json"
        file.unlink(missing_ok=True)
        process = self.start(function, *arguments, file)
        most_s = MOST_ROW_S if self.site.device == "cuda" else math.inf
        process.join(max(5.0, min(most_s, self.ends - time.monotonic())))
        is_late = process.is_alive()
        process.kill()
        process.join()
        found = read(file)
        if is_late:
            found.setdefault("error", "it took too long, and was ended")
        elif process.exitcode:
            found.setdefault("error", f"its process ended with {process.exitcode}")
        file.unlink(missing_ok=True)
        return found

    def start(self, function: Callable[..., None], *arguments: object) -> BaseProcess:
        """A process of `function`, which may start others."""
        process: BaseProcess = self.context.Process(
            target=gpu_processes.child, args=(function, arguments, self.out / "log.txt")
        )
        process.start()
        return process

    def keep(self, found: Mapping[str, Any]) -> None:
        """Add a row to the file."""
        self.found[str(found["name"])] = found
        with (self.out / "rows.jsonl").open("a") as rows:
            rows.write(json.dumps(found) + "\n")
        if "error" in found:
            print(f"{found['name']}: {found['error']}", flush=True)

    def end(self) -> None:
        """The table of all rows in Markdown, and the figures beside their targets."""
        text = table_of([row for row in ROWS if row.name in self.found], self.found)
        (self.out / "table.md").write_text(text)
        print(f"\n{text}")
        targets = Targets()
        for row in ROWS:
            found = self.found.get(row.name, {})
            if "ratio" in found:
                targets.at_least(f"{row.name}: to the bare loop", found["ratio"], CACHING if row.only_caches else STEPS)
            if "ratio" in found and "ratio" in (beside := self.found.get(row.beside, {})) and row.least:
                share = found["images_per_s"] / beside["images_per_s"]
                targets.at_least(f"{row.name}: to {row.beside}", share, row.least)
            if "waits" in found:
                targets.at_most(f"{row.name}: waits per step", found["waits"], 0)
            if (off := off_table(found)) is not None:
                targets.at_most(f"{row.name}: memory table off by", abs(off), TABLE)
        targets.end()


@contextmanager
def scratch(given: Path | None) -> Iterator[Path]:
    """A folder for models, caches and runs: in memory if there is enough, because disks differ."""
    memory = Path("/dev/shm")
    has_memory = memory.is_dir() and shutil.disk_usage(memory).free > SCRATCH_BYTES
    with tempfile.TemporaryDirectory(prefix="tandem-gpu-", dir=given or (memory if has_memory else None)) as folder:
        print(f"working in {folder}", flush=True)
        yield Path(folder)


def read(file: Path) -> dict[str, Any]:
    """What a process has written; {} if it has not."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found


def line(row: Row, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A row as text."""
    return f"{row.name}: " + ", ".join(f"{name} {value}" for name, value in cells(row, rows).items() if value)


def table_of(rows: list[Row], found: Mapping[str, Mapping[str, Any]]) -> str:
    """All rows in Markdown."""
    shown = [{"": row.name, **cells(row, found)} for row in rows]
    names = list(dict.fromkeys(name for each in shown for name in each))
    lines = [names, ["---"] * len(names), *([each.get(name, "") for name in names] for each in shown)]
    return "\n".join(f"| {' | '.join(each)} |" for each in lines) + "\n"


def cells(row: Row, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The figures of a row by column."""
    found = rows[row.name]
    if "ratio" not in found:
        return {"ratio": str(found.get("error") or found.get("failed") or "nothing was measured")}
    shown = {
        "batch": str(found["batch"]),
        "ratio": f"{found['ratio']:.3f} ({min(found['ratios']):.3f} to {max(found['ratios']):.3f})",
        "images/s": f"{found['images_per_s']:.2f}",
        "bare": f"{found['bare_images_per_s']:.2f}",
    }
    if row.only_caches:
        return shown
    beside = rows.get(row.beside, {})
    flops = beside.get("flops_per_image") or found["flops_per_image"]  # compiled and quantised layers are not counted
    peak = 1e12 * rows.get("rates", {}).get("matmul_tflops", 0)
    off, ran = off_table(found), "busy_ms" in found
    pinned = found.get("pinned_with_backup_gib", found["pinned_gib"])
    backup = [found[f"{name}_backup_stalls_ms"] for name in ("first", "second") if f"{name}_backup_stalls_ms" in found]
    return {
        **shown,
        "beside": f"{found['images_per_s'] / beside['images_per_s']:.2f} x {row.beside}" if "ratio" in beside else "",
        "of the peak": f"{flops * found['images_per_s'] / peak:.0%}" if flops and peak else "",
        "waits": f"{found['waits']:g}" if "waits" in found else "",
        "host ahead ms": f"{found['host_ahead_ms']:.0f}",
        "busy ms": f"{found['busy_ms']:.0f} of {1e3 * found['batch'] / found['images_per_s']:.0f}" if ran else "",
        "waits ms": f"{found['synchronize_ms']:.1f}" if ran else "",
        "peak GiB": ", ".join(f"{name} {found[f'{key}_gib']:.2f}" for name, key in PEAKS.items()),
        "table": "" if off is None else f"{off:+.1%}",
        "pinned GiB": f"{pinned:.2f}",
        "backup stalls ms": ", ".join(f"{each:.0f}" for each in backup),
        "attention": ", ".join(kernels(found)),
        "failed": str(found.get("failed") or found.get("error") or ""),
    }


def kernels(found: Mapping[str, Any]) -> list[str]:
    """How often which attention of torch ran in a step."""
    start, attention = "aten::_scaled_dot_product_", found.get("attention", {})
    return [f"{count} {name.removeprefix(start)}" for name, count in attention.items() if name.startswith(start)]


def off_table(found: Mapping[str, Any]) -> float | None:
    """By which share the memory table says more than the peak."""
    estimate, peak = found.get("memory_table", {}).get("phases", {}).get("training"), found.get("peak_gib")
    return estimate / peak - 1 if estimate and peak else None


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument(
        "--minutes", type=float, default=60, help="for all of it: no row is started that would take longer"
    )
    top.add_argument("--out", type=Path, default=Path("gpu_rows"), help="folder of rows.jsonl and table.md")
    top.add_argument(
        "--only", action="append", metavar="WORD", help="only the row of this name, or those that have it in theirs"
    )
    top.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal, tiny")
    top.add_argument("--tiny", action="store_true", help="networks of a rehearsal, on a GPU as well")
    top.add_argument("--scratch", type=Path, help="where models and runs are written; default: in memory, if it fits")
    return top


if __name__ == "__main__":
    main()
