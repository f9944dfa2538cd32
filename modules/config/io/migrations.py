"""Config files of older versions are brought to the present one by their number alone, one version at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import TypeAdapter, ValidationError

from modules.config.aliases import FORMER_NAMES
from modules.config.errors import ConfigError
from modules.config.explain import format_value
from modules.config.io.text_formats import Data
from modules.config.sections.optimizer import with_scheduler_settings
from modules.config.train_config import VERSION

TITLE = "title"  # of a preset, as the window shows it: no setting


def migrate(data: Data, source: str) -> Data:
    """A copy of the data in the present version, without the title.

    A file without a version has today's meaning, and may have old names.

    Raises ConfigError if the version is invalid or newer than this program.
    """
    data = {name: value for name, value in data.items() if name != TITLE}
    if "version" not in data:
        return {**with_scheduler_settings(_name_machine_loss(_expand_names(data))), "version": VERSION}
    version = data["version"]
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise ConfigError(
            f"{source}: version is {format_value(version)}; it must be a whole number from 0 to {VERSION}."
        )
    if version > VERSION:
        raise ConfigError(
            f"{source}: version is {version}, but this Tandem supports versions up to {VERSION}.",
            "Update Tandem, or remove the line and check the settings.",
        )
    for step in range(version, VERSION):
        data = MIGRATIONS[step](data)
    return {**with_scheduler_settings(data), "version": VERSION}


def ambiguous_settings(data: Mapping[str, object], source: str) -> list[str]:
    """A sentence for each line that a file of a valid older version lacks and that its writer may have meant otherwise.

    Two defaults changed after 0.1.0, and only later the version.
    """
    if data.get("version") not in (0, 1):
        return []
    start = f"{source} is of version {data['version']} and does not give"
    found = []
    if _lacks_normalization(data):
        found.append(
            f"{start} normalize_masked_area_loss: true is used, as in Tandem 0.1.0; give it as false if a later one "
            "wrote the file."
        )
    optimizer = data.get("optimizer")
    if optimizer == "adafactor" or (
        isinstance(optimizer, Mapping) and optimizer.get("name") == "adafactor" and "scale_parameter" not in optimizer
    ):
        found.append(
            f"{start} optimizer.scale_parameter: false is used; give it as true if the file is from the time of 0.1.0."
        )
    return found


def _expand_names(data: Data) -> Data:
    """0 -> 1: abbreviations such as `lr` became whole words; if both are present, the old one is kept and reported."""
    renamed = {old: new for old, new in FORMER_NAMES.items() if new not in data}
    return {renamed.get(name, name): value for name, value in data.items()}


def _keep_meaning(data: Data) -> Data:
    """1 -> 2: whether the masked loss is divided by the mask's area became a setting; 0.1.0 always did so.

    The default of Adafactor's scale_parameter changed, too; but 0.1.0 wrote that line into every file, so that a file
    without it was written by hand or later.
    """
    return {**data, "normalize_masked_area_loss": True} if _lacks_normalization(data) else data


def _lacks_normalization(data: Mapping[str, object]) -> bool:
    return "normalize_masked_area_loss" not in data and _is_set(bool, data.get("masked_training"))


def _is_set(kind: type[bool | int], value: object) -> bool:
    """Whether a field of this kind reads it as true, as it does "yes" and 1, or as another number than 0."""
    try:
        return bool(TypeAdapter(kind).validate_python(value))
    except ValidationError:
        return False


def _name_machine_loss(data: Data) -> Data:
    """2 -> 3: `rendezvous` became `on_machine_loss`; elastic did nothing while max_restarts was 0."""
    if "rendezvous" not in data or "on_machine_loss" in data:  # both are reported
        return data
    others = {name: value for name, value in data.items() if name != "rendezvous"}
    waits = "wait" if _is_set(int, data.get("max_restarts")) else "end"
    given = data["rendezvous"]
    return {**others, "on_machine_loss": waits if given == "elastic" else "end" if given == "static" else given}


def _keep_views(data: Data) -> Data:
    """3 -> 4: images go to more shapes, and random crops have several places in the cache instead of the centre."""
    found = {**data, "fewer_buckets": data.get("fewer_buckets", True)}
    if isinstance(concepts := data.get("concepts"), list | tuple):
        one: Data = {"image_variations": 1}
        found["concepts"] = [{**one, **each} if isinstance(each, Mapping) else each for each in concepts]
    return found


MIGRATIONS: dict[int, Callable[[Data], Data]] = {
    0: _expand_names,
    1: _keep_meaning,
    2: _name_machine_loss,
    3: _keep_views,
}
