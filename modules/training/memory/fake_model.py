"""A family's model as training prepares it, of fake tensors: they have shapes, dtypes and storages, but no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.families._family import Family
from modules.torch_compat import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import prepare_model
from modules.training.memory.move_model import move_model

TOKEN_TABLE = "token_embedding"


@contextmanager
def fake_family(kind: type[Family], config: TrainConfig) -> Iterator[Family | None]:
    """The family with nothing but its prepared model; inside the block every tensor is fake. None if unknown.

    Raises ConfigError as set-up does.
    """
    model = kind.meta_model(config)
    if model is None:
        yield None
        return
    family: Any = object.__new__(kind)
    family.model = model
    family.add_placeholder_token = partial(_add_tokens, model)
    # kohya's layout is checked with a family that has more than its model
    prepared = config.model_copy(update={"lora_layouts": "diffusers"})
    with torch.device("meta"):  # the layers that adapters add, too: to initialise those takes seconds
        prepare_model(family, prepared, Precision(config.precision, torch.device("meta")))
    with FakeTensorMode(allow_non_fake_inputs=True):
        _give_storages(model)
        move_model(family, config, torch.device("cpu"))
        yield family


def _give_storages(model: nn.Module) -> None:
    """Let the tensors of a model on the meta device be fake ones on the CPU, shared ones still shared."""
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            made[id(tensor)] = (
                nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
            )
        return made[id(tensor)]

    for module in model.modules():
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for store in stores:
            for name, value in list(store.items()):
                if isinstance(value, Tensor):
                    store[name] = fake(value)


def _add_tokens(model: nn.Module, token: str, vectors: int, init: str) -> Mapping[str, list[int]]:
    """As Family.add_placeholder_token, with as many rows for the token."""
    found = {}
    for name, table in list(model.named_modules()):
        if isinstance(table, nn.Embedding) and name.endswith(TOKEN_TABLE):
            parent, _, own = name.rpartition(".")
            larger = nn.Embedding(table.num_embeddings + vectors, table.embedding_dim)
            setattr(model.get_submodule(parent), own, larger)
            found[name] = list(range(table.num_embeddings, table.num_embeddings + vectors))
    return found


def call_in_fake(work: Callable[[], object]) -> bool:
    """Whether `work` ended; what depends on the values of tensors cannot be computed without memory."""
    try:
        work()
    except (DataDependentOutputException, DynamicOutputShapeException):
        return False
    return True
