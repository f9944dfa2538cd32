"""What the Model page says of the GPUs of this computer: which families fit, and the preset that is made for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.draft import Draft
from app.form import hardware_fit as module
from app.form.hardware_fit import HardwareFit
from modules.config import preset_names
from modules.config.family_about import family_about
from modules.config.io.presets import preset_data, preset_summary
from modules.machine import Gpu
from tests.app.driver import Driver

PRESETS = [preset for preset in map(preset_summary, preset_names()) if preset.memory_gb]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of 16 GB and, a little less as drivers say it, 24 GB."""
    gpus = [Gpu(0, "RTX 4080", 16_376, "GPU-a"), Gpu(1, "RTX 4090", 24_564, "GPU-b")]
    monkeypatch.setattr(module, "visible_gpus", lambda: gpus)
    module._gpus_here.cache_clear()
    yield
    module._gpus_here.cache_clear()


@pytest.mark.parametrize(
    ("gib", "preset", "line"),
    [
        (0, "z_image_lora_12gb", ""),
        (8, "z_image_lora_12gb", "LoRA needs 12 GB on one GPU"),
        (12, "z_image_lora_12gb", "LoRA fits your GPU with int8"),
        (20, "z_image_lora_16gb", "LoRA fits your GPU with int8"),
        (140, "z_image_lora_24gb", "LoRA fits your GPU"),
    ],
)
def test_largest_preset_that_fits_is_proposed(gib: int, preset: str, line: str) -> None:
    fit = HardwareFit(gib, PRESETS)
    found = fit.preset("z_image", "lora", "")
    assert found is not None
    assert (found.name, fit.line(family_about("z_image"))) == (preset, line)
    assert fit.preset("chroma", "lora", "") is None


def test_no_misfit_is_claimed_where_the_weights_would_fit() -> None:
    assert HardwareFit(8, PRESETS).line(family_about("stable_diffusion_xl")) == "", "its smallest preset is for 12 GB"
    assert HardwareFit(8, PRESETS).line(family_about("flux")) == "LoRA needs 12 GB on one GPU", "quantised"
    assert HardwareFit(8, PRESETS).line(family_about("chroma")) == "LoRA in bf16 needs 18+ GB", "it has no preset"


def test_no_preset_for_several_gpus_divides_the_model() -> None:
    """Else a tile could say how many GPUs are needed."""
    assert {preset_data(name).get("training_mode") for name in preset_names()} <= {None, "distributed"}


@pytest.mark.parametrize(
    ("family", "licence"),
    [
        ("qwen_image_edit", "Apache 2.0"),
        ("flux2", "Licence differs by model"),
        ("krea2", "Licence: see the model's page"),
        ("stable_diffusion", "CreativeML Open RAIL"),
    ],
)
def test_licence_is_short(family: str, licence: str) -> None:
    assert family_about(family).short_licence == licence


@pytest.mark.parametrize(
    ("base_model", "preset"),
    [
        ("", "flux2_dev_lora_48gb"),
        ("black-forest-labs/FLUX.2-klein-base-4B", "flux2_klein_4b_lora_12gb"),
        ("models/my-klein", None),
    ],
)
def test_preset_is_of_the_base_model(base_model: str, preset: str | None) -> None:
    found = HardwareFit(80, PRESETS).preset("flux2", "lora", base_model)
    assert (found and found.name) == preset


def test_preset_leaves_what_is_of_the_user(home: Path) -> None:
    draft = Draft(lambda faults: None)
    draft.open_preset("demo")
    own = {"run_name": "mine", "trigger_phrase": "my cat", "num_nodes": 2, "enable_multi_gpu": True, "wandb": True}
    draft.set_together({**own, "base_model": "models/z", "lora_rank": 3, "family": "z_image", "method": "lora"})
    before = draft.data
    draft.apply_preset("z_image_lora_24gb")
    assert draft.follows("z_image_lora_24gb")
    assert {path: draft.get(path) for path in own} == own
    assert draft.get("base_model") == "models/z"
    assert draft.get("lora_rank") == preset_data("z_image_lora_24gb")["lora_rank"]
    assert draft.get("concepts") == draft.get("samples") == [], "those of the demo are not the user's"
    draft.undo()
    assert draft.data == before
    assert not draft.follows("z_image_lora_24gb")


def test_memory_of_a_preset_is_that_of_its_name() -> None:
    named = {name: int(name.rpartition("_")[2].removesuffix("gb")) for name in preset_names() if name.endswith("gb")}
    assert {name: preset_summary(name).memory_gb for name in named} == named


def test_preset_of_the_card_keeps_the_users_data(two_gpus: None, driver: Driver, home: Path) -> None:
    driver.draft.insert("concepts", 0, {"path": str(home)})
    driver.draft.set("run_name", "mine")
    before = driver.draft.data
    section = driver.window.sections["model"]
    driver.wait(lambda: section.families.tiles.titles, "the families")
    driver.draft.set_together({"family": "z_image", "method": "lora"})
    driver.wait(section.family_card.preset_button.winfo_viewable, "the proposal")
    assert section.family_card.preset_button.cget("text") == "Z-Image LoRA, 24 GB"
    tiles = {tile.name: tile.lines for tile in section.families.tiles._tiles}
    assert tiles["z_image"] == ("Tongyi-MAI · 6 B", "LoRA fits your GPU", "Apache 2.0"), "as it is proposed"
    assert tiles["flux"][1] == "LoRA fits your GPU with int8"
    section.family_card.preset_button.invoke()
    driver.settle()
    preset = preset_data("z_image_lora_24gb")
    assert driver.draft.get("base_model") == preset["base_model"]
    assert driver.draft.get("lora_rank") == preset["lora_rank"]
    assert driver.draft.get("concepts.0.path") == str(home)
    assert driver.draft.get("run_name") == "mine"
    driver.window.undo()
    driver.window.undo()
    assert driver.draft.data == before
