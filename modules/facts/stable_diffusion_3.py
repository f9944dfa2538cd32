"""Stable Diffusion 3 and 3.5; headers as in SwarmUI, ComfyUI and its makers' files."""

from dataclasses import replace

from modules.facts import Config, FamilyFacts, KnownModel, Shapes, TransformerFile, has, in_blocks
from modules.facts._networks import T5_XXL

_TEXT = {"vae": 0.08, "text_encoder": 0.12, "text_encoder_2": 0.69}
_LAYERS_OF_LARGE = 38
_QKV = {
    **{f"{attn}.to_{one}": f"x_block.{attn}.qkv" for attn in ("attn", "attn2") for one in "qkv"},
    **{f"attn.add_{one}_proj": "context_block.attn.qkv" for one in "qkv"},
    **{f"{attn}.norm_{one}": f"x_block.{attn}.ln_{one}" for attn in ("attn", "attn2") for one in "qk"},
    **{f"attn.norm_added_{one}": f"context_block.attn.ln_{one}" for one in "qk"},
}
_NAMES = {
    "pos_embed.pos_embed": "pos_embed", "pos_embed.proj": "x_embedder.proj", "context_embedder": "context_embedder",
    **{f"time_text_embed.timestep_embedder.linear_{one}": f"t_embedder.mlp.{2 * one - 2}" for one in (1, 2)},
    **{f"time_text_embed.text_embedder.linear_{one}": f"y_embedder.mlp.{2 * one - 2}" for one in (1, 2)},
    **in_blocks("transformer_blocks", "joint_blocks", {
        **_QKV, "attn.to_out.0": "x_block.attn.proj", "attn2.to_out.0": "x_block.attn2.proj",
        "attn.to_add_out": "context_block.attn.proj", "norm1.linear": "x_block.adaLN_modulation.1",
        "norm1_context.linear": "context_block.adaLN_modulation.1",
        "ff.net.0.proj": "x_block.mlp.fc1", "ff.net.2": "x_block.mlp.fc2",
        "ff_context.net.0.proj": "context_block.mlp.fc1", "ff_context.net.2": "context_block.mlp.fc2",
    }),
    "norm_out.linear": "final_layer.adaLN_modulation.1", "proj_out": "final_layer.linear",
}  # fmt: skip


def _model(layers: int, **transformer: object) -> KnownModel:
    shape = {"num_layers": layers, "num_attention_heads": layers, "caption_projection_dim": 64 * layers}
    return KnownModel({"transformer": {**shape, **transformer}}, _TEXT, {"text_encoder_3": T5_XXL})


def _variant(config: Config, pipeline: str) -> str:
    if config.get("num_layers") == _LAYERS_OF_LARGE:
        return "stable-diffusion-v3.5-large"
    return f"stable-diffusion-v3{'.5' if config.get('dual_attention_layers') else ''}-medium"


def _hub_model_of(shapes: Shapes, file_name: str) -> str:
    if has(shapes, f".{_LAYERS_OF_LARGE - 1}."):
        return f"stabilityai/stable-diffusion-3.5-large{'-turbo' if 'turbo' in file_name else ''}"
    return f"stabilityai/stable-diffusion-{'3.5-medium' if has(shapes, '.attn2.') else '3-medium-diffusers'}"


_LARGE = _model(_LAYERS_OF_LARGE, pos_embed_max_size=192, qk_norm="rms_norm")

FACTS = FamilyFacts(
    about="Stable Diffusion 3 and 3.5 by Stability AI: 2.0, 2.2 or 8.1 B parameters (4 to 16 GB in "
    "bf16), Stability community licence.",
    popularity=10,
    network="transformer",
    pipelines=("StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline"),
    encoders={"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2", "text_encoder_3": "tokenizer_3"},
    transformer="SD3Transformer2DModel",
    models={
        "stabilityai/stable-diffusion-3-medium-diffusers": _model(24, pos_embed_max_size=192),
        "stabilityai/stable-diffusion-3.5-medium": _model(
            24, pos_embed_max_size=384, dual_attention_layers=tuple(range(13)), qk_norm="rms_norm"
        ),
        "stabilityai/stable-diffusion-3.5-large": _LARGE,
        "stabilityai/stable-diffusion-3.5-large-turbo": replace(
            _LARGE, trained_instead="stabilityai/stable-diffusion-3.5-large"
        ),
    },
    layers=("", "", r"transformer_blocks_\d+_ff_context_net|joint_blocks_\d+_"),
    hub_model_of=_hub_model_of,
    file=TransformerFile(
        _NAMES,
        "joint_blocks.0.x_block.attn.proj.weight",
        prefix="model.diffusion_model.",
        swapped="norm_out.linear",
        swapped_in_last_block="transformer_blocks.*.norm1_context.linear",
    ),
    onetrainer_encoders=3,
    onetrainer_trains_encoders=True,
    onetrainer_shift="none",
    architecture="stable-diffusion-v3",
    architectures=("stable-diffusion-v3", "stable-diffusion-3"),
    variant=_variant,
    code="https://github.com/Stability-AI/sd3.5",
    aliases=("sd3", "sd35", "sd3_5", "v3", "stable_diffusion_3", "stable_diffusion_35"),
    kohya_file="clip_g",
    blocks={("3", "5", "large"): _LAYERS_OF_LARGE, ("3", "medium"): 24},
    simple_tuner={name: f"stabilityai/stable-diffusion-3.5-{name}" for name in ("medium", "large")},
    # without the layers of the prompt, such as add_k_proj
    simple_tuner_layers=r"\.(to_[qkv]|to_out\.0)$",
)
