"""Prodigy (Mishchenko and Defazio 2023, arXiv:2306.06101) with a learning rate for each group of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytorch_optimizer
import torch
from torch import Tensor

Group = dict[str, Any]


class Prodigy(pytorch_optimizer.Prodigy):
    """As pytorch_optimizer's, which uses the first group's learning rate for all; with equal rates it does the same.

    All groups share the estimate of the distance d, and a group whose rate is r times the highest takes r times as
    large steps. That is Prodigy on the group's weights divided by r: their gradients are r times as large in the
    denominator of the estimate, and the numerator, a product of gradients and weights, stays the same.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what `closure` returns."""
        if len({group["lr"] for group in self.param_groups}) == 1:
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_each_rate()
        return loss

    def _step_each_rate(self) -> None:
        first = self.param_groups[0]
        highest = max(group["lr"] for group in self.param_groups)
        d, d0, beta3 = first["d"], first["d0"], first["beta3"] or math.sqrt(first["betas"][1])
        d_lr = d * highest / _bias_correction(first)
        device = first["params"][0].device
        numerator = first.setdefault("d_numerator", torch.zeros(1, device=device)).mul_(beta3)
        denominator = torch.zeros(1, device=device)
        for group in self.param_groups:
            self.init_group(group)
            group["step"] += 1
            share = group["lr"] / highest
            for weight, state in self._trained(group):
                _average(weight, state, group, d)
                moved = torch.dot(weight.grad.flatten(), (state["p0"] - weight).flatten())
                numerator.add_(moved, alpha=(d / d0) * d_lr)
                by = share * (d if group["safeguard_warmup"] else d_lr)
                denominator.add_(state["s"].mul_(beta3).add_(weight.grad, alpha=(d / d0) * by).abs().sum())
        if denominator == 0:
            return
        d_hat = (first["d_coef"] * numerator / denominator).item()
        d_max = max(first["d_max"], d_hat)
        d_next = min(d_max, (max(d, d_hat) if d == d0 else d) * first["growth_rate"])
        estimate = {"d": d_next, "d_max": d_max, "d_hat": d_hat, "d_numerator": numerator, "d_de_nom": denominator}
        for group in self.param_groups:
            group.update(estimate)
            rate = d_lr * group["lr"] / highest
            for weight, state in self._trained(group):
                weight.mul_(1 - group["weight_decay"] * rate)
                root = state["exp_avg_sq"].sqrt().add_(d_next * group["eps"])
                weight.addcdiv_(state["exp_avg"], root, value=-rate)

    def _trained(self, group: Group) -> Iterator[tuple[Any, dict[str, Tensor]]]:
        """The weights that have a gradient, and their state."""
        return ((weight, self.state[weight]) for weight in group["params"] if weight.grad is not None)


def _bias_correction(group: Group) -> float:
    """What to divide the step size by."""
    if not group["bias_correction"]:
        return 1.0
    beta1, beta2 = group["betas"]
    return float((1 - beta1 ** group["step"]) / math.sqrt(1 - beta2 ** group["step"]))


def _average(weight: Any, state: dict[str, Tensor], group: Group, d: float) -> None:
    """Update the running averages of the gradient and of its square."""
    beta1, beta2 = group["betas"]
    state["exp_avg"].mul_(beta1).add_(weight.grad, alpha=d * (1 - beta1))
    state["exp_avg_sq"].mul_(beta2).addcmul_(weight.grad, weight.grad, value=d * d * (1 - beta2))
