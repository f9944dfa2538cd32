"""Small faults of the window that were mended: words, focus and places."""

from __future__ import annotations

import io
import math
import re
import time
from pathlib import Path
from tkinter import ttk
from typing import Any

import pytest
from PIL import Image

from app.curves.memory_card import MemoryProgram
from app.form.setting_text import help_text, inactive_reason, setting_title, with_titles
from app.images.problem_list import ProblemList
from app.preferences import Preferences
from app.runs.ask_existing import effects
from app.runs.start_check import Waiting
from app.sections import SECTIONS
from app.sections.adapters import alpha_note
from app.shell.run_buttons import ICON_WIDTH, WIDEST_PLACE
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Switch, TextBox
from app.windows.chooser import choose_path
from app.windows.dialog import DialogWindow
from app.windows.folder_listing import count_images
from app.windows.machine import SetUpWindow
from modules.config import ConfigError, Section, TrainConfig, find_option
from modules.diffusion.flow_options import FlowOptions
from modules.diffusion.options import DiffusionOptions
from modules.run import LaunchPlan
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_line import fields_of_ssh_line
from modules.run.preflight_report.start import _rank_envs
from tests.app.driver import Driver, open_window
from tests.app.fake_runs import line, make_fake_run


def test_train_names_fields_by_their_titles(driver: Driver) -> None:
    driver.draft.set("max_steps", 0)
    driver.click_really(driver.window.run_bar.buttons.train)
    words = driver.text(driver.dialogs()[0])
    assert "“Maximum steps” is 0; it must be a whole number from 1" in words
    assert "max_steps" not in words
    assert "null" not in words
    driver.press("Escape")


@pytest.mark.slow
def test_settings_are_counted_once_and_what_is_wrong_can_be_mended(driver: Driver, home: Path) -> None:
    """Also a value of a file where it has no effect; one error is gone to after the other."""
    file = home / "wrong.yaml"
    file.write_text("sample_every: 5 bananas\nresolution: 1\noptimizer: adamx\nrun_name: my run?\n")
    driver.draft.open(file, repair=True)
    driver.window.state_.jump_to("resolution")
    driver.settle()
    driver.press("F8")
    assert driver.window.state_.jump_target == "optimizer.name", "not once more that which has the focus"
    message = driver.field("optimizer.name").message.cget("text")
    assert message.startswith("Choose one from the list: did you mean Adam"), message
    field = driver.field("sample_every")
    assert field.message.cget("text") == "Must be a number above 0, with a unit"
    driver.click_really(driver.window.run_bar.buttons.train)
    words = driver.text(driver.dialogs()[0])
    assert "4 invalid settings" in words
    assert "is “5 bananas”; it must be" in words
    assert "is “my run?”; a run name may" in words
    assert "“Optimizer” is “adamx”; choose one from the list: did you mean Adam?" in words
    driver.press("Escape")
    driver.type_over(field.control, "5")
    assert driver.draft.get("sample_every") == "5 steps"
    driver.settle()
    assert field.message.cget("text") == ""
    assert "Add a sample first." in driver.text(driver.window.sections["sampling"])


@pytest.mark.slow
def test_faults_are_listed_in_the_order_of_the_window(driver: Driver) -> None:
    driver.draft.insert("concepts", 0, {"path": "", "repeats": 0})
    for path, value in {"backups_kept": 0, "max_steps": 0, "epochs": 0, "resolution": 1}.items():
        driver.draft.set(path, value)
    titles = ["Resolution", "Folder", "Repeats per epoch", "Epochs", "Maximum steps", "Backups kept"]
    driver.click_really(driver.window.run_bar.buttons.train)
    places = list(map(driver.text(driver.dialogs()[0]).index, (f"“{title}” " for title in titles)))
    assert places == sorted(places)
    driver.press("Escape", "F8")
    assert driver.window.section == "data"
    driver.press("shift+F8")
    assert driver.window.section == "output"


