"""The memory table of a config, computed in a child process, for it needs torch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from app.child_program import start_module
from modules.files import decode_json, printable

TIMEOUT_S: Final = 120
_UNKNOWN: Final = "The memory cannot be computed."
_MOST_CHARS: Final = 400


@dataclass(frozen=True)
class Row:
    """What is kept in `bytes` of one device, or of the host for each process."""

    what: str
    place: Literal["device", "host"]
    phase: Literal["training", "caching"]
    bytes: int
    is_exact: bool


@dataclass(frozen=True)
class MemoryAnswer:
    """`trained` parameters and the memory of one device; no rows if the model is not known before it is loaded."""

    rows: tuple[Row, ...] = ()
    has_activations: bool = False
    trained: int = 0
    problems: tuple[str, ...] = ()
    error: str = ""


class MemoryProgram:
    """Call `ask` off the main thread, one call at a time; `stop` from any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def ask(self, settings: Mapping[str, object], world_size: int) -> MemoryAnswer:
        """The answer for a whole config, after seconds; `stop` makes it one with an error. Raises OSError."""
        process = self._process = start_module("modules.training.memory_table", str(world_size))
        try:
            output, said = process.communicate(json.dumps(settings), TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return MemoryAnswer(error=_UNKNOWN)
        if process.returncode == 0:
            return _parsed(output)
        line = said.strip().partition("\n")[0]
        is_sentence = process.returncode > 0 and line and not line.startswith("Traceback")
        return MemoryAnswer(error=printable(line, _MOST_CHARS) if is_sentence else _UNKNOWN)

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()


def _parsed(output: str) -> MemoryAnswer:
    """Raises nothing: an answer of another form is an error, too."""
    try:
        data = cast("dict[str, object]", decode_json(output))
        rows = cast("list[dict[str, object]]", data["rows"])
        return MemoryAnswer(
            tuple(
                Row(str(row["what"]), _place(row), _phase(row), int(str(row["bytes"])), bool(row["is_exact"]))
                for row in rows
            ),
            bool(data["has_activations"]),
            int(str(data.get("trained", 0))),
            tuple(map(str, cast("list[object]", data["problems"]))),
        )
    except (ValueError, KeyError, TypeError):
        return MemoryAnswer(error=_UNKNOWN)


def _place(row: Mapping[str, object]) -> Literal["device", "host"]:
    return "device" if row["place"] == "device" else "host"


def _phase(row: Mapping[str, object]) -> Literal["training", "caching"]:
    return "training" if row["phase"] == "training" else "caching"
