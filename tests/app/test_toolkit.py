"""The window's toolkit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.runs import ROOT, environment


def test_a_second_window_leaves_the_fonts_of_the_first_alone(tmp_path: Path) -> None:
    """A window that is open has them mapped; truncating them would end it with SIGBUS."""
    folder = tmp_path / ".fonts"

    def open_window() -> dict[str, tuple[int, int, int]]:
        argv = [sys.executable, "-c", "import app.toolkit"]
        subprocess.run(argv, check=True, env=environment(HOME=str(tmp_path)), cwd=ROOT)
        stats = {file.name: file.stat() for file in folder.iterdir()}
        return {name: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}

    first = open_window()
    assert len(first) == 3
    assert open_window() == first
    (folder / "Roboto-Medium.ttf").write_bytes(b"damaged")
    assert open_window()["Roboto-Medium.ttf"][2] == first["Roboto-Medium.ttf"][2]
