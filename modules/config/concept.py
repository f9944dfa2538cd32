"""One folder of pictures and how it is used."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from modules.config.section import Section, setting

# The files of a concept's folder that Tandem opens.
PICTURE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
CAPTION_SUFFIXES: Final = frozenset({".txt", ".csv", ".jsonl"})


class Concept(Section):
    """A folder of pictures with their captions, weights and variations."""

    section_title: ClassVar[str] = "Concept"

    path: str = setting(
        ...,
        title="Folder",
        help="The folder with the pictures. A relative path is read from the folder you start Tandem in, "
        "not from where the config file lies.",
        picks="folder",
        min_length=1,
    )
    name: str = setting(
        "",
        title="Name",
        help="A label for your own orientation in lists and reports. Empty shows the folder's name. It "
        "does not change the training.",
    )
    enabled: bool = setting(
        True,
        title="Use this concept",
        help="Switch off to leave these pictures out without removing the entry.",
        resume="told",
    )
    kind: Literal["train", "validation", "test"] = setting(
        "train",
        title="Used for",
        help="train: the model learns from these pictures. validation: it never learns from them; they "
        "only measure how well it does on pictures it has not seen. test: measured once, at the end.",
        resume="told",
    )
    repeats: float = setting(
        1.0,
        title="Repeats per epoch",
        help="How often each picture comes up in one epoch. 2 shows every picture twice, 0.5 shows half "
        "of them each epoch. Use it to balance a small folder against a large one.",
        unit="times",
        gt=0,
        le=10_000,
        resume="told",
    )
    prior: bool = setting(
        False,
        title="Prior preservation",
        help="For pictures of the kind in general, such as many dogs where another folder teaches one dog, so that "
        "the model does not forget the others. However many there are, an epoch shows as many of them as of all "
        "other pictures; repeats and loss weight change their share.",
        depends_on="kind=train",
        resume="told",
    )
    loss_weight: float = setting(
        1.0,
        title="Loss weight",
        help="How strongly mistakes on these pictures count. 2 makes them pull twice as hard as others, "
        "0.5 half as hard.",
        advanced=True,
        gt=0,
        le=1000,
        resume="told",
    )
    include_subfolders: bool = setting(
        True,
        title="Include subfolders",
        help="Also take the pictures in folders inside this folder.",
        resume="told",
    )
    caption_source: Literal["auto", "txt", "file_name", "folder_name", "metadata", "none"] = setting(
        "auto",
        title="Captions come from",
        help="txt: a text file beside each picture with the same name. file_name or folder_name: the name "
        "itself is the caption. metadata: metadata.jsonl or metadata.csv in the folder. none: no "
        "captions. auto: a picture's entry in the metadata, else its text file; the file name only where the "
        "folder has neither.",
        resume="told",
    )
    prompt_prefix: str = setting(
        "",
        title="Caption prefix",
        help="Text put before every caption of this folder, for example a trigger word. Type the space or "
        "comma that should follow it.",
        resume="told",
    )
    tag_shuffle: bool = setting(
        False,
        title="Shuffle tags",
        help="Puts the tags of a caption in a new order each time, so that the model does not learn their "
        "order. Only for captions made of tags, not for sentences.",
        resume="told",
    )
    tag_delimiter: str = setting(
        ",",
        title="Tag separator",
        help="The character between two tags of a caption.",
        advanced=True,
        min_length=1,
        resume="told",
    )
    keep_tags: int = setting(
        1,
        title="Tags kept in front",
        help="So many tags at the beginning keep their place and are never dropped; put the trigger word there.",
        unit="tags",
        advanced=True,
        ge=0,
        le=1000,
        resume="told",
    )
    tag_dropout: float = setting(
        0.0,
        title="Tag dropout",
        help="The chance with which each tag is left out, so that the model also learns from shorter "
        "captions. 0 keeps all, 0.1 drops about one in ten.",
        advanced=True,
        ge=0,
        le=1,
        resume="told",
    )
    horizontal_flip: bool = setting(
        False,
        title="Random mirror",
        help="Mirrors the picture left to right half of the time, which makes more of few pictures. Leave "
        "it off for text, faces with a known side, or anything where left and right matter.",
        resume="told",
    )
    crop_jitter: bool = setting(
        False,
        title="Random crop",
        help="Where a picture must be cut to fit, the cut is placed at random instead of in the middle, "
        "so that all of its parts are seen.",
        resume="told",
    )
    image_variations: int = setting(
        1,
        title="Variations kept per picture",
        help="How many differently shifted crops of each picture are prepared and kept in the cache. "
        "More gives variety but takes as many times the disk space and preparation time.",
        unit="variations",
        advanced=True,
        ge=1,
        le=16,
        resume="told",
    )
    mask_suffix: str = setting(
        "-masklabel.png",
        title="Mask file ending",
        help="A mask lies beside its picture under the same name with this ending: cat.jpg has "
        "cat-masklabel.png. White is learned, black is not. Only used with masked training.",
        advanced=True,
        min_length=1,
        resume="told",
    )
