"""What `--dry_run` says of memory, against what a real model, optimizer and step take."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from modules.config import TrainConfig
from modules.config.sections.optimizers import OPTIMIZERS
from modules.diffusion.dtypes import HALF_DTYPES
from modules.diffusion.quantized import QuantizedLinear
from modules.families._by_name import family_class
from modules.families._family import Family
from modules.training.device.precision import Precision
from modules.training.memory.block_offload import BlockOffload
from modules.training.memory.live_bytes import LiveBytes, encoding_activations
from modules.training.memory.model_setup import load_family, prepare_model
from modules.training.memory.move_model import move_model
from modules.training.memory.table import MemoryTable, _activations, _peak, fake_family, memory_table
from modules.training.optim.optimizers import build_optimizer
from tests.families.tiny_flow_pipelines import TINY

pytestmark = [
    pytest.mark.filterwarnings("ignore:.FluxPosEmbed:FutureWarning"),  # of diffusers' Chroma
    pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning"),  # of torch's norms on the CPU
]
CPU = torch.device("cpu")
SIZE = 64
QUANTIZED = ("z_image", "qwen_image")  # the families that stand for all where one is as good as another
OPTIONS: dict[str, object] = {"max_caption_tokens": 32}
FACTOR = 1.1  # between estimated and measured activations, see docs/models.md


@pytest.fixture(scope="module", params=sorted(set(TINY) - {"flux2_dev"}))
def flow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, TINY[request.param](tmp_path_factory.mktemp(request.param))


def settings(family: str, base: Path, **more: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "family": family,
        "base_model": str(base),
        "resolution": SIZE,
        "batch_size": 2,
        "precision": "bf16",
        "device": "cpu",  # on which the real steps are, with the CPU's autocast
    }
    if family in TINY:
        given["family_options"] = OPTIONS
    return TrainConfig.model_validate({**given, **more})


def prepared(config: TrainConfig) -> Family:
    family = load_family(config)
    prepare_model(family, config, Precision(config.precision, CPU))
    return family


def rows(table: MemoryTable, *beginnings: str) -> int:
    """Bytes of the rows that begin like this, while training on the device."""
    return sum(
        row.bytes
        for row in table.rows
        if row.what.startswith(beginnings) and (row.place, row.phase) == ("device", "training")
    )


def stored(model: nn.Module, *, buffers: bool = True) -> int:
    """Bytes of a real model's tensors."""
    tensors = [*model.parameters(), *(model.buffers() if buffers else ())]
    tensors += [each for m in model.modules() if isinstance(m, QuantizedLinear) for each in (m._bits, m._scales)]
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())


def state_after_a_step(family: Family, config: TrainConfig) -> int:
    optimizer = build_optimizer([w for w in family.model.parameters() if w.requires_grad], config)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = torch.full_like(weight, 1e-3)
    optimizer.step()
    return sum(v.nbytes for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))


@pytest.mark.parametrize("weights", ["run", "int8", "nf4"])
def test_exact_parts_of_a_lora(flow: tuple[str, Path], weights: str) -> None:
    if weights != "run" and flow[0] not in QUANTIZED:
        return
    part = {"part": "transformer", "weights": weights}
    config = settings(*flow, method="lora", lora_rank=4, parts=[part], ema=True, ema_on_cpu=True)
    table = memory_table(family_class(flow[0]), config, activations=False)
    assert table is not None
    family = prepared(config)
    assert rows(table, "frozen weights", "trained weights") == stored(family.model)
    trained = sum(weight.nbytes for weight in family.model.parameters() if weight.requires_grad)
    assert rows(table, "gradients") == rows(table, "trained") == trained
    assert rows(table, "optimizer") == state_after_a_step(family, config)
    assert [row.bytes for row in table.rows if row.what.startswith("EMA") and row.place == "host"] == [trained]
    if weights != "run":
        assert any(weights in row.what for row in table.rows)


@pytest.mark.parametrize("weights", ["run", "nf4"])
def test_offloaded_blocks_take_what_is_said(tmp_path: Path, weights: str) -> None:
    """Bits in host memory, all scales on the device."""
    part = {"part": "transformer", "weights": weights}
    base = TINY["z_image"](tmp_path)
    config = settings("z_image", base, method="lora", lora_rank=4, parts=[part], block_offload=1.0)
    table = memory_table(family_class("z_image"), config, activations=False)
    assert table is not None
    family = prepared(config)
    move_model(family, config, CPU)
    layers = [each for each in family.model.modules() if isinstance(each, QuantizedLinear) and each.lender is not None]
    (offload,) = {each.lender for each in layers if isinstance(each.lender, BlockOffload)}
    host = [row.bytes for row in table.rows if row.what.startswith("frozen") and "offloaded" in row.what]
    assert host == [offload.host_bytes]
    scales = sum(each._scales.nbytes for each in layers if each._scales is not None)
    assert rows(table, "scales of the offloaded") == scales
    assert (scales > 0) == (weights == "nf4")
    assert rows(table, "two of the offloaded") == sum(slot.nbytes for slot in offload._slots)


