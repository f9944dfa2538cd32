"""What the text of a caption file means, and what can be said of one."""

from __future__ import annotations

import re
from enum import IntEnum

from modules.config.sections.concept import CaptionLines

_LINE_END = re.compile(r"\r\n|\r|\n")


def split_caption(text: str, lines: CaptionLines) -> tuple[str, ...]:
    """The captions in the text of a caption file, none of them empty; a whole text keeps its line ends, as "\\n".

    As other trainers: OneTrainer (mgds, LoadMultipleTexts) and SimpleTuner draw one of the lines that are not empty,
    kohya's sd-scripts (train_util.py, read_caption) takes the first line even if it is empty, diffusion-pipe
    (utils/dataset.py) and ai-toolkit (toolkit/dataloader_mixins.py) take the whole file.
    """
    separate = _LINE_END.split(text.replace("\0", ""))
    found = ["\n".join(separate)] if lines == "whole" else separate[:1] if lines == "first" else separate
    return tuple(caption.strip() for caption in found if caption.strip())


class CaptionState(IntEnum):
    """Result of looking for a caption; anything but FOUND is reported. The numbers are stored in the index."""

    FOUND = 0
    MISSING = 1
    UNREADABLE = 2
    EMPTY = 3
    CONTROL = 4  # used, but it contains more than text
    OTHER_ENCODING = 5  # used, but an encoding had to be found for it

    def explain(self) -> str:
        """The state in plain words, for problems.txt."""
        return {
            CaptionState.FOUND: "",
            CaptionState.MISSING: "no caption found; used with an empty caption",
            CaptionState.UNREADABLE: "its caption file cannot be read; used with an empty caption",
            CaptionState.EMPTY: "its caption is empty",
            CaptionState.CONTROL: "its caption contains control characters; it is used with them, but without NUL "
            "characters",
            CaptionState.OTHER_ENCODING: "its caption file is not UTF-8; it was read in the encoding that its folder's "
            "captions seem to have",
        }[self]


class CaptionPlace(IntEnum):
    """Where the caption of an image was found. The numbers are stored in the index."""

    NOWHERE = 0
    METADATA = 1  # metadata.jsonl or metadata.csv
    FILE = 2  # NAME + caption_extension
    OTHER_FILE = 3  # such as NAME.caption, NAME.jpg.txt, captions/NAME.txt or NAME.json
    LIST = 4  # such as metadata.json or captions.txt
    FILE_NAME = 5
    FOLDER_NAME = 6
