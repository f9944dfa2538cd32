"""Textual inversion (Gal et al. 2022, arXiv:2208.01618): a few rows of a token table are trained, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from modules.config import ConfigError, TrainConfig
from modules.families.family import Family
from modules.training.trained_parts import part_of, trained_parts

ROWS = "rows"


class LearnedRows(nn.Module):
    """A token table [V, C] whose rows `numbers` are learned: a small trained weight [N, C] stands in for them.

    So optimizer, average, gradients and their exchange are as small as what is learned, and a weight decay cannot
    touch the other words. Where they are not `trained`, they stay as they begin.
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
        """The whole table [V, C], for those who look at its size or format."""
        return self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Token numbers [...] to vectors [..., C]."""
        matches = tokens.unsqueeze(-1) == self.numbers
        place, is_learned = matches.to(torch.uint8).argmax(-1), matches.any(-1, keepdim=True)
        vectors: Tensor = self.table(tokens)
        return torch.where(is_learned, functional.embedding(place, self.rows).to(vectors.dtype), vectors)


def add_words(family: Family, config: TrainConfig) -> None:
    """Teach the family a new word, and train its rows in the token tables of the trained parts only."""
    tables = family.learn_words(config.embedding_token, config.embedding_vectors, config.embedding_init)
    wanted = trained_parts(family, config)
    trained = {name: part_of(name, family.parts) in wanted for name in tables}
    if not any(trained.values()):
        able = ", ".join(part_of(name, family.parts) or name for name in tables)
        raise ConfigError(
            f"parts: method is 'embedding', but no part that learns words is trained; they are {able}.",
            "Switch train on for one of them, or leave parts empty.",
        )
    family.model.requires_grad_(False)
    for name, numbers in tables.items():
        _replace(family.model, name, LearnedRows(_table(family.model, name), numbers, trained=trained[name]))


def learned_vectors(family: Family, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By part, the new rows [vectors, C]; `state` has what is trained, by the model's names."""
    return {
        name.partition(".")[0]: state.get(f"{name}.{ROWS}", module.rows)
        for name, module in family.model.named_modules()
        if isinstance(module, LearnedRows)
    }


@torch.no_grad()
def put_words(family: Family, config: TrainConfig, token: str, vectors: Mapping[str, Tensor]) -> None:
    """Teach the family a word that was learned before, for drawing. Raises ConfigError where it does not fit."""
    count = {rows.shape[0] for rows in vectors.values()}.pop()
    tables = family.learn_words(token, count, "")  # what it began with does not matter any more
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
    assert isinstance(table, nn.Embedding), f"{name} is a {type(table).__name__}, and learn_words promises an Embedding"
    return table


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)
