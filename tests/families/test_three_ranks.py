"""Three ranks train every diffusion family as one does: adapters with DDP, whole models with FSDP2, and a last step for
one rank alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.training.studies.parity import loss_difference, weight_difference
from tests.conftest import draw_images
from tests.data.helpers import write_image
from tests.families.bitsandbytes_folders import quantized_folder
from tests.families.tiny_flow_pipelines import TINY
from tests.pair_jobs import TIMEOUTS
from tests.runs import Job, Run, group_settings, tiny_config, train_alone, train_group

FLOW = (
    *("z_image", "flux", "flux2", "krea2", "qwen_image", "chroma", "stable_diffusion_3", "lumina2", "ernie_image"),
    "wan",
)
CAPTIONS = ("a red <c>", "a blue <c>, number 2, on a wooden table", "<c>")
LORA: dict[str, object] = {"method": "lora", "lora_rank": 2, "lora_alpha": 2.0, "caption_dropout": 0.3}
INT8: dict[str, object] = {**LORA, "parts": [{"part": "transformer", "weights": "int8"}]}
PLAIN_LORA = ("stable_diffusion_3", "wan")  # others train one that edits or is on int8; all are trained whole
BOTH = [{"part": "unet"}, {"part": "text_encoder", "learning_rate": 0.005}]
FINE_TUNE: dict[str, dict[str, object]] = {
    "stable_diffusion": {"caption_dropout": 0.3, "parts": BOTH},
    "stable_diffusion_xl": {
        "family_options": {"loss_weighting": "min_snr", "offset_noise": 0.05},
        "cache_precision": "bf16",
    },
}
LORA_OF_UNETS = {"method": "lora", "lora_rank": 2, "lora_targets": "attention_mlp", "lora_dropout": 0.2}
EMBEDDING: dict[str, object] = {"method": "embedding", "embedding_token": "<c>", "embedding_init": "cat"}


def configs(images: Path, place: Path, bases: dict[str, Path]) -> dict[str, TrainConfig]:
    """One rank's, by family and method: two steps, of six samples and of the seventh, which ranks 1 and 2 lack."""
    common = {"precision": "fp64", "max_steps": 2, "batch_size": 2, "global_batch_size": 6, "resolution": 64}
    settings = {
        **{f"{family} lora": LORA for family in PLAIN_LORA},
        **{f"{family} fine_tune": {} for family in FLOW},
        **{f"{family} lora": LORA_OF_UNETS for family in FINE_TUNE},
        "stable_diffusion_xl embedding": EMBEDDING,  # in two text encoders
        **{f"{family} fine_tune": each for family, each in FINE_TUNE.items()},
        "z_image int8": INT8,
        "flux_kontext edits": {
            **LORA,
            "reference_dropout": 0.4,
            "concepts": [{"path": str(images), "references": str(place / "references")}],
        },
        "flux2 edits": {
            **LORA,
            "reference_dropout": 0.4,
            "concepts": [{"path": str(images), "references": [str(place / "references"), str(place / "more")]}],
        },
        "qwen_image_edit edits": {
            **LORA,
            "concepts": [{"path": str(images), "references": [str(place / "references"), str(place / "more")]}],
        },
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
    whole = [name for name in one if "fine_tune" in name]
    different: dict[str, dict[str, object]] = {
        **{f"{name} fully_sharded": {"training_mode": "fully_sharded"} for name in (*whole, "flux2 stored")},
        **{f"{name} distributed": {} for name in one if name not in whole or name.split()[0] in FINE_TUNE},
        "z_image int8 offloaded": {"block_offload": 1.0},
    }
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
        bases = {family: TINY[family](tmp_path / family) for family in (*FLOW, "flux_kontext", "qwen_image_edit")}
    for number, file in enumerate(sorted(images.glob("*.png"))):
        write_image(tmp_path / "references" / file.name, 64, 64 if number % 2 else 90, seed=number)
        write_image(tmp_path / "more" / f"{file.stem}_1.png", 64, 64, seed=number)
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
