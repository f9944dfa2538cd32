"""The training methods: what is trained, which file that becomes, and how the file is loaded again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from modules.checkpoint import to_cpu
from modules.checkpoint.formats import (
    assumed_alpha,
    check_kohya_names,
    left_out_sentence,
    read_adapter,
    read_embedding,
    write_embedding,
    write_lora,
)
from modules.config import ConfigError, TrainConfig
from modules.diffusion.dtypes import DTYPES
from modules.diffusion.quantized import QuantizedLinear
from modules.distributed import Weights
from modules.families._family import Family
from modules.training.methods.adapter_layers import NAMES, layer_sizes
from modules.training.methods.lora import (
    adapter_names,
    add_lora,
    lora_weights,
    max_useful_rank,
    merge_lora,
)
from modules.training.methods.lora_files import LORA_FILES, layouts
from modules.training.methods.submodules import freeze_others
from modules.training.methods.textual_inversion import add_embedding, load_embedding, trained_vectors
from modules.training.methods.training_adapter import add_training_adapter


def prepare(family: Family, config: TrainConfig) -> None:
    """Add what the method trains to `family.model`, which is on the CPU, and freeze everything else.

    Raises ConfigError if the method does not fit the model, or its result could not be saved in the end.
    """
    PREPARE[config.method](family, config)


def method_summary(family: Family, config: TrainConfig, weights: Weights) -> str:
    """A line for the terminal before the first step; empty if the whole model is trained."""
    frozen = sum(weight.numel() for weight in family.model.parameters() if not weight.requires_grad)
    layers = (layer for layer in family.model.modules() if isinstance(layer, QuantizedLinear))
    frozen += sum(layer.in_features * layer.out_features for layer in layers)
    rest = f" {frozen / 1e6:.2f} M weights are frozen."
    if config.method == "lora":
        sizes, dora = layer_sizes(family.model), any(".lora_magnitude_vector" in name for name in weights.local)
        usual, others = sizes[0], sorted({f"rank {one.rank}, alpha {one.alpha:g}" for one in sizes if one != sizes[0]})
        kind = "DoRA" if dora else NAMES[config.lora_algorithm]
        text = f"{kind} of rank {usual.rank} and alpha {usual.alpha:g} in {len(sizes)} layers"
        if config.lora_algorithm == "oft":
            text = f"{kind} with blocks of {usual.rank} inputs in {len(sizes)} layers"
        if others:
            some = others if config.lora_algorithm != "oft" else [f"blocks of {size.rank}" for size in set(sizes)]
            text += f" (some: {'; '.join(some[:3])}{', ...' if len(some) > 3 else ''})"
        if config.lora_from is not None:
            text += f", continued from {config.lora_from}, which decides rank, alpha, layers and DoRA"
            left_out: list[str] = []
            if config.lora_from_skip_unread:
                read_adapter(Path(config.lora_from), adapter_names(family), left_out)
            notes = (assumed_alpha(Path(config.lora_from)), left_out_sentence(left_out))
            rest = " ".join([rest, *filter(None, notes)])
        if config.training_adapter is not None:
            rest += f" {config.training_adapter} is part of the model while it trains."
        excess = _excess_rank(max(one.rank for one in sizes), max_useful_rank(family))
        return f"{text};{rest}{excess if config.lora_algorithm == 'lora' else ''}"
    if config.method == "embedding":
        vectors = f"{config.embedding_vectors} vector{'s' * (config.embedding_vectors > 1)}"
        return f"{config.embedding_token} is trained as {vectors}, initialised from {config.embedding_init!r};{rest}"
    return f"Of the model,{rest}" if frozen else ""


def _excess_rank(rank: int, largest: int) -> str:
    """A sentence if the rank is larger than any layer can use."""
    return f" A rank above {largest} adds nothing: no layer's update can have a higher rank." * (rank > largest)


def export_of(
    family: Family, weights: Weights, config: TrainConfig, metadata: Mapping[str, str]
) -> Callable[[Path], None]:
    """A function that writes the model as it is now into a folder. All ranks create it, because it may gather shards;
    rank 0 calls it. `metadata` goes into the headers of adapters and embeddings.
    """
    if config.method == "fine_tune":
        return partial(family.export, {name: to_cpu(tensor) for name, tensor in weights.full_state_dict().items()})
    trained = {name: to_cpu(weights.full_tensor(name, own.detach())) for name, own in weights.local.items()}
    write = _write_lora if config.method == "lora" else _write_embedding
    return partial(write, family, config, trained, metadata)


def apply_adapter(family: Family, config: TrainConfig, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Add a trained adapter or embedding from a run's model folder to its base model, for inference.

    For `dtype` see `merge_lora`. Raises ConfigError if the file is missing or belongs to another base model.
    """
    if config.method == "lora":
        present = [folder / name for name in LORA_FILES.values() if (folder / name).is_file()]
        if not present:
            raise _missing_file(folder, LORA_FILES["diffusers"])
        merge_lora(family, read_adapter(present[0], adapter_names(family)), dtype=dtype)
    elif config.method == "embedding":
        file = folder / embedding_file(config)
        if not file.is_file():
            raise _missing_file(folder, file.name)
        load_embedding(family, config, *read_embedding(file))


