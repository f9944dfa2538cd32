"""Generating images with prompts that come while the run is training, as the content of the command `custom_sample`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator
from pathlib import Path

from PIL import Image

from modules.config import ConfigError
from modules.families._family import SampleRequest
from modules.files.videos import Clip
from modules.run.folder.custom_sample import decode_sample
from modules.training.actions.action import Action, ActionContext
from modules.training.actions.sample import generate_one, is_sharded, write_sample
from modules.training.state.sample_requests import sample_requests


def _compute(context: ActionContext) -> Generator[tuple[SampleRequest, Image.Image | Clip], None, None]:
    """The image of each request; a warning for one that is wrong or runs out of memory."""
    for text in _requested(context):
        request, fault = _request_or_fault(context, text)
        if is_sharded(context):  # a reference image may be missing on some machine
            fault = next(filter(None, context.ranks.gather("fault of a custom sample", fault)), "")
        if request is None or fault:
            context.report.warning(f"{fault} It is left out; training continues.")
            continue
        image = generate_one(context, request)
        if isinstance(image, str):
            context.report.warning(image)
        else:
            yield request, image


def _requested(context: ActionContext) -> list[str]:
    """What rank 0 has read; every rank knows it if all take part in every image."""
    texts = context.take_custom_samples()
    if not is_sharded(context):
        return texts
    received: list[str] = json.loads(context.ranks.gather("custom samples", json.dumps(texts))[0])
    return received


def _request_or_fault(context: ActionContext, text: str) -> tuple[SampleRequest | None, str]:
    try:
        return _request(context, text), ""
    except ConfigError as error:
        return None, str(error)


def _request(context: ActionContext, text: str) -> SampleRequest:
    """Raises ConfigError."""
    config, family = context.components.config, context.components.family
    if not family.draws_samples:
        raise ConfigError(f"The custom sample: the family {config.family!r} generates no images.")
    only = config.model_copy(update={"samples": (decode_sample(text),)})
    try:
        (request,) = sample_requests(only, family.size_step)
    except ConfigError as error:
        raise ConfigError(error.message.replace("samples.0.", "The custom sample: ")) from None
    return request


def _write(context: ActionContext, result: tuple[SampleRequest, Image.Image | Clip]) -> None:
    """step-NNNNNN-custom-K.png."""
    request, image = result
    file = _free_file(context.components.folder.samples_dir, context.position.step)
    write_sample(context, image, request, file)
    context.report.note(f"Step {context.position.step}: the custom sample is in {file}.")


def _free_file(folder: Path, step: int) -> Path:
    files = (folder / f"step-{step:06d}-custom-{number:02d}.png" for number in itertools.count())
    return next(file for file in files if not file.exists())


CUSTOM_SAMPLE = Action(
    "custom_sample",
    every=None,
    can_be_requested=True,
    compute=_compute,
    write=_write,
    phase="sampling",
    is_optional=True,
    has_content=True,
)
