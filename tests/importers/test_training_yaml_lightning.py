"""Configs of Lightning's CLI and of Hydra templates: classes with their arguments, and callbacks."""

from __future__ import annotations

from pathlib import Path

from modules.config import Interval
from modules.importers import ImportResult, import_file

LIGHTNING = """\
seed_everything: 42
trainer:
  accelerator: gpu
  strategy: ddp
  devices: 4
  num_nodes: 1
  precision: bf16-mixed
  max_epochs: 90
  check_val_every_n_epoch: 2
  log_every_n_steps: 50
  gradient_clip_val: 1.0
  gradient_clip_algorithm: norm
  callbacks:
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: val/acc, patience: 5, mode: max}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {monitor: val/acc, save_top_k: 3, every_n_epochs: 4}
    - class_path: lightning.pytorch.callbacks.LearningRateMonitor
model:
  class_path: project.Net
  init_args: {arch: cifar_resnet32, lr: 0.7}
data:
  class_path: project.Images
  init_args: {data_dir: images, batch_size: 64, num_workers: 8, val_split: 0.1}
optimizer:
  class_path: torch.optim.SGD
  init_args: {lr: 0.2, momentum: 0.9, weight_decay: 0.05}
lr_scheduler:
  class_path: torch.optim.lr_scheduler.CosineAnnealingLR
  init_args: {T_max: 90}
ckpt_path: last.ckpt
"""

HYDRA = """\
trainer: {_target_: lightning.pytorch.trainer.Trainer, max_epochs: 10, devices: 1}
data: {_target_: src.data.Images, batch_size: 128, val_split: 0.1}
model:
  _target_: src.models.LitModule
  optimizer: {_target_: torch.optim.Adam, _partial_: true, lr: 0.002, weight_decay: 0.1}
  scheduler: {_target_: torch.optim.lr_scheduler.LinearLR, _partial_: true}
callbacks:
  early_stopping: {monitor: val/loss, patience: 100, mode: min}
"""


def imported(folder: Path, text: str) -> ImportResult:
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return import_file(file)


def test_lightning(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    found = imported(tmp_path, LIGHTNING)
    config = found.config
    assert (config.seed, config.training_mode, config.world_size, config.num_nodes) == (42, "distributed", 4, 1)
    assert (config.epochs, config.precision, config.max_grad_norm) == (90, "bf16", 1.0)
    assert (config.validate_every, config.log_every) == (Interval(2, "epochs"), Interval(50, "steps"))
    assert config.backup_every == Interval(4, "epochs")
    assert (config.early_stopping_metric, config.early_stopping_mode) == ("accuracy", "max")
    assert config.early_stopping_patience == 5
    assert config.family_options["network"] == "cifar_resnet32"
    assert [concept.path for concept in config.concepts] == [str(tmp_path / "images")]
    assert (config.batch_size, config.loader_workers, config.validation_split) == (64, 8, 0.1)
    assert (config.learning_rate, config.scheduler_target.rpartition(".")[2]) == (0.2, "CosineAnnealingLR")
    assert (config.scheduler_arguments, config.scheduler_interval) == ("T_max = 90", "epoch")
    optimizer = config.optimizer.model_dump()
    assert (optimizer["name"], optimizer["momentum"], optimizer["weight_decay"]) == ("sgd", 0.9, 0.05)
    why = {item.source.partition(" ")[0]: item.why for item in found.report.not_imported}
    assert "--resume" in why["ckpt_path"]
    # the best ones of Lightning are not the last ones of Tandem
    assert "backups_kept" in why["trainer.callbacks.1.init_args.save_top_k"]
    assert set(why) == {
        "ckpt_path",
        "model.class_path",
        "model.init_args.lr",  # that of the optimizer counts
        "data.class_path",
        "trainer.callbacks.1.init_args.monitor",
        "trainer.callbacks.1.init_args.save_top_k",
        "trainer.callbacks.2",
    }


def test_hydra(tmp_path: Path) -> None:
    config = imported(tmp_path, HYDRA).config
    assert (config.optimizer.name, config.optimizer.model_dump()["weight_decay"]) == ("adam", 0.1)
    assert (config.learning_rate, config.scheduler_target.rpartition(".")[2]) == (0.002, "LinearLR")
    assert config.world_size == 1
    assert (config.early_stopping_metric, config.early_stopping_patience) == ("loss", 100)


def test_devices_may_be_a_list(tmp_path: Path) -> None:
    text = "trainer: {devices: [1, 3], strategy: ddp, max_epochs: 3}\ndata: {batch_size: 4}\n"
    config = imported(tmp_path, text).config
    assert (config.world_size, config.device_ids) == (2, (1, 3))


def test_a_strategy_that_is_unknown_is_named(tmp_path: Path) -> None:
    found = imported(tmp_path, "trainer: {strategy: deepspeed, max_epochs: 3}\ndata: {batch_size: 4}\n")
    assert found.config.epochs == 3
    assert any(item.source.startswith("trainer.strategy") for item in found.report.not_imported)
