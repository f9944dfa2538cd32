"""The card "What will be trained": it follows valid settings, computes only in sight, and says what it cannot know."""

from __future__ import annotations

import re

import pytest

from app.curves.memory_card import MemoryCard, facts
from app.sections.model import Section
from modules.config import TrainConfig
from modules.training.memory.report import memory_report
from tests.app.driver import Driver

pytestmark = pytest.mark.slow


def card_of(driver: Driver) -> MemoryCard:
    section = driver.window.sections["model"]
    assert isinstance(section, Section)
    return section.memory


def trained(**settings: object) -> object:
    """The parameters that a config trains, as the run itself counts them."""
    found, _ = memory_report(TrainConfig.model_validate(settings), world_size=1)
    assert found is not None
    return found.as_data()["trained"]


def test_it_shows_what_the_settings_train_and_computes_only_in_sight(driver: Driver) -> None:
    driver.wait(lambda: driver.window.state_.family.declaration is not None, "the family")
    driver.window.show_section("model")
    card = card_of(driver)
    driver.wait(lambda: card.is_current, "the first answer")
    expected = trained(family="pixel_diffusion")
    assert card.answer.trained == expected
    assert f"{expected:,}" in driver.text(card.frame)
    assert "Fine-tuning" in driver.text(card.frame)
    assert "Activations come on top" in driver.text(card.frame)
    assert card._config is not None
    host = next(value for title, value, _ in facts(card._config, card.answer) if title.startswith("Host memory"))
    assert re.fullmatch(r"about \d+ MiB", host)
    assert "exact" not in driver.text(card.frame)
    assert card.frame.winfo_viewable()

    driver.set("method", "lora")
    assert not card.is_current
    driver.set("family_options.shift", "-4")
    driver.settle()
    assert card.line.cget("text") == "Known once the settings are valid."
    assert not card._job
    driver.draft.new()
    driver.set("method", "lora")
    driver.window.show_section("training")
    driver.settle()
    assert not card._job, "nothing is computed out of sight"
    driver.wait(lambda: not card._is_busy, "the end of what was begun")
    assert not card.program.is_running
    driver.window.show_section("model")
    driver.wait(lambda: card.is_current, "the answer for a LoRA")
    assert card.answer.trained == trained(family="pixel_diffusion", method="lora") != expected
    assert "LoRA of rank 16" in driver.text(card.frame)


def test_a_stale_answer_is_dropped_and_a_failure_is_one_line(driver: Driver) -> None:
    driver.wait(lambda: driver.window.state_.family.declaration is not None, "the family")
    driver.window.show_section("model")
    card = card_of(driver)
    driver.wait(lambda: card.program.is_running, "a first program")
    first = card.program._process
    driver.set("family", "stable_diffusion_xl")
    driver.set("base_model", "no/such/folder")
    driver.settle()
    assert first is not None
    assert first.wait(timeout=60) < 0, "it is ended"
    driver.wait(lambda: card.is_current, "the answer for SDXL")
    assert card.answer.rows == ()
    assert card.line.cget("text")
    assert "\n" not in card.line.cget("text")
    assert "Parameters trained" not in driver.text(card.frame)
