"""Shared by the tests of several packages: which tests run where and when, and a folder of real images."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageDraw
from xdist.scheduler import LoadFileScheduling

from modules.config import trusted_code
from tests.environment import LAUNCHER_VARIABLES, scrub
from tests.leftovers import watch_for_the_end

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

    from tests.runs import Run

gc.disable()  # until all tests are collected, see pytest_collection_finish
scrub(os.environ)  # before anything is imported that reads them, such as torch and the hub's library
VISIBLE_GPUS = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
os.environ[trusted_code.VARIABLE] = "any"  # the family files of the tests; inherited by every process
FAST_TESTS = 2  # of each file, with --fast
NOT_FAST = {"slow", "end_to_end"}
SIZES = ((48, 48), (64, 40), (40, 64), (80, 36))
COLOURS = ("red", "green", "blue", "yellow", "purple")
IMAGES = 41
WATCHER = pytest.StashKey[object]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fast` is what ./scripts/test.sh --fast passes on."""
    parser.addoption("--fast", action="store_true", help=f"no slow tests, and {FAST_TESTS} of each file")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before xdist starts its workers, which inherit the mark."""
    session.stash[WATCHER] = watch_for_the_end(os.environ)


def pytest_configure() -> None:
    """A shell script makes its background commands ignore SIGINT and SIGQUIT, nohup makes its command ignore SIGHUP;
    everything the tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGQUIT"):  # which Windows lacks
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `long` first, so that no xdist worker is left alone with one of them at the end."""
    if config.getoption("--fast"):
        items[:] = fast_choice(items)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def fast_choice(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Of each file's quick tests, the first FAST_TESTS; the first case of each test comes before the second of any."""
    cases: Counter[str] = Counter()
    quick: defaultdict[str, list[tuple[int, int, pytest.Item]]] = defaultdict(list)
    for number, item in enumerate(items):
        if not NOT_FAST & {mark.name for mark in item.iter_markers()}:
            test = item.nodeid.partition("[")[0]
            quick[file_of(item.nodeid)].append((cases[test], number, item))
            cases[test] += 1
    chosen = [(number, item) for tests in quick.values() for _, number, item in sorted(tests)[:FAST_TESTS]]
    return [item for _, item in sorted(chosen)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --fast, a file of which nothing would run is not imported."""
    return (config.getoption("--fast") and is_not_fast(collection_path)) or None


def pytest_collection_finish() -> None:
    """What was imported stays: full collections, of which some tests make many, leave its million objects out."""
    gc.collect()
    gc.freeze()
    gc.enable()


def file_of(nodeid: str) -> str:
    """The file in a test's id."""
    return nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """For `pytest -n 3 --dist loadgroup`."""
    return FilesAndGroups(config, log)


class FilesAndGroups(LoadFileScheduling):
    """The tests of a file run in one worker, and so do the files of an `xdist_group`."""

    def _split_scope(self, nodeid: str) -> str:
        file = file_of(nodeid)
        return group_of(self.config.rootpath / file) or file

    def _reschedule(self, node: WorkerController) -> None:
        """Of two workers started anew, the second has perhaps not collected yet when the first one has."""
        if node in self.registered_collections:
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """The test that crashed its worker fails and is not tried again; xdist would wait for ever."""
        workload = self.assigned_work[node]
        crashed = next((test for tests in workload.values() for test, done in tests.items() if not done), None)
        for group, tests in list(workload.items()):
            tests.update({crashed: True} if crashed in tests else {})
            if all(tests.values()):
                del workload[group]  # sent to another worker, it would never be reported as done
        super().remove_node(node)
        return crashed


def is_not_fast(path: Path) -> bool:
    """Whether a file's `pytestmark` holds one of NOT_FAST."""
    if not (path.name.startswith("test_") and path.suffix == ".py"):
        return False
    marks = re.search(r"^pytestmark = (\[\n.*?^\]|[^\n]*)", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return bool(marks and NOT_FAST & set(re.findall(r"\bpytest\.mark\.(\w+)", marks[1])))


@cache
def group_of(file: Path) -> str | None:
    """The `xdist_group` that a test file names; xdist 3.8 appends it to the tests' ids, which pytest 9.2 ignores."""
    named = re.search(r'\bxdist_group\("(\w+)"\)', file.read_text(encoding="utf-8"))
    return named[1] if named else None


@pytest.fixture(autouse=True)
def no_rank_env() -> Iterator[None]:
    """A test that joins a group in this process leaves its rank, and the network interface, in the environment, and
    one that trains with `device: cpu` hides the GPUs there; the next one would use them."""
    yield
    for name in (*LAUNCHER_VARIABLES, "CUDA_VISIBLE_DEVICES"):
        os.environ.pop(name, None)
    os.environ.update(VISIBLE_GPUS)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """41 captioned images of four aspect ratios: 41 is a prime, so every batch size leaves a remainder."""
    return draw_images(tmp_path_factory.mktemp("images"), IMAGES)


@pytest.fixture
def masked_images(images: Path, tmp_path: Path) -> Path:
    """A copy of `images` in which every third has a mask, white at the left."""
    folder = Path(shutil.copytree(images, tmp_path / "masked images"))
    for file in sorted(folder.glob("*.png"))[::3]:
        with Image.open(file) as image:
            mask = Image.new("L", image.size)
        mask.paste(255, (0, 0, mask.width // 2, mask.height))
        mask.save(folder / f"{file.stem}-masklabel.png")
    return folder


def draw_images(folder: Path, count: int) -> Path:
    """Draw discs and squares, each with a caption file."""
    for number in range(count):
        # unequal counts, so that the buckets have different remainders
        width, height = SIZES[number % 7 % len(SIZES)]
        colour = COLOURS[number % len(COLOURS)]
        image = Image.new("RGB", (width, height), (number * 5 % 256, 40, 90))
        box = (width // 4, height // 4, width * 3 // 4, height * 3 // 4)
        pen = ImageDraw.Draw(image)
        shape, draw = ("disc", pen.ellipse) if number % 2 else ("square", pen.rectangle)
        draw(box, fill=colour)
        image.save(folder / f"{number:02d}.png")
        (folder / f"{number:02d}.txt").write_text(f"a {colour} {shape}, number {number}")
    return folder


@pytest.fixture(scope="session")
def pair_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of the pair."""
    return tmp_path_factory.mktemp("pair")


@pytest.fixture(scope="session")
def pair(request: pytest.FixtureRequest, images: Path, pair_place: Path) -> dict[str, Run]:
    """The runs that the collected test files declare in PAIR_JOBS, by name."""
    from tests.pair_jobs import run_all  # torch takes seconds to import

    jobs: dict[str, dict[str, object]] = {}
    for module in dict.fromkeys(getattr(item, "module", None) for item in request.session.items):
        for name, settings in getattr(module, "PAIR_JOBS", {}).items():
            assert jobs.setdefault(name, settings) == settings, f"two files declare {name!r}"
    return run_all(images, pair_place, jobs)
