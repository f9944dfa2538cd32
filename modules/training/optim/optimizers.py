"""The optimizer that a config names, and a step that skips non-finite gradients without waiting for the device."""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from modules.config import ConfigError, ResumeError, TrainConfig
from modules.config.own_builders import beside_own
from modules.distributed import HostCopy, Weights
from modules.facts import PROGRAM
from modules.files import printable
from modules.run.folder.error_help import explain_exception
from modules.training.optim.named_class import named_class
from modules.training.optim.per_parameter_step import PerParameterStep

_SAVED_OR_TORCHS: Final = {
    *("param_groups", "state", "defaults", "grad_scale", "found_inf"),
    *("_warned_capturable_if_run_uncaptured", "_need_device_dtype_check_for_fused"),
}
OwnOptimizer: TypeAlias = Callable[[Any, float], torch.optim.Optimizer]  # of parameters and learning rate


def check_optimizer(config: TrainConfig, own: OwnOptimizer | None) -> None:
    """Raises ConfigError if the optimizer's package is not installed, since some are optional, or if its class does not
    exist, does not take the arguments, or cannot do a step. `own` is what the family builds itself, if it does."""
    path = config.optimizer.class_path()
    if own is None and not path:
        raise ConfigError(
            "optimizer is custom without a target, and the family brings no optimizer of its own",
            "Name a class: optimizer.target=torch.optim.Adagrad; or define build_optimizer in the family's own file",
        )
    if own is not None and path:
        raise beside_own(config, "build_optimizer")
    package = path.partition(":")[0].partition(".")[0]
    if package and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"optimizer.name is {config.optimizer.name!r}, which needs the package {package}; it is not installed.",
            f"Install it with `.venv/bin/python -m pip install {package}`, or choose another optimizer, such as adamw.",
        )
    if config.optimizer.name == "custom" and path:
        weight = nn.Parameter(torch.zeros(2, 2))
        optimizer = build_optimizer([weight], config)
        if package in ("torch", "pytorch_optimizer"):  # others may do their steps on a GPU alone
            weight.grad = torch.ones(2, 2)
            _require_step(optimizer)


def _require_step(optimizer: torch.optim.Optimizer) -> None:
    try:
        optimizer.step()
    except Exception as error:  # as below
        raise ConfigError(
            f"optimizer.target: {type(optimizer).__name__} cannot do a step here ({printable(error, 300)})",
            "Choose one that takes dense gradients and step() without arguments",
        ) from error


def build_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, list[nn.Parameter]]],
    config: TrainConfig,
    own: OwnOptimizer | None = None,
) -> torch.optim.Optimizer:
    """An instance of the class that the config names, which is imported only now, or what `own` returns.

    `parameters` may be groups, as torch takes them: {"params": [...]}. Raises ConfigError if the class cannot be used.
    """
    given = list(parameters)
    if own is not None:
        name = "optimizer" if config.family == PROGRAM else "build_optimizer"  # as the user wrote it
        made = _with_groups_of(own(given, config.learning_rate), given, name)
        _check_step(type(made), name)
        set_by_it = (group.get("lr") for group in made.param_groups)
        if others := {each for each in set_by_it if isinstance(each, int | float)} - {config.learning_rate}:
            raise ConfigError(
                f"{name} sets the learning rate {printable(min(others))}, but learning_rate is {config.learning_rate}, "
                "which each step gives it",
                "Pass on the learning rate that it is called with; learning_rate_factors are for single parts",
            )
        return _without_modes(made)
    kind, arguments = _class_of(config.optimizer.class_path()), config.optimizer.keywords()
    try:
        optimizer: torch.optim.Optimizer = kind(given, lr=config.learning_rate, **arguments)
    except Exception as error:  # a class of somebody else can raise anything
        if config.optimizer.name != "custom":
            raise
        takes = ", ".join(name for name in list(inspect.signature(kind).parameters)[1:] if name != "lr")
        raise ConfigError(
            f"optimizer.arguments: {kind.__name__} refuses what it is given: {printable(error, 300)}",
            f"It takes {takes}" if takes else "Choose another class",
        ) from error
    return _without_modes(optimizer) if config.optimizer.name == "custom" else optimizer


def _class_of(path: str) -> type[Any]:
    """The class at "module:Class". Raises ConfigError if it is no optimizer, or one that is not trained with here."""
    kind = named_class(path.replace(":", "."), "optimizer.target", torch.optim.Optimizer, "optimizer")
    _check_step(kind, "optimizer.target")
    return kind


def _check_step(kind: type[torch.optim.Optimizer], said: str) -> None:
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{said}: {kind.__name__} calls the loss several times in a step, which Tandem does not do",
            "Choose one whose step() needs no closure",
        )


