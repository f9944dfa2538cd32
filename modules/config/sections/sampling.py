"""Sample images during training."""

from __future__ import annotations

from typing import ClassVar

from pydantic import field_validator

from modules.config.interval import Interval
from modules.config.section import Section, setting
from modules.config.sections.concept import join_paths, split_paths


class Sample(Section):
    """One sample image: what to generate and how."""

    section_title: ClassVar[str] = "Sample"

    prompt: str = setting(
        ...,
        title="Prompt",
        help="What to generate. Use the words of your captions, including the trigger word. Of {a red|a blue|no}, one "
        "is drawn by the seed.",
        picks="long_text",
    )
    negative_prompt: str = setting(
        "",
        title="Negative prompt",
        help="What to keep out of the image. Only takes effect with guidance above 1, and in models that support it.",
        picks="long_text",
    )
    reference: str = setting(
        "",
        title="Reference image",
        help="For models that edit images: the image that the prompt changes, scaled as in training. Several, if the "
        "model takes them, are separated by ;. For models that animate images: the first frame, cropped to the size of "
        "the video. Empty: none.",
        picks="file",
    )
    enabled: bool = setting(
        True,
        title="Generate this sample",
        help="Switch off to skip this sample without removing it.",
    )
    width: int | None = setting(
        None,
        title="Width",
        help="Empty: the training resolution. The model may round it to a size it supports.",
        unit="pixels",
        ge=8,
        le=8192,
    )
    height: int | None = setting(
        None,
        title="Height",
        help="Empty: the training resolution. The model may round it to a size it supports.",
        unit="pixels",
        ge=8,
        le=8192,
    )
    frames: int | None = setting(
        None,
        title="Frames (video)",
        help="For models of videos: 1 generates an image, more a video as .mp4. The model says which numbers it takes, "
        "such as 1 more than a multiple of 4. Empty: as many as the clips that are trained on.",
        unit="frames",
        ge=1,
        le=1001,
    )
    steps: int = setting(
        20,
        title="Sampling steps",
        help="Number of steps from noise to the image. More is finer and slower; beyond 50 little changes.",
        unit="steps",
        ge=1,
        le=1000,
    )
    guidance_scale: float = setting(
        4.0,
        title="Guidance scale (CFG)",
        help="How strictly the image follows the prompt. 1 switches guidance off, 0 in Z-Image and Krea 2; too much "
        "looks harsh and oversaturated.",
        ge=0,
        le=100,
    )
    seed: int = setting(
        42,
        title="Seed",
        help="Seed of the initial noise. The same seed keeps samples comparable over the whole run.",
        ge=0,
        le=2**63 - 1,
    )

    @property
    def reference_files(self) -> tuple[str, ...]:
        """The reference images, as they are written."""
        return split_paths(self.reference)

    @field_validator("reference", mode="before")
    @classmethod
    def _of_files(cls, value: object) -> object:
        """Also as a list."""
        return join_paths(value)


class SamplingSettings(Section):
    """Which sample images are generated and how often."""

    section_title: ClassVar[str] = "Sampling"

    samples: tuple[Sample, ...] = setting(
        (),
        title="Samples",
        help="Images generated with the current model, to see what it has learned so far.",
    )
    sample_every: Interval = setting(
        Interval.never(),
        title="Sample every",
        help="How often samples are generated. Training pauses meanwhile.",
        depends_on="samples",
    )
