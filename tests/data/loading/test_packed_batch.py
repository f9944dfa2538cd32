"""A packed batch unpacks to the batch that was packed, whatever its tensors are."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from modules.data.batch import Batch, stack_samples
from modules.data.index.problems import Problem
from modules.data.loading.packed_batch import ALIGNMENT_BYTES, PackedBatch, large_places


@pytest.mark.parametrize("slot_bytes", [None, 100, 5000])
def test_unpack_returns_the_packed_batch(slot_bytes: int | None) -> None:
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
    slots = None if slot_bytes is None else torch.zeros(2, slot_bytes, dtype=torch.uint8)
    packed = PackedBatch.pack(batch, slots, 1)
    assert (packed.slot == 1) == (slot_bytes == 5000)
    received = packed.unpack(slots)
    if slots is not None:
        assert slots.any() == (slot_bytes == 5000)
        slots.fill_(255)  # the next batch
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
    packed = PackedBatch.pack(batch_of({"a": torch.zeros(1, 3, dtype=torch.uint8), "b": torch.rand(1)}))
    tensors = packed.unpack().tensors
    assert {t.untyped_storage().data_ptr() for t in tensors.values()} == {torch.as_tensor(packed.buffer).data_ptr()}
    assert all(t.storage_offset() * t.element_size() % ALIGNMENT_BYTES == 0 for t in tensors.values())


def test_a_large_batch_is_made_where_it_is_sent_from() -> None:
    samples = [{"latents": torch.randn(4, 300, 300), "states": torch.randn(length, 700)} for length in (5, 9, 1)]
    made = stack_samples(samples, ("states",), large_places)
    usual = stack_samples(samples, ("states",))
    assert list(made) == list(usual) == ["latents", "states.length", "states"]
    ids, seeds = torch.arange(6).view(2, 3)
    weights = torch.ones(3, dtype=torch.float64)
    packed = PackedBatch.pack(Batch(made, ids, seeds, weights, is_last_of_step=True, step_samples=3))
    assert torch.as_tensor(packed.buffer).data_ptr() == made["latents"].untyped_storage().data_ptr()
    received = packed.unpack()
    assert all(received.tensors[name].equal(tensor) for name, tensor in usual.items())
    assert (received.ids.tolist(), received.seeds.tolist()) == ([0, 1, 2], [3, 4, 5])
    assert large_places(((torch.float32, torch.Size([3, 4])),)) is None, "a small one has a slot"


@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX's")
def test_batches_arrive_without_shared_memory() -> None:
    """As with a full /dev/shm: no file may grow in the worker."""
    loader: DataLoader[Any] = DataLoader(
        [torch.arange(1000), torch.ones(2)],  # type: ignore[arg-type]
        batch_size=None,
        num_workers=1,
        collate_fn=pack_pixels,
        worker_init_fn=refuse_files,
        timeout=60,
    )
    received = [packed.unpack().tensors["pixels"] for packed in loader]
    assert [tensor.tolist() for tensor in received] == [list(range(1000)), [1.0, 1.0]]


def pack_pixels(pixels: Any) -> PackedBatch:
    return PackedBatch.pack(batch_of({"pixels": pixels}))


def batch_of(tensors: dict[str, torch.Tensor]) -> Batch:
    ids, seeds, weights = torch.ones(3, 1).unbind()
    return Batch(tensors, ids, seeds, weights, is_last_of_step=True, step_samples=1)


def refuse_files(_: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
