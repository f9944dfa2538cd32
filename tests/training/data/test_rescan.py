"""Images that come, go or change while a run trains are taken into its next epoch, on all ranks at the same step."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from modules.config import DataError, TrainConfig, load_config
from modules.families.pixel_diffusion import PixelDiffusion
from modules.run.view.run_view import RunView
from modules.training.data import rescan
from modules.training.data.dataset import resolve_concepts
from modules.training.data.rescan import check_same_concepts
from modules.training.loop import generic_trainer
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.studies.parity import weight_difference
from tests.data.helpers import config_for, write_image
from tests.runs import Job, Run, group_settings, same_state, tiny_config, train_alone, train_group

TOLD = (
    "The data has changed: 6 came (new-0.png, new-1.png, new-2.png and 3 more), 1 went ({gone}), 1 with another "
    "caption ({again}). The next epoch has 46 samples."
)


def changing(images: Path, place: Path, **settings: object) -> tuple[TrainConfig, list[str]]:
    """A run of three epochs during whose first one 6 images come, 1 goes and 1 gets another caption; the names of these
    two."""
    folder, aside = place / "images", place / "aside"
    shutil.copytree(images, folder)
    gone, again = sorted(folder.glob("*.png"))[:2]
    added = [write_image(aside / f"new-{number}.png", seed=number, width=60) for number in range(6)]
    caption = aside / "caption.txt"
    caption.write_text("other words")
    moves = [(file, folder / file.name) for file in added]
    moves += [(gone, aside / "gone"), (caption, again.with_suffix(".txt"))]
    # of the call after the DDP warm-up
    options = {"moves": [f"3|{source}|{target}" for source, target in moves], "dropout": 0.1}
    given: dict[str, object] = {
        "epochs": 3,
        "max_steps": None,
        "precision": "fp64",
        "scheduler": "cosine",
        "rescan": "epoch",
        "backup_every": "3 steps",
        "backups_kept": 99,
        "family_options": options,
    }
    return tiny_config(folder, place, **{**given, **settings}), [gone.name, again.name]


@pytest.mark.slow
def test_all_ranks_take_new_files_at_the_end_of_an_epoch_and_a_resume_goes_on_exactly(
    images: Path, tmp_path: Path
) -> None:
    config, (gone, again) = changing(images, tmp_path / "two", **group_settings(2), loader_workers=1)
    # without worker processes, each of which imports torch
    unmoved = {"family_options": {"dropout": 0.1}, "backup_every": "never", "loader_workers": 0}
    backups = Path(config.runs_dir) / "x" / "backup"
    jobs = {"live": Job(config)}
    for step in (6, 9):  # at the end of the first epoch, and in the second one
        later = config.model_copy(update={"run_name": f"from-{step}", **unmoved})
        jobs[f"from {step}"] = Job(TrainConfig.model_validate(later.model_dump()), str(backups / f"step-{step:06}"))
    faulty, _ = changing(images, tmp_path / "faulty", **group_settings(2))
    options = {**faulty.family_options, "encode_fails_on": 1}
    jobs["faulty"] = Job(faulty.model_copy(update={"family_options": options}))
    runs = train_group(2, jobs)
    assert runs["faulty"].exit_code == 0
    assert runs["faulty"].warnings.count("training goes on with the data as it was: tiny_family.py, line ") == 1
    assert "RuntimeError: this image cannot be encoded." in runs["faulty"].warnings
    assert runs["faulty"].state.position.samples_seen == 3 * 41
    live = runs["live"]
    assert TOLD.format(gone=gone, again=again) in live.warnings
    assert live.state.position.samples_seen == 41 + 2 * 46
    assert [event["epoch"] for event in live.events("step")][::6] == [0, 1, 2]
    for name in ("from 6", "from 9"):
        assert same_state(runs[name].state, live.state), name
        assert runs[name].warnings.count("The data has changed") == (name == "from 6")

    alone, _ = changing(images, tmp_path / "one")
    # whose first call is the first step's
    moves = [move.replace("3|", "2|", 1) for move in alone.family_options["moves"]]  # type: ignore[union-attr]
    _, one = train_alone(alone.model_copy(update={"family_options": {"moves": moves, "dropout": 0.1}}))
    assert weight_difference(one.state, live.state) < 1e-12


def test_a_run_of_epochs_tells_its_new_length(images: Path, tmp_path: Path) -> None:
    config, _ = changing(images, tmp_path, global_batch_size=4)
    code, run = train_alone(config)
    assert code == 0
    assert "The run now has 35 steps instead of 33; the rest of the schedule is spread over them." in run.warnings
    assert run.state.position.step == 11 + 2 * 12
    view = RunView()
    view.apply(run.events())
    assert view.run_info is not None
    assert (view.run_info.total_steps, dict(view.run_info.facts)["Steps per epoch"]) == (35, "12")
    rates = [float(str(event["lr"])) for event in run.events("step")]
    steps = [before - after for before, after in pairwise(rates)]
    assert min(steps) > 0
    assert max(abs(one - other) for one, other in pairwise(steps)) < 2e-4, "no jump"
    assert rates[-1] < 1e-4, "to the end"


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("3_dog/new.png", ""),
        (
            "3_dog/a.txt",
            "3_dog' is now a concept with caption_source 'auto' instead of 'none', prompt_prefix '' instead",
        ),
        ("4_cat/a.png", "4_cat' is now a concept of its own"),
        ("new.png", "set' is now a concept of its own"),
    ],
)
def test_files_that_make_other_concepts_are_left_to_a_resume(file: str, told: str, tmp_path: Path) -> None:
    write_image(tmp_path / "set/3_dog/a.png")
    config = config_for(tmp_path / "set", tmp_path / "set/3_dog", cache=tmp_path, folder_repeats=True)
    started = resolve_concepts(config, PixelDiffusion)
    check_same_concepts(config, started, PixelDiffusion)
    write_image(tmp_path / "new.png")
    (tmp_path / "set" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "new.png").rename(tmp_path / "set" / file)
    with pytest.raises(DataError, match=told) if told else nullcontext():
        check_same_concepts(config, started, PixelDiffusion)


def test_what_cannot_be_trained_on_leaves_the_data_as_it_was(images: Path, tmp_path: Path) -> None:
    config, _ = changing(images, tmp_path)
    folder = Path(config.concepts[0].path)
    options = {"moves": [f"2|{folder}|{tmp_path / 'gone'}"]}
    code, run = train_alone(config.model_copy(update={"family_options": options}))
    assert code == 0
    assert run.warnings.count("training goes on with the data as it was") == 1, "once, not at each epoch"
    assert str(folder) in run.warnings
    assert run.state.position.samples_seen == 3 * 41


UNCACHED: dict[str, object] = {
    "family": "pixel_diffusion",
    "family_options": {"width": 8, "tokens": 4, "vocabulary": 32},
    "resolution": 16,
    "cache_latents": False,
    "backup_every": "11 steps",
}


def live(
    monkeypatch: pytest.MonkeyPatch, images: Path, place: Path, change: Callable[[Path], object], **settings: object
) -> tuple[int, Run]:
    """A run of two epochs of 11 steps; `change` gets its folder of images after the first step."""
    follow, folder = GenericTrainer.follow_files, place / "images"

    def change_and_follow(trainer: GenericTrainer) -> None:
        if trainer.progress.step == 1:
            change(folder)
        follow(trainer)

    monkeypatch.setattr(GenericTrainer, "follow_files", change_and_follow)
    config, _ = changing(images, place, global_batch_size=4, epochs=2, **{**UNCACHED, **settings})
    return train_alone(config)


def remove_half(folder: Path) -> None:
    for file in sorted(folder.glob("*.png"))[:18]:
        file.unlink()


def add_nine(folder: Path) -> None:
    for number in range(9):
        write_image(folder / f"new-{number}.png", seed=number, width=60)


def test_without_the_cache_many_images_may_be_removed(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, run = live(monkeypatch, images, tmp_path, remove_half, loader_workers=1)
    assert code == 0, run.failure(0)
    assert "cannot be read any more and are left out" in run.warnings
    assert "18 went (" in run.warnings
    assert run.state.position.samples_seen == 41 + 23


@pytest.mark.slow
def test_views_of_two_sizes_are_drawn_and_resumed_alike(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = {"random_rotate": 15, "random_hue": 0.2, "horizontal_flip": True, "resolutions": "16 24"}
    concept = {"path": str(tmp_path / "images"), **views}
    given: dict[str, object] = {"concepts": [concept], "cache_latents": True, "backup_every": "7 steps"}
    code, run = live(monkeypatch, images, tmp_path, add_nine, **given)
    assert code == 0, run.failure(0)
    assert "18 came (" in run.warnings
    assert run.state.position.samples_seen == 2 * 41 + 2 * 50
    for step in (21, 28):  # at the end of the first epoch, and after it
        config = load_config(run.folder.config_file).model_copy(update={"run_name": f"from-{step}"})
        code, again = train_alone(config, str(run.folder.backup_dir / f"step-{step:06}"))
        assert code == 0, again.failure(0)
        assert same_state(again.state, run.state), step


@pytest.mark.parametrize("steps", [22, 26])
def test_a_scheduler_that_ends_before_the_longer_run_keeps_the_data(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    target = "torch.optim.lr_scheduler.OneCycleLR"
    scheduler = {"name": "custom", "target": target, "arguments": {"max_lr": 0.01, "total_steps": steps}}
    calls = Counter[str]()

    def count(called: Callable[..., object], name: str, *args: object) -> object:
        calls[name] += 1
        return called(*args)

    for module, name in ((rescan, "changed_index"), (generic_trainer, "own_schedule")):
        monkeypatch.setattr(module, name, partial(count, getattr(module, name), name))
    code, run = live(monkeypatch, images, tmp_path, add_nine, scheduler=scheduler)
    assert code == 0, run.failure(0)
    assert calls == {"changed_index": 1, "own_schedule": 1}, "nobody looks in the last epoch"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("rescan")]
    if steps == 22:
        assert "training goes on with the data as it was: scheduler: OneCycleLR fails at step 24" in run.warnings
        assert run.state.position.samples_seen == 2 * 41
    else:
        assert "The run now has 24 steps instead of 22." in run.warnings, "nothing spreads a scheduler of one's own"
        assert run.state.position.samples_seen == 41 + 50
