"""What is trained: which submodules, a LoRA, or a new token (textual inversion)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final

from modules.config.section import Section, setting
from modules.config.sections.submodule import SubmoduleSettings

# Presets of `lora_targets`; anything else is patterns.
TARGET_PRESETS: Final = ("attention", "attention_mlp", "all_linear", "all", "kohya", "kohya_conv", "onetrainer")
_PATTERN_SEPARATOR: Final = re.compile(r",(?![^{]*\})")  # a comma within {1,2} belongs to its pattern


class AdapterSettings(Section):
    """Which submodules of the model are trained, and the adapters that are trained."""

    section_title: ClassVar[str] = "Adapters"

    parts: tuple[SubmoduleSettings, ...] = setting(
        (),
        title="Submodules",
        help="Which submodules of the model are trained, each with its own learning rate if you like; those that are "
        "not listed stay frozen. Empty: the family's main submodule, such as the UNet, or the whole model if the "
        "family has none.",
        resume="checked",
    )
    lora_from: str | None = setting(
        None,
        title="Continue from a LoRA",
        help="A LoRA file to continue training, of Tandem or of another program (kohya, diffusers, PEFT). The file "
        "then decides rank, alpha, layers and DoRA. It must be for this base model, with "
        "layers in exactly the submodules that are trained. Empty: a new LoRA.",
        advanced=True,
        depends_on="method=lora",
        picks="file",
        resume="checked",
    )
    lora_rank: int = setting(
        16,
        title="LoRA rank",
        help="Capacity of the LoRA. 4 to 16 for a person or an object, 32 to 128 for a varied style. Twice the rank "
        "makes the file twice as large.",
        depends_on="method=lora",
        ge=1,
        le=4096,
        resume="fixed",
    )
    lora_alpha: float = setting(
        16.0,
        title="LoRA alpha",
        help="The LoRA's effect is multiplied by alpha / rank, so alpha works like a second learning rate. Usual "
        "values are the rank itself, half of it, or 1.",
        depends_on="method=lora",
        gt=0,
        le=1_000_000,
        resume="fixed",
    )
    lora_conv_rank: int | None = setting(
        None,
        title="LoRA rank of convolutions (conv_dim)",
        help="The rank in convolutions of 3x3 pixels and more, which lora_targets all and kohya_conv adapt as well. "
        "Usually half of the rank or less, since they have many weights. Empty: the rank of the other layers.",
        advanced=True,
        depends_on="method=lora",
        ge=1,
        le=4096,
        resume="fixed",
    )
    lora_conv_alpha: float | None = setting(
        None,
        title="LoRA alpha of convolutions (conv_alpha)",
        help="The alpha in convolutions of 3x3 pixels and more. Empty: that of the other layers.",
        advanced=True,
        depends_on="method=lora",
        gt=0,
        le=1_000_000,
        resume="fixed",
    )
    lora_dropout: float = setting(
        0.0,
        title="LoRA dropout",
        help="Fraction of the LoRA's inputs that is dropped at random in each step, which reduces overfitting. 0 "
        "switches it off, 0.1 is usual.",
        advanced=True,
        depends_on="method=lora",
        ge=0,
        lt=1,
        resume="warn",
    )
    lora_targets: str = setting(
        "attention",
        title="LoRA target modules",
        help="attention: the attention layers, the usual choice. attention_mlp: the feed-forward layers as well. "
        "all_linear: every linear layer. all: convolutions as well, for styles and textures. kohya: what kohya's LoRA "
        "adapts, attention_mlp and the layers around it (proj_in, proj_out). kohya_conv: its LoCon (LoRA-C3Lier), with "
        "the residual blocks and their convolutions. onetrainer: OneTrainer's attn-mlp. Or regular expressions "
        "separated by commas, which are searched for in the names of layers, such as mid_block, up_blocks.*attn2.",
        depends_on="method=lora",
        min_length=1,
        resume="fixed",
    )
    lora_weight_decompose: bool = setting(
        False,
        title="DoRA (weight-decomposed LoRA)",
        help="Trains direction and magnitude of every layer separately, which comes closer to full fine-tuning at a "
        "low rank. Slower by about a third, and not every program reads such files.",
        depends_on="method=lora",
        resume="fixed",
    )
    embedding_token: str = setting(
        "<concept>",
        title="Placeholder token (new word)",
        help="The word that is trained, exactly as in captions and prompts. Choose one without spaces that means "
        "nothing yet, such as <my-cat>.",
        depends_on="method=embedding",
        min_length=1,
        resume="fixed",
    )
    embedding_init: str = setting(
        "object",
        title="Initializer words",
        help="Words whose embeddings the new token starts from, such as cat or painting: the closer their meaning, "
        "the sooner it is learned.",
        depends_on="method=embedding",
        min_length=1,
    )
    embedding_vectors: int = setting(
        1,
        title="Vectors per token",
        help="Capacity of the new token. Each vector takes the place of one token in every prompt; 1 to 4 for an "
        "object, up to 10 for a style.",
        unit="vectors",
        depends_on="method=embedding",
        ge=1,
        le=64,
        resume="fixed",
    )


def target_patterns(lora_targets: str) -> list[str]:
    """The regular expressions in `lora_targets`, if it is not a preset."""
    return [pattern for part in _PATTERN_SEPARATOR.split(lora_targets) if (pattern := part.strip())]


def unknown_submodules(named: Sequence[object], family: str, known: Sequence[str]) -> list[tuple[str, str]]:
    """For each submodule that the family does not have: a pair of field and rest of the sentence."""
    has = f"has {', '.join(known)}" if known else "has no submodules: all of it is trained. Leave parts empty"
    return [
        (f"parts.{index}.part", f"is {name!r}; the family {family!r} {has}")
        for index, name in enumerate(named)
        if name not in known
    ]
