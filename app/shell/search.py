"""Finds settings by name, title, help text and their names in other trainers; and commands, in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
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

    @property
    def identity(self) -> tuple[str, ...]:
        """What stays the same when the list is made anew."""
        return ("Setting", self.option.path)


@dataclass(frozen=True)
class Command:
    """What can be done, or a place to go to; `kind` is its word at the right, `reason` why it cannot be done now."""

    title: str
    act: Callable[[], object]
    kind: str = "Action"
    icon: str = "right"
    detail: str = ""
    reason: str = ""
    words: tuple[str, ...] = ()  # other names
    penalty: float = 0.0  # of the score: of many that are alike
    name: str = ""  # of one of several that may have the same title

    @property
    def identity(self) -> tuple[str, ...]:
        """What stays the same when the list is made anew."""
        return (self.kind, self.title, self.name)


def search_all(
    query: str, commands: Iterable[Command], more: Iterable[Option] = (), variant: str = ""
) -> list[SearchHit | Command]:
    """The best settings, as `search` finds them, and commands, best first."""
    terms, whole = _tokens(query), _normalised(query)
    scored: list[tuple[float, SearchHit | Command]] = [(hit.score, hit) for hit in search(query, more, variant)]
    for command in commands if terms else ():
        if found := _words(command.title, "", f"{command.detail} {command.kind}", command.words).match(terms, whole):
            scored.append((found[0] - command.penalty, command))
    return [each for _, each in sorted(scored, key=lambda each: -each[0])[:MAX_HITS]]


def search(query: str, more: Iterable[Option] = (), variant: str = "") -> list[SearchHit]:
    """The best hits, best first. `more` are the family's options, `variant` is the chosen optimizer."""
    terms = _tokens(query)
    if not terms:
        return []
    entries = [*_entries(), *(_entry(option) for option in more)]
    hits = []
    for option, words in entries:
        may_apply = option.variant is None or not variant or option.variant == variant
        if may_apply and (found := words.match(terms, _normalised(query))):
            score, alias = found
            hits.append(SearchHit(option, alias, score - (0.5 if option.advanced else 0)))
    best: dict[str, SearchHit] = {}
    for hit in sorted(hits, key=lambda hit: -hit.score):
        best.setdefault(hit.option.path, hit)
    return list(best.values())[:MAX_HITS]


@dataclass(frozen=True)
class _Words:
    """What something is found by, normalised."""

    title: str
    name: str
    help: str
    aliases: tuple[tuple[str, str], ...]  # as written, and normalised

    def match(self, terms: Sequence[str], whole: str) -> tuple[float, str] | None:
        """The score and the alias it was found by; None if a term is nowhere."""
        found = 0.0
        alias = ""
        if whole in (self.name, self.title) or whole.replace(" ", "") == self.name.replace(" ", ""):
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
        return found - 0.01 * len(self.title), alias

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
        if _has_prefix(term, self.help):
            return 15.0, ""
        return (8.0 if any(_abbreviates(term, word) for word in self.title.split()) else 0.0), ""


@cache
def _entries() -> tuple[tuple[Option, _Words], ...]:
    return tuple(_entry(option) for option in options(TrainConfig) if option.path not in ("version", "family_options"))


def _entry(option: Option) -> tuple[Option, _Words]:
    return option, _words(option.title, option.name, option.help, aliases(option.path))


def _words(title: str, name: str, description: str, others: Iterable[str]) -> _Words:
    names = tuple((other, _normalised(other)) for other in others)
    return _Words(_normalised(title), _normalised(name), _normalised(description), names)


def _abbreviates(term: str, word: str) -> bool:
    """Whether the word begins as the term does and has its other letters in this order: "btch" is in "batch"."""
    letters = iter(word)
    return len(term) > 2 and term[0] == word[0] and all(letter in letters for letter in term)


def _has_prefix(term: str, text: str) -> bool:
    """Whether a word of the text starts with the term."""
    return text.startswith(term) or f" {term}" in text


def _normalised(text: str) -> str:
    return " ".join(_tokens(text))


def _tokens(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
