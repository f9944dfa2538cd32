"""Values that a start would refuse are replaced at import, and the report says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.families._by_name import family_class
from modules.importers import import_file
from modules.importers.start_values import SIZE_STEPS
from modules.run.folder.run_folder import check_run_name

KOHYA = {"pretrained_model_name_or_path": "a/sdxl", "network_module": "networks.lora", "max_train_epochs": 1}


def test_size_steps_are_those_of_the_families() -> None:
    assert {name: family_class(name).size_step for name in SIZE_STEPS} == SIZE_STEPS


@pytest.mark.parametrize(
    ("written", "expected"),
    [("888", 896), ("888,888", 896), ([512, 768], 640), ("1024,1024", 1024), ("20", 64)],  # sqrt(512 * 768) = 627
)
def test_resolution(tmp_path: Path, written: object, expected: int) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**KOHYA, "resolution": written}), encoding="utf-8")
    found = import_file(tmp_path / "a.json")
    assert found.config.resolution == expected
    why = {item.target: item.why for item in found.report.changed}.get("resolution", "")
    assert ("needs a multiple of 64" in why) is (written != "1024,1024")


def test_sides_of_samples_and_the_name_of_the_run(tmp_path: Path) -> None:
    settings = {**KOHYA, "output_name": "my cat (v2)", "sample_prompts": "a cat --w 1000 --h 1024\na dog"}
    (tmp_path / "a.json").write_text(json.dumps(settings), encoding="utf-8")
    found = import_file(tmp_path / "a.json")
    check_run_name(str(found.config.run_name))
    assert found.config.run_name == "my_cat_v2"
    assert [(sample.width, sample.height) for sample in found.config.samples] == [(1024, 1024), (512, 512)]
    changed = {item.target: item for item in found.report.changed}
    assert changed["run_name"].value == "my cat (v2)"
    assert "needs a multiple of 64" in changed["samples.0.width"].why


@pytest.mark.parametrize(("model", "expected"), [("flux", 896), ("ltx-video", 888)])  # the second has no family
def test_sizes_are_those_of_the_family(tmp_path: Path, model: str, expected: int) -> None:
    data = {"model": {"type": model}, "pipeline_stages": 1, "dataset": "data.toml"}
    (tmp_path / "data.toml").write_text("resolutions = [888]\n", encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(data), encoding="utf-8")
    assert import_file(tmp_path / "a.json").config.resolution == expected
