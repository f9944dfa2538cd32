"""A tiny all-reduce every few steps by which all ranks know the same wishes and sums, read one time late."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist


class Agreement:
    """Sums named numbers over all ranks without waiting: each exchange returns the sums of the one before.

    The sum travels while the next steps compute, so nobody waits for it; every rank reads the same answer at the same
    step, so no rank can act alone. It runs on a CPU group and never waits for a GPU.
    """

    def __init__(self, names: Sequence[str], group: dist.ProcessGroup) -> None:
        self._names = tuple(names)
        self._group = group
        self._work: dist.Work | None = None
        # One buffer, filled without torch, and the group asked without the wrapper of torch.distributed: half the time.
        self._numbers = array("d", bytes(8 * len(self._names)))
        self._buffers = [torch.frombuffer(self._numbers, dtype=torch.float64)]
        self._sum = dist.AllreduceOptions()
        self._sum.asyncOp = True

    def exchange(self, values: Mapping[str, float]) -> dict[str, float]:
        """Start summing `values`; return the sums of the previous exchange (all zero at first).

        Raises RuntimeError where a peer has gone.
        """
        previous = self.settle()
        self._numbers[:] = array("d", [values.get(name, 0.0) for name in self._names])
        self._work = self._group.allreduce(self._buffers, self._sum)
        return previous

    def settle(self) -> dict[str, float]:
        """The sums of the exchange under way, which is then over."""
        if self._work is None:
            return dict.fromkeys(self._names, 0.0)
        work, self._work = self._work, None
        work.wait()
        return dict(zip(self._names, self._numbers, strict=True))


class OwnAgreement:
    """The agreement of one process with itself, one time late as well, so that the loop is the same."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._pending: dict[str, float] = {}

    def exchange(self, values: Mapping[str, float]) -> dict[str, float]:
        """Keep `values` for the next call; return those of the previous one."""
        previous = self.settle()
        self._pending = dict(values)
        return previous

    def settle(self) -> dict[str, float]:
        """The values of the last exchange, which is then over."""
        previous = {name: self._pending.get(name, 0.0) for name in self._names}
        self._pending = {}
        return previous
