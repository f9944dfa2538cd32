"""Finding settings by name, title, help text and the names that other trainers give them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from modules.config import Option, TrainConfig, options
from modules.config.aliases import aliases

MOST = 8


@dataclass(frozen=True)
class Hit:
    """A setting that was found; `former` is the other trainer's name it was found by."""

    option: Option
    former: str
    score: float


def search(words: str, more: Iterable[Option] = (), variant: str = "") -> list[Hit]:
    """The best hits, best first. `more` are the family's options; `variant` the optimizer in use."""
    terms = _words(words)
    if not terms:
        return []
    entries = [*_entries(), *(_entry(option) for option in more)]
    hits = [hit for entry in entries if (hit := entry.match(terms, _plain(words))) and _applies(hit.option, variant)]
    best: dict[str, Hit] = {}
    for hit in sorted(hits, key=lambda hit: -hit.score):
        best.setdefault(hit.option.path, hit)
    return list(best.values())[:MOST]


@dataclass(frozen=True)
class _Entry:
    option: Option
    name: str
    title: str
    help: str
    former: tuple[tuple[str, str], ...]  # as written, and plain

    def match(self, terms: Sequence[str], whole: str) -> Hit | None:
        found = 0.0
        former = ""
        exact = {self.name, self.title}
        if whole in exact or whole.replace(" ", "") == self.name.replace(" ", ""):
            found = 100
        else:
            for written, plain in self.former:
                if whole == plain:
                    found, former = 90, written
        if not found:
            scores = [self._score(term) for term in terms]
            if not all(score for score, _ in scores):
                return None
            found = sum(score for score, _ in scores) / len(scores)
            former = next((name for _, name in scores if name), "")
        return Hit(self.option, former, found - 0.01 * len(self.title) - (0.5 if self.option.advanced else 0))

    def _score(self, term: str) -> tuple[float, str]:
        for text, weight in ((self.title, 60.0), (self.name, 58.0)):
            if _begins(term, text):
                return weight, ""
        for written, plain in self.former:
            if _begins(term, plain):
                return 50.0, written
        for text, weight in ((self.title, 35.0), (self.name, 33.0)):
            if len(term) > 2 and term in text.replace(" ", ""):
                return weight, ""
        return (15.0 if _begins(term, self.help) else 0.0), ""


@cache
def _entries() -> tuple[_Entry, ...]:
    return tuple(_entry(option) for option in options(TrainConfig) if option.path not in ("version", "family_options"))


def _entry(option: Option) -> _Entry:
    former = tuple((name, _plain(name)) for name in aliases(option.path))
    return _Entry(option, _plain(option.name), _plain(option.title), _plain(option.help), former)


def _applies(option: Option, variant: str) -> bool:
    return option.variant is None or not variant or option.variant == variant


def _begins(term: str, text: str) -> bool:
    """Whether a word of the text begins with the term."""
    return text.startswith(term) or f" {term}" in text


def _plain(text: str) -> str:
    return " ".join(_words(text))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
