"""LoRA and new words in Stable Diffusion 1 and XL: trained by real runs, read by diffusers, equal on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from modules.checkpoint import read_model_config
from modules.config import TrainConfig
from modules.distributed import Weights
from modules.families._family import Family, SampleRequest
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import load_family, prepare_model
from modules.training.methods.method import apply_adapter, export_of
from tests.conftest import draw_images
from tests.families.stills import still
from tests.runs import Run, same_state, tiny_config, train_alone

PIPELINES = {"stable_diffusion": StableDiffusionPipeline, "stable_diffusion_xl": StableDiffusionXLPipeline}
ENCODERS = {"stable_diffusion": ("text_encoder",), "stable_diffusion_xl": ("text_encoder", "text_encoder_2")}
TOKEN = "<my-cat>"  # a word of the prompt
REQUEST = SampleRequest(f"a {TOKEN} disc", "", 64, 64, steps=2, guidance_scale=3.0, seed=5)
STEPS = 4


def trains_all(family: str) -> list[dict[str, object]]:
    rate = {"learning_rate": 0.005, "stop_after": "3 steps"}
    return [{"part": "unet"}, *({"part": name, **rate} for name in ENCODERS[family])]


def settings_of(family: str, method: str) -> dict[str, object]:
    """DoRA in all layers for the one, LoRA where attention and what follows it is for the other."""
    common = {"family": family, "method": method, "max_steps": STEPS, "batch_size": 2, "global_batch_size": 4}
    if method == "embedding":
        return {**common, "embedding_token": TOKEN, "embedding_init": "cat", "embedding_vectors": 2}
    dora = family == "stable_diffusion"
    chosen = {"lora_targets": "all" if dora else "attention_mlp", "lora_weight_decompose": dora}
    return {**common, **chosen, "lora_rank": 2, "lora_alpha": 3.0, "parts": trains_all(family)}


@pytest.fixture(scope="module")
def configs(
    tmp_path_factory: pytest.TempPathFactory, sd_folder: Path, sdxl_folder: Path
) -> dict[tuple[str, str], TrainConfig]:
    """By family and method, in double precision."""
    place = tmp_path_factory.mktemp("adapters")
    (place / "images").mkdir()
    images = draw_images(place / "images", 7)
    for number, file in enumerate(sorted(images.glob("*.txt"))):
        file.write_text(f"a {TOKEN} disc" if number % 2 else "a red square")
    bases = {"stable_diffusion": sd_folder, "stable_diffusion_xl": sdxl_folder}
    return {
        (family, method): tiny_config(
            images,
            place,
            base_model=str(base),
            resolution=64,
            precision="fp64",
            run_name=f"one-{family}-{method}",
            **settings_of(family, method),
        )
        for family, base in bases.items()
        for method in ("lora", "embedding")
    }


ALL = [(family, method) for family in PIPELINES for method in ("lora", "embedding")]


@pytest.fixture(scope="module")
def alone(configs: dict[tuple[str, str], TrainConfig]) -> dict[tuple[str, str], Run]:
    sample = {"prompt": REQUEST.prompt, "width": 64, "height": 64, "steps": 2, "guidance_scale": 3.0, "seed": 5}
    runs = {}
    for key, config in configs.items():
        code, run = train_alone(TrainConfig(**(config.model_dump() | {"samples": [sample], "sample_every": "1 epoch"})))
        assert code == 0, run.failure(0)
        runs[key] = run
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("key", ALL, ids=" ".join)
def test_a_resumed_run_is_the_same_to_the_bit(
    key: tuple[str, str], configs: dict[tuple[str, str], TrainConfig], alone: dict[tuple[str, str], Run]
) -> None:
    half = configs[key].model_copy(update={"run_name": f"half-{'-'.join(key)}", "max_steps": STEPS // 2})
    assert train_alone(half)[0] == 0
    code, resumed = train_alone(half.model_copy(update={"max_steps": STEPS}), "latest")
    assert code == 0
    assert same_state(resumed.state, alone[key].state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "file"),
    [
        ("stable_diffusion", "pytorch_lora_weights.safetensors"),
        ("stable_diffusion_xl", "pytorch_lora_weights.safetensors"),
        ("stable_diffusion_xl", "lora_kohya.safetensors"),  # of kohya's layout diffusers leaves DoRA's part out
    ],
)
def test_diffusers_draws_with_the_lora_as_the_run_did(
    family: str, file: str, configs: dict[tuple[str, str], TrainConfig], alone: dict[tuple[str, str], Run]
) -> None:
    run = alone[family, "lora"]
    pipeline = base(configs[family, "lora"])
    pipeline.load_lora_weights(run.folder.model_dir / file)
    assert set(pipeline.get_list_adapters()) == {"unet", *ENCODERS[family]}
    differ_by_a_level_at_most(drawn_by(pipeline), run.folder.samples_dir / "step-000004-00.png")


@pytest.mark.slow
@pytest.mark.parametrize("family", list(PIPELINES))
def test_diffusers_reads_the_new_word_as_the_run_did(
    family: str, configs: dict[tuple[str, str], TrainConfig], alone: dict[tuple[str, str], Run]
) -> None:
    run = alone[family, "embedding"]
    pipeline = base(configs[family, "embedding"])
    file = run.folder.model_dir / "my-cat.safetensors"
    if family == "stable_diffusion":
        pipeline.load_textual_inversion(file, token=TOKEN)
    else:
        vectors = load_file(file)
        for name, part in (("clip_l", ""), ("clip_g", "_2")):
            encoder, tokenizer = (getattr(pipeline, f"{kind}{part}") for kind in ("text_encoder", "tokenizer"))
            pipeline.load_textual_inversion(vectors[name], token=TOKEN, text_encoder=encoder, tokenizer=tokenizer)
        # The line that docs/files.md gives: diffusers would pool at the new token (its issue 10754).
        pipeline.text_encoder_2.text_model.eos_token_id = pipeline.tokenizer_2.eos_token_id
    differ_by_a_level_at_most(drawn_by(pipeline), run.folder.samples_dir / "step-000004-00.png")


@pytest.mark.slow
@pytest.mark.parametrize("key", ALL, ids=" ".join)
def test_the_model_folder_is_enough_to_draw_again(key: tuple[str, str], alone: dict[tuple[str, str], Run]) -> None:
    """What scripts/sample.py does, in the run's precision."""
    folder = alone[key].folder
    config = read_model_config(folder.model_dir).model_copy(update={"precision": "fp64"})
    family = load_family(config)
    before = picture_of(family)
    apply_adapter(family, config, folder.model_dir)
    after = picture_of(family)
    assert not torch.equal(before, after), "the adapter says something"
    assert (after - levels(Image.open(folder.samples_dir / "step-000004-00.png"))).abs().max() <= 1


