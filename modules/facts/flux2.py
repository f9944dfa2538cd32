"""FLUX.2; headers as in kohya-ss/musubi-tuner (utils/sai_model_spec.py) and SwarmUI (T2IModelClassSorter.cs)."""

from dataclasses import replace

from modules.facts import Config, FamilyFacts, KnownModel, ReferenceFacts, Shapes, TransformerFile
from modules.facts._networks import PIXTRAL, QWEN3_4B, QWEN3_HEADS, VAE
from modules.facts.flux import ATTENTION, EMBEDDERS, MUSUBI_LAYERS, SIGNATURE

_QWEN3_8B = (
    "Qwen3ForCausalLM",
    {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, **QWEN3_HEADS},
)
_MISTRAL_SMALL_3 = (
    "Mistral3ForConditionalGeneration",
    {
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
        },
        "vision_config": PIXTRAL,
    },
)  # fmt: skip
_KLEIN_SIZES = {3072: "4B", 4096: "9B"}  # by the transformer's width
# In the model's own code and in diffusers; its rows are the width.
_FIRST_LAYER = ("img_in.weight", "x_embedder.weight")


def _klein(double: int, single: int, heads: int, encoder: tuple[str, Config]) -> KnownModel:
    """Of so many blocks; three layers of the text encoder make one state."""
    blocks = {"num_layers": double, "num_single_layers": single, "num_attention_heads": heads}
    states = {"joint_attention_dim": 3 * encoder[1]["hidden_size"], "guidance_embeds": False}
    return KnownModel({"transformer": {**blocks, **states}}, VAE, {"text_encoder": encoder})


_KLEIN_4B, _KLEIN_9B = _klein(5, 20, 24, QWEN3_4B), _klein(8, 24, 32, _QWEN3_8B)


def _variant(config: Config, pipeline: str) -> str:
    if pipeline == "Flux2Pipeline":
        return "Flux.2-dev"
    width = config.get("num_attention_heads", 0) * config.get("attention_head_dim", 0)
    return f"Flux.2-klein-{_KLEIN_SIZES[width].lower()}" if width in _KLEIN_SIZES else "Flux.2-klein"


def _hub_model_of(shapes: Shapes, file_name: str) -> str:
    width = next((shape[0] for name, shape in shapes.items() if name.endswith(_FIRST_LAYER)), 0)
    if width not in _KLEIN_SIZES:
        return "black-forest-labs/FLUX.2-dev"
    return f"black-forest-labs/FLUX.2-klein-{'base-' if 'base' in file_name else ''}{_KLEIN_SIZES[width]}"


FACTS = FamilyFacts(
    about="FLUX.2 klein and dev by Black Forest Labs: 4, 9 or 32 B parameters (8, 18 or 64 GB in bf16). klein 4 B: "
    "Apache 2.0; all others: non-commercial.",
    popularity=7,
    network="transformer",
    pipelines=("Flux2KleinPipeline", "Flux2Pipeline"),
    encoders={"text_encoder": "tokenizer"},
    transformer="Flux2Transformer2DModel",
    references=ReferenceFacts(most=10, side=1024, largest=1024, required=False),
    feed_forward=r"ff(_context)?\.linear_(in|out)",
    models={
        "black-forest-labs/FLUX.2-dev": KnownModel({"transformer": {}}, VAE, {"text_encoder": _MISTRAL_SMALL_3}),
        "black-forest-labs/FLUX.2-klein-4B": replace(
            _KLEIN_4B, trained_instead="black-forest-labs/FLUX.2-klein-base-4B"
        ),
        "black-forest-labs/FLUX.2-klein-base-4B": _KLEIN_4B,
        "black-forest-labs/FLUX.2-klein-9B": replace(
            _KLEIN_9B, trained_instead="black-forest-labs/FLUX.2-klein-base-9B"
        ),
        "black-forest-labs/FLUX.2-klein-base-9B": _KLEIN_9B,
    },
    layers=(r"to_qkv_mlp_proj|(double|single)_stream_modulation|_ff_linear_(in|out)",),
    hub_model_of=_hub_model_of,
    file=TransformerFile(
        {
            **EMBEDDERS,
            **ATTENTION,
            "norm_out.linear": "final_layer.adaLN_modulation.1",
            "time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer",
            "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
            "time_guidance_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
            "time_guidance_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
            "double_stream_modulation_img.linear": "double_stream_modulation_img.lin",
            "double_stream_modulation_txt.linear": "double_stream_modulation_txt.lin",
            "single_stream_modulation.linear": "single_stream_modulation.lin",
            "transformer_blocks.*.ff.linear_in": "double_blocks.*.img_mlp.0",
            "transformer_blocks.*.ff.linear_out": "double_blocks.*.img_mlp.2",
            "transformer_blocks.*.ff_context.linear_in": "double_blocks.*.txt_mlp.0",
            "transformer_blocks.*.ff_context.linear_out": "double_blocks.*.txt_mlp.2",
            "single_transformer_blocks.*.attn.to_qkv_mlp_proj": "single_blocks.*.linear1",
            "single_transformer_blocks.*.attn.to_out": "single_blocks.*.linear2",
        },
        SIGNATURE,
        swapped="norm_out.linear",
        mlp_rows=6,
    ),
    architecture="Flux.2-klein",
    architectures=("flux-2", "flux.2"),
    variant=_variant,
    code="https://github.com/black-forest-labs/flux2",
    musubi_module="lora_flux_2",
    musubi_layers=MUSUBI_LAYERS,
    musubi_versions=dict.fromkeys(("dev", "klein-4b", "klein-base-4b", "klein-9b", "klein-base-9b"), ""),
    aliases=(
        *("flux2", "flux_2", "flux2_klein", "flux_2_klein", "flux2_klein_4b", "flux2_klein_9b"),
        *("flux_2_klein_4b", "flux_2_klein_9b", "flux2_dev", "flux_2_dev"),
    ),
    has_guidance=True,
    blocks={("klein", "4b"): 5 + 20, ("klein", "9b"): 8 + 24, ("flux", "2", "dev"): 8 + 48},
    simple_tuner={
        "klein-9b": "black-forest-labs/FLUX.2-klein-base-9B",
        "klein-4b": "black-forest-labs/FLUX.2-klein-base-4B",
        "dev": "black-forest-labs/FLUX.2-dev",
    },
    # without the layers of the prompt, such as add_k_proj
    simple_tuner_layers=r"\.(to_[qkv]|to_out\.0|to_qkv_mlp_proj)$",
)
