"""Words for people in place of the values of settings: "Fine-tune" for `fine_tune`. Files keep the values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from modules.config import Option

_TITLES: Final = {
    "adamw": "AdamW",
    "adamw_8bit": "AdamW, 8 bit",
    "auto": "Automatic",
    "both": "Both (diffusers and kohya)",
    "came": "CAME",
    "cosmap": "CosMap",
    "cpu": "CPU",
    "cudnn": "cuDNN as well",
    "data_parallel": "Data parallel (DP)",
    "ddim": "DDIM",
    "ddpm": "DDPM",
    "distributed": "Distributed (DDP)",
    "dpmpp_2m": "DPM++ 2M",
    "dpmpp_2m_karras": "DPM++ 2M Karras",
    "dpmpp_2m_sde_karras": "DPM++ 2M SDE Karras",
    "fine_tune": "Fine-tune",
    "flash_adamw": "Flash AdamW",
    "fully_sharded": "Fully sharded (FSDP2)",
    "lion_8bit": "Lion, 8 bit",
    "logit_normal": "Logit-normal",
    "loha": "LoHa",
    "lokr": "LoKr",
    "lora": "LoRA",
    "math": "No fused kernels",
    "max": "Maximum",
    "min": "Minimum",
    "min_snr": "Min-SNR",
    "model": "The model's own",
    "mse": "MSE",
    "nccl": "NCCL",
    "oft": "OFT",
    "pndm": "PNDM",
    "powersgd": "PowerSGD",
    "run": "As the run",
    "schedule_free_adamw": "Schedule-free AdamW",
    "sgd": "SGD",
    "smooth_l1": "Smooth L1",
    "sqrt": "Square root",
    "txt": ".txt file",
    "unet": "U-Net",
    "unipc": "UniPC",
    "v_prediction": "v-prediction",
    "vae": "VAE",
}
_TITLES_AMONG: Final = {  # where a value means something else among others
    frozenset({"sample", "mode"}): {"sample": "Sampled in every step", "mode": "Always the same"}
}
_NUMBER_FORMAT: Final = re.compile(r"[a-z]+\d+")


def choice_title(value: str) -> str:
    """The words for a value: "Fully sharded (FSDP2)", "Cosine with restarts"; number formats such as bf16 stay."""
    if value in _TITLES:
        return _TITLES[value]
    if _NUMBER_FORMAT.fullmatch(value):
        return value
    return f"{value[:1].upper()}{value[1:]}".replace("_", " ")


def choice_titles(values: Iterable[str]) -> dict[str, str]:
    """The words for each of the values of one setting."""
    every = tuple(values)
    own = _TITLES_AMONG.get(frozenset(every), {})
    return {value: own.get(value) or choice_title(value) for value in every}


def value_title(option: Option | None, value: str) -> str:
    """The words for a value of this setting; the value itself where it is not one of its choices."""
    return choice_titles(option.choices)[value] if option is not None and value in option.choices else value
