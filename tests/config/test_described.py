"""Declarations that went through JSON make the same section again."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from pydantic import ValidationError

from modules.config import SECTIONS, Concept, Sample, Section, faults, options
from modules.config.described import section_of

PLAIN = [Concept, Sample, *(section for section in SECTIONS if not any("." in o.path for o in options(section)))]


def described(section: type[Section]) -> type[Section]:
    return section_of(json.loads(json.dumps([asdict(option) for option in options(section)])))


@pytest.mark.parametrize("section", PLAIN, ids=lambda section: section.__name__)
def test_the_options_are_the_same(section: type[Section]) -> None:
    again = [replace(option, section="") for option in options(described(section))]
    assert again == [replace(option, section="") for option in options(section)]


def test_values_are_checked_by_the_same_rules_and_words() -> None:
    wrong = {"prompt": 3, "width": 7, "steps": "many", "guidance_scale": True, "sead": 1}
    found = []
    for section in (Sample, described(Sample)):
        with pytest.raises(ValidationError) as caught:
            section.model_validate(wrong)
        found.append(faults(caught.value, section, "family_options"))
    assert found[0] == found[1]
    assert len(found[0]) == len(wrong)


def test_defaults_are_the_same() -> None:
    given = {"path": "pictures", "repeats": "2"}
    again = described(Concept).model_validate(given)
    assert again.model_dump(mode="json") == Concept.model_validate(given).model_dump(mode="json")


def test_what_is_no_declaration_is_an_error() -> None:
    with pytest.raises((KeyError, TypeError)):
        section_of([{"path": "width"}])
