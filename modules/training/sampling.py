"""Drawing the sample prompts of a config, each picture carrying its settings, and a grid of them all."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from PIL.Image import Image

from modules.config import ConfigError, TrainConfig
from modules.families.family import SampleRequest
from modules.monitoring import Report, grid, save_picture

Deeds = Generator[Callable[[], None], None, None]


def sample_requests(config: TrainConfig, size_step: int) -> list[SampleRequest]:
    """The enabled samples of a config. Raises ConfigError where a side is no multiple of the family's `size_step`."""
    requests = []
    for number, sample in enumerate(config.samples):
        if not sample.enabled:
            continue
        width, height = sample.width or config.resolution, sample.height or config.resolution
        for name, side in (("width", width), ("height", height)):
            if side % size_step:
                nearest = max(size_step, round(side / size_step) * size_step)
                raise ConfigError(
                    f"samples.{number}.{name} is {side}; {config.family} needs a multiple of {size_step}, "
                    f"for example {nearest}."
                )
        requests.append(
            SampleRequest(
                prompt=sample.prompt,
                negative_prompt=sample.negative_prompt,
                width=width,
                height=height,
                steps=sample.steps,
                guidance_scale=sample.guidance_scale,
                seed=sample.seed,
            )
        )
    return requests


def pictures_of(
    draw: Callable[[SampleRequest], Image], requests: Sequence[SampleRequest], report: Report
) -> Iterator[Image]:
    """Each request's picture, drawn when it is asked for."""
    for number, request in enumerate(requests):
        report.phase("sampling", number, len(requests))
        yield draw(request)


def keep_samples(
    pictures: Iterable[Image],
    requests: Sequence[SampleRequest],
    facts: Mapping[str, str],
    folder: Path,
    step: int,
    report: Report,
) -> Deeds:
    """Deeds that write step-NNNNNN-K.png for every request and step-NNNNNN-grid.png of them all into `folder`.

    Each picture carries its request and `facts`.
    """
    drawn = []
    for number, (picture, request) in enumerate(zip(pictures, requests, strict=True)):
        drawn.append((picture, request.prompt))
        told = {**asdict(request), **facts, "step": step}
        yield partial(_keep, picture, folder / f"step-{step:06d}-{number:02d}.png", told, report)
    if drawn:
        yield partial(_keep_grid, drawn, folder / f"step-{step:06d}-grid.png", step, report)


def _keep(picture: Image, file: Path, told: Mapping[str, Any], report: Report) -> None:
    save_picture(picture, file, told)
    report.sample(file, told["prompt"], told["step"])


def _keep_grid(drawn: list[tuple[Image, str]], file: Path, step: int, report: Report) -> None:
    save_picture(grid(drawn), file, {"prompt": "all samples", "step": step})
    report.note(f"Step {step}: {len(drawn)} sample{'s' * (len(drawn) > 1)} in {file}.")
