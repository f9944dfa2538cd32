"""Qwen-Image, whose own code names its layers as diffusers does."""

from modules.facts import FamilyFacts, KnownModel, TransformerFile, hub_model_by_name
from modules.facts._networks import VIDEO_VAE

_QWEN25_VL_7B = (
    "Qwen2_5_VLForConditionalGeneration",
    {
        "text_config": {
            "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "vocab_size": 152064,
        },
        "vision_config": {
            "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
        },
    },
)  # fmt: skip
_QWEN_IMAGE = KnownModel({"transformer": {}}, VIDEO_VAE, {"text_encoder": _QWEN25_VL_7B})

FACTS = FamilyFacts(
    about="Qwen-Image by Alibaba: 20 B parameters (41 GB in bf16), Apache 2.0.",
    popularity=5,
    network="transformer",
    pipelines=("QwenImagePipeline", "QwenImageImg2ImgPipeline"),
    encoders={"text_encoder": "tokenizer"},
    transformer="QwenImageTransformer2DModel",
    feed_forward=r"(img|txt)_mlp\.net\.\d+(\.proj)?",
    models={"Qwen/Qwen-Image": _QWEN_IMAGE, "Qwen/Qwen-Image-2512": _QWEN_IMAGE},
    layers=("", "", r"transformer_blocks_\d+_(img|txt)_(mlp|mod)"),
    hub_model_of=hub_model_by_name({"2512": "Qwen/Qwen-Image-2512"}, "Qwen/Qwen-Image"),
    file=TransformerFile(
        {
            name: name
            for name in (
                *("img_in", "txt_in", "norm_out.linear", "proj_out"),
                *(f"time_text_embed.timestep_embedder.linear_{number}" for number in (1, 2)),
                *(f"transformer_blocks.*.attn.to_{name}" for name in ("q", "k", "v", "out.0", "add_out")),
                *(f"transformer_blocks.*.attn.add_{letter}_proj" for letter in "qkv"),
                *(f"transformer_blocks.*.{side}_mod.1" for side in ("img", "txt")),
                *(
                    f"transformer_blocks.*.{side}_mlp.net.{layer}"
                    for side in ("img", "txt")
                    for layer in ("0.proj", "2")
                ),
            )
        },
        "txt_norm.weight",
        keeps_other_names=True,
    ),
    onetrainer_trains_encoders=True,
    architecture="qwen-image",
    architectures=("qwen-image",),
    code="https://github.com/QwenLM/Qwen-Image",
    musubi_module="lora_qwen_image",
    musubi_versions={"original": ""},
    musubi_others={"layered": "Qwen-Image-Layered"},
    aliases=("qwen", "qwen_image"),
    has_guidance=True,
    blocks={(): 60},
    simple_tuner={"v2.0": "Qwen/Qwen-Image-2512", "v1.0": "Qwen/Qwen-Image"},
    # without the layers of the prompt, such as add_k_proj
    simple_tuner_layers=r"\.(to_[qkv]|to_out\.0)$",
)
