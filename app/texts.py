"""Every sentence of the window that is not declared with the settings: one module, for translation."""

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
    "multi_gpu": ("Multi-GPU", "Several GPUs, and several machines."),
    "sampling": ("Sampling", "Test pictures while training, to see what has been learned."),
    "output": ("Output", "Where results go and how often they are kept safe."),
    "monitor": ("Monitor", "The run: its curves, pictures, GPUs and log."),
}

OPEN: Final = "Open"
OPEN_FILE: Final = "Open a config"
SAVE: Final = "Save"
SAVE_AS: Final = "Save as…"
SAVE_AS_TITLE: Final = "Save the settings"
SAVE_AS_PRESET: Final = "Keep as my preset…"
NEW: Final = "New settings"
PRESETS: Final = "Presets"
UNDO: Final = "Undo"
REDO: Final = "Do it again"
SEARCH: Final = "Search"
SIMPLE: Final = "Simple"
ADVANCED: Final = "Advanced"
HELP: Final = "Keyboard shortcuts (F1)"
LOOK: Final = "Colours: {mode}"
MODES: Final = {"system": "as the system", "light": "light", "dark": "dark"}
SCALE: Final = "Size: {scale} %"
ALL_FILES: Final = "All files"
NO_RECENT: Final = "No files yet"
PRESET_QUESTION: Final = "Name of the preset"

FAULTS_ONE: Final = "1 setting is not right yet"
FAULTS_MANY: Final = "{count} settings are not right yet"
CANNOT_SAVE: Final = "Not saved: a file only ever holds settings that can be trained with."
NOT_SAVED: Final = "Not saved"
CANNOT_TRAIN: Final = "Training cannot start yet."
SHOW: Final = "Show"
CLOSE: Final = "Close"
CANCEL: Final = "Cancel"
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
SOMETHING_WRONG: Final = "{error}: a defect of the window; training goes on."

DEFAULT: Final = "Default: {value}"
DEFAULT_EMPTY: Final = "Default: empty"
ALLOWED: Final = "Allowed: {words}"
NAME_IN_FILES: Final = "In files: {name}"
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

LIST_ADD: Final = {"concepts": "Add a folder", "samples": "Add a sample"}
LIST_EMPTY: Final = {
    "concepts": "No pictures yet.\nAdd a folder with pictures to learn from.",
    "samples": "No samples yet.\nA sample shows what the model can draw while it learns.",
}
LIST_UNNAMED: Final = {"concepts": "no folder chosen", "samples": "no prompt yet"}
ITEM_UP: Final = "Move up (Alt+Up)"
ITEM_DOWN: Final = "Move down (Alt+Down)"
ITEM_COPY: Final = "Make a copy (Ctrl+D)"
ITEM_REMOVE: Final = "Remove (Delete)"

FAMILY_READING: Final = "Asking {name} which options it has …"
FAMILY_OPTIONS: Final = "Options of {name}"
FAMILY_UNKNOWN: Final = "The options can be written down below; they are checked when training starts."
FAMILY_FILE: Final = "My own Python file…"
METHOD_UNKNOWN: Final = "{name} cannot train with {method}."
FAMILY_NONE: Final = "{name} has no options of its own."
MORE_CARD: Final = "More"

SEARCH_NOTHING: Final = "Nothing found for “{words}”."
SEARCH_HINT: Final = "Enter shows the setting. Names from other trainers are known, too."
SEARCH_FORMER: Final = "known elsewhere as {name}"

CHOOSER_UP: Final = "The folder above (Backspace)"
CHOOSER_HOME: Final = "My own folder"
CHOOSER_NAME: Final = "Name"
CHOOSER_CHANGED: Final = "Changed"
CHOOSER_TAKE: Final = "Choose"
CHOOSER_NO_FILE: Final = "There is no file {name} here."
CHOOSER_REPLACE: Final = "{name} exists already. Save once more to replace it."

WELCOME_TITLE: Final = "Welcome to Tandem"
WELCOME_TEXT: Final = "Train image models on one GPU, on all of them, or on several machines. How do you want to begin?"
WELCOME_DEMO: Final = "Try the demo"
WELCOME_DEMO_HELP: Final = "Draws 200 small pictures and trains on them for about a minute, also without a GPU."
WELCOME_PRESET: Final = "Open a preset"
WELCOME_PRESET_HELP: Final = "Ready settings to begin from; change what you like."
WELCOME_OWN: Final = "Begin with empty settings"
WELCOME_OWN_HELP: Final = "Choose a model, add your pictures, train."
WELCOME_DRAWING: Final = "Drawing the demo's pictures …"
WELCOME_LATER: Final = "F1 lists the keyboard shortcuts."

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
        ("Ctrl+F  Ctrl+K", "Search settings"), ("Ctrl+1 … Ctrl+7", "Section"), ("Ctrl+Tab", "Next section"),
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
)  # fmt: skip

