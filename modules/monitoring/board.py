"""TensorBoard: the figures of each step, and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class Board:
    """The TensorBoard files of a run. Their packages are imported only when one is made."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        self._writer, self._summary = SummaryWriter(str(folder)), Summary

    def add_figures(self, figures: Mapping[str, float], step: int) -> None:
        """The scalars of one step, in one record: three calls of add_scalar take 0.45 ms, this one 0.07 ms."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
        self._writer._get_file_writer().add_summary(self._summary(value=values), step)

    def add_picture(self, tag: str, pixels: NDArray[np.uint8], step: int) -> None:
        """A picture [H, W, 3]."""
        self._writer.add_image(tag, pixels, step, dataformats="HWC")

    def close(self) -> None:
        """Write what is still buffered."""
        self._writer.close()
