"""What tiny pipelines are built from: autoencoders, tokenizers and the sizes of text encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, AutoencoderKLFlux2, AutoencoderKLQwenImage, AutoencoderKLWan
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GemmaTokenizer, Qwen2Tokenizer, Qwen3Config, T5Config, T5Tokenizer

from tests.families import tiny_pipelines

WIDTH = 16  # of the text encoders
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MISTRAL_CHAT = (
    "<|endoftext|>{% for message in messages %}{% set text = message.content[0].text %}"
    "{% if message.role == 'system' %}<|im_start|>{{ text }}<|im_end|>{% else %}[INST]{{ text }}[/INST]{% endif %}"
    "{% endfor %}"
)
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": WIDTH}
OF_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def save(pipeline: Any, folder: Path) -> Path:
    """Write the pipeline; weights that start as zeros get values, so that all of them matter."""
    generator = torch.Generator().manual_seed(0)
    for weight in pipeline.transformer.parameters():
        if not weight.any():
            weight.data = 0.1 * torch.randn(weight.shape, generator=generator)
    pipeline.save_pretrained(folder)
    return folder


def vae() -> AutoencoderKL:
    """Four latent channels, sides divided by 8."""
    return AutoencoderKL(**tiny_pipelines.TINY_VAE, scaling_factor=0.36, shift_factor=0.11)


def flux2_vae() -> Any:
    """Four latent channels, sides divided by 8, with the statistics of a batch norm."""
    autoencoder: Any = AutoencoderKLFlux2(**tiny_pipelines.TINY_VAE)
    autoencoder.bn.running_mean.uniform_(-0.2, 0.2)
    autoencoder.bn.running_var.uniform_(0.5, 2.0)
    return autoencoder


def qwen_tokenizer(more: tuple[str, ...] = ()) -> Qwen2Tokenizer:
    """Qwen's byte-level tokenizer without merges: a token for each byte, and for each of the SPECIAL and of `more`."""
    vocabulary = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    for special in (special_tokens := (*SPECIAL, *more)):
        vocabulary[special] = len(vocabulary)
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        extra_special_tokens=list(special_tokens[1:]),
        chat_template=CHAT,
        model_max_length=1024,
    )


def qwen_config(tokenizer: Qwen2Tokenizer, **settings: Any) -> Qwen3Config:
    """Two layers, if `settings` do not say otherwise."""
    return Qwen3Config(**(qwen_settings(tokenizer) | settings))


def qwen_settings(tokenizer: Any, *, rope: bool = False) -> dict[str, Any]:
    """Of a language model; with `rope` the positions of one that sees images."""
    positions = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        **({"rope_parameters": positions} if rope else {}),
    }


def t5_tokenizer() -> T5Tokenizer:
    """A Unigram tokenizer with a piece for each printable character."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), ("\u2581", -2.0)]
    return T5Tokenizer(vocab=[*pieces, *((chr(code), -3.0) for code in range(33, 127))], extra_ids=0)


def t5_config(tokenizer: T5Tokenizer, width: int = WIDTH) -> T5Config:
    """One layer."""
    return T5Config(vocab_size=len(tokenizer), d_model=width, d_kv=8, d_ff=32, num_layers=1, num_heads=2)


def gemma_tokenizer() -> GemmaTokenizer:
    """A token for each printable character."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    letters = [*special, "\u2581", *(chr(code) for code in range(33, 127))]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    return GemmaTokenizer(vocab=vocabulary, model_max_length=1024, add_bos_token=True)


def video_vae(kind: Any = AutoencoderKLQwenImage, **more: Any) -> AutoencoderKLQwenImage | AutoencoderKLWan:
    """Four latent channels, sides divided by 8, of frames but the first four at a time; `more` of its configuration."""
    return kind(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 2.0, 0.8, 1.1],
        **more,
    )
