"""LoHa and LoKr adapters of LyCORIS, as kohya's scripts name them: `lora_unet_....hada_w1_a`, `.lokr_w1`, and with all
names of flow-matching transformers that `lora_transformer` reads.

Formulas: https://github.com/KohakuBlueleaf/LyCORIS, lycoris/modules/loha.py and lokr.py, which peft's LoHa and LoKr
(peft/tuners/loha, lokr) compute as well. ComfyUI reads these names (comfy/weight_adapter/loha.py, lokr.py), also after
a prefix with dots. Their files may be OFT as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.kohya_names import from_kohya
from modules.checkpoint.formats.lora_kohya import kohya_key_prefixes, kohya_magnitude
from modules.checkpoint.formats.lora_transformer import TRANSFORMER, layer_alpha, transformer_layers
from modules.checkpoint.formats.lora_weights import (
    AdapterPrefixes,
    AdapterWeights,
    Layout,
    Rows,
    module_in_file,
    module_in_memory,
    require_tensor,
    submodule_of_key,
    take_rows,
)
from modules.checkpoint.formats.oft import BLOCKS, RESCALE, ROTATION, SCALED, OftWeights, OutputOftWeights, read_oft
from modules.checkpoint.formats.safetensors_file import LazyTensor, lazy_tensor
from modules.config import ConfigError

LYCORIS_KINDS: Final = {".hada_": "LoHa", ".lokr_": "LoKr", ".oft_R.": "OFT", ".oft_blocks": "OFT"}
_HADA: Final = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")


@dataclass(frozen=True)
class Factor:
    """A matrix [out, in * kh * kw], whole or as the product of two; `core` [r, r, kh, kw] if it is Tucker-decomposed.

    Then `first` is [r, out] and `second` [r, in]; else `first` is [out, r] and `second` [r, in * kh * kw].
    """

    first: Tensor
    second: Tensor | None = None
    core: Tensor | None = None

    @property
    def rank(self) -> int | None:
        """None for a whole matrix."""
        return None if self.second is None else self.second.shape[0]

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Of `matrix`."""
        if self.second is None:
            return self.first.shape[0], math.prod(self.first.shape[1:])
        if self.core is None:
            return self.first.shape[0], self.second.shape[1]
        return self.first.shape[1], self.second.shape[1] * math.prod(self.core.shape[2:])

    def matrix(self) -> Tensor:
        """As fp64."""
        if self.second is None:
            return self.first.double().flatten(1)
        if self.core is None:
            return self.first.double() @ self.second.double()
        product = torch.einsum("ijkl,jr,ip->prkl", self.core.double(), self.second.double(), self.first.double())
        return product.flatten(1).contiguous()  # torch.kron needs that

    def of_rows(self, rows: Rows) -> Factor:
        """These rows of the matrix."""
        first = self.first if self.core is None else self.first.T
        first = take_rows(first, rows)
        return replace(self, first=first if self.core is None else first.T)

    def fits(self) -> bool:
        """Whether the shapes agree."""
        if self.second is None:
            return self.core is None
        if self.first.dim() != 2 or self.second.dim() != 2:
            return False
        rank = self.second.shape[0]
        if self.core is None:
            return self.first.shape[1] == rank
        return self.first.shape[0] == rank and self.core.dim() == 4 and tuple(self.core.shape[:2]) == (rank, rank)


@dataclass(frozen=True)
class _FactorWeights:
    submodule: str
    module: str
    factors: tuple[Factor, Factor]
    scale: float
    magnitude: Tensor | None

    @property
    def rank(self) -> int:
        """Of the factor that has one; 1 if both are whole."""
        return self.factors[1].rank or self.factors[0].rank or 1

    @property
    def alpha(self) -> float:
        """The scale times the rank."""
        return self.scale * self.rank


class LohaWeights(_FactorWeights):
    """The elementwise product of two factors of equal shape, times alpha / rank (Hyeon-Woo et al. 2021)."""

    @property
    def rank(self) -> int:
        """Of both factors."""
        return self.factors[0].rank or 1

    @property
    def matrix_shape(self) -> tuple[int, int]:
        return self.factors[0].matrix_shape

    def delta(self, weight: Tensor | None = None) -> Tensor:
        return self.factors[0].matrix() * self.factors[1].matrix() * self.scale


