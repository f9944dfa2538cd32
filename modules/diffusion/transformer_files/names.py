"""The names of flow-matching transformers' tensors in the models' own code, whose files ComfyUI reads.

ComfyUI (comfy/utils.py: flux_to_diffusers, krea2_to_diffusers, z_image_to_diffusers; comfy/ldm) takes a file in its
folder diffusion_models with or without the prefix `model.diffusion_model.`; here each has the one of its published
files. The other direction is in diffusers/loaders/single_file_utils.py, against which the tests check this one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from modules.diffusion.transformer_files.architectures import variant_architecture
from modules.diffusion.transformer_files.original_name import ComponentConfig, NameMapper, OriginalName

PREFIX: Final = "model.diffusion_model."

# In all tables * stands for the number of a block, and a name without .weight or .bias for both.
_FLUX_EMBEDDERS: Final = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "proj_out": "final_layer.linear",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
}
_FLUX_BLOCKS: Final = {
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
_FLUX1_BLOCKS: Final = {
    **_FLUX_BLOCKS,
    "transformer_blocks.*.norm1.linear": "double_blocks.*.img_mod.lin",
    "transformer_blocks.*.norm1_context.linear": "double_blocks.*.txt_mod.lin",
    "transformer_blocks.*.ff.net.0.proj": "double_blocks.*.img_mlp.0",
    "transformer_blocks.*.ff.net.2": "double_blocks.*.img_mlp.2",
    "transformer_blocks.*.ff_context.net.0.proj": "double_blocks.*.txt_mlp.0",
    "transformer_blocks.*.ff_context.net.2": "double_blocks.*.txt_mlp.2",
    **{f"single_transformer_blocks.*.attn.to_{letter}": "single_blocks.*.linear1" for letter in "qkv"},
    "single_transformer_blocks.*.proj_mlp": "single_blocks.*.linear1",
    "single_transformer_blocks.*.proj_out": "single_blocks.*.linear2",
    "single_transformer_blocks.*.norm.linear": "single_blocks.*.modulation.lin",
}
_FLUX1: Final = {
    **_FLUX_EMBEDDERS,
    **_FLUX1_BLOCKS,
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
}
_CHROMA: Final = {
    **_FLUX_EMBEDDERS,
    **_FLUX1_BLOCKS,
    "distilled_guidance_layer.in_proj": "distilled_guidance_layer.in_proj",
    "distilled_guidance_layer.out_proj": "distilled_guidance_layer.out_proj",
    "distilled_guidance_layer.layers.*.linear_1": "distilled_guidance_layer.layers.*.in_layer",
    "distilled_guidance_layer.layers.*.linear_2": "distilled_guidance_layer.layers.*.out_layer",
    "distilled_guidance_layer.norms.*.weight": "distilled_guidance_layer.norms.*.scale",
}
_FLUX2: Final = {
    **_FLUX_EMBEDDERS,
    **_FLUX_BLOCKS,
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
}
_SD3: Final = {
    "pos_embed.pos_embed": "pos_embed",
    "pos_embed.proj": "x_embedder.proj",
    "context_embedder": "context_embedder",
    "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
    "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
    **{f"transformer_blocks.*.attn.to_{letter}": "joint_blocks.*.x_block.attn.qkv" for letter in "qkv"},
    **{f"transformer_blocks.*.attn2.to_{letter}": "joint_blocks.*.x_block.attn2.qkv" for letter in "qkv"},
    **{f"transformer_blocks.*.attn.add_{letter}_proj": "joint_blocks.*.context_block.attn.qkv" for letter in "qkv"},
    **{f"transformer_blocks.*.attn.norm_{letter}": f"joint_blocks.*.x_block.attn.ln_{letter}" for letter in "qk"},
    **{f"transformer_blocks.*.attn2.norm_{letter}": f"joint_blocks.*.x_block.attn2.ln_{letter}" for letter in "qk"},
    "transformer_blocks.*.attn.norm_added_q": "joint_blocks.*.context_block.attn.ln_q",
    "transformer_blocks.*.attn.norm_added_k": "joint_blocks.*.context_block.attn.ln_k",
    "transformer_blocks.*.attn.to_out.0": "joint_blocks.*.x_block.attn.proj",
    "transformer_blocks.*.attn2.to_out.0": "joint_blocks.*.x_block.attn2.proj",
    "transformer_blocks.*.attn.to_add_out": "joint_blocks.*.context_block.attn.proj",
    "transformer_blocks.*.norm1.linear": "joint_blocks.*.x_block.adaLN_modulation.1",
    "transformer_blocks.*.norm1_context.linear": "joint_blocks.*.context_block.adaLN_modulation.1",
    "transformer_blocks.*.ff.net.0.proj": "joint_blocks.*.x_block.mlp.fc1",
    "transformer_blocks.*.ff.net.2": "joint_blocks.*.x_block.mlp.fc2",
    "transformer_blocks.*.ff_context.net.0.proj": "joint_blocks.*.context_block.mlp.fc1",
    "transformer_blocks.*.ff_context.net.2": "joint_blocks.*.context_block.mlp.fc2",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
    "proj_out": "final_layer.linear",
}
_Z_IMAGE_BLOCK: Final = {
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
_Z_IMAGE: Final = {
    **{name: name for name in ("cap_embedder.0", "cap_embedder.1", "cap_pad_token", "x_pad_token")},
    **{name: name for name in ("t_embedder.mlp.0", "t_embedder.mlp.2")},
    "all_x_embedder.2-1": "x_embedder",
    "all_final_layer.2-1.linear": "final_layer.linear",
    "all_final_layer.2-1.adaLN_modulation.1": "final_layer.adaLN_modulation.1",
    **{
        f"{blocks}.*.{ours}": f"{blocks}.*.{theirs}"
        for blocks in ("layers", "noise_refiner", "context_refiner")
        for ours, theirs in _Z_IMAGE_BLOCK.items()
    },
}
_LUMINA2_BLOCK: Final = {
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
_LUMINA2: Final = {
    "x_embedder": "x_embedder",
    "time_caption_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_caption_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_caption_embed.caption_embedder.0": "cap_embedder.0",
    "time_caption_embed.caption_embedder.1": "cap_embedder.1",
    "norm_out.linear_1": "final_layer.adaLN_modulation.1",
    "norm_out.linear_2": "final_layer.linear",
    **{
        f"{blocks}.*.{ours}": f"{blocks}.*.{theirs}"
        for blocks in ("layers", "noise_refiner", "context_refiner")
        for ours, theirs in _LUMINA2_BLOCK.items()
    },
}
_KREA2_BLOCK: Final = {
    "attn.to_q": "attn.wq",
    "attn.to_k": "attn.wk",
    "attn.to_v": "attn.wv",
    "attn.to_out.0": "attn.wo",
    "attn.to_gate": "attn.gate",
    "attn.norm_q.weight": "attn.qknorm.qnorm.scale",
    "attn.norm_k.weight": "attn.qknorm.knorm.scale",
    **{f"ff.{name}": f"mlp.{name}" for name in ("gate", "up", "down")},
    "norm1.weight": "prenorm.scale",
    "norm2.weight": "postnorm.scale",
}
_KREA2: Final = {
    "img_in": "first",
    "time_embed.linear_1": "tmlp.0",
    "time_embed.linear_2": "tmlp.2",
    "time_mod_proj": "tproj.1",
    "txt_in.norm.weight": "txtmlp.0.scale",
    "txt_in.linear_1": "txtmlp.1",
    "txt_in.linear_2": "txtmlp.3",
    "text_fusion.projector": "txtfusion.projector",
    "transformer_blocks.*.scale_shift_table": "blocks.*.mod.lin",
    "final_layer.linear": "last.linear",
    "final_layer.norm.weight": "last.norm.scale",
    "final_layer.scale_shift_table": "last.modulation.lin",
    **{
        f"{ours}.*.{name}": f"{theirs}.*.{original}"
        for ours, theirs in (
            ("transformer_blocks", "blocks"),
            ("text_fusion.layerwise_blocks", "txtfusion.layerwise_blocks"),
            ("text_fusion.refiner_blocks", "txtfusion.refiner_blocks"),
        )
        for name, original in _KREA2_BLOCK.items()
    },
}
# Qwen-Image's own code names its layers as diffusers does.
_QWEN_IMAGE: Final = {
    name: name
    for name in (
        *("img_in", "txt_in", "norm_out.linear", "proj_out"),
        *(f"time_text_embed.timestep_embedder.linear_{number}" for number in (1, 2)),
        *(f"transformer_blocks.*.attn.to_{name}" for name in ("q", "k", "v", "out.0", "add_out")),
        *(f"transformer_blocks.*.attn.add_{letter}_proj" for letter in "qkv"),
        *(f"transformer_blocks.*.{side}_mod.1" for side in ("img", "txt")),
        *(f"transformer_blocks.*.{side}_mlp.net.{layer}" for side in ("img", "txt") for layer in ("0.proj", "2")),
    )
}
# By family, diffusers' names -> those of the models' own code.
TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "flux": _FLUX1,
    "flux2": _FLUX2,
    "chroma": _CHROMA,
    "stable_diffusion_3": _SD3,
    "z_image": _Z_IMAGE,
    "lumina2": _LUMINA2,
    "krea2": _KREA2,
    "qwen_image": _QWEN_IMAGE,
}
_BLOCK_NUMBER: Final = re.compile(r"(blocks|layers|norms|refiner)\.(\d{1,4})\.")
_FUSED: Final = (".qkv", ".linear1")
_PARTS: Final = {
    **{f"to_{letter}": part for part, letter in enumerate("qkv")},
    **{f"add_{letter}_proj": part for part, letter in enumerate("qkv")},
    "proj_mlp": 3,
}
# These calculate (scale, shift) in diffusers and (shift, scale) in the models' own code.
_SWAPPED: Final = "norm_out.linear"
_SWAPPED_IN_LAST_BLOCK: Final = "transformer_blocks.*.norm1_context.linear"
_FLAT: Final = "transformer_blocks.*.scale_shift_table"


# In every file of FLUX.1, FLUX.2 and Chroma, of SD 3, Z-Image and Lumina 2, Krea 2, Qwen-Image.
_SIGNATURES: Final = (
    *("double_blocks.0.img_attn.proj.weight", "joint_blocks.0.x_block.attn.proj.weight", "cap_embedder.1.weight"),
    *("txtfusion.projector.weight", "txt_norm.weight"),
)


def is_transformer_file(names: Collection[str]) -> bool:
    """Whether a file with tensors of these names is the transformer of a flow-matching model."""
    return any(prefix + name in names for name in _SIGNATURES for prefix in ("", PREFIX))


@dataclass(frozen=True)
class TransformerLayout:
    """How files of a transformer's own code name its tensors."""

    architecture: str  # its modelspec name, as `Family.modelspec` has it
    name: NameMapper  # of the transformer's tensors in diffusers
    prefix: str = ""


