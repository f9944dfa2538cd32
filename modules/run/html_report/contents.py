"""What the report of a run says, read from its folder. The folder may come from somebody else."""

from __future__ import annotations

import base64
import io
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml
from markupsafe import Markup
from PIL import Image

from modules import __version__
from modules.config import TrainConfig
from modules.files import FileFault, mask_secrets, open_for_writing, printable, read_bytes, replacing, write_fault
from modules.files.images import memory_to_decode, open_image
from modules.files.videos import video_beside
from modules.run.endings import ENDINGS
from modules.run.folder.event_reader import EventReader
from modules.run.folder.links import refuse_links
from modules.run.folder.run_folder import RunFolder
from modules.run.folder.saved_models import saved_models
from modules.run.format_duration import format_duration
from modules.run.html_report.svg import Line, plot
from modules.run.view.event_records import RunInfo, SampleFile
from modules.run.view.run_view import RunView
from modules.run.view.series import Series

if TYPE_CHECKING:
    from jinja2 import Environment

_DASH: Final = "-"
_LONGEST_S: Final = 1e10  # an events file may say anything
_MOST_RANKS: Final = 64  # rows of the table of devices
_MOST_MODELS: Final = 200  # of earlier steps
_MOST_TEXT: Final = 200_000  # characters of the settings
_CHUNK_BYTES: Final = 64 << 10
_MOST_VIDEO_BYTES: Final = 4 << 20  # of a larger one the report has the first frame
_NAMES: Final[Mapping[str, str]] = {
    "data_s": "Waiting for data",
    "own_s": "Own part of the step",
    "model_tflops": "Model",
    "peak_percent": "Of the measured peak",
    "samples": "Samples of a step",
    "samples_per_s": "Samples per second",
    "utilization_percent": "GPU load",
    "memory_used_mib": "GPU memory",
    "allocated_mib": "Allocated by torch",
    "reserved_mib": "Reserved by torch",
    "memory_efficiency_percent": "Memory efficiency",
    "sm_clock_mhz": "GPU clock",
    "cpu_percent": "CPU of the machine",
    "ram_used_mib": "RAM of the machine",
    "process_cpu_percent": "CPU of the process",
    "process_ram_mib": "RAM of the process",
}
_UNITS: Final[Mapping[str, str]] = {  # by the end of a metric's name, the longer ends first
    "_per_s": "",
    "_mb_s": "MB/s",
    "_tflops": "TFLOP/s",
    "_percent": "%",
    "_mib": "MiB",
    "_mhz": "MHz",
    "_c": "°C",
    "_w": "W",
    "_s": "s",
}
MOST_PROMPTS: Final = 8
MOST_STEPS: Final = 5  # of each prompt: the first, the last, and some between them
SIDE: Final = 320  # pixels, of the longer side
_QUALITY: Final = 82  # of WebP
log = logging.getLogger("tandem")


@dataclass(frozen=True)
class Plot:
    """One plot: the labels are in the order of their colours."""

    title: str
    labels: list[str]
    drawing: Markup


@dataclass(frozen=True)
class DeviceRow:
    """One rank: its device, and mean and highest value of what was measured there."""

    rank: int
    device: str
    values: list[tuple[str, str, str]]  # name, mean, highest


@dataclass(frozen=True)
class Contents:
    """Everything in the report, as text, numbers and pictures."""

    name: str
    verdict: str
    tone: str  # good, bad or open
    error: tuple[str, str]  # message and advice
    facts: list[tuple[str, str]]
    plots: list[Plot]
    samples: list[PromptRow]
    saved_models: list[tuple[str, str, str]]  # step, loss and folder of those that are there
    warnings: list[tuple[str, str]]  # when, and what
    data: list[str]
    devices: list[DeviceRow]
    more_devices: int
    changed: list[tuple[str, str, str]]  # setting, value, default
    settings: str
    versions: list[tuple[str, str]]


def read_contents(folder: RunFolder) -> Contents:
    """What the events of a run say; little of a run that has none."""
    view, reader = RunView(), EventReader(folder.events_file, chunk_bytes=_CHUNK_BYTES)
    while events := reader.new():
        view.apply(events)
    info = view.run_info or RunInfo(0.0)
    verdict, tone = _verdict(view)
    changed, settings = _settings(info.config)
    error = ("", "") if view.error is None else (printable(view.error.text, lines=True), printable(view.error.advice))
    return Contents(
        name=printable(folder.name),
        verdict=verdict,
        tone=tone,
        error=error,
        facts=_facts(view, info),
        plots=_plots(view),
        samples=sample_rows(view.samples, folder),
        saved_models=_saved_models(view, folder),
        warnings=[(_clock(each.time), printable(each.text, lines=True)) for each in view.warnings],
        data=[printable(line) for line in view.data],
        devices=_devices(view, info),
        more_devices=max(0, len(info.devices) - _MOST_RANKS),
        changed=changed,
        settings=settings,
        versions=[(printable(name), printable(value)) for name, value in info.versions.items()],
    )


