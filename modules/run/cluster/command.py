"""Runs the command with which a cluster takes a job, with advice if it is missing or refuses."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from modules.config import TandemError


class SubmitError(TandemError):
    """The command is missing or has refused the job."""

    exit_code = 2
    kind = "config"


def run_command(
    command: Sequence[str],
    environ: Mapping[str, str],
    advice: Sequence[tuple[str, str]],
    *,
    missing: str,
    otherwise: str,
    text: str | None = None,
) -> str:
    """The output of `command`, which gets `text` as its standard input; if it prints none, what it says on standard
    error.

    Raises SubmitError with its message and the advice of the first pattern found in it, else `otherwise`; without such
    a command, `missing` is the advice.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(environ), input=text)
    except FileNotFoundError:
        raise SubmitError(f"there is no command {command[0]} on this computer", missing) from None
    except OSError as error:
        raise SubmitError(f"the command {command[0]} cannot be run: {error.strerror}", missing) from error
    if done.returncode == 0:
        return done.stdout or done.stderr
    lines = [re.sub(rf"^({command[0]}: )?(error|fatal): ", "", line) for line in done.stderr.splitlines()]
    said = "; ".join(line for line in lines if line.strip())
    raise SubmitError(
        f"{command[0]} rejected the job: {said or f'exit code {done.returncode}'}",
        next((each for pattern, each in advice if re.search(pattern, said.lower())), otherwise),
    )
