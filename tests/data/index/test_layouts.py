"""Captions and masks where people have them, texts in other encodings, and the summary that says what was found."""

from __future__ import annotations

import json
import unicodedata
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.config import Concept
from modules.data.index.build import build_index, read_index
from modules.data.index.column_store import map_columns, write_columns
from modules.data.index.concept_summary import ConceptSummary, summarize_concepts
from modules.data.index.index import Index, load_index
from modules.data.index.scan import scan_concept
from modules.data.missing import missing_data
from modules.files.encodings import decode_unicode, find_encoding
from tests.data.helpers import config_for, write_image


class Found:
    """What a run would find in a folder: read twice, the second time from the stored index."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        config = config_for(folder, cache=folder.parent / "cache", **settings)
        cache = Path(config.cache_dir)
        shown = []
        for _ in range(2):
            self.index: Index = build_index(config, config.seed, 8, cache)
            (self.summary,) = summarize_concepts(config.concepts, self.index, uses_masks=config.masked_training)
            self.warnings = missing_data(config, self.index, is_cached=True)
            shown.append((self.captions, self.summary, self.warnings, self.index.problems()))
        assert shown[0] == shown[1]
        assert self.summary == summarized(read_index(config, config.seed, 8, cache), config)

    @property
    def captions(self) -> dict[str, tuple[str, ...]]:
        return {self.index.relative_path(row): self.index.captions(row) for row in range(len(self.index))}

    @property
    def text(self) -> str:
        return "\n".join(self.summary.lines())

    def masks(self) -> dict[str, str]:
        rows = [row for row in range(len(self.index)) if self.index.has_mask(row)]
        root = self.index.header.roots[0]
        return {
            self.index.relative_path(row): Path(self.index.mask(row, "-masklabel.png")).relative_to(root).as_posix()
            for row in rows
        }


def test_metadata_in_parquet(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow

    columns = {"file_name": ["a.png", "gone.png"], "note": ["x", "y"], "image": [b"\xff", b"\0"]}
    parquet.write_table(pyarrow.table({**columns, "text": ["a cat", "a dog"]}), folder / "metadata.parquet")
    found = Found(folder)
    assert found.captions == {"a.png": ("a cat",), "b.png": ("",)}
    assert "1 from metadata.parquet" in found.text
    assert any("1 entry names no image" in each for each in found.warnings)
    assert Found(folder, caption_column="note").captions["a.png"] == ("x",)
    parquet.write_table(pyarrow.table(columns), folder / "metadata.parquet")
    assert any("it lacks one of the columns text, caption" in each.what for each in Found(folder).index.problems())
    same = pyarrow.array(["00.png"]).take(pyarrow.array([0] * 5_000_000, pyarrow.int8()))  # 3 kB in a file
    parquet.write_table(pyarrow.table({"file_name": same}), folder / "metadata.parquet")
    assert any("has more than 4,194,304 rows" in each.what for each in Found(folder).index.problems())
    (folder / "metadata.parquet").write_bytes(b"PAR1 and no more")
    assert any("cannot be read as parquet" in each.what for each in Found(folder).index.problems())


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_pyarrow_is_named(folder: Path) -> None:
    (folder / "metadata.parquet").write_bytes(b"PAR1")
    found = Found(folder)
    assert any("pip install pyarrow" in each.what for each in found.index.problems())
    assert any("metadata.parquet is read, with pyarrow" in each for each in found.warnings)


def summarized(index: Index, config: Any) -> ConceptSummary:
    (summary,) = summarize_concepts(config.concepts, index, uses_masks=config.masked_training)
    return summary


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_image(tmp_path / "set" / f"{name}.png")
    return tmp_path / "set"


KOHYA = json.dumps({"a": {"caption": "a cat", "tags": "red, sitting"}, "/data/b.png": {"tags": ["one", "two"]}})
VIDEOS = [{"video_path": "a.png", "caption": "a cat"}, {"media_path": "b.png", "caption": "a dog"}]  # musubi-tuner, LTX
RECORDS = json.dumps([{"image": "a.png", "prompt": "a cat"}, {"image": "b.png", "prompt": "a dog"}])


@pytest.mark.parametrize(
    ("files", "captions", "place"),
    [
        ({"a.caption": "a cat", "b.caption": "a dog"}, ("a cat", "a dog"), "2 from NAME.caption"),
        ({"a.png.txt": "a cat", "b.png.txt": "a dog"}, ("a cat", "a dog"), "2 from NAME.png.txt"),
        ({"a.TXT": "a cat", "b.Txt": "a dog"}, ("a cat", "a dog"), "1 from NAME.TXT, 1 from NAME.Txt"),
        ({"captions/a.txt": "a cat", "captions/b.txt": "a dog"}, ("a cat", "a dog"), "2 from captions/NAME.txt"),
        ({"a.json": '{"caption": "a cat", "tags": ["x"]}', "b.json": '{"tags": ["1", "2"]}'}, ("a cat, x", "1, 2"), ""),
        ({"a.json": '{"id": 5, "description": "a cat"}', "b.json": "5"}, ("a cat", ""), "1 from NAME.json"),
        ({"metadata.json": KOHYA}, ("a cat, red, sitting", "one, two"), "2 from metadata.json"),
        ({"captions.json": RECORDS}, ("a cat", "a dog"), "2 from captions.json"),
        ({"captions.txt": "a.png\ta cat, red\nb.png\ta dog"}, ("a cat, red", "a dog"), "2 from captions.txt"),
        ({"captions.txt": 'image,caption\na.png,"a cat, red"\nb.png,a dog'}, ("a cat, red", "a dog"), "captions.txt"),
        ({"metadata.csv": "file_name;text\na.png;a cat, red\nb.png;a dog"}, ("a cat, red", "a dog"), "metadata.csv"),
        ({"metadata.tsv": "filename\tcaption\na.png\ta cat\nb.png\ta dog"}, ("a cat", "a dog"), "2 from metadata.tsv"),
        (
            {"metadata.csv": "video,prompt\na.png,a cat\nb.png,a dog"},
            ("a cat", "a dog"),
            "metadata.csv",
        ),  # DiffSynth 610
        (
            {"captions.csv": 'image_id, text\na.png, "a cat, red"\nb.png, a dog'},
            ("a cat, red", "a dog"),
            "captions.csv",
        ),
        ({"metadata.csv": 'image,text\na.png, "Exit\nb.png,a dog'}, ('"Exit', "a dog"), "metadata.csv"),
        ({"metadata.jsonl": json.dumps(VIDEOS, indent=1)}, ("a cat", "a dog"), "2 from metadata.jsonl"),
        ({"metadata.json": "\n".join(map(json.dumps, VIDEOS))}, ("a cat", "a dog"), "2 from metadata.json"),
        ({"meta_cap.json": KOHYA}, ("a cat, red, sitting", "one, two"), "2 from meta_cap.json"),  # kohya_ss 2761
    ],
)
def test_captions_are_found_where_people_have_them(
    folder: Path, files: dict[str, str | bytes], captions: tuple[str, str], place: str
) -> None:
    found = Found(write(folder, files))
    assert [found.captions[name] for name in ("a.png", "b.png")] == [(caption,) for caption in captions]
    assert place in found.text
    assert f"such as '{captions[0]}' (a.png)" in found.text
    assert not found.warnings


@pytest.mark.parametrize("images", ["images", "videos"])  # the latter with stills among them
def test_images_beside_captions_in_folders_of_their_own(tmp_path: Path, images: str) -> None:
    write_image(tmp_path / "set" / images / "x/a.png")
    write(tmp_path / "set", {"captions/x/a.txt": "a cat", "captions/x/c.txt": "nobody's"})
    found = Found(tmp_path / "set")
    assert found.captions == {f"{images}/x/a.png": ("a cat",)}
    assert "1 text of no image, such as captions/x/c.txt" in found.text
    (warning,) = Found(tmp_path / "set" / images).warnings
    assert "the folder captions beside it (give the concept the folder that holds both)" in warning


def test_the_first_place_counts_and_a_difference_is_said(folder: Path) -> None:
    """Files that were read before Tandem looked in other places come before them."""
    places: list[dict[str, str | bytes]] = [
        {"captions.txt": "a.png\tlist"},
        {"a.json": '{"text": "record"}'},
        {"a.caption": "caption"},
        {"a.txt": "text"},
        {"metadata.csv": "file_name,text\na.png,csv"},
        {"metadata.jsonl": '{"file_name": "a.png", "text": "jsonl"}'},
    ]
    expected = ["list", "record", "caption", "text", "csv", "jsonl"]
    for files, caption in zip(places, expected, strict=True):
        found = Found(write(folder, files))
        assert found.captions["a.png"] == (caption,)
        differing = [each for each in found.warnings if "captions in two places, and 1 differ" in each]
        assert len(differing) == (caption != "list")
    assert Found(folder, caption_source="txt").captions["a.png"] == ("text",)
    (folder / "a.txt").unlink()
    assert Found(folder, caption_source="txt").captions["a.png"] == ("",), "txt is caption_extension and nothing else"


def test_records_without_captions_are_no_captions(folder: Path) -> None:
    found = Found(write(folder, {"a.json": '{"width": 5}', "metadata.json": '{"name": "of the data set"}'}))
    assert found.captions == {"a.png": ("a",), "b.png": ("b",)}
    assert "file names are the captions, such as 'a'; not used: 2 .json." in found.warnings[0]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.json", "a.json"])
def test_the_column_of_the_captions_may_be_chosen(folder: Path, name: str) -> None:
    row = {"file_name": "a.png", "blip": "a cat"}
    lines = {".csv": "file_name,blip\na.png,a cat", ".jsonl": json.dumps(row)}
    write(folder, {name: lines.get(Path(name).suffix, json.dumps(row if name == "a.json" else [row]))})
    assert Found(folder, caption_column="blip").captions["a.png"] == ("a cat",)
    without = Found(folder)
    assert without.captions["a.png"] != ("a cat",)
    said = [*without.warnings, *(problem.what for problem in without.index.problems())]
    assert any("blip" in each or ".json" in each for each in said), said


def test_entries_that_name_no_image_and_names_written_otherwise(tmp_path: Path) -> None:
    write_image(tmp_path / "set" / unicodedata.normalize("NFC", "café.png"))
    write_image(tmp_path / "set/B.PNG")
    names = [unicodedata.normalize("NFD", "café.png"), "b.png", "gone.png"]
    rows = [json.dumps({"file_name": name, "text": f"of {number}"}) for number, name in enumerate(names)]
    found = Found(write(tmp_path / "set", {"metadata.jsonl": "\n".join(rows)}))
    assert sorted(found.captions.values()) == [("of 0",), ("of 1",)]
    assert "2 images named in other capitals or another Unicode form by the captions" in found.text
    assert found.warnings == [f"1 entry names no image of {tmp_path / 'set'}, such as gone.png (in metadata.jsonl)."]


@pytest.mark.parametrize(
    ("image", "file", "row"),
    [
        ("train/a.png", "train/metadata.jsonl", '{"file_name": "train/a.png", "text": "a cat"}'),  # diffusers 3674
        ("a.png", "metadata.jsonl", '{"file_name": "set/a.png", "text": "a cat"}'),
        ("Images/a.png", "captions.txt", "image,caption\na.png,a cat"),  # Flickr8k of Kaggle
        ("Flicker8k_Dataset/a.png", "Flickr8k_text/Flickr8k.token.txt", "a.png#0\ta cat"),
        ("flickr30k-images/a.png", "results_20130124.token", "a.png#0\ta cat"),
        ("flickr30k_images/a.png", "results.csv", "image_name| comment_number| comment\na.png| 0| a cat"),
        (
            "train2017/a.png",
            "annotations/captions_train2017.json",
            '{"images": [{"id": 7, "file_name": "a.png"}], "annotations": [{"image_id": 7, "caption": "a cat"}]}',
        ),
    ],
)
def test_a_list_may_name_its_own_folder_or_leave_out_that_of_the_images(
    tmp_path: Path, image: str, file: str, row: str
) -> None:
    write_image(tmp_path / "set" / image)
    found = Found(write(tmp_path / "set", {file: row}))
    assert found.captions == {image: ("a cat",)}
    assert "capitals" not in found.text
    assert not found.warnings


def test_images_have_all_captions_of_the_lists_of_flickr_and_coco(tmp_path: Path) -> None:
    for name in ("train/a.png", "train/b.png"):
        write_image(tmp_path / "set" / name)
    images = [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}, {"id": 3, "file_name": "gone.png"}, 4]
    captions = [{"image_id": number, "caption": f"{text} {number}"} for text in ("a", "the") for number in (2, 1, 9)]
    data = json.dumps({"images": images, "annotations": [*captions, {"image_id": 1}, None]})
    found = Found(write(tmp_path / "set", {"annotations/captions_val2014.json": data}))
    assert found.captions == {"train/a.png": ("a 1", "the 1"), "train/b.png": ("a 2", "the 2")}
    assert ["1 entry names no image" in each for each in found.warnings] == [True]
    write(tmp_path / "set", {"annotations/captions_val2014.json": '{"images": 1}'})
    assert any(
        "lacks the lists images and annotations" in each.what for each in Found(tmp_path / "set").index.problems()
    )
    (tmp_path / "set/annotations/captions_val2014.json").unlink()
    write(tmp_path / "set", {"results.token": "a.png#0\ta cat\na.png#1\tthe cat\n"})
    assert Found(tmp_path / "set").captions["train/a.png"] == ("a cat", "the cat")


def test_a_list_beside_an_archive_names_what_is_in_it(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    write(tmp_path / "set", {"metadata.jsonl": '{"file_name": "a.png", "text": "a cat"}'})  # datasets 7337
    with zipfile.ZipFile(tmp_path / "set/images.zip", "w") as archive:
        archive.write(tmp_path / "a.png", "a.png")
    found = Found(tmp_path / "set")
    assert found.captions == {"images.zip/a.png": ("a cat",)}
    assert not found.warnings


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_an_image_that_a_list_names_again_has_another_caption(folder: Path, name: str) -> None:
    rows = [("a.png", "a cat", 0, 2), ("b.png", "a dog", 0, 2), ("a.png", "the cat", 2, 4), ("a.png", "a cat", 4, 6)]
    columns = ("file_name", "text", "start", "end")
    table = "\n".join(",".join(map(str, row)) for row in (columns, *rows))
    lines = "\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows)
    found = Found(write(folder, {name: table if name.endswith(".csv") else lines}))
    assert found.captions == {"a.png": ("a cat", "the cat"), "b.png": ("a dog",)}
    (warning,) = found.warnings
    assert f"{name}: its columns start and end are not used" in warning


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("metadata.csv", "a.png,a cat\nb.png,a dog", "it lacks one of the columns file_name, filename, file, image"),
        ("metadata.jsonl", '{"id": 1, "text": "a cat"}', "has id, text"),
        ("metadata.jsonl", "a cat\na dog", "has no line that is a JSON object"),
        ("metadata.jsonl", "[1", "it is not JSON"),
    ],
)
def test_a_list_of_no_use_is_said(folder: Path, name: str, text: str, said: str) -> None:
    found = Found(write(folder, {name: text}))
    (warning,) = found.warnings
    assert warning.startswith(f"{folder / name} is not used: it ")
    assert said in warning


def test_a_caption_that_a_table_cuts_off_is_said(folder: Path) -> None:
    found = Found(write(folder, {"metadata.csv": "image,prompt\na.png,a dog, running\nb.png,a cat"}))
    assert found.captions["a.png"] == ("a dog",)
    (warning,) = found.warnings
    assert "metadata.csv: 1 line has more cells than the header, which are not used" in warning


@pytest.mark.parametrize(
    ("encoding", "text", "is_found"),
    [
        ("utf-8-sig", "ein grünes Haus", False),
        ("utf-16", "ein grünes Haus", False),
        ("cp1252", "ein grünes Haus mit Tür und Straße", True),
        ("cp932", "赤い猫が座っている、青い空", True),
        ("gb18030", "一只红色的猫坐在垫子上", True),
    ],
)
def test_texts_in_other_encodings(folder: Path, encoding: str, text: str, is_found: bool) -> None:
    write(folder, {"a.txt": text.encode(encoding), "b.txt": "a dog", "c.txt": b""})
    found = Found(folder)
    assert found.captions == {"a.png": (text,), "b.png": ("a dog",)}
    assert [f"read as {encoding}" in each for each in found.warnings] == [True] * is_found
    assert len(found.index.problems()) == is_found
    (folder / "a.txt").unlink()
    (folder / "b.txt").unlink()
    table = f"file_name,text\na.png,{text}\nb.png,a dog"
    assert Found(write(folder, {"metadata.csv": table.encode(encoding)})).captions["a.png"] == (text,)


def test_bytes_that_are_no_text_have_no_encoding() -> None:
    assert find_encoding(b"GIF89a\x01\x00\x01\x00\x80") == ""
    assert decode_unicode(b"\xff\xfea\x00b") is None, "half a character is missing"


@pytest.mark.parametrize(
    "masks",
    [
        {"a.png": "a_mask.png", "b.png": "b-masklabel.jpg"},
        {"a.png": "a_masks.tif", "b.png": "b-masks.png"},
        {"a.png": "a-mask.png", "b.png": "b_masklabel.PNG"},
        {"a.png": "mask/a.png", "b.png": "masks/b.jpg"},
        {"a.png": "a-masklabel1.png", "b.png": "b-masklabel9.png"},  # of OneTrainer
    ],
)
def test_masks_are_masks_and_no_images(folder: Path, masks: dict[str, str]) -> None:
    for number, mask in enumerate(masks.values()):
        write_image(folder / mask, seed=number, mode="L")
    write_image(folder / "party_mask.png")  # of no image called party
    write_image(folder / "mask/other.png")  # neither
    found = Found(folder, masked_training=True)
    assert found.masks() == masks
    images = ["a.png", "b.png", "mask/other.png", "party_mask.png"]
    if "mask/a.png" in masks.values():  # then the folder holds masks
        images.remove("mask/other.png")
        assert "1 mask of no image, such as mask/other.png" in found.text
    assert sorted(found.captions) == images
    assert f"{len(images)} images, 2 with a mask" in found.text
    unused = Found(folder)
    assert sorted(unused.captions) == sorted(found.captions)
    assert "2 masks, such as" in unused.text


def test_transparency_is_said_and_is_a_mask_only_if_it_is_to_be(folder: Path) -> None:
    for name in ("a.png", "see_through.png"):
        write_image(folder / name, mode="RGBA")
    found = Found(folder, masked_training=True)
    assert not found.masks()
    assert "2 images with transparency, which is a mask only with alpha_mask" in found.text
    found = Found(folder, masked_training=True, alpha_mask=True)
    assert found.masks() == {name: name for name in ("a.png", "see_through.png")}
    assert "3 images, 2 with a mask, 2 of them from transparency" in found.text
    write_image(folder / "a-masklabel.png", mode="L")
    found = Found(folder, masked_training=True, alpha_mask=True)
    assert found.masks() == {"a.png": "a-masklabel.png", "see_through.png": "see_through.png"}, "the file counts"
    assert "2 with a mask, 1 of them from transparency" in found.text
    assert "with transparency" not in Found(folder, masked_training=True).text, "some have masks"
    assert "transparency" not in Found(folder, alpha_mask=True).index.columns, "unmasked runs keep their index"


def test_endings_of_masks_and_texts_may_be_alike(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    write_image(tmp_path / "b.png").rename(tmp_path / "b.jpg-x")
    (tmp_path / "a.txt").touch()
    concept = Concept(path=str(tmp_path), mask_suffix="txt", caption_extension=".caption .jpg-x")
    scan = scan_concept(concept, with_masks=True)
    assert scan.paths == [b"a.png", b"b.jpg-x"]
    assert scan.masks == 1


def test_a_mask_elsewhere_that_leads_out_of_the_folder_skips_its_image(folder: Path) -> None:
    write_image(folder.parent / "home/photo.png")
    (folder / "masks").mkdir()
    (folder / "masks/a.png").symlink_to("../../home/photo.png")
    found = Found(folder, masked_training=True)
    assert sorted(found.captions) == ["b.png"]
    assert "its mask masks/a.png is a link" in found.index.problems()[0].what


def test_conditioning_images_are_not_trained_on(folder: Path) -> None:
    write_image(folder / "conditioning/a.png")
    write_image(folder / "gone-masklabel.png")
    assert Found(folder, masked_training=True).masks() == {"a.png": "conditioning/a.png"}, "as in kohya's scripts"
    found = Found(folder)
    assert "1 mask of no image, such as gone-masklabel.png" in found.text
    assert sorted(found.captions) == ["a.png", "b.png"]
    assert not found.masks()
    assert "1 conditioning image, such as conditioning/a.png: not trained on, and no masks" in found.text


def test_images_without_a_suffix_are_known_by_content(folder: Path) -> None:
    (folder / "a.png").rename(folder / "a")
    Image.new("RGB", (40, 40)).save(folder / "c.jpg!d", "JPEG")
    write(folder, {"README": "BMW and other cars", "a.txt": "a cat", "notes.xyz": "-"})
    found = Found(folder)
    assert sorted(found.captions) == ["a", "b.png", "c.jpg!d"]
    assert found.captions["a"] == ("a cat",)
    assert "passed over, being no images that Tandem reads: 1 without suffix, 1 .xyz" in found.text


def test_sizes_and_shapes_in_the_summary(folder: Path) -> None:
    write_image(folder / "wide.png", 400, 40)
    write_image(folder / "tiny.png", 16, 20)
    found = Found(folder)
    assert "1 smaller than trained at (the smallest 16x20, tiny.png)" in found.text
    assert "1 of extreme shape, more than a quarter cropped away (up to 60%, wide.png)" in found.text


def test_an_index_of_a_former_version_is_read(folder: Path) -> None:
    config = config_for(folder, cache=folder.parent / "cache")
    index = build_index(config, config.seed, 8, Path(config.cache_dir))
    columns, header = map_columns(index.path)
    old = {name: column for name, column in columns.items() if not name.startswith(("mask_b", "mask_st", "caption_p"))}
    reduced = json.dumps({name: value for name, value in json.loads(header).items() if name != "findings"})
    write_columns(index.path, {name: np.array(column) for name, column in old.items()}, reduced)
    assert load_index(index.path).mask(0, "-m.png") == str(folder / "a-m.png")
    assert Found(folder).captions == {"a.png": ("a",), "b.png": ("b",)}
