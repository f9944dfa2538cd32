"""LoRA adapters in the two layouts that tools agree on, written and read.

"diffusers": PEFT's names below the part's name, `unet.down_blocks.0...lora_A.weight`; alpha is no tensor there, so
the header says it, as diffusers (loaders/lora_base.py) does. "kohya": `lora_unet_down_blocks_0_....lora_down.weight`,
with `alpha` and, for DoRA, `dora_scale` as tensors beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from modules.checkpoint.formats.kohya_names import dotted, flat
from modules.checkpoint.formats.tensor_files import Planned, TensorFile, planned, write_tensor_file
from modules.config import ConfigError

Layout = Literal["diffusers", "kohya"]
AdapterNames = Mapping[str, tuple[str, str]]  # part -> its prefix in the diffusers layout and in kohya's

ADAPTER_METADATA: Final = "lora_adapter_metadata"


@dataclass(frozen=True)
class LoraWeights:
    """The adapter of one module: it adds `up @ down * alpha / rank` to the module's weight.

    `down` is [rank, in] or [rank, in, kh, kw], `up` is [out, rank] or [out, rank, 1, 1]; `magnitude` [out] is DoRA's
    length of each row of the sum (Liu et al. 2024, arXiv:2402.09353).
    """

    part: str
    module: str  # dotted, within the part
    down: Tensor
    up: Tensor
    alpha: float
    magnitude: Tensor | None

    @property
    def rank(self) -> int:
        """Rows of `down`."""
        return self.down.shape[0]


def write_lora(
    file: Path,
    weights: Iterable[LoraWeights],
    layout: Layout,
    names: AdapterNames,
    metadata: Mapping[str, str],
    dtype: torch.dtype,
) -> None:
    """Write the adapter. Raises ConfigError where the layout cannot name a module, OSError where the disk is full."""
    adapters = list(weights)
    if layout == "kohya":
        write_tensor_file(file, _kohya_tensors(adapters, names, dtype), metadata)
        return
    settings = {ADAPTER_METADATA: json.dumps(_adapter_settings(adapters, names), indent=2, sort_keys=True)}
    write_tensor_file(file, _diffusers_tensors(adapters, names, dtype), dict(metadata) | settings)


def read_lora(file: Path, names: AdapterNames) -> list[LoraWeights]:
    """The adapter in `file`, whichever layout it has.

    Raises ConfigError, in words, where it is none for `names`, or holds something that would be lost.
    """
    with TensorFile(file) as source:
        tensors = {name: source.read(name) for name in source.names}
        metadata = source.metadata
    if any(".lora_down." in name for name in tensors):
        found, used = _read_kohya(file, tensors, names)
    elif any(".lora_A." in name for name in tensors):
        found, used = _read_diffusers(file, tensors, metadata, names)
    else:
        raise ConfigError(
            f"{str(file)!r} holds no LoRA: no name in it has lora_A or lora_down.",
            "Tandem reads the layouts of diffusers (PEFT) and kohya; other kinds of LyCORIS files are not read.",
        )
    strange = next((name for name in tensors if name not in used), None)
    if strange is not None:
        raise ConfigError(f"{str(file)!r}: the tensor {strange!r} belongs to no LoRA that Tandem knows.")
    uneven = next((one for one in found if one.up.dim() < 2 or one.up.shape[1] != one.rank), None)
    if uneven is not None:
        raise ConfigError(
            f"{str(file)!r} is damaged: the two matrices of {uneven.module!r} are of the shapes "
            f"{list(uneven.down.shape)} and {list(uneven.up.shape)}, which do not fit each other."
        )
    return found


# In older libraries, and so in the files of every tool, CLIP's layers lie one name deeper than transformers has them.
_CLIP: Final = "text_model."


def _is_text(part: str) -> bool:
    return part.startswith("text_encoder")


def _outer(adapter: LoraWeights) -> str:
    """The module's name as files have it."""
    module = adapter.module
    inside_clip = _is_text(adapter.part) and module.startswith(("encoder.", "embeddings.", "final_layer_norm"))
    return _CLIP + module if inside_clip else module


def _inner(part: str, module: str) -> str:
    """The name in files as memory has it: CLIPTextModel has lost its outer name, CLIPTextModelWithProjection not."""
    return module.removeprefix(_CLIP) if part == "text_encoder" else module


