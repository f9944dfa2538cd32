"""OFT as peft trains it and OneTrainer writes it: `lora_unet_....oft_R.weight`, rotations of a layer's inputs.

Formula: peft (tuners/oft/layer.py, OFTRotationModule) and OneTrainer (modules/module/oft_utils.py). The OFT of LyCORIS,
kohya's scripts and ComfyUI (comfy/weight_adapter/oft.py: `.oft_blocks`) rotates outputs: it is read, not trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.lora_weights import require_tensor
from modules.config import ConfigError

ROTATION: Final = "oft_R.weight"
SCALED: Final = "oft_R.scaled_oft"
BLOCKS: Final = "oft_blocks"
RESCALE: Final = "rescale"


@dataclass(frozen=True)
class OftWeights:
    """Rotations of the inputs, a block of them at a time (Qiu et al. 2023, arXiv:2306.07280).

    `rotation` [blocks, b (b - 1) / 2] is what is above the diagonal of each block's skew-symmetric matrix Q. The
    rotation R is (I + Q) (I - Q)^-1 as a Neumann series of five terms, and the weight becomes W R^T; that of a
    convolution W R, but for files of peft. One block may stand for all (`block_share`).
    """

    submodule: str
    module: str
    rotation: Tensor
    is_of_peft: bool = False
    magnitude: None = None

    @property
    def rank(self) -> int:
        """The size of a block; see `lora_alpha` of the config, which does not count here."""
        return _side(self.rotation.shape[1])

    @property
    def alpha(self) -> float:
        """As the rank, so that it says nothing."""
        return float(self.rank)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Of R: the rows of the weight may be any."""
        columns = self.rotation.shape[0] * self.rank
        return columns, columns

    def fits(self, rows: int, columns: int) -> bool:
        """Whether a weight of this shape can be rotated."""
        return columns % self.rank == 0 and len(self.rotation) in (1, columns // self.rank)

    def delta(self, weight: Tensor | None = None) -> Tensor:
        assert weight is not None, "a rotation changes a weight by what that is"
        inside = weight.double().flatten(1).unflatten(1, (-1, self.rank))
        blocks = self._matrices().expand(inside.shape[1], -1, -1)
        if weight.dim() > 2 and not self.is_of_peft:  # OneTrainer 23df383 (LoRAModule.py, OFTModule.forward)
            blocks = blocks.transpose(1, 2)
        return torch.einsum("obc,bdc->obd", inside, blocks - torch.eye(self.rank, dtype=torch.float64)).flatten(1)

    def _matrices(self) -> Tensor:
        """R of each block, [blocks, b, b] as fp64."""
        skew = torch.zeros(len(self.rotation), self.rank, self.rank, dtype=torch.float64)
        rows, columns = torch.triu_indices(self.rank, self.rank, 1)
        skew[:, rows, columns] = self.rotation.double()
        skew = skew - skew.transpose(1, 2)
        square = skew @ skew
        return torch.eye(self.rank, dtype=torch.float64) + 2 * skew + 2 * square + 2 * square @ skew + square @ square


@dataclass(frozen=True)
class OutputOftWeights:
    """Rotations of the outputs, a block of rows at a time: LyCORIS f49d30d (modules/diag_oft.py), sd-scripts 48d368f
    (networks/oft.py).

    Q is `blocks` [blocks, b, b] less its transpose, with a norm of at most `constraint` if that is not 0. The weight
    becomes R^T W with R = (I + Q) (I - Q)^-1, its rows times `rescale` [rows].
    """

    submodule: str
    module: str
    blocks: Tensor
    constraint: float
    rescale: Tensor | None
    magnitude: None = None

    @property
    def rank(self) -> int:
        """The size of a block."""
        return self.blocks.shape[1]

    @property
    def alpha(self) -> float:
        """As the rank, so that it says nothing."""
        return float(self.rank)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Of R: the columns of the weight may be any."""
        rows = self.blocks.shape[0] * self.rank
        return rows, rows

    def fits(self, rows: int, columns: int) -> bool:
        """Whether a weight of this shape can be rotated."""
        return rows == self.matrix_shape[0]

    def delta(self, weight: Tensor | None = None) -> Tensor:
        assert weight is not None, "a rotation changes a weight by what that is"
        skew = self.blocks.double() - self.blocks.double().transpose(1, 2)
        if self.constraint and (norm := float(skew.norm())) > self.constraint:
            skew *= self.constraint / norm
        identity = torch.eye(self.rank, dtype=torch.float64)
        rotation = torch.linalg.solve(identity - skew, identity + skew, left=False)
        changed = torch.einsum("knm,knc->kmc", rotation, weight.double().flatten(1).unflatten(0, self.blocks.shape[:2]))
        scales = 1 if self.rescale is None else self.rescale.double().view(-1, 1)
        return changed.flatten(0, 1) * scales - weight.double().flatten(1)


def _side(elements: int) -> int:
    """The side b of a square matrix with so many elements above its diagonal, b (b - 1) / 2; 0 if there is none."""
    side = (1 + math.isqrt(1 + 8 * elements)) // 2
    return side if side * (side - 1) // 2 == elements else 0


def read_oft(
    file: Path, stem: str, tensors: Mapping[str, Tensor], *, is_of_peft: bool
) -> OftWeights | OutputOftWeights:
    """The adapter whose keys start with `stem`, which becomes its module. Raises ConfigError if it is damaged."""
    blocks = tensors.get(f"{stem}.{BLOCKS}")
    if blocks is not None:
        rescale, alpha = tensors.get(f"{stem}.{RESCALE}"), tensors.get(f"{stem}.alpha")
        rows = blocks.shape[:2].numel()
        if blocks.dim() != 3 or blocks.shape[1] != blocks.shape[2] or (rescale is not None and rescale.numel() != rows):
            raise ConfigError(
                f"{str(file)!r}: {stem}.{BLOCKS} has the shape {list(blocks.shape)}, not one of square blocks.",
                "Tandem reads OFT, but no BOFT.",
            )
        constraint = 0.0 if alpha is None else float(alpha.flatten()[0]) * rows
        return OutputOftWeights("", stem, blocks, constraint, rescale)
    rotation = require_tensor(file, tensors, f"{stem}.{ROTATION}")
    if rotation.dim() != 2 or not _side(rotation.shape[1]):
        raise ConfigError(
            f"{str(file)!r} is damaged: {stem}.{ROTATION} has the shape {list(rotation.shape)}, not one of blocks "
            "above a diagonal."
        )
    if f"{stem}.{SCALED}" in tensors:  # OneTrainer's oft_scaled
        rotation = rotation / (2 * math.sqrt(_side(rotation.shape[1]) - 1))
    return OftWeights(submodule="", module=stem, rotation=rotation, is_of_peft=is_of_peft)
