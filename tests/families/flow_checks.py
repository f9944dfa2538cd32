"""The velocity that each flow-matching family predicts, as diffusers' pipelines and training scripts compute it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from diffusers import (
    AutoencoderKLFlux2,
    DiffusionPipeline,
    ErnieImagePipeline,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
    QwenImageEditPlusPipeline,
    WanPipeline,
)
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import calculate_dimensions
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, Mistral3ForConditionalGeneration

from modules.annotators.processor import load_processor
from modules.config import TrainConfig
from modules.data.batch import Batch, Example, stack_samples
from modules.diffusion.flow_sample_transform import FlowSampleTransform
from modules.diffusion.pixels import rgb_image, rgb_pixels
from modules.families._by_name import family_class
from modules.families._family import SampleRequest
from modules.families._flow_transformer import FlowTransformer
from modules.torch_compat import CPU_ATTENTION, TorchDispatchMode
from tests.families.diffusion_checks import encoded_text
from tests.families.tiny_flow_parts import WIDTH

CAPTIONS = ("a red disc", "a blue circle, number 2, on a table", "cat and dog")
# How many images tiny pipelines are shown in these tests.
REFERENCES = {
    "flux_kontext": 1,
    "flux2_dev": 2,
    "qwen_image_edit": 2,
    "qwen_image_edit_1": 1,
}
REQUEST = SampleRequest("a red disc", "a blue square", 64, 48, steps=2, guidance_scale=3.0, seed=7)


def family_of(pipeline_name: str) -> str:
    """The family that trains the tiny pipeline of this name."""
    return pipeline_name.removesuffix("_dev").removesuffix("_1")


def load(family: str, folder: Path, **settings: object) -> FlowTransformer:
    """The family as a run loads it."""
    family = family_of(family)
    config = TrainConfig.model_validate({"family": family, "base_model": str(folder), **settings})
    loaded = family_class(family).load(config)
    assert isinstance(loaded, FlowTransformer)
    return loaded


def pipeline(folder: Path) -> Any:
    """diffusers' own pipeline of the folder."""
    name = json.loads((folder / "model_index.json").read_text())["_class_name"]
    if name == "Flux2Pipeline":
        loaded = _flux2_dev_pipeline(folder)
    elif "Edit" in name:
        loaded = DiffusionPipeline.from_pretrained(folder, processor=load_processor(folder / "processor"))
    else:
        loaded = DiffusionPipeline.from_pretrained(folder)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def _flux2_dev_pipeline(folder: Path) -> Any:
    """Without the processor that its index names, because that needs torchvision."""
    return Flux2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=AutoencoderKLFlux2.from_pretrained(folder / "vae"),
        text_encoder=Mistral3ForConditionalGeneration.from_pretrained(folder / "text_encoder"),
        tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer"),
        transformer=Flux2Transformer2DModel.from_pretrained(folder / "transformer"),
    )


