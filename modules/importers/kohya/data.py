"""kohya's data: folders named <repeats>_<words>, or a dataset file of [general], [[datasets]] and their subsets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from modules.importers import common
from modules.importers.kohya.captions import extension, keep_tags, lines, separator
from modules.importers.readers import (
    boolean,
    data_path,
    integer,
    is_path,
    items,
    number,
    resolution_side,
    several_sides,
    text,
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
    is_default,
)
from modules.importers.translation import UNKNOWN, Translation

# Names on the command line and in kohya's GUI -> names in a dataset file.
ARGUMENT_NAMES = {
    "train_batch_size": "batch_size",
    "dataset_repeats": "num_repeats",
    "max_resolution": "resolution",
    "caption_extention": "caption_extension",
}
MOST_ASPECT = 4  # of largest_aspect
_FOLDER = re.compile(r"(\d+)_(.*)", re.DOTALL)


def _buckets(values: Values) -> list[Assignment]:
    """Without enable_bucket they have no effect (train_util.py, DreamBoothDataset)."""
    if not boolean(values["enable_bucket"]):
        return []
    is_kept = boolean(values["bucket_no_upscale"])
    found = [
        Assignment("bucket_step", integer(values["bucket_reso_steps"]), common.SHAPES, ("bucket_reso_steps",)),
        Assignment("no_upscale", is_kept, common.SHAPES * is_kept, ("bucket_no_upscale",)),
    ]
    keys = ("min_bucket_reso", "max_bucket_reso")
    if is_kept:
        why, given = "kohya ignores it with bucket_no_upscale", {"min_bucket_reso": 256, "max_bucket_reso": 1024}
        unused = [key for key, default in given.items() if not is_default(values[key], default)]
        return [*found, *(Assignment("", why=why, keys=(key,)) for key in unused)]
    side, low, high = several_sides([values["resolution"]]), *(integer(values[key]) for key in keys)
    if low <= 0:
        raise UnsupportedValueError(f"min_bucket_reso is {low}; sides are above 0")
    aspect = min(high, int(side) ** 2 // low) / low  # of the narrowest shape (library/model_util.py)
    limit = "the ratio of its longest shape, which has the area of all shapes here"
    most = f"{limit}; {MOST_ASPECT} at most" if aspect > MOST_ASPECT else limit
    return [*found, Assignment("largest_aspect", round(max(1.0, min(aspect, MOST_ASPECT)), 2), most, keys)]


def _hue(value: object) -> object:
    """Of one image in six the hue is moved by up to 8 of OpenCV's 180, of another one gamma by 5 % (train_util.py)."""
    why = "as far, but of every image; there of one in six, and gamma of another"
    return ChangedValue(round(8 / 90, 3), why) if boolean(value) else 0.0


DATASET_TABLE = Table(
    rules=(
        Rule("resolution", "resolution", 512, resolution_side),
        Rule("batch_size", "batch_size", 1, integer),
        Rule("enable_bucket", "aspect_ratio_bucketing", False, boolean),
        CombinedRule(
            {"bucket_no_upscale": False, "bucket_reso_steps": 64, "min_bucket_reso": 256, "max_bucket_reso": 1024},
            "no_upscale, bucket_step, largest_aspect",
            _buckets,
            common.SHAPES,
            {"enable_bucket": False, "resolution": 512},
        ),
        Rule("caption_dropout_rate", "caption_dropout", 0.0, number),
        Rule("validation_split", "validation_split", 0.0, number, "other images are held out", optional=True),
    ),
    unsupported=(
        Unsupported("skip_image_resolution", "remove images that are too small beforehand"),
        Unsupported("network_multiplier", "set loss_weight of the concept", default=1.0),
        Unsupported("validation_seed", "the run has one seed"),
        Unsupported("cache_info", "Tandem keeps an index of the images"),
    ),
)


