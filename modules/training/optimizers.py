"""The optimizer that a config names, and a step that passes over non-finite gradients without asking the device."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from modules.config import ConfigError, TrainConfig
from modules.distributed import Weights


def check_installed(config: TrainConfig) -> None:
    """Raises ConfigError where the optimizer is in a package that is not there: some are optional."""
    package = config.optimizer.target.partition(":")[0].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"optimizer.name is {config.optimizer.name!r}, which needs the package {package}; it is not installed.",
            f"Install it with `.venv/bin/python -m pip install {package}`, or choose another optimizer, such as adamw.",
        )


def build_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, list[nn.Parameter]]], config: TrainConfig
) -> torch.optim.Optimizer:
    """The class that `config.optimizer.target` names, imported only now, with the config's arguments.

    `parameters` may be groups, as torch takes them: {"params": [...]}.
    """
    module, name = config.optimizer.target.split(":")
    kind = getattr(importlib.import_module(module), name)
    optimizer: torch.optim.Optimizer = kind(list(parameters), lr=config.learning_rate, **config.optimizer.arguments())
    return optimizer


def set_learning_rate(
    optimizer: torch.optim.Optimizer, learning_rate: float, factors: Sequence[float] | None = None
) -> None:
    """The learning rate of the next step, for every group; `factors` on it where groups have rates of their own."""
    for group, factor in zip(optimizer.param_groups, factors or [1.0] * len(optimizer.param_groups), strict=True):
        group["lr"] = learning_rate * factor


class GuardedStep:
    """Clips and applies gradients, unless they are not finite: then the step leaves every weight as it is.

    After the reduction the gradient norm is the same on all ranks, so all of them pass over the same steps.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Weights,
        scaler: torch.amp.GradScaler,
        max_norm: float | None,
    ) -> None:
        self.optimizer = optimizer
        self._weights = weights
        self._scaler = scaler
        self._max_norm = max_norm
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # fused kernels take `found_inf` and decide on the device; others need to be told by the host
        self._on_device = all(group.get("fused") for group in optimizer.param_groups)

    def apply(self, resting: Sequence[bool] = ()) -> Tensor:
        """One optimizer step from the present gradients, then cleared. Returns their norm [] before clipping.

        Groups that rest (`resting`, for each) stay as they are, and their gradients count for nothing: an optimizer
        passes over what has none, weight decay and momentum included.
        """
        self._weights.take_gradients()
        for group, rests in zip(self.optimizer.param_groups, resting, strict=bool(resting)):
            for parameter in group["params"] if rests else ():
                parameter.grad = None
        if resting and all(resting):
            return torch.zeros(())
        self._scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = self._weights.total_norm(nn.utils.get_total_norm(gradients, foreach=True))
        if self._max_norm is not None:
            nn.utils.clip_grads_with_norm_(self._parameters, self._max_norm, norm, foreach=True)
        if not self.optimizer.state and not torch.isfinite(norm):
            pass  # fused SGD would take its momentum for set up by a first step that was passed over
        elif self._scaler.is_enabled():
            self._scaler.step(self.optimizer)
        elif self._on_device:
            self._step_on_device(norm)
        elif torch.isfinite(norm):
            self.optimizer.step()
        self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _step_on_device(self, norm: Tensor) -> None:
        found = (~torch.isfinite(norm)).to(torch.float32)
        self.optimizer.found_inf = found  # type: ignore[attr-defined]  # the protocol of torch.amp.GradScaler
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        self.optimizer.step()
        del self.optimizer.found_inf, self.optimizer.grad_scale  # type: ignore[attr-defined]
