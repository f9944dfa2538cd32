"""Generating the sample images: each carries its settings, and a grid shows them all."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from PIL import Image

from modules.config import ConfigError
from modules.families._family import SampleRequest
from modules.files.videos import Clip
from modules.machine import hostname
from modules.monitoring import make_grid, save_image, save_sample
from modules.training.actions.action import (
    Action,
    ActionContext,
    buffers_of_rank0,
    inference_model,
    leave_if_sharded,
    left_out,
)
from modules.training.step.memory_guard import is_out_of_memory, release_memory

Generated: TypeAlias = Image.Image | Clip | str  # or why there is no image
_CAUSE_CHARACTERS = 240  # of torch's sentences, which say how much memory was asked for and how much there is


@dataclass(frozen=True)
class SampleImage:
    """One generated image or clip."""

    number: int
    request: SampleRequest
    image: Image.Image | Clip


def _compute(context: ActionContext) -> Generator[SampleImage | list[SampleImage], None, None]:
    """Each image, and at the end all of them together."""
    requests = context.components.sample_requests
    if _is_shared(context):
        images: Iterable[Generated] = _generate_shared(context, requests)
        if context.ranks.rank != 0:
            return
    else:
        images = _generate(context, requests)
    done = []
    for number, (image, request) in enumerate(zip(images, requests, strict=False)):  # fewer images if the run stops
        if isinstance(image, str):
            context.report.warning(image)
            continue
        done.append(SampleImage(number, request, image))
        yield done[-1]
    if done:
        yield done


def _write(context: ActionContext, result: SampleImage | list[SampleImage]) -> None:
    """step-NNNNNN-K.png for each image, and .mp4 of a clip, and step-NNNNNN-grid.png for all of them."""
    step, folder = context.position.step, context.components.folder.samples_dir
    if isinstance(result, SampleImage):
        write_sample(context, result.image, result.request, folder / f"step-{step:06d}-{result.number:02d}.png")
    else:
        file = folder / f"step-{step:06d}-grid.png"
        grid = make_grid([(_poster(sample.image), sample.request.prompt) for sample in result])
        save_image(grid, file, {"prompt": "all samples", "step": step})
        context.report.note(f"Step {step}: {len(result)} sample{'s' * (len(result) > 1)} in {file}.")


def _poster(image: Image.Image | Clip) -> Image.Image:
    return image if isinstance(image, Image.Image) else image.frames[0]


def write_sample(context: ActionContext, image: Image.Image | Clip, request: SampleRequest, file: Path) -> None:
    """Write an image or a clip with its settings and report it. Raises OSError."""
    step = context.position.step
    settings = {**request.settings(), **context.components.family.sample_metadata(), "step": step}
    save_sample(image, file, settings)
    context.report.sample(file, request.prompt, step)


def _generate(context: ActionContext, requests: Sequence[SampleRequest]) -> Iterator[Generated]:
    """The image of each request, generated when it is asked for; none any more once the run is to stop."""
    for number, request in enumerate(requests):
        if number and _stops(context, together=is_sharded(context)):
            return
        context.report.phase("sampling", number, len(requests))
        yield generate_one(context, request)


def _stops(context: ActionContext, *, together: bool) -> bool:
    """Whether to leave out the remaining images; `together`: every rank asks now, and all get the same answer."""
    stops = context.stop_is_wanted()
    if together:
        stops = any(context.ranks.gather("stop of sampling", "stop" if stops else ""))
    if stops:
        context.report.note(f"Step {context.position.step}: the run is to stop, so the remaining samples are left out.")
    return stops


def generate_one(context: ActionContext, request: SampleRequest) -> Generated:
    """An image; a sentence if there is an error, such as for want of memory, which costs the run only this image."""
    components = context.components
    what = f"the sample {request.prompt!r} ({request.width}x{request.height})"
    try:
        with inference_model(components), components.precision.autocast():
            return components.family.sample(request)
    except ConfigError as error:  # equally on all ranks, before anything is computed
        return f"Step {context.position.step}: {error} It is left out; training continues."
    except Exception as error:  # noqa: BLE001  # of a pipeline or of somebody's own family
        warning = _left_out(context, error, what)
    # outside the handler: the error keeps the tensors of the failed attempt alive
    components.family.offload_frozen()
    release_memory()
    return warning


def _left_out(context: ActionContext, error: Exception, what: str) -> str:
    """The warning about an image that cannot be generated. Raises the error if all ranks compute it together."""
    if not is_out_of_memory(error):
        if is_sharded(context):
            raise error
        return left_out(context, error, what)
    leave_if_sharded(context, error, what)
    cause = " ".join(str(error).split())[:_CAUSE_CHARACTERS]
    return (
        f"Step {context.position.step}: out of memory on rank {context.ranks.rank} ({hostname()}) in {what}, so it is "
        f"left out and training continues. Try a smaller sample. {cause}"
    )


def _is_shared(context: ActionContext) -> bool:
    """With sharded weights every rank takes part in every image anyway."""
    return context.components.config.share_sampling and context.ranks.world_size > 1 and not is_sharded(context)


def is_sharded(context: ActionContext) -> bool:
    """Whether every image is computed by all ranks together."""
    return context.components.config.training_mode == "fully_sharded" and context.ranks.world_size > 1


def _generate_shared(context: ActionContext, requests: Sequence[SampleRequest]) -> list[Generated]:
    """All images on rank 0, none elsewhere. Every rank, holding the same weights, generates one of each group.

    Between two groups all ranks agree on whether the run is to stop.
    """
    ranks = context.ranks
    images: list[Generated] = []
    own = requests[ranks.rank :: ranks.world_size]

    def generate(number: int) -> None:
        if number < len(own):
            context.report.phase("sampling", number, len(own))
            images.append(generate_one(context, own[number]))

    with buffers_of_rank0(context):
        for number in range(math.ceil(len(requests) / ranks.world_size)):
            if number and _stops(context, together=True):
                break
            ranks.run_on_all("sampling", partial(generate, number))
    by_rank = [_unpack(data) for data in ranks.gather_bytes("sample images", _pack(images))]
    in_turn = itertools.zip_longest(*by_rank)
    return [image for group in in_turn for image in group if image is not None]


def _pack(images: Sequence[Generated]) -> bytes:
    """A line of JSON with mode and size of each image, and count and rate of a clip's frames, or why there is none;
    then the pixels."""
    header, pixels = list[object](), list[bytes]()
    for image in images:
        if isinstance(image, str):
            header.append(image)
            continue
        frames, fps = ((image,), 0.0) if isinstance(image, Image.Image) else (image.frames, image.fps)
        header.append((frames[0].mode, frames[0].size, len(frames), fps))
        pixels += [frame.tobytes() for frame in frames]
    return b"\n".join([json.dumps(header).encode(), b"".join(pixels)])


def _unpack(data: bytes) -> list[Generated]:
    header, _, pixels = data.partition(b"\n")
    images: list[Generated] = []
    start = 0
    for entry in json.loads(header):
        if isinstance(entry, str):
            images.append(entry)
            continue
        mode, (width, height), count, fps = entry
        length = width * height * len(Image.new(mode, (1, 1)).tobytes())
        starts = range(start, start + count * length, length)
        frames = [Image.frombytes(mode, (width, height), pixels[each : each + length]) for each in starts]
        images.append(Clip(tuple(frames), fps) if fps else frames[0])
        start += count * length
    return images


SAMPLE = Action(
    "sample",
    every="sample_every",
    can_be_requested=True,
    compute=_compute,
    write=_write,
    phase="sampling",
    is_optional=True,
    is_needed=lambda context: bool(context.components.sample_requests),
    computed_by_all=lambda config: config.share_sampling,
)
