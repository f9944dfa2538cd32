"""Embeddings: diffusers loads them and draws the image of the model that was taught the word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors.torch import load_file, save_file

from modules.checkpoint.formats import read_embedding, write_embedding
from modules.config import ConfigError
from tests.checkpoint.formats.generating import PROMPT, generate, same

TOKEN = "<my-cat>"


def teach(tokenizer: Any, encoder: Any, vectors: torch.Tensor) -> None:
    """Give a pipeline the word by hand, a token for each vector, as diffusers itself names them."""
    tokenizer.add_tokens([TOKEN if number == 0 else f"{TOKEN}_{number}" for number in range(len(vectors))])
    encoder.resize_token_embeddings(len(tokenizer))
    table = encoder.get_input_embeddings().weight
    table.data[-len(vectors) :] = vectors


@pytest.mark.parametrize("count", [1, 3])
def test_stable_diffusion_reads_the_one_tensor(sd: Path, count: int, tmp_path: Path) -> None:
    vectors = torch.randn(count, 16, generator=torch.Generator().manual_seed(1))
    file = tmp_path / "my-cat.safetensors"
    write_embedding(file, TOKEN, {"text_encoder": vectors}, {"modelspec.title": "x"})
    assert list(load_file(file)) == ["emb_params"]
    taught = StableDiffusionPipeline.from_pretrained(sd)
    teach(taught.tokenizer, taught.text_encoder, vectors)
    reader = StableDiffusionPipeline.from_pretrained(sd)
    plain = generate(reader)
    reader.load_textual_inversion(str(file), token=TOKEN)
    prompt = f"{PROMPT} {TOKEN}"
    assert same(generate(reader, prompt), generate(taught, prompt))
    assert not same(generate(reader, prompt), plain)


@pytest.mark.slow
def test_sdxl_reads_a_tensor_for_each_encoder(sdxl: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = {
        "text_encoder": torch.randn(2, 16, generator=generator),
        "text_encoder_2": torch.randn(2, 24, generator=generator),
    }
    file = tmp_path / "my-cat.safetensors"
    write_embedding(file, TOKEN, vectors, {})
    tensors = load_file(file)
    assert sorted(tensors) == ["clip_g", "clip_l"]
    taught, reader = (StableDiffusionXLPipeline.from_pretrained(sdxl) for _ in range(2))
    teach(taught.tokenizer, taught.text_encoder, vectors["text_encoder"])
    teach(taught.tokenizer_2, taught.text_encoder_2, vectors["text_encoder_2"])
    plain = generate(reader)
    for name, tokenizer, encoder in (
        ("clip_l", reader.tokenizer, reader.text_encoder),
        ("clip_g", reader.tokenizer_2, reader.text_encoder_2),
    ):
        reader.load_textual_inversion(tensors[name], token=TOKEN, tokenizer=tokenizer, text_encoder=encoder)
    prompt = f"{PROMPT} {TOKEN}"
    assert same(generate(reader, prompt), generate(taught, prompt))
    assert not same(generate(reader, prompt), plain)


@pytest.mark.parametrize("parts", [("text_encoder",), ("text_encoder", "text_encoder_2")])
def test_what_is_written_is_read_again(parts: tuple[str, ...], tmp_path: Path) -> None:
    vectors = {part: torch.randn(2, 8) for part in parts}
    write_embedding(tmp_path / "x.safetensors", TOKEN, vectors, {})
    token, read = read_embedding(tmp_path / "x.safetensors")
    assert token == TOKEN
    assert read.keys() == vectors.keys()
    assert all(torch.equal(read[part], vectors[part]) for part in parts)


def test_the_form_of_diffusers_scripts_is_read(tmp_path: Path) -> None:
    save_file({"<statue>": torch.ones(8)}, tmp_path / "learned_embeds.safetensors")
    token, read = read_embedding(tmp_path / "learned_embeds.safetensors")
    assert token == "<statue>"
    assert read["text_encoder"].shape == (1, 8)


def test_a_file_without_a_word_is_called_by_its_name(tmp_path: Path) -> None:
    save_file({"emb_params": torch.ones(2, 8)}, tmp_path / "statue.safetensors")
    assert read_embedding(tmp_path / "statue.safetensors")[0] == "statue"


@pytest.mark.parametrize("tensors", [{"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.ones(2, 2, 2)}])
def test_what_is_no_embedding_is_refused(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(ConfigError, match="is not an embedding"):
        read_embedding(tmp_path / "x.safetensors")
