"""Pipelines of flow-matching transformers with a few thousand random weights, on disk in the form of real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from transformers import (
    CLIPTextModel,
    CLIPTextModelWithProjection,
    Gemma2Config,
    Gemma2Model,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Mistral3Model,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3VLConfig,
    Qwen3VLModel,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from modules.diffusion.quiet_libraries import quiet_libraries
from tests.families import tiny_pipelines
from tests.families.tiny_flow_parts import (
    MISTRAL_CHAT,
    OF_VISION,
    VISION,
    WIDTH,
    flux2_vae,
    gemma_tokenizer,
    qwen_config,
    qwen_settings,
    qwen_tokenizer,
    save,
    t5_config,
    t5_tokenizer,
    vae,
    video_vae,
)

with quiet_libraries():
    from diffusers import (
        ChromaPipeline,
        ChromaTransformer2DModel,
        ErnieImagePipeline,
        ErnieImageTransformer2DModel,
        Flux2KleinPipeline,
        Flux2Pipeline,
        Flux2Transformer2DModel,
        FluxKontextPipeline,
        FluxPipeline,
        FluxTransformer2DModel,
        Krea2Pipeline,
        Krea2Transformer2DModel,
        Lumina2Pipeline,
        Lumina2Transformer2DModel,
        QwenImageEditPipeline,
        QwenImageEditPlusPipeline,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
        SD3Transformer2DModel,
        StableDiffusion3Pipeline,
        WanPipeline,
        WanTransformer3DModel,
        ZImagePipeline,
        ZImageTransformer2DModel,
    )


PIXTRAL = {**VISION, "head_dim": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "model_type": "pixtral"}


def tiny_z_image(folder: Path) -> Path:
    """A ZImagePipeline in `folder`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = qwen_tokenizer()
        pipeline = ZImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=vae(),
            text_encoder=Qwen3Model(qwen_config(tokenizer)),
            tokenizer=tokenizer,
            transformer=ZImageTransformer2DModel(
                in_channels=4,
                dim=16,
                n_layers=1,
                n_refiner_layers=1,
                n_heads=2,
                n_kv_heads=2,
                cap_feat_dim=WIDTH,
                axes_dims=[2, 2, 4],
                axes_lens=[256, 32, 32],
            ),
        )
    return save(pipeline, folder)


def tiny_flux(folder: Path, kind: type[FluxPipeline | FluxKontextPipeline] = FluxPipeline) -> Path:
    """A FluxPipeline, or another `kind`, in `folder`, guidance-distilled as dev."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip, t5 = tiny_pipelines.clip_tokenizer(), t5_tokenizer()
        pipeline = kind(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            vae=vae(),
            text_encoder=CLIPTextModel(tiny_pipelines.clip_config(clip)),
            tokenizer=clip,
            text_encoder_2=T5EncoderModel(t5_config(t5)),
            tokenizer_2=t5,
            transformer=FluxTransformer2DModel(
                in_channels=16,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=8,
                num_attention_heads=2,
                joint_attention_dim=WIDTH,
                pooled_projection_dim=WIDTH,
                guidance_embeds=True,
                axes_dims_rope=(2, 2, 4),
            ),
        )
    return save(pipeline, folder)


def tiny_sd3(folder: Path) -> Path:
    """A StableDiffusion3Pipeline in `folder`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip, t5 = tiny_pipelines.clip_tokenizer(), t5_tokenizer()
        pipeline = StableDiffusion3Pipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=vae(),
            text_encoder=CLIPTextModelWithProjection(tiny_pipelines.clip_config(clip)),
            tokenizer=clip,
            text_encoder_2=CLIPTextModelWithProjection(tiny_pipelines.clip_config(clip, hidden_act="gelu")),
            tokenizer_2=clip,
            text_encoder_3=T5EncoderModel(t5_config(t5, 2 * WIDTH)),
            tokenizer_3=t5,
            transformer=SD3Transformer2DModel(
                sample_size=8,
                in_channels=4,
                out_channels=4,
                num_layers=2,
                attention_head_dim=8,
                num_attention_heads=2,
                joint_attention_dim=2 * WIDTH,
                caption_projection_dim=16,
                pooled_projection_dim=2 * WIDTH,
                pos_embed_max_size=16,
                qk_norm="rms_norm",
            ),
        )
    return save(pipeline, folder)


