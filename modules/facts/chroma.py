"""Chroma, whose blocks are FLUX.1's, without their modulation."""

from modules.facts import FamilyFacts, KnownModel, TransformerFile, hub_model_by_name
from modules.facts._networks import T5_XXL, VAE
from modules.facts.flux import BLOCKS, EMBEDDERS, SIGNATURE

_CHROMA = KnownModel({"transformer": {}}, VAE, {"text_encoder": T5_XXL})

FACTS = FamilyFacts(
    about="Chroma by Lodestone Rock: 8.9 B parameters (18 GB in bf16), Apache 2.0.",
    popularity=9,
    network="transformer",
    pipelines=("ChromaPipeline", "ChromaImg2ImgPipeline"),
    encoders={"text_encoder": "tokenizer"},
    transformer="ChromaTransformer2DModel",
    feed_forward=r"proj_mlp|single_transformer_blocks\.\d+\.proj_out",
    models={"lodestones/Chroma1-HD": _CHROMA, "lodestones/Chroma1-Base": _CHROMA},
    layers=("distilled_guidance_layer", "single_transformer_blocks_"),
    hub_model_of=hub_model_by_name({"base": "lodestones/Chroma1-Base"}, "lodestones/Chroma1-HD"),
    file=TransformerFile(
        {
            **EMBEDDERS,
            **BLOCKS,
            "distilled_guidance_layer.in_proj": "distilled_guidance_layer.in_proj",
            "distilled_guidance_layer.out_proj": "distilled_guidance_layer.out_proj",
            "distilled_guidance_layer.layers.*.linear_1": "distilled_guidance_layer.layers.*.in_layer",
            "distilled_guidance_layer.layers.*.linear_2": "distilled_guidance_layer.layers.*.out_layer",
            "distilled_guidance_layer.norms.*.weight": "distilled_guidance_layer.norms.*.scale",
        },
        SIGNATURE,
        mlp_rows=4,
        is_rarer=True,
    ),
    onetrainer_trains_encoders=True,
    onetrainer_shift="none",
    architecture="chroma",
    architectures=("chroma",),
    code="https://huggingface.co/lodestones/Chroma1-HD",
    aliases=("chroma", "chroma1", "chroma_1"),
    blocks={(): 19 + 38},
    simple_tuner={name.lower(): f"lodestones/Chroma1-{name}" for name in ("Base", "HD", "Flash")},
)
