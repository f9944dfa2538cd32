"""Every family has a record of facts, which agrees with its class; tests and docs know it, too."""

from __future__ import annotations

from dataclasses import fields

import diffusers
import pytest

from modules.config.family_about import family_about
from modules.diffusion.flow_options import FirstFrameOptions, GuidedFlowOptions
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.diffusion.transformer_files.names import transformer_layout
from modules.facts import FamilyFacts, all_facts, family_of_architecture, named_family
from modules.families._by_name import family_class
from modules.families._flow_transformer import FlowTransformer
from tests.families.flow_checks import VELOCITIES
from tests.families.tiny_flow_pipelines import TINY
from tests.runs import ROOT

FLOW = [name for name, facts in all_facts().items() if facts.network == "transformer"]


def test_each_file_of_a_family_has_facts_beside_it() -> None:
    files = {file.stem for file in (ROOT / "modules" / "families").glob("[!_]*.py")}
    assert files - {"describe"} == set(all_facts())


def test_every_fact_is_known_of_some_family() -> None:
    plain = FamilyFacts("")
    for one in fields(FamilyFacts):
        assert any(getattr(facts, one.name) != getattr(plain, one.name) for facts in all_facts().values()), one.name


def test_facts_that_classes_need_as_well_are_the_same() -> None:
    for name, facts in all_facts().items():
        kind = family_class(name)
        assert kind.facts is facts
        assert kind.draws_samples == facts.draws_samples


@pytest.mark.parametrize("name", FLOW)
def test_a_family_is_known_everywhere(name: str) -> None:
    kind, facts = family_class(name), all_facts()[name]
    assert issubclass(kind, FlowTransformer)
    assert issubclass(kind.Options, GuidedFlowOptions) == facts.has_guidance
    assert issubclass(kind.Options, FirstFrameOptions) == (facts.clips is not None and facts.clips.first_frame)
    with quiet_libraries():
        (transformer, *_) = getattr(diffusers, facts.pipeline_class)._get_signature_types()["transformer"]
        assert all(hasattr(diffusers, pipeline.partition(" ")[0]) for pipeline in facts.pipelines)
    assert transformer.__name__ == facts.transformer
    layout = transformer_layout(facts.transformer, {"guidance_embeds": True})
    places = {
        "tests/families/tiny_flow_pipelines.py": name in TINY,
        "tests/families/flow_checks.py": name in VELOCITIES,
        "its facts: file, or the class's single_file": (layout is not None) == kind.single_file,
        "its facts: layers": facts.file is None
        or facts.file.is_rarer  # those of another family, which a header, its name or a mark tells apart
        or name in named_family(f"transformer.{layer.replace('*', '0')}.lora_A.weight" for layer in facts.file.names),
        "its facts: architectures": family_of_architecture(facts.architecture) == name,
        "its facts: models": bool(facts.models),
        "its facts: aliases": name in facts.aliases,
        "the form of its `about`": bool(family_about(name).weights),
        "docs/models.md": f"| `{name}` |" in (ROOT / "docs" / "models.md").read_text(encoding="utf-8"),
    }
    assert [place for place, is_known in places.items() if not is_known] == []