def transformer_layout(class_name: str, config: ComponentConfig, pipeline: str = "") -> TransformerLayout | None:
    """Of the transformer of this diffusers class and config, in a pipeline of that class; None if there is none."""
    layout = _LAYOUTS.get(class_name)
    variant = variant_architecture(class_name, config, pipeline)
    return replace(layout, architecture=variant) if layout is not None and variant else layout


def _mapper(
    names: Mapping[str, str], *, swaps: bool = False, is_sd3: bool = False, is_grouped: bool = False
) -> NameMapper:
    def original_name(name: str, config: ComponentConfig) -> OriginalName | None:
        found = _BLOCK_NUMBER.search(name)
        number = found[2] if found else ""
        pattern = _BLOCK_NUMBER.sub(r"\1.*.", name, count=1)
        stem, _, end = pattern.rpartition(".")
        if pattern in names:
            original = names[pattern]
        elif stem in names and end in ("weight", "bias"):
            original = f"{names[stem]}.{end}"
        else:
            return None
        original = original.replace("*", number)
        if names.get(stem, "").endswith(_FUSED) and (part := _PARTS.get(stem.rpartition(".")[2])) is not None:
            return OriginalName(original, part=part, is_grouped=is_grouped)
        layers = config.get("num_layers")
        is_last = is_sd3 and isinstance(layers, int) and number == str(layers - 1)
        if (swaps and stem == _SWAPPED) or (is_last and stem == _SWAPPED_IN_LAST_BLOCK):
            return OriginalName(original, "swapped")
        return OriginalName(original, "flat" if pattern == _FLAT else "unchanged")

    return original_name


def _same_name(name: str, _: ComponentConfig) -> OriginalName:
    """See _QWEN_IMAGE."""
    return OriginalName(name)


_LAYOUTS: Final = {
    "FluxTransformer2DModel": TransformerLayout("flux-1-dev", _mapper(_FLUX1, swaps=True)),
    "ChromaTransformer2DModel": TransformerLayout("chroma", _mapper(_CHROMA)),
    "Flux2Transformer2DModel": TransformerLayout("Flux.2-klein", _mapper(_FLUX2, swaps=True)),
    "SD3Transformer2DModel": TransformerLayout("stable-diffusion-v3", _mapper(_SD3, swaps=True, is_sd3=True), PREFIX),
    "ZImageTransformer2DModel": TransformerLayout("z-image", _mapper(_Z_IMAGE)),
    "Lumina2Transformer2DModel": TransformerLayout("lumina-2", _mapper(_LUMINA2, is_grouped=True)),
    "QwenImageTransformer2DModel": TransformerLayout("qwen-image", _same_name),
    "Krea2Transformer2DModel": TransformerLayout("krea-2", _mapper(_KREA2)),
}
