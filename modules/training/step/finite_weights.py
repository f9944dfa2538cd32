"""Why nothing can be computed from the first step on: numbers of the model that are not finite.

They are looked for once something has come out that is not finite. To look at every weight while a model is loaded
would read all of its file before the first step, which otherwise stays mapped into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from modules.config import TrainConfig, TrainingError
from modules.data.batch import Example
from modules.diffusion.quantized import QuantizedLinear
from modules.distributed import is_sharded
from modules.families._family import Family

_PIECE: Final = 1 << 24  # numbers that are looked at together
_ADVICE: Final = (
    "Copy or download the model again, or use one in another number format: in fp16 large weights overflow."
)


def check_weights(config: TrainConfig, family: Family, model: nn.Module) -> None:
    """Raises TrainingError if a number of the bare trained `model`, or of the frozen networks, is not finite.

    Of sharded weights each rank looks at its own part.
    """
    found = list(_not_finite({"": model, **family.encoders}))
    if not found:
        return
    more = f" and {len(found) - 1} other tensors" if len(found) > 1 else ""
    base = "" if config.base_model is None else f" base_model is {config.base_model!r}."
    raise TrainingError(
        f"The weights of the model are not finite (NaN or infinity) in {found[0]!r}{more}, so nothing can be "
        f"computed.{base}",
        _ADVICE,
    )


def encode_finite(
    config: TrainConfig, family: Family, examples: Sequence[Example], size: int
) -> Sequence[Mapping[str, Tensor]]:
    """What `family.encode_batch` returns. Raises TrainingError if frozen networks made numbers that are not finite,
    which would be cached and spoil each step that has one of these images."""
    encoded = family.encode_batch(examples, size)
    names = {n for one in encoded for n, tensor in one.items() if tensor.is_floating_point() and not _is_finite(tensor)}
    if names and family.encoders:
        check_weights(config, family, family.model)
        raise TrainingError(
            f"The model's frozen networks turn images or captions into numbers that are not finite "
            f"({', '.join(sorted(names))}).",
            f"The autoencoder or a text encoder is damaged, or overflows. {_ADVICE}",
        )
    return encoded


def _not_finite(networks: Mapping[str, nn.Module]) -> Iterator[str]:
    for network, module in networks.items():
        for name, tensor in _tensors(module):
            own = cast("Any", tensor).to_local() if is_sharded(tensor) else tensor
            if own.is_floating_point() and not _is_finite(own):
                plain = name.replace("_orig_mod.", "").replace(".base_layer", "")  # of torch.compile and peft
                yield f"{network}.{plain}" if network else plain
        for name, buffer in module.named_buffers():
            is_number = buffer.is_floating_point() and buffer.element_size() > 1  # no fp8, whose scales show it
            if is_number and bool(buffer.isnan().any()):  # infinity may belong to a mask
                yield f"{network}.{name}" if network else name


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    for name, layer in module.named_modules():
        if isinstance(layer, QuantizedLinear):  # whose scales show it
            yield f"{name}.weight", layer._bits if layer._scales is None else layer._scales


@torch.no_grad()
def _is_finite(tensor: Tensor) -> bool:
    return all(bool(piece.isfinite().all()) for piece in tensor.reshape(-1).split(_PIECE))
