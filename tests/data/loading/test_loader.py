"""The loader: each sample is a pure function of its seed, in any batch and on any rank or worker."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from modules.config import DataError
from modules.data.batch import Batch
from modules.data.loading.loader import make_loader
from modules.data.loading.order import validation_steps
from modules.data.loading.shares import Shares, share_counts
from modules.data.loading.worker_batches import LoaderWorkerDied
from modules.data.summary import summarize_dataset
from tests.data.helpers import Prepared, config_for, prepare, transform, write_image

OPTIONS = {
    "crop_jitter": True,
    "image_variations": 2,
    "horizontal_flip": True,
    "tag_shuffle": True,
    "tag_dropout": 0.3,
    "caption_dropout": 0.2,
}


@pytest.fixture(autouse=True)
def workers_ended() -> Iterator[None]:
    """A caught error keeps its loader in a reference cycle, which must not be collected in another test's thread."""
    yield
    gc.collect()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(30):
        write_image(tmp_path / f"d/{n}.png", 40 + 30 * (n % 3), 40, seed=n)
        (tmp_path / f"d/{n}.txt").write_text(f"image {n}, a, b, c, d\nanother {n}, e, f, g")
    return tmp_path / "d"


@pytest.fixture
def prepared(folder: Path, tmp_path: Path) -> Prepared:
    return prepare(config_for(folder, cache=tmp_path / "c", **OPTIONS))


def samples(batches: Iterable[Batch]) -> dict[int, dict[str, Tensor]]:
    """All samples by seed."""
    found: dict[int, dict[str, Tensor]] = {}
    for batch in batches:
        for n, seed in enumerate(batch.seeds.tolist()):
            if batch.weights[n] > 0:
                assert seed not in found
                found[seed] = {
                    "id": batch.ids[n],
                    **{name: tensor[n] for name, tensor in batch.tensors.items()},
                }
    return found


def assert_same(first: dict[int, dict[str, Tensor]], second: dict[int, dict[str, Tensor]]) -> None:
    assert set(first) == set(second)
    for seed, sample in first.items():
        assert all(sample[name].equal(second[seed][name]) for name in sample)


def test_samples_do_not_depend_on_batches_ranks_or_workers(prepared: Prepared) -> None:
    alone = samples(prepared.loader(batch_size=8).epoch(2))
    assert len(alone) == 30
    assert_same(samples(prepared.loader(batch_size=1).epoch(2)), alone)
    ranks = [batch for rank in range(4) for batch in prepared.loader(rank, 4, batch_size=2).epoch(2)]
    assert_same(samples(ranks), alone)
    prepared.config = prepared.config.model_copy(update={"loader_workers": 2})
    loader = prepared.loader(batch_size=3)
    assert_same(samples(loader.epoch(2)), alone)
    assert_same(samples(loader.epoch(2)), alone)  # with the same workers
    loader.close()


def test_views_captions_and_noise_vary(prepared: Prepared) -> None:
    loader = prepared.loader(batch_size=8)
    epochs = [samples(loader.epoch(epoch)) for epoch in range(12)]
    captions = {int(s["caption"]) for epoch in epochs for s in epoch.values() if s["id"] == 7}
    pixels = {s["pixels"].numpy().tobytes() for epoch in epochs for s in epoch.values() if s["id"] == 7}
    assert len(captions) > 6
    assert len(pixels) >= 2
    noise = {s["noise"].numpy().tobytes() for epoch in epochs for s in epoch.values()}
    assert len(noise) == 12 * 30


def test_epoch_can_start_at_any_step(prepared: Prepared) -> None:
    loader = prepared.loader(batch_size=4)
    batches = list(loader.epoch(1))
    ends = [number for number, batch in enumerate(batches) if batch.is_last_of_step]
    assert len(ends) == prepared.order.steps_per_epoch
    for step in range(1, len(ends)):
        rest = list(loader.epoch(1, first_step=step))
        expected = batches[ends[step - 1] + 1 :]
        assert [batch.seeds.tolist() for batch in rest] == [batch.seeds.tolist() for batch in expected]
        assert all(b.tensors["pixels"].equal(e.tensors["pixels"]) for b, e in zip(rest, expected, strict=True))


@pytest.mark.parametrize("settings", [{}, {"persistent_workers": False}, {"loader_workers": 0}], ids=str)
def test_steps_run_over_epochs(prepared: Prepared, settings: dict[str, object]) -> None:
    prepared.config = prepared.config.model_copy(update={"loader_workers": 2, **settings})
    loader, per_epoch = prepared.loader(batch_size=4), prepared.order.steps_per_epoch
    expected = [*loader.epoch(1, per_epoch - 1), *loader.epoch(2), *loader.epoch(3)]
    found = list(loader.steps(1, per_epoch - 1, 1 + 2 * per_epoch))
    loader.close()
    assert [batch.seeds.tolist() for batch in found] == [batch.seeds.tolist() for batch in expected]
    assert all(f.tensors["pixels"].equal(e.tensors["pixels"]) for f, e in zip(found, expected, strict=True))


