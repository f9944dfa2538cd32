"""Which settings the ways to save memory do not go with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from modules.config.interval import Interval
from modules.config.sections.optimizers import OPTIMIZERS, Optimizer


class _Settings(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def optimizer(self) -> Optimizer: ...
    @property
    def training_mode(self) -> str: ...
    @property
    def enable_multi_gpu(self) -> bool: ...
    @property
    def world_size(self) -> int | None: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def device_ids(self) -> Sequence[int] | None: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def gradient_accumulation_steps(self) -> int: ...
    @property
    def global_batch_size(self) -> int | None: ...
    @property
    def max_grad_norm(self) -> float | None: ...
    @property
    def histograms_every(self) -> Interval: ...
    @property
    def stochastic_rounding(self) -> bool: ...
    @property
    def fused_backward(self) -> bool: ...
    @property
    def block_offload(self) -> float: ...
    @property
    def compile(self) -> bool: ...


def memory_rules(config: _Settings) -> list[tuple[str, str]]:
    """Pairs of a setting and the rest of a sentence about it."""
    rules = []
    if config.stochastic_rounding:
        rules += [("stochastic_rounding", f"is true, but {reason}") for reason in _against_rounding(config)]
    if config.fused_backward:
        rules += [("fused_backward", f"is true, but {reason}") for reason in _against_fusing(config)]
    if config.block_offload:
        rules += [
            ("block_offload", f"is {config.block_offload:g}, but {reason}") for reason in _against_offload(config)
        ]
    return rules


def _against_offload(config: _Settings) -> list[str]:
    found = []
    if config.method == "fine_tune":
        found.append("fine_tune trains the blocks themselves; set it to 0, or method to lora")
    if config.compile:
        found.append("compile is true, and compiled blocks cannot ask for their weights; set one of them back")
    if config.training_mode in ("fully_sharded", "data_parallel"):
        found.append(
            f"training_mode {config.training_mode} moves weights itself; set it to 0, or training_mode to auto"
        )
    return found


def _against_rounding(config: _Settings) -> list[str]:
    found = []
    if config.precision != "bf16":
        found.append(f"precision is {config.precision}; set precision to bf16, or switch it off")
    if config.method != "fine_tune":
        found.append(
            f"method {config.method} trains few weights, which stay in fp32; switch it off, and set parts.N.weights "
            "for the frozen ones"
        )
    name = config.optimizer.name
    if not config.optimizer.per_parameter_step or name == "schedule_free_adamw":
        reason = (
            "keeps its average in the weights"
            if name == "schedule_free_adamw"
            else "needs the step of all weights at once"
        )
        usable = ", ".join(
            name for name, kind in OPTIMIZERS.items() if kind.per_parameter_step and name != "schedule_free_adamw"
        )
        found.append(f"the optimizer {name} {reason}; use one of {usable}, or switch it off")
    return found


def _against_fusing(config: _Settings) -> list[str]:
    found = []
    several = config.world_size if config.world_size is not None else len(config.device_ids or ()) * config.num_nodes
    is_split = max(several, config.num_nodes) > 1 or config.training_mode in ("fully_sharded", "data_parallel")
    if config.enable_multi_gpu and is_split:
        found.append("gradients of several GPUs are summed before they are applied; switch it off, or train on one GPU")
    if config.max_grad_norm is not None:
        found.append(
            f"max_grad_norm is {config.max_grad_norm:g}, and the norm is known only when all gradients are; leave "
            "max_grad_norm empty"
        )
    parts = config.gradient_accumulation_steps
    if parts > 1:
        found.append(
            f"gradient_accumulation_steps is {parts}, which keeps all gradients from batch to batch; set it to 1"
        )
    elif config.global_batch_size is not None and config.global_batch_size > config.batch_size:
        found.append(
            f"global_batch_size {config.global_batch_size} is above batch_size {config.batch_size}, so gradients are "
            "kept from batch to batch; leave global_batch_size empty"
        )
    if config.precision == "fp16":
        found.append("precision is fp16, whose loss scale is checked on all gradients; use bf16")
    if config.histograms_every:
        found.append(
            f"histograms_every is {config.histograms_every}, and no gradient is left to count; set it to never"
        )
    if not config.optimizer.per_parameter_step:
        usable = ", ".join(name for name, kind in OPTIMIZERS.items() if kind.per_parameter_step)
        found.append(
            f"the optimizer {config.optimizer.name} needs the gradients of all weights at once; use one of {usable}"
        )
    return found
