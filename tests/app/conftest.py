"""One X server for all window tests, on a free display, and a folder for the window's preferences."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from app.family_declaration import _run_describe, load_declaration
from tests.app.driver import Driver

SCREEN = "1280x800x24"
ONE_AT_A_TIME = threading.Lock()


@pytest.fixture(scope="session")
def display(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The display, for example ":103"; DISPLAY is set to it for this process and its children."""
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed (apt-get install xvfb)")
    read_end, write_end = os.pipe()
    argv = ["Xvfb", "-displayfd", str(write_end), "-screen", "0", SCREEN, "-nolisten", "tcp", "-noreset"]
    server = subprocess.Popen(argv, pass_fds=[write_end], stderr=subprocess.DEVNULL)
    os.close(write_end)
    try:
        with os.fdopen(read_end) as pipe:
            name = f":{pipe.readline().strip()}"
        assert name != ":", "Xvfb did not start"
        previous = {key: os.environ.get(key) for key in ("DISPLAY", "TANDEM_CONFIG_DIR", "XDG_CACHE_HOME")}
        os.environ["DISPLAY"] = name
        os.environ["TANDEM_CONFIG_DIR"] = str(tmp_path_factory.mktemp("preferences"))
        os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
        yield name
        for key, value in previous.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module", autouse=True)
def collect_on_this_thread() -> Iterator[None]:
    """Windows leave garbage collection disabled: collect their remains here, on the main thread."""
    yield
    gc.collect()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def no_run_is_followed_any_more() -> Iterator[None]:
    """A closed window follows no run: its thread would read in the midst of the tests that come after it."""
    yield
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("follow ")]:
        thread.join(60)
        assert not thread.is_alive(), thread.name


@pytest.fixture(scope="module", autouse=True)
def only_what_is_tested(request: pytest.FixtureRequest) -> Iterator[None]:
    """A window starts programs with torch for the Model page, and builds the other sections in quiet moments; all
    tests together would spend an hour on that. The tests of these programs are exempted. The program that describes a
    family is started once for all tests."""
    never = 3_600_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.slices.FIRST_MS", never)
        tested = Path(request.module.__file__ or "").stem
        if tested != "test_curves":
            patch.setattr("app.curves.noise_card.FIRST_MS", never)
            patch.setattr("app.curves.noise_card.PAUSE_MS", never)
        if tested != "test_memory_card":
            patch.setattr("app.curves.memory_card.PAUSE_MS", never)
        patch.setattr("app.family_declaration._run_describe", describe_once)
        yield


def describe_once(name: str) -> str:
    """What a family says, or a user's file as it is now."""
    with ONE_AT_A_TIME:  # whoever asks meanwhile waits for the same answer
        return _described(name, os.stat(name).st_mtime_ns if name.endswith(".py") else 0)


@cache
def _described(name: str, changed: int) -> str:
    return _run_describe(name)


@pytest.fixture
def preferences(display: str) -> Path:
    """The preferences file as after a first start; a test may overwrite it."""
    file = Path(os.environ["TANDEM_CONFIG_DIR"]) / "window.json"
    file.write_text('{"welcomed": true, "mode": "dark"}', encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in family's declaration, loaded once for all tests: its program imports torch, which takes seconds
    unless other test files have imported it here already."""
    folder = tmp_path_factory.mktemp("families")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM_CONFIG_DIR", str(folder))
        if "torch" in sys.modules:
            from modules.families.describe import describe

            patch.setattr("app.family_declaration._run_describe", describe)
        load_declaration("pixel_diffusion")
    return folder / "families.json"


@pytest.fixture
def home(tmp_path: Path, families: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and a preferences folder for one test."""
    (tmp_path / "preferences").mkdir()
    shutil.copy(families, tmp_path / "preferences")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "preferences"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def driver(display: str, home: Path) -> Iterator[Driver]:
    """A fresh window for one test."""
    with Driver.open() as driver:
        yield driver


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory, families: Path) -> Iterator[Path]:
    """Like `home`, for all tests of a module."""
    folder = tmp_path_factory.mktemp("window")
    (folder / "preferences").mkdir()
    shutil.copy(families, folder / "preferences")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM_CONFIG_DIR", str(folder / "preferences"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def shared_driver(display: str, shared_home: Path) -> Iterator[Driver]:
    """One window for all tests of a module: opening one takes most of a second."""
    with Driver.open() as driver:
        yield driver