NO_DISPLAY: Final = (
    "There is no display to open the window on. Train without it: python scripts/train.py --config FILE "
    "(--help says more)."
)

# The pictures of the Data section
PICTURE_TABS: Final = {
    "folders": "Folders and settings",
    "pictures": "Pictures",
    "tags": "Tags",
    "buckets": "Sizes",
    "problems": "Problems",
}
PROBLEMS_COUNT: Final = "Problems ({count})"
REPEATS: Final = "{repeats} \N{MULTIPLICATION SIGN}  \N{MIDDLE DOT}  "
FOLDER_PICTURES: Final = "{count:,} pictures"
FOLDER_PROBLEMS: Final = ", {count:,} problems"
FOLDER_UNREADABLE: Final = "cannot be read"
PICTURES_READING: Final = "Reading the folders …"
PICTURES_TOTAL: Final = "{pictures} pictures, {captioned} with a caption."
NO_PICTURES: Final = "No pictures to show."
NO_FOLDERS: Final = "No folder of pictures yet: add one under “Folders and settings”."
FILTER_PICTURES: Final = "Filter by name or caption"
PICTURE_FILTERS: Final = {
    "all": "All pictures",
    "caption": "Without a caption",
    "duplicate": "Duplicates",
    "tiny": "Too small",
}
PICTURES_SHOWN: Final = "{shown:,} of {total:,}"
REPLACE: Final = "Search and replace"
REPLACE_SEARCH: Final = "Search"
REPLACE_WITH: Final = "Replace with"
WHOLE_WORDS: Final = "whole words"
MATCH_CASE: Final = "match case"
REPLACE_COUNT: Final = "Replace in {count:,} captions"
REPLACE_NONE: Final = "Nothing to replace"
REPLACED: Final = "{count:,} captions replaced"
CAPTION_HINT: Final = "One caption a line. Written when you move on; Ctrl+Enter writes at once, Esc takes back."
CAPTION_WRITTEN: Final = "{file} is written."
CAPTION_NOT_WRITTEN: Final = "{file} cannot be written: {reason}."
CAPTION_UNDO: Final = "Take back"
CAPTION_FIXED: Final = {
    "auto": "This caption comes from the folder's metadata or from the file name. Choose “txt” as the folder's "
    "source to write captions here.",
    "file_name": "The file's name is its caption, as the folder's settings say.",
    "folder_name": "The folder's name is the caption, as its settings say.",
    "metadata": "The captions are in the folder's metadata file; edit that one.",
    "none": "The folder's settings say that its pictures have no captions.",
}
NOT_UTF8: Final = "it is not UTF-8 text"
TAG: Final = "Tag"
TAG_COUNT: Final = "Captions"
MOST_TAGS: Final = 5000
TAG_HINT: Final = "Enter or a double click shows the pictures with the tag."
PROBLEM: Final = "What is wrong"
PROBLEM_KIND: Final = "Kind"
PROBLEM_FILE: Final = "File"
PROBLEM_KINDS: Final = {"broken": "unreadable", "caption": "caption", "tiny": "too small", "duplicate": "duplicate"}
PROBLEM_HINT: Final = "Enter or a double click shows the picture."
NO_PROBLEMS: Final = "Nothing is wrong with the pictures."
BUCKET_HINT: Final = "So many pictures are trained in each size."
PICTURES_AGAIN: Final = "Read again"
PICTURE_SIZE: Final = "{width} \N{MULTIPLICATION SIGN} {height}"
PICTURE_FACTS: Final = "{size} pixels, trained as {bucket}"
NO_TK: Final = (
    "This Python has no Tk, which the window needs: install it (Debian, Ubuntu: apt install python3-tk), or train "
    "without the window: python scripts/train.py --config FILE."
)

# The GPUs and machines of the Multi-GPU section
GPUS_TITLE: Final = "GPUs of this machine"
GPUS_CHOSEN: Final = "{chosen} of {found} used"
NO_GPUS: Final = (
    "No GPU was found here: training uses the processor. “Number of processes” says how many processes share it, "
    "which is for trying things out."
)
GPU_NAME: Final = "GPU {index}   {name}"
GPU_MEMORY: Final = "{used:.1f} of {total:.0f} GB"
LINKS_TITLE: Final = "Links between the GPUs"
LINK_MEANING: Final = "{label}: {meaning}."
NO_PEER_ACCESS: Final = "GPU {first} and GPU {second} cannot read each other's memory: their exchange takes a detour."
PLAN_TITLE: Final = "What this amounts to"
PLAN_UNKNOWN: Final = "Some settings are not right yet."
PLAN_WORLD_UNKNOWN: Final = "The number of processes is known when all machines have counted their GPUs."
UNIT_GPU: Final = "GPU"
UNIT_PROCESS: Final = "process"
PLAN_HERE: Final = "{count} {unit}"
PLAN_NODES: Final = "{nodes} nodes x {count} {unit}"
PLAN_UNEQUAL: Final = "{counts} {unit}"
PLAN_BATCH: Final = " x batch {batch} x accumulation {steps} = {total}"
PLAN_FIXED_BATCH: Final = ", effective batch fixed at {total}"
PLAN_SAME_RATE: Final = "; learning rate {rate}."
PLAN_SCALED_RATE: Final = "; learning rate {rate} becomes {scaled}."
PREFLIGHT: Final = "Preflight check"
MULTI_NODE: Final = "Several machines…"


