"""The survey of a config's images that the window reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from modules.data.index.survey import survey
from tests.data.helpers import config_for, write_image


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
        ["a.png", 40, 40, "32x32", "a cat called a\nanother caption", "found"],
        ["b.png", 80, 40, "48x24", "a cat called b\nanother caption", "found"],
        ["copy.png", 40, 40, "32x32", "", "missing"],
        ["dot.png", 8, 8, "32x32", "a cat called dot\nanother caption", "found"],
    ]
    assert of_type(records, "buckets") == [{"type": "buckets", "buckets": [["32x32", 3], ["48x24", 1]]}]


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
    assert of_type(records, "buckets")[0]["buckets"] == [["32x32", 3], ["48x32", 1]]


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"concepts": [{"path": ""}]}'])
def test_invalid_config_prints_one_sentence(text: str) -> None:
    argv = [sys.executable, "-m", "modules.data.index.survey", "-"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("survey: ")
    assert "Traceback" not in done.stderr