@pytest.mark.slow
def test_thousands_may_be_separated_as_in_messages(driver: Driver) -> None:
    field = driver.field("max_steps")
    driver.set("max_steps", "0")
    assert field.message.cget("text") == "Must be a whole number from 1 to 1,000,000,000, or empty"
    driver.set("max_steps", "1,000,000")
    assert field.message.cget("text") == ""
    assert driver.draft.get("max_steps") == "1000000"
    driver.set("max_minutes", "1,500")
    assert driver.draft.get("max_minutes") == "1.500", "a decimal comma, as in many countries"


def test_a_runs_folder_that_cannot_be_is_told_in_the_words_of_the_window(driver: Driver) -> None:
    driver.window.run_bar.actions._not_started("the run folder cannot be written. Set runs_dir to another folder.")
    driver.settle()
    words = driver.text(driver.dialogs()[0])
    assert "The run folder cannot be written. Set “Runs folder” to another folder." in words
    driver.press("Escape")


def test_settings_of_a_method_are_shown_with_it(driver: Driver) -> None:
    driver.window.show_section("adapters")
    driver.settle()
    section = driver.window.sections["adapters"]
    assert section.find("lora_rank") is section.find("embedding_token") is None
    assert "once it is the training method" in driver.text(section)
    driver.draft.set("method", "lora")
    driver.settle()
    assert section.find("lora_rank") is not None
    assert section.find("embedding_token") is None
    assert "once it is the training method" not in driver.text(section)
    driver.draft.set("lora_rank", 8)
    driver.draft.set("method", "fine_tune")
    driver.settle()
    assert section.find("lora_rank") is not None, "what was changed stays in sight"
    assert section.find("lora_alpha") is None
    section.jump_to("embedding_token")
    driver.settle()
    assert section.find("embedding_token") is not None, "the search found it"


def test_alpha_that_is_not_the_rank_is_explained_beside_the_setting(driver: Driver) -> None:
    for path, value in {"method": "lora", "lora_rank": 16, "lora_alpha": 8.0}.items():
        driver.draft.set(path, value)
    driver.window.show_section("adapters")
    field = driver.window.sections["adapters"].find("lora_alpha")
    driver.wait(lambda: "strength to 0.5" in str(field.message.cget("text")), "what ComfyUI makes of it")
    settings: dict[str, object] = {
        "lora_rank": 16,
        "lora_alpha": 16.0,
        "lora_algorithm": "lora",
        "lora_layouts": "both",
    }
    assert alpha_note(settings) == ""
    assert "strength to 4" in alpha_note(settings | {"lora_rank_stabilized": True})
    assert alpha_note(settings | {"lora_alpha": 8.0, "lora_layouts": "kohya"}) == ""


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("concepts.0.repeats is -1; it must be", "“Repeats per epoch” of concept 1 is -1; it must be"),
        ("max_steps is 0; set global_batch_size", "“Maximum steps” is 0; set “Global batch size (fixed)”"),
        ("the seed is odd, so is precision", "the seed is odd, so is precision"),
        ('run_name is "a/max_steps"', '“Run name” is "a/max_steps"'),
        ("Set a lower batch_size, then --resume latest.", "Set a lower “Batch size per GPU”, then press Resume."),
        ("such as concepts.0.path=/data/cats.", "such as concepts.0.path=/data/cats."),
        ("check `dmesg`. Continue with --resume latest.", "check dmesg. Continue with Resume."),
        ("start again with --resume latest: it", "start again with Resume: it"),
        ("set device to cpu (--set device=cpu).", "set device to cpu."),
        ("stable_diffusion needs a multiple of 64", "Stable Diffusion 1 and 2 needs a multiple of 64"),
        ("under another --run_name, not --nonsense", "under another “Run name”, not --nonsense"),
    ],
)
def test_names_become_titles(sentence: str, shown: str) -> None:
    assert with_titles(sentence) == shown


def test_the_question_about_machines_speaks_of_a_backup_only_if_there_is_one() -> None:
    said = effects("the other machine", ["beta"], has_backup=True)
    assert "(beta started over ssh by this window). On this machine alone it goes on at once, from the newest" in said
    assert "On this machine alone it starts at the first step: " in effects("the other machine", [], has_backup=False)


