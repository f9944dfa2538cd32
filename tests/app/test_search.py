"""Finding settings by their names here and elsewhere."""

from __future__ import annotations

import pytest

from app.search import search
from modules.config import TrainConfig, options
from modules.config.aliases import ALIASES, aliases
from modules.config.names import FORMER_NAMES

EVERY = [option for option in options(TrainConfig) if option.path not in ("version", "family_options")]


def first(words: str) -> str:
    hits = search(words, variant="adamw")
    return hits[0].option.path if hits else ""


@pytest.mark.parametrize("option", EVERY, ids=lambda option: f"{option.path}-{option.variant}")
def test_every_setting_is_found_by_its_name_and_its_title(option: object) -> None:
    from modules.config import Option

    assert isinstance(option, Option)
    variant = option.variant or "adamw"
    for words in (option.name, option.title):
        hits = [hit.option.path for hit in search(words, variant=variant)]
        assert option.path in hits, (words, hits)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("lr", "learning_rate"),
        ("mixed_precision", "precision"),
        ("train_batch_size", "batch_size"),
        ("clip_grad_norm", "max_grad_norm"),
        ("device_indexes", "device_ids"),
        ("keep_tokens", "concepts.*.keep_tags"),
        ("nproc_per_node", "world_size"),
        ("Learning Rate Scaler", "lr_scaling"),
        ("MASTER_PORT", "initial_port"),
        ("cfg_scale", "samples.*.guidance_scale"),
        ("workspace_dir", "runs_dir"),
        ("network_module", "method"),
        ("BATCH size", "batch_size"),
        ("accumul", "gradient_accumulation_steps"),
        ("checkpointing memory", "gradient_checkpointing"),
    ],
)
def test_words_lead_to_the_setting(words: str, path: str) -> None:
    assert first(words) == path


def test_help_texts_are_searched_last() -> None:
    hits = [hit.option.path for hit in search("overflow")]
    assert hits == ["max_nonfinite_steps"]


def test_nothing_and_nonsense() -> None:
    assert search("") == []
    assert search("   ") == []
    assert search("zzzqqq") == []
    assert search("???") == []


def test_only_the_present_optimizers_settings_are_found() -> None:
    assert search("momentum", variant="sgd")[0].option.variant == "sgd"
    assert not [hit for hit in search("d_coef", variant="adamw") if hit.option.path == "optimizer.d_coef"]


def test_every_alias_belongs_to_a_setting() -> None:
    known = {option.path for option in options(TrainConfig)}
    assert set(ALIASES) <= known


def test_aliases_say_when_they_led_there() -> None:
    (hit, *_) = search("lr_warmup_steps")
    assert (hit.option.path, hit.former) == ("warmup_steps", "lr_warmup_steps")


def test_names_of_older_files_are_aliases() -> None:
    for former, path in FORMER_NAMES.items():
        assert former in aliases(path)
