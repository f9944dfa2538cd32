"""A parcel gives back the batch that went in, whatever its tensors are."""

from __future__ import annotations

import torch

from modules.data.batch import Batch
from modules.data.parcel import ALIGNMENT_BYTES, Parcel


def test_a_batch_comes_out_as_it_went_in() -> None:
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
        last=True,
        step_weight=1.5,
        step_samples=3,
    )
    received = Parcel.of(batch).batch()
    assert list(received.tensors) == list(batch.tensors)
    for name, tensor in batch.tensors.items():
        assert received.tensors[name].dtype == tensor.dtype
        assert received.tensors[name].equal(tensor)
    assert received.ids.equal(batch.ids)
    assert received.seeds.equal(batch.seeds)
    assert received.weights.equal(batch.weights)
    assert (received.last, received.step_weight, received.step_samples) == (True, 1.5, 3)


def test_everything_is_one_piece_of_memory_with_aligned_tensors() -> None:
    parcel = Parcel.of(
        Batch({"a": torch.zeros(1, 3, dtype=torch.uint8), "b": torch.rand(1)}, *torch.ones(3, 1).unbind(), True, 1.0, 1)
    )
    tensors = parcel.batch().tensors
    assert {t.untyped_storage().data_ptr() for t in tensors.values()} == {parcel.content.data_ptr()}
    assert all(t.storage_offset() * t.element_size() % ALIGNMENT_BYTES == 0 for t in tensors.values())