def test_learning_rate_and_batch_say_what_they_mean_with_other_settings(driver: Driver) -> None:
    def note(path: str) -> str:
        return str(driver.field(path).message.cget("text"))

    driver.draft.set_together({"family": "stable_diffusion", "learning_rate": 1e-5})
    assert note("learning_rate") == ""
    driver.draft.set("method", "lora")
    assert note("learning_rate") == "Usual for a LoRA: about 1e-4."
    assert driver.field("learning_rate")._note[1] is theme.MUTED
    driver.draft.set_together({"learning_rate": "10", "batch_size": 100_000})
    assert note("learning_rate") == "Usual for a LoRA: about 1e-4.", "also while another field is wrong"
    assert driver.field("learning_rate")._note[1] is theme.WARN
    driver.draft.set("batch_size", 1)
    driver.draft.set_together({"method": "fine_tune", "learning_rate": 1e-4})
    assert note("learning_rate") == "Usual for a full fine-tune: about 1e-5."
    driver.draft.set("optimizer.name", "prodigy")
    assert note("learning_rate") == ""
    assert note("batch_size") == note("gradient_accumulation_steps") == ""
    driver.draft.set("global_batch_size", 16)
    assert "a step has 16" in note("batch_size")
    assert note("gradient_accumulation_steps").startswith("Minimum")


def test_reset_stands_beside_a_narrow_control_and_goes_with_it(driver: Driver) -> None:
    driver.set("enable_multi_gpu", True)
    driver.set("world_size", 2)
    field = driver.field("world_size")
    end = field.control.winfo_rootx() + field.control.winfo_width()
    assert 0 <= field.reset.winfo_rootx() - end < theme.px(100)
    assert field.reset.winfo_viewable()
    driver.draft.open_preset("demo")
    assert driver.field("epochs")._reset_help().endswith(f"demo has {driver.draft.get('epochs')} epochs")
    driver.set("enable_multi_gpu", True)
    driver.set("world_size", 2)
    driver.click_really(field.reset)
    assert driver.draft.get("world_size") is None
    driver.set("enable_multi_gpu", False)
    assert not field.reset.winfo_viewable()


def test_help_names_choices_as_the_menu_does() -> None:
    for path, part in (
        ("lr_scaling", "Square root: 4 GPUs double it.\nLinear: 4 GPUs"),
        ("parts.*.weights", "As the run: the same as everything else"),
    ):
        option = find_option(TrainConfig, path)
        assert option is not None
        assert part in help_text(option), path
    batch_size = find_option(TrainConfig, "batch_size")
    assert batch_size is not None
    assert "Default: 1 image\n" in help_text(batch_size)


@pytest.mark.parametrize(
    ("settings", "path", "value", "shown"),
    [
        (DiffusionOptions, "loss", "mse", "MSE"),
        (DiffusionOptions, "loss_weighting", "min_snr", "Min-SNR"),
        (DiffusionOptions, "sample_scheduler", "dpmpp_2m_sde_karras", "DPM++ 2M SDE Karras"),
        (DiffusionOptions, "sample_scheduler", "model", "The model's own"),
        (DiffusionOptions, "prediction_type", "v_prediction", "v-prediction"),
        (DiffusionOptions, "latents", "mode", "Always the same"),
        (FlowOptions, "timestep_distribution", "mode", "Mode"),
        (TrainConfig, "lora_layouts", "both", "Both (diffusers and kohya)"),
        (TrainConfig, "scheduler", "cosine_with_restarts", "Cosine with restarts"),
        (TrainConfig, "precision", "bf16", "bf16"),
        (TrainConfig, "optimizer.name", "came", "CAME"),
    ],
)
def test_choices_have_the_words_of_their_setting(settings: type[Section], path: str, value: str, shown: str) -> None:
    option = find_option(settings, path)
    assert option is not None
    assert option.titles[value] == shown


