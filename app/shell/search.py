"""Finds settings by name, title, help text and their names in other trainers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from modules.config import Option, TrainConfig, options
from modules.config.aliases import aliases

MAX_HITS = 8


@dataclass(frozen=True)
class SearchHit:
    """A setting that was found; `alias` is the other name it was found by."""

    option: Option
    alias: str
    score: float


def search(query: str, more: Iterable[Option] = (), variant: str = "") -> list[SearchHit]:
    """The best hits, best first. `more` are the family's options, `variant` is the chosen optimizer."""
    terms = _tokens(query)
    if not terms:
        return []
    entries = [*_entries(), *(_entry(option) for option in more)]
    hits = [
        hit
        for entry in entries
        if (hit := entry.match(terms, _normalised(query)))
        and (hit.option.variant is None or not variant or hit.option.variant == variant)
    ]
    best: dict[str, SearchHit] = {}
    for hit in sorted(hits, key=lambda hit: -hit.score):
        best.setdefault(hit.option.path, hit)
    return list(best.values())[:MAX_HITS]


@dataclass(frozen=True)
class _Entry:
    option: Option
    name: str
    title: str
    help: str
    aliases: tuple[tuple[str, str], ...]  # as written, and normalised

    def match(self, terms: Sequence[str], whole: str) -> SearchHit | None:
        found = 0.0
        alias = ""
        exact = {self.name, self.title}
        if whole in exact or whole.replace(" ", "") == self.name.replace(" ", ""):
            found = 100
        else:
            for written, plain in self.aliases:
                if whole == plain:
                    found, alias = 90, written
        if not found:
            scores = [self._score(term) for term in terms]
            if not all(score for score, _ in scores):
                return None
            found = sum(score for score, _ in scores) / len(scores)
            alias = next((name for _, name in scores if name), "")
        return SearchHit(self.option, alias, found - 0.01 * len(self.title) - (0.5 if self.option.advanced else 0))

    def _score(self, term: str) -> tuple[float, str]:
        for text, weight in ((self.title, 60.0), (self.name, 58.0)):
            if _has_prefix(term, text):
                return weight, ""
        for written, plain in self.aliases:
            if _has_prefix(term, plain):
                return 50.0, written
        for text, weight in ((self.title, 35.0), (self.name, 33.0)):
            if len(term) > 2 and term in text.replace(" ", ""):
                return weight, ""
        return (15.0 if _has_prefix(term, self.help) else 0.0), ""


@cache
def _entries() -> tuple[_Entry, ...]:
    return tuple(_entry(option) for option in options(TrainConfig) if option.path not in ("version", "family_options"))


def _entry(option: Option) -> _Entry:
    names = tuple((name, _normalised(name)) for name in aliases(option.path))
    return _Entry(option, _normalised(option.name), _normalised(option.title), _normalised(option.help), names)


def _has_prefix(term: str, text: str) -> bool:
    """Whether a word of the text starts with the term."""
    return text.startswith(term) or f" {term}" in text


def _normalised(text: str) -> str:
    return " ".join(_tokens(text))


def _tokens(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
