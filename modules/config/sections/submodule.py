"""One submodule of the model, such as the UNet, and how it is trained."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from modules.config.interval import Interval
from modules.config.section import Section, setting

QUANTISED: Final = ("int8", "fp8", "nf4")  # the `weights` that are no dtypes


class SubmoduleSettings(Section):
    """A submodule of the model, such as its UNet or a text encoder."""

    section_title: ClassVar[str] = "Submodule"

    part: str = setting(
        ...,
        title="Submodule",
        help="The name of the submodule, a network that is part of the model, such as unet, text_encoder or "
        "text_encoder_2. The model family defines which ones there are.",
        min_length=1,
        resume="checked",
    )
    train: bool = setting(
        True,
        title="Train this submodule",
        help="Switch off to keep this submodule frozen.",
        resume="checked",
    )
    learning_rate: float | None = setting(
        None,
        title="Learning rate of this submodule",
        help="Text encoders usually need less than the UNet, about half. Schedule, warm-up and multi-GPU scaling "
        "apply to it as well. With prodigy a factor such as 0.5, next to the run's 1. Empty: the run's learning rate.",
        depends_on="train",
        gt=0,
        le=10,
        resume="warn",
    )
    stop_after: Interval = setting(
        Interval.never(),
        title="Stop training after",
        help="From then on this submodule is frozen while the others continue; text encoders overfit sooner. In "
        "steps or epochs, such as 500 steps or 3 epochs.",
        depends_on="train",
        resume="warn",
    )
    weights: Literal["run", "fp32", "bf16", "fp16", "int8", "fp8", "nf4"] = setting(
        "run",
        title="Frozen weights precision (dtype)",
        titles={"run": "As the run"},
        help="Precision in which weights that are not trained are kept. bf16 and fp16 halve their memory and need "
        "precision bf16 or fp16 for the run. int8, fp8 and nf4 (4 bits) quantise the linear layers under an adapter "
        "to a quarter and an eighth of fp32, at a small loss of precision and some speed. run: the same as "
        "everything else, and so is fp32. Weights that are trained always keep full precision.",
        advanced=True,
        resume="warn",
    )
