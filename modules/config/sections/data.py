"""The images and how they are loaded."""

from __future__ import annotations

from typing import ClassVar, Literal

from modules.config.section import LocalFolder, Section, setting
from modules.config.sections.concept import Concept


class DataSettings(Section):
    """Image folders, size, cache and loading."""

    section_title: ClassVar[str] = "Data"

    concepts: tuple[Concept, ...] = setting(
        (),
        title="Concepts",
        help="The folders of images to train on. Each has its own captions, repeats and variations.",
        resume="warn",
    )
    resolution: int = setting(
        512,
        title="Resolution",
        help="The size images are scaled to: the side of a square of the same area. Larger shows more detail; twice "
        "the size needs about four times the memory and time.",
        unit="pixels",
        ge=8,
        le=8192,
        resume="warn",
    )
    aspect_ratio_bucketing: bool = setting(
        True,
        title="Aspect ratio bucketing",
        help="Groups images of similar aspect ratio and trains each group in its own shape, so that little is "
        "cropped. Off: every image is cropped to a square.",
        resume="warn",
    )
    no_upscale: bool = setting(
        False,
        title="Never enlarge images",
        help="Trains images that are smaller than the resolution at their own size, in steps, instead of enlarging "
        "them. Small images of many sizes make small batches.",
        resume="warn",
    )
    bucket_step: int | None = setting(
        None,
        title="Step of sizes",
        help="The sides of the sizes that images are trained at are multiples of this, and of what the model needs. "
        "More makes fewer different sizes. Empty: what the model needs.",
        unit="pixels",
        empty="what the model needs",
        advanced=True,
        ge=1,
        le=1024,
        resume="warn",
    )
    largest_aspect: float = setting(
        4.0,
        title="Largest aspect ratio",
        help="Images are trained in shapes of up to this ratio of the long to the short side; longer ones are cropped "
        "to it.",
        depends_on="aspect_ratio_bucketing",
        advanced=True,
        ge=1,
        le=4,
        resume="warn",
    )
    fewer_buckets: bool = setting(
        False,
        title="Fewer shapes",
        help="On: up to 17 shapes instead of 25, as in Tandem up to 0.3.0. More images share a shape, which fills the "
        "batches of a small set, and more of each image is cropped.",
        depends_on="aspect_ratio_bucketing",
        advanced=True,
        resume="warn",
    )
    frames: int = setting(
        17,
        title="Frames of a clip",
        help="Videos are trained as clips of at most this many frames, shorter ones of as many as they fill; 1 trains "
        "one frame of each, as an image. The family says which numbers it takes, such as 1, 5, 9, 13 and so on. Memory "
        "and time grow faster than the number. Only for families that train on videos.",
        unit="frames",
        ge=1,
        le=1025,
        resume="warn",
    )
    fps: float = setting(
        0.0,
        title="Frames per second",
        help="Videos are trained at this rate: of each moment, the frame that is nearest in time. 0: the rate that the "
        "model was trained at, such as 16. Only for families that train on videos.",
        unit="per second",
        ge=0,
        le=240,
        resume="warn",
    )
    clips: Literal["start", "uniform", "random"] = setting(
        "start",
        title="Clips of a video",
        help="Which part of a longer video is trained on. start: its beginning. uniform: as many clips as the concept "
        "has cached variations, 4 unless it says otherwise, from the beginning to the end; without the cache, one of "
        "them at each visit. random: any, drawn anew at each visit; with the cache, from as many. Validation has the "
        "beginning. Only for families that train on videos.",
        resume="warn",
    )
    cache_dir: LocalFolder = setting(
        "cache",
        title="Cache folder",
        help="Images and captions are encoded once and kept here, which saves time at the next start. It can be "
        "deleted while no run uses it. A relative path is resolved from the folder in which you start Tandem.",
        picks="folder",
        min_length=1,
    )
    cache_latents: bool = setting(
        True,
        title="Cache encoded images",
        help="On: each image is encoded once, before training. Off: every image is decoded, cropped, mirrored and, "
        "with colour jitter, coloured anew each time it is trained on, so no two epochs see the same; an autoencoder "
        "then runs in every step, which takes time and GPU memory. Image classifiers never cache.",
        advanced=True,
        resume="warn",
    )
    cache_only: bool = setting(
        False,
        title="Cache only (no training)",
        help="Fills the cache and exits without training, for example on a cheaper machine; the run that trains "
        "later starts at once.",
        advanced=True,
        depends_on="cache_latents",
    )
    cache_batch_size: int | None = setting(
        None,
        title="Caching batch size",
        help="How many images are encoded together. More keeps a fast GPU busier and takes more memory; if memory "
        "runs out, Tandem continues with half as many. Empty: on a GPU as many as make up a megapixel, such as 4 at "
        "resolution 512 and 1 at 1024; on a CPU 1, which is as fast.",
        unit="images",
        advanced=True,
        depends_on="cache_latents",
        ge=1,
        le=256,
    )
    cache_precision: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        title="Precision of cached latents",
        help="The number format in which encoded images are kept in the cache: fp32 as they are, bf16 and fp16 in "
        "half of that and rounded, to 3 digits and to 4; with fp16 an image that has very large values ends the run. "
        "Each format has entries of its own. Captions and masks stay as they are.",
        advanced=True,
        depends_on="cache_latents",
        resume="warn",
    )
    cache_limit: float | None = setting(
        None,
        title="Limit of the cache",
        help="Once a run has cached its images, what no run has used for longest is removed from the cache folder, "
        "until this much is left. What this run or another one that is running uses stays. Empty: no limit.",
        unit="GB",
        empty="no limit",
        advanced=True,
        depends_on="cache_latents",
        gt=0,
        le=1_000_000,
    )
    validation_split: float = setting(
        0.0,
        title="Validation split",
        help="Fraction of the training images that is held out, never trained on, and used to measure progress. 0.1 "
        "holds out one in ten; 0 none.",
        ge=0,
        le=0.5,
        resume="warn",
    )
    caption_dropout: float = setting(
        0.0,
        title="Caption dropout",
        help="Probability of training on an image without its caption. About 0.1 makes guidance work better when "
        "sampling; 0 always uses the caption.",
        ge=0,
        le=1,
        resume="warn",
    )
    reference_resolution: int | None = setting(
        None,
        title="Resolution of references",
        help="The size that reference images are scaled to, whole and in the nearest shape that the model knows: the "
        "side of a square of the same area. Larger shows the model more detail and takes more memory and time. Empty: "
        "as the images that are trained, and at most the model's own.",
        unit="pixels",
        empty="as the images, at most the model's own",
        advanced=True,
        ge=8,
        le=8192,
        resume="warn",
    )
    reference_dropout: float = setting(
        0.0,
        title="Reference dropout",
        help="Probability of training on an image without its reference images, so that the model can still generate "
        "images from texts alone. 0 always shows them.",
        advanced=True,
        ge=0,
        le=1,
        resume="warn",
    )
    masked_training: bool = setting(
        False,
        title="Masked training",
        help="Trains mainly on the white part of each image's mask, for example the person and not the room. Images "
        "without a mask are trained whole.",
        resume="warn",
    )
    unmasked_weight: float = setting(
        0.1,
        title="Unmasked weight",
        help="How much the black part of a mask still counts. 0 ignores it, 1 counts it like the rest; a little "
        "keeps the background from degrading.",
        advanced=True,
        depends_on="masked_training",
        ge=0,
        le=1,
        resume="warn",
    )
    normalize_masked_area_loss: bool = setting(
        False,
        title="Normalize masked area loss",
        help="Off: the smaller the white part of an image's mask, the less the image counts. On: all images count "
        "equally, whatever their masks.",
        advanced=True,
        depends_on="masked_training",
        resume="warn",
    )
    loader_workers: int = setting(
        2,
        title="Data loader workers",
        help="How many worker processes per GPU prepare batches while the GPU computes. More helps if the GPU waits "
        "for data; each takes memory. 0 loads in the training process itself.",
        unit="processes",
        advanced=True,
        ge=0,
        le=256,
    )
    pin_memory: bool = setting(
        True,
        title="Pinned memory",
        help="Keeps batches that are ready in memory the GPU can fetch directly: faster copies for some more RAM. No "
        "effect without a GPU.",
        advanced=True,
    )
    prefetch_factor: int = setting(
        2,
        title="Prefetch factor",
        help="How many batches each worker prepares in advance. More evens out slow disks and takes more memory.",
        unit="batches",
        advanced=True,
        depends_on="loader_workers",
        ge=1,
        le=64,
    )
    persistent_workers: bool = setting(
        True,
        title="Persistent workers",
        help="Keeps the worker processes running from one epoch to the next instead of starting new ones, which "
        "saves a pause between epochs.",
        advanced=True,
        depends_on="loader_workers",
    )
    drop_last: bool = setting(
        False,
        title="Drop last (incomplete) step",
        help="The last step of an epoch may have fewer images than the others. On: it is dropped, so all steps are "
        "equally large but some images are missed in that epoch.",
        advanced=True,
        resume="warn",
    )
    validation_batch_size: int | None = setting(
        None,
        title="Validation batch size",
        help="How many images one GPU measures at once, in validations and in the test at the end. More fit than in "
        "training, because no gradients are needed; what is measured stays the same. Empty: as in training.",
        unit="images",
        advanced=True,
        ge=1,
        le=65_536,
    )
    validation_workers: int | None = setting(
        None,
        title="Validation loader workers",
        help="How many worker processes per GPU prepare the batches of validations and of the test at the end. Empty: "
        "as many as for training.",
        unit="processes",
        advanced=True,
        ge=0,
        le=256,
    )

    rescan: Literal["never", "epoch"] = setting(
        "never",
        title="Look for new images",
        help="epoch: at the end of each epoch, images that came or went and captions that were edited while the run "
        "trained are taken into the next one, on all GPUs, and named. A run that counts epochs gets longer or shorter "
        "with them. never: a run trains on what lay there at its start.",
        advanced=True,
    )

    def resolution_of(self, concept: Concept) -> int:
        """What the concept's images are scaled to, or the first of several."""
        return next(iter(concept.resolution_list), self.resolution)

    @property
    def largest_resolution(self) -> int:
        """The most that any image is scaled to."""
        used = [each.resolution_list or (self.resolution,) for each in self.concepts if each.enabled]
        return max((size for sizes in used for size in sizes), default=self.resolution)

    @property
    def drops_captions(self) -> bool:
        """Whether some sample may be trained on without its caption."""
        return self.caption_dropout > 0 or any(each.enabled and each.caption_dropout for each in self.concepts)


def unsupported_resolution(
    resolution: object, family: str, step: int, field: str = "resolution"
) -> list[tuple[str, str]]:
    """For a resolution that is not a multiple of the family's `step`: the field and the rest of the sentence."""
    if not isinstance(resolution, int) or resolution % step == 0:
        return []
    nearest = max(step, round(resolution / step) * step)
    return [(field, f"is {resolution}; {family} needs a multiple of {step}, for example {nearest}")]
