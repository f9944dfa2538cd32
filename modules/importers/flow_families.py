"""Transformers trained by flow matching: how other trainers name them, and what they have not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from modules.config import UNET_PRESETS
from modules.config.known_models import known_model
from modules.importers.flow_rules import ALL_RULES, OWN, PATH
from modules.importers.memory import ENCODERS, QUANTIZED, swapped_blocks
from modules.importers.report import ImportEntry
from modules.importers.rules import ANY, is_default
from modules.importers.translation import Translation

# OneTrainer's model types, ai-toolkit's arch, SimpleTuner's families, diffusion-pipe's types and sd-scripts' own, in
# lower case with underscores.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "flux": ("flux", "flux1", "flux_1", "flux_dev", "flux_schnell", "flux_dev_1", "flux_schnell_1"),
    "flux2": (
        *("flux2", "flux_2", "flux2_klein", "flux_2_klein", "flux2_klein_4b", "flux2_klein_9b"),
        *("flux_2_klein_4b", "flux_2_klein_9b", "flux2_dev", "flux_2_dev"),
    ),
    "chroma": ("chroma", "chroma1", "chroma_1"),
    "z_image": ("z_image", "zimage", "z_image_turbo"),
    "qwen_image": ("qwen", "qwen_image"),
    "krea2": ("krea2", "krea_2"),
    "lumina2": ("lumina2", "lumina_2", "lumina"),
    "stable_diffusion_3": ("sd3", "sd35", "sd3_5", "v3", "stable_diffusion_3", "stable_diffusion_35"),
}
FLOW_FAMILIES: Final = frozenset(_NAMES)
_BY_NAME: Final = {name: family for family, names in _NAMES.items() for name in names}
_SHARED_OPTIONS: Final = ("loss", "huber_delta", "offload_frozen", "vae_tiling", "latents")
_GUIDED: Final = ("flux", "qwen_image", "flux2")
_OF_UNET: Final = re.compile(r"unet|text_encoder")


def flow_family(name: object) -> str | None:
    """The family that another trainer calls `name`; None if it is none of these."""
    plain = re.sub(r"[\s.-]+", "_", str(name).lower().partition(":")[0])
    return _BY_NAME.get(plain)


def fit_to_family(translation: Translation) -> None:
    """Take away, and report, what the family of the config does not have; the rest gets the names that it has there."""
    data = translation.data
    if "family" not in data and (known := known_model(str(data.get("base_model")))) is not None:
        data["family"] = known.family
    family = data.get("family")
    if family not in FLOW_FAMILIES:
        _drop_flow_options(translation)
        return
    given = data.get("family_options")
    for name in list(given) if isinstance(given, dict) else []:
        if name not in _SHARED_OPTIONS:
            translation.withdraw(OWN + name, f"{family} is trained by flow matching, which has no such setting")
    if family not in _GUIDED:
        translation.withdraw(f"{PATH}guidance", f"{family} has no guidance input")
    swapped_blocks(translation, str(family))
    _take_flow_options(translation)
    _fit_parts(translation)
    _fit_targets(translation)
    if data.get("block_offload") and data.get("method") == "lora" and data.get("compile"):
        translation.withdraw("compile", "blocks that are kept in host memory (block_offload) cannot be compiled")


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
    return all(is_default(value, defaults.get(name, ANY)) for name, value in zip(names, values, strict=False))


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
