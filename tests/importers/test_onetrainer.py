"""OneTrainer's presets, against its sources.

Nerogar/OneTrainer: modules/util/config/TrainConfig.py (defaults), modules/util/NamedParameterGroup.py and
modules/util/enum/LearningRateScaler.py (rates), modules/util/create.py, create_lr_scheduler (warm-up),
modules/trainer/GenericTrainer.py (its steps are batches: `next_step` is called for each),
modules/util/lr_scheduler_util.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config import Interval, TrainConfig
from modules.importers import ImportResult, import_file

LORA: dict[str, object] = {
    "training_method": "LORA", "model_type": "STABLE_DIFFUSION_XL_10_BASE", "base_model_name": "a/b", "concepts": [],
    "samples": [], "learning_rate": 1e-4,
}  # fmt: skip
FINE_TUNE = {**LORA, "training_method": "FINE_TUNE", "model_type": "STABLE_DIFFUSION_15"}
EMBEDDING = {**LORA, "training_method": "EMBEDDING", "model_type": "STABLE_DIFFUSION_15"}


def imported(folder: Path, preset: dict[str, object], **changed: object) -> ImportResult:
    (folder / "preset.json").write_text(json.dumps({**preset, **changed}), encoding="utf-8")
    return import_file(folder / "preset.json")


def stops(config: TrainConfig) -> dict[str, Interval]:
    return {part.part: part.stop_after for part in config.parts}


@pytest.mark.parametrize(
    ("scaler", "factor", "scaling"),
    [
        (None, 1, "none"),  # its default is NONE
        ("NONE", 1, "none"),
        ("BATCH", 2, "none"),  # sqrt(4)
        ("GRADIENT_ACCUMULATION", 3, "none"),  # sqrt(9)
        ("BOTH", 6, "none"),  # sqrt(4 * 9)
        ("GLOBAL_BATCH", 2, "sqrt"),  # sqrt(4 * world_size)
        ("GLOBAL_BOTH", 6, "sqrt"),
    ],
)
def test_rates(tmp_path: Path, scaler: str | None, factor: float, scaling: str) -> None:
    changed = {} if scaler is None else {"learning_rate_scaler": scaler}
    found = imported(
        tmp_path, LORA, batch_size=4, gradient_accumulation_steps=9, text_encoder={"learning_rate": 1e-5}, **changed
    )
    assert found.config.lr_scaling == scaling
    assert found.config.learning_rate == pytest.approx(1e-4 * factor)
    assert found.config.parts[1].learning_rate == pytest.approx(1e-5 * factor)


def test_an_unknown_scaler_is_told_and_changes_no_rate(tmp_path: Path) -> None:
    """LearningRateScaler has no GLOBAL_GRADIENT_ACCUMULATION."""
    found = imported(tmp_path, LORA, learning_rate_scaler="GLOBAL_GRADIENT_ACCUMULATION", gradient_accumulation_steps=9)
    assert (found.config.lr_scaling, found.config.learning_rate) == ("none", 1e-4)
    assert "learning_rate_scaler" in {entry.source for entry in found.report.not_imported}


@pytest.mark.parametrize("preset", [LORA, FINE_TUNE])
def test_text_encoders_stop_after_30_epochs_by_default(tmp_path: Path, preset: dict[str, object]) -> None:
    found = stops(imported(tmp_path, preset).config)
    assert found.pop("unet") == Interval.never()
    assert set(found.values()) == {Interval(30, "epochs")}


def test_text_encoders_that_never_stop_or_are_not_trained(tmp_path: Path) -> None:
    never = {"stop_training_after_unit": "NEVER"}
    config = imported(tmp_path, LORA, text_encoder=never, text_encoder_2={"train": False}).config
    assert stops(config) == dict.fromkeys(("unet", "text_encoder", "text_encoder_2"), Interval.never())
    assert [part.train for part in config.parts] == [True, True, False]


def test_embeddings_have_its_placeholder_and_initial_text_by_default(tmp_path: Path) -> None:
    config = imported(tmp_path, EMBEDDING).config
    assert (config.embedding_token, config.embedding_init, config.embedding_vectors) == ("<embedding>", "*", 1)
    given = {"placeholder": "<cat>", "initial_embedding_text": "cat", "token_count": 3}
    config = imported(tmp_path, EMBEDDING, embedding=given).config
    assert (config.embedding_token, config.embedding_init, config.embedding_vectors) == ("<cat>", "cat", 3)
    assert "embedding_token" not in "\n".join(imported(tmp_path, LORA).report.lines())


def test_its_steps_are_batches(tmp_path: Path) -> None:
    """create_lr_scheduler: int(warmup_steps / gradient_accumulation_steps)."""
    changed = {
        "gradient_accumulation_steps": 4, "learning_rate_warmup_steps": 202.0, "save_every": 0,
        "sample_after": 100, "sample_after_unit": "STEP", "backup_after": 2, "backup_after_unit": "STEP",
        "text_encoder": {"stop_training_after": 1000, "stop_training_after_unit": "STEP"}, "validation": True,
        "validate_after": 3, "validate_after_unit": "EPOCH",
    }  # fmt: skip
    found = imported(tmp_path, LORA, **changed)
    config = found.config
    assert config.warmup_steps == 50
    assert (config.sample_every, config.backup_every) == (Interval(25, "steps"), Interval(1, "steps"))
    assert stops(config)["text_encoder"] == Interval(250, "steps")
    assert config.validate_every == Interval(3, "epochs")
    reasons = {entry.source: entry.why for entry in found.report.changed}
    assert "batches" in reasons["learning_rate_warmup_steps"]
    assert "batches" in reasons["sample_after, sample_after_unit"]
    assert imported(tmp_path, LORA).config.warmup_steps == 200


@pytest.mark.parametrize("share", [0.05, 1.0])
def test_a_warm_up_of_up_to_1_is_a_share_of_all_steps(tmp_path: Path, share: float) -> None:
    """create_lr_scheduler: int(warmup_steps * total_steps) for 0 < warmup_steps <= 1."""
    config = imported(tmp_path, LORA, learning_rate_warmup_steps=share, gradient_accumulation_steps=4).config
    assert (config.warmup_fraction, config.warmup_steps) == (share, 0)


def test_its_smooth_restarts_are_told(tmp_path: Path) -> None:
    """cosine_with_restarts rises as smoothly as it falls; cosine_with_hard_restarts jumps, as Tandem's does."""
    names = ("COSINE_WITH_RESTARTS", "COSINE_WITH_HARD_RESTARTS")
    found = [imported(tmp_path, LORA, learning_rate_scheduler=name, learning_rate_cycles=3.0) for name in names]
    assert [each.config.scheduler for each in found] == ["cosine_with_restarts"] * 2
    assert [each.config.scheduler_cycles for each in found] == [3, 3]
    marked = ["learning_rate_scheduler" in {entry.source for entry in each.report.changed} for each in found]
    assert marked == [True, False]


