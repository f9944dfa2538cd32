"""Networks by name: Tandem's own for small images, and every model of timm if that is installed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import nn

from modules.classification.resnet import CifarResNet, Norm
from modules.config import ConfigError
from modules.config.names import nearest

OWN_NAMES = ("cifar_resnet20", "cifar_resnet32", "cifar_resnet44", "cifar_resnet56", "cifar_resnet110")
OWN_HEAD = "fc"
_MOST_DEPTH = 1202  # of He et al. 2015; a foreign config.json may ask for any
_OWN = re.compile(r"cifar_resnet([1-9]\d{0,3})")


def build_network(name: str, classes: int, norm: Norm, width: int, *, pretrained: bool) -> nn.Module:
    """A network that maps images [B, 3, H, W] to logits [B, classes]; `norm` and `width` are for Tandem's own.

    Raises ConfigError if there is none of that name.
    """
    check_network(name)
    if depth := _own_depth(name):
        if pretrained:
            raise ConfigError(
                f"family_options.pretrained is true, but {name!r} starts from scratch; set it to false, or choose a "
                "network of timm."
            )
        return CifarResNet(depth, classes, width=width, norm=norm)
    try:
        network: nn.Module = _timm(name).create_model(name, pretrained=pretrained, num_classes=classes)
    except Exception as error:  # timm's models raise anything, and downloads may fail
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"family_options.network: timm cannot build {name!r} ({error}).") from error
    return network


def check_network(name: str) -> None:
    """Raises ConfigError unless there is a network of that name."""
    if name.startswith("cifar_resnet"):
        if not _own_depth(name):
            raise ConfigError(
                f"family_options.network is {name!r}; the depth of such a network is 6n + 2, at most "
                f"{_MOST_DEPTH}: use one of {', '.join(OWN_NAMES)}."
            )
        return
    known: Sequence[str] = _timm(name).list_models()
    if name.partition(".")[0] not in known:
        hint = nearest(name, known)
        raise ConfigError(
            f"family_options.network is {name!r}, which timm does not have.{f' Did you mean {hint}?' if hint else ''}",
            f"Use a name from timm.list_models(), or one of {', '.join(OWN_NAMES)}.",
        )


def head_name(name: str, network: nn.Module) -> str:
    """The submodule that makes logits of features, which depends on the classes."""
    if _own_depth(name):
        return OWN_HEAD
    found = getattr(network, "default_cfg", {}).get("classifier", OWN_HEAD)
    return str(found[0] if isinstance(found, tuple) else found)


def normalization(network: nn.Module) -> tuple[list[float], list[float]]:
    """Mean and standard deviation, of 0 to 255, that the network's pixels are normalised with: timm's own if it has."""
    settings = getattr(network, "default_cfg", None) or {}
    mean, std = settings.get("mean", (0.5,) * 3), settings.get("std", (0.25,) * 3)
    return [255.0 * value for value in mean], [255.0 * value for value in std]


def _own_depth(name: str) -> int:
    """The number of layers of one of Tandem's networks; 0 if the name is not one."""
    match = _OWN.fullmatch(name)
    depth = int(match[1]) if match else 0
    return depth if 8 <= depth <= _MOST_DEPTH and depth % 6 == 2 else 0


def _timm(name: str) -> ModuleType:
    try:
        import timm
    except Exception as error:  # ImportError, or whatever a torchvision of another torch raises
        raise ConfigError(
            f"family_options.network is {name!r}, a model of timm, which {_import_failure(error)}.",
            f"Use one of {', '.join(OWN_NAMES)}, or install timm with the torchvision of your torch: {_install()}",
        ) from error
    return timm  # type: ignore[no-any-return]


def _import_failure(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "timm":
        return "is not installed"
    if isinstance(error, ModuleNotFoundError):
        return f"is installed, but needs {error.name}, which is not"
    cause = next(iter(str(error).splitlines()), "")
    return f"is installed, but cannot be imported ({type(error).__name__}: {cause})"


def _install() -> str:
    """pip's command. It names torch, because a newer torchvision would replace it, and the index of its build."""
    version, _, build = torch.__version__.partition("+")
    index = f" --extra-index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f".venv/bin/python -m pip install timm torchvision torch=={version}{index}"
