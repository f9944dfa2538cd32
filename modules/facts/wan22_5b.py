"""Wan 2.2 TI2V 5B: the layers and names of Wan 2.1; its pipeline, its name on the hub or a header tell it apart."""

from dataclasses import replace

from modules.facts import ClipFacts, KnownModel, hub_model_by_name
from modules.facts._networks import VIDEO_VAE_2
from modules.facts.wan import FACTS as WAN

_MODEL = "Wan-AI/Wan2.2-TI2V-5B-Diffusers"
_TRANSFORMER = {
    "in_channels": 48, "out_channels": 48, "num_attention_heads": 24, "ffn_dim": 14336, "num_layers": 30,
}  # fmt: skip

FACTS = replace(
    WAN,
    about="Wan 2.2 TI2V by Alibaba: 5 B parameters (10 GB in bf16), Apache 2.0.",
    popularity=9,
    resolution=960,  # 1280 x 704
    size_step=32,  # the autoencoder divides sides by 16
    pipelines=("WanPipeline with expand_timesteps",),
    clips=ClipFacts(step=4, rate=24.0, first_frame=True),
    models={
        _MODEL: KnownModel(
            {"transformer": _TRANSFORMER},
            VIDEO_VAE_2,
            WAN.models["Wan-AI/Wan2.1-T2V-14B-Diffusers"].encoders,
        )
    },
    layers=(),
    hub_model_of=hub_model_by_name({}, _MODEL),
    file=WAN.file and replace(WAN.file, is_rarer=True),
    architecture="wan-2.2-ti2v",
    architectures=("wan-2.2-ti2v", "wan2.2-ti2v", "wan_2.2_5b"),
    code="https://github.com/Wan-Video/Wan2.2",
    aliases=("wan22_5b", "wan2_2_5b", "wan_2_2_5b", "wan_2_2_ti2v", "wan2_2_ti2v", "wan22_ti2v", "ti2v"),
    blocks={(): 30},
    simple_tuner={"ti2v-5b-2.2": _MODEL},
    musubi_module="",
    diffusion_pipe=("wan", "ti2v"),
)