class LokrWeights(_FactorWeights):
    """The Kronecker product of two factors, times alpha / rank; without a rank alpha does not count."""

    @property
    def matrix_shape(self) -> tuple[int, int]:
        (rows, columns), (inner_rows, inner_columns) = (factor.matrix_shape for factor in self.factors)
        return rows * inner_rows, columns * inner_columns

    def delta(self, weight: Tensor | None = None) -> Tensor:
        """The first factor has no kernel, so the columns are in * kh * kw in that order."""
        return torch.kron(self.factors[0].matrix(), self.factors[1].matrix()) * self.scale


@dataclass(frozen=True)
class PartWeights:
    """Some rows of a LoKr for a fused layer, such as those of the keys, where they are no LoKr by themselves."""

    submodule: str
    module: str
    whole: LokrWeights
    rows: Rows

    @property
    def magnitude(self) -> Tensor | None:
        return None if self.whole.magnitude is None else take_rows(self.whole.magnitude, self.rows)

    @property
    def rank(self) -> int:
        """Of the whole."""
        return self.whole.rank

    @property
    def alpha(self) -> float:
        """Of the whole."""
        return self.whole.alpha

    @property
    def matrix_shape(self) -> tuple[int, int]:
        return sum(each.stop - each.start for each in self.rows), self.whole.matrix_shape[1]

    def delta(self, weight: Tensor | None = None) -> Tensor:
        return take_rows(self.whole.delta(), self.rows)


def lycoris_tensors(
    adapters: Sequence[AdapterWeights], layout: Layout, prefixes: AdapterPrefixes, dtype: torch.dtype
) -> dict[str, LazyTensor]:
    """The tensors of a file; with the layout "diffusers" the layers have their dotted names.

    Raises ConfigError if kohya's layout has no name for a module.
    """
    if layout == "kohya":
        stems = kohya_key_prefixes(adapters, prefixes)
    else:
        stems = [f"{prefixes[one.submodule][0]}.{module_in_file(one)}" for one in adapters]
    tensors: dict[str, LazyTensor] = {}
    for stem, one in zip(stems, adapters, strict=True):
        tensors |= {f"{stem}.{name}": lazy_tensor(tensor, dtype) for name, tensor in adapter_tensors(one).items()}
        if not isinstance(one, OftWeights):
            tensors[f"{stem}.alpha"] = lazy_tensor(torch.tensor(float(one.alpha)), torch.float32)
    return tensors


def adapter_tensors(adapter: AdapterWeights) -> dict[str, Tensor]:
    """Its tensors by their names in files, which are also those of peft's parameters."""
    if isinstance(adapter, OftWeights):
        return {ROTATION: adapter.rotation}
    assert isinstance(adapter, LohaWeights | LokrWeights)
    kind = "hada" if isinstance(adapter, LohaWeights) else "lokr"
    found = {}
    for number, factor in enumerate(adapter.factors, 1):
        if factor.second is None:
            found[f"{kind}_w{number}"] = factor.first
        else:
            found[f"{kind}_w{number}_a"], found[f"{kind}_w{number}_b"] = factor.first, factor.second
        if factor.core is not None:
            found[f"{kind}_t{number}"] = factor.core
    return found


def read_lycoris(
    file: Path, tensors: Mapping[str, Tensor], prefixes: AdapterPrefixes, settings: Mapping[str, object]
) -> tuple[list[AdapterWeights], set[str]]:
    """The LoHa, LoKr and OFT adapters, and the names of the tensors that they use.

    `settings` are peft's, as in `header_settings`. Raises ConfigError.
    """
    stems = {name.partition(infix)[0]: infix for infix in LYCORIS_KINDS for name in tensors if infix in name}
    used: set[str] = set()
    whole = {stem: _adapter(file, stem, infix, tensors, settings, used) for stem, infix in stems.items()}
    rotations = (OftWeights, OutputOftWeights)
    shapes = {stem: None if isinstance(one, rotations) else one.matrix_shape for stem, one in whole.items()}
    layers = transformer_layers(file, shapes) if TRANSFORMER in prefixes else None
    found: list[AdapterWeights] = []
    for stem, one in whole.items():
        if layers is None:
            submodule, module = _place(file, stem, prefixes)
            found.append(replace(one, submodule=submodule, module=module))
        elif len(layers[stem]) > 1 and isinstance(one, OutputOftWeights):
            raise ConfigError(
                f"{str(file)!r}: {stem!r} rotates the outputs of a layer that is several in diffusers, which Tandem "
                "does not read.",
                "Use a LoRA, LoHa or LoKr, or an OFT of OneTrainer.",
            )
        else:
            found += [_part(replace(one, submodule=TRANSFORMER, module=module), rows) for module, rows in layers[stem]]
    return found, used


