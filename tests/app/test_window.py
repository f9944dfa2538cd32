"""The real window with keys, clicks, invalid files, and other sizes and themes."""

from __future__ import annotations

import inspect
import json
import shutil
import tkinter as tk
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.form.family_fields import SubmoduleField
from app.preferences import Preferences
from app.sections import SECTIONS
from app.sections.adapters import empty_text
from app.sections.sampling import NO_SAMPLES
from app.shell.run_buttons import BESIDE_LABEL, LONG_WIDTH
from app.widgets import theme
from app.widgets.text_width import text_width
from app.windows.shortcuts import SHORTCUTS
from modules.config import TrainConfig, imported_code, load_config, options, save_config, trusted_code
from modules.config.family_about import family_about
from scripts.make_demo_data import make_demo_data
from tests.app.driver import Driver, click, everything, write
from tests.app.fake_runs import make_fake_run

ROOT = Path(__file__).resolve().parents[2]
EPOCHS_HELP = next(option.help for option in options(TrainConfig) if option.path == "epochs")[:30]


def focused(driver: Driver) -> object:
    return driver.window.focus_get()


def holding(driver: Driver) -> str:
    """The setting of the focused field."""
    field = driver.window.sections[driver.window.section].holding(focused(driver))
    return field.path if field else ""


# Keys


def test_settings_are_changed_by_keys_alone(driver: Driver, home: Path) -> None:
    driver.press("ctrl+k")
    driver.type("learning rate")
    driver.press("Return")
    assert (driver.window.section, holding(driver)) == ("training", "learning_rate")
    driver.type("3e-4")
    driver.press("Tab")
    driver.type("0.2")
    driver.draft.file = home / "mine.yaml"
    driver.press("ctrl+s")
    saved = load_config(home / "mine.yaml")
    assert (saved.learning_rate, getattr(saved.optimizer, "weight_decay", None)) == (3e-4, 0.2)

    driver.press("ctrl+z")
    assert driver.draft.get("optimizer.weight_decay") == 0.01
    driver.press("ctrl+y")
    assert driver.draft.get("optimizer.weight_decay") == "0.2"


@pytest.mark.slow
def test_switches_lists_and_sliders_by_keys(driver: Driver) -> None:
    driver.field("gradient_checkpointing").focus()
    driver.press("space")
    assert driver.draft.get("gradient_checkpointing") is True

    driver.field("precision").focus()
    driver.press("b")  # the next value that starts with this letter
    assert driver.draft.get("precision") == "bf16"
    driver.press("space", "Down", "Return")
    assert driver.draft.get("precision") != "bf16"

    driver.set("ema", True)
    driver.field("validation_split").slider.focus_set()
    driver.press("Right", "Right", "Right")
    assert driver.draft.get("validation_split") == pytest.approx(0.03)
    driver.press("End")
    assert driver.draft.get("validation_split") == 0.5


@pytest.mark.slow
def test_tab_goes_through_the_fields_in_reading_order(driver: Driver) -> None:
    driver.field("epochs").focus()
    driver.settle()
    seen = [holding(driver)]
    for _ in range(5):
        driver.press("Tab")
        seen.append(holding(driver))
    assert seen == [
        "epochs", "max_steps", "max_minutes", "seed", "batch_size", "gradient_accumulation_steps",
    ]  # fmt: skip
    driver.press("shift+Tab")
    assert holding(driver) == "batch_size"


@pytest.mark.slow
def test_focused_field_is_scrolled_into_view(driver: Driver) -> None:
    driver.field("epochs").focus()
    driver.settle()
    for _ in range(14):
        driver.press("Tab")
    area = driver.window.sections["training"].scroll.canvas
    widget = driver.window.focus_get()
    assert widget is not None
    top = widget.winfo_rooty() - area.winfo_rooty()
    assert top >= 0
    assert top + widget.winfo_height() <= area.winfo_height()


