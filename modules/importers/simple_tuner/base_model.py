"""The base model of SimpleTuner's settings, which may name only its family and flavour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modules.importers.flow_families import flow_family
from modules.importers.readers import model_path
from modules.importers.rules import EMPTY_VALUES, Assignment, PathValue, Values

# helpers/models/*/model.py, HUGGINGFACE_PATHS, by model_flavour; the first is DEFAULT_MODEL_FLAVOUR.
MODELS: Final[Mapping[str, Mapping[str, str]]] = {
    "sdxl": {name: f"stabilityai/stable-diffusion-xl-{name}" for name in ("base-1.0", "base-0.9")},
    "flux": {name: f"black-forest-labs/FLUX.1-{name}" for name in ("dev", "schnell")},
    "flux2": {
        "klein-9b": "black-forest-labs/FLUX.2-klein-base-9B",
        "klein-4b": "black-forest-labs/FLUX.2-klein-base-4B",
        "dev": "black-forest-labs/FLUX.2-dev",
    },
    "z_image": {
        **dict.fromkeys(("turbo-ostris-v2", "turbo"), "Tongyi-MAI/Z-Image-Turbo"),
        "base": "Tongyi-MAI/Z-Image",
    },
    "krea2": {"raw": "krea/Krea-2-Raw", "turbo": "krea/Krea-2-Turbo"},
    "qwen_image": {"v1.0": "Qwen/Qwen-Image"},
    "chroma": {name.lower(): f"lodestones/Chroma1-{name}" for name in ("Base", "HD", "Flash")},
    "lumina2": {"2.0": "Alpha-VLLM/Lumina-Image-2.0", "neta-lumina": "terminusresearch/neta-lumina-v1"},
    "stable_diffusion_3": {name: f"stabilityai/stable-diffusion-3.5-{name}" for name in ("medium", "large")},
}


def base_model(values: Values) -> list[Assignment]:
    """The model, or that which SimpleTuner takes for the family and flavour if none is given."""
    name, flavour = values["pretrained_model_name_or_path"], str(values["model_flavour"] or "")
    if name not in EMPTY_VALUES:
        return [Assignment("base_model", model_path(name), keys=("pretrained_model_name_or_path",))]
    family = str(values["model_family"]).lower()
    known = MODELS.get("sdxl" if family == "sdxl" else flow_family(family) or "", {})
    if (found := known.get(flavour or next(iter(known), ""))) is not None:
        why = "the file has no base model: this is SimpleTuner's for the family"
        return [Assignment("base_model", PathValue(found, "model"), why, ("model_flavour", "model_family"))]
    return []
