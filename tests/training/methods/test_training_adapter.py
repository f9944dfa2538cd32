"""`training_adapter`: the model has it while it trains, and nothing else of the run knows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from modules.config import ConfigError, TrainConfig
from modules.training.memory.model_setup import check_available
from modules.training.memory.table import fake_family
from scripts.convert import main as convert
from tests.conftest import draw_images
from tests.families.tiny_flow_pipelines import TINY
from tests.runs import Job, Run, group_settings, same_state, tiny_config, train_alone, train_group

LORA: dict[str, object] = {"method": "lora", "lora_rank": 2, "lora_targets": "attention", "learning_rate": 0.01}
STEPS = 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "images").mkdir()
    draw_images(folder / "images", 8)
    TINY["z_image"](folder / "base")
    return folder


def config_of(place: Path, name: str, **settings: object) -> TrainConfig:
    common: dict[str, object] = {"family": "z_image", "base_model": str(place / "base"), "run_name": name, **LORA}
    common |= {"precision": "fp64", "max_steps": STEPS, "global_batch_size": 4, "batch_size": 2, "resolution": 64}
    common |= {"validation_split": 0.25, "validate_every": f"{STEPS} steps"}
    return tiny_config(place / "images", place, **{**common, **settings})


@pytest.fixture(scope="module")
def adapter(place: Path) -> Path:
    """A LoRA in another layout, of another rank, alpha and choice of layers than the runs have."""
    code, run = train_alone(config_of(place, "made", lora_rank=3, lora_alpha=6.0, lora_targets="all_linear"))
    assert code == 0
    return run.folder.model_dir / "lora_kohya.safetensors"


@pytest.fixture(scope="module")
def trained(place: Path, adapter: Path) -> Run:
    code, run = train_alone(config_of(place, "with", training_adapter=str(adapter), backup_every="2 steps"))
    assert code == 0, run.failure(0)
    return run


@pytest.mark.slow
def test_it_trains_as_the_model_that_it_is_merged_into(place: Path, adapter: Path, trained: Run) -> None:
    assert convert([str(place / "base"), str(place / "merged"), "--merge", str(adapter), "--dtype", "fp32"]) == 0
    _, merged = train_alone(config_of(place, "merged", base_model=str(place / "merged")))
    _, plain = train_alone(config_of(place, "plain"))
    assert trained.losses == pytest.approx(merged.losses, rel=1e-5)
    assert trained.losses[0] != pytest.approx(plain.losses[0], rel=1e-3)


@pytest.mark.slow
def test_what_is_saved_and_shown_is_without_it(place: Path, adapter: Path, trained: Run) -> None:
    """A run that trains nothing saves, validates and samples as one without the adapter."""
    still: dict[str, object] = {"max_steps": 1, "learning_rate": 1e-30, "validate_every": "1 steps"}
    still |= {"samples": [{"prompt": "a red disc", "width": 64, "height": 64, "steps": 1}], "sample_every": "1 steps"}
    shown = []
    for name, more in (("still-with", {"training_adapter": str(adapter)}), ("still", {})):
        code, run = train_alone(config_of(place, name, **still, **more))
        assert code == 0, run.failure(0)
        with Image.open(run.folder.samples_dir / "step-000001-00.png") as image:
            shown.append((image.tobytes(), run.events("validation")[0]["loss"]))
    assert shown[0] == shown[1]
    files = [load_file(run.folder.model_dir / "pytorch_lora_weights.safetensors") for run in (trained, run)]
    assert files[0].keys() == files[1].keys()


@pytest.mark.slow
def test_a_run_resumes_with_it_alone(place: Path, adapter: Path, trained: Run, tmp_path: Path) -> None:
    backup = str(trained.folder.backup_dir / "step-000002")
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(adapter.read_bytes())
    code, again = train_alone(config_of(place, "again", training_adapter=str(moved)), backup)
    assert code == 0, again.failure(0)
    assert same_state(again.state, trained.state)
    save_file({name: tensor * 2 for name, tensor in load_file(adapter).items()}, moved)
    for number, changed in enumerate((str(moved), None)):
        code, refused = train_alone(config_of(place, f"no-{number}", training_adapter=changed), backup)
        assert code == 2
        assert "resume: training_adapter is" in refused.failure(0)


@pytest.mark.slow
def test_two_ranks_with_divided_and_with_whole_weights(place: Path, adapter: Path, trained: Run) -> None:
    modes = ("distributed", "fully_sharded")
    settings = {"training_adapter": str(adapter), "gradient_checkpointing": True}
    jobs = {
        mode: Job(config_of(place, mode, **settings, **{**group_settings(2), "training_mode": mode})) for mode in modes
    }
    for run in train_group(2, jobs).values():
        assert run.losses == pytest.approx(trained.losses, rel=1e-9)


@pytest.mark.parametrize("frozen", ["int8", "nf4"])
@pytest.mark.slow
def test_layers_may_be_quantised_and_wait_in_host_memory(place: Path, adapter: Path, frozen: str) -> None:
    parts = [{"part": "transformer", "weights": frozen}]
    settings: dict[str, object] = {"parts": parts, "precision": "bf16", "training_adapter": str(adapter)}
    code, run = train_alone(config_of(place, f"low-{frozen}", **settings, block_offload=1.0))
    assert code == 0, run.failure(0)
    _, plain = train_alone(config_of(place, f"plain-{frozen}", **{**settings, "training_adapter": None}))
    assert run.losses[0] != pytest.approx(plain.losses[0], rel=1e-3)


def test_its_memory_is_counted(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "adapter.safetensors"
    prefix = "transformer.layers.0.attention.to_q"
    config = config_of(place, "memory", training_adapter=str(file))
    kind = check_available(config.model_copy(update={"training_adapter": None}))
    meta = kind.meta_model(config)
    assert meta is not None
    out, width = meta.get_parameter(f"{prefix}.weight").shape
    save_file({f"{prefix}.lora_A.weight": torch.ones(5, width), f"{prefix}.lora_B.weight": torch.ones(out, 5)}, file)
    counted = []
    for given in (config, config.model_copy(update={"training_adapter": None})):
        with fake_family(kind, given) as family:
            assert family is not None
            counted.append(sum(weight.numel() for weight in family.model.parameters() if not weight.requires_grad))
    assert counted[0] - counted[1] == 5 * (out + width)


def test_what_cannot_be_one_is_refused(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "loha.safetensors"
    layer = "lora_unet_layers_0_attention_to_q"
    save_file({f"{layer}.hada_{name}": torch.ones(4, 4) for name in ("w1_a", "w1_b", "w2_a", "w2_b")}, file)
    refused: list[tuple[dict[str, object], str]] = [
        ({"training_adapter": str(tmp_path / "none.safetensors")}, r"training_adapter: there is no file"),
        ({"training_adapter": str(file)}, r"training_adapter: .* is no plain LoRA"),
        ({"training_adapter": str(file), "lora_weight_decompose": True}, r"lora_weight_decompose is true"),
        ({"training_adapter": str(file), "method": "fine_tune"}, r"method is 'fine_tune'"),
    ]
    for settings, sentence in refused:
        with pytest.raises(ConfigError, match=sentence):
            check_available(config_of(place, "refused", **settings))
