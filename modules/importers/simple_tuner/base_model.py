"""The base model of SimpleTuner's settings, which may name only its family and flavour."""

from __future__ import annotations

from modules.facts import all_facts
from modules.importers.flow_families import known_family
from modules.importers.readers import model_path
from modules.importers.rules import EMPTY_VALUES, Assignment, PathValue, Values


def base_model(values: Values) -> list[Assignment]:
    """The model, or that which SimpleTuner takes for the family and flavour if none is given."""
    name, flavour = values["pretrained_model_name_or_path"], str(values["model_flavour"] or "")
    if name not in EMPTY_VALUES:
        return [Assignment("base_model", model_path(name), keys=("pretrained_model_name_or_path",))]
    family = known_family(values["model_family"])
    known = all_facts()[family].simple_tuner if family else {}
    if (found := known.get(flavour or next(iter(known), ""))) is not None:
        why = "the file has no base model: this is SimpleTuner's for the family"
        return [Assignment("base_model", PathValue(found, "model"), why, ("model_flavour", "model_family"))]
    return []
