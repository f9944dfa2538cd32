"""Which settings may change in a resumed run, which it warns of, and which are refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from modules.checkpoint import TrainingState
from modules.config import Option, ResumeError, Section, TrainConfig, dump, load_config, options
from modules.families._by_name import family_class
from modules.training.loop.load_checkpoint import legacy_differences
from modules.training.memory.model_setup import load_family
from modules.training.state.resume import check_unchanged
from tests.adapted_models import BOTH, PARTS
from tests.checkpoint.states import state_at
from tests.runs import ROOT, Run, tiny_config, train_alone

FIXED = {
    "method",
    "lora_algorithm",
    "lora_rank",
    "lora_rank_pattern",
    "lora_alpha_pattern",
    "lora_rank_stabilized",
    "lokr_factor",
    "oft_block_size",
    "lora_alpha",
    "lora_targets",
    "lora_conv_rank",
    "lora_conv_alpha",
    "lora_weight_decompose",
    "embedding_token",
    "embedding_vectors",
    "optimizer.name",
    "optimizer.target",
    "optimizer.beta1",
}
CHECKED = {
    *("family", "base_model", "family_options", "parts", "parts.*.part", "parts.*.train", "global_batch_size"),
    "lora_from",
    "training_adapter",
}
# These do not change what is learned: devices, length, logging, sampling, saving.
FREE_SECTIONS = {"Sampling", "Output", ""}
FREE = {
    *("concepts.*.path", "concepts.*.name", "rescan", "cache_dir", "cache_only", "cache_batch_size", "cache_limit"),
    *("loader_workers", "pin_memory", "prefetch_factor", "persistent_workers"),
    *("validation_batch_size", "validation_workers"),
    *("epochs", "max_steps", "max_minutes", "validate_every", "early_stopping_patience", "max_nonfinite_steps"),
    *("batch_size", "gradient_accumulation_steps"),  # the effective batch of the beginning is kept
    *("early_stopping_metric", "early_stopping_mode", "early_stopping_min_delta", "restore_best"),
    *("channels_last", "compile", "gradient_checkpointing", "probe_memory", "fused_backward"),
    "block_offload",
    *("optimizer.fused", "optimizer.foreach", "optimizer.d0", "embedding_init", "ema_on_cpu"),
}
TOLD_OF_SEVERAL_GPUS = {
    *("sync_batch_norm", "gradient_compression", "powersgd_rank", "fsdp_reduce_precision"),
    *("local_steps", "outer_learning_rate", "outer_momentum", "outer_compression"),
}
FAMILIES = {
    "stable_diffusion": (
        {"prediction_type", "zero_terminal_snr", "clip_skip"},
        {"offload_frozen", "sample_scheduler", "layout"},
    ),
    "pixel_diffusion": ({"width", "patch", "tokens", "vocabulary"}, set()),
}


def test_a_run_from_before_a_setting_keeps_what_it_did(tmp_path: Path) -> None:
    """0.1.0 divided the masked loss by the area of the mask. Its files have all of its settings."""
    file = ROOT / "tests" / "fixtures" / "version_0_1" / "pixel.json"
    (tmp_path / "config.json").write_text(json.dumps({**json.loads(file.read_text()), "masked_training": True}))
    config = load_config(tmp_path / "config.json")
    assert config.normalize_masked_area_loss
    before = replace(state_at(3), config={**json.loads((tmp_path / "config.json").read_text())})
    assert check_unchanged(config, before) == ""
    changed = config.model_copy(update={"normalize_masked_area_loss": False})
    assert "normalize_masked_area_loss true -> false" in check_unchanged(changed, before)
    assert not load_config(file).normalize_masked_area_loss, "without masks it makes no difference"


FORMER_SD = {"family": "stable_diffusion", "base_model": "noob-v.safetensors"}


@pytest.mark.parametrize(
    ("settings", "predicts", "said"),
    [
        ({"concepts": [{"path": "a", "loss_weight": 0.5}]}, "", "loss_weight (0.5) multiplies the gradient"),
        ({"concepts": [{"path": "a"}, {"path": "b", "loss_weight": 2, "enabled": False}]}, "", ""),
        (FORMER_SD, "v", "set family_options.prediction_type to epsilon to keep that"),
        (FORMER_SD, "epsilon", ""),
        ({**FORMER_SD, "family_options": {"prediction_type": "v_prediction"}}, "v", ""),
        ({**FORMER_SD, "base_model": "a folder"}, "v", ""),
        ({"optimizer": "prodigy", "parts": [{"part": "unet", "learning_rate": 0.5}]}, "", "prodigy trains each part"),
        ({"method": "lora", "lora_dropout": 0.1}, "", "lora_dropout draws its masks for each sample"),
        (
            {"family": "stable_diffusion_xl", "method": "embedding", "concepts": [{"path": "a", "horizontal_flip": 1}]},
            "epsilon",
            "mirrored image's left edge; the pooled embedding is taken at the end token",
        ),
    ],
)
def test_a_run_of_0_1_0_that_goes_on_otherwise_says_so(settings: dict[str, object], predicts: str, said: str) -> None:
    config = TrainConfig.model_validate(settings)
    family = load_family(TrainConfig(family=PARTS))
    family.modelspec = lambda: {"prediction_type": predicts}  # type: ignore[method-assign]
    now = json.loads(config.model_dump_json())
    former = {name: value for name, value in now.items() if name != "normalize_masked_area_loss"}
    warning = legacy_differences(config, former, family)
    assert said in warning
    assert bool(warning) is bool(said)
    assert legacy_differences(config, now, family) == "", "a backup of this version has been said of, or needs no word"


@pytest.mark.slow
def test_a_resumed_run_of_0_1_0_says_it_once(lora: tuple[TrainConfig, Run], tmp_path: Path) -> None:
    config, run = lora
    place = shutil.copytree(run.folder.path.parent, tmp_path / "runs")
    for file in place.glob("*/backup/*/config.json"):  # without its hash, which protects only from damage
        file.write_text(json.dumps({n: v for n, v in json.loads(file.read_text()).items() if "area_loss" not in n}))
        manifest = json.loads((file.parent / "manifest.json").read_text())
        data = file.read_bytes()
        manifest["files"]["config.json"] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (file.parent / "manifest.json").write_text(json.dumps(manifest))
    for steps, count in ((3, 1), (4, 1)):
        settings = {"runs_dir": str(place), "max_steps": steps, "lora_dropout": 0.1}
        code, run = train_alone(config.model_copy(update=settings), "latest")
        assert (code, run.warnings.count("started with Tandem 0.1.0")) == (0, count)


def by_rule(kind: type[Section], rule: str) -> set[str]:
    return {option.path for option in options(kind) if option.resume == rule}


def test_every_setting_has_its_rule() -> None:
    """A new setting that changes what is learned has to say so here and in its declaration."""

    def is_free(option: Option) -> bool:
        several = option.section == "Multi-GPU" and option.path not in TOLD_OF_SEVERAL_GPUS
        return several or option.section in FREE_SECTIONS or option.path in FREE

    assert by_rule(TrainConfig, "fixed") == FIXED
    assert by_rule(TrainConfig, "checked") == CHECKED
    for option in options(TrainConfig):
        if option.path not in FIXED | CHECKED:
            assert option.resume == ("free" if is_free(option) else "warn"), option.path


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_option_of_a_family_has_its_rule(name: str) -> None:
    kind = family_class(name).Options
    fixed, free = FAMILIES[name]
    assert (by_rule(kind, "fixed"), by_rule(kind, "free"), by_rule(kind, "checked")) == (fixed, free, set())


def state_of(config: TrainConfig) -> TrainingState:
    """The backup of a run with this config, as it is read again."""
    return replace(state_at(step=1), config=json.loads(config.model_dump_json()))


def changed(before: dict[str, object], now: dict[str, object]) -> str:
    """What a resumed run of the family with submodules reports."""
    previous, current = (TrainConfig.model_validate({"family": PARTS, **settings}) for settings in (before, now))
    return check_unchanged(current, state_of(previous))


LORA: dict[str, object] = {"method": "lora", "lora_rank": 4, "lora_alpha": 4.0}
WORD: dict[str, object] = {"method": "embedding"}


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (LORA, {**LORA, "lora_rank": 8}, "lora_rank is 8, but the run of this backup has 4."),
        (LORA, {**LORA, "lora_alpha": 2.0}, "lora_alpha is 2.0, but the run of this backup has 4.0."),
        (LORA, {**LORA, "lora_targets": "all"}, "lora_targets is 'all', but the run of this backup has 'attention'."),
        (LORA, {**LORA, "lora_weight_decompose": True}, "lora_weight_decompose is true, but the run of this backup"),
        (LORA, {"method": "fine_tune"}, "method is 'fine_tune', but the run of this backup has 'lora'."),
        (WORD, {**WORD, "embedding_token": "<other>"}, "embedding_token is '<other>', but"),
        (WORD, {**WORD, "embedding_vectors": 2}, "embedding_vectors is 2, but the run of this backup has 1."),
        ({}, {"optimizer": "lion"}, "optimizer.name is 'lion', but the run of this backup has 'adamw'."),
        ({}, {"family": "pixel_diffusion"}, "family is 'pixel_diffusion', but the run of this backup has"),
        ({}, {"parts": BOTH}, "parts selects unet, text_encoder for training, but the run of this backup trains unet."),
        ({"parts": BOTH}, {}, "parts selects unet for training, but the run of this backup trains unet, text_encoder."),
        (
            {"parts": BOTH},
            {"parts": [BOTH[0], {**BOTH[1], "train": False}]},
            "parts selects unet for training, but the run of this backup trains unet, text_encoder.",
        ),
        (
            LORA,
            {**LORA, "lora_alpha": 2.0, "lora_rank": 8},
            "lora_rank is 8, but the run of this backup has 4; lora_alpha is 2.0, but the run of this backup has 4.0.",
        ),
    ],
)
def test_settings_of_another_run_are_refused(before: dict[str, object], now: dict[str, object], said: str) -> None:
    with pytest.raises(ResumeError) as refused:
        changed(before, now)
    assert refused.value.message.startswith("resume: ")
    assert said in refused.value.message
    assert "back to continue, or start a new run" in refused.value.advice


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {"learning_rate": 5e-5}, "learning_rate 0.0001 -> 5e-05"),
        ({}, {"ema": True, "max_grad_norm": 0.5}, "max_grad_norm 1.0 -> 0.5, ema false -> true"),
        ({}, {"precision": "bf16"}, 'precision "fp32" -> "bf16"'),
        ({}, {"optimizer": {"name": "adamw", "weight_decay": 0.1}}, "optimizer.weight_decay 0.01 -> 0.1"),
        ({"parts": BOTH}, {"parts": [BOTH[1], {**BOTH[0], "stop_after": "3 epochs"}]}, '"never" -> "3 epochs"'),
        ({}, {"parts": [{"part": "unet", "learning_rate": 1e-5}]}, "parts.0.learning_rate null -> 1e-05"),
        ({}, {"concepts": [{"path": "a"}]}, 'concepts "0 in total" -> "1 in total"'),
        ({"concepts": [{"path": "a"}]}, {"concepts": [{"path": "b", "repeats": 2}]}, "concepts.0.repeats 1.0 -> 2.0"),
        ({}, {"base_model": "elsewhere"}, 'base_model null -> "elsewhere"'),  # of a backup without marks
    ],
)
def test_what_is_learned_otherwise_is_told(before: dict[str, object], now: dict[str, object], said: str) -> None:
    reported = changed(before, now)
    assert reported.startswith("Settings have changed since the backup: ")
    assert said in reported
    assert "parts.0.part" not in reported


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {"epochs": 99, "max_steps": 5, "batch_size": 2, "world_size": 3, "runs_dir": "b", "compile": True}),
        ({}, {"parts": [{"part": "unet"}]}),
        ({"parts": BOTH}, {"parts": BOTH[::-1]}),
        ({}, {"lora_alpha": 3.0, "embedding_token": "<other>"}),  # of other methods
        ({"optimizer": {"name": "adamw", "fused": True}}, {"optimizer": {"name": "adamw", "fused": False}}),
        ({"concepts": [{"path": "a"}]}, {"concepts": [{"path": "b", "name": "moved"}]}),
    ],
)
def test_what_teaches_nothing_else_is_free(before: dict[str, object], now: dict[str, object]) -> None:
    assert changed(before, now) == ""


def test_a_familys_own_options_have_rules(tmp_path: Path) -> None:
    previous = state_of(TrainConfig(family_options={"width": 8, "shift": 5.0}))
    assert check_unchanged(TrainConfig(family_options={"width": 8, "shift": 6}), previous).count("->") == 1
    with pytest.raises(ResumeError, match=r"family_options.width is 32, but the run of this backup has 8"):
        check_unchanged(TrainConfig(), previous)
    moved = TrainConfig(family=str(tmp_path / Path(PARTS).name))
    Path(moved.family).write_text(Path(PARTS).read_text())
    assert check_unchanged(moved, state_of(TrainConfig(family=PARTS))) == "", "a file of one's own may move"
    assert dump(moved)["family"] != PARTS


@pytest.fixture(scope="module")
def lora(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, Run]:
    place = tmp_path_factory.mktemp("lora")
    config = tiny_config(images, place, family=PARTS, **LORA, max_steps=2)
    code, run = train_alone(config)
    assert code == 0
    return config, run


def test_a_run_says_what_has_changed_and_goes_on(lora: tuple[TrainConfig, Run]) -> None:
    config, _ = lora
    code, run = train_alone(config.model_copy(update={"max_steps": 4, "learning_rate": 0.005}), "latest")
    assert code == 0
    assert "learning_rate 0.01 -> 0.005" in run.warnings
    assert run.state.position.step == 4
    assert set(run.state.position.base) == {"unet", "text_encoder"}


def test_another_run_is_refused_before_anything_is_prepared(lora: tuple[TrainConfig, Run]) -> None:
    config, run = lora
    before = run.state
    code, run = train_alone(config.model_copy(update={"lora_alpha": 1.0, "cache_dir": "/no"}), "latest")
    assert code == 2
    assert "lora_alpha is 1.0" in run.failure(0)
    run.folder.failure_file(0).unlink()
    code, run = train_alone(config.model_copy(update={"seed": 1, "cache_dir": "/no"}), "latest")
    assert code == 2, "the frozen weights follow from the seed"
    assert "starts from has changed since the backup: its unet and text_encoder are not what" in run.failure(0)
    assert run.state.position == before.position


def test_a_run_that_freezes_everything_early_says_so(lora: tuple[TrainConfig, Run], tmp_path: Path) -> None:
    parts = ({"part": "unet", "stop_after": "1 step"},)
    config = TrainConfig.model_validate({**lora[0].model_dump(), "parts": parts, "runs_dir": str(tmp_path)})
    for steps, said in ((1, False), (2, True)):
        _, run = train_alone(config.model_copy(update={"run_name": f"{steps}", "max_steps": steps}))
        assert ("stop_after freezes every part before the run ends" in run.folder.log_file(0).read_text()) is said
