"""Pinned memory takes what is asked for, and is given back; a state is copied into one piece of memory."""

from __future__ import annotations

import gc
from itertools import chain
from types import SimpleNamespace

import pytest
import torch

from modules.training.backup.state_copy import StateCopy, size_of, tensors_of
from modules.training.device.pinned_memory import pinned_memory
from tests.checkpoint.states import state_at

GPU = torch.device("cuda", 1)


class Runtime:
    """What CUDA is asked for, in order; registered memory by its address."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.registered: dict[int, int] = {}

    def register(self, address: int, size: int, flags: int) -> int:
        self.calls.append("register")
        self.registered[address] = size
        return 0

    def unregister(self, address: int) -> int:
        self.calls.append("unregister")
        del self.registered[address]
        return 0


def use(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    names = SimpleNamespace(cudaHostRegister=runtime.register, cudaHostUnregister=runtime.unregister)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: names)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: runtime.calls.append(f"synchronize {device}"))


def test_no_more_is_pinned_than_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own allocator would take 8 MiB for 5."""
    use(runtime := Runtime(), monkeypatch)
    memory = pinned_memory(5 << 20, GPU)
    assert runtime.registered == {memory.data_ptr(): 5 << 20}
    assert memory.shape == (5 << 20,)
    assert not memory.any()
    view = memory[64:128].view(torch.float32).fill_(2.5)
    del memory
    gc.collect()
    assert runtime.registered, "a view uses it"
    assert view.sum() == 40
    del view
    gc.collect()
    assert runtime.calls == ["register", "synchronize cuda:1", "unregister"], "no copy from it is under way"
    assert not runtime.registered


def test_a_state_is_copied_into_one_piece_of_memory() -> None:
    """Pinned one by one, its tensors would take half as much again."""
    copy = StateCopy()
    states = [state_at(step, size=1000) for step in (1, 2)]
    taken = [copy.take(state) for state in states]
    assert len({tensor.untyped_storage().data_ptr() for tensor in chain.from_iterable(map(tensors_of, taken))}) == 1
    tensors = list(tensors_of(taken[1]))
    assert tensors[0].untyped_storage().nbytes() < size_of(states[1]) + 64 * len(tensors)
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
    assert all(map(torch.equal, tensors, tensors_of(states[1])))
    larger = copy.take(state_at(3, size=2000))
    assert all(map(torch.equal, tensors_of(larger), tensors_of(state_at(3, size=2000))))
