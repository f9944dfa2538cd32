"""The demo family: exact per sample, in every precision, saved and loaded without a change."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor

from modules.config import ConfigError, TrainConfig
from modules.data.batch import Batch, Example
from modules.families._by_name import family_class
from modules.families._family import SampleRequest
from modules.families.pixel_diffusion import PixelDiffusion

TINY = {"width": 8, "patch": 1, "tokens": 6, "vocabulary": 64}
REQUEST = SampleRequest("a red circle", "a blue square", 24, 16, steps=3, guidance_scale=3.0, seed=7)


def tiny(**fields: object) -> PixelDiffusion:
    return PixelDiffusion.load(TrainConfig.model_validate({"family_options": TINY} | fields))


def example(number: int, *, mask: Tensor | None = None, height: int = 16, width: int = 24) -> Example:
    generator = torch.Generator().manual_seed(number)
    pixels = torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)
    return Example(pixels, mask, ("",), (height, width), (0, 0), flipped=False)


def batch(family: PixelDiffusion, samples: int, *, mask: Tensor | None = None) -> Batch:
    drawn = [
        family.sample_transform(
            family.encode(example(number, mask=mask)),
            f"number {number} of {samples}"[: 8 + number],
            torch.Generator().manual_seed(number),
        )
        for number in range(samples)
    ]
    return Batch(
        tensors={name: torch.stack([tensors[name] for tensors in drawn]) for name in drawn[0]},
        ids=torch.arange(samples),
        seeds=torch.arange(samples),
        weights=torch.ones(samples, dtype=torch.float64),
        is_last_of_step=True,
        step_samples=samples,
    )


def part(whole: Batch, start: int, stop: int) -> Batch:
    cut = {name: tensor[start:stop] for name, tensor in whole.tensors.items()}
    index = slice(start, stop)
    return Batch(
        cut,
        whole.ids[index],
        whole.seeds[index],
        whole.weights[index],
        True,
        whole.step_samples,
    )


@pytest.mark.parametrize("patch", [1, 2, 8])
def test_loss_does_not_depend_on_the_batch(patch: int) -> None:
    family = tiny(family_options=TINY | {"patch": patch})
    family.model.double()
    whole = batch(family, 7).to(torch.device("cpu"), torch.float64)
    batched = family.loss(whole)
    separate = torch.cat([family.loss(part(whole, start, start + size)) for start, size in ((0, 1), (1, 4), (5, 2))])
    assert batched.shape == (7,)
    assert batched.dtype == torch.float64
    torch.testing.assert_close(separate, batched, rtol=1e-12, atol=0)


def test_gradients_do_not_depend_on_the_cut_into_micro_batches() -> None:
    family = tiny()
    family.model.double()
    whole = batch(family, 6).to(torch.device("cpu"), torch.float64)
    family.loss(whole).sum().backward()
    at_once = [parameter.grad.clone() for parameter in family.model.parameters() if parameter.grad is not None]
    family.model.zero_grad()
    for start, stop in ((0, 1), (1, 3), (3, 6)):
        family.loss(part(whole, start, stop)).sum().backward()
    in_parts = [parameter.grad for parameter in family.model.parameters() if parameter.grad is not None]
    assert len(at_once) == len(list(family.model.parameters())), "every weight is trained"
    torch.testing.assert_close(in_parts, at_once, rtol=1e-9, atol=1e-12)


def test_equal_seeds_give_equal_weights() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = tiny(seed=3).model.state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = tiny(seed=3).model.state_dict(), tiny(seed=4).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_trains_with_bf16_autocast_and_channels_last() -> None:
    family = tiny()
    samples = batch(family, 2)
    exact = family.loss(samples)
    family.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(family.loss(samples), exact, rtol=1e-4, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = family.loss(samples)
    rounded.sum().backward()
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0)
    assert all(parameter.grad is not None for parameter in family.model.parameters())


def test_the_model_learns() -> None:
    family = tiny()
    samples = batch(family, 2)
    optimizer = torch.optim.AdamW(family.model.parameters(), lr=5e-3)
    losses = []
    for _ in range(10):
        loss = family.loss(samples).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_sample_transform_is_deterministic_and_picklable() -> None:
    family = tiny()
    cached = family.encode(example(0))
    draw = pickle.loads(pickle.dumps(family.sample_transform))
    first = family.sample_transform(cached, "a red circle", torch.Generator().manual_seed(5))
    again = draw(cached, "a red circle", torch.Generator().manual_seed(5))
    assert first.keys() == {"pixels", "noise", "timestep", "tokens"}
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["pixels"].min() >= -1
    assert first["pixels"].max() <= 1
    assert 0 < first["timestep"] < 1


@pytest.mark.parametrize("timesteps", ["uniform", "logit_normal"])
def test_timesteps_follow_their_distribution(timesteps: str) -> None:
    family = tiny(family_options=TINY | {"timesteps": timesteps, "shift": 1})
    cached = family.encode(example(0, height=8, width=8))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([family.sample_transform(cached, "", generator)["timestep"] for _ in range(2000)])
    in_the_middle = ((drawn > 0.25) & (drawn < 0.75)).float().mean().item()
    expected = {"uniform": 0.5, "logit_normal": 0.728}[timesteps]  # P(|N(0, 1)| < ln 3)
    assert in_the_middle == pytest.approx(expected, abs=0.05)


def test_shift_leads_towards_noise() -> None:
    cached = tiny().encode(example(0, height=8, width=8))

    def median(shift: float) -> float:
        family = tiny(family_options=TINY | {"shift": shift})
        generator = torch.Generator().manual_seed(0)
        return float(
            torch.stack([family.sample_transform(cached, "", generator)["timestep"] for _ in range(500)]).median()
        )

    assert median(1) == pytest.approx(1 / 2, abs=0.04)
    assert median(3) == pytest.approx(3 / 4, abs=0.04)


def test_masked_training_weighs_the_masked_pixels() -> None:
    """Nerogar/OneTrainer, modules/util/loss/masked_loss.py: each loss times the mask clamped to unmasked_weight.

    It is divided by the mean of that only with normalize_masked_area_loss, in modules/util/config/TrainConfig.py False.
    kohya-ss/sd-scripts, library/custom_train_functions.py (apply_masked_loss): each loss times the mask.
    """
    family = tiny(masked_training=True, unmasked_weight=0.25)
    mask = torch.zeros(1, 16, 24, dtype=torch.uint8)
    mask[:, :, :6] = 255
    weights = batch(family, 1, mask=mask).tensors["weights"][0]
    clamped = (mask / 255).clamp(min=0.25)
    assert torch.equal(weights, clamped)
    normalized = tiny(masked_training=True, unmasked_weight=0.25, normalize_masked_area_loss=True)
    torch.testing.assert_close(batch(normalized, 1, mask=mask).tensors["weights"][0], clamped / clamped.mean())
    losses = [each.loss(batch(each, 2, mask=mask)) for each in (family, normalized)]
    torch.testing.assert_close(losses[0], losses[1] * (0.25 * 1 + 0.75 * 0.25))
    unmasked = tiny(masked_training=True)
    assert torch.equal(batch(unmasked, 1).tensors["weights"], torch.ones(1, 1, 16, 24))
    torch.testing.assert_close(unmasked.loss(batch(unmasked, 2)), tiny().loss(batch(tiny(), 2)))
    assert "mask" not in tiny().encode(example(0, mask=mask))
    assert tiny().fingerprint() != family.fingerprint()


def test_an_empty_mask_teaches_nothing() -> None:
    family = tiny(masked_training=True, unmasked_weight=0.0)
    nothing = torch.zeros(1, 16, 24, dtype=torch.uint8)
    assert family.loss(batch(family, 1, mask=nothing)).item() == 0


def test_sample_is_a_function_of_the_request() -> None:
    family = tiny()
    family.model.train()
    torch.manual_seed(1)
    first = family.sample(REQUEST)
    torch.manual_seed(2)
    assert family.sample(REQUEST).tobytes() == first.tobytes()
    assert first.size == (24, 16)
    assert family.model.training
    assert all(parameter.grad is None for parameter in family.model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_samples_in_the_models_own_precision(dtype: torch.dtype) -> None:
    family = tiny()
    family.model.to(dtype)
    assert family.sample(REQUEST).size == (24, 16)


def test_guidance_of_one_ignores_the_negative_prompt() -> None:
    def request(negative: str, guidance: float) -> SampleRequest:
        return SampleRequest("red", negative, 16, 16, steps=2, guidance_scale=guidance, seed=1)

    family = tiny()
    assert family.sample(request("blue", 1.0)).tobytes() == family.sample(request("", 1.0)).tobytes()
    assert family.sample(request("blue", 9.0)).tobytes() != family.sample(request("", 9.0)).tobytes()


def test_export_and_load_give_the_same_picture(tmp_path: Path) -> None:
    family = tiny(seed=5)
    image = family.sample(REQUEST)
    family.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    before = torch.random.get_rng_state()
    family.export({name: value.double() for name, value in family.model.state_dict().items()}, tmp_path / "model")
    loaded = PixelDiffusion.load(TrainConfig(seed=6, base_model=str(tmp_path / "model")))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert loaded.options == family.options
    assert loaded.sample(REQUEST).tobytes() == image.tobytes()


def test_diffusers_loads_the_exported_unet(tmp_path: Path) -> None:
    family = tiny()
    family.export(family.model.state_dict(), tmp_path)
    unet = UNet2DConditionModel.from_pretrained(tmp_path, subfolder="unet", low_cpu_mem_usage=False)
    ours = family.model.state_dict()
    assert all(torch.equal(value, ours[f"unet.{name}"]) for name, value in unet.state_dict().items())
    assert json.loads((tmp_path / "model_index.json").read_text())["unet"] == [
        "diffusers",
        "UNet2DConditionModel",
    ]


def test_export_writes_the_weights_it_is_given(tmp_path: Path) -> None:
    family = tiny()
    family.export({name: value + 1 for name, value in family.model.state_dict().items()}, tmp_path)
    loaded = PixelDiffusion.load(TrainConfig(base_model=str(tmp_path))).model.state_dict()
    assert all(torch.equal(loaded[name], value + 1) for name, value in family.model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"widht": 16}, "widht .*did you mean width"),
        ({"width": "wide"}, 'width is "wide"'),
        ({"width": 4096}, "width is 4096.*512"),
        ({"timesteps": "logit-normal"}, "timesteps .*did you mean logit_normal"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^family_options: {sentence}"):
        tiny(family_options=options)


@pytest.mark.timeout(60)
def test_wrong_base_models_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"base_model: .* is not a model folder"):
        tiny(base_model=str(tmp_path / "nothing"))
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    with pytest.raises(ConfigError, match="contains a FluxPipeline"):
        tiny(base_model=str(tmp_path))
    tiny().export(tiny().model.state_dict(), tmp_path)
    with pytest.raises(ConfigError, match=r"family_options.width is 16, but the model in base_model has 8"):
        PixelDiffusion.load(TrainConfig(base_model=str(tmp_path), family_options={"width": 16}))
    index, unet = tmp_path / "model_index.json", tmp_path / "unet" / "config.json"
    huge: dict[Path, dict[str, object]] = {
        index: {"options": {**TINY, "width": 512}}, unet: {"block_out_channels": [512] * 3},
    }  # fmt: skip
    for file, change in huge.items():
        text = file.read_text()
        file.write_text(json.dumps(json.loads(text) | change))
        with (
            patch.object(UNet2DConditionModel, "from_pretrained", side_effect=AssertionError("it is built")),
            pytest.raises(ConfigError, match=rf"{file.name} describes (one of )?the shape \[.*(512|2048)"),
        ):
            PixelDiffusion.load(TrainConfig(base_model=str(tmp_path)))
        file.write_text(text)
    (tmp_path / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="is damaged"):
        PixelDiffusion.load(TrainConfig(base_model=str(tmp_path)))
    config = tmp_path / "unet" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layers_per_block": [2, 10**9]}))
    with pytest.raises(ConfigError, match=r"config.json has layers_per_block \[2, 1000000000\]; the most is 1000"):
        PixelDiffusion.load(TrainConfig(base_model=str(tmp_path)))
    config.unlink()
    os.mkfifo(config)
    with pytest.raises(ConfigError, match=r"config.json is a named pipe"):
        PixelDiffusion.load(TrainConfig(base_model=str(tmp_path)))


def test_options_outside_the_architecture_can_be_changed(tmp_path: Path) -> None:
    tiny().export(tiny().model.state_dict(), tmp_path)
    config = TrainConfig(base_model=str(tmp_path), family_options={"timesteps": "uniform", "width": 8})
    assert PixelDiffusion.load(config).options.timesteps == "uniform"


def test_family_is_found_by_name_and_names_its_blocks() -> None:
    assert family_class("pixel_diffusion") is PixelDiffusion
    blocks = tiny().blocks()
    assert len(blocks) == 7
    assert len({id(block) for block in blocks}) == 7
