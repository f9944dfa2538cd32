"""`python -m modules.families.describe NAME`: a family's option declarations as JSON.

The window runs it as a child process, so that it imports neither torch nor a user's file itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict

from modules.config import TandemError
from modules.config.options import options
from modules.families._by_name import family_class


def main(arguments: Sequence[str]) -> int:
    """Print the declarations; on an unknown family, one sentence and exit code 2."""
    if len(arguments) != 1:
        print("usage: python -m modules.families.describe NAME", file=sys.stderr)
        return 2
    try:
        print(describe(arguments[0]))
    except TandemError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def describe(name: str) -> str:
    """JSON with the family's name, what it says about itself, methods, submodules (as "parts"), size step, whether it
    brings its own data and draws samples, and the declarations of its options."""
    with redirect_stdout(sys.stderr):  # what a user's file prints
        family = family_class(name)
    declarations = [asdict(option) for option in options(family.Options)]
    described = {
        "family": name,
        "about": family.about or family.facts.about,
        "methods": family.methods,
        "parts": family.submodules,
        "size_step": family.size_step,
        "brings_data": family.brings_data,
        "draws_samples": family.draws_samples,
        "options": declarations,
    }
    return json.dumps(described, indent=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
