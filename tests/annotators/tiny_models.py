"""Tiny models with random weights, saved as published ones are: BLIP, GIT, CLIPSeg and a WD14 tagger."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    BertTokenizer,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
    BlipTextConfig,
    BlipVisionConfig,
    CLIPSegConfig,
    CLIPSegForImageSegmentation,
    CLIPSegProcessor,
    GitConfig,
    GitForCausalLM,
    GitProcessor,
    GitVisionConfig,
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
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
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
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
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


TAGS = [
    ("9999999", "general", "9"),
    ("9999998", "explicit", "9"),
    ("1", "blue_sky", "0"),
    ("2", "green_grass", "0"),
    ("3", "red_dress", "0"),
    ("4", "o_o", "0"),
    ("5", "miss_red", "4"),
]


def tiny_tagger(folder: Path) -> Path:
    """A tagger of 16 x 16 pixels: how blue, green and red an image is. Needs onnx."""
    from onnx import TensorProto, helper, save

    folder.mkdir(parents=True)
    #  of B, G, R in thousandths: an even image of one colour gives sigmoid(255 * 0.02 - 2.5) = 0.93
    columns = [(0, 0, 0), (-9, -9, -9), (20, 0, 0), (0, 20, 0), (0, 0, 20), (0, 0, 15), (0, 0, 25)]
    weights = [columns[column][row] / 1000 for row in range(3) for column in range(len(columns))]
    batch, side, count = "N", 16, len(columns)
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0),
            helper.make_node("MatMul", ["mean", "weights"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["sum"]),
            helper.make_node("Sigmoid", ["sum"], ["tags"]),
        ],
        "tagger",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, side, side, 3])],
        [helper.make_tensor_value_info("tags", TensorProto.FLOAT, [batch, count])],
        [
            helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2]),
            helper.make_tensor("weights", TensorProto.FLOAT, [3, count], weights),
            helper.make_tensor("bias", TensorProto.FLOAT, [count], [1.0, 0.5, *[-2.5] * (count - 2)]),
        ],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "model.onnx")
    rows = [f"{number},{name},{category},1" for number, name, category in TAGS]
    (folder / "selected_tags.csv").write_text("\n".join(["tag_id,name,category,count", *rows]) + "\n")
    return folder