def test_offloaded_shards_count_the_rounding_of_pinned_memory(sd_folder: Path) -> None:
    """torch's allocator gives a shard of 1,100 bytes 2,048, and its gradient as well."""
    config = settings("stable_diffusion", sd_folder, training_mode="fully_sharded", enable_multi_gpu=True)
    found = {}
    for offload in (False, True):
        given = config.model_copy(update={"fsdp_cpu_offload": offload})
        table = memory_table(family_class("stable_diffusion"), given, 2, activations=False)
        assert table is not None
        found[offload] = {row.what: row for row in table.rows if row.phase == "training"}
    (new,) = found[True].keys() - found[False].keys()
    shards = [-(-len(w) // 2) * w[0].nbytes if w.dim() else w.nbytes for w in prepared(config).model.parameters()]
    assert found[True][new].bytes == 2 * sum(2 ** math.ceil(math.log2(size)) - size for size in shards)
    assert (found[True][new].place, "pinned" in new) == ("host", True)
    copy = next(name for name in found[True] if name.startswith("copy of what is trained"))
    assert found[True][copy] == found[False][copy], "backups are copied into memory of their own"


PATHS = {name: kind.implementation for name, kind in OPTIMIZERS.items()}
EVERYWHERE = [name for name, path in PATHS.items() if path and not path.startswith("bitsandbytes.")]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_optimizer_state_is_exact(name: str, sd_folder: Path) -> None:
    config = settings("stable_diffusion", sd_folder, optimizer={"name": name}, learning_rate=1e-3)
    table = memory_table(family_class("stable_diffusion"), config, activations=False)
    assert table is not None
    family = prepared(config)
    assert rows(table, "frozen", "trained") == stored(family.model)
    assert rows(table, "optimizer") == state_after_a_step(family, config)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_near_those_of_a_real_step(flow: tuple[str, Path], checkpointing: bool) -> None:
    if not checkpointing and flow[0] not in QUANTIZED:
        return
    config = settings(*flow, method="lora", gradient_checkpointing=checkpointing)
    near_real(config)


@pytest.mark.parametrize("parts", [[], [{"part": "unet"}, {"part": "text_encoder"}, {"part": "text_encoder_2"}]])
def test_activations_of_stable_diffusion_xl(parts: list[object], sdxl_folder: Path) -> None:
    near_real(settings("stable_diffusion_xl", sdxl_folder, parts=parts, precision="fp32"))


def test_activations_of_large_batches_are_extrapolated(tmp_path: Path) -> None:
    base = TINY["z_image"](tmp_path / "base")
    kind = family_class("z_image")
    config = settings("z_image", base, method="lora", batch_size=50_000)
    with fake_family(kind, config) as family:
        assert family is not None
        computed = _peak(kind, family, config, samples=10)
        estimated = _activations(kind, family, config)
    assert computed is not None
    assert estimated == pytest.approx(5_000 * computed, rel=0.02)


def test_norms_are_computed_in_fp32_on_a_gpu(sdxl_folder: Path) -> None:
    """As CUDA's autocast does; on an H100 the table was 16 % below the peak of a UNet without it."""
    kind = family_class("stable_diffusion_xl")
    tables = [memory_table(kind, settings("stable_diffusion_xl", sdxl_folder, device=name)) for name in ("cpu", "auto")]
    cpu, gpu = (rows(table, "activations") for table in tables if table is not None)
    assert cpu * 1.05 < gpu < cpu * 1.6


def test_accumulated_gradients_stay_beside_the_activations(sdxl_folder: Path) -> None:
    kind = family_class("stable_diffusion_xl")
    both = [settings("stable_diffusion_xl", sdxl_folder, gradient_accumulation_steps=steps) for steps in (1, 2)]
    once, twice = (rows(table, "activations") for table in (memory_table(kind, each) for each in both) if table)
    assert once < twice


def near_real(config: TrainConfig) -> None:
    """The estimate against the tensors that autograd saves and all others of a real step."""
    kind = family_class(config.family)
    table = memory_table(kind, config)
    assert table is not None
    assert table.has_activations
    family = prepared(config)
    gradients = sum(weight.nbytes for weight in family.model.parameters() if weight.requires_grad)
    saved: dict[int, int] = {}
    kept = [*family.model.parameters(), *family.model.buffers()]
    kept += [value for m in family.model.modules() for value in vars(m).values() if isinstance(value, Tensor)]
    own = {tensor.untyped_storage().data_ptr() for tensor in kept}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    dtype = HALF_DTYPES.get(config.precision, torch.float32)
    with (
        LiveBytes() as live,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
    ):
        loss = kind.meta_loss(config, family.model, (SIZE, SIZE), config.batch_size)
    assert loss is not None
    with live:
        loss.sum().backward()
    estimated = rows(table, "activations") + gradients  # which the backward has made
    assert estimated * FACTOR >= sum(saved.values())
    assert live.peak / FACTOR <= estimated <= live.peak * FACTOR


@pytest.mark.slow
def test_text_encoders_are_on_the_device_only_while_images_are_cached(flow: tuple[str, Path]) -> None:
    kind = family_class(flow[0])
    table = memory_table(kind, settings(*flow, method="lora"), activations=False)
    uncached = memory_table(kind, settings(*flow, method="lora", cache_latents=False), activations=False)
    assert table is not None
    assert uncached is not None
    family = load_family(settings(*flow, method="lora"))
    near_the_encoding(family, kind, settings(*flow, method="lora"))
    encoders = family.components.load_encoders(torch.bfloat16, CPU)  # type: ignore[attr-defined]
    bytes_of = {name: sum(w.nbytes for w in encoder.parameters()) for name, encoder in encoders.items()}
    caching = {row.what: row.bytes for row in table.rows if row.phase == "caching"}
    assert sum("together, without activations" in line for line in table.lines()) == 2  # of training, and of caching
    quantized = memory_table(
        kind,
        settings(*flow, method="lora", family_options=OPTIONS | {"text_encoder_weights": "nf4"}),
        activations=False,
    )
    assert quantized is not None
    kept = {row.what: row.bytes for row in quantized.rows if row.phase == "caching"}
    small = family.components.load_encoders(torch.bfloat16, CPU, "nf4")  # type: ignore[attr-defined]
    for name, count in bytes_of.items():
        is_small = isinstance(encoders[name], CLIPTextModel | CLIPTextModelWithProjection)
        assert kept[f"{name}, {'bf16' if is_small else 'nf4'}"] == stored(small[name], buffers=False)
        assert (stored(small[name], buffers=False) < count) is not is_small
        assert caching[f"{name}, bf16"] >= count  # a file may hold a head that is not loaded
        assert not any(row.what.startswith(name) and row.phase == "training" for row in table.rows)
        assert any(row.what.startswith(name) and row.phase == "training" for row in uncached.rows)


def near_the_encoding(family: Family, kind: type[Family], config: TrainConfig) -> None:
    """The autoencoder's activations against those of the real one."""
    ((what, estimated),) = encoding_activations(kind, config).items()
    frames = 1 if kind.facts.clips is None else config.frames
    pixels = torch.zeros(1, 3, *((frames,) if frames > 1 else ()), SIZE, SIZE)
    with LiveBytes() as live:
        family.space.encode(family.components.vae, pixels, "mode")  # type: ignore[attr-defined]
    of_frames = f", {frames} frames" if frames > 1 else ""
    assert what == f"activations of the autoencoder for {SIZE} x {SIZE} pixels{of_frames}"
    assert live.peak / FACTOR - 2 * pixels.nbytes <= estimated <= live.peak * FACTOR  # before and after normalising
    assert not encoding_activations(kind, config.model_copy(update={"cache_latents": False}))


def test_shards_of_ranks(sd_folder: Path) -> None:
    config = settings("stable_diffusion", sd_folder, training_mode="fully_sharded", enable_multi_gpu=True)
    kind = family_class("stable_diffusion")
    one, four = (memory_table(kind, config, world_size=n, activations=False) for n in (1, 4))
    assert one is not None
    assert four is not None
    assert rows(one, "optimizer") / 4 <= rows(four, "optimizer") < rows(one, "optimizer") / 3
    assert rows(four, "gathered") > 0
    replicated = config.model_copy(update={"num_nodes": 2, "fsdp_replicate": "machines"})
    two, of_machine = (memory_table(kind, each, n, activations=False) for each, n in ((config, 2), (replicated, 4)))
    assert two == of_machine
