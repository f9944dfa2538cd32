"""Samples that all ranks generate are those of rank 0 alone, and nothing else of the run changes."""

from __future__ import annotations

import pytest
from PIL import Image

from tests.pair_jobs import STATEFUL
from tests.runs import Run, group_exit_codes, same_state

pytestmark = [pytest.mark.xdist_group("pair"), pytest.mark.slow]

SAMPLING: dict[str, object] = {
    **STATEFUL,
    "max_steps": 3,
    "broadcast_buffers": False,
    "sample_every": "2 steps",
    # rank 0 generates three and rank 1 two, which are larger together: the longest part is not rank 0's
    "samples": [
        {"prompt": f"{{disc|disk}} {n}", "width": (16, 64, 24, 72, 32)[n], "height": 24, "seed": n} for n in range(5)
    ],
}
TOO_LARGE = {"dropout": 0.2, "batch_norm": True}
PAIR_JOBS: dict[str, dict[str, object]] = {
    "samples of one": SAMPLING,
    "samples of all": {**SAMPLING, "share_sampling": True},
    # all samples but the first and the third have more than 700 pixels
    "a sample does not fit": {**SAMPLING, "family_options": {**TOO_LARGE, "faults": ["fits_sample:0:700"]}},
    "a shared sample does not fit": {
        **SAMPLING,
        "family_options": {**TOO_LARGE, "faults": ["fits_sample:1:700"]},
        "share_sampling": True,
    },
    "stopped while sampling": {
        **SAMPLING,
        "samples": [{**sample, "prompt": "stop on rank 1"} for sample in SAMPLING["samples"]],  # type: ignore[attr-defined]
        "share_sampling": True,
        "max_steps": 1000,
        "epochs": 1000,
    },
    "a sample fails": {
        **SAMPLING,
        "samples": [{"prompt": "a disc"}, {"prompt": "cannot be drawn"}],
        "share_sampling": True,
    },
}


def test_the_images_are_the_same_files(pair: dict[str, Run]) -> None:
    one, everyone = (sorted(pair[name].folder.samples_dir.iterdir()) for name in ("samples of one", "samples of all"))
    assert [file.name for file in one] == [file.name for file in everyone]
    assert len(one) == 2 * 6, "five samples and a grid, at step 2 and at the end"
    assert len({file.read_bytes() for file in one}) == len(one)
    for first, second in zip(one, everyone, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_shared_sampling_changes_nothing_else(pair: dict[str, Run]) -> None:
    one, everyone = (pair[name] for name in ("samples of one", "samples of all"))
    assert same_state(one.state, everyone.state)
    assert one.losses == everyone.losses
    reported = [
        event["total"] for event in everyone.events("phase") if event["phase"] == "sampling" and "total" in event
    ]
    assert set(reported) == {3}, "rank 0 generates three of five"


def test_a_stop_leaves_out_the_remaining_samples(pair: dict[str, Run]) -> None:
    """Rank 1 alone is told to stop, during the first of its images; both agree before the next ones."""
    run, whole = pair["stopped while sampling"], pair["samples of one"]
    assert run.events()[-1]["reason"] == "terminated"
    names = [f"step-000002-{number}.png" for number in ("00", "01", "grid")]
    assert sorted(file.name for file in run.folder.samples_dir.iterdir() if "000002" in file.name) == names
    for name in names[:2]:
        drawn = (Image.open(each.folder.samples_dir / name) for each in (run, whole))
        assert len({image.tobytes() for image in drawn}) == 1
    assert run.losses[:3] == whole.losses, "nothing else has changed"


def test_an_image_with_an_error_costs_the_run_only_this_image(pair: dict[str, Run]) -> None:
    run = pair["a sample fails"]
    assert group_exit_codes(run, 2) == [0, 0]
    assert {file.name[12:-4] for file in run.folder.samples_dir.iterdir()} == {"00", "grid"}
    assert "in the sample 'cannot be drawn' (16x16), so it is left out and training continues: " in run.warnings
    assert "RuntimeError: this prompt cannot be drawn. Full traceback: " in run.warnings
    assert "raise RuntimeError" in run.folder.log_file(1).read_text()


@pytest.mark.parametrize(("name", "rank", "lost"), [("", 0, [1, 3, 4]), ("shared ", 1, [1, 3])])
def test_a_sample_that_does_not_fit_is_left_out(pair: dict[str, Run], name: str, rank: int, lost: list[int]) -> None:
    run, whole = pair[f"a {name}sample does not fit"], pair["samples of one"]
    assert group_exit_codes(run, 2) == [0, 0]
    for number in range(5):
        file = run.folder.samples_dir / f"step-000002-{number:02d}.png"
        assert file.exists() != (number in lost)
        if file.exists():
            assert file.read_bytes() == (whole.folder.samples_dir / file.name).read_bytes()
    warnings = [line for line in run.warnings.splitlines() if "Step 2: out of memory" in line]
    assert len(warnings) == len(lost)
    assert f"on rank {rank} (" in warnings[0]
    assert "the sample 'disk 1' (64x24)" in warnings[0]
    assert "Tried to allocate 2.00 GiB" in warnings[0]
    assert same_state(run.state, whole.state)
    assert run.losses == whole.losses
