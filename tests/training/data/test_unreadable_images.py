"""Images that cannot be read any more: reported once each, listed, tolerated up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import DataError
from modules.data.index.problems import Problem
from modules.distributed.rank_group import SingleProcess
from modules.monitoring import SilentReport
from modules.training.data.unreadable_images import UnreadableImages
from modules.training.step.metrics import UNREADABLE, metric_names


class Warnings(SilentReport):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warning(self, text: str) -> None:
        self.texts.append(text)


def problem(number: int) -> Problem:
    return Problem(f"/images/{number}.png", "skipped: damaged or incomplete")


def sync(images: UnreadableImages, ranks: SingleProcess) -> None:
    images.follow(ranks.sync_metrics(images.metrics()))


def collector(tmp_path: Path, count: int) -> tuple[UnreadableImages, SingleProcess, Warnings]:
    ranks, report = SingleProcess(metric_names([], 1)), Warnings()
    known = [Problem("/images/empty.png", "skipped: empty")]
    return UnreadableImages(count, ranks, report, tmp_path / "problems.txt", known), ranks, report


def test_each_file_is_reported_once_and_listed_with_those_known_before(tmp_path: Path) -> None:
    images, ranks, report = collector(tmp_path, 3000)
    for numbers in ((), (1, 2), (2,), (2, 1), (), (3,), (), ()):
        images.add([problem(number) for number in numbers])
        sync(images, ranks)
    assert [text.split(" be read")[0] for text in report.texts] == ["2 images cannot", "1 image cannot"]
    assert "/images/1.png: skipped: damaged" in report.texts[0]
    listed = (tmp_path / "problems.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in listed] == ["/images/empty.png", *(f"/images/{n}.png" for n in (1, 2, 3))]
    assert ranks.sync_metrics({})[UNREADABLE] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("count", "tolerated"), [(3000, 30), (200, 10), (8, 4), (1, 0)])
def test_too_many_end_the_run(tmp_path: Path, count: int, tolerated: int) -> None:
    images, _, _ = collector(tmp_path, count)
    images.add([problem(number) for number in range(tolerated)])
    images.exchange()
    assert not images.too_many
    images.check()
    images.add([problem(tolerated)])
    images.exchange()
    assert images.too_many
    with pytest.raises(DataError, match=f"^{tolerated + 1} of {count:,} images cannot be read any more, for example"):
        images.check()


@pytest.mark.slow
def test_a_list_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    images, _, report = collector(tmp_path / "gone", 100)
    images.add([problem(1)])
    images.exchange()
    assert "problems.txt cannot be written" in report.texts[0]
    assert "1 image cannot be read any more" in report.texts[1]
