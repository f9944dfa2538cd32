"""kohya's sd-scripts (its --config_file and data set files) and the JSON of its window, kohya_ss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.config.errors import ConfigError
from modules.config.importing.kohya_data import ARGUMENT_NAMES, DATA_NAMES, DATASET_TABLE, SUBSET_TABLE, KohyaData
from modules.config.importing.kohya_model import MODEL_RULES, MODEL_WITHOUT
from modules.config.importing.kohya_training import TRAINING_RULES, TRAINING_WITHOUT
from modules.config.importing.prompts import PROMPT_TABLE, prompts_of
from modules.config.importing.readers import is_text
from modules.config.importing.reading import lines_of, read_file
from modules.config.importing.report import Entry
from modules.config.importing.rules import Table
from modules.config.importing.translation import Translation

TRAINER = "kohya's sd-scripts"
# kohya's window has other names for some settings of sd-scripts.
WINDOW_NAMES = {
    "optimizer": "optimizer_type",
    "stop_text_encoder_training": "stop_text_encoder_training_pct",
    "sdxl_cache_text_encoder_outputs": "cache_text_encoder_outputs",
}
WINDOW_SIGNS = {"LoRA_type", "model_list", "lr_warmup", "max_resolution", "additional_parameters", "epoch"}
# What is read apart from the tables.
FILES = ("dataset_config", "train_data_dir", "reg_data_dir", "sample_prompts")
TABLE = Table((*MODEL_RULES, *TRAINING_RULES), (*MODEL_WITHOUT, *TRAINING_WITHOUT))
TABLES = {
    "settings": TABLE,
    "data sets": DATASET_TABLE,
    "each subset or folder of pictures": SUBSET_TABLE,
    "each prompt": PROMPT_TABLE,
}


def recognises(data: object) -> bool:
    """Whether the data has names that only sd-scripts and its window use."""
    if not isinstance(data, Mapping):
        return False
    sets = data.get("datasets")
    if isinstance(sets, list) and any(isinstance(one, Mapping) and "subsets" in one for one in sets):
        return True
    names = set(_merged(data))
    common = {"pretrained_model_name_or_path", "train_data_dir", "dataset_config", "network_module", "output_name"}
    only = {"network_dim", "train_batch_size", "max_train_epochs", "network_alpha", "max_data_loader_n_workers"}
    is_other = any(str(name).startswith("--") for name in data) or {"model_family", "data_backend_config"} & set(data)
    return not is_other and bool(names & common) and bool(names & (only | WINDOW_SIGNS | common - {"output_name"}))


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Put the settings, data sets and prompts of a file into the translation."""
    inside = {name: value for name, value in data.items() if name in ("general", "datasets")}
    has_sets = "datasets" in inside
    given = _merged({name: value for name, value in data.items() if not has_sets or name not in inside})
    is_window = len(WINDOW_SIGNS & set(given)) >= 2
    if is_window:
        translation.trainer = "kohya_ss"
    given = {name: value for name, value in given.items() if not isinstance(value, str) or value.strip()}
    arguments = {ARGUMENT_NAMES.get(name, name): value for name, value in given.items() if name in DATA_NAMES}
    names = {ARGUMENT_NAMES[name]: name for name in given if name in ARGUMENT_NAMES}
    main = {name: value for name, value in given.items() if name not in DATA_NAMES and name not in FILES}
    if set(given) & (set(TABLE.keys()) | {"train_data_dir"}):
        renamed = WINDOW_NAMES if is_window else {}
        translation.apply(Table(TABLE.rules, TABLE.without, renamed), main)
        translation.put("lr_scaling", "none")  # accelerate leaves the learning rate as it is
    sets = KohyaData(translation, arguments, names)
    if has_sets:
        sets.add_file(inside)
    _data(given, sets, translation)
    sets.finish()
    _samples(given, translation)


def _merged(data: Mapping[str, object]) -> dict[str, object]:
    """As sd-scripts reads a config file: the names of groups count for nothing."""
    found: dict[str, object] = {}
    for name, value in data.items():
        found.update(value if isinstance(value, Mapping) else {str(name): value})
    return found


def _data(given: Mapping[str, object], sets: KohyaData, translation: Translation) -> None:
    file = given.get("dataset_config")
    if isinstance(file, str):
        content = _read(file, "dataset_config", translation)
        if isinstance(content, Mapping):
            translation.taken.append(Entry("dataset_config", file, "concepts", "its subsets"))
            sets.add_file(content)
        for name in ("train_data_dir", "reg_data_dir"):
            if given.get(name):
                translation.lose(name, given[name], "dataset_config counts more")
        return
    for name in ("train_data_dir", "reg_data_dir"):
        folder = given.get(name)
        if isinstance(folder, str):
            sets.add_folders(name, folder, is_reg=name == "reg_data_dir")
        elif folder is not None:
            translation.lose(name, folder, "the path of a folder is expected")


def _samples(given: Mapping[str, object], translation: Translation) -> None:
    source = given.get("sample_prompts")
    if source is None:
        return
    prompts = _prompts(source, translation)
    for place, prompt in enumerate(prompts):
        theirs = f"sample_prompts.{place}."
        found = translation.data.get("samples")
        ours = len(found) if isinstance(found, list) else 0
        if not is_text(prompt.get("prompt")):
            translation.lose(theirs[:-1], dict(prompt), "it has no prompt")
            continue
        translation.apply(PROMPT_TABLE, prompt, theirs, f"samples.{ours}.")


def _prompts(source: object, translation: Translation) -> list[Mapping[str, object]]:
    """The prompts of a text, TOML or JSON file; kohya's window writes the lines themselves."""
    if not isinstance(source, str):
        translation.lose("sample_prompts", source, "a file is expected")
        return []
    file = translation.places.find(source) if len(source) < 1000 and "\n" not in source else None
    is_name = Path(source).suffix.lower() in (".txt", ".toml", ".json") and "\n" not in source
    if file is None and not is_name:
        return [*prompts_of(source.splitlines())]
    if Path(source).suffix.lower() in (".toml", ".json"):
        return _listed(_read(source, "sample_prompts", translation))
    try:
        lines = lines_of(file) if file is not None else None
    except ConfigError as error:
        translation.lose("sample_prompts", source, str(error).rstrip("."))
        return []
    if lines is None or file is None:
        translation.lose("sample_prompts", source, "there is no such file beside this one or above it")
        return []
    translation.places.files.append(file)
    return [*prompts_of(lines)]


def _listed(content: object) -> list[Mapping[str, object]]:
    """[prompt] with [[prompt.subset]] in TOML, a list in JSON."""
    if isinstance(content, Mapping) and isinstance(content.get("prompt"), Mapping):
        common = {name: value for name, value in content["prompt"].items() if name != "subset"}
        subsets = content["prompt"].get("subset")
        found = subsets if isinstance(subsets, list) else [{}]
        return [{**common, **one} for one in found if isinstance(one, Mapping)]
    return [one for one in content if isinstance(one, Mapping)] if isinstance(content, list) else []


def _read(name: str, key: str, translation: Translation) -> object:
    """The content of a file that the settings name; what is wrong with it is told."""
    file = translation.places.find(name)
    if file is None:
        translation.lose(key, name, "there is no such file beside this one or above it")
        return None
    try:
        content = read_file(file)
    except ConfigError as error:
        translation.lose(key, name, str(error).rstrip("."))
        return None
    translation.places.files.append(file)
    return content