def request_of(name: str) -> SampleRequest:
    """REQUEST in a size that the tiny pipeline of this name can generate."""
    step = family_class(family_of(name)).size_step
    return replace(REQUEST, height=REQUEST.height // step * step)


def example(name: str, number: int) -> Example:
    """An image of noise for the tiny pipeline of this name, 48 x 64 pixels or narrower, with two captions."""
    generator = torch.Generator().manual_seed(number)
    width = request_of(name).height
    pixels = torch.randint(0, 256, (3, 64, width), generator=generator, dtype=torch.uint8)
    return Example(pixels, None, (CAPTIONS[number], "another one"), (100, 80), (0, 0), flipped=False)


def references(name: str, number: int) -> tuple[Tensor, ...]:
    """What the tiny pipeline of this name is shown beside an example: images of noise of other shapes, uint8
    [3, H, W]."""
    generator = torch.Generator().manual_seed(100 + number)
    sizes = ((3, 48, 32), (3, 64, 80))[: REFERENCES.get(name, 0)]
    return tuple(torch.randint(0, 256, size, generator=generator, dtype=torch.uint8) for size in sizes)


def edited(name: str, number: int, shown: int | None = None) -> Example:
    """An example with the references of the tiny pipeline of this name, or with those of another."""
    given = references(name, number if shown is None else shown)
    return replace(example(name, number), references=given, pictures=tuple(map(seen, given)))


def seen(pixels: Tensor) -> Tensor:
    """What the language model of QwenImageEditPlusPipeline sees of an image."""
    image = rgb_image(pixels)
    size = calculate_dimensions(384 * 384, image.width / image.height)
    return rgb_pixels(image.resize(size, Image.Resampling.LANCZOS))


def batch(family: FlowTransformer, name: str) -> Batch:
    """Three samples, as the loader makes them, with the references of the tiny pipeline of this name."""
    transform = family.sample_transform
    encode = family.example_transform or family.encode
    examples = [edited(name, n) for n in range(len(CAPTIONS))]
    samples = [
        transform(
            {**encode(examples[number]), **encoded_text(family, caption)},
            caption,
            torch.Generator().manual_seed(number),
        )
        for number, caption in enumerate(CAPTIONS)
    ]
    return batch_of(samples, transform)


def batch_of(samples: list[dict[str, Tensor]], transform: FlowSampleTransform) -> Batch:
    """The outputs of `transform`, stacked."""
    tensors, count = stack_samples(samples, transform.varying_length), len(samples)
    numbers, weights = torch.arange(count), torch.ones(count, dtype=torch.float64)
    return Batch(tensors, numbers, numbers, weights, is_last_of_step=True, step_samples=count)


@torch.no_grad()
def direct_loss(family: str, folder: Path, given: Batch) -> Tensor:
    """[B]: each sample alone, x_0 encoded from its image as the most likely latents."""
    pipe = pipeline(folder)
    found = []
    for number, caption in enumerate(CAPTIONS):
        pixels = example(family, number).pixels[None].float() / 127.5 - 1
        x_0 = _latents(pipe, pixels)
        noise, sigma = given.tensors["noise"][number][None], given.tensors["sigma"][number][None]
        x_t = (1 - sigma) * x_0 + sigma * noise
        predicted = VELOCITIES[family](pipe, x_t, sigma, caption)
        found.append((predicted - (noise - x_0)).square().mean())
    return torch.stack(found)


def unpadded_prompts(pipe: Any, prompt: str, negative: str) -> dict[str, Tensor]:
    """Chroma's prompts without padding, which its pipeline (0.42) does not mask."""
    arguments = {}
    for prefix, text in (("", prompt), ("negative_", negative)):
        states, _, mask, *_ = pipe.encode_prompt(text, do_classifier_free_guidance=False)
        arguments[f"{prefix}prompt_embeds"] = states[:, mask[0].bool()]
        arguments[f"{prefix}prompt_attention_mask"] = mask[:, mask[0].bool()].bool()
    return arguments


def _latents(pipe: Any, pixels: Tensor) -> Tensor:
    config = pipe.vae.config
    if hasattr(pipe.vae, "bn"):
        latents = pipe._patchify_latents(pipe.vae.encode(pixels).latent_dist.mode())
        mean = pipe.vae.bn.running_mean.view(1, -1, 1, 1)
        eps = 1e-5 if isinstance(pipe, ErnieImagePipeline) else config.batch_norm_eps
        return cast(Tensor, (latents - mean) / torch.sqrt(pipe.vae.bn.running_var.view(1, -1, 1, 1) + eps))
    if "latents_mean" in config and config.latents_mean is not None:
        mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (config.latents_mean, config.latents_std))
        latents = pipe.vae.encode(pixels if pixels.ndim == 5 else pixels.unsqueeze(2)).latent_dist.mode()
        if isinstance(pipe, WanPipeline):
            return cast(Tensor, (latents - mean.unsqueeze(2)) / std.unsqueeze(2))
        return cast(Tensor, (latents[:, :, 0] - mean) / std)
    return cast(Tensor, (pipe.vae.encode(pixels).latent_dist.mode() - config.shift_factor) * config.scaling_factor)


