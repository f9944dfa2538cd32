"""The YAML of training scripts, with sections, as a config."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modules.config import ConfigError, Interval
from modules.importers import ImportResult, import_file
from modules.training.optim.own_schedule import check_scheduler
from tests.importers.conftest import FILES


def imported(folder: Path, text: str) -> ImportResult:
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return import_file(file)


def reasons(found: ImportResult) -> dict[str, str]:
    """Why each setting was not imported."""
    return {item.source: item.why for item in found.report.not_imported}


def test_a_whole_file(tmp_path: Path) -> None:
    for name in ("pictures/train", "pictures/val"):
        (tmp_path / name).mkdir(parents=True)
    found = import_file(shutil.copy(FILES / "training_script.yaml", tmp_path))
    config = found.config
    assert (config.enable_multi_gpu, config.training_mode, config.world_size) == (True, "distributed", 4)
    assert (config.distributed_backend, config.sync_batch_norm, config.lr_scaling) == ("nccl", True, "none")
    assert [(concept.path, concept.kind, concept.horizontal_flip) for concept in config.concepts] == [
        (str(tmp_path / "pictures/train"), "train", True),
        (str(tmp_path / "pictures/val"), "validation", False),
    ]
    assert (config.resolution, config.batch_size, config.loader_workers) == (64, 32, 6)
    assert config.family == "classifier"
    assert config.family_options == {"network": "resnet50", "pretrained": True, "label_smoothing": 0.1}
    assert (config.epochs, config.learning_rate, config.scheduler) == (90, 0.1, "cosine")
    assert (config.warmup_fraction, config.precision, config.max_grad_norm) == (0.1, "fp16", 1.5)
    optimizer = {"name": "sgd", "momentum": 0.9, "nesterov": False, "weight_decay": 1e-4}
    assert {**config.optimizer.model_dump(), **optimizer} == config.optimizer.model_dump()
    assert (config.gradient_accumulation_steps, config.seed) == (2, 7)
    assert (config.validate_every, config.backup_every) == (Interval(2, "epochs"), Interval(5, "epochs"))
    assert (config.early_stopping_patience, config.early_stopping_metric) == (10, "accuracy")
    assert (config.early_stopping_mode, config.early_stopping_min_delta, config.restore_best) == ("max", 0.001, True)
    assert (config.runs_dir, config.backups_kept) == (str(tmp_path / "outputs"), 4)
    assert (config.tensorboard, config.log_every) == (True, Interval(20, "steps"))


def test_what_is_unknown_or_wrong_is_listed_with_its_line(tmp_path: Path) -> None:
    found = reasons(import_file(shutil.copy(FILES / "training_script.yaml", tmp_path)))
    assert found["training.learning_rat (line 42)"] == "the import does not know this setting"
    assert found["training.ema (line 43)"] == '"yes please" is neither true nor false'
    assert found["model.num_classes (line 26)"] == "Tandem counts the classes of the images"
    assert found["training.optimizer.lookahead (line 35)"] == "the import does not know this setting"
    assert found["parallel.init_method (line 11)"].startswith("Tandem starts its processes itself")
    assert {"logging.dir (line 67)", "logging.wandb.project (line 69)"} <= set(found)
    assert len(found) == 7


def test_what_stands_in_other_files_or_settings_is_told(tmp_path: Path) -> None:
    text = (
        "defaults: [model: resnet]\nexperiment: {name: '${optim.lr}'}\ndata: {batch_size: 4}\ntraining: {epochs: 2}\n"
    )
    found = imported(tmp_path, text)
    told = reasons(found)
    assert any(name.startswith("defaults") and "made of others" in why for name, why in told.items())
    assert told["experiment.name (line 2)"] == "it stands for another setting: give the file with its values"
    assert (found.config.batch_size, found.config.run_name) == (4, None)


def test_an_invalid_value_is_named_with_its_line(tmp_path: Path) -> None:
    found = imported(tmp_path, "training:\n  epochs: -3\n  lr: fast\ndata:\n  batch_size: 0\n")
    why = reasons(found)
    assert why["training.epochs (line 2)"].startswith("invalid in Tandem: epochs is -3")
    assert why["training.lr (line 3)"] == '"fast" is not a number'
    assert why["data.batch_size (line 5)"].startswith("invalid in Tandem: batch_size is 0")


def test_other_names_and_sections(tmp_path: Path) -> None:
    text = """
