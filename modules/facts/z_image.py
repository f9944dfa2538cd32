"""Z-Image."""

from dataclasses import replace

from modules.facts import FamilyFacts, KnownModel, TransformerFile, hub_model_by_name, in_blocks
from modules.facts._networks import QWEN3_4B, VAE
from modules.facts.lumina2 import is_lumina2

_BLOCK = {
    **{f"attention.to_{letter}": "attention.qkv" for letter in "qkv"},
    "attention.to_out.0": "attention.out",
    "attention.norm_q": "attention.q_norm",
    "attention.norm_k": "attention.k_norm",
    **{
        name: name
        for name in (
            *("adaLN_modulation.0", "attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"),
            *("feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
        )
    },
}
_Z_IMAGE = KnownModel({"transformer": {}}, VAE, {"text_encoder": QWEN3_4B})


def _is_own(layer: str, rows: int, columns: int) -> bool | None:
    other = is_lumina2(layer, rows, columns)
    return None if other is None else not other


FACTS = FamilyFacts(
    about="Z-Image by Tongyi-MAI: 6 B parameters (12 GB in bf16), Apache 2.0.",
    popularity=3,
    network="transformer",
    pipelines=("ZImagePipeline", "ZImageImg2ImgPipeline"),
    encoders={"text_encoder": "tokenizer"},
    transformer="ZImageTransformer2DModel",
    feed_forward=r"feed_forward\.w[123]",
    models={
        "Tongyi-MAI/Z-Image": _Z_IMAGE,
        "Tongyi-MAI/Z-Image-Turbo": replace(_Z_IMAGE, trained_instead="Tongyi-MAI/Z-Image"),
    },
    layers=("", r"(^|_)(layers|noise_refiner|context_refiner)_\d+_(attention_|feed_forward_w\d)"),
    hub_model_of=hub_model_by_name({"turbo": "Tongyi-MAI/Z-Image-Turbo"}, "Tongyi-MAI/Z-Image"),
    file=TransformerFile(
        {
            **{name: name for name in ("cap_embedder.0", "cap_embedder.1", "cap_pad_token", "x_pad_token")},
            **{name: name for name in ("t_embedder.mlp.0", "t_embedder.mlp.2")},
            "all_x_embedder.2-1": "x_embedder",
            "all_final_layer.2-1.linear": "final_layer.linear",
            "all_final_layer.2-1.adaLN_modulation.1": "final_layer.adaLN_modulation.1",
            **in_blocks("layers", "layers", _BLOCK),
            **in_blocks("noise_refiner", "noise_refiner", _BLOCK),
            **in_blocks("context_refiner", "context_refiner", _BLOCK),
        },
        "cap_embedder.1.weight",
        is_own=_is_own,
    ),
    onetrainer_shift="other",
    architecture="z-image",
    architectures=("z-image",),
    code="https://github.com/Comfy-Org/ComfyUI",
    musubi_module="lora_zimage",
    musubi_layers=r"(^|\.)layers\.\d+\.(?!adaLN)",  # without the refiners
    aliases=("z_image", "zimage", "z_image_turbo"),
    blocks={(): 30 + 4},
    simple_tuner={
        **dict.fromkeys(("turbo-ostris-v2", "turbo"), "Tongyi-MAI/Z-Image-Turbo"),
        "base": "Tongyi-MAI/Z-Image",
    },
    simple_tuner_assisted=("turbo-ostris-v2", "turbo"),
    ai_toolkit_layers=r"(^|\.)layers\.\d+\.",  # without its refiners
)
