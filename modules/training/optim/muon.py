"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) with AdamW for what is not a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

_QUINTIC: Final = (3.4445, -4.7750, 2.0315)
_EPS: Final = 1e-8  # of AdamW


class Muon(torch.optim.Optimizer):
    """The momentum of a matrix, orthogonalised, is its step; a convolution [out, in, ...] is the matrix [out, rest].

    Steps are scaled by 0.2 sqrt(max(out, in)), so that they are as large as AdamW's and have its learning rates (Liu et
    al. 2025, arXiv:2502.16982, section 2.2). Biases, norms and other weights of one dimension are AdamW's.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.1,
        ns_steps: int = 5,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "weight_decay": weight_decay, "ns_steps": ns_steps}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                update = _muon if weight.dim() >= 2 else _adam
                weight.add_(update(weight.grad, self.state[weight], group), alpha=-group["lr"])
        return loss


def _muon(gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """Nesterov momentum, orthogonalised and scaled."""
    if not state:
        state["momentum_buffer"] = torch.zeros_like(gradient)
    buffer = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
    matrix = torch.lerp(gradient, buffer, group["momentum"]).flatten(1)
    scale = 0.2 * math.sqrt(max(matrix.shape))
    step: Tensor = orthogonalised(matrix, group["ns_steps"]).to(gradient).view_as(gradient) * scale
    return step


def orthogonalised(matrix: Tensor, steps: int) -> Tensor:
    """About U V^T of `matrix` [m, n] = U S V^T, by Newton-Schulz iterations; in bf16 on GPUs, where that suffices."""
    a, b, c = _QUINTIC
    work = matrix.to(torch.bfloat16) if matrix.is_cuda and matrix.dtype == torch.float32 else matrix
    is_tall = work.shape[0] > work.shape[1]
    work = work.T if is_tall else work
    work = work / (work.norm() + 1e-7)
    for _ in range(steps):
        square = work @ work.T
        work = a * work + (b * square + c * square @ square) @ work
    step: Tensor = work.T if is_tall else work
    return step


def _adam(gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """Adam's step, corrected for its start."""
    if not state:
        state.update(step=0, exp_avg=torch.zeros_like(gradient), exp_avg_sq=torch.zeros_like(gradient))
    state["step"] += 1
    first, second = group["betas"]
    state["exp_avg"].lerp_(gradient, 1 - first)
    state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
    divisor = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt_().add_(_EPS)
    step: Tensor = state["exp_avg"] / (1 - first ** state["step"]) / divisor
    return step
