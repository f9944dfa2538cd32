"""Caption files are read as the other trainer reads them: its extension, and what it makes of several lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.importers import import_file
from tests.data.helpers import index_of, write_image

TEXT = "a cat, grey\n\n  on a sofa \n"
FIRST = ("a cat, grey",)  # kohya-ss/sd-scripts, library/train_util.py, read_caption: lines[0].strip()
LINES = ("a cat, grey", "on a sofa")  # mgds, LoadMultipleTexts: strips lines, and drops empty ones
WHOLE = (TEXT.strip(),)  # tdrussell/diffusion-pipe, utils/dataset.py: f.read().strip()

KOHYA = """
[[datasets]]
resolution = 512
[[datasets.subsets]]
image_dir = "images"
{subset}
"""
DIFFUSION_PIPE = """
dataset = 'data.toml'
output_dir = 'runs'
micro_batch_size_per_gpu = 1
pipeline_stages = 1
[model]
type = 'sdxl'
checkpoint_path = '/models/sdxl.safetensors'
"""


def kohya(folder: Path, subset: str) -> Path:
    file = folder / "dataset.toml"
    file.write_text(KOHYA.format(subset=subset), "utf-8")
    return file


def onetrainer(folder: Path, subset: str) -> Path:
    concept = {"path": "images", "text": {"prompt_source": "sample", **json.loads(subset or "{}")}}
    settings = {"training_method": "LORA", "model_type": "STABLE_DIFFUSION_15", "base_model_name": "a/b"}
    return _json(folder / "one.json", {**settings, "concepts": [concept], "samples": []})


def ai_toolkit(folder: Path, subset: str) -> Path:
    dataset = {"folder_path": "images", **json.loads(subset or "{}")}
    process = {"type": "sd_trainer", "model": {"name_or_path": "a/b", "is_xl": True}, "datasets": [dataset]}
    return _json(folder / "job.json", {"job": "extension", "config": {"name": "x", "process": [process]}})


def simple_tuner(folder: Path, subset: str) -> Path:
    backend = {"id": "x", "type": "local", "instance_data_dir": "images", "caption_strategy": "textfile"}
    _json(folder / "data.json", [{**backend, **json.loads(subset or "{}")}])
    arguments = {"--model_family": "sdxl", "--model_type": "lora", "--data_backend_config": "data.json"}
    return _json(folder / "config.json", {**arguments, "--pretrained_model_name_or_path": "a/b"})


def diffusion_pipe(folder: Path, subset: str) -> Path:
    (folder / "data.toml").write_text("resolutions = [512]\n[[directory]]\npath = 'images'\n", "utf-8")
    (folder / "run.toml").write_text(DIFFUSION_PIPE, "utf-8")
    return folder / "run.toml"


def _json(file: Path, data: object) -> Path:
    file.write_text(json.dumps(data), "utf-8")
    return file


@pytest.mark.parametrize(
    ("write", "subset", "extension", "expected"),
    [
        (kohya, "", ".caption", FIRST),  # DreamBoothSubset's default, library/train_util.py
        (kohya, 'caption_extension = "txt"', ".txt", FIRST),
        (kohya, "enable_wildcard = true", ".caption", LINES),
        (onetrainer, "", ".txt", LINES),
        (ai_toolkit, "", ".txt", WHOLE),  # ostris/ai-toolkit, toolkit/dataloader_mixins.py, load_caption
        (ai_toolkit, '{"caption_ext": "caption"}', ".caption", WHOLE),
        (simple_tuner, "", ".txt", LINES),  # bghira/SimpleTuner, documentation/DATALOADER.md
        (simple_tuner, '{"disable_multiline_split": true}', ".txt", WHOLE),
        (diffusion_pipe, "", ".txt", WHOLE),
    ],
)
def test_captions_are_those_of_the_other_trainer(
    tmp_path: Path, write: Callable[[Path, str], Path], subset: str, extension: str, expected: tuple[str, ...]
) -> None:
    write_image(tmp_path / "images/cat.png")
    (tmp_path / f"images/cat{extension}").write_text(TEXT, "utf-8")
    config = import_file(write(tmp_path, subset)).config
    (concept,) = config.concepts
    assert concept.caption_extension == extension
    index = index_of(config.model_copy(update={"family": "pixel_diffusion"}), tmp_path / "cache")
    assert index.captions(0) == expected


def test_captions_in_json_are_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "images/cat.png")
    found = import_file(ai_toolkit(tmp_path, '{"caption_ext": "json"}'))
    assert "write captions as .txt" in "\n".join(found.report.lines())


def test_choices_and_kept_tags_of_kohya(tmp_path: Path) -> None:
    write_image(tmp_path / "images/cat.png")
    given = "enable_wildcard = true\nkeep_tokens_separator = '|||'"
    (concept,) = import_file(kohya(tmp_path, given)).config.concepts
    assert (concept.wildcards, concept.caption_lines, concept.keep_separator) == (True, "random", "|||")


@pytest.mark.parametrize(
    ("mode", "tags", "kept", "dropped"),
    [("WHITELIST", "cat, dog", "cat, dog", ""), ("BLACKLIST", "blurry", "", "blurry"), ("WHITELIST", "a.csv", "", "")],
)
def test_special_tags_of_onetrainer(tmp_path: Path, mode: str, tags: str, kept: str, dropped: str) -> None:
    write_image(tmp_path / "images/cat.png")
    special = f'"tag_dropout_special_tags_mode": "{mode}", "tag_dropout_special_tags": "{tags}"'
    text = '"tag_dropout_enable": true, "tag_dropout_mode": "RANDOM", "tag_dropout_probability": 0.5'
    found = import_file(onetrainer(tmp_path, f"{{{text}, {special}}}"))
    assert (found.config.concepts[0].kept_tags, found.config.concepts[0].dropped_tags) == (kept, dropped)
    assert any("kept_tags" in each.why for each in found.report.not_imported) == tags.endswith(".csv")
