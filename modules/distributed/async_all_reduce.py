"""Sum a few named numbers over all ranks without waiting: each call returns the sums of the previous one."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist


class AsyncAllReduce:
    """An all-reduce of named numbers that runs while the next steps compute.

    Every rank reads the same sums at the same step, so no rank can act alone. It runs on a CPU group and never waits
    for a GPU.
    """

    def __init__(self, names: Sequence[str], group: dist.ProcessGroup) -> None:
        self._names = tuple(names)
        self._group = group
        self._work: dist.Work | None = None
        # One buffer, filled without torch, and the group called without torch.distributed's wrapper: half the time.
        self._numbers = array("d", bytes(8 * len(self._names)))
        self._buffers = [torch.frombuffer(self._numbers, dtype=torch.float64)]  # [len(names)]
        self._sum = dist.AllreduceOptions()
        self._sum.asyncOp = True

    def sync(self, values: Mapping[str, float]) -> dict[str, float]:
        """Start summing `values` (0 for absent names); returns the sums of the previous call (all 0 at first).

        Raises RuntimeError if a peer has gone.
        """
        previous = self.wait()
        self._numbers[:] = array("d", [values.get(name, 0.0) for name in self._names])
        self._work = self._group.allreduce(self._buffers, self._sum)
        return previous

    def wait(self) -> dict[str, float]:
        """Finish the pending all-reduce and return its sums; all 0 if none is pending."""
        if self._work is None:
            return dict.fromkeys(self._names, 0.0)
        work, self._work = self._work, None
        work.wait()
        return dict(zip(self._names, self._numbers, strict=True))
