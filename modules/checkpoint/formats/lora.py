"""LoRA files: written in the two common layouts, diffusers' (PEFT) and kohya's, and read in others as well."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.lora_diffusers import (
    ADAPTER_METADATA,
    diffusers_tensors,
    header_settings,
    peft_configs,
    read_diffusers,
)
from modules.checkpoint.formats.lora_kohya import has_stability_names, kohya_key_prefixes, kohya_tensors, read_kohya
from modules.checkpoint.formats.lora_other_names import (
    PEFT_PREFIX,
    check_base_unchanged,
    has_old_names,
    peft_settings,
    translate_old_names,
    translate_peft_names,
)
from modules.checkpoint.formats.lora_own_names import own_family, own_tensors
from modules.checkpoint.formats.lora_transformer import TRANSFORMER, read_transformer_lora
from modules.checkpoint.formats.lora_weights import AdapterPrefixes, AdapterWeights, Layout, LoraWeights
from modules.checkpoint.formats.lycoris import LYCORIS_KINDS, lycoris_tensors, read_lycoris
from modules.checkpoint.formats.metadata import SDXL, original_implementation
from modules.checkpoint.formats.safetensors_file import KOHYA_HASH_KEYS, SafetensorsFile, write_safetensors
from modules.config import ConfigError

_IN_FOLDERS: Final = ("pytorch_lora_weights.safetensors", "lora_kohya.safetensors", "adapter_model.safetensors")
_DTYPES: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_SMALL_DTYPES: Final = (torch.float8_e4m3fn, torch.float8_e5m2)  # of some published files; read as fp32
_MATRICES: Final = (".lora_down.weight", ".lora_up.weight", ".lora_A.weight", ".lora_B.weight")


def write_lora(
    file: Path,
    weights: Iterable[AdapterWeights],
    layout: Layout,
    prefixes: AdapterPrefixes,
    metadata: Mapping[str, str],
    dtype: torch.dtype,
    architecture: str = "",
    rows: Mapping[str, int] | None = None,
) -> None:
    """Write the adapters, all of one algorithm.

    `architecture` is the model's modelspec name, empty if it is that in `metadata`; kohya's layout names the layers of
    transformers by it. For `rows` see `own_tensors`.

    Raises ConfigError if the layout cannot name a module, OSError if the disk is full.
    """
    adapters = list(weights)
    plain = [one for one in adapters if isinstance(one, LoraWeights)]
    header = {**metadata, **dict.fromkeys(KOHYA_HASH_KEYS, "")}
    architecture = architecture or header.get("modelspec.architecture", "")
    if "modelspec.implementation" in header:  # depends on whose names for layers the file has
        original = layout == "kohya" and has_stability_names(adapters, prefixes)
        header["modelspec.implementation"] = original_implementation(SDXL) if original else "diffusers"
        if layout == "kohya" and len(plain) == len(adapters) and own_family(plain, architecture):
            header["modelspec.implementation"] = original_implementation(architecture)
    if len(plain) < len(adapters):
        write_safetensors(file, lycoris_tensors(adapters, layout, prefixes, dtype), header)
        return
    if layout == "kohya":
        own = any(one.submodule == TRANSFORMER for one in plain)
        tensors = own_tensors(plain, architecture, dtype, rows) if own else kohya_tensors(plain, prefixes, dtype)
        write_safetensors(file, tensors, header)
        return
    settings = {ADAPTER_METADATA: json.dumps(peft_configs(plain, prefixes), indent=2, sort_keys=True)}
    write_safetensors(file, diffusers_tensors(plain, prefixes, dtype), header | settings)


def check_kohya_names(
    adapters: Sequence[AdapterWeights],
    prefixes: AdapterPrefixes,
    architecture: str,
    rows: Mapping[str, int] | None = None,
) -> None:
    """Raises ConfigError if kohya's layout cannot name a module of these, for a model of this architecture.

    For `rows` see `own_tensors`.
    """
    plain = [one for one in adapters if isinstance(one, LoraWeights)]
    if any(one.submodule == TRANSFORMER for one in plain):
        own_tensors(plain, architecture, torch.float32, rows)
    else:
        kohya_key_prefixes(adapters, prefixes)


def read_lora(file: Path, prefixes: AdapterPrefixes) -> list[LoraWeights]:
    """The adapters in `file`, in any layout of a LoRA.

    Raises ConfigError if it is not a LoRA for `prefixes`, or contains something that would be lost.
    """
    file = adapter_file(file)
    check_is_lora(file)
    return _read_lora(file, *_read_tensors(file), prefixes)


def read_adapter(file: Path, prefixes: AdapterPrefixes) -> list[AdapterWeights]:
    """The adapters in `file`: those of `read_lora`, LoHa, LoKr or OFT. Raises ConfigError as it does."""
    file = adapter_file(file)
    tensors, metadata = _read_tensors(file)
    if not _lycoris_kind(tensors):
        return list(_read_lora(file, tensors, metadata, prefixes))
    found, used = read_lycoris(file, tensors, prefixes)
    _check_complete(file, tensors, used, found)
    return found


def adapter_algorithm(path: Path) -> str:
    """What the file or folder `path` holds, as `lora_algorithm` calls it; reads only names. Raises ConfigError."""
    with SafetensorsFile(adapter_file(path)) as file:
        _require_adapter(file)
        return (_lycoris_kind(file.names) or "LoRA").lower()


def check_is_lora(path: Path) -> None:
    """Raises ConfigError unless `path` is the file or the folder of a LoRA; reads only names."""
    with SafetensorsFile(adapter_file(path)) as file:
        other = _lycoris_kind(file.names)
        if other:
            raise ConfigError(
                f"{str(file.path)!r} is a {other}, which cannot become a LoRA without loss.",
                "scripts/sample.py --lora generates images with it, scripts/convert.py --merge merges it into a model.",
            )
        _require_adapter(file)


def adapter_file(path: Path) -> Path:
    """The file itself, or the adapter in a folder that Tandem, diffusers or peft saved. Raises ConfigError."""
    if not path.is_dir():
        return path
    found = next((path / name for name in _IN_FOLDERS if (path / name).is_file()), None)
    if found is None:
        raise ConfigError(f"{str(path)!r} is a folder without a LoRA; give its .safetensors file.")
    return found


def is_adapter(names: Collection[str]) -> bool:
    """Whether a file with tensors of these names is a LoRA, a LoHa, a LoKr or an OFT."""
    return bool(_lycoris_kind(names)) or any(name.endswith(_MATRICES) for name in names) or has_old_names(names)


def _read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata. Raises ConfigError before anything is read if it is no adapter."""
    with SafetensorsFile(file) as source:
        _require_adapter(source)
        tensors = {name: _as_numbers(file, name, source.read(name)) for name in source.names}
        metadata = source.metadata
    _check_shapes(file, tensors)
    for name, tensor in tensors.items():
        if not name.endswith(".alpha") and not (tensor.is_floating_point() and bool(tensor.isfinite().all())):
            raise ConfigError(f"{str(file)!r} is damaged: {name!r} contains values that are no finite numbers.")
    return tensors, metadata


