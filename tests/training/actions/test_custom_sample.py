"""Images generated on request while a run trains: of any prompt, on all ranks at the same step, without any effect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from modules.config import ConfigError, Sample
from modules.run import request_command
from modules.run.folder.custom_sample import MAX_PROMPT_CHARS, decode_sample, encode_sample
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.state.requests import Outcome
from tests.pair_jobs import STATEFUL
from tests.runs import ROOT, Run, group_exit_codes, same_state, tiny_config, train_alone

pytestmark = pytest.mark.xdist_group("pair")

SHARDED: dict[str, object] = {
    "family": str(ROOT / "tests" / "block_family.py"),
    "family_options": {"width": 5, "dropout": 0.2},
    "precision": "fp64",
    "max_steps": STATEFUL["max_steps"],
    "training_mode": "fully_sharded",
}
ASKED = encode_sample(Sample(prompt="a blue disc", seed=7, width=24, height=16, steps=2))
WRONG = {
    "not JSON": ("a blue disc", "is not JSON"),
    "a size": ('{"prompt": "x", "width": 9}', "width is 9; .* needs a multiple of"),
}


OURS = "custom sample "
QUIET = "uninterrupted"  # as other files call the run in which nothing is asked for
PAIR_JOBS: dict[str, dict[str, object]] = {
    QUIET: STATEFUL,
    f"{OURS}asked": {**STATEFUL, "custom_sample": ASKED},
    **{f"{OURS}{name}": {**STATEFUL, "custom_sample": text} for name, (text, _) in WRONG.items()},
    f"{OURS}sharded quiet": SHARDED,
    f"{OURS}sharded asked": {**SHARDED, "custom_sample": ASKED},
}


@pytest.fixture(scope="module")
def two_ranks(pair: Mapping[str, Run]) -> Mapping[str, Run]:
    """Those of PAIR_JOBS."""
    return {name.removeprefix(OURS): pair[name] for name in PAIR_JOBS}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "sharded "])
def test_the_run_is_the_same_to_the_last_bit(two_ranks: Mapping[str, Run], kind: str) -> None:
    quiet, asked = two_ranks[f"{kind}quiet" if kind else QUIET], two_ranks[f"{kind}asked"]
    (event,) = asked.events("sample")
    assert event["prompt"] == "a blue disc"
    assert group_exit_codes(asked, 2) == [0, 0]
    assert not (asked.folder.commands_dir / "custom_sample").exists()
    assert asked.losses == quiet.losses
    assert len(asked.losses) == STATEFUL["max_steps"]
    assert same_state(asked.state, quiet.state)
    assert not quiet.events("sample")


@pytest.mark.slow
def test_the_image_carries_its_settings(two_ranks: Mapping[str, Run]) -> None:
    (file,) = two_ranks["asked"].folder.samples_dir.iterdir()
    step = two_ranks["asked"].events("sample")[0]["step"]
    assert file.name == f"step-{step:06d}-custom-00.png"
    with Image.open(file) as image:
        assert image.size == (24, 16)
        settings = json.loads(image.info["tandem"])
    assert {name: settings[name] for name in ("prompt", "seed", "steps", "step")} == {
        "prompt": "a blue disc",
        "seed": 7,
        "steps": 2,
        "step": step,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_costs_a_warning(two_ranks: Mapping[str, Run], name: str) -> None:
    run = two_ranks[name]
    (warning,) = [str(event["message"]) for event in run.events("warning") if "custom sample" in str(event["message"])]
    assert re.search(WRONG[name][1], warning)
    assert group_exit_codes(run, 2) == [0, 0]
    assert same_state(run.state, two_ranks[QUIET].state)
    assert not list(run.folder.samples_dir.iterdir())


def test_what_is_asked_for_after_the_last_step_is_done_or_told(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, complete_backups = GenericTrainer.finish, GenericTrainer.complete_backups

    def ask_and_finish(trainer: GenericTrainer, outcome: Outcome) -> None:
        trainer.sync.settle({})  # no step's metrics are left to be exchanged, with which the requests would come
        for number in range(2):  # which the same step has both
            request_command(trainer.folder, "custom_sample", encode_sample(Sample(prompt=f"disc {number}", steps=2)))
            trainer.run_actions(trainer.due_actions(trainer.requests.poll(at_once=True)))
        request_command(trainer.folder, "custom_sample", ASKED)
        request_command(trainer.folder, "sample")
        finish(trainer, outcome)

    def ask_too_late(trainer: GenericTrainer) -> None:
        complete_backups(trainer)
        request_command(trainer.folder, "sample")  # nobody looks for requests any more

    monkeypatch.setattr(GenericTrainer, "finish", ask_and_finish)
    monkeypatch.setattr(GenericTrainer, "complete_backups", ask_too_late)
    samples = [{"prompt": "a red disc", "steps": 2}]
    code, run = train_alone(tiny_config(images, tmp_path, max_steps=1, samples=samples, sample_every="never"))
    assert code == 0, run.failure(0)
    drawn = sorted(str(event["prompt"]) for event in run.events("sample"))
    assert drawn == ["a blue disc", "a red disc", "disc 0", "disc 1"]
    assert "Asked for after the last step, and not done any more: sample." in run.warnings
    assert not list(run.folder.commands_dir.iterdir())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", ""),
        ("[1]", ""),
        ("[" * 90, ""),
        ('{"prompt": "\\ud800"}', ""),
        ('{"prompt": "a\\u0000b"}', ""),
        ('{"prompt": "x", "seed": 0.5}', ""),
        ('{"prompt": 3}', "prompt is 3"),
        (json.dumps({"prompt": "x" * (MAX_PROMPT_CHARS + 1)}), "4,001 characters"),
    ],
)
def test_what_cannot_be_a_request_is_rejected_in_one_sentence(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"^The custom sample.*{what}") as caught:
        decode_sample(text)
    assert "\n" not in caught.value.message
    assert caught.value.message.isprintable()


def test_a_request_is_read_as_it_was_written() -> None:
    sample = Sample(prompt="ein Hund: 犬 🐕", negative_prompt="blurry", seed=2**62, width=512, guidance_scale=1.5)
    assert decode_sample(encode_sample(sample)) == sample
    assert decode_sample(encode_sample(Sample(prompt=""))).prompt == "", "as for images without captions"
    assert decode_sample('{"prompt": "x", "enabled": false}').enabled
