"""What the built-in families say about themselves, for people."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath
from typing import Final

from modules.facts import Network, all_facts

FINE_TUNE_FACTOR: Final = 8  # weights, gradients and AdamW's state in fp32 against the weights in bf16
_ABOUT: Final = re.compile(
    r"(?P<title>[^:]+?)(?: by (?P<maker>[^:]+))?: (?P<size>.*?parameters) \((?P<weights>[\d., a-z]+) GB in bf16\)[,.;] "
    r"(?P<licence>.+?)\.?"
)
_SHORT_LICENCE: Final = re.compile(r"\. .*| licences?$")  # what is not of a short one


@dataclass(frozen=True)
class FamilyAbout:
    """For people: the model's name and maker, its size, weights in bf16 (GB, smallest and largest) and licence.

    Where a family says nothing of its size, `text` is all that is known besides the title.
    """

    name: str
    title: str
    maker: str = ""
    size: str = ""
    weights_gb: tuple[float, float] | None = None
    licence: str = ""
    text: str = ""
    network: Network = "other"
    popularity: int = 0  # its place among the tiles

    @property
    def weights(self) -> str:
        """The size of its weights in bf16; empty if it is unknown."""
        return "" if self.weights_gb is None else _gb(self.weights_gb)

    @property
    def short_licence(self) -> str:
        """Of all its models, on one line; empty if it is unknown."""
        return "Licence differs by model" if ";" in self.licence else _SHORT_LICENCE.sub("", self.licence)

    @property
    def line(self) -> str:
        """Size and licence in one line."""
        if self.weights_gb is None:
            return self.text
        return f"{self.size}, {self.weights} in bf16. {self.licence}."

    @property
    def least_memory(self) -> str:
        """`memory` of its smallest model, shorter; empty if the size is unknown."""
        if self.weights_gb is None:
            return ""
        low = self.weights_gb[0]
        return f"LoRA {_number(low)}+ GB, full {_number(low * FINE_TUNE_FACTOR)}+ GB"

    @property
    def memory(self) -> str:
        """What the weights need at least while training, in one line; empty if the size is unknown."""
        if self.weights_gb is None:
            return ""
        low, high = self.weights_gb
        tuned = _gb((low * FINE_TUNE_FACTOR, high * FINE_TUNE_FACTOR))
        return f"LoRA: {_gb(self.weights_gb)} and activations. Full fine-tune with AdamW: {tuned}."


@cache
def family_about(name: str) -> FamilyAbout:
    """What a built-in family says; for any other only its name, without the folder."""
    facts = all_facts().get(name)
    if facts is None:
        return FamilyAbout(name, PurePath(name).name or name)
    return replace(_parsed(name, facts.about), network=facts.network, popularity=facts.popularity)


def _parsed(name: str, about: str) -> FamilyAbout:
    """A family's `about`, taken apart; without its network and place."""
    match = _ABOUT.fullmatch(about)
    if match is None:
        title, _, text = about.partition(": ")
        return FamilyAbout(name, title or name, text=f"{text[:1].upper()}{text[1:]}")
    numbers = [float(number) for number in re.findall(r"[\d.]+", match["weights"])]
    size, licence = (f"{match[key][:1].upper()}{match[key][1:]}" for key in ("size", "licence"))
    return FamilyAbout(name, match["title"], match["maker"] or "", size, (min(numbers), max(numbers)), licence=licence)


def _gb(span: tuple[float, float]) -> str:
    low, high = map(_number, span)
    return f"{low} GB" if low == high else f"{low} to {high} GB"


def _number(gb: float) -> str:
    return f"{gb:.0f}" if gb >= 10 else f"{gb:g}"
