"""Settings that save memory or time in Stable Diffusion: each trains what it trains without them, for every method."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import pytest
import torch
from PIL import Image

from modules.config import ConfigError, TrainConfig
from modules.diffusion.diffusion_model import DiffusionModel
from modules.families._latent_diffusion import LatentDiffusion
from modules.torch_compat import COMPILER_CACHE, compiler_cache
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import check_available, compile_model, load_family, prepare_model
from modules.training.studies.parity import loss_difference, weight_difference
from tests.conftest import draw_images
from tests.families.diffusion_checks import batch
from tests.runs import Run, same_state, tiny_config, train_alone

ENCODERS = {"stable_diffusion": ("text_encoder",), "stable_diffusion_xl": ("text_encoder", "text_encoder_2")}
METHODS: dict[str, dict[str, object]] = {
    "full": {},
    "lora": {"method": "lora", "lora_rank": 2, "lora_targets": "all"},
    "dora": {"method": "lora", "lora_rank": 2, "lora_targets": "attention_mlp", "lora_weight_decompose": True},
    "embedding": {"method": "embedding", "embedding_token": "<c>", "embedding_init": "cat"},
}
JOBS = [("stable_diffusion", "dora"), ("stable_diffusion", "embedding"), ("stable_diffusion_xl", "full"),
        ("stable_diffusion_xl", "lora")]  # fmt: skip
Make = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, sd_folder: Path, sdxl_folder: Path) -> Make:
    """Makes the config of a family and a method: all parts, four steps, three sizes of images, double precision."""
    place = tmp_path_factory.mktemp("computing")
    (place / "images").mkdir()
    images = draw_images(place / "images", 7)
    for file in images.glob("*.txt"):
        file.write_text("a <c> disc")
    bases = {"stable_diffusion": sd_folder, "stable_diffusion_xl": sdxl_folder}

    def config(family: str, method: str, name: str, **settings: object) -> TrainConfig:
        every = [{"part": part} for part in ("unet", *ENCODERS[family])]
        common: dict[str, object] = {
            "family": family,
            "base_model": str(bases[family]),
            "resolution": 64,
            "precision": "fp64",
            "max_steps": 4,
            "batch_size": 2,
            "global_batch_size": 4,
            "run_name": f"{name}-{family}-{method}",
            "parts": [] if method == "embedding" else every,
        }
        return tiny_config(images, place, **{**common, **METHODS[method], **settings})

    return config


@pytest.fixture(scope="module")
def plain(make: Make) -> dict[tuple[str, str], Run]:
    return {job: trained(make(*job, "plain")) for job in JOBS}


def trained(config: TrainConfig) -> Run:
    code, run = train_alone(config)
    assert code == 0, run.failure(0)
    return run


def same(run: Run, expected: Run) -> None:
    """But for rounding."""
    assert len(run.losses) == 4
    assert loss_difference(run.losses, expected.losses) <= 1e-12
    assert weight_difference(run.state, expected.state) <= 1e-9
    assert run.state.weights.keys() == expected.state.weights.keys()


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=" ".join)
def test_the_result_stays_with_recomputed_activations_and_channels_last(
    job: tuple[str, str], make: Make, plain: dict[tuple[str, str], Run]
) -> None:
    same(trained(make(*job, "both", gradient_checkpointing=True, channels_last=True)), plain[job])


@pytest.mark.slow
def test_a_sample_is_dropped_the_same_in_every_micro_batch(make: Make) -> None:
    """With prompts of two chunks, each of which is a row of its own for the text encoder."""
    settings = {"lora_dropout": 0.3, "family_options": {"long_prompts": "chunk", "prompt_windows": 2}}
    runs = [trained(make("stable_diffusion", "dora", f"rows-{n}", batch_size=n, **settings)) for n in (2, 1)]
    same(runs[1], runs[0])


@pytest.mark.slow
def test_what_is_recomputed_is_dropped_again(make: Make) -> None:
    job = ("stable_diffusion_xl", "lora")
    runs = [
        trained(make(*job, f"dropout-{recomputed}", lora_dropout=0.3, gradient_checkpointing=recomputed))
        for recomputed in (False, True)
    ]
    same(runs[1], runs[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch warns itself while it traces
@pytest.mark.parametrize("method", ["full", "lora", "embedding"])
def test_compile_gives_the_same_result_for_images_of_any_size(
    method: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of torch.compile but its last step, which writes C++ and takes minutes."""
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    config = make("stable_diffusion", method, "compile")
    gradients = []
    for wanted in (False, True):
        family = load_family(config)
        assert isinstance(family, LatentDiffusion)
        prepare_model(family, config, Precision("fp64", torch.device("cpu")))
        names = set(family.model.state_dict())
        family.model = cast(DiffusionModel, compile_model(family.model)) if wanted else family.model
        assert set(family.model.state_dict()) == names
        for samples in (2, 1):
            given = batch(family, samples).to(torch.device("cpu"), torch.float64)
            narrow = {name: t[..., :8] if t.shape[-1] == 16 else t for name, t in given.tensors.items()}
            for sized in (given, replace(given, tensors=narrow)):
                family.loss(sized).sum().backward()
        gradients.append({n: w.grad for n, w in family.model.named_parameters() if w.grad is not None})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not torch._dynamo.utils.counters["graph_break"]
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_repeats_nothing_is_compiled_as_a_whole() -> None:
    model = torch.nn.Linear(2, 2)
    wrapped = compile_model(model)
    assert wrapped is not model
    assert next(wrapped.parameters()) is next(model.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", ["link", "open to all", "own"])
def test_no_compiled_code_is_taken_from_another_user(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPILER_CACHE, "restored afterwards")
    monkeypatch.delenv(COMPILER_CACHE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Path(compiler_cache())
    assert folder.parent == tmp_path
    if made == "link":
        folder.symlink_to(tmp_path)
    elif made == "open to all":
        folder.mkdir()
        folder.chmod(0o777)
    compile_model(torch.nn.Linear(2, 2))
    used = Path(os.environ.get(COMPILER_CACHE, folder))
    assert (used == folder) == (made == "own")
    assert used.is_dir()
    assert made == "own" or used.name.startswith("tandem-inductor-")
    assert used.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "job"), [*zip(("fp16", "bf16", "fp16", "bf16"), JOBS, strict=True)])