def tiny_chroma(folder: Path) -> Path:
    """A ChromaPipeline in `folder`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        t5 = t5_tokenizer()
        pipeline = ChromaPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            vae=vae(),
            text_encoder=T5EncoderModel(t5_config(t5)),
            tokenizer=t5,
            transformer=ChromaTransformer2DModel(
                in_channels=16,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=8,
                num_attention_heads=2,
                joint_attention_dim=WIDTH,
                axes_dims_rope=(2, 2, 4),
                approximator_num_channels=8,
                approximator_hidden_dim=16,
                approximator_layers=1,
            ),
        )
    return save(pipeline, folder)


def tiny_qwen_image(folder: Path) -> Path:
    """A QwenImagePipeline in `folder`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = qwen_tokenizer()
        config = Qwen2_5_VLConfig(text_config=qwen_settings(tokenizer, rope=True), vision_config=VISION)
        pipeline = QwenImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            vae=video_vae(),
            text_encoder=Qwen2_5_VLForConditionalGeneration(config),
            tokenizer=tokenizer,
            transformer=qwen_image_transformer(),
        )
    return save(pipeline, folder)


def tiny_qwen_image_edit(folder: Path, kind: Any = QwenImageEditPlusPipeline) -> Path:
    """A QwenImageEditPlusPipeline, or another `kind`, in `folder`, with the part of a processor for images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = qwen_tokenizer(OF_VISION)
        ids: dict[str, Any] = {
            f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
            for name, token in zip(("vision_start", "vision_end", "image"), OF_VISION, strict=True)
        }
        config = Qwen2_5_VLConfig(text_config=qwen_settings(tokenizer, rope=True), vision_config=VISION, **ids)
        pipeline = kind(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            vae=video_vae(),
            text_encoder=Qwen2_5_VLForConditionalGeneration(config),
            tokenizer=tokenizer,
            processor=None,
            transformer=qwen_image_transformer(),
        )
    save(pipeline, folder)
    tokenizer.save_pretrained(folder / "processor")
    Qwen2VLImageProcessorPil().save_pretrained(folder / "processor")
    kinds = {"image_processor_type": "Qwen2VLImageProcessor"}
    for file, changes in (
        (folder / "processor" / "preprocessor_config.json", kinds),
        (folder / "processor" / "tokenizer_config.json", {"processor_class": "Qwen2VLProcessor"}),
        (folder / "model_index.json", {"processor": ["transformers", "Qwen2VLProcessor"]}),
    ):
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def qwen_image_transformer() -> QwenImageTransformer2DModel:
    """One block."""
    return QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(2, 2, 4),
    )


def tiny_flux2(folder: Path) -> Path:
    """A Flux2KleinPipeline in `folder`; its text encoder needs 27 layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = qwen_tokenizer()
        pipeline = Flux2KleinPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            vae=flux2_vae(),
            text_encoder=Qwen3ForCausalLM(qwen_config(tokenizer, num_hidden_layers=27)),
            tokenizer=tokenizer,
            transformer=flux2_transformer(guidance_embeds=False),
        )
    return save(pipeline, folder)


def tiny_flux2_dev(folder: Path) -> Path:
    """A Flux2Pipeline in `folder`; its text encoder needs 30 layers.

    Its index names a processor that needs torchvision, which is not here; its tokenizer is all that text needs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = qwen_tokenizer()
        tokenizer.chat_template = MISTRAL_CHAT
        tokenizer.padding_side = "left"
        text = {**qwen_settings(tokenizer), "num_hidden_layers": 30, "model_type": "mistral"}
        config = Mistral3Config(text_config=text, vision_config=PIXTRAL, image_token_index=0)
        pipeline = Flux2Pipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            vae=flux2_vae(),
            text_encoder=Mistral3ForConditionalGeneration(config),
            tokenizer=tokenizer,
            transformer=flux2_transformer(guidance_embeds=True),
        )
    save(pipeline, folder)
    index = json.loads((folder / "model_index.json").read_text())
    index["tokenizer"] = ["transformers", "PixtralProcessor"]
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def flux2_transformer(*, guidance_embeds: bool) -> Flux2Transformer2DModel:
    """A block of each kind."""
    return Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=3 * WIDTH,
        timestep_guidance_channels=8,
        axes_dims_rope=(2, 2, 2, 2),
        guidance_embeds=guidance_embeds,
    )


def tiny_krea2(folder: Path) -> Path:
    """A Krea2Pipeline in `folder`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = qwen_tokenizer()
        config = Qwen3VLConfig(text_config=qwen_settings(tokenizer, rope=True), vision_config=VISION)
        pipeline = Krea2Pipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            vae=video_vae(),
            text_encoder=Qwen3VLModel(config),
            tokenizer=tokenizer,
            transformer=Krea2Transformer2DModel(
                in_channels=16,
                num_layers=1,
                attention_head_dim=8,
                num_attention_heads=2,
                num_key_value_heads=1,
                intermediate_size=32,
                timestep_embed_dim=8,
                text_hidden_dim=WIDTH,
                num_text_layers=2,
                text_num_attention_heads=2,
                text_num_key_value_heads=1,
                text_intermediate_size=32,
                num_layerwise_text_blocks=1,
                num_refiner_text_blocks=1,
                axes_dims_rope=(2, 2, 4),
            ),
            text_encoder_select_layers=(0, 2),
        )
    return save(pipeline, folder)


