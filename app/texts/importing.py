"""Opening the settings of another trainer."""

from __future__ import annotations

from typing import Final

IMPORT: Final = "Import from another trainer…"
IMPORT_CHOOSE: Final = "The settings of another trainer"
IMPORT_TITLE: Final = "Settings of {trainer}"
IMPORT_WORDS: Final = (
    "What became of each setting of {file}. The file stays as it is; the result is opened as new settings."
)
IMPORT_LOST: Final = "Not carried over ({count})"
IMPORT_CHANGED: Final = "Changed in meaning ({count})"
IMPORT_TAKEN: Final = "Taken over ({count})"
IMPORT_THEIRS: Final = "In {trainer}"
IMPORT_OURS: Final = "Here"
IMPORT_WHY: Final = "Why"
IMPORT_ABSENT: Final = "{name} {value} (usual there)"
IMPORT_EMPTY: Final = "Nothing stands in this list."
IMPORT_COPY: Final = "Copy the lists"
IMPORT_COPIED: Final = "Copied"
IMPORT_OPEN: Final = "Open it"
WELCOME_IMPORT: Final = "Open my settings"
WELCOME_IMPORT_HELP: Final = "From OneTrainer, kohya's scripts and window, and other trainers."
