"""The preflight of another machine: run there, told here row by row. What it says is read as anybody's text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Final

from pydantic import Field

from modules.config import TrainConfig, dump, override, validate
from modules.files import FileFault, Record, printable
from modules.run.hosts.host import DEFAULT_PYTHON, Host
from modules.run.hosts.ssh_command import HostError
from modules.run.launch.preview import to_arguments
from modules.run.preflight_report.report import Cell, PreflightReport
from modules.run.remote.attendant import NeededThere, is_trusted
from modules.run.remote.link import Echo, Link, LinkLost, connect
from modules.run.remote.machine import why_not_set_up
from modules.run.remote.sending import Hello, config_there

_MOST_CELLS: Final = 2000
_MOST_LINES: Final = 500  # of matrices, all together
_LONGEST: Final = 1000  # characters of a text
_LONGEST_LINE: Final = 2000
_MOST_TOLD: Final = 20_000  # lines and reports


class _Told(Record):
    """That a line or the report follows, that it is still at work, or its exit code."""

    line: bool = False
    report: bool = False
    still: bool = False
    code: Annotated[int, Field(ge=-255, le=255)] = 0


def preflight_there(
    config: TrainConfig | None,
    host: Host,
    arguments: Sequence[str],
    echo: Echo,
    show: Callable[[PreflightReport], object],
) -> int:
    """Run preflight.py there, without a config if that is None, and return its exit code; `show` gets its report
    whenever it has changed, `echo` each line that it prints before the report.

    It ends there with this program or the connection; machines that would join the run are not tested. Raises
    TandemError, also if a run could not be started there; OSError.
    """
    if host.slurm:
        echo(f"{host.name} is a Slurm cluster: this tests its login node, where no run trains, and none of its nodes.")
    if config is not None and config.num_nodes > 1:
        echo(f"Only {host.name} is tested, as for a run on it alone; check says whether others can join.")
        config = validate(override(dump(config), ["num_nodes=1"]), "The settings", ["num_nodes=1"])
    needed = None if config is None else NeededThere(config, host, "", echo)
    if config is None and (why := why_not_set_up(host)):
        raise HostError(why.rstrip("."), f"Set it up: python scripts/remote.py setup {host.name}")
    with connect(host) as link:
        lacks_images = needed is not None and needed.send(link)
        flags: dict[str, object] = {
            "remote_check": "no_data" if lacks_images else "all",
            "trust_code": config is not None and is_trusted(config),
        }
        home = link.ask(Hello, "hello").home
        link.tell(
            "preflight",
            config="" if config is None else config_there(config, host, home, config.run_name),
            arguments=[*arguments, *to_arguments(flags)],
            python=host.python or DEFAULT_PYTHON,
        )
        try:
            return _read(link, echo, show)
        except LinkLost as error:
            raise HostError(f"{error.message}, and the preflight there has ended with it", "Start it again") from None


def _read(link: Link, echo: Echo, show: Callable[[PreflightReport], object]) -> int:
    """Its lines and reports until its exit code."""
    left = _MOST_TOLD
    while left:
        told, data = link.read(_Told)
        if told.report:
            try:
                show(_plain(PreflightReport.parse(data.decode())))
            except (FileFault, UnicodeDecodeError) as fault:
                raise HostError(f"{link.name} answers in a way that Tandem does not understand: {fault}") from None
        elif told.line:
            echo(printable(data.decode(errors="replace").rstrip(), _LONGEST_LINE))
        elif not told.still:
            return told.code
        left -= not told.still
    raise HostError(f"{link.name} says more than a preflight does: over {_MOST_TOLD:,} lines and reports")


def _plain(report: PreflightReport) -> PreflightReport:
    """What may be shown: no escape sequences, nothing endless, and nothing to be run on other machines."""
    cells = tuple(
        Cell(
            printable(cell.check, 100),
            printable(cell.where, 200),
            cell.colour,
            printable(cell.value, _LONGEST),
            printable(cell.advice, _LONGEST),
        )
        for cell in report.cells[:_MOST_CELLS]
    )
    left, matrices = _MOST_LINES, list[tuple[str, tuple[str, ...]]]()
    for title, lines in report.matrices[:_MOST_LINES]:
        matrices.append((printable(title, 200), tuple(printable(line, _LONGEST) for line in lines[:left])))
        left -= min(left, len(lines))
    return replace(
        report,
        title=printable(report.title, 200),
        cells=cells,
        matrices=tuple(matrices),
        waits_for=(),
        needs_token=False,
        joining=(),
    )