def plural(count: int, unit: str) -> str:
    """ "The unit for so many: GPU, GPUs, processes."""
    return f"{unit}{'' if count == 1 else 'es' if unit.endswith('s') else 's'}"


# The multi-node window
MULTI_NODE_TITLE: Final = "Train on several machines"
MULTI_NODE_WORDS: Final = (
    "Every machine needs Tandem and the pictures. Start machine 0, then paste the join line on each of the others: it "
    "brings the settings, and differences in code, packages or pictures are found before anything starts."
)
MACHINES: Final = "Machines"
MEETING: Final = "Where they meet"
OWN_ADDRESSES: Final = "This machine's addresses; choose the one that the others reach:"
PORT_FREE: Final = "Port {port} is free on this machine."
PORT_TAKEN: Final = "Port {port} is in use on this machine: choose another."
GENERATE: Final = "Generate launch command"
GENERATE_HINT: Final = "“Generate launch command” shows one exact command for each machine."
ONE_MACHINE: Final = "“Machines” is 1: set how many machines train together."
SAVE_FIRST: Final = "The commands name the config file: save the settings first."
COPY: Final = "Copy"
COPIED: Final = "Copied"
COMMAND_FIRST: Final = "Machine 0, which the others join"
COMMAND_FIRST_HELP: Final = (
    "Start this first, here or on whichever machine has the address above. It shows who has come."
)
COMMAND_JOIN: Final = "Every other machine"
COMMAND_JOIN_HELP: Final = "In Tandem's folder there. It needs no config file; its word at the end keeps strangers out."
COMMAND_NODE: Final = "Machine {node} with torchrun, by hand"
COMMAND_NODE_HELP: Final = "Needs the same config file at the same place on every machine."
COMMAND_SLURM: Final = "Slurm batch script"
COMMAND_SLURM_HELP: Final = "Save it and submit it with sbatch, or let scripts/submit_slurm.py do both."
COMMAND_IMPOSSIBLE: Final = "# not possible: {reason}"
SLURM_RUN_NAME: Final = "slurm-run"

# The preflight window
PREFLIGHT_WORDS: Final = "Tries out devices, network, disks and pictures with these settings; trains nothing."
PREFLIGHT_DEPTHS: Final = {"Quick": "basic", "Thorough": "all"}
PREFLIGHT_START: Final = "Check again"
PREFLIGHT_RUNNING: Final = "Checking …"
PREFLIGHT_SILENT: Final = "The check ended without a word."
PREFLIGHT_CHECK: Final = "Check"
PREFLIGHT_WHERE: Final = "Where"
PREFLIGHT_RESULT: Final = "Result"
PREFLIGHT_STATES: Final = {"green": "ok", "yellow": "note", "red": "wrong", "grey": "-"}

# What a base model is
MODEL_FOLDER: Final = "{kind}, with {parts}."
MODEL_FILE: Final = "{kind}, {count:,} tensors."
MODEL_UNKNOWN_KIND: Final = "A model of a kind that is not known here"
MODEL_OF_HUB: Final = "Looks like a model on the hub; {name} is fetched when training starts."
MODEL_MISSING: Final = "There is no folder or file {name}, and it is no hub id (owner/name)."
MODEL_NO_INDEX: Final = "This folder has no model_index.json, so it is no model in the diffusers format."
MODEL_BAD_INDEX: Final = "{file} cannot be read; copy the model again."
MODEL_INCOMPLETE: Final = "{kind}, but parts are missing or incomplete: {parts}."
MODEL_PICKLE: Final = "{file} is a pickle, which can run code when it is opened: convert it to .safetensors first."
MODEL_WRONG_FILE: Final = "{file} is no model: choose a .safetensors file, a diffusers folder or a hub id."
MODEL_CUT_OFF: Final = "{file} is cut off or damaged: copy or download it again."
MODEL_IS_LORA: Final = "{file} is a LoRA, which stands beside a base model and is none itself."
MODEL_UNREADABLE: Final = "{file} cannot be read: {reason}."