def test_token_not_trained_in_one_encoder_is_saved_for_both(
    configs: dict[tuple[str, str], TrainConfig], tmp_path: Path
) -> None:
    """Programs want a vector for each of SDXL's encoders."""
    parts = [{"part": "text_encoder", "train": False}, {"part": "text_encoder_2"}]
    config = TrainConfig(**(configs["stable_diffusion_xl", "embedding"].model_dump() | {"parts": parts}))
    family = load_family(config)
    prepare_model(family, config, Precision("fp64", torch.device("cpu")))
    weights = Weights(family.model)
    assert [name.partition(".")[0] for name in weights.local] == ["text_encoder_2"]
    export_of(family, weights, config, {})(tmp_path)
    assert {name: list(rows.shape) for name, rows in load_file(tmp_path / "my-cat.safetensors").items()} == {
        "clip_l": [2, 16],
        "clip_g": [2, 24],
    }


@pytest.mark.slow
@pytest.mark.parametrize("key", ALL, ids=" ".join)
def test_backups_hold_what_is_trained_and_nothing_else(key: tuple[str, str], alone: dict[tuple[str, str], Run]) -> None:
    names = alone[key].state.weights
    if key[1] == "lora":
        assert all(".lora_" in name for name in names)
    else:
        assert {name.partition(".")[0] for name in names} == set(ENCODERS[key[0]])
        assert all(name.endswith("token_embedding.rows") for name in names)


def base(config: TrainConfig) -> Any:
    """The base model as diffusers loads it."""
    pipeline = PIPELINES[config.family].from_pretrained(str(config.base_model), dtype=torch.float64)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn_by(pipeline: Any) -> Image.Image:
    """The image of REQUEST."""
    latents = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(REQUEST.seed), dtype=torch.float64)
    kept: list[Image.Image] = pipeline(
        REQUEST.prompt,
        negative_prompt="",
        height=64,
        width=64,
        latents=latents,
        num_inference_steps=REQUEST.steps,
        guidance_scale=REQUEST.guidance_scale,
    ).images
    return kept[0]


def differ_by_a_level_at_most(drawn: Image.Image, file: Path) -> None:
    """One of 255 levels: 1e-3 and its rounding."""
    assert (levels(drawn) - levels(Image.open(file))).abs().max() <= 1


def picture_of(family: Family) -> Tensor:
    family.model.to(torch.float64)
    for encoder in family.encoders.values():
        encoder.to(torch.float64)
    return levels(still(family, REQUEST))


def levels(image: Image.Image) -> Tensor:
    return torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8).int()
