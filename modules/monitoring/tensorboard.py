"""TensorBoard: scalars of each step, and sample images."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from modules.files import read_bytes
from modules.files.images import open_image
from modules.monitoring.tensorboard_file import TensorBoardFile

log = logging.getLogger("tandem")
_MOST_BYTES = 1 << 30  # of a picture
_RGB = 3  # number of channels


class TensorBoardWriter:
    """Writes the TensorBoard files of a run; tensorboard is imported only when one is created."""

    def __init__(self, folder: Path, warn: Callable[[str], object] = log.warning) -> None:
        """`warn` is told once if the files cannot be written."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._file, self._event, self._summary = TensorBoardFile(folder, warn), Event, Summary
        self._file.add(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())

    def add_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """The scalars of one step as one record."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._add(values, step)

    def add_png(self, tag: str, file: Path, step: int) -> None:
        """An RGB image in a PNG file, which is not encoded anew."""
        with open_image(file) as header:
            width, height = header.size
        image = self._summary.Image(
            encoded_image_string=read_bytes(file, _MOST_BYTES), height=height, width=width, colorspace=_RGB
        )
        value = self._summary.Value(tag=tag, image=image)
        self._add([value], step)

    def close(self) -> None:
        """Write what is still buffered."""
        self._file.close()

    def _add(self, values: Sequence[object], step: int) -> None:
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        self._file.add(event.SerializeToString())
