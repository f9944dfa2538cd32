"""How long, how large and how exactly."""

from __future__ import annotations

from typing import ClassVar, Literal

from modules.config.interval import Interval
from modules.config.section import Section, setting


class TrainingSettings(Section):
    """Length of the run, batch size, precision, averaging and validation."""

    section_title: ClassVar[str] = "Training"

    seed: int = setting(
        42,
        title="Seed",
        help="Fixes every random choice. The same seed and settings give the same training again; with a "
        "fixed effective batch on any number of GPUs.",
        ge=0,
        le=2**63 - 1,
        resume="told",
    )
    epochs: int = setting(
        10,
        title="Epochs",
        help="How often the training goes through all pictures.",
        unit="epochs",
        ge=1,
        le=1_000_000,
    )
    max_steps: int | None = setting(
        None,
        title="Stop after steps",
        help="Ends the run after so many steps, even if epochs are left. Empty: only the epochs count.",
        unit="steps",
        ge=1,
        le=1_000_000_000,
    )
    batch_size: int = setting(
        1,
        title="Batch size per GPU",
        help="How many pictures one GPU works on at once. Larger is faster and steadier until the memory is full.",
        unit="pictures",
        ge=1,
        le=65_536,
    )
    gradient_accumulation_steps: int = setting(
        1,
        title="Accumulate batches",
        help="Adds up so many batches before the model is changed once: the effect of a larger batch "
        "without its memory, but it takes longer. With a fixed effective batch it is the least number of "
        "parts each GPU's share is cut into.",
        unit="batches",
        ge=1,
        le=65_536,
    )
    global_batch_size: int | None = setting(
        None,
        title="Fixed effective batch",
        help="How many pictures count for one step over all GPUs together. With it the result is the same "
        "on any number of GPUs and the learning rate is not scaled. Empty: batch size x GPUs x "
        "accumulated batches.",
        unit="pictures",
        ge=1,
        le=16_777_216,
        resume="checked",
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp64"] = setting(
        "fp32",
        title="Precision",
        help="How exactly the computer calculates. bf16: less memory and much faster on current GPUs, the "
        "usual choice there. fp16: the same for older GPUs, less robust. fp32: exact and slow. tf32: a "
        "faster fp32 on NVIDIA GPUs since 2020. fp64: only for checks.",
        resume="told",
    )
    max_grad_norm: float | None = setting(
        1.0,
        title="Gradient clipping",
        help="Limits how far one step may change the model, so that a single odd picture cannot ruin it. "
        "Smaller is more careful; empty switches it off.",
        gt=0,
        le=1_000_000_000,
        resume="told",
    )
    ema: bool = setting(
        False,
        title="Average the model (EMA)",
        help="Keeps a running average of the model, which is used for samples and the result and is "
        "usually smoother. Takes the memory of one more copy of what is trained.",
        resume="told",
    )
    ema_decay: float = setting(
        0.999,
        title="EMA decay",
        help="How long the average remembers: 0.999 looks back about 1,000 steps, 0.9999 about 10,000. "
        "Short runs want less.",
        advanced=True,
        depends_on="ema",
        ge=0,
        lt=1,
        resume="told",
    )
    channels_last: bool = setting(
        False,
        title="Channels-last memory",
        help="Another order of the picture data in memory that makes convolution networks such as a UNet "
        "faster, often by a lot. The result differs only by rounding.",
        advanced=True,
    )
    compile: bool = setting(
        False,
        title="Compile the model",
        help="Translates the model into faster code when training starts. The first steps take minutes, "
        "the later ones are faster; worth it for long runs.",
        advanced=True,
    )
    gradient_checkpointing: bool = setting(
        False,
        title="Save memory by recomputing",
        help="Forgets intermediate results and computes them again when needed: much less GPU memory, "
        "about a third slower, same result.",
    )
    max_nonfinite_steps: int = setting(
        10,
        title="Broken steps tolerated",
        help="A step whose numbers overflow is skipped. After so many in a row the run ends and names the "
        "last good backup.",
        unit="steps",
        advanced=True,
        ge=1,
        le=1_000_000,
    )
    validate_every: Interval = setting(
        Interval.never(),
        title="Validate every",
        help="How often the loss on the validation pictures is measured. Rising validation loss with "
        "falling training loss means the model begins to learn by heart.",
    )
    early_stopping_patience: int | None = setting(
        None,
        title="Stop when no better",
        help="Ends the run when so many validations in a row brought no improvement. Needs validation "
        "pictures and a validation interval. Empty: never stop early.",
        unit="validations",
        advanced=True,
        depends_on="validate_every",
        ge=1,
        le=1_000_000,
    )
