"""How other trainers save memory: quantised frozen weights, blocks in host memory, steps within the backward pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from modules.facts import FamilyFacts
from modules.importers.readers import boolean, integer, optional_number
from modules.importers.rules import EMPTY_VALUES, Assignment, CombinedRule, UnsupportedValueError, Values
from modules.importers.translation import Translation

ONE_SCALE: Final = "Tandem keeps one scale for each output; text encoders stay in the run's precision"
ENCODERS: Final = "of large text encoders, with one scale for each output; those of CLIP stay in the run's precision"
QUANTIZED: Final = ("int8", "fp8", "nf4")
ROUNDED: Final = "small updates count on average there, because they are rounded at random"
SET_OFFLOAD: Final = "set block_offload, a fraction of the model's blocks"
_SWAPPED: Final = "flow_options.blocks_to_swap"  # until the family is known: `swapped_blocks`


def swap_rule(key: str, more: int = 0) -> CombinedRule:
    """`key`, a number of blocks that stay in host memory, which becomes a fraction; `more` single blocks follow it."""

    def read(values: Values) -> list[Assignment]:
        count = integer(values[key] or 0)
        return [Assignment(_SWAPPED, (count, more))] if count > 0 else []

    return CombinedRule({key: None}, "block_offload", read, "a number there, a fraction of the model's blocks here")


def swapped_blocks(translation: Translation, facts: FamilyFacts) -> None:
    """Replace what `swap_rule` has found by the fraction of the blocks of the family's model.

    kohya-ss/sd-scripts (enable_block_swap): half of the number are double blocks, and of the single blocks, which are
    twice as many, twice the other half. tdrussell/diffusion-pipe: one single block more.
    """
    options = translation.data.get("flow_options")
    found = options.pop("blocks_to_swap", None) if isinstance(options, dict) else None
    entry = next((each for each in translation.imported if each.target == _SWAPPED), None)
    if not isinstance(found, tuple) or entry is None:
        return
    translation.imported.remove(entry)
    count, more = found
    blocks = _blocks_of(facts, str(translation.data.get("base_model")))
    if not blocks:
        translation.skip(entry.source, entry.value, SET_OFFLOAD)
        return
    has_single_blocks = facts.file is not None and facts.file.mlp_rows
    swapped = count // 2 + (count - count // 2) * 2 + more if has_single_blocks else count
    swapped = min(swapped, blocks)
    why = f"{swapped} of {blocks} blocks"
    translation.add(replace(entry, target="block_offload", new_value=round(swapped / blocks, 2), why=why))


def _blocks_of(facts: FamilyFacts, base_model: str) -> int:
    """Of a model on the hub, a folder or a file with the usual name; 0 if that does not tell."""
    last = PurePosixPath(base_model.replace("\\", "/")).name.lower()
    words = re.findall(r"[0-9]+b|[0-9]|[a-z]+", last)
    return next((blocks for wanted, blocks in facts.blocks.items() if all(word in words for word in wanted)), 0)


def fused_rule(*keys: str, why: str = "") -> CombinedRule:
    """The step within the backward pass, on if any of `keys` is."""

    def read(values: Values) -> list[Assignment]:
        given = tuple(key for key in keys if values[key] not in EMPTY_VALUES and _is_on(values[key]))
        return [Assignment("fused_backward", True, why, given)] if given else []

    return CombinedRule(dict.fromkeys(keys), "fused_backward", read, why)


def _is_on(value: object) -> bool:
    """Of a switch, or of a number of groups."""
    if isinstance(value, bool) or not (isinstance(value, int) or str(value).isdecimal()):
        return boolean(value)
    return bool(optional_number(value))


def base_weights_rule(
    keys: Mapping[str, object], read: Callable[[Values], str | None], uses: Mapping[str, object], note: str
) -> CombinedRule:
    """The format of the frozen weights under an adapter; `read` gives that of Tandem, or None if they are as usual."""

    def convert(values: Values) -> list[Assignment]:
        weights = read(values)
        if weights is None:
            return []
        if weights not in ("int8", "fp8", "nf4", "bf16", "fp16", "fp32"):
            raise UnsupportedValueError("Tandem has int8, fp8 and nf4: set weights of a submodule in parts")
        path = "parts.0"
        found = [Assignment(f"{path}.part", "unet", keys=tuple(keys), quiet=True)]
        return [*found, Assignment(f"{path}.weights", weights, note, tuple(keys))]

    return CombinedRule(keys, "parts.0.weights", convert, note, uses)


def encoder_weights_rule(
    keys: Mapping[str, object],
    read: Callable[[Values], str | None],
    uses: Mapping[str, object] = MappingProxyType({}),
) -> CombinedRule:
    """The format of text encoders; `read` gives that of Tandem, or None if they are as usual."""

    def convert(values: Values) -> list[Assignment]:
        weights = read(values)
        if weights is None:
            return []
        if weights not in QUANTIZED:
            raise UnsupportedValueError("Tandem has int8, fp8 and nf4: set family_options.text_encoder_weights")
        return [Assignment("flow_options.text_encoder_weights", weights, ENCODERS)]

    return CombinedRule(keys, "family_options.text_encoder_weights", convert, ENCODERS, uses)
