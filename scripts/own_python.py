"""Says in one sentence that a program here was started with a Python that lacks Tandem's packages."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def require_packages() -> None:
    """End this program where the packages are missing; called before the imports that need them."""
    if find_spec("pydantic") is not None and find_spec("torch") is not None:
        return
    python, setup = (".venv/bin/python", "./scripts/setup.sh")
    if sys.platform == "win32":
        python, setup = (".venv\\Scripts\\python", "scripts\\setup.bat")
    print(f"Run this with Tandem's Python: {python} {sys.argv[0]} ..., after {setup}.", file=sys.stderr)
    sys.exit(2)
