"""Create .venv with the packages of the lock files; setup.sh and setup.ps1 find a suitable Python to run this.

Imports only the standard library: there is no environment yet.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
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
# Exists while a .venv is being created: a start that finds it starts from scratch.
UNFINISHED = VENV / "setup-unfinished"
# A copy of every installed lock file, in a folder named after the Python version. If it equals the lock file,
# setup.sh and setup.ps1 do not even run this program.
INSTALLED = VENV / "installed"

# Settings of pip by which it may find a CUDA build of PyTorch; the default index has only CPU builds for Windows.
PIP_INDEXES = ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE")
CPU_ONLY = "TANDEM_CPU_ONLY"

# Explanations of pip's error messages, the most reliable first.
PIP_ERRORS: dict[tuple[str, ...], str] = {
    ("No space left on device", "[Errno 28]", "Disk quota exceeded"): (
        f"the disk of {ROOT} or of the temporary folder (TMPDIR) is full; free some space and start again"
    ),
    ("Permission denied", "[Errno 13]"): f"{VENV} cannot be written; fix its permissions and start again",
    ("Retrying (", "NewConnectionError", "NameResolutionError", "ConnectTimeout", "ProxyError"): (
        "pip cannot reach the package index; connect to the network (behind a proxy: set HTTPS_PROXY; "
        "for a mirror: PIP_INDEX_URL) and start again"
    ),
}


class SetupError(Exception):
    """What went wrong and how to fix it, in one sentence."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if .venv matches the lock files, 1 if not, 130 if interrupted."""
    parser = argparse.ArgumentParser(description="Set up Tandem's Python environment in .venv.")
    parser.add_argument("--dev", action="store_true", help="also install the packages of the checks and tests")
    names = ["requirements.lock"] + ["requirements-dev.lock"] * parser.parse_args(arguments).dev
    try:
        with exclusive_lock():
            set_up([ROOT / name for name in names])
    except SetupError as error:
        print(f"Tandem is not set up: {error}.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"Tandem is not set up: {explain_os(error)}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Set-up was interrupted; the next start repeats it.", file=sys.stderr)
        return 130
    return 0


@contextlib.contextmanager
def exclusive_lock() -> Iterator[None]:
    """Wait until no other process is setting up; the system releases the lock of a killed one."""
    with open(ROOT / ".venv.lock", "w") as file:
        os.set_inheritable(file.fileno(), True)  # a pip that outlives its killed parent keeps the lock
        if not _lock(file.fileno()):
            print("Another start is setting up .venv; waiting for it.", file=sys.stderr, flush=True)
            while not _lock(file.fileno()):
                time.sleep(0.2)
        yield


def set_up(locks: list[Path]) -> None:
    """Create .venv if there is no complete one, and install what is missing. Raises SetupError, OSError."""
    complete = _is_complete()
    if complete and all(_is_installed(lock) for lock in locks):
        return
    if not any(map(os.environ.get, PIP_INDEXES)) and (advice := cuda_build_advice()):
        raise SetupError(advice)
    started = time.monotonic()
    print("Setting up Tandem in .venv; the first time this downloads large packages.", flush=True)
    if not complete:
        _create()
    UNFINISHED.touch()
    shutil.rmtree(INSTALLED, ignore_errors=True)
    _install(locks)
    if not _torch_has_cuda() and (advice := cuda_build_advice()):
        raise SetupError(f"pip found no CUDA build of PyTorch in the indexes it was given: {advice}")
    _add_project_to_path()
    for lock in locks:
        _stamp(lock).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(lock, _stamp(lock))
    UNFINISHED.unlink(missing_ok=True)
    if subprocess.run([PYTHON, "-I", "-c", "import tkinter"], capture_output=True, check=False).returncode:
        print(
            "This Python has no tkinter: training works without it, but the window needs it "
            "(Debian, Ubuntu: apt install python3-tk)."
        )
    print(f"Set up in {time.monotonic() - started:.0f} s.", flush=True)


def cuda_build_advice() -> str:
    """How to get a CUDA build of PyTorch on Windows with an NVIDIA GPU; empty elsewhere, or for the CPU."""
    if sys.platform != "win32" or os.environ.get(CPU_ONLY):
        return ""
    try:
        found = subprocess.run(["nvidia-smi"], capture_output=True, encoding="utf-8", errors="replace", check=False)
    except OSError:
        return ""
    driver = re.search(r"Driver Version: *([\d.]+)", found.stdout)
    cuda = re.search(r"CUDA Version: *([\d.]+)", found.stdout)
    if found.returncode != 0 or driver is None:
        return ""
    newest = f"CUDA {cuda[1]} or the next older one" if cuda else "a CUDA version"
    return (
        f"this machine has an NVIDIA GPU (driver {driver[1]}), but pip's default index has only CPU builds of PyTorch "
        f"for Windows; on pytorch.org, under Get Started, choose Windows, Pip and {newest}, set the variable "
        "PIP_EXTRA_INDEX_URL to the address after --index-url there, and start again (to train on the CPU: set "
        f"{CPU_ONLY}=1)"
    )


def explain_os(error: OSError) -> str:
    """One sentence about a file that could not be written."""
    path = error.filename or ROOT
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {path} is full; free some space and start again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{path} cannot be written; fix its permissions, or copy Tandem to a folder of your own"
    return f"{path}: {error.strerror or error}; fix that, or delete {VENV}, and start again"


def explain_output(program: str, output: str) -> str:
    """One sentence about the output of a failed program."""
    for patterns, meaning in PIP_ERRORS.items():
        if any(pattern in output for pattern in patterns):
            return meaning
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    # The last line is the result; the ones before lead to it.
    last_line = (errors or output.splitlines() or ["no output"])[-1].strip()
    return f"{program} failed with '{last_line}'"


def _lock(handle: int) -> bool:
    """Try to take the lock; False if another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Otherwise a network file system without locks: two simultaneous first starts are too rare to refuse it.
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _stamp(lock: Path) -> Path:
    return INSTALLED / f"Python {sys.version.split()[0]}" / lock.name  # as python -V prints it


def _is_installed(lock: Path) -> bool:
    return _stamp(lock).is_file() and _stamp(lock).read_bytes() == lock.read_bytes()


def _is_complete() -> bool:
    """Whether .venv was completed and its Python runs, has this one's version and has pip."""
    if UNFINISHED.exists() or not PYTHON.exists():
        return False
    # If the system's python3 was upgraded, .venv still runs, but its packages are those of another version.
    code = "import sys, importlib.util as util; print(util.find_spec('pip') is not None, sys.version)"
    found = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, encoding="utf-8", check=False)
    return found.stdout.strip() == f"True {sys.version}"


