"""The Tools page for model files, with real models and the real program in a process of its own."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from app.tools.model_tasks import FORMATS, KIND, TASKS, ModelTask, arguments, faults, suggested_out
from app.tools.models_page import FITTING, ModelsPage, SourceKind, source_kind
from app.tools.tool_form import ToolForm
from app.widgets.buttons import Switch
from app.widgets.inputs import Menu
from modules.checkpoint.formats.file_types import detect_file_type
from modules.config import ConfigError
from modules.run import RunFolder
from scripts.convert import check_paths, parser, refuse_other_kinds
from tests.app.driver import Driver
from tests.families.tiny_pipelines import tiny_sd


def page_of(driver: Driver) -> ModelsPage:
    driver.window.show_section("tools")
    driver.settle()
    page = driver.window.sections["tools"].pages["models"]
    assert isinstance(page, ModelsPage)
    return page


def choose(page: ModelsPage, name: str, choice: str) -> None:
    menu = page.form.controls[name]
    assert isinstance(menu, Menu)
    menu.choose(choice)


def finish(driver: Driver, page: ModelsPage) -> None:
    driver.wait(lambda: driver.window.state_.model_job is None, "the process to end")
    driver.settle()


@pytest.mark.slow
def test_a_model_is_converted_and_errors_are_one_sentence(driver: Driver, tmp_path: Path) -> None:
    tiny_sd(tmp_path / "model")
    page = page_of(driver)
    driver.click_button("Start")
    assert page.status.cget("text") == ""
    assert "is missing" in driver.text(page.form), "what is missing stands at its field"
    page.form.show("source", str(tmp_path / "model"))
    choose(page, "dtype", "bf16")
    out = tmp_path / "model-converted.safetensors"
    assert page.form.values()["out"] == str(out), "a name is suggested"
    driver.click_button("Start")
    assert page.stop_button.cget("state") == "normal"
    finish(driver, page)
    assert page.result.out == out
    assert page.status.cget("text").startswith("model-converted.safetensors: ")
    assert {tensor.dtype for tensor in load_file(out).values()} <= {torch.bfloat16, torch.int64}
    assert page.open_button.winfo_viewable()

    menu = page.form.controls["to"]
    assert isinstance(menu, Menu)
    page.form.show("source", str(out))
    driver.wait(lambda: menu.choices == ("dtype", "diffusers"), "the formats that it can become")
    assert menu.value() == "dtype"
    assert "This file holds the weights of a model" in driver.text(page.form)
    menu.choose("diffusers")
    driver.click_button("Start")
    assert "the file holds weights only" in driver.text(page.form)
    page.form.show("source", str(tmp_path / "cats.safetensors"))
    save_file({"unet.to_k.lora_A.weight": torch.zeros(1, 1)}, tmp_path / "cats.safetensors")
    page.form.show("source", str(tmp_path / "cats.safetensors") + " ")
    driver.wait(lambda: menu.choices == ("kohya", "diffusers", "dtype"), "those of a LoRA")
    assert not page.form.controls["layout"].winfo_viewable()
    (tmp_path / "cats.safetensors").unlink()
    page.form.show("out", str(tmp_path / "lora.safetensors"))
    driver.click_button("Start")
    finish(driver, page)
    sentence = page.status.cget("text")
    assert sentence.startswith("Nothing was written: ")
    assert "Traceback" not in sentence
    assert not (tmp_path / "lora.safetensors").exists()
    assert not page.open_button.winfo_viewable()


def test_stop_leaves_nothing_and_the_job_survives_a_change_of_scale(driver: Driver, tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(1000, 1000)}, tmp_path / "large.safetensors")
    page = page_of(driver)
    page.form.show("source", str(tmp_path / "large.safetensors"))
    choose(page, "to", "dtype")
    assert "Choose a number format" in faults(page.form.task, page.form.values())["dtype"]
    choose(page, "dtype", "fp16")
    driver.click_button("Start")
    job = driver.window.state_.model_job
    assert job is not None
    process = psutil.Process(job._child.process.pid)
    process.suspend()  # a fast converter would end before the window is scaled
    driver.window.set_scale(125)
    page = page_of(driver)
    assert page.stop_button.cget("state") == "normal"
    driver.click_button("Stop")
    process.resume()
    finish(driver, page)
    assert page.status.cget("text") == "Stopped: nothing was written."
    assert sorted(path.name for path in tmp_path.glob("large*")) == ["large.safetensors"]


@pytest.mark.slow
def test_what_is_typed_survives_a_change_of_scale(driver: Driver) -> None:
    """On every page: the task in sight, paths that lead nowhere, choices and switches."""

    def forms() -> dict[str, ToolForm]:
        for name in ("annotate", "duplicates", "preview", "models"):
            section.open_page(name)
        pages = section.pages
        return {
            "convert": pages["models"].form,
            "tag": pages["annotate"].setup.form,
            "duplicates": pages["duplicates"].form,
            "preview": pages["preview"].form,
        }

    page_of(driver)
    section = driver.window.sections["tools"]
    section.open_page("annotate")
    section.pages["annotate"].setup.choose("tag")
    typed = {
        "convert": {"source": "/no/cats", "out": "/no/dogs", "to": "kohya", "overwrite": "on"},
        "tag": {"folder": "/no/folder", "threshold": "much", "model": "own", "own": "owner/name", "with_rating": "on"},
        "duplicates": {"folder": "/no/copies", "distance": "0"},
        "preview": {"epoch": "first", "count": "24"},
    }
    for name, form in forms().items():
        for field, value in typed[name].items():
            control = form.controls[field]
            if isinstance(control, Switch):
                control.toggle()
            else:
                form.show(field, value)
    driver.press("ctrl+plus")
    driver.wait(lambda: driver.window.sections["tools"] is not section, "the section at another scale")
    driver.settle()
    section = driver.window.sections["tools"]
    for name, form in forms().items():
        assert form.task.name == name
        assert typed[name].items() <= form.values().items()
    page = section.pages["models"]
    page.choose("merge")
    page.form.show("source", "/no/model.safetensors")
    suggested = page.form.values()["out"]
    driver.press("ctrl+minus")
    driver.wait(lambda: driver.window.sections["tools"] is not section, "the section at the first scale")
    page = page_of(driver)
    assert (page.form.task.name, page.form.values()["out"]) == ("merge", suggested)
    page.form.show("source", "/no/other.safetensors")
    assert page.form.values()["out"] == "/no/other-merged.safetensors", "a suggested name goes on following the source"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("model", ["model.diffusion_model.input_blocks.0.0.weight", "cond_stage_model.transformer.a.weight"]),
        ("model", ["double_blocks.0.img_mod.lin.weight", "double_blocks.0.img_attn.proj.weight"]),
        ("lora", ["unet.to_k.lora_A.weight", "unet.to_k.lora_B.weight"]),
        ("kohya_lora", ["lora_unet_down_blocks_0_to_k.lora_down.weight", "lora_unet_down_blocks_0_to_k.alpha"]),
        ("embedding", ["emb_params"]),
        ("embedding", ["clip_l", "clip_g"]),
        ("other", ["encoder.weight", "decoder.weight"]),
    ],
)  # fmt: skip
def test_the_formats_that_are_offered_are_those_that_the_program_takes(
    tmp_path: Path, kind: SourceKind, names: list[str]
) -> None:
    file = tmp_path / "a.safetensors"
    save_file({name: torch.zeros(1, 1) for name in names}, file)
    assert source_kind(str(file)) == kind
    taken = set()
    for form in FORMATS:
        layout = "folder" if form == "diffusers" and kind == "model" else None
        try:
            refuse_other_kinds(file, detect_file_type(names), Namespace(to=form, layout=layout))
        except ConfigError:
            continue
        taken.add(form)
    assert set(FITTING[kind]) == taken


def test_what_is_no_model_is_of_no_kind(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"no")
    assert [source_kind(str(each)) for each in (tmp_path, tmp_path / "a.safetensors", tmp_path / "gone")] == [
        "",
        "",
        "",
    ]
    (tmp_path / "model_index.json").write_text("{}")
    assert source_kind(str(tmp_path)) == "folder"


def test_a_folder_with_a_lora_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "lora_kohya.safetensors").touch()
    kind = source_kind(str(tmp_path))
    found = faults(TASKS[0], {"source": str(tmp_path), "to": "kohya", "out": "a", KIND: kind})
    assert found == {"source": "This folder holds a LoRA: choose its file lora_kohya.safetensors."}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_result_is_suggested_outside_of_what_a_run_replaces(task: ModelTask, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "cats")
    run.model_dir.mkdir(parents=True)
    lora = run.model_dir / "lora_kohya.safetensors"
    lora.touch()
    assert suggested_out(task, {"source": str(lora)}) == str(run.model_dir / f"lora_kohya-{task.suffix}.safetensors")
    run.config_file.touch()
    run.events_file.touch()
    assert suggested_out(task, {"source": str(lora)}) == str(run.path / f"lora_kohya-{task.suffix}.safetensors")


def test_arguments_are_those_of_the_program(tmp_path: Path) -> None:
    for name in ("base", "tuned"):
        (tmp_path / name).mkdir()
    save_file({"weight": torch.zeros(1)}, tmp_path / "-a.safetensors")
    given = {
        "source": str(tmp_path / "base"), "tuned": str(tmp_path / "tuned"), "lora": str(tmp_path / "-a.safetensors"),
        "lora2": "", "scale": "-0.5", "scale2": "1", "rank": "8", "dtype": "fp16", "overwrite": "on", "layout": "",
        "to": "single_file", "out": str(tmp_path / "new.safetensors"),
    }  # fmt: skip
    for task in TASKS:
        values = {field.name: given[field.name] for field in task.fields}
        if task.name == "merge":
            values["out"] = str(tmp_path / "merged")
        assert faults(task, values) == {}
        options = parser().parse_args(arguments(task, values))
        check_paths(Path(options.source), Path(options.out), options)
        assert (options.dtype, options.overwrite) == ("fp16", True)
    assert "whole number" in faults(TASKS[3], {**given, "rank": "0"})["rank"]
    assert "use a number" in faults(TASKS[1], {**given, "scale": "nan"})["scale"]
