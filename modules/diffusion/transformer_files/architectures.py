"""What headers of files (`modelspec.architecture`) call the variants of a transformer.

FLUX.1 as in kohya-ss/sd-scripts (library/sai_model_spec.py), FLUX.2 as in kohya-ss/musubi-tuner
(utils/sai_model_spec.py) and SwarmUI (T2IModelClassSorter.cs), Stable Diffusion 3 as in SwarmUI, ComfyUI and its
makers' files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_KLEIN_SIZES: Final = {3072: "-4b", 4096: "-9b"}  # by the transformer's width
_LAYERS_OF_LARGE: Final = 38


def variant_architecture(class_name: str, config: Mapping[str, Any], pipeline: str = "") -> str:
    """Of a transformer of this diffusers class and config, in a pipeline of that class; empty if it has no variants."""
    match class_name:
        case "FluxTransformer2DModel":
            return "flux-1-dev" if config.get("guidance_embeds") else "flux-1-schnell"
        case "Flux2Transformer2DModel" if pipeline == "Flux2Pipeline":
            return "Flux.2-dev"
        case "Flux2Transformer2DModel":
            width = config.get("num_attention_heads", 0) * config.get("attention_head_dim", 0)
            return f"Flux.2-klein{_KLEIN_SIZES.get(width, '')}"
        case "SD3Transformer2DModel" if config.get("num_layers") == _LAYERS_OF_LARGE:
            return "stable-diffusion-v3.5-large"
        case "SD3Transformer2DModel":
            return f"stable-diffusion-v3{'.5' if config.get('dual_attention_layers') else ''}-medium"
    return ""
