"""SimpleTuner's lycoris_config: a file with arguments of LyCORIS' create_lycoris."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modules.config.sections.adapters import MAX_RANK
from modules.importers.readers import boolean, integer, items, number
from modules.importers.rules import Assignment, UnsupportedValueError

_KEYS: Final = ("lycoris_config",)
_ALGORITHMS: Final[Mapping[str, str]] = {"lora": "lora", "locon": "lora", "loha": "loha", "lokr": "lokr"}
_READ: Final = frozenset(
    {"algo", "linear_dim", "linear_alpha", "full_matrix", "factor", "apply_preset", "multiplier", "bypass_mode"}
)


def lycoris_assignments(config: object) -> list[Assignment]:
    """From the content of the file; anything else says what to set instead."""
    if not isinstance(config, Mapping):
        why = "without its lycoris_config it becomes a plain LoRA: set lora_algorithm, lora_rank and lokr_factor"
        return [Assignment("", why=why, keys=("lora_type",))]
    name = _ALGORITHMS.get(str(config.get("algo")).lower())
    if name is None:
        raise UnsupportedValueError(f"Tandem has {', '.join(sorted(set(_ALGORITHMS.values())))}; set lora_algorithm")
    rank = MAX_RANK if boolean(config.get("full_matrix")) else min(integer(config.get("linear_dim")), MAX_RANK)
    found = [
        Assignment("lora_algorithm", name, keys=("lora_type", *_KEYS)),
        Assignment("lora_rank", rank, keys=_KEYS),
        Assignment("lora_alpha", number(config.get("linear_alpha", rank)), keys=_KEYS),
    ]
    preset = config.get("apply_preset")
    preset = preset if isinstance(preset, Mapping) else {}
    classes = [str(each) for each in items(preset.get("target_module"))]
    if name == "lokr":
        found += _factor(config, preset, classes)
    found.append(_targets(classes))
    rest = sorted({*(set(config) - _READ), *(set(preset) - {"target_module", "module_algo_map"})})
    return [*found, Assignment("", why=f"{', '.join(rest)}: no such setting here", keys=_KEYS)] if rest else found


def _factor(config: Mapping[str, object], preset: Mapping[str, object], classes: list[str]) -> list[Assignment]:
    """One for all layers; that of attention if kinds of layers have their own."""
    own = preset.get("module_algo_map")
    own = own if isinstance(own, Mapping) else {}
    given = {name: each["factor"] for name, each in own.items() if isinstance(each, Mapping) and "factor" in each}
    chosen = [name for name in classes if name in given] or list(given)
    chosen.sort(key=lambda name: "Attention" not in name)
    factor = integer(given[chosen[0]] if chosen else config.get("factor", -1))
    why = f"the factors there are {given}: one is used" if len(set(map(str, given.values()))) > 1 else ""
    return [Assignment("lokr_factor", factor, why, _KEYS)] if factor > 1 else []


def _targets(classes: list[str]) -> Assignment:
    """The layers within modules of these classes of diffusers."""
    if classes and all("Attention" in name or "FeedForward" in name for name in classes):
        has_mlp = any("FeedForward" in name for name in classes)
        return Assignment("lora_targets", "attention_mlp" if has_mlp else "attention", keys=_KEYS)
    return Assignment("", why=f"set lora_targets to the layers of {', '.join(classes) or 'its preset'}", keys=_KEYS)
