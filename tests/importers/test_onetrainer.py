"""OneTrainer's presets, against its sources.

Nerogar/OneTrainer: modules/util/config/TrainConfig.py (defaults), modules/util/NamedParameterGroup.py and
modules/util/enum/LearningRateScaler.py (rates), modules/util/create.py, create_lr_scheduler (warm-up),
modules/trainer/GenericTrainer.py (its steps are batches: `next_step` is called for each),
modules/util/lr_scheduler_util.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest
import torch

from modules.config import Interval, TrainConfig, dump
from modules.config.sections.optimizers import Adafactor
from modules.importers import ImportResult, import_file
from modules.importers.report import ImportEntry

LORA: dict[str, object] = {
    "training_method": "LORA", "model_type": "STABLE_DIFFUSION_XL_10_BASE", "base_model_name": "a/b", "concepts": [],
    "samples": [], "learning_rate": 1e-4,
}  # fmt: skip
FINE_TUNE = {**LORA, "training_method": "FINE_TUNE", "model_type": "STABLE_DIFFUSION_15"}
EMBEDDING = {**LORA, "training_method": "EMBEDDING", "model_type": "STABLE_DIFFUSION_15"}


def imported(folder: Path, preset: dict[str, object], **changed: object) -> ImportResult:
    (folder / "preset.json").write_text(json.dumps({**preset, **changed}), encoding="utf-8")
    return import_file(folder / "preset.json")


def test_what_has_an_effect_is_not_told_to_have_none(tmp_path: Path) -> None:
    """relative_step replaces the rate, and NEVER the default stop of a text encoder, after 30 epochs."""
    optimizer = {"optimizer": "ADAFACTOR", "relative_step": True, "warmup_init": True}
    encoder = {"train": True, "stop_training_after": None, "stop_training_after_unit": "NEVER"}
    found = imported(tmp_path, FINE_TUNE, optimizer=optimizer, text_encoder=encoder)
    assert (found.config.learning_rate, found.config.parts[1].stop_after) == (0.01, Interval.never())
    assert not [entry.source for entry in found.report.not_imported if "no effect" in entry.why]


@pytest.mark.parametrize(
    ("strengths", "loss", "told"),
    [
        ({"mse_strength": 0, "huber_strength": 1, "huber_delta": 0.3}, "huber", ""),
        ({"mse_strength": 0, "huber_strength": 0.5}, "huber", "0.5 times as large"),
        (
            {"mse_strength": 0.5, "huber_strength": 0.5},
            "huber",
            "MSE part of the mixture is not supported; the loss th",
        ),
        ({"mse_strength": 2}, "mse", "2 times as large"),
    ],
)
def test_a_loss_has_torchs_scale_times_its_strength(
    tmp_path: Path, strengths: dict[str, float], loss: str, told: str
) -> None:
    """ModelSetupDiffusionLossMixin.py at 23df383: F.huber_loss(..., delta=huber_delta).mean() * huber_strength."""
    found = imported(tmp_path, LORA, **strengths)
    assert found.config.family_options.get("loss", "mse") == loss
    assert found.config.family_options.get("huber_delta", 1.0) == strengths.get("huber_delta", 1.0)
    reasons = [entry.why for entry in found.report.changed if "strength" in entry.source]
    assert told in "".join(reasons)
    assert bool(reasons) == bool(told)


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


def sources(found: ImportResult) -> tuple[set[str], set[str]]:
    """The settings that were imported, and those that were not."""
    taken, left = (*found.report.imported, *found.report.changed), found.report.not_imported
    return _names(taken), _names(left)


def _names(entries: Iterable[ImportEntry]) -> set[str]:
    return {name for entry in entries for name in entry.source.split(", ")}


@pytest.mark.parametrize("model_type", ["STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE"])
def test_an_embedding_has_a_stop_of_its_own(tmp_path: Path, model_type: str) -> None:
    """modules/modelSetup/BaseModelSetup.py: stop_embedding_training_elapsed; that of text encoders is for adapters."""
    kind: dict[str, object] = {**EMBEDDING, "model_type": model_type}
    given = {"text_encoder": {"stop_training_after": 7, "learning_rate": 5e-5}}
    found = imported(tmp_path, kind, **given)
    assert set(stops(found.config).values()) == {Interval.never()}
    assert all(part.learning_rate is None for part in found.config.parts), "modules/modelSetup/*EmbeddingSetup.py"
    assert sources(found)[1] >= {"text_encoder.stop_training_after", "text_encoder.learning_rate"}
    own = {"stop_training_after": 5, "stop_training_after_unit": "EPOCH"}
    after = stops(imported(tmp_path, kind, embedding=own).config)
    encoders = {name: each for name, each in after.items() if name != "unet"}
    assert set(encoders.values()) == {Interval(5, "epochs")}
    assert len(encoders) == (2 if "XL" in model_type else 1)


ADAFACTOR = {"optimizer": {"optimizer": "ADAFACTOR"}, "train_dtype": "BFLOAT_16"}
BF16 = {"model_type": "CHROMA_1", "training_method": "FINE_TUNE", "transformer": {"weight_dtype": "BFLOAT_16"}}


def test_optimizer_settings_of_presets(tmp_path: Path) -> None:
    """modules/ui/BaseTopBarView.py, change_optimizer: of a preset, those of optimizer_defaults count."""
    own = {"optimizer": "ADAFACTOR", "fused_back_pass": True, "weight_decay": 0.02, "eps": 1e-30, "eps2": 0.001}
    found = imported(tmp_path, LORA, **BF16, **ADAFACTOR, optimizer_defaults={"ADAFACTOR": own})
    config = found.config
    assert (config.fused_backward, config.stochastic_rounding, config.max_grad_norm) == (True, True, None)
    assert config.optimizer == Adafactor(weight_decay=0.02)
    assert "optimizer_defaults.ADAFACTOR.fused_back_pass" in sources(found)[0]
    assert not [name for name in sources(found)[1] if name.startswith("optimizer")]
    assert "clipped alone" in changes(found)["max_grad_norm"]
    written = {"optimizer": {"optimizer": "ADAFACTOR", "weight_decay": 0.03}}
    config = imported(tmp_path, LORA, **BF16, **ADAFACTOR | written, optimizer_defaults={"ADAFACTOR": own}).config
    assert config.optimizer == Adafactor(weight_decay=0.03)
    config = imported(tmp_path, LORA, **BF16, **ADAFACTOR, optimizer_defaults={"CAME": own}).config
    assert (config.fused_backward, config.stochastic_rounding, config.max_grad_norm) == (False, True, 1.0)


@pytest.mark.parametrize(
    ("given", "rounds"),
    [
        ({"optimizer": "ADAFACTOR"}, True),
        ({"optimizer": "ADAFACTOR", "stochastic_rounding": False}, False),
        ({"optimizer": "ADAMW"}, False),
        ({"optimizer": "ADAMW", "stochastic_rounding": True}, True),
        ({"optimizer": "LION_ADV"}, True),
        ({"optimizer": "LION", "stochastic_rounding": True}, False),  # which does not
    ],
)
def test_rounding_is_on_by_default_in_some_optimizers(tmp_path: Path, given: dict[str, object], rounds: bool) -> None:
    """modules/util/optimizer_util.py."""
    found = imported(tmp_path, LORA, **BF16, train_dtype="BFLOAT_16", optimizer=given)
    assert found.config.stochastic_rounding is rounds
    assert ("transformer.weight_dtype" in sources(found)[1]) is not rounds


@pytest.mark.parametrize(
    ("given", "fraction"),
    [
        ({"transformer": {"offload_fraction": 0.6}}, 0.6),
        ({"transformer": {"offload_fraction": 0.6, "gradient_checkpointing": False}}, 0.6),
        ({"layer_offload_fraction": 0.4, "gradient_checkpointing": "CPU_OFFLOADED"}, 0.4),  # before version 11
        ({"layer_offload_fraction": 0.4, "gradient_checkpointing": "ON"}, 0.0),
        ({"model_type": "STABLE_DIFFUSION_15", "unet": {"offload_fraction": 0.6}}, 0.0),  # supports_offloading=False
    ],
)
def test_layers_are_offloaded_by_their_fraction(tmp_path: Path, given: dict[str, object], fraction: float) -> None:
    """modules/util/config/TrainConfig.py: offloading_enabled, __migration_10."""
    found = imported(tmp_path, LORA, **{"model_type": "FLUX_2", **given})
    assert found.config.block_offload == fraction
    assert len([name for name in sources(found)[1] if "offload" in name]) == (fraction == 0)


@pytest.mark.parametrize(
    ("model_type", "given", "targets"),
    [
        ("FLUX_2", {"layer_filter": "transformer_block"}, "transformer_block"),
        ("FLUX_2", {"layer_filter": "ff.net, attn", "layer_filter_preset": "full"}, r"ff\.net,attn"),
        ("Z_IMAGE", {"layer_filter": "^(?=.*attention)(?!.*refiner).*", "layer_filter_regex": True},
         "^(?=.*attention)(?!.*refiner).*"),
        ("FLUX_2", {"layer_filter_preset": "blocks"}, "blocks"),
        ("STABLE_DIFFUSION_15", {"layer_filter": "attn1,attn2"}, "attn1|attn2|^text_encoder"),  # which are not filtered
        ("STABLE_DIFFUSION_15", {"layer_filter": "attentions", "layer_filter_preset": "attn-mlp"}, "onetrainer"),
        ("STABLE_DIFFUSION_15", {}, "all"),
    ],
)  # fmt: skip
def test_layers(tmp_path: Path, model_type: str, given: dict[str, object], targets: str) -> None:
    """modules/module/LoRAModule.py: only layer_filter counts, in the names of the network's linear layers and
    convolutions; the window fills it in from the preset.
    """
    found = imported(tmp_path, LORA, model_type=model_type, **given)
    assert found.config.lora_targets == targets
    assert "lora_targets" not in changes(found)


@pytest.mark.parametrize(
    ("name", "ours", "settings"),
    [
        ("PRODIGY_PLUS_SCHEDULE_FREE", "prodigy", {"betas": (0.9, 0.99), "weight_decay": 0.0}),
        ("PRODIGY_ADV", "prodigy", {"betas": (0.9, 0.99)}),
        ("ADAMW_ADV", "adamw", {"betas": (0.9, 0.99), "weight_decay": 0.0}),
        ("LION_8BIT", "lion", {"betas": (0.9, 0.999)}),
        ("CAME", "came", {"weight_decay": 0.01}),
        ("MUON", "muon", {"weight_decay": 0.0}),
        ("ADAMUON_ADV", "muon", {"weight_decay": 0.0}),
        ("SGD_8BIT", "sgd", {"momentum": 0.0}),
        ("SCHEDULE_FREE_ADAMW", "schedule_free_adamw", {"weight_decay": 0.01}),
        ("DADAPT_LION", "prodigy", {}),
        ("ADOPT", "pytorch_optimizer.ADOPT", {"betas": [0.9, 0.9999], "eps": 1e-6, "weight_decouple": False}),
        ("ADAGRAD_8BIT", "torch.optim.Adagrad", {"eps": 1e-10, "lr_decay": 0}),
        ("RMSPROP", "torch.optim.RMSprop", {"alpha": 0.99, "centered": False}),
        ("TIGER", "pytorch_optimizer.Tiger", {"beta": 0.965, "weight_decay": 0.01}),
        ("AdEMAMix", "pytorch_optimizer.AdEMAMix", {"betas": [0.9, 0.999, 0.9999], "alpha": 5}),
        *((name, f"pytorch_optimizer.{ours}", {}) for name, ours in {
            "AIDA": "Aida", "YOGI": "Yogi", "ADABELIEF": "AdaBelief", "LAMB": "Lamb", "LARS_8BIT": "LARS",
            "ADOPT_ADV": "ADOPT", "SIGNSGD_ADV": "SignSGD",
        }.items()),
    ],
)  # fmt: skip
def test_optimizers_become_the_nearest(tmp_path: Path, name: str, ours: str, settings: dict[str, object]) -> None:
    """modules/util/create.py, and the defaults of modules/util/optimizer_util.py."""
    found = imported(tmp_path, LORA, optimizer={"optimizer": name})
    optimizer = found.config.optimizer
    if "." in ours:
        assert (optimizer.name, optimizer.class_path()) == ("custom", ":".join(ours.rsplit(".", 1)))
        module, kind = optimizer.class_path().split(":")
        weight = torch.nn.Parameter(torch.ones(4, 4))
        made = getattr(import_module(module), kind)([weight], lr=1e-3, **optimizer.keywords())
        weight.grad = torch.full((4, 4), 0.5)
        made.step()
        made.step()  # ADOPT's first one only takes notice of the gradient
        assert not torch.equal(weight, torch.ones(4, 4)), "it takes these arguments"
    else:
        assert optimizer.name == ours
    for setting, value in settings.items():
        assert (optimizer.keywords()[setting] if "." in ours else getattr(optimizer, setting)) == value
    found = imported(tmp_path, LORA, optimizer={"optimizer": name, "weight_decay": 0.125})
    assert "0.125" in str(found.config.optimizer)
    assert not sources(found)[0] & sources(found)[1]


def test_the_nearest_noise_levels(tmp_path: Path) -> None:
    """ModelSetupNoiseMixin.py, _get_timestep_discrete: the spread of log(t / (1 - t)) is theirs."""
    given = {"timestep_distribution": "INVERTED_PARABOLA", "noising_weight": 7.7}
    options = imported(tmp_path, LORA, model_type="CHROMA_1", **given).config.family_options
    shares = [2 - 7.7 * ((n + 0.5) / 1e4 - 0.5) ** 2 for n in range(10_000)]
    squares = [math.log((n + 0.5) / (9_999.5 - n)) ** 2 for n in range(10_000)]
    spread = math.sqrt(sum(map(math.prod, zip(shares, squares, strict=True))) / sum(shares))
    assert (options["timestep_distribution"], options["logit_mean"]) == ("logit_normal", 0)
    assert options["logit_std"] == pytest.approx(spread, abs=0.005)
    options = imported(
        tmp_path, LORA, model_type="CHROMA_1", timestep_distribution="BETA", noising_weight=3.0, noising_bias=1.0
    ).config.family_options
    assert options["logit_mean"] == pytest.approx(1.5, abs=0.01), "digamma(3) - digamma(1)"
    found = imported(tmp_path, LORA, **given)  # the UNet's has no spread
    assert found.config.family_options["timestep_distribution"] == "logit_normal"
    assert "noising_weight" in sources(found)[1]


def test_a_beta_distribution_of_its_defaults_is_within_what_tandem_has(tmp_path: Path) -> None:
    """noising_weight and noising_bias of 0 are 1e-4 there: almost all at both ends."""
    found = imported(tmp_path, LORA, model_type="Z_IMAGE", timestep_distribution="BETA")
    assert found.config.family_options["logit_std"] == 5.0
    assert not any("text_encoder.train" in entry.source for entry in found.report.imported)  # it is not in the file


def test_a_transformer_from_elsewhere(tmp_path: Path) -> None:
    """It is what is trained, so it is the base model, with the rest of the other one."""
    (tmp_path / "deturbo.safetensors").touch()
    given = {"model_type": "Z_IMAGE", "transformer": {"model_name": "deturbo.safetensors"}}
    config = imported(tmp_path, LORA, **given).config
    assert config.base_model == str(tmp_path / "deturbo.safetensors")
    assert config.family_options["layout"] == "a/b"
    given["transformer"] = {"model_name": "https://example.org/t.safetensors"}
    found = imported(tmp_path, LORA, **given)
    assert (found.config.base_model, "download" in changes(found)["base_model"]) == (
        "https://example.org/t.safetensors",
        True,
    )


def test_settings_of_older_versions(tmp_path: Path) -> None:
    """modules/util/config/TrainConfig.py, its migrations 8 to 10."""
    prior = {"weight_dtype": "NFLOAT_4", "learning_rate": 2e-4}
    found = imported(tmp_path, LORA, __version=8, model_type="FLUX_DEV_1", prior=prior, weight_dtype="BFLOAT_16")
    assert [(part.part, part.weights, part.learning_rate) for part in found.config.parts] == [
        ("transformer", "nf4", 2e-4)
    ]
    assert sources(found)[0] >= {"prior.weight_dtype", "prior.learning_rate"}
    none = {"weight_dtype": "NONE"}
    config = imported(tmp_path, LORA, __version=9, weight_dtype="BFLOAT_16", unet=none, train_dtype="BFLOAT_16").config
    assert config.parts[0].weights == "bf16"
    found = imported(tmp_path, LORA, weight_dtype="BFLOAT_16", unet={"weight_dtype": "FLOAT_16"})
    assert "weight_dtype" in sources(found)[1]


@pytest.mark.parametrize("model_type", ["CHROMA_1", "FLUX_DEV_1", "QWEN", "STABLE_DIFFUSION_3", "Z_IMAGE", "FLUX_2"])
def test_text_encoders_that_it_trains_by_default_are_told(tmp_path: Path, model_type: str) -> None:
    """modules/modelSetup: those of Z-Image and FLUX.2 are always frozen."""
    found = imported(tmp_path, LORA, model_type=model_type)
    assert ("text_encoder.train" in sources(found)[1]) is (model_type not in ("Z_IMAGE", "FLUX_2"))
    off = {f"text_encoder{number}": {"train": False, "weight_dtype": "BFLOAT_16"} for number in ("", "_2", "_3")}
    found = imported(tmp_path, LORA, model_type=model_type, train_dtype="BFLOAT_16", **off)
    own = {"FLUX_DEV_1": 2, "STABLE_DIFFUSION_3": 3}.get(model_type, 1)
    told = [name for name in sources(found)[1] if name.startswith("text_encoder")]
    assert len(told) == 2 * (3 - own), "only those that the model has not"


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


@pytest.mark.parametrize(("first", "second", "skipped", "named"), [(1, 1, 1, False), (1, 0, 1, True), (0, 1, 0, True)])
def test_layers_skipped_by_each_text_encoder(
    tmp_path: Path, first: int, second: int, skipped: int, named: bool
) -> None:
    """dataLoader/StableDiffusionXLBaseDataLoader.py: each has its own; Tandem has one for both."""
    found = imported(tmp_path, LORA, text_encoder_layer_skip=first, text_encoder_2_layer_skip=second)
    options = dump(found.config)["family_options"]
    assert isinstance(options, dict)
    assert options.get("clip_skip", 0) == skipped
    assert named == any("layer_skip" in e.source for e in (*found.report.changed, *found.report.not_imported))
