"""What stands at fields and lists of settings."""

from __future__ import annotations

from typing import Final

DEFAULT: Final = "Default: {value}"
DEFAULT_EMPTY: Final = "Default: empty"
ALLOWED: Final = "Allowed: {words}"
NAME_IN_FILES: Final = "In files: {name}"
ON_RESUME: Final = {
    "free": "",
    "told": "On resume: may change, which the run tells",
    "fixed": "On resume: has to stay as it is",
    "checked": "On resume: has to come to the same",
}
RESET: Final = "Back to the default: {value}"
EMPTY: Final = "empty"
ON: Final = "on"
OFF: Final = "off"
NONE: Final = "none"
AUTOMATIC: Final = "automatic"
MUST: Final = "Must be {words}"
NEEDS: Final = "Only with “{title}”"
NEEDS_VALUE: Final = "Only with “{title}” {value}"
NEEDS_NOT: Final = "Not with “{title}”"
NEEDS_OR: Final = " or "
BROWSE_FILE: Final = "Choose a file"
BROWSE_FOLDER: Final = "Choose a folder"
NO_SUCH_FOLDER: Final = "There is no such folder now."
NO_SUCH_FILE: Final = "There is no such file or folder; taken as a hub name."
LIST_TITLES: Final = {"concepts": "Concepts", "samples": "Samples", "parts": "Parts of the model"}
LIST_ADD: Final = {"concepts": "Add a folder", "samples": "Add a sample", "parts": "Add a part"}
LIST_EMPTY: Final = {
    "concepts": "No pictures yet.\nAdd a folder with pictures to learn from.",
    "samples": "No samples yet.\nA sample shows what the model can draw while it learns.",
    "parts": "No parts named.\nThe family's main part is trained, or the whole model.",
}
PARTS_NONE: Final = "{name} has no parts: all of it is trained."
LIST_UNNAMED: Final = {"concepts": "no folder chosen", "samples": "no prompt yet", "parts": "no part chosen"}
PART_RATE: Final = "learning rate {rate}"
PART_RUNS_RATE: Final = "learning rate of the run"
PART_UNTIL: Final = "for {interval}"
SAMPLE_DRAWN: Final = "{steps} steps  ·  seed {seed}"
ITEM_UP: Final = "Move up (Alt+Up)"
ITEM_DOWN: Final = "Move down (Alt+Down)"
ITEM_COPY: Final = "Make a copy (Ctrl+D)"
ITEM_REMOVE: Final = "Remove (Delete)"
FAMILY_READING: Final = "Asking {name} which options it has …"
FAMILY_OPTIONS: Final = "Options of {name}"
FAMILY_MORE: Final = "More options of {name}"
FAMILY_UNKNOWN: Final = "The options can be written down below; they are checked when training starts."
FAMILY_FILE: Final = "My own Python file…"
METHOD_UNKNOWN: Final = "{name} cannot train with {method}."
FAMILY_NO_FILE: Final = "family is {name!r}, but there is no file {file} for it."
FAMILY_BUILT_IN: Final = "The built-in families are: {names}."
FAMILY_SILENT: Final = "{name} did not say within {seconds} seconds which options it has."
FAMILY_ENDED: Final = "{name} ended with exit code {code}."
FAMILY_UNREADABLE: Final = "What {name} says about its options cannot be read: {error}."
FAMILY_NONE: Final = "{name} has no options of its own."
MORE_CARD: Final = "More"