def test_conditions_are_sentences() -> None:
    reasons = {
        path: inactive_reason(option, {})
        for path in ("ema_decay", "lora_rank", "prefetch_factor", "sample_every", "scheduler_min_factor")
        if (option := find_option(TrainConfig, path)) is not None
    }
    assert reasons == {
        "ema_decay": "Used only if “EMA (averaged weights)” is on.",
        "lora_rank": "Used only if “Training method” is LoRA.",
        "prefetch_factor": "Used only if “Data loader workers” is set.",
        "sample_every": "Add a sample first.",
    }


def test_settings_of_lists_have_titles() -> None:
    assert setting_title("learning_rate") == "Learning rate"
    assert setting_title("concepts.0.path") == "Folder, concept 1"
    assert setting_title("family_options.width") == "family_options.width"


def test_empty_limits_say_that_there_is_none(driver: Driver) -> None:
    for path, words in (("max_steps", "no limit"), ("max_minutes", "no limit"), ("run_name", "automatic")):
        driver.draft.set(path, None)
        assert driver.text(driver.field(path).control.line) == words


def test_problems_say_that_files_are_still_being_read(
    driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.images.pages._PAUSE_MS", 1500)  # there is time to get to Problems
    (home / "photos").mkdir()
    for name, kind in (("a.jpg", "JPEG"), ("b.bmp", "BMP"), ("c.png", "PNG"), ("d.webp", "WEBP")):
        Image.effect_noise((200, 200), 50).convert("RGB").save(data := io.BytesIO(), kind)
        (home / "photos" / name).write_bytes(data.getvalue()[: len(data.getvalue()) // 2])
        (home / "photos" / f"whole-{name}").write_bytes(data.getvalue())
    add_button = driver.go_to("data").list.add_button

    def choose() -> None:
        driver.press("shift+Tab", "ctrl+a")
        driver.type(str(home / "photos"))
        driver.click_button("Choose")

    driver.in_chooser(choose)
    driver.click_really(add_button)
    pages = driver.go_to("data", "Problems").pages
    problems: ProblemList = pages.problems
    assert pages.is_complete or "The files are still being read…" in driver.text(problems)
    assert "No image folder yet" not in driver.text(pages)
    driver.wait(lambda: pages.is_complete, "the folder is read")
    rows = [problems.table.item(item, "values") for item in problems.table.get_children()]
    assert {row[1] for row in rows if row[0] == "unreadable"} == {"a.jpg", "b.bmp", "c.png", "d.webp"}
    assert "still being read" not in driver.text(problems)


def test_preflight_of_several_machines_names_the_field(tmp_path: Path) -> None:
    config = TrainConfig(num_nodes=2, enable_multi_gpu=True, device="cpu")
    plan = LaunchPlan.from_config(config, config_path=tmp_path / "config.yaml")
    assert plan.world_size is None
    with pytest.raises(ConfigError, match=r"“Processes per machine” .* is empty.*") as raised:
        _rank_envs(plan)
    assert "such as 2, 2, or their sum as “World size”" in str(raised.value)


@pytest.mark.parametrize("way", ["F12", "Tab"])
def test_error_in_the_run_bar_opens_by_keys(driver: Driver, home: Path, way: str) -> None:
    folder = make_fake_run(home / "runs" / "cats", steps=3, ended=None)
    error = {"t": time.time(), "type": "error", "rank": 0, "host": "alpha", "kind": "x", "message": "It broke. " * 9}
    with folder.events_file.open("a") as file:
        file.write(line({**error, "advice": "Set max_steps, then --resume latest."}))
    bar = driver.window.run_bar
    assert not bar._detail.cget("takefocus")
    driver.window.state_.actions.follow(folder.path)
    driver.wait(lambda: bar._detail.cget("text").startswith("cats: It broke"), "which run Resume goes on with")
    if way == "Tab":
        for _ in range(60):
            if driver.window.focus_get() is bar._detail:
                break
            driver.press("Tab")
        assert driver.window.focus_get() is bar._detail
        driver.press("Return")
    else:
        driver.press("F12")
    assert "Set “Maximum steps”, then press Resume." in bar.details.text.get("1.0", "end"), "no flags in the window"
    assert bar.details.show_setting.winfo_viewable(), "by its name in files"
    driver.press("Escape")
    if way == "Tab":
        assert driver.window.focus_get() is bar._detail, "the keyboard is back where it was"


def test_long_message_has_two_lines_in_the_run_bar(driver: Driver) -> None:
    bar = driver.window.run_bar
    bar.show_message("Your unsaved changes are back; Undo returns to what was saved.")
    driver.settle()
    said = bar._detail
    assert " ".join(said.cget("text").split()).endswith("what was saved.")
    assert said.winfo_y() + said.winfo_reqheight() <= bar._text_frame.winfo_height()
    for letters in range(60, 120):  # a line of any width
        bar.show_message("i" * letters)
        assert said.winfo_reqwidth() <= bar._text_frame.winfo_width(), letters


def test_error_offers_a_debug_package(driver: Driver) -> None:
    bar = driver.window.run_bar
    bar.show_message("Something is wrong with ~/x.")
    driver.press("F12")
    driver.click_really(bar.details.debug_package)
    driver.wait(lambda: "message.txt" in driver.listed_files(), "the parts")
    assert {"config.json", "versions.txt", "devices.txt"} <= set(driver.listed_files())
    driver.press("Escape")


def test_new_prompt_has_the_focus_and_is_drawn(driver: Driver) -> None:
    driver.draft.set("sample_every", "never")
    driver.window.show_section("sampling")
    driver.settle()
    section = driver.window.sections["sampling"]
    driver.click_really(section.list.add_button)
    assert driver.dialogs() == [], "no question takes what is typed next"
    driver.type("a red cat")
    assert driver.draft.get("samples.0.prompt") == "a red cat"
    assert driver.draft.get("sample_every") == "1 epochs"
    assert "every epoch" in driver.window.run_bar._message
    driver.draft.set("sample_every", "50 steps")
    driver.click_really(section.list.add_button)
    assert driver.draft.get("sample_every") == "50 steps"


def test_folder_chooser_counts_images_and_remembers_its_place(driver: Driver, home: Path) -> None:
    for number in range(3):
        (home / "photos" / "cats" / "more").mkdir(parents=True, exist_ok=True)
        (home / "photos" / "cats" / "more" / f"{number}.PNG").touch()
    (home / "photos" / "cats" / "1.txt").touch()
    (home / "photos" / "empty").mkdir()
    rows: dict[str, str] = {}

    def read() -> bool:
        trees = [each for dialog in driver.dialogs() for each in _all(dialog) if isinstance(each, ttk.Treeview)]
        for tree in trees:
            shown = [tuple(map(str, tree.item(row, "values"))) for row in tree.get_children()]
            rows.update((name, count) for name, count, *_ in shown)
        return rows.get("▸  cats") == "3"

    def choose() -> None:
        driver.press("Down")
        said = f"Chosen: {home / 'photos' / 'cats'} (3 images)"
        driver.later(lambda: said in driver.text(driver.dialogs()[0]), lambda: driver.click_button("Choose"))

    driver.later(read, choose)
    chosen = choose_path(driver.window, "folder", "Folder", home / "photos")
    assert chosen == str(home / "photos" / "cats")
    assert rows["▸  empty"] == ""

    driver.later(lambda: "cats" in driver.listed_files(), lambda: driver.press("Escape"))
    assert choose_path(driver.window, "folder", "Folder", Path()) == "", "it opened where it was left"
    (home / "photos" / "LICENSE").touch()
    (home / "photos" / "model.safetensors").touch()

    def show_all() -> None:
        assert "LICENSE" not in driver.listed_files()
        window = driver.dialogs()[0]
        driver.click_really(next(each for each in _all(window) if isinstance(each, Switch)))
        driver.later(lambda: "LICENSE" in driver.listed_files(), lambda: driver.press("Escape"))

    driver.later(lambda: "model.safetensors" in driver.listed_files(), show_all)
    endings = (".safetensors",)
    assert choose_path(driver.window, "any", "Base model", Path(), endings) == "", "where another kind was left"
    driver.window.preferences.save()
    assert Preferences.load().places == {"folder": str(home / "photos")}


def _all(widget: Any) -> list[Any]:
    return [each for child in widget.winfo_children() for each in (child, *_all(child))]


def test_large_folders_are_not_counted_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.windows.folder_listing._MOST_ENTRIES", 10)
    monkeypatch.setattr("app.windows.folder_listing._MANY", 10)
    for number in range(30):
        (tmp_path / f"{number}.jpg").touch()
    assert count_images(tmp_path) == "10+"
    assert count_images(tmp_path / "gone") == ""
    monkeypatch.setattr("app.windows.folder_listing._MOST_ENTRIES", 25)
    (tmp_path / "above" / "photos").mkdir(parents=True)
    for number in range(40):
        (tmp_path / "above" / "photos" / f"{number}.jpg").touch()
        (tmp_path / "above" / "photos" / f"{number}.txt").touch()
    assert count_images(tmp_path / "above") == count_images(tmp_path / "above" / "photos") == "10+"
    monkeypatch.setattr("app.windows.folder_listing._MOST_ENTRIES", 10)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert count_images(tmp_path) == "10+"


def test_sections_are_prepared_in_quiet_moments(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.window.show_section("training")
    slices = driver.window.state_.slices
    monkeypatch.setattr("app.slices.FIRST_MS", 1)
    monkeypatch.setattr("app.slices.QUIET_S", math.inf)
    before = set(driver.window.sections)
    looks: list[float] = []
    schedule = slices._schedule

    def look_again(pause_ms: int) -> None:
        looks.append(slices._input_at)
        schedule(pause_ms)

    monkeypatch.setattr(slices, "_schedule", look_again)
    monkeypatch.setattr(slices, "_input_at", 0.0)
    driver.window._prepare_sections()
    driver.field("max_steps").control.line.focus_force()
    driver.press("1", "BackSpace")
    driver.wait(lambda: looks and looks[-1] > 0, "a step that has seen the keys")
    assert set(driver.window.sections) == before, "nothing is built under the hands of who types"
    monkeypatch.setattr("app.slices.QUIET_S", 0.0)
    driver.wait(lambda: slices.is_done, "all sections")
    assert set(driver.window.sections) == set(SECTIONS)
    prepared = driver.window.sections["output"]
    assert prepared.find("backups_kept") is not None, "with its fields"
    assert not prepared.winfo_ismapped()
    driver.window.show_section("tools")
    driver.window.sections["tools"].open_page("duplicates")
    driver.window.set_scale(125)
    assert driver.window.sections["tools"].page == "duplicates", "the page that was chosen"
    assert not slices.is_done
    driver.wait(lambda: slices.is_done, "all sections at the other scale")
    driver.window.set_scale(100)


def test_no_script_outlives_a_dialog_that_was_not_needed(driver: Driver) -> None:
    """Its command would be gone, and another widget's binding might get the name."""
    call = driver.window.tk.call
    Waiting(driver.window, lambda: None).end()
    waiting = [call("after", "info", job)[0] for job in driver.window.tk.splitlist(call("after", "info"))]
    commands = [driver.window.tk.splitlist(script)[0] for script in waiting]
    ours = [name for name in commands if not str(name).startswith(("::", "tk", "ttk"))]
    assert ours
    assert [name for name in ours if not call("info", "commands", name)] == []


def test_a_memory_program_that_was_stopped_before_is_not_started() -> None:
    """As by a dialog that is closed while the thread still prepares the question."""
    program = MemoryProgram()
    program.stop()
    assert program.ask({}, 1).error
    assert program._process is None


def test_two_quick_clicks_are_two(driver: Driver) -> None:
    """customtkinter takes the pointer to be outside for 0.1 s after a click."""
    clicks: list[int] = []
    button = Button(driver.window.header, "Again", lambda: clicks.append(1))
    button.place(x=0, y=0)
    driver.settle()
    x, y = button.winfo_rootx() + 20, button.winfo_rooty() + 10
    driver._xdotool("mousemove", str(x), str(y), "click", "--repeat", "3", "--delay", "10", "1")
    driver.wait(lambda: len(clicks) == 3, "three clicks")
    button.destroy()


@pytest.mark.parametrize("kind", [Entry, TextBox])
def test_a_field_that_is_off_shows_no_focus(driver: Driver, kind: type[Entry | TextBox]) -> None:
    """Its text may be selected, but a ring would say that it can be edited."""
    field = kind(driver.window.header, lambda _: None)
    field.show("text")
    field.place(x=0, y=0)
    field.enable(False)
    driver.settle()
    before = field._picture
    driver.click_really(field)
    assert field._picture is before
    field.enable(True)
    driver.click_really(field)
    assert field._picture is not before
    field.destroy()


def test_scrollbar_of_a_page_is_in_sight_and_moves_it(driver: Driver) -> None:
    driver.window.geometry("1280x800+0+0")
    driver.window.show_section("training")
    area = driver.window.sections["training"].scroll
    driver.wait(lambda: area.canvas.yview()[1] < 1 and area.bar.winfo_viewable(), "a page that is higher than its area")
    x, y = area.bar.winfo_rootx() + 6, area.bar.winfo_rooty() + 30
    assert driver.window.winfo_containing(x, y) is area.bar, "nothing covers it"
    area.bar.event_generate("<Button-1>", x=6, y=30)
    area.bar.event_generate("<B1-Motion>", x=6, y=130)
    driver.settle()
    assert area.canvas.yview()[0] > 0.05
    area.bar.event_generate("<B1-Motion>", x=6, y=30)
    driver.settle()
    assert area.canvas.yview()[0] == 0


def test_double_clicks_and_held_keys_open_one_window(driver: Driver) -> None:
    driver._xdotool("key", "--delay", "5", "F1", "F1", "F1")
    assert [dialog.title() for dialog in driver.dialogs()] == ["Keyboard shortcuts"]
    driver.press("Escape")
    assert driver.dialogs() == []
    driver.window.show_section("multi_gpu")
    driver.settle()
    button = next(
        one for one in _all(driver.window) if isinstance(one, Button) and one.cget("text") == "Multiple machines…"
    )
    x, y = button.winfo_rootx() + button.winfo_width() // 2, button.winfo_rooty() + button.winfo_height() // 2
    for pause_ms in ("5", "400"):  # as a double click, and once it is there
        driver._xdotool("mousemove", str(x), str(y), "click", "--repeat", "2", "--delay", pause_ms, "1")
        assert len(driver.dialogs()) == 1


def test_cards_are_not_seen_before_their_contents(display: str, home: Path) -> None:
    """Nor the welcome before the page behind it is complete."""
    Preferences(welcomed=False, mode="dark", section="model").save()
    window = open_window()
    try:
        titles: list[tuple[bool, bool]] = []
        assert window.winfo_children()[-1] is window._curtain, "it lies over all"

        def uncovered(event: object) -> None:
            label = window.sections["model"].find("family").title
            titles.append((bool(label.winfo_viewable()), label.winfo_width() >= label.winfo_reqwidth()))

        window._curtain.bind("<Destroy>", uncovered)
        while not any(isinstance(each, DialogWindow) for each in window.winfo_children()):
            window.update()
        assert titles == [(True, True)]
        assert not window.state_.slices.is_busy
    finally:
        window.focus_force()
        window.destroy()


def test_a_dialog_keeps_its_keys_after_a_click_behind_it(driver: Driver) -> None:
    driver.press("F1")
    (dialog,) = driver.dialogs()
    driver.click_really(driver.window.header)
    driver._xdotool("windowfocus", str(int(driver.window.frame(), 16)))  # as a window manager does after the click
    driver.wait(lambda: str(driver.window.tk.call("focus")).startswith(str(dialog)), "the keyboard")
    driver.press("Escape")
    assert driver.dialogs() == []


def test_the_window_closes_after_the_dialog_that_is_open(driver: Driver) -> None:
    driver.draft.set("epochs", 9)
    driver.window.close()
    driver.window.close()
    assert [dialog.title() for dialog in driver.dialogs()] == ["Save changes?"]
    driver.answer("Cancel")
    driver.press("F1")
    driver.window.close()
    assert [dialog.title() for dialog in driver.dialogs()] == ["Keyboard shortcuts"]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("root@h", {}),
        ("ssh -p40022 root@h", {"target": "root@h", "port": "40022"}),
        ("ssh -A -o Port=40022 -l root h", {"target": "root@h", "port": "40022"}),
        ("ssh root@h -o 'port 22' -L 8080:localhost:8080 -i '~/.ssh/my key'",
         {"target": "root@h", "port": "22", "key": "~/.ssh/my key"}),
        ("ssh -o StrictHostKeyChecking=no -o User=me -oIdentityFile=~/k h id", {"target": "me@h", "key": "~/k"}),
        ("ssh -p 22", {"target": "", "port": "22"}),
        ("ssh -NL 8080:localhost:8080 -D 1080 -R 1:b:2 -S none -E log -p 7 root@h", {"target": "root@h", "port": "7"}),
        ("ssh://root@203.0.113.7:40022", {"target": "root@203.0.113.7", "port": "40022"}),
        ("ssh -i ~/k -- ssh://[fd00::1]:22/", {"target": "fd00::1", "port": "22", "key": "~/k"}),
    ],
)  # fmt: skip
def test_a_line_for_ssh_is_read_as_ssh_reads_it(line: str, fields: dict[str, str]) -> None:
    assert fields_of_ssh_line(line) == fields


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("ssh -J jump root@h", "-J jump has no field here; put it into ~/.ssh/config"),
        ("ssh -P 40022 root@h", "-P 40022 has no field here"),
        ("ssh -I /lib/pkcs11.so root@h", "-I /lib/pkcs11.so has no field here"),
        ("ssh -W inner:22 root@h", "-W inner:22 has no field here"),
        ("ssh -F cfg box", "-F cfg has no field here; put it into ~/.ssh/config"),
        ("ssh root@h -o ProxyCommand='nc %h %p'", "-o ProxyCommand=nc %h %p has no field here"),
        ("ssh root@h -p", "which ssh would not take: option -p requires argument"),
        ("ssh -i 'key root@h", "which ssh would not take: No closing quotation"),
    ],
)
def test_what_a_machine_has_no_field_for_is_refused(line: str, why: str) -> None:
    with pytest.raises(ConfigError, match="^host: target is .*" + re.escape(why)):
        fields_of_ssh_line(line)


