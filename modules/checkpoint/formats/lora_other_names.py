"""Names of tensors in other LoRA layouts, translated to those of diffusers' current one.

- with the slot for an adapter's name that peft's modules have: `....lora_A.default.weight`.
- layers of a UNet, whatever is before their names and whichever matrices follow: LyCORIS' `lycoris_down_blocks_0_...`,
  OneTrainer's `diffusion_model.input_blocks.1.1...` for ComfyUI.
- diffusers' example scripts before peft: `unet....attn1.processor.to_q_lora.up.weight`, later
  `....to_q.lora.up.weight`, in text encoders `....q_proj.lora_linear_layer.up.weight`
  (huggingface/diffusers, utils/state_dict_utils.py: UNET_TO_DIFFUSERS, DIFFUSERS_OLD_TO_PEFT).
- peft's `save_pretrained`: `base_model.model....lora_A.weight`, with adapter_config.json beside the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from modules.checkpoint.formats.lora_weights import AdapterPrefixes, is_text_encoder
from modules.config import ConfigError
from modules.files import FileFault, read_json

PEFT_PREFIX: Final = "base_model.model."
_SLOT: Final = re.compile(
    r"\.(lora_[AB]|lora_magnitude_vector|oft_R)\.(?!weight$)[^.]+(\.weight)$"
    r"|\.(lora_magnitude_vector|(?:hada|lokr)_[wt][12](?:_[ab])?)\.(?!weight$)[^.]+$"
)
_STABILITY: Final = (
    r"(?:(?:input|output)_blocks|middle_block)[._].+?|time_embed[._][02]|label_emb[._]0[._][02]|out[._]2"
)
_DIFFUSERS: Final = r"(?:(?:down|up)_blocks|mid_block|(?:time|add)_embedding)[._].+?|conv_in|conv_out"
_UNET: Final = re.compile(
    rf"(lora_unet__?|lycoris_|unet\.|(?:model\.)?diffusion_model\.|)(?:({_STABILITY})|({_DIFFUSERS}))"
    r"\.((?:lora_|hada_|lokr_|oft_|alpha$|dora_scale$).*)"
)
_KOHYA: Final = {
    "lora_A.weight": "lora_down.weight",
    "lora_B.weight": "lora_up.weight",
    **dict.fromkeys(("lora_magnitude_vector.weight", "lora_magnitude_vector"), "dora_scale"),
}
# OneTrainer 23df383 (ModelFormat.COMFY_LORA of modules/model/*.py), with Stability AI's names of the UNet
_COMFYUI_TEXT: Final = re.compile(
    r"text_encoders\.clip_([lgh])\.transformer\.(.+?)\.((?:lora_|hada_|lokr_|oft_|alpha$|dora_scale$).*)"
)
_PEFT: Final = {"lora_down.weight": "lora_A.weight", "lora_up.weight": "lora_B.weight"}
PEFT_CONFIG: Final = "adapter_config.json"
PEFT_FILE: Final = "adapter_model.safetensors"
_OLD_MATRIX: Final = re.compile(r"(.+?)(?:_lora|\.lora|\.lora_linear_layer)\.(down|up)\.weight")
_MATRICES: Final = {"down": "lora_A", "up": "lora_B"}
_UNET_PROJECTIONS: Final = {"to_out": "to_out.0"}
_TEXT_PROJECTIONS: Final = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out": "out_proj"}
_CLIP: Final = re.compile(r"(text_model\.)?(encoder\.layers|embeddings)\.\d*.*|text_projection")
# peft (tuners/lora/layer.py) subtracts the first values of these from the base model, so that the matrices belong to
# another one; it converts the first three.
_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
_UNUSUAL: Final = ("fan_in_fan_out", "lora_bias")
_PEFT_TYPES: Final = ("LORA", "LOHA", "LOKR", "OFT")


def plain_name(name: str) -> str:
    """The tensor's name as files of kohya's scripts, diffusers and peft have it."""
    name = _SLOT.sub(lambda slot: f".{slot[1] or slot[3]}{slot[2] or ''}", name)
    if name.endswith(".magnitude"):  # of ai-toolkit's DoRA
        name = f"{name.removesuffix('.magnitude')}.dora_scale"
    if (found := _UNET.fullmatch(name)) is not None:
        container, stability, layer, end = found.groups()
        if stability or container.endswith("_"):
            return f"lora_unet_{(stability or layer).replace('.', '_')}.{_KOHYA.get(end, end)}"
        return f"unet.{layer}.{_PEFT.get(end, end)}"
    own = next((prefix for prefix in ("lycoris_", "oft_unet_") if name.startswith(prefix)), "")  # oft.py of sd-scripts
    return f"lora_unet_{name.removeprefix(own)}" if own else name


def comfyui_text_name(name: str, prefixes: AdapterPrefixes) -> str:
    """kohya's name of a text encoder's tensor that is named for ComfyUI, else `name`."""
    found = _COMFYUI_TEXT.fullmatch(name)
    submodule = "text_encoder_2" if found and found[1] == "g" else "text_encoder"
    if found is None or submodule not in prefixes:
        return name
    return f"{prefixes[submodule][1]}_{found[2].replace('.', '_')}.{_KOHYA.get(found[3], found[3])}"


def has_old_names(names: Iterable[str]) -> bool:
    """Whether a file is in the layout of diffusers' scripts before peft."""
    return any(_OLD_MATRIX.fullmatch(name) for name in names)


