"""Real runs of a tiny Wan on clips of moving shapes and a still: any ranks, cached or not, resumed or not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from modules.config import TrainConfig
from modules.files.videos import Clip, write_clip
from tests.families.tiny_flow_pipelines import TINY
from tests.runs import Job, Run, group_settings, same_state, tiny_config, train_alone, train_group

pytest.importorskip("av")
STEPS, FRAMES, SIDE = 4, 12, 48  # as long as 9 frames of a clip, and three to begin later at
LORA: dict[str, object] = {"method": "lora", "lora_rank": 2, "lora_alpha": 2.0, "caption_dropout": 0.3}


def draw_clips(folder: Path) -> Path:
    """Six clips of a disc that moves left or right, one of them with too few frames for the others' bucket, and a
    still."""
    folder.mkdir()
    for number in range(6):
        way = "left" if number % 2 else "right"
        steps = [3 * each if way == "right" else SIDE - 15 - 3 * each for each in range(6 if number == 5 else FRAMES)]
        frames = [Image.new("RGB", (SIDE, SIDE), (20, 30 * number, 90)) for _ in steps]
        for frame, left in zip(frames, steps, strict=True):
            ImageDraw.Draw(frame).ellipse((left, 5 * number, left + 12, 5 * number + 12), fill="white")
        write_clip(folder / f"{number}.mp4", Clip(tuple(frames), 16.0))
        (folder / f"{number}.txt").write_text(f"a disc moving {way}")
    frames[0].save(folder / "still.png")
    (folder / "still.txt").write_text("a disc")
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    place = tmp_path_factory.mktemp("clips")
    settings = {"max_steps": STEPS, "batch_size": 2, "global_batch_size": 4, "resolution": 32, "frames": 9, **LORA}
    settings |= {"clips": "random", "precision": "fp64", "family": "wan", "base_model": str(TINY["wan"](place / "wan"))}
    return tiny_config(draw_clips(place / "videos"), place, run_name="alone", **settings)


@pytest.fixture(scope="module")
def alone(config: TrainConfig) -> Run:
    code, run = train_alone(config)
    assert code == 0, run.failure(0)
    return run


@pytest.mark.slow
def test_clips_of_several_lengths_and_a_still_train_together(alone: Run) -> None:
    assert len(alone.losses) == STEPS
    assert all(math.isfinite(loss) for loss in alone.losses)
    said = str(alone.events())
    for part in ("6 videos of", "32x32x9", "32x32x5"):
        assert part in said


@pytest.mark.slow
def test_two_ranks_compute_the_same(config: TrainConfig, alone: Run) -> None:
    two = TrainConfig(**(config.model_dump() | {"run_name": "two", "cache_dir": f"{config.cache_dir}-two"}))
    run = train_group(2, {"two": Job(TrainConfig(**(two.model_dump() | group_settings(2))))})["two"]
    assert run.losses == pytest.approx(alone.losses, rel=1e-9)
    assert ", such as transformer.blocks.0." in str(run.events())  # as the file has it, not as DDP does


@pytest.mark.slow
def test_clips_whose_first_frame_is_given_are_the_same_on_two_ranks_and_after_a_resume(config: TrainConfig) -> None:
    """A random half of them, of a model with an autoencoder of its own."""
    name = "wan22_5b"
    base = TINY[name](Path(config.cache_dir).parent / name)
    given = {
        "family": name,
        "base_model": str(base),
        "concepts": config.concepts,
        "cache_dir": f"{config.cache_dir}-{name}",
    }
    one = TrainConfig(**(config.model_dump() | given | {"run_name": name}))
    code, alone = train_alone(one)
    assert code == 0, alone.failure(0)
    two = one.model_dump() | group_settings(2) | {"run_name": f"{name}-two"}
    assert train_group(2, {"two": Job(TrainConfig(**two))})["two"].losses == pytest.approx(alone.losses, rel=1e-9)
    half = one.model_copy(update={"run_name": f"{name}-half", "max_steps": STEPS // 2})
    assert train_alone(half)[0] == 0
    code, resumed = train_alone(half.model_copy(update={"max_steps": STEPS}), "latest")
    assert code == 0
    assert same_state(resumed.state, alone.state)


@pytest.mark.slow
def test_a_resumed_run_is_the_same_to_the_bit_also_without_the_cache(config: TrainConfig, alone: Run) -> None:
    for name, changes in (("cached", {}), ("uncached", {"cache_latents": False})):
        whole = alone
        given = TrainConfig(**(config.model_dump() | changes | {"run_name": name}))
        if changes:
            code, whole = train_alone(given)
            assert code == 0
        half = given.model_copy(update={"run_name": f"half-{name}", "max_steps": STEPS // 2})
        assert train_alone(half)[0] == 0
        code, resumed = train_alone(half.model_copy(update={"max_steps": STEPS}), "latest")
        assert code == 0
        assert same_state(resumed.state, whole.state)


@pytest.mark.slow
def test_the_same_clips_are_trained_on_with_and_without_the_cache(config: TrainConfig) -> None:
    plain = {"clips": "start", "caption_dropout": 0.0, "family_options": {"latents": "mode"}}
    runs = [
        train_alone(TrainConfig(**(config.model_dump() | plain | {"run_name": f"c{cached}", "cache_latents": cached})))
        for cached in (True, False)
    ]
    assert [code for code, _ in runs] == [0, 0]
    assert runs[0][1].losses == pytest.approx(runs[1][1].losses, rel=1e-6)
