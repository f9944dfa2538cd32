"""The options of a classifier: its network, its classes, and how its images are augmented."""

from __future__ import annotations

from typing import Literal

from modules.classification.augment import MAX_MAGNITUDE
from modules.classification.mixing import MAX_ALPHA
from modules.config import Section, setting

ARCHITECTURE_OPTIONS = frozenset({"network", "norm", "width"})  # fixed once a model is trained


class ClassifierOptions(Section):
    """`family_options` of this family."""

    network: str = setting(
        "cifar_resnet20",
        title="Network",
        help="cifar_resnet20, 32, 44, 56 or 110: residual networks for small images. Any other name is a model of "
        "timm, such as resnet50 or vit_small_patch16_224, if that package is installed.",
        min_length=1,
        resume="fixed",
    )
    width: int = setting(
        16,
        ge=4,
        le=1024,
        title="Width (channels)",
        help="Channels of the first stage of a cifar_resnet. Twice the width takes about four times as long.",
        resume="fixed",
    )
    norm: Literal["batch", "group"] = setting(
        "batch",
        title="Normalisation",
        help="Of a cifar_resnet. batch: BatchNorm, whose result depends on batch_size. group: GroupNorm, which is the "
        "same for any batch_size and number of GPUs.",
        resume="fixed",
    )
    pretrained: bool = setting(
        False,
        title="Pretrained weights",
        help="Start from timm's weights for this network, which are downloaded once.",
        resume="fixed",
    )
    freeze_batch_norm: bool = setting(
        False,
        title="Freeze BatchNorm statistics",
        help="Keeps the means and variances of BatchNorm layers as base_model or the pretrained weights have them "
        "(eval mode) and trains only their scale and shift. For fine-tuning with small batches: the result then "
        "does not depend on batch_size or the number of GPUs.",
        advanced=True,
        resume="warn",
    )
    classes: str = setting(
        "",
        title="Classes",
        help="Names of the classes, one per line, in the order of the network's outputs. Empty: those of the training "
        "images, sorted.",
        advanced=True,
        picks="long_text",
        resume="fixed",
    )
    crop_padding: int = setting(
        0,
        ge=0,
        le=256,
        title="Random crop with padding",
        help="Pads each training image by this much on all sides and crops it to its size at random; 4 is usual for "
        "images of 32 pixels.",
        unit="pixels",
        resume="warn",
    )
    rand_augment: int = setting(
        0,
        ge=0,
        le=8,
        title="RandAugment operations",
        help="How many random operations (rotation, shear, shift, contrast and others) change each training image; 2 "
        "is usual, 0 none.",
        resume="warn",
    )
    rand_augment_magnitude: float = setting(
        5.0,
        ge=0,
        le=MAX_MAGNITUDE,
        title="RandAugment magnitude",
        help="How strong these operations are, from 0 to 10.",
        depends_on="rand_augment",
        resume="warn",
    )
    random_erasing: float = setting(
        0.0,
        ge=0,
        le=1,
        title="Random erasing",
        help="Probability of covering a random rectangle of a training image with noise; 0.25 is usual.",
        resume="warn",
    )
    mixup: float = setting(
        0.0,
        ge=0,
        le=MAX_ALPHA,
        title="Mixup alpha",
        help="Blends each training image with another of its step; the larger, the more evenly. 0.2 is usual, 0 off.",
        resume="warn",
    )
    cutmix: float = setting(
        0.0,
        ge=0,
        le=MAX_ALPHA,
        title="CutMix alpha",
        help="Replaces a rectangle of each training image by that of another one of its step. 1 is usual, 0 off. "
        "Together with mixup, each step uses one of the two.",
        resume="warn",
    )
    label_smoothing: float = setting(
        0.0,
        ge=0,
        lt=1,
        title="Label smoothing",
        help="This part of each label is spread over all classes, which makes the model less certain; 0.1 is usual. "
        "Validation does without it.",
        resume="warn",
    )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The lines of `classes` that are not empty."""
        return tuple(name.strip() for name in self.classes.split("\n") if name.strip())