def test_the_next_epoch_and_validation_are_read_ahead(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modules.data.loading.loader.KEPT_BYTES", 0)
    config = config_for(folder, cache=tmp_path / "c", validation_split=0.3, loader_workers=1, **OPTIONS)
    prepared, log = prepare(config), tmp_path / "read"

    def noted(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
        with log.open("a") as lines:
            lines.write(f"{generator.initial_seed()}\n")
        return transform(cached, caption, generator)

    def times_read(seed: int) -> int:
        return log.read_text().split().count(str(seed))

    steps = validation_steps(prepared.index, config.concepts, config.seed, prepared.cached.usable, 4)
    loader = make_loader(config, prepared.index, prepared.cached, prepared.order, noted, batch_size=8)
    per_epoch = prepared.order.steps_per_epoch
    batches = len(list(loader.epoch(0)))
    log.unlink()
    assert len(list(islice(loader.steps(0, 0, 2 * per_epoch), batches))) == batches
    assert len(samples(loader.validation(steps))) == sum(map(len, steps))
    next_epoch, next_validation = (int(step.seeds[0]) for step in (prepared.order.step(1, 0), steps[0]))
    deadline = time.monotonic() + 60
    while (times_read(next_epoch), times_read(next_validation)) != (1, 2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    loader.close()


def test_epoch_can_be_abandoned(prepared: Prepared) -> None:
    prepared.config = prepared.config.model_copy(update={"loader_workers": 2})
    loader = prepared.loader(batch_size=4)
    first = next(iter(loader.epoch(0)))
    again = next(iter(loader.epoch(0)))
    assert first.seeds.equal(again.seeds)
    assert len(samples(loader.epoch(1))) == 30
    loader.close()


def test_global_random_states_are_untouched(prepared: Prepared) -> None:
    prepared.config = prepared.config.model_copy(update={"loader_workers": 1})
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state()
    loader = prepared.loader(batch_size=4)
    list(loader.epoch(0))
    loader.close()
    assert torch.get_rng_state().equal(before)
    assert np.random.random() == pytest.approx(0.417022, abs=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_shard_raises_its_own_error(prepared: Prepared, tmp_path: Path, workers: int) -> None:
    shard = tmp_path / "c/rank-0/000000.safetensors"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    shard.write_bytes(data)
    prepared.config = prepared.config.model_copy(update={"loader_workers": workers})
    with pytest.raises(DataError, match=r"000000\.safetensors") as caught:
        list(prepared.loader(batch_size=4).epoch(0))
    assert "Delete that file" in caught.value.advice


def failing_transform(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
    import os

    os._exit(9)


def test_killed_worker_raises_one_sentence(prepared: Prepared) -> None:
    config = prepared.config.model_copy(update={"loader_workers": 1})
    loader = make_loader(config, prepared.index, prepared.cached, prepared.order, failing_transform, batch_size=4)
    with pytest.raises(LoaderWorkerDied, match="loader process ended") as caught:
        list(loader.epoch(0))
    assert "loader_workers" in caught.value.advice


def test_validation_is_always_the_same(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c", validation_split=0.3, loader_workers=1, **OPTIONS)
    prepared = prepare(config)
    steps = validation_steps(prepared.index, config.concepts, config.seed, prepared.cached.usable, 4)
    count = int(prepared.index.validation.sum())
    assert sum(len(step) for step in steps) == count > 3
    loader = prepared.loader(batch_size=2)
    epoch = iter(loader.epoch(0))
    next(epoch)
    first = samples(loader.validation(steps))
    seen = [batch.ids for batch in epoch]
    assert len(first) == count
    assert_same(samples(loader.validation(steps)), first)
    assert sum(len(ids) for ids in seen) + 2 >= 30 - count
    ranks = [batch for rank in range(3) for batch in prepared.loader(rank, 3, batch_size=2).validation(steps)]
    assert_same(samples(ranks), first)
    for sample in first.values():
        row = int(sample["id"])
        assert prepared.index.validation[row]
        assert sample["pixels"].equal(prepared.cached.read(row, 0)["pixels"])
        assert sample["caption"] == transform({}, prepared.index.captions(row)[0], torch.Generator())["caption"]
    loader.close()


def test_ranks_without_samples_get_weight_0(prepared: Prepared) -> None:
    for rank in range(40):
        batches = list(prepared.loader(rank, 40, batch_size=2).epoch(0, prepared.order.steps_per_epoch - 1))
        assert batches[-1].is_last_of_step
        assert batches[-1].step_samples == 6
    weights = [float(next(iter(prepared.loader(rank, 40).epoch(0))).weights.sum()) for rank in range(40)]
    assert sum(weights) == 8
    assert weights.count(0.0) == 32


def test_summary_counts_images_steps_and_buckets(folder: Path, tmp_path: Path) -> None:
    (folder / "bad.png").write_text("x")
    prepared = prepare(config_for(folder, cache=tmp_path / "c", repeats=1.5, validation_split=0.1))
    summary = summarize_dataset(prepared.index, prepared.cached, prepared.order)
    assert summary.images + summary.validation_images == 30
    assert sum(summary.buckets.values()) == summary.images
    assert summary.epoch_size == int(summary.images * 1.5 + 0.5)
    assert (summary.effective_batch, summary.steps_per_epoch) == (8, -(-summary.epoch_size // 8))
    assert summary.problems == 1
    text = "\n".join(summary.lines())
    assert f"{summary.images} images" in text
    assert "32x32" in text
    assert "#" in text


def test_zero_steps_raise_with_the_reason(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c", drop_last=True)
    assert prepare(config, global_batch_size=30).order.steps_per_epoch == 1
    with pytest.raises(DataError, match=r"0 steps.*30 samples.*31.*drop_last") as caught:
        prepare(config, global_batch_size=31)
    assert "at most 30" in caught.value.advice
    for path in folder.glob("*.png"):
        whole = path.read_bytes()  # one changed bit, which only decoding notices
        path.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    with pytest.raises(DataError, match="No image is left"):
        prepare(config)


def test_a_validation_that_fits_into_memory_is_read_once(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c", validation_split=0.3, loader_workers=2, **OPTIONS)
    prepared = prepare(config)
    steps = validation_steps(prepared.index, config.concepts, config.seed, prepared.cached.usable, 4)
    loader, others = prepared.loader(batch_size=2), set(active_children())
    whole = samples(loader.validation(steps))
    assert not set(active_children()) - others
    for _ in range(2):
        for batch in loader.validation(steps):
            batch.tensors["pixels"].zero_()  # as a model may do
    assert_same(samples(loader.validation(steps)), whole)
    assert_same(samples(loader.validation(steps[:1])), {key: whole[key] for key in list(whole)[:4]})
    loader.close()


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_validation_follows_the_shares(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.setattr("modules.data.loading.loader.KEPT_BYTES", kept_bytes)
    config = config_for(folder, cache=tmp_path / "c", validation_split=0.3, loader_workers=1, **OPTIONS)
    prepared = prepare(config)
    steps = validation_steps(prepared.index, config.concepts, config.seed, prepared.cached.usable, 4)
    alone, shares = prepared.loader(batch_size=2), Shares()
    whole = samples(alone.validation(steps))
    loaders = [prepared.loader(rank, 2, batch_size=2, shares=shares) for rank in range(2)]
    for table in ((), (), (3.0, 1.0)):
        if table:
            shares.change(1, table)
        own = [list(loader.validation(steps)) for loader in loaders]
        assert_same(samples([*own[0], *own[1]]), whole)
        counts = [sum(int((batch.weights > 0).sum()) for batch in each) for each in own]
        expected = [share_counts(len(step), 2, table) for step in steps]
        assert counts == [sum(each) for each in zip(*expected, strict=True)]
    for loader in (alone, *loaders):
        loader.close()


def test_validation_has_a_batch_size_and_workers_of_its_own(folder: Path, tmp_path: Path) -> None:
    given = {"validation_split": 0.5, "loader_workers": 2, "validation_workers": 0, "validation_batch_size": 5}
    prepared = prepare(config := config_for(folder, cache=tmp_path / "c", **OPTIONS | given))
    steps = validation_steps(prepared.index, config.concepts, config.seed, prepared.cached.usable, 5)
    loader, others = prepared.loader(batch_size=2, min_micro_batches=2), set(active_children())
    batches = iter(loader.validation(steps))
    sizes = [len(next(batches).ids)]
    assert not set(active_children()) - others
    sizes += [len(batch.ids) for batch in batches]
    assert max(sizes) > 2, sizes
    assert max(len(batch.ids) for batch in loader.epoch(0)) <= 2
    loader.close()


def test_validations_keep_their_workers_until_the_loader_is_closed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modules.data.loading.loader.KEPT_BYTES", 0)
    config = config_for(folder, cache=tmp_path / "c", validation_split=0.3, loader_workers=2, **OPTIONS)
    prepared = prepare(config)
    steps = validation_steps(prepared.index, config.concepts, config.seed, prepared.cached.usable, 4)
    loader, others = prepared.loader(batch_size=2), set(active_children())
    whole = samples(loader.validation(steps))
    workers = set(active_children()) - others
    assert len(workers) == 2
    next(loader.validation(steps))  # left in the middle, as after an error
    assert_same(samples(loader.validation(steps)), whole)
    assert set(active_children()) - others == workers
    loader.close()
    assert not set(active_children()) - others
    assert_same(samples(loader.validation(steps)), whole)
    loader.close()