arch: {type: ResNet32, args: {pretrained: false}}
data_loader: {type: Cifar, args: {data_dir: data, batch_size: 16, validation_split: 0.1, num_workers: 2}}
optimizer: {type: Adam, args: {lr: 0.01, weight_decay: 0}}
lr_scheduler: {type: StepLR, args: {step_size: 50}}
trainer: {epochs: 10, save_dir: saved, save_period: 1, monitor: min val_loss, early_stop: 3, tensorboard: false}
n_gpu: 2
"""
    found = imported(tmp_path, text)
    config = found.config
    assert config.family_options == {"network": "cifar_resnet32", "pretrained": False}
    assert (config.batch_size, config.validation_split, config.loader_workers) == (16, 0.1, 2)
    assert (config.optimizer.name, config.learning_rate) == ("adam", 0.01)
    assert (config.epochs, config.early_stopping_patience, config.early_stopping_metric) == (10, 4, "loss")
    assert (config.early_stopping_mode, config.tensorboard) == ("min", False)
    assert (config.enable_multi_gpu, config.world_size) == (True, 2)
    assert config.validate_every == Interval(1, "epochs")
    assert config.max_grad_norm is None  # such scripts do not clip unless they say so
    assert any("one validation more than early_stop" in entry.why for entry in found.report.changed)
    assert (config.scheduler_target, config.scheduler_interval) == ("torch.optim.lr_scheduler.StepLR", "epoch")


def test_of_two_names_the_first_counts(tmp_path: Path) -> None:
    found = imported(tmp_path, "training:\n  lr: 0.1\n  learning_rate: 0.2\ndata:\n  workers: 1\n")
    assert found.config.learning_rate == 0.1
    assert reasons(found)["training.learning_rate (line 3)"] == "training.lr takes precedence"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mode: dp", (True, "data_parallel", None)),
        ("mode: single", (False, "single", None)),
        ("mode: fsdp\n  world_size: 8", (True, "fully_sharded", 8)),
        ("world_size: auto", (False, "auto", None)),
        ("enabled: true\n  world_size: -1", (True, "auto", None)),
    ],
)
def test_parallel(tmp_path: Path, text: str, expected: tuple[object, ...]) -> None:
    config = imported(tmp_path, f"parallel:\n  {text}\ntraining:\n  epochs: 1\n").config
    assert (config.enable_multi_gpu, config.training_mode, config.world_size) == expected


def test_steps_alone_and_a_lowest_rate(tmp_path: Path) -> None:
    text = "training: {max_steps: 500, lr: 0.1, min_lr: 1e-3, scheduler: cosine, precision: bf16-mixed}\ndata: {}\n"
    config = imported(tmp_path, text).config
    assert (config.max_steps, config.epochs, config.min_learning_rate_factor) == (500, 10_000, 0.01)
    assert config.precision == "bf16"


def test_a_python_file_as_the_model_is_the_family(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("raise SystemExit('it was run')", encoding="utf-8")
    found = imported(tmp_path, "model:\n  file: net.py\ntraining:\n  epochs: 2\n")
    assert found.config.family == str(tmp_path / "net.py")


def test_early_stopping_that_is_on_is_not_listed_as_a_setting_without_effect(tmp_path: Path) -> None:
    text = "training: {epochs: 1}\ndata: {val_split: 0.1}\nearly_stopping: {enabled: true, patience: 4}\n"
    found = imported(tmp_path, text)
    assert found.config.early_stopping_patience == 4
    assert reasons(found) == {}


def test_advice_names_the_guide_and_the_settings_there_are(tmp_path: Path) -> None:
    text = (
        "training: {epochs: 1}\nloss: mse\n"
        "data:\n  augmentation: {random_crop: true}\nvalidation:\n  metric: accuracy\n"
    )
    why = {source.partition(" ")[0]: reason for source, reason in reasons(imported(tmp_path, text)).items()}
    assert "docs/custom_models.md" in why["loss"]
    assert "crop_padding" in why["data.augmentation.random_crop"]
    assert "early_stopping_metric" in why["validation.metric"]


@pytest.mark.parametrize(
    "callbacks",
    [
        "\n  callbacks:\n  - {class_path: pytorch_lightning.callbacks.EarlyStopping, init_args: {monitor: val_loss}}\n",
        "\ncallbacks: {early_stopping: {_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: val_loss}}\n",
    ],
    ids=["Lightning's CLI", "Hydra"],
)
def test_lightnings_callback_has_a_patience_by_default(tmp_path: Path, callbacks: str) -> None:
    text = f"data: {{val_split: 0.1}}\ntrainer:\n  max_epochs: 9{callbacks}"
    found = imported(tmp_path, text)
    assert (found.config.early_stopping_patience, found.config.early_stopping_metric) == (3, "loss")
    assert not reasons(found)


def test_early_stopping_that_is_off_is_off(tmp_path: Path) -> None:
    text = "training: {epochs: 1}\nearly_stopping:\n  enabled: false\n  patience: 4\n"
    assert imported(tmp_path, text).config.early_stopping_patience is None


@pytest.mark.parametrize("text", ["training: {epochs: 3}", "data: {}\nmodel: {}", "epochs: 3\nlr: 0.1"])
def test_other_files_are_not_taken_for_one(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="no supported trainer has these settings"):
        imported(tmp_path, text)


def test_tags_of_programs_are_names_and_arguments_in_groups_are_taken(tmp_path: Path) -> None:
    text = """