def embedding_file(config: TrainConfig) -> str:
    """Named after the token, because programs take the file name as the token."""
    return (re.sub(r"[^\w-]", "", config.embedding_token) or "embedding") + ".safetensors"


def _train_all(family: Family, config: TrainConfig) -> None:
    """Raises ConfigError if the base model has quantised weights."""
    if any(isinstance(layer, QuantizedLinear) for layer in family.model.modules()):
        raise ConfigError(
            f"method is fine_tune, but {str(config.base_model)!r} is quantised in its files, and quantised weights "
            "cannot be trained.",
            "Set method to lora. Or use the model that it was quantised from.",
        )
    freeze_others(family, config)


def _add_lora(family: Family, config: TrainConfig) -> None:
    add_lora(family, config)
    if config.training_adapter is not None:
        add_training_adapter(family, Path(config.training_adapter), adapter_names(family))
    if "kohya" in layouts(family, config):
        adapters = lora_weights(family, dict(family.model.named_parameters()))
        architecture = family.modelspec().get("architecture", "")
        check_kohya_names(adapters, adapter_names(family), architecture, _rows(family))


PREPARE: Final[Mapping[str, Callable[[Family, TrainConfig], None]]] = {
    "fine_tune": _train_all,
    "lora": _add_lora,
    "embedding": add_embedding,
}


def _write_lora(
    family: Family, config: TrainConfig, trained: Mapping[str, Tensor], metadata: Mapping[str, str], folder: Path
) -> None:
    weights, names = lora_weights(family, trained), adapter_names(family)
    architecture, dtype = family.modelspec().get("architecture", ""), DTYPES[config.save_dtype]
    for layout in layouts(family, config):
        write_lora(folder / LORA_FILES[layout], weights, layout, names, metadata, dtype, architecture, _rows(family))


def _rows(family: Family) -> dict[str, int]:
    """The outputs of the linear layers of a transformer, by their names in it."""
    transformer = getattr(family.model, "transformer", None)
    layers = transformer.named_modules() if isinstance(transformer, nn.Module) else ()
    return {name: layer.out_features for name, layer in layers if isinstance(getattr(layer, "out_features", None), int)}


def _write_embedding(
    family: Family, config: TrainConfig, trained: Mapping[str, Tensor], metadata: Mapping[str, str], folder: Path
) -> None:
    file, vectors = folder / embedding_file(config), trained_vectors(family, trained)
    write_embedding(file, config.embedding_token, vectors, metadata, DTYPES[config.save_dtype])


def _missing_file(folder: Path, name: str) -> ConfigError:
    return ConfigError(f"model: {str(folder)!r} has no {name}.", "Let the run save its model again.")
