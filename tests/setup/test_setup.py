"""scripts/setup.sh in a copy of the checkout: a real .venv and a real pip, but empty lock files."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.install import explain_output

ROOT = Path(__file__).resolve().parents[2]
BASE_PYTHON: str = getattr(sys, "_base_executable", sys.executable)
SETTING_UP = "Setting up Tandem"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="setup.sh is for POSIX shells")


class Checkout:
    """A folder with the set-up's files, and a PATH on which the test chooses `python3`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a folder with spaces"
        self.programs = folder / "programs"
        (self.root / "scripts").mkdir(parents=True)
        self.programs.mkdir()
        for name in ("setup.sh", "install.py"):
            shutil.copy2(ROOT / "scripts" / name, self.root / "scripts" / name)
        self.require("# nothing")
        (self.root / "requirements-dev.lock").write_text("# nothing\n")
        for name in ("sh", "dirname", "cmp"):
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)
        self.program("python3", f'exec "{BASE_PYTHON}" "$@"')

    def require(self, line: str) -> None:
        (self.root / "requirements.lock").write_text(line + "\n")

    def program(self, name: str, script: str) -> None:
        file = self.programs / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start setup.sh as the leader of its own process group."""
        # This machine's own pip settings and virtual environment stay out; there is no network.
        environment = {"PATH": str(self.programs), "HOME": str(self.root), "PIP_NO_INDEX": "1", **variables}
        return subprocess.Popen(
            [self.root / "scripts" / "setup.sh", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=environment,
            encoding="utf-8",
            start_new_session=True,
        )

    def set_up(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@dataclass(frozen=True)
class Repaired:
    """A checkout whose first set-up was killed, and the output of two simultaneous starts after it."""

    checkout: Checkout
    left_by_the_killed: frozenset[str]
    exit_codes: list[int]
    said: list[tuple[str, str]]


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> Repaired:
    checkout = Checkout(tmp_path_factory.mktemp("repaired"))
    venv = checkout.root / ".venv"
    killed = checkout.start()
    # pip is the last thing that a new .venv gets: here it has none yet.
    while not (venv / "bin/python").exists():
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.005)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    left = frozenset(file.name for file in venv.iterdir())
    both = [checkout.start(), checkout.start()]
    said = [process.communicate(timeout=60) for process in both]
    return Repaired(checkout, left, [process.returncode for process in both], said)


@pytest.fixture
def ready(repaired: Repaired) -> Checkout:
    """A checkout that is set up; its tests leave it so."""
    return repaired.checkout


@pytest.fixture
def wrong_lock(ready: Checkout) -> Iterator[Checkout]:
    """A ready checkout whose lock file was changed to ask for a package that there is not."""
    ready.require("tandem-asks-for-what-there-is-not==1.0")
    yield ready
    ready.require("# nothing")
    assert ready.set_up().returncode == 0


def assert_error_message(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("Tandem is not set up: ")
    for part in parts:
        assert part in done.stderr


def test_python_missing(checkout: Checkout) -> None:
    (checkout.programs / "python3").unlink()
    assert_error_message(checkout.set_up(), "3.11, 3.12 or 3.13", "there is no python3", "apt install python3")


def test_python_too_old(checkout: Checkout) -> None:
    checkout.program("python3", "echo Python 3.8.18")
    assert_error_message(checkout.set_up(), "3.11, 3.12 or 3.13", "python3 is Python 3.8.18", "PYTHON=")
    assert not (checkout.root / ".venv").exists()


def test_newer_python_beside_an_old_one(checkout: Checkout) -> None:
    checkout.program("python3", "echo Python 3.8.18")
    checkout.program("python3.11", 'echo "started: $*" >&2; [ "$1" = -V ] && echo Python 3.11.2')
    assert "install.py --dev" in checkout.set_up("--dev").stderr


def test_python_named_by_variable(checkout: Checkout) -> None:
    checkout.program("mine", "echo Python 3.15.0")
    assert_error_message(checkout.set_up(PYTHON="mine"), "mine is Python 3.15.0")
    assert_error_message(checkout.set_up(PYTHON="/no/such/python"), "there is no /no/such/python")


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_python_without_venv(checkout: Checkout, missing: str) -> None:
    # Debian leaves these modules out of python3; here the interpreter is real, and only they are hidden.
    hide = f"import sys, runpy; sys.modules['{missing}'] = None; sys.argv[:] = sys.argv[2:]"
    run = f"{hide}; runpy.run_path(sys.argv[0], run_name='__main__')"
    checkout.program("python3", f'[ "$1" = -V ] && exec "{BASE_PYTHON}" -V\nexec "{BASE_PYTHON}" -c "{run}" "$@"')
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert_error_message(checkout.set_up(), f"Python {version}", "venv module", f"apt install python{version}-venv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_not_writable(checkout: Checkout) -> None:
    checkout.root.chmod(0o555)
    try:
        assert_error_message(checkout.set_up(), "cannot be written", str(checkout.root))
    finally:
        checkout.root.chmod(0o755)


def test_venv_is_a_file(checkout: Checkout) -> None:
    (checkout.root / ".venv").touch()
    assert_error_message(checkout.set_up(), str(checkout.root / ".venv"), "delete")


@pytest.mark.slow
def test_second_start_does_nothing(ready: Checkout) -> None:
    before = {file: file.stat().st_mtime_ns for file in (ready.root / ".venv").rglob("*")}
    # Nothing but the shell and the comparison: no Python is even looked for.
    (ready.programs / "python3").rename(ready.programs / "hidden")
    times_s = []
    for _ in range(5):
        started = time.monotonic()
        done = ready.set_up()
        times_s.append(time.monotonic() - started)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (ready.programs / "hidden").rename(ready.programs / "python3")
    assert before == {file: file.stat().st_mtime_ns for file in (ready.root / ".venv").rglob("*")}
    assert min(times_s) < 0.05


@pytest.mark.slow
def test_project_is_importable_from_anywhere(ready: Checkout) -> None:
    (ready.root / "modules").mkdir(exist_ok=True)
    (ready.root / "modules" / "__init__.py").touch()
    command = [str(ready.root / ".venv/bin/python"), "-c", "import modules; print(modules.__file__)"]
    found = subprocess.run(command, cwd="/", capture_output=True, check=True, encoding="utf-8")
    assert Path(found.stdout.strip()) == ready.root / "modules" / "__init__.py"


@pytest.mark.slow
def test_dev_is_installed_on_top(ready: Checkout) -> None:
    assert SETTING_UP in ready.set_up("--dev").stdout
    assert ready.set_up("--dev").stdout == ""
    assert ready.set_up().stdout == ""


@pytest.mark.slow
def test_an_unknown_package(wrong_lock: Checkout) -> None:
    done = wrong_lock.set_up()
    log = wrong_lock.root / ".venv" / "setup.log"
    assert_error_message(done, "tandem-asks-for-what-there-is-not==1.0", str(log))
    assert "No matching distribution" in log.read_text()
    assert wrong_lock.set_up().returncode == 1, "a start after a failed one must not take it for done"


@pytest.mark.slow
def test_no_network(wrong_lock: Checkout) -> None:
    # A port that nobody listens on, in place of an index that cannot be reached.
    done = wrong_lock.set_up(PIP_NO_INDEX="0", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1")
    assert_error_message(done, "cannot reach the package index", "HTTPS_PROXY", "setup.log")


@pytest.mark.slow
def test_killed_setup_is_repaired(repaired: Repaired) -> None:
    assert "setup-unfinished" in repaired.left_by_the_killed
    assert "installed" not in repaired.left_by_the_killed
    assert repaired.exit_codes == [0, 0], repaired.said
    pip = [str(repaired.checkout.root / ".venv/bin/python"), "-m", "pip", "--version"]
    assert subprocess.run(pip, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_of_two_starts_at_once_one_waits(repaired: Repaired) -> None:
    assert sorted(out.count(SETTING_UP) for out, _ in repaired.said) == [0, 1]
    assert any("waiting" in err for _, err in repaired.said)  # both, if a program of the killed one ended later


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "full"),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/x'",
            "written",
        ),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'ProxyError'\nERROR: no",
            "HTTPS_PROXY",
        ),
        (
            "Collecting a\nERROR: first\nERROR: the result\nnotice: a new pip",
            "pip failed with 'ERROR: the result'",
        ),
        ("", "no output"),
    ],
)
def test_pip_errors_are_explained(words: str, meaning: str) -> None:
    assert meaning in explain_output("pip", words)


def test_python_versions_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    low, high = (int(minor) for minor in re.findall(r"3\.(\d+)", project["requires-python"]))
    minors = list(range(low, high))
    sentence = ", ".join(f"3.{minor}" for minor in minors[:-1]) + f" or 3.{minors[-1]}"
    for name, pattern in (
        ("setup.sh", " | ".join(f"'Python 3.{minor}.'*" for minor in minors)),
        ("setup.ps1", "3\\.(" + "|".join(map(str, minors)) + ")\\."),
    ):
        text = (ROOT / "scripts" / name).read_text()
        assert pattern in text
        assert f"it needs Python {sentence}" in text


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_locks_pin_one_version_of_each_package(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    names = [line.split("==")[0] for line in lines]
    assert names == sorted(set(names))
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+(\.?post[0-9]+)?( ; .+)?", line), line


def test_locks_hold_all_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for lock, asked in (
        ("requirements.lock", project["dependencies"]),
        ("requirements-dev.lock", project["optional-dependencies"]["dev"]),
    ):
        pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text(), flags=re.MULTILINE))
        assert {re.split(r"[<>=]", name)[0].lower() for name in asked} <= pinned
