"""LoRAs of a chosen rank by singular values: of the difference of two models, or of a LoRA with a higher rank.

The product of the rank largest singular values is the nearest matrix of that rank (Eckart and Young 1936).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.conversion import detect_architecture, lora_metadata
from modules.checkpoint.formats.diffusers_folder import ComponentWeights, read_diffusers_folder
from modules.checkpoint.formats.lora import adapter_file, read_lora, write_lora
from modules.checkpoint.formats.lora_limits import limits_of_layout
from modules.checkpoint.formats.lora_origin import check_known_layers
from modules.checkpoint.formats.lora_own_names import has_kohya_names
from modules.checkpoint.formats.lora_transformer import TRANSFORMER
from modules.checkpoint.formats.lora_weights import CLIP_PREFIX, AdapterPrefixes, Layout, LoraWeights
from modules.checkpoint.formats.safetensors_file import SafetensorsFile
from modules.checkpoint.formats.single_file import architecture_of
from modules.config import ConfigError

_LARGE: Final = 1024  # rows and columns
_OVERSAMPLED: Final = 32

Prefixes = Callable[[str], AdapterPrefixes]  # of an architecture


def extract_lora(base: Path, tuned: Path, out: Path, rank: int, dtype: torch.dtype | None, prefixes: Prefixes) -> str:
    """Write what the diffusers folder `tuned` changes in the folder `base` as a LoRA.

    It is in kohya's layout, or in diffusers' if kohya's has no names for the model.
    Returns a note on changes that no LoRA holds; may be empty. Raises ConfigError if the models do not fit.
    """
    models = [read_diffusers_folder(folder) for folder in (base, tuned)]
    architecture = architecture_of(models[0])
    if not architecture or architecture_of(models[1]) != architecture:
        raise ConfigError(
            f"{str(base)!r} and {str(tuned)!r} are not two models of the same architecture.",
            "Give the model that training started from, and after --extract the one that was trained.",
        )
    names = prefixes(architecture)
    found: list[LoraWeights] = []
    left_out = 0
    for component in (name for name in models[0].components if name in names):
        with ComponentWeights(base / component) as first, ComponentWeights(tuned / component) as second:
            stored = {_plain(name): name for name in second.names}
            for name in first.names:
                other = stored.get(_plain(name))
                if other is None or first.shape(name) != second.shape(other):
                    raise ConfigError(
                        f"{str(tuned)!r} has no weight {component}.{name} of the shape {list(first.shape(name))}, as "
                        f"{str(base)!r} has.",
                        "Give two models of the same architecture.",
                    )
                change = second.read(other).double() - first.read(name).double()
                if not bool(change.any()):
                    continue
                if not _is_layer(name, change):
                    left_out += 1
                    continue
                module = _plain(name).removesuffix(".weight")
                down, up = _factors(*_svd(change.flatten(1), rank), rank)
                found.append(_adapter(component, module, down.view(-1, *change.shape[1:]), up, None))
    if not found:
        raise ConfigError(f"The layers of {str(tuned)!r} are those of {str(base)!r}: there is nothing to extract.")
    metadata = lora_metadata({}, architecture, out, rank)
    layout: Layout = "kohya" if has_kohya_names(found, names, architecture) else "diffusers"
    write_lora(out, found, layout, names, metadata, dtype or torch.float32)
    lost = f"{left_out} weights of norms, biases and embeddings differ as well; no LoRA holds them." * bool(left_out)
    return f"{lost} {limits_of_layout(found, layout, out.name, names, architecture)}".strip()


def resize_lora(
    source: Path,
    out: Path,
    rank: int,
    dtype: torch.dtype | None,
    prefixes: Prefixes,
    left_out: list[str] | None = None,
) -> str:
    """Write the LoRA `source` with at most `rank` in each layer, in its own layout.

    It is in diffusers' if kohya's has no names for the model. For `left_out` see `read_adapter`.

    Returns how much of it is kept. Raises ConfigError if it is no LoRA.
    """
    source = adapter_file(source)
    with SafetensorsFile(source) as file:
        metadata, stored = file.metadata, {file.stored_dtype(name) for name in file.names}
        is_kohya = any(".lora_down." in name for name in file.names)
    architecture = detect_architecture(source)
    names = prefixes(architecture)
    resized, kept, whole = [], 0.0, 0.0
    weights = read_lora(source, names, left_out)
    check_known_layers(source, (one.module for one in weights if one.submodule != TRANSFORMER))
    for one in weights:
        left, first = torch.linalg.qr(one.up.flatten(1).double())
        right, second = torch.linalg.qr(one.down.flatten(1).double().T)
        u, s, v = _svd(first @ second.T * (one.alpha / one.rank))
        down, up = _factors(left @ u, s, v @ right.T, rank)
        kept, whole = kept + float(s[:rank].square().sum()), whole + float(s.square().sum())
        resized.append(_adapter(one.submodule, one.module, down.view(-1, *one.down.shape[1:]), up, one.magnitude))
    own = next(iter(stored)) if len(stored) == 1 else torch.float32
    header = lora_metadata(metadata, architecture, out, rank)
    layout: Layout = "kohya" if is_kohya and has_kohya_names(resized, names, architecture) else "diffusers"
    write_lora(out, resized, layout, names, header, dtype or own)
    share = f"{(kept / whole) ** 0.5 if whole else 1:.1%} of the LoRA's norm is kept at rank {rank}."
    return f"{share} {limits_of_layout(resized, layout, out.name, names, architecture)}".strip()


def _plain(name: str) -> str:
    """The name of a weight whichever version of transformers has written it."""
    return name.removeprefix(CLIP_PREFIX)


def _is_layer(name: str, weight: Tensor) -> bool:
    """Whether a LoRA can be for it: a matrix or a convolution that is no table."""
    return weight.dim() >= 2 and name.endswith(".weight") and "_embedding." not in name.replace("time_embedding.", "")


def _svd(matrix: Tensor, rank: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values and vectors; of a large matrix only the `rank` largest, by random projections.

    A full decomposition of 3072 x 3072 numbers takes half a minute, and there may be 500 such layers. With eight power
    iterations (Halko, Martinsson and Tropp 2011, arXiv:0909.4061, algorithm 4.4) the error of the product was within
    1e-7 of the smallest possible for 1536 x 1536 numbers, rank 32 and singular values that fall as n^-0.5.
    """
    side = min(matrix.shape)
    if rank is None or side < _LARGE or rank > side // 4:
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
        return u, s, v
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        u, s, v = torch.svd_lowrank(matrix, q=min(side, rank + _OVERSAMPLED), niter=8)
    return u, s, v.T


def _factors(u: Tensor, s: Tensor, v: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`down` [r, in] and `up` [out, r], equally large."""
    roots = s[:rank].sqrt()
    return (roots[:, None] * v[:rank]).contiguous(), (u[:, :rank] * roots).contiguous()


def _adapter(submodule: str, module: str, down: Tensor, up: Tensor, magnitude: Tensor | None) -> LoraWeights:
    up = up.view(*up.shape, *[1] * (down.dim() - 2))
    alpha = float(len(down))
    return LoraWeights(submodule=submodule, module=module, down=down, up=up, alpha=alpha, magnitude=magnitude)
