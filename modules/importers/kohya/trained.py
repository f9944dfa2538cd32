"""kohya's sd-scripts and its GUI: which layers a LoRA adapts, and which submodules are trained at which rate."""

from __future__ import annotations

import math
from collections.abc import Mapping

from modules.importers import common
from modules.importers.kohya.family import algorithm, is_xl, method
from modules.importers.kohya.gui import WITH_CONVOLUTIONS
from modules.importers.optimizers import parse_arguments
from modules.importers.readers import boolean, integer, items, number, optional_number
from modules.importers.rules import EMPTY_VALUES, Assignment, Values

# `preset` of LyCORIS -> `lora_targets`.
LYCORIS_PRESETS = {"full": "all", "full-lin": "all_linear", "attn-mlp": "kohya", "attn-only": "attention"}

OTHERS = ("loha", "lokr")
MOST_RANK = 4096  # of Tandem's adapters
PLUS = ("loraplus_lr_ratio", "loraplus_unet_lr_ratio")


def targets(values: Values) -> list[Assignment]:
    """networks.lora is on all layers of transformers, with conv_dim also on residual blocks; LyCORIS has presets."""
    if method(values) != "lora":
        return []
    arguments = adapter_arguments(values)
    kind = str(values["LoRA_type"] or "")
    if kind in WITH_CONVOLUTIONS or kind.startswith("LyCORIS"):
        arguments = {"conv_dim": values["conv_dim"], "conv_alpha": values["conv_alpha"], **arguments}
    if "lycoris" in str(values["network_module"] or "").lower() or kind == "LoCon" or kind.startswith("LyCORIS"):
        found = _lycoris_targets(arguments, values)
    else:
        found = _kohya_targets(arguments)
    found += algorithm_assignments(arguments, values)
    known = {"conv_dim", "conv_alpha", "algo", "dora_wd", "preset", "factor", "rs_lora", *PLUS}
    rest = ", ".join(sorted(name for name in set(arguments) - known if arguments[name] not in EMPTY_VALUES))
    if rest:
        found.append(Assignment("", why=f"Tandem's LoRA has no {rest}", keys=("network_args",)))
    return found


def rank(values: Values) -> list[Assignment]:
    """Above half of a layer's side both factors of a LoKr are whole, here and in LyCORIS (lycoris/modules/lokr.py)."""
    found = integer(values["network_dim"])
    is_lokr = algorithm(values, adapter_arguments(values)) == "lokr"
    return [Assignment("lora_rank", min(found, MOST_RANK) if is_lokr else found)]


def alpha(values: Values) -> list[Assignment]:
    """networks/lora.py: an alpha of 0 is that of the rank."""
    return [Assignment("lora_alpha", number(values["network_alpha"]) or number(values["network_dim"]))]


def dropout(values: Values) -> list[Assignment]:
    """`network_dropout`, which Tandem has for plain LoRA only."""
    found = optional_number(values["network_dropout"])
    if not found:
        return []
    if algorithm(values, adapter_arguments(values)) in OTHERS:
        return [Assignment("", why=common.NO_DROPOUT, keys=("network_dropout",))]
    why = "kohya drops the outputs of the LoRA's first matrix, Tandem its inputs"
    return [Assignment("lora_dropout", found, why)]


def adapter_arguments(values: Values) -> Mapping[str, object]:
    """`network_args`, by name."""
    return parse_arguments(values["network_args"]) if values["network_args"] not in EMPTY_VALUES else {}


def algorithm_assignments(arguments: Mapping[str, object], values: Values) -> list[Assignment]:
    """lycoris/kohya.py: algo, factor, rs_lora and dora_wd; LoRA+ of networks/lora.py."""
    named, keys = algorithm(values, arguments), ("network_args",)
    found = []
    if named not in ("lora", "locon", *OTHERS):
        found.append(Assignment("", why=f"Tandem has no {named}: it trains a plain LoRA", keys=keys))
    if named in OTHERS:
        found.append(Assignment("lora_algorithm", named, keys=keys))
    factor = optional_number(arguments.get("factor", values["factor"])) or -1
    if named == "lokr" and factor > 1:
        found.append(Assignment("lokr_factor", integer(factor), keys=("factor", "network_args")))
    if boolean(arguments.get("rs_lora", False)):
        found.append(Assignment("lora_rank_stabilized", True, keys=keys))
    if boolean(arguments.get("dora_wd", False)):
        only = "" if named not in OTHERS else "Tandem has DoRA of plain LoRA only"
        found.append(Assignment("" if only else "lora_weight_decompose", True, only, keys))
    ratios = [number(value) for name in PLUS if (value := arguments.get(name, values[name])) not in EMPTY_VALUES]
    if ratios and named not in OTHERS:
        found.append(Assignment("lora_plus_ratio", ratios[0], keys=(*PLUS, *keys)))
    return found


def _kohya_targets(arguments: Mapping[str, object]) -> list[Assignment]:
    """networks/lora.py of sd-scripts; conv_alpha is 1 by default."""
    if not optional_number(arguments.get("conv_dim")):
        return [Assignment("lora_targets", "kohya", keys=("network_args",))]
    found = [Assignment("lora_targets", "kohya_conv", keys=("network_args", "conv_dim"))]
    return found + _convolutions(arguments, 1.0)


