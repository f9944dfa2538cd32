"""What a single file says of its noise schedule, for there is no scheduler config beside it.

Two empty tensors mark models of velocity: `v_pred`, and `ztsnr` for zero terminal SNR. NoobAI-XL has them; ComfyUI
(comfy/supported_models.py, SDXL.model_type), A1111 (pull requests 16567 and 16569) and Forge read them. Headers say
the same with modelspec.prediction_type: `v` or `epsilon` (Stability-AI/ModelSpec; kohya's library/sai_model_spec.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from modules.diffusion.losses import Prediction

VELOCITY_KEY: Final = "v_pred"
ZERO_SNR_KEY: Final = "ztsnr"
# Continuous noise levels instead of a DDPM schedule: Playground 2.5 and CosXL.
EDM_KEYS: Final = frozenset({"edm_mean", "edm_std", "edm_vpred.sigma_max", "edm_vpred.sigma_min"})

_HEADER_TYPES: Final[Mapping[str, Prediction]] = {
    "v": "v_prediction", "v_prediction": "v_prediction", "epsilon": "epsilon",
}  # fmt: skip
_HEADER_ARCHITECTURES: Final[Mapping[str, Prediction]] = {
    "stable-diffusion-v2-768-v": "v_prediction", "stable-diffusion-v2-512": "epsilon",
}  # fmt: skip
# ComfyUI (comfy/supported_models.py, SD20.model_type) tells the two variants of Stable Diffusion 2 apart by the spread
# of this bias; inpainting models are always epsilon.
_VERSION_2: Final = "cond_stage_model.model."
_SIGN_OF_VELOCITY: Final = "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.norm1.bias"
_VELOCITY_SPREAD: Final = 0.09
_CONV_IN: Final = "model.diffusion_model.input_blocks.0.0.weight"
_TEXT_TO_IMAGE_CHANNELS: Final = 4


@dataclass(frozen=True)
class DeclaredSchedule:
    """The prediction type of a single file, and where it was found."""

    prediction: Prediction
    zero_terminal_snr: bool
    source: str  # for messages: "according to ..."

    def apply(self, scheduler: Mapping[str, Any]) -> dict[str, Any]:
        """The config of a diffusers scheduler, changed to this schedule.

        A schedule that ends in pure noise must also be sampled from its last timestep (Lin et al. 2023,
        arXiv:2305.08891, section 3.3), unless `scheduler` is already one for it.
        """
        changed = {**scheduler, "prediction_type": self.prediction}
        if self.zero_terminal_snr and not scheduler.get("rescale_betas_zero_snr"):
            changed |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
        return changed


def declared_schedule(names: Collection[str], metadata: Mapping[str, str]) -> DeclaredSchedule | None:
    """What the names of the tensors or the header say; None if they say nothing."""
    if VELOCITY_KEY in names:
        zero_snr = ZERO_SNR_KEY in names
        source = f"its keys {VELOCITY_KEY} and {ZERO_SNR_KEY}" if zero_snr else f"its key {VELOCITY_KEY}"
        return DeclaredSchedule("v_prediction", zero_snr, source)
    for key, meanings in (
        ("modelspec.prediction_type", _HEADER_TYPES),
        ("modelspec.architecture", _HEADER_ARCHITECTURES),
    ):
        prediction = meanings.get(metadata.get(key, "").partition("/")[0].strip().lower())
        if prediction is not None:
            zero_snr = prediction == "v_prediction" and ZERO_SNR_KEY in names
            return DeclaredSchedule(prediction, zero_snr, f"{key} in its header")
    return None


def measured_schedule(names: Collection[str], read: Callable[[str], Tensor]) -> DeclaredSchedule | None:
    """The variant of Stable Diffusion 2, from its weights; None for other models. `read` returns a tensor by name."""
    if _SIGN_OF_VELOCITY not in names or not any(name.startswith(_VERSION_2) for name in names):
        return None
    is_text_to_image = _CONV_IN in names and read(_CONV_IN).shape[1] == _TEXT_TO_IMAGE_CHANNELS
    spread = float(read(_SIGN_OF_VELOCITY).float().std(correction=0))
    velocity = is_text_to_image and spread > _VELOCITY_SPREAD
    return DeclaredSchedule("v_prediction" if velocity else "epsilon", False, "its weights, as in ComfyUI")
