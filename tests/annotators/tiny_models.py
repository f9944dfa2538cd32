"""Tiny models with random weights, saved as published ones are: BLIP, GIT, Florence-2 and CLIPSeg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    BartConfig,
    BertTokenizer,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
    BlipTextConfig,
    BlipVisionConfig,
    CLIPSegConfig,
    CLIPSegForImageSegmentation,
    CLIPSegProcessor,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    Florence2VisionConfig,
    GitConfig,
    GitForCausalLM,
    GitProcessor,
    GitVisionConfig,
    RobertaTokenizer,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from tests.families.tiny_pipelines import clip_tokenizer

WORDS = ["a", "photo", "of", "cat", "dog", "red", "blue", "grass", "sky", "the", "on", "with", "big"]
SIDE = 32


def tiny_blip(folder: Path) -> Path:
    """An image captioner of 13 words."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]", *WORDS]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)}, bos_token="[DEC]")
    small: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    text = BlipTextConfig(
        vocab_size=len(vocabulary),
        encoder_hidden_size=16,
        projection_dim=16,
        bos_token_id=5,
        pad_token_id=0,
        eos_token_id=3,
        sep_token_id=3,
        max_position_embeddings=64,
        **small,
    )
    vision = BlipVisionConfig(image_size=SIDE, patch_size=16, **small)
    torch.manual_seed(0)
    model = BlipForConditionalGeneration(
        BlipConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16)
    )
    with torch.no_grad():  # such that images differ
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
        model.text_decoder.cls.predictions.bias[:7] -= 100.0  # words only
    model.save_pretrained(folder)
    BlipProcessor(BlipImageProcessorPil(size={"height": SIDE, "width": SIDE}), tokenizer).save_pretrained(folder)
    return folder


def tiny_git(folder: Path) -> Path:
    """A captioner of 13 words that is no encoder and decoder, but one transformer."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    small: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = GitConfig(
        vision_config=GitVisionConfig(image_size=SIDE, patch_size=16, **small).to_dict(),
        vocab_size=len(vocabulary),
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
        max_position_embeddings=64,
        **small,
    )
    torch.manual_seed(1)
    model = GitForCausalLM(config)
    with torch.no_grad():
        model.output.bias[:5] -= 100.0  # words only
    model.save_pretrained(folder)
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)})
    crop = {"height": SIDE, "width": SIDE}
    GitProcessor(CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=crop), tokenizer).save_pretrained(folder)
    return folder


def tiny_clipseg(folder: Path) -> Path:
    """A CLIPSeg of 32 x 32 pixels."""
    tokenizer = clip_tokenizer()
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    config = CLIPSegConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 77,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 1,
            **layers,
        },
        vision_config={"image_size": SIDE, "patch_size": 8, **layers},
        projection_dim=16,
        extract_layers=[0, 1],
        reduce_dim=8,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=16,
    )
    torch.manual_seed(0)
    CLIPSegForImageSegmentation(config).save_pretrained(folder)
    images = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    CLIPSegProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def tiny_florence2(folder: Path) -> Path:
    """A Florence-2 of 13 words and images of 64 x 64 pixels, with the tasks that its processor knows."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = [*special, *ByteLevel.alphabet(), *(f"\u0120{word}" for word in WORDS)]
    tokenizer = RobertaTokenizer(
        vocab={word: number for number, word in enumerate(vocabulary)},
        merges=[],
        extra_special_tokens={"image_token": "<image>"},
    )
    text = BartConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=256,
    )
    vision = Florence2VisionConfig(
        depths=(1, 1, 1, 1), embed_dim=(8, 8, 8, 8), num_heads=(1, 1, 1, 1), num_groups=(1, 1, 1, 1), projection_dim=16
    )
    torch.manual_seed(2)
    model = Florence2ForConditionalGeneration(
        Florence2Config(
            text_config=text.to_dict(), vision_config=vision.to_dict(), image_token_id=tokenizer.image_token_id
        )
    )
    with torch.no_grad():  # such that images differ, and only words are said
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter))
        model.model.language_model.shared.weight[: len(vocabulary) - len(WORDS)] *= 0.01
    model.save_pretrained(folder)
    side = {"height": 2 * SIDE, "width": 2 * SIDE}
    images = CLIPImageProcessorPil(size=side, do_center_crop=False, image_seq_length=5)  # 2 x 2 places and their mean
    Florence2Processor(images, tokenizer).save_pretrained(folder)
    return folder