def _as_numbers(file: Path, name: str, tensor: Tensor) -> Tensor:
    """`tensor` in a dtype that torch calculates with. Raises ConfigError for those of which it only has the name."""
    if tensor.dtype in _SMALL_DTYPES:
        return tensor.float()
    if tensor.is_floating_point() and tensor.dtype not in _DTYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ConfigError(
            f"{str(file)!r}: {name!r} has the number format {kind}, which Tandem does not read.",
            "Use a LoRA in fp32, bf16, fp16 or fp8 (e4m3fn or e5m2).",
        )
    return tensor


def _check_shapes(file: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        is_matrix = name.endswith(_MATRICES) or _lycoris_kind([name])
        if (is_matrix and tensor.dim() < 2) or tensor.numel() == 0:
            raise ConfigError(f"{str(file)!r} is damaged: {name!r} has the shape {list(tensor.shape)}.")


def _require_adapter(file: SafetensorsFile) -> None:
    if not is_adapter(file.names):
        raise ConfigError(
            f"{str(file.path)!r} is not a LoRA: no name in it contains lora_A or lora_down.",
            "Tandem reads LoRA of diffusers, PEFT and kohya's scripts, LoHa and LoKr of LyCORIS, and OneTrainer's OFT.",
        )


def _lycoris_kind(names: Iterable[str]) -> str:
    return next((kind for name in names for infix, kind in LYCORIS_KINDS.items() if infix in name), "")


def _read_lora(
    file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], prefixes: AdapterPrefixes
) -> list[LoraWeights]:
    own = read_transformer_lora(file, tensors) if TRANSFORMER in prefixes else None
    if own is not None:
        found, used = own
    elif any(".lora_down." in name for name in tensors):
        found, used = read_kohya(file, tensors, prefixes)
    else:
        names, settings = _present_names(file, tensors, metadata, prefixes)
        check_base_unchanged(file, settings)
        twice = next((name for name, count in Counter(names.values()).items() if count > 1), None)
        if twice is not None:
            same = [name for name, present in names.items() if present == twice]
            raise ConfigError(
                f"{str(file)!r} is damaged: it has two adapters of {twice.partition('.lora_')[0]!r}, "
                f"{same[0]!r} and {same[1]!r}."
            )
        tensors = {names[name]: tensor for name, tensor in tensors.items()}
        _check_shapes(file, tensors)
        found, used = read_diffusers(file, tensors, settings, prefixes)
    _check_complete(file, tensors, used, found)
    for adapter in found:
        flat = adapter.up.flatten(1)
        if flat.shape[1] != adapter.rank or (adapter.magnitude is not None and len(adapter.magnitude) != len(flat)):
            raise ConfigError(
                f"{str(file)!r} is damaged: the two matrices of {adapter.module!r} have the incompatible shapes "
                f"{list(adapter.down.shape)} and {list(adapter.up.shape)}."
            )
    return found


def _present_names(
    file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], prefixes: AdapterPrefixes
) -> tuple[dict[str, str], dict[str, object]]:
    """Each tensor's name in diffusers' layout, and peft's settings."""
    if any(name.startswith(PEFT_PREFIX) for name in tensors):
        return translate_peft_names(file, tensors, prefixes), peft_settings(file, prefixes)
    if has_old_names(tensors):
        return translate_old_names(tensors, prefixes), {}
    return {name: name for name in tensors}, header_settings(file, metadata)


def _check_complete(
    file: Path, tensors: Collection[str], used: Collection[str], found: Sequence[AdapterWeights]
) -> None:
    """Raises ConfigError if a tensor was not used, or two adapters are for the same layer."""
    unknown = next((name for name in tensors if name not in used), None)
    if unknown is not None:
        raise ConfigError(f"{str(file)!r}: the tensor {unknown!r} does not belong to any supported LoRA.")
    places = Counter((adapter.submodule, adapter.module) for adapter in found)
    twice = next((place for place, count in places.items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"{str(file)!r} is damaged: it has two adapters of {'.'.join(twice)!r}.")
