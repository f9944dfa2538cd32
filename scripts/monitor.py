"""Watch a run in the terminal, from any machine that sees its folder: `python scripts/monitor.py runs/NAME`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import prepare_program, program_parser

prepare_program()

from rich.console import Console
from rich.live import Live

from modules.config import ConfigError, TandemError
from modules.run import EventReader, RunFolder
from modules.run.console import warn
from modules.run.exit_codes import FINISHED
from modules.run.view.run_view import RunView
from modules.run.view.terminal import render

_POLL_EVERY_S = 0.5
_CHUNK_BYTES = 256 << 10
EXAMPLES = """examples:
  until the run ends or Ctrl-C, which does not touch the run:
    python scripts/monitor.py runs/cats
  print its current state once, also of a run that has ended:
    python scripts/monitor.py runs/cats --once
"""


def main(arguments: list[str] | None = None) -> int:
    """Show the run; returns an exit code."""
    parser = program_parser(
        "Show the progress, step times and devices of a run. It only reads the run's folder.", EXAMPLES
    )
    parser.add_argument("run", type=Path, help="the folder of the run, such as runs/NAME")
    parser.add_argument(
        "--once", action="store_true", help="print the current state and end, as it does without a terminal"
    )
    options = parser.parse_args(arguments)
    try:
        folder = _open_run(options.run)
    except TandemError as error:
        warn(str(error))
        return error.exit_code
    console = Console(markup=False, emoji=False)  # a host may have any name
    follower = _Follower(folder)
    follower.read()
    if options.once or not console.is_terminal:
        console.print(render(follower.view, folder.path.name, width=console.width))
        return FINISHED
    _follow(follower, folder.path.name, console)
    return FINISHED


class _Follower:
    """Reads what is new; starts over when the events file is replaced by that of another run."""

    def __init__(self, folder: RunFolder) -> None:
        self.view = RunView()
        self._reader = EventReader(folder.events_file, chunk_bytes=_CHUNK_BYTES)
        self._restarts = 0

    def read(self) -> None:
        """Everything that has been written since the last call."""
        while events := self._reader.new():
            if self._reader.restarts != self._restarts:
                self._restarts = self._reader.restarts
                self.view.restart()
            self.view.apply(events)


def _follow(follower: _Follower, name: str, console: Console) -> None:
    try:
        with Live(render(follower.view, name, width=console.width), console=console, auto_refresh=False) as live:
            while follower.view.finished is None:
                time.sleep(_POLL_EVERY_S)
                follower.read()
                live.update(render(follower.view, name, width=console.width), refresh=True)
    except KeyboardInterrupt:
        return


def _open_run(path: Path) -> RunFolder:
    """The folder of an existing run. Raises ConfigError."""
    folder = RunFolder(path.absolute())
    if not folder.config_file.is_file() and not folder.events_file.is_file():
        raise ConfigError(f"{path} is not the folder of a run: it has neither a config nor events.", "Try runs/NAME.")
    return folder


if __name__ == "__main__":
    sys.exit(main())
