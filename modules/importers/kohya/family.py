"""kohya's sd-scripts and its GUI: the base model, its family, and the training method."""

from __future__ import annotations

import re
from collections.abc import Mapping

from modules.facts import all_facts, known_model
from modules.importers import common
from modules.importers.flow_families import flow_family
from modules.importers.readers import boolean, model_path
from modules.importers.rules import EMPTY_VALUES, Assignment, Values

# Settings that identify other model families.
CHECKBOXES = ("flux1_checkbox", "sd3_checkbox", "lumina_checkbox")
# Files that only one model's scripts ask for (anima_train.py, flux_train.py, sd3_train.py, lumina_train.py); the first
# that is given.
FILES: Mapping[str, object] = {"qwen3": None, "gemma2": None, "clip_g": None, "t5xxl": None}
METHOD_KEYS: Mapping[str, object] = {"network_module": None, "LoRA_type": None, "token_string": None}
FAMILY_KEYS = {
    **dict.fromkeys(("pretrained_model_name_or_path", "sdxl")),
    **dict.fromkeys(("v2", *CHECKBOXES, "model_type"), False),
}
# Only sdxl_train.py and sdxl_train_network.py have these.
XL_ONLY: Mapping[str, object] = {
    **dict.fromkeys(("cache_text_encoder_outputs", "cache_text_encoder_outputs_to_disk"), False),
    **dict.fromkeys(("learning_rate_te1", "learning_rate_te2")),
}


def method(values: Values) -> str:
    """The training method: fine_tune, lora or embedding."""
    if values["token_string"] not in EMPTY_VALUES:
        return "embedding"
    has_network = any(values[name] not in EMPTY_VALUES for name in ("network_module", "LoRA_type"))
    return "lora" if has_network else "fine_tune"


def is_xl(values: Values) -> bool:
    """Whether the model is SDXL; sd-scripts has a script for each model, so its files need not say so."""
    if values["sdxl"] is not None:
        return boolean(values["sdxl"])
    name = str(values["pretrained_model_name_or_path"]).lower().replace("\\", "/").rpartition("/")[2]
    known = any(word in name for word in ("xl", "illustrious", "pony", "noob"))
    return known or any(values[name] not in EMPTY_VALUES for name in XL_ONLY)


def family(values: Values) -> list[Assignment]:
    name = "pretrained_model_name_or_path"
    found = []
    if values[name] not in EMPTY_VALUES:
        found.append(Assignment("base_model", model_path(values[name]), keys=(name,)))
    # such as networks.lora_flux; lora_fa is Stable Diffusion's
    module = re.search(r"\b(?:lora|oft)_(?!fa$)(\w+)$", str(values["network_module"] or ""))
    other = [(key, key.removesuffix("_checkbox")) for key in CHECKBOXES if boolean(values[key])]
    if values["model_type"] not in EMPTY_VALUES:  # of flux_train_network.py
        other.insert(0, ("model_type", str(values["model_type"])))
    if module:
        other.append(("network_module", module[1]))
    families = {"qwen3": "anima", **{facts.kohya_file: family for family, facts in all_facts().items()}}
    other += [(name, families[key]) for key in FILES if values[key] not in EMPTY_VALUES]
    if other:
        known, keys = flow_family(other[0][1]), tuple(key for key, _ in other if key in FAMILY_KEYS) or (name,)
        why = "" if known else common.NO_FAMILY
        return [*found, Assignment("family", known or other[0][1], why, keys)]
    if (model := known_model(str(values[name]))) is not None:
        return [*found, Assignment("family", model.family, keys=(name,))]
    family = "stable_diffusion_xl" if is_xl(values) else "stable_diffusion"
    if values["sdxl"] is not None or boolean(values["v2"]):
        keys = ("sdxl", "v2")
        return [*found, Assignment("family", family, keys=keys)]
    why = "guessed from the model's name and settings, because the file does not say which script it is for"
    return [*found, Assignment("family", family, why, (name,))]


def algorithm(values: Values, arguments: Mapping[str, object]) -> str:
    """What LyCORIS calls `algo`, with the GUI's LoRA_type and the modules networks.loha and networks.lokr."""
    kind = f"{values['network_module'] or ''} {values['LoRA_type'] or ''}".lower()
    named = next((word for word in ("loha", "lokr") if word in kind), "lora")
    return str(arguments.get("algo") or named).lower()


def find_method(values: Values) -> list[Assignment]:
    target = method(values)
    kind = f"{values['network_module'] or ''} {values['LoRA_type'] or ''}".lower()
    why = ""
    if target == "lora" and any(word in kind for word in ("dylora", "oft", "ia3", "glora", "diag")):
        why = common.LORA_INSTEAD
    keys = {"embedding": ("token_string",), "lora": ("network_module", "LoRA_type")}.get(target, ("network_module",))
    found = [Assignment("method", target, why, keys)]
    if target == "embedding":
        found.append(Assignment("embedding_token", str(values["token_string"]).strip(), keys=("token_string",)))
    return found
