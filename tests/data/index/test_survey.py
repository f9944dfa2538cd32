"""The survey of a config's images that the window reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from modules.data.index.build import build_index
from modules.data.index.expand import expand_concepts
from modules.data.index.survey import survey
from modules.data.loading.count_steps import steps_per_epoch
from modules.data.missing import missing_data
from tests.data.helpers import config_for, index_of, write_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_image(tmp_path / "cats" / "a.png", 40, 40, seed=1)
    write_image(tmp_path / "cats" / "b.png", 80, 40, seed=2)
    (tmp_path / "cats" / "copy.png").write_bytes((tmp_path / "cats" / "a.png").read_bytes())
    write_image(tmp_path / "cats" / "dot.png", 8, 8, seed=3)
    (tmp_path / "cats" / "broken.png").write_bytes(b"no image at all")
    for name in ("a", "b", "dot"):
        (tmp_path / "cats" / f"{name}.txt").write_text(f"a cat called {name}\nanother caption", "utf-8")
    return tmp_path / "cats"


def of_type(records: list[dict[str, object]], kind: str) -> list[dict[str, object]]:
    return [record for record in records if record["type"] == kind]


def test_images_have_size_bucket_and_captions(folder: Path, tmp_path: Path) -> None:
    records = list(survey(config_for(folder, cache=tmp_path)))
    (piece,) = of_type(records, "pictures")
    assert piece["rows"] == [
        ["a.png", 40, 40, "32x32", "a cat called a\nanother caption", "found", [], "", 0],
        ["b.png", 80, 40, "48x24", "a cat called b\nanother caption", "found", [], "", 0],
        ["copy.png", 40, 40, "32x32", "", "missing", [], "", 0],
        ["dot.png", 8, 8, "32x32", "a cat called dot\nanother caption", "found", [], "", 0],
    ]
    assert of_type(records, "buckets") == [{"type": "buckets", "buckets": [["32x32", 3, 3], ["48x24", 1, 1]]}]


def test_what_is_probably_not_meant_is_said_as_before_training(tmp_path: Path) -> None:
    for number, name in enumerate(("train/a", "test/b")):
        write_image(tmp_path / f"set/{name}.png", 40, 40, seed=number)
    config = config_for(tmp_path / "set", cache=tmp_path / "cache", resolutions="32 64")
    (found,) = of_type(list(survey(config)), "concept")
    index = build_index(expand_concepts(config), config.seed, 8, tmp_path / "cache")
    (sentence,) = missing_data(expand_concepts(config), index, is_cached=True)
    assert "folders called train and test" in sentence
    assert cast("list[str]", found["summary"]).count(sentence) == 1


def kohya_folders(root: Path) -> Path:
    for number, name in enumerate(("10_sks dog/a", "10_sks dog/b", "2_cats/more/c")):
        write_image(root / f"{name}.png", 40, 40, seed=number)
    (root / "2_cats/more/c.txt").write_text("a cat")
    return root


def test_folders_of_kohya_are_concepts(tmp_path: Path) -> None:
    own: dict[str, object] = {"folder_repeats": True, "repeats": 3, "prompt_prefix": "p "}
    config = config_for(kohya_folders(tmp_path / "set"), cache=tmp_path, **own)
    records = list(survey(config))
    rows = [row for piece in of_type(records, "pictures") for row in cast("list[list[object]]", piece["rows"])]
    assert [row[0] for row in rows] == ["10_sks dog/a.png", "10_sks dog/b.png", "2_cats/more/c.png"]
    (concept,) = of_type(records, "concept")
    assert concept["root"] == str(tmp_path / "set")
    assert concept["summary"] == [
        "set/10_sks dog: 2 images, each 30 times per epoch",
        "  captions: 2 from the caption prefix, such as 'p sks dog'",
        "set/2_cats: 1 image, each 6 times per epoch",
        "  captions: 1 from NAME.txt, such as 'a cat' (more/c.png)",
    ]
    assert (concept["samples"], concept["median"], concept["numbered_folder"]) == (22, (40, 40), "")
    assert steps_per_epoch(config.model_copy(update={"batch_size": 1}), 1) == 66


def test_what_could_be_switched_on_is_found(tmp_path: Path) -> None:
    write_image(kohya_folders(tmp_path / "set") / "2_cats/more/masks/c.png", 40, 40)
    (concept,) = of_type(list(survey(config_for(tmp_path / "set", cache=tmp_path, validation_split=0.0))), "concept")
    assert (concept["numbered_folder"], concept["unused_masks"], concept["samples"]) == ("10_sks dog", 1, 3)
    write_image(tmp_path / "set/wide.png", 90, 40, seed=4)
    write_image(tmp_path / "set/large.png", 400, 400, seed=5)
    (concept,) = of_type(list(survey(config_for(tmp_path / "set", cache=tmp_path, masked_training=True))), "concept")
    assert (concept["numbered_folder"], concept["unused_masks"], concept["median"]) == ("", 0, (40, 40))
    assert (concept["masked"], concept["transparent"]) == (1, 0)


def test_images_are_known_in_their_folder_and_size_whatever_comes_before(tmp_path: Path) -> None:
    kohya_folders(tmp_path / "set")
    settings: dict[str, object] = {"folder_repeats": True, "resolutions": "32 16"}

    def identities() -> dict[tuple[str, str], int]:
        config = expand_concepts(config_for(tmp_path / "set", cache=tmp_path, **settings))
        index = index_of(config, tmp_path)
        rows = zip(index.files(), index.concept.tolist(), index.identities(config.concepts).tolist(), strict=True)
        return {(file, config.concepts[number].resolutions): identity for file, number, identity in rows}

    shutil.move(tmp_path / "set/2_cats", tmp_path / "away")
    alone = identities()
    assert len(set(alone.values())) == 4
    shutil.move(tmp_path / "away", tmp_path / "set/2_cats")
    before = identities()
    assert len(set(before.values())) == 6
    assert alone.items() <= before.items()
    write_image(tmp_path / "set/1_bird/a.png", 40, 40, seed=1)
    settings["resolutions"] = "8 32 16"
    after = identities()
    assert len(set(after.values())) == 12
    assert before.items() <= after.items()


def test_a_single_folder_of_kohya_is_one(tmp_path: Path) -> None:
    write_image(tmp_path / "set/10_sks dog/a.png", 40, 40)
    (concept,) = expand_concepts(config_for(tmp_path / "set", cache=tmp_path, folder_repeats=True)).concepts
    assert (concept.repeats, concept.caption_source, concept.prompt_prefix) == (10, "none", "sks dog")


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"folder_repeats": False}, ""),
        ({"include_subfolders": False}, "d.png"),
        ({"caption_source": "folder_name"}, ""),
        ({}, "d.png"),
        ({}, "2023_holiday/d.png"),
        ({}, "masks/10_d.png"),
        ({}, "metadata.jsonl"),
        ({}, "captions/10_sks dog/a.txt"),
        ({}, "other/without_suffix"),
        ({"family": "classifier"}, ""),
    ],
)
def test_other_folders_are_no_concepts(tmp_path: Path, settings: dict[str, object], more: str) -> None:
    kohya_folders(tmp_path / "set")
    if more:
        (tmp_path / "set" / more).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / more).touch()
    (tmp_path / "set" / "loop").symlink_to("loop")
    config = config_for(tmp_path / "set", cache=tmp_path, **{"folder_repeats": True, **settings})
    assert expand_concepts(config) == config


def test_each_kind_of_problem_names_its_file(folder: Path, tmp_path: Path) -> None:
    records = list(survey(config_for(folder, cache=tmp_path)))
    found = {(Path(str(each["path"])).name, each["kind"]): str(each["what"]) for each in of_type(records, "problem")}
    assert found.keys() == {
        ("broken.png", "broken"),
        ("copy.png", "caption"),
        ("copy.png", "duplicate"),
        ("dot.png", "tiny"),
    }
    assert found["copy.png", "duplicate"] == "the same image as a.png"
    assert "enlarged 4.0 times" in found["dot.png", "tiny"]


def test_missing_folder_is_reported_with_the_others(folder: Path, tmp_path: Path) -> None:
    records = list(survey(config_for(tmp_path / "gone", folder, cache=tmp_path)))
    gone, cats = of_type(records, "concept")
    assert "does not exist" in str(gone["error"])
    assert cats["pictures"] == 4


def test_disabled_concepts_are_listed_but_not_counted(folder: Path, tmp_path: Path) -> None:
    records = list(survey(config_for(folder, cache=tmp_path, enabled=False)))
    assert of_type(records, "concept")[0]["pictures"] == 4
    assert of_type(records, "buckets") == [{"type": "buckets", "buckets": []}]


def test_command_reads_partial_config_without_torch(folder: Path) -> None:
    survey = "from modules.data.index.survey import main; main(['-', '16'])"
    program = f"import sys; {survey}; assert 'torch' not in sys.modules"
    asked = json.dumps({"concepts": [{"path": str(folder)}], "resolution": 32})
    done = subprocess.run([sys.executable, "-c", program], input=asked, capture_output=True, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert of_type(records, "buckets")[0]["buckets"] == [["32x32", 3, 3], ["48x32", 1, 1]]


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"concepts": [{"path": ""}]}'])
def test_invalid_config_prints_one_sentence(text: str) -> None:
    argv = [sys.executable, "-m", "modules.data.index.survey", "-"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("survey: ")
    assert "Traceback" not in done.stderr


def test_images_at_several_resolutions(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path, resolutions="32 64", min_size=10, name="cats")
    records = list(survey(config))
    (piece,) = of_type(records, "pictures")
    assert [(row[0], row[3]) for row in cast("list[list[object]]", piece["rows"])] == [
        *(("a.png", "32x32"), ("b.png", "48x24"), ("copy.png", "32x32"))
    ]
    (concept,) = of_type(records, "concept")
    lines = cast("list[str]", concept["summary"])
    assert (lines[0], lines[2].partition(",")[0]) == ("cats at 32: 3 images", "cats at 64: 3 images")
    sizes = [[name, count, count] for name, count in {"32x32": 2, "64x64": 2, "48x24": 1, "96x48": 1}.items()]
    assert of_type(records, "buckets")[0]["buckets"] == sizes
    problems = [str(each["what"]) for each in of_type(records, "problem")]
    assert "skipped: 8x8 is smaller than min_size (10)" in problems
    index = build_index(expand_concepts(config), 1, 8, tmp_path)
    assert [str(index.buckets[each]) for each in index.bucket] == ["32x32", "48x24", "32x32", "64x64", "96x48", "64x64"]
    assert not [each for each in missing_data(expand_concepts(config), index, is_cached=True) if "two concepts" in each]
    assert len(build_index(config_for(folder, cache=tmp_path), 1, 8, tmp_path)) == 4, "another index"
