"""One folder of images and how it is used."""

from __future__ import annotations

import re
from typing import ClassVar, Final, Literal, Self, TypeAlias

from pydantic import PrivateAttr, field_validator, model_validator

from modules.config.section import Section, broken_rules, setting
from modules.files.addresses import is_address, parse_address

# The files in a concept's folder that Tandem reads.
_JPEG: Final = (".jpg", ".jpeg", ".jfif", ".jpe", ".pjpeg", ".pjp", ".jpg_large")  # as browsers name them, too
RAW_SUFFIX: Final = ".dng"  # of which the preview is read
_BY_PLUGINS: Final = (".heic", ".heif", ".hif", ".jxl", RAW_SUFFIX)  # modules/files/images.py
IMAGE_SUFFIXES: Final = frozenset({*_JPEG, ".png", ".webp", ".bmp", ".avif", ".tif", ".tiff", *_BY_PLUGINS})
METADATA_SUFFIXES: Final = frozenset({".csv", ".jsonl", ".parquet"})
LABEL_SUFFIX: Final = ".cls"  # webdataset's, of a file with the class of an image
OTHER_TEXTS: Final = (".txt", ".caption", ".json")  # beside an image, looked for besides those of caption_extension
METADATA_NAMES: Final = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # of several, the last one wins
# Of Flickr8k, Flickr30k and COCO, which lie in another folder than the images that they name.
LISTS_ELSEWHERE: Final = frozenset(
    {
        *("flickr8k.token.txt", "results_20130124.token", "results.token", "results.csv"),
        *(f"captions_{part}{year}.json" for part in ("train", "val") for year in (2014, 2017)),
    }
)
LIST_NAMES: Final = LISTS_ELSEWHERE | {
    *("metadata.json", "metadata.tsv"),
    *(f"meta_{each}.json" for each in ("cap", "cap_dd", "clean", "lat")),  # of kohya's scripts
    *(f"captions{each}" for each in (".csv", ".json", ".jsonl", ".tsv", ".txt")),
}
CaptionLines: TypeAlias = Literal["random", "first", "whole"]
_SUFFIX: Final = re.compile(r"(\.[\w+-]+)+")


_CACHED_VARIATIONS: Final = 4  # unless `image_variations` says how many


def _random(what: str) -> float:
    found: float = setting(
        0.0,
        title=f"Random {what}",
        help=f"Multiplies the {what} by a random factor: 0.2 means from 0.8 to 1.2.",
        advanced=True,
        ge=0,
        le=1,
        resume="warn",
    )
    return found


def _fixed(what: str) -> float:
    found: float = setting(
        0.0,
        title=f"Fixed {what}",
        help=f"Changes the {what} of every image, in validation, too: 0.2 multiplies it by 1.2, -0.2 by 0.8.",
        advanced=True,
        ge=-1,
        le=4,
        resume="warn",
    )
    return found


