"""The sample prompts of a config."""

from __future__ import annotations

import os

from modules.config import ConfigError, TrainConfig
from modules.config.choices import drawn_prompts
from modules.config.train_config import sample_image_fault
from modules.data.index.images import read_reference
from modules.families._family import ReferenceImage, SampleRequest
from modules.files import whole_path
from modules.files.videos import has_pyav


def sample_requests(config: TrainConfig, size_step: int) -> list[SampleRequest]:
    """The enabled samples of a config, with one of each `{a|b}` in their prompts, drawn by their seed.

    Raises ConfigError if a side is not a multiple of the family's `size_step`, its models do not generate so many
    frames, or a reference image cannot be read.
    """
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
        frames = sample.frames or (1 if config.clip_step is None else config.frames)
        if fault := _frames_fault(frames, config):
            name = "frames" if sample.frames is None else f"samples.{number}.frames"
            raise ConfigError(f"{name} is {frames}; {fault}.")
        if fault := sample_image_fault(config.family, len(sample.reference_files)):
            raise ConfigError(f"samples.{number}.reference {fault}.")
        if sample.reference_files and frames == 1 and config.clip_step is not None:
            raise ConfigError(
                f"samples.{number}.reference is the first frame of a video, but it has no more frames; set "
                f"samples.{number}.frames, for example to {1 + 4 * config.clip_step}."
            )
        try:
            references = tuple(map(_reference, sample.reference_files))
        except ConfigError as error:
            raise ConfigError(f"samples.{number}.reference: {error.message}", error.advice) from error
        prompt, negative_prompt = drawn_prompts(sample.prompt, sample.negative_prompt, sample.seed)
        requests.append(
            SampleRequest(
                prompt=prompt,
                negative_prompt=negative_prompt,
                width=width,
                height=height,
                steps=sample.steps,
                guidance_scale=sample.guidance_scale,
                seed=sample.seed,
                references=references,
                frames=frames,
                written_prompt=sample.prompt if prompt != sample.prompt else "",
            )
        )
    return requests


def _frames_fault(frames: int, config: TrainConfig) -> str:
    """Why so many frames cannot be generated; empty if they can."""
    family, step = config.family, config.clip_step
    if frames == 1:
        return ""
    if step is None:
        return f"{family} generates single images, so leave it empty"
    if (frames - 1) % step:
        nearest = 1 + max(1, round((frames - 1) / step)) * step
        return f"{family} needs 1 more than a multiple of {step}, for example {nearest}"
    return "" if has_pyav() else "a video is written by PyAV, which is not here: .venv/bin/python -m pip install av"


def _reference(file: str) -> ReferenceImage:
    return ReferenceImage(os.path.basename(file), read_reference(str(whole_path(os.path.expanduser(file)))))