def _with_groups_of(optimizer: object, given: Sequence[object], name: str) -> torch.optim.Optimizer:
    """`optimizer` that `name` returned, if it is one, with the groups that it was given. Raises ConfigError."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        found = "None (is a `return` missing?)" if optimizer is None else f"a {type(optimizer).__name__}"
        raise ConfigError(f"{name} returned {found} instead of a torch.optim.Optimizer")
    wanted = [group["params"] for group in given if isinstance(group, dict)] or [given]
    if [[id(weight) for weight in group["params"]] for group in optimizer.param_groups] != [
        [id(weight) for weight in group] for group in wanted
    ]:
        raise ConfigError(
            f"{name} returned an optimizer of other weights or groups than it was given",
            "Pass on `parameters` as they are; learning_rate_factors and parts give groups their learning rates",
        )
    return optimizer


def _without_modes(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """`optimizer`, if the weights that it trains are those to be used. Raises ConfigError."""
    if hasattr(optimizer, "eval"):
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} trains other weights than those to be used, which its eval() "
            "makes, and Tandem knows them of schedule_free_adamw only",
            "Use schedule_free_adamw, or another class",
        )
    return optimizer


def set_learning_rate(
    optimizer: torch.optim.Optimizer, learning_rate: float, factors: Sequence[float] | None = None
) -> None:
    """Set the learning rate of the next step for every group, times the group's factor."""
    for group, factor in zip(optimizer.param_groups, factors or [1.0] * len(optimizer.param_groups), strict=True):
        group["lr"] = learning_rate * factor


def loss_factor(world_size: int) -> float:
    """By what each rank multiplies its losses, because the reduction averages the gradients over the ranks.

    That is the largest power of two of at most `world_size`; GuardedStep multiplies by the rest. Powers of two change
    no rounding, so each rank computes to the bit what one process does. Three times the loss would be rounded otherwise
    wherever a model computes in less than the run's precision, as diffusers' rotary embeddings do in an fp64 run.
    """
    return 2.0 ** (world_size.bit_length() - 1)


def _kept_outside_state(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """What an optimizer has in attributes of its own: values that differ once it has changed them."""
    return {name: _version_of(value) for name, value in vars(optimizer).items() if name not in _SAVED_OR_TORCHS}


def _version_of(value: object) -> object:
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, list | tuple):
        return [_version_of(each) for each in value]
    if isinstance(value, dict):
        return [_version_of(each) for each in value.values()]
    return value if isinstance(value, bool | int | float | str) else None


