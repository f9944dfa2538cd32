"""Runs: their states, the run bar, and its questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# The state of a run

NO_RUN: Final = "No run yet"
NO_RUN_DETAIL: Final = "Press Train to begin."
READING_RUN: Final = "Reading the run …"
STARTING: Final = "Starting"
STARTING_DETAIL: Final = "Python and the libraries are being loaded; this takes some seconds."
WAITING: Final = "Waiting for machines"
ENDING: Final = "Ending"
ENDED: Final = "Ended"
STOPPING: Final = "Stopping"
STOPPING_DETAIL: Final = "The step is finished and a backup written first. Press Stop again to end at once."
STOPPING_EARLY: Final = "The run ends as soon as it can listen. Press Stop again to end at once."
QUIET: Final = "Training: no news for {since}"
QUIET_DETAIL: Final = "The process is there but says nothing. A step may be slow, or a rank hangs: look at the log."
FAILED: Final = "Failed"
NOT_STARTED: Final = "Did not start"
NO_REASON: Final = "The run failed and left no message; its log may say more."
KILLED: Final = "Ended without a word"
KILLED_DETAIL: Final = "The process is gone: it was killed, or the computer went down."
RESUME_FROM_STEP: Final = "Resume goes on from the backup of step {step}."
RESUME_FROM_START: Final = "There was no backup yet: Resume begins at the first step."
FOLDER_GONE: Final = "The run's folder is gone"
FOLDER_GONE_DETAIL: Final = "It was deleted, moved, or its disk is no longer connected."
COUNTED: Final = "{words} {amount}"
PHASES: Final[Mapping[str, str]] = {
    "loading": "Loading the model",
    "downloading": "Downloading the base model",
    "indexing": "Looking through the pictures",
    "caching": "Preparing pictures",
    "training": "Training",
    "sampling": "Drawing samples",
    "saving": "Saving",
    "validation": "Validating",
    "test": "Testing",
}
ENDINGS: Final[Mapping[str, tuple[str, str]]] = {
    "finished": ("Finished", "All steps are done and the model is saved."),
    "early_stopping": ("Finished early", "Validation no longer improved; the model is saved."),
    "cached": ("Pictures prepared", "Nothing was trained, as asked; training starts at once now."),
    "stopped": ("Stopped", "A backup was taken; Resume goes on from it."),
    "interrupted": ("Stopped", "Interrupted after a backup; Resume goes on from it."),
    "paused": ("Paused", "A backup was taken; Resume goes on from it."),
    "terminated": ("Ended from outside", "The run was told to end; Resume goes on from the last backup."),
}
SECONDS: Final = "{n} s"
MINUTES: Final = "{n} min"
HOURS: Final = "{n} h {m:02d} min"
DAYS: Final = "{n} d {h} h"

# The run bar

TRAIN: Final = "Train"
RESUME: Final = "Resume"
STOP: Final = "Stop"
END_AT_ONCE: Final = "End at once"
BACK_UP: Final = "Back up"
SAMPLE: Final = "Sample"
TRAIN_HELP: Final = "Start training with these settings, in a process of its own."
RESUME_HELP: Final = "Go on with the run {name} where its last backup stands."
STOP_HELP: Final = "End the run after the present step and a backup."
END_HELP: Final = "End the run without waiting for a backup."
BACK_UP_HELP: Final = "Write everything needed to go on, now."
SAMPLE_HELP: Final = "Draw the sample pictures with the model as it stands."
SAVE_HELP: Final = "Save the model as it stands, in its output format."
WHY_TRAINING: Final = "A run is going on: stop it first, or leave it and follow another under Monitor, Runs."
WHY_NO_RUN: Final = "No run is going on."
WHY_NOT_YET: Final = "The run has not reached its first step yet."
WHY_STOPPING: Final = "The run is stopping."
WHY_ASKED: Final = "Asked for; the run takes it up after the present step."
WHY_NO_SAMPLES: Final = "The run has no sample prompts: add some under Sampling before the start."
RUN_KEYS: Final[Mapping[str, str]] = {
    "train": "F5",
    "resume": "Ctrl+F5",
    "stop": "Shift+F5",
    "back_up": "F6",
    "sample": "F7",
    "save": "F9",
}
NOT_ASKED: Final = "The request for {name} could not be written: {reason}."
STEP: Final = "Step"
LOSS: Final = "Loss"
SPEED: Final = "Samples/s"
LEFT: Final = "Left"
FIGURE_NONE: Final = "-"
STEP_OF: Final = "{step} of {total}"
SHOW_LOG: Final = "Show log"
JOIN_LINE: Final = "Copy join line"
JOIN_LINE_HELP: Final = "Copy the line that lets another machine join; paste it there, in Tandem's folder."
JOIN_LINE_COPIED: Final = "Copied. Paste it in Tandem's folder on each of the other machines."
JOIN_TITLE: Final = "Start this on each of the other machines, in Tandem's folder:"
NOT_MACHINE_0: Final = (
    "This machine is number {rank} of {nodes}; a run on several machines is started on machine 0. Set its number "
    "(node_rank) to 0 here, or paste machine 0's join line into a terminal."
)
MORE_RUNS: Final = "{count} other runs are being trained; they are under Monitor, Runs."
REATTACHED: Final = "Following {name}, which was already being trained."

# Questions

END_TITLE: Final = "End the run at once?"
END_QUESTION: Final = (
    "The run is already stopping and is writing a backup. Ended at once, it loses everything since its last backup"
    "{backup}."
)
END_BACKUP: Final = " (step {step})"
END_NO_BACKUP: Final = " (there is none yet)"
END_YES: Final = "End at once"
END_NO: Final = "Wait for the backup"
CLOSE_TITLE: Final = "A run is being trained"
CLOSE_QUESTION: Final = "{name} is at {where}. It is a process of its own and does not need this window."
CLOSE_STEP: Final = "step {step}"
CLOSE_START: Final = "its start"
CLOSE_LEAVE: Final = "Leave it running"
CLOSE_LEAVE_HELP: Final = "The window finds it again when you open it."
CLOSE_STOP: Final = "Stop it after a backup"
CLOSE_STOP_HELP: Final = "The run ends by itself after the present step."
NOT_STARTED_TITLE: Final = "Training did not start"
TAKEN_TITLE: Final = "This run exists already"
TAKEN_QUESTION: Final = "There is a run named {name}. Go on with it, or start anew under another name?"
TAKEN_RESUME: Final = "Go on with it"
TAKEN_NEW: Final = "Start as {name}"
