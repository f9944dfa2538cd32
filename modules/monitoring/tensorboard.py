"""TensorBoard: scalars of each step, sample images, histograms, and the settings that differ from the defaults."""

from __future__ import annotations

import logging
import math
import os
import queue
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modules.config.hyperparameters import HyperParameter
from modules.files import FileFault, open_for_writing, open_regular, printable, read_bytes, write_fault
from modules.files.images import open_image
from modules.files.videos import video_beside
from modules.monitoring.images import gif_of
from modules.run.folder.event_reader import EventReader

log = logging.getLogger("tandem")
_MOST_PICTURE_BYTES = 1 << 30  # of a picture
_RGB = 3  # number of channels
STEP_TAGS: Final = ("loss/train", "lr/model", "gradient/norm")
_FLUSH_EVERY_S: Final = 5.0
_FLUSH_WITHIN_S: Final = 5.0
_RECORD_HEAD, _RECORD_END = 12, 4  # bytes around a record of TensorBoard's files
_LAST_RECORDS: Final = 8  # the end of a complete run has no step
_MOST_BYTES: Final = 32 << 20  # kept while the disk accepts no writes


@dataclass(frozen=True)
class Histogram:
    """How the values of a tensor are distributed."""

    least: float
    greatest: float
    total: float  # sum of the values
    squares: float  # sum of their squares
    limits: Sequence[float]  # the upper limit of each bin; the first bin begins at `least`
    counts: Sequence[int]  # of each bin


class TensorBoardWriter:
    """Writes the TensorBoard files of a run; tensorboard is imported only when one is created."""

    def __init__(self, folder: Path, warn: Callable[[str], object] = log.warning) -> None:
        """`warn` is told once if the files cannot be written."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._file, self._event, self._summary = TensorBoardFile(folder, warn), Event, Summary
        self._file.add(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())

    def add_scalars(self, scalars: Mapping[str, float], step: int, at: float | None = None) -> None:
        """The scalars of one step as one record, of the time `at` (seconds since 1970; None: now)."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._add(values, step, at)

    def add_missing(self, last_step: int, events_file: Path) -> None:
        """The scalars of the steps up to `last_step` of the run's events that none of its files has: TensorBoard was
        off then, or the files are gone."""
        folder = self._file.path.parent
        newest = max((newest_step(file) for file in folder.glob("*tfevents*") if file != self._file.path), default=0)
        if newest >= last_step:
            return
        scalars: dict[tuple[int, str], tuple[float, dict[str, float]]] = {}
        reader = EventReader(events_file)
        while events := reader.new():
            for event in events:
                step, kind = event.get("step"), str(event["type"])
                if kind not in {"step", "validation"} or not isinstance(step, int) or not newest < step <= last_step:
                    continue
                name = str(event.get("set", "")) if kind == "validation" else ""
                found = (
                    {f"loss/{name}": event.get("loss")}
                    if name
                    else {
                        tag: event.get(field) for tag, field in zip(STEP_TAGS, ("loss", "lr", "grad_norm"), strict=True)
                    }
                )
                values = {tag: math.nan if value is None else float(str(value)) for tag, value in found.items()}
                scalars[step, name] = (float(str(event["t"])), values)  # a repeated step counts as it was last
        for (step, _), (at, values) in sorted(scalars.items()):
            self.add_scalars(values, step, at)

    def flush(self) -> None:
        """Write what is buffered now, if the disk takes it within some seconds."""
        self._file.flush()

    def add_png(self, tag: str, file: Path, step: int) -> None:
        """An RGB image in a PNG file, which is not encoded anew; of a video the moving picture, as GIF."""
        with open_image(file) as header:
            width, height = header.size
        video = video_beside(file)
        data = read_bytes(file, _MOST_PICTURE_BYTES) if video is None else gif_of(video)
        image = self._summary.Image(encoded_image_string=data, height=height, width=width, colorspace=_RGB)
        value = self._summary.Value(tag=tag, image=image)
        self._add([value], step)

    def add_histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        """The distributions of one step by tag, as one record."""
        from tensorboard.compat.proto.histogram_pb2 import HistogramProto

        values = []
        for tag, each in histograms.items():
            proto = HistogramProto(
                min=each.least,
                max=each.greatest,
                num=sum(each.counts),
                sum=each.total,
                sum_squares=each.squares,
                bucket_limit=each.limits,
                bucket=each.counts,
            )
            values.append(self._summary.Value(tag=tag, histo=proto))
        self._add(values, step)

    def add_hyperparameters(self, values: Mapping[str, HyperParameter]) -> None:
        """For the tab HPARAMS, beside the last value of each scalar: its columns are what all runs in it have together.

        There is no `_hparams_/experiment` with the columns, of which TensorBoard would take that of one run for all.
        """
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionStartInfo

        start = SessionStartInfo(start_time_secs=time.time())
        for name, value in values.items():
            kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
            setattr(start.hparams[name], f"{kind}_value", value)
        self._add_session(session_start_info=start)

    def add_success(self) -> None:
        """For the same tab: the run is complete. One that has failed may be resumed, and the first status counts."""
        from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionEndInfo

        self._add_session(session_end_info=SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time()))

    def _add_session(self, **part: object) -> None:
        """A part by the name of its field, which its tag has, too."""
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        # as torch.utils.tensorboard does, whose import takes seconds
        ((name, _),) = part.items()
        content = HParamsPluginData(**part).SerializeToString()
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="hparams", content=content))
        self._add([self._summary.Value(tag=f"_hparams_/{name}", metadata=metadata)], 0)

    def close(self) -> None:
        """Write what is still buffered."""
        self._file.close()

    def _add(self, values: Sequence[object], step: int, at: float | None = None) -> None:
        event = self._event(wall_time=time.time() if at is None else at, step=step, summary=self._summary(value=values))
        self._file.add(event.SerializeToString())


