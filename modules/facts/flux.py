"""FLUX.1; its files are those of black-forest-labs/flux, and its headers as in kohya-ss/sd-scripts
(library/sai_model_spec.py)."""

from modules.facts import Config, FamilyFacts, KnownModel, Shapes, TransformerFile, has
from modules.facts._networks import CLIP_TEXT, T5_XXL

EMBEDDERS = {
    "x_embedder": "img_in", "context_embedder": "txt_in", "proj_out": "final_layer.linear",
}  # fmt: skip
ATTENTION = {
    **{f"transformer_blocks.*.attn.to_{letter}": "double_blocks.*.img_attn.qkv" for letter in "qkv"},
    **{f"transformer_blocks.*.attn.add_{letter}_proj": "double_blocks.*.txt_attn.qkv" for letter in "qkv"},
    "transformer_blocks.*.attn.norm_q.weight": "double_blocks.*.img_attn.norm.query_norm.scale",
    "transformer_blocks.*.attn.norm_k.weight": "double_blocks.*.img_attn.norm.key_norm.scale",
    "transformer_blocks.*.attn.norm_added_q.weight": "double_blocks.*.txt_attn.norm.query_norm.scale",
    "transformer_blocks.*.attn.norm_added_k.weight": "double_blocks.*.txt_attn.norm.key_norm.scale",
    "transformer_blocks.*.attn.to_out.0": "double_blocks.*.img_attn.proj",
    "transformer_blocks.*.attn.to_add_out": "double_blocks.*.txt_attn.proj",
    "single_transformer_blocks.*.attn.norm_q.weight": "single_blocks.*.norm.query_norm.scale",
    "single_transformer_blocks.*.attn.norm_k.weight": "single_blocks.*.norm.key_norm.scale",
}
BLOCKS = {
    **ATTENTION, "transformer_blocks.*.ff.net.0.proj": "double_blocks.*.img_mlp.0",
    "transformer_blocks.*.ff.net.2": "double_blocks.*.img_mlp.2",
    "transformer_blocks.*.ff_context.net.0.proj": "double_blocks.*.txt_mlp.0",
    "transformer_blocks.*.ff_context.net.2": "double_blocks.*.txt_mlp.2",
    **{f"single_transformer_blocks.*.attn.to_{letter}": "single_blocks.*.linear1" for letter in "qkv"},
    "single_transformer_blocks.*.proj_mlp": "single_blocks.*.linear1",
    "single_transformer_blocks.*.proj_out": "single_blocks.*.linear2",
}  # fmt: skip
SIGNATURE = "double_blocks.0.img_attn.proj.weight"


def _variant(config: Config, pipeline: str) -> str:
    return "flux-1-dev" if config.get("guidance_embeds") else "flux-1-schnell"


def _hub_model_of(shapes: Shapes, file_name: str) -> str:
    if not has(shapes, "guidance_in.", "guidance_embedder."):
        return "black-forest-labs/FLUX.1-schnell"
    return "black-forest-labs/FLUX.1-Krea-dev" if "krea" in file_name else "black-forest-labs/FLUX.1-dev"


_DEV = KnownModel({"transformer": {"guidance_embeds": True}}, CLIP_TEXT, {"text_encoder_2": T5_XXL})

FACTS = FamilyFacts(
    about="FLUX.1 dev and schnell by Black Forest Labs: 12 B parameters (24 GB in bf16). dev: "
    "non-commercial; schnell: Apache 2.0.",
    network="transformer",
    pipelines=("FluxPipeline", "FluxImg2ImgPipeline"),
    encoders={"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"},
    transformer="FluxTransformer2DModel",
    feed_forward=r"proj_mlp|single_transformer_blocks\.\d+\.proj_out",
    models={
        "black-forest-labs/FLUX.1-dev": _DEV,
        "black-forest-labs/FLUX.1-Krea-dev": _DEV,
        "black-forest-labs/FLUX.1-schnell": KnownModel(
            {"transformer": {}},
            CLIP_TEXT,
            {"text_encoder_2": T5_XXL},
            trained_instead="black-forest-labs/FLUX.1-dev",
        ),
    },
    layers=(
        r"single_transformer_blocks_\d+_norm_linear|img_mod_lin|_\d+_modulation_lin",
        r"single_transformer_blocks_",
    ),
    hub_model_of=_hub_model_of,
    file=TransformerFile(
        {
            **EMBEDDERS,
            **BLOCKS,
            "norm_out.linear": "final_layer.adaLN_modulation.1",
            "transformer_blocks.*.norm1.linear": "double_blocks.*.img_mod.lin",
            "transformer_blocks.*.norm1_context.linear": "double_blocks.*.txt_mod.lin",
            "single_transformer_blocks.*.norm.linear": "single_blocks.*.modulation.lin",
            "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
            "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
            "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
            "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
            "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
            "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
        },
        SIGNATURE,
        swapped="norm_out.linear",
        mlp_rows=4,
    ),
    architecture="flux-1-dev",
    architectures=("flux-1",),
    lora_architecture="flux-1",
    variant=_variant,
    code="https://github.com/black-forest-labs/flux",
    aliases=("flux", "flux1", "flux_1", "flux_dev", "flux_schnell", "flux_dev_1", "flux_schnell_1"),
    kohya_file="t5xxl",
    has_guidance=True,
    blocks={(): 19 + 38},
    simple_tuner={name: f"black-forest-labs/FLUX.1-{name}" for name in ("dev", "schnell")},
)
