"""Captions: their sources, and how the caption of a sample is augmented."""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest
from pydantic import ValidationError

from modules.config import Concept, TrainConfig
from modules.data.cache.keys import ViewKeys
from modules.data.captions import augment_caption, plain_caption
from modules.data.index.caption_lists import one_line
from modules.data.rng import SampleRng
from tests.data.helpers import config_for, index_of, write_image


def captions(folder: Path, source: str = "auto", **settings: object) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    cache = folder.parent / "cache"
    config = config_for(folder, cache=cache, caption_source=source, **settings)
    results = []
    for _ in range(2):  # the second time from the stored index
        index = index_of(config, cache)
        found = {index.relative_path(row): index.captions(row) for row in range(len(index))}
        results.append((found, sorted(f"{Path(p.path).name}: {p.what}" for p in index.problems())))
    assert results[0] == results[1]
    return results[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("red_cat.png", "10_dog/blue_dog.png"):
        write_image(tmp_path / "pets_here" / name)
    return tmp_path / "pets_here"


def test_auto_uses_file_names_without_text_files(folder: Path) -> None:
    assert captions(folder) == ({"red_cat.png": ("red cat",), "10_dog/blue_dog.png": ("blue dog",)}, [])


def test_auto_reports_an_image_without_text_file(folder: Path) -> None:
    (folder / "red_cat.txt").write_text("a cat\n\n  a red cat \r\n", encoding="utf-8-sig")
    found, problems = captions(folder)
    assert found == {"red_cat.png": ("a cat", "a red cat"), "10_dog/blue_dog.png": ("",)}
    assert problems == ["blue_dog.png: no caption found; used with an empty caption"]


def test_folder_names_and_no_captions(folder: Path) -> None:
    assert captions(folder, "folder_name")[0] == {
        "red_cat.png": ("pets here",),
        "10_dog/blue_dog.png": ("10 dog",),
    }
    assert captions(folder, "none") == ({"red_cat.png": ("",), "10_dog/blue_dog.png": ("",)}, [])


def test_unreadable_and_empty_text_files_are_reported(folder: Path) -> None:
    (folder / "red_cat.txt").write_bytes(b"\xff\xfea\0b")  # half a character of UTF-16
    (folder / "10_dog/blue_dog.txt").write_text(" \n")
    found, problems = captions(folder, "txt")
    assert set(found.values()) == {("",)}
    assert problems == [
        "blue_dog.png: its caption is empty",
        "red_cat.png: its caption file red_cat.txt is not UTF-8 text (byte 0); used with an empty caption",
    ]


def test_metadata_overrides_text_files(folder: Path) -> None:
    (folder / "red_cat.txt").write_text("from the text file")
    lines = [
        json.dumps({"file_name": "red_cat.png", "text": "from\nmetadata"}),
        json.dumps({"file_name": "10_dog/blue_dog.png", "caption": ["one", "two"]}),
        "{broken",
        "[1]",
        json.dumps({"text": "nameless"}),
    ]
    (folder / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found, problems = captions(folder)
    assert found == {"red_cat.png": ("from metadata",), "10_dog/blue_dog.png": ("one", "two")}
    assert [problem.split(" (")[0] for problem in problems] == [
        "metadata.jsonl: 1 entry has no `file_name`; ignored",
        "metadata.jsonl: line 3 is not JSON",
        "metadata.jsonl: line 4 is not a JSON object; it was ignored",
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ('{"file_name": "red_cat.png", "text": 1e999}', "line 1 has a number that is too large"),
        ("x\n" * 100, "80 more lines are no JSON objects"),
        (b"\xff\xfe\0", "it is not UTF-8 text"),
        (None, "it is a named pipe, not a file"),
    ],
)
def test_a_hostile_metadata_file_is_a_listed_problem(folder: Path, content: str | bytes | None, fault: str) -> None:
    file = folder / "metadata.jsonl"
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    _, problems = captions(folder)
    assert any(fault in problem for problem in problems), problems
    assert len(problems) < 30


def test_a_caption_that_is_no_file_is_never_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "red_cat.txt")
    (folder / "10_dog/blue_dog.txt").symlink_to("blue_dog.txt")
    found, problems = captions(folder, "txt")
    assert set(found.values()) == {("",)}
    pipe = "its caption file red_cat.txt is a named pipe, not a file"
    assert f"red_cat.png: {pipe}; used with an empty caption" in problems
    assert any(problem.startswith("blue_dog.png: ") for problem in problems)


