"""What else than a LoRA, an embedding or a fine-tune of the model a process of ai-toolkit trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from modules.facts import FamilyFacts, ReferenceFacts, all_facts
from modules.importers import common
from modules.importers.ai_toolkit.data import control_table
from modules.importers.flow_families import known_family, reference_facts
from modules.importers.readers import items
from modules.importers.rules import EMPTY_VALUES

TRAINERS: Final = ("", "sd_trainer", "ui_trainer", "diffusion_trainer", "textual_inversion_trainer")
_PAIRS: Final = (
    *(f"control_path{number}" for number in ("", "_1", "_2", "_3")),
    "inpaint_path",
    "controls",
    "clip_image_path",
    "unconditional_path",
)


def references_of(process: Mapping[str, object]) -> ReferenceFacts | None:
    """Of a model that edits images, and that Tandem has: then `control_path` is imported."""
    return reference_facts(_family_of(process))


def facts_of(process: Mapping[str, object]) -> FamilyFacts:
    """Of the model that is trained; of nothing, if Tandem does not have it."""
    return all_facts().get(_family_of(process) or "", FamilyFacts(""))


def _family_of(process: Mapping[str, object]) -> str | None:
    model = process.get("model")
    return known_family(model.get("arch") if isinstance(model, Mapping) else None)


def other_training(process: Mapping[str, object]) -> Iterator[str]:
    """For each reason, the setting and a sentence."""
    kind = str(process.get("type") or "")
    if kind not in TRAINERS:
        what = "a slider" if "slider" in kind else "something else than a LoRA or a fine-tune"
        yield f"type {kind}: ai-toolkit trains {what}, which Tandem does not"
    elif process.get("slider") not in EMPTY_VALUES:
        yield "slider: ai-toolkit trains a slider, which Tandem does not"
    adapter = process.get("adapter")
    if isinstance(adapter, Mapping):
        yield f"adapter: ai-toolkit trains an adapter of the type {adapter.get('type', 't2i')}, which Tandem does not"
    references = references_of(process)
    imported = control_table(references.most).keys() if references else {}
    pairs = [name for name in _PAIRS if name not in imported]
    for index, dataset in enumerate(each for each in items(process.get("datasets")) if isinstance(each, Mapping)):
        if name := next((name for name in pairs if dataset.get(name) not in EMPTY_VALUES), ""):
            yield f"datasets.{index}.{name}: ai-toolkit trains on pairs of images, which Tandem does not"
            break
    model = process.get("model")
    model = model if isinstance(model, Mapping) else {}
    more = model.get("model_kwargs")
    if "edit" in str(model.get("arch")).partition(":")[2] or (isinstance(more, Mapping) and more.get("edit")):
        yield "model.arch: ai-toolkit trains on pairs of images, which Tandem does not"
    if (adapter_path := model.get("assistant_lora_path")) and not process.get("network"):
        yield f"model.assistant_lora_path {adapter_path}: ai-toolkit trains with it; {common.MERGE_FIRST}"
