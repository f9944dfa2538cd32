"""What presets for a card keep in its memory fits, with room for activations."""

from __future__ import annotations

import re

import pytest

from modules.config import load_preset, preset_names
from modules.families._by_name import family_class
from modules.training.memory.report import card_bytes, preset_for
from modules.training.memory.table import GIB, memory_table

FOR_CARDS = [name for name in preset_names() if re.search(r"_(\d+)gb$", name)]
ACTIVATIONS = 0.1  # of the card that is left at least; presets were chosen by the whole table
WEIGHED = ("flux2_klein_4b_lora_12gb", "krea2_lora_16gb", "z_image_lora_12gb")  # each takes seconds


def test_there_are_presets_for_cards() -> None:
    assert set(WEIGHED) <= set(FOR_CARDS)
    assert {re.search(r"_(\d+)gb$", name)[1] for name in FOR_CARDS} >= {"12", "16", "24"}  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHED)
def test_a_preset_fits_its_card(name: str) -> None:
    config = load_preset(name)
    found = re.search(r"_(\d+)gb$", name)
    assert found is not None
    table = memory_table(family_class(config.family), config, activations=False)
    assert table is not None
    card = card_bytes(int(found[1]))
    assert table.needed() <= (1 - ACTIVATIONS) * card


def test_the_captions_of_flux2_dev_are_encoded_on_a_24_gb_card() -> None:
    config = load_preset("flux2_dev_lora_24gb")
    kind = family_class(config.family)
    whole = config.model_copy(update={"family_options": {}})
    quantized, in_bf16 = (sum(each.bytes for each in kind.frozen_networks(one)) for one in (config, whole))
    assert quantized <= (1 - ACTIVATIONS) * card_bytes(24) < in_bf16


@pytest.mark.parametrize(
    ("given", "card", "preset"),
    [
        ("z_image_lora_24gb", 16, "z_image_lora_16gb"),
        ("flux2_dev_lora_48gb", 32, "flux2_dev_lora_24gb"),
        ("sdxl_fine_tune", 24, "sdxl_fine_tune_24gb"),
        ("qwen_image_lora_24gb", 12, ""),
    ],
)
def test_the_preset_for_a_card_is_named(given: str, card: int, preset: str) -> None:
    assert preset_for(load_preset(given), card * GIB) == preset
    assert preset_for(load_preset(given).model_copy(update={"base_model": "someone/else"}), card * GIB) == ""
