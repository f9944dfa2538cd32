"""TensorBoard's file when its disk fails."""

from __future__ import annotations

import time
from pathlib import Path

from modules.monitoring.tensorboard import TensorBoardWriter


def test_what_the_disk_did_not_take_is_written_once_it_does(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    folder, warnings = tmp_path / "tensorboard", list[str]()
    folder.write_text("not a folder")
    writer = TensorBoardWriter(folder, warnings.append)
    writer.add_scalars({"loss/train": 0.5}, 1)
    deadline = time.monotonic() + 60
    while not warnings and time.monotonic() < deadline:
        time.sleep(0.01)
    folder.unlink()
    writer.add_scalars({"loss/train": 0.25}, 2)
    writer.close()
    (file,) = folder.iterdir()
    events = list(EventFileLoader(str(file)).Load())
    assert [(event.step, len(event.summary.value)) for event in events] == [(0, 0), (1, 1), (2, 1)]
    assert len(warnings) == 1
    assert "cannot be written" in warnings[0]


def test_a_disk_that_stays_bad_ends_nothing(tmp_path: Path) -> None:
    folder, warnings = tmp_path / "tensorboard", list[str]()
    folder.write_text("not a folder")
    writer = TensorBoardWriter(folder, warnings.append)
    writer.add_scalars({"loss/train": 0.5}, 1)
    writer.close()
    assert len(warnings) == 1