def tiny_lumina2(folder: Path) -> Path:
    """A Lumina2Pipeline in `folder`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = gemma_tokenizer()
        settings = qwen_settings(tokenizer)  # the names are those of Gemma 2, too
        pipeline = Lumina2Pipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
            vae=vae(),
            text_encoder=Gemma2Model(Gemma2Config(**settings, query_pre_attn_scalar=8)),
            tokenizer=tokenizer,
            transformer=Lumina2Transformer2DModel(
                in_channels=4,
                hidden_size=16,
                num_layers=1,
                num_refiner_layers=1,
                num_attention_heads=2,
                num_kv_heads=1,
                multiple_of=8,
                axes_dim_rope=(2, 2, 4),
                axes_lens=(300, 32, 32),
                cap_feat_dim=WIDTH,
            ),
        )
    return save(pipeline, folder)


def tiny_ernie_image(folder: Path) -> Path:
    """An ErnieImagePipeline in `folder`, whose index names a language model for prompts that is not there."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = qwen_tokenizer()
        text = {**qwen_settings(tokenizer), "model_type": "ministral3", "num_hidden_layers": 3}
        config = Mistral3Config(text_config=text, vision_config=PIXTRAL, image_token_index=0)
        pipeline = ErnieImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=flux2_vae(),
            text_encoder=Mistral3Model(config),
            tokenizer=tokenizer,
            transformer=ErnieImageTransformer2DModel(
                hidden_size=24,
                num_attention_heads=3,
                num_layers=2,
                ffn_hidden_size=32,
                in_channels=16,
                out_channels=16,
                text_in_dim=WIDTH,
                rope_axes_dim=(4, 2, 2),
            ),
        )
    return save(pipeline, folder)


WAN22_VAE = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16}


def tiny_wan(folder: Path, shift: float = 3.0, vae: Mapping[str, Any] = {}, **settings: Any) -> Path:
    """A WanPipeline in `folder`; `vae` is of its autoencoder's configuration, `settings` are the pipeline's own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        t5 = t5_tokenizer()
        pipeline = WanPipeline(
            scheduler=UniPCMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=shift
            ),
            vae=video_vae(AutoencoderKLWan, **vae),
            text_encoder=UMT5EncoderModel(UMT5Config(**t5_config(t5).to_diff_dict() | {"model_type": "umt5"})),
            tokenizer=t5,
            transformer=WanTransformer3DModel(
                in_channels=4,
                out_channels=4,
                num_layers=2,
                attention_head_dim=12,
                num_attention_heads=2,
                text_dim=WIDTH,
                freq_dim=8,
                ffn_dim=32,
                rope_max_seq_len=32,
            ),
            **settings,
        )
    return save(pipeline, folder)


TINY: Mapping[str, Callable[[Path], Path]] = {
    "z_image": tiny_z_image,
    "flux": tiny_flux,
    "flux_kontext": partial(tiny_flux, kind=FluxKontextPipeline),
    "stable_diffusion_3": tiny_sd3,
    "qwen_image": tiny_qwen_image,
    "qwen_image_edit": tiny_qwen_image_edit,
    "flux2": tiny_flux2,
    "flux2_dev": tiny_flux2_dev,
    "chroma": tiny_chroma,
    "krea2": tiny_krea2,
    "lumina2": tiny_lumina2,
    "ernie_image": tiny_ernie_image,
    "wan": tiny_wan,
    "wan22_5b": partial(tiny_wan, shift=5.0, vae=WAN22_VAE, expand_timesteps=True),
}
FIRST_EDIT = {"qwen_image_edit_1": partial(tiny_qwen_image_edit, kind=QwenImageEditPipeline)}  # of one reference
