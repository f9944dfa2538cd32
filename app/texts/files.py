"""Opening, saving and choosing files."""

from __future__ import annotations

from typing import Final

OPEN: Final = "Open"
OPEN_FILE: Final = "Open a config"
SAVE: Final = "Save"
SAVE_AS: Final = "Save as…"
SAVE_AS_TITLE: Final = "Save the settings"
SAVE_AS_PRESET: Final = "Keep as my preset…"
NEW: Final = "New settings"
PRESETS: Final = "Presets"
ALL_FILES: Final = "All files"
NO_RECENT: Final = "No files yet"
PRESET_QUESTION: Final = "Name of the preset"
CANNOT_SAVE: Final = "Not saved: a file only ever holds settings that can be trained with."
NOT_SAVED: Final = "Not saved"
DISCARD: Final = "Discard changes"
UNSAVED_TITLE: Final = "Keep the changes?"
UNSAVED_QUESTION: Final = "{name} has changes that are not saved."
CANNOT_OPEN: Final = "This file cannot be opened"
OPEN_FAULTY: Final = "This file has faults"
REPAIR: Final = "Open and repair"
REPAIR_HELP: Final = (
    "Tandem can open it nevertheless: wrong values are marked at their fields, unknown names are left out. "
    "The file stays as it is until you save."
)
FILE_FAILED: Final = "{file} cannot be read or written: {reason}."
A_FILE: Final = "A file"
THE_SETTINGS: Final = "The settings"
CHOOSER_UP: Final = "The folder above (Backspace)"
CHOOSER_HOME: Final = "My own folder"
CHOOSER_NAME: Final = "Name"
CHOOSER_CHANGED: Final = "Changed"
CHOOSER_TAKE: Final = "Choose"
CHOOSER_NO_FILE: Final = "There is no file {name} here."
CHOOSER_REPLACE: Final = "{name} exists already. Save once more to replace it."
