"""Runs cases in a process of its own: `python -m tests.torture.worker SEED FOLDER KIND:FIRST:LAST ...`.

Writes one JSON line before each case and one after it, so that whoever watches it knows which case hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random

from modules.config.errors import TandemError
from modules.files import printable
from tests.torture.kind import Kind, Places
from tests.torture.kinds import load_kind
from tests.torture.sandbox import MEMORY_LIMIT, Sandbox, forget_peak, limit_memory, peak

_LONGEST_SENTENCE = 25_000  # characters; a TandemError is cut at 20,000, and has an advice besides


def main(seed: str, folder: str, *plan: str) -> None:
    """Run the cases of `plan` in order."""
    write = _private_stdout()
    places = Places(*(Path(folder, name) for name in ("seeds", "outside", "case")))
    _prepare(places)
    sandbox = Sandbox(places.case, places.outside)
    kinds: dict[str, Kind] = {}
    for entry in plan:
        name, first, last = entry.split(":")
        if name not in kinds:
            write({"loading": name})
            shutil.rmtree(places.seeds / name, ignore_errors=True)
            kinds[name] = load_kind(name)(Places(places.seeds / name, places.outside, places.case))
            limit_memory()
        for number in range(int(first), int(last) + 1):
            draw = Random(f"{seed}:{name}:{number}")
            _empty(places.case)
            kinds[name].make(draw)
            write({"kind": name, "number": number})
            write({"kind": name, "number": number, **_run(kinds[name], sandbox)})
    write({"done": True})


def _run(kind: Kind, sandbox: Sandbox) -> dict[str, object]:
    """The result of one case."""
    unhandled: list[str] = []
    threading.excepthook = lambda args: unhandled.append(_described(args.exc_value or args.exc_type()))
    before, started = forget_peak(), time.monotonic()
    result, detail = "accepted", ""
    with sandbox.watched():
        try:
            detail = kind.read()
            result = "refused" if detail else "accepted"
        except TandemError as error:
            result, detail = "refused", str(error)
        except BaseException as error:  # noqa: BLE001  # that is what is looked for
            result, detail = "crash", _described(error)
    seconds, memory = time.monotonic() - started, peak() - before
    faults = [
        *(f"in a thread: {each}" for each in unhandled),
        *(f"outside of its folder: {each}" for each in sandbox.escapes),
        *([f"{memory >> 20} MiB of memory"] if memory > MEMORY_LIMIT else []),
        *([f"no sentence: {ascii(detail)[:300]}"] if result == "refused" and not _is_sentence(detail) else []),
    ]
    if faults and result != "crash":
        result, detail = "crash", "; ".join(faults)
    return {"result": result, "detail": detail[-3000:], "seconds": round(seconds, 3), "mib": memory >> 20}


def _is_sentence(text: str) -> bool:
    return "Traceback (" not in text and len(text) < _LONGEST_SENTENCE and text == printable(text, 1 << 20, lines=True)


def _described(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return printable("".join(lines)[-2500:], 2500, lines=True)


def _prepare(places: Places) -> None:
    """The folders, and an environment in which nothing of this user is found."""
    for folder in (places.seeds, places.case, places.outside):
        folder.mkdir(parents=True, exist_ok=True)
    (places.outside / "canary.txt").write_text("a file of somebody else\n")
    (places.outside / "folder").mkdir(exist_ok=True)
    (places.outside / "folder" / "kept.txt").write_text("kept\n")
    os.environ |= {"HOME": str(places.outside), "TANDEM_CONFIG_DIR": str(places.outside), "HF_HUB_OFFLINE": "1"}
    os.environ |= {
        "XDG_CACHE_HOME": str(places.outside),
        "HF_HOME": str(places.outside / "hub"),
        "OMP_NUM_THREADS": "1",
    }
    warnings.simplefilter("ignore")
    os.chdir(places.outside)


def _private_stdout() -> Callable[[dict[str, object]], None]:
    """A function that writes lines for the watching process; what libraries print goes elsewhere."""
    lines = os.fdopen(os.dup(1), "w", encoding="ascii")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 0)

    def write(record: dict[str, object]) -> None:
        lines.write(f"{json.dumps(record)}\n")
        lines.flush()

    return write


def _empty(folder: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _make_writable(entry.path)
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _make_writable(folder: str) -> None:
    for directory, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(directory, stat.S_IRWXU)


if __name__ == "__main__":
    main(*sys.argv[1:])
