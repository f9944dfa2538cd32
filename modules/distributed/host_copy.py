"""Numbers on their way from a device to the host, without making either wait for the other."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A few numbers as a device has computed them by now, to be read on the host later.

    From a GPU they are copied into pinned memory, in the order of its work. Reading waits until the GPU has passed that
    point, and not for what was queued after it, as `.item()` would.
    """

    def __init__(self, *values: Tensor) -> None:
        """`values` are [], on one device, or some on the CPU, as the gradient norm is with fsdp_cpu_offload."""
        self._event: torch.cuda.Event | None = None
        device = next((value.device for value in values if value.is_cuda), None)
        self._numbers = torch.stack([value.detach().to(device, torch.float64, non_blocking=True) for value in values])
        if self._numbers.is_cuda:
            pinned = torch.empty(self._numbers.shape, dtype=torch.float64, pin_memory=True)
            self._numbers = pinned.copy_(self._numbers, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[float]:
        """The numbers; waits if the device has not come so far yet."""
        if self._event is not None:
            self._event.synchronize()
        numbers: list[float] = self._numbers.tolist()
        return numbers
