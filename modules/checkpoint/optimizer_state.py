"""An optimizer's state as named tensors and plain values, so that nothing is pickled."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Plain = bool | int | float | str | None | list["Plain"]


@dataclass(frozen=True)
class OptimizerState:
    """`tensors` by "PARAMETER/STATE" or "group N/NAME"; `values` by parameter; `groups` as their settings."""

    class_name: str  # of the optimizer: another class would misinterpret the state
    tensors: Mapping[str, Tensor]
    values: dict[str, dict[str, Plain]]
    groups: list[dict[str, Plain]]


def pack_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> OptimizerState:
    """The state of `optimizer`, its tensors not copied; `names` maps id(parameter) to the parameter's name."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Plain]] = {}
    for parameter, state in optimizer.state.items():
        name = names[id(parameter)]
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{key}"] = value.detach()
            else:
                values.setdefault(name, {})[key] = _plain(value)
    for number, group in enumerate(optimizer.param_groups):
        group_tensors = {key: value for key, value in group.items() if isinstance(value, Tensor)}  # Prodigy has some
        tensors.update({f"{_group_name(number)}/{key}": value.detach() for key, value in group_tensors.items()})
    groups = [
        {key: _plain(value) for key, value in group.items() if key != "params" and _is_plain(value)}
        for group in optimizer.param_groups
    ]
    return OptimizerState(type(optimizer).__name__, tensors, values, groups)


def unpack_optimizer(
    optimizer: torch.optim.Optimizer,
    state: OptimizerState,
    names: Mapping[int, str],
    configured: Collection[str],
) -> None:
    """Load `state` into `optimizer`. Group settings named in `configured` keep their current values.

    Step counters stay on the CPU unless the optimizer counts on the device, as in torch's own load_state_dict.
    The tensors of `state` are asked for one by one, so a mapping may read them from a file; none of them is kept.
    Raises ValueError if the state is from another optimizer, has other shapes, or cannot be divided into these groups.
    """
    if state.class_name != type(optimizer).__name__:
        raise ValueError(f"it is from another optimizer, {state.class_name} instead of {type(optimizer).__name__}")
    state = _regrouped(state, len(optimizer.param_groups), {"lr", *configured})
    for group, saved in zip(optimizer.param_groups, state.groups, strict=True):
        # pytorch_optimizer adds settings at the first step, such as the step's number; a file never names parameters
        kept = {"params", *configured}
        group.update({key: value for key, value in saved.items() if key not in kept})
    paths: dict[str, dict[str, str]] = {}
    for path in state.tensors:
        name, key = path.rsplit("/", 1)
        paths.setdefault(name, {})[key] = path
    for number, group in enumerate(optimizer.param_groups):
        own = _group_name(number)
        group.update(state.values.get(own, {}))
        for key, path in paths.get(own, {}).items():
            group[key] = state.tensors[path].to(group["params"][0].device, copy=True)
        for parameter in group["params"]:
            name = names[id(parameter)]
            if name not in paths and name not in state.values:
                continue
            restored: dict[str, Tensor | Plain] = dict(state.values.get(name, {}))
            for key, path in paths.get(name, {}).items():
                tensor = state.tensors[path]
                if group.get("fused"):
                    _check_shape(name, parameter, key, tensor)
                on_device = bool(group.get("fused") or group.get("capturable"))
                restored[key] = tensor.clone() if key == "step" and not on_device else _like(parameter, tensor)
            optimizer.state[parameter] = restored


def _regrouped(state: OptimizerState, count: int, configured: Collection[str]) -> OptimizerState:
    """`state` for `count` groups, into which a changed config divides the same weights.

    What optimizers keep of a group, such as the step's number or Prodigy's estimate, has to be the same in all groups;
    tensors are kept in the first one. Raises ValueError if it is not the same.
    """
    if len(state.groups) == count:
        return state
    kept = [{key: value for key, value in group.items() if key not in configured} for group in state.groups]
    if not kept or any(group != kept[0] for group in kept):
        raise ValueError(
            f"its {len(state.groups)} groups of weights differ, and the config now asks for {count} groups"
        )
    return replace(state, groups=[kept[0]] * count)


def _check_shape(name: str, parameter: Tensor, key: str, tensor: Tensor) -> None:
    """Raises ValueError if a fused kernel, which trusts all sizes, would read or write beyond a tensor of the state."""
    expected = torch.Size() if key == "step" else parameter.shape
    if tensor.shape != expected:
        raise ValueError(f"{key} of {name} has the shape {list(tensor.shape)} instead of {list(expected)}")


def _group_name(number: int) -> str:
    return f"group {number}"  # no parameter's name contains a space


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """`value` on the parameter's device and in its memory format: fused kernels read both in storage order."""
    if value.shape != parameter.shape:
        return value.to(parameter.device, copy=True)  # for example factored second moments
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: object) -> Plain:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"optimizer state of type {type(value).__name__} cannot be written without pickle")
