"""What a file's header says, and that it keeps silent about the images unless it may speak."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from modules.checkpoint.formats import BucketCount, ImageFolder, LoraSize, RunMetadata, file_metadata
from modules.config import TrainConfig

SECRET = "tags of a private person"
FACTS = RunMetadata(
    run_name="cats",
    modelspec={"architecture": "stable-diffusion-xl-v1-base", "prediction_type": "v"},
    date="2026-01-02T03:04:05Z",
    step=500,
    epoch=5,
    total_steps=1000,
    total_epochs=10,
    world_size=2,
    images=12,
    folders=[ImageFolder(name="secret folder", images=12, repeats=3.0, prior=False, tags={SECRET: 7})],
)


def config(**settings: object) -> TrainConfig:
    base: dict[str, object] = {"base_model": "/models/private/sdxl.safetensors", "method": "lora", "resolution": 1024}
    return TrainConfig.model_validate({**base, **settings})


def test_every_value_is_a_text_and_none_is_empty() -> None:
    found = file_metadata(config(model_author="Ada"), FACTS, "diffusers")
    assert all(isinstance(value, str) for value in found.values())
    assert [name for name, value in found.items() if not value] == ["modelspec.hash_sha256"], "filled in when written"


def test_modelspec_names_model_and_method() -> None:
    found = file_metadata(config(trigger_phrase="a red cat", model_license="CC0-1.0"), FACTS, "diffusers")
    expected = {
        "sai_model_spec": "1.0.1",
        "architecture": "stable-diffusion-xl-v1-base/lora",
        "implementation": "diffusers",
        "title": "cats",
        "license": "CC0-1.0",
        "date": "2026-01-02T03:04:05Z",
        "resolution": "1024x1024",
        "prediction_type": "v",
        "trigger_phrase": "a red cat",
    }
    assert {name: found[f"modelspec.{name}"] for name in expected} == expected
    assert "modelspec.author" not in found


@pytest.mark.parametrize(
    ("method", "ending"), [("fine_tune", "base"), ("lora", "/lora"), ("embedding", "/textual-inversion")]
)
def test_the_architecture_ends_with_the_method(method: str, ending: str) -> None:
    found = file_metadata(config(method=method), FACTS, "original")
    assert found["modelspec.architecture"].endswith(ending)
    assert found["modelspec.implementation"] == "https://github.com/Stability-AI/generative-models"


def test_viewers_find_kohyas_names() -> None:
    parts = [
        {"part": "unet"},
        {"part": "text_encoder", "learning_rate": 5e-5},
        {"part": "text_encoder_2", "train": False},
    ]
    found = file_metadata(config(lora_rank=8, lora_alpha=4, parts=parts, batch_size=3), FACTS, "diffusers")
    expected = {
        "ss_output_name": "cats",
        "ss_sd_model_name": "sdxl.safetensors",
        "ss_base_model_version": "sdxl_base_v1-0",
        "ss_network_module": "networks.lora",
        "ss_network_dim": "8",
        "ss_network_alpha": "4.0",
        "ss_unet_lr": "0.0001",
        "ss_text_encoder_lr": "5e-05",
        "ss_steps": "500",
        "ss_total_batch_size": "6",
        "ss_seed": "42",
        "ss_resolution": "(1024, 1024)",
    }
    assert {name: found[name] for name in expected} == expected


def test_folders_and_tags_are_told_only_where_that_is_wished() -> None:
    silent = json.dumps(file_metadata(config(), FACTS, "diffusers"))
    assert "secret" not in silent
    assert SECRET not in silent
    assert "/models/private" not in silent
    written = file_metadata(config(metadata_dataset=True), FACTS, "diffusers")
    assert json.loads(written["ss_tag_frequency"]) == {"secret folder": {SECRET: 7}}
    assert json.loads(written["ss_dataset_dirs"]) == {"secret folder": {"n_repeats": 3, "img_count": 12}}


def test_folders_of_one_name_are_kept_apart_as_sd_scripts_does() -> None:
    """A viewer looks up the tags and the images of a folder by one name."""
    folders = [
        ImageFolder("cats", 10, 1.0, prior=False, tags={"cat": 10}),
        ImageFolder("cats", 20, 1.5, prior=False, tags={"tiger": 20}),
        ImageFolder("cats", 30, 2.0, prior=True, tags={"animal": 30}),
    ]
    written = file_metadata(config(metadata_dataset=True), replace(FACTS, folders=folders), "diffusers")
    assert json.loads(written["ss_dataset_dirs"]) == {
        "cats": {"n_repeats": 1, "img_count": 10},
        "cats (2)": {"n_repeats": 1.5, "img_count": 20},
    }
    assert json.loads(written["ss_reg_dataset_dirs"]) == {"cats (3)": {"n_repeats": 2, "img_count": 30}}
    assert json.loads(written["ss_tag_frequency"]) == {
        "cats": {"cat": 10},
        "cats (2)": {"tiger": 20},
        "cats (3)": {"animal": 30},
    }


def test_a_family_of_tandems_own_claims_no_architecture() -> None:
    found = file_metadata(config(method="fine_tune"), replace(FACTS, modelspec={}), "diffusers")
    assert "modelspec.architecture" not in found
    assert "ss_base_model_version" not in found
    assert found["modelspec.title"] == "cats"


def test_when_where_and_how_images_were_trained_is_said_as_kohya_says_it() -> None:
    """library/train_util.py: str(time.time()), clip_skip "None" if not set, BaseDataset.make_buckets' bucket_info."""
    buckets = [BucketCount(640, 384, 30), BucketCount(512, 512, 12)]
    run = replace(FACTS, started_at=1700000000.25, buckets=buckets, aspect_error=0.0625)
    found = file_metadata(config(aspect_ratio_bucketing=True), run, "diffusers")
    assert found["ss_training_started_at"] == "1700000000.25"
    assert found["ss_clip_skip"] == "None"
    assert "modelspec.encoder_layer" not in found
    assert json.loads(found["ss_bucket_info"]) == {
        "buckets": {"0": {"resolution": [512, 512], "count": 12}, "1": {"resolution": [640, 384], "count": 30}},
        "mean_img_ar_error": 0.0625,
    }
    skipping = replace(run, modelspec={**FACTS.modelspec, "encoder_layer": "2"})
    found = file_metadata(config(aspect_ratio_bucketing=False), skipping, "diffusers")
    assert (found["ss_clip_skip"], found["modelspec.encoder_layer"]) == ("2", "2")
    assert "ss_bucket_info" not in found


def test_the_size_of_a_lora_is_that_of_its_layers() -> None:
    """With `lora_from` the file decides, whatever the settings say."""
    found = file_metadata(config(lora_rank=8), replace(FACTS, lora=LoraSize(32, 1.0, dora=True)), "diffusers")
    assert (found["ss_network_dim"], found["ss_network_alpha"]) == ("32", "1.0")
    assert json.loads(found["ss_network_args"])["dora"] is True
