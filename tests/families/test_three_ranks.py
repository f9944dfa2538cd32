"""Three ranks train every diffusion family as one does: each method, DDP and FSDP2, a last step for one rank alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.training.studies.parity import loss_difference, weight_difference
from tests.conftest import draw_images
from tests.families.bitsandbytes_folders import quantized_folder
from tests.families.tiny_flow_pipelines import TINY
from tests.pair_jobs import TIMEOUTS
from tests.runs import Job, Run, group_settings, tiny_config, train_alone, train_group

FLOW = ("z_image", "flux", "flux2", "krea2", "qwen_image", "chroma", "stable_diffusion_3", "lumina2")
CAPTIONS = ("a red <c>", "a blue <c>, number 2, on a wooden table", "<c>")
LORA: dict[str, object] = {"method": "lora", "lora_rank": 2, "lora_alpha": 2.0, "caption_dropout": 0.3}
INT8: dict[str, object] = {**LORA, "parts": [{"part": "transformer", "weights": "int8"}]}
OF_FLOW: dict[str, dict[str, object]] = {"lora": LORA, "fine_tune": {}}
OF_UNETS: dict[str, dict[str, object]] = {
    "fine_tune": {"caption_dropout": 0.2},
    "lora": {"method": "lora", "lora_rank": 2, "lora_targets": "attention_mlp", "lora_dropout": 0.2},
    "embedding": {"method": "embedding", "embedding_token": "<c>", "embedding_init": "cat"},
}


def configs(images: Path, place: Path, bases: dict[str, Path]) -> dict[str, TrainConfig]:
    """One rank's, by family and method: two steps, of six samples and of the seventh, which ranks 1 and 2 lack."""
    common = {"precision": "fp64", "max_steps": 2, "batch_size": 2, "global_batch_size": 6, "resolution": 64}
    settings = {
        **{f"{family} {method}": each for family in FLOW for method, each in OF_FLOW.items()},
        **{f"{family} {method}": each for family in bases for method, each in OF_UNETS.items() if family not in FLOW},
        "z_image int8": INT8,
        "flux2 stored": {**LORA, "base_model": str(quantized_folder(bases["flux2"], place / "stored", "nf4"))},
    }
    return {
        name: tiny_config(
            images, place, **{"family": name.split()[0], "base_model": str(bases[name.split()[0]]), **common, **each},
            run_name=f"one-{name.replace(' ', '-')}",
        )
        for name, each in settings.items()
    }  # fmt: skip


def of_three(one: dict[str, TrainConfig]) -> dict[str, TrainConfig]:
    """The runs of three ranks, by the name of one rank's run and what is different."""
    different: dict[str, dict[str, object]] = {
        **{f"{name} distributed": {} for name in one},
        **{f"{name} fully_sharded": {"training_mode": "fully_sharded"} for name in one if name.split()[0] in FLOW},
        "z_image int8 offloaded": {"block_offload": 1.0},
    }
    del different["z_image int8 fully_sharded"]
    return {
        name: TrainConfig.model_validate(
            one[name.rpartition(" ")[0]].model_dump()
            | {**group_settings(3), **TIMEOUTS, **each, "run_name": name.replace(" ", "-")}
        )
        for name, each in different.items()
    }


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")  # Krea 2's norms calculate in fp32, also of fp64
def test_three_ranks_train_as_one_does(sd_folder: Path, sdxl_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    images = draw_images(tmp_path / "images", 7)
    for number, file in enumerate(sorted(images.glob("*.txt"))):
        file.write_text(CAPTIONS[number % 3])
    with quiet_libraries():
        bases = {family: TINY[family](tmp_path / family) for family in FLOW}
    one = configs(images, tmp_path, bases | {"stable_diffusion": sd_folder, "stable_diffusion_xl": sdxl_folder})
    alone: dict[str, Run] = {}
    for name, config in one.items():
        code, alone[name] = train_alone(config)
        assert code == 0, alone[name].failure(0)
    three = train_group(3, {name: Job(config) for name, config in of_three(one).items()})
    for name, run in three.items():
        same = alone[name.rpartition(" ")[0]]
        assert len(run.losses) == 2, (name, run.failure(0))
        assert loss_difference(same.losses, run.losses) <= 1e-9, name
        assert weight_difference(same.state, run.state) <= 1e-9, name
