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
from modules.checkpoint.formats.lora_origin import is_of_transformer
from modules.checkpoint.formats.lora_other_names import (
    PEFT_CONFIG,
    PEFT_FILE,
    PEFT_PREFIX,
    check_base_unchanged,
    comfyui_text_name,
    has_old_names,
    peft_settings,
    plain_name,
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

_NAMED: Final = 3  # tensors that are left out
_IN_FOLDERS: Final = ("pytorch_lora_weights.safetensors", "lora_kohya.safetensors", PEFT_FILE)
_SMALL_DTYPES: Final = (torch.float8_e4m3fn, torch.float8_e5m2)  # of some published files; read as fp32
_MATRICES: Final = (".lora_down.weight", ".lora_up.weight", ".lora_A.weight", ".lora_B.weight")
_OF_TEXT_ENCODERS: Final = ("lora_te", "text_encoder", "bundle_emb.")


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


def read_lora(file: Path, prefixes: AdapterPrefixes, left_out: list[str] | None = None) -> list[LoraWeights]:
    """The adapters in `file`, in any layout of a LoRA.

    For `left_out` see `read_adapter`. Raises ConfigError if it is not a LoRA for `prefixes`, or contains something that
    would be lost.
    """
    file = adapter_file(file)
    check_is_lora(file)
    tensors, settings = _read_tensors(file, prefixes, left_out)
    found, used = _read_lora(file, tensors, settings, prefixes)
    _check_complete(file, tensors, used, found, left_out)
    return found


def read_adapter(file: Path, prefixes: AdapterPrefixes, left_out: list[str] | None = None) -> list[AdapterWeights]:
    """The adapters in `file`: those of `read_lora`, LoHa, LoKr or OFT, also several kinds in one file.

    `left_out` gets the names of the tensors that no adapter of Tandem's holds; without it they are an error. Raises
    ConfigError as `read_lora` does.
    """
    file = adapter_file(file)
    tensors, settings = _read_tensors(file, prefixes, left_out)
    found, used = read_lycoris(file, tensors, prefixes, settings)
    rest = {name: tensor for name, tensor in tensors.items() if name not in used}
    if not found or any(name.endswith(_MATRICES) for name in rest):
        plain, of_plain = _read_lora(file, rest, settings, prefixes)
        found, used = [*found, *plain], used | of_plain
    _check_complete(file, tensors, used, found, left_out)
    return found


def adapter_algorithm(path: Path) -> str:
    """What the file or folder `path` holds, as `lora_algorithm` calls it; reads only names. Raises ConfigError."""
    with SafetensorsFile(adapter_file(path)) as file:
        _require_adapter(file)
        return (_lycoris_kind(map(plain_name, file.names)) or "LoRA").lower()


def check_is_lora(path: Path) -> None:
    """Raises ConfigError unless `path` is the file or the folder of a LoRA; reads only names."""
    with SafetensorsFile(adapter_file(path)) as file:
        other = _lycoris_kind(map(plain_name, file.names))
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
    plain = [plain_name(name) for name in names]
    return bool(_lycoris_kind(plain)) or any(name.endswith(_MATRICES) for name in plain) or has_old_names(plain)


def left_out_sentence(names: Sequence[str]) -> str:
    """Which tensors of a LoRA were left out; empty if there are none."""
    if not names:
        return ""
    count = f"{len(names)} tensors are" if len(names) > 1 else "One tensor is"
    return f"{count} left out: {', '.join(names[:_NAMED])}{', ...' if len(names) > _NAMED else ''}."


def assumed_alpha(path: Path) -> str:
    """A sentence if peft's names say nothing of alpha, and so it is taken to be the rank; reads only names."""
    path = adapter_file(path)
    with SafetensorsFile(path) as file:
        is_told = any(name.endswith(".alpha") for name in file.names) or path.with_name(PEFT_CONFIG).is_file()
        if is_told or not any(name.startswith(PEFT_PREFIX) for name in file.names):
            return ""
    return (
        f"{path.name} has peft's names and neither alpha nor {PEFT_CONFIG} beside it: alpha is taken to be the rank, "
        "as ComfyUI and diffusers take it."
    )


def _read_tensors(
    file: Path, prefixes: AdapterPrefixes, left_out: list[str] | None
) -> tuple[dict[str, Tensor], dict[str, object]]:
    """All tensors by their names in kohya's, diffusers' or the model's own layout, and peft's settings.

    Raises ConfigError before anything is read if it is no adapter.
    """
    with SafetensorsFile(file) as source:
        _require_adapter(source)
        names, settings = _present_names(file, source.names, source.metadata, prefixes)
        if left_out is not None and TRANSFORMER in prefixes and is_of_transformer(source.names):
            left_out += [name for name, present in names.items() if present.startswith(_OF_TEXT_ENCODERS)]
            names = {name: present for name, present in names.items() if name not in left_out}
        tensors = {present: _as_numbers(file, name, source.read(name)) for name, present in names.items()}
    check_base_unchanged(file, settings)
    _check_shapes(file, tensors)
    return tensors, settings


def _as_numbers(file: Path, name: str, tensor: Tensor) -> Tensor:
    """`tensor` in a dtype that torch calculates with. Raises ConfigError if it is complex or, but for alpha, whole."""
    if tensor.dtype in _SMALL_DTYPES:
        return tensor.float()
    if tensor.is_complex() or not (tensor.is_floating_point() or name.endswith((".alpha", ".scaled_oft"))):
        numbers = "complex numbers" if tensor.is_complex() else f"numbers of the format {str(tensor.dtype)[6:]}"
        raise ConfigError(
            f"{str(file)!r}: {name!r} has {numbers}, which no LoRA has.",
            "Use a LoRA in fp32, bf16, fp16 or fp8 (e4m3fn or e5m2).",
        )
    return tensor


def _check_shapes(file: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        is_matrix = name.endswith(_MATRICES) or (_lycoris_kind([name]) and not name.endswith(".scaled_oft"))
        if (is_matrix and tensor.dim() < 2) or tensor.numel() == 0:
            raise ConfigError(f"{str(file)!r} is damaged: {name!r} has the shape {list(tensor.shape)}.")


def _require_adapter(file: SafetensorsFile) -> None:
    if not is_adapter(file.names):
        raise ConfigError(
            f"{str(file.path)!r} is not a LoRA: no name in it contains lora_A or lora_down.",
            "Tandem reads LoRA of diffusers, PEFT and kohya's scripts, LoHa, LoKr and OFT of LyCORIS and OneTrainer.",
        )


def _lycoris_kind(names: Iterable[str]) -> str:
    return next((kind for name in names for infix, kind in LYCORIS_KINDS.items() if infix in name), "")


def _read_lora(
    file: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, object], prefixes: AdapterPrefixes
) -> tuple[list[LoraWeights], set[str]]:
    """The adapters, and the names of the tensors that they use."""
    own = read_transformer_lora(file, tensors, settings) if TRANSFORMER in prefixes else None
    if own is not None:
        found, used = own
    elif any(".lora_down." in name for name in tensors):
        found, used = read_kohya(file, tensors, prefixes)
    else:
        found, used = read_diffusers(file, tensors, settings, prefixes)
    for adapter in found:
        flat = adapter.up.flatten(1)
        if flat.shape[1] != adapter.rank or (adapter.magnitude is not None and len(adapter.magnitude) != len(flat)):
            raise ConfigError(
                f"{str(file)!r} is damaged: the two matrices of {adapter.module!r} have the incompatible shapes "
                f"{list(adapter.down.shape)} and {list(adapter.up.shape)}."
            )
    return found, used


def _present_names(
    file: Path, names: Iterable[str], metadata: Mapping[str, str], prefixes: AdapterPrefixes
) -> tuple[dict[str, str], dict[str, object]]:
    """Each tensor's name in kohya's layout, diffusers' or the model's own, and peft's settings. Raises ConfigError."""
    present = {name: comfyui_text_name(plain_name(name), prefixes) for name in names}
    settings: dict[str, object] = {}
    if any(name.startswith(PEFT_PREFIX) for name in present.values()):
        translated = translate_peft_names(file, present.values(), prefixes)
        settings = peft_settings(file, prefixes)
    elif has_old_names(present.values()):
        translated = translate_old_names(present.values(), prefixes)
    else:
        translated = {name: name for name in present.values()}
        settings = header_settings(file, metadata)
    present = {name: translated[plain] for name, plain in present.items()}
    twice = next((name for name, count in Counter(present.values()).items() if count > 1), None)
    if twice is not None:
        same = [name for name, each in present.items() if each == twice]
        raise ConfigError(
            f"{str(file)!r} is damaged: it has two adapters of {twice.partition('.lora_')[0]!r}, "
            f"{same[0]!r} and {same[1]!r}."
        )
    return present, settings


def _check_complete(
    file: Path,
    tensors: Collection[str],
    used: Collection[str],
    found: Sequence[AdapterWeights],
    left_out: list[str] | None,
) -> None:
    """Raises ConfigError if two adapters are for the same layer, or a tensor was not used and is not to be left out."""
    unknown = [name for name in tensors if name not in used]
    if unknown and left_out is None:
        more = f" and {len(unknown) - 1} more tensors do" if len(unknown) > 1 else " does"
        raise ConfigError(
            f"{str(file)!r}: {unknown[0]!r}{more} not belong to a LoRA, LoHa, LoKr or OFT that Tandem reads.",
            "scripts/convert.py --skip_unread, and training with lora_from_skip_unread, leave them out and say which.",
        )
    if left_out is not None:
        left_out += unknown
        if not found:
            raise ConfigError(f"{str(file)!r}: nothing of it is left without {unknown[0]!r} and what else is not read.")
    places = Counter((adapter.submodule, adapter.module) for adapter in found)
    twice = next((place for place, count in places.items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"{str(file)!r} is damaged: it has two adapters of {'.'.join(twice)!r}.")