def _adapter(
    file: Path,
    stem: str,
    infix: str,
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, object],
    used: set[str],
) -> LohaWeights | LokrWeights | OftWeights | OutputOftWeights:
    """The adapter whose keys start with `stem`, which becomes its module; `used` gets their names."""
    if LYCORIS_KINDS[infix] == "OFT":
        used |= {f"{stem}.{name}" for name in (ROTATION, SCALED, BLOCKS, RESCALE, "alpha")}
        return read_oft(file, stem, tensors, is_of_peft=any(name.endswith(".peft_type") for name in settings))
    factors, names = (_hada_factors if infix == ".hada_" else _lokr_factors)(file, stem, tensors)
    same = infix == ".lokr_" or factors[0].matrix_shape == factors[1].matrix_shape
    if not same or not all(factor.fits() for factor in factors):
        raise ConfigError(f"{str(file)!r} is damaged: the matrices of {stem!r} have incompatible shapes.")
    used |= {*names, f"{stem}.alpha", f"{stem}.dora_scale"}
    rank = factors[1].rank or factors[0].rank
    scale = 1.0 if rank is None else layer_alpha(file, stem, tensors, settings, rank) / rank
    kind = LohaWeights if infix == ".hada_" else LokrWeights
    adapter = kind(submodule="", module=stem, factors=factors, scale=scale, magnitude=None)
    return replace(adapter, magnitude=kohya_magnitude(file, stem, tensors, adapter.matrix_shape[0]))


def _part(one: LohaWeights | LokrWeights | OftWeights | OutputOftWeights, rows: Rows) -> AdapterWeights:
    """Some rows of an adapter of a fused layer, all if there are none."""
    if not rows or isinstance(one, OftWeights | OutputOftWeights):
        return one
    magnitude = None if one.magnitude is None else take_rows(one.magnitude, rows)
    if isinstance(one, LohaWeights):
        first, second = one.factors
        return replace(one, factors=(first.of_rows(rows), second.of_rows(rows)), magnitude=magnitude)
    first, second = one.factors
    inner = second.matrix_shape[0]
    if any(each.start % inner or each.stop % inner for each in rows):
        return PartWeights(one.submodule, one.module, one, rows)
    outer = tuple(slice(each.start // inner, each.stop // inner) for each in rows)
    return replace(one, factors=(first.of_rows(outer), second), magnitude=magnitude)


def _place(file: Path, stem: str, prefixes: AdapterPrefixes) -> tuple[str, str]:
    """Submodule and module of the keys that start with `stem`, in kohya's layout or with dots."""
    submodule = submodule_of_key(file, stem, prefixes, kohya="." not in stem)
    dotted, joined = prefixes[submodule]
    module = stem.removeprefix(f"{dotted}.") if "." in stem else from_kohya(stem.removeprefix(f"{joined}_"))
    return submodule, module_in_memory(submodule, module)


def _hada_factors(file: Path, stem: str, tensors: Mapping[str, Tensor]) -> tuple[tuple[Factor, Factor], set[str]]:
    first_a, first_b, second_a, second_b = (require_tensor(file, tensors, f"{stem}.{name}") for name in _HADA)
    first, second = (tensors.get(f"{stem}.hada_t{number}") for number in (1, 2))
    names = {f"{stem}.{name}" for name in (*_HADA, "hada_t1", "hada_t2")}
    if first is None and second is None:  # OneTrainer's have the shapes of convolutions
        first_a, first_b, second_a, second_b = (each.flatten(1) for each in (first_a, first_b, second_a, second_b))
    return (Factor(first_a, first_b, first), Factor(second_a, second_b, second)), names


def _lokr_factors(file: Path, stem: str, tensors: Mapping[str, Tensor]) -> tuple[tuple[Factor, Factor], set[str]]:
    names: set[str] = set()

    def factor(name: str, core: str = "") -> Factor:
        whole = tensors.get(f"{stem}.{name}")
        if whole is not None:
            names.add(f"{stem}.{name}")
            return Factor(whole)
        halves = [f"{stem}.{name}_{half}" for half in "ab"]
        names.update([*halves, f"{stem}.{core}"])
        first, second = (require_tensor(file, tensors, half) for half in halves)
        return Factor(first, second, tensors.get(f"{stem}.{core}"))

    return (factor("lokr_w1"), factor("lokr_w2", "lokr_t2")), names
