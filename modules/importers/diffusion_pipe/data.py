"""The dataset file: its resolutions, and one concept for each directory."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers import common
from modules.importers.readers import (
    boolean,
    data_path,
    is_path,
    items,
    number,
    several_sides,
)
from modules.importers.rules import (
    Assignment,
    ChangedValue,
    CombinedRule,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    Values,
)
from modules.importers.translation import Translation


def _side(value: object) -> object:
    """The largest of several; the concepts have all of them."""
    sides = [int(side) for side in several_sides(items(value)).split()]
    if not sides:
        raise UnsupportedValueError("no size is given")
    is_plain = all(isinstance(each, int) for each in items(value))
    return max(sides) if is_plain else ChangedValue(max(sides), "the side of a square with as many pixels")


def _aspect(values: Values) -> list[Assignment]:
    """The nearest bucket of min_ar to max_ar crops what is longer (utils/dataset.py, num_ar_buckets of them)."""
    if not boolean(values["enable_ar_bucket"]) or None in (values["min_ar"], values["max_ar"]):
        return []
    low, high = number(values["min_ar"]), number(values["max_ar"])
    longest = max(high, 1 / low if low > 0 else 1.0)
    why = common.BUCKETS if abs(low * high - 1) < 0.01 else f"wide and tall images alike; {common.BUCKETS}"
    return [Assignment("largest_aspect", longest, why, ("min_ar", "max_ar"))]


DIRECTORY_TABLE = Table(
    rules=(
        Rule("path", "path", None, data_path),
        Rule("num_repeats", "repeats", 1, number),
        Rule("shuffle_tags", "tag_shuffle", False, boolean),
        Rule("cache_shuffle_delimiter", "tag_delimiter", ", ", lambda value: str(value).strip() or ",", optional=True),
        Rule("caption_prefix", "prompt_prefix", "", str, optional=True),
        Rule("control_path", "references", None, data_path, common.WHOLE_REFERENCES, optional=True),
        Rule("resolutions", "resolutions", [512], lambda value: several_sides(items(value)), optional=True),
    ),
    unsupported=(
        Unsupported("mask_path", common.MASKS),
        Unsupported("cache_shuffle_num", "set tag_shuffle: tags are shuffled each time", default=0),
        Unsupported("*ar_bucket* min_ar max_ar", common.BUCKETS),
        Unsupported("frame_buckets", common.IMAGES_ONLY, default=[1]),
        Unsupported("*", "Tandem's concepts have no such setting"),
    ),
)
DATA_TABLE = Table(
    rules=(
        Rule("resolutions", "resolution", [512], _side),
        Rule("enable_ar_bucket", "aspect_ratio_bucketing", False, boolean),
        CombinedRule(
            {"min_ar": None, "max_ar": None}, "largest_aspect", _aspect, common.BUCKETS, {"enable_ar_bucket": False}
        ),
    )
)
DATA_NAMES = frozenset(DATA_TABLE.keys())


def add_directories(content: Mapping[str, object], translation: Translation) -> None:
    """Translate the dataset file; a directory's own settings override those of all."""
    directories = [item for item in items(content.get("directory")) if isinstance(item, Mapping)]
    general = {name: value for name, value in content.items() if name != "directory"}
    translation.apply(DATA_TABLE, {n: v for n, v in general.items() if n in DATA_NAMES}, "dataset.")
    several = {"resolutions"} if len(items(general.get("resolutions"))) > 1 else set()
    shared = {name: value for name, value in general.items() if name not in DATA_NAMES or name in several}
    count = 0
    for index, directory in enumerate(directories):
        prefix = f"dataset.directory.{index}."
        if not is_path(directory.get("path")):
            translation.skip(prefix[:-1], dict(directory), "it has no path")
            continue
        names = {name: f"dataset.{name}" for name in shared if name not in directory}
        translation.apply(DIRECTORY_TABLE, {**shared, **directory}, prefix, f"concepts.{count}.", names)
        translation.put(f"concepts.{count}.include_subfolders", False)
        translation.put(f"concepts.{count}.keep_tags", 0)  # process_caption_fn shuffles all tags
        translation.put(f"concepts.{count}.caption_lines", "whole")  # utils/dataset.py: read().strip()
        count += 1
    if not count:
        for name, value in shared.items():
            translation.skip(f"dataset.{name}", value, "there are no images")