def _verdict(view: RunView) -> tuple[str, str]:
    if view.error is not None:
        rank = "" if view.error.rank is None else f" on rank {view.error.rank}"
        return f"Failed{rank}{f' on {printable(view.error.host)}' if view.error.host else ''}.", "bad"
    if view.finished is None:
        return "Not finished yet, or terminated unexpectedly.", "open"
    reason = view.finished.reason
    ending = ENDINGS.get(reason)
    if ending is None:
        return f"Ended: {printable(reason) or 'without a reason'}.", "open"
    return ending.sentence(), "good" if ending.is_complete else "open"


def _facts(view: RunView, info: RunInfo) -> list[tuple[str, str]]:
    def last(series: Series | None) -> str:
        return _DASH if series is None or not len(series) else f"{series.curve().means[-1]:.4g}"

    none = _DASH if info.total_steps is None else "0"
    step = none if view.position is None else f"{view.position:,}"
    total = "" if info.total_steps is None else f" of {info.total_steps:,}"
    facts = [
        ("Steps", step + total),
        ("Last loss", last(view.metrics["loss"])),
        *((f"{name.capitalize()} loss", last(series)) for name, series in view.eval_losses.items()),
        *((name.capitalize(), last(series)) for name, series in view.eval_metrics.items()),
        ("Samples per second", last(view.metrics["samples_per_s"])),
        ("Started", _clock(view.first_time or 0.0)),
        ("Duration", format_duration(min(view.duration_s, _LONGEST_S))),
        ("Family", str(info.config.get("family", _DASH))),
        ("Method", str(info.config.get("method", _DASH))),
        ("Devices", _count(info.devices)),
        *((name, value) for name, value in info.facts),
    ]
    return [(printable(name), printable(value)) for name, value in facts]


def _plots(view: RunView) -> list[Plot]:
    losses = {"training": view.metrics["loss"], **view.eval_losses}
    groups = [
        ("Loss", losses),
        ("Validation", view.eval_metrics),
        ("Learning rate", {"learning rate": view.metrics["lr"]}),
        ("Gradient norm", {"gradient norm": view.metrics["grad_norm"]}),
        ("Samples per second", {"samples per second": view.metrics["samples_per_s"]}),
    ]
    plots = []
    for title, series in groups:
        lines = [
            Line(printable(name), each.curve(), spread=name in ("training", "gradient norm"))
            for name, each in series.items()
            if len(each)
        ]
        if lines:
            plots.append(Plot(title, [line.label for line in lines], plot(lines)))
    return plots


def _saved_models(view: RunView, folder: RunFolder) -> list[tuple[str, str, str]]:
    found = []
    for saved in saved_models(folder)[-_MOST_MODELS:]:
        loss = view.saved_models.get(saved.step)
        place = saved.folder.relative_to(folder.path).as_posix()
        found.append((f"{saved.step:,}", _DASH if loss is None else f"{loss:.4g}", place))
    return found


def _devices(view: RunView, info: RunInfo) -> list[DeviceRow]:
    rows, found = [], view.rank_summaries
    for rank in range(min(_MOST_RANKS, max(len(info.devices), len(found)))):
        summaries = found[rank] if rank < len(found) else {}
        values = [
            (_title(name), _figure(name, summary.mean), _figure(name, summary.maximum))
            for name, summary in summaries.items()
            if name != "rank" and (name != "samples" or len(found) > 1)
        ]
        rows.append(DeviceRow(rank, printable(info.devices[rank]) if rank < len(info.devices) else _DASH, values))
    return rows


def _title(name: str) -> str:
    """`temperature_c` as people read it, without its unit."""
    words = name.removesuffix(_unit(name)[0])
    return _NAMES.get(name) or printable(words.replace("_", " ").capitalize())


def _figure(name: str, value: float) -> str:
    unit = _unit(name)[1]
    if unit == "s" and value < 10:
        value, unit = 1000 * value, "ms"
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number}{'' if unit in ('', '%') else ' '}{unit}"


def _unit(name: str) -> tuple[str, str]:
    """The end of a metric's name that tells its unit, and the unit."""
    return next(((end, unit) for end, unit in _UNITS.items() if name.endswith(end)), ("", ""))