@pytest.mark.slow
def test_every_shortcut_of_the_list_is_bound(driver: Driver) -> None:
    driver.press("F1")
    (dialog,) = driver.dialogs()
    words = driver.text(dialog)
    for _, keys in SHORTCUTS:
        assert all(meaning in words for _, meaning in keys)
    driver.press("Escape")
    assert driver.dialogs() == []
    for digit, name in zip("1234567890", SECTIONS, strict=True):
        driver.press(f"ctrl+{digit}")
        assert driver.window.section == name
    driver.window.show_section(list(SECTIONS)[-1])
    driver.press("ctrl+Tab")
    assert driver.window.section == "model"
    driver.press("ctrl+e")
    assert driver.window.state_.advanced is False
    driver.press("ctrl+plus")
    assert driver.window.preferences.scale == 110
    driver.press("ctrl+alt+0")
    assert driver.window.preferences.scale == 100
    before = driver.window.preferences.mode
    driver.press("ctrl+l")
    assert driver.window.preferences.mode != before


def test_default_and_help_by_keys(driver: Driver) -> None:
    driver.set("epochs", 77)
    driver.field("epochs").focus()
    driver.press("ctrl+i")
    assert EPOCHS_HELP in driver.text()
    driver.press("Escape")
    driver.press("alt+BackSpace")
    assert driver.draft.get("epochs") == 10


def test_lists_by_keys(driver: Driver) -> None:
    driver.window.show_section("sampling")
    section = driver.window.sections["sampling"]
    section.list.canvas.focus_set()
    driver.settle()
    driver.press("Insert")
    assert [fault.path for fault in driver.draft.faults] == []
    driver.set("samples.0.prompt", "first")
    section.list.canvas.focus_set()
    driver.press("ctrl+d")
    driver.set("samples.1.prompt", "second")
    section.list.canvas.focus_set()
    driver.press("alt+Up", "space")
    assert [(sample["prompt"], sample["enabled"]) for sample in section.list.items] == [
        ("second", False),
        ("first", True),
    ]
    driver.press("Down", "Delete")
    assert [sample["prompt"] for sample in section.list.items] == ["second"]
    driver.press("ctrl+z")
    assert len(section.list.items) == 2


# Messages


def test_errors_are_shown_at_the_field_and_in_the_sidebar(driver: Driver) -> None:
    driver.set("learning_rate", "fast")
    field = driver.field("learning_rate")
    assert field.message.cget("text") == "Must be a number above 0 and up to 10"
    badge = driver.window.sidebar._badges["training"]
    assert badge.winfo_viewable()
    assert badge.cget("text") == "1"
    height = field.area.winfo_rooty()

    driver.set("learning_rate", "1e-4")
    assert field.message.cget("text") == ""
    assert not badge.winfo_viewable()
    assert field.area.winfo_rooty() == height, "a message moves nothing"


def test_train_lists_errors_and_jumps_to_them(driver: Driver) -> None:
    driver.set("epochs", "many")
    driver.window.show_section("data")
    driver.window.sections["data"].list.add()
    driver.window.show_section("output")
    driver.window.run_bar.actions.train()
    (dialog,) = driver.dialogs()
    words = driver.text(dialog)
    assert f"{2} invalid settings" in words
    assert "“Epochs” is “many”" in words
    driver.press("Return")
    assert driver.dialogs() == []
    assert holding(driver) == "concepts.0.path", "the first in the window"
    driver.press("F8")
    assert holding(driver) == "epochs"
    assert driver.window.state_.run is None


def test_inactive_settings_say_why(driver: Driver) -> None:
    field = driver.field("ema_decay")
    card = next(each for each in driver.window.sections["training"].blocks if field in each.fields.values())
    assert "EMA (averaged weights)" in card._reason_label.cget("text"), "two settings of the card wait for the same"
    assert str(field.control.line.cget("state")) == "disabled"
    driver.set("ema", True)
    assert field.message.cget("text") == card._reason_label.cget("text") == ""
    driver.set("ema_decay", 0.5)
    assert driver.draft.get("ema_decay") == "0.5"
    alone = driver.field("optimizer.foreach")
    assert "Fused optimizer step" in alone.message.cget("text")
    driver.set("optimizer.fused", False)
    assert alone.message.cget("text") == ""


def test_settings_of_other_optimizers_are_not_shown(driver: Driver) -> None:
    driver.field("optimizer.betas")
    driver.set("optimizer.name", "sgd")
    assert driver.window.sections["training"].find("optimizer.betas") is None
    driver.set("optimizer.momentum", 0.5)
    driver.set("optimizer.name", "adamw")
    assert driver.field("optimizer.betas").control.get() == "0.9, 0.999"


