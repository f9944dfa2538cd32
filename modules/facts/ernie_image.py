"""ERNIE-Image; files have diffusers' names (ComfyUI's comfy/ldm/ernie/model.py, OneTrainer's ErnieModelSaver.py)."""

from dataclasses import replace

from modules.facts import FamilyFacts, KnownModel, TransformerFile, hub_model_by_name, in_blocks
from modules.facts._networks import PIXTRAL, VAE

_BLOCK = (
    *(f"self_attention.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0", "norm_q", "norm_k")),
    *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "linear_fc2")),
    *("adaLN_sa_ln", "adaLN_mlp_ln"),
)
_MINISTRAL_3_3B = (
    "Mistral3Model",
    {
        "text_config": {
            "model_type": "ministral3", "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
        },
        "vision_config": PIXTRAL,
    },
)  # fmt: skip
_ERNIE_IMAGE = KnownModel(
    {
        "transformer": {
            "hidden_size": 4096, "num_attention_heads": 32, "num_layers": 36, "ffn_hidden_size": 12288,
            "text_in_dim": 3072,
        }
    },
    VAE,
    {"text_encoder": _MINISTRAL_3_3B},
)  # fmt: skip

FACTS = FamilyFacts(
    about="ERNIE-Image by Baidu: 8 B parameters (16 GB in bf16), Apache 2.0.",
    popularity=13,
    network="transformer",
    pipelines=("ErnieImagePipeline",),
    encoders={"text_encoder": "tokenizer"},
    transformer="ErnieImageTransformer2DModel",
    feed_forward=r"mlp\.(gate_proj|up_proj|linear_fc2)",
    models={
        "baidu/ERNIE-Image": _ERNIE_IMAGE,
        "baidu/ERNIE-Image-Turbo": replace(_ERNIE_IMAGE, trained_instead="baidu/ERNIE-Image"),
    },
    layers=(r"layers_\d+_(self_attention_(to|norm)_|mlp_(gate_proj|up_proj|linear_fc2))|adaLN_(sa|mlp)_ln",),
    hub_model_of=hub_model_by_name({"turbo": "baidu/ERNIE-Image-Turbo"}, "baidu/ERNIE-Image"),
    file=TransformerFile(
        {
            **{
                name: name
                for name in (
                    *("x_embedder.proj", "text_proj", "time_embedding.linear_1", "time_embedding.linear_2"),
                    *("adaLN_modulation.1", "final_norm.linear", "final_linear"),
                )
            },
            **in_blocks("layers", "layers", {name: name for name in _BLOCK}),
        },
        "layers.0.mlp.linear_fc2.weight",
    ),
    architecture="ernie-image",
    architectures=("ernie-image", "ernie"),  # OneTrainer writes Ernie
    code="https://huggingface.co/baidu/ERNIE-Image",
    aliases=("ernie_image", "ernie"),
    blocks={(): 36},
    simple_tuner={"base": "baidu/ERNIE-Image", "turbo": "baidu/ERNIE-Image-Turbo"},
    simple_tuner_assisted=("turbo",),
)