def subset_table(has_captions: bool) -> Table:
    """The rules of one subset; `has_captions`: whether its folder contains caption files."""

    def captions(values: Values) -> list[Assignment]:
        words, prefix = text(values["class_tokens"] or "").strip(), text(values["caption_prefix"] or "").strip()
        if words and not has_captions:
            keys: tuple[str, ...] = ("class_tokens", "caption_extension")
            why = "for images without caption files"
            if prefix:  # it comes before every caption (train_util.py, process_caption)
                keys, words = (*keys, "caption_prefix"), f"{prefix} {words}"
                why = f"{why}: caption_prefix and class_tokens are the caption"
            return [
                Assignment("caption_source", "none", keys=keys[:2], quiet=True),
                Assignment("prompt_prefix", words, why, keys),
            ]
        found = [
            Assignment("caption_source", "txt", keys=("caption_extension",), quiet=True),
            Assignment("caption_extension", extension(values), keys=("caption_extension",)),
        ]
        if prefix:
            found.append(Assignment("prompt_prefix", f"{prefix} ", keys=("caption_prefix",)))
        if words:
            found.append(Assignment("", why="the images have their own captions", keys=("class_tokens",)))
        return found

    def prior(values: Values) -> list[Assignment]:
        if not boolean(values["is_reg"]):
            return []
        weight = number(values["prior_loss_weight"])
        return [
            Assignment("prior", True, keys=("is_reg",)),
            Assignment("loss_weight", weight, keys=("prior_loss_weight",)),
        ]

    return Table(
        rules=(
            Rule("image_dir", "path", "", data_path),
            Rule("num_repeats", "repeats", 1, integer),
            CombinedRule({"is_reg": False, "prior_loss_weight": 1.0}, "prior, loss_weight", prior),
            CombinedRule(
                {"class_tokens": None, "caption_extension": ".caption", "caption_prefix": None},
                "caption_source, caption_extension, prompt_prefix", captions,
                "class_tokens are the caption of images without a caption file",
            ),
            CombinedRule({"enable_wildcard": False}, "caption_lines, wildcards", lines),
            Rule("shuffle_caption", "tag_shuffle", False, boolean),
            Rule("caption_separator", "tag_delimiter", ",", separator),
            CombinedRule(
                {"keep_tokens": 0}, "keep_tags", keep_tags, "the tags of caption_prefix are among them",
                {
                    "caption_prefix": None, "caption_separator": ",", "shuffle_caption": False,
                    "caption_tag_dropout_rate": 0.0,
                },
            ),
            Rule("keep_tokens_separator", "keep_separator", "", text, optional=True),
            Rule("caption_tag_dropout_rate", "tag_dropout", 0.0, number),
            Rule("caption_dropout_rate", "caption_dropout", 0.0, number, optional=True),
            Rule("resolution", "resolutions", 512, lambda value: several_sides([value]), optional=True),
            Rule("flip_aug", "horizontal_flip", False, boolean),
            Rule("random_crop", "crop_jitter", False, boolean),
            Rule("color_aug", "random_hue", False, _hue, optional=True),
            Rule("alpha_mask", "alpha_mask", False, boolean, common.ON_WHITE, optional=True),
        ),
        unsupported=(
            Unsupported("resize_interpolation", "Tandem scales images with Lanczos' filter"),
            Unsupported("secondary_separator", "Tandem has one tag_delimiter"),
            Unsupported("caption_suffix", "Tandem has prompt_prefix only"),
            Unsupported("caption_dropout_every_n_epochs", "caption_dropout drops them at random", default=0),
            Unsupported("face_crop_aug_range", "crop the images beforehand"),
            Unsupported("token_warmup_min", "all tags are used from the start", default=1),
            Unsupported("token_warmup_step", "all tags are used from the start", default=0),
            Unsupported("metadata_file", common.CAPTION_FILES),
            Unsupported("conditioning_data_dir", common.MASKS),
            Unsupported("custom_attributes", "Tandem does not use them", is_group=True),
        ),
    )  # fmt: skip