class GuardedStep:
    """Clips and applies gradients; if they are not finite, the step changes no weight.

    After the reduction the gradient norm is the same on all ranks, so all of them skip the same steps.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Weights,
        scaler: torch.amp.GradScaler,
        max_norm: float | None,
        per_parameter: PerParameterStep | None = None,
        world_size: int = 1,
    ) -> None:
        """`per_parameter`: update the weights one by one, which those in bf16 need; `world_size`: see `loss_factor`."""
        self.optimizer = optimizer
        self.per_parameter = per_parameter
        self._weights = weights
        self._scaler = scaler
        self._max_norm = max_norm
        self._gradient_factor = world_size / loss_factor(world_size)
        held = weights.local if per_parameter is None else per_parameter.held
        self.names = {id(own): name for name, own in held.items()}  # of what the optimizer holds
        self._groups = [
            [weights.local[self.names[id(own)]] if per_parameter else own for own in group["params"]]
            for group in optimizer.param_groups
        ]
        self._parameters = [weight for group in self._groups for weight in group]
        has_half = any(weight.dtype == torch.bfloat16 for weight in self._parameters)
        self._norm_dtype = torch.float32 if has_half else None
        # fused kernels read `found_inf` on the device; for others the host has to decide
        self._on_device = all(group.get("fused") for group in optimizer.param_groups)
        self._has_momentum = any(group.get("momentum") for group in optimizer.param_groups)
        self._at_start, self._told = _kept_outside_state(optimizer), set[str]()
        self.is_restored = False  # from a backup, with which no step has been made
        self._starts_empty = not optimizer.state

    def apply(
        self, frozen: Sequence[bool] = (), on_gradients: Callable[[], object] = lambda: None, number: int = 0
    ) -> Tensor:
        """Optimizer step `number` from the current gradients, which are then cleared; returns their norm [] unclipped.

        `frozen` says for each group whether to leave it as it is: without gradients an optimizer skips a weight, weight
        decay and momentum included, and the norm does not count it. `on_gradients` is called when the gradients are
        clipped and not applied yet.
        """
        self._weights.collect_gradients()
        set_aside = self._set_aside(frozen)
        if frozen and all(frozen):
            norm = torch.zeros((), device=self._parameters[0].device)
        else:
            norm = self._clip_and_step(on_gradients, number)
        for parameter, gradient in set_aside:
            parameter.grad = gradient
        self._weights.clear_gradients()
        return norm

    def not_in_backups(self) -> list[str]:
        """The attributes that the optimizer's steps have changed, besides its `state` and groups; each is told once."""
        before, now = self._at_start, _kept_outside_state(self.optimizer)
        found = [name for name in now.keys() - self._told if name not in before or now[name] != before[name]]
        self._told.update(found)
        return sorted(found)

    def step_one(self, weight: Tensor, number: int, fault: Tensor) -> Tensor:
        """Step `number` of one weight, by `per_parameter`; returns the norm [] of its gradient, which stays unclipped.

        If that or `fault` [] in fp32, which is 0 or nan, is not finite, the weight stays as it is. The last weight is
        followed by `per_parameter.finish`.
        """
        assert self.per_parameter is not None, "see FusedBackward"
        assert weight.grad is not None, "see FusedBackward"
        norm = self._norm([weight.grad]) + fault
        with self._check_restored():
            if self._on_device and (self.per_parameter.has_state(weight) or not self._has_momentum):  # as in _step
                with self._skipping(norm):
                    self.per_parameter.step(weight, number)
            elif math.isfinite(norm.item()):
                self.per_parameter.step(weight, number)
        return norm

    def state_tensors(self) -> Iterator[Tensor]:
        """What the optimizer keeps of each weight, and has made up to now."""
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def clear_state(self) -> None:
        """Let the optimizer go on as if it had made no step yet."""
        if self._starts_empty:
            self.optimizer.state.clear()
            return
        for tensor in self.state_tensors():  # torch's Adagrad makes its sums at once, and no others later
            tensor.zero_()

    def undo_backoff(self, steps: int) -> None:
        """Raise fp16's loss scale to what it was before `steps` skipped steps that no overflow made not finite."""
        if steps and self._scaler.is_enabled():
            self._scaler.update(self._scaler.get_scale() / self._scaler.get_backoff_factor() ** steps)

    def _set_aside(self, frozen: Sequence[bool]) -> list[tuple[Tensor, Tensor | None]]:
        """Take the gradients of `frozen` groups away; returns what to give back after the step."""
        groups = zip(self._groups, frozen, strict=bool(frozen))
        taken = [(weight, weight.grad) for group, is_frozen in groups if is_frozen for weight in group]
        for parameter, _ in taken:
            parameter.grad = None
        return taken

    @contextmanager
    def _check_restored(self) -> Iterator[None]:
        """Around the first step with a restored state, which only the optimizer itself knows to be complete.

        Raises ResumeError, unless another fault shows only here: memory ran out, a peer was lost, the GPU failed.
        """
        if not self.is_restored:
            yield
            return
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            if isinstance(error, dist.DistError) or explain_exception(error, training=True).kind != "error":
                raise
            reason = printable(f"{type(error).__name__}: {error}", 200)
            raise ResumeError(
                f"resume: the optimizer cannot continue from the state in the backup ({reason}).",
                "The backup is damaged or from another version; use an older one, or start a new run from its weights.",
            ) from error

    def _clip_and_step(self, on_gradients: Callable[[], object], number: int) -> Tensor:
        # The arithmetic of torch.nn.utils' get_total_norm and clip_grads_with_norm_, which sort the gradients by device
        # and dtype each time: of hundreds of small ones that takes as long as the arithmetic.
        self._scaler.unscale_(self.optimizer)
        gradients = [gradient for p in self._parameters if (gradient := p.grad) is not None]
        if gradients and self._gradient_factor != 1:
            torch._foreach_mul_(gradients, self._gradient_factor)
        norm = self._weights.total_norm(self._norm(gradients))
        on_host = None if self._on_device else HostCopy(norm)  # on its way while the gradients are clipped
        if gradients and self._max_norm is not None:
            torch._foreach_mul_(gradients, torch.clamp(self._max_norm / (norm + 1e-6), max=1.0))
        on_gradients()
        with self._check_restored():
            self._step(norm, on_host, number)
        self.is_restored = False
        self._scaler.update()
        return norm

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm [] of all; of bf16 ones in fp32, where torch would round each to bf16."""
        if not gradients:
            return torch.zeros((), device=self._parameters[0].device)
        norms: tuple[Tensor, ...] = torch._foreach_norm(gradients, 2.0, self._norm_dtype)
        whole: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return whole

    def _step(self, norm: Tensor, on_host: HostCopy | None, number: int) -> None:
        """A step of the optimizer, unless the norm is not finite."""
        step: Callable[[], object] = (
            self.optimizer.step if self.per_parameter is None else partial(self.per_parameter.step_all, number)
        )
        if on_host is not None:
            if math.isfinite(on_host.read()[0]):
                step()
        elif self._has_momentum and not self.optimizer.state and not torch.isfinite(norm):
            pass  # fused SGD would take its momentum as initialised by a first step that was skipped
        elif self._scaler.is_enabled():
            self._scaler.step(self.optimizer)
        else:
            with self._skipping(norm):
                step()

    @contextmanager
    def _skipping(self, norm: Tensor) -> Iterator[None]:
        """Fused kernels that run inside change nothing if the norm is not finite."""
        found_inf = (norm * 0 != 0).to(torch.float32)  # inf * 0 and nan * 0 are nan; three kernels fewer than isfinite
        self.optimizer.found_inf = found_inf  # type: ignore[attr-defined]  # the protocol of torch.amp.GradScaler
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        yield
        del self.optimizer.found_inf, self.optimizer.grad_scale  # type: ignore[attr-defined]
