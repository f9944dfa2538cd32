"""The trainers whose files can be imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from modules.importers import ai_toolkit, diffusion_pipe, kohya, musubi, onetrainer, simple_tuner, training_yaml
from modules.importers.rules import Table
from modules.importers.translation import Translation


@dataclass(frozen=True)
class Trainer:
    """A trainer: how its files are recognised and translated, and the tables that the documentation shows."""

    name: str
    file: str
    recognises: Callable[[object], bool]
    translate: Callable[[Mapping[str, object], Translation], None]
    tables: Mapping[str, Table]


_FILES = {
    onetrainer: "a preset or config (JSON); concepts and samples are read from the files it refers to",
    musubi: "a --config_file (TOML) or a dataset file (TOML or JSON) for models of images; dataset and prompts are "
    "read from the files it refers to",
    kohya: "a --config_file (TOML), a dataset file (TOML or JSON), or a JSON saved by its GUI, kohya_ss; dataset and "
    "prompts are read from the files it refers to",
    ai_toolkit: "a job (YAML or JSON) with one training process",
    diffusion_pipe: "the run's TOML; the dataset is read from the file it refers to",
    simple_tuner: "config.json; datasets and a LyCORIS config are read from the files it refers to",
    training_yaml: "YAML (or JSON, TOML) with sections such as data, model, training, parallel, validation, "
    "early_stopping, checkpoint and logging, as scripts for PyTorch have them",
}
TRAINERS = tuple(Trainer(m.TRAINER, file, m.recognises, m.translate, m.TABLES) for m, file in _FILES.items())
