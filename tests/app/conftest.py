"""One X server for all tests of the window, started on a free display, and a folder for what the window remembers."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.family import describe_family
from tests.app.driving import Driver

SCREEN = "1280x800x24"


@pytest.fixture(scope="session")
def display(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The number of a display such as ":103"; DISPLAY is set to it for this process and those it starts."""
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed (apt-get install xvfb)")
    read_end, write_end = os.pipe()
    argv = ["Xvfb", "-displayfd", str(write_end), "-screen", "0", SCREEN, "-nolisten", "tcp", "-noreset"]
    server = subprocess.Popen(argv, pass_fds=[write_end], stderr=subprocess.DEVNULL)
    os.close(write_end)
    try:
        with os.fdopen(read_end) as told:
            name = f":{told.readline().strip()}"
        assert name != ":", "Xvfb did not start"
        former = {key: os.environ.get(key) for key in ("DISPLAY", "TANDEM_CONFIG_DIR", "XDG_CACHE_HOME")}
        os.environ["DISPLAY"] = name
        os.environ["TANDEM_CONFIG_DIR"] = str(tmp_path_factory.mktemp("preferences"))
        os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
        yield name
        for key, value in former.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module", autouse=True)
def garbage_on_this_thread() -> Iterator[None]:
    """Windows leave Python's search for garbage off: what is left of them is cleared away here, by no other thread."""
    yield
    gc.collect()
    gc.enable()


@pytest.fixture
def preferences(display: str) -> Path:
    """The file in which the window remembers things, as after a first start; a test may write another one."""
    file = Path(os.environ["TANDEM_CONFIG_DIR"]) / "window.json"
    file.write_text('{"welcomed": true, "mode": "dark"}', encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the built-in family says about its options: asking it imports torch, so it is asked once for all tests."""
    folder = tmp_path_factory.mktemp("families")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM_CONFIG_DIR", str(folder))
        describe_family("pixel_diffusion")
    return folder / "families.json"


@pytest.fixture
def home(tmp_path: Path, families: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a folder for what the window remembers, that belong to one test."""
    (tmp_path / "habits").mkdir()
    shutil.copy(families, tmp_path / "habits")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "habits"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def driver(display: str, home: Path) -> Iterator[Driver]:
    """A fresh window for one test."""
    with Driver.open() as driver:
        yield driver


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory, families: Path) -> Iterator[Path]:
    """As `home`, for all tests of a module."""
    folder = tmp_path_factory.mktemp("window")
    (folder / "habits").mkdir()
    shutil.copy(families, folder / "habits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM_CONFIG_DIR", str(folder / "habits"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def shared_driver(display: str, shared_home: Path) -> Iterator[Driver]:
    """One window for all tests of a module: opening one takes most of a second."""
    with Driver.open() as driver:
        yield driver
