"""SimpleTuner's lycoris_config: a file with arguments of LyCORIS' create_lycoris."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modules.config.explain import format_value
from modules.config.sections.adapters import MAX_RANK
from modules.importers.readers import boolean, integer, items, number
from modules.importers.rules import ANY, Assignment, is_default

_KEYS: Final = ("lycoris_config",)
_BOTH: Final = ("lora_type", *_KEYS)
_ALGORITHMS: Final[Mapping[str, str]] = {"lora": "lora", "locon": "lora", "loha": "loha", "lokr": "lokr"}
_ONE_KIND: Final = "Tandem has it for plain LoRA only"
# What is not read, at the value that it has where it is not given: a file may contain it.
_UNREAD: Final[Mapping[str, object]] = {
    "multiplier": 1, "dropout": 0, "use_tucker": False, "rank_dropout": 0, "module_dropout": 0, "use_scalar": False,
    "rank_dropout_scale": False, "decompose_both": False, "train_norm": False, "bypass_mode": ANY,
}  # fmt: skip
_READ: Final = ("algo", "linear_dim", "linear_alpha", "full_matrix", "factor", "apply_preset", "dora_wd", "rs_lora")


def lycoris_assignments(config: object) -> list[Assignment]:
    """From the content of the file; anything else says what to set instead."""
    if not isinstance(config, Mapping):
        why = "without its lycoris_config it becomes a plain LoRA: set lora_algorithm, lora_rank and lokr_factor"
        return [Assignment("", why=why, keys=("lora_type",))]
    name = _ALGORITHMS.get(str(config.get("algo")).lower())
    if name is None:
        why = f"Tandem has {', '.join(sorted(set(_ALGORITHMS.values())))}; set lora_algorithm"
        return [Assignment("", why=f"algo is {format_value(config.get('algo'))}: {why}", keys=_BOTH)]
    is_whole = boolean(config.get("full_matrix"))
    if not is_whole and "linear_dim" not in config:
        return [Assignment("", why="it has no linear_dim: set lora_algorithm and lora_rank", keys=_BOTH)]
    found = [
        Assignment("lora_algorithm", name, keys=_BOTH),
        Assignment("lora_rank", MAX_RANK if is_whole else min(integer(config["linear_dim"]), MAX_RANK), keys=_KEYS),
        Assignment("lora_alpha", number(config.get("linear_alpha", 1)), keys=_KEYS),
    ]
    if boolean(config.get("rs_lora")):
        found.append(Assignment("lora_rank_stabilized", True, keys=_KEYS))
    if boolean(config.get("dora_wd")):
        target, why = ("lora_weight_decompose", "") if name == "lora" else ("", f"dora_wd: {_ONE_KIND}")
        found.append(Assignment(target, True, why, _KEYS))
    preset = config.get("apply_preset")
    preset = preset if isinstance(preset, Mapping) else {}
    classes = [str(each) for each in items(preset.get("target_module"))]
    if name == "lokr":
        found += _factor(config, preset, classes)
    found.append(_targets(classes))
    if name == "lora" and not is_default(config.get("dropout"), 0):
        found.append(Assignment("", why="dropout: set lora_dropout", keys=_KEYS))
        config = {**config, "dropout": 0}
    rest = [*(each for each in config if each not in _READ and not is_default(config[each], _UNREAD.get(each)))]
    rest += [each for each in preset if each not in ("target_module", "module_algo_map")]
    rest += [f"{each} of module_algo_map" for each in _own(preset) if each != "factor" or name != "lokr"]
    why = f"{', '.join(sorted(rest))}: no such setting here"
    return [*found, Assignment("", why=why, keys=_KEYS)] if rest else found


def _own(preset: Mapping[str, object]) -> set[str]:
    """What kinds of layers have of their own."""
    given = preset.get("module_algo_map")
    kinds = given.values() if isinstance(given, Mapping) else ()
    return {str(name) for each in kinds if isinstance(each, Mapping) for name in each}


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
