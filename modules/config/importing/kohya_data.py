"""kohya's data: folders named <repeats>_<words>, or a data set file of [general], [[datasets]] and their subsets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from modules.config.importing.readers import data_path, flag, is_path, items, number, side, text, whole
from modules.config.importing.rules import Joint, Outcome, Rule, Table, Values, Without, is_default
from modules.config.importing.translation import Translation

# Names on the command line and in kohya's window -> names in a data set file.
ARGUMENT_NAMES = {
    "train_batch_size": "batch_size",
    "dataset_repeats": "num_repeats",
    "max_resolution": "resolution",
    "caption_extention": "caption_extension",
}
_FOLDER = re.compile(r"(\d+)_(.*)", re.DOTALL)

DATASET_TABLE = Table(
    rules=(
        Rule("resolution", "resolution", 512, side),
        Rule("batch_size", "batch_size", 1, whole),
        Rule("enable_bucket", "aspect_ratio_bucketing", False, flag),
        Rule("caption_dropout_rate", "caption_dropout", 0.0, number, "one share holds for all concepts"),
    ),
    without=(
        Without("min_bucket_reso", 256, "Tandem makes buckets of the resolution's area itself"),
        Without("max_bucket_reso", 1024, "Tandem makes buckets of the resolution's area itself"),
        Without("bucket_reso_steps", 64, "Tandem makes buckets of the resolution's area itself"),
        Without("bucket_no_upscale", False, "pictures are scaled to the resolution, smaller ones too"),
        Without("skip_image_resolution", None, "remove pictures that are too small beforehand"),
        Without("network_multiplier", 1.0, "set loss_weight of the concept"),
        Without("validation_seed", None, "one seed holds for the whole run"),
        Without("validation_split", 0, "set validation_split"),
        Without("cache_info", False, "Tandem keeps an index of the pictures"),
    ),
)


def subset_table(has_captions: bool) -> Table:
    """The rules of one subset; `has_captions` says whether caption files of its kind lie in its folder."""

    def captions(values: Values) -> list[Outcome]:
        words, prefix = text(values["class_tokens"] or "").strip(), text(values["caption_prefix"] or "").strip()
        extension = f".{text(values['caption_extension'] or '').strip().lstrip('.')}"
        if words and not has_captions:
            keys = ("class_tokens", "caption_extension")
            found = [
                Outcome("caption_source", "none", keys=keys, quiet=True),
                Outcome("prompt_prefix", words, "for pictures without caption files", keys),
            ]
            if prefix:
                found.append(Outcome("", why="class_tokens are the caption", keys=("caption_prefix",)))
            return found
        found = [Outcome("caption_source", "txt", keys=("caption_extension",))]
        if extension not in (".txt", "."):
            why = "Tandem reads .txt: rename the caption files"
            found.append(Outcome("", why=why, keys=("caption_extension",)))
        if prefix:
            found.append(Outcome("prompt_prefix", f"{prefix} ", keys=("caption_prefix",)))
        if words:
            found.append(Outcome("", why="the pictures have captions of their own", keys=("class_tokens",)))
        return found

    def prior(values: Values) -> list[Outcome]:
        if not flag(values["is_reg"]):
            return []
        weight = number(values["prior_loss_weight"])
        return [
            Outcome("prior", True, keys=("is_reg",)),
            Outcome("loss_weight", weight, keys=("prior_loss_weight",)),
        ]

    return Table(
        rules=(
            Rule("image_dir", "path", "", data_path),
            Rule("num_repeats", "repeats", 1, whole),
            Joint({"is_reg": False, "prior_loss_weight": 1.0}, "prior, loss_weight", prior),
            Joint(
                {"class_tokens": None, "caption_extension": ".caption", "caption_prefix": None},
                "caption_source, prompt_prefix",
                captions,
                "class_tokens are the caption of pictures without a caption file; only .txt files are read",
            ),
            Rule("shuffle_caption", "tag_shuffle", False, flag),
            Rule("caption_separator", "tag_delimiter", ",", text),
            Rule("keep_tokens", "keep_tags", 0, whole),
            Rule("caption_tag_dropout_rate", "tag_dropout", 0.0, number),
            Rule("flip_aug", "horizontal_flip", False, flag),
            Rule("random_crop", "crop_jitter", False, flag),
        ),
        without=(
            Without("keep_tokens_separator", "", "keep_tags counts them instead"),
            Without("secondary_separator", "", "Tandem has one tag_delimiter"),
            Without("enable_wildcard", False, "write several lines into a caption file: one is drawn each time"),
            Without("caption_suffix", "", "Tandem has prompt_prefix only"),
            Without("caption_dropout_every_n_epochs", 0, "caption_dropout drops them evenly"),
            Without("color_aug", False, "Tandem does not change colours; make the variations beforehand"),
            Without("face_crop_aug_range", None, "cut the pictures beforehand"),
            Without("token_warmup_min", 1, "all tags are shown from the beginning"),
            Without("token_warmup_step", 0, "all tags are shown from the beginning"),
            Without("metadata_file", "", "write captions as .txt or metadata.jsonl: see docs/data.md"),
            Without("conditioning_data_dir", "", "put each mask beside its picture: cat.jpg has cat-masklabel.png"),
            Without("alpha_mask", False, "put each mask beside its picture: cat.jpg has cat-masklabel.png"),
            Without("custom_attributes", {}, "Tandem has no use for them", whole=True),
        ),
    )


SUBSET_TABLE = subset_table(has_captions=True)
SUBSET_NAMES = {*SUBSET_TABLE.keys(), *(rule.theirs for rule in SUBSET_TABLE.without)}
DATASET_NAMES = {*DATASET_TABLE.keys(), *(rule.theirs for rule in DATASET_TABLE.without)}
DATA_NAMES = SUBSET_NAMES | DATASET_NAMES | set(ARGUMENT_NAMES)


@dataclass
class Level:
    """Settings of one level of a data set file; those below count more."""

    prefix: str
    values: Mapping[str, object]
    names: Mapping[str, str] = field(default_factory=dict)  # as written, where that differs
    used: set[str] = field(default_factory=set)


def merged(levels: Sequence[Level], names: set[str]) -> tuple[dict[str, object], dict[str, str]]:
    """The values that count, of the named settings, and how each is written in the file."""
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
    """Puts data sets into a translation; `arguments` are those of the main file that data sets fall back to."""

    def __init__(self, translation: Translation, arguments: Mapping[str, object], names: Mapping[str, str]) -> None:
        self._translation = translation
        self._arguments = Level("", arguments, names)
        self._levels = [self._arguments]
        self._concepts = 0
        self._first: dict[str, object] | None = None

    def add_file(self, data: Mapping[str, object]) -> None:
        """The content of a data set file."""
        general = Level("general.", _group(data.get("general")))
        self._levels.append(general)
        for place, given in enumerate(_groups(data.get("datasets"))):
            prefix = f"datasets.{place}."
            dataset = Level(prefix, {name: value for name, value in given.items() if name != "subsets"})
            self._levels.append(dataset)
            subsets = [
                Level(f"{prefix}subsets.{number}.", one) for number, one in enumerate(_groups(given.get("subsets")))
            ]
            self._levels += subsets
            self._dataset([self._arguments, general, dataset, *subsets[:1]], [general, dataset])
            for subset in subsets:
                self._subset([self._arguments, general, dataset, subset])

    def add_folders(self, key: str, folder: str, is_reg: bool) -> None:
        """A folder of folders named <repeats>_<words>, which kohya's data set is without a file."""
        if self._first is None:
            self._dataset([self._arguments], [])
        found = [(path, match) for path in self._translation.places.folders_in(folder) if (match := _match(path.name))]
        if not found and self._translation.places.has_pictures(folder):
            why = "kohya learns from folders named <repeats>_<words> only; these pictures lie in the folder itself"
            self._concept(key, {"image_dir": folder, "is_reg": is_reg}, why)
            return
        if not found:
            there = self._translation.places.is_folder(folder)
            why = "it has no folders named <repeats>_<words>" if there else "there is no such folder on this machine"
            self._translation.lose(key, folder, f"{why}: add the pictures by hand")
        for path, match in found:
            subset = {
                "image_dir": str(path), "num_repeats": int(match[1]), "class_tokens": match[2], "is_reg": is_reg,
            }  # fmt: skip
            self._concept(key, subset)

    def finish(self) -> None:
        """Tell what was given but counted nowhere."""
        defaults = {**SUBSET_TABLE.keys(), **DATASET_TABLE.keys()}
        defaults |= {rule.theirs: rule.default for rule in (*SUBSET_TABLE.without, *DATASET_TABLE.without)}
        for level in self._levels:
            for name, value in level.values.items():
                if name not in level.used and not is_default(value, defaults.get(name)):
                    shown = level.prefix + level.names.get(name, name)
                    self._translation.lose(shown, value, "no pictures use it: others count more, or there are none")

    def _dataset(self, levels: Sequence[Level], own: Sequence[Level]) -> None:
        values, shown = merged(levels, DATASET_NAMES)
        values = {name: value for name, value in values.items() if name in DATASET_NAMES}
        if self._first is None:
            self._first = values
            self._translation.apply(DATASET_TABLE, values, written_as=shown)
            return
        for name, value in values.items():
            mine = any(name in level.values for level in own)
            if mine and value != self._first.get(name):
                self._translation.lose(shown[name], value, "it holds for all concepts: that of the first was taken")

    def _subset(self, levels: Sequence[Level]) -> None:
        if not is_path(levels[-1].values.get("image_dir")):
            self._translation.lose(levels[-1].prefix[:-1], dict(levels[-1].values), "it has no image_dir")
            return
        values, shown = merged(levels, SUBSET_NAMES)
        values = {name: value for name, value in values.items() if name not in DATASET_NAMES}
        self._add(values, shown)

    def _concept(self, key: str, subset: Mapping[str, object], why: str = "") -> None:
        """One folder of `key`, which speaks for all that its name says."""
        if self._has_captions({**self._arguments.values, **subset}):
            subset = {name: value for name, value in subset.items() if name != "class_tokens"}
        level = Level(f"{key}.{self._concepts}.", subset)
        values, shown = merged([self._arguments, level], SUBSET_NAMES)
        shown |= {name: f"{key}/{Path(str(subset['image_dir'])).name}" for name in subset}
        if why:
            self._translation.lose(key, subset["image_dir"], why)
        self._add(values, shown)

    def _has_captions(self, values: Mapping[str, object]) -> bool:
        extension = f".{str(values.get('caption_extension') or 'txt').lstrip('.').lower()}"
        return self._translation.places.has_files(str(values["image_dir"]), extension)

    def _add(self, values: Mapping[str, object], shown: Mapping[str, str]) -> None:
        has = self._has_captions(values)
        ours = f"concepts.{self._concepts}."
        self._translation.apply(subset_table(has), values, ours=ours, written_as=shown)
        self._translation.put(f"{ours}include_subfolders", False)
        self._concepts += 1


def _match(name: str) -> re.Match[str] | None:
    return _FOLDER.fullmatch(name)


def _group(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _groups(value: object) -> list[Mapping[str, object]]:
    return [one for one in items(value) if isinstance(one, Mapping)]
