"""The settings of DistributedDataParallel in real runs of two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modules.config import ConfigError
from modules.distributed.ddp import with_sync_batch_norm
from modules.run import root_cause
from modules.training.studies.parity import weight_difference
from tests.pair_jobs import DDP_JOBS
from tests.runs import Run, group_exit_codes, group_on_a_gpu, tiny_config, train_alone

pytestmark = [pytest.mark.xdist_group("pair"), pytest.mark.slow]

# One step of one micro-batch on each rank, so that the running averages can be compared with those of one process.
BATCH_NORM: dict[str, object] = {
    "precision": "fp64",
    "max_steps": 1,
    "aspect_ratio_bucketing": False,
    "batch_size": 8,
    "family_options": {"batch_norm": True},
}
PAIR_JOBS: dict[str, dict[str, object]] = {
    **DDP_JOBS,
    "fp16 compression": {"gradient_compression": "fp16"},
    "bf16 compression": {"gradient_compression": "bf16"},
    "powersgd": {"gradient_compression": "powersgd", "powersgd_start_step": 2},
    "sync_batch_norm": {"sync_batch_norm": True},
    "batch norm": BATCH_NORM,
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
}


@pytest.mark.parametrize("name", ["fp16 compression", "bf16 compression", "powersgd"])
def test_compressed_gradients_train_almost_the_same(
    images: Path, tmp_path: Path, pair: dict[str, Run], name: str
) -> None:
    _, exact = train_alone(tiny_config(images, tmp_path))
    assert pair[name].exit_code == 0
    assert weight_difference(exact.state, pair[name].state) < 0.08
    assert pair[name].losses[-1] < pair[name].losses[0]


def test_fp16_compression_really_rounds(images: Path, tmp_path: Path, pair: dict[str, Run]) -> None:
    _, exact = train_alone(tiny_config(images, tmp_path))
    assert weight_difference(exact.state, pair["fp16 compression"].state) > 1e-7


def test_an_unsupported_setting_is_refused(pair: dict[str, Run]) -> None:
    run = pair["sync_batch_norm"]
    assert 2 in group_exit_codes(run, 2)
    assert not run.events("step")
    # a slower rank may see only that the faster one has left; the cause is reported
    cause = root_cause(run.folder)
    assert cause is not None
    assert cause.kind == "config"
    assert "sync_batch_norm is on, but it works on CUDA devices only" in cause.message


def test_batch_norms_averages_follow_the_samples_of_all_ranks(
    images: Path, tmp_path: Path, pair: dict[str, Run]
) -> None:
    _, one = train_alone(tiny_config(images, tmp_path, **BATCH_NORM))
    ours, theirs = one.state.weights, pair["batch norm"].state.weights
    assert theirs["norm.running_mean"].abs().max() > 1e-3
    # the mean of the means of equally many samples is the mean of all
    torch.testing.assert_close(theirs["norm.running_mean"], ours["norm.running_mean"], rtol=1e-9, atol=1e-12)
    assert int(theirs["norm.num_batches_tracked"]) == int(ours["norm.num_batches_tracked"]) == 1


@pytest.mark.parametrize("name", ["ddp options", "static graph", "bf16", "fp16"])
def test_the_other_settings_train(pair: dict[str, Run], name: str) -> None:
    assert pair[name].exit_code == 0
    assert pair[name].losses[-1] < pair[name].losses[0]


def test_sync_batch_norm_keeps_weights_names_and_output() -> None:
    # only the conversion: the layer itself computes on CUDA devices only, see scripts/gpu_check.py
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    weights, names = list(model.parameters()), list(model.state_dict())
    x = torch.randn(2, 3, 5, 5)
    before = model.eval()(x)
    converted: Any = with_sync_batch_norm(model, group_on_a_gpu())
    assert isinstance(converted[1], nn.SyncBatchNorm)
    assert all(now is then for now, then in zip(converted.parameters(), weights, strict=True))
    assert list(converted.state_dict()) == names
    assert torch.equal(converted.eval()(x), before)


def test_sync_batch_norm_drops_no_activation() -> None:
    class NormWithActivation(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return nn.functional.relu(super().forward(input))

    with pytest.raises(ConfigError, match="NormWithActivation of this model does more than a BatchNorm"):
        with_sync_batch_norm(nn.Sequential(NormWithActivation(4)), group_on_a_gpu())