def test_simple_hides_advanced_unless_jumped_to(driver: Driver) -> None:
    driver.window.set_advanced(False)
    driver.window.show_section("training")
    driver.settle()
    section = driver.window.sections["training"]
    assert section.find("compile") is None
    assert section.find("precision") is not None
    driver.window.state_.jump_to("compile")
    driver.settle()
    assert holding(driver) == "compile"


def test_each_setting_has_help_and_default(driver: Driver) -> None:
    from app.form.setting_text import help_text

    for option in options(TrainConfig):
        words = help_text(option)
        assert option.help[-40:] in words or option.choices, "whole; names of choices before it are titles"
        assert option.required or "Default: " in words


# Search


def test_search_by_another_trainers_name_jumps_to_field(driver: Driver) -> None:
    driver.window.set_advanced(False)
    driver.press("ctrl+f")
    driver.type("ddp_bucket_cap_mb")
    assert driver.window.header.search.list is not None
    driver.press("Return")
    assert driver.window.section == "multi_gpu"
    assert driver.window.header.search.list is None
    assert driver.window.sections["multi_gpu"].find("bucket_cap_mb") is not None


def test_search_says_in_which_section_of_the_sidebar_a_setting_is(driver: Driver) -> None:
    driver.press("ctrl+f")
    driver.type("learning rate")
    found: Any = driver.window.header.search.list
    assert found is not None
    shown = [found.itemcget(item, "text") for item in found.find_all() if found.type(item) == "text"]
    assert shown[:2] == ["Learning rate", "Training"]
    assert len(found.find_withtag("frame")) == 5, "a border with four round corners"
    driver.press("Escape")


def test_search_finds_actions_pages_presets_and_runs_too(driver: Driver, home: Path) -> None:
    make_fake_run(home / "runs" / "sunflowers", steps=3)
    search, window = driver.window.header.search, driver.window
    driver.press("ctrl+k")
    assert search.list is not None
    assert [getattr(hit, "title", "") for hit in search.list.hits[:3]] == ["Train", "Add to queue", "Stop"]
    driver.press("Down", "Down")
    search._found_runs()
    assert search.list.row == 2, "Enter does the same after the folders of runs have been read"
    driver.type("preset")
    driver.press("Down")
    selected = search.list.hits[1]
    make_fake_run(home / "runs" / "preset", steps=3)
    search._palette.read_runs(search._found_runs)
    driver.wait(lambda: search.list is not None and "Run" in search.list.hits[0].identity, "the run")
    assert search.list.hits[search.list.row].identity == selected.identity
    driver.press("ctrl+a")
    driver.type("thme lght")  # words in any order, with letters left out
    driver.press("Return")
    assert window.preferences.mode == "light"
    driver.press("ctrl+k")
    driver.type("page near duplic")
    driver.press("Return")
    assert (window.section, window.sections["tools"].page) == ("tools", "duplicates")
    driver.press("ctrl+k")
    driver.type("flux 12gb preset")
    driver.press("Down", "Up", "Return")
    assert driver.draft.get("family") == "flux"
    driver.press("ctrl+k")
    driver.type("sunfl")
    driver.wait(lambda: search.list is not None and search.list.hits, "the run")
    driver.press("Return")
    assert window.state_.run is not None
    assert window.state_.run.folder.name == "sunflowers"
    driver.press("ctrl+k")
    driver.type("stop")
    driver.press("Return")
    assert "No run is active." in driver.text(window.run_bar), "why it cannot be done"
    driver.click_really(window.sidebar)
    assert search.list is None
    window.set_mode("dark")


def test_search_adds_an_item_to_an_empty_list(driver: Driver) -> None:
    driver.window.state_.jump_to("samples.*.guidance_scale")
    driver.settle()
    assert holding(driver) == "samples.0.guidance_scale"


# Files


def test_files_are_opened_and_remembered(driver: Driver, home: Path) -> None:
    save_config(TrainConfig(epochs=33), home / "a.yaml")
    driver.window.files.open(home / "a.yaml")
    assert driver.field("epochs").control.get() == "33"
    assert driver.window.title() == "a.yaml - Tandem"
    driver.set("epochs", 34)
    assert driver.window.title().startswith("● a.yaml")
    assert "unsaved changes" in driver.text(driver.window.header)
    kept = json.loads((home / "preferences" / "window.json").read_text())
    assert kept["recent"] == [str(home / "a.yaml")]


