"""Settings that several optimizers share."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from pydantic import Field

from modules.config.section import setting

Beta = Annotated[float, Field(ge=0, lt=1)]
PositiveBeta = Annotated[float, Field(gt=0, lt=1)]

BETAS: Final = (
    "Decay rates of the running averages: first of the gradient (momentum), then of its square. Closer to 1 is "
    "smoother and slower to react."
)
betas_setting = partial(setting, title="Betas", help=BETAS, advanced=True, resume="warn")
eps_setting = partial(
    setting,
    title="Epsilon",
    help="A small number that keeps the optimizer from dividing by zero. Rarely worth changing.",
    advanced=True,
    gt=0,
    le=1,
    resume="warn",
)
weight_decay_setting = partial(
    setting,
    title="Weight decay",
    help="Pulls all weights slightly towards zero at every step, which reduces overfitting. 0 switches it off.",
    ge=0,
    le=10,
    resume="warn",
)
fused_setting = partial(
    setting,
    title="Fused optimizer step",
    help="Runs the whole update in one kernel: slightly faster, same result. It also skips a non-finite step without "
    "waiting for the GPU.",
    advanced=True,
)
foreach_setting = partial(
    setting,
    title="Foreach optimizer step",
    help="Without the fused step, GPUs update all weights at once instead of one after the other: faster, with memory "
    "for one more copy of what is trained. Same result.",
    advanced=True,
    depends_on="!fused",
)
clip_threshold_setting = partial(
    setting,
    title="Clip threshold",
    help="Scales down a step that would change the weights by more than this on average. Smaller is more careful.",
    advanced=True,
    gt=0,
    le=1000,
    resume="warn",
)
