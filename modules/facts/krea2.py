"""Krea 2."""

from dataclasses import replace

from modules.facts import FamilyFacts, KnownModel, TransformerFile, hub_model_by_name, in_blocks
from modules.facts._networks import QWEN3_4B_TEXT, VIDEO_VAE

_BLOCK = {
    "attn.to_q": "attn.wq", "attn.to_k": "attn.wk", "attn.to_v": "attn.wv", "attn.to_out.0": "attn.wo",
    "attn.to_gate": "attn.gate", "attn.norm_q.weight": "attn.qknorm.qnorm.scale",
    "attn.norm_k.weight": "attn.qknorm.knorm.scale",
    **{f"ff.{name}": f"mlp.{name}" for name in ("gate", "up", "down")}, "norm1.weight": "prenorm.scale",
    "norm2.weight": "postnorm.scale",
}  # fmt: skip
_NAMES = {
    "img_in": "first", "time_embed.linear_1": "tmlp.0", "time_embed.linear_2": "tmlp.2", "time_mod_proj": "tproj.1",
    "txt_in.norm.weight": "txtmlp.0.scale", "txt_in.linear_1": "txtmlp.1", "txt_in.linear_2": "txtmlp.3",
    "text_fusion.projector": "txtfusion.projector", "transformer_blocks.*.scale_shift_table": "blocks.*.mod.lin",
    "final_layer.linear": "last.linear", "final_layer.norm.weight": "last.norm.scale",
    "final_layer.scale_shift_table": "last.modulation.lin", **in_blocks("transformer_blocks", "blocks", _BLOCK),
    **in_blocks("text_fusion.layerwise_blocks", "txtfusion.layerwise_blocks", _BLOCK),
    **in_blocks("text_fusion.refiner_blocks", "txtfusion.refiner_blocks", _BLOCK),
}  # fmt: skip
_QWEN3_VL_4B = (
    "Qwen3VLModel",
    {
        "text_config": QWEN3_4B_TEXT,
        "vision_config": {
            "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2560,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    },
)  # fmt: skip
_KREA_2 = KnownModel({"transformer": {}}, VIDEO_VAE, {"text_encoder": _QWEN3_VL_4B})

FACTS = FamilyFacts(
    about="Krea 2 by Krea: 13 B parameters (26 GB in bf16); licence: see the model's page.",
    popularity=12,
    network="transformer",
    pipelines=("Krea2Pipeline",),
    encoders={"text_encoder": "tokenizer"},
    transformer="Krea2Transformer2DModel",
    feed_forward=r"ff\.(gate|up|down)",
    models={
        "krea/Krea-2-Raw": _KREA_2,
        "krea/Krea-2-Turbo": replace(_KREA_2, trained_instead="krea/Krea-2-Raw"),
    },
    layers=("attn_to_gate|text_fusion|txtfusion|_attn_w[qkvo]_",),
    hub_model_of=hub_model_by_name({"turbo": "krea/Krea-2-Turbo"}, "krea/Krea-2-Raw"),
    file=TransformerFile(
        _NAMES,
        "txtfusion.projector.weight",
    ),
    architecture="krea-2",
    architectures=("krea-2",),
    code="https://huggingface.co/krea/Krea-2-Raw",
    musubi_module="lora_krea2",
    musubi_layers="all_linear",
    aliases=("krea2", "krea_2"),
    blocks={(): 28},
    simple_tuner={"raw": "krea/Krea-2-Raw", "turbo": "krea/Krea-2-Turbo"},
)
