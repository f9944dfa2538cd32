"""Where results are saved, and in which formats."""

from __future__ import annotations

from typing import ClassVar, Literal

from modules.config.interval import Interval
from modules.config.section import LocalFolder, Section, setting


class OutputSettings(Section):
    """Run folder, log, backups and the formats of the finished model."""

    section_title: ClassVar[str] = "Output"

    runs_dir: LocalFolder = setting(
        "runs",
        title="Runs folder",
        help="Each run gets its own folder in here, with its model, samples, backups and log. A relative path is "
        "resolved from the folder in which you start Tandem.",
        picks="folder",
        min_length=1,
    )
    run_name: str | None = setting(
        None,
        title="Run name",
        help="The name of the run's folder. Empty: the model family and the start time.",
        min_length=1,
    )
    log_every: Interval = setting(
        Interval(1, "steps"),
        title="Log every",
        help="How often loss and speed are logged. Logging every step costs next to nothing.",
        advanced=True,
    )
    backup_every: Interval = setting(
        Interval(30, "minutes"),
        title="Back up every",
        help="How often to save everything needed to resume. A crash loses at most this much.",
    )
    backups_kept: int = setting(
        3,
        title="Backups kept",
        help="Older backups are deleted once a new one is complete. Each takes three to four times the size of what "
        "is trained.",
        unit="backups",
        ge=1,
        le=10_000,
    )
    backups_kept_every: int = setting(
        0,
        title="Keep backups every N steps",
        help="Backups of steps that are multiples of this are not deleted, however many there are. 0: none. They are "
        "made if it is a multiple of the steps between two backups.",
        unit="steps",
        ge=0,
        le=1_000_000_000,
        advanced=True,
    )
    backups_kept_days: float = setting(
        0.0,
        title="Keep backups for",
        help="Younger backups are not deleted, however many there are. 0: only the other two settings decide.",
        unit="days",
        ge=0,
        le=36_500,
        advanced=True,
    )
    save_every: Interval = setting(
        Interval.never(),
        title="Save the model every",
        help="How often to save the model or LoRA as it is then, beside the one that is saved at the end: in the run's "
        "folder saves, named after the step. They are for use and comparison; a run resumes from its backups.",
    )
    saves_kept: int = setting(
        0,
        title="Saved models kept",
        help="Older ones of these models are deleted once a new one is complete. 0: all are kept.",
        unit="models, 0 for all",
        ge=0,
        le=10_000,
        depends_on="save_every",
    )
    tensorboard: bool = setting(
        True,
        title="TensorBoard logs",
        help="Also writes the curves and samples for TensorBoard, a viewer in the browser.",
        advanced=True,
    )
    histograms_every: Interval = setting(
        Interval.never(),
        title="Histograms every",
        help="How often TensorBoard, and Weights & Biases if it is on, get histograms of all trained weights and of "
        "their gradients after clipping. Takes about a second of one core per ten million values.",
        advanced=True,
        depends_on="tensorboard",
    )
    wandb: Literal["off", "online", "offline"] = setting(
        "off",
        title="Weights & Biases",
        help="Also sends the curves, the samples and the settings that are not the defaults, without files and "
        "folders, to the web service wandb.ai, where you need an account (online), or keeps them in the run "
        "folder until you send them with `wandb sync` (offline). Needs the package wandb.",
        advanced=True,
    )
    wandb_project: str = setting(
        "tandem",
        title="Project in Weights & Biases",
        help="The project under which the run appears there.",
        advanced=True,
        depends_on="wandb=online|offline",
        min_length=1,
    )
    profile_steps: int = setting(
        0,
        title="Profile steps",
        help="Records so many steps after the first three with PyTorch's profiler: a trace of each process for "
        "ui.perfetto.dev in the folder profile of the run, and the ten operations that take longest in the log. These "
        "steps are slower. 0: none.",
        unit="steps",
        ge=0,
        le=1000,
        advanced=True,
    )
    save_dtype: Literal["fp64", "fp32", "bf16", "fp16"] = setting(
        "fp32",
        title="Saved precision (dtype)",
        help="fp32 loses nothing, unless precision is fp64, and is the best to continue training from. bf16 and fp16 "
        "take half the space; every tool reads fp16, a few older ones cannot read bf16. Backups always keep full "
        "precision.",
    )
    save_single_file: bool = setting(
        False,
        title="Single-file checkpoint",
        help="Also saves the model as one .safetensors file in the original layout, which ComfyUI, A1111 and kohya's "
        "scripts open. It lies next to the model folder under the run's name. Of a flow-matching model it is the "
        "transformer.",
        depends_on="method=fine_tune",
    )
    rescue_dir: LocalFolder | None = setting(
        None,
        title="Rescue folder",
        help="If the disk of the runs folder does not take the finished model, it is saved here, in a folder with the "
        "run's name. Empty, or if that fails, too: tandem-rescued in your home folder, if 1 GiB stays free there.",
        picks="folder",
        min_length=1,
        advanced=True,
    )
    lora_layouts: Literal["diffusers", "kohya", "both"] = setting(
        "both",
        title="LoRA file format",
        titles={"both": "Both (diffusers and kohya)"},
        help="kohya: for ComfyUI, A1111, Forge and most other tools. diffusers: for programs based on diffusers and "
        "peft. Both files are small.",
        depends_on="method=lora",
    )
    model_title: str = setting(
        "",
        title="Model title",
        help="The name of the model that other tools show. Empty: the run's name.",
    )
    model_author: str = setting(
        "",
        title="Author",
        help="Your name as other tools show it with the model. Empty: none is written.",
    )
    model_license: str = setting(
        "",
        title="Licence",
        help="The licence under which others may use the model, for example CC-BY-4.0. It is only recorded in the "
        "file.",
    )
    trigger_phrase: str = setting(
        "",
        title="Trigger words",
        help="The words of a prompt that invoke what was trained. Tools show them with the model; they do not affect "
        "training.",
        depends_on="method=fine_tune|lora",
    )
    metadata_dataset: bool = setting(
        False,
        title="Dataset metadata",
        help="Also writes the names of the image folders and how often each tag occurs to the saved files. Leave it "
        "off if these are private: anyone who gets the file can read them.",
    )