def test_half_precision_trains_and_resumes_to_the_bit(precision: str, job: tuple[str, str], make: Make) -> None:
    """The scaler counts the steps since its scale last changed, so its state is part of it."""
    small = {"parts": [{"part": "unet", "weights": precision}, {"part": "text_encoder"}]} if job[1] == "dora" else {}
    whole = make(*job, precision, precision=precision, **small)
    run = trained(whole)
    assert any(loss == loss for loss in run.losses)
    half = whole.model_copy(update={"run_name": f"half-{whole.run_name}", "max_steps": 2})
    trained(half)
    code, resumed = train_alone(half.model_copy(update={"max_steps": 4}), "latest")
    assert code == 0
    assert same_state(resumed.state, run.state)
    assert resumed.state.scaler == run.state.scaler
    assert bool(run.state.scaler) == (precision == "fp16")


@pytest.mark.slow
def test_samples_are_the_same_after_offload_frozen(make: Make) -> None:
    sample = {"prompt": "a <c> disc", "width": 64, "height": 64, "steps": 2}
    drawn = []
    for offload in (True, False):
        config = make(
            "stable_diffusion_xl", "lora", f"offload-{offload}", samples=[sample], sample_every="4 steps",
            family_options={"offload_frozen": offload},
        )  # fmt: skip
        drawn.append(trained(config).folder.samples_dir / "step-000004-00.png")
    first, second = (Image.open(file).convert("RGB").tobytes() for file in drawn)
    assert first == second


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="the package is there")
def test_optimizer_with_a_missing_package_is_explained(make: Make) -> None:
    config = make("stable_diffusion", "lora", "small", optimizer="adamw_8bit")
    with pytest.raises(ConfigError, match="needs the package bitsandbytes; it is not installed") as refused:
        check_available(config)
    assert "pip install bitsandbytes" in str(refused.value)
