"""Length, batch size and precision of training."""

from __future__ import annotations

from typing import ClassVar, Literal

from modules.config.interval import Interval
from modules.config.section import Section, setting


class TrainingSettings(Section):
    """Length of the run, batch size, precision, EMA and validation."""

    section_title: ClassVar[str] = "Training"

    seed: int = setting(
        42,
        title="Seed",
        help="Fixes every random choice. The same seed and settings give the same training again; with a fixed "
        "global batch size on any number of GPUs.",
        ge=0,
        le=2**63 - 1,
        resume="warn",
    )
    epochs: int = setting(
        10,
        title="Epochs",
        help="How often training goes through all images. “Maximum steps” ends the run earlier if it is less.",
        unit="epochs",
        ge=1,
        le=1_000_000,
    )
    max_steps: int | None = setting(
        None,
        title="Maximum steps",
        help="Ends the run after this many steps, even if epochs are left. The epochs end it earlier if they are "
        "fewer. Empty: only the epochs count.",
        empty="no limit",
        unit="steps",
        ge=1,
        le=1_000_000_000,
    )
    max_minutes: float | None = setting(
        None,
        title="Time limit",
        help="After so many minutes of a start the run backs up and pauses, as if it had received SIGUSR1; --resume "
        "latest continues it. For computers and queues that are yours for a while. Allow for the backup. Empty: no "
        "limit.",
        unit="minutes",
        empty="no limit",
        gt=0,
        le=1_000_000,
    )
    batch_size: int = setting(
        1,
        title="Batch size per GPU",
        help="How many images one GPU processes at once. Larger is faster and more stable until the memory is "
        "full; scripts/find_batch_size.py, or Find the largest batch (Multi-GPU) in the window, finds how many fit.",
        unit="images",
        ge=1,
        le=65_536,
    )
    gradient_accumulation_steps: int = setting(
        1,
        title="Gradient accumulation steps",
        help="Adds up the gradients of this many batches before the model is updated once: the effect of a larger "
        "batch without its memory, but slower. With a fixed global batch size it is the minimum number of batches "
        "each GPU's share is split into.",
        unit="batches",
        ge=1,
        le=65_536,
    )
    global_batch_size: int | None = setting(
        None,
        title="Global batch size (fixed)",
        help="How many images one step uses over all GPUs together. If set, the result is the same on any number of "
        "GPUs and the learning rate is not scaled. Empty: batch size x GPUs x gradient accumulation steps.",
        unit="images",
        ge=1,
        le=16_777_216,
        resume="checked",
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp64"] = setting(
        "fp32",
        title="Precision",
        help="Number format of the computation. bf16: less memory and much faster on current GPUs, the usual choice "
        "there. fp16: the same for older GPUs, less robust. fp32: exact and slow. tf32: a faster fp32 on NVIDIA GPUs "
        "since 2020, which bf16 and fp16 use as well for what stays in fp32, such as the autoencoder. fp64: only for "
        "checks.",
        resume="warn",
    )
    max_grad_norm: float | None = setting(
        1.0,
        title="Gradient clipping (maximum norm)",
        help="Limits how far one step may change the model, so that a single unusual image cannot ruin it. Smaller "
        "is more careful; empty switches it off.",
        gt=0,
        le=1_000_000_000,
        resume="warn",
        empty="off",
    )
    ema: bool = setting(
        False,
        title="EMA (averaged weights)",
        help="Keeps an exponential moving average of the weights, which is used for samples and the result and is "
        "usually smoother. Takes the memory of one more copy of what is trained.",
        resume="warn",
    )
    ema_decay: float = setting(
        0.999,
        title="EMA decay",
        help="How long the average remembers: 0.999 covers about 1,000 steps, 0.9999 about 10,000. Short runs need "
        "less.",
        advanced=True,
        depends_on="ema",
        ge=0,
        lt=1,
        resume="warn",
    )
    ema_update_every: int = setting(
        1,
        title="EMA interval",
        help="Updates the average after every so many steps, as strongly as in all of them together. 10 costs a tenth "
        "of the time and is hardly different.",
        unit="steps",
        advanced=True,
        depends_on="ema",
        ge=1,
        le=10_000,
        resume="warn",
    )
    ema_on_cpu: bool = setting(
        False,
        title="EMA in host memory",
        help="Keeps the average in the computer's memory instead of the GPU's. Every update copies the weights there, "
        "and the processor averages them during the next step: raise the interval if that takes longer. While samples "
        "are drawn the two change places.",
        advanced=True,
        depends_on="ema",
    )
    ema_reference_batch_size: int | None = setting(
        None,
        title="EMA reference batch size",
        help="The effective batch size that the decay is meant for. With a larger one the average remembers fewer "
        "steps, so that it covers as many images: the decay is raised to the power of effective batch / reference. "
        "Empty: the decay counts steps, whatever the batch.",
        unit="images",
        advanced=True,
        depends_on="ema",
        ge=1,
        le=16_777_216,
        resume="warn",
        empty="none",
    )
    channels_last: bool = setting(
        False,
        title="Channels-last memory format",
        help="Another memory layout of image data that makes convolutional networks such as a UNet faster, often by "
        "a lot. The result differs only by rounding.",
        advanced=True,
    )
    compile: bool = setting(
        False,
        title="torch.compile (faster steps)",
        help="Compiles the model to faster code when training starts. The first steps take minutes, later ones are "
        "faster; worth it for long runs.",
        advanced=True,
    )
    attention_backend: Literal["auto", "cudnn", "math"] = setting(
        "auto",
        title="Attention backend",
        titles={"auto": "Automatic", "cudnn": "cuDNN as well", "math": "No fused kernels"},
        help="Which of PyTorch's kernels compute attention on a GPU. auto: FlashAttention, or the memory-efficient "
        "kernels where it cannot be used, such as with a mask. cudnn: cuDNN's as well, which PyTorch prefers on H100 "
        "and newer GPUs; they are faster, but versions of 2025 and 2026 return wrong gradients for some lengths and "
        "masks. math: without fused kernels, slow and exact to rounding.",
        advanced=True,
        resume="warn",
    )
    gradient_checkpointing: bool = setting(
        False,
        title="Gradient checkpointing (saves memory)",
        help="Discards activations and recomputes them in the backward pass: much less GPU memory, about a third "
        "slower, same result.",
    )
    probe_memory: Literal["auto", "on", "off"] = setting(
        "auto",
        title="Memory probe before the first step",
        titles={"auto": "Automatic"},
        help="Before the first step, the largest micro-batch is computed once for nothing, with room for the "
        "optimizer's state. If it does not fit, all GPUs take smaller ones and the effective batch stays. auto: "
        "on GPUs. on: always. off: never. Changes nothing in the result. Not with training mode fully_sharded.",
        advanced=True,
    )
    max_nonfinite_steps: int = setting(
        10,
        title="Maximum consecutive non-finite steps",
        help="A step whose gradients overflow is skipped. After this many in a row the run ends and names the last "
        "good backup.",
        unit="steps",
        advanced=True,
        ge=1,
        le=1_000_000,
    )
    validate_every: Interval = setting(
        Interval.never(),
        title="Validate every",
        help="How often the loss on the validation images is measured. Rising validation loss with falling training "
        "loss means that the model is starting to overfit.",
    )
    early_stopping_patience: int | None = setting(
        None,
        title="Early stopping patience",
        help="Ends the run after this many validations in a row without improvement, and keeps the weights of the best "
        "one. Needs validation images and a validation interval. Empty: never stop early.",
        unit="validations",
        advanced=True,
        depends_on="validate_every",
        ge=1,
        le=1_000_000,
        empty="never",
    )
    early_stopping_metric: str = setting(
        "loss",
        title="Early stopping metric",
        help="Which number of the validation says whether the model has improved: loss, or one that the model family "
        "measures as well, such as accuracy or top5_accuracy of classifiers. It also decides which weights are the "
        "best.",
        advanced=True,
        depends_on="validate_every",
        min_length=1,
    )
    early_stopping_mode: Literal["auto", "min", "max"] = setting(
        "auto",
        title="Early stopping mode",
        titles={"auto": "Automatic", "min": "Minimum", "max": "Maximum"},
        help="min: lower is better. max: higher is better. auto: lower for losses and errors, higher for accuracies.",
        advanced=True,
        depends_on="validate_every",
    )
    early_stopping_min_delta: float = setting(
        0.0,
        title="Early stopping minimum change",
        help="A validation counts as an improvement only if it is better than the best one by more than this, in "
        "units of the metric: 0.001 is a tenth of a percent of accuracy.",
        advanced=True,
        depends_on="validate_every",
        ge=0,
        le=1_000_000,
    )
    restore_best: bool = setting(
        False,
        title="Restore the best weights at the end",
        help="The weights of the best validation, rather than the last ones, are tested, shown in the last samples and "
        "saved as the model. The last backup still holds the last ones. With a run that has ended: resume it with this "
        "switched on.",
        depends_on="validate_every",
    )


def better_direction(metric: str, mode: Literal["auto", "min", "max"]) -> Literal["min", "max", ""]:
    """Whether lower or higher values of a validation's metric are better; empty if only the user can know."""
    if mode != "auto":
        return mode
    if "accuracy" in metric:
        return "max"
    return "min" if "loss" in metric or "error" in metric else ""
