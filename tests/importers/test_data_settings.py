"""Sizes and dropout of each dataset, as the other trainers have them: in a list of its own, or told to differ.

kohya-ss/sd-scripts at 48d368f: library/config_util.py (whose datasets have a resolution and whose subsets a caption
dropout), library/train_util.py (BucketManager). Nerogar/OneTrainer at 23df383 with Nerogar/mgds at 0ad64a6:
AspectBucketing.py draws one of several resolutions, DropTags.py. ostris/ai-toolkit at 27a03a9:
preprocess_dataset_raw_config copies a dataset for each resolution, buckets.py enlarges no image. bghira/SimpleTuner at
bc8e6ab: helpers/metadata/backends/base.py. tdrussell/diffusion-pipe at 8f83dbf: utils/dataset.py, ARBucketDataset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from modules.importers import import_file
from modules.importers.report import ImportResult
from tests.importers.test_captions import DIFFUSION_PIPE

KOHYA = """
[general]
enable_bucket = true
{general}
[[datasets]]
resolution = 768
[[datasets.subsets]]
image_dir = "a"
caption_dropout_rate = 0.2
[[datasets]]
resolution = [512, 512]
[[datasets.subsets]]
image_dir = "b"
[[datasets.subsets]]
image_dir = "c"
caption_dropout_rate = 0.2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / name).mkdir()
    return tmp_path


def kohya(folder: Path, general: str = "") -> ImportResult:
    (folder / "data.toml").write_text(KOHYA.format(general=general), "utf-8")
    return import_file(folder / "data.toml")


def onetrainer(folder: Path, *concepts: Mapping[str, object], **settings: object) -> ImportResult:
    base = {"training_method": "LORA", "model_type": "STABLE_DIFFUSION_15", "base_model_name": "a/b", "samples": []}
    listed = [{"path": name, **each} for name, each in zip("abc", concepts, strict=False)]
    (folder / "one.json").write_text(json.dumps({**base, "concepts": listed, **settings}), "utf-8")
    return import_file(folder / "one.json")


def ai_toolkit(folder: Path, *datasets: Mapping[str, object]) -> ImportResult:
    listed = [{"folder_path": name, **each} for name, each in zip("abc", datasets, strict=False)]
    process = {"type": "sd_trainer", "model": {"name_or_path": "a/b", "is_xl": True}, "datasets": listed}
    (folder / "job.json").write_text(json.dumps({"job": "extension", "config": {"name": "x", "process": [process]}}))
    return import_file(folder / "job.json")


def simple_tuner(folder: Path, *backends: Mapping[str, object], **settings: object) -> ImportResult:
    plain = {"type": "local", "caption_strategy": "textfile"}
    listed = [
        {"id": name, "instance_data_dir": name, **plain, **each} for name, each in zip("abc", backends, strict=False)
    ]
    (folder / "data.json").write_text(json.dumps(listed), "utf-8")
    base = {"model_family": "sdxl", "model_type": "lora", "data_backend_config": "data.json"}
    base |= {"pretrained_model_name_or_path": "a/b"}
    (folder / "config.json").write_text(json.dumps({**base, **settings}), "utf-8")
    return import_file(folder / "config.json")


def diffusion_pipe(folder: Path, data: str) -> ImportResult:
    (folder / "data.toml").write_text(data, "utf-8")
    (folder / "run.toml").write_text(DIFFUSION_PIPE, "utf-8")
    return import_file(folder / "run.toml")


def own(found: ImportResult) -> list[tuple[str, float | None]]:
    return [(concept.resolutions, concept.caption_dropout) for concept in found.config.concepts]


def whys(found: ImportResult, target: str) -> list[str]:
    """Why a setting of Tandem means something else than that of the file; empty if it is listed as imported."""
    return [entry.why for entry in found.report.changed if entry.target == target]


def test_kohya(folder: Path) -> None:
    found = kohya(folder)
    config = found.config
    assert (config.resolution, config.caption_dropout, config.bucket_step, config.no_upscale) == (768, 0.2, 64, False)
    assert own(found) == [("", None), ("512", 0.0), ("512", None)]
    assert "up to 25" in whys(found, "bucket_step")[0]
    found = kohya(folder, "bucket_reso_steps = 32\nbucket_no_upscale = true\nvalidation_split = 0.1")
    assert (found.config.bucket_step, found.config.no_upscale, found.config.validation_split) == (32, True, 0.1)
    assert whys(found, "no_upscale")
    assert whys(found, "validation_split")


def test_kohyas_buckets_have_no_effect_where_they_are_off(folder: Path) -> None:
    found = kohya(folder, "bucket_reso_steps = 32\nbucket_no_upscale = true").config
    off = (folder / "data.toml").read_text("utf-8").replace("enable_bucket = true", "enable_bucket = false")
    (folder / "data.toml").write_text(off, "utf-8")
    result = import_file(folder / "data.toml")
    assert found.bucket_step == 32
    assert (result.config.bucket_step, result.config.no_upscale) == (None, False)
    assert {"general.bucket_reso_steps", "general.bucket_no_upscale"} <= {e.source for e in result.report.not_imported}


