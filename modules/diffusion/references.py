"""The latents of reference images in a step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from modules.diffusion.padding_mask import PaddingMask


@dataclass(frozen=True)
class References:
    """The reference images of a batch: `latents` [B, C, h, w] of the first one of each sample, of the second and so
    on, as the transformer is trained on them; `shown` says which samples are to see theirs."""

    latents: tuple[Tensor, ...]
    shown: tuple[bool, ...]

    def mask(self, before: int, tokens: int) -> PaddingMask | None:
        """bool [B, 1, 1, `tokens`]: what attention may see, which is the `before` first tokens alone for a sample that
        is not to see its references; None if all are."""
        if all(self.shown):
            return None
        lengths = [tokens if each else before for each in self.shown]
        return PaddingMask.of(lengths, tokens, self.latents[0].device)[:, None, None]  # type: ignore[return-value]
