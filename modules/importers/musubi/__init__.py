"""musubi-tuner, for newer models: the arguments in its --config_file, and its dataset file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from modules.facts import all_facts
from modules.importers.flow_families import reference_facts
from modules.importers.kohya.prompts import add_prompts
from modules.importers.musubi.data import CONCEPT_TABLE, SHARED_TABLE, add_datasets, is_dataset
from modules.importers.musubi.model import LETTERS, OWN_MODULES, TABLE, facts_of, module_of, other_model, prompt_table
from modules.importers.readers import items
from modules.importers.report import ImportEntry
from modules.importers.translation import Translation

TRAINER = "musubi-tuner"
# The family that is guessed where only the datasets are given, and have pairs: it trains on nothing else.
EDITS = next(name for name, facts in all_facts().items() if facts.references and facts.references.most == 1)
TABLES = {
    "settings": TABLE,
    "what all datasets share": SHARED_TABLE,
    "each of datasets": CONCEPT_TABLE,
    "each prompt": prompt_table(all_facts()[EDITS]),
}
_DATASETS = ("general", "datasets")
_FIRST = "of several numbered images for one the first counts there, here the image is left out: keep one"


def recognises(data: object) -> bool:
    """Whether the data has datasets of musubi-tuner, or arguments that sd-scripts does not have."""
    if not isinstance(data, Mapping):
        return False
    given = _merged(data)
    is_run = {"dataset_config", "network_module", "output_name"} & set(given)
    return any(map(is_dataset, items(data.get("datasets")))) or (
        bool(is_run) and ("dit" in given or module_of(given) in OWN_MODULES)
    )


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Translate the arguments, the datasets and the prompts of a file."""
    given = _merged({name: value for name, value in data.items() if name not in _DATASETS})
    names = ("dataset_config", "sample_prompts")
    arguments = {name: value for name, value in given.items() if name not in names and value not in (None, "")}
    if arguments:
        translation.apply(TABLE, arguments)
        translation.put("lr_scaling", "none")  # accelerate does not scale the learning rate
        translation.put("lora_layouts", "kohya")
    _datasets(data, given.get("dataset_config"), translation)
    facts = facts_of(given)
    pairs = [each for each in translation.changed if each.target.endswith(".references")]
    if other := other_model(given):
        translation.hold(f"musubi-tuner trains {other}, which Tandem does not have")
    elif facts and not facts.references and pairs:
        translation.hold("musubi-tuner trains on pairs of images, which Tandem does not have for this model")
    elif pairs and not arguments:
        others = " and ".join(name for name, each in all_facts().items() if each.references and name != EDITS)
        why = f"guessed: {others} edit images, too"
        translation.add(replace(pairs[0], target="family", new_value=EDITS, why=why))
    references = reference_facts(str(translation.data.get("family")))
    for each in pairs if references and references.most == 1 else ():
        translation.change(each.target, each.new_value, _FIRST)
    if (prompts := given.get("sample_prompts")) is not None:
        add_prompts(prompts, translation, prompt_table(facts), LETTERS)


def _merged(data: Mapping[str, object]) -> dict[str, object]:
    """The arguments of all sections, whose names have no meaning (training/parser_common.py)."""
    found: dict[str, object] = {}
    for name, value in data.items():
        found.update(value if isinstance(value, Mapping) else {str(name): value})
    return found


def _datasets(data: Mapping[str, object], file: object, translation: Translation) -> None:
    if any(name in data for name in _DATASETS):
        add_datasets(data, translation)
    if file is None:
        return
    content = translation.read_file("dataset_config", file)
    if isinstance(content, Mapping):
        translation.imported.append(ImportEntry("dataset_config", file, "concepts", "its datasets"))
        add_datasets(content, translation)
    elif content is not None:
        translation.skip("dataset_config", file, "it has no datasets")
