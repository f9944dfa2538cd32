"""Configs that are made of several files, and what such a file may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import ConfigError, load_config, resolve_config, save_config
from modules.config.io.edited_files import save_edited
from modules.config.io.files import config_files, read_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of configs in a folder of other files."""
    files = {
        "conf/base.yaml": "epochs: 3\nlr: 0.5\noptimizer: lion\nfamily_options: {width: 32}\nsamples: [{prompt: a}]\n",
        "conf/own.yaml": "include: base.yaml\nepochs: 5\noptimizer: {weight_decay: 0.2}\nfamily_options: {depth: 2}\n",
        "conf/hydra.yaml": "defaults:\n- base\n- _self_\n- runs: [long]\n- optimizer: sgd\nepochs: 7\nbatch_size: 2\n",
        "conf/optimizer/sgd.yaml": "name: sgd\nmomentum: 0.8\n",
        "conf/runs/long.json": '{"version": 2, "epochs": 100, "include": "../base.yaml"}',
        "conf/a.yaml": "include: [b.yaml]\n",
        "conf/b.yaml": "include: [a.yaml]\n",
        "secret.yaml": "epochs: 9\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "conf"


def test_a_file_stands_on_top_of_what_it_includes(folder: Path) -> None:
    config = load_config(folder / "own.yaml")
    assert (config.epochs, config.learning_rate, config.family_options) == (5, 0.5, {"width": 32, "depth": 2})
    assert (config.optimizer.name, config.optimizer.keywords()["weight_decay"]) == ("lion", 0.2)
    assert resolve_config(str(folder / "own.yaml"), ["optimizer=sgd"]).learning_rate == 0.5
    assert [file.name for file in config_files(folder / "own.yaml")] == ["own.yaml", "base.yaml"]


def test_defaults_as_hydra_has_them(folder: Path) -> None:
    """A later entry takes precedence; `_self_` is the file itself, a setting's group is in a folder of its name."""
    config = load_config(folder / "hydra.yaml")
    assert (config.epochs, config.batch_size, config.learning_rate) == (100, 2, 0.5)
    assert (config.optimizer.name, config.optimizer.keywords()["momentum"]) == ("sgd", 0.8)
    (folder / "hydra.yaml").write_text("defaults: [base, runs: long]\nepochs: 7\n")
    assert load_config(folder / "hydra.yaml").epochs == 7


def test_another_class_takes_no_arguments_of_the_former(folder: Path) -> None:
    """By whichever spelling it is named; the same class is given those that are left out."""
    (folder / "base.yaml").write_text(
        "optimizer: {name: custom, target: torch.optim.SGD, arguments: {momentum: 0.9, weight_decay: 0.1}}\n"
        "scheduler: torch.optim.lr_scheduler.StepLR\nscheduler_arguments: {step_size: 7, gamma: 0.5}\n"
    )
    for text, expected in {
        "optimizer: torch.optim.Adagrad\nscheduler: torch.optim.lr_scheduler.ExponentialLR": ("", "custom", ""),
        "optimizer: {target: torch.optim.Adagrad}\nscheduler: cosine": ("", "cosine", ""),
        "optimizer: torch.optim.SGD\nscheduler_arguments: {gamma: 0.2}": (
            "momentum = 0.9, weight_decay = 0.1",
            "custom",
            "step_size = 7, gamma = 0.2",
        ),
    }.items():
        (folder / "own.yaml").write_text(f"include: base.yaml\n{text}\n")
        config = load_config(folder / "own.yaml")
        arguments = getattr(config.optimizer, "arguments", None)
        assert (arguments, config.scheduler, config.scheduler_arguments) == expected, text


def test_what_is_saved_is_composed(folder: Path) -> None:
    config = load_config(folder / "own.yaml")
    save_config(config, folder / "saved.yaml")
    save_edited(config, folder / "own.yaml")
    (folder / "base.yaml").unlink()
    assert load_config(folder / "saved.yaml") == load_config(folder / "own.yaml") == config


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("include: a.yaml", "a.yaml -> b.yaml -> a.yaml"),
        ("include: false", "include has false, which names no file"),
        ("defaults: [{1: base}]", "which names no file"),
        ("defaults: [_self_, _self_]", "which names no file"),
        (f"include: {'x' * 300}", "which names no file"),
        ("include: //server/share/x.yaml", "which is not in"),
        ("include: here.yaml", "here.yaml -> here.yaml"),
        ("include: none.yaml", "there is no file"),
        ("include: ../secret.yaml", "which is not in"),
        ("include: link.yaml", "which is not in"),
        ("include: /etc/hostname", "which is not in"),
        ("include: {a: 1}", "which names no file"),
        ("defaults: base", "which names no file"),
        ("defaults: [override hydra/launcher: joblib]", "which names no file"),
        ("include: optimizer/sgd.yaml", "is not a known setting"),
    ],
)
def test_what_names_no_config_of_its_folder_is_refused(folder: Path, text: str, fault: str) -> None:
    (folder / "link.yaml").symlink_to(folder.parent / "secret.yaml")
    (folder / "here.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(folder / "here.yaml")
    assert fault in str(caught.value)


def test_a_circle_of_wide_files_ends(folder: Path) -> None:
    """Files that name each other twice would be read 2^100 times."""
    for number in range(40):
        (folder / f"{number}.yaml").write_text(f"include: [{number + 1}.yaml, {number + 1}.yaml]\n")
    (folder / "40.yaml").write_text("epochs: 1\n")
    with pytest.raises(ConfigError, match="is made of more than 100 files"):
        read_data(folder / "0.yaml")
