"""Stable Diffusion 1, 2 and XL against diffusers' own pipelines."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import diffusers
import pytest
import torch
from diffusers import StableDiffusionInpaintPipeline
from safetensors import safe_open
from torch import Tensor

from modules.families._by_name import family_class
from modules.families._family import Family
from modules.families._latent_diffusion import LatentDiffusion
from tests.families.diffusion_checks import (
    CAPTIONS,
    REQUEST,
    batch,
    direct_loss,
    encoded_text,
    example,
    load,
    pipeline,
)
from tests.families.stills import still

FAMILIES = ("stable_diffusion", "stable_diffusion_xl")
VARYING = {"concepts": [{"path": "x", "tag_shuffle": True}]}  # captions are then read in every step
OBJECTIVES: list[dict[str, Any]] = [
    {},
    {"loss": "huber", "huber_delta": 0.5},
    {"loss": "smooth_l1"},
    {"loss_weighting": "min_snr"},
    {"loss_weighting": "debiased", "offset_noise": 0.1},
    {"prediction_type": "v_prediction"},
    {"prediction_type": "v_prediction", "loss_weighting": "min_snr", "min_snr_gamma": 1.0},
    {"prediction_type": "v_prediction", "loss_weighting": "debiased"},
    {"prediction_type": "v_prediction", "zero_terminal_snr": True},
    {"timestep_distribution": "logit_normal", "latents": "mode"},
]


@pytest.fixture
def folders(sd_folder: Path, sdxl_folder: Path) -> dict[str, Path]:
    return dict(zip(FAMILIES, (sd_folder, sdxl_folder), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_loss_equals_one_written_with_diffusers(family: str, folders: dict[str, Path]) -> None:
    for options in OBJECTIVES:
        loaded = load(family, folders[family], family_options=options)
        given = batch(loaded)
        expected = direct_loss(family, folders[family], given, options)
        torch.testing.assert_close(loaded.loss(given).detach(), expected, rtol=1e-6, atol=1e-6, msg=str(options))


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_and_uncached_captions_train_the_same(family: str, folders: dict[str, Path]) -> None:
    kept, read = load(family, folders[family]), load(family, folders[family], **VARYING)
    assert kept.text_fingerprint()
    assert not read.text_fingerprint()
    assert kept.fingerprint() == read.fingerprint()
    first, second = batch(kept), batch(read)
    assert "text_encoder.tokens" in second.tensors
    assert "text_encoder.tokens" not in first.tensors
    torch.testing.assert_close(kept.loss(first), read.loss(second), rtol=1e-5, atol=1e-6)
    trained = load(family, folders[family], parts=[{"part": name} for name in kept.submodules])
    assert set(dict(trained.model.named_children())) == set(kept.submodules)
    torch.testing.assert_close(trained.loss(batch(trained)), read.loss(second), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_trainable_weight_is_used(family: str, folders: dict[str, Path]) -> None:
    for options in ({}, {"clip_skip": 1}):
        parts = [{"part": name} for name in family_class(family).submodules]
        loaded = load(family, folders[family], parts=parts, family_options=options)
        loaded.loss(batch(loaded)).sum().backward()
        unused = [n for n, w in loaded.model.named_parameters() if w.requires_grad and w.grad is None]
        assert unused == []


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_does_not_depend_on_the_batch(family: str, folders: dict[str, Path]) -> None:
    loaded = load(family, folders[family], precision="fp64", **VARYING)
    loaded.model.double()
    whole = batch(loaded).to(torch.device("cpu"), torch.float64)
    separate = torch.cat([loaded.loss(piece) for piece in whole.split(1)])
    torch.testing.assert_close(separate, loaded.loss(whole), rtol=1e-9, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sampler", "changes"), [
    ("stable_diffusion", "model", {}),
    ("stable_diffusion", "pndm", {"kind": "PNDMScheduler", "skip_prk_steps": True}),
    ("stable_diffusion", "euler_a", {"kind": "EulerAncestralDiscreteScheduler"}),
    ("stable_diffusion", "heun", {"kind": "HeunDiscreteScheduler"}),
    ("stable_diffusion", "ddpm", {"kind": "DDPMScheduler"}),
    ("stable_diffusion_xl", "model", {}),
    ("stable_diffusion_xl", "ddim", {"kind": "DDIMScheduler"}),
    ("stable_diffusion_xl", "dpmpp_2m_karras", {"kind": "DPMSolverMultistepScheduler", "use_karras_sigmas": True}),
    ("stable_diffusion_xl", "unipc", {"kind": "UniPCMultistepScheduler"}),
])  # fmt: skip
def test_images_are_bit_identical_to_those_of_diffusers(
    folders: dict[str, Path], family: str, sampler: str, changes: dict[str, Any]
) -> None:
    pipe = pipeline(family, folders[family])
    if changes:
        kind, settings = changes["kind"], {name: value for name, value in changes.items() if name != "kind"}
        pipe.scheduler = getattr(diffusers, kind).from_config(pipe.scheduler.config, **settings)
    expected = pipe(
        REQUEST.prompt,
        negative_prompt=REQUEST.negative_prompt,
        width=REQUEST.width,
        height=REQUEST.height,
        num_inference_steps=REQUEST.steps,
        guidance_scale=REQUEST.guidance_scale,
        generator=torch.Generator().manual_seed(REQUEST.seed),
    ).images[0]
    options = {"sample_scheduler": sampler}
    for parts in ([], [{"part": name} for name in family_class(family).submodules]):
        loaded = load(family, folders[family], family_options=options, parts=parts)
        loaded.model.train()
        assert still(loaded, REQUEST).tobytes() == expected.tobytes()
        assert loaded.model.training


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_saved_model_loads_in_diffusers_and_tandem(family: str, folders: dict[str, Path], tmp_path: Path) -> None:
    loaded = load(family, folders[family], parts=[{"part": "unet"}, {"part": "text_encoder"}])
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight.mul_(1.01)
    image = still(loaded, REQUEST)
    state = {name: value.double() for name, value in loaded.model.state_dict().items()}
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight.mul_(1.01)  # what is written is what was given: averages, or what ranks hold together
    before = torch.random.get_rng_state()
    loaded.export(state, tmp_path / "model")
    assert torch.equal(torch.random.get_rng_state(), before)
    pipe = pipeline(family, tmp_path / "model")
    drawn = pipe(
        REQUEST.prompt,
        negative_prompt=REQUEST.negative_prompt,
        width=REQUEST.width,
        height=REQUEST.height,
        num_inference_steps=REQUEST.steps,
        guidance_scale=REQUEST.guidance_scale,
        generator=torch.Generator().manual_seed(REQUEST.seed),
    ).images[0]
    assert drawn.tobytes() == image.tobytes()
    assert still(load(family, tmp_path / "model"), REQUEST).tobytes() == image.tobytes()
    for encoder in (name for name in loaded.submodules if name != "unet"):
        with safe_open(tmp_path / "model" / encoder / "model.safetensors", "pt") as file:
            assert all(name.startswith(("text_model.", "text_projection.")) for name in file.keys())  # noqa: SIM118


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_cached(family: str, folders: dict[str, Path]) -> None:
    loaded, pipe = load(family, folders[family]), pipeline(family, folders[family])
    captions = ("a red disc", "cat")
    encoded, texts = loaded.encode(example(1, captions=captions)), loaded.encode_captions(captions, 1)
    pixels = example(1).pixels.float()[None] / 127.5 - 1
    with torch.no_grad():
        distribution = pipe.vae.encode(pixels).latent_dist
    torch.testing.assert_close(encoded["mean"], distribution.mean[0])
    torch.testing.assert_close(encoded["spread"], distribution.std[0])
    for caption, own in zip(captions, texts, strict=True):
        with torch.no_grad():
            if family == "stable_diffusion":
                text = pipe.encode_prompt(caption, "cpu", 1, do_classifier_free_guidance=False)[0]
                ours = own["text_encoder.hidden"]
            else:
                text, _, pooled, _ = pipe.encode_prompt(caption, do_classifier_free_guidance=False)
                ours = torch.cat([own[f"{name}.hidden"] for name in loaded.submodules[1:]], dim=-1)
                assert torch.equal(own["text_encoder_2.pooled"], pooled[0])
        assert torch.equal(ours, text[0])
        drawn = loaded.sample_transform({**encoded, **own}, caption, torch.Generator().manual_seed(1))
        assert torch.equal(drawn["text_encoder.hidden"], own["text_encoder.hidden"])
    assert ("sizes" in encoded) == (family == "stable_diffusion_xl")
    if "sizes" in encoded:
        assert encoded["sizes"].tolist() == [101, 230, 0, 6, 64, 128]


@pytest.mark.parametrize("family", FAMILIES)
def test_encoding_does_not_depend_on_the_batch(family: str, folders: dict[str, Path]) -> None:
    """Neither on the other images of a group, nor on its place there, nor on how full the group is."""
    loaded = load(family, folders[family], family_options={"latents": "mode"})
    images = [example(number) for number in range(4)]
    captions = [f"cat {CAPTIONS[number % 3]} {number}" for number in range(4)]

    def encode(some: Sequence[int], size: int) -> list[dict[str, Tensor]]:
        views = loaded.encode_batch([images[number] for number in some], size)
        texts = loaded.encode_captions([captions[number] for number in some], size)
        return [view | text for view, text in zip(views, texts, strict=True)]

    whole = encode(range(4), 4)
    for order in ((2, 0, 3, 1), (3,), (1, 3)):
        encoded = encode(order, 4)
        for number, own in zip(order, encoded, strict=True):
            assert own.keys() == whole[number].keys()
            assert all(torch.equal(own[name], whole[number][name]) for name in own)
    for number, own in enumerate(whole):  # alone it is the same but for rounding
        (alone,) = encode([number], 1)
        for name in alone:
            torch.testing.assert_close(own[name], alone[name], rtol=1e-4, atol=1e-5)


def test_dropped_caption_is_an_empty_one(sd_folder: Path) -> None:
    loaded = load("stable_diffusion", sd_folder, caption_dropout=0.5)
    encoded = loaded.encode(example(1))
    dropped = loaded.sample_transform(encoded, "", torch.Generator().manual_seed(1))
    empty, other = loaded.encode_captions(["", "cat"], 2)
    assert torch.equal(dropped["text_encoder.hidden"], empty["text_encoder.hidden"])
    assert not torch.equal(dropped["text_encoder.hidden"], other["text_encoder.hidden"])


def test_sample_transform_is_deterministic_and_picklable(sdxl_folder: Path) -> None:
    loaded = load("stable_diffusion_xl", sdxl_folder, **VARYING)
    encoded = loaded.encode(example(1))
    draw = pickle.loads(pickle.dumps(loaded.sample_transform))
    first = loaded.sample_transform(encoded, "a red disc", torch.Generator().manual_seed(5))
    again = draw(encoded, "a red disc", torch.Generator().manual_seed(5))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


NORMALIZED = {"normalize_masked_area_loss": True}


def test_masks_become_loss_weights_of_the_latents(sd_folder: Path) -> None:
    mask = torch.zeros(1, 64, 128, dtype=torch.uint8)
    mask[:, :, :64] = 255
    loaded = load("stable_diffusion", sd_folder, masked_training=True, unmasked_weight=0.25)
    given = batch(loaded, mask=mask)
    weights = given.tensors["weights"]
    assert weights.shape == (3, 1, 8, 16)
    assert weights[..., :8].unique().tolist() == [1.0]
    assert weights[..., 8:].unique().tolist() == [0.25]
    equal = load("stable_diffusion", sd_folder, masked_training=True, unmasked_weight=0.25, **NORMALIZED)
    torch.testing.assert_close(batch(equal, mask=mask).tensors["weights"], weights / 0.625)
    assert equal.fingerprint() == loaded.fingerprint()
    plain = load("stable_diffusion", sd_folder)
    torch.testing.assert_close(loaded.loss(batch(loaded)), plain.loss(batch(plain)))
    assert loaded.fingerprint() != plain.fingerprint()


def test_long_prompts_are_chunked_or_truncated(sd_folder: Path) -> None:
    long = " ".join(["red disc"] * 50)
    cut = load("stable_diffusion", sd_folder)
    assert cut.prompt_warnings([long, "a cat"]) == [
        f"1 text is longer than 75 tokens and truncated, for example {long[:60]!r}... (set "
        "family_options.long_prompts to chunk)."
    ]
    whole = load("stable_diffusion", sd_folder, family_options={"long_prompts": "chunk", "prompt_windows": 2})
    assert whole.prompt_warnings([long]) == []
    numbers = whole.sample_transform.tokenizer.input_ids("text_encoder", long)
    assert numbers.shape == (2, 77)
    assert cut.sample_transform.tokenizer.input_ids("text_encoder", long).equal(numbers[:1])
    assert encoded_text(whole, long)["text_encoder.hidden"].shape[0] == 154
    assert still(whole, REQUEST).size == (64, 128)
    assert whole.text_fingerprint() != cut.text_fingerprint()


def test_clip_skip_uses_an_earlier_layer(sd_folder: Path) -> None:
    pipe = pipeline("stable_diffusion", sd_folder)
    loaded = load("stable_diffusion", sd_folder, family_options={"clip_skip": 1})
    tokens = pipe.tokenizer("cat", padding="max_length", return_tensors="pt").input_ids
    with torch.no_grad():
        layer = pipe.text_encoder(tokens, output_hidden_states=True).hidden_states[-2]
        expected = pipe.text_encoder.final_layer_norm(layer)[0]
    assert torch.equal(encoded_text(loaded, "cat")["text_encoder.hidden"], expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_placeholder_token_starts_as_its_init_words(family: str, folders: dict[str, Path]) -> None:
    loaded = load(family, folders[family], method="embedding")
    tables = loaded.add_placeholder_token("<my-cat>", 3, "red cat")
    assert len(tables) == len(loaded.submodules) - 1
    for name, numbers in tables.items():
        table = loaded.model.get_submodule(name)
        assert isinstance(table, torch.nn.Embedding)
        encoder = name.partition(".")[0]
        red, cat = loaded.sample_transform.tokenizer.token_ids(encoder, "red cat")
        assert loaded.sample_transform.tokenizer.token_ids(encoder, "a <my-cat> photo")[1:4] == numbers
        assert torch.equal(table.weight[numbers], table.weight[[red, cat, red]])
    assert loaded.loss(batch(loaded)).isfinite().all()
    assert (
        pickle.loads(pickle.dumps(loaded.sample_transform)).tokenizer.token_ids("text_encoder", "<my-cat>") == numbers
    )


def test_the_pooled_embedding_is_that_of_the_end_token(sdxl_folder: Path, tmp_path: Path) -> None:
    """OpenCLIP pools at the end token. transformers takes the largest id if the config says eos_token_id 2, as SDXL's
    does (modeling_clip.py, CLIPTextModel.forward), and the ids of placeholder tokens are larger."""
    loaded = load("stable_diffusion_xl", sdxl_folder, method="embedding")
    loaded.add_placeholder_token("<my-cat>", 2, "cat")
    prompt, tokenizer = "a <my-cat> photo", loaded.sample_transform.tokenizer
    ids = tokenizer.input_ids("text_encoder_2", prompt)
    end = ids[0].tolist().index(tokenizer.tokenizers["text_encoder_2"].eos_token_id)
    encoder = cast(Any, loaded.model.text_encoder_2)
    assert encoder.config.eos_token_id == 2
    assert ids[0].argmax() != end
    with torch.no_grad():
        expected = encoder.text_projection(encoder(ids).last_hidden_state[0, end])
        trained = encoder(ids).text_embeds[0]
        sampled = loaded._encode_prompt(prompt, REQUEST, torch.device("cpu"))["text_encoder_2.pooled"][0]
    torch.testing.assert_close(trained, expected)
    torch.testing.assert_close(sampled, expected)
    loaded.export(loaded.model.state_dict(), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "text_encoder_2" / "config.json").read_text())
    assert config["eos_token_id"] == 2, "the file stays as the model's authors wrote it"


def test_inpainting_model(inpainting_folder: Path, tmp_path: Path) -> None:
    loaded = load("stable_diffusion", inpainting_folder)
    given = batch(loaded)
    mask = given.tensors["inpaint_mask"]
    assert mask.shape == (3, 1, 8, 16)
    assert 0 < mask.mean() < 1
    loss = loaded.loss(given)
    loss.sum().backward()
    assert loss.isfinite().all()
    alone, batched = loaded.encode(example(1)), loaded.encode_batch([example(0), example(1)], 4)[1]
    assert torch.equal(alone["hole"], batched["hole"])
    torch.testing.assert_close(alone["kept"], batched["kept"], rtol=1e-4, atol=1e-5)
    assert still(loaded, REQUEST).tobytes() == still(loaded, REQUEST).tobytes()
    loaded.export(loaded.model.state_dict(), tmp_path / "model")
    saved = StableDiffusionInpaintPipeline.from_pretrained(tmp_path / "model", safety_checker=None)
    assert saved.unet.config.in_channels == 9


def test_zero_terminal_snr_samples_start_from_pure_noise(sd_folder: Path, tmp_path: Path) -> None:
    options = {"prediction_type": "v_prediction", "zero_terminal_snr": True}
    loaded = load("stable_diffusion", sd_folder, family_options=options)
    assert loaded.sample_transform.alphas_cumprod[-1] == 0
    image = still(loaded, REQUEST)
    loaded.export(loaded.model.state_dict(), tmp_path / "model")
    config = pipeline("stable_diffusion", tmp_path / "model").scheduler.config
    assert (config.prediction_type, config.rescale_betas_zero_snr) == ("v_prediction", True)
    again = load("stable_diffusion", tmp_path / "model")
    assert again.prediction == "v_prediction"
    assert still(again, REQUEST).tobytes() == image.tobytes()


def test_fp16_variant_is_loaded(sd_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(sd_folder, tmp_path / "half")
    for file in (tmp_path / "half").rglob("*.safetensors"):
        file.rename(file.with_suffix(".fp16.safetensors"))
    assert still(load("stable_diffusion", tmp_path / "half"), REQUEST).size == (64, 128)


def test_families_with_equal_autoencoders_share_no_cache(folders: dict[str, Path]) -> None:
    read = [load(name, folders[name], **VARYING) for name in FAMILIES]
    for mine, others in zip(read[0].encoders["vae"].parameters(), read[1].encoders["vae"].parameters(), strict=True):
        assert torch.equal(mine, others)
    assert read[0].fingerprint() != read[1].fingerprint(), "one is conditioned on sizes, the other is not"
    assert load(FAMILIES[0], folders[FAMILIES[0]], **VARYING).fingerprint() == read[0].fingerprint()


def test_submodules_and_blocks(folders: dict[str, Path]) -> None:
    for name in FAMILIES:
        kind: type[Family] = family_class(name)
        assert set(kind.adapter_prefixes) == set(kind.submodules)
        loaded = load(name, folders[name], parts=[{"part": part} for part in kind.submodules])
        assert isinstance(loaded, LatentDiffusion)
        blocks = loaded.blocks()
        assert len({id(block) for block in blocks}) == len(blocks) == 5 + 3 * (len(kind.submodules) - 1)
