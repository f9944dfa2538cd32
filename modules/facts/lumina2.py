"""Lumina-Image 2.0."""

from modules.facts import FamilyFacts, KnownModel, TransformerFile, hub_model_by_name, in_blocks
from modules.facts._networks import VAE

_BLOCK = {
    **{f"attn.to_{letter}": "attention.qkv" for letter in "qkv"},
    "attn.to_out.0": "attention.out",
    "attn.norm_q": "attention.q_norm",
    "attn.norm_k": "attention.k_norm",
    **{f"feed_forward.linear_{number}": f"feed_forward.w{number}" for number in (1, 2, 3)},
    "norm1": "attention_norm1",  # of the context refiner, whose norms are not modulated
    "norm1.norm": "attention_norm1",
    "norm1.linear": "adaLN_modulation.1",
    "norm2": "attention_norm2",
    **{name: name for name in ("ffn_norm1", "ffn_norm2")},
}


def is_lumina2(layer: str, rows: int, columns: int) -> bool | None:
    """Keys and values are narrower than queries, and the MLP has four times the width of the model; Z-Image, whose
    layers have the same names, has neither."""
    if layer.endswith("_attention_qkv"):
        return rows < 3 * columns
    if layer.endswith("_feed_forward_w2"):
        return columns == 4 * rows
    return rows == 4 * columns if "_feed_forward_w" in layer else None


FACTS = FamilyFacts(
    about="Lumina-Image 2.0 by Alpha-VLLM: 2.6 B parameters (5 GB in bf16), Apache 2.0.",
    popularity=11,
    network="transformer",
    pipelines=("Lumina2Pipeline",),
    encoders={"text_encoder": "tokenizer"},
    transformer="Lumina2Transformer2DModel",
    feed_forward=r"feed_forward\.linear_[123]",
    models={
        "Alpha-VLLM/Lumina-Image-2.0": KnownModel(
            {"transformer": {"cap_feat_dim": 2304}}, VAE, {"text_encoder": ("Gemma2Model", {})}
        )
    },
    layers=(r"(layers|_refiner)_\d+_(attn_to_|feed_forward_linear_|adaLN_modulation_1)",),
    hub_model_of=hub_model_by_name({}, "Alpha-VLLM/Lumina-Image-2.0"),
    file=TransformerFile(
        {
            "x_embedder": "x_embedder",
            "time_caption_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
            "time_caption_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
            "time_caption_embed.caption_embedder.0": "cap_embedder.0",
            "time_caption_embed.caption_embedder.1": "cap_embedder.1",
            "norm_out.linear_1": "final_layer.adaLN_modulation.1",
            "norm_out.linear_2": "final_layer.linear",
            **in_blocks("layers", "layers", _BLOCK),
            **in_blocks("noise_refiner", "noise_refiner", _BLOCK),
            **in_blocks("context_refiner", "context_refiner", _BLOCK),
        },
        "cap_embedder.1.weight",
        is_grouped=True,
        is_own=is_lumina2,
        is_rarer=True,
    ),
    is_unknown_to_comfyui=True,
    architecture="lumina-2",
    architectures=("lumina-2",),
    code="https://github.com/Alpha-VLLM/Lumina-Image-2.0",
    aliases=("lumina2", "lumina_2", "lumina"),
    kohya_file="gemma2",
    blocks={(): 26 + 4},
    simple_tuner={"2.0": "Alpha-VLLM/Lumina-Image-2.0", "neta-lumina": "terminusresearch/neta-lumina-v1"},
)
