"""A saved model is the old one or the new one, and says which family it is of."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest

from modules.checkpoint import read_model_config, remove_model, save_model
from modules.checkpoint.foreign_files import files_in
from modules.config import ConfigError, TrainConfig

SHAPES: dict[str, object] = {
    "aspect_ratio_bucketing": True,
    "no_upscale": True,
    "bucket_step": 48,
    "largest_aspect": 2.5,
    "fewer_buckets": True,
}
CONFIG = TrainConfig.model_validate(
    {"family": "pixel_diffusion", "family_options": {"width": 16}, "resolution": 64, **SHAPES}
)


def write(folder: Path) -> None:
    (folder / "weights").write_text("new")


def test_a_saved_model_tells_how_to_load_it(tmp_path: Path) -> None:
    save_model(write, tmp_path / "model", CONFIG, step=7)
    config = read_model_config(tmp_path / "model")
    assert (config.family, config.family_options, config.resolution) == ("pixel_diffusion", {"width": 16}, 64)
    assert config.base_model == str(tmp_path / "model")
    assert {name: getattr(config, name) for name in SHAPES} == SHAPES, "classify.py scales images as training did"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_adapter_finds_its_base_model_from_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layout").mkdir()
    (tmp_path / "base.safetensors").touch()
    for base, layout, found in (
        ("base.safetensors", "layout", (str(tmp_path / "base.safetensors"), str(tmp_path / "layout"))),
        ("base.safetensors", "owner/name", (str(tmp_path / "base.safetensors"), "owner/name")),
        ("owner/name", "layout", ("owner/name", "layout")),  # of a model on the hub it has no meaning
    ):
        config = TrainConfig(family="flux", method="lora", base_model=base, family_options={"layout": layout})
        save_model(write, tmp_path / "model", config, step=7)
        saved = read_model_config(tmp_path / "model")
        assert (saved.base_model, saved.family_options["layout"]) == found
    for method, files, names in (
        ("lora", "base.safetensors, layout,", f"{tmp_path / 'base.safetensors'}, {tmp_path / 'layout'}"),
        ("lora", "", ""),
        ("fine_tune", "base.safetensors", None),  # the folder has them
    ):
        settings = {"family": "flux", "method": method, "family_options": {"text_encoder_files": files}}
        save_model(write, tmp_path / "model", TrainConfig.model_validate(settings), step=7)
        assert read_model_config(tmp_path / "model").family_options.get("text_encoder_files") == names


def test_saving_replaces_what_the_run_has_written_and_keeps_other_files(tmp_path: Path) -> None:
    model = tmp_path / "model"

    def write_shards(folder: Path) -> None:
        (folder / "unet").mkdir()
        (folder / "unet" / "shard-1").write_text("old")

    def write_other_shards(folder: Path) -> None:
        (folder / "unet").mkdir()
        (folder / "unet" / "shard-2").write_text("new")

    save_model(write_shards, model, CONFIG, step=7)
    (model / "converted.safetensors").write_text("mine")
    (model / "unet" / "notes.txt").write_text("mine")
    save_model(write_other_shards, model, CONFIG, step=8)
    assert files_in(model) == ["converted.safetensors", "tandem.json", "unet/notes.txt", "unet/shard-2"]
    assert (model / "converted.safetensors").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_does_not_say_what_was_written_keeps_what_the_new_model_lacks(tmp_path: Path) -> None:
    (tmp_path / "model" / "notes").mkdir(parents=True)
    (tmp_path / "model" / "notes" / "mine").touch()
    (tmp_path / "model" / "weights").write_text("old")
    save_model(write, tmp_path / "model", CONFIG, step=7)
    assert files_in(tmp_path / "model") == ["notes/mine", "tandem.json", "weights"]
    assert (tmp_path / "model" / "weights").read_text() == "new"


def test_removing_a_model_leaves_the_files_of_others_and_follows_no_name_out_of_it(tmp_path: Path) -> None:
    def write_two(folder: Path) -> None:
        (folder / "unet").mkdir()
        (folder / "unet" / "weights").touch()
        (folder / "weights").touch()

    for name in ("alone", "shared"):
        save_model(write_two, tmp_path / name, CONFIG, step=7)
    (tmp_path / "weights").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights").touch()
    (tmp_path / "shared" / "link").symlink_to(tmp_path / "other")
    info = tmp_path / "shared" / "tandem.json"
    listed = ["../weights", str(tmp_path / "weights"), "link/weights", "unet/weights", "weights"]
    info.write_text(json.dumps({"files": listed}))
    for name in ("alone", "shared"):
        remove_model(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "shared", "weights"]
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["link"]
    assert (tmp_path / "other" / "weights").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such file")
def test_a_device_is_not_replaced_by_a_model(tmp_path: Path) -> None:
    """`backup.py export --out /dev/null --overwrite` of root made a folder of it; here it is a link to it."""
    device = tmp_path / "device"
    device.symlink_to("/dev/null")
    with pytest.raises(OSError, match="is a device"):
        save_model(write, device, CONFIG, step=7)
    assert [each.is_symlink() for each in tmp_path.iterdir()] == [True]


def test_where_saving_fails_the_old_model_stays(tmp_path: Path) -> None:
    save_model(write, tmp_path / "model", CONFIG, step=7)

    def fail(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        save_model(fail, tmp_path / "model", CONFIG, step=8)
    assert (tmp_path / "model" / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_that_cannot_get_its_name_does_not_cost_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(write, tmp_path / "model[1]", CONFIG, step=7)
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.name == ".partial-model[1]":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return rename(path, target)

    def write_newer(folder: Path) -> None:
        (folder / "weights").write_text("newer")

    monkeypatch.setattr(Path, "rename", fail)
    for step in (8, 9):
        with pytest.raises(OSError, match="Input/output"):
            save_model(write_newer, tmp_path / "model[1]", CONFIG, step)
        assert (tmp_path / "model[1]" / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model[1]"]


def test_what_is_no_model_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        read_model_config(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"has no tandem\.json"):
        read_model_config(tmp_path)
    wrong_family = {"family": "nonsense", "family_options": {}, "resolution": "big"}
    texts = {
        "{": "it is not JSON",
        "[]": "it is no group of settings",
        json.dumps({"version": 1}): "it has no 'family'",
        json.dumps(wrong_family): 'resolution is "big"',
    }
    for text, fault in texts.items():
        (tmp_path / "tandem.json").write_text(text)
        with pytest.raises(ConfigError, match=rf"is damaged: {fault}"):
            read_model_config(tmp_path)
