"""FLUX.1 Kontext: the layers and files of FLUX.1 dev; its pipeline, its name on the hub or a header tell it apart."""

from dataclasses import replace

from modules.facts import ReferenceFacts, hub_model_by_name
from modules.facts.flux import FACTS as FLUX
from modules.facts.flux import MUSUBI_LAYERS

# PREFERRED_KONTEXT_RESOLUTIONS of diffusers' pipeline, at which the model was trained: width, height
_TALL = ((672, 1568), (688, 1504), (720, 1456), (752, 1392), (800, 1328), (832, 1248), (880, 1184), (944, 1104))
_SIZES = (*_TALL, (1024, 1024), *((width, height) for height, width in reversed(_TALL)))

FACTS = replace(
    FLUX,
    about="FLUX.1 Kontext dev by Black Forest Labs: 12 B parameters (24 GB in bf16), non-commercial. Edits images.",
    popularity=8,
    pipelines=("FluxKontextPipeline",),
    references=ReferenceFacts(most=1, side=1024, sizes=_SIZES),
    models={"black-forest-labs/FLUX.1-Kontext-dev": FLUX.models["black-forest-labs/FLUX.1-dev"]},
    layers=(),
    hub_model_of=hub_model_by_name({}, "black-forest-labs/FLUX.1-Kontext-dev"),
    file=FLUX.file and replace(FLUX.file, is_rarer=True),
    architecture="flux-1-kontext-dev",
    architectures=("flux-1-kontext",),
    variant=None,
    musubi_module="lora_flux",
    musubi_layers=MUSUBI_LAYERS,
    diffusion_pipe=("flux", "kontext"),
    aliases=("flux_kontext", "flux1_kontext", "flux_1_kontext", "kontext", "flux_kontext_dev"),
    kohya_file="",
    simple_tuner={"kontext": "black-forest-labs/FLUX.1-Kontext-dev"},
    simple_tuner_assisted=(),
)
