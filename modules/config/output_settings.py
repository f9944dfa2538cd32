"""Where results go, and in which files."""

from __future__ import annotations

from typing import ClassVar, Literal

from modules.config.interval import Interval
from modules.config.section import Section, setting


class OutputSettings(Section):
    """Run folder, log, backups and the files of the finished model."""

    section_title: ClassVar[str] = "Output"

    runs_dir: str = setting(
        "runs",
        title="Folder for runs",
        help="Every run gets a folder of its own in here, with its model, samples, backups and log. A "
        "relative path is read from the folder you start Tandem in.",
        picks="folder",
        min_length=1,
    )
    run_name: str | None = setting(
        None,
        title="Name of the run",
        help="The name of the run's folder. Empty: the model family and the time of the start.",
        min_length=1,
    )
    log_every: Interval = setting(
        Interval(1, "steps"),
        title="Log every",
        help="How often loss and speed are written down. Every step costs next to nothing.",
        advanced=True,
    )
    backup_every: Interval = setting(
        Interval(30, "minutes"),
        title="Back up every",
        help="How often everything needed to continue is saved. After a crash at most this much is lost.",
    )
    backups_kept: int = setting(
        3,
        title="Backups kept",
        help="Older backups are deleted when a new one is complete. Each takes three to four times the "
        "size of what is trained.",
        unit="backups",
        ge=1,
        le=10_000,
    )
    tensorboard: bool = setting(
        True,
        title="Write for TensorBoard",
        help="Also writes the curves and samples for TensorBoard, a viewer in the browser.",
        advanced=True,
    )
    save_dtype: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        title="Number format of saved files",
        help="fp32 loses nothing and is the best to train on from. bf16 and fp16 take half the space; every tool "
        "reads fp16, and a few older ones no bf16. Backups always keep full precision.",
    )
    save_single_file: bool = setting(
        False,
        title="Also as one file",
        help="Writes the model a second time, as one .safetensors file in the original layout, which ComfyUI, A1111 "
        "and kohya's scripts open. It lies beside the model folder under the name of the run. For Stable Diffusion "
        "and SDXL.",
        depends_on="method=fine_tune",
    )
    lora_layouts: Literal["diffusers", "kohya", "both"] = setting(
        "both",
        title="LoRA files for",
        help="kohya: for ComfyUI, A1111, Forge and most other tools. diffusers: for programs written with diffusers "
        "and peft. Both are small.",
        depends_on="method=lora",
    )
    model_title: str = setting(
        "",
        title="Title",
        help="The name of the model that other tools show. Empty: the name of the run.",
    )
    model_author: str = setting(
        "",
        title="Author",
        help="Your name as other tools show it beside the model. Empty: none is written.",
    )
    model_license: str = setting(
        "",
        title="Licence",
        help="Under which licence others may use the model, for example CC-BY-4.0. Only written down.",
    )
    trigger_phrase: str = setting(
        "",
        title="Trigger words",
        help="The words of a prompt that call what was learned. Tools show them beside the model; they change "
        "nothing in the training.",
        depends_on="method=fine_tune|lora",
    )
    metadata_dataset: bool = setting(
        False,
        title="Tell about the pictures",
        help="Also writes the names of the picture folders and how often each tag occurs into the saved files. "
        "Leave it off where these are private: everyone who gets the file can read them.",
    )
