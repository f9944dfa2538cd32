"""A family's name stands in its file and its facts, and nowhere else: what is left may only shrink."""

from __future__ import annotations

import re
from collections import Counter

from modules.facts import FamilyFacts, all_facts
from tests.runs import ROOT

# Lines of product code that name one. Of what is not prose, nearly all is about the two families of UNets.
LEFT = {
    "app/runs/written.py": 2,
    "modules/checkpoint/formats/conversion.py": 1,
    "modules/checkpoint/formats/kohya_names.py": 1,
    "modules/checkpoint/formats/lora_origin.py": 1,
    "modules/checkpoint/formats/merging.py": 3,
    "modules/checkpoint/formats/metadata.py": 1,
    "modules/checkpoint/formats/single_file.py": 12,
    "modules/classification/networks.py": 1,
    "modules/config/sections/adapters.py": 2,
    "modules/config/sections/model.py": 1,
    "modules/config/sections/sampling.py": 1,
    "modules/diffusion/components.py": 4,
    "modules/diffusion/declared_schedule.py": 3,
    "modules/diffusion/flow_options.py": 1,
    "modules/diffusion/options.py": 1,
    "modules/diffusion/text_encoders.py": 1,
    "modules/diffusion/transformer_files/base.py": 1,
    "modules/families/_diffusion_family.py": 1,
    "modules/families/_latent_diffusion.py": 1,
    "modules/families/_saved_model.py": 1,
    "modules/families/_vae_estimates.py": 1,
    "modules/importers/common.py": 1,
    "modules/importers/diffusion_pipe/model.py": 3,
    "modules/importers/kohya/family.py": 2,
    "modules/importers/onetrainer/model.py": 5,
    "modules/importers/training_yaml/__init__.py": 1,
    "modules/importers/training_yaml/values.py": 1,
    "modules/training/loop/load_checkpoint.py": 1,
    "modules/training/methods/lora.py": 1,
    "scripts/check_demo.py": 1,
    "scripts/classify.py": 2,
    "scripts/convert.py": 1,
    "scripts/gpu_device_points.py": 1,
    "scripts/gpu_run_points.py": 1,
    "scripts/sample.py": 1,
}


def pattern_of(name: str, facts: FamilyFacts) -> str:
    """Its name in code and prose, and its classes in diffusers; a plain English word only in quotes."""
    spelled = re.sub(r"_?(\d)|_", r"[ ._-]?\1", name)
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