def test_unsaved_changes_are_asked_about(driver: Driver, home: Path) -> None:
    save_config(TrainConfig(), home / "a.yaml")
    driver.window.files.open(home / "a.yaml")
    driver.set("epochs", 34)
    driver.press("ctrl+n")
    driver.answer("Cancel")
    assert driver.draft.get("epochs") == "34"
    driver.press("ctrl+n")
    driver.answer("Save")
    assert (driver.draft.file, driver.draft.get("epochs")) == (None, 10)
    assert load_config(home / "a.yaml").epochs == 34
    driver.set("epochs", 35)
    driver.press("ctrl+n")
    driver.answer("Discard changes")
    assert driver.draft.get("epochs") == 10


def test_file_is_chosen_and_another_replaced_by_keys(driver: Driver, home: Path) -> None:
    (home / "configs").mkdir()
    save_config(TrainConfig(epochs=33), home / "configs" / "mine.yaml")
    (home / "configs" / "picture.png").touch()
    listed = driver.listed_files
    driver.later(lambda: "configs" in listed(), lambda: driver.press("c", "Return"))
    driver.later(lambda: "mine.yaml" in listed(), lambda: driver.press("m", "Return"))
    driver.window.files.choose()  # it waits for the answer
    assert (driver.draft.file, driver.draft.get("epochs")) == (home / "configs" / "mine.yaml", 33)

    driver.set("epochs", 34)
    driver.later(lambda: "mine.yaml" in listed(), lambda: driver.press("Return"))
    replace = f"{'mine.yaml'} already exists. Save again to replace it."
    driver.later(lambda: replace in driver.text(), lambda: driver.press("Return"))
    assert driver.window.files.save_as()
    assert load_config(home / "configs" / "mine.yaml").epochs == 34

    driver.later(lambda: listed(), lambda: driver.press("Escape"))
    driver.window.files.choose()
    assert driver.draft.file == home / "configs" / "mine.yaml"


