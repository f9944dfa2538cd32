"""Writing the report as one HTML file: no script, no network, every text escaped."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from modules import __version__
from modules.files import open_for_writing, replacing
from modules.run.folder.links import refuse_links
from modules.run.folder.run_folder import RunFolder
from modules.run.html_report.contents import read_contents

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger("tandem")


def write_report(folder: RunFolder, file: Path | None = None) -> Path:
    """Write the report of a run to `file`, by default to report.html in its folder; returns where it is.

    Raises OSError if the file cannot be written, ConfigError for a run folder with links.
    """
    refuse_links(folder.path)
    target = folder.report_file if file is None else file
    template = _environment().get_template("report.html.jinja")
    text = template.render(run=read_contents(folder), version=__version__, written=time.strftime("%Y-%m-%d %H:%M"))
    with replacing(target) as partial, os.fdopen(open_for_writing(partial), "wb") as opened:
        opened.write(text.encode())
    return target


def update_report(folder: RunFolder) -> None:
    """Write the report at the end of a run; what is wrong with it is only logged, because the run itself is done."""
    try:
        write_report(folder)
    except Exception as error:  # noqa: BLE001  # a run must not fail at its very end because of its report
        log.warning(f"{folder.report_file} could not be written: {error}")


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 50 ms, which no run needs before its end

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
