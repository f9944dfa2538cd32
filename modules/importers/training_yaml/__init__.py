"""The YAML of training scripts for PyTorch: sections such as data, model, training and parallel."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.errors import ConfigError
from modules.config.io.text_formats import lines_of_names
from modules.importers.report import ImportEntry
from modules.importers.source_file import text_of
from modules.importers.training_yaml.names import canonical, present_sections
from modules.importers.training_yaml.tables import TABLE
from modules.importers.translation import Translation

TRAINER = "a PyTorch training script"
TABLES = {"settings": TABLE}
EVERY_EPOCH = "such scripts validate after every epoch"


def recognises(data: object) -> bool:
    """Whether there is a section for the training, and another one."""
    if not isinstance(data, Mapping):
        return False
    sections = present_sections(data)
    return "training" in sections and len(sections) > 1


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Translate all sections; of several names for one setting the first counts."""
    values: dict[str, object] = {}
    written_as: dict[str, str] = {}
    for name, written, value in canonical(data, TABLE):
        if isinstance(value, str) and "${" in value:
            translation.skip(written, value, "it stands for another setting: give the file with its values")
        elif name in values:
            translation.skip(written, value, f"{written_as[name]} takes precedence")
        else:
            values[name], written_as[name] = value, written
    translation.apply(TABLE, values, written_as=written_as)
    translation.put("lr_scaling", "none")
    if "family" not in translation.data:
        why = "the file names no model: choose a family"
        translation.add(ImportEntry("model.name", None, "family", "classifier", why, given=False))
    if "validate_every" not in translation.data and _has_validation(translation):
        translation.add(ImportEntry("validation.every", None, "validate_every", "1 epoch", EVERY_EPOCH, given=False))
    try:
        translation.lines = lines_of_names(text_of(translation.paths.file))
    except ConfigError:
        translation.lines = {}


def _has_validation(translation: Translation) -> bool:
    data = translation.data
    concepts = data.get("concepts")
    kinds = [each.get("kind") for each in concepts if isinstance(each, dict)] if isinstance(concepts, list) else []
    return "validation" in kinds or "validation_split" in data or "early_stopping_patience" in data
