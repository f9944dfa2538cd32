"""The trainers whose files are understood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from modules.config.importing import ai_toolkit, diffusion_pipe, kohya, onetrainer, simple_tuner
from modules.config.importing.rules import Table
from modules.config.importing.translation import Translation


@dataclass(frozen=True)
class Trainer:
    """One kind of file: how it is recognised and translated; the tables are what the documentation shows."""

    name: str
    file: str
    recognises: Callable[[object], bool]
    translate: Callable[[Mapping[str, object], Translation], None]
    tables: Mapping[str, Table]


TRAINERS: tuple[Trainer, ...] = (
    Trainer(
        onetrainer.TRAINER,
        "a preset or config (JSON); concepts and samples are read from the files it names",
        onetrainer.recognises,
        onetrainer.translate,
        onetrainer.TABLES,
    ),
    Trainer(
        kohya.TRAINER,
        "a --config_file (TOML), a data set file (TOML or JSON), or a JSON saved by its window, kohya_ss; data set and "
        "prompts are read from the files it names",
        kohya.recognises,
        kohya.translate,
        kohya.TABLES,
    ),
    Trainer(
        ai_toolkit.TRAINER,
        "a job (YAML or JSON) with one training process",
        ai_toolkit.recognises,
        ai_toolkit.translate,
        ai_toolkit.TABLES,
    ),
    Trainer(
        diffusion_pipe.TRAINER,
        "the run's TOML; the data set is read from the file it names",
        diffusion_pipe.recognises,
        diffusion_pipe.translate,
        diffusion_pipe.TABLES,
    ),
    Trainer(
        simple_tuner.TRAINER,
        "config.json; data sets are read from the file it names, usually multidatabackend.json",
        simple_tuner.recognises,
        simple_tuner.translate,
        simple_tuner.TABLES,
    ),
)
