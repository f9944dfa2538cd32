from __future__ import annotations

import os
from pathlib import Path

import pytest

from modules.config import ConfigError, TrainConfig, file_access, load_preset, preset_names, resolve_config, save_preset
from modules.config.io.edited_files import save_edited
from modules.config.io.presets import own_preset_file, preset_data, preset_summary
from tests.permissions import modes_respected


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "demo.yaml").write_text("resolution: 32\n", encoding="utf-8")
    (folder / "portrait.json").write_text('{"resolution": 768}', encoding="utf-8")
    (folder / "notes.txt").write_text("not a preset", encoding="utf-8")
    return folder


def test_names_and_own_presets(presets: Path) -> None:
    assert preset_names(presets) == ["demo", "portrait"]
    saved = save_preset(TrainConfig(resolution=64), "my cats", presets)
    assert saved == presets / "mine" / "my cats.yaml"
    assert preset_names(presets) == ["demo", "portrait", "mine/my cats"]
    assert load_preset("mine/my cats", presets).resolution == 64
    save_preset(TrainConfig(resolution=128), "mine/my cats", presets)
    assert load_preset("mine/my cats", presets).resolution == 128
    assert preset_names(presets / "nowhere") == []
    with pytest.raises(ConfigError, match="'Demo' comes with Tandem"):
        save_preset(TrainConfig(), "Demo", presets)
    with pytest.raises(ConfigError, match=r"Try my_cats\.$"):
        save_preset(TrainConfig(), "my/cats", presets)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\\b", "a" * 200, "a\0"])
def test_names_that_cannot_be_files(presets: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="A preset cannot be named"):
        save_preset(TrainConfig(), name, presets)
    with pytest.raises(ConfigError):
        load_preset(name, presets)


def test_unknown_presets_list_the_known(presets: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_config("demoo", presets=presets)
    assert "'demoo'" in str(caught.value)
    assert "Did you mean demo?" in str(caught.value)
    assert "Presets: demo, portrait" in str(caught.value)


def test_resolve(presets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_config() == TrainConfig()
    assert resolve_config(None, ["seed=1"]).seed == 1
    assert resolve_config("demo", presets=presets).resolution == 32
    assert resolve_config("demo", ["resolution=16"], presets).resolution == 16
    Path("own.yaml").write_text("seed: 7\nlr: 0.5\n", encoding="utf-8")
    config = resolve_config("own.yaml", ["epochs=3"], presets)
    assert (config.seed, config.epochs, config.learning_rate) == (7, 3, 0.5)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("missing.yaml", "does not exist"),
        ("", "has no name"),
        ("presets", "is a folder"),
        ("x/y", "no preset"),
    ],
)
def test_missing_sources(presets: Path, monkeypatch: pytest.MonkeyPatch, source: str, part: str) -> None:
    monkeypatch.chdir(presets.parent)
    with pytest.raises(ConfigError, match=part):
        resolve_config(source, presets=presets)


def test_faults_name_the_file_unless_they_are_in_what_was_just_given(presets: Path) -> None:
    with pytest.raises(ConfigError, match=r"^seed is -1; it must be a whole number from 0"):
        resolve_config("demo", ["--seed=-1", "max_steps=3"], presets)
    with pytest.raises(ConfigError, match=r"^2 invalid settings:\n  - optimizer.betas.0 is 2;.*\n  - seed is -1"):
        resolve_config("demo", ["seed=-1", "optimizer.betas=[2, 0.9]"], presets)
    (presets / "wrong.yaml").write_text("resolution: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^wrong: resolution is 1;"):
        resolve_config("wrong", ["seed=1"], presets)
    with pytest.raises(ConfigError, match=r"^wrong has 2 invalid settings:\n"):
        resolve_config("wrong", ["seed=-1"], presets)


def test_a_preset_says_what_it_is_for(presets: Path) -> None:
    (presets / "card.yaml").write_text("# For a card with\n# 12 GB.\nresolution: 32\n# later\n", encoding="utf-8")
    assert preset_summary("card", presets).about == "For a card with 12 GB."
    assert preset_summary("demo", presets).about == ""


def test_titles_of_presets_are_no_settings(presets: Path) -> None:
    file = presets / "card.yaml"
    file.write_text("# For a card\ntitle: Small card, 12 GB\nresolution: 32  # pixels\n", encoding="utf-8")
    assert preset_summary("card", presets).title == "Small card, 12 GB"
    assert preset_summary("demo", presets).title == ""
    config = load_preset("card", presets)
    assert config.resolution == 32
    save_edited(config.model_copy(update={"epochs": 3}), file)
    assert "title: Small card, 12 GB\nresolution: 32  # pixels\n" in file.read_text(encoding="utf-8")
    titles = [preset_summary(name).title for name in preset_names() if not name.startswith("mine/")]
    assert all(titles)
    assert len({*titles}) == len(titles)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such owners")
def test_a_preset_of_another_user_is_not_used(presets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save_preset(TrainConfig(seed=5), "theirs", presets)
    monkeypatch.setattr(file_access, "_own_users", set)
    said = rf"{file} belongs to another user of this computer, {file.owner()}, so it is not used\. To use it, copy it"
    for use in (load_preset, preset_data, own_preset_file):
        with pytest.raises(ConfigError, match=said):
            use("mine/theirs", presets)
    assert preset_summary("mine/theirs", presets).family == ""
    assert preset_names(presets)[-1] == "mine/theirs"
    assert resolve_config(str(file), presets=presets).seed == 5, "a file that is named is asked for"


def test_shipped_presets_are_valid() -> None:
    for name in preset_names():
        load_preset(name)


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o600])
def test_own_presets_that_may_not_be_read_are_left_out(presets: Path, mode: int) -> None:
    before = preset_names(presets)
    save_preset(TrainConfig(), "mine", presets)
    (presets / "mine").chmod(mode)
    try:
        with modes_respected():
            assert preset_names(presets) == before
            with pytest.raises(ConfigError, match="There is no preset or config file"):
                load_preset("mine/mine", presets)
    finally:
        (presets / "mine").chmod(0o700)
