"""A section rebuilt from its declarations as JSON is equivalent."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from pydantic import ValidationError

from modules.config import SECTIONS, Concept, Sample, Section, faults, options
from modules.config.dynamic_section import build_section

PLAIN = [Concept, Sample, *(section for section in SECTIONS if not any("." in o.path for o in options(section)))]


def rebuilt(section: type[Section]) -> type[Section]:
    return build_section(json.loads(json.dumps([asdict(option) for option in options(section)])))


@pytest.mark.parametrize("section", PLAIN, ids=lambda section: section.__name__)
def test_the_options_are_the_same(section: type[Section]) -> None:
    again = [replace(option, section="") for option in options(rebuilt(section))]
    assert again == [replace(option, section="") for option in options(section)]


def test_values_get_the_same_errors() -> None:
    wrong = {"prompt": 3, "width": 7, "steps": "many", "guidance_scale": True, "sead": 1}
    found = []
    for section in (Sample, rebuilt(Sample)):
        with pytest.raises(ValidationError) as caught:
            section.model_validate(wrong)
        found.append(faults(caught.value, section, "family_options"))
    assert found[0] == found[1]
    assert len(found[0]) == len(wrong)


def test_defaults_are_the_same() -> None:
    given = {"path": "pictures", "repeats": "2"}
    again = rebuilt(Concept).model_validate(given)
    assert again.model_dump(mode="json") == Concept.model_validate(given).model_dump(mode="json")


def test_malformed_declarations_are_an_error() -> None:
    with pytest.raises((KeyError, TypeError)):
        build_section([{"path": "width"}])
