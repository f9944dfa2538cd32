"""One part of a model family's model, and how it takes part in training."""

from __future__ import annotations

from typing import ClassVar, Literal

from modules.config.interval import Interval
from modules.config.section import Section, setting


class Part(Section):
    """A part of the model, such as its UNet or a text encoder."""

    section_title: ClassVar[str] = "Part"

    part: str = setting(
        ...,
        title="Part",
        help="The name of the part, such as unet, text_encoder or text_encoder_2. Which parts there are, the "
        "model family says.",
        min_length=1,
        resume="checked",
    )
    train: bool = setting(
        True,
        title="Train this part",
        help="Switch off to leave this part as it is.",
        resume="checked",
    )
    learning_rate: float | None = setting(
        None,
        title="Its learning rate",
        help="Text encoders usually want less than the UNet, about half. Schedule, warm-up and the scaling with the "
        "number of GPUs hold for it, too. Empty: the learning rate of the run.",
        depends_on="train",
        gt=0,
        le=10,
        resume="told",
    )
    stop_after: Interval = setting(
        Interval.never(),
        title="Stop training it after",
        help="From then on this part stays as it is while the others go on; text encoders learn by heart sooner. In "
        "steps or epochs, such as 500 steps or 3 epochs.",
        depends_on="train",
        resume="told",
    )
    weights: Literal["run", "fp32", "bf16", "fp16"] = setting(
        "run",
        title="Format of frozen weights",
        help="How exactly weights that do not change are kept. bf16 and fp16 halve their memory and need the same "
        "precision for the run, or the other of the two. run and fp32: as exactly as everything else. What is trained "
        "is always kept exactly.",
        advanced=True,
        resume="told",
    )
