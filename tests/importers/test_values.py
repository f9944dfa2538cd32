"""Values that other trainers write otherwise than Tandem does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.config.schedules import learning_rate_factor
from modules.importers import import_file

KOHYA: dict[str, object] = {
    "pretrained_model_name_or_path": "a/b",
    "network_module": "networks.lora",
    "max_train_epochs": 3,
}


def imported_config(folder: Path, data: dict[str, object]) -> TrainConfig:
    """What a file with this data becomes."""
    file = folder / "kohya.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    return import_file(file).config


@pytest.mark.parametrize(
    ("given", "imported"),
    [
        ("euler", "euler"),
        ("k_euler", "euler"),
        ("euler_a", "euler_a"),
        ("k_euler_a", "euler_a"),
        ("dpmsolver++", "dpmpp_2m"),
        ("pndm", "pndm"),
        ("heun", "heun"),
    ],
)
def test_kohyas_samplers(tmp_path: Path, given: str, imported: str) -> None:
    config = imported_config(tmp_path, {**KOHYA, "sample_sampler": given})
    assert config.family_options["sample_scheduler"] == imported


@pytest.mark.parametrize(
    ("given", "imported"),
    [
        ("constant", "constant"),
        ("constant_with_warmup", "constant"),
        ("linear", "linear"),
        ("cosine", "cosine"),
        ("cosine_with_min_lr", "cosine"),
        ("polynomial", "polynomial"),
    ],
)
def test_kohyas_schedules(tmp_path: Path, given: str, imported: str) -> None:
    config = imported_config(tmp_path, {**KOHYA, "lr_scheduler": given})
    assert config.scheduler == imported


def test_kohyas_warm_up_in_percent_of_the_steps(tmp_path: Path) -> None:
    """kohya-ss/sd-scripts, get_scheduler_fix: int(lr_warmup_steps * all steps) if below 1; kohya_ss has percents."""
    by_steps = {key: value for key, value in KOHYA.items() if key != "max_train_epochs"} | {"max_train_steps": 250}
    for data in (KOHYA, by_steps):
        for settings, share in (({"lr_warmup": 10}, 0.1), ({"lr_warmup_steps": 0.05}, 0.05)):
            config = imported_config(tmp_path, {**data, "lr_scheduler": "cosine", **settings})
            assert (config.warmup_fraction, config.warmup_steps) == (share, 0)
    assert learning_rate_factor(11, 250, config) == 12 / 13 < learning_rate_factor(12, 250, config) == 1


@pytest.mark.parametrize(
    ("given", "imported"),
    [
        ("Lion", "lion"), ("Lion8bit", "lion"), ("PagedLion8bit", "lion"), ("AdamW8bit", "adamw"),
        ("PagedAdamW8bit", "adamw"), ("SGDNesterov8bit", "sgd"), ("AdaFactor", "adafactor"), ("Prodigy", "prodigy"),
        ("DAdaptLion", "prodigy"), ("Adam", "adam"),
    ],
)  # fmt: skip
def test_kohyas_optimizers(tmp_path: Path, given: str, imported: str) -> None:
    config = imported_config(tmp_path, {**KOHYA, "optimizer_type": given})
    assert config.optimizer.name == imported


@pytest.mark.parametrize("given", [{}, {"normalize_masked_area_loss": False}, {"normalize_masked_area_loss": True}])
def test_onetrainers_masks(tmp_path: Path, given: dict[str, object]) -> None:
    """Nerogar/OneTrainer, modules/util/config/TrainConfig.py: normalize_masked_area_loss is False by default."""
    one = {"training_method": "LORA", "model_type": "STABLE_DIFFUSION_15", "base_model_name": "a/b", "__version": 9}
    file = tmp_path / "one.json"
    file.write_text(json.dumps({**one, "masked_training": True, "unmasked_weight": 0.3, **given}), encoding="utf-8")
    found = import_file(file)
    assert (found.config.masked_training, found.config.unmasked_weight) == (True, 0.3)
    assert found.config.normalize_masked_area_loss == bool(given.get("normalize_masked_area_loss"))
    assert "normalize_masked_area_loss" not in {entry.source for entry in found.report.not_imported}


def test_kohyas_masks_leave_out_what_is_black(tmp_path: Path) -> None:
    """kohya-ss/sd-scripts, library/custom_train_functions.py (apply_masked_loss): the loss times the mask, no more."""
    config = imported_config(tmp_path, {**KOHYA, "masked_loss": True})
    assert (config.masked_training, config.unmasked_weight, config.normalize_masked_area_loss) == (True, 0.0, False)


def test_kohyas_alpha_mask_masks_the_loss_by_itself(tmp_path: Path) -> None:
    """kohya-ss/sd-scripts, train_network.py: `if args.masked_loss or batch["alpha_masks"] is not None`."""
    subsets = [{"image_dir": "cats", "alpha_mask": True}, {"image_dir": "dogs"}]
    config = imported_config(tmp_path, {**KOHYA, "datasets": [{"subsets": subsets}]})
    assert [each.alpha_mask for each in config.concepts] == [True, False]
    assert (config.masked_training, config.unmasked_weight, config.normalize_masked_area_loss) == (True, 0.0, False)
    config = imported_config(tmp_path, {**KOHYA, "alpha_mask": True, "datasets": [{"subsets": subsets[1:]}]})
    assert (config.masked_training, config.concepts[0].alpha_mask) == (True, True)
    config = imported_config(tmp_path, {**KOHYA, "datasets": [{"subsets": subsets[1:]}]})
    assert not config.masked_training


def test_a_concept_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    places = ["cats", "gs://bucket/dogs", "birds", "https://host/folder/", "fish"]
    subsets = [{"image_dir": each, "num_repeats": n + 1, "flip_aug": True} for n, each in enumerate(places)]
    file = tmp_path / "kohya.json"
    file.write_text(json.dumps({**KOHYA, "datasets": [{"subsets": subsets}]}), encoding="utf-8")
    found = import_file(file)
    concepts = [(Path(each.path).name, each.repeats, each.horizontal_flip) for each in found.config.concepts]
    assert concepts == [("cats", 1, True), ("birds", 3, True), ("fish", 5, True)]
    lost = {entry.source: (entry.value, entry.why) for entry in found.report.not_imported}
    assert lost["datasets.0.subsets.1.image_dir"][0] == "gs://bucket/dogs"
    assert "address that is not read" in lost["datasets.0.subsets.1.image_dir"][1]
    assert lost["datasets.0.subsets.3.image_dir"][0] == "https://host/folder/"
    targets = {each.source: each.target for each in (*found.report.imported, *found.report.changed)}
    assert targets["datasets.0.subsets.4.num_repeats"] == "concepts.2.repeats"
