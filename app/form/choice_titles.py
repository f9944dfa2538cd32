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
    "came": "CAME",
    "cpu": "CPU",
    "data_parallel": "Data parallel (DP)",
    "distributed": "Distributed (DDP)",
    "fine_tune": "Fine-tune",
    "flash_adamw": "Flash AdamW",
    "fully_sharded": "Fully sharded (FSDP2)",
    "lion_8bit": "Lion, 8 bit",
    "loha": "LoHa",
    "lokr": "LoKr",
    "lora": "LoRA",
    "max": "Maximum",
    "min": "Minimum",
    "nccl": "NCCL",
    "oft": "OFT",
    "powersgd": "PowerSGD",
    "schedule_free_adamw": "Schedule-free AdamW",
    "sgd": "SGD",
    "sqrt": "Square root",
    "txt": ".txt file",
    "unet": "U-Net",
    "vae": "VAE",
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
    """The words for each value."""
    return {value: choice_title(value) for value in values}


def value_title(option: Option | None, value: str) -> str:
    """The words for a value of this setting; the value itself where it is not one of its choices."""
    return choice_title(value) if option is not None and value in option.choices else value
