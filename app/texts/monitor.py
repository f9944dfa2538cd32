"""The monitor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
EXPORT_HELP: Final = "Save the plots as a picture, or the numbers as a table."
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
RANK_APPLYING: Final = "applying the gradients"  # what "waiting" amounts to where there is one process
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
