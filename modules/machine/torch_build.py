"""Whether the installed PyTorch can use this machine's NVIDIA GPUs, found out without importing it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modules.machine.devices import Gpu, installed_gpus, open_nvml, query_nvml, visible_gpus
from modules.machine.health import driver_version

# The first driver for each major version of CUDA. Within one, older drivers run newer builds, too:
# docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility".
_FIRST_DRIVER: Final = {11: 450, 12: 525, 13: 580}
# NVML's codes without a GPU or without access to one: library not found, driver not loaded, no permission.
_NO_DRIVER: Final = frozenset({12, 9, 4})
ON_CPU: Final = "To train on the CPU anyway, set device to cpu (--set device=cpu)."


@dataclass(frozen=True)
class TorchBuild:
    """The installed PyTorch; `cuda` is the CUDA version it is built for, None without CUDA."""

    version: str
    cuda: str | None
    is_for_other_gpus: bool = False  # ROCm or XPU

    def __str__(self) -> str:
        return f"PyTorch {self.version} is a {f'build for CUDA {self.cuda}' if self.cuda else 'CPU-only build'}"


@dataclass(frozen=True)
class GpuObstacle:
    """Why PyTorch cannot use a GPU that is there, and what to do about it."""

    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.message} {self.advice}"


def torch_build() -> TorchBuild | None:
    """The installed PyTorch, read from its version.py; None if it is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return parse_build(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))


def parse_build(source: str) -> TorchBuild:
    """The build that torch/version.py describes."""
    values: dict[str, object] = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    cuda, version = values.get("cuda"), values.get("__version__")
    others = any(values.get(name) for name in ("hip", "rocm", "xpu"))
    return TorchBuild(str(version), None if cuda is None else str(cuda), is_for_other_gpus=others)


def gpu_obstacle(
    environment: Mapping[str, str] | None = None, build: TorchBuild | None = None, torch_says: str = ""
) -> GpuObstacle | None:
    """Why PyTorch cannot use the GPUs that the driver shows; None if nothing is known to be wrong, or without a GPU.

    `build` defaults to the installed one. `torch_says` is the error of a process in which torch found no GPU; an
    obstacle is then certain.
    """
    environment = os.environ if environment is None else environment
    build = torch_build() if build is None else build
    if build is None or build.is_for_other_gpus or environment.get("CUDA_VISIBLE_DEVICES") in {"", "-1", "NoDevFiles"}:
        return None
    if failure := _driver_failure():
        text = f"This machine has an NVIDIA driver, but it does not work: {failure}."
        return GpuObstacle(text, f"Restart this machine, which helps after an update of the driver. {ON_CPU}")
    gpus, driver = visible_gpus(environment), driver_version() or "unknown"
    if not gpus:
        return _all_unreadable(driver)
    supported = _cuda_of_driver()
    if build.cuda is None:
        text = f"{_found(gpus, driver)}, but {build}, so it cannot use the GPU."
        return GpuObstacle(text, f"{install_advice(supported)} {ON_CPU}")
    major = int(build.cuda.split(".")[0])
    if supported is not None and supported[0] < major:
        first = f"to version {_FIRST_DRIVER[major]} or newer" if major in _FIRST_DRIVER else "to the newest version"
        text = f"{_found(gpus, driver)}, which supports CUDA up to {_dotted(supported)}, but {build}."
        advice = f"Update the driver {first}, or install an older build. {install_advice(supported)} {ON_CPU}"
        return GpuObstacle(text, advice)
    if torch_says:
        text = f"{_found(gpus, driver)}, but {build} and cannot use it: {torch_says}"
        advice = "Run nvidia-smi; in a container, check that it was started with access to the GPU (--gpus all)."
        return GpuObstacle(text, f"{advice} {ON_CPU}")
    return None


def install_advice(supported: tuple[int, int] | None) -> str:
    """How to install a build of PyTorch for a driver that supports CUDA up to `supported`."""
    newest = "the newest CUDA offered" if supported is None else f"CUDA {_dotted(supported)} or the next older one"
    return (
        f"On pytorch.org, under Get Started, choose your system, Pip and {newest}. Delete the folder .venv, set the "
        "variable PIP_EXTRA_INDEX_URL to the address after --index-url there, and start again."
    )


def _driver_failure() -> str:
    """Why NVML cannot be initialised although a driver is installed; otherwise empty."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return ""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return "" if getattr(error, "value", 12) in _NO_DRIVER else str(error)
    nvml.nvmlShutdown()
    return ""


def _cuda_of_driver() -> tuple[int, int] | None:
    """The newest CUDA version that the driver supports, such as (12, 6); None if it does not report it."""
    with open_nvml() as nvml:
        if nvml is None:
            return None
        # _v2 asks libcuda itself, which a compatibility package may have replaced.
        number = query_nvml(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return None if number is None else (number // 1000, number % 1000 // 10)


def _all_unreadable(driver: str) -> GpuObstacle | None:
    unreadable = [gpu for gpu in installed_gpus() if gpu.fault]
    if not unreadable:
        return None
    text = f"The NVIDIA driver {driver} can read none of this machine's GPUs: {unreadable[0].fault}."
    return GpuObstacle(text, f"Restart this machine; if that does not help, check the GPU with nvidia-smi. {ON_CPU}")


def _found(gpus: list[Gpu], driver: str) -> str:
    what = gpus[0].name if len(gpus) == 1 else f"{len(gpus)} GPUs ({gpus[0].name})"
    return f"This machine has {what} and the NVIDIA driver {driver}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