@pytest.mark.parametrize("warning", ["", "Warning: beta cannot use its GPUs: no driver\n"])
def test_what_setup_warns_of_is_read_before_it_goes_on(driver: Driver, warning: str) -> None:
    went_on: list[bool] = []
    beta = Host.make("beta", "root@h", "~/.tandem/code")
    opened = SetUpWindow(driver.window, driver.window.state_, beta, lambda: went_on.append(True))
    opened.dialog.show()
    opened.ended(0, f"beta is ready.\n{warning}")
    assert bool(went_on) is not bool(warning)
    if warning:
        driver.settle()
        assert warning.strip() in driver.text(opened.dialog.window)
        driver.click_button("Go on")
    assert went_on == [True]
    assert driver.dialogs() == []


def test_the_name_of_a_machine_leaves_the_run_bar_its_room(driver: Driver) -> None:
    buttons = driver.window.run_bar.buttons
    buttons.arrange(4)
    for place, widest in (("", theme.px(ICON_WIDTH)), ("rented-by-the-hour-" * 2, theme.px(WIDEST_PLACE))):
        driver.window.preferences.place = place
        buttons.show(buttons.status)
        assert buttons.where.winfo_reqwidth() <= widest
        assert (place or "this computer") in buttons.tooltip_text(buttons.where)
