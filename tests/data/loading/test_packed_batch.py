"""A packed batch unpacks to the batch that was packed, whatever its tensors are."""

from __future__ import annotations

import torch

from modules.data.batch import Batch
from modules.data.index.problems import Problem
from modules.data.loading.packed_batch import ALIGNMENT_BYTES, PackedBatch


def test_unpack_returns_the_packed_batch() -> None:
    batch = Batch(
        tensors={
            "pixels": torch.randn(3, 4, 5, 7).transpose(2, 3),
            "mask": torch.tensor([[True], [False], [True]]),
            "half": torch.randn(3, 5).to(torch.bfloat16),
            "nothing": torch.zeros(3, 0),
            "timestep": torch.rand(3, dtype=torch.float64),
        },
        ids=torch.tensor([5, 1, 9]),
        seeds=torch.tensor([2**62, 0, -1]),
        weights=torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64),
        is_last_of_step=True,
        step_samples=3,
        problems=(Problem("a.png", "gone"),),
    )
    received = PackedBatch.pack(batch).unpack()
    assert received.problems == batch.problems
    assert list(received.tensors) == list(batch.tensors)
    for name, tensor in batch.tensors.items():
        assert received.tensors[name].dtype == tensor.dtype
        assert received.tensors[name].equal(tensor)
    assert received.ids.equal(batch.ids)
    assert received.seeds.equal(batch.seeds)
    assert received.weights.equal(batch.weights)
    assert (received.is_last_of_step, received.step_samples) == (True, 3)


def test_tensors_share_one_buffer_and_are_aligned() -> None:
    packed = PackedBatch.pack(
        Batch({"a": torch.zeros(1, 3, dtype=torch.uint8), "b": torch.rand(1)}, *torch.ones(3, 1).unbind(), True, 1)
    )
    tensors = packed.unpack().tensors
    assert {t.untyped_storage().data_ptr() for t in tensors.values()} == {packed.buffer.data_ptr()}
    assert all(t.storage_offset() * t.element_size() % ALIGNMENT_BYTES == 0 for t in tensors.values())