def test_settings_are_saved_where_configs_are_and_as_the_run_is_called(
    driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not beside the images, where another dialog was left."""
    asked = list[tuple[Path, str]]()

    def choose(owner: object, purpose: str, title: str, start: Path, endings: object, name: str = "") -> str:
        asked.append((start, name))
        return ""

    monkeypatch.setattr("app.shell.files.choose_path", choose)
    driver.window.preferences.recent = []
    driver.window.preferences.places["folder"] = str(home / "images")
    driver.draft.new()
    driver.window.files.save_as()
    driver.set("run_name", "mylora")
    driver.window.files.save_as()
    (home / "configs").mkdir()
    save_config(TrainConfig(), home / "configs" / "a.yaml")
    driver.window.preferences.add_recent(home / "configs" / "a.yaml")
    driver.window.files.save_as()
    assert asked == [
        (Path.cwd(), "settings.yaml"),
        (Path.cwd(), "mylora.yaml"),
        (home / "configs", "mylora.yaml"),
    ]


def test_invalid_draft_is_not_saved_and_says_why(driver: Driver, home: Path) -> None:
    driver.draft.file = home / "a.yaml"
    driver.set("epochs", "many")
    driver.press("ctrl+s")
    (dialog,) = driver.dialogs()
    assert "Not saved: fix these settings first." in driver.text(dialog)
    driver.press("Escape")
    assert not (home / "a.yaml").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("epochs: [", "cannot be read"),
        ("version: 99\nepochs: 3\n", "Update Tandem"),
        ("just words", "must contain names with values"),
    ],
)
def test_files_that_are_not_configs_show_an_error(driver: Driver, home: Path, content: str, words: str) -> None:
    (home / "a.yaml").write_text(content)
    driver.window.files.open(home / "a.yaml")
    (dialog,) = driver.dialogs()
    assert words in driver.text(dialog)
    driver.press("Return")
    assert driver.dialogs() == []
    assert driver.draft.file is None


def test_what_an_older_file_may_have_meant_is_said(driver: Driver, home: Path) -> None:
    (home / "a.yaml").write_text("version: 1\nmasked_training: true\n")
    driver.window.files.open(home / "a.yaml")
    assert "normalize_masked_area_loss: true is used" in driver.window.run_bar._message


def test_faulty_file_is_opened_for_repair(driver: Driver, home: Path) -> None:
    (home / "a.yaml").write_text("epochs: many\nbatch_sise: 3\nseed: 9\n")
    driver.window.files.open(home / "a.yaml")
    (dialog,) = driver.dialogs()
    assert "did you mean batch_size?" in driver.text(dialog)
    driver.answer("Open and repair")
    assert (driver.draft.get("seed"), holding(driver)) == (9, "epochs")
    driver.type("3")
    driver.press("ctrl+s")
    assert load_config(home / "a.yaml").epochs == 3


def test_folder_that_vanishes(driver: Driver, home: Path) -> None:
    folder = home / "gone soon"
    folder.mkdir()
    save_config(TrainConfig(), folder / "a.yaml")
    driver.window.files.open(folder / "a.yaml")
    shutil.rmtree(folder)
    driver.set("epochs", 3)
    driver.press("ctrl+s")
    (dialog,) = driver.dialogs()
    assert "cannot be written" in driver.text(dialog)
    driver.press("Return")
    assert driver.draft.is_dirty


def test_missing_concept_folder_is_noted(driver: Driver, home: Path) -> None:
    driver.window.show_section("data")
    driver.window.sections["data"].list.add()
    driver.set("concepts.0.path", str(home / "nowhere"))
    field = driver.field("concepts.0.path")
    driver.wait(lambda: field.message.cget("text") == "This folder does not exist.", "a note")
    (home / "nowhere").mkdir()
    driver.set("concepts.0.path", str(home / "nowhere") + "/")
    driver.wait(lambda: field.message.cget("text") == "", "the note gone")
    driver.set("concepts.0.path", "hf://datasets/owner/name")
    driver.wait(lambda: field.message.cget("text") == "Downloaded to this computer when training starts.", "a note")


def test_working_folder_may_vanish(driver: Driver, home: Path) -> None:
    folder = home / "work"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shutil.rmtree(folder)
        driver.set("runs_dir", "elsewhere")
        driver.window.show_section("monitor")
        driver.settle()
        assert driver.draft.get("runs_dir") == "elsewhere"


# Theme, size, preferences


def test_theme_and_scale_change_and_draft_stays(driver: Driver) -> None:
    driver.set("epochs", 12)
    driver.window.set_mode("light")
    driver.settle()
    field = driver.field("epochs")
    assert field.title.cget("bg") == theme.CARD[0]
    driver.window.set_mode("dark")
    driver.settle()
    assert field.title.cget("bg") == theme.CARD[1]
    assert Preferences.load().mode == "dark", "also after a kill"
    height = field.control.winfo_height()

    for scale in (150, 200, 100):
        driver.window.set_scale(scale)
        driver.settle()
        now = driver.field("epochs").control
        assert now.winfo_height() == round(height * scale / 100)
        assert now.get() == "12"
        assert driver.window.winfo_width() == 1280


def test_narrow_window_has_one_column_and_icons(driver: Driver) -> None:
    driver.window.show_section("training")
    driver.settle()
    section = driver.window.sections["training"]
    first, second = section.blocks[0].frame, section.blocks[1].frame
    assert first.winfo_rootx() < second.winfo_rootx()
    driver.window.tk.call("wm", "geometry", ".", "800x600")
    driver.wait(lambda: driver.window.winfo_width() == 800)
    driver.settle()
    assert first.winfo_rootx() == second.winfo_rootx()
    assert driver.window.sidebar.winfo_width() < 100


def test_window_comes_back_as_it_was(display: str, home: Path) -> None:
    with Driver.open(geometry="900x650+40+30", section="output", scale=125) as driver:
        assert (driver.window.winfo_width(), driver.window.winfo_height()) == (900, 650)
        assert driver.window.section == "output"
        driver.window.tk.call("wm", "geometry", ".", "1000x700+10+20")
        driver.wait(lambda: driver.window.winfo_width() == 1000)
        driver.window.show_section("data")
    kept = json.loads((home / "preferences" / "window.json").read_text())
    assert (kept["geometry"], kept["section"], kept["scale"]) == ("1000x700+10+20", "data", 125)


def test_welcome_leads_to_the_demo(display: str, home: Path) -> None:
    with Driver.open(welcomed=False) as driver:
        driver.wait(driver.dialogs, "the welcome")
        (dialog,) = driver.dialogs()
        count = inspect.signature(make_demo_data).parameters["count"].default
        driver.click_really(driver.label(dialog, f"Generates {count:,} small images"))  # anywhere in the row
        driver.wait(lambda: driver.draft.preset == "demo", "the demo's pictures")
        assert driver.dialogs() == []
        assert driver.draft.faults == ()
        assert "The demo is ready: press Train." in driver.text(driver.window.run_bar)
        driver.window.close()  # nothing unsaved, nothing running: no question
        assert not driver.is_open
    assert json.loads((home / "preferences" / "window.json").read_text())["welcomed"] is True


def test_familys_options_become_fields(driver: Driver, home: Path) -> None:
    driver.window.show_section("model")
    driver.wait(lambda: driver.draft.family, "the family's answer")
    driver.set("family_options.width", 64)
    driver.set("family_options.timesteps", "uniform")
    driver.set("family_options.shift", "2.5")
    driver.save(home / "a.yaml")
    assert load_config(home / "a.yaml").family_options == {"width": 64, "timesteps": "uniform", "shift": 2.5}
    driver.set("family_options.width", "3")
    assert driver.field("family_options.width").message.cget("text") == "Must be a whole number from 8 to 512"
    assert list((home / "preferences").glob("families.json")), "the answer is kept for the next time"

    driver.set("family", "nowhere.py")
    driver.wait(lambda: driver.draft.family is None, "the failure")
    assert "nowhere.py" in driver.text(driver.window.sections["model"])
    write(driver.field("family_options").control, "anything: [1, 2]")
    assert driver.draft.get("family_options") == {"anything": [1, 2]}


def test_data_of_ones_own_needs_no_folders_of_images(driver: Driver) -> None:
    driver.window.show_section("data")
    section = driver.window.sections["data"]
    driver.wait(lambda: driver.draft.family, "the family's answer")
    driver.settle()
    assert "Add a folder" in driver.text(section)
    assert "comes from" not in driver.text(section)
    driver.draft.set("family", str(ROOT / "tests" / "points.py"))
    driver.wait(lambda: driver.draft.family and driver.draft.family.name.endswith("points.py"), "the file's answer")
    driver.settle()
    shown = driver.text(section)
    assert "The data comes from build_data in points.py" in shown
    assert not any(part in shown for part in ("Add a folder", "Resolution", "Masks", "Cache folder", "All images"))
    assert not section.tabs.winfo_ismapped()
    driver.window.show_section("sampling")
    driver.settle()
    assert driver.text(driver.window.sections["sampling"]).strip().endswith(NO_SAMPLES)
    driver.window.show_section("model")
    driver.settle()
    assert "Options of points.py" in driver.text(driver.window.sections["model"])
    driver.window.show_section("data")
    driver.set("validation_split", "0.2")
    driver.draft.set("concepts", [{"path": ""}])
    driver.settle()
    assert "This concept" in driver.text(section), "what is wrong in it can be corrected"
    driver.draft.set("concepts", [])
    driver.window.show_section("model")
    driver.set("family_options.width", "9")
    driver.draft.set("family", "pixel_diffusion")
    driver.window.show_section("data")
    driver.wait(lambda: "Add a folder" in driver.text(section), "the folders are back")
    driver.settle()
    assert section.tabs.winfo_ismapped()


def test_a_class_of_another_package_is_asked_about_at_the_start(
    driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(trusted_code.VARIABLE)
    (home / "their_steps.py").write_text("raise SystemExit('the window ran it')\nclass Small: ...\n")
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.setattr(imported_code, "_AT_START", (str(home),))  # as PYTHONPATH does
    driver.draft.set("optimizer", {"name": "custom", "target": "their_steps.Small", "arguments": ""})
    went_on: list[object] = []
    monkeypatch.setattr(driver.window.actions._check, "run", lambda *given: went_on.append(given))
    driver.window.actions.train()
    (dialog,) = driver.dialogs()
    assert "names a Python file as its optimizer" in " ".join(driver.text(dialog).split())
    (shown,) = (each for each in everything(dialog) if isinstance(each, tk.Text))
    assert "class Small" in shown.get("1.0", "end")
    driver.answer("Do not run it")
    assert not driver.dialogs()
    assert not went_on
    driver.window.actions.enqueue()
    driver.answer("Allow this file")
    assert len(went_on) == 1
    assert trusted_code.is_trusted(imported_code.read_class("their_steps.Small", "optimizer.target"))


def test_a_family_file_runs_only_after_it_was_allowed(
    driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(trusted_code.VARIABLE)
    marker, family = home / "marker", home / "theirs.py"
    family.write_text(
        "import os, sys\nsys.path.append(os.path.dirname(__file__))\nimport their_helper\n"
        "from tests import parts_family\nclass Theirs(parts_family.PartsFamily): ...  # \x1b[2J\n"
    )
    helper = home / "their_helper.py"
    helper.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    save_config(TrainConfig(family=str(family)), home / "theirs.yaml")
    driver.window.show_section("model")
    driver.draft.open(home / "theirs.yaml")
    section = driver.window.sections["model"]
    driver.wait(lambda: driver.window.state_.family.not_allowed, "the refusal")
    driver.settle()
    assert "runs only after you have allowed it" in driver.text(section)
    assert section.review.winfo_ismapped()

    section.review.invoke()
    dialog = driver.dialogs()[0]
    assert "which imports 3 other files" in " ".join(driver.text(dialog).split())
    (shown,) = (each for each in everything(dialog) if isinstance(each, tk.Text))
    assert [part in shown.get("1.0", "end") for part in (str(family), f"{helper} (2 lines", ".touch()")] == [True] * 3
    driver.answer("Do not run it")
    assert driver.window.state_.family.not_allowed
    assert not marker.exists()
    section.review.invoke()
    driver.answer("Allow these files")
    driver.wait(marker.exists, "the files that were allowed run")
    assert not driver.window.state_.family.not_allowed
    marker.unlink()
    helper.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()  # changed\n")
    driver.draft.set_family(None)
    driver.window.state_.family.retry()
    driver.wait(lambda: driver.window.state_.family.not_allowed, "the changed helper is asked about")
    assert not marker.exists()


def test_submodule_menu_lists_those_of_the_family(driver: Driver) -> None:
    driver.window.show_section("adapters")
    driver.wait(lambda: driver.draft.family, "the family's answer")
    parts = driver.window.sections["adapters"].list
    parts.add()
    assert parts.items == [], "the built-in family has no submodules"
    lora = empty_text(None, family_about("stable_diffusion_xl"), "lora")
    assert lora.startswith("No submodules listed: the LoRA adapts the U-Net.")
    assert "the whole model is trained" in empty_text(driver.draft.family, family_about("pixel_diffusion"), "fine_tune")

    driver.set("family", str(ROOT / "tests" / "parts_family.py"))
    driver.wait(lambda: driver.draft.family and driver.draft.family.parts == ("unet", "text_encoder"), "its parts")
    driver.set("family_options.faults", ["one", "two"])
    assert driver.draft.config is not None
    assert driver.draft.config.family_options == {"faults": ["one", "two"]}, "a list that only this family declares"
    driver.draft.set("family_options", {})
    driver.window.show_section("adapters")
    for place, name in enumerate(("unet", "text_encoder")):
        parts.add_button.invoke()
        field = driver.field(f"parts.{place}.part")
        assert isinstance(field, SubmoduleField)
        assert (field.control, field.menu.choices) == (field.menu, ("unet", "text_encoder"))
        assert driver.draft.get(f"parts.{place}.part") == name, "a new submodule is one that is not in the list yet"
    parts.remove()
    driver.set("parts.0.part", "text_encoder")
    assert driver.draft.config is not None
    assert [part.part for part in driver.draft.config.parts] == ["text_encoder"]

    driver.draft.set("parts.0.part", "vae")
    driver.settle()
    assert "has unet, text_encoder" in driver.field("parts.0.part").message.cget("text")
    driver.draft.set("family", "pixel_diffusion")
    driver.wait(lambda: driver.draft.family and driver.draft.family.name == "pixel_diffusion", "the family's answer")
    assert [fault.path for fault in driver.draft.faults] == ["parts.0.part"]
    assert "has no submodules: all of it is trained. Leave parts empty." in driver.draft.faults[0].sentence
    driver.draft.set("family", "nowhere.py")
    driver.wait(lambda: driver.draft.family is None, "the failure")
    driver.set("parts.0.part", "anything")
    assert driver.draft.get("parts.0.part") == "anything", "without a declaration it is typed"


def test_bug_is_reported_and_the_window_continues(driver: Driver) -> None:
    driver.window.report_callback_exception = driver.window._report_bug

    def fail() -> None:
        raise ZeroDivisionError("of course")

    driver.window.after(1, fail)
    driver.wait(lambda: "of course" in driver.text(driver.window.run_bar), "the sentence")
    driver.set("epochs", 5)
    assert driver.draft.get("epochs") == "5"


def test_tooltip_is_shown_and_hidden(driver: Driver) -> None:
    field = driver.field("epochs")
    field.title.event_generate("<Enter>")
    driver.wait(lambda: EPOCHS_HELP in driver.text(), "the tooltip")
    click(field.title)
    assert EPOCHS_HELP not in driver.text()


def test_pending_tooltip_ends_with_its_window(display: str, home: Path) -> None:
    with Driver.open() as first:
        first.window.run_bar.buttons.train.event_generate("<Enter>")
        first.window.destroy()  # before the tooltip is shown
    with Driver.open() as second:
        second.window.show_section("data")
        assert second.window.section == "data"


# The run bar


@pytest.mark.parametrize("scale", [100, 150, 200])
def test_nothing_in_the_run_bar_is_cut_off(driver: Driver, scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.window.tk.call("wm", "geometry", ".", "1280x800+0+0")
    driver.window.set_scale(scale)
    driver.settle()
    bar = driver.window.run_bar
    monkeypatch.setattr(bar, "refresh", lambda: None)  # there is no run: it would take the figures away
    bar.figures._set("step", "187 of 1,875" if scale < 200 else "187")
    bar.figures._set("loss", "0.05558")
    bar.figures._set("left", "18 min")
    bar.figures._set("speed", "0.781")
    driver.settle()
    figures: Any = bar.figures
    for name, cell in figures.cells.items():
        place = cell.grid_info()
        _, _, width, _ = figures.grid_bbox(place["column"], place["row"])
        assert cell.winfo_reqwidth() <= width, name
    shown = [
        bar.buttons.train,
        bar.buttons.stop,
        bar.buttons.back_up,
        bar.buttons.sample,
        bar.buttons.save,
        *bar.figures.cells.values(),
    ]
    assert scale > 100 or bar.buttons.save.cget("text") == "Save model", "the header's Save writes the settings"
    label = text_width(bar, str(bar.buttons.save.cget("text")), theme.tk_font())
    assert not label or label + theme.px(BESIDE_LABEL) <= theme.px(LONG_WIDTH), "it is as wide as its place"
    shown = [one for one in (*shown, bar.buttons.enqueue, bar.buttons.overflow.more) if one.winfo_manager()]
    right = bar.winfo_rootx() + bar.winfo_width()
    for one, after in pairwise(sorted(shown, key=lambda one: (one.winfo_rooty(), one.winfo_rootx()))):
        assert one.winfo_width() >= one.winfo_reqwidth()
        assert one.winfo_rootx() + one.winfo_width() <= (after.winfo_rootx() if _same_row(one, after) else right)
    assert max(one.winfo_rooty() + one.winfo_height() for one in shown) <= bar.winfo_rooty() + bar.winfo_height()


def _same_row(first: tk.Misc, second: tk.Misc) -> bool:
    return first.winfo_rooty() == second.winfo_rooty()


def test_keys_of_the_run_bar(driver: Driver) -> None:
    driver.set("epochs", "many")
    driver.press("shift+F5", "ctrl+F5", "F6", "F7", "F9")  # nothing to stop, resume or request
    assert driver.dialogs() == []
    driver.press("F5")
    assert "Training cannot start yet." in driver.text(driver.dialogs()[0])
