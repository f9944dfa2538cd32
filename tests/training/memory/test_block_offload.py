"""Blocks in host memory: the same bits as without, in both directions, and no more on the device than two blocks."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modules.config import TrainConfig, explain
from modules.diffusion.quantized import QuantizedLinear, keep_in_host_memory_, quantize_
from modules.training.memory.block_offload import BlockOffload, offloaded_blocks, repeated_blocks
from tests.adapted_models import LORA
from tests.conftest import draw_images
from tests.families.tiny_flow_pipelines import TINY
from tests.runs import Run, same_state, tiny_config, train_alone

CPU = torch.device("cpu")
INT8 = {"parts": [{"part": "transformer", "weights": "int8"}]}
RECOMPUTED = {"precision": "bf16", "gradient_checkpointing": True}


class Block(nn.Module):
    """A frozen layer, and a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.trained = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, 8] to [B, T, 8]."""
        return x + torch.tanh(self.frozen(x) + self.trained(x))


class Blocks(nn.Module):
    """Five blocks, as diffusers declares them."""

    _repeated_blocks = ("Block",)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8).requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(5))

    def forward(self, x: Tensor, *, recompute: bool) -> Tensor:
        """[B, T, 8] to [B, T, 8]."""
        x = self.first(x)
        for block in self.blocks:
            x = cast(Tensor, checkpoint(block, x, use_reentrant=False)) if recompute else block(x)
        return x


def offload(model: Blocks, kind: str, fraction: float = 1.0) -> BlockOffload:
    chosen = offloaded_blocks(model, fraction)
    for layer in (layer for block in chosen for layer in block):
        if kind == "kept":
            keep_in_host_memory_(layer, torch.float32)
        else:
            quantize_(layer, kind, CPU)
    return BlockOffload(cast(list[list[QuantizedLinear]], chosen), CPU)


def gradients_of(model: nn.Module) -> list[Tensor]:
    """The gradients."""
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", ["kept", "int8", "fp8", "nf4"])
def test_gradients_are_the_same_bits(kind: str, recompute: bool) -> None:
    torch.manual_seed(0)
    plain, model = Blocks(), Blocks()
    model.load_state_dict(plain.state_dict())
    if kind != "kept":
        for block in plain.blocks:
            quantize_(cast(Block, block).frozen, kind, CPU)
    offloaded = offload(model, kind)
    assert [name for name, _ in model.named_parameters() if "frozen" in name] == [
        f"blocks.{number}.frozen.bias" for number in range(5)
    ]
    for step in range(2):
        x = torch.randn(2, 3, 8, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for each, given in ((plain, x), (model, y)):
            each(given, recompute=recompute).square().sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert torch.equal(x.grad, y.grad)
        for first, second in zip(gradients_of(plain), gradients_of(model), strict=True):
            assert torch.equal(first, second)
        # all five forwards, and the three backwards that the two at the turn do not save; block 0 and 1 stay for next
        assert offloaded.copies == (8 if step == 0 else 14)
    largest = max(len(buffer) for buffer in offloaded._host)
    assert sum(slot.nbytes for slot in offloaded._slots) == 2 * largest
    assert offloaded.host_bytes == 5 * largest


def test_what_is_lent_is_overwritten_by_the_block_after_the_next() -> None:
    """So nothing but a buffer's two places holds weights on the device, and autograd keeps none."""
    model = Blocks()
    offload(model, "kept")
    layers = [cast(QuantizedLinear, cast(Block, block).frozen) for block in model.blocks]
    before = [layer.weight for layer in layers]
    lent = layers[0].dequantized(torch.float32)
    assert torch.equal(lent, before[0])
    layers[1].dequantized(torch.float32)
    layers[2].dequantized(torch.float32)
    assert not torch.equal(lent, before[0])
    for layer, weight in zip(layers, before, strict=True):
        assert torch.equal(layer.weight, weight)


def test_the_fraction_is_spread_over_the_blocks() -> None:
    model = Blocks()
    frozen = [cast(Block, block).frozen for block in model.blocks]
    assert repeated_blocks(model) == list(model.blocks)
    for fraction, numbers in ((1.0, [0, 1, 2, 3, 4]), (0.5, [0, 1, 3]), (0.4, [0, 2]), (0.01, [0])):
        assert [block[0] for block in offloaded_blocks(model, fraction)] == [frozen[number] for number in numbers]
    assert offloaded_blocks(nn.Sequential(nn.Linear(2, 2)), 1.0) == []


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A LoRA of a tiny Z-Image, which has three blocks, in double precision."""
    place = tmp_path_factory.mktemp("offload")
    (place / "images").mkdir()
    settings: dict[str, object] = {"family": "z_image", "base_model": str(TINY["z_image"](place / "base"))}
    settings |= {"method": "lora", "lora_rank": 2, "precision": "fp64", "max_steps": 4, "resolution": 64}
    settings |= {"batch_size": 2, "global_batch_size": 4, "backup_every": "2 steps", "backups_kept": 9}
    return tiny_config(draw_images(place / "images", 5), place, **settings)


def trained(base: TrainConfig, name: str, resume: str | None = None, **settings: object) -> Run:
    code, run = train_alone(TrainConfig.model_validate({**base.model_dump(), "run_name": name, **settings}), resume)
    assert code == 0, run.failure(0)
    return run


@pytest.mark.slow
def test_a_run_ends_in_the_same_bits_as_without(base: TrainConfig) -> None:
    cases: dict[str, dict[str, Any]] = {"fp64": {}, "int8": {**INT8, **RECOMPUTED}}
    for name, settings in cases.items():
        off = trained(base, f"{name}-off", **settings)
        on = trained(base, f"{name}-on", block_offload=0.7, **settings)
        assert same_state(off.state, on.state), name
        assert off.losses == on.losses
    backup = str(on.folder.backup_dir / "step-000002")
    assert same_state(trained(base, "again", backup, block_offload=1.0, **INT8, **RECOMPUTED).state, on.state)


def test_a_model_without_blocks_is_refused_by_name(base: TrainConfig) -> None:
    changed = {**base.model_dump(), **LORA, "family_options": {}, "base_model": None, "run_name": "none"}
    code, run = train_alone(TrainConfig.model_validate({**changed, "block_offload": 0.5, "precision": "fp32"}))
    assert code == 2
    assert "block_offload is 0.5, but the family" in run.failure(0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "fine_tune"}, "block_offload is 0.5, but fine_tune trains the blocks themselves"),
        ({"compile": True}, "block_offload is 0.5, but compile is true"),
        ({"training_mode": "fully_sharded"}, "block_offload is 0.5, but training_mode fully_sharded moves weights"),
    ],
)
def test_what_it_does_not_go_with_is_said(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({"method": "lora", "block_offload": 0.5, **settings})
    assert any(said in sentence for sentence in explain(caught.value)), explain(caught.value)