def _z_image(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, _ = pipe.encode_prompt(caption, do_classifier_free_guidance=False)
    return cast(Tensor, -pipe.transformer([x_t[0].unsqueeze(1)], 1 - sigma, states).sample[0][:, 0][None])


def _flux(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, pooled, text_ids = pipe.encode_prompt(caption)
    ids = pipe._prepare_latent_image_ids(1, x_t.shape[2] // 2, x_t.shape[3] // 2, "cpu", torch.float32)
    guidance = torch.ones(1)
    out = pipe.transformer(_pack(pipe, x_t), states, pooled, sigma, ids, text_ids, guidance).sample
    return cast(Tensor, pipe._unpack_latents(out, x_t.shape[2] * 8, x_t.shape[3] * 8, 8))


def _flux_kontext(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, pooled, text_ids = pipe.encode_prompt(caption)
    (image,) = _images("flux_kontext", caption)
    size = x_t.shape[2] * 8, x_t.shape[3] * 8
    tokens, image_tokens, ids, image_ids = pipe.prepare_latents(
        image, 1, x_t.shape[1], *size, torch.float32, "cpu", latents=_pack(pipe, x_t)
    )
    both = torch.cat([tokens, image_tokens], dim=1), torch.cat([ids, image_ids])
    out = pipe.transformer(both[0], states, pooled, sigma, both[1], text_ids, torch.ones(1)).sample
    return cast(Tensor, pipe._unpack_latents(out[:, : tokens.shape[1]], *size, 8))


def _sd3(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, _, pooled, _ = pipe.encode_prompt(caption, None, None, do_classifier_free_guidance=False)
    return cast(Tensor, pipe.transformer(x_t, states, pooled, sigma * 1000).sample)


def _qwen_image(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, mask = pipe.encode_prompt(caption)
    shapes = [[(1, x_t.shape[2] // 2, x_t.shape[3] // 2)]]
    out = pipe.transformer(_pack(pipe, x_t), states, mask, sigma, img_shapes=shapes).sample
    return cast(Tensor, pipe._unpack_latents(out, x_t.shape[2] * 8, x_t.shape[3] * 8, 8)[:, :, 0])


def _qwen_image_edit(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    is_plus = isinstance(pipe, QwenImageEditPlusPipeline)
    name = "qwen_image_edit" if is_plus else "qwen_image_edit_1"
    images = _images(name, caption)
    shown = references(name, CAPTIONS.index(caption))
    states, mask = pipe.encode_prompt(caption, [rgb_image(seen(each) if is_plus else each) for each in shown])
    size = x_t.shape[2] * 8, x_t.shape[3] * 8
    given: Any = [each.unsqueeze(2) for each in images]
    given = given if is_plus else given[0]
    tokens, image_tokens = pipe.prepare_latents(
        given, 1, x_t.shape[1], *size, torch.float32, "cpu", None, _pack(pipe, x_t)
    )
    sizes = [size, *(each.shape[2:] for each in images)]
    tokens_of = [[(1, height // 16, width // 16) for height, width in sizes]]
    both = torch.cat([tokens, image_tokens], dim=1)
    out = pipe.transformer(both, states, mask, sigma, img_shapes=tokens_of).sample[:, : tokens.shape[1]]
    return cast(Tensor, pipe._unpack_latents(out, *size, 8)[:, :, 0])


def _flux2(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, text_ids = pipe.encode_prompt(caption)
    is_klein = isinstance(pipe, Flux2KleinPipeline)
    tokens, ids = pipe._pack_latents(x_t), pipe._prepare_latent_ids(x_t)
    both = tokens, ids
    if images := _images("flux2" if is_klein else "flux2_dev", caption):
        found = pipe.prepare_image_latents(images, 1, None, "cpu", torch.float32)
        both = torch.cat([tokens, found[0]], dim=1), torch.cat([ids, found[1]], dim=1)
    guidance = None if is_klein else torch.ones(1)
    out = pipe.transformer(both[0], states, sigma, both[1], text_ids, guidance).sample[:, : tokens.shape[1]]
    return cast(Tensor, pipe._unpack_latents_with_ids(out, ids, *(x_t.shape[2:] if is_klein else ())))


def _chroma(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, text_ids, mask, *_ = pipe.encode_prompt(caption, do_classifier_free_guidance=False)
    ids = pipe._prepare_latent_image_ids(1, x_t.shape[2] // 2, x_t.shape[3] // 2, "cpu", torch.float32)
    tokens = _pack(pipe, x_t)
    mask = pipe._prepare_attention_mask(1, tokens.shape[1], tokens.dtype, mask.bool())  # numbers would mask nothing
    out = pipe.transformer(tokens, states, sigma, ids, text_ids, mask).sample
    return cast(Tensor, pipe._unpack_latents(out, x_t.shape[2] * 8, x_t.shape[3] * 8, 8))


def _krea2(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, mask = pipe.encode_prompt(caption)
    height, width = x_t.shape[2] // 2, x_t.shape[3] // 2
    places = pipe.prepare_position_ids(states.shape[1], height, width, "cpu")
    out = pipe.transformer(_pack(pipe, x_t), states, sigma, places, mask).sample
    return _unpack(out, height, width)


def _lumina2(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, mask, _, _ = pipe.encode_prompt(caption, do_classifier_free_guidance=False)
    return cast(Tensor, -pipe.transformer(x_t, 1 - sigma, states, mask).sample)


def _ernie_image(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, lengths = pipe._pad_text(pipe.encode_prompt(caption, "cpu"), "cpu", torch.float32, WIDTH)
    return cast(Tensor, pipe.transformer(x_t, sigma * 1000, states, lengths).sample)


def _wan(pipe: Any, x_t: Tensor, sigma: Tensor, caption: str) -> Tensor:
    states, _ = pipe.encode_prompt(caption, do_classifier_free_guidance=False, max_sequence_length=512)
    if pipe.config.expand_timesteps:
        sigma = (torch.ones(x_t.shape[2:])[:, ::2, ::2] * sigma).flatten()[None]
    return cast(Tensor, pipe.transformer(x_t, sigma * 1000, states).sample)


def _images(name: str, caption: str) -> list[Tensor]:
    """The references of the example with this caption, as an autoencoder takes them."""
    return [each[None].float() / 127.5 - 1 for each in references(name, CAPTIONS.index(caption))]


def _pack(pipe: Any, x_t: Tensor) -> Tensor:
    return cast(Tensor, pipe._pack_latents(x_t, *x_t.shape))


def _unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    parts = tokens.view(1, height, width, -1, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return parts.reshape(1, -1, 2 * height, 2 * width)


VELOCITIES: Mapping[str, Callable[[Any, Tensor, Tensor, str], Tensor]] = {
    "z_image": _z_image,
    "flux": _flux,
    "flux_kontext": _flux_kontext,
    "stable_diffusion_3": _sd3,
    "qwen_image": _qwen_image,
    "qwen_image_edit": _qwen_image_edit,
    "qwen_image_edit_1": _qwen_image_edit,
    "flux2": _flux2,
    "flux2_dev": _flux2,
    "chroma": _chroma,
    "krea2": _krea2,
    "lumina2": _lumina2,
    "ernie_image": _ernie_image,
    "wan": _wan,
    "wan22_5b": _wan,
}


class MaskedAttention(TorchDispatchMode):
    """Inside the block, how many calls of attention there are, forward alone, and how many of them get a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.masked = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is CPU_ATTENTION.default:
            self.count += 1
            self.masked += (kwargs or {}).get("attn_mask") is not None
        return func(*args, **(kwargs or {}))