OWN_NAMES = {"resolution": 512, "caption_dropout_rate": 0.0}  # of a concept where they are not those of the first one
SUBSET_TABLE = subset_table(has_captions=True)
SUBSET_NAMES = {*SUBSET_TABLE.keys(), *SUBSET_TABLE.unsupported_defaults()} - OWN_NAMES.keys()
DATASET_NAMES = {*DATASET_TABLE.keys(), *DATASET_TABLE.unsupported_defaults()}
PRIOR_ONLY = {"prior_loss_weight"}
DATA_NAMES = SUBSET_NAMES | DATASET_NAMES | set(ARGUMENT_NAMES)


@dataclass
class Level:
    """Settings of one level of a dataset file; deeper levels take precedence."""

    prefix: str
    values: Mapping[str, object]
    names: Mapping[str, str] = field(default_factory=dict)  # as in the file, if that differs
    used: set[str] = field(default_factory=set)


def merge_levels(levels: Sequence[Level], names: set[str]) -> tuple[dict[str, object], dict[str, str]]:
    """The effective values of the named settings, and each one's full name in the file."""
    values: dict[str, object] = {}
    shown: dict[str, str] = {}
    for level in levels:
        for name, value in level.values.items():
            if value is not None and (name in names or (level is levels[-1] and name not in DATA_NAMES)):
                values[name] = value
                shown[name] = level.prefix + level.names.get(name, name)
    for level in levels:
        level.used.update(name for name in values if shown[name] == level.prefix + level.names.get(name, name))
    return values, shown


