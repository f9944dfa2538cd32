"""What saves memory at the cost of time or of some precision."""

from __future__ import annotations

from typing import ClassVar

from modules.config.section import Section, setting


class MemorySettings(Section):
    """Ways to train models that are large for the GPU."""

    section_title: ClassVar[str] = "Memory"

    stochastic_rounding: bool = setting(
        False,
        title="Stochastic rounding (bf16 weights)",
        help="For fine_tune: keeps the trained weights of linear and convolution layers and their gradients in bf16, "
        "half of their memory. Each update is computed in fp32 and rounded up or down at random, so that small "
        "updates count on average, where plain bf16 would lose them. Needs precision bf16. Gradients of several "
        "micro-batches and GPUs are added up in bf16.",
        advanced=True,
        resume="warn",
    )
    fused_backward: bool = setting(
        False,
        title="Fused backward (optimizer step in the backward pass)",
        help="Updates each weight as soon as its gradient is known and frees the gradient, so that never all of them "
        "are in memory. Same result. Needs one GPU, no gradient accumulation, and Gradient clipping left empty.",
        advanced=True,
    )
    block_offload: float = setting(
        0.0,
        title="Block offload (fraction in host memory)",
        help="For adapters: so many of the model's blocks keep their frozen linear layers in host "
        "memory. Each is copied to the GPU while the one before it computes, forwards and backwards; 1 offloads all "
        "blocks, of which two are on the GPU at a time. Same result, slower if blocks are small or the link is. "
        "0: none.",
        advanced=True,
        ge=0,
        le=1,
    )
