"""The model family, base model and training method."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import JsonValue

from modules.config.section import Section, setting


class ModelSettings(Section):
    """The model family, the model to start from and how it is trained."""

    section_title: ClassVar[str] = "Model"

    family: str = setting(
        "pixel_diffusion",
        title="Model family",
        help="The kind of model to train. Give a built-in name such as pixel_diffusion, or the path of your own "
        "Python file (ending in .py), in the folder in which you start Tandem or else beside the config; Tandem asks "
        "once before it runs such a file.",
        min_length=1,
        resume="checked",
    )
    base_model: str | None = setting(
        None,
        title="Base model",
        help="The model to start from: a diffusers folder, a .safetensors or .gguf file or a hub name (owner/model, or "
        "owner/model@branch). Leave it empty for families that train from scratch. A relative path is resolved from "
        "the folder in which you start Tandem.",
        picks="file",
        resume="checked",
    )
    method: Literal["fine_tune", "lora", "embedding"] = setting(
        "fine_tune",
        title="Training method",
        titles={"fine_tune": "Fine-tune", "lora": "LoRA"},
        help="fine_tune trains the whole model: strongest effect, most memory, a large file. lora trains a small "
        "adapter: little memory, a small file. embedding (textual inversion) only teaches one new word for the "
        "prompt and leaves the model unchanged.",
        resume="fixed",
    )
    family_options: dict[str, JsonValue] = setting(
        {},
        title="Family options",
        help="Settings that only the chosen model family has, such as the size of its network. The family checks "
        "their names and values before training starts.",
        advanced=True,
        resume="checked",
    )
