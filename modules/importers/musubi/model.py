"""musubi-tuner's arguments: the model, its adapter, and what differs from sd-scripts in training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from modules.facts import FamilyFacts, all_facts
from modules.importers import common
from modules.importers.flow_families import known_family
from modules.importers.flow_rules import MUSUBI_RULES
from modules.importers.kohya.family import METHOD_KEYS
from modules.importers.kohya.trained import PLUS, adapter_arguments, algorithm_assignments, alpha, dropout, rank
from modules.importers.kohya.training import SHARED_RULES, SHARED_UNSUPPORTED
from modules.importers.memory import ONE_SCALE, base_weights_rule, encoder_weights_rule
from modules.importers.readers import boolean, data_paths, integer, model_path, number, text
from modules.importers.rules import (
    EMPTY_VALUES,
    Assignment,
    CombinedRule,
    PathValue,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    Values,
)

_FAMILIES: Final[Mapping[str, FamilyFacts]] = {
    name: facts for name, facts in all_facts().items() if facts.musubi_module
}
_MODULES: Final = frozenset(facts.musubi_module for facts in _FAMILIES.values())
_SHARED_MODULE: Final = "lora_flux"  # which sd-scripts has, too
_OTHER_MODULES: Final = (
    "lora_wan",
    "lora_framepack",
    "lora_hv_1_5",
    "lora_kandinsky",
    "lora_ideogram4",
    "lora_hidream_o1",
)
OWN_MODULES: Final = (*(_MODULES - {_SHARED_MODULE}), *_OTHER_MODULES)
_ENCODERS: Final = ("fp8_t5", "fp8_text_encoder", "fp8_vl", "fp8_llm")
_FAMILY_KEYS: Final[Mapping[str, object]] = {"dit": None, "model_version": None, "edit": False, "edit_plus": False}


def module_of(values: Mapping[str, object]) -> str:
    """The last word of the network module's name; empty for a fine-tune."""
    return str(values.get("network_module") or "").rpartition(".")[2].lower()


def family_of(values: Mapping[str, object]) -> str:
    """Tandem's family, another's name, or empty: each model has a script of its own, which the file does not name."""
    module, version = module_of(values), _version(values)
    if module in _OTHER_MODULES:
        return module.removeprefix("lora_")
    by_module = [name for name, facts in _FAMILIES.items() if facts.musubi_module == module]
    for name in by_module or _FAMILIES:
        if version in _FAMILIES[name].musubi_versions:
            return name
    if by_module or (by_module := [name for name, facts in _FAMILIES.items() if version in facts.musubi_others]):
        return by_module[0]
    name = re.sub(r"[\s.-]+", "_", PurePosixPath(str(values.get("dit") or "").replace("\\", "/")).name.lower())
    aliases = {alias: family for family, facts in _FAMILIES.items() for alias in facts.aliases}
    return aliases[max(found, key=len)] if (found := [alias for alias in aliases if alias in name]) else ""


def other_model(values: Mapping[str, object]) -> str:
    """The model that is trained if Tandem has none of that version; empty otherwise."""
    return next((found for facts in _FAMILIES.values() if (found := facts.musubi_others.get(_version(values)))), "")


def _version(values: Mapping[str, object]) -> str:
    """Which model of several is trained; for older switches, qwen_image_utils.py, resolve_model_version_args."""
    switches = {"edit_plus": "edit-2509", "edit": "edit"}
    older = (version for name, version in switches.items() if values.get(name) not in (*EMPTY_VALUES, "false"))
    return str(values.get("model_version") or next(older, "")).lower()


def facts_of(values: Mapping[str, object]) -> FamilyFacts | None:
    """The facts of the family, if Tandem has it."""
    return all_facts().get(family_of(values))


def _model(values: Values) -> list[Assignment]:
    found = []
    if values["dit"] not in EMPTY_VALUES:
        found.append(Assignment("base_model", model_path(values["dit"]), keys=("dit",)))
    family, module = family_of(values), module_of(values)
    facts = _FAMILIES.get(family)
    if facts and (model := facts.musubi_versions.get(_version(values))):
        layout = PathValue(model, "model")
        found.append(Assignment("flow_options.layout", layout, keys=("model_version", "edit", "edit_plus")))
    if family:
        keys = ("network_module",) if module in (*_MODULES, *_OTHER_MODULES) else tuple(_FAMILY_KEYS)
        found.append(Assignment("family", family, "" if known_family(family) else common.NO_FAMILY, keys))
    else:
        found.append(Assignment("", why="the file does not say of which model it is: set family", keys=("dit",)))
    if not module:
        return [*found, Assignment("method", "fine_tune", keys=("network_module",))]
    why = "" if module.startswith(("lora", "loha", "lokr")) else common.LORA_INSTEAD
    targets = facts.musubi_layers if facts else "blocks"
    found += [
        Assignment("method", "lora", why, ("network_module",)),
        Assignment("lora_targets", targets, keys=("network_module",)),
    ]
    arguments, keys = adapter_arguments(values), ("network_args",)
    found += algorithm_assignments(arguments, values)
    for name in ("exclude_patterns", "include_patterns"):
        if arguments.get(name) not in EMPTY_VALUES:
            found.append(Assignment("", why=f"set lora_targets to what {name} leaves", keys=keys))
    known = ("factor", "exclude_patterns", "include_patterns", "verbose", PLUS[0])
    if rest := ", ".join(sorted(name for name in arguments if name not in known)):
        found.append(Assignment("", why=f"Tandem's LoRA has no {rest}", keys=keys))
    return found


