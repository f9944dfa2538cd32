"""What a tensor of diffusers is called and how it is stored in the layout of a model's own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Form = Literal["unchanged", "conv", "transposed", "swapped", "flat"]
ComponentConfig = Mapping[str, object]  # the config.json of one component


@dataclass(frozen=True)
class OriginalName:
    """The original counterpart of a tensor: `name`, and how its shape differs."""

    name: str
    # "conv": a 1 × 1 convolution there, a linear layer in diffusers; "swapped": the halves of dimension 0 in the other
    # order; "flat": a vector there, a table in diffusers
    form: Form = "unchanged"
    # Of a tensor that concatenates query (0), key (1) and value (2) along dimension 0, in single blocks also a layer of
    # an MLP (3), which may have another number of rows.
    part: int | None = None
    # Of a part: query has more rows than key and value have (grouped-query attention).
    is_grouped: bool = False


NameMapper = Callable[[str, ComponentConfig], OriginalName | None]  # None: not in the original layout