def translate_old_names(names: Iterable[str], prefixes: AdapterPrefixes) -> dict[str, str]:
    """Each name -> its current one. Files of the first scripts hold the UNet only, without the prefix `unet.`"""
    first = next((prefix for prefix, _ in prefixes.values()), "")
    return {name: _present_name(name, prefixes, first) for name in names}


def _present_name(name: str, prefixes: AdapterPrefixes, first: str) -> str:
    match = _OLD_MATRIX.fullmatch(name)
    if match is None:
        return name
    stem, half = match.groups()
    stem = stem.replace(".processor.", ".")
    prefix = next((prefix for prefix, _ in prefixes.values() if stem.startswith(f"{prefix}.")), "")
    if not prefix and re.match(r"(down_blocks|mid_block|up_blocks)\.", stem):
        prefix, stem = first, f"{first}.{stem}"
    module, _, last = stem.rpartition(".")
    projections = _TEXT_PROJECTIONS if is_text_encoder(prefix) else _UNET_PROJECTIONS
    return f"{module}.{projections.get(last, last)}.{_MATRICES[half]}.weight"


def translate_peft_names(file: Path, names: Iterable[str], prefixes: AdapterPrefixes) -> dict[str, str]:
    """Each name -> its name in diffusers' layout, with the prefix of its submodule. Raises ConfigError."""
    translated = {}
    is_unet = any(prefix == "unet" for prefix, _ in prefixes.values())
    for name in names:
        inner = name.removeprefix(PEFT_PREFIX)
        if is_unet and plain_name(inner) != inner:
            translated[name] = plain_name(inner)
            continue
        known = any(inner.startswith(f"{prefix}.") for prefix, _ in prefixes.values())
        translated[name] = inner if known else f"{_peft_submodule(file, inner, prefixes)}.{inner}"
    return translated


def _peft_submodule(file: Path, inner: str, prefixes: AdapterPrefixes) -> str:
    """peft saves one submodule per folder and does not name it: the folder does, or the names of its layers."""
    folder = file.absolute().parent.name
    by_folder = {prefix: prefix for prefix, _ in prefixes.values()}
    if folder in by_folder:
        return folder
    encoders = [prefix for name, (prefix, _) in prefixes.items() if is_text_encoder(name)]
    if not _CLIP.match(inner):
        return next(iter(by_folder))
    if len(encoders) != 1:
        raise ConfigError(
            f"{str(file)!r} is a PEFT adapter of a text encoder, and does not say of which.",
            f"Put it, with its {PEFT_CONFIG}, into a folder named {' or '.join(encoders) or 'text_encoder'}.",
        )
    return encoders[0]