def test_a_caption_file_that_is_a_folder_or_too_large_is_told_as_such(folder: Path) -> None:
    (folder / "red_cat.caption").mkdir()
    with (folder / "10_dog/blue_dog.caption").open("wb") as file:
        file.write(b"a dog")
        file.truncate(1 << 30)  # sparse
    found, problems = captions(folder, "txt", caption_extension=".caption")
    assert set(found.values()) == {("",)}, "no part of it is used"
    assert problems == [
        "blue_dog.png: its caption file blue_dog.caption is larger than 1 MiB; used with an empty caption",
        "red_cat.png: its caption file red_cat.caption is a folder, not a file; used with an empty caption",
    ]
    (folder / "red_cat.caption").rmdir()
    (folder / "red_cat.caption").write_text("a cat", encoding="utf-8")
    assert captions(folder, "txt", caption_extension=".caption")[0]["red_cat.png"] == ("a cat",)


@pytest.mark.parametrize("text", ["a\0 cat", "a\x1b[2J cat"])
def test_control_characters_in_a_caption_are_reported(folder: Path, text: str) -> None:
    (folder / "red_cat.txt").write_text(text, encoding="utf-8")
    (folder / "10_dog/blue_dog.txt").write_text("a\tdog\r\nof two lines", encoding="utf-8")
    found, problems = captions(folder, "txt")
    assert found["red_cat.png"] == (text.replace("\0", ""),)
    assert problems == [
        "red_cat.png: its caption contains control characters; it is used with them, but without NUL characters"
    ]


def test_metadata_csv_in_a_subfolder(folder: Path) -> None:
    (folder / "10_dog/metadata.csv").write_text('file_name,prompt\nblue_dog.png,"a dog, blue"\n', encoding="utf-8")
    found, problems = captions(folder, "metadata")
    assert found == {"red_cat.png": ("",), "10_dog/blue_dog.png": ("a dog, blue",)}
    assert len(problems) == 1


def test_changed_metadata_file_is_read_again(folder: Path) -> None:
    for text in ("first", "second one"):
        (folder / "metadata.jsonl").write_text(json.dumps({"file_name": "red_cat.png", "text": text}))
        assert captions(folder)[0]["red_cat.png"] == (text,)


def test_a_list_without_captions_that_comes_later_is_told(folder: Path) -> None:
    assert captions(folder)[1] == []
    (folder / "captions.txt").write_text("no list")
    assert [problem.split(":")[0] for problem in captions(folder)[1]] == ["captions.txt"]
    (folder / "captions.txt").unlink()
    assert captions(folder)[1] == []


def test_tags_are_shuffled_and_dropped_except_the_first() -> None:
    concept = Concept(path="x", prompt_prefix="sks, ", tag_shuffle=True, keep_tags=1, tag_dropout=0.5)
    augmented = [augment_caption(("a, b, c, d",), concept, 0.0, SampleRng(seed)) for seed in range(400)]
    assert all(caption.startswith("sks, a") for caption in augmented)
    tags = [caption.removeprefix("sks, ").split(", ") for caption in augmented]
    assert {tuple(t) for t in tags} >= {("a",), ("a", "d", "b", "c"), ("a", "c", "b")}
    assert sum(len(t) - 1 for t in tags) / 400 == pytest.approx(1.5, abs=0.15)


@pytest.mark.parametrize(
    ("delimiter", "caption"),
    [
        *((",", "a, b, c"), (",", "a,b,c"), (";", "a; b; c"), ("|||", "a ||| b ||| c"), (".", "a.b.c")),
        *((", ", "a, b, c"), (" ", "a b  c"), ("、", "a、b、c"), (" or ", "a or b or c")),
    ],
)
def test_tags_are_put_together_as_they_were_taken_apart(delimiter: str, caption: str) -> None:
    concept = Concept(path="x", tag_shuffle=True, keep_tags=0, tag_delimiter=delimiter)
    found = {augment_caption((f"{caption} ",), concept, 0.0, SampleRng(seed)) for seed in range(100)}
    assert found == {caption.translate(str.maketrans("abc", "".join(order))) for order in permutations("abc")}


