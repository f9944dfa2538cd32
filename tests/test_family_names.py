"""A family's name stands in its file and its facts, and nowhere else: what is left may only shrink."""

from __future__ import annotations

import re
from collections import Counter

from modules.facts import FamilyFacts, all_facts
from tests.runs import ROOT

# Lines of product code outside families' own files that name one.
LEFT: dict[str, int] = {}


def pattern_of(name: str, facts: FamilyFacts) -> str:
    """Its name as it is written in code and in prose, and its classes in diffusers; a plain English word only in quotes."""
    spelled = re.sub(r"_?(\d)", r"[ ._-]?\1", name).replace("_", "[ _-]?")
    if not facts.pipelines:
        return rf"['\"]{spelled}['\"]|families\.{name}\b"
    return rf"\b({'|'.join(filter(None, (spelled, *facts.pipelines, facts.transformer)))})\b"


def mentions() -> Counter[str]:
    """Lines by file."""
    words = re.compile("|".join(pattern_of(name, facts) for name, facts in all_facts().items()), re.IGNORECASE)
    own = re.compile(r"modules/(families/[a-z]|facts/).*")
    found: Counter[str] = Counter()
    for folder in ("app", "modules", "scripts", "tandem"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            lines = sum(bool(words.search(line)) for line in file.read_text(encoding="utf-8").splitlines())
            if lines and not own.fullmatch(name):
                found[name] = lines
    return found


def test_no_other_file_names_a_family() -> None:
    assert mentions() == LEFT