def test_defaults_of_a_preset(tmp_path: Path) -> None:
    config = imported(tmp_path, LORA, samples=[{"prompt": "a cat"}]).config
    assert (config.epochs, config.batch_size, config.precision, config.resolution) == (100, 1, "fp16", 512)
    assert (config.lora_rank, config.lora_alpha, config.max_grad_norm, config.scheduler) == (16, 1.0, 1.0, "constant")
    assert (config.sample_every, config.backup_every) == (Interval(10, "minutes"), Interval(30, "minutes"))
    assert (config.ema, config.caption_dropout, config.masked_training) == (False, 0.0, False)
    assert config.family_options.get("loss_weighting", "none") == "none"
    found = imported(tmp_path, LORA, ema="GPU").config  # update_step_interval 5, decay 0.999
    assert found.ema_decay**5 == pytest.approx(0.999)
    masked = {"masked_training": True, "normalize_masked_area_loss": True, "unmasked_weight": 0.3}
    found = imported(tmp_path, LORA, **masked).config
    assert (found.normalize_masked_area_loss, found.unmasked_weight) == (True, 0.3)


def changes(found: ImportResult) -> dict[str, str]:
    return {item.target: item.why for item in found.report.changed}


def _mean_age(steps: int, decay: float, interval: int) -> float:
    """How many steps the weights in an EMA lie back on average, with the ramp (1 + s) / (10 + s) of both trainers."""
    age = 0.0
    for step in range(steps):
        age += 1
        if (step + 1) % interval == 0:
            age *= min((1 + step) / (10 + step), decay)
    return age


def test_the_average_reaches_back_less_far_in_short_runs(tmp_path: Path) -> None:
    """modules/module/EMAModule.py: min((1 + s) / (10 + s), decay) at every 5th step only."""
    ages = [_mean_age(1000, 0.999, 5), _mean_age(1000, 0.999**0.2, 1)]
    assert ages == pytest.approx([357, 100], rel=0.05)
    found = imported(tmp_path, LORA, ema="GPU", ema_decay=0.999, ema_update_step_interval=5)
    told = changes(found)["ema_decay"]
    assert f"{ages[0] / ages[1]:.1f} times" in told
    caps = [next(s for s in range(99_999) if (1 + s) / (10 + s) >= decay) for decay in (0.999**0.2, 0.999)]
    assert [f"{cap / 1000:.0f},000" in told for cap in caps] == [True, True]
    assert "ema_decay" not in changes(imported(tmp_path, LORA, ema="GPU", ema_update_step_interval=1))


