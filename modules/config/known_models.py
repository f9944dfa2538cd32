"""Models on the hub that people train, known without a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from modules.facts import KnownModel, all_facts

KNOWN_MODELS: Final[Mapping[str, KnownModel]] = {
    name: replace(model, family=family) for family, facts in all_facts().items() for name, model in facts.models.items()
}
_BY_LOWER_CASE: Final = {name.lower(): model for name, model in KNOWN_MODELS.items()}


def known_model(name: str) -> KnownModel | None:
    """The model of this hub name (owner/model or owner/model@revision); None if it is not known."""
    return _BY_LOWER_CASE.get(name.partition("@")[0].lower())
