"""What tests of several rooms share: a folder of real pictures that no batch size divides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageDraw

if TYPE_CHECKING:
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
SIZES = ((48, 48), (64, 40), (40, 64), (80, 36))
COLOURS = ("red", "green", "blue", "yellow", "purple")
PICTURES = 41


@pytest.hookimpl(tryfirst=True)  # before xdist itself looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `pytest -n`: what shares expensive fixtures shares a process, and the longest comes first."""
    for item in items:
        group = "pair" if "pair" in getattr(item, "fixturenames", ()) else item.location[0]
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: next((n for n, name in enumerate(LONG) if item.location[0].endswith(name)), len(LONG)))


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