class TensorBoardFile:
    """Appends records in a thread of its own; a failing disk delays them, with one warning, but never raises."""

    def __init__(self, folder: Path, warn: Callable[[str], object]) -> None:
        # as TensorBoard's own writer names them: it reads all files with "tfevents" in the name
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self.path, self._warn = folder / name, warn
        self._records = queue.SimpleQueue[bytes | threading.Event | None]()
        self._pending = bytearray()  # checksummed records, and the rest of one of which the disk took a part
        self._has_warned = False
        self._thread = threading.Thread(target=self._write_records, name="tensorboard", daemon=True)
        self._thread.start()

    def add(self, event: bytes) -> None:
        """Append an encoded Event."""
        self._records.put(event)

    def flush(self) -> None:
        """Write what has been added, or wait for the disk for _FLUSH_WITHIN_S."""
        is_done = threading.Event()
        self._records.put(is_done)
        is_done.wait(_FLUSH_WITHIN_S)

    def close(self) -> None:
        """Write what is still buffered."""
        self._records.put(None)
        self._thread.join()

    # The thread

    def _write_records(self) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        checksummed = RecordWriter(self)
        flush_at = time.monotonic()  # the first record at once
        while True:
            with suppress(queue.Empty):
                event = self._records.get(timeout=max(0.0, flush_at - time.monotonic()) if self._pending else None)
                if event is None:
                    break
                if isinstance(event, threading.Event):
                    self._flush()
                    event.set()
                elif len(self._pending) < _MOST_BYTES:
                    checksummed.write(event)
            if time.monotonic() >= flush_at:
                self._flush()
                flush_at = time.monotonic() + _FLUSH_EVERY_S
        self._flush()

    def write(self, data: bytes) -> None:
        """Called by RecordWriter."""
        self._pending += data

    def _flush(self) -> None:
        try:
            if not self._pending:
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open_for_writing(self.path, append=True)
            try:
                del self._pending[: os.write(file, self._pending)]
            finally:
                os.close(file)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                self._warn(
                    f"The files for TensorBoard in {printable(self.path.parent)} cannot be written "
                    f"({write_fault(error, self.path)}). Training continues; what they lack is written once that is "
                    "possible."
                )


def newest_step(file: Path) -> int:
    """The highest step in the last records of a TensorBoard file; 0 if there is none."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto.event_pb2 import Event

    records, start, steps = deque[tuple[int, int]](maxlen=_LAST_RECORDS), 0, [0]
    with suppress(OSError, FileFault, DecodeError), open_regular(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        while len(head := opened.read(_RECORD_HEAD)) == _RECORD_HEAD:
            (length,) = struct.unpack_from("<Q", head)  # then the checksum of the length
            end = start + _RECORD_HEAD + length + _RECORD_END
            if end > size:
                break  # cut off by a failure
            records.append((start + _RECORD_HEAD, length))
            start = opened.seek(end)
        for place, length in records:
            opened.seek(place)
            steps.append(int(Event.FromString(opened.read(min(length, _MOST_PICTURE_BYTES))).step))
    return max(steps)