class KohyaData:
    """Translates datasets; `arguments` are the settings of the main file that datasets fall back to."""

    def __init__(self, translation: Translation, arguments: Mapping[str, object], names: Mapping[str, str]) -> None:
        self._translation = translation
        self._arguments = Level("", arguments, names)
        self._levels = [self._arguments]
        self._concepts = 0
        self._first: dict[str, object] | None = None

    def add_file(self, data: Mapping[str, object]) -> None:
        """Translate the content of a dataset file."""
        defaults = data.get("general")
        general = Level("general.", defaults if isinstance(defaults, Mapping) else {})
        self._levels.append(general)
        for index, given in enumerate(_groups(data.get("datasets"))):
            prefix = f"datasets.{index}."
            dataset = Level(prefix, {name: value for name, value in given.items() if name != "subsets"})
            self._levels.append(dataset)
            subsets = [
                Level(f"{prefix}subsets.{number}.", item) for number, item in enumerate(_groups(given.get("subsets")))
            ]
            self._levels += subsets
            self._dataset([self._arguments, general, dataset, *subsets[:1]], [general, dataset])
            for subset in subsets:
                self._subset([self._arguments, general, dataset, subset])

    def add_folders(self, key: str, folder: str, is_reg: bool) -> None:
        """Translate a folder of subfolders named <repeats>_<words>, kohya's layout without a dataset file."""
        if self._first is None:
            self._dataset([self._arguments], [])
        found = [
            (path, match)
            for path in self._translation.paths.folders_in(folder)
            if (match := _FOLDER.fullmatch(path.name))
        ]
        if not found and self._translation.paths.has_images(folder):
            why = "kohya only uses subfolders named <repeats>_<words>; here the images of the folder itself are trained"
            self._concept(key, {"image_dir": folder, "is_reg": is_reg}, why)
            return
        if not found:
            there = self._translation.paths.is_folder(folder)
            why = "it has no subfolders named <repeats>_<words>" if there else "there is no such folder on this machine"
            self._translation.skip(key, folder, f"{why}: add the images by hand")
        for path, match in found:
            subset = {
                "image_dir": str(path), "num_repeats": int(match[1]), "class_tokens": match[2], "is_reg": is_reg,
            }  # fmt: skip
            self._concept(key, subset)

    def add_flat_folder(self, key: str, folder: str) -> None:
        """Translate a folder whose own images are trained, sd-scripts' layout for fine-tuning."""
        if self._first is None:
            self._dataset([self._arguments], [])
        self._concept(key, {"image_dir": folder, "is_reg": False})

    def finish(self) -> None:
        """Report settings that no dataset used; without any, import what all datasets would share."""
        if self._first is None:
            self._dataset([self._arguments], [])
        targets = {rule.source: rule.target for rule in SUBSET_TABLE.rules if isinstance(rule, Rule)}
        targets["keep_tokens"] = "keep_tags"
        defaults = {**SUBSET_TABLE.keys(), **DATASET_TABLE.keys()}
        defaults |= {**SUBSET_TABLE.unsupported_defaults(), **DATASET_TABLE.unsupported_defaults()}
        for level in self._levels:
            for name, value in level.values.items():
                if name not in level.used and not is_default(value, defaults.get(name)):
                    shown = level.prefix + level.names.get(name, name)
                    why = self._why_unused(name, targets.get(name)) if name in DATA_NAMES else UNKNOWN
                    self._translation.skip(shown, value, why)

    def _why_unused(self, name: str, target: str | None) -> str:
        if name == "prior_loss_weight" and self._concepts:
            return "there are no regularisation images"
        if self._concepts:
            return "no images use it: other settings take precedence"
        return f"no images are named; set {target} of your concepts" if target else "no images are named"

    def _dataset(self, levels: Sequence[Level], own: Sequence[Level]) -> None:
        values, shown = merge_levels(levels, DATASET_NAMES)
        values = {name: value for name, value in values.items() if name in DATASET_NAMES}
        if self._first is None:
            self._first = values
            self._translation.apply(DATASET_TABLE, values, written_as=shown)
            return
        for name, value in values.items():
            mine = any(name in level.values for level in own)
            if mine and name not in OWN_NAMES and value != self._first.get(name):
                self._translation.skip(shown[name], value, "all concepts share it: the first one is used")

    def _subset(self, levels: Sequence[Level]) -> None:
        if not is_path(levels[-1].values.get("image_dir")):
            self._translation.skip(levels[-1].prefix[:-1], dict(levels[-1].values), "it has no image_dir")
            return
        values, shown = merge_levels(levels, _names_of_subset(levels) | OWN_NAMES.keys())
        first = self._first or {}
        own = {
            name: values.get(name, default)
            for name, default in OWN_NAMES.items()
            if not is_default(values.get(name, default), first.get(name, default))
        }
        self._add({name: value for name, value in values.items() if name not in DATASET_NAMES} | own, shown)

    def _concept(self, key: str, subset: Mapping[str, object], why: str = "") -> None:
        """Translate one subfolder of the folder in the setting `key`."""
        if self._has_captions({**self._arguments.values, **subset}):
            subset = {name: value for name, value in subset.items() if name != "class_tokens"}
        level = Level(f"{key}.{self._concepts}.", subset)
        values, shown = merge_levels([self._arguments, level], _names_of_subset([self._arguments, level]))
        is_below = "num_repeats" in subset
        place = f"{key}/{Path(str(subset['image_dir'])).name}" if is_below else key
        shown |= dict.fromkeys(subset, place)
        prefix = f"concepts.{self._concepts}."
        self._add(values, shown)
        if why:
            entry = next(each for each in self._translation.imported if each.target == f"{prefix}path")
            self._translation.change(entry.target, entry.new_value, why)

    def _has_captions(self, values: Mapping[str, object]) -> bool:
        return self._translation.paths.has_files(str(values["image_dir"]), extension(values).lower())

    def _add(self, values: Mapping[str, object], shown: Mapping[str, str]) -> None:
        has = self._has_captions(values)
        prefix = f"concepts.{self._concepts}."
        self._translation.apply(subset_table(has), values, target_prefix=prefix, written_as=shown)
        self._translation.put(f"{prefix}include_subfolders", False)
        common.train_alpha_masks(self._translation, prefix, {"unmasked_weight": 0.0})
        self._concepts += 1


def _names_of_subset(levels: Sequence[Level]) -> set[str]:
    """What applies to a subset: the weight of regularisation images not to others."""
    given = [level.values["is_reg"] for level in levels if level.values.get("is_reg") is not None]
    return SUBSET_NAMES if given and given[-1] not in (False, "false", "False", 0) else SUBSET_NAMES - PRIOR_ONLY


def _groups(value: object) -> list[Mapping[str, object]]:
    return [item for item in items(value) if isinstance(item, Mapping)]
