"""What tests of several rooms share: a folder of real pictures that no batch size divides."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageDraw
from xdist.scheduler import LoadFileScheduling

from modules.run.group_place import Place

if TYPE_CHECKING:
    from xdist.remote import Producer

    from tests.runs import Run

# Under xdist these files are begun first, because they take longest; a file's tests stay together.
LONG = (
    "end_to_end/test_demo_command.py",
    "end_to_end/test_fault_suite.py",
    "end_to_end/test_two_hosts.py",
    "training/test_fully_sharded.py",
    "training/test_parity.py",
    "end_to_end/test_slurm.py",
)
# These look at the runs of one pair of processes (the fixture `pair`).
PAIR = (
    "distributed/test_wrapping.py",
    "monitoring/test_ranks_of_a_pair.py",
    "training/test_faults.py",
    "training/test_generic_trainer.py",
    "training/test_parity.py",
    "training/test_resume.py",
    "training/test_shared_sampling.py",
)
SIZES = ((48, 48), (64, 40), (40, 64), (80, 36))
COLOURS = ("red", "green", "blue", "yellow", "purple")
PICTURES = 41


def pytest_configure() -> None:
    """What a shell script starts in the background ignores Ctrl-C, and so would all that the tests start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: next((n for n, name in enumerate(LONG) if item.location[0].endswith(name)), len(LONG)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """For `pytest -n`: a file's tests stay together, and so do the files that look at the runs of the pair."""
    return _Together(config, log)


class _Together(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return "pair" if file.endswith(PAIR) else file


@pytest.fixture(autouse=True)
def no_place_in_a_group() -> Iterator[None]:
    """A test that joins a group in this process leaves its place in the environment; the next would take it over."""
    yield
    for name in Place(0, 0, 1, "", 0).environment():
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """41 captioned pictures in four shapes: 41 is a prime, so every batch size leaves a rest."""
    return draw_pictures(tmp_path_factory.mktemp("pictures"), PICTURES)


def draw_pictures(folder: Path, count: int) -> Path:
    """Discs and squares with a caption file each."""
    for number in range(count):
        # the shapes come unevenly, so that the buckets have different rests
        width, height = SIZES[number % 7 % len(SIZES)]
        colour = COLOURS[number % len(COLOURS)]
        picture = Image.new("RGB", (width, height), (number * 5 % 256, 40, 90))
        box = (width // 4, height // 4, width * 3 // 4, height * 3 // 4)
        pen = ImageDraw.Draw(picture)
        shape, draw = ("disc", pen.ellipse) if number % 2 else ("square", pen.rectangle)
        draw(box, fill=colour)
        picture.save(folder / f"{number:02d}.png")
        (folder / f"{number:02d}.txt").write_text(f"a {colour} {shape}, number {number}")
    return folder


@pytest.fixture(scope="session")
def pair_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of the pair lie."""
    return tmp_path_factory.mktemp("pair")


@pytest.fixture(scope="session")
def pair(pictures: Path, pair_place: Path) -> dict[str, Run]:
    """The runs of tests/pair_jobs.py, by name."""
    from tests.pair_jobs import run_all  # only where they are wanted: torch takes seconds to import

    return run_all(pictures, pair_place)