def peft_settings(file: Path, prefixes: AdapterPrefixes) -> dict[str, object]:
    """adapter_config.json beside `file` as diffusers' header has it, for each submodule. Raises ConfigError."""
    beside = file.with_name(PEFT_CONFIG)
    try:
        content = read_json(beside)
    except FileNotFoundError as error:
        if file.name != PEFT_FILE:  # of a program that writes peft's names alone, and alpha as a tensor or not at all
            return {}
        raise ConfigError(
            f"{str(file)!r} is a PEFT adapter, and there is no {PEFT_CONFIG} beside it, which has its alpha.",
            "Copy the whole folder of the adapter.",
        ) from error
    except (OSError, FileFault) as error:
        raise ConfigError(f"{str(beside)!r} {error}.", "Copy or download it again.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{str(beside)!r} is damaged: it is not an object.", "Copy or download it again.")
    kind = content.get("peft_type", "LORA")
    odd = next((name for name in _UNUSUAL if content.get(name)), "peft_type" if kind not in _PEFT_TYPES else "")
    if kind == "OFT" and (
        content.get("use_cayley_neumann") is False or content.get("num_cayley_neumann_terms", 5) != 5
    ):
        odd = "use_cayley_neumann" if content.get("use_cayley_neumann") is False else "num_cayley_neumann_terms"
    if odd:
        raise ConfigError(f"{str(beside)!r}: {odd} is {str(content.get(odd))[:40]!r}, which Tandem does not read.")
    return {f"{prefix}.{key}": value for prefix, _ in prefixes.values() for key, value in content.items()}


def check_base_unchanged(file: Path, settings: Mapping[str, object]) -> None:
    """Raises ConfigError if peft changed the base model when it made the adapter, according to its `settings`."""
    for name, value in settings.items():
        if name.endswith(".init_lora_weights") and isinstance(value, str) and value.lower().startswith(_CHANGES_BASE):
            raise ConfigError(
                f"{str(file)!r}: init_lora_weights is {value[:40]!r}, with which peft changed the base model: on the "
                "original one the adapter would give wrong images.",
                "Convert it to a plain LoRA in the program that trained it: peft's save_pretrained with "
                "path_initial_model_for_weight_conversion, the adapter as it was before training.",
            )


def literal_alpha(file: Path, settings: Mapping[str, object], prefix: str, module: str) -> object | None:
    """The alpha of a module according to `alpha_pattern` or `lora_alpha`; None if neither says anything.

    peft matches the keys as regular expressions at the end of names; here they are names, for a file may come from
    anybody. Raises ConfigError for a key that is no name.
    """
    patterns = settings.get(f"{prefix}.alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise ConfigError(f"{str(file)!r} is damaged: alpha_pattern is not an object.")
    for pattern, alpha in patterns.items():
        name = str(pattern).removeprefix("^").removesuffix("$")
        if not re.fullmatch(r"[\w.-]+", name):
            raise ConfigError(
                f"{str(file)!r}: alpha_pattern has {name[:60]!r}, a regular expression; Tandem reads names of layers."
            )
        if module == name or module.endswith(f".{name}"):
            return alpha  # type: ignore[no-any-return]
    return settings.get(f"{prefix}.lora_alpha", settings.get(f"{prefix}.alpha"))  # alpha of LoHa and LoKr


def rank_scale(settings: Mapping[str, object], prefix: str, rank: int) -> float:
    """What alpha is multiplied by: with `use_rslora` peft divides it by the root of the rank (arXiv:2312.03732)."""
    return math.sqrt(rank) if settings.get(f"{prefix}.use_rslora") is True else 1.0
