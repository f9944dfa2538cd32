"""FLUX.1; its files are those of black-forest-labs/flux, and its headers as in kohya-ss/sd-scripts
(library/sai_model_spec.py)."""

from dataclasses import replace

from modules.facts import Config, FamilyFacts, KnownModel, Shapes, TransformerFile, has, in_blocks
from modules.facts._networks import CLIP_TEXT, T5_XXL

EMBEDDERS = {
    "x_embedder": "img_in", "context_embedder": "txt_in", "proj_out": "final_layer.linear",
}  # fmt: skip
ATTENTION = {
    **in_blocks("transformer_blocks", "double_blocks", {
        **{f"attn.to_{one}": "img_attn.qkv" for one in "qkv"},
        **{f"attn.add_{one}_proj": "txt_attn.qkv" for one in "qkv"},
        "attn.norm_q.weight": "img_attn.norm.query_norm.scale", "attn.norm_k.weight": "img_attn.norm.key_norm.scale",
        "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale",
        "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale",
        "attn.to_out.0": "img_attn.proj", "attn.to_add_out": "txt_attn.proj",
    }),
    **in_blocks("single_transformer_blocks", "single_blocks", {
        "attn.norm_q.weight": "norm.query_norm.scale", "attn.norm_k.weight": "norm.key_norm.scale",
    }),
}  # fmt: skip
BLOCKS = {
    **ATTENTION,
    **in_blocks("transformer_blocks", "double_blocks", {
        "ff.net.0.proj": "img_mlp.0", "ff.net.2": "img_mlp.2",
        "ff_context.net.0.proj": "txt_mlp.0", "ff_context.net.2": "txt_mlp.2",
    }),
    **in_blocks("single_transformer_blocks", "single_blocks", {
        **{f"attn.to_{one}": "linear1" for one in "qkv"}, "proj_mlp": "linear1", "proj_out": "linear2",
    }),
}  # fmt: skip
MUSUBI_LAYERS = r"(^|\.)(single_)?transformer_blocks\.\d+\.(?!norm)"  # of its blocks, without modulation
SIGNATURE = "double_blocks.0.img_attn.proj.weight"
_DEV = KnownModel({"transformer": {"guidance_embeds": True}}, CLIP_TEXT, {"text_encoder_2": T5_XXL})


def _variant(config: Config, pipeline: str) -> str:
    return "flux-1-dev" if config.get("guidance_embeds") else "flux-1-schnell"


def _hub_model_of(shapes: Shapes, file_name: str) -> str:
    if not has(shapes, "guidance_in.", "guidance_embedder."):
        return "black-forest-labs/FLUX.1-schnell"
    return f"black-forest-labs/FLUX.1-{'Krea-dev' if 'krea' in file_name else 'dev'}"


FACTS = FamilyFacts(
    about="FLUX.1 dev and schnell by Black Forest Labs: 12 B parameters (24 GB in bf16). dev: "
    "non-commercial; schnell: Apache 2.0.",
    popularity=2,
    network="transformer",
    pipelines=("FluxPipeline", "FluxImg2ImgPipeline"),
    encoders={"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"},
    transformer="FluxTransformer2DModel",
    feed_forward=r"proj_mlp|single_transformer_blocks\.\d+\.proj_out",
    models={
        "black-forest-labs/FLUX.1-dev": _DEV,
        "black-forest-labs/FLUX.1-Krea-dev": _DEV,
        "black-forest-labs/FLUX.1-schnell": replace(
            _DEV, networks={"transformer": {}}, trained_instead="black-forest-labs/FLUX.1-dev"
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
            **{
                f"time_text_embed.{ours}_embedder.linear_{number}": f"{theirs}_in.{layer}"
                for ours, theirs in (("timestep", "time"), ("text", "vector"), ("guidance", "guidance"))
                for number, layer in ((1, "in_layer"), (2, "out_layer"))
            },
        },
        SIGNATURE,
        swapped="norm_out.linear",
        mlp_rows=4,
    ),
    onetrainer_encoders=2,
    onetrainer_trains_encoders=True,
    architecture="flux-1-dev",
    architectures=("flux-1",),
    variant=_variant,
    code="https://github.com/black-forest-labs/flux",
    aliases=("flux", "flux1", "flux_1", "flex1", "flux_dev", "flux_schnell", "flux_dev_1", "flux_schnell_1"),
    kohya_file="t5xxl",
    has_guidance=True,
    blocks={(): 19 + 38},
    simple_tuner={
        "krea": "black-forest-labs/FLUX.1-Krea-dev",
        **{name: f"black-forest-labs/FLUX.1-{name}" for name in ("dev", "schnell")},
    },
    simple_tuner_assisted=("schnell",),
)
