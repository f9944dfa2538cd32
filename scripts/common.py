"""Shared by the programs in scripts/: the check of their Python, `--version`, and generated pages of the docs."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec


def require_packages() -> None:
    """Exit with a hint if the packages are missing; called before the imports that need them."""
    if find_spec("pydantic") is not None and find_spec("torch") is not None:
        return
    python, setup = (".venv/bin/python", "./scripts/setup.sh")
    if sys.platform == "win32":
        python, setup = (".venv\\Scripts\\python", "scripts\\setup.bat")
    print(f"Run this with Tandem's Python: {python} {sys.argv[0]} ..., after {setup}.", file=sys.stderr)
    sys.exit(2)


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add `--version`."""
    from modules import __version__

    parser.add_argument("--version", action="version", version=f"Tandem {__version__}")


def write_page(name: str, text: str, description: str | None) -> int:
    """Write the page docs/NAME; with --check on the command line only return 1 if it is out of date."""
    from modules import ROOT

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    page = ROOT / "docs" / name
    if not parser.parse_args().check:
        page.write_text(text, encoding="utf-8", newline="\n")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        print(f"{name} is out of date; run python {sys.argv[0]}", file=sys.stderr)
        return 1
    return 0