def _settings(config: Mapping[str, object]) -> tuple[list[tuple[str, str, str]], str]:
    """The settings that are not the defaults, with these, and all as YAML; nothing if no config can be so large."""
    try:
        if len(str(config)) > _MOST_TEXT:
            return [], ""
        defaults = dict(_flat(TrainConfig().model_dump(mode="json")))
        given = [(name, value) for name, value in _flat(config) if name != "version"]
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml's, four times faster; the text is the same
        text = yaml.dump(dict(config), Dumper=dumper, sort_keys=False, allow_unicode=True, width=110) if config else ""
    except (RecursionError, yaml.YAMLError):  # nested by somebody
        return [], ""
    changed = [
        (printable(name), _short(value), _short(defaults.get(name)))
        for name, value in given
        if value != defaults.get(name)
    ]
    return changed, printable(text, _MOST_TEXT, lines=True)


def _flat(value: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    for name, inside in value.items():
        if isinstance(inside, Mapping) and inside:
            yield from _flat(inside, f"{path}{name}.")
        else:
            yield f"{path}{name}", inside


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, "", [], {}):
        return _DASH
    if isinstance(value, list):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}" if len(str(value)) > 80 else str(value)
    return printable(mask_secrets(str(value)), 160)


def _count(devices: tuple[str, ...]) -> str:
    names: dict[str, int] = {}
    for device in devices:
        names[device] = names.get(device, 0) + 1
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items()) or _DASH


def _clock(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at > 0 else _DASH
    except (OverflowError, OSError, ValueError):
        return _DASH


@dataclass(frozen=True)
class Picture:
    """A sample as it is in the page; `data` is a data: address, empty if its file cannot be read, and `video` that of
    the video whose first frame it is."""

    step: int
    data: str
    is_small: bool  # fewer pixels than it is shown with, which should stay visible
    video: str = ""


@dataclass(frozen=True)
class PromptRow:
    """The samples of one prompt, in the order of their steps."""

    prompt: str
    pictures: list[Picture]


def sample_rows(samples: Iterable[SampleFile], folder: RunFolder) -> list[PromptRow]:
    """The samples of the first prompts, at the first, the last and some steps between."""
    by_place: dict[tuple[str, str], dict[int, SampleFile]] = {}
    for sample in samples:
        number = Path(sample.file).stem.rpartition("-")[2]  # the same prompt may be there twice, with other seeds
        by_place.setdefault((sample.prompt, number), {})[sample.step] = sample
    rows = []
    for (prompt, _), by_step in list(by_place.items())[:MOST_PROMPTS]:
        steps = _spread(sorted(by_step), MOST_STEPS)
        rows.append(PromptRow(printable(prompt), [_picture(by_step[step], folder) for step in steps]))
    return rows


def _picture(sample: SampleFile, folder: RunFolder) -> Picture:
    try:
        with open_image(folder.sample_file(sample.file)) as image, memory_to_decode(image):
            is_small = max(image.size) < SIDE
            small = image.convert("RGB")
    except (OSError, FileFault, ValueError, SyntaxError, Image.DecompressionBombError):
        return Picture(sample.step, "", is_small=False)
    small.thumbnail((SIDE, SIDE))
    encoded = io.BytesIO()
    small.save(encoded, format="PNG" if is_small else "WEBP", quality=_QUALITY)
    kind = "png" if is_small else "webp"
    data = f"data:image/{kind};base64,{base64.b64encode(encoded.getvalue()).decode()}"
    return Picture(sample.step, data, is_small, _video(folder.sample_file(sample.file)))


def _video(poster: Path) -> str:
    """The data: address of the video beside the image; empty if there is none, or too large a one for a page."""
    try:
        video = video_beside(poster)
        data = b"" if video is None else read_bytes(video, _MOST_VIDEO_BYTES)
    except (OSError, FileFault):
        return ""
    return f"data:video/mp4;base64,{base64.b64encode(data).decode()}" if data else ""


def _spread(steps: list[int], count: int) -> list[int]:
    """At most `count` of them, evenly, with the first and the last."""
    if len(steps) <= count:
        return steps
    return [steps[round(number * (len(steps) - 1) / (count - 1))] for number in range(count)]


def write_report(folder: RunFolder, file: Path | None = None) -> Path:
    """Write the report of a run to `file`, by default to report.html in its folder; returns where it is.

    Raises OSError if the file cannot be written, ConfigError for a run folder with links.
    """
    refuse_links(folder.path)
    target = folder.report_file if file is None else file
    template = _environment().get_template("report.html.jinja")
    text = template.render(run=read_contents(folder), version=__version__, written=time.strftime("%Y-%m-%d %H:%M"))
    with replacing(target) as partial, os.fdopen(open_for_writing(partial), "wb") as opened:
        opened.write(text.encode())
    return target


def update_report(folder: RunFolder) -> None:
    """Write the report at the end of a run; what is wrong with it is only logged, because the run itself is done."""
    try:
        write_report(folder)
    except Exception as error:  # noqa: BLE001  # a run must not fail at its very end because of its report
        why = write_fault(error, folder.report_file) if isinstance(error, OSError) else error
        log.warning(f"{folder.report_file} could not be written: {why}")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 50 ms, which no run needs before its end

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
