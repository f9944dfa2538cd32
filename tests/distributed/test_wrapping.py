"""The settings of DistributedDataParallel in real runs of two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.run import root_cause
from modules.training.parity import weight_difference
from tests.runs import Run, group_exit_codes, tiny_config, train_alone

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["fp16 exchange", "powersgd"])
def test_compressed_gradients_train_nearly_alike(
    pictures: Path, tmp_path: Path, pair: dict[str, Run], name: str
) -> None:
    _, exact = train_alone(tiny_config(pictures, tmp_path))
    assert pair[name].exit_code == 0
    assert weight_difference(exact.state, pair[name].state) < 0.05
    assert pair[name].losses[-1] < pair[name].losses[0]


def test_fp16_exchange_really_rounds(pictures: Path, tmp_path: Path, pair: dict[str, Run]) -> None:
    _, exact = train_alone(tiny_config(pictures, tmp_path))
    assert weight_difference(exact.state, pair["fp16 exchange"].state) > 1e-7


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bf16 exchange", "gradient_compression is 'bf16', which the backend gloo cannot send"),
        ("sync_batch_norm", "sync_batch_norm is on, but it works on CUDA devices only"),
    ],
)
def test_settings_that_cannot_work_here_are_refused(pair: dict[str, Run], name: str, said: str) -> None:
    assert 2 in group_exit_codes(pair[name], 2)
    assert not pair[name].events("step")
    # a slower rank may see only that the faster one has left; what is told is the cause
    cause = root_cause(pair[name].folder)
    assert cause is not None
    assert cause.kind == "config"
    assert said in cause.message


@pytest.mark.parametrize("name", ["knobs", "static graph", "bf16", "fp16"])
def test_the_other_settings_train(pair: dict[str, Run], name: str) -> None:
    assert pair[name].exit_code == 0
    assert pair[name].losses[-1] < pair[name].losses[0]
