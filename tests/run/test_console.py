"""Console output."""

from __future__ import annotations

import os
import subprocess
import sys

from modules import ROOT


def test_unencodable_text_is_escaped() -> None:
    code = (
        "from modules.run.console import echo, warn\nfor write in (echo, warn):\n    write('a\\udce9'); write('next')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-c", code]
    heard = subprocess.run(
        command, cwd=ROOT, check=True, timeout=100, env=environment, capture_output=True, encoding="utf-8"
    )
    assert heard.stdout == heard.stderr == "a\\udce9\nnext\n"
