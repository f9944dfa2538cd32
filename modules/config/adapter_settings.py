"""What is trained of a model: which parts, a LoRA beside it, or new words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

from modules.config.part import Part
from modules.config.section import Section, setting

# Presets of `lora_targets`; anything else is patterns.
TARGET_PRESETS: Final = ("attention", "attention_mlp", "all_linear", "all")
_BETWEEN_PATTERNS: Final = re.compile(r",(?![^{]*\})")  # a comma within {1,2} belongs to its pattern


class AdapterSettings(Section):
    """Which parts of the model are trained, and the add-ons that are trained beside it."""

    section_title: ClassVar[str] = "Adapters"

    parts: tuple[Part, ...] = setting(
        (),
        title="Parts",
        help="Which parts of the model are trained, each with its own learning rate if you like; parts that are not "
        "listed stay as they are. Empty: the family's first part, such as the UNet, or the whole model where a family "
        "has no parts.",
        resume="checked",
    )
    lora_rank: int = setting(
        16,
        title="LoRA rank",
        help="How much the LoRA can hold. 4 to 16 for a person or an object, 32 to 128 for a style with many sides. "
        "Twice the rank makes the file twice as large.",
        depends_on="method=lora",
        ge=1,
        le=4096,
        resume="fixed",
    )
    lora_alpha: float = setting(
        16.0,
        title="LoRA alpha",
        help="The LoRA's effect is multiplied by alpha / rank, so alpha works like a second learning rate. Usual are "
        "the rank itself, half of it, or 1.",
        depends_on="method=lora",
        gt=0,
        le=1_000_000,
        resume="fixed",
    )
    lora_dropout: float = setting(
        0.0,
        title="LoRA dropout",
        help="The share of inputs that the LoRA is not shown, anew at every step, which works against learning by "
        "heart. 0 switches it off, 0.1 is usual.",
        advanced=True,
        depends_on="method=lora",
        ge=0,
        lt=1,
        resume="told",
    )
    lora_targets: str = setting(
        "attention",
        title="LoRA is added to",
        help="attention: where pictures look at words and at themselves, the usual choice. attention_mlp: the layers "
        "after that, too. all_linear: every linear layer. all: convolutions as well, for styles and textures. Or your "
        "own choice: regular expressions, with commas between them, that are looked for in the names of layers, such "
        "as mid_block, up_blocks.*attn2.",
        depends_on="method=lora",
        min_length=1,
        resume="fixed",
    )
    lora_weight_decompose: bool = setting(
        False,
        title="DoRA",
        help="Learns direction and strength of every layer separately, which comes closer to training the whole "
        "model at a low rank. Slower by about a third, and not every program reads such files.",
        depends_on="method=lora",
        resume="fixed",
    )
    embedding_token: str = setting(
        "<concept>",
        title="New word",
        help="The word that is learned, as it stands in captions and prompts. Choose one that means nothing yet, "
        "such as <my-cat>, without spaces.",
        depends_on="method=embedding",
        min_length=1,
        resume="fixed",
    )
    embedding_init: str = setting(
        "object",
        title="Begin with",
        help="Words whose meaning the new word begins with, such as cat or painting: the nearer, the sooner it is "
        "learned.",
        depends_on="method=embedding",
        min_length=1,
    )
    embedding_vectors: int = setting(
        1,
        title="Vectors",
        help="How much the new word can hold. Each vector takes the room of one word in every prompt; 1 to 4 for an "
        "object, up to 10 for a style.",
        unit="vectors",
        depends_on="method=embedding",
        ge=1,
        le=64,
        resume="fixed",
    )


class Adapting(Protocol):
    """What the rules need to know of a config."""

    @property
    def method(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def parts(self) -> tuple[Part, ...]: ...
    @property
    def lora_targets(self) -> str: ...
    @property
    def embedding_token(self) -> str: ...
    @property
    def embedding_init(self) -> str: ...


def target_patterns(lora_targets: str) -> list[str]:
    """The regular expressions of a choice that is no preset."""
    return [pattern for part in _BETWEEN_PATTERNS.split(lora_targets) if (pattern := part.strip())]


def adapter_rules(config: Adapting) -> list[tuple[str, str]]:
    """What does not fit, as pairs of field and rest of the sentence."""
    rules = [rule for place, part in enumerate(config.parts) for rule in _part_rules(config, place, part)]
    if config.parts and config.method != "embedding" and not any(part.train for part in config.parts):
        rules.append(("parts", "trains nothing; switch train on for one of them, or leave the list empty"))
    if config.method == "lora":
        rules += _target_rules(config.lora_targets)
    if config.method == "embedding" and not config.embedding_init.strip():
        rules.append(("embedding_init", f"is {config.embedding_init!r}; give a word, such as cat"))
    if config.method == "embedding" and config.embedding_token.split() != [config.embedding_token]:
        rules.append(("embedding_token", f"is {config.embedding_token!r}; give one word, such as <my-cat>"))
    return rules


def unknown_parts(named: Sequence[object], family: str, known: Sequence[str]) -> list[tuple[str, str]]:
    """For each name of a part that is not among the `known` of the family: a pair of field and rest of the sentence."""
    having = f"has {', '.join(known)}" if known else "has no parts: all of it is trained. Leave parts empty"
    return [
        (f"parts.{place}.part", f"is {name!r}; the family {family!r} {having}")
        for place, name in enumerate(named)
        if name not in known
    ]


def _part_rules(config: Adapting, place: int, part: Part) -> list[tuple[str, str]]:
    rules = []
    here = f"parts.{place}"
    if part.part in [other.part for other in config.parts[:place]]:
        rules.append((f"{here}.part", f"is {part.part!r}, which is in the list already; name each part once"))
    if part.stop_after.unit == "minutes":
        sentence = f"is {part.stop_after}; use steps or epochs, which end on every GPU and after a resume alike"
        rules.append((f"{here}.stop_after", sentence))
    if part.weights in ("bf16", "fp16"):
        if config.precision not in ("bf16", "fp16"):
            sentence = f"is {part.weights}, but precision is {config.precision}; use run, or precision bf16 or fp16"
            rules.append((f"{here}.weights", sentence))
        elif config.method == "fine_tune":
            sentence = f"is {part.weights}, but fine_tune saves the whole model, which this would round; use run, or "
            sentence += "method lora"
            rules.append((f"{here}.weights", sentence))
    return rules


def _target_rules(lora_targets: str) -> Sequence[tuple[str, str]]:
    if lora_targets in TARGET_PRESETS:
        return []
    patterns = target_patterns(lora_targets)
    if not patterns:
        return [("lora_targets", f"is {lora_targets!r}; use one of {', '.join(TARGET_PRESETS)}, or patterns")]
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            sentence = (
                f"is {lora_targets!r}, where {pattern!r} is no regular expression ({error}); use one of "
                f"{', '.join(TARGET_PRESETS)}, or correct it"
            )
            return [("lora_targets", sentence)]
    return []
