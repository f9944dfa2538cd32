"""Make .venv hold what the lock files say; setup.sh and setup.ps1 find a suitable Python to start this with.

Imports only what comes with Python: while this runs there is no environment yet.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
LOG = VENV / "setup.log"
# There from the first file of a new .venv to its last package: whoever finds it begins again from nothing.
UNFINISHED = VENV / "setup-unfinished"
# A copy of every lock file that is installed, under the version of Python that it is installed for;
# setup.sh and setup.ps1 compare it with the lock file and, when it is the same, do not even start this.
INSTALLED = VENV / "installed"

# What pip's own words mean for a person, the surest sign first.
PIP_TROUBLES: dict[tuple[str, ...], str] = {
    ("No space left on device", "[Errno 28]", "Disk quota exceeded"): (
        f"the disk of {ROOT} or of the temporary folder (TMPDIR) is full; free some space and start again"
    ),
    ("Permission denied", "[Errno 13]"): f"{VENV} cannot be written; give yourself the right and start again",
    ("Retrying (", "NewConnectionError", "NameResolutionError", "ConnectTimeout", "ProxyError"): (
        "pip cannot reach the package index; connect to the network (behind a proxy: set HTTPS_PROXY; "
        "for a mirror: PIP_INDEX_URL) and start again"
    ),
}


class SetupError(Exception):
    """What went wrong and what to do about it, in one sentence for the user."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when .venv is as the lock files say, 1 when it is not, 130 when interrupted."""
    parser = argparse.ArgumentParser(description="Set up Tandem's Python environment in .venv.")
    parser.add_argument("--dev", action="store_true", help="with the packages of the checks and tests")
    names = ["requirements.lock"] + ["requirements-dev.lock"] * parser.parse_args(arguments).dev
    try:
        with only_one_at_a_time():
            set_up([ROOT / name for name in names])
    except SetupError as error:
        print(f"Tandem is not set up: {error}.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"Tandem is not set up: {explain_os(error)}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Setting up was interrupted; the next start begins again.", file=sys.stderr)
        return 130
    return 0


@contextlib.contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Wait until no other start is setting up; the system frees the lock of one that was killed."""
    with open(ROOT / ".venv.lock", "w") as file:
        os.set_inheritable(file.fileno(), True)  # a pip that outlives its killed start still counts as one
        if not _lock(file.fileno()):
            print("Another start is setting up .venv; waiting for it.", file=sys.stderr, flush=True)
            while not _lock(file.fileno()):
                time.sleep(0.2)
        yield


def set_up(locks: list[Path]) -> None:
    """Create .venv where there is no whole one and install what is missing. Raises SetupError, OSError."""
    whole = _is_whole()
    if whole and all(_is_installed(lock) for lock in locks):
        return
    started = time.monotonic()
    print("Setting up Tandem in .venv; the first time this downloads large packages.", flush=True)
    if not whole:
        _create()
    UNFINISHED.touch()
    shutil.rmtree(INSTALLED, ignore_errors=True)
    _install(locks)
    _put_project_on_path()
    for lock in locks:
        _stamp(lock).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(lock, _stamp(lock))
    UNFINISHED.unlink(missing_ok=True)
    if subprocess.run([PYTHON, "-I", "-c", "import tkinter"], capture_output=True, check=False).returncode:
        print(
            "This Python has no tkinter: training works without it, the window will need it "
            "(Debian, Ubuntu: apt install python3-tk)."
        )
    print(f"Set up in {time.monotonic() - started:.0f} s.", flush=True)


def explain_os(error: OSError) -> str:
    """One sentence for a file that could not be written while setting up."""
    place = error.filename or ROOT
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {place} is full; free some space and start again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{place} cannot be written; give yourself the right, or copy Tandem to a folder of your own"
    return f"{place}: {error.strerror}; mend that, or delete {VENV}, and start again"


def explain_output(program: str, output: str) -> str:
    """One sentence for what `program` said when it failed."""
    for signs, meaning in PIP_TROUBLES.items():
        if any(sign in output for sign in signs):
            return meaning
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    # The last one is the result, those before it are the way there.
    last_word = (errors or output.splitlines() or ["no word"])[-1].strip()
    return f"{program} ended with '{last_word}'"


def _lock(handle: int) -> bool:
    """Try to take the lock; False while another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Otherwise a network file system without locks: two first starts at once are too rare to refuse it.
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _stamp(lock: Path) -> Path:
    return INSTALLED / f"Python {sys.version.split()[0]}" / lock.name  # as python -V writes it


def _is_installed(lock: Path) -> bool:
    return _stamp(lock).is_file() and _stamp(lock).read_bytes() == lock.read_bytes()


def _is_whole() -> bool:
    """Whether .venv was not left in the middle and its Python runs, is of this one's version and has pip."""
    if UNFINISHED.exists() or not PYTHON.exists():
        return False
    # Where the system's python3 has become a newer one, .venv still runs, but with an empty library.
    code = "import sys, importlib.util as util; print(util.find_spec('pip') is not None, sys.version)"
    found = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, encoding="utf-8", check=False)
    return found.stdout.strip() == f"True {sys.version}"


def _create() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        raise SetupError(
            f"Python {version} ({sys.executable}) comes without its venv module; "
            f"install it (Debian, Ubuntu: apt install python{version}-venv) and start again"
        )
    # This may be .venv's own, broken Python; what it was made from is not.
    base: str = getattr(sys, "_base_executable", sys.executable)
    if VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    UNFINISHED.touch()
    status, output = _run_logged([base, "-I", "-m", "venv", str(VENV)])
    if status != 0:
        raise SetupError(f"{explain_output('python -m venv', output)}; all its words are in {LOG}")


def _install(locks: list[Path]) -> None:
    command = [str(PYTHON), "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    for lock in locks:
        command += ["-r", str(lock)]
    status, output = _run_logged(command)
    if status < 0:
        raise SetupError(f"pip was killed by signal {-status}; start again")
    if status != 0:
        # pip has taken back what it could not finish: the next start may go on from here.
        UNFINISHED.unlink(missing_ok=True)
        raise SetupError(f"{explain_output('pip', output)}; all of pip's words are in {LOG}")


def _run_logged(command: list[str]) -> tuple[int, str]:
    """Run with the output in LOG and, on a terminal, its newest line on screen; (exit status, output)."""
    # English words for explain_output; and a user's PIP_USER would make pip refuse to install here.
    environment = os.environ | {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", "PIP_USER": "0"}
    on_terminal, said = sys.stdout.isatty(), ""
    with (
        open(LOG, "w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            close_fds=False,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None  # for the type checker: it is a pipe
        for line in process.stdout:
            said += line
            log.write(line)
            log.flush()
            if on_terminal:
                _show(line.strip())
    if on_terminal:
        _show("")
    return process.returncode, said


def _show(line: str) -> None:
    """Replace the terminal's last line."""
    sys.stdout.write("\r\033[K" + line[: shutil.get_terminal_size().columns - 1])
    sys.stdout.flush()


def _put_project_on_path() -> None:
    """Let .venv's Python import `modules` from any folder; relative, so that the project can be moved."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([PYTHON, "-I", "-c", code], check=True, capture_output=True, encoding="utf-8")
    packages = Path(found.stdout.strip())
    (packages / "tandem.pth").write_text(os.path.relpath(ROOT, packages) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