def test_captions_are_chosen_evenly_and_dropped() -> None:
    concept = Concept(path="x", prompt_prefix="p ")
    augmented = Counter(augment_caption(("a", "b"), concept, 0.25, SampleRng(seed)) for seed in range(4000))
    assert set(augmented) == {"p a", "p b", ""}
    assert augmented[""] / 4000 == pytest.approx(0.25, abs=0.03)
    assert augmented["p a"] / augmented["p b"] == pytest.approx(1, abs=0.12)
    assert augment_caption(("a, b",), Concept(path="x"), 0.0, SampleRng(1)) == "a, b"


def drawn(caption: str, **settings: object) -> set[str]:
    concept = Concept.model_validate({"path": "x", "prompt_prefix": "p ", **settings})
    return {augment_caption((caption,), concept, 0.0, SampleRng(seed)) for seed in range(200)}


def test_choices_are_drawn() -> None:
    caption = "a {red|blue|} {{hat}} {cat}"
    assert drawn(caption, wildcards=True) == {"p a red {hat} cat", "p a blue {hat} cat", "p a  {hat} cat"}
    assert drawn(caption) == {f"p {caption}"}
    concept = Concept(path="x", prompt_prefix="p ", wildcards=True)
    assert plain_caption(caption, concept) == "p a red {hat} cat", "validation has the first"


@pytest.mark.parametrize(
    ("caption", "settings", "expected"),
    [
        ("k, a, b", {"tag_shuffle": True}, {"k, a, b", "k, b, a"}),
        ("k, l, ||| a, b", {"tag_shuffle": True}, {"k, l, a, b", "k, l, b, a"}),
        ("k ||| a, b ||| z, y", {"tag_shuffle": True}, {"k, a, b, z, y", "k, b, a, z, y"}),
        ("k ||| a, b ||| z, y", {"tag_dropout": 1}, {"k, z, y"}),
        ("||| a, b", {}, {"a, b"}),
        ("k,||| ,a,b", {"tag_shuffle": True}, {"k,a,b", "k,b,a"}),
        ("k、l|||a、b", {"tag_shuffle": True, "tag_delimiter": "、"}, {"k、l、a、b", "k、l、b、a"}),
        ("k, ||| a, b", {"tag_shuffle": True, "tag_delimiter": ", "}, {"k, a, b", "k, b, a"}),
        ("k  l ||| a b", {"tag_shuffle": True, "tag_delimiter": " "}, {"k  l a b", "k  l b a"}),
        ("k ||| a ||| b", {"tag_delimiter": ";"}, {"k; a; b"}),
        (", a, b,", {"tag_shuffle": True, "keep_tags": 0}, {"a, b", "b, a"}),
        ("a,, b", {"tag_dropout": 1, "keep_tags": 1, "dropped_tags": "b,"}, {"a"}),
        ("a, k", {"tag_dropout": 1, "keep_tags": 0}, {""}),
        ("a, K, b", {"tag_dropout": 1, "keep_tags": 0, "kept_tags": "k, c"}, {"K"}),
        ("a, blurry, b", {"tag_dropout": 1, "keep_tags": 0, "dropped_tags": "Blurry"}, {"a, b"}),
    ],
)
def test_tags_are_kept_and_dropped(caption: str, settings: dict[str, object], expected: set[str]) -> None:
    assert drawn(caption, keep_separator="|||", prompt_prefix="", **settings) == expected


def test_a_concept_drops_captions_as_it_says() -> None:
    for own, default, expected in ((None, 1.0, ""), (0.0, 1.0, "a"), (1.0, 0.0, "")):
        concept = Concept(path="x", caption_dropout=own)
        assert augment_caption(("a",), concept, default, SampleRng(1)) == expected
    on = TrainConfig(concepts=(Concept(path="x", caption_dropout=0.5),))
    off = TrainConfig(concepts=(Concept(path="x", caption_dropout=0.5, enabled=False),))
    assert (on.drops_captions, off.drops_captions, TrainConfig(caption_dropout=0.1).drops_captions) == (
        True,
        False,
        True,
    )