def _diffusers_tensors(adapters: Sequence[LoraWeights], names: AdapterNames, dtype: torch.dtype) -> dict[str, Planned]:
    tensors = {}
    for adapter in adapters:
        stem = f"{names[adapter.part][0]}.{_outer(adapter)}"
        tensors[f"{stem}.lora_A.weight"] = planned(adapter.down, dtype)
        tensors[f"{stem}.lora_B.weight"] = planned(adapter.up, dtype)
        if adapter.magnitude is not None:
            # peft keeps a convolution's lengths as [1, out, 1, 1].
            sides = adapter.down.dim() - 2
            shape = [1, -1, *[1] * sides] if sides else [-1]
            # transformers finds the lengths of its own modules under the longer name only; peft finds both.
            vector = f"{stem}.lora_magnitude_vector" + (".weight" if _is_text(adapter.part) else "")
            tensors[vector] = planned(adapter.magnitude.reshape(shape), dtype)
    return tensors


def _adapter_settings(adapters: Sequence[LoraWeights], names: AdapterNames) -> dict[str, object]:
    """peft's LoraConfig of each part, under the part's prefix."""
    settings: dict[str, object] = {}
    for part in dict.fromkeys(adapter.part for adapter in adapters):
        own = [adapter for adapter in adapters if adapter.part == part]
        rank, alpha = own[0].rank, own[0].alpha
        # Without CLIP's outer name: peft compares the ends of names, so these fit every version of transformers.
        targets = {_outer(adapter).removeprefix(_CLIP): adapter for adapter in own}
        config = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": alpha,
            "target_modules": sorted(targets),
            "rank_pattern": {name: a.rank for name, a in targets.items() if a.rank != rank},
            "alpha_pattern": {name: a.alpha for name, a in targets.items() if a.alpha != alpha},
            "use_dora": any(adapter.magnitude is not None for adapter in own),
            "lora_bias": False,
        }
        settings.update({f"{names[part][0]}.{key}": value for key, value in config.items()})
    return settings


def _kohya_tensors(adapters: Sequence[LoraWeights], names: AdapterNames, dtype: torch.dtype) -> dict[str, Planned]:
    tensors = {}
    for adapter in _with_one_alpha(adapters):
        stem = f"{names[adapter.part][1]}_{kohya_name(adapter)}"
        tensors[f"{stem}.lora_down.weight"] = planned(adapter.down, dtype)
        tensors[f"{stem}.lora_up.weight"] = planned(adapter.up, dtype)
        tensors[f"{stem}.alpha"] = planned(torch.tensor(float(adapter.alpha)), torch.float32)
        if adapter.magnitude is not None:
            shape = [-1, *[1] * (adapter.down.dim() - 1)]
            tensors[f"{stem}.dora_scale"] = planned(adapter.magnitude.reshape(shape), dtype)
    return tensors


def kohya_name(adapter: LoraWeights) -> str:
    """The module's name behind its part's prefix. Raises ConfigError where the kohya layout has none for it."""
    name = flat(_outer(adapter))
    if name is None:
        raise ConfigError(
            f"lora_layouts: the module {adapter.module!r} cannot be named in the kohya layout, which joins all "
            "words by _.",
            "Choose the layout diffusers alone.",
        )
    return name


def _with_one_alpha(adapters: Sequence[LoraWeights]) -> list[LoraWeights]:
    """The same adapters, all with the alpha of the first: diffusers loses alphas that differ (get_peft_kwargs)."""
    alpha = adapters[0].alpha if adapters else 1.0
    return [
        one if one.alpha == alpha else replace(one, up=one.up * (one.alpha / alpha), alpha=alpha) for one in adapters
    ]


