"""The pictures and the way they reach the model."""

from __future__ import annotations

from typing import ClassVar

from modules.config.concept import Concept
from modules.config.section import Section, setting


class DataSettings(Section):
    """Picture folders, size, cache and loading."""

    section_title: ClassVar[str] = "Data"

    concepts: tuple[Concept, ...] = setting(
        (),
        title="Concepts",
        help="The folders of pictures to learn from. Each has its own captions, repeats and variations.",
        resume="told",
    )
    resolution: int = setting(
        512,
        title="Resolution",
        help="The size pictures are scaled to: the side of a square with the same area. Larger shows more "
        "detail; twice the size needs about four times the memory and time.",
        unit="pixels",
        ge=8,
        le=8192,
        resume="told",
    )
    aspect_ratio_bucketing: bool = setting(
        True,
        title="Keep aspect ratios",
        help="Groups pictures of similar shape and trains each group in its own shape, so that little is "
        "cut away. Off: every picture is cut to a square.",
        resume="told",
    )
    cache_dir: str = setting(
        "cache",
        title="Cache folder",
        help="Pictures and captions are prepared once and kept here, which saves time at the next start. "
        "It can be deleted whenever no run uses it. A relative path is read from the folder you start "
        "Tandem in.",
        picks="folder",
        min_length=1,
    )
    cache_only: bool = setting(
        False,
        title="Only prepare the pictures",
        help="Fills the cache and ends without training, for example on a cheaper machine; the training that "
        "follows starts at once.",
        advanced=True,
    )
    cache_batch_size: int | None = setting(
        None,
        title="Prepared at once",
        help="How many pictures are prepared together. More keeps a fast GPU busier and takes more memory; when "
        "that is not enough, Tandem goes on with half as many. Empty: on a GPU as many as make up a megapixel, such "
        "as 4 at resolution 512 and 1 at 1024; on a CPU 1, which is as fast.",
        unit="pictures",
        advanced=True,
        ge=1,
        le=256,
    )
    validation_split: float = setting(
        0.0,
        title="Validation share",
        help="The share of the training pictures that is set aside, never learned from, and used to "
        "measure progress. 0.1 sets one in ten aside; 0 none.",
        ge=0,
        le=0.5,
        resume="told",
    )
    caption_dropout: float = setting(
        0.0,
        title="Caption dropout",
        help="The chance with which a picture is shown without its caption. About 0.1 makes guidance work "
        "better when sampling; 0 always shows the caption.",
        ge=0,
        le=1,
        resume="told",
    )
    masked_training: bool = setting(
        False,
        title="Masked training",
        help="Learns mainly from the white part of each picture's mask, for example the person and not "
        "the room. Pictures without a mask are learned whole.",
        resume="told",
    )
    unmasked_weight: float = setting(
        0.1,
        title="Weight outside the mask",
        help="How much the black part of a mask still counts. 0 ignores it, 1 counts it like the rest; a "
        "little keeps the surroundings from falling apart.",
        advanced=True,
        depends_on="masked_training",
        ge=0,
        le=1,
        resume="told",
    )
    loader_workers: int = setting(
        2,
        title="Loader processes",
        help="How many helper processes per GPU get pictures ready while the GPU computes. More helps "
        "when the GPU waits for data; each takes memory. 0 loads in the training process itself.",
        unit="processes",
        advanced=True,
        ge=0,
        le=256,
    )
    pin_memory: bool = setting(
        True,
        title="Pinned memory",
        help="Keeps pictures that are ready in memory the GPU can fetch directly: faster copies for some "
        "more RAM. No effect without a GPU.",
        advanced=True,
    )
    prefetch_factor: int = setting(
        2,
        title="Batches ready ahead",
        help="How many batches each loader process prepares in advance. More evens out slow disks and "
        "takes more memory.",
        unit="batches",
        advanced=True,
        depends_on="loader_workers",
        ge=1,
        le=64,
    )
    persistent_workers: bool = setting(
        True,
        title="Keep loader processes",
        help="Keeps the loader processes running from one epoch to the next instead of starting new ones, "
        "which saves a pause between epochs.",
        advanced=True,
        depends_on="loader_workers",
    )
    drop_last: bool = setting(
        False,
        title="Drop the short step",
        help="The last step of an epoch may have fewer pictures than the others. On leaves it out, so all "
        "steps are equally large but some pictures are missed in that epoch.",
        advanced=True,
        resume="told",
    )


def uneven_resolution(resolution: object, family: str, step: int) -> list[tuple[str, str]]:
    """For a resolution that is no multiple of the family's `step`: the field and the rest of the sentence."""
    if not isinstance(resolution, int) or resolution % step == 0:
        return []
    nearest = max(step, round(resolution / step) * step)
    return [("resolution", f"is {resolution}; {family} needs a multiple of {step}, for example {nearest}")]
