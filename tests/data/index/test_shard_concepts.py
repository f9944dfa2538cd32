"""Concepts in tar shards and tables: the same images, captions and masks as in folders with the names of the shards."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modules.config import Concept, DataError
from modules.data.index.build import build_index
from modules.data.index.concept_summary import summarize_concepts
from modules.data.index.expand import expand_concepts
from modules.data.index.index import Index
from modules.data.index.scan import scan_concept
from modules.data.missing import missing_data
from modules.files import shards as shards_module
from modules.training.data.class_labels import label_concepts, with_classes
from tests.data.helpers import config_for, damage, write_image
from tests.data.shards import pack_tar, pack_zip, tar_of

pack_stored = partial(pack_zip, method=zipfile.ZIP_STORED)
COLUMNS = ("concept", "size", "width", "height", "bucket", "validation", "path_hash", "caption_state", "caption_place")
TEXTS = ("paths", "caption_texts", "masks")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user_cache"))
    monkeypatch.setattr(shards_module, "_tables", {})


def index_of(folder: Path, place: Path, **settings: Any) -> tuple[Index, str, list[str]]:
    config = config_for(folder, cache=place, **settings)
    for _ in range(2):  # the second time from the stored index
        index = build_index(config, config.seed, 8, place)
    (summary,) = summarize_concepts(config.concepts, index, uses_masks=config.masked_training)
    return index, "\n".join(summary.lines()), missing_data(config, index, is_cached=True)


def same(first: Index, second: Index) -> bool:
    columns = all(np.array_equal(getattr(first, name), getattr(second, name)) for name in COLUMNS)
    return columns and all(getattr(first, name).unpack() == getattr(second, name).unpack() for name in TEXTS)


def layout(folder: Path) -> Path:
    """Images with captions in several places and masks, in a folder and its subfolders."""
    for number in range(8):
        write_image(folder / f"{number:06d}.{('png', 'jpg')[number % 2]}", 40 + 8 * number, seed=number)
        (folder / f"{number:06d}.{('txt', 'json')[number // 4]}").write_text(json.dumps({"caption": f"no {number}"}))
        write_image(folder / f"{number:06d}-masklabel.png", 40 + 8 * number, mode="L")
    write_image(folder / "sub" / "a.png")
    write_image(folder / "sub" / "masks" / "a.png", mode="L")
    (folder / "sub" / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "in a list"}')
    write_image(folder / ".hidden" / "b.png")
    write_image(folder / "without_suffix.png").rename(folder / "without_suffix")
    return folder


@pytest.mark.parametrize(
    ("suffix", "pack", "deeper"),
    [("tar", pack_tar, True), ("tar", pack_tar, False), ("zip", pack_zip, True), ("zip", pack_stored, False)],
)
def test_archives_are_folders(tmp_path: Path, suffix: str, pack: Callable[..., Path], deeper: bool) -> None:
    settings = {"masked_training": True, "validation_split": 0.3, "include_subfolders": deeper}
    names = [f"{name}.{suffix}" for name in ("00000", "00001", "more/00002")[: 3 if deeper else 1]]
    for name in names:
        pack(layout(tmp_path / "unpacked" / name), tmp_path / "packed" / name)
    below = "" if deeper else names[0]
    first, said, warnings = index_of(tmp_path / "packed" / below, tmp_path / "first", **settings)
    second, also_said, also_warned = index_of(tmp_path / "unpacked" / below, tmp_path / "second", **settings)
    assert same(first, second)
    assert len(first) == (30 if deeper else 9)
    in_place = f"  read in place from {len(names)} shard{'s' * deeper}"
    assert [line for line in said.splitlines()[1:] if line != in_place] == also_said.splitlines()[1:]
    assert in_place in said
    assert len(warnings) == len(also_warned)


def test_a_damaged_file_and_a_damaged_shard_are_problems(tmp_path: Path) -> None:
    folder = layout(tmp_path / "unpacked")
    damaged = tmp_path / "unpacked" / "000000.png"
    damaged.write_bytes(damaged.read_bytes()[:-60])
    (tmp_path / "packed").mkdir()
    whole = pack_tar(folder, tmp_path / "packed" / "a.tar").read_bytes()
    (tmp_path / "packed" / "b.tar").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "packed" / "c.tar").write_bytes(b"nothing of the kind" * 100)
    (tmp_path / "packed" / "d.tar.gz").write_bytes(b"\x1f\x8b")
    index, said, _ = index_of(tmp_path / "packed", tmp_path / "cache")
    problems = {problem.path.removeprefix(f"{tmp_path}/packed/"): problem.what for problem in index.problems()}
    assert "damaged or incomplete" in problems["a.tar/000000.png"]
    assert "damaged" in problems["c.tar"]
    assert "compressed" in problems["d.tar.gz"]
    assert any(path.startswith("b.tar/") and "cut off" in what for path, what in problems.items())
    assert "from 2 shards" in said
    assert 9 < len(index) < 18


def test_archives_beside_their_images_are_not_read_twice(tmp_path: Path) -> None:
    layout(tmp_path / "x" / "photos")
    pack_tar(tmp_path / "x" / "photos", tmp_path / "x" / "photos.tar")
    index, _, warnings = index_of(tmp_path / "x", tmp_path / "cache")
    assert len(index) == 10
    assert any("1 archive in" in each and "photos.tar, is not read" in each for each in warnings)


@pytest.mark.parametrize("pack", [pack_zip, pack_tar])
def test_archives_beside_what_was_unpacked_of_them_are_not_read_twice(
    tmp_path: Path, pack: Callable[..., Path]
) -> None:
    """`archive.zip` with train/..., which was unpacked there; with what is in train; and with something else."""
    suffix = "tar" if pack is pack_tar else "zip"
    layout(tmp_path / "x" / "train")
    layout(tmp_path / "y" / "train" / "train")
    pack(tmp_path / "y" / "train", tmp_path / "x" / f"archive.{suffix}")
    pack(tmp_path / "x" / "train", tmp_path / "x" / f"inside.{suffix}")
    for number in range(8):
        write_image(tmp_path / "other" / f"{number:06d}.bmp", 40, seed=number)
        write_image(tmp_path / "x" / "more" / f"{number:06d}.bmp", 40, seed=number + 8)
    pack(tmp_path / "other", tmp_path / "x" / f"other.{suffix}")
    index, _, warnings = index_of(tmp_path / "x", tmp_path / "cache")
    assert len(index) == 10 + 8 + 8
    assert any(each.startswith("2 archives") and f"such as archive.{suffix}, are not read" in each for each in warnings)


def test_what_is_no_shard_is_said(tmp_path: Path) -> None:
    for name, words in (("a.tar.gz", "compressed archive"), ("a.txt", "is a file; give the folder")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(DataError, match=words):
            scan_concept(Concept(path=str(tmp_path / name)), with_masks=False)


def test_archives_in_numbered_folders_have_their_repeats(tmp_path: Path) -> None:
    images = write_image(tmp_path / "2_cats" / "a.png").parent
    texts = write_image(tmp_path / "texts" / "a.png").parent
    (texts / "a.txt").write_text("a cat")
    place = tmp_path / "set"
    write_image(place / "1_sks dog" / "a.png")
    pack_tar(texts, place / "1_sks dog" / "spare.tar")  # beside images, so not read
    pack_tar(images, place / "2_sks cat" / "deeper" / "a.tar")
    pack_tar(texts, place / "3_sks cow" / "a.tar")
    pack_tar(images, place / "1_sks dog.tar")  # unpacked, so not read
    config = config_for(place, cache=tmp_path, folder_repeats=True)
    concepts = expand_concepts(config).concepts
    found = [(each.repeats, each.caption_source, each.prompt_prefix) for each in concepts]
    assert found == [(1, "none", "sks dog"), (2, "none", "sks cat"), (3, "auto", "")]
    pack_tar(images, place / "loose.tar")
    assert expand_concepts(config) == config


def test_links_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    image = write_image(tmp_path / "a.png").read_bytes()
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "a.tar").write_bytes(tar_of({"a.png": image, "../secret.txt": b"x", "b/../../secret.txt": b"x"}))
    index, _, _ = index_of(tmp_path / "a.tar", tmp_path / "cache")
    assert [index.captions(row) for row in range(len(index))] == [("a",)]


def hugging_face(folder: Path, kind: str, images: list[bytes]) -> None:
    import pyarrow
    from pyarrow import ipc, parquet

    label = {"_type": "ClassLabel", "names": ["cat", "dog"]}
    features = {"image": {"_type": "Image"}, "note": {"_type": "Value", "dtype": "string"}, "label": label}
    table = pyarrow.table(
        {
            "image": [{"bytes": data, "path": None} for data in images],
            "caption": [f"caption {number}" for number in range(len(images))],
            "note": [f"note {number}" for number in range(len(images))],
            "label": [number % 2 for number in range(len(images))],
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    folder.mkdir(parents=True)
    if kind == "parquet":
        (folder / "data").mkdir()
        for part in range(2):
            rows = table.slice(part * 3, 3)
            parquet.write_table(rows, folder / "data" / f"train-0000{part}-of-00002.parquet", row_group_size=2)
        (folder / "README.md").write_text("---\nconfigs\n---")
        return
    for name in ("dataset_info.json", "state.json"):
        (folder / name).write_text("{}")
    for name in ("data-00000-of-00001.arrow", "cache-1234.arrow"):
        with ipc.new_stream(str(folder / name), table.schema) as out:
            out.write_table(table, max_chunksize=4)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_data_sets_of_hugging_face(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    images = [write_image(tmp_path / "images" / f"{n}.png", 40 + 8 * n, seed=n).read_bytes() for n in range(6)]
    damage(tmp_path / "images" / "5.png")
    images[5] = (tmp_path / "images" / "5.png").read_bytes()[:50]
    hugging_face(tmp_path / "set", kind, images)
    index, said, _ = index_of(tmp_path / "set", tmp_path / "cache")
    names = [index.relative_path(row) for row in range(len(index))]
    expected = (
        [f"data-00000-of-00001.arrow/000000{row}.png" for row in range(5)]
        if kind == "arrow"
        else [f"data/train-0000{row // 3}-of-00002.parquet/000000{row % 3}.png" for row in range(5)]
    )
    assert names == expected
    assert [index.captions(row) for row in range(5)] == [(f"caption {row}",) for row in range(5)]
    assert index.width.tolist() == [40 + 8 * row for row in range(5)]
    assert "5 from the table of the images" in said
    assert any("000000" in each.path and "damaged" in each.what for each in index.problems())
    index, _, _ = index_of(tmp_path / "set", tmp_path / "cache", caption_column="note")
    assert index.captions(1) == ("note 1",)
    index, _, _ = index_of(tmp_path / "set", tmp_path / "cache", caption_source="label")
    assert [index.captions(row)[0] for row in range(5)] == ["cat", "dog", "cat", "dog", "cat"]


def labels_of(folder: Path, cache: Path) -> list[str]:
    config = label_concepts(config_for(folder, cache=cache, family="classifier"))
    index = build_index(config, config.seed, 8, cache)
    assert not missing_data(config, index, is_cached=False)
    given = with_classes(config, index).family_options["classes"]
    assert given == "\n".join(sorted({index.captions(row)[0] for row in range(len(index))}))
    return [index.captions(row)[0] for row in range(len(index))]


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [(".cls", True), (".cls", False), (".json", True), (".json", False), ("", True), ("", False)],
)
def test_labels_of_webdataset_are_classes(tmp_path: Path, suffix: str, packed: bool) -> None:
    for shard in range(2):
        folder = tmp_path / "loose" / f"{shard:05d}"
        for number in range(4):
            image = write_image(folder / (f"{number % 2}" if not suffix else "") / f"{number}.png", seed=number)
            image.with_suffix(".txt").write_text("a caption")
            text = json.dumps({"caption": "no class", "label": number % 2}) if suffix == ".json" else f"{number % 2}\n"
            image.with_suffix(suffix or ".txt").write_text(text)
        pack_tar(folder, tmp_path / "packed" / f"{shard:05d}.tar")
    expected = ["0", "1", "0", "1"] if suffix else ["0", "0", "1", "1"]  # the last from the names of folders
    assert labels_of(tmp_path / ("packed" if packed else "loose"), tmp_path / "cache") == expected * 2


def test_archives_have_the_class_of_their_folder(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        pack_tar(write_image(tmp_path / "images" / name / "a.png").parent, tmp_path / "set" / name / "00000.tar")
    assert labels_of(tmp_path / "set", tmp_path / "cache") == ["cat", "dog"]