def _read_diffusers(
    file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], names: AdapterNames
) -> tuple[list[LoraWeights], set[str]]:
    """The adapters, and the names of the tensors that they are made of."""
    settings = _settings_in(file, metadata)
    found: list[LoraWeights] = []
    used: set[str] = set()
    for name, down in tensors.items():
        stem, is_down, _ = name.partition(".lora_A.weight")
        if not is_down:
            continue
        part = _part_of(file, stem, names, kohya=False)
        prefix = names[part][0]
        module = stem.removeprefix(f"{prefix}.")
        vector = f"{stem}.lora_magnitude_vector"
        magnitude = tensors.get(vector, tensors.get(f"{vector}.weight"))
        used |= {name, f"{stem}.lora_B.weight", vector, f"{vector}.weight"}
        found.append(
            LoraWeights(
                part=part,
                module=_inner(part, module),
                down=down,
                up=_beside(file, tensors, f"{stem}.lora_B.weight"),
                alpha=_alpha_of(settings, prefix, module, rank=down.shape[0]),
                magnitude=None if magnitude is None else magnitude.flatten(),
            )
        )
    return found, used


def _settings_in(file: Path, metadata: Mapping[str, str]) -> dict[str, object]:
    text = metadata.get(ADAPTER_METADATA)
    if text is None:
        return {}
    try:
        settings: dict[str, object] = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{str(file)!r}: its header's {ADAPTER_METADATA} cannot be read ({error}).") from error
    return settings


def _alpha_of(settings: Mapping[str, object], prefix: str, module: str, rank: int) -> float:
    """What the header says for this module; without a header, alpha equals the rank, as diffusers takes it."""
    patterns = settings.get(f"{prefix}.alpha_pattern")
    if isinstance(patterns, dict):
        for pattern, alpha in patterns.items():
            if re.match(rf"(.*\.)?({pattern})$", module):  # as peft compares them
                return float(alpha)
    alpha = settings.get(f"{prefix}.lora_alpha")
    return float(alpha) if isinstance(alpha, int | float) else float(rank)


def _read_kohya(file: Path, tensors: Mapping[str, Tensor], names: AdapterNames) -> tuple[list[LoraWeights], set[str]]:
    """The adapters, and the names of the tensors that they are made of."""
    found: list[LoraWeights] = []
    used: set[str] = set()
    for name, down in tensors.items():
        stem, is_down, _ = name.partition(".lora_down.weight")
        if not is_down:
            continue
        part = _part_of(file, stem, names, kohya=True)
        alpha = tensors.get(f"{stem}.alpha")
        up = _beside(file, tensors, f"{stem}.lora_up.weight")
        magnitude = _row_lengths(file, stem, tensors, len(up))
        used |= {name, f"{stem}.lora_up.weight", f"{stem}.alpha", f"{stem}.dora_scale"}
        found.append(
            LoraWeights(
                part=part,
                module=_inner(part, dotted(stem.removeprefix(f"{names[part][1]}_"))),
                down=down,
                up=up,
                alpha=float(down.shape[0]) if alpha is None else float(alpha),
                magnitude=magnitude,
            )
        )
    return found, used


def _row_lengths(file: Path, stem: str, tensors: Mapping[str, Tensor], rows: int) -> Tensor | None:
    """DoRA's lengths [out]; LyCORIS also writes those of the columns, [1, in]."""
    lengths = tensors.get(f"{stem}.dora_scale")
    if lengths is None:
        return None
    if lengths.shape[:1] != (rows,) or lengths.numel() != rows:
        raise ConfigError(
            f"{str(file)!r}: {stem}.dora_scale has the shape {list(lengths.shape)}, which is not one length for each "
            f"of the {rows} rows.",
            "A DoRA of LyCORIS with lengths of columns (wd_on_output off) cannot be read.",
        )
    return lengths.flatten()


def _part_of(file: Path, stem: str, names: AdapterNames, *, kohya: bool) -> str:
    """The part whose prefix `stem` begins with."""
    for part, (diffusers_prefix, kohya_prefix) in names.items():
        if stem.startswith(f"{kohya_prefix}_" if kohya else f"{diffusers_prefix}."):
            return part
    prefixes = ", ".join(pair[kohya] for pair in names.values())
    raise ConfigError(
        f"{str(file)!r} is a LoRA of another model: its {stem!r} begins with none of {prefixes}.",
        "Use a LoRA that was trained for this architecture.",
    )


def _beside(file: Path, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    try:
        return tensors[name]
    except KeyError:
        raise ConfigError(f"{str(file)!r} is incomplete: it has no {name!r}.", "Copy or download it again.") from None
