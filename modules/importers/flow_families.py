"""Transformers trained by flow matching: how other trainers name them, and what they have not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from modules.config import UNET_PRESETS
from modules.facts import ReferenceFacts, all_facts, known_model
from modules.importers.flow_rules import ALL_RULES, OWN, PATH
from modules.importers.memory import ENCODERS, QUANTIZED, swapped_blocks
from modules.importers.report import ImportEntry
from modules.importers.rules import is_default
from modules.importers.translation import Translation

_SHARED_OPTIONS: Final = ("loss", "huber_delta", "offload_frozen", "vae_tiling", "latents")
_OF_UNET: Final = re.compile(r"unet|text_encoder")


def known_family(name: object) -> str | None:
    """The family that another trainer calls `name`; None if Tandem has none."""
    plain = re.sub(r"[\s.-]+", "_", str(name).lower().partition(":")[0])
    return next((family for family, facts in all_facts().items() if plain in facts.aliases), None)


def reference_facts(family: str | None) -> ReferenceFacts | None:
    """What a family of models that edit images takes; None for any other."""
    facts = all_facts().get(str(family))
    return facts.references if facts else None


def flow_family(name: object) -> str | None:
    """As `known_family`, if it is trained by flow matching."""
    family = known_family(name)
    return family if family and all_facts()[family].network == "transformer" else None


def fit_to_family(translation: Translation) -> None:
    """Take away, and report, what the family of the config does not have; the rest gets the names that it has there."""
    data = translation.data
    if "family" not in data and (known := known_model(str(data.get("base_model")))) is not None:
        data["family"] = known.family
    family = data.get("family")
    facts = all_facts().get(str(family))
    if facts is None or facts.network != "transformer":
        _drop_flow_options(translation)
        _fit_compile(translation)
        return
    given = data.get("family_options")
    for name in list(given) if isinstance(given, dict) else []:
        if name not in _SHARED_OPTIONS:
            translation.withdraw(OWN + name, f"{family} is trained by flow matching, which has no such setting")
    if not facts.has_guidance:
        translation.withdraw(f"{PATH}guidance", f"{family} has no guidance input")
    swapped_blocks(translation, facts)
    _take_flow_options(translation)
    _fit_parts(translation)
    _fit_targets(translation)
    _fit_compile(translation)


def _take_flow_options(translation: Translation) -> None:
    """Move what rules have found under `flow_options` to `family_options`."""
    for entries in (translation.imported, translation.changed):
        for place, entry in enumerate(entries):
            if entry.target.startswith(PATH):
                entries[place] = replace(entry, target=OWN + entry.target.removeprefix(PATH))
    found = translation.data.pop(PATH.rstrip("."), {})
    assert isinstance(found, dict), "rules put options there"
    for name, value in found.items():
        translation.put(OWN + name, value)


def _drop_flow_options(translation: Translation) -> None:
    for entries in (translation.imported, translation.changed):
        for entry in [each for each in entries if each.target.startswith(PATH)]:
            entries.remove(entry)
            if entry.given and not _are_defaults(entry):
                translation.skip(entry.source, entry.value, "for models trained by flow matching")
    translation.data.pop(PATH.rstrip("."), None)


def _are_defaults(entry: ImportEntry) -> bool:
    """Whether the settings of an entry are as the other trainer has them anyway."""
    names = [re.split(r"[ ./]", name.removeprefix("--"))[-1] for name in entry.source.split(", ")]
    values = entry.value if isinstance(entry.value, list) and len(names) > 1 else [entry.value]
    defaults = {key.rpartition(".")[2]: value for rule in ALL_RULES for key, value in rule.keys.items()}
    pairs = zip(names, values, strict=False)
    return all(name in defaults and is_default(value, defaults[name]) for name, value in pairs)


def _fit_parts(translation: Translation) -> None:
    """The part that is trained is called transformer there; text encoders stay frozen."""
    parts = translation.data.get("parts")
    if not isinstance(parts, list):
        return
    kept: list[object] = []
    for number_, part in reversed(list(enumerate(parts))):
        if not isinstance(part, dict):
            continue
        if part.get("part") in ("unet", "transformer", "prior"):
            kept = [{**part, "part": "transformer"}]
        else:
            _take_encoder_weights(translation, f"parts.{number_}.weights", part)
            for name in list(part):
                translation.withdraw(f"parts.{number_}.{name}", "text encoders of this model stay frozen")
    if kept:
        translation.data["parts"] = kept
    else:
        translation.data.pop("parts", None)


def _take_encoder_weights(translation: Translation, target: str, part: dict[str, object]) -> None:
    """Text encoders share one setting here, in which the last one of a model, the large one, decides."""
    entry = next((each for each in translation.imported if each.target == target), None)
    option = OWN + "text_encoder_weights"
    if entry is None or part.get("weights") not in QUANTIZED or any(e.target == option for e in translation.changed):
        return
    del part["weights"]
    translation.imported.remove(entry)
    translation.add(replace(entry, target=option, why=ENCODERS))


def _fit_targets(translation: Translation) -> None:
    """Trainers that adapt all of a UNet's blocks adapt all of a transformer's."""
    targets = translation.data.get("lora_targets")
    if isinstance(targets, str) and (targets in UNET_PRESETS or _OF_UNET.search(targets)):
        translation.change("lora_targets", "blocks", "of the transformer, all linear layers of its blocks")


def _fit_compile(translation: Translation) -> None:
    data = translation.data
    if data.get("block_offload") and data.get("method") == "lora" and data.get("compile"):
        translation.withdraw("compile", "blocks that are kept in host memory (block_offload) cannot be compiled")
