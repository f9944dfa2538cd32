"""Adafactor means in Tandem what it means in the trainer that a file is from, also where the file says nothing.

kohya-ss/sd-scripts, library/train_util.py (get_optimizer): relative_step is True if it is not given or warmup_init
is True; scale_parameter is that of huggingface/transformers, src/transformers/optimization.py (True), whose rate is
min(1e-2, 1 / sqrt(step)), with warmup_init min(1e-6 * step, 1 / sqrt(step)).
ostris/ai-toolkit, toolkit/optimizer.py: both are False. Nerogar/OneTrainer, modules/util/optimizer_util.py
(OPTIMIZER_DEFAULT_PARAMETERS): both are False. tdrussell/diffusion-pipe, train.py: the class of that name in
kozistr/pytorch_optimizer, pytorch_optimizer/optimizer/adafactor.py, where both are True and betas are (0.9, 0.999).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config.sections.optimizers import Adafactor
from modules.importers import ImportResult, import_file

KOHYA: dict[str, object] = {
    "pretrained_model_name_or_path": "a/b", "network_module": "networks.lora", "optimizer_type": "AdaFactor",
    "learning_rate": 3e-4, "unet_lr": 2e-4, "text_encoder_lr": 5e-5, "lr_scheduler": "cosine", "lr_warmup_steps": 100,
}  # fmt: skip


def imported(folder: Path, name: str, text: str) -> ImportResult:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return import_file(file)


def kohya(folder: Path, *arguments: str) -> ImportResult:
    return imported(folder, "kohya.json", json.dumps({**KOHYA, "optimizer_args": list(arguments)}))


def scales(found: ImportResult) -> bool:
    assert isinstance(found.config.optimizer, Adafactor)
    return found.config.optimizer.scale_parameter


@pytest.mark.parametrize("arguments", [(), ("relative_step=True",), ("relative_step=True", "scale_parameter=True")])
def test_kohyas_relative_step_sets_the_rate(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    found = kohya(tmp_path, *arguments)
    assert scales(found)
    assert (found.config.learning_rate, found.config.scheduler, found.config.warmup_steps) == (0.01, "constant", 0)
    assert {part.learning_rate for part in found.config.parts} == {None}
    left_out = {entry.source for entry in found.report.not_imported}
    assert left_out >= {"learning_rate", "unet_lr", "text_encoder_lr", "lr_scheduler", "lr_warmup_steps"}


def test_kohyas_warm_up_of_the_relative_step(tmp_path: Path) -> None:
    found = kohya(tmp_path, "warmup_init=True", "relative_step=False")
    assert (found.config.learning_rate, found.config.warmup_steps) == (0.01, 10_000)
    assert 1e-6 * 10_000 == pytest.approx(10_000**-0.5) == pytest.approx(0.01)


def test_kohyas_given_rates_hold_without_a_relative_step(tmp_path: Path) -> None:
    found = kohya(tmp_path, "relative_step=False", "warmup_init=False")
    assert scales(found), "as transformers has it"
    assert (found.config.learning_rate, found.config.scheduler, found.config.warmup_steps) == (3e-4, "cosine", 100)
    assert [part.learning_rate for part in found.config.parts[:2]] == [2e-4, 5e-5]
    found = kohya(tmp_path, "relative_step=False", "warmup_init=False", "scale_parameter=False")
    assert not scales(found)


def test_ai_toolkit_and_onetrainer_take_the_rate_as_it_is(tmp_path: Path) -> None:
    text = """
job: extension
config:
  name: a
  process:
    - type: sd_trainer
      network: {type: lora, linear: 4, linear_alpha: 4}
      train: {optimizer: adafactor, lr: 1e-4, OPTIONS}
      model: {name_or_path: a/b}
"""
    found = imported(tmp_path, "a.yaml", text.replace("OPTIONS", "steps: 100"))
    assert (scales(found), found.config.learning_rate) == (False, 1e-4)
    found = imported(tmp_path, "a.yaml", text.replace("OPTIONS", "optimizer_params: {scale_parameter: true}"))
    assert (scales(found), found.config.learning_rate) == (True, 1e-4)
    one: dict[str, object] = {
        "training_method": "LORA", "model_type": "STABLE_DIFFUSION_15", "base_model_name": "a/b",
        "learning_rate": 1e-4, "optimizer": {"optimizer": "ADAFACTOR"}, "__version": 9,
    }  # fmt: skip
    found = imported(tmp_path, "one.json", json.dumps(one))
    assert (scales(found), found.config.learning_rate) == (False, 1e-4)


def test_diffusion_pipe_has_the_defaults_of_pytorch_optimizer(tmp_path: Path) -> None:
    text = """
output_dir = 'out'
dataset = 'dataset.toml'
epochs = 10
[model]
type = 'sdxl'
checkpoint_path = 'a/b'
unet_lr = 4e-5
[optimizer]
type = 'AdaFactor'
lr = 2e-5
"""
    found = imported(tmp_path, "a.toml", text)
    assert isinstance(found.config.optimizer, Adafactor)
    assert (scales(found), found.config.optimizer.beta1, found.config.learning_rate) == (True, 0.9, 0.01)
    assert {part.learning_rate for part in found.config.parts} == {None}
    found = imported(
        tmp_path, "a.toml", text + "relative_step = false\nscale_parameter = false\nbetas = [0.8, 0.999]\n"
    )
    assert (scales(found), found.config.learning_rate) == (False, 2e-5)
