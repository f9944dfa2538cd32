"""Why nothing can be computed from the first step on: numbers of the model that are not finite.

They are looked for once something has come out that is not finite. To look at every weight while a model is loaded
would read all of its file before the first step, which otherwise stays mapped into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from torch import Tensor, nn

from modules.config import TrainConfig, TrainingError
from modules.diffusion.finite import ADVICE, is_finite, names_not_finite
from modules.families._family import Family

Encoded: TypeAlias = Sequence[Mapping[str, Tensor]]
Item = TypeVar("Item")


def check_weights(config: TrainConfig, family: Family, model: nn.Module) -> None:
    """Raises TrainingError if a number of the bare trained `model`, or of the frozen networks, is not finite.

    Of sharded weights each rank looks at its own part.
    """
    networks = {"": model, **{f"{name}.": encoder for name, encoder in family.encoders.items()}}
    found = [f"{prefix}{name}" for prefix, network in networks.items() for name in names_not_finite(network)]
    if not found:
        return
    more = f" and {len(found) - 1} other tensors" if len(found) > 1 else ""
    base = "" if config.base_model is None else f" base_model is {config.base_model!r}."
    raise TrainingError(
        f"The weights of the model are not finite (NaN or infinity) in {found[0]!r}{more}, so nothing can be "
        f"computed.{base}",
        ADVICE,
    )


def encode_finite(
    config: TrainConfig,
    family: Family,
    encode: Callable[[Sequence[Item], int], Encoded],
    items: Sequence[Item],
    size: int,
) -> Encoded:
    """What `encode`, the family's for images or captions, returns. Raises TrainingError if frozen networks made numbers
    that are not finite, which would be cached and spoil each step that has one of these."""
    encoded = encode(items, size)
    names = {n for one in encoded for n, tensor in one.items() if not is_finite(tensor)}
    if names and family.encoders:
        check_weights(config, family, family.model)
        raise TrainingError(
            f"The model's frozen networks turn images or captions into numbers that are not finite "
            f"({', '.join(sorted(names))}).",
            f"The autoencoder or a text encoder is damaged, or overflows. {ADVICE}",
        )
    return encoded