def test_onetrainer(folder: Path) -> None:
    override = {"image": {"enable_resolution_override": True, "resolution_override": "640"}}
    found = onetrainer(folder, {}, override, resolution="512, 768")
    assert found.config.resolution == 768
    assert own(found) == [("512 768", None), ("640", None)]
    assert "draws one of them" in whys(found, "resolution")[0]
    assert not whys(found, "concepts.1.resolutions")
    both = {"image": {"enable_resolution_override": True, "resolution_override": "512,768"}}
    found = onetrainer(folder, both, resolution="512x768")
    assert own(found) == [("512 768", None)]
    assert "draws one of them" in whys(found, "concepts.0.resolutions")[0]
    assert "as many pixels" in whys(found, "resolution")[0]


def test_onetrainer_drops_all_tags(folder: Path) -> None:
    text = {"tag_dropout_enable": True, "tag_dropout_mode": "FULL", "tag_dropout_probability": 0.3}
    found = onetrainer(folder, {"text": {**text, "keep_tags_count": 0}}, {"text": text})
    assert own(found) == [("", 0.3), ("", None)]
    assert any("all tags but some" in entry.why for entry in found.report.not_imported)


def test_ai_toolkit(folder: Path) -> None:
    found = ai_toolkit(
        folder, {"resolution": [512, 768], "caption_dropout_rate": 0.1}, {"resolution": 768}, {"bucket_tolerance": 32}
    )
    config = found.config
    assert (config.resolution, config.bucket_step, config.no_upscale, config.caption_dropout) == (768, 64, True, 0.0)
    assert own(found) == [("512 768", 0.1), ("768", None), ("512", None)]
    assert "up to 25" in whys(found, "bucket_step")[0]
    assert "the first one is used" in {e.source[-16:]: e.why for e in found.report.not_imported}["bucket_tolerance"]
    assert ai_toolkit(folder, {"buckets": False}).config.bucket_step is None


def test_simple_tuner(folder: Path) -> None:
    megapixels = {"resolution": 0.25, "resolution_type": "area", "minimum_image_size": 0.2}
    shorter = {"resolution": 640, "resolution_type": "pixel", "minimum_image_size": 600}
    found = simple_tuner(folder, {"resolution": 1024, "resolution_type": "pixel_area"}, megapixels, shorter)
    assert found.config.resolution == 1024
    assert own(found) == [("", None), ("496", None), ("640", None)]
    assert [concept.min_size for concept in found.config.concepts] == [0, 0, 600]
    assert "megapixels" in whys(found, "concepts.1.resolutions")[0]
    assert "shorter side" in whys(found, "concepts.2.resolutions")[0]
    assert any("set min_size" in entry.why for entry in found.report.not_imported)
    first = simple_tuner(folder, {"resolution": 1024, "resolution_type": "pixel", "minimum_image_size": 600})
    assert first.config.concepts[0].min_size == 600
    assert not [entry for entry in first.report.not_imported if "resolution_type" in entry.source]  # it was imported


def test_diffusion_pipe(folder: Path) -> None:
    several = (
        "resolutions = [512, [1280, 720]]\nenable_ar_bucket = true\nmin_ar = 0.5\nmax_ar = 2.0\nnum_ar_buckets = 7\n"
    )
    directories = "[[directory]]\npath = 'a'\n[[directory]]\npath = 'b'\nresolutions = [256]\n"
    found = diffusion_pipe(folder, several + directories)
    assert (found.config.resolution, found.config.largest_aspect) == (960, 2.0)
    assert own(found) == [("512 960", None), ("256", None)]
    assert whys(found, "largest_aspect")
    assert own(diffusion_pipe(folder, "resolutions = [512]\n" + directories)) == [("", None), ("256", None)]


@pytest.mark.parametrize(
    ("general", "aspect", "told"),
    [
        ("", 4, "at most"),  # 1024 / 256 of 768: narrower than 768^2 / 256 = 2304 high
        ("min_bucket_reso = 512\nmax_bucket_reso = 1536", 2.25, "the ratio"),  # 768^2 / 512 = 1152 high
        ("min_bucket_reso = 384\nmax_bucket_reso = 960", 2.5, "the ratio"),
        ("bucket_no_upscale = true\nmax_bucket_reso = 2048", 4, "kohya ignores it with bucket_no_upscale"),
    ],
)
def test_shortest_and_longest_sides_of_kohya(folder: Path, general: str, aspect: float, told: str) -> None:
    """model_util.py, make_bucket_resolutions: widths from the shortest, heights of the area, up to the longest."""
    found = kohya(folder, general)
    assert found.config.largest_aspect == aspect
    if general:
        entries = (*found.report.changed, *found.report.not_imported)
        assert any("max_bucket_reso" in entry.source and told in entry.why for entry in entries)