LINES = "a cat, grey\n\n  a second caption \r\nthird\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("random", ("a cat, grey", "a second caption", "third")),  # OneTrainer (mgds, LoadMultipleTexts), SimpleTuner
        ("first", ("a cat, grey",)),  # kohya-ss/sd-scripts, train_util.py, read_caption
        ("whole", ("a cat, grey\n\n  a second caption \nthird",)),  # diffusion-pipe, utils/dataset.py: read().strip()
    ],
)
def test_lines_of_a_caption_file(folder: Path, lines: str, expected: tuple[str, ...]) -> None:
    (folder / "red_cat.txt").write_text(LINES, encoding="utf-8", newline="")
    (folder / "10_dog/blue_dog.txt").write_text("\na dog\n", encoding="utf-8")
    found, problems = captions(folder, "txt", caption_lines=lines)
    assert found["red_cat.png"] == expected
    is_empty = lines == "first"  # as kohya's lines[0].strip()
    assert found["10_dog/blue_dog.png"] == (("",) if is_empty else ("a dog",))
    assert problems == (["blue_dog.png: its caption is empty"] if is_empty else [])


def test_a_change_of_the_lines_reads_the_files_again(folder: Path) -> None:
    (folder / "red_cat.txt").write_text("one\ntwo", encoding="utf-8")
    found = [captions(folder, "txt", caption_lines=lines)[0]["red_cat.png"] for lines in ("random", "whole", "first")]
    assert found == [("one", "two"), ("one\ntwo",), ("one",)]


def test_caption_files_with_other_extensions(folder: Path) -> None:
    """kohya's default is .caption; the first extension that exists is used."""
    (folder / "red_cat.caption").write_text("from .caption", encoding="utf-8")
    (folder / "10_dog/blue_dog.txt").write_text("from .txt", encoding="utf-8")
    assert captions(folder, "txt", caption_extension=".caption")[0] == {
        "red_cat.png": ("from .caption",),
        "10_dog/blue_dog.png": ("",),
    }
    (folder / "red_cat.txt").write_text("from .txt", encoding="utf-8")
    both = {"red_cat.png": ("from .caption",), "10_dog/blue_dog.png": ("from .txt",)}
    assert captions(folder, caption_extension=".caption .txt")[0] == both
    assert set(captions(folder, caption_extension=".txt .caption")[0].values()) == {("from .txt",)}
    (folder / "red_cat.caption").write_text("changed", encoding="utf-8")
    assert captions(folder, caption_extension=".caption .txt")[0]["red_cat.png"] == ("changed",)


@pytest.mark.parametrize("wrong", ["txt", ".png", "*.txt", "../x.txt", " ", ".jsonl", ".txt,.caption"])
def test_invalid_caption_extensions(wrong: str) -> None:
    with pytest.raises(ValidationError) as error:
        Concept(path="x", caption_extension=wrong)
    assert "caption_extension" in str(error.value.errors()[0])


def test_a_whole_file_and_its_lines_have_different_keys(folder: Path) -> None:
    """Cached embeddings of two captions are not those of one caption of two lines."""
    (folder / "red_cat.txt").write_text("one\ntwo", encoding="utf-8")
    keys = set()
    for lines in ("random", "whole", "first"):
        config = config_for(folder, cache=folder.parent / "cache", caption_source="txt", caption_lines=lines)
        index = index_of(config, folder.parent / "cache")
        row = next(row for row in range(len(index)) if index.relative_path(row) == "red_cat.png")
        keys.add(ViewKeys(index, config, "family", True).key(row, 0, bytes(32), bytes(32)))
    assert len(keys) == 3


def test_a_long_row_of_blanks_takes_no_quadratic_time() -> None:
    assert one_line(" " * 3_000_000 + "a \r\n \n b\n" + " " * 3_000_000) == "a b"