def _create() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        raise SetupError(
            f"Python {version} ({sys.executable}) has no venv module; "
            f"install it (Debian, Ubuntu: apt install python{version}-venv) and start again"
        )
    # This may be the broken Python of .venv itself; its base is not.
    base: str = getattr(sys, "_base_executable", sys.executable)
    if VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    UNFINISHED.touch()
    status, output = _run_logged([base, "-I", "-m", "venv", str(VENV)])
    if status != 0:
        raise SetupError(f"{explain_output('python -m venv', output)}; the full output is in {LOG}")


def _install(locks: list[Path]) -> None:
    command = [str(PYTHON), "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-compile"]
    for lock in locks:
        command += ["-r", str(lock)]
    status, output = _run_logged(command)
    if status < 0:
        raise SetupError(f"pip was killed by signal {-status}; start again")
    if status != 0:
        # pip has rolled back what it could not finish: the next start may continue from here.
        UNFINISHED.unlink(missing_ok=True)
        raise SetupError(f"{explain_output('pip', output)}; the full output is in {LOG}")
    # on all cores, where pip would use one; a file that does not compile is no module
    compiling = [str(PYTHON), "-I", "-m", "compileall", "-q", "-j", "0", str(_packages())]
    subprocess.run(compiling, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _packages() -> Path:
    """The folder of .venv's packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([PYTHON, "-I", "-c", code], check=True, capture_output=True, encoding="utf-8")
    return Path(found.stdout.strip())


def _torch_has_cuda() -> bool:
    """Whether .venv's torch, if the locks ask for it, is built for CUDA."""
    for file in VENV.glob("[Ll]ib/**/site-packages/torch/version.py"):
        return re.search(r"^cuda\b.*= *['\"]", file.read_text(encoding="utf-8"), re.MULTILINE) is not None
    return True


def _run_logged(command: list[str]) -> tuple[int, str]:
    """Run with the output in LOG and, on a terminal, its last line on screen; (exit status, output)."""
    # English messages for explain_output; and a user's PIP_USER would make pip refuse to install here.
    environment = os.environ | {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", "PIP_USER": "0"}
    on_terminal, output = sys.stdout.isatty(), ""
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
            output += line
            log.write(line)
            log.flush()
            if on_terminal:
                _show(line.strip())
    if on_terminal:
        _show("")
    return process.returncode, output


def _show(line: str) -> None:
    """Overwrite the last line of the terminal."""
    sys.stdout.write("\r\033[K" + line[: shutil.get_terminal_size().columns - 1])
    sys.stdout.flush()


def _add_project_to_path() -> None:
    """Let .venv's Python import `modules` from any folder; the path is relative, so the project can be moved."""
    packages = _packages()
    (packages / "tandem.pth").write_text(os.path.relpath(ROOT, packages) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
