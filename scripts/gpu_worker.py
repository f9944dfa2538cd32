"""One process of scripts/gpu_check.py: it tries one cell after the other, because starting torch takes seconds.

`python scripts/gpu_worker.py cuda|cpu` reads orders from its standard input, one JSON object a line, and writes
the outcome of each to a file. It ends, with all that it has started, when its standard input does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import psutil

from modules.run.supervise.process_tree import kill_family
from scripts.gpu_check_list import ANSWER, CheckFailed, Order


def main() -> None:
    """Carry out orders, one after the other."""
    parser = argparse.ArgumentParser(description="A process of scripts/gpu_check.py, which gives it its orders.")
    parser.add_argument("device", choices=("cuda", "cpu"))
    device: str = parser.parse_args().device
    for order in orders():
        outcome = outcome_of(order, device)
        if order.answers:
            publish(Path(order.place, ANSWER), outcome)


def outcome_of(order: Order, device: str) -> str:
    """What the function returns, or "FAILED: why"."""
    import torch  # after `orders` has begun to look whether its input ends

    module, _, name = order.function.partition(":")
    try:
        return str(getattr(import_module(module), name)(torch.device(device), Path(order.place), **order.more))
    except CheckFailed as failed:
        return f"FAILED: {failed}"
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it is, the other cells are tried
        traceback.print_exc()
        return f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    finally:
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def publish(file: Path, text: str) -> None:
    """Write a file that others wait for: it appears whole."""
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)


def orders() -> Iterator[Order]:
    """The lines of the standard input, which processes started here do not inherit."""
    lines: SimpleQueue[str] = SimpleQueue()
    source = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def read() -> None:
        for line in source:
            lines.put(line)
        kill_family(psutil.Process())

    threading.Thread(target=read, name="orders", daemon=True).start()
    while True:
        yield Order(**json.loads(lines.get()))


if __name__ == "__main__":
    main()
