"""Image index, captions and thumbnails, without a window."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from PIL import Image, ImageChops

from app.draft import Draft
from app.images.captions import CaptionFiles, Replacement, apply, plan_replacement, read_caption, write_caption
from app.images.findings import findings
from app.images.image_index import (
    ConceptFolder,
    ImageIndex,
    ImageProblem,
    IndexedImage,
    sum_problems,
    survey,
    tag_counts,
)
from app.images.thumbnails import Thumbnails
from app.state import AppState
from app.tools.program_page import load_image
from modules.data.index.images import decode_image, read_image_size
from modules.files import FileFault
from modules.files.addresses import VARIABLE, copy_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    place.mkdir()
    for number, (width, height) in enumerate([(64, 64), (128, 64), (64, 64)]):
        Image.new("RGB", (width, height), (number * 90, 20, 30)).save(place / f"{number}.png")
        (place / f"{number}.txt").write_text(f"cat, number {number}", "utf-8")
    return place


def run_survey(folder: Path) -> ImageIndex:
    seen: list[int] = []
    settings = {"concepts": [{"path": str(folder)}], "resolution": 64, "learning_rate": "not a number yet"}
    index = survey(settings, 8, lambda: True, lambda grown: seen.append(len(grown.images)))
    assert seen, "no partial result"
    return index


def test_index_has_sizes_buckets_and_captions(folder: Path) -> None:
    index = run_survey(folder)
    assert [(p.relative, p.width, p.bucket, p.caption) for p in index.images] == [
        ("0.png", 64, "64x64", "cat, number 0"),
        ("1.png", 128, "96x48", "cat, number 1"),
        ("2.png", 64, "64x64", "cat, number 2"),
    ]
    assert index.images[0].file == folder / "0.png"
    assert index.buckets == [("64x64", 2, 2), ("96x48", 1, 1)]
    assert index.error == ""


def test_index_has_references_and_masks(folder: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    for name in ("0.png", "1_1.png", "1_2.png", "2.png"):
        Image.new("RGB", (64, 64)).save(before / name)
    Image.new("L", (64, 64)).save(folder / "0-masklabel.png")
    (folder / "mask").mkdir()
    Image.new("L", (64, 64)).save(folder / "mask" / "2.png")
    concept = {"path": str(folder), "references": str(before)}
    settings = {"concepts": [concept], "resolution": 64, "family": "flux2", "masked_training": True}
    index = survey(settings, 8, lambda: True, lambda _: None)
    assert [[each.name for each in image.references] for image in index.images] == [
        ["0.png"],
        ["1_1.png", "1_2.png"],
        ["2.png"],
    ]
    assert [image.mask for image in index.images] == [folder / "0-masklabel.png", None, folder / "mask" / "2.png"]
    Image.new("RGBA", (64, 64)).save(folder / "1.png")
    concept |= {"alpha_mask": "true"}
    image = survey(settings, 8, lambda: True, lambda _: None).images[1]
    assert (image.has_alpha_mask, image.mask) == (True, folder / "1.png")
    settings["masked_training"] = False
    assert [image.mask for image in survey(settings, 8, lambda: True, lambda _: None).images] == [None] * 3


def test_an_image_whose_name_leaves_no_room_for_a_longer_ending_has_no_caption(tmp_path: Path) -> None:
    image = tmp_path / f"{'x' * 249}.png"  # 253 bytes, of 255
    image.touch()
    assert CaptionFiles().files(image) == []


def test_an_address_is_read_in_its_copy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copies"))
    settings = {"concepts": [{"path": "s3://b/cats"}], "resolution": 64}
    index = survey(settings, 8, lambda: True, lambda _: None)
    assert index.folders[0].error == "'s3://b/cats' is downloaded when training starts"
    copy = Path(copy_of("s3://b/cats"))
    shutil.copytree(folder, copy)
    index = survey(settings, 8, lambda: True, lambda _: None)
    assert [image.file for image in index.images] == [copy / f"{number}.png" for number in range(3)]
    index = survey({"concepts": [{"path": "s3://"}]}, 8, lambda: True, lambda _: None)
    assert "is no address" in index.error


def test_findings_act_on_their_concepts_wherever_these_are_now() -> None:
    def found(folder: str) -> ConceptFolder:
        return ConceptFolder(is_read=True, numbered_folder=folder, problems=Counter(caption=1))

    draft, said, captioned = Draft(lambda _: None), list[str](), list[Path]()
    views = SimpleNamespace(annotate=captioned.append)
    state = cast(AppState, SimpleNamespace(draft=draft, views=views, say=said.append))
    draft.set("concepts", [{"path": "/a"}, {"path": "/b"}])
    of_b, of_a = (list(findings(state, [(n, {"path": path}, found("2_x"))], 8)) for n, path in ((1, "/b"), (0, "/a")))
    assert [each.paths for each in (*of_b, *of_a)] == [("/b",), ("/b",), ("/a",), ("/a",)]
    draft.remove("concepts", 0)
    for each in of_a:
        each.act()
    assert said == ["/a is no longer one of the concepts."] * 2
    for each in of_b:
        each.act()
    assert draft.get("concepts") == [{"path": "/b", "folder_repeats": True}]
    assert captioned == [Path("/b")]
    see_through = (0, {"path": "/b"}, ConceptFolder(is_read=True, transparent=3))
    (use,) = findings(state, [see_through], 8)
    assert use.what == "No image has a mask, and 3 have transparency."
    use.act()
    assert draft.get("concepts.0.alpha_mask") is True
    assert not list(findings(state, [see_through, (1, {"path": "/c"}, ConceptFolder(is_read=True, masked=1))], 8))


@pytest.mark.slow
def test_missing_folder_is_an_error_of_that_folder(tmp_path: Path) -> None:
    index = run_survey(tmp_path / "gone")
    assert "does not exist" in index.folders[0].error


@pytest.mark.slow
def test_invalid_settings_give_an_error_message() -> None:
    index = survey({"concepts": [{"path": ""}]}, 8, lambda: True, lambda _: None)
    assert "path" in index.error


@pytest.mark.slow
def test_cancelled_survey_stops_early(folder: Path) -> None:
    index = survey({"concepts": [{"path": str(folder)}]}, 8, lambda: False, lambda _: None)
    assert not index.images
    assert index.error == ""


def test_malformed_records_are_rejected() -> None:
    index = ImageIndex()
    for record in ({"type": "pictures"}, {"type": "concept", "concept": "x"}):
        with pytest.raises((KeyError, TypeError)):
            index.add(record)


@pytest.mark.slow
def test_tags_are_counted_once_per_image(folder: Path) -> None:
    assert tag_counts(run_survey(folder).images) == [("cat", 3), ("number 0", 1), ("number 1", 1), ("number 2", 1)]


def test_caption_write_is_atomic_and_undoable(folder: Path) -> None:
    files = CaptionFiles()
    change = write_caption(folder / "0.png", "a dog\n", files)
    assert read_caption(folder / "0.txt") == "a dog\n"
    apply(change.reverse())
    assert read_caption(folder / "0.txt") == "cat, number 0"
    new = write_caption(folder / "new.png", "born", files)
    apply(new.reverse())
    assert read_caption(folder / "new.txt") is None
    os.mkfifo(folder / "pipe.txt")
    (folder / "endless.txt").symlink_to("/dev/zero")
    for name in ("pipe.txt", "endless.txt"):
        with pytest.raises(FileFault, match="not a file"):
            read_caption(folder / name)
    assert not list(folder.glob(".*")), "no partial file is left"


@pytest.mark.parametrize(
    ("lines", "shown", "written"),
    [
        ("random", "a cat\na dog", "new\n"),
        ("first", "a cat", "new\na dog\n"),  # the line that is not used stays
        ("whole", "a cat\n\na dog", "new\n"),
    ],
)
def test_captions_are_edited_as_the_concept_reads_them(folder: Path, lines: str, shown: str, written: str) -> None:
    text = "a cat\n\na dog\n" if lines != "first" else "a cat\na dog\n"
    (folder / "0.caption").write_text(text, "utf-8")
    concept = {"path": str(folder), "caption_extension": ".caption .txt", "caption_lines": lines}
    index = survey({"concepts": [concept], "resolution": 64}, 8, lambda: True, lambda _: None)
    assert [image.caption for image in index.images] == [shown, "cat, number 1", "cat, number 2"]
    files = CaptionFiles.of(concept)
    assert files.caption(text) == shown, "the window and the training read the same"
    change = write_caption(folder / "0.png", "new", files)
    assert (folder / "0.caption").read_text("utf-8") == written
    assert (folder / "0.txt").read_text("utf-8") == "cat, number 0"
    apply(change.reverse())
    assert (folder / "0.caption").read_text("utf-8") == text
    write_caption(folder / "born.png", "one", files)
    assert (folder / "born.caption").is_file(), "a new file has the first extension"


def image(caption: str) -> IndexedImage:
    return IndexedImage(0, "x.png", Path("x.png"), 1, 1, "1x1", caption, "found")


@pytest.mark.parametrize(
    ("caption", "replacement", "after"),
    [
        ("a cat, cats, Cat", Replacement("cat", "dog"), "a dog, dogs, dog"),
        ("a cat, cats, Cat", Replacement("cat", "dog", whole_words=True), "a dog, cats, dog"),
        ("a cat, cats, Cat", Replacement("cat", "dog", match_case=True), "a dog, dogs, Cat"),
        ("one, two, three", Replacement("two", ""), "one, three"),
        ("a+b", Replacement("a+", "c"), "cb"),
        ("first\nsecond cat", Replacement("cat", r"\1"), "first\nsecond \\1"),
    ],
)
def test_find_and_replace_is_plain_text(caption: str, replacement: Replacement, after: str) -> None:
    ((_, planned),) = plan_replacement([image(caption), image("nothing here")], replacement)
    assert planned == after


def test_empty_search_changes_nothing() -> None:
    assert plan_replacement([image("cat")], Replacement("", "dog")) == []


def test_thumbnails_are_cached_on_disk(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    made = wait_for(Thumbnails(cache), folder / "1.png")
    assert made is not None
    assert made.size == (128, 64)
    (stored,) = cache.glob("*/*.jpg")
    stored.write_bytes(b"torn")
    assert wait_for(Thumbnails(cache), folder / "1.png") is not None, "a torn file is made again"


def hidden_red(size: tuple[int, int]) -> Image.Image:
    """Transparent but for the lower half, which is blue."""
    image = Image.new("RGBA", size, (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, size[1] // 2, *size))
    return image


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize(
    ("name", "image", "options"),
    [
        ("rgba.png", hidden_red((80, 48)), {}),
        ("rgba.webp", hidden_red((80, 48)), {"lossless": True}),
        ("la.png", hidden_red((80, 48)).convert("LA"), {}),
        ("palette.png", hidden_red((80, 48)).quantize(4), {}),
        ("key.png", hidden_red((80, 48)).convert("RGB"), {"transparency": (255, 0, 0)}),
        ("bits.png", hidden_red((80, 48)).convert("1"), {}),
        ("deep.png", Image.new("I;16", (80, 48), 257 * 90), {}),
        ("ink.jpg", Image.linear_gradient("L").convert("CMYK"), {}),
        ("turned.jpg", Image.linear_gradient("L").resize((300, 200)), {"exif": turned(6), "quality": 95}),
        ("turned.png", hidden_red((80, 48)), {"exif": turned(5)}),
    ],
)
def test_a_thumbnail_shows_what_is_trained_on(
    tmp_path: Path, name: str, image: Image.Image, options: dict[str, Any]
) -> None:
    """Transparency showed the colours hidden under it."""
    file = tmp_path / name
    image.save(file, **options)
    trained = decode_image(file.read_bytes(), read_image_size(str(file)), (4096, 4096))
    for shown in (wait_for(Thumbnails(tmp_path / "cache"), file), load_image(str(file), 256)):
        assert isinstance(shown, Image.Image)
        assert (shown.width > shown.height) == (trained.width > trained.height)
        difference = ImageChops.difference(shown, trained.resize(shown.size))
        bands: Any = difference.getextrema()
        assert max(high for _, high in bands) < 40, "but for JPEG's and resizing's rounding"


def test_broken_image_has_no_thumbnail(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    thumbnails = Thumbnails(tmp_path / "cache")
    assert wait_for(thumbnails, tmp_path / "broken.png") is None
    assert thumbnails.is_broken(tmp_path / "broken.png")


def wait_for(thumbnails: Thumbnails, file: Path) -> Image.Image | None:
    ready: list[Path] = []
    deadline = time.monotonic() + 60
    while file not in ready:
        assert time.monotonic() < deadline, "no thumbnail in time"
        if thumbnails.get(file) is None:
            thumbnails.poll(ready.append)
            time.sleep(0.01)
    found = thumbnails.get(file)
    thumbnails.close()
    return found


def test_problems_follow_many_captions_at_once(tmp_path: Path) -> None:
    images = [IndexedImage(0, f"{n}.png", tmp_path / f"{n}.png", 64, 64, "64x64", "", "missing") for n in range(4)]
    index = ImageIndex()
    assert index.captions_written(images[:3])
    assert not index.captions_written(images[:3]), "they say so already"
    index.problems.append(ImageProblem(0, images[3].file, "tiny", "small"))
    images[0].caption_state = images[1].caption_state = "found"
    assert index.captions_written(images)
    assert [(each.file.stem, each.kind) for each in index.problems] == [
        ("2", "caption"),
        ("3", "caption"),
        ("3", "tiny"),
    ]
    assert index.folders[0].problems["caption"] == 2


def test_problems_of_several_kinds_are_summed_where_there_is_little_room() -> None:
    assert sum_problems({"caption": 12}) == "12 without a caption"
    assert sum_problems({"caption": 12, "tiny": 3}) == "15 problems"
    assert sum_problems({}) == ""
