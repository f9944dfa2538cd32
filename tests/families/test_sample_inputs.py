"""How often samples run the text encoders and the autoencoder: frozen ones once for each distinct input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.families._latent_diffusion import LatentDiffusion
from tests.families.diffusion_checks import REQUEST, load
from tests.families.stills import still

SMALL = replace(REQUEST, width=64, height=64, steps=2)
# Three prompts and two negative ones, which with SDXL's and SD's encoders are four distinct texts.
REQUESTS = [SMALL, replace(SMALL, prompt="a cat"), replace(SMALL, negative_prompt="a cat"), replace(SMALL, prompt="")]
TEXTS = {text for each in REQUESTS for text in (each.prompt, each.negative_prompt)}


@contextmanager
def counted(family: LatentDiffusion) -> Iterator[Counter[str]]:
    """How often each encoder ran, and the encoder half of the autoencoder, counted by hooks on the real modules."""
    count: Counter[str] = Counter()
    modules = {**family.components.encoders, "vae": family.components.vae.encoder}
    hooks = [
        module.register_forward_hook(lambda *_, name=name: count.update([name])) for name, module in modules.items()
    ]
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()


def rounds(family: LatentDiffusion, number: int = 3) -> list[list[bytes]]:
    return [[still(family, request).tobytes() for request in REQUESTS] for _ in range(number)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stable_diffusion", "stable_diffusion_xl"])
def test_frozen_encoders_run_once_for_each_prompt_of_all_rounds(kind: str, sd_folder: Path, sdxl_folder: Path) -> None:
    folder = sd_folder if kind == "stable_diffusion" else sdxl_folder
    family = load(kind, folder, family_options={"offload_frozen": True})
    with counted(family) as count:
        images = rounds(family)
    assert count == dict.fromkeys(family.components.encoders, len(TEXTS))
    fresh = load(kind, folder)
    assert images == [[still(fresh, request).tobytes() for request in REQUESTS]] * 3


def test_trained_encoders_run_every_time_and_with_their_newest_weights(sdxl_folder: Path) -> None:
    parts = [{"part": "unet"}, {"part": "text_encoder"}]
    family = load("stable_diffusion_xl", sdxl_folder, parts=parts)
    with counted(family) as count:
        first = still(family, SMALL)
        with torch.no_grad():
            for weight in family.components.encoders["text_encoder"].parameters():
                weight.mul_(1.5)
        second = still(family, SMALL)
    assert count == {"text_encoder": 4, "text_encoder_2": 2}
    assert first.tobytes() != second.tobytes()


def test_a_learned_token_is_encoded_every_time(sd_folder: Path) -> None:
    family = load("stable_diffusion", sd_folder, method="embedding", embedding_token="<c>")
    family.add_placeholder_token("<c>", 1, "cat")
    request = replace(SMALL, prompt="a <c>")
    with counted(family) as count:
        images = [still(family, request).tobytes()]
        with torch.no_grad():
            encoder: Any = family.components.encoders["text_encoder"]
            encoder.get_input_embeddings().weight[-1] *= -2
        images.append(still(family, request).tobytes())
    assert count == {"text_encoder": 4}
    assert images[0] != images[1]


@pytest.mark.slow
def test_results_under_autocast_are_kept_apart(sd_folder: Path) -> None:
    family = load("stable_diffusion", sd_folder)
    exact = still(family, SMALL).tobytes()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = still(family, SMALL).tobytes()
        assert rounded == still(load("stable_diffusion", sd_folder), SMALL).tobytes()
    assert still(family, SMALL).tobytes() == exact != rounded


@pytest.mark.slow
def test_the_blank_image_of_inpainting_is_encoded_once_for_each_size(inpainting_folder: Path) -> None:
    family = load("stable_diffusion", inpainting_folder)
    requests = [SMALL, replace(SMALL, width=128), replace(SMALL, seed=8)]
    with counted(family) as count:
        images = [[still(family, request).tobytes() for request in requests] for _ in range(2)]
    assert count["vae"] == 2
    assert images[0] == images[1]
