"""Textual inversion (Gal et al. 2022, arXiv:2208.01618): a few rows of a token table are trained, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from modules.config import ConfigError, TrainConfig
from modules.families._family import Family
from modules.training.methods.submodules import submodule_of, trained_names

ROWS = "rows"


class TrainedRows(nn.Module):
    """A token table [V, C] whose rows `numbers` are replaced by a small trained weight [N, C].

    Optimizer state, EMA, gradients and their reduction are then as small as what is trained, and weight decay cannot
    touch the other tokens. If not `trained`, the rows keep their initial values.
    """

    numbers: Tensor
    rows: Tensor

    def __init__(self, table: nn.Embedding, numbers: Sequence[int], *, trained: bool = True) -> None:
        super().__init__()
        self.table = table
        rows = table.weight.detach()[list(numbers)].clone()
        if trained:
            self.rows = nn.Parameter(rows)
        else:
            self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("numbers", torch.tensor(list(numbers)), persistent=False)

    @property
    def weight(self) -> Tensor:
        """The whole table [V, C], for code that reads its size or dtype."""
        return self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [...] int64 to vectors [..., C] in the table's dtype."""
        matches = tokens.unsqueeze(-1) == self.numbers
        index, is_trained = matches.to(torch.uint8).argmax(-1), matches.any(-1, keepdim=True)
        vectors: Tensor = self.table(tokens)
        return torch.where(is_trained, functional.embedding(index, self.rows).to(vectors.dtype), vectors)


def add_embedding(family: Family, config: TrainConfig) -> None:
    """Add a placeholder token, and train only its rows in the token tables of the trained submodules."""
    tables = family.add_placeholder_token(config.embedding_token, config.embedding_vectors, config.embedding_init)
    submodules = trained_names(config, family.submodules)
    trained = {name: submodule_of(name, family.submodules) in submodules for name in tables}
    if not any(trained.values()):
        able = ", ".join(submodule_of(name, family.submodules) or name for name in tables)
        raise ConfigError(
            f"parts: method is 'embedding', but no part with a token table is trained; they are {able}.",
            "Switch train on for one of them, or leave parts empty.",
        )
    family.model.requires_grad_(False)
    for name, numbers in tables.items():
        _replace(family.model, name, TrainedRows(_table(family.model, name), numbers, trained=trained[name]))


def trained_vectors(family: Family, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The trained rows [vectors, C] of each submodule; `state` holds the trained weights by the model's names."""
    return {
        name.partition(".")[0]: state.get(f"{name}.{ROWS}", module.rows)
        for name, module in family.model.named_modules()
        if isinstance(module, TrainedRows)
    }


@torch.no_grad()
def load_embedding(family: Family, config: TrainConfig, token: str, vectors: Mapping[str, Tensor]) -> None:
    """Add a trained embedding, for inference: [vectors, C] by submodule. Raises ConfigError if it does not fit."""
    count = {rows.shape[0] for rows in vectors.values()}.pop()
    tables = family.add_placeholder_token(token, count, "")  # the initial values do not matter any more
    if other := set(vectors) ^ {name.partition(".")[0] for name in tables}:
        raise ConfigError(
            f"model: the embedding is for {', '.join(vectors)}, but {', '.join(sorted(other))} is only in one of the "
            "two, the file or the base model.",
            "Use the base model that it was trained on.",
        )
    for name, numbers in tables.items():
        rows, table = vectors[name.partition(".")[0]], _table(family.model, name).weight
        if rows.shape[1] != table.shape[1]:
            raise ConfigError(
                f"model: the embedding has vectors of {rows.shape[1]} numbers, but {name} of the base model has "
                f"{table.shape[1]}.",
                "Use the base model that it was trained on.",
            )
        table[numbers] = rows.to(table)


def _table(model: nn.Module, name: str) -> nn.Embedding:
    table = model.get_submodule(name)
    assert isinstance(table, nn.Embedding), f"{name} is a {type(table).__name__}, not an Embedding"
    return table


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)
