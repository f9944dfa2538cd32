"""Captions and masks in the real window, through the real program with a tiny model: a tagger, which loads in a third
of the time of a model of transformers."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from PIL import Image

from app.annotate.job import AnnotateJob
from app.annotate.page import AnnotatePage
from app.annotate.rows import Row
from app.annotate.setup import OTHER_FOLDER, OWN_MODEL, TASKS, concept_folders, faults, order
from app.annotate.status import JobStatus
from modules.annotation import Header, Proposal, ProposalSet
from scripts.annotate_options import add_task_options, header_of
from tests.annotators.tiny_tagger import tiny_tagger
from tests.app.driver import Driver
from tests.data.helpers import write_image

pytestmark = pytest.mark.slow

VALUES = {"concept": OTHER_FOLDER, "folder": ".", "model": OWN_MODEL, "own": "me/model", "mode": "append"}


@pytest.fixture
def page(shared_driver: Driver) -> AnnotatePage:
    """The page with what to propose in sight."""
    shared_driver.window.show_section("tools")
    section = shared_driver.window.sections["tools"]
    section.open_page("annotate")
    found = section.pages["annotate"]
    assert isinstance(found, AnnotatePage)
    found.show_setup()
    shared_driver.settle()
    return found


def finish(driver: Driver, page: AnnotatePage) -> None:
    driver.wait(lambda: not page.job.is_running, "the process to end")
    driver.settle()


def test_tags_are_proposed_reviewed_written_and_undone(
    page: AnnotatePage, shared_driver: Driver, shared_home: Path
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    driver, folder = shared_driver, shared_home / "cats"
    for number in range(4):
        write_image(folder / f"{number}.png", 60, 40, number)
    (folder / "2.png").write_bytes((folder / "2.png").read_bytes()[:200])
    (folder / "1.txt").write_text("an old caption")
    driver.click_button("Start")
    assert "Folder is missing." in driver.text(page.setup)
    driver.draft.set("concepts", [{"path": str(folder), "name": "My cats"}])
    page.shown()
    page.setup.choose("tag")
    form = page.setup.form
    assert form.values()["concept"] == str(folder), "the concepts are offered by name"
    form.show("model", OWN_MODEL)
    form.show("own", str(tiny_tagger(shared_home / "tagger")))
    form.show("threshold", "0.01")
    form.show("prefix", "my cat,")
    form.show("mode", "replace")
    page.setup.start()  # the button is below what is in sight
    assert page.review.stop_button.cget("state") == "normal"
    finish(driver, page)
    assert page.job.status.tone == "warn", page.job.status.text
    rows = {row.relative: row for row in page.job.rows}
    assert sorted(rows) == ["0.png", "1.png", "2.png", "3.png"]
    assert rows["0.png"].text.startswith("my cat, ")
    assert "cut off" in rows["2.png"].problem or rows["2.png"].problem
    assert not rows["2.png"].has_proposal
    assert rows["1.png"].present == "an old caption"
    assert page.review.write_button.cget("text") == "Write 3 captions"
    driver.click_button("Show 1 failed")
    assert [row.relative for row in page.review.list._rows] == ["2.png"]
    driver.click_button("Show all")
    assert len(page.review.list._rows) == 4

    numbers = {row.relative: number for number, row in enumerate(page.job.rows)}
    page.review.list.canvas.focus_force()
    page.review.list.select(numbers["0.png"])
    driver.press("F2", "ctrl+a")
    driver.type("a grey cat")
    driver.press("Return")
    page.review.list.select(numbers["3.png"])
    driver.press("Delete")
    assert page.review.write_button.cget("text") == "Write 2 captions"
    driver.click_button("Write 2 captions")
    finish(driver, page)
    assert page.review.status.cget("text") == "2 captions written."
    assert (folder / "0.txt").read_text() == "a grey cat\n"
    assert (folder / "1.txt").read_text() == f"{rows['1.png'].text}\n"
    assert not (folder / "3.txt").exists()
    (folder / "0.txt").write_text("changed meanwhile")
    driver.click_button("Undo")
    finish(driver, page)
    assert page.review.status.cget("text") == "Undone: 1 file is as before. 1 changed since, and stays."
    assert rows["0.png"].problem == "has changed since it was written"
    assert (folder / "1.txt").read_text() == "an old caption"
    (folder / "0.txt").write_text("a grey cat\n")
    driver.click_button("Undo")
    finish(driver, page)
    assert page.review.status.cget("text") == "Undone: 1 file is as before."
    assert not (folder / "0.txt").exists()
    assert not rows["0.png"].problem
    assert page.review.write_button.cget("state") == "normal", "what was decided may be written again"
    driver.click_button("Accept all")
    assert page.review.write_button.cget("text") == "Write 3 captions"


def test_earlier_masks_are_shown_over_their_images(
    page: AnnotatePage, shared_driver: Driver, shared_home: Path
) -> None:
    driver, folder = shared_driver, shared_home / "dogs"
    write_image(folder / "a.png", 80, 60, 1)
    header = Header(
        task="mask", folder=str(folder), model="m", mode="missing", ending="-masklabel.png", settings={}, made=2e9
    )
    proposals = ProposalSet.create(shared_home / "annotations", header)
    made = Proposal(image="a.png", mask="a.png")
    half = Image.new("L", (80, 60))
    half.paste(255, (0, 0, 40, 60))
    half.save(proposals.mask_file(made))
    proposals.add(made)
    page.show_setup()
    driver.wait(lambda: any(each.header.task == "mask" for each in page.setup.earlier), "the earlier proposals")
    title = next(each.title for each in page.setup.earlier if each.header.task == "mask")
    assert title.startswith("Masks of dogs, ")
    page.setup.earlier_menu().choose(title)
    finish(driver, page)
    drawing = page.review.list.drawing
    overlaid = (folder / "a.png", proposals.mask_file(made))
    driver.wait(lambda: overlaid in [key[:2] for key in drawing._photos], "the overlay")
    driver.wait(lambda: page.review.write_button.cget("text") == "Write 1 mask", "the proposals are counted")
    assert [row.present_mask for row in page.job.rows] == [None]
    driver.click_button("Write 1 mask")
    finish(driver, page)
    with Image.open(folder / "a-masklabel.png") as mask:
        assert (mask.getpixel((10, 30)), mask.getpixel((70, 30))) == (255, 0)
    driver.click_button("Undo")
    finish(driver, page)
    assert not (folder / "a-masklabel.png").exists()


def test_a_long_list_draws_what_is_in_sight_and_a_missing_package_can_be_copied(
    page: AnnotatePage, shared_driver: Driver, shared_home: Path
) -> None:
    page.job.task = "caption"
    page.job.rows = [Row(shared_home / f"{number}.png", f"{number}.png", f"cat {number}") for number in range(20_000)]
    page.job.status = JobStatus(
        "It needs x. Install it: .venv/bin/python -m pip install onnxruntime (or another).", "bad"
    )
    page.show_review()
    page.review.show()
    page.review.list.select(15_000)
    shared_driver.settle()
    canvas: Any = page.review.list.canvas
    drawn = canvas.find_withtag("row")
    texts = [canvas.itemcget(each, "text") for each in drawn if canvas.type(each) == "text"]
    assert "cat 15000" in texts
    assert len(drawn) < 200
    assert page.review.install.content == ".venv/bin/python -m pip install onnxruntime"
    assert page.review.install.winfo_viewable()
    shared_driver.click_button("Reject all")
    assert page.review.write_button.cget("state") == "disabled"
    page.job.rows = []


@pytest.mark.parametrize("has_written", [False, True])
def test_what_a_stopped_process_has_written_can_be_undone(tmp_path: Path, has_written: bool) -> None:
    header = Header(task="tag", folder=str(tmp_path), model="m", mode="missing", ending=".txt", settings={})
    job = AnnotateJob(cast(Any, None))
    job._set = ProposalSet.create(tmp_path / "out", header)
    if has_written:
        (job._set.path / "journal.jsonl").touch()
    job.work, job.is_stopping = "apply", True
    job._place = tempfile.TemporaryDirectory()
    job._child = cast(Any, SimpleNamespace(process=SimpleNamespace(poll=lambda: -15)))
    assert not job.can_undo
    assert job.poll()
    assert (job.status.text, job.can_undo, job.can_write) == ("Stopped.", has_written, True)


def test_arguments_are_those_of_the_program(tmp_path: Path) -> None:
    concept = {"caption_extension": ".caption .txt", "mask_suffix": "-m.png", "include_subfolders": False}
    for task, shown in TASKS.items():
        values = {field.name: field.default for field in shown.fields} | VALUES | {"folder": str(tmp_path)}
        if task == "mask":
            assert faults(task, values) == {"prompt": "What counts is missing."}
            values |= {"prompt": "face, hair", "invert": "on", "device": "cpu"}
        assert faults(task, values) == {}
        made = order(task, values, concept)
        parser = argparse.ArgumentParser()
        parser.set_defaults(command=task)
        add_task_options(parser, task)
        header = header_of(parser.parse_args(made.arguments))
        assert (header.folder, header.model, header.mode) == (str(tmp_path), "me/model", "append")
        assert header.ending == made.ending == ("-m.png" if task == "mask" else ".caption")
        if task == "mask":
            assert header.settings["prompt"] == ["face", "hair"]
    wrong = {**values, "threshold": "nan", "folder": str(tmp_path / "none")}
    assert "use a number from 0 to 1" in faults("mask", wrong)["threshold"]
    assert "choose another one" in faults("mask", wrong)["folder"]
    concepts = [{"path": "s3://b/cats"}]
    offered = {**values, "concept": next(iter(concept_folders(concepts)))}
    assert "only read" in faults("mask", offered)["concept"]
    assert "only read" in faults("mask", {**values, "folder": "s3://b/cats"})["folder"]