class Concept(Section):
    """A folder of images with their captions, weights and variations."""

    section_title: ClassVar[str] = "Concept"
    _key: int | None = PrivateAttr(None)

    path: str = setting(
        ...,
        title="Folder",
        help="The folder with the images, or with tar, zip, Parquet or Arrow files that hold them, or one such file. "
        "Or an address, s3://BUCKET/FOLDER, hf://datasets/OWNER/NAME or https://HOST/00000.tar, which is downloaded "
        "when a run starts. A relative path is resolved from the folder in which you start Tandem, not from the folder "
        "of the config file.",
        picks="folder",
        min_length=1,
    )
    name: str = setting(
        "",
        title="Name",
        help="A label for lists and reports, which does not affect training. Empty: the folder's name.",
        empty="the folder's name",
    )
    enabled: bool = setting(
        True,
        title="Use this concept",
        help="Switch off to leave these images out without removing the entry.",
        resume="warn",
    )
    kind: Literal["train", "validation", "test"] = setting(
        "train",
        title="Dataset split",
        help="train: the model is trained on these images. validation: never trained on; they only measure how well "
        "the model does on images it has not seen. test: measured once, at the end.",
        resume="warn",
    )
    repeats: float = setting(
        1.0,
        title="Repeats per epoch",
        help="How often each image appears in one epoch. 2 shows every image twice, 0.5 shows half of them in each "
        "epoch. Use it to balance a small folder against a large one.",
        unit="times",
        gt=0,
        le=10_000,
        resume="warn",
    )
    prior: bool = setting(
        False,
        title="Prior preservation",
        help="For regularisation images of the general class, such as many dogs if another folder teaches one dog, "
        "so that the model does not forget the others. Regardless of their number, an epoch shows as many of them as "
        "of all other images; repeats and loss weight change that ratio.",
        depends_on="kind=train",
        resume="warn",
    )
    loss_weight: float = setting(
        1.0,
        title="Loss weight",
        help="Multiplies the loss on these images, in training and validation. 2 counts twice as much as others, 0.5 "
        "half as much.",
        advanced=True,
        gt=0,
        le=1000,
        resume="warn",
    )
    include_subfolders: bool = setting(
        True,
        title="Include subfolders",
        help="Also use the images in subfolders of this folder.",
        resume="warn",
    )
    folder_repeats: bool = setting(
        False,
        title="Repeats from folder names",
        help="On: if all images are in subfolders named as kohya's scripts want them, such as 10_sks dog, each comes "
        "10 times per epoch, times the repeats above, and sks dog is its caption where the subfolder has no texts.",
        depends_on="include_subfolders",
        advanced=True,
        resume="warn",
    )
    resolutions: str = setting(
        "",
        title="Resolution of this concept",
        help="The size that images of this folder are scaled to, instead of the one for all. With several, separated "
        "by spaces, an epoch shows each image at each of them. Empty: as set for all images.",
        empty="as set for all images",
        advanced=True,
        resume="warn",
    )
    min_size: int = setting(
        0,
        title="Smallest side",
        help="Images with a shorter side than this are left out, and listed. 0: none.",
        unit="pixels",
        advanced=True,
        ge=0,
        le=8192,
        resume="warn",
    )
    caption_source: Literal["auto", "txt", "file_name", "folder_name", "metadata", "label", "none"] = setting(
        "auto",
        title="Caption source",
        titles={"auto": "Automatic", "txt": ".txt file"},
        help="txt: a text file next to each image with the same name. file_name or folder_name: that name is the "
        "caption. metadata: files with captions of many images, such as metadata.jsonl, .csv or .parquet or "
        "captions.txt, or records (NAME.json). label: their column `label` or `class`, or NAME.cls, for image "
        "classifiers. none: no captions. auto: the first of an image's entry in a metadata file, its text file, its "
        "record and its entry in another list; the file name only if the folder has none of these. With auto, image "
        "classifiers take the label, or without any the folder's name.",
        resume="warn",
    )
    caption_lines: CaptionLines = setting(
        "random",
        title="Multi-line captions",
        help="What the lines of a caption file are. random: each line is a caption of its own, and one of them is "
        "drawn each time. first: the first line is the caption, without the others. whole: one caption.",
        depends_on="caption_source=auto|txt",
        advanced=True,
        resume="warn",
    )
    caption_extension: str = setting(
        ".txt",
        title="Caption file extension",
        help="The caption of cat.jpg is in cat.txt. Other programs use .caption. With several extensions, separated by "
        "spaces, an image's caption is in the first of these files that exists.",
        depends_on="caption_source=auto|txt",
        advanced=True,
        min_length=1,
        resume="warn",
    )
    caption_column: str = setting(
        "",
        title="Caption column",
        help="The column, or field, that holds the captions in tables, lists and records of images, if it has an "
        "unusual name. Empty: the first of text, caption, prompt, description and tags.",
        empty="text, caption, prompt, description or tags",
        depends_on="caption_source=auto|metadata|label",
        advanced=True,
        resume="warn",
    )
    prompt_prefix: str = setting(
        "",
        title="Caption prefix",
        help="Text put before every caption of this folder, for example a trigger word. Include the space or comma "
        "that should follow it.",
        resume="warn",
    )
    caption_dropout: float | None = setting(
        None,
        title="Caption dropout of this concept",
        help="Probability of training on an image of this folder without its caption. Empty: as set for all images.",
        empty="as set for all images",
        advanced=True,
        ge=0,
        le=1,
        resume="warn",
    )
    wildcards: bool = setting(
        False,
        title="Choices in captions",
        help="Of {a red|a blue|no} in a caption, one is drawn each time; validation uses the first. {{ and }} are "
        "braces. Texts are then encoded in every step, not cached.",
        advanced=True,
        resume="warn",
    )
    tag_shuffle: bool = setting(
        False,
        title="Shuffle tags",
        help="Puts the tags of a caption in a new order each time, so that the model does not learn their order. "
        "Only for captions made of tags, not for sentences.",
        resume="warn",
    )
    tag_delimiter: str = setting(
        ",",
        title="Tag separator",
        help="The character between two tags of a caption.",
        advanced=True,
        min_length=1,
        resume="warn",
    )
    keep_tags: int = setting(
        1,
        title="Keep first tags",
        help="This many tags at the start keep their place and are never dropped; put the trigger word there.",
        unit="tags",
        advanced=True,
        ge=0,
        le=1000,
        resume="warn",
    )
    keep_separator: str = setting(
        "",
        title="Keep tags before",
        help="In captions with this text, such as |||, the tags before it keep their place instead of the first ones, "
        "and so do those after a second one. The text itself is left out. Empty: none.",
        empty="none",
        advanced=True,
        resume="warn",
    )
    tag_dropout: float = setting(
        0.0,
        title="Tag dropout",
        help="Probability of dropping each tag, so that the model also learns from shorter captions. 0 keeps all, "
        "0.1 drops about one in ten.",
        advanced=True,
        ge=0,
        le=1,
        resume="warn",
    )
    kept_tags: str = setting(
        "",
        title="Tags never dropped",
        help="Tags that tag dropout spares wherever they are, with the tag separator between them, in any case.",
        empty="none",
        depends_on="tag_dropout",
        advanced=True,
        resume="warn",
    )
    dropped_tags: str = setting(
        "",
        title="Only tags dropped",
        help="Tag dropout drops these tags alone, with the tag separator between them; with the probability 1 it "
        "always leaves them out. Empty: it drops any.",
        empty="any",
        depends_on="tag_dropout",
        advanced=True,
        resume="warn",
    )
    horizontal_flip: bool = setting(
        False,
        title="Random horizontal flip",
        help="Mirrors the image left to right half of the time, which gets more out of few images. Leave it off for "
        "text, asymmetric faces, or anything whose left and right matter.",
        resume="warn",
    )
    crop_jitter: bool = setting(
        False,
        title="Random crop",
        help="If an image must be cropped, the crop is placed at random instead of in the centre, so that every part "
        "of it is seen.",
        resume="warn",
    )
    color_jitter: float = setting(
        0.0,
        title="Colour jitter",
        help="Brightness, contrast and saturation are multiplied by random factors: 0.2 means from 0.8 to 1.2, for "
        "each of them.",
        ge=0,
        le=1,
        resume="warn",
    )
    random_rotate: float = setting(
        0.0,
        title="Random rotation",
        help="Turns the image by a random angle of up to this to either side. It is enlarged as far as needed, so that "
        "no corner is empty.",
        unit="degrees",
        ge=0,
        le=180,
        resume="warn",
    )
    fixed_rotate: float = setting(
        0.0,
        title="Fixed rotation",
        help="Turns every image counter-clockwise by this angle, in validation, too, and enlarges it so that no corner "
        "is empty.",
        unit="degrees",
        advanced=True,
        ge=-180,
        le=180,
        resume="warn",
    )
    random_brightness: float = _random("brightness")
    fixed_brightness: float = _fixed("brightness")
    random_contrast: float = _random("contrast")
    fixed_contrast: float = _fixed("contrast")
    random_saturation: float = _random("saturation")
    fixed_saturation: float = _fixed("saturation")
    random_hue: float = setting(
        0.0,
        title="Random hue",
        help="Moves all colours around the colour circle by a random amount of up to this to either side. 0.1 is "
        "hardly seen; 1 is half the circle, so any colour may become any other.",
        advanced=True,
        ge=0,
        le=1,
        resume="warn",
    )
    fixed_hue: float = setting(
        0.0,
        title="Fixed hue",
        help="Moves the colours of every image around the colour circle, in validation, too. 1 and -1 are half the "
        "circle: red becomes cyan.",
        advanced=True,
        ge=-1,
        le=1,
        resume="warn",
    )
    image_variations: int | None = setting(
        None,
        title="Cached variations per image",
        help="How many views of each image with other crops, rotations and colours are prepared and kept in the cache, "
        "if these are random; the first is the centre, unchanged. Automatic is 4, and 1 if nothing is random. More "
        "adds variety but multiplies disk space and preparation time. Without the cache, every visit is another view.",
        unit="variations",
        empty="automatic",
        advanced=True,
        ge=1,
        le=16,
        resume="warn",
    )
    references: str = setting(
        "",
        title="Reference images",
        help="For models that edit images: the folder with the images that the captions change. The reference of "
        "a/cat.jpg is a/cat.png in it, in any format, or several are a/cat_1.png, a/cat_2.png and so on; several "
        "folders, separated by ;, have one each. Images without are left out, and listed. Empty: none.",
        picks="folder",
        resume="warn",
    )
    mask_suffix: str = setting(
        "-masklabel.png",
        title="Mask file suffix",
        help="A mask lies next to its image under the same name with this suffix: cat.jpg has cat-masklabel.png. "
        "White is trained, black is not. Only used with masked training.",
        advanced=True,
        min_length=1,
        resume="warn",
    )
    alpha_mask: bool = setting(
        False,
        title="Transparency as mask",
        help="Images without a mask file have their own transparency as mask: what is opaque is trained, what is "
        "transparent, and white in training, is not. Only used with masked training.",
        advanced=True,
        resume="warn",
    )

    def known_as(self, key: int) -> Concept:
        """The same concept, its images known by `key`: its number does not last where others become several."""
        found = self.model_copy()
        found._key = key
        return found

    def key(self, number: int) -> int:
        """What its images are known by, if it has this `number` in the list."""
        return number if self._key is None else self._key

    @property
    def varies(self) -> bool:
        """Whether images are cropped, turned or coloured at random."""
        strengths = (self.random_rotate, self.random_brightness, self.random_contrast, self.random_saturation)
        return self.crop_jitter or any((self.color_jitter, *strengths, self.random_hue))

    @property
    def variations(self) -> int:
        """How many different views of an image are cached, without those that are mirrored."""
        return self.clip_variations if self.varies else 1

    @property
    def clip_variations(self) -> int:
        """Likewise, of a video of which several clips are trained on."""
        return self.image_variations or _CACHED_VARIATIONS

    @property
    def caption_extensions(self) -> tuple[str, ...]:
        """The extensions of caption files, each with its dot, in order of preference; webdataset's for labels."""
        return (LABEL_SUFFIX,) if self.caption_source == "label" else tuple(self.caption_extension.split())

    @property
    def text_suffixes(self) -> tuple[str, ...]:
        """The endings, in lower case, of the files beside an image in which the run may look for its caption or class;
        whether a classifier's `auto` takes labels is known only once they are there."""
        own = tuple(each.lower() for each in self.caption_extensions)
        match self.caption_source:
            case "txt":
                return own
            case "file_name" | "folder_name" | "none":
                return ()
            case _:
                return tuple(dict.fromkeys((*own, *OTHER_TEXTS, *((LABEL_SUFFIX,) * (self.caption_source == "auto")))))

    @property
    def resolution_list(self) -> tuple[int, ...]:
        """The resolutions of its own, in pixels."""
        return tuple(map(int, self.resolutions.split()))

    @property
    def reference_folders(self) -> tuple[str, ...]:
        """The folders with references, as they are written."""
        return split_paths(self.references)

    @field_validator("path")
    @classmethod
    def _of_address(cls, value: str) -> str:
        """A folder or file, or an address that is read."""
        if is_address(value):
            parse_address(value)
        return value

    @field_validator("references", mode="before")
    @classmethod
    def _of_folders(cls, value: object) -> object:
        """Also as a list."""
        return join_paths(value)

    @field_validator("resolutions", mode="before")
    @classmethod
    def _of_numbers(cls, value: object) -> object:
        """Also as a number or a list of them."""
        sides = value if isinstance(value, list | tuple) else [value]
        return " ".join(map(str, sides)) if all(type(each) is int for each in sides) else value

    @model_validator(mode="after")
    def _check_resolutions(self) -> Self:
        if not all(each.isascii() and each.isdigit() and 8 <= int(each) <= 8192 for each in self.resolutions.split()):
            sentence = "give whole numbers from 8 to 8192, separated by spaces, for example 512 768"
            raise broken_rules([("resolutions", f"is {self.resolutions!r}; {sentence}")])
        return self

    @model_validator(mode="after")
    def _check_extensions(self) -> Self:
        if not {"/", "\\", "\0"}.isdisjoint(self.mask_suffix):
            sentence = "give the end of a file's name without folders, for example -masklabel.png"
            raise broken_rules([("mask_suffix", f"is {self.mask_suffix!r}; {sentence}")])
        wrong = [each for each in self.caption_extensions if not _is_extension(each)]
        if wrong or not self.caption_extensions:
            given = repr(self.caption_extension)
            sentence = (
                "give extensions of text files with their dots, separated by spaces, for example .txt or .caption"
            )
            raise broken_rules([("caption_extension", f"is {given}; {sentence}")])
        return self


def split_paths(text: str) -> tuple[str, ...]:
    """The paths in a setting that takes several, separated by semicolons."""
    return tuple(path for each in text.split(";") if (path := each.strip()))


def join_paths(value: object) -> object:
    """A list of paths as the text of such a setting; anything else unchanged."""
    is_list = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return "; ".join(value) if is_list else value  # type: ignore[arg-type]


def _is_extension(text: str) -> bool:
    is_taken = text.lower().endswith((*IMAGE_SUFFIXES, *METADATA_SUFFIXES))
    return _SUFFIX.fullmatch(text) is not None and not is_taken
