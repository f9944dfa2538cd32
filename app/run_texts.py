"""The sentences about runs: run bar, monitor and what belongs to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# The state of a run

NO_RUN: Final = "No run yet"
NO_RUN_DETAIL: Final = "Press Train to begin."
STARTING: Final = "Starting"
STARTING_DETAIL: Final = "Python and the libraries are being loaded; this takes some seconds."
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
COUNTED: Final = "{words} {done} of {total}"
PHASES: Final[Mapping[str, str]] = {
    "loading": "Loading the model",
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
SAVE: Final = "Save"
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
WHY_NOT_RESUMABLE: Final = "There is no run to go on with."
NOT_ASKED: Final = "The request for {name} could not be written: {reason}."
STEP: Final = "Step"
LOSS: Final = "Loss"
SPEED: Final = "Samples/s"
LEFT: Final = "Left"
FIGURE_NONE: Final = "-"
STEP_OF: Final = "{step} of {total}"
SHOW_LOG: Final = "Show log"
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
CANCEL: Final = "Cancel"
CLOSE: Final = "Close"
NOT_STARTED_TITLE: Final = "Training did not start"
TAKEN_TITLE: Final = "This run exists already"
TAKEN_QUESTION: Final = "There is a run named {name}. Go on with it, or start anew under another name?"
TAKEN_RESUME: Final = "Go on with it"
TAKEN_NEW: Final = "Start as {name}"

# The monitor

MONITOR_TABS: Final[Mapping[str, str]] = {
    "curves": "Curves",
    "ranks": "Processes",
    "samples": "Samples",
    "log": "Log",
    "runs": "Runs",
}
NO_RUN_YET: Final = "No run yet: press Train"
NO_RUN_YET_HELP: Final = "Its curves, processes, samples and log are shown here. Earlier runs are under Runs."
PREPARING: Final = "Preparing the plots …"
NO_CURVE: Final = "Nothing yet"
CURVE_LOSS: Final = "Loss"
CURVE_LR: Final = "Learning rate"
CURVE_NORM: Final = "Gradient norm"
CURVE_SPEED: Final = "Samples per second"
LINE_LOSS: Final = "training"
LINE_VALIDATION: Final[Mapping[str, str]] = {"validation": "validation", "test": "test"}
AT_STEP: Final = "step {step}  ({clock})"
SMOOTHED_VALUE: Final = "  (smoothed {value})"
OVER_STEPS: Final = "Steps"
OVER_TIME: Final = "Time"
SMOOTHING: Final = "Smoothing"
SMOOTHING_NONE: Final = "off"
SMOOTHING_SPAN: Final = "{n:,} steps"
LOG_SCALE: Final = "Logarithmic"
WHOLE_RANGE: Final = "Show all"
WHOLE_RANGE_HELP: Final = (
    "Drag in a plot to zoom in, turn the wheel, or drag with the right button to move; this shows all."
)
EXPORT_PNG: Final = "Save the plots as PNG …"
EXPORT_CSV: Final = "Save the numbers as CSV …"
EXPORT: Final = "Export"
EXPORTED: Final = "Saved in {file}."
TENSORBOARD: Final = "TensorBoard"
TENSORBOARD_HELP: Final = (
    "Start TensorBoard for all runs in this folder and open it in the browser; it ends with the window."
)
TENSORBOARD_AT: Final = "TensorBoard: {url}"
TENSORBOARD_STARTING: Final = "TensorBoard is starting …"
TENSORBOARD_FAILED: Final = "TensorBoard did not start: {reason}"
NO_RANKS: Final = "The processes tell of themselves once training has begun."
RANK_NAME: Final = "Process"
RANK_STEP: Final = "Where the time of a step goes"
RANK: Final = "Rank {rank}"
RANK_ON: Final = "Rank {rank} on {host}"
RANK_SLOWEST: Final = "slowest, {times:.1f} x the median"
RANK_STEP_TIME: Final = "{now} a step   ({mean} on average)"
RANK_DATA: Final = "   {share:.0%} waiting for data"
RANK_SUMMARY: Final = "ø {mean}   max {most}"
RANKS_EVEN: Final = "All processes are about equally fast."
RANK_ALONE: Final = "One process."
RANK_SENTENCES: Final[Mapping[str, str]] = {
    "slow": "{rank} is the slowest: its steps take {value:.1f} x the median, and the others wait for it.",
    "starving": "{rank} waits for data {value:.0%} of the time: more loader_workers may help.",
}
RANK_PARTS: Final[Mapping[str, str]] = {
    "data_s": "waiting for data",
    "computing": "computing",
    "waiting": "waiting for the others, applying",
}
# Of each figure: its title, how it is written, its unit, and what it is multiplied with before.
RANK_GAUGES: Final[Mapping[str, tuple[str, str, str, float]]] = {
    "utilization_percent": ("GPU load", "{:.0f}", " %", 1.0),
    "memory_used_mib": ("Memory", "{:.1f}", " GiB", 1 / 1024),
    "temperature_c": ("Temperature", "{:.0f}", " °C", 1.0),
    "power_w": ("Power", "{:.0f}", " W", 1.0),
    "cpu_percent": ("Processors", "{:.0f}", " %", 1.0),
    "ram_used_mib": ("Main memory", "{:.1f}", " GiB", 1 / 1024),
}
BY_STEP: Final = "One step"
BY_PROMPT: Final = "One prompt"
SAMPLE_STEP: Final = "step {step:,}"
SAMPLE_PLACE: Final = "Step {step:,}   ({place} of {count})"
NO_SAMPLES_YET: Final = "No samples yet.\nThey are drawn as often as Sampling says, and whenever you press Sample."
NO_PICTURE: Final = "cannot be read"
VIEWER_TITLE: Final = "Step {step:,}: {prompt}"
VIEWER_KEYS: Final = "Left and right: other steps.  Up and down: other prompts.  Esc: close."
COPY_PROMPT: Final = "Copy the prompt"
SAMPLE_SETTINGS: Final[Mapping[str, str]] = {
    "prompt": "Prompt",
    "negative_prompt": "Negative prompt",
    "step": "After training step",
    "size": "Size",
    "steps": "Drawing steps",
    "guidance_scale": "Guidance",
    "seed": "Seed",
    "file": "File",
}
LOG_ALL: Final = "All sources"
LOG_CONSOLE: Final = "Printed output"
LOG_LAUNCHER: Final = "Launcher"
LOG_LEVELS: Final[Mapping[str, str]] = {
    "all": "Everything",
    "warning": "Warnings and errors",
    "error": "Errors",
}
LOG_SEARCH: Final = "Search in the log"
LOG_COUNT: Final = "{count:,} lines"
LOG_NOTHING: Final = "No lines"
LOG_PASSED_OVER: Final = "; older ones are in the files"
LOG_END: Final = "To the end"
CURVE_VALIDATION: Final = "Validation"
RUN_NAME: Final = "Run"
RUN_STATE: Final = "State"
RUN_BEGUN: Final = "Begun"
RUN_LENGTH: Final = "Took"
RUN_FOLLOW: Final = "Follow"
RUN_FOLLOW_HELP: Final = "Show this run in the monitor and the run bar."
RUN_SETTINGS: Final = "Open its settings"
RUN_SETTINGS_HELP: Final = "Edit a copy of the settings with which it was started."
RUN_CHOOSE: Final = "Choose two or more runs to compare them."
RUNS_CHOSEN: Final = "{count} runs compared."
NO_RUNS: Final = "There are no runs in {folder} yet."
COMPARISON: Final = "Comparison"
SETTING: Final = "Setting"
NO_DIFFERENCES: Final = "The settings are the same."
PROBLEM_WHERE: Final = " (rank {rank} on {host})"
WARNING: Final = "1 warning"
WARNINGS: Final = "{count} warnings"
