"""The table of what is cached: found out once, mapped by all, never trusted; and captions in entries of their own."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from modules.config import TrainConfig
from modules.data.cache.cache import Cache
from modules.data.cache.stored import remove_shards, stored_shards
from modules.data.index.column_store import Column, map_columns, write_columns
from modules.data.loading.loader import make_loader
from modules.data.loading.order import make_order
from tests.data.helpers import RecordingEncode, config_for, encode_missing, indexed, transform


class Encodes:
    """Opens caches of a config and counts what each start encodes."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder, self.place = folder, place
        self.captions: list[str] = []

    def config(self, **settings: object) -> TrainConfig:
        return config_for(self.folder, cache=self.place, **settings)

    def open(self, **settings: object) -> Cache:
        config = self.config(**settings)
        return Cache(self.place, "f", indexed(config), config, text_fingerprint="t")

    def encode_captions(self, captions: Sequence[str], size: int) -> list[dict[str, Tensor]]:
        self.captions += captions
        return [{"text": torch.tensor([len(caption), hash_of(caption)])} for caption in captions]

    def start(self, **settings: object) -> tuple[int, list[str]]:
        """Encode what is missing; returns the number of views and the captions."""
        cache, views, self.captions = self.open(**settings), RecordingEncode(), []
        cache.update()
        cache.encode_captions(cache.missing_captions(), 4, self.encode_captions, 0)
        encode_missing(cache, views)
        assert cache.load().usable.all()
        return len(views.examples), sorted(self.captions)


def hash_of(caption: str) -> int:
    return sum(caption.encode())


@pytest.fixture
def starts(folder: Path, tmp_path: Path) -> Encodes:
    for number in range(10):
        (folder / f"{number}.txt").write_text("a cat" if number % 2 else f"dog {number}")
    return Encodes(folder, tmp_path / "c")


DOGS = [f"dog {number}" for number in range(0, 10, 2)]


def test_captions_are_encoded_once_and_alone(starts: Encodes) -> None:
    assert starts.start() == (10, ["a cat", *DOGS])
    assert starts.start() == (0, [])
    assert starts.start(prompt_prefix="my ") == (0, ["my a cat", *(f"my {dog}" for dog in DOGS)])
    (starts.folder / "3.txt").write_text("a bird")
    assert starts.start() == (0, ["a bird"])
    assert starts.start(horizontal_flip=True) == (10, [])
    assert starts.start(resolution=64, horizontal_flip=True) == (20, [])
    for suffix in (".png", ".txt"):
        (starts.folder / f"4{suffix}").rename(starts.folder / f"z{suffix}")
    assert starts.start() == (0, [])


