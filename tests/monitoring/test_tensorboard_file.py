"""TensorBoard's file when its disk fails."""

from __future__ import annotations

import math
import time
from pathlib import Path

from werkzeug.test import Client

from modules.monitoring.tensorboard import TensorBoardWriter, newest_step
from modules.run.folder.events import EventLog


def test_what_the_disk_did_not_take_is_written_once_it_does(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    folder, warnings = tmp_path / "tensorboard", list[str]()
    folder.write_text("not a folder")
    writer = TensorBoardWriter(folder, warnings.append)
    writer.add_scalars({"loss/train": 0.5}, 1)
    deadline = time.monotonic() + 60
    while not warnings and time.monotonic() < deadline:
        time.sleep(0.01)
    folder.unlink()
    writer.add_scalars({"loss/train": 0.25}, 2)
    writer.close()
    (file,) = folder.iterdir()
    events = list(EventFileLoader(str(file)).Load())
    assert [(event.step, len(event.summary.value)) for event in events] == [(0, 0), (1, 1), (2, 1)]
    assert len(warnings) == 1
    assert "cannot be written" in warnings[0]


def test_a_disk_that_stays_bad_ends_nothing(tmp_path: Path) -> None:
    folder, warnings = tmp_path / "tensorboard", list[str]()
    folder.write_text("not a folder")
    writer = TensorBoardWriter(folder, warnings.append)
    writer.add_scalars({"loss/train": 0.5}, 1)
    writer.close()
    assert len(warnings) == 1


def test_a_foreign_run_names_no_file_for_tensorboard_to_show(tmp_path: Path) -> None:
    """TensorBoard 2.20 shows whatever its projector's config names to everybody who reaches its port."""
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin

    folder, private = tmp_path / "runs", tmp_path / "private"
    folder.mkdir()
    private.write_text("secret\n")
    for name, file in (("absolute", str(private)), ("relative", "../private"), ("link", "link")):
        with (folder / "projector_config.pbtxt").open("a") as config:
            config.write(f'embeddings {{ tensor_name: "{name}" tensor_path: "1.tsv" metadata_path: "{file}" }}\n')
    (folder / "1.tsv").write_text("0.5\t1.5\n")
    (folder / "link").symlink_to(private)
    apps = ProjectorPlugin(TBContext(logdir=str(folder))).get_plugin_apps()
    assert Client(apps["/runs"]).get("/").json == ["."], "it has read the config"
    for name in ("absolute", "relative", "link"):
        answer = Client(apps["/metadata"]).get(f"/?run=.&name={name}")
        assert (answer.status_code, "secret" in answer.text) == (400, False)


def test_a_resumed_run_fills_in_the_steps_that_no_file_has(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    folder, events = tmp_path / "tensorboard", EventLog(tmp_path / "events.jsonl")
    for step in (1, 2, 3, 2, 3, 4):  # resumed after step 1, with TensorBoard switched off
        events.write("step", step=step, loss=step / 8, lr=0.5, grad_norm=math.nan)
    events.write("validation", set="validation", loss=0.25, step=3)
    events.close()
    before = TensorBoardWriter(folder)
    before.add_scalars({"loss/train": 0.125}, 1)
    before.add_success()
    before.flush()  # on the disk, while the writer is open
    (file,) = folder.iterdir()
    assert newest_step(file) == 1
    file.write_bytes(file.read_bytes() + b"half a record")
    after = TensorBoardWriter(folder)
    after.add_missing(3, events.path)
    after.close()
    before.close()
    (new,) = (each for each in folder.iterdir() if each != file)
    found = [
        (event.step, [(value.tag, value.tensor.float_val[0]) for value in event.summary.value])
        for event in EventFileLoader(str(new)).Load()
        if event.step
    ]
    assert [(step, values[0]) for step, values in found] == [
        (2, ("loss/train", 0.25)),
        (3, ("loss/train", 0.375)),
        (3, ("loss/validation", 0.25)),
    ]
    assert [tag for tag, _ in found[0][1]] == ["loss/train", "lr/model", "gradient/norm"]