def _base_weights(values: Values) -> str | None:
    if not boolean(values["fp8_base"]):
        return None
    if not module_of(values):
        raise UnsupportedValueError("only frozen weights under a LoRA are quantised")
    return "fp8"


def _encoder_weights(values: Values) -> str | None:
    return "fp8" if any(boolean(value) for value in values.values()) else None


_ATTENTION: Final = "PyTorch's attention chooses the fastest implementation"
_COMPILES: Final = "compile uses PyTorch's defaults"

TABLE = Table(
    rules=(
        CombinedRule(
            {"network_module": None, "network_args": None, **_FAMILY_KEYS},
            "base_model, family, family_options.layout, method, lora_targets, lora_algorithm, lokr_factor, "
            "lora_plus_ratio", _model,
            "musubi-tuner has a script for each model: the network module tells it, or the file's version or name; "
            "a module means LoRA, LoHa or LoKr, of the layers of the blocks without modulation, or of all its layers",
            {**METHOD_KEYS, "factor": -1, **dict.fromkeys(PLUS, 0)},
        ),
        CombinedRule({"network_dim": 4}, "lora_rank", rank, uses={**METHOD_KEYS, "network_args": None}),
        CombinedRule({"network_alpha": 1.0}, "lora_alpha", alpha, "0 means the rank", {"network_dim": 4}),
        CombinedRule(
            {"network_dropout": 0.0}, "lora_dropout", dropout, "of the inputs; there the first matrix's outputs",
            {**METHOD_KEYS, "network_args": None},
        ),
        Rule("mixed_precision", "precision", None, lambda value: "fp16" if str(value) == "fp16" else "bf16"),
        base_weights_rule({"fp8_base": False}, _base_weights, {"network_module": None}, ONE_SCALE),
        encoder_weights_rule(dict.fromkeys(_ENCODERS, False), _encoder_weights),
        Rule("compile", "compile", False, boolean, optional=True),
        *MUSUBI_RULES,
        *SHARED_RULES,
    ),
    unsupported=(
        Unsupported("fp8_scaled", "Tandem's fp8 always has scales"),
        Unsupported("sdpa flash_attn sage_attn xformers flash3 split_attn use_32bit_attention", _ATTENTION),
        Unsupported("compile_backend", _COMPILES, default="inductor"),
        Unsupported("compile_mode", _COMPILES, default="default"),
        Unsupported("compile_*", _COMPILES),
        Unsupported("cuda_*", "Tandem decides"),
        Unsupported("gradient_checkpointing_cpu_offload", "set gradient_checkpointing, and block_offload"),
        Unsupported("block_swap_optimizer_patch_params use_pinned_memory_for_block_swap", "Tandem decides"),
        Unsupported("img_in_txt_in_offloading disable_numpy_memmap mem_eff_save", "Tandem decides"),
        Unsupported("min_timestep max_timestep preserve_distribution_shape", common.FLOW),
        Unsupported("num_timestep_buckets", common.FLOW),
        Unsupported("show_timesteps", "shows the noise levels and trains nothing"),
        Unsupported("network_weights", "set lora_from to that file, if it is a LoRA"),
        Unsupported("base_weights*", common.MERGE_FIRST),
        Unsupported("dim_from_weights", "set lora_rank"),
        Unsupported("scale_weight_norms", common.LORA, default=0),
        Unsupported("metadata_reso metadata_arch", common.METADATA),
        Unsupported("vae", "the autoencoder comes from family_options.layout"),
        Unsupported("vae_dtype", "Tandem decides"),
        Unsupported("turbo_dit*", "samples are of the model that is trained"),
        Unsupported("num_layers", "the file says how many"),
        Unsupported("remove_first_image_from_target", "for models of layers, which Tandem does not have"),
        *SHARED_UNSUPPORTED,
    ),
)  # fmt: skip

LETTERS: Final[Mapping[str, str]] = {
    "n": "negative_prompt", "w": "width", "h": "height", "d": "seed", "s": "sample_steps", "g": "guidance_scale",
    "l": "cfg_scale", "fs": "discrete_flow_shift", "f": "frame_count", "i": "image_path", "ei": "end_image_path",
    "cn": "control_video_path", "ci": "control_image_path", "of": "one_frame",
}  # fmt: skip


def prompt_table(facts: FamilyFacts | None) -> Table:
    """The rules of one sample; distilled models take `guidance_scale`, others `cfg_scale`."""
    scale, other = ("guidance_scale", "cfg_scale") if facts and facts.has_guidance else ("cfg_scale", "guidance_scale")
    images = Unsupported("control_image_path", "for models that edit images")
    references = facts.references if facts else None
    most = references.most if references else 0
    reference = Rule("control_image_path", "reference", None, lambda value: data_paths(value, most), optional=True)
    return Table(
        rules=(
            Rule("prompt", "prompt", "", text),
            Rule("negative_prompt", "negative_prompt", "", text),
            Rule("width", "width", 256, integer),
            Rule("height", "height", 256, integer),
            Rule("sample_steps", "steps", 20, integer),
            Rule(scale, "guidance_scale", None, number, optional=True),
            Rule("seed", "seed", None, integer, optional=True),
            *([reference] if references else []),
        ),
        unsupported=(
            Unsupported(other, f"this model's samples have {scale}"),
            Unsupported("discrete_flow_shift", common.FLOW),
            Unsupported("image_path end_image_path control_video_path one_frame", common.IMAGES_ONLY),
            Unsupported("frame_count", common.IMAGES_ONLY, default=1),
            *([] if references else [images]),
        ),
    )
