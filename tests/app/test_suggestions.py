"""Fields with a menu of usual values."""

from __future__ import annotations

import pytest

from app.form.choice_fields import SuggestionField
from app.widgets.popover import PopupMenu
from modules.config import TARGET_PRESETS
from modules.config.family_about import family_about
from tests.app.driver import Driver


def menu_of(field: SuggestionField) -> list[str]:
    """The entries of a field's menu, as it would open."""
    menu = PopupMenu(field.control)
    field.add_to(menu)
    return menu.labels()


@pytest.mark.slow
def test_lora_presets_are_offered(driver: Driver) -> None:
    driver.set("method", "lora")
    field = driver.field("lora_targets")
    assert isinstance(field, SuggestionField)
    assert menu_of(field) == list(TARGET_PRESETS)
    field.choose("kohya")
    driver.settle()
    assert driver.draft.get("lora_targets") == "kohya"
    driver.set("lora_targets", "up_blocks.*attn2")
    assert driver.draft.get("lora_targets") == "up_blocks.*attn2"
    driver.set("lora_conv_rank", "8")
    assert driver.draft.config is not None
    assert driver.draft.config.lora_conv_rank == 8
    driver.set("family", "flux")
    family = driver.window.state_.family
    driver.wait(lambda: family.name == "flux" and family.declaration is not None, "the family")
    assert menu_of(field) == ["attention", "attention_mlp", "blocks", "all_linear", "all"], "no UNet"


def test_families_are_offered(driver: Driver) -> None:
    field = driver.field("family")
    assert isinstance(field, SuggestionField)
    assert menu_of(field)[-1] == "Custom Python file…"
    assert family_about("stable_diffusion").title in menu_of(field)
