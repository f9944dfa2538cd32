"""A stand-in for libnvidia-ml.so.1, below NVIDIA's own binding (pynvml), in processes with this folder in PYTHONPATH.

The variable TANDEM_FAKE_NVML describes the machine as JSON: driver, cuda (as NVML counts: 12040 is 12.4), init (the
code that initialising returns) and gpus with name, uuid, memory_mib and code (what asking for the GPU returns).
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

OK, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 2, 3


class FakeNvml:
    """The functions of the library that Tandem calls; all others are missing, as in an older driver."""

    def __init__(self, machine: dict[str, Any]) -> None:
        self._machine = machine
        self._gpus: list[dict[str, Any]] = machine.get("gpus", [])

    def nvmlInitWithFlags(self, flags: int) -> int:  # noqa: N802
        return int(self._machine.get("init", OK))

    def nvmlShutdown(self) -> int:  # noqa: N802
        return OK

    def nvmlErrorString(self, code: int) -> bytes:  # noqa: N802
        return f"NVML error {code}".encode()

    def nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> int:  # noqa: N802
        buffer.value = self._machine["driver"].encode()
        return OK

    def nvmlSystemGetCudaDriverVersion_v2(self, number: Any) -> int:  # noqa: N802
        number._obj.value = self._machine["cuda"]
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self._gpus)
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        if index.value >= len(self._gpus):
            return INVALID_ARGUMENT
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = index.value + 1
        return int(self._gpus[index.value].get("code", OK))

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:  # noqa: N802
        buffer.value = self._gpu(handle)["name"].encode()
        return OK

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> int:  # noqa: N802
        buffer.value = self._gpu(handle)["uuid"].encode()
        return OK

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        if "memory_mib" not in self._gpu(handle):
            return NOT_SUPPORTED
        memory._obj.total = memory._obj.free = self._gpu(handle)["memory_mib"] << 20
        return OK

    def nvmlDeviceGetTemperature(self, handle: Any, kind: int, temperature: Any) -> int:  # noqa: N802
        temperature._obj.value = self._gpu(handle).get("temperature_c", 40)
        return OK

    def _gpu(self, handle: Any) -> dict[str, Any]:
        return self._gpus[ctypes.cast(handle, ctypes.c_void_p).value - 1]  # type: ignore[operator]


class _Cdll(ctypes.CDLL):
    def __new__(cls, name: str | None = None, *args: object, **kwargs: object) -> Any:
        if name == "libnvidia-ml.so.1" and "TANDEM_FAKE_NVML" in os.environ:
            return FakeNvml(json.loads(os.environ["TANDEM_FAKE_NVML"]))
        return super().__new__(cls)


ctypes.CDLL = _Cdll  # type: ignore[misc]
