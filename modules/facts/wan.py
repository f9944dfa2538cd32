"""Wan 2.1, text to video; the names of its own code are those of Wan-Video/Wan2.1 (wan/modules/model.py)."""

from modules.facts import ClipFacts, FamilyFacts, KnownModel, Shapes, TransformerFile, in_blocks
from modules.facts._networks import VIDEO_VAE

_ATTENTION = {
    **{f"to_{one}": one for one in "qkv"}, "to_out.0": "o", "norm_q": "norm_q", "norm_k": "norm_k",
}  # fmt: skip
_NAMES = {
    "patch_embedding": "patch_embedding",
    **{f"condition_embedder.time_embedder.linear_{one}": f"time_embedding.{2 * one - 2}" for one in (1, 2)},
    **{f"condition_embedder.text_embedder.linear_{one}": f"text_embedding.{2 * one - 2}" for one in (1, 2)},
    "condition_embedder.time_proj": "time_projection.1",
    **in_blocks("blocks", "blocks", {
        **{f"attn1.{name}": f"self_attn.{own}" for name, own in _ATTENTION.items()},
        **{f"attn2.{name}": f"cross_attn.{own}" for name, own in _ATTENTION.items()},
        "norm2": "norm3", "ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2", "scale_shift_table": "modulation",
    }),
    "scale_shift_table": "head.modulation", "proj_out": "head.head",
}  # fmt: skip
_UMT5_XXL = (
    "UMT5EncoderModel",
    {
        "vocab_size": 256384, "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64,
        "feed_forward_proj": "gated-gelu",
    },
)  # fmt: skip
_SMALL = {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}


def _hub_model_of(shapes: Shapes, file_name: str) -> str:
    widths = {shape[0] for name, shape in shapes.items() if name.endswith("patch_embedding.weight")}
    return f"Wan-AI/Wan2.1-T2V-{'1.3B' if widths == {1536} else '14B'}-Diffusers"


FACTS = FamilyFacts(
    about="Wan 2.1 by Alibaba: 1.4 or 14.3 B parameters (2.8 to 29 GB in bf16), Apache 2.0.",
    popularity=8,
    resolution=640,  # 832 x 480
    network="transformer",
    pipelines=("WanPipeline",),
    encoders={"text_encoder": "tokenizer"},
    transformer="WanTransformer3DModel",
    clips=ClipFacts(step=4, rate=16.0),
    feed_forward=r"ffn\.net\.\d+(\.proj)?",
    models={
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": KnownModel({"transformer": _SMALL}, VIDEO_VAE, {"text_encoder": _UMT5_XXL}),
        "Wan-AI/Wan2.1-T2V-14B-Diffusers": KnownModel({"transformer": {}}, VIDEO_VAE, {"text_encoder": _UMT5_XXL}),
    },
    layers=(
        r"blocks_\d+_((self|cross)_attn_([qkvo]|norm_[qk])(_|$)(?!proj)|ffn_(net_)?\d)",
        "",
        r"^transformer_blocks_\d+_attn[12]_to_.*_(lora|hada|lokr|oft)_",  # transformer.blocks
    ),
    hub_model_of=_hub_model_of,
    file=TransformerFile(_NAMES, "head.modulation"),
    is_unknown_to_comfyui=True,
    architecture="wan-2.1",
    architectures=("wan", "wan-2.1", "wan2.1"),
    code="https://github.com/Wan-Video/Wan2.1",
    aliases=("wan", "wan21", "wan_2_1", "wan2_1"),
    blocks={("1", "3b"): 30, ("14b",): 40},
    simple_tuner={
        "t2v-480p-1.3b-2.1": "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        "t2v-480p-14b-2.1": "Wan-AI/Wan2.1-T2V-14B-Diffusers",
    },
    simple_tuner_layers=r"\.(to_[qkv]|to_out\.0)$",
    musubi_module="lora_wan",
)