@pytest.mark.parametrize(
    ("changed", "is_told"),
    [
        ({"force_v_prediction": True}, True),
        ({"model_type": "STABLE_DIFFUSION_21"}, True),
        ({"model_type": "STABLE_DIFFUSION_21", "force_epsilon_prediction": True}, False),
        ({"model_type": "STABLE_DIFFUSION_21_BASE"}, False),
        ({}, False),
        ({"force_v_prediction": True, "loss_weight_fn": "MIN_SNR_GAMMA"}, False),
    ],
)
def test_debiased_weights_of_v_differ(tmp_path: Path, changed: dict[str, object], is_told: bool) -> None:
    """ModelSetupDiffusionLossMixin.__debiased_estimation_weight: 1 / sqrt(snr + 1) for v."""
    found = imported(tmp_path, LORA, **{"loss_weight_fn": "DEBIASED_ESTIMATION", **changed})
    assert found.config.family_options["loss_weighting"] in ("debiased", "min_snr")
    assert ("1 / sqrt(snr + 1)" in changes(found).get("family_options.loss_weighting", "")) is is_told


def test_grey_parts_of_masks_weigh_otherwise(tmp_path: Path) -> None:
    """modules/util/loss/masked_loss.py: clamp(mask, unmasked_weight, 1)."""
    for weight, is_told in ((0.1, True), (0.0, False)):
        found = imported(tmp_path, LORA, masked_training=True, unmasked_weight=weight)
        assert ("grey" in changes(found).get("masked_training", "")) is is_told


def test_the_report_begins_with_what_people_look_for(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    lists = {"concepts": [{"path": str(tmp_path / "cats"), "balancing": 2.0}], "samples": [{"prompt": "a cat"}]}
    found = imported(tmp_path, LORA, **lists).report
    assert {"concepts", "samples"} <= {entry.target.partition(".")[0] for entry in found.imported}
    for entries in (found.imported, found.changed):
        heads = [entry.target.partition(".")[0] for entry in entries]
        ordered = [name for name in ("family", "method", "base_model", "parts", "concepts", "samples") if name in heads]
        assert [name for name in dict.fromkeys(heads) if name in ordered] == ordered
        first = [name for name in ordered if name in ("family", "method", "base_model")]
        assert heads[: len(first)] == first


def test_quantised_weights_of_frozen_parts(tmp_path: Path) -> None:
    for theirs, ours in (
        ("INT_8", "int8"),
        ("NFLOAT_4", "nf4"),
        ("BFLOAT_16", "bf16"),
        ("FLOAT_8", "fp8"),
        ("GGUF", "run"),
    ):
        config = imported(tmp_path, LORA, unet={"weight_dtype": theirs}).config
        assert config.parts[0].weights == ours


def test_lokr_and_oft(tmp_path: Path) -> None:
    lokr = {"peft_type": "LOKR", "lokr_dim": 4, "lokr_decompose_factor": 8, "dropout_probability": 0.2}
    config = imported(tmp_path, LORA, **lokr).config
    assert (config.lora_algorithm, config.lora_rank, config.lokr_factor, config.lora_dropout) == ("lokr", 4, 8, 0)
    config = imported(tmp_path, LORA, peft_type="OFT_2", oft_block_size=64).config
    assert (config.lora_algorithm, config.oft_block_size) == ("oft", 64)


def test_a_fork_with_our_names_keeps_its_settings_for_several_gpus(tmp_path: Path) -> None:
    own: dict[str, object] = {
        "enable_multi_gpu": True,
        "distributed_backend": "gloo",
        "world_size": 4,
        "use_torchrun": False,
        "distributed_data_loading": False,
        "initial_port": "12399",
        "node_rank": 1,
        "num_nodes": 2,
        "master_addr": "10.0.0.1",
    }
    file = tmp_path / "preset.json"
    file.write_text(json.dumps({"training_method": "LORA", "base_model_name": "a/b", "multi_gpu": False, **own}))
    found = import_file(file)
    assert {**found.config.model_dump(include=set(own)), "initial_port": "12399"} == own
    assert not {item.source for item in found.report.not_imported} & set(own)
