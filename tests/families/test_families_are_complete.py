"""Every flow-matching family is known wherever docs/architecture.md says that its name goes."""

from __future__ import annotations

import diffusers
import pytest

from modules.checkpoint.formats.lora_origin import family_of_architecture
from modules.config.family_about import family_about
from modules.config.family_files import family_names
from modules.config.known_models import KNOWN_MODELS
from modules.config.transformer_families import named_family
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.diffusion.transformer_files.names import TABLES, transformer_layout
from modules.families._by_name import family_class
from modules.families._flow_transformer import FlowTransformer
from modules.importers.flow_families import FLOW_FAMILIES
from tests.families.flow_checks import VELOCITIES
from tests.families.tiny_flow_pipelines import TINY
from tests.runs import ROOT

FLOW = [name for name in family_names() if family_about(name).network == "transformer"]


@pytest.mark.parametrize("name", FLOW)
def test_a_family_is_known_everywhere(name: str) -> None:
    kind = family_class(name)
    assert issubclass(kind, FlowTransformer)
    with quiet_libraries():
        pipelines = [getattr(diffusers, pipeline) for pipeline in kind.spec.pipelines]
    transformers = pipelines[0]._get_signature_types()["transformer"]
    layout = transformer_layout(transformers[0].__name__, {"guidance_embeds": True})
    places = {
        "tests/families/tiny_flow_pipelines.py": name in TINY,
        "tests/families/flow_checks.py": name in VELOCITIES,
        "modules/diffusion/transformer_files/names.py (TABLES)": name in TABLES or not kind.single_file,
        "modules/diffusion/transformer_files/names.py (_LAYOUTS)": not kind.single_file
        or (layout is not None and layout.architecture.startswith(kind.architecture)),
        "modules/config/transformer_families.py": name in named_family(f"transformer.{own}" for own in _layers(name)),
        "modules/checkpoint/formats/lora_origin.py": family_of_architecture(kind.architecture) == name,
        "modules/config/known_models.py": any(model.family == name for model in KNOWN_MODELS.values()),
        "modules/importers/flow_families.py": name in FLOW_FAMILIES,
        "the form of its `about`": bool(family_about(name).weights),
        "docs/models.md": f"| `{name}` |" in (ROOT / "docs" / "models.md").read_text(encoding="utf-8"),
    }
    assert [place for place, is_known in places.items() if not is_known] == []


def _layers(name: str) -> list[str]:
    """Its layers in diffusers, with the number of a block."""
    return [layer.replace("*", "0") + ".lora_A.weight" for layer in TABLES.get(name, ())]
