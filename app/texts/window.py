"""The window as a whole: sections, header, search, faults, shortcuts."""

from __future__ import annotations

from typing import Final

APP: Final = "Tandem"
UNTITLED: Final = "New settings"
UNSAVED: Final = "unsaved changes"
SAVED: Final = "saved"
PRESET: Final = "a copy of the preset"
NOT_SAVED_YET: Final = "not saved yet"
SECTIONS: Final = {
    "model": ("Model", "What is trained, and from what it begins."),
    "data": ("Data", "The pictures to learn from, and how they reach the model."),
    "training": ("Training", "How long, how large and how exactly; the optimizer and its learning rate."),
    "adapters": ("Adapters", "Which parts of the model are trained; LoRA and new words beside it."),
    "multi_gpu": ("Multi-GPU", "Several GPUs, and several machines."),
    "sampling": ("Sampling", "Test pictures while training, to see what has been learned."),
    "output": ("Output", "Where results go and how often they are kept safe."),
    "monitor": ("Monitor", "The run: its curves, pictures, GPUs and log."),
}
UNDO: Final = "Undo"
REDO: Final = "Do it again"
SEARCH: Final = "Search"
SIMPLE: Final = "Simple"
ADVANCED: Final = "Advanced"
HELP: Final = "Keyboard shortcuts (F1)"
LOOK: Final = "Colours: {mode}"
MODES: Final = {"system": "as the system", "light": "light", "dark": "dark"}
SCALE: Final = "Size: {scale} %"
FAULTS_ONE: Final = "1 setting is not right yet"
FAULTS_MANY: Final = "{count} settings are not right yet"
CANNOT_TRAIN: Final = "Training cannot start yet."
SHOW: Final = "Show"
CLOSE: Final = "Close"
CANCEL: Final = "Cancel"
SOMETHING_WRONG: Final = "{error}: a defect of the window; training goes on."
SEARCH_NOTHING: Final = "Nothing found for “{words}”."
SEARCH_HINT: Final = "Enter shows the setting. Names from other trainers are known, too."
SEARCH_FORMER: Final = "known elsewhere as {name}"
SHORTCUTS_TITLE: Final = "Keyboard shortcuts"
SHORTCUTS: Final = (
    ("Files", (
        ("Ctrl+N", "New settings"), ("Ctrl+O", "Open a config"), ("Ctrl+S", "Save"), ("Ctrl+Shift+S", "Save as"),
        ("Ctrl+P", "Presets"), ("Ctrl+Q", "Close the window"),
    )),
    ("Editing", (
        ("Ctrl+Z", "Undo"), ("Ctrl+Y  Ctrl+Shift+Z", "Do it again"), ("Alt+Backspace", "The field's default"),
        ("Ctrl+I", "Help for the field"), ("F8  Shift+F8", "Next or previous fault"),
    )),
    ("Finding", (
        ("Ctrl+F  Ctrl+K", "Search settings"), ("Ctrl+1 … Ctrl+8", "Section"), ("Ctrl+Tab", "Next section"),
        ("Ctrl+E", "Simple or advanced"), ("Tab  Shift+Tab", "Next or previous field"),
    )),
    ("Window", (
        ("Ctrl+Plus  Ctrl+Minus", "Larger or smaller"), ("Ctrl+0", "100 %"), ("Ctrl+L", "Light, dark, as the system"),
        ("F1", "This list"), ("Esc", "Close a list or a window"),
    )),
    ("Lists", (
        ("Insert", "Add an item"), ("Delete", "Remove it"), ("Ctrl+D", "Make a copy"), ("Alt+Up  Alt+Down", "Move it"),
        ("Space", "On or off"),
    )),
    ("Training", (
        ("F5", "Train"), ("Ctrl+F5", "Resume"), ("Shift+F5", "Stop; once more: end at once"), ("F6", "Back up now"),
        ("F7", "Draw samples now"), ("F9", "Save the model now"),
    )),
)  # fmt: skip
