"""The methods of training: what of the model changes, which file that becomes, and how the file is used again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from torch import Tensor

from modules.checkpoint import on_disk
from modules.checkpoint.formats import (
    DTYPES,
    Layout,
    kohya_stems,
    read_embedding,
    read_lora,
    write_embedding,
    write_lora,
)
from modules.config import ConfigError, TrainConfig
from modules.distributed import Weights
from modules.families.family import Family
from modules.training.learned_words import add_words, learned_vectors, put_words
from modules.training.lora import adapter_names, add_lora, lora_weights, merge_lora, most_directions
from modules.training.trained_parts import freeze_others

# By layout; the first is the name that diffusers looks for in a folder.
LORA_FILES: Final[Mapping[Layout, str]] = {
    "diffusers": "pytorch_lora_weights.safetensors",
    "kohya": "lora_kohya.safetensors",
}


def prepare(family: Family, config: TrainConfig) -> None:
    """Make `family.model`, which is on the CPU, what the method trains, and only that able to change.

    Raises ConfigError where the method does not fit the model, or its result could not be written in the end.
    """
    PREPARE[config.method](family, config)


def opening(family: Family, config: TrainConfig, weights: Weights) -> str:
    """A line for the terminal before the first step; empty where the whole model is trained."""
    frozen = sum(weight.numel() for weight in family.model.parameters() if not weight.requires_grad)
    beside = f" {frozen / 1e6:.2f} M weights stay as they are."
    if config.method == "lora":
        kind = "DoRA" if config.lora_weight_decompose else "LoRA"
        layers = sum(".lora_A." in name for name in weights.own)
        told = f"{kind} of rank {config.lora_rank} and alpha {config.lora_alpha:g} in {layers} layers;{beside}"
        return f"{told}{_too_much(config.lora_rank, most_directions(family))}"
    if config.method == "embedding":
        vectors = f"{config.embedding_vectors} vector{'s' * (config.embedding_vectors > 1)}"
        return f"{config.embedding_token} is learned as {vectors}, beginning with {config.embedding_init!r};{beside}"
    return f"Of the model,{beside}" if frozen else ""


def _too_much(rank: int, most: int) -> str:
    """A sentence where no layer has as many directions as the rank."""
    return f" A rank above {most} holds no more than {most} does: the layers have no more directions." * (rank > most)


def export_of(
    family: Family, weights: Weights, config: TrainConfig, metadata: Mapping[str, str]
) -> Callable[[Path], None]:
    """What writes the model as it is now into a folder. All ranks ask for it, as all hold a part; rank 0 calls it.

    `metadata` is for the headers of adapters and embeddings.
    """
    if config.method == "fine_tune":
        return partial(family.export, {name: on_disk(tensor) for name, tensor in weights.whole_model().items()})
    trained = {name: on_disk(weights.whole(name, own.detach())) for name, own in weights.own.items()}
    write = _write_lora if config.method == "lora" else _write_embedding
    return partial(write, family, config, trained, metadata)


def apply_adapter(family: Family, config: TrainConfig, folder: Path) -> None:
    """Give a base model what was trained beside it, from the model folder of a run, for drawing.

    Raises ConfigError where the file is missing or belongs to another base model.
    """
    if config.method == "lora":
        present = [folder / name for name in LORA_FILES.values() if (folder / name).is_file()]
        if not present:
            raise _nothing_in(folder, LORA_FILES["diffusers"])
        merge_lora(family, read_lora(present[0], adapter_names(family)))
    elif config.method == "embedding":
        file = folder / embedding_file(config)
        if not file.is_file():
            raise _nothing_in(folder, file.name)
        put_words(family, config, *read_embedding(file))


def embedding_file(config: TrainConfig) -> str:
    """Named after the word, as programs take a file's name for the word."""
    return (re.sub(r"[^\w-]", "", config.embedding_token) or "embedding") + ".safetensors"


def _add_lora(family: Family, config: TrainConfig) -> None:
    add_lora(family, config)
    if "kohya" in _layouts(family, config):
        kohya_stems(lora_weights(family, dict(family.model.named_parameters())), adapter_names(family))


PREPARE: Final[Mapping[str, Callable[[Family, TrainConfig], None]]] = {
    "fine_tune": freeze_others,
    "lora": _add_lora,
    "embedding": add_words,
}


def _layouts(family: Family, config: TrainConfig) -> list[Layout]:
    """In which files are written: kohya's has names for families that say theirs."""
    known: list[Layout] = ["diffusers", "kohya"] if family.adapter_names else ["diffusers"]
    return [layout for layout in known if config.lora_layouts in (layout, "both")]


def _write_lora(
    family: Family, config: TrainConfig, trained: Mapping[str, Tensor], metadata: Mapping[str, str], folder: Path
) -> None:
    weights, names = lora_weights(family, trained), adapter_names(family)
    for layout in _layouts(family, config):
        write_lora(folder / LORA_FILES[layout], weights, layout, names, metadata, DTYPES[config.save_dtype])


def _write_embedding(
    family: Family, config: TrainConfig, trained: Mapping[str, Tensor], metadata: Mapping[str, str], folder: Path
) -> None:
    file, vectors = folder / embedding_file(config), learned_vectors(family, trained)
    write_embedding(file, config.embedding_token, vectors, metadata, DTYPES[config.save_dtype])


def _nothing_in(folder: Path, name: str) -> ConfigError:
    return ConfigError(f"model: {str(folder)!r} has no {name}.", "Let the run save its model again.")
