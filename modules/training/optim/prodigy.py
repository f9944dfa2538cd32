"""Prodigy (Mishchenko and Defazio 2023, arXiv:2306.06101) with a learning rate for each group of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytorch_optimizer
import torch
from torch import Tensor

from modules.distributed import HostCopy

Group = dict[str, Any]


class Prodigy(pytorch_optimizer.Prodigy):
    """As pytorch_optimizer's, which uses the first group's learning rate for all; with equal rates it does the same.

    All groups share the estimate of the distance d, and a group whose rate is r times the highest takes r times as
    large steps. That is Prodigy on the group's weights divided by r: their gradients are r times as large in the
    denominator of the estimate, and the numerator, a product of gradients and weights, stays the same.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what `closure` returns. The host waits once, for the estimate."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first = self.param_groups[0]
        highest = max(group["lr"] for group in self.param_groups)
        d, d0, beta3 = first["d"], first["d0"], first["beta3"] or math.sqrt(first["betas"][1])
        d_lr = d * highest / _bias_correction(first)
        device = first["params"][0].device
        numerator = first.setdefault("d_numerator", torch.zeros(1, device=device)).mul_(beta3)
        denominator = torch.zeros(1, device=device)
        shares = [group["lr"] / highest if highest else 1.0 for group in self.param_groups]
        for group, share in zip(self.param_groups, shares, strict=True):
            self.init_group(group)
            group["step"] += 1
            by = share * (d if group["safeguard_warmup"] else d_lr)
            for weights, gradients, states in self._trained(group):
                for weight, gradient, start in zip(weights, gradients, states["p0"], strict=True):
                    moved = torch.dot(gradient.flatten(), (start - weight).flatten())
                    numerator.add_(moved, alpha=(d / d0) * d_lr)
                _average(gradients, states, group, d)
                torch._foreach_mul_(states["s"], beta3)
                torch._foreach_add_(states["s"], gradients, alpha=(d / d0) * by)
                for total in states["s"]:
                    denominator.add_(total.abs().sum())
        estimated = HostCopy(denominator[0], (first["d_coef"] * numerator / denominator)[0]).read()
        if estimated[0] == 0:
            return loss
        d_hat = estimated[1]
        d_max = max(first["d_max"], d_hat)
        d_next = min(d_max, (max(d, d_hat) if d == d0 else d) * first["growth_rate"])
        estimate = {"d": d_next, "d_max": d_max, "d_hat": d_hat, "d_numerator": numerator, "d_de_nom": denominator}
        for group, share in zip(self.param_groups, shares, strict=True):
            group.update(estimate)
            rate = d_lr * share
            for weights, _, states in self._trained(group):
                torch._foreach_mul_(weights, 1 - group["weight_decay"] * rate)
                roots = torch._foreach_sqrt(states["exp_avg_sq"])
                torch._foreach_add_(roots, d_next * group["eps"])
                torch._foreach_addcdiv_(weights, states["exp_avg"], roots, value=-rate)
        return loss

    def _trained(self, group: Group) -> Iterator[tuple[list[Tensor], list[Tensor], dict[str, list[Tensor]]]]:
        """The weights that have a gradient, their gradients and their state: all at once for a GPU, on which each
        operation costs; else one by one, which takes less memory."""
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return
        for part in [weights] if weights[0].is_cuda else [[weight] for weight in weights]:
            states = {name: [self.state[weight][name] for weight in part] for name in self.state[part[0]]}
            yield part, [weight.grad for weight in part], states


def _bias_correction(group: Group) -> float:
    """What to divide the step size by."""
    if not group["bias_correction"]:
        return 1.0
    beta1, beta2 = group["betas"]
    return float((1 - beta1 ** group["step"]) / math.sqrt(1 - beta2 ** group["step"]))


def _average(gradients: list[Tensor], states: dict[str, list[Tensor]], group: Group, d: float) -> None:
    """Update the running averages of the gradients and of their squares."""
    beta1, beta2 = group["betas"]
    torch._foreach_mul_(states["exp_avg"], beta1)
    torch._foreach_add_(states["exp_avg"], gradients, alpha=d * (1 - beta1))
    torch._foreach_mul_(states["exp_avg_sq"], beta2)
    torch._foreach_addcmul_(states["exp_avg_sq"], gradients, gradients, value=d * d * (1 - beta2))
