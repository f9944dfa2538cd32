"""Too little memory for a config is known, and which settings make it fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules import ROOT
from modules.config import ConfigError, TandemError, TrainConfig, override
from modules.distributed.rank_group import SingleProcess
from modules.families._by_name import family_class
from modules.monitoring import SilentReport
from modules.run import RunFolder
from modules.training.loop.setup import Parallelism, build_components
from modules.training.memory import advice, report
from modules.training.memory.advice import RESERVED, _changes, memory_problem, settings_that_fit
from modules.training.memory.report import check_capacity, check_memory
from modules.training.memory.table import memory_table
from modules.training.state.plan import plan_run
from tests.families.tiny_flow_pipelines import tiny_qwen_image

pytestmark = pytest.mark.slow


def config_of(base: Path, **more: object) -> TrainConfig:
    given = {"family": "stable_diffusion", "base_model": str(base), "resolution": 512, "batch_size": 4}
    return TrainConfig.model_validate({**given, **more})


def test_settings_that_fit_make_the_table_smaller(sd_folder: Path) -> None:
    config, kind = config_of(sd_folder, ema=True), family_class("stable_diffusion")
    table = memory_table(kind, config)
    assert table is not None
    needed = table.needed() + RESERVED
    assert memory_problem(table, needed, "the GPU") == ""
    said = memory_problem(table, needed - 1, "the GPU of 24 GB")
    assert "This run needs about" in said
    assert "the GPU of 24 GB has" in said
    found = settings_that_fit(kind, config, needed - 1)
    assert found[0] == "ema_on_cpu=true"
    less = settings_that_fit(kind, config, RESERVED + table.needed() // 3)
    assert "gradient_checkpointing=true" in less
    changed = TrainConfig.model_validate(override(config.model_dump(mode="json"), less))
    smaller = memory_table(kind, changed)
    assert smaller is not None
    assert smaller.needed() <= table.needed() // 3
    assert settings_that_fit(kind, config, 1) == []


@pytest.mark.parametrize(
    ("configured", "present", "said"),
    [
        (2, 4, r"This run keeps at least .*It should fit with"),  # as torchrun starts it
        (4, 1, "concepts"),  # without three lost machines
    ],
)
def test_the_machines_that_are_there_divide_the_weights(
    sd_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: int, present: int, said: str
) -> None:
    hybrid = {"enable_multi_gpu": True, "training_mode": "fully_sharded", "fsdp_replicate": "machines"}
    of_each = {"num_nodes": configured, "processes_per_node": [1] * configured}
    images = [{"path": str(tmp_path / "none")}]
    config = config_of(sd_folder, **hybrid, **of_each, method="fine_tune", concepts=images, resolution=64, batch_size=1)
    kind, ranks = family_class("stable_diffusion"), SingleProcess([])
    ranks.world_size, ranks.machines = 4, present
    each = [memory_table(kind, config.model_copy(update={"num_nodes": n}), 4, activations=False) for n in (1, 4)]
    between = sum(table.needed(only_exact=True) for table in each if table) / 2
    monkeypatch.setattr(advice, "RESERVED", 0)
    monkeypatch.setattr(report, "usable_memory_mib", lambda: SimpleNamespace(total=between / 2**20))
    unused: Any = None
    parallelism = Parallelism(
        unused, torch.amp.GradScaler, equal_micro_batches=True, backup_writer=unused, gradient_ranks=4
    )
    with pytest.raises(TandemError, match=said):
        build_components(
            config, RunFolder(tmp_path), plan_run(config, 4), ranks, parallelism, SilentReport(), lambda: None
        )


def test_a_lora_is_told_to_quantise(sd_folder: Path) -> None:
    config, kind = (
        config_of(sd_folder, method="lora", gradient_checkpointing=True, batch_size=1),
        family_class("stable_diffusion"),
    )
    table = memory_table(kind, config)
    assert table is not None
    found = settings_that_fit(kind, config, table.needed() - 100 + RESERVED)
    assert found[:2] == ["precision=bf16", "weights bf16 for the part unet"][: len(found)]


def test_a_text_encoder_that_does_not_fit_is_kept_in_fewer_bits(tmp_path: Path) -> None:
    base = tiny_qwen_image(tmp_path / "qwen_image")
    given = {"family": "qwen_image", "base_model": str(base), "method": "lora", "precision": "bf16"}
    config, kind = TrainConfig.model_validate(given), family_class("qwen_image")
    table = memory_table(kind, config, activations=False)
    assert table is not None
    sizes = [table.total("device", "caching")]
    said = []
    for change, texts in _changes(kind, config, caching_fits=False):
        if "text_encoder_weights" in texts[0]:
            said += texts
            changed = TrainConfig.model_validate(change(config.model_dump(mode="json")))
            assert changed == TrainConfig.model_validate(override(config.model_dump(mode="json"), texts))
            smaller = memory_table(kind, changed, activations=False)
            assert smaller is not None
            sizes.append(smaller.total("device", "caching"))
    assert said == ["family_options.text_encoder_weights=int8", "family_options.text_encoder_weights=nf4"]
    assert sizes[0] > sizes[1] > sizes[2]
    assert not [texts for _, texts in _changes(kind, config, caching_fits=True) if "encoder" in texts[0]]


def test_unknown_models_have_no_table() -> None:
    config = TrainConfig.model_validate({"family": "flux", "base_model": "someone/else", "method": "lora"})
    assert memory_table(family_class("flux"), config) is None
    assert settings_that_fit(family_class("flux"), config, 1 << 40) == []


def test_what_cannot_fit_is_refused_before_loading(sd_folder: Path) -> None:
    config, kind = config_of(sd_folder), family_class("stable_diffusion")
    table = memory_table(kind, config, activations=False)
    assert table is not None
    certain = table.needed(only_exact=True)
    with pytest.raises(ConfigError, match=r"This run keeps at least .*, but the GPU has"):
        check_capacity(kind, config, certain - 1, "the GPU", 1)
    check_capacity(kind, config, certain, "the GPU", 1)
    check_memory(kind, config, torch.device("cpu"), 1)


def test_the_window_gets_the_table_as_json(sd_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "modules.training.memory_table"],
        input=config_of(sd_folder).model_dump_json(),
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        check=True,
    )
    data = json.loads(done.stdout)
    assert {"what", "place", "bytes", "phase", "is_exact"} == set(data["rows"][0])
    assert data["has_activations"]
    assert any("Memory of the device while training:" in line for line in data["lines"])
    assert data["problems"] == []
