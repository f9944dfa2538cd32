"""modules.library without the Trainer: what programs with a loop of their own use."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

import modules.library
from modules.library import (
    DistributedBatchSampler,
    DistributedSampler,
    MemoryUse,
    benchmark,
    launch_distributed,
    memory_efficiency,
    reduce_mean,
    save_on_rank0,
    scaling_efficiency,
    throughput,
    training_info,
)
from tests.library import rank_programs

RANKS = 2


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 5))
def test_every_sample_is_on_one_rank(size: int, world_size: int, epoch: int) -> None:
    ranks = [DistributedSampler(size, rank=rank, world_size=world_size, seed=3) for rank in range(world_size)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    parts = [list(sampler) for sampler in ranks]
    assert sorted(index for part in parts for index in part) == list(range(size))
    assert [len(part) for part in parts] == ranks[0].lengths == [len(sampler) for sampler in ranks]
    alone = DistributedSampler(size, rank=0, world_size=1, seed=3)
    alone.set_epoch(epoch)
    assert [parts[n % world_size][n // world_size] for n in range(size)] == list(alone)


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 5))
def test_every_rank_has_equally_many_batches_and_every_sample_counts_once(
    size: int, world_size: int, batch_size: int
) -> None:
    ranks = [DistributedBatchSampler(size, batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    batches = [list(sampler) for sampler in ranks]
    counts = [sampler.counts() for sampler in ranks]
    assert {len(each) for each in batches} == {len(each) for each in counts} == {len(ranks[0])}
    of_ranks = [zip(*each, strict=True) for each in zip(batches, counts, strict=True)]
    counted = [batch[:count] for of_rank in of_ranks for batch, count in of_rank]
    assert sorted(index for batch in counted for index in batch) == list(range(size))
    assert all(1 <= len(batch) <= batch_size for own in batches for batch in own)
    for step in range(len(ranks[0])):  # DDP divides by the number of ranks
        scales = [sampler.loss_scales()[step] for sampler in ranks]
        assert sum(scales) == pytest.approx(world_size)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    sampler = DistributedSampler(50, rank=0, world_size=1)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(DistributedSampler(50, rank=0, world_size=1, seed=1)) not in (first, list(sampler))
    assert list(DistributedSampler(50, rank=0, world_size=1, shuffle=False)) == list(range(50))


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 5))
def test_an_incomplete_last_step_can_be_dropped(size: int, world_size: int, batch_size: int) -> None:
    def sampler(rank: int, drop_last: bool) -> DistributedBatchSampler:
        return DistributedBatchSampler(size, batch_size, rank=rank, world_size=world_size, drop_last=drop_last)

    whole = size // (batch_size * world_size)
    if not whole:
        with pytest.raises(ValueError, match=f"has {size} samples, fewer than the {batch_size * world_size} of a step"):
            sampler(0, drop_last=True)
        return
    for rank in range(world_size):
        dropping = sampler(rank, drop_last=True)
        assert list(dropping) == list(sampler(rank, drop_last=False))[:whole]
        assert dropping.loss_scales() == [1.0] * whole
        assert dropping.counts() == [batch_size] * len(dropping)


def test_impossible_samplers() -> None:
    with pytest.raises(ValueError, match="rank is 2 and world_size 2; ranks go from 0"):
        DistributedSampler(5, rank=2, world_size=2)
    with pytest.raises(ValueError, match="the data set has 0 samples"):
        DistributedSampler([])
    with pytest.raises(ValueError, match="batch_size is 0; it must be 1 or more"):
        DistributedBatchSampler(5, 0)
    with pytest.raises(TypeError, match=r"batch_size is 2\.5; it must be a whole number"):
        DistributedBatchSampler(5, 2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("processes", [0, -1])
def test_no_processes_are_a_mistake(processes: int) -> None:
    with pytest.raises(ValueError, match=f"world_size is {processes}; it must be 1 or more"):
        launch_distributed(rank_programs.all_pieces, processes, "gloo", folder=Path())


def test_reduce_mean_in_one_process() -> None:
    image = torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16)
    found: dict[str, Any] = reduce_mean({"b": image, "a": {"count": torch.tensor(3), "loss": 0.1}}, weight=7)
    assert list(found) == ["b", "a"]
    assert found["b"].dtype == torch.bfloat16
    assert torch.equal(found["b"], image)
    assert found["a"] == {"count": torch.tensor(3.0), "loss": pytest.approx(0.1)}
    with pytest.raises(ValueError, match="no rank gave a weight above 0"):
        reduce_mean(1.0, weight=0)
    with pytest.raises(ValueError, match="the weight is -1"):
        reduce_mean(1.0, weight=-1)
    with pytest.raises(TypeError, match="str at 'a/b'; give numbers, tensors"):
        reduce_mean({"a": {"b": "x"}})  # type: ignore[type-var]


def test_speed_figures() -> None:
    assert throughput(samples=30, seconds=1.5) == 20
    assert scaling_efficiency(180, 100, 2) == 0.9
    assert memory_efficiency("cpu") is None
    used = MemoryUse(peak_allocated_mib=600, peak_reserved_mib=800, total_mib=1600)
    assert (used.efficiency, used.utilization) == (0.75, 0.5)
    with pytest.raises(ValueError, match="seconds is 0; it must be above 0"):
        throughput(1, 0)
    with pytest.raises(ValueError, match="world_size is 0"):
        scaling_efficiency(1, 1, 0)


def test_a_benchmark_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.random.get_rng_state()
    found = benchmark(model, torch.randn(6, 4, generator=torch.Generator()), lambda m, x: m(x).square(), steps=3)
    assert found.forward_ms > 0
    assert found.backward_ms > 0
    assert found.batches_per_s == pytest.approx(1000 / (found.forward_ms + found.backward_ms))
    assert found.memory is None
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_benchmark_says_what_it_cannot_measure() -> None:
    model, batch = nn.Linear(2, 1), torch.ones(1, 2)
    with pytest.raises(TypeError, match="model is str; give a torch"):
        benchmark("model", batch, lambda m, x: m(x))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss returned float; it must be a tensor"):
        benchmark(model, batch, lambda m, x: m(x).sum().item())
    with pytest.raises(ValueError, match="loss returned a tensor without a gradient"):
        benchmark(model, batch, lambda m, x: m(x).detach())


def test_what_is_saved_is_whole_or_the_former_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "model.safetensors"
    assert save_on_rank0({"weight": torch.ones(2)}, file) == file
    with pytest.raises(TypeError, match="'step' is int, and safetensors holds tensors"):
        save_on_rank0({"step": 3}, file)  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="state is int; give a module, a mapping of tensors or a function"):
        save_on_rank0(3, file)  # type: ignore[arg-type]

    with pytest.raises(IsADirectoryError, match="is a folder; give the path of a file within it"):
        save_on_rank0({"weight": torch.ones(2)}, tmp_path / "new")
    with pytest.raises(NotADirectoryError, match=r"model\.safetensors' is a file; give a path within a folder"):
        save_on_rank0({"weight": torch.ones(2)}, file / "inner")

    def fails(path: Path) -> None:
        path.write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        save_on_rank0(fails, file)
    with pytest.raises(FileNotFoundError, match="wrote nothing"):
        save_on_rank0(lambda path: None, file)
    assert torch.equal(load_file(file)["weight"], torch.ones(2))
    assert os.listdir(file.parent) == [file.name]


def test_a_function_may_save_a_folder(tmp_path: Path) -> None:
    def write(text: str, path: Path) -> None:
        (path / "inner").mkdir(parents=True)
        (path / "inner" / "file.txt").write_text(text)

    for text in ("first", "second"):
        save_on_rank0(partial(write, text), tmp_path / "model")
        assert (tmp_path / "model" / "inner" / "file.txt").read_text() == text
    save_on_rank0(lambda path: path.write_text("a file"), tmp_path / "model")
    assert (tmp_path / "model").read_text() == "a file"
    assert os.listdir(tmp_path) == ["model"]


def test_everything_public_is_exported() -> None:
    public = {name for name in vars(modules.library) if not name.startswith("_")}
    submodules = {path.stem for path in Path(str(modules.library.__file__)).parent.glob("*.py")}
    assert public - submodules | {"benchmark", "training_info"} == set(modules.library.__all__)


@pytest.mark.slow
def test_two_ranks_train_and_validate_like_one(tmp_path: Path) -> None:
    launch_distributed(rank_programs.all_pieces, RANKS, "gloo", folder=tmp_path)
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    alone = rank_programs.make_model()
    rank_programs.train(alone, batch_size=4 * RANKS)
    expected = rank_programs.validate(alone)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == alone.state_dict().keys()
    for name, weight in alone.state_dict().items():
        assert torch.allclose(saved[name], weight, rtol=1e-12)
    for rank, results in enumerate(found):
        assert results["loss"] == pytest.approx(expected["loss"], rel=1e-12)
        assert results["column"] == pytest.approx(expected["by"]["column"].tolist(), rel=1e-12)  # type: ignore[index]
        assert results["nothing"] == 2.0
        assert "rank 1 gave other keys or shapes than rank 0" in results["refusal"]
        assert results["throughput"] == pytest.approx((10 + 20) / 2.0)
        assert results["info"] == [rank, rank, RANKS, "gloo", "cpu", "fp32"]
        assert results["benchmark"] == 1
        assert results["main"] == (rank == 0)
    info = training_info()
    assert (info.rank, info.world_size, info.backend) == (0, 1, "none")
    assert {"Tandem", "Python", "torch"} <= info.versions.keys()