def test_samples_have_the_text_of_their_caption_unless_it_is_dropped(starts: Encodes) -> None:
    starts.start(caption_lines="random")
    for caption_dropout in (0.0, 1.0):
        config = starts.config(caption_dropout=caption_dropout, loader_workers=0)
        cache = starts.open(caption_dropout=caption_dropout)
        index, cached = indexed(config), cache.load()
        seen: list[tuple[str, Tensor | None]] = []

        def look(cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
            seen.append((caption, cached.pop("text", None)))  # noqa: B023
            return transform(cached, caption, generator)

        order = make_order(index, config, config.seed, cached.usable, 5)
        list(make_loader(config, index, cached, order, look, batch_size=1).epoch(0))
        assert len(seen) == 10
        for caption, text in seen:
            assert (text is None) == (caption == "") == bool(caption_dropout)
            assert text is None or text.tolist() == [len(caption), hash_of(caption)]


def test_an_unchanged_start_reads_no_manifest(starts: Encodes) -> None:
    starts.start()
    name = starts.open().update()
    manifest = starts.place / "rank-0/index.jsonl"
    stamp = manifest.stat()
    manifest.write_bytes(b"x" * stamp.st_size)
    os.utime(manifest, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    first, further = starts.open(), starts.open()
    assert first.update() == name
    further.follow(name)
    for cache in (first, further):
        assert not len(cache.missing())
        assert not cache.missing_captions()
        cached = pickle.loads(pickle.dumps(cache.load()))
        assert cached.usable.all()
        assert cached.read(3, 0)["pixels"].shape[0] == 3
        assert cached.text("dog 2")["text"].tolist() == [5, hash_of("dog 2")]


def test_whatever_changes_the_cache_is_found_out(starts: Encodes) -> None:
    starts.start()
    names = [starts.open().update()]
    shard = min(starts.place.glob("rank-0/*.safetensors"))
    kept = shard.read_bytes()
    for change in (
        shard.unlink,
        lambda: shard.write_bytes(kept[:-1]),
        lambda: remove_shards(stored_shards(starts.place)),
        lambda: (starts.folder / "1.txt").write_text("a fox"),
        lambda: shutil.copytree(starts.place / "rank-0", starts.place / "rank-7"),
    ):
        change()
        cache = starts.open()
        names.append(cache.update())
        assert cache.missing_captions()
    assert len(set(names)) == len(names)
    starts.start()
    (starts.place / names[0]).unlink(missing_ok=True)
    follower = starts.open()
    follower.follow(names[0])  # another run has removed it
    assert follower.load().usable.all()


def test_an_index_that_another_run_has_replaced_has_its_own_table(starts: Encodes) -> None:
    starts.start()
    whole, waiting, further = starts.open().load(), starts.open(), starts.open()
    for suffix in (".png", ".txt"):  # the rows 0 to 4 are those of other images in the index of the other run
        (starts.folder / f"0{suffix}").rename(starts.folder / f"4z{suffix}")
    starts.start()
    theirs = starts.open().update()
    assert waiting.update() != theirs
    further.follow(theirs)
    for cache in (waiting, further):
        cached = cache.load()
        assert cached.usable.tolist() == [True] * 10  # 0.png was encoded before it was renamed
        for row in range(10):
            assert torch.equal(cached.read(row, 0)["pixels"], whole.read(row, 0)["pixels"])


def _set(name: str, value: object) -> Callable[[dict[str, Column], dict[str, object]], None]:
    def change(columns: dict[str, Column], header: dict[str, object]) -> None:
        if name in header:
            header[name] = value
        elif isinstance(value, type):
            columns[name] = columns[name].astype(value)
        elif value is None:
            columns[name] = columns[name][:-1]
        else:
            columns[name] = np.full_like(columns[name], value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(_set("shards", [name]) for name in ("../rank-0/000000.safetensors", "/etc/passwd", "rank-0/../../a", 3)),
        *(_set("shard", number) for number in (9, -2)),
        *(_set("first", value) for value in (0, None, np.int32)),
        *(_set("text_row", number) for number in (10, -1)),
        *(_set(name, None) for name in ("usable", "position", "text_low", "contents")),
        _set("reasons", {"x": 3}),
    ],
)
def test_a_table_of_somebody_else_is_made_again(
    starts: Encodes, change: Callable[[dict[str, Column], dict[str, object]], None]
) -> None:
    starts.start()
    file = starts.place / starts.open().update()
    columns, text = map_columns(file)
    columns, header = {name: column.copy() for name, column in columns.items()}, json.loads(text)
    change(columns, header)
    write_columns(file, columns, json.dumps(header))
    cache = starts.open()
    assert cache.update() == file.name
    assert cache.load().usable.all()
    assert not len(cache.missing())


def test_a_folder_that_cannot_be_written_is_read(starts: Encodes) -> None:
    starts.start()
    file = starts.place / starts.open().update()
    file.unlink()
    file.mkdir()
    (file / "in the way").touch()
    cache, further = starts.open(), starts.open()
    assert cache.update() == ""
    further.follow("")
    assert cache.load().usable.all()
    assert further.load().usable.all()


def test_entries_of_an_earlier_version_are_counted(starts: Encodes) -> None:
    config = starts.config()
    index = indexed(config)
    encode_missing(Cache(starts.place, "f and t", index, config, captions_in_key=True), RecordingEncode())
    manifest = starts.place / "rank-0/index.jsonl"
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    manifest.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "version"}) + "\n" for line in lines))
    cache = starts.open()
    cache.update()
    assert cache.former_entries == 10
    assert starts.start() == (10, ["a cat", *DOGS])
    cache = starts.open()
    cache.update()
    assert cache.former_entries == 0
