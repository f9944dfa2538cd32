"""The promise that the number of ranks changes the speed and not the result."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.training.studies import parity
from modules.training.studies.parity import comparable, loss_difference, weight_difference
from tests.pair_jobs import ADAPTERS, DDP_JOBS, FP64_JOBS, PARITY, SHARDED_ADAPTERS, STEPS, TIMEOUTS
from tests.runs import ROOT, Job, Run, group_settings, recorded, tiny_config, train_alone, train_group

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("pair")]

DROPOUT: dict[str, object] = {**PARITY, "max_steps": 16, "batch_size": 3, "family_options": {"dropout": 0.3}}
UNLIKE: dict[str, object] = {"family_options": {"batch_norm": True}}
PAIR_JOBS: dict[str, dict[str, object]] = {
    **FP64_JOBS,
    **DDP_JOBS,
    "fp64 accumulated": {
        **PARITY,
        "batch_size": 2,
        "gradient_accumulation_steps": 3,
        "family_options": {"record": "two accumulated"},
    },
    "fp32": {"max_steps": STEPS},
    "dropout": DROPOUT,
    **ADAPTERS,
    **SHARDED_ADAPTERS,
    "compared": {**UNLIKE, "training_mode": "fully_sharded", "precision": "fp32", "max_steps": parity.STEPS},
}

# five channels: on four ranks the last two hold no row of most weights
BLOCKS: dict[str, object] = {"family": str(ROOT / "tests" / "block_family.py"), "family_options": {"width": 5}}
SHARDED: dict[str, object] = {**PARITY, **BLOCKS, "training_mode": "fully_sharded"}
# Three ranks share batches that do not divide evenly, four of them a model that does not.
THREE: dict[str, dict[str, object]] = {
    "fp64": PARITY,
    "fp64 accumulated": {**PARITY, "batch_size": 1, "gradient_accumulation_steps": 2},
    "not compressed yet": {**PARITY, "gradient_compression": "powersgd", "powersgd_start_step": 100},
    "fp32": {"max_steps": STEPS},
    "dropout": DROPOUT,
    "lora": ADAPTERS["lora"],
    "embedding": ADAPTERS["embedding"],
}
FOUR: dict[str, dict[str, object]] = {
    "sharded": SHARDED,
    "sharded accumulated": {**SHARDED, "batch_size": 1, "fsdp_whole_gradients": True},
    "sharded and kept": {**SHARDED, "batch_size": 2, "fsdp_reshard_after_forward": False},
    "sharded fp32": {**SHARDED, "precision": "fp32"},
    "sharded dropout": {
        **DROPOUT,
        **BLOCKS,
        "family_options": {"width": 5, "dropout": 0.3},
        "training_mode": "fully_sharded",
        "gradient_checkpointing": True,
    },
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
def one_of_blocks(images: Path, place: Path) -> Run:
    code, run = train_alone(tiny_config(images, place, run_name="one-of-blocks", **{**PARITY, **BLOCKS}))
    assert code == 0
    return run


@pytest.fixture(scope="module")
def three(images: Path, place: Path) -> dict[str, Run]:
    return train_group(3, {name: Job(job(images, place, 3, name, settings)) for name, settings in THREE.items()})


@pytest.fixture(scope="module")
def four(images: Path, place: Path) -> dict[str, Run]:
    (place / "four").mkdir()
    jobs = {"fp64": {**PARITY, "family_options": {"record": str(place / "four")}}, **FOUR}
    return train_group(4, {name: Job(job(images, place, 4, name, settings)) for name, settings in jobs.items()})


def job(images: Path, place: Path, ranks: int, name: str, settings: dict[str, object]) -> TrainConfig:
    named = {"run_name": f"{ranks}-{name.replace(' ', '-')}", **group_settings(ranks), **TIMEOUTS}
    return tiny_config(images, place, **{**named, **settings})


def assert_same_run(first: Run, other: Run, tolerance: float, steps: int = STEPS) -> None:
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
def test_three_and_four_ranks_train_as_one_does(one: Run, three: dict[str, Run], four: dict[str, Run]) -> None:
    assert_same_run(one, four["fp64"], 1e-9)
    for name in ("fp64", "fp64 accumulated", "not compressed yet"):
        assert_same_run(one, three[name], 1e-9)


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
    many = four if name in FOUR else three
    assert_same_run(adapted[name.removeprefix("sharded ")], many[name], 1e-9, steps=16)


@pytest.mark.slow
def test_dropout_is_the_same_on_any_number_of_ranks(
    images: Path, place: Path, pair: dict[str, Run], three: dict[str, Run], four: dict[str, Run]
) -> None:
    alone = {**DROPOUT, "batch_size": 8}
    _, plain = train_alone(tiny_config(images, place, run_name="one-dropout", **alone))
    sharded = {**alone, **BLOCKS, "family_options": {"width": 5, "dropout": 0.3}}
    _, of_blocks = train_alone(tiny_config(images, place, run_name="one-dropout-of-blocks", **sharded))
    for many in (pair, three):
        assert_same_run(plain, many["dropout"], 1e-9, steps=16)
    assert_same_run(of_blocks, four["sharded dropout"], 1e-9, steps=16)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sharded", "sharded accumulated", "sharded and kept"])
def test_four_ranks_that_divide_the_model_do_so_too(one_of_blocks: Run, four: dict[str, Run], name: str) -> None:
    assert_same_run(one_of_blocks, four[name], 1e-9)


@pytest.mark.slow
def test_in_single_precision_they_agree_to_its_rounding(
    images: Path, place: Path, pair: dict[str, Run], three: dict[str, Run], four: dict[str, Run]
) -> None:
    _, alone = train_alone(tiny_config(images, place, run_name="one-32", max_steps=STEPS))
    _, of_blocks = train_alone(tiny_config(images, place, run_name="one-32-of-blocks", max_steps=STEPS, **BLOCKS))
    for many in (pair, three):
        assert_same_run(alone, many["fp32"], 1e-4)
    assert_same_run(of_blocks, four["sharded fp32"], 1e-4)


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
    assert len(weights[0]) == STEPS
    assert all(other == weights[0] for other in weights[1:])


def test_an_epoch_shows_every_picture_once(place: Path, one: Run) -> None:
    seen = recorded(place / "one", 0, skip_first_call=False).samples[:41]
    assert len({sample[0] for sample in seen}) == 41
    assert one.state.position.epoch_size == 41


def test_settings_that_need_validations_are_left_out_of_the_comparison() -> None:
    stopping = {"early_stopping_patience": 3, "restore_best": True}
    config = TrainConfig.model_validate({"validate_every": "1 epoch", "validation_split": 0.1, **stopping})
    TrainConfig.model_validate(comparable(config, 2).model_dump(mode="json"))  # as its runs read it


@pytest.mark.slow
def test_a_model_with_batch_norm_is_told_and_divided_if_the_config_does(
    images: Path, place: Path, pair: dict[str, Run]
) -> None:
    asked = tiny_config(images, place, **{**group_settings(2), **UNLIKE, "training_mode": "fully_sharded"})
    *alone, group = compared = parity.variants(comparable(asked, 2), 2)
    assert group.label == "2 processes, fully sharded"
    runs = {group.name: pair["compared"]}
    for each in alone:
        own = {**comparable(asked, 2).model_dump(), **each.settings, "run_name": f"compared-{each.name}"}
        _, runs[each.name] = train_alone(TrainConfig.model_validate(own))
    said: list[str] = []
    results = {name: parity.VariantResult(run.losses, run.state) for name, run in runs.items()}
    assert parity.judge(results, compared, parity.TOLERANCE["fp32"], said.append) == 3
    assert "Parity does NOT hold" in said[-2]
    assert "BatchNorm" in said[-1]


def test_curves_of_unequal_length_differ_infinitely() -> None:
    assert loss_difference([1.0, 2.0], [1.0]) == float("inf")
    assert loss_difference([1.0, 2.0], [1.0, 2.5]) == pytest.approx(0.25)
