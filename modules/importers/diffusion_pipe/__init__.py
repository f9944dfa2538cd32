"""diffusion-pipe's TOML: the run, and the dataset file that it refers to. Names as in its examples."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers.diffusion_pipe.data import DATA_TABLE, DIRECTORY_TABLE, add_directories
from modules.importers.diffusion_pipe.model import MODEL_RULES
from modules.importers.diffusion_pipe.training import TRAINING_RULES, UNSUPPORTED
from modules.importers.flow_families import reference_facts
from modules.importers.report import ImportEntry
from modules.importers.rules import Table
from modules.importers.translation import Translation

TRAINER = "diffusion-pipe"
TABLE = Table((*MODEL_RULES, *TRAINING_RULES), UNSUPPORTED)
TABLES = {"settings": TABLE, "the dataset": DATA_TABLE, "each directory": DIRECTORY_TABLE}


def recognises(data: object) -> bool:
    """Whether the data has a model table with a type, and names that only diffusion-pipe uses."""
    if not isinstance(data, Mapping):
        return False
    model = data.get("model")
    named = {"micro_batch_size_per_gpu", "dataset", "pipeline_stages", "activation_checkpointing", "eval_datasets"}
    return isinstance(model, Mapping) and "type" in model and bool(named & set(data))


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Translate the run and its dataset."""
    translation.apply(TABLE, {name: value for name, value in data.items() if name != "dataset"})
    translation.put("lr_scaling", "none")
    name = data.get("dataset")
    content = None if name is None else translation.read_file("dataset", name)
    if content is not None:
        translation.imported.append(ImportEntry("dataset", name, "concepts", "its directories"))
    if isinstance(content, Mapping):
        add_directories(content, translation)
    pair = any(entry.target.endswith(".references") for entry in translation.changed)
    if pair and not reference_facts(str(translation.data.get("family"))):
        translation.hold(
            "control_path: diffusion-pipe trains on pairs of images, which Tandem does not have for this model"
        )
