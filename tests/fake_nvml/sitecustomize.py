"""A stand-in for libnvidia-ml.so.1, below NVIDIA's own binding (pynvml), in processes with this folder in PYTHONPATH.

The variable TANDEM_FAKE_NVML describes the machine as JSON: driver, cuda (as NVML counts: 12040 is 12.4), init (the
code that initialising returns) and gpus with name, uuid, memory_mib and code (what asking for the GPU returns, after
the first `works_for` times), and what the driver answers: utilization, used_mib, temperature_c, power_mw, limit_mw,
default_mw, clocks and max_clocks (by NVML_CLOCK_*), reasons (bits) and virtualization (2 is a vGPU); what is left out
is "not supported". `mig` lists a GPU's slices, with uuid, memory_mib and used_mib.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

OK, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 0, 2, 3, 6


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
        gpu = self._gpus[index.value]
        gpu["asked"] = gpu.get("asked", 0) + 1
        return int(gpu.get("code", OK)) if gpu["asked"] > gpu.get("works_for", 0) else OK

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:  # noqa: N802
        buffer.value = self._gpu(handle)["name"].encode()
        return OK

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> int:  # noqa: N802
        buffer.value = self._gpu(handle)["uuid"].encode()
        return OK

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        if "memory_mib" not in self._gpu(handle):
            return NOT_SUPPORTED
        total, used = self._gpu(handle)["memory_mib"] << 20, self._gpu(handle).get("used_mib", 0) << 20
        memory._obj.total, memory._obj.used, memory._obj.free = total, used, total - used
        return OK

    def nvmlDeviceGetTemperature(self, handle: Any, kind: int, temperature: Any) -> int:  # noqa: N802
        temperature._obj.value = self._gpu(handle).get("temperature_c", 40)
        return OK

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        if "utilization" not in self._gpu(handle):
            return NOT_SUPPORTED
        rates._obj.gpu = self._gpu(handle)["utilization"]
        return OK

    def nvmlDeviceGetPowerUsage(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._answer(handle, "power_mw", value)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._answer(handle, "limit_mw", value)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._answer(handle, "default_mw", value)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._answer(handle, "reasons", value)

    def nvmlDeviceGetVirtualizationMode(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._answer(handle, "virtualization", value)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, value: Any) -> int:  # noqa: N802
        return self._clock(handle, "clocks", kind, value)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, value: Any) -> int:  # noqa: N802
        return self._clock(handle, "max_clocks", kind, value)

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:  # noqa: N802
        text = uuid.value.decode() if hasattr(uuid, "value") else uuid.decode()
        for number, device in enumerate(self._devices(), start=1):
            if device["uuid"] == text:
                ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = number
                return int(device.get("code", OK))
        return NOT_FOUND

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any, parent: Any) -> int:  # noqa: N802
        slice_ = self._gpu(handle)
        for number, gpu in enumerate(self._gpus, start=1):
            if slice_ in gpu.get("mig", []):
                ctypes.cast(parent, ctypes.POINTER(ctypes.c_void_p))[0] = number
                return OK
        return NOT_FOUND

    def nvmlDeviceGetIndex(self, handle: Any, index: Any) -> int:  # noqa: N802
        index._obj.value = self._gpus.index(self._gpu(handle))
        return OK

    def _answer(self, handle: Any, name: str, value: Any) -> int:
        if name not in self._gpu(handle):
            return NOT_SUPPORTED
        value._obj.value = self._gpu(handle)[name]
        return OK

    def _clock(self, handle: Any, name: str, kind: Any, value: Any) -> int:
        found = self._gpu(handle).get(name, {}).get(str(getattr(kind, "value", kind)))
        if found is None:
            return NOT_SUPPORTED
        value._obj.value = found
        return OK

    def _devices(self) -> list[dict[str, Any]]:
        return [*self._gpus, *(each for gpu in self._gpus for each in gpu.get("mig", []))]

    def _gpu(self, handle: Any) -> dict[str, Any]:
        return self._devices()[ctypes.cast(handle, ctypes.c_void_p).value - 1]  # type: ignore[operator]


class _Cdll(ctypes.CDLL):
    def __new__(cls, name: str | None = None, *args: object, **kwargs: object) -> Any:
        if name == "libnvidia-ml.so.1" and "TANDEM_FAKE_NVML" in os.environ:
            return FakeNvml(json.loads(os.environ["TANDEM_FAKE_NVML"]))
        return super().__new__(cls)


ctypes.CDLL = _Cdll  # type: ignore[misc]