def _lycoris_targets(arguments: Mapping[str, object], values: Values) -> list[Assignment]:
    """lycoris/config.py and lycoris/kohya.py of LyCORIS; convolutions have the other layers' rank by default."""
    preset = str(arguments.get("preset") or values["LyCORIS_preset"] or "full").lower()
    keys = ("LyCORIS_preset", "network_args")
    if preset not in LYCORIS_PRESETS:
        why = "Tandem has no such preset; all layers are adapted: set lora_targets"
        return [Assignment("lora_targets", "all", why, keys)]
    why = "Tandem also adapts the image size's embedding and the text projection" if is_xl(values) else ""
    most = MOST_RANK if algorithm(values, arguments) == "lokr" else math.inf
    found = [Assignment("lora_targets", LYCORIS_PRESETS[preset], why if preset == "full" else "", keys)]
    return found + (_convolutions(arguments, None, most) if preset == "full" else [])


def _convolutions(
    arguments: Mapping[str, object], default_alpha: float | None, most: float = math.inf
) -> list[Assignment]:
    """The rank and alpha of convolutions of 3x3, if they are given."""
    rank, alpha = optional_number(arguments.get("conv_dim")), optional_number(arguments.get("conv_alpha"))
    alpha = default_alpha if alpha is None else alpha
    found = []
    if rank:
        found.append(Assignment("lora_conv_rank", min(integer(rank), most), keys=("conv_dim", "network_args")))
    if alpha is not None:
        found.append(Assignment("lora_conv_alpha", alpha, keys=("conv_alpha", "network_args")))
    return found


def _lora_encoders(values: Values, count: int) -> list[tuple[bool, float | None]]:
    """For each text encoder whether a LoRA of it is trained, and its rate; a rate of 0 means that it is not.

    kohya's GUI writes 0 for both rates if the learning rate is meant.
    """
    given = values["text_encoder_lr"]
    rates = [] if given in (None, "") else [number(rate) for rate in (items(given) or [0.0])]
    rates = rates * count if len(rates) == 1 else rates
    by_default = not any(rates) and values["unet_lr"] is not None and not optional_number(values["unet_lr"])
    off = boolean(values["network_train_unet_only"]) or boolean(values["cache_text_encoder_outputs"])
    each = [rates[index] if index < len(rates) else None for index in range(count)]
    return [(not off and (rate is None or rate > 0 or by_default), rate or None) for rate in each]


def _fine_tuned_encoders(values: Values, count: int) -> list[tuple[bool, float | None]]:
    """For each text encoder whether it is trained, and its rate.

    sdxl_train.py and fine_tune.py train them if asked to, and for SDXL a rate of 0 means that one is not trained;
    train_db.py trains it until stop_text_encoder_training.
    """
    is_asked = boolean(values["train_text_encoder"])
    if count == 2:
        named = [values["learning_rate_te1"], values["learning_rate_te2"]]
        rates = [None if rate in (None, "") else number(rate) for rate in named]
        return [(is_asked and rate != 0, rate or None) for rate in rates]
    stops = optional_number(values["stop_text_encoder_training"])
    if values["train_text_encoder"] is None and values["in_json"] in EMPTY_VALUES:
        is_asked = stops is None or stops > 0
    return [(is_asked, optional_number(values["learning_rate_te"]))]


def _trains_unet(values: Values) -> bool:
    """Whether the UNet is trained; a LoRA of it is not with a rate of 0, if text encoders have one."""
    if method(values) != "lora":
        return True
    has_text_rate = any(optional_number(rate) for rate in items(values["text_encoder_lr"]))
    is_off = values["unet_lr"] not in (None, "") and not optional_number(values["unet_lr"])
    return not boolean(values["network_train_text_encoder_only"]) and not (is_off and has_text_rate)


TEXT_KEYS = {
    "lora": (("text_encoder_lr", "network_train_unet_only"), ("text_encoder_lr",)),
    "fine_tune": (("train_text_encoder",), ("learning_rate_te",)),
}


def submodules(values: Values) -> list[Assignment]:
    kind = method(values)
    if kind == "embedding":
        return []
    names = ("text_encoder", "text_encoder_2") if is_xl(values) else ("text_encoder",)
    encoders = (_lora_encoders if kind == "lora" else _fine_tuned_encoders)(values, len(names))
    unet = _trains_unet(values)
    rate = optional_number(values["unet_lr"])
    found = common.submodule(
        0, "unet", unet, ("network_train_text_encoder_only",), rate if unet else None, ("unet_lr",)
    )
    keys, rate_keys = TEXT_KEYS[kind]
    for index, (part, (trained, rate)) in enumerate(zip(names, encoders, strict=True)):
        if kind == "fine_tune" and len(names) == 2:
            rate_keys = (f"learning_rate_te{index + 1}",)
        both = tuple(dict.fromkeys((*keys, *rate_keys)))
        found += common.submodule(index + 1, part, trained, both, rate if trained else None, rate_keys)
        stops = optional_number(values["stop_text_encoder_training"])
        if stops and stops > 0 and trained:
            stop = f"{integer(stops)} steps"
            found.append(Assignment(f"parts.{index + 1}.stop_after", stop, keys=("stop_text_encoder_training",)))
    return found
