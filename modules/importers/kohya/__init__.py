"""kohya's sd-scripts (its --config_file and dataset files) and the JSON of its GUI, kohya_ss."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers.kohya.data import ARGUMENT_NAMES, DATA_NAMES, DATASET_TABLE, SUBSET_TABLE, KohyaData
from modules.importers.kohya.gui import GUI_NAMES, GUI_ONLY, is_saved_by_gui, passed_on, split_parameters
from modules.importers.kohya.model import MODEL_RULES, MODEL_UNSUPPORTED
from modules.importers.kohya.prompts import LETTERS, PROMPT_TABLE, add_prompts
from modules.importers.kohya.training import TRAINING_RULES, TRAINING_UNSUPPORTED
from modules.importers.report import ImportEntry
from modules.importers.rules import Table
from modules.importers.translation import Translation

TRAINER = "kohya's sd-scripts"
# Settings that no table handles.
FILES = ("dataset_config", "train_data_dir", "reg_data_dir", "image_folder", "sample_prompts")
TABLE = Table((*MODEL_RULES, *TRAINING_RULES), (*MODEL_UNSUPPORTED, *TRAINING_UNSUPPORTED))
TABLES = {
    "settings": TABLE,
    "datasets": DATASET_TABLE,
    "each subset or folder of images": SUBSET_TABLE,
    "each prompt": PROMPT_TABLE,
}


def recognises(data: object) -> bool:
    """Whether the data has names that only sd-scripts and its GUI use."""
    if not isinstance(data, Mapping):
        return False
    sets = data.get("datasets")
    if isinstance(sets, list) and any(isinstance(item, Mapping) and "subsets" in item for item in sets):
        return True
    names = set(_merge_groups(data))
    common = {"pretrained_model_name_or_path", "train_data_dir", "dataset_config", "network_module", "output_name"}
    only = {"network_dim", "train_batch_size", "max_train_epochs", "network_alpha", "max_data_loader_n_workers"}
    is_other = {"model_family", "data_backend_config"} & {str(name).removeprefix("--") for name in data}
    has_model = bool(names & common) and bool(names & (only | GUI_ONLY | common - {"output_name"}))
    return not is_other and (has_model or is_saved_by_gui(names, least=3))


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Translate the settings, datasets and prompts of a file."""
    inside = {name: value for name, value in data.items() if name in ("general", "datasets")}
    has_sets = "datasets" in inside
    given = _merge_groups({name: value for name, value in data.items() if not has_sets or name not in inside})
    is_gui = is_saved_by_gui(set(given))
    given = {name: value for name, value in given.items() if not isinstance(value, str) or value.strip()}
    written_as: dict[str, str] = {}
    if is_gui:
        translation.trainer = "kohya_ss"
        given, written_as = split_parameters(passed_on(given, translation))
    arguments = {ARGUMENT_NAMES.get(name, name): value for name, value in given.items() if name in DATA_NAMES}
    names = {ARGUMENT_NAMES[name]: name for name in given if name in ARGUMENT_NAMES}
    main = {name: value for name, value in given.items() if name not in DATA_NAMES and name not in FILES}
    if set(given) & (set(TABLE.keys()) | {"train_data_dir"}):
        renamed = GUI_NAMES if is_gui else {}
        translation.apply(Table(TABLE.rules, TABLE.unsupported, renamed), main, written_as=written_as)
        translation.put("lr_scaling", "none")  # accelerate does not scale the learning rate
    sets = KohyaData(translation, arguments, names)
    if has_sets:
        sets.add_file(inside)
    _data(given, sets, translation)
    sets.finish()
    if (prompts := given.get("sample_prompts")) is not None:
        add_prompts(prompts, translation, PROMPT_TABLE, LETTERS)


def _merge_groups(data: Mapping[str, object]) -> dict[str, object]:
    """Merge the groups of a config file, whose names sd-scripts ignores."""
    found: dict[str, object] = {}
    for name, value in data.items():
        found.update(value if isinstance(value, Mapping) else {str(name): value})
    return found


def _data(given: Mapping[str, object], sets: KohyaData, translation: Translation) -> None:
    file = given.get("dataset_config")
    if isinstance(file, str):
        content = translation.read_file("dataset_config", file)
        if isinstance(content, Mapping):
            translation.imported.append(ImportEntry("dataset_config", file, "concepts", "its subsets"))
            sets.add_file(content)
        for name in ("train_data_dir", "reg_data_dir", "image_folder"):
            if given.get(name):
                translation.skip(name, given[name], "dataset_config takes precedence")
        return
    for name in ("train_data_dir", "reg_data_dir", "image_folder"):
        folder = given.get(name)
        if isinstance(folder, str) and (name == "image_folder" or given.get("in_json")):
            sets.add_flat_folder(name, folder)
        elif isinstance(folder, str):
            sets.add_folders(name, folder, is_reg=name == "reg_data_dir")
        elif folder is not None:
            translation.skip(name, folder, "expected the path of a folder")