criterion: !pyobject __main__.compute_loss
parallel: {world_size: 3, rank: null, master_addr: localhost, master_port: "12355", output_device: null}
training:
  path: out/run
  num_epochs: 50
  optimizer_type: !pyobject torch.optim.AdamW
  optimizer_args: []
  optimizer_kwargs: {lr: 0.001, weight_decay: 0.00005}
  lr_scheduler_type: !!python/name:torch.optim.lr_scheduler.CosineAnnealingLR
  lr_scheduler_kwargs: {eta_min: !number 0.0001}
  num_workers: 4
  pin_memory: true
  drop_last: true
  prefetch_factor: 3
  checkpoint_at: 10
data: {val_dir: images, train_dir: images}
validation: {pin_memory: true, drop_last: false, validator: {device: cuda}}
testing: {num_workers: 2, drop_last: true, tester: {device: cuda}}
early_stopping: {type: DefaultEarlyStopping, args: [], kwargs: {patience: 5}}
"""
    (tmp_path / "images").mkdir()
    found = imported(tmp_path, text)
    config = found.config
    assert (config.optimizer.name, config.optimizer.keywords()["weight_decay"]) == ("adamw", 5e-5)
    assert (config.learning_rate, config.scheduler, config.min_learning_rate_factor) == (1e-3, "cosine", 0.1)
    assert (config.loader_workers, config.pin_memory, config.drop_last, config.prefetch_factor) == (4, True, True, 3)
    assert (config.backup_every, config.runs_dir) == (Interval(10, "epochs"), str(tmp_path / "out/run"))
    assert (config.early_stopping_patience, config.world_size, config.initial_port) == (5, 3, 12355)
    named = {source.partition(" ")[0] for source in reasons(found)}
    assert named == {"criterion", "testing.num_workers", "testing.drop_last"}


def test_another_class_of_torch_is_that_class_with_its_arguments(tmp_path: Path) -> None:
    text = "data: {batch_size: 2}\ntraining: {optimizer: torch.optim.Adagrad}\noptimizer: {lr: 0.1, lr_decay: 0.01}"
    found = imported(tmp_path, text)
    optimizer = found.config.optimizer
    assert (optimizer.class_path(), optimizer.keywords()) == ("torch.optim:Adagrad", {"lr_decay": 0.01})
    assert found.config.learning_rate == 0.1


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{type: StepLR, kwargs: {step_size: 30, gamma: 0.5}}", ("StepLR", "step_size = 30, gamma = 0.5", "epoch")),
        ("{name: step, step_size: 30}", ("StepLR", "step_size = 30", "epoch")),
        ("{type: !pyobject torch.optim.lr_scheduler.MultiStepLR, args: [], kwargs: {milestones: [3, 5]}}",
         ("MultiStepLR", "milestones = [3, 5]", "epoch")),
        ("{name: CosineAnnealingLR, T_max: 50, eta_min: 0.001}",
         ("CosineAnnealingLR", "T_max = 50, eta_min = 0.001", "epoch")),
        ("{type: CosineAnnealingWarmRestarts, args: {T_0: 10, T_mult: 2}, interval: step}",
         ("CosineAnnealingWarmRestarts", "T_0 = 10, T_mult = 2", "step")),
        ("{type: OneCycleLR, max_lr: 0.1, total_steps: 900}",
         ("OneCycleLR", "max_lr = 0.1, total_steps = 900", "step")),
        ("LinearLR", ("LinearLR", "", "epoch")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["scheduler: ", "training:\n  lr_scheduler: "])
def test_a_scheduler_of_torch_is_that_class_with_its_arguments(
    tmp_path: Path, written: str, expected: tuple[str, str, str], place: str
) -> None:
    training = "" if "training" in place else "training: {epochs: 3}\n"
    found = imported(tmp_path, f"{training}{place}{written}\noptimizer: {{type: SGD, lr: 0.1}}\n")
    name, *others = expected
    assert [found.config.scheduler_arguments, found.config.scheduler_interval] == others
    assert found.config.scheduler_target == f"torch.optim.lr_scheduler.{name}"
    assert not reasons(found)
    check_scheduler(found.config, None, None)


def test_a_scheduler_that_needs_a_metric_is_told_as_such(tmp_path: Path) -> None:
    text = "training: {epochs: 3}\nscheduler: {type: ReduceLROnPlateau, patience: 5, factor: 0.1}\n"
    assert list(reasons(imported(tmp_path, text)).values()) == [
        "it needs a metric, and Tandem's schedules depend on the step only, so that a resumed run goes on exactly; "
        "choose another, and set early_stopping_patience"
    ]


def test_groups_of_loaders_and_mixed_precision_are_taken(tmp_path: Path) -> None:
    text = """
data:
  train: {path: images, loader: {batch_size: 32, num_workers: 2, pin_memory: true, shuffle: true, drop_last: true}}
  val: {path: images, loader: {batch_size: 64, num_workers: 1, shuffle: false, drop_last: false}}
training: {epochs: 9, enable_gradient_checkpointing: true, save_best: true, save_last: true, torch_compile: true}
ema: {enabled: true, decay: 0.99}
distributed: {backend: gloo, mixed_precision: {enabled: true, dtype: bfloat16}}
"""
    (tmp_path / "images").mkdir()
    found = imported(tmp_path, text)
    config = found.config
    assert (config.batch_size, config.loader_workers, config.pin_memory, config.drop_last) == (32, 2, True, True)
    assert (config.validation_batch_size, config.validation_workers) == (64, 1)
    assert (config.gradient_checkpointing, config.compile, config.precision) == (True, True, "bf16")
    assert (config.ema, config.ema_decay, config.distributed_backend) == (True, 0.99, "gloo")
    assert not reasons(found)
