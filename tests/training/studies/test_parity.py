"""The promise that the number of ranks changes the speed and not the result."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.training.studies.parity import comparable, loss_difference, weight_difference
from tests.pair_jobs import ADAPTERS, DDP_JOBS, FP64_JOBS, PARITY, SHARDED_ADAPTERS, TIMEOUTS
from tests.runs import ROOT, Job, Run, group_settings, recorded, tiny_config, train_alone, train_group

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("pair")]

DROPOUT: dict[str, object] = {**PARITY, "max_steps": 16, "batch_size": 3, "family_options": {"dropout": 0.3}}
PAIR_JOBS: dict[str, dict[str, object]] = {
    **FP64_JOBS,
    **DDP_JOBS,
    "fp64 accumulated": {
        **PARITY,
        "batch_size": 2,
        "gradient_accumulation_steps": 3,
        "family_options": {"record": "two accumulated"},
    },
    "fp32": {"max_steps": 50},
    "dropout": DROPOUT,
    **ADAPTERS,
    **SHARDED_ADAPTERS,
}

# five channels: on four ranks the last two hold no row of most weights
BLOCKS: dict[str, object] = {"family": str(ROOT / "tests" / "block_family.py"), "family_options": {"width": 5}}
SHORT_STEPS = 8  # the last of an epoch, which has one sample, and two of the next
SHORT: dict[str, object] = {**PARITY, "max_steps": SHORT_STEPS}
SHARDED: dict[str, object] = {**SHORT, **BLOCKS, "training_mode": "fully_sharded"}
MANY: dict[str, dict[str, object]] = {
    "fp64": PARITY,
    "fp64 accumulated": {**SHORT, "batch_size": 1, "gradient_accumulation_steps": 2},
    "not compressed yet": {**SHORT, "gradient_compression": "powersgd", "powersgd_start_step": 100},
    "fp32": {"max_steps": SHORT_STEPS},
    "sharded": SHARDED,
    "sharded accumulated": {**SHARDED, "batch_size": 1, "fsdp_whole_gradients": True},
    "sharded and kept": {**SHARDED, "batch_size": 2, "fsdp_reshard_after_forward": False},
    "sharded fp32": {**SHARDED, "precision": "fp32"},
    "dropout": DROPOUT,
    "sharded dropout": {
        **DROPOUT,
        **BLOCKS,
        "family_options": {"width": 5, "dropout": 0.3},
        "training_mode": "fully_sharded",
        "gradient_checkpointing": True,
    },
    "lora": ADAPTERS["lora"],
    "embedding": ADAPTERS["embedding"],
    "sharded dora": SHARDED_ADAPTERS["sharded dora"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def one(images: Path, place: Path) -> Run:
    (place / "one").mkdir()
    code, run = train_alone(tiny_config(images, place, family_options={"record": str(place / "one")}, **PARITY))
    assert code == 0
    return run


@pytest.fixture(scope="module")
def short(images: Path, place: Path) -> Run:
    code, run = train_alone(tiny_config(images, place, run_name="one-short", **SHORT))
    assert code == 0
    return run


@pytest.fixture(scope="module")
def one_of_blocks(images: Path, place: Path) -> Run:
    code, run = train_alone(tiny_config(images, place, run_name="one-of-blocks", **{**SHORT, **BLOCKS}))
    assert code == 0
    return run


@pytest.fixture(scope="module")
def three(images: Path, place: Path) -> dict[str, Run]:
    return train_group(3, {name: Job(job(images, place, 3, name, settings)) for name, settings in MANY.items()})


@pytest.fixture(scope="module")
def four(images: Path, place: Path) -> dict[str, Run]:
    (place / "four").mkdir()
    recorded = {**MANY, "fp64": {**PARITY, "family_options": {"record": str(place / "four")}}}
    return train_group(4, {name: Job(job(images, place, 4, name, settings)) for name, settings in recorded.items()})


def job(images: Path, place: Path, ranks: int, name: str, settings: dict[str, object]) -> TrainConfig:
    named = {"run_name": f"{ranks}-{name.replace(' ', '-')}", **group_settings(ranks), **TIMEOUTS}
    return tiny_config(images, place, **{**named, **settings})


def assert_same_run(first: Run, other: Run, tolerance: float, steps: int = 50) -> None:
    assert len(first.losses) == steps
    assert loss_difference(first.losses, other.losses) <= tolerance
    assert weight_difference(first.state, other.state) <= tolerance


@pytest.mark.slow
def test_a_run_is_the_same_with_smaller_micro_batches(images: Path, place: Path, one: Run) -> None:
    _, other = train_alone(
        tiny_config(images, place, run_name="small", **PARITY, batch_size=3, gradient_accumulation_steps=2)
    )
    assert_same_run(one, other, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp64", "fp64 accumulated", "ddp options", "static graph"])
def test_two_ranks_train_as_one_does(one: Run, pair: dict[str, Run], name: str) -> None:
    assert_same_run(one, pair[name], 1e-9)


@pytest.mark.slow
def test_three_and_four_ranks_train_as_one_does(
    one: Run, short: Run, three: dict[str, Run], four: dict[str, Run]
) -> None:
    for many in (three, four):
        assert_same_run(one, many["fp64"], 1e-9)
        assert_same_run(short, many["fp64 accumulated"], 1e-9, steps=SHORT_STEPS)
        assert_same_run(short, many["not compressed yet"], 1e-9, steps=SHORT_STEPS)


@pytest.fixture(scope="module")
def adapted(images: Path, place: Path) -> dict[str, Run]:
    """One rank's runs of the adapters, by name."""
    runs = {}
    for name, settings in ADAPTERS.items():
        code, runs[name] = train_alone(tiny_config(images, place, run_name=f"one-{name}", **settings))
        assert code == 0
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ADAPTERS, *SHARDED_ADAPTERS])
def test_two_ranks_train_adapters_and_parts_as_one_does(
    adapted: dict[str, Run], pair: dict[str, Run], name: str
) -> None:
    assert_same_run(adapted[name.removeprefix("sharded ")], pair[name], 1e-9, steps=16)
    files = {path.name for path in pair[name].folder.model_dir.iterdir()}
    assert files == {path.name for path in adapted[name.removeprefix("sharded ")].folder.model_dir.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lora", "embedding", "sharded dora"])
def test_three_and_four_ranks_do_so_too(
    adapted: dict[str, Run], three: dict[str, Run], four: dict[str, Run], name: str
) -> None:
    assert_same_run(adapted[name.removeprefix("sharded ")], three[name], 1e-9, steps=16)
    assert_same_run(adapted[name.removeprefix("sharded ")], four[name], 1e-9, steps=16)


@pytest.mark.slow
def test_dropout_is_the_same_on_any_number_of_ranks(
    images: Path, place: Path, pair: dict[str, Run], three: dict[str, Run], four: dict[str, Run]
) -> None:
    alone = {**DROPOUT, "batch_size": 8}
    _, plain = train_alone(tiny_config(images, place, run_name="one-dropout", **alone))
    sharded = {**alone, **BLOCKS, "family_options": {"width": 5, "dropout": 0.3}}
    _, of_blocks = train_alone(tiny_config(images, place, run_name="one-dropout-of-blocks", **sharded))
    for many in (pair, three, four):
        assert_same_run(plain, many["dropout"], 1e-9, steps=16)
    for many in (three, four):
        assert_same_run(of_blocks, many["sharded dropout"], 1e-9, steps=16)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sharded", "sharded accumulated", "sharded and kept"])
def test_three_and_four_ranks_that_divide_the_model_do_so_too(
    one_of_blocks: Run, three: dict[str, Run], four: dict[str, Run], name: str
) -> None:
    assert_same_run(one_of_blocks, three[name], 1e-9, steps=SHORT_STEPS)
    assert_same_run(one_of_blocks, four[name], 1e-9, steps=SHORT_STEPS)


@pytest.mark.slow
def test_in_single_precision_they_agree_to_its_rounding(
    images: Path, place: Path, pair: dict[str, Run], three: dict[str, Run], four: dict[str, Run]
) -> None:
    _, alone = train_alone(tiny_config(images, place, run_name="one-32", max_steps=50))
    _, of_short = train_alone(tiny_config(images, place, run_name="one-32-short", max_steps=SHORT_STEPS))
    _, of_blocks = train_alone(tiny_config(images, place, run_name="one-32-of-blocks", max_steps=SHORT_STEPS, **BLOCKS))
    assert_same_run(alone, pair["fp32"], 1e-4)
    for many in (three, four):
        assert_same_run(of_short, many["fp32"], 1e-4, steps=SHORT_STEPS)
        assert_same_run(of_blocks, many["sharded fp32"], 1e-4, steps=SHORT_STEPS)


@pytest.mark.slow
def test_all_see_the_same_samples_with_the_same_draws(
    place: Path, pair_place: Path, one: Run, pair: dict[str, Run], four: dict[str, Run]
) -> None:
    alone = sorted(recorded(place / "one", 0, skip_first_call=False).samples)
    assert len(alone) == one.state.position.samples_seen
    for folder, ranks in ((pair_place / "two", 2), (pair_place / "two accumulated", 2), (place / "four", 4)):
        shares = [recorded(folder, rank, skip_first_call=True).samples for rank in range(ranks)]
        assert all(shares), "every rank has work"
        assert sorted(sample for share in shares for sample in share) == alone


@pytest.mark.slow
def test_all_ranks_hold_the_same_weights_after_every_step(place: Path, four: dict[str, Run]) -> None:
    weights = [recorded(place / "four", rank, skip_first_call=True).weights for rank in range(4)]
    assert len(weights[0]) == 50
    assert all(other == weights[0] for other in weights[1:])


def test_an_epoch_shows_every_picture_once(place: Path, one: Run) -> None:
    seen = recorded(place / "one", 0, skip_first_call=False).samples[:41]
    assert len({sample[0] for sample in seen}) == 41
    assert one.state.position.epoch_size == 41


def test_settings_that_need_validations_are_left_out_of_the_comparison() -> None:
    stopping = {"early_stopping_patience": 3, "restore_best": True}
    config = TrainConfig.model_validate({"validate_every": "1 epoch", "validation_split": 0.1, **stopping})
    TrainConfig.model_validate(comparable(config, 2).model_dump(mode="json"))  # as its runs read it


def test_curves_of_unequal_length_differ_infinitely() -> None:
    assert loss_difference([1.0, 2.0], [1.0]) == float("inf")
    assert loss_difference([1.0, 2.0], [1.0, 2.5]) == pytest.approx(0.25)
